"""What every process of `test_sharded.py` does: models cut by FSDP2 against the same models whole in this process."""

from __future__ import annotations

import functools
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from at_work import Causal, main, told
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import quadform as qf
from quadform import distributed as qd
from quadform.curvature.alive import Alive
from quadform.curvature.outline import Counted
from quadform.curvature.share import share_of
from quadform.curvature.units import find
from quadform.estimate import block_norms, blocks, density, eigenpairs, frobenius, trace, vectors
from quadform.estimate.vectors import probes

VOCAB = 11


class Small(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, 3), nn.Linear(3, VOCAB)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def small() -> nn.Module:
    torch.manual_seed(0)
    return Small().double()


def gpt() -> nn.Module:
    torch.manual_seed(0)
    return qf.nn.Transformer("pre-ln", depth=2, d_model=8, heads=2, vocab=VOCAB, seq_len=6, dtype=torch.float64)


def gpt2() -> nn.Module:
    """Of Hugging Face, input and output embedding tied."""
    torch.manual_seed(0)
    sizes: Any = {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 6, "vocab_size": VOCAB}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).double()


def cross_entropy(out: Any, batch: Any) -> Tensor:
    logits = out if isinstance(out, Tensor) else out.logits
    return nn.functional.cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def batches() -> list[Any]:
    """Four batches of 1 to 4 rows."""
    g = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, VOCAB, (rows, 6), generator=g) for rows in range(1, 5)]
    return [(t, t.roll(1, 1)) for t in tokens]


def mine(g: qd.Group, of: int) -> list[Any]:
    """Unequal numbers of batches; the last process has none."""
    return [b for i, b in enumerate(batches()[:of]) if i % (g.world - 1) == g.rank] if g.rank < g.world - 1 else []


