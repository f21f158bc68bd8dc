"""What every process of a test does: `python at_work.py FOLDER WORLD=NAME,NAME,...` writes FOLDER/WORLD/RANK.json.

The processes are forked from one that has loaded torch. Every function here is one check of the processes against one
process alone (the same risk, not sharded, in this very process). It returns numbers; the tests say what they must be.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._decomp  # loaded before the processes are forked
import torch.distributed as dist
from torch import Tensor, nn

import quadform as qf
from quadform import distributed as qd
from quadform.applications.subject import Subject
from quadform.core.errors import QuadformError
from quadform.core.operator import Operator
from quadform.curvature import activation_hessian
from quadform.estimate import (
    block_norms,
    density,
    diagonal,
    eigenpairs,
    frobenius,
    matrix_function,
    singular_ends,
    solve,
    trace,
)
from quadform.testing import check_operator

sys.path.insert(0, str(Path(__file__).parents[1] / "estimate"))
from spectra import Spectrum, outliers

IGNORED = -100


# --- models and data ------------------------------------------------------------------------------------------------
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln, self.a, self.b = nn.LayerNorm(4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(self.ln(x))))


class Cube(torch.autograd.Function):
    """x^3 with a backward rule only."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * g


class BackwardOnly(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(Cube.apply(self.a(self.ln(x))))


class Causal(nn.Module):
    """A language model in the manner of Hugging Face: labels are shifted inside, -100 carries no loss."""

    class ForCausalLMLoss:
        __name__ = "ForCausalLMLoss"

    loss_function = ForCausalLMLoss()

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.net, self.head = nn.Embedding(7, 4), Net(), nn.Linear(3, 7)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.net(self.embed(input_ids)).cumsum(1))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def seeded(model: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return model().double()


def cross_entropy(out: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(out.flatten(0, -2), batch[1].flatten())


def rows_of(*lengths: int, seed: int = 1) -> list[Any]:
    """Batches of that many rows, 6 tokens each; two fifths of the labels are ignored."""
    g = torch.Generator().manual_seed(seed)
    out = []
    for n in lengths:
        x = torch.randn(n, 6, 4, generator=g, dtype=torch.float64)
        y = torch.randint(0, 3, (n, 6), generator=g)
        y[torch.rand(n, 6, generator=g) < 0.4] = IGNORED
        y[0, 0] = 1
        out.append((x, y))
    return out


def risk_of(*lengths: int) -> qf.Risk:
    return qf.Risk(seeded(Net), cross_entropy, rows_of(*lengths), quiet=True)


def vectors(space: Any, k: int = 3) -> dict[str, Tensor]:
    return space.random(k, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def apart(a: Any, b: Any) -> float:
    """The largest difference of two results, relative to the largest number in the second."""
    if isinstance(b, dict):
        return max(apart(a[n], b[n]) for n in b)
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-300))


def products_apart(A: Operator, B: Operator) -> float:
    V = vectors(B.domain)
    return apart(A.apply(V), B.apply(V))


# --- data that are split --------------------------------------------------------------------------------------------
def products(g: qd.Group) -> dict[str, Any]:
    whole = risk_of(5, 3, 2)
    risk = qd.shard(whole, g)
    found: dict[str, Any] = {"rows": sum(len(x) for x, _ in risk.batches), "weight": sum(risk.weights)}
    for make in (qf.hessian, qf.gauss_newton, qf.functional):
        found[make.__name__] = products_apart(make(risk), make(whole))
    found["split at a module"] = products_apart(qf.gauss_newton(risk, split="a"), qf.gauss_newton(whole, split="a"))
    H, alone = qf.hessian(risk), qf.hessian(whole)
    found["block"] = products_apart(H.block("a.*", "b.weight"), alone.block("a.*", "b.weight"))
    found["adjoint"] = products_apart(H.block("a.*", "b.weight").T, alone.block("a.*", "b.weight").T)
    found["sum"] = products_apart(2 * H - qf.gauss_newton(risk), 2 * alone - qf.gauss_newton(whole))
    for kind in ("empirical", "monte-carlo"):
        found[kind] = products_apart(qf.fisher(risk, kind=kind, samples=2), qf.fisher(whole, kind=kind, samples=2))
    found["value"] = apart(risk.value(), whole.value())
    found["gradient"] = apart(risk.gradient(), whole.gradient())
    moved = {n: 1.1 * t for n, t in whole.params.items()}
    found["gradient elsewhere"] = apart(risk.gradient(moved), whole.gradient(moved))
    one = risk_of(3)
    found["activation"] = products_apart(activation_hessian(qd.shard(one, g), "a"), activation_hessian(one, "a"))
    return found


def routes(g: qd.Group) -> dict[str, Any]:
    whole = risk_of(5, 3)
    risk, alone = qd.shard(whole, g), qf.hessian(whole)
    return {route: products_apart(qf.hessian(risk, route=route), alone) for route in ("traced", "auto")}


def contracts(g: qd.Group) -> dict[str, Any]:
    whole = risk_of(5, 2)
    risk = qd.shard(whole, g)
    for A in (qf.hessian(risk), qf.gauss_newton(risk), qf.fisher(risk), qf.hessian(risk).block("a.*", "b.*")):
        check_operator(A)
    check_operator(qd.spread(qf.hessian(whole), g))
    check_operator(qd.spread(qf.hessian(whole).block("a.*", "b.*"), g))
    return {"passed": 6}


def few_rows(g: qd.Group) -> dict[str, Any]:
    """Fewer rows than processes."""
    found = {}
    for name, lengths in {"one row": (1,), "rows in turn": (1, 1, 1)}.items():
        whole = risk_of(*lengths)
        risk = qd.shard(whole, g)
        H = qf.hessian(risk, route="auto")
        found |= {f"{name}, batches": len(risk.batches), name: products_apart(H, qf.hessian(whole))}
        found[f"{name}, fisher"] = products_apart(qf.fisher(risk), qf.fisher(whole))
        found[f"{name}, labels"] = products_apart(
            qf.fisher(risk, kind="monte-carlo"), qf.fisher(whole, kind="monte-carlo")
        )
        found[f"{name}, gradient"] = apart(risk.gradient(), whole.gradient())
        found[f"{name}, value"] = apart(risk.value(), whole.value())
    return found


def causal(g: qd.Group) -> dict[str, Any]:
    """Labels that are shifted and ignored; a model with a loss of its own that knows its terms."""
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 7, (5, 6), generator=draw)
    labels = ids.masked_fill(torch.rand(5, 6, generator=draw) < 0.5, IGNORED)
    labels[2, 1:] = IGNORED  # a row without a target
    batches = [{"input_ids": ids[:4], "labels": labels[:4]}, {"input_ids": ids[2:], "labels": labels[2:]}]
    whole = qf.Risk(seeded(Causal), None, batches, quiet=True)
    found = {"hugging face": products_apart(qf.hessian(qd.shard(whole, g)), qf.hessian(whole))}
    once = qf.Risk(seeded(BackwardOnly), cross_entropy, rows_of(5), quiet=True)
    risk = qd.shard(once, g)
    found |= {"no forward derivative": products_apart(qf.hessian(risk), qf.hessian(once)), "its note": risk.notes[-1]}
    ours = qf.nn.Transformer("pre-ln", depth=1, d_model=8, heads=2, vocab=7, seq_len=6, dtype=torch.float64, pad=0)
    padded = ids.masked_fill(torch.arange(6) > torch.arange(5)[:, None] + 1, 0)
    own = qf.Risk(ours, None, [{"tokens": padded}], quiet=True)
    risk = qd.shard(own, g)
    found |= {"ours": products_apart(qf.hessian(risk), qf.hessian(own)), "note": risk.notes[-1]}
    return found


