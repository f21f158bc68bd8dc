"""The measurement behind `quadform attention`: its numbers agree with independent ways to them."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.applications.attention import attention, attention_hessian, toy, vary
from quadform.applications.attention.growth import PAPER, _log_log_slopes, entropy
from quadform.applications.attention.question import BLOCKS, AttentionQuestion, Vary
from quadform.applications.machine import MATRICES
from quadform.applications.problem import Problem, toy_problem
from quadform.core.errors import InputError
from quadform.core.record import Record
from quadform.theory.growth import GrowthModel, LinearAttention, SoftmaxAttention

SIZES = st.integers(1, 5)


def run(**fields: Any) -> Record:
    """The record of a question."""
    return attention(**fields, progress=False).record


@pytest.fixture(scope="module")
def record() -> Record:
    return run(tokens=8, d_model=5, d_k=4, d_v=3, vary="scale=0.01:0.1:6")


def oracle(problem: Problem) -> torch.Tensor:
    """H (P, P) by jacfwd(grad) of the loss written out here."""
    space = problem.space

    def loss(flat: torch.Tensor) -> torch.Tensor:
        W = space.unflatten(flat)
        X = problem.scale * problem.X
        product = W["W_QK"] if problem.factor == "single" else W["W_Q"] @ W["W_K"].T
        T = X @ product @ X.T / (problem.temperature * math.sqrt(problem.W_Q.shape[1]))
        if problem.mask == "causal":
            T = T + torch.full_like(T, -math.inf).triu(1)
        A = T if problem.attention == "linear" else T.softmax(-1)
        return (A @ X @ W["W_V"] - problem.Y).square().mean()

    return torch.func.jacfwd(torch.func.grad(loss))(space.flatten(problem.weights))


KINDS = [
    {"attention": "softmax"},
    {"attention": "softmax", "mask": "causal"},
    {"attention": "linear"},
    {"attention": "softmax", "factor": "single", "mask": "causal"},
]


@given(SIZES, SIZES, SIZES, SIZES, st.sampled_from(KINDS))
def test_record_holds_the_hessian(tokens: int, dim: int, d_k: int, d_v: int, kind: dict[str, str]) -> None:
    """H_o + H_f of the record is the Hessian of the loss, to 1e-12 of its largest entry."""
    options = {
        "tokens": tokens,
        "d_model": dim,
        "d_k": d_k,
        "d_v": d_v,
        "seed": tokens,
        "scale": 0.7,
        "temperature": 1.3,
    }
    got = run(**options, **kind, vary="none")
    want = oracle(toy_problem(**options, **kind))  # type: ignore[arg-type]
    H = got.tensors["H_o"] + got.tensors["H_f"]
    assert (H - want).abs().max() <= 1e-12 * want.abs().max().clamp_min(1e-12)
    assert got.scalars["autodiff_error"].value <= 1e-12
    assert torch.allclose(got.tensors["eigenvalues"], torch.linalg.eigvalsh(want), atol=1e-11, rtol=0)


def test_scalars_follow_from_the_tensors(record: Record) -> None:
    """Every scalar of the record is what its tensors say."""
    s, t = record.scalars, record.tensors
    H = t["H_o"] + t["H_f"]
    assert s["lambda_max"].value == pytest.approx(float(t["eigenvalues"][-1]))
    assert s["lambda_min"].value == pytest.approx(float(t["eigenvalues"][0]))
    assert s["ceiling_sgd"].value == pytest.approx(2 / s["lambda_max"].value)
    assert s["trace"].value == pytest.approx(float(t["eigenvalues"].sum()))
    assert s["negative_share"].value == pytest.approx(
        float((t["eigenvalues"] < -1e-10 * H.abs().max()).double().mean())
    )
    assert s["entropy"].value == pytest.approx(-float((t["A"] * t["A"].log()).sum(-1).mean()) / math.log(8))
    starts, names = {}, [name for name, _ in record.inputs["space"]]
    for name, shape in record.inputs["space"]:
        starts[name] = slice(sum(s.stop - s.start for s in starts.values()), 0)
        starts[name] = slice(starts[name].start, starts[name].start + math.prod(shape))
    assert names == ["W_Q", "W_K", "W_V"]
    for part, matrix in (("outer", t["H_o"]), ("functional", t["H_f"]), ("total", H)):
        for block in BLOCKS:
            a, b = block.split(",")
            want = float(matrix[starts[a], starts[b]].norm())
            assert s[f"norm/{part}/{block}"].value == pytest.approx(want, rel=1e-10, abs=1e-12)


def test_flat_directions_are_not_negative() -> None:
    """One token: attention is constant, the query and key rows of H are 0, and no eigenvalue counts as negative."""
    got = run(tokens=1, d_model=3, vary="none")
    assert got.scalars["norm/total/W_Q,W_Q"].value == 0
    assert got.scalars["negative_share"].value == 0
    assert got.scalars["lambda_max"].value > 0


def test_slopes_are_the_papers(record: Record) -> None:
    """Slopes over [.01, .1], Y ~ N(0, 1) fixed, 8 tokens: within 0.05 of 6 6 6 4 4 2 and 5 3 5 3 3."""
    for part in ("outer", "functional"):
        for block in BLOCKS:
            paper = record.scalars[f"paper/{part}/{block}"].value
            fitted = record.scalars.get(f"slope/{part}/{block}")
            if paper == 0:
                assert fitted is None
            else:
                assert fitted is not None
                assert fitted.value == pytest.approx(paper, abs=0.05)
                assert fitted.stderr is not None
    assert [PAPER["softmax"]["outer"][b] for b in BLOCKS] == [6, 6, 6, 4, 4, 2]
    assert [PAPER["softmax"]["functional"][b] for b in BLOCKS] == [5, 3, 5, 3, 3, 0]


def test_slopes_of_the_single_matrix() -> None:
    """With one matrix W_QK the functional query-key block grows as X^5: its X^3 was the curvature of the product."""
    got = run(d_model=4, factor="single", vary="scale=0.01:0.1:6")
    for part, table in PAPER["single"].items():
        for block, power in table.items():
            fitted = got.scalars.get(f"slope/{part}/{block}")
            assert (fitted.value if fitted else 0) == pytest.approx(power, abs=0.05)
    assert got.inputs["space"] == [["W_QK", [4, 4]], ["W_V", [4, 4]]]


@pytest.mark.parametrize(("kind", "stage"), [("softmax", SoftmaxAttention()), ("linear", LinearAttention())])
def test_tables_are_what_the_growth_calculus_derives(kind: str, stage: object) -> None:
    """The exponents of the paper, stored as its statement, equal those derived from the layer's own formula."""
    model = GrowthModel(stage)
    for part, table in PAPER[kind].items():
        for block, power in table.items():
            growth = getattr(model, part)(*block.split(","))
            assert (model.exponent(growth, "X") if growth.terms else 0) == power


