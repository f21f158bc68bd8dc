"""`qf.precond`: the Hessian as preconditioners see it, against dense matrices; refusals; resuming; its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadform as qf
from quadform import preconditioners as pre
from quadform.answers import Precond
from quadform.applications.attention.measure import problem_of
from quadform.applications.attention.question import AttentionQuestion
from quadform.applications.precond.measure import participation
from quadform.core.errors import FileError, InputError, UnknownName
from quadform.core.operator import Dense
from quadform.estimate import density
from quadform.theory import kronecker_errors


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def squared(out: Tensor, batch: Any) -> Tensor:
    return (out - batch[1]).square().sum(1).mean() / 2


def linear(width: int = 4, out: int = 2) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A quadratic problem of one matrix."""
    model = nn.Linear(width, out, bias=False).double()
    scales = torch.logspace(0, -2, width, dtype=torch.float64)
    return model, (drawn(20, width) * scales, drawn(20, out, seed=1))


def small() -> tuple[nn.Module, list[tuple[Tensor, Tensor]], Any]:
    """A small classifier on three batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    batches = [(drawn(6, 3, seed=i), torch.arange(6) % 3) for i in range(3)]
    return model, batches, lambda out, batch: nn.functional.cross_entropy(out, batch[1])


def test_with_the_hessian_itself_both_ends_are_1() -> None:
    """P = H of a quadratic: all eigenvalues are 1, the best step is 1 and leads to the minimum."""
    model, batch = linear()
    found = qf.precond(model, [batch], squared, methods=("none", "blocks"), damping=0, progress=False)
    none, exact = found.seen
    assert exact.top.value == pytest.approx(1, abs=1e-9)
    assert exact.bottom.value == pytest.approx(1, abs=1e-9)
    assert exact.ratio is not None
    assert exact.ratio.value == pytest.approx(1)
    assert found.roundest == exact
    assert exact.participation.value == pytest.approx(8)
    assert exact.step == pytest.approx(1)
    assert none.top.value > 100 * none.bottom.value > 0
    best = torch.linalg.lstsq(batch[0], batch[1]).solution.mT
    fall = squared(batch[0] @ model.weight.detach().mT, batch) - squared(batch[0] @ best.mT, batch)
    assert exact.decrease is not None
    assert exact.decrease.value == pytest.approx(float(fall))
    assert exact.measured == pytest.approx(float(fall))
    assert none.decrease is not None
    assert none.decrease.value < exact.decrease.value
    assert "exact blocks" in found.said.en
    assert "its largest eigenvalue is 1 times its smallest" in found.said.en


def test_exact_blocks_of_a_block_diagonal_problem() -> None:
    """Two tensors that do not meet: their blocks are all of H."""
    a, b = drawn(5, 3), drawn(6, 2, seed=1)
    params = {"u": drawn(3, seed=2), "v": drawn(2, seed=3)}

    def model(p: dict[str, Tensor], batch: Any) -> Tensor:
        return (torch.cat([a @ p["u"], 10 * (b @ p["v"])]) - batch)[None]

    batch = drawn(11, seed=4)
    loss = lambda out, _: out.square().sum() / 2  # noqa: E731
    found = qf.precond(model, [batch], loss, params=params, methods=("none", "blocks"), damping=0, progress=False)
    x = found.by("blocks")
    assert x is not None, found.refused
    assert x.top.value == pytest.approx(1, abs=1e-9)
    assert x.bottom.value == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    "name", ["diagonal", "adam", "adafactor", "shampoo", "soap", "kfac", "ekfac", "psgd", "blocks"]
)
def test_ends_and_fall_are_those_of_dense_matrices(name: str) -> None:
    """Both ends, the directions, slope and curvature of every preconditioner, from P as a matrix."""
    model, batches, loss = small()
    risk = qf.Risk(model, loss, batches)
    each = [qf.Risk(model, loss, [batch]).gradient() for batch in batches]
    made: dict[str, Any] = {
        "diagonal": lambda: pre.diagonal(qf.gauss_newton(risk)),
        "adam": lambda: pre.adam_after(each),
        "adafactor": lambda: pre.adafactor_after(each),
        "shampoo": lambda: pre.shampoo(each),
        "soap": lambda: pre.soap(each),
        "kfac": lambda: pre.kfac(risk),
        "ekfac": lambda: pre.ekfac(risk),
        "psgd": lambda: pre.psgd(qf.hessian(risk), steps=60),
        "blocks": lambda: pre.block_diagonal(qf.gauss_newton(risk)),
    }
    P, H = made[name]().dense(), qf.hessian(risk).dense()
    n = len(P)
    x = qf.precond(model, batches, loss, methods=(name,), damping=0.1, probes=n, tol=1e-8, progress=False).by(name)
    assert x is not None
    P = P + x.damping * P.trace() / n * torch.eye(n, dtype=P.dtype)
    values, U = torch.linalg.eigh(P)
    S = (U * values**-0.5) @ U.mT
    lam = torch.linalg.eigvalsh(S @ H @ S)
    g = risk.space.flatten(risk.gradient())
    d = S @ S @ g
    assert x.decrease is not None
    assert x.measured is not None
    assert x.top.value == pytest.approx(float(lam[-1]), rel=1e-6)
    assert x.bottom.value == pytest.approx(float(lam[0]), rel=1e-6)
    assert x.participation.value == pytest.approx(float(lam.square().sum() ** 2 / lam.pow(4).sum()), rel=1e-6)
    assert x.slope == pytest.approx(float(g @ d), rel=1e-6)
    assert x.curvature == pytest.approx(float(d @ H @ d), rel=1e-6)
    assert x.decrease.value == pytest.approx(float((g @ d) ** 2 / (2 * d @ H @ d)), rel=1e-6)
    assert x.ceiling is not None
    assert x.ceiling.value == pytest.approx(float(2 / lam[-1]), rel=1e-6)
    step = risk.space.unflatten(float(g @ d / (d @ H @ d)) * d)
    after = risk.value({k: t - step[k] for k, t in risk.params.items()})
    assert x.measured == pytest.approx(float(risk.value() - after), rel=1e-6)


def test_each_is_shown_at_the_best_damping_of_the_grid() -> None:
    """The fall of every damping is that of dense matrices; the best is the largest that the loss follows by half."""
    model, batches, loss = small()
    risk, grid = qf.Risk(model, loss, batches), (1e-3, 1e-1, 10.0)
    found = qf.precond(model, batches, loss, methods=("none", "adam", "kfac"), damping=grid, progress=False)
    x = found.by("kfac")
    assert x is not None
    P, H = pre.kfac(risk).dense(), qf.hessian(risk).dense()
    g, eye = risk.space.flatten(risk.gradient()), torch.eye(len(P), dtype=P.dtype)
    falls = {}
    for share in grid:
        d = torch.linalg.solve(P + share * P.trace() / len(P) * eye, g)
        step = risk.space.unflatten(float(g @ d / (d @ H @ d)) * d)
        after = risk.value({k: t - step[k] for k, t in risk.params.items()})
        if d @ H @ d > 0:
            falls[share] = (float((g @ d) ** 2 / (2 * d @ H @ d)), float(risk.value() - after))
    assert 1e-3 not in falls  # with little damping it leads where the loss curves downwards
    assert [share for share, *_ in x.grid] == list(grid)
    for share, fall, measured in x.grid:
        assert (fall, measured) == (pytest.approx(falls[share], rel=1e-6) if share in falls else (None, None))
    followed = [share for share, (fall, measured) in falls.items() if measured >= 0.5 * fall]
    assert x.damping == max(followed, key=lambda share: falls[share][0])
    adam, none = found.by("adam"), found.by("none")
    assert adam is not None
    assert none is not None
    assert [share for share, *_ in adam.grid] == [0.0, *grid]  # it has an epsilon of its own
    assert [share for share, *_ in none.grid] == [0.0]
    assert "0.001, 0.1, 10" in found.said.en


def saddle(p: dict[str, Tensor], batch: Any) -> Tensor:
    """x^2 - y^2 / 2 as the output of a function model."""
    return (p["x"] ** 2 - p["y"] ** 2 / 2).sum()[None]


@pytest.mark.parametrize(("y", "endless"), [(0.1, False), (3.0, True)])
def test_where_h_is_indefinite_it_is_said_and_only_steps_with_an_end_are_ranked(y: float, endless: bool) -> None:
    """At (1, y): g = (2, -y), g H g = 8 - y^2; the end is there for y^2 < 8."""
    params = {"x": torch.ones(1, dtype=torch.float64), "y": torch.full((1,), y, dtype=torch.float64)}
    loss = lambda out, _: out.sum()  # noqa: E731
    found = qf.precond(saddle, [torch.zeros(1)], loss, params=params, methods=("none", "psgd"), progress=False)
    none = found.by("none")
    assert none is not None
    assert none.bottom.value == pytest.approx(-1)
    assert none.downwards.value == pytest.approx(1 / 3)
    assert (none.decrease is None) == endless
    assert [x.name for x, _ in found.ranked].count("none") == (not endless)
    assert "H has negative eigenvalues here (down to \N{MINUS SIGN}1" in found.said.en
    assert ("there is no best step to rank" in found.said.en) == endless


def test_the_density_is_that_of_the_eigenvalues() -> None:
    model, batches, loss = small()
    found = qf.precond(model, batches, loss, methods=("none",), progress=False)
    lam = torch.linalg.eigvalsh(qf.hessian(qf.Risk(model, loss, batches)).dense()).abs()
    for x, share, error in found.shares("none")[1:]:
        assert share == pytest.approx(float((lam >= x * lam.max()).double().mean()))
        assert error == 0


def test_the_error_of_the_fall_is_that_of_the_batches() -> None:
    """Equal batches leave no error; with others it is the change when a batch has more weight, to first order."""
    model, batches, loss = small()
    same = qf.precond(model, [batches[0]] * 3, loss, methods=("none",), progress=False).seen[0].decrease
    assert same is not None
    assert same.error is not None
    assert same.error < 1e-12
    found = qf.precond(model, batches, loss, methods=("none",), progress=False).seen[0].decrease
    risk = qf.Risk(model, loss, batches)
    d, H = risk.space.flatten(risk.gradient()), qf.hessian(risk).dense()
    alone = [qf.Risk(model, loss, [batch]) for batch in batches]
    pairs = torch.tensor(
        [[float(risk.space.flatten(r.gradient()) @ d), float(d @ qf.hessian(r).dense() @ d)] for r in alone]
    )

    def fall(weights: Tensor) -> Tensor:
        s, c = (weights.double()[:, None] * pairs.double()).sum(0) / weights.sum()
        return s**2 / (2 * c)

    assert torch.allclose(fall(torch.ones(3)), (d @ d) ** 2 / (2 * d @ H @ d))
    change = torch.autograd.functional.jacobian(fall, torch.ones(3, dtype=torch.float64))
    error = (change.square().sum() * 3 / 2).sqrt()
    assert found is not None
    assert found.error == pytest.approx(float(error), rel=1e-5)


def test_directions_are_counted_with_their_error() -> None:
    lam = torch.logspace(0, -2, 60, dtype=torch.float64) * (-1) ** torch.arange(60)
    Q = torch.linalg.qr(drawn(60, 60))[0]
    A = Dense((Q * lam) @ Q.mT, qf.Space((("w", (60,)),)), symmetric=True)
    found = participation(density(A, 14, 4))
    truth = float(lam.square().sum() ** 2 / lam.pow(4).sum())
    assert found.error is not None
    assert 0 < found.error < 0.5 * truth
    assert abs(found.value - truth) < 4 * found.error


def test_curvature_lies_in_one_direction_at_least() -> None:
    """(tr A^2)^2 / tr A^4 >= 1 of every matrix, also where few probes miss most of one sharp direction."""
    lam = torch.tensor([1.0, *[0.0] * 59], dtype=torch.float64)
    missed = False
    for seed in range(4):
        Q = torch.linalg.qr(drawn(60, 60, seed=seed))[0]
        seen = density(Dense((Q * lam) @ Q.mT, qf.Space((("w", (60,)),)), symmetric=True), 2, 3, seed=seed)
        missed |= float(seen.n * (seen.weights * seen.nodes**2).sum(1).mean()) < 1  # tr A^2 = 1 by these probes
        assert participation(seen).value >= 1
    assert missed


def test_what_cannot_be_made_is_a_row_with_its_reason() -> None:
    """Exact blocks of too many parameters; PSGD where H has a tensor of zeros; SOAP of one gradient."""
    model = nn.Sequential(nn.Linear(70, 70), nn.Linear(70, 1)).double()
    batch = (drawn(3, 70), drawn(3, 1))
    found = qf.precond(
        model, [batch], squared, methods=("none", "soap", "blocks"), products=10, probes=2, steps=3, progress=False
    )
    assert [x.name for x in found.seen] == ["none"]
    assert set(found.refused) == {"soap", "blocks"}
    assert "one product per parameter" in found.refused["blocks"]
    assert "got one gradient" in found.refused["soap"]
    assert "not made" in str(found)


def test_adam_is_read_from_its_state_and_code_in_a_file_is_refused(tmp_path: Path) -> None:
    model, batches, loss = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in batches:
        optimizer.zero_grad()
        loss(model(batch[0]), batch).backward()
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    state = tmp_path / "optimizer.pt"
    asked: dict[str, Any] = {"methods": ("adam",), "damping": 0, "tol": 1e-8, "progress": False}
    found = qf.precond(model, batches, loss, optimizer_state=state, **asked)
    assert "optimizer.pt at step 3" in str(found)
    risk = qf.Risk(model, loss, batches)
    own = dict(model.named_parameters())
    v = risk.space.flatten({n: optimizer.state[p]["exp_avg_sq"] for n, p in own.items()})
    g = risk.space.flatten(risk.gradient())
    P = ((0.999 * v + 0.001 * g**2) / (1 - 0.999**4)).sqrt() + 1e-8
    lam = torch.linalg.eigvalsh(qf.hessian(risk).dense() / (P[:, None] * P).sqrt())
    assert found.seen[0].top.value == pytest.approx(float(lam[-1]), rel=1e-6)

    class Odd:
        def __reduce__(self) -> Any:
            return print, ("code",)

    torch.save({"state": {}, "param_groups": [Odd()]}, tmp_path / "odd.pt")
    with pytest.raises(FileError, match="cannot be read without running code in it") as refused:
        qf.precond(model, batches, loss, optimizer_state=tmp_path / "odd.pt", progress=False)
    assert "\n" not in str(refused.value)


def stepped(kind: Any, **options: Any) -> tuple[Any, Any, nn.Module, list[tuple[Tensor, Tensor]], Any]:
    """An optimizer that has made three steps, what its gradients were, its model, batches and loss."""
    model, batches, loss = small()
    optimizer, gradients = kind(model.parameters(), lr=1e-3, **options), []
    for batch in batches:
        optimizer.zero_grad()
        loss(model(batch[0]), batch).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
    return optimizer, gradients, model, batches, loss


@pytest.mark.parametrize("under", ["optimizer", "optimizer_state_dict", "optimizer_states"])
def test_a_state_inside_a_checkpoint_is_found(tmp_path: Path, under: str) -> None:
    optimizer, _, model, batches, loss = stepped(torch.optim.Adam)
    state = optimizer.state_dict()
    torch.save({"epoch": 3, under: [state] if under.endswith("s") else state}, tmp_path / "checkpoint.pt")
    asked: dict[str, Any] = {"methods": ("adam",), "progress": False}
    found = qf.precond(model, batches, loss, optimizer_state=tmp_path / "checkpoint.pt", **asked)
    assert "checkpoint.pt at step 3" in str(found)
    torch.save(state, tmp_path / "optimizer.pt")  # as in the folder of a Hugging Face checkpoint
    assert qf.precond(model, batches, loss, optimizer_state=tmp_path, **asked).seen == found.seen


def test_adafactor_of_torch_is_read_from_a_file(tmp_path: Path) -> None:
    optimizer, _, model, batches, loss = stepped(torch.optim.Adafactor)
    torch.save(optimizer.state_dict(), tmp_path / "a.pt")
    asked: dict[str, Any] = {"optimizer_state": tmp_path / "a.pt", "damping": 0, "tol": 1e-8, "progress": False}
    x = qf.precond(model, batches, loss, methods=("adafactor",), **asked).by("adafactor")
    risk = qf.Risk(model, loss, batches)
    P = pre.adafactor(optimizer, risk).dense().diagonal()
    lam = torch.linalg.eigvalsh(qf.hessian(risk).dense() / (P[:, None] * P).sqrt())
    assert x is not None
    assert x.top.value == pytest.approx(float(lam[-1]), rel=1e-6)
    with pytest.raises(InputError, match="holds the state of adafactor; name adafactor"):
        qf.precond(model, batches, loss, methods=("adam",), **asked)


def test_adafactor_of_transformers_is_read_from_a_file(tmp_path: Path) -> None:
    """The step of its state, with momentum and clipping off, is g / P."""
    transformers = pytest.importorskip("transformers.optimization")
    options = {"scale_parameter": False, "relative_step": False, "clip_threshold": 1e9, "decay_rate": -0.8}
    optimizer, gradients, model, batches, loss = stepped(transformers.Adafactor, **options)
    torch.save(optimizer.state_dict(), tmp_path / "a.pt")
    states = {n: optimizer.state[p] for n, p in model.named_parameters()}
    kind: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    P = pre.adafactor_of(optimizer.param_groups[0], states, qf.Risk(model, loss, batches).space, kind)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer, _, again, _, _ = stepped(transformers.Adafactor, **options)
    last = {n: p.detach() for n, p in again.named_parameters()}
    assert all(torch.equal(last[n], t) for n, t in before.items())
    update = P.inverse() @ gradients[-1]
    model, batches, loss = small()
    optimizer = transformers.Adafactor(model.parameters(), lr=1e-3, **options)
    for batch in batches[:2]:
        optimizer.zero_grad()
        loss(model(batch[0]), batch).backward()
        optimizer.step()
    for n, p in model.named_parameters():
        assert torch.allclose(p - 1e-3 * update[n], last[n], rtol=0, atol=1e-9)
    found = qf.precond(again, batches, loss, methods=("adafactor",), optimizer_state=tmp_path / "a.pt", progress=False)
    assert "Adafactor, its saved state" in str(found)


@pytest.mark.parametrize("key", ["pre_cond", "precond"])
def test_shampoo_is_read_from_the_factors_of_a_file(tmp_path: Path, key: str) -> None:
    """L_i = eps I + sum G G^T along each axis, as two packages save them: P = L_1^(1/k) kron L_2^(1/k)."""
    optimizer, gradients, model, batches, loss = stepped(torch.optim.SGD)
    state = optimizer.state_dict()
    for i, (n, p) in enumerate(model.named_parameters()):
        G = [g[n] for g in gradients]
        state["state"][i] = {
            f"{key}_{axis}": 1e-6 * torch.eye(size).double()
            + sum(g.movedim(axis, 0).reshape(size, -1) @ g.movedim(axis, 0).reshape(size, -1).mT for g in G)
            for axis, size in enumerate(p.shape)
        }
    torch.save(state, tmp_path / "s.pt")
    asked: dict[str, Any] = {"optimizer_state": tmp_path / "s.pt", "damping": 1e-2, "tol": 1e-8, "progress": False}
    x = qf.precond(model, batches, loss, methods=("shampoo",), **asked).by("shampoo")
    risk = qf.Risk(model, loss, batches)
    each = [pre.shampoo([{n: g[n]} for g in gradients], exponent=1 / p.dim()) for n, p in model.named_parameters()]
    P = pre.Blocks(each, risk.space).dense()
    P = P + 1e-2 * P.trace() / len(P) * torch.eye(len(P), dtype=P.dtype)
    lam = torch.linalg.eigvals(torch.linalg.solve(P, qf.hessian(risk).dense())).real
    assert x is not None
    assert x.top.value == pytest.approx(float(lam.max()), rel=1e-6)


def test_soap_is_read_from_a_file_and_is_not_taken_for_adam(tmp_path: Path) -> None:
    """P of the saved state is that of `pre.soap` after the same gradients; `lr` refuses the state as one of Adam."""
    package = pytest.importorskip("pytorch_optimizer")
    optimizer, gradients, model, batches, loss = stepped(package.SOAP, betas=(0.95, 0.95), weight_decay=0.0)
    torch.save(optimizer.state_dict(), tmp_path / "s.pt")
    asked: dict[str, Any] = {"optimizer_state": tmp_path / "s.pt", "damping": 1e-2, "tol": 1e-8, "progress": False}
    found = qf.precond(model, batches, loss, methods=("soap",), **asked)
    assert "SOAP, its saved bases" in str(found)
    P = pre.soap(gradients).dense()
    P = P + 1e-2 * P.trace() / len(P) * torch.eye(len(P), dtype=P.dtype)
    lam = torch.linalg.eigvals(torch.linalg.solve(P, qf.hessian(qf.Risk(model, loss, batches)).dense())).real
    assert found.seen[0].top.value == pytest.approx(float(lam.max()), rel=1e-6)
    with pytest.raises(InputError, match="holds no state of Adam"):
        qf.lr(model, batches, loss, state=tmp_path / "s.pt", progress=False)
    once, _, _, _, _ = stepped(package.SOAP, betas=(0.95, 0.95))
    once.param_groups[0]["step"] = 1
    torch.save(once.state_dict(), tmp_path / "once.pt")
    refused = qf.precond(model, batches, loss, methods=("soap",), **asked | {"optimizer_state": tmp_path / "once.pt"})
    assert "has seen one gradient" in refused.refused["soap"]


def test_refusals() -> None:
    model, batch = linear()
    with pytest.raises(UnknownName, match="Did you mean `kfac`"):
        qf.precond(model, [batch], squared, methods=("kfak",))
    with pytest.raises(InputError, match="at least one"):
        qf.precond(model, [batch], squared, methods=())
    with pytest.raises(InputError, match="none below 0"):
        qf.precond(model, [batch], squared, damping=(0.1, -1.0))
    with pytest.raises(InputError, match="is read for adam, adafactor, shampoo, soap"):
        qf.precond(model, [batch], squared, methods=("none",), optimizer_state="x.pt")


def test_a_run_that_is_cut_short_is_taken_up(tmp_path: Path) -> None:
    """With no time one preconditioner is measured; resumed, the record is that of one run."""
    model, batches, loss = small()
    asked: dict[str, Any] = {"methods": ("none", "adam", "kfac"), "progress": False}
    whole = qf.precond(model, batches, loss, **asked)
    found = qf.precond(model, batches, loss, **asked, out=tmp_path, max_time=1e-6)
    assert found.partial
    assert not found.ok
    assert len(found.seen) < 3
    assert "PARTIAL" in str(found)
    found = qf.precond(model, batches, loss, **asked, out=tmp_path, resume=True)
    assert found.ok
    assert found.record.scalars.keys() == whole.record.scalars.keys()
    for key, e in whole.record.scalars.items():
        assert found.record.scalars[key].value == pytest.approx(e.value, rel=1e-9)
    assert Precond.load(tmp_path).seen == found.seen


def test_the_shortest_time_leads_to_an_end(tmp_path: Path) -> None:
    """Every run adds a product or a piece, however little time it has."""
    model, batch = linear()
    asked: dict[str, Any] = {"methods": ("none", "adam"), "progress": False, "out": tmp_path, "max_time": 1e-6}
    found = qf.precond(model, [batch], squared, **asked)
    runs = 1
    while found.partial and runs < 30:  # two spectra of 8 dimensions
        found, runs = qf.precond(model, [batch], squared, **asked, resume=True), runs + 1
    assert not found.partial


def test_a_measured_difference_is_said_only_beyond_its_error() -> None:
    """Of two that are level within two standard errors the verdict is undecided and names both."""
    model, batches, loss = small()
    found = qf.precond(model, batches, loss, methods=("adam", "none", "kfac"), progress=False)
    (_, fall), *others = found.ranked
    level = [x.name for x, e in others if e.value + e.reach >= fall.value - fall.reach]
    assert ("may do as well" in found.said.en) == bool(level)
    (verdict,) = found.verdicts()
    adam = next(e for x, e in found.ranked if x.name == "adam")
    assert verdict.number.value == pytest.approx(fall.value / adam.value)


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_page_has_ends_and_bars(tmp_path: Path, lang: str) -> None:
    model, batches, loss = small()
    found = qf.precond(model, batches, loss, methods=("none", "adam"), progress=False)
    figure, lines = found.figures(lang).values()
    assert {(row["part"], row["share"]) for rows in lines.spec["datasets"].values() for row in rows} == {
        (x, share) for name in ("none", "adam") for x, share, _ in found.shares(name) if share > 0
    }
    rows = [row for rows in figure.spec["datasets"].values() for row in rows]
    assert {row["measured"] for row in rows if "measured" in row} == {x.measured for x in found.seen if x.decrease}
    assert {row["fall"] for row in rows if "fall" in row} == {x.decrease.value for x in found.seen if x.decrease}
    assert {row["size"] for row in rows if "size" in row} == {
        abs(e.value) for x in found.seen for e in (x.top, x.bottom)
    }
    assert found.report(tmp_path / "page.html", lang=lang).stat().st_size > 10_000


@pytest.mark.parametrize(("precond", "kinds"), [("kfac", 3), ("shampoo", 3)])
def test_attention_tells_the_error_of_kronecker_factors(precond: str, kinds: int) -> None:
    """The numbers of `theory.kronecker_errors` on the same head, and a row for each weight."""
    asked: dict[str, Any] = {"tokens": 5, "d_model": 4, "precond": precond, "vary": None, "seed": 3}
    found = qf.attention(**asked, progress=False)
    told = {key: e.value for key, e in found.record.scalars.items() if key.startswith("kronecker/")}
    errors = kronecker_errors(problem_of(AttentionQuestion(**asked)).layer())
    assert len(told) == 3 * kinds
    assert told == {
        f"kronecker/{w}/{k}": v for w, own in errors.items() for k, v in own.items() if f"kronecker/{w}/{k}" in told
    }
    assert "nearest" in str(found)
    assert "kronecker" not in str(qf.attention(tokens=3, d_model=2, vary=None, progress=False)).lower()
    with pytest.raises(InputError, match="softmax attention with W_Q and W_K"):
        qf.attention(attention="linear", precond=precond)