def whole_batches(g: qd.Group) -> dict[str, Any]:
    """A loss in which rows see each other, and a batch whose tensors have no common axis."""

    def contrastive(out: Tensor, batch: Any) -> Tensor:
        flat = out.flatten(1)
        return nn.functional.cross_entropy(flat @ flat.T, torch.arange(len(flat)))

    found = {}
    whole = qf.Risk(seeded(Net), contrastive, rows_of(4, 3, 5), quiet=True)
    risk = qd.shard(whole, g)
    found["contrastive"] = products_apart(qf.hessian(risk), qf.hessian(whole))
    found["batches"] = len(risk.batches)

    def padded(out: Tensor, batch: Any) -> Tensor:  # label 2 carries no loss, which nobody else knows
        return nn.functional.cross_entropy(1e-3 * out.flatten(0, -2), batch[1].flatten(), ignore_index=2)

    draw = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 2, (4, 6), generator=draw).masked_fill(
        torch.arange(6) > torch.tensor([5, 1, 2, 0])[:, None], 2
    )
    whole = qf.Risk(seeded(Net), padded, (rows_of(4)[0][0], tokens), quiet=True)
    found["padding"] = products_apart(qf.hessian(qd.shard(whole, g)), qf.hessian(whole))
    counted = qf.Risk(seeded(Net), padded, whole.batches, count=lambda b: int((b[1] != 2).sum()), quiet=True)
    risk = qd.shard(counted, g)
    found |= {"counted": products_apart(qf.hessian(risk), qf.hessian(whole)), "counted, rows": len(risk.batches[0][0])}
    uneven = [(x, y, torch.ones(7)) for x, y in rows_of(4, 3, 5)]
    whole = qf.Risk(seeded(Net), cross_entropy, uneven, quiet=True)
    found["uneven"] = products_apart(qf.hessian(qd.shard(whole, g)), qf.hessian(whole))
    return found


