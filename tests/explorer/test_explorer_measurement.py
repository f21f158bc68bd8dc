"""What the page shows is what theory and automatic differentiation say: every control, every design, every sentence."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import quadform as qf
from quadform.answers.attention import PARTS
from quadform.answers.live import LiveAnswer
from quadform.answers.numbers import number, percent, times
from quadform.applications.attention.measure import problem_of
from quadform.applications.attention.question import AttentionQuestion
from quadform.applications.problem import toy_problem
from quadform.core.designs import DESIGNS
from quadform.curvature.operators import functional, gauss_newton, hessian
from quadform.curvature.risk import Risk
from quadform.explorer import State, measure, words_as_tokens
from quadform.explorer.cost import ASK, ON_RELEASE, Cost, Size
from quadform.explorer.data import LARGEST_UPLOAD, MOST_UPLOADS, Given, Uploads, read
from quadform.explorer.door import packed
from quadform.explorer.formulas import formula, typeset
from quadform.explorer.heat import DETAILS, cells_of, heat
from quadform.explorer.measurement import low_rank_eigenvalues, with_spectrum
from quadform.explorer.python import snippet
from quadform.explorer.stack import Stack
from quadform.explorer.state import ALONE, RANGES, ControlError
from quadform.explorer.telling import tell
from quadform.explorer.texts import EN, KO
from quadform.explorer.tour import PRESETS, TOUR, Step
from quadform.explorer.view import Shown, histogram, view
from quadform.propagation.collapse import token_cosine
from quadform.theory.kronecker import kronecker_errors

#: States a closed form answers, one for every control.
CLOSED = [
    State(),
    State(scale=0.05),
    State(temperature=3.0),
    State(sink=4.0),
    State(tokens=3),
    State(dim=5),
    State(attention="linear", temperature=2.0),
    State(factor="single", sink=1.0),
    State(data="text", text="a rose is a rose", dim=4),
    State(seed=7),
]


def layer_by_hand(state: State):
    """The closed form of a state, written out with the public names."""
    tokens = min(state.tokens, len(state.text.split())) if state.data == "text" else state.tokens
    X, W_Q, W_K, W_V, Y = qf.toy(tokens=tokens, d_model=state.dim, seed=state.seed)
    X = words_as_tokens(state.text, state.dim, state.seed) if state.data == "text" else X
    bias = torch.zeros(tokens, tokens, dtype=torch.float64)
    bias[:, 0] = state.sink
    if state.attention == "linear":
        return qf.theory.LinearAttentionLayer(state.scale * X, W_Q, W_K, W_V, Y, temperature=state.temperature)
    options = {"mask": bias, "temperature": state.temperature}
    if state.factor == "single":
        return qf.theory.MergedLayer(state.scale * X, W_Q @ W_K.T, W_V, Y, d_K=state.dim, **options)
    return qf.attention_hessian(state.scale * X, W_Q, W_K, W_V, Y, **options)


@pytest.mark.parametrize("state", CLOSED, ids=lambda s: str(s.changes()))
def test_every_control_of_one_layer_is_theorys_number(state: State) -> None:
    """H, its extreme eigenvalues, its block norms and the attention are those of the layer built by hand."""
    record, layer = measure(state), layer_by_hand(state)
    H = layer.hessian().dense()
    assert record.inputs["route"] == "closed"
    assert torch.allclose(
        record.tensors["H_o"] + record.tensors["H_f"], H, rtol=1e-12, atol=1e-14 * float(H.abs().max())
    )
    lam = torch.linalg.eigvalsh(H)
    for name, i in (("lambda_min", 0), ("lambda_max", -1)):
        assert record.scalars[name].value == pytest.approx(float(lam[i]), rel=1e-9, abs=1e-12)
    for key in (k for k in record.scalars if k.startswith("norm/")):
        _, part, block = key.split("/")
        want = layer.dense(part, *block.split(",")).norm()
        assert record.scalars[key].value == pytest.approx(float(want), rel=1e-9, abs=1e-13)
    assert record.scalars["autodiff_error"].value < 1e-10


@pytest.mark.parametrize(
    "change", [{}, {"attention": "linear"}, {"factor": "single"}, {"sink": 2.0, "temperature": 0.7}]
)
def test_a_stack_of_one_layer_is_the_closed_form(change: dict) -> None:
    """Attention alone at depth 1, made by the blocks of nn and autodiff, has the H_o, H_f and A of the closed form."""
    state = State(tokens=4, dim=3, **change)
    problem = toy_problem(tokens=4, d_model=3)
    H_o, H_f = Stack.of(state, problem, {}).parts()
    layer = layer_by_hand(state)
    for got, want in ((H_o, layer.outer_operator()), (H_f, layer.functional_operator())):
        assert torch.allclose(got, want.dense(), atol=1e-12)
    assert torch.allclose(Stack.of(state, problem, {}).pattern()[0], measure(state).tensors["A"], atol=1e-14)


def test_linear_attention_with_one_matrix_is_exact() -> None:
    """The combination without a closed form: H is `jacfwd(grad)` of the layer written out."""
    state = State(tokens=3, dim=2, attention="linear", factor="single")
    p = toy_problem(tokens=3, d_model=2, attention="linear", factor="single")
    record = measure(state)
    assert record.inputs["route"] == "autodiff"
    want = torch.func.jacfwd(torch.func.grad(lambda w: p.loss(p.space.unflatten(w))))(p.space.flatten(p.weights))
    assert torch.allclose(record.tensors["H_o"] + record.tensors["H_f"], want, atol=1e-12)


def test_two_layers_by_hand() -> None:
    """Depth 2, second and first layer: `jacfwd(grad)` of softmax attention applied twice."""
    state = State(tokens=3, dim=2, depth=2, temperature=1.5, sink=1.0)
    stack = Stack.of(state, toy_problem(tokens=3, d_model=2), {})
    weights = [dict(block.attn.named_parameters()) for block in stack.model.layers]
    for layer in (1, 2):

        def loss(flat: torch.Tensor, layer: int = layer) -> torch.Tensor:
            X = stack.X
            for i, W in enumerate(weights):
                W = dict(zip(W, flat.view(3, 2, 2), strict=True)) if i == layer - 1 else W
                T = (X @ W["W_Q"]) @ (X @ W["W_K"]).T / (1.5 * math.sqrt(2))
                X = (T + torch.tensor([1.0, 0.0, 0.0])).softmax(-1) @ X @ W["W_V"]
            return (X - stack.Y).square().mean()

        flat = torch.stack([weights[layer - 1][name].detach() for name in ("W_Q", "W_K", "W_V")]).flatten()
        want = torch.func.jacfwd(torch.func.grad(loss))(flat)
        record = measure(State(**state.json() | {"layer": layer}))
        assert torch.allclose(record.tensors["H_o"] + record.tensors["H_f"], want, atol=1e-12)


@pytest.mark.parametrize("design", ["pre-ln", "post-ln", "sas-p", "no-skip"])
def test_designs_agree_with_the_curvature_room(design: str) -> None:
    """H, H_o and H_f of a layer of a stack are those of `curvature` on the same blocks."""
    state = State(tokens=3, dim=4, depth=2, layer=2, design=design, scale=0.7)
    stack = Stack.of(state, toy_problem(tokens=3, d_model=4), {})

    def run(params, batch):
        return stack.output(torch.cat([params[name].flatten() for name in stack.weights]))

    risk = Risk(run, lambda F, batch: (F - batch[1]).square().mean(), (stack.X, stack.Y), stack.weights, quiet=True)
    H_o, H_f = stack.parts()
    assert torch.allclose(H_o, gauss_newton(risk).dense(), atol=1e-10)
    assert torch.allclose(H_f, functional(risk).dense(), atol=1e-10)
    assert torch.allclose(H_o + H_f, hessian(risk).dense(), atol=1e-10)


@pytest.mark.parametrize("design", [ALONE, *DESIGNS])
def test_every_design_can_be_looked_at(design: str) -> None:
    """Every design in every layer gives finite numbers, symmetric matrices, a psd outer part and its token cosines."""
    state = State(tokens=3, dim=2, depth=2, layer=2, design=design)
    record = measure(state)
    for name in ("H_o", "H_f"):
        assert torch.allclose(record.tensors[name], record.tensors[name].T)
    assert float(LiveAnswer(with_spectrum(record, "outer")).eigenvalues("outer")[0]) > -1e-9
    assert all(math.isfinite(e.value) for n, e in record.scalars.items() if n != "ceiling_sgd")
    stack = Stack.of(state, toy_problem(tokens=3, d_model=2), {})
    want = torch.stack([token_cosine(X) for X in stack.streams()])
    assert torch.allclose(record.tensors["cosine"], want, atol=1e-12)
    view(record, state, None, Shown(lang="ko"))


def test_slopes_are_the_papers_for_small_inputs() -> None:
    """At scale 0.02 the live slopes are 6, 4, 2 (outer) and 5, 3 (functional)."""
    s = measure(State(scale=0.02)).scalars
    for part in ("outer", "functional"):
        for block in ("W_Q,W_Q", "W_K,W_K", "W_V,W_Q", "W_V,W_V", "W_V,W_K"):
            if s[f"paper/{part}/{block}"].value:
                assert s[f"slope/{part}/{block}"].value == pytest.approx(s[f"paper/{part}/{block}"].value, abs=0.02)
    assert "slope/functional/W_V,W_V" not in s


@pytest.mark.parametrize("state", [State(scale=3.0, sink=2.0, temperature=0.5), State(factor="single"), State(depth=2)])
def test_entropies_along_the_scale_are_those_of_its_patterns(state: State) -> None:
    """The entropy of the attention measured at the ends and in the middle of the slider, each scale by itself."""
    t = measure(state).tensors
    for i in (0, 12, 24):
        alone = measure(replace(state, scale=float(t["scales"][i]))).scalars["entropy"].value
        assert float(t["growth_entropy"][i]) == pytest.approx(alone, rel=1e-9, abs=1e-12)


def test_the_spectrum_of_a_part_is_added_where_it_is_looked_at() -> None:
    """A record begins with the eigenvalues of H; those of H_o and H_f are added once, and are the parts' own."""
    record = measure(State(tokens=3, dim=2))
    assert LiveAnswer(record).spectra == ("total",)
    for part, M in (("outer", record.tensors["H_o"]), ("functional", record.tensors["H_f"])):
        more = with_spectrum(record, part)
        assert torch.allclose(LiveAnswer(more).eigenvalues(part), torch.linalg.eigvalsh(M), rtol=1e-12, atol=1e-14)
        assert with_spectrum(more, part) is more