def test_slopes_of_linear_attention() -> None:
    """Without the softmax every outer block grows as X^6 and the functional ones as X^3; QQ, KK, VV are exactly 0."""
    got = run(d_model=4, attention="linear", vary="scale=0.01:0.1:6")
    slopes = {b: got.scalars[f"slope/outer/{b}"].value for b in BLOCKS}
    assert slopes == pytest.approx(dict.fromkeys(BLOCKS, 6.0), abs=1e-6)
    functional = {
        b: got.scalars[f"slope/functional/{b}"].value for b in BLOCKS if f"slope/functional/{b}" in got.scalars
    }
    assert functional == pytest.approx({"W_Q,W_K": 3.0, "W_V,W_Q": 3.0, "W_V,W_K": 3.0}, abs=0.05)
    assert "growth_entropy" not in got.tensors


def test_growth_at_one_scale_is_the_norm_there(record: Record) -> None:
    """A point of the sweep equals a measurement at that scale."""
    at = float(record.tensors["scales"][3])
    there = run(tokens=8, d_model=5, d_k=4, d_v=3, scale=at, vary="none")
    for part in ("outer", "functional"):
        want = [there.scalars[f"norm/{part}/{b}"].value for b in BLOCKS]
        assert record.tensors[f"growth_{part}"][3].tolist() == pytest.approx(want, rel=1e-12)
    assert float(record.tensors["growth_entropy"][3]) == pytest.approx(there.scalars["entropy"].value)
    undecided = 1 - there.tensors["A"].amax(-1).min()
    assert float(record.tensors["growth_undecided"][3]) == pytest.approx(float(undecided), abs=1e-12)