def joined(g: qd.Group) -> dict[str, Any]:
    """Every process brings batches of its own."""
    every = [rows_of(2 + r, 1 + 2 * r, seed=10 + r) for r in range(g.world)]
    whole = qf.Risk(seeded(Net), cross_entropy, [b for batches in every for b in batches], quiet=True)
    risk = qd.join(qf.Risk(seeded(Net), cross_entropy, every[g.rank], quiet=True), g)
    found = {"hessian": products_apart(qf.hessian(risk), qf.hessian(whole))}
    found["fisher"] = products_apart(qf.fisher(risk), qf.fisher(whole))
    found["value"] = apart(risk.value(), whole.value())
    check_operator(qf.fisher(risk, kind="monte-carlo"))
    return found


def spread(g: qd.Group) -> dict[str, Any]:
    """Vectors that are dealt out: the same bits."""
    alone = qf.hessian(risk_of(3))
    A = qd.spread(alone, g)
    V = vectors(alone.domain, 5)
    calls = [0]
    inner = alone.apply

    def counted(V: Any) -> Any:
        calls[0] += next(iter(V.values())).shape[0]
        return inner(V)

    alone.apply = counted  # type: ignore[method-assign]
    image = A.apply(V)
    mine = calls[0]
    found: dict[str, Any] = {"vectors of 5": mine, "bits": all(torch.equal(image[n], t) for n, t in inner(V).items())}
    for method in ("hutchinson", "xtrace"):
        a, b = (trace(B, 12, method=method) for B in (A, alone))
        found[method] = [a.value == b.value, a.stderr == b.stderr, a.matvecs == b.matvecs]
    return found


# --- bases that are sliced ------------------------------------------------------------------------------------------
def operators(g: qd.Group) -> tuple[Operator, Operator]:
    """One operator twice: shared by the processes, and alone. Its dimension is a multiple of no world."""
    d = outliers(1201)
    return qd.spread(Spectrum(d), g), Spectrum(d)


def pairs_apart(a: Any, b: Any) -> dict[str, Any]:
    values = [[e.value for e in p.values] for p in (a, b)]
    dot = sum((a.vectors[n] * b.vectors[n]).flatten(1).sum(1) for n in b.vectors)
    return {
        "values": apart(*values),
        "vectors": float((dot.abs() - 1).abs().max()),
        "products": [a.products, b.products],
    }


def bases(g: qd.Group) -> dict[str, Any]:
    A, alone = operators(g)
    found: dict[str, Any] = {}
    start = vectors(alone.domain, 2)
    ways: dict[str, dict[str, Any]] = {
        "plain": {"top": 4, "bottom": 2},
        "restarted": {"top": 3, "bottom": 1, "rows": 16, "tol": 1e-8, "max_products": 200},
        "block": {"top": 4, "block": 3},
        "selective": {"top": 3, "reorthogonalise": "selective"},
        "start": {"top": 3, "start": start},
    }
    for name, options in list(ways.items())[: None if g.world == 2 else 2]:
        a, b = (eigenpairs(B, **options) for B in (A, alone))
        found |= {f"{name}/{what}": value for what, value in pairs_apart(a, b).items()}
    H, whole = qf.hessian(qd.shard(risk_of(5, 3), g)), qf.hessian(risk_of(5, 3))
    found |= {f"hessian/{n}": v for n, v in pairs_apart(*(eigenpairs(B, 3, 1) for B in (H, whole))).items()}
    return found