@given(st.integers(1, 24), st.integers(0, 24), st.integers(0, 3))
def test_eigenvalues_of_low_rank(n: int, rank: int, seed: int) -> None:
    """Of J^T J with few rows of J, from a thin factor; of a matrix of full rank or of both signs, from itself."""
    J = torch.randn(rank, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    indefinite = torch.diag_embed(torch.randn(n, generator=torch.Generator().manual_seed(seed)).double())
    for M in (J.T @ J, indefinite, torch.zeros(n, n, dtype=torch.float64)):
        right = torch.linalg.eigvalsh(M)
        assert (low_rank_eigenvalues(M) - right).abs().max() <= 1e-12 * max(1.0, float(right.abs().max()))


def test_slopes_of_a_stack_reach_over_its_switches() -> None:
    """Half a per cent around a closed form, ten around a stack, where ReLUs switch: the slope of those norms."""
    for state, reach in ((State(), 0.005), (State(depth=2, design="pre-ln"), 0.1)):
        record = measure(state)
        assert [math.log(s) for s in record.inputs["fit_range"]] == pytest.approx([-reach, reach])
        low, high = (measure(replace(state, scale=s)).scalars for s in record.inputs["fit_range"])
        name = "total/W_Q,W_Q"
        rise = math.log(high[f"norm/{name}"].value / low[f"norm/{name}"].value)
        assert record.scalars[f"slope/{name}"].value == pytest.approx(rise / (2 * reach), rel=1e-6)


@pytest.mark.parametrize("step", TOUR, ids=lambda s: s.name)
def test_the_tour_tells_what_the_numbers_say(step: Step) -> None:
    """Its conclusion is said at its end, where the numbers bear it; every number of its sentence is the record's."""
    start, end = measure(step.start), measure(step.end)
    for t in (EN, KO):
        so = t(f"told_{step.name}_so")
        assert tell(step.name, end, start, t).endswith(so)
        if step.name != "scale":  # slopes are the same at both ends of small inputs
            assert so not in tell(step.name, start, start, t)
        assert "×1," not in tell(step.name, start, start, t)  # nothing has moved yet
        assert "×1." not in tell(step.name, start, start, t)
    s, was = end.scalars, start.scalars

    def ratio(name: str) -> str:
        return times(s[name].value / was[name].value)

    def power(name: str) -> str:
        return f"{s[f'slope/{name}'].value:.1f}".replace("-", "−")

    wanted = {
        "scale": lambda: [power("outer/W_Q,W_Q"), power("functional/W_Q,W_Q"), power("outer/W_V,W_V")],
        "saturation": lambda: [percent(s["entropy"].value), ratio("norm/total/W_Q,W_Q"), ratio("norm/total/W_V,W_V")],
        "temperature": lambda: [
            percent(was["entropy"].value),
            percent(s["entropy"].value),
            number(s["lambda_max"].value),
        ],
        "softmax": lambda: ["0, 0, 0", "6.0 to 6.0"],
        "norm": lambda: [ratio("lambda_max"), f"{max(e.value for n, e in was.items() if 'slope/total' in n):.1f}"],
        "depth": lambda: [*(number(float(end.tensors["cosine"][i])) for i in (0, -1)), ratio("lambda_max")],
        "sink": lambda: [percent(s["first_key"].value), ratio("moment/M2"), ratio("norm/total/W_K,W_K")],
    }[step.name]()
    for text in wanted:
        assert text in tell(step.name, end, start, EN), text


def test_no_sentence_of_the_tour_holds_a_number_of_its_own() -> None:
    """Numbers come in through places: the rest of a template has no digit but that of a name (M2) and an exact 0."""
    for t in (EN, KO):
        for key, sentence in t.sentences.items():
            if key.startswith(("tour_", "told_")) and not key.startswith(("tour_step",)):
                rest = re.sub(r"\{\w+\}|M2|정확히 0", "", sentence)
                assert not re.search(r"\d|[⁰¹²³⁴-⁹]", rest), key


def test_bars_are_as_long_as_their_percentages() -> None:
    """The bar of a block is its share of the strongest norm, the number beside it; an exact zero has none."""
    state = State()
    record = measure(state)
    for part in PARTS:
        cells = view(with_spectrum(record, part), state, None, Shown(part=part))["blocks"]["cells"]
        strongest = max(cell["value"] for cell in cells.values())
        for block, cell in cells.items():
            assert cell["bar"] == pytest.approx(record.scalars[f"norm/{part}/{block}"].value / strongest, abs=1e-15)
            if cell["share"].endswith(" %"):
                assert cell["share"] == percent(cell["bar"])
    assert cells["W_V,W_V"] == {"norm": "exactly 0", "value": 0.0, "bar": 0.0, "share": ""}


@pytest.mark.parametrize("state", [*PRESETS.values(), *CLOSED], ids=lambda s: str(s.changes()))
def test_the_python_of_a_state_runs(state: State) -> None:
    """The script prints the smallest and largest eigenvalue of the record."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(snippet(state), "page", "exec"), {})
    low, high = map(float, said.getvalue().split())
    s = measure(state).scalars
    assert (low, high) == pytest.approx((s["lambda_min"].value, s["lambda_max"].value), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_python_of_an_upload_runs(depth: int, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the file beside it."""
    monkeypatch.chdir(tmp_path)
    np.save("tokens.npy", np.random.default_rng(0).normal(size=(4, 3)))
    uploads = Uploads()
    name = uploads.add(read((tmp_path / "tokens.npy").read_bytes(), "tokens.npy"))
    state = State(data="upload", upload=name, depth=depth, scale=0.5)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(snippet(state, ("X",)), "page", "exec"), {})
    s = measure(state, uploads).scalars
    assert float(said.getvalue().split()[1]) == pytest.approx(s["lambda_max"].value, rel=1e-9)