def test_record_survives_the_disk(record: Record, tmp_path: Path) -> None:
    """Saved and loaded, inputs, scalars and tensors are the same."""
    back = Record.load(record.save(tmp_path / "r"))
    assert back.inputs == record.inputs
    assert back.scalars == record.scalars
    assert all(torch.equal(back.tensors[n], t) and t.dtype == torch.float64 for n, t in record.tensors.items())


def test_large_hessian_is_checked_on_some_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the comparison with autodiff takes some columns and says how many."""
    from quadform.applications.attention import measure

    monkeypatch.setattr(measure, "_FULL_CHECK", 10)
    monkeypatch.setattr(measure, "_COLUMNS", 5)
    checked = run(tokens=3, d_model=3, vary="none").scalars["autodiff_error"]
    assert checked.note == "5 of 27 columns"
    assert checked.value <= 1e-12


def test_autodiff_error_sees_a_wrong_hessian() -> None:
    """A relative change of 1e-6 in one entry is seen."""
    from quadform.applications.attention.measure import autodiff_error

    problem = toy_problem(tokens=3, d_model=2)
    H = problem.layer().hessian().dense()
    H[0, 1] += 1e-6 * H.abs().max()
    assert autodiff_error(problem, H).value == pytest.approx(1e-6, rel=1e-3)


# --- Python ---------------------------------------------------------------------------------------------------------
def test_toy_attention_hessian_and_vary() -> None:
    """The journey of a teacher: toy -> Hessian -> one block is exactly 0 -> slopes 6 and 2."""
    layer = attention_hessian(*toy(tokens=8, d_model=4, seed=0))
    assert layer.functional("value", "value").abs().max() == 0
    sweep = vary(layer, "scale", 0.01, 0.3)
    slopes = sweep.slopes()
    assert slopes["W_Q", "W_Q"] == pytest.approx(6, abs=0.05)
    assert slopes["W_V", "W_V"] == pytest.approx(2, abs=0.05)
    assert sweep.slopes("functional")["W_Q", "W_K"] == pytest.approx(3, abs=0.05)
    with pytest.raises(InputError, match="Did you mean `outer`"):
        sweep.slopes("outr")


def test_vary_keeps_mask_temperature_and_targets() -> None:
    """Factor 1 gives the layer's own norms, with a causal mask, a temperature and a batch."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *s: torch.randn(*s, generator=generator, dtype=torch.float64)  # noqa: E731
    layer = attention_hessian(
        draw(2, 3, 2), draw(2, 2), draw(2, 2), draw(2, 3), draw(2, 3, 3), mask="causal", temperature=0.7
    )
    sweep = vary(layer, "scale", 1.0, 2.0, points=2)
    want = [float(layer.functional(*b.split(",")).norm()) for b in BLOCKS]
    assert sweep.norms["functional"][0].tolist() == pytest.approx(want, rel=1e-10)


def test_vary_refuses_what_it_cannot_scale() -> None:
    """Another loss, another quantity, another object: a text, not an attribute error."""
    X, W_Q, W_K, W_V, _ = toy(3, 2)
    other = attention_hessian(X, W_Q, W_K, W_V, torch.zeros(3, dtype=torch.long), loss="cross-entropy")
    with pytest.raises(InputError, match="loss='mse'"):
        vary(other, "scale", 0.1, 1)
    with pytest.raises(InputError, match="Did you mean `scale`"):
        vary(attention_hessian(*toy(3, 2)), "scal", 0.1, 1)


def test_entropy_ends() -> None:
    """Uniform rows have entropy 1, one-hot rows 0, one token 0."""
    assert entropy(torch.full((4, 4), 0.25)) == pytest.approx(1)
    assert entropy(torch.eye(4)) == 0
    assert entropy(torch.ones(1, 1)) == 0


