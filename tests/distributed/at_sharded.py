"""What every process of `test_sharded.py` does: models cut by FSDP2 against the same models whole in this process."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from at_work import main, told
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import quadform as qf
from quadform import distributed as qd
from quadform.curvature.units import find
from quadform.estimate import eigenpairs, trace

VOCAB = 11


def gpt(depth: int = 2, dim: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return qf.nn.Transformer("pre-ln", depth=depth, dim=dim, heads=2, vocab=VOCAB, seq_len=6, dtype=torch.float64)


def gpt2() -> nn.Module:
    """Of Hugging Face, input and output embedding tied."""
    import transformers as T

    torch.manual_seed(0)
    sizes: Any = {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 6, "vocab_size": VOCAB}
    return T.GPT2LMHeadModel(T.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).double()


def cross_entropy(out: Any, batch: Any) -> Tensor:
    logits = out if isinstance(out, Tensor) else out.logits
    return nn.functional.cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def batches() -> list[Any]:
    """Four batches of 1 to 4 rows."""
    g = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, VOCAB, (rows, 6), generator=g) for rows in range(1, 5)]
    return [(t, t.roll(1, 1)) for t in tokens]


def mine(g: qd.Group, of: int = 4) -> list[Any]:
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


def _measured(g: qd.Group, make: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    whole = qf.Risk(make(), cross_entropy, batches(), quiet=True)
    model = cut(make(), shape)
    weights, before = {n: p.to_local().clone() for n, p in model.named_parameters()}, hooks(model)
    risk = qf.Risk(model, cross_entropy, mine(g), quiet=True)
    V = whole.space.random(2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found: dict[str, Any] = {"value": abs(float(risk.value() - whole.value()))}
    found["gradient"] = apart(risk.gradient(), shard_of(risk, whole.gradient()))
    for kind in (qf.hessian, qf.gauss_newton, qf.functional):
        A, B = kind(risk), kind(whole)
        found[kind.__name__] = apart(A.apply(shard_of(risk, V)), shard_of(risk, B.apply(V)))
    found["kept"] = hooks(model) == before and all(
        torch.equal(p.to_local(), weights[n]) and p.grad is None for n, p in model.named_parameters()
    )
    shards = risk.shards.shards  # type: ignore[union-attr]
    shards.gathered = shards.reduced = shards.calls = 0
    v, H = {n: t[:1] for n, t in shard_of(risk, V).items()}, qf.hessian(risk)
    H.apply(v)
    times = len(risk.batches) + 1  # one more to compare forward with reverse derivatives
    found |= {
        "gathered": shards.gathered / whole.space.size / times,
        "reduced": shards.reduced / whole.space.size / times,
    }
    found["calls"] = shards.calls / times / (len(risk.units) + 1)
    # FSDP2 itself still works
    for x, y in batches():
        (cross_entropy(model(x), (x, y)) / len(batches())).backward()
    alone = make()
    for x, y in batches():
        (cross_entropy(alone(x), (x, y)) / len(batches())).backward()
    theirs = {n: p.grad.to_local() for n, p in model.named_parameters()}  # type: ignore[union-attr]
    found["fsdp"] = apart(theirs, shard_of(risk, {n: p.grad for n, p in alone.named_parameters()}))  # type: ignore[misc]
    return found


def own(g: qd.Group) -> dict[str, Any]:
    return _measured(g, gpt, (g.world,))


def hugging_face(g: qd.Group) -> dict[str, Any]:
    return _measured(g, gpt2, (g.world,))


def copies(g: qd.Group) -> dict[str, Any]:
    return _measured(g, gpt, (2, g.world // 2))


def pairs(g: qd.Group) -> dict[str, Any]:
    """Eigenpairs on shards: values, lengths of the vectors, the share of a vector that a process holds."""
    whole, sizes = qf.Risk(gpt(1, 4), cross_entropy, batches()[:2], quiet=True), {}
    want = torch.zeros(5, dtype=torch.float64)
    if g.first:
        top = eigenpairs(qf.hessian(whole), tol=1e-8, max_products=60).top
        want = torch.tensor([e.value for e in top], dtype=torch.float64)
    want = g.same(want)
    for name, shape in (("fsdp", (g.world,)), ("hsdp", (2, g.world // 2))):
        risk = qf.Risk(cut(gpt(1, 4), shape), cross_entropy, mine(g, 2), quiet=True)
        found = eigenpairs(qf.hessian(risk), tol=1e-8, max_products=60)
        sizes[name] = max(abs(e.value - w) / abs(w) for e, w in zip(found.top, want.tolist(), strict=True))
        sizes[f"{name}, unit"] = float((risk.space.inner(found.vectors, found.vectors) - 1).abs().max())
        sizes[f"{name}, share"] = risk.space.size / whole.space.size
    return sizes


def refused(g: qd.Group) -> dict[str, Any]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (g.world,))
    found: dict[str, Any] = {}

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).double()

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def square(out: Any, batch: Any) -> Tensor:
        return out.square().mean()

    parallel = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    found["tensor parallel"] = told(lambda: qf.Risk(parallel, square, (x, x), quiet=True))
    beside = net()
    fully_shard(beside[0], mesh=mesh)
    found["beside"] = told(lambda: qf.Risk(beside, square, (x, x), quiet=True))
    risk = qf.Risk(fully_shard(net(), mesh=mesh), square, (x, x), quiet=True)
    found["training"] = told(lambda: qf.Risk(fully_shard(net(), mesh=mesh), square, (x, x), train_mode=True))
    found["trace"] = told(lambda: trace(qf.hessian(risk), method="hutchinson"))
    found["exact trace"] = told(lambda: trace(qf.hessian(risk)))
    found["fisher"] = told(lambda: qf.fisher(risk))
    found["split"] = told(lambda: qd.shard(risk, g))
    found["joined"] = told(lambda: qd.join(risk, g))
    found["dense"] = told(lambda: qf.hessian(risk).dense())
    found["resume"] = told(lambda: eigenpairs(qf.hessian(risk), 1, resume="state"))
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


if __name__ == "__main__":
    main(globals())
    dist.destroy_process_group() if dist.is_initialized() else None
    os._exit(0)