# --- data -------------------------------------------------------------------------------------------------------------
def test_the_same_word_is_the_same_token() -> None:
    X = words_as_tokens("a rose is a rose", dim=3)
    assert X.shape == (5, 3)
    assert torch.equal(X[0], X[3])
    assert not torch.equal(X[0], X[1])
    assert torch.equal(words_as_tokens("a rose is a rose", dim=3, most=2), X[:2])


def test_uploads_are_read_and_measured() -> None:
    """.npy, .csv and .safetensors of the same tokens are the same upload; given weights are the layer's."""
    from safetensors.torch import save

    p = toy_problem(tokens=4, d_model=3, d_k=2, d_v=5, seed=3)
    uploads, blob = Uploads(), io.BytesIO()
    np.save(blob, p.X.numpy())
    csv = "\n".join(",".join(repr(float(v)) for v in row) for row in p.X)
    names = {uploads.add(read(b, f)) for b, f in ((blob.getvalue(), "a.npy"), (csv.encode(), "b.csv"))}
    names.add(uploads.add(read(save({"X": p.X}), "c.safetensors")))
    assert len(names) == 1
    whole = uploads.add(read(save({"X": p.X, "Y": p.Y, **p.weights}), "d.safetensors"))
    record = measure(State(data="upload", upload=whole), uploads)
    assert torch.allclose(record.tensors["H_o"] + record.tensors["H_f"], p.autodiff(), atol=1e-12)
    with pytest.raises(ControlError, match="as wide as the tokens"):
        measure(State(data="upload", upload=whole, depth=2), uploads)