def cut(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
    for block in find(model).values():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def shard_of(risk: qf.Risk, vector: dict[str, Tensor]) -> dict[str, Tensor]:
    """What this process holds of a vector, or of a stack of them."""
    assert risk.shards is not None
    shards = risk.shards.shards
    cuts = {n: (shards.cuts[n], t.dim() - len(shards.cuts[n].shape)) for n, t in vector.items()}
    return {n: vector[n].split(c.lengths, dim=c.axis + lead)[shards.own] for n, (c, lead) in cuts.items()}


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    gap, size = ([t.square().sum() for t in v] for v in ([a[n] - b[n] for n in b], b.values()))
    return float((sum(gap) / sum(size)).sqrt())  # type: ignore[union-attr]


def hooks(model: nn.Module) -> list[Any]:
    tables = [(m._forward_pre_hooks, m._forward_hooks, m._forward_pre_hooks_with_kwargs) for m in model.modules()]
    return [list(table.items()) for three in tables for table in three]


KINDS = {"hessian": qf.hessian, "gauss_newton": qf.gauss_newton, "functional": qf.functional}


@functools.cache
def wanted(make: Any, of: int, kinds: tuple[str, ...] = tuple(KINDS), k: int = 2) -> dict[str, Any]:
    """Value, gradient and products of a whole model over some batches, the vectors, and its gradient on the last."""
    whole = qf.Risk(model := make(), cross_entropy, batches()[:of], quiet=True)
    V = whole.space.random(k, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = {"vectors": V, "value": whole.value(), "gradient": whole.gradient(), "size": whole.space.size}
    found |= {kind: KINDS[kind](whole).apply(V) for kind in kinds}
    x, y = batches()[3]
    cross_entropy(model(x), (x, y)).backward()
    return found | {"of the last": {n: p.grad for n, p in model.named_parameters()}}


def _measured(g: qd.Group, make: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    of = 2 if g.world == 2 else 4
    want = wanted(make, of)
    model = cut(make(), shape)
    weights, before = {n: p.to_local().clone() for n, p in model.named_parameters()}, hooks(model)
    risk = qf.Risk(model, cross_entropy, mine(g, of), quiet=True)
    V = want["vectors"]
    found: dict[str, Any] = {"value": abs(float(risk.value() - want["value"]))}
    found["gradient"] = apart(risk.gradient(), shard_of(risk, want["gradient"]))
    for kind, make_operator in KINDS.items():
        found[kind] = apart(make_operator(risk).apply(shard_of(risk, V)), shard_of(risk, want[kind]))
    found["kept"] = hooks(model) == before and all(
        torch.equal(p.to_local(), weights[n]) and p.grad is None for n, p in model.named_parameters()
    )
    shards = risk.shards.shards  # type: ignore[union-attr]
    v = {n: t[:1] for n, t in shard_of(risk, V).items()}
    for A, name in ((qf.hessian(risk), ""), (qf.gauss_newton(risk), "of H_o, ")):
        A.apply(v)  # the first also compares forward with reverse derivatives
        shards.gathered = shards.reduced = shards.calls = 0
        A.apply(v)
        each = want["size"] * len(risk.batches)
        found |= {f"{name}gathered": shards.gathered / each, f"{name}reduced": shards.reduced / each}
        found[f"{name}calls"] = shards.calls / len(risk.batches) / (len(risk.units) + 1)
    # FSDP2 itself still works
    x, y = batches()[3]
    cross_entropy(model(x), (x, y)).backward()
    theirs = {n: p.grad.to_local() for n, p in model.named_parameters()}  # type: ignore[union-attr]
    found["fsdp"] = apart(theirs, shard_of(risk, want["of the last"]))
    return found


def own(g: qd.Group) -> dict[str, Any]:
    return _measured(g, gpt, (g.world,))


def hugging_face(g: qd.Group) -> dict[str, Any]:
    return _measured(g, gpt2, (g.world,))


def like_llama(name: str) -> nn.Module:
    """Models of transformers that compute their norms in float32."""
    sizes: Any = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 8}
    sizes |= {"intermediate_size": 12, "vocab_size": VOCAB, "max_position_embeddings": 6}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{name}ForCausalLM")(config).double()


LLAMAS = {name: functools.partial(like_llama, name) for name in ("Llama", "Qwen2")}
TWO = ("hessian", "gauss_newton")


def others(g: qd.Group) -> dict[str, Any]:
    """Products of a Llama and a Qwen2."""
    found: dict[str, Any] = {}
    for name, make in LLAMAS.items():
        want = wanted(make, 1, TWO, 1)
        risk = qf.Risk(cut(make(), (g.world,)), cross_entropy, mine(g, 1), quiet=True)
        for kind in TWO:
            image = KINDS[kind](risk).apply(shard_of(risk, want["vectors"]))
            found[f"{name}, {kind}"] = apart(image, shard_of(risk, want[kind]))
    return found


def copies(g: qd.Group) -> dict[str, Any]:
    return _measured(g, gpt, (2, g.world // 2))


def pairs(g: qd.Group) -> dict[str, Any]:
    """Eigenpairs on shards: values, lengths of the vectors, the share of a vector that a process holds."""
    (want, size), sizes = largest(), {}
    for name, shape, top in (("fsdp", (g.world,), 5), ("hsdp", (2, g.world // 2), 1)):
        risk = qf.Risk(cut(small(), shape), cross_entropy, mine(g, 2), quiet=True)
        found = eigenpairs(qf.hessian(risk), top, tol=1e-8, max_products=60)
        sizes[name] = max(abs(e.value - w) / abs(w) for e, w in zip(found.top, want[:top], strict=True))
        sizes[f"{name}, unit"] = float((risk.space.inner(found.vectors, found.vectors) - 1).abs().max())
        sizes[f"{name}, share"] = risk.space.size / size
    return sizes


@functools.cache
def largest() -> tuple[list[float], int]:
    """The five largest eigenvalues of a whole model, and its size."""
    whole = qf.Risk(small(), cross_entropy, batches()[:2], quiet=True)
    return [e.value for e in eigenpairs(qf.hessian(whole), tol=1e-8, max_products=60).top], whole.space.size


#: Products of a search after which so many processes leave it to others.
LEFT = {2: 6, 4: 15, 1: 24}


def continued(g: qd.Group) -> dict[str, Any]:
    """A search for eigenvalues that was begun by another number of processes, and a trace: products of this part, files
    afterwards; a random vector, whole. One process tells what it finds without a folder."""
    folder = Path(os.environ["QUADFORM_TEST_FOLDER"]).parent / "kept"
    risk = qf.Risk(cut(small(), (g.world,)), cross_entropy, batches()[:2] if g.first else [], quiet=True)
    H, made = qf.hessian(risk), []

    class Counting(type(H)):  # type: ignore[misc]  # how many vectors are multiplied
        def apply(self, v: Any) -> Any:
            made.append(len(next(iter(v.values()))))
            return super().apply(v)

    H.__class__ = Counting
    found = eigenpairs(H, 3, tol=1e-12, max_products=LEFT[g.world], resume=folder)
    spent = sum(made) - 1  # the fingerprint is one
    names = sorted(p.name for p in folder.iterdir())
    traced = trace(H, 9, method="hutch++", resume=folder)
    z = whole_rows(risk, probes(H, 1, "trace", [0], "gaussian"))[0]
    told = {
        "values": [e.value for e in found.top],
        "spent": spent,
        "trace": traced.value,
        "files": names,
        "z": z.tolist(),
    }
    if g.world == 1:
        told["anew"] = [e.value for e in eigenpairs(H, 3, tol=1e-12, max_products=LEFT[1]).top]
    return told


def asked(g: qd.Group) -> dict[str, Any]:
    """`qf.spectrum` and `qf.lr` of a model that is cut against whole weights; one folder, which can be resumed."""
    folder = Path(os.environ["QUADFORM_TEST_FOLDER"]) / "asked"
    want = answered()
    model = cut(small(), (g.world,))
    optimizer = stepped(model)
    weights, before = {n: p.to_local().clone() for n, p in model.named_parameters()}, hooks(model)
    own = [batches()[g.rank]]
    some = qf.spectrum(model, own, cross_entropy, out=folder, max_time=1e-9, **WIDE)
    kept = sorted(p.name for p in (folder / "work" / "state" / "estimators").iterdir())
    s = qf.spectrum(model, own, cross_entropy, out=folder, resume=True, **WIDE)
    step = qf.lr(model, own, cross_entropy, optimizer=optimizer, **TRIED)
    plan = qf.lr.plan(model, own, cross_entropy, optimizer=optimizer, verify=0)
    found = numbers(s, step)
    names = [sorted(n for n in w if n in f and n != "trace") for f, w in zip(found, want, strict=True)]
    gaps = [
        max(abs(f[n] - w[n]) / max(abs(w[n]), 1e-3) for n in some)
        for f, w, some in zip(found, want, names, strict=True)
    ]
    return {
        "spectrum": gaps[0], "lr": gaps[1], "missing": [sorted({*w} - {*f}) for f, w in zip(found, want, strict=True)],
        "partial": some.partial, "states": kept, "files": sorted(p.name for p in folder.iterdir()),
        "batches": s.record.inputs["batches"],
        "parameters": [plan.details["parameters"], sum(p.numel() for p in small().parameters())],
        "products": [a.record.inputs["cost"]["products"] for a in (some, s)],
        "kept": hooks(model) == before
        and all(torch.equal(p.to_local(), weights[n]) for n, p in model.named_parameters()),
    }  # fmt: skip


WIDE: Any = {"blocks": "none", "tol": 1e-6, "products": 60, "progress": False}
TRIED: Any = {"tol": 1e-6, "verify": 2, "progress": False}


def numbers(*answers: Any) -> list[dict[str, float]]:
    return [{n: e.value for n, e in a.record.scalars.items()} for a in answers]


@functools.cache
def answered() -> list[dict[str, float]]:
    """What the questions find of the whole model."""
    model = small()
    return numbers(
        qf.spectrum(model, batches()[:2], cross_entropy, **WIDE),
        qf.lr(model, batches()[:2], cross_entropy, optimizer=stepped(model), **TRIED),
    )


def stepped(model: nn.Module) -> Any:
    """Adam with second moments from one step of size 0, on the gradient of the first batch in every process."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    x, y = batches()[0]
    cross_entropy(model(x), (x, y)).backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def whole_rows(risk: qf.Risk, rows: Tensor) -> Tensor:
    """Rows whose shards lie in the processes, whole in each."""
    assert risk.shards is not None
    out = []
    for row in rows:
        parts = risk.space.unflatten(row)
        whole = risk.shards.shards.gather(list(parts), list(parts.values()))
        out.append(torch.cat([t.reshape(-1) for t in whole]))
    return torch.stack(out)


ESTIMATES: dict[str, Any] = {
    "hutchinson": lambda A: trace(A, 4, method="hutchinson").value,
    "hutch++": lambda A: trace(A, 9, method="hutch++").value,
    "xtrace": lambda A: (lambda e: [e.value, e.error])(trace(A, 8)),
    "density": lambda A: density(A, 2, 4, known=eigenpairs(A, 1, tol=1e-9)).nodes.flatten().tolist(),
    "three terms": lambda A: density(A, 2, 4, reorthogonalise="none").nodes.flatten().tolist(),
    "blocks": lambda A: block_norms(A, ["blocks.0.0.weight", "blocks.1.0.weight"], 2).value.flatten().tolist(),
}


def estimates(g: qd.Group) -> dict[str, Any]:
    """Traces, a density and block norms on shards, or on two copies of shards, are those of the whole operator with the
    same random vectors."""
    mesh = (g.world,) if g.world == 2 else (2, g.world // 2)
    risk = qf.Risk(cut(small(), mesh), cross_entropy, mine(g, 1), quiet=True)
    found = {}
    for name in ESTIMATES if g.world == 2 else ("xtrace", "density", "blocks"):
        every = (ESTIMATES[name](qf.hessian(risk)), estimated()[name])
        told, want = (torch.tensor(numbers, dtype=torch.float64) for numbers in every)
        found[name] = float((told - want).norm() / want.norm())
    return found


@functools.cache
def estimated() -> dict[str, Any]:
    """The estimates of the whole operator, whose random vectors are drawn by place, as those of shards are."""
    before, whole = (vectors.draw, blocks.draw), qf.Risk(small(), cross_entropy, batches()[:1], quiet=True)

    def draw(row: Tensor, seed: int, name: str, kind: Any, space: Any) -> None:
        for part, (where, shape) in zip(row.split([math.prod(s) for _, s in space]), space, strict=True):
            part.copy_(vectors._at_places(seed, name, kind, where, torch.arange(math.prod(shape))))
        if kind == "sphere":
            row.mul_(len(row) ** 0.5 / row.norm())

    vectors.draw = blocks.draw = draw  # type: ignore[assignment]  # until the end
    try:
        return {name: ask(qf.hessian(whole)) for name, ask in ESTIMATES.items()}
    finally:
        vectors.draw, blocks.draw = before


@functools.cache
def foreseen(kind: str, world: int) -> Any:
    """The plan of a product."""
    return share_of(qf.Risk(gpt(), cross_entropy, batches()[3:] * world, quiet=True), kind, world)


def planned(g: qd.Group) -> dict[str, Any]:
    """What a product takes, counted, over what is predicted from shapes."""
    batch, found = batches()[3:], {}
    risk = qf.Risk(cut(gpt(), (g.world,)), cross_entropy, batch, quiet=True)
    shards = risk.shards.shards  # type: ignore[union-attr]
    v = risk.space.random(1, dtype=torch.float64)
    for kind in KINDS if g.world == 2 else TWO:
        A = KINDS[kind](risk)
        A.apply(v)
        shards.gathered = shards.reduced = 0
        with Counted() as counted, Alive() as alive:
            A.apply(v)
        want = foreseen(kind, g.world)
        seen = (counted.taken().flops, shards.gathered, shards.reduced, alive.peak)
        told = (want.flops, want.gathered, want.reduced, want.product)
        found[kind] = [a / b for a, b in zip(seen, told, strict=True)]
    return found


def deep() -> nn.Module:
    """Twelve blocks whose weights outweigh their activations."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24)) for _ in range(12))).double()


class Whole(TorchDispatchMode):
    """Shapes of the tensors made in this scope that hold more than `most` numbers, but for rows of `local` numbers."""

    def __init__(self, most: float, local: int) -> None:
        super().__init__()
        self.most, self.local, self.found = most, local, set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, Tensor) and t.numel() > self.most and self.local not in t.shape:
                self.found.add(tuple(t.shape))
        return out


def of_deep(g: qd.Group) -> tuple[qf.Risk, int, int]:
    """Its risk with two tokens; numbers of all its weights, and of those of a block."""
    x, model = torch.randn(2, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64), deep()
    n, unit = (sum(p.numel() for p in m.parameters()) for m in (model, model[0]))
    return qf.Risk(cut(model, (g.world,)), lambda out, batch: out.square().mean(), (x, x), quiet=True), n, unit


def peaks(g: qd.Group) -> dict[str, Any]:
    """Live bytes of a product beyond its image, by those of the weights of a unit; tensors of more than n / 4."""
    risk, n, unit = of_deep(g)
    v, found = risk.space.random(1, dtype=torch.float64), {}
    for kind in (qf.hessian, qf.gauss_newton):
        A, peaks = kind(risk), []
        A.apply(v)
        for _ in range(2):  # the threads of gloo let go of a message late where the machine is busy
            with Alive() as alive:
                A.apply(v)
            peaks.append(alive.peak)
        found[kind.__name__] = (min(peaks) / 8 - n / g.world) / unit
    H = qf.hessian(risk)
    with Whole(n / g.world, risk.space.size) as whole:
        density(H, 2, 2, known=eigenpairs(H, 1, max_products=3))
        trace(H, 3)
    return found | {"whole": sorted(whole.found)}


def together(g: qd.Group) -> dict[str, Any]:
    """Of each of 1 and 4 vectors in one call: matrix work in forward passes, numbers gathered and added up over n,
    messages a unit and one outside of all; the gap to the image of a single vector."""
    risk, n, _ = of_deep(g)
    H, V, shards = qf.hessian(risk), risk.space.random(4, dtype=torch.float64), risk.shards.shards  # type: ignore[union-attr]
    found: dict[str, Any] = {}
    H.apply(V)  # the first looks whether they may go together
    for k in (1, 4):
        shards.gathered = shards.reduced = shards.calls = 0
        with Counted() as counted:
            images = H.apply({name: t[:k] for name, t in V.items()})
        passes = counted.taken().flops / (2 * 2 * 12 * 2 * 24**2)  # of two tokens
        found[f"{k} together"] = [passes / k, shards.gathered / n / k, shards.reduced / n / k, shards.calls / 13]
    alone = H.apply({name: t[3:] for name, t in V.items()})
    return found | {"apart": apart({name: t[3:] for name, t in images.items()}, alone)}


def refused(g: qd.Group) -> dict[str, Any]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (g.world,))
    found: dict[str, Any] = {}

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).double()

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ids = torch.arange(6).view(1, 6)

    def square(out: Any, batch: Any) -> Tensor:
        return out.square().mean()

    stage = PipelineStage(net(), g.rank, g.world, torch.device("cpu"))
    found["gpipe"] = told(lambda: qf.spectrum(ScheduleGPipe(stage, 2), (x, x), square))
    found["1f1b"] = told(lambda: qf.lr(Schedule1F1B(stage, 2), (x, x), square))
    parallel = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    found["tensor parallel"] = told(lambda: qf.Risk(parallel, square, (x, x), quiet=True))
    beside = net()
    fully_shard(beside[0], mesh=mesh)
    found["beside"] = told(lambda: qf.Risk(beside, square, (x, x), quiet=True))
    risk = qf.Risk(fully_shard(net(), mesh=mesh), square, (x, x), quiet=True)
    half = MixedPrecisionPolicy(param_dtype=torch.float16)
    v = risk.space.random(1, dtype=torch.float64)
    policy = qf.Risk(fully_shard(net(), mesh=mesh, mp_policy=half), square, (x, x), quiet=True)
    plain, same = (qf.hessian(r).apply(v) for r in (risk, policy))
    found["policy"] = [list(risk.notes), list(policy.notes), apart(same, plain)]
    found["training"] = told(lambda: qf.Risk(fully_shard(net(), mesh=mesh), square, (x, x), train_mode=True))
    found["norm"] = told(lambda: frobenius(qf.hessian(risk), method="sampled"))
    found["exact trace"] = told(lambda: trace(qf.hessian(risk), method="exact"))
    found["another question"] = told(lambda: qf.taylor(fully_shard(net(), mesh=mesh), (x, x), square, progress=False))
    unruled = fully_shard(net(), mesh=mesh)
    rms = torch.optim.RMSprop(unruled.parameters(), 1e-3)
    found["optimizer"] = told(lambda: qf.lr(unruled, (x, x), square, optimizer=rms, progress=False))
    found["fisher"] = told(lambda: qf.fisher(risk))
    found["split"] = told(lambda: qd.shard(risk, g))
    found["joined"] = told(lambda: qd.join(risk, g))
    found["dense"] = told(lambda: qf.hessian(risk).dense())
    inside = qf.Risk(fully_shard(Causal().double(), mesh=mesh), None, {"input_ids": ids, "labels": ids}, quiet=True)
    v = inside.space.random(1, dtype=torch.float64)
    found["output inside"] = told(lambda: qf.gauss_newton(inside).apply(v))
    found["functional inside"] = told(lambda: qf.functional(inside).apply(v))
    found["no data"] = told(lambda: qf.Risk(fully_shard(net(), mesh=mesh), square, [], quiet=True))
    return found


def raising(g: qd.Group) -> dict[str, Any]:
    """An exception inside a unit, in all processes: hooks and forward methods are as they were."""
    model = cut(gpt(), (g.world,))
    before = hooks(model)
    risk = qf.Risk(model, cross_entropy, batches()[:1], quiet=True)
    H = qf.hessian(risk)
    v = risk.space.random(1, dtype=torch.float64)
    H.apply(v)

    def boom(*args: Any) -> None:
        raise ValueError("boom")

    last = list(risk.units.values())[-1]
    handle = last.register_forward_hook(boom)
    error = told(lambda: H.apply(v))
    handle.remove()
    forwards = [n for n, m in model.named_modules() if "forward" in m.__dict__]
    again = H.apply(v)
    return {
        "error": error, "hooks": hooks(model) == before, "forwards": forwards,
        "finite": all(bool(t.isfinite().all()) for t in again.values()),
    }  # fmt: skip


def timed(work: Any) -> list[Any]:
    """What a process is told in a group of its own, and after how many seconds."""

    def together() -> None:
        with qd.group(60):
            work()

    begun = time.monotonic()
    return [*told(together), time.monotonic() - begun]


def differing(g: qd.Group) -> dict[str, Any]:
    """One process has a loss that is no number, other weights, other buffers, or runs its modules in another order."""
    last, found = g.rank == g.world - 1, {}

    def not_a_number(out: Any, batch: Any) -> Tensor:
        return cross_entropy(out, batch) * (float("nan") if last else 1.0)

    found["nan"] = timed(lambda: qf.Risk(cut(small(), (g.world,)), not_a_number, batches()[:1], quiet=True))
    x = torch.randn(3, 2, dtype=torch.float64)

    def net(seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double()

    def square(out: Any, batch: Any) -> Tensor:
        return out.square().mean()

    mesh = init_device_mesh("cpu", (g.world, 1), mesh_dim_names=("copies", "shards"))
    found["weights"] = timed(lambda: qf.Risk(fully_shard(net(g.rank), mesh=mesh), square, (x, x), quiet=True))
    other = net(0)
    other[1].running_mean += g.rank  # type: ignore[operator]
    found["buffers"] = timed(lambda: qf.Risk(fully_shard(other), square, (x, x), quiet=True))

    class Turned(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for layer in reversed(self) if last else self:
                x = layer(x)
            return x

    turned = Turned(*(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(2))).double()
    risk = qf.Risk(cut(turned, (g.world,)), square, (x, x), quiet=True)
    found["order"] = timed(lambda: qf.hessian(risk).apply(risk.space.random(1, dtype=torch.float64)))
    return found


def broken(g: qd.Group) -> dict[str, Any]:
    """One process raises inside a unit, while the others gather its weights."""
    return _broken(g, ValueError("boom"))


def out_of_memory(g: qd.Group) -> dict[str, Any]:
    """One process has no memory left inside a unit."""
    return _broken(g, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))


def _broken(g: qd.Group, error: Exception) -> dict[str, Any]:
    model = cut(small(), (g.world,))
    before, weights = hooks(model), {n: p.to_local().clone() for n, p in model.named_parameters()}
    H = qf.hessian(qf.Risk(model, cross_entropy, batches()[:1], quiet=True))
    unit = model.blocks[1]

    def boom(*args: Any) -> None:
        if g.rank == g.world - 1:
            raise error

    handle = unit.register_forward_hook(boom)
    begun = time.monotonic()
    said = told(lambda: H.apply(H.domain.random(1, dtype=torch.float64)))
    handle.remove()
    kept = all(torch.equal(p.to_local(), weights[n]) and p.grad is None for n, p in model.named_parameters())
    forwards = [n for n, m in model.named_modules() if "forward" in m.__dict__]
    seconds = time.monotonic() - begun
    found = {"error": said, "waited": seconds, "as it was": kept and hooks(model) == before, "forwards": forwards}
    found["afterwards"] = told(lambda: g.any(False))
    return found


def stopped(g: qd.Group) -> dict[str, Any]:
    """One process is stopped in a unit for longer than the timeout of the group, which is 2 s, then goes on."""
    processes = [int(p) for p in g.every(torch.tensor([float(os.getpid())], dtype=torch.float64))[:, 0]]
    model, last = cut(small(), (g.world,)), g.rank == g.world - 1
    before = hooks(model)

    def stop(*args: Any) -> None:
        if last:
            os.kill(os.getpid(), signal.SIGSTOP)

    def product() -> None:
        with qd.group(2):
            H = qf.hessian(qf.Risk(model, cross_entropy, batches()[:1], quiet=True))
            model.blocks[1].register_forward_hook(stop)
            H.apply(H.domain.random(1, dtype=torch.float64))

    begun = time.monotonic()
    error = told(product)
    if not last:
        os.kill(processes[-1], signal.SIGCONT)
    model.blocks[1]._forward_hooks.popitem()
    return {"error": error, "waited": time.monotonic() - begun, "hooks": hooks(model) == before}


def killed(g: qd.Group) -> dict[str, Any]:
    """One process is killed while the others gather."""
    model = cut(small(), (g.world,))
    before = hooks(model)
    H = qf.hessian(qf.Risk(model, cross_entropy, batches()[:1], quiet=True))
    unit = model.blocks[1]

    def die(*args: Any) -> None:
        if g.rank == g.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    handle = unit.register_forward_hook(die)
    begun = time.monotonic()
    error = told(lambda: H.apply(H.domain.random(1, dtype=torch.float64)))
    handle.remove()
    return {"error": error, "waited": time.monotonic() - begun, "hooks": hooks(model) == before}


def before() -> None:
    """What is found of whole models."""
    for make, of in ((gpt, 2), (gpt, 4), (gpt2, 2)):
        wanted(make, of)
    for make in LLAMAS.values():
        wanted(make, 1, TWO, 1)
    for world in (1, 2, 4):
        for kind in KINDS if world == 2 else TWO:
            foreseen(kind, world)
    largest(), answered(), estimated()


if __name__ == "__main__":
    main(globals(), before)