def slices(g: qd.Group) -> dict[str, Any]:
    """How much of the basis lies in this process."""
    from quadform.estimate.krylov import Krylov

    rows = torch.randn(5, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K = Krylov(11, 5, lambda i: rows[i], dtype=torch.float64, device=torch.device("cpu"), width=5, group=g)
    Q = g.whole(K.Q, 11)
    gram = Q @ Q.T
    seen = [list(row) for row in g.rows(K.Q, 11)]
    return {
        "entries": K.Q.numel(),
        "orthonormal": float((gram - torch.eye(5, dtype=torch.float64)).abs().max()),
        "rows": apart(seen, Q),
    }


def estimates(g: qd.Group) -> dict[str, Any]:
    A, alone = operators(g)
    found: dict[str, Any] = {}
    known = [eigenpairs(B, 2) for B in (A, alone)]
    for how in ("full", "selective", "none"):
        a, b = (density(B, 2, 8, known=k, reorthogonalise=how) for B, k in zip((A, alone), known, strict=True))
        found[f"density, {how}"] = max(apart(a.nodes, b.nodes), apart(a.weights, b.weights), float(a.note != b.note))
    numbers = {
        "trace": lambda B: (lambda e: [e.value, e.stderr])(trace(B, 16)),
        "hutch++": lambda B: (lambda e: [e.value, e.stderr])(trace(B, 16, method="hutch++")),
        "diagonal": lambda B: B.domain.flatten(diagonal(B, 6).value),
        "frobenius": lambda B: (lambda e: [e.value, e.stderr])(frobenius(B, 12)),
        "singular": lambda B: singular_ends(B, max_products=30).largest.value,
        "blocks": lambda B: block_norms(B, ["a", "b"], 4).value,
    }
    return found | {name: apart(f(A), f(alone)) for name, f in numbers.items()}


def solved(g: qd.Group) -> dict[str, Any]:
    """Systems and functions whose vectors lie in slices; a solve begun by all and gone on with by one."""
    A, alone = operators(g)
    b = vectors(alone.domain, 2)
    pairs = [eigenpairs(B, 2) for B in (A, alone)]
    found: dict[str, Any] = {}
    for method in ("cg", "block-cg", "minres", "lsmr")[: None if g.world == 2 else 1]:
        damping = -10.0 if method == "minres" else 8.0
        a, c = (solve(B, b, damping=damping, method=method, tol=1e-6) for B in (A, alone))
        x = [alone.domain.flatten(s.x) for s in (a, c)]
        found[method] = max(apart(*x), float(abs(a.products - c.products)), float(not a.converged))
    if g.world > 2:
        return found
    a, c = (solve(B, b, damping=8.0, method="cg", deflate=p) for B, p in zip((A, alone), pairs, strict=True))
    found["deflated"] = apart(*(alone.domain.flatten(s.x) for s in (a, c)))
    a, c = (matrix_function(B, b, "abs-inverse", damping=1.0, tol=1e-2) for B in (A, alone))
    found["function"] = apart(*(alone.domain.flatten(s.value) for s in (a, c)))

    def stop(done: int, *told: Any) -> None:
        if done >= 12:
            raise Stopped

    folder = Path(os.environ["QUADFORM_TEST_FOLDER"]) / "solved"
    options: dict[str, Any] = {"damping": -10.0, "tol": 1e-6}
    whole = solve(alone, b, **options)
    with contextlib.suppress(Stopped):
        solve(A, b, **options, resume=folder, progress=stop)
    g.any(False)
    if g.first:
        again = solve(alone, b, **options, resume=folder)
        found["gone on"] = apart(*(alone.domain.flatten(s.x) for s in (again, whole)))
        found["files"] = len(list(folder.iterdir()))
    g.any(False)
    return found


class Stopped(Exception):
    """The time is up, in every process at once."""


def resumed(g: qd.Group) -> dict[str, Any]:
    """Begun by these processes and gone on with by them, by one alone, and the other way round."""
    A, alone = operators(g)
    folder = Path(os.environ["QUADFORM_TEST_FOLDER"])
    options: dict[str, Any] = {"top": 3, "rows": 16, "tol": 1e-8, "max_products": 120}
    truth = [e.value for e in eigenpairs(alone, **options).values]

    def stop(done: int, *told: Any) -> None:
        if done >= 20:
            raise Stopped

    def begin(B: Operator, name: str) -> str | None:
        try:
            eigenpairs(B, **options, resume=folder / name, progress=stop)
        except Stopped:
            return str(folder / name)
        return None

    def go_on(B: Operator, name: str) -> list[Any]:
        first: list[int] = []
        p = eigenpairs(B, **options, resume=folder / name, progress=lambda done, *told: first.append(done))
        return [apart([e.value for e in p.values], truth), first[0]]

    begin(A, "same")
    found: dict[str, Any] = {"same": go_on(A, "same")}
    begin(A, "fewer")
    g.any(False)
    if g.first:
        found["fewer"] = go_on(alone, "fewer")
        begin(alone, "more")
    g.any(False)
    found["more"] = go_on(A, "more")
    found["files"] = sorted(p.name for p in (folder / "same").iterdir())
    try:
        eigenpairs(A, **{**options, "tol": 1e-4}, resume=folder / "same")
    except QuadformError as error:
        found["other settings"] = str(error)
    nodes = density(alone, 3, 6).nodes

    def stop_early(done: int, *told: Any) -> None:
        if done >= 9:
            raise Stopped

    with contextlib.suppress(Stopped):
        density(A, 3, 6, resume=folder / "density", progress=stop_early)
    found["density"] = apart(density(A, 3, 6, resume=folder / "density").nodes, nodes)
    return found


# --- processes that fail --------------------------------------------------------------------------------------------
def told(call: Any, *words: Any) -> list[Any]:
    """What an error says: its kind, its exit code, its text."""
    try:
        call(*words)
    except BaseException as error:
        return [type(error).__name__, getattr(error, "exit_code", None), str(error)]
    return ["nothing"]


def refusals(g: qd.Group) -> dict[str, Any]:
    found = {}
    risk = risk_of(4)
    torch.manual_seed(g.rank)
    other = qf.Risk(Net().double(), cross_entropy, rows_of(4), quiet=True)
    found["weights"] = told(qd.shard, other, g)
    found["data"] = told(qd.shard, qf.Risk(seeded(Net), cross_entropy, rows_of(4, seed=g.rank), quiet=True), g)
    H = qf.hessian(qd.shard(risk, g))
    draw = torch.Generator().manual_seed(g.rank)
    found["vectors"] = told(H.apply, risk.space.random(1, dtype=torch.float64, generator=draw))
    found["by"] = told(lambda: qd.shard(risk, g, by="columns"))
    wrapped = nn.parallel.DistributedDataParallel(seeded(Net))
    again = qf.Risk(wrapped, cross_entropy, rows_of(4), quiet=True)
    found["ddp"] = products_apart(qf.hessian(qd.shard(again, g)), qf.hessian(risk))
    return found


def failures(g: qd.Group) -> dict[str, Any]:
    """Groups of their own, in which the last process does something wrong."""
    last = g.rank == g.world - 1

    def in_product(error: BaseException) -> None:
        with qd.group(60) as h:
            A = qd.spread(Spectrum(outliers(60), before=boom if last else lambda count: None), h)
            eigenpairs(A, 2, resume=Path(os.environ["QUADFORM_TEST_FOLDER"]) / "failing")

    def boom(count: int) -> None:
        if count >= 6:
            raise error

    found: dict[str, Any] = {}
    error: BaseException = ValueError("boom\nsecond line")
    found["foreign"] = told(in_product, error)
    error = qf.core.errors.InputError("a bad word")
    found["own"] = told(in_product, error)
    error = KeyboardInterrupt()
    found["interrupted"] = told(in_product, error)

    def late() -> None:
        with qd.group(60):
            if last:
                raise ValueError("late")

    def together() -> None:
        with qd.group(60):
            raise ValueError(f"mine {g.rank}")

    def ways() -> None:
        with qd.group(60) as h:
            h.any(True) if last else h.sum(torch.ones(3))

    def silent() -> None:
        with qd.group(1) as h:
            if last:
                time.sleep(3)
            h.any(True)

    def parted() -> None:
        with qd.group(60) as h:
            told(lambda: h.any(True) if last else h.sum(torch.ones(3)))
            h.any(True)

    for call in (late, together, ways, parted, silent):
        begun = time.monotonic()
        found[call.__name__] = told(call)
        found[f"{call.__name__}, seconds"] = time.monotonic() - begun
    return found


def interrupted(g: qd.Group) -> dict[str, Any]:
    """Ctrl-C reaches one process only: all save together and stop, and what they saved is gone on with."""
    A, alone = operators(g)
    folder = Path(os.environ["QUADFORM_TEST_FOLDER"]) / "interrupted"

    def press(done: int, *more: Any) -> None:
        if g.rank == g.world - 1 and done == 9:
            os.kill(os.getpid(), signal.SIGINT)

    def run(**options: Any) -> Any:
        return eigenpairs(A, 2, resume=folder, **options)

    found: dict[str, Any] = {"error": told(lambda: run(progress=press))}
    steps: list[int] = []
    p = run(progress=lambda done, *more: steps.append(done))
    found["values"] = apart([e.value for e in p.values], [e.value for e in eigenpairs(alone, 2).values])
    return found | {"first": steps[0], "handler": signal.getsignal(signal.SIGINT) is signal.default_int_handler}


def killed(g: qd.Group) -> dict[str, Any]:
    """The last process dies without a word."""

    def wait() -> None:
        with qd.group(60) as h:
            if g.rank == g.world - 1:
                os._exit(0)
            h.any(True)

    begun = time.monotonic()
    return {"error": told(wait), "waited": time.monotonic() - begun}


# --- whole questions ------------------------------------------------------------------------------------------------
def questions(g: qd.Group) -> dict[str, Any]:
    folder = Path(os.environ["QUADFORM_TEST_FOLDER"])
    options: dict[str, Any] = {
        "top": 2,
        "density": True,
        "probes": 2,
        "steps": 5,
        "blocks": ["a.*", "b.*"],
        "route": "eager",
    }

    def asked(**more: Any) -> Any:
        found = qf.spectrum(seeded(Net), rows_of(5, 3), cross_entropy, **options, progress=False, **more)
        return {n: e.value for n, e in found.record.scalars.items()}

    def ceilings(**more: Any) -> Any:
        found = qf.lr(seeded(Net), rows_of(5, 1, 2), cross_entropy, verify=3, progress=False, **more)
        record = found.record
        numbers = {n: e.value for n, e in record.scalars.items()}
        rounding = ("verify/losses", "verify/tolerance")  # what is resolved is rounding itself
        return numbers | {n: t for n, t in record.tensors.items() if n not in rounding}

    def tried() -> Any:
        """In float32: the trial runs on a copy in float64."""
        batches = [(x.float(), y) for x, y in rows_of(5, 1, 2)]
        record = qf.lr(seeded(Net).float(), batches, cross_entropy, optimizer="sgd", verify=3, progress=False).record
        return {n: record.tensors[n] for n in ("verify/measured", "verify/losses")}

    found: dict[str, Any] = {}
    trial = tried()
    several = asked(out=folder / f"spectrum-{g.rank}", resume=True)
    again = asked(out=folder / f"spectrum-{g.rank}", resume=True)
    rates = ceilings(out=folder / f"lr-{g.rank}", resume=True)
    found["kept"] = sorted(p.name for p in folder.iterdir() if p.name.startswith(("spectrum", "lr")))
    alone = qd.Group()
    with alone:  # one process by itself inside the others
        found["spectrum"] = max(abs(several[n] - v) / max(abs(v), 1e-300) for n, v in asked().items())
        found["lr"] = apart(rates, ceilings())
        found["trial"] = apart(trial, tried())
    found["again"] = max(abs(again[n] - several[n]) / max(abs(several[n]), 1e-300) for n in several)
    cut = qf.spectrum(seeded(Net), rows_of(5, 3), cross_entropy, **options, progress=False, max_time=1e-6)
    found["partial"] = cut.partial
    return found


def wrapped(g: qd.Group) -> dict[str, Any]:
    """A model in DistributedDataParallel with its optimizer, of a known rule or not, against the model in it."""
    every = []
    for wrap in (lambda model: model, nn.parallel.DistributedDataParallel):
        model, numbers = wrap(seeded(Net)), {}
        for kind in (torch.optim.SGD, torch.optim.RMSprop):
            optimizer = kind(model.parameters(), 1e-3)
            step = qf.lr(model, rows_of(4), cross_entropy, optimizer=optimizer, verify=0, progress=False)
            numbers |= {f"{kind.__name__}/{n}": e.value for n, e in step.record.scalars.items()}
        every.append(numbers | {"weights": Subject.of(model, rows_of(4), cross_entropy).source["weights"]})
    hashes = [numbers.pop("weights") for numbers in every]
    return {"names": every[0].keys() == every[1].keys(), "numbers": apart(*every), "weights": hashes[0] == hashes[1]}


def command_line(g: qd.Group) -> dict[str, Any]:
    """`quadform spectrum` as torchrun starts it: the variables in the environment, what it prints."""
    from quadform.cli import main

    folder = Path(os.environ["QUADFORM_TEST_FOLDER"]) / "two"
    os.environ |= {"RANK": str(g.rank), "WORLD_SIZE": str(g.world)}
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = main([*WORDS, str(folder)])
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
    return {"code": code, "printed": printed.getvalue(), "folder": str(folder)}


#: Of a command, before its folder.
WORDS = ["spectrum", "new:pre-ln,depth=1,d_model=8", "--batch-size", "3", "--batches", "2", "--top", "2"]
WORDS += ["--dtype", "float64", "--tol", "1e-6", "--json", "--quiet", "--blocks", "none", "--out"]


def documented(g: qd.Group) -> dict[str, Any]:
    """The Python of docs/distributed.md, as it stands."""
    text = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    model = qf.nn.Transformer("pre-ln", depth=1, d_model=4, heads=1, vocab=5, seq_len=4, dtype=torch.float64)
    tokens = torch.randint(0, 5, (5, 4), generator=torch.Generator().manual_seed(4))
    names: dict[str, Any] = {"model": model, "batches": [(tokens, tokens)], "loss": cross_entropy}
    exec(compile(code, "docs/distributed.md", "exec"), names)
    values = [e.value for e in names["pairs"].top]
    return {"eigenvalues": apart([e.value for e in names["s"].top[:5]], values), "rows": names["risk"].notes[-1]}


def processes(label: Any) -> int:
    """How many processes a task has: `2`, or `2+` for two others."""
    return int(str(label).rstrip("+"))


def main(checks: dict[str, Any], before: Callable[[], None] = lambda: None) -> None:
    """`before` computes what the processes are compared with, once for all: they are forked afterwards."""
    torch.set_num_threads(1)
    before()
    for task in sys.argv[2:]:
        label, _, names = task.partition("=")
        folder, world = Path(sys.argv[1]) / label, processes(label)
        folder.mkdir()
        running = [_forked(checks, rank, world, folder, names.split(",")) for rank in range(world)]
        for process in running:
            os.waitpid(process, 0)


def _forked(checks: dict[str, Any], *task: Any) -> int:
    """A process group that lost a member does not end by itself: the process leaves at once."""
    process = os.fork()
    if process == 0:
        try:
            _work(checks, *task)
        finally:
            os._exit(0)
    return process


def _work(checks: dict[str, Any], rank: int, world: int, folder: Path, names: list[str]) -> None:
    os.environ["QUADFORM_TEST_FOLDER"] = str(folder)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    found: dict[str, Any] = {}
    for name in names:
        begun = time.process_time()
        try:
            with qd.group(120) as g:
                found[name] = checks[name](g)
        except BaseException:
            found.setdefault(name, {"failed": traceback.format_exc()})
        found[name]["seconds"] = time.process_time() - begun
        (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(globals())