@pytest.mark.parametrize(
    ("blob", "name", "match"),
    [
        (b"", "x.npy", "cannot be read"),
        (b"1,2\n3", "x.csv", "cannot be read"),
        (b"1,nan", "x.csv", "not finite numbers"),
        (b"\x80\x04K\x01.", "x.npy", "cannot be read"),
        (b"1", "x.pkl", "give a .npy"),
        (b"1", "", "give a .npy"),
        (b"{}", "x.safetensors", "cannot be read"),
        (("1 " * 49).encode(), "x.csv", "1 × 49; the page takes at most 64 × 48"),
        (b"1" * (LARGEST_UPLOAD + 1), "x.csv", "at most 1,000,000"),
    ],
)
def test_bad_uploads_are_refused_at_their_control(blob: bytes, name: str, match: str) -> None:
    with pytest.raises(ControlError, match=match) as caught:
        read(blob, name)
    assert caught.value.control == "upload"


def test_a_pickle_in_a_npy_is_not_opened() -> None:
    blob = io.BytesIO()
    np.save(blob, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ControlError, match="cannot be read"):
        read(blob.getvalue(), "x.npy")


def test_given_shapes_must_fit() -> None:
    X = torch.ones(3, 2, dtype=torch.float64)
    for wrong in (
        {"Y": X.T},
        {"W_V": X},
        {"W_Q": torch.ones(2, 2)},
        {"W_Q": torch.ones(2, 2), "W_K": torch.ones(2, 3)},
    ):
        with pytest.raises(ControlError):
            Given({"X": X, **wrong})
    with pytest.raises(ControlError, match="no X"):
        Given({"Y": X})