@given(st.floats(1e-3, 1.0), st.floats(1.01, 1e3), st.integers(2, 9))
def test_grid_is_geometric(lo: float, ratio: float, points: int) -> None:
    """Both ends are exact, neighbours have one ratio, and the text form reads back."""
    hi = lo * ratio
    grid = Vary("scale", lo, hi, points).grid
    assert len(grid) == points
    assert (grid[0], grid[-1]) == (lo, hi)
    ratios = [b / a for a, b in pairwise(grid)]
    assert ratios == pytest.approx([ratio ** (1 / (points - 1))] * (points - 1), rel=1e-9)
    assert Vary.parse(f"scale={lo!r}:{hi!r}:{points}") == Vary("scale", lo, hi, points)


def test_the_share_of_negative_eigenvalues_is_a_bound_in_float32() -> None:
    """Eigenvalues within rounding of zero have no sign: the share of the others is at most that of float64."""
    config = {"tokens": 8, "d_model": 8, "vary": "scale=0.01:0.1:3"}
    exact, rounded = (run(**config, dtype=dtype).scalars["negative_share"] for dtype in ("float64", "float32"))
    assert (exact.kind, rounded.kind) == ("exact", "bound")
    assert 0.8 * exact.value < rounded.value <= exact.value


def test_toy_streams_are_independent() -> None:
    """Another d_v moves W_V and Y only; float32 is the same problem rounded."""
    one, other = toy_problem(tokens=4, d_model=3), toy_problem(tokens=4, d_model=3, d_v=2)
    assert torch.equal(one.X, other.X)
    assert torch.equal(one.W_Q, other.W_Q)
    assert not torch.equal(one.W_Q, one.W_K)
    rounded = toy_problem(tokens=4, d_model=3, dtype=torch.float32)
    assert torch.equal(rounded.X, one.X.float())


@pytest.mark.parametrize(("mask", "factor"), [("none", "qk"), ("causal", "qk"), ("none", "single")])
def test_a_sink_draws_attention_and_stays_exact(mask: str, factor: str) -> None:
    """`--sink b` adds b to every score of the first token: its share rises to 1, and autodiff agrees."""
    shares = []
    for sink in (0.0, 2.0, 8.0):
        record = run(tokens=5, d_model=3, sink=sink, mask=mask, factor=factor, vary="none")
        assert record.scalars["autodiff_error"].value < 1e-12
        shares.append(float(record.tensors["A"][:, 0].mean()))
    assert shares == sorted(shares)
    assert shares[-1] > 0.95
    assert record.inputs["sink"] == 8.0


def test_a_plan_of_the_exact_hessian() -> None:
    """Memory as the guard counts it, the time of one Hessian times what follows."""
    found = attention.plan(tokens=4, d_model=4, vary="none")
    assert found.bytes == MATRICES * 8 * AttentionQuestion(tokens=4, d_model=4).parameters ** 2
    assert found.seconds > 0


def test_the_error_of_a_slope_is_that_of_least_squares() -> None:
    """Slope and standard error of log y over log x, as scipy's linregress has them."""
    from scipy.stats import linregress

    x = torch.logspace(-2, 0, 6, dtype=torch.float64)
    y = x**3 * torch.tensor([1.0, 1.2, 0.9, 1.1, 1.0, 0.8], dtype=torch.float64)
    columns = torch.stack([y, x**2 * y.flip(0)], 1)
    for found, of in zip(_log_log_slopes(x, columns), columns.unbind(1), strict=True):
        wanted = linregress(x.log().numpy(), of.log().numpy())
        assert (found.value, found.stderr) == pytest.approx((wanted.slope, wanted.stderr), rel=1e-9)


def test_time_up_ends_a_sweep_and_it_is_resumed(tmp_path: Path) -> None:
    """The record holds the scales that were measured and says so; resumed, it is that of an undisturbed run."""
    fields: dict[str, Any] = {"tokens": 3, "d_model": 2, "vary": "scale=0.1:1:3"}
    first = attention(**fields, out=tmp_path, max_time=1e-9, progress=False)
    assert first.partial
    assert not first.ok
    assert "growth_outer" not in first.record.tensors
    again = attention(**fields, out=tmp_path, resume=True, progress=False)
    whole = run(**fields)
    assert again.ok
    assert again.record.inputs == whole.inputs
    assert again.record.tensors.keys() == whole.tensors.keys()
    assert all(torch.equal(t, whole.tensors[n]) for n, t in again.record.tensors.items())