def test_old_uploads_leave() -> None:
    uploads = Uploads()
    names = [
        uploads.add(Given({"X": torch.full((1, 1), float(i), dtype=torch.float64)})) for i in range(MOST_UPLOADS + 1)
    ]
    with pytest.raises(ControlError, match="no longer in memory"):
        uploads.get(names[0])
    assert uploads.get(names[-1]).shape == (1, 1)
    with pytest.raises(ControlError, match="No file has been uploaded"):
        uploads.get("")


# --- the size guard ---------------------------------------------------------------------------------------------------
def test_the_guard_waits_asks_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small: now. Above 0.3 s: on release. Above 3 s: when confirmed. Above the memory: refused, the limit named."""
    cost, uploads = Cost(), Uploads()

    def verdict(final: bool = False, confirmed: bool = False, **state) -> str:
        s = State(**state)
        return cost.verdict(s, Size.of(s, uploads), final, confirmed)

    assert verdict() == "now"
    assert verdict(dim=24) == "release"
    assert verdict(dim=24, final=True) == "now"
    assert verdict(dim=40) == verdict(dim=40, final=True) == "ask"
    assert verdict(dim=40, final=True, confirmed=True) == "now"
    monkeypatch.setattr("quadform.explorer.cost.free_bytes", lambda device: 2e8)
    with pytest.raises(ControlError, match="The largest width that fits: 21") as caught:
        verdict(dim=40, final=True, confirmed=True)
    assert caught.value.control == "dim"
    assert verdict(dim=21) == "release"


def test_the_guard_learns_from_answers() -> None:
    """Three times slower than thought: the prediction rises towards it, and never beyond what was seen."""
    cost, state = Cost(), State()
    size = Size.of(state, Uploads())
    first = cost.predict(state, size)
    for _ in range(12):
        cost.learn(state, size, 3 * first)
    assert cost.predict(state, size) == pytest.approx(3 * first, rel=1e-3)
    assert ON_RELEASE < ASK


# --- what is shown ----------------------------------------------------------------------------------------------------
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(-12, 3))
def test_every_eigenvalue_is_in_one_bin(values: list[float], exponent: int) -> None:
    """Counts sum to the eigenvalues beyond the tolerance; every one lies in a bin; bins do not overlap."""
    lam = torch.tensor(values, dtype=torch.float64).sort().values * 10.0**exponent
    tolerance = 1e-14 * float(lam.abs().max())
    bins = histogram(lam, tolerance)
    assert sum(n for _, _, n in bins) == int((lam.abs() > tolerance).sum())
    assert all(b <= c for (_, b, _), (c, _, _) in itertools.pairwise(bins))
    for v in lam[lam.abs() > tolerance].tolist():
        assert any(a <= v <= b for a, b, _ in bins)


def test_formulas_are_set_like_the_reports() -> None:
    """Symbols slanted, indices below, transposes and squares above, words and signs on the line; nothing is lost."""
    assert typeset("s² Σ x xᵀ ⊗ W_Kᵀ N") == [
        ("symbol", "s"), ("sup", "2"), ("plain", " Σ "), ("symbol", "x"), ("plain", " "), ("symbol", "x"), ("sup", "⊤"),
        ("plain", " ⊗ "), ("symbol", "W"), ("sub", "K"), ("sup", "⊤"), ("plain", " "), ("symbol", "N"),
    ]  # fmt: skip
    assert typeset("M2") == [("symbol", "M"), ("sub", "2")]


def test_every_block_has_a_formula_with_numbers() -> None:
    """Softmax, linear and merged: no block without lines; the numbers are the record's; zero blocks say 0."""
    for state in (State(), State(attention="linear"), State(factor="single"), State(depth=2)):
        record = measure(state)
        for key in (k for k in record.scalars if k.startswith("norm/")):
            _, part, block = key.split("/")
            shown = formula(LiveAnswer(record), part, block)
            assert shown.lines
            if state.closed and part == "functional":
                assert (shown.lines[0].endswith("= 0")) == (record.scalars[key].value == 0)
            if state.closed and part == "total":
                assert shown.numbers


@pytest.mark.parametrize("change", [{}, {"factor": "single"}, {"attention": "linear"}])
def test_the_picture_is_means_of_blocks_then_rows_then_entries(change: dict) -> None:
    """blocks: mean |entry| of H(a, b), cut out by hand; rows: of the rows of the weights; entries: H itself."""
    state = State(tokens=3, dim=3, **change)
    record = measure(state)
    read = LiveAnswer(record)
    for part in PARTS:
        M, at = read.matrix(part), read.space.slices()
        names = list(read.space.names)
        blocks, _ = cells_of(M, read, "blocks")
        rows, _ = cells_of(M, read, "rows")
        for i, a in enumerate(names):
            for j, b in enumerate(names):
                cut = M[at[a], at[b]].abs()
                assert float(blocks[i, j]) == pytest.approx(float(cut.mean()), rel=1e-12, abs=1e-15)
                want = cut.reshape(3, 3, 3, 3).mean((1, 3))
                assert torch.allclose(rows[3 * i : 3 * i + 3, 3 * j : 3 * j + 3], want, rtol=1e-12)
        entries, tile = cells_of(M, read, "entries")
        assert tile == 1
        assert torch.equal(entries, M)


def test_colours_have_one_range_for_all_parts() -> None:
    """H, H_o and H_f are coloured over the same decades, which hold the largest value of each."""
    state = State(scale=3.0)
    record = measure(state)
    for detail in DETAILS:
        pictures = [heat(LiveAnswer(record), part, detail, EN) for part in PARTS]
        (low, high), *others = (p["range"] for p in pictures)
        assert others == [[low, high]] * 2
        largest = max(float(np.abs(np.frombuffer(p["cells"], np.float32)).max()) for p in pictures)
        assert 10.0 ** (high - 1) < largest <= 10.0**high


def test_the_headline_says_what_moved() -> None:
    """The control with both values, the ratio of lambda_max; nothing when nothing moved; B against A when pinned."""
    a, b = State(), State(scale=2.0)
    records = {s: measure(s) for s in (a, b)}

    def said(state: State, other: State, pinned: bool = False, lang: str = "en") -> str:
        return view(records[state], state, (records[other], other), Shown(lang=lang, pinned=pinned))["headline"]

    ratio = records[b].scalars["lambda_max"].value / records[a].scalars["lambda_max"].value
    assert said(b, a).startswith(
        f"Input scale 1 → 2: λ_max 3.04 → {records[b].scalars['lambda_max'].value:.0f} (×{ratio:.0f})"
    )
    assert said(a, a) == "Same state: nothing moved by more than 1 %."
    assert said(b, a, pinned=True).startswith("B against A, Input scale 1 → 2")
    assert said(b, a, lang="ko").startswith("입력 크기 1 → 2: λ_max 3.04 →")


def test_block_norms_are_compared_with_the_strongest() -> None:
    """The largest norm says so; every other one its share of it; a block that is exactly 0 says that."""
    state = State(attention="linear")
    record = measure(state)
    for part in PARTS:
        found = view(with_spectrum(record, part), state, None, Shown(part=part))["blocks"]
        norms = {b: record.scalars[f"norm/{part}/{b}"].value for b in found["cells"]}
        most = max(norms.values())
        for block, cell in found["cells"].items():
            share = (
                ""
                if norms[block] == 0
                else "strongest"
                if norms[block] == most
                else f"{100 * norms[block] / most:.0f} %"
            )
            assert cell["share"] == share
            assert (cell["norm"] == "exactly 0") == (norms[block] == 0)


def test_extreme_states_are_shown() -> None:
    """One token of width one; a flat Hessian; the largest scale: everything is drawn, nothing is NaN."""
    for state in (
        State(tokens=1, dim=1),
        State(design="rezero"),
        State(scale=30.0, temperature=0.1),
        State(scale=0.01),
    ):
        record = measure(state)
        for detail in DETAILS:
            assert isinstance(packed(view(record, state, None, Shown(detail=detail))), bytes)
    assert set(RANGES) >= {"scale", "temperature", "sink", "tokens", "dim", "depth"}


def test_errors_of_kfac_and_shampoo_stand_beside_the_block():
    """Those of theory/, exact, in the words of a selected block; no such sentence where they are not known."""
    state = State(tokens=4, dim=3)
    record = measure(state)
    asked = AttentionQuestion(tokens=4, d_model=3, seed=state.seed, vary=None)
    wanted = kronecker_errors(problem_of(asked).layer())
    assert LiveAnswer(record).kronecker == {f"{W},{W}": of for W, of in wanted.items()}
    told = view(record, state, None, Shown())["selected"]
    assert f"K-FAC is off by {percent(wanted['W_Q']['K-FAC expand'])} of H_o" in told["W_Q,W_Q"]["facts"][-1]
    assert not any("K-FAC" in fact for fact in told["W_Q,W_K"]["facts"])
    assert LiveAnswer(measure(State(tokens=4, dim=3, factor="single"))).kronecker == {}
