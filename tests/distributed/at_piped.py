"""What every process of `test_piped.py` does: the stages of a pipeline against the whole model in this process."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from at_work import main, told
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

import quadform as qf
from quadform import distributed as qd
from quadform.estimate import eigenpairs

VOCAB, WIDTH, TOKENS = 7, 4, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(nn.functional.silu(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


class Stage(nn.Module):
    """Two blocks; the first stage embeds and hands the positions on, the last one has the head."""

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH) if first else None
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)) if last else (None, None)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Any:
        if self.embed is not None:
            x, positions = self.embed(x), torch.arange(x.shape[1])
        assert positions is not None
        x = x + 0.1 * positions[:, None]
        for block in self.blocks:
            x = block(x)
        return (x, positions) if self.head is None else self.head(self.norm(x))


class Whole(nn.Module):
    def __init__(self, stages: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stages = nn.ModuleList(Stage(s == 0, s == stages - 1) for s in range(stages))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages[0](x)
        for stage in list(self.stages)[1:]:
            x = stage(*x)
        return x


def cross_entropy(out: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(out.flatten(0, -2), batch[1].flatten())


def batches() -> list[Any]:
    """Two batches of 2 and 4 rows."""
    g = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, VOCAB, (rows, TOKENS), generator=g) for rows in (2, 4)]
    return [(t, t.roll(1, 1)) for t in tokens]


def whole(g: qd.Group) -> nn.Module:
    return Whole(g.world).double()


def stage(g: qd.Group, module: nn.Module) -> Any:
    return PipelineStage(module, g.rank, g.world, torch.device("cpu"))


def own(g: qd.Group, vector: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the stage of this process has of a vector of the whole model."""
    head = f"stages.{g.rank}."
    return {n.removeprefix(head): t for n, t in vector.items() if n.startswith(head)}


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    gap, size = ([t.square().sum() for t in v] for v in ([a[n] - b[n] for n in b], b.values()))
    return float((sum(gap) / sum(size)).sqrt())  # type: ignore[union-attr]


def products(g: qd.Group) -> dict[str, Any]:
    """H, H_o, H_f, gradient and value of a stage, of GPipe and of 1F1B against the whole; the model afterwards."""
    model = whole(g)
    risk = qf.Risk(model, cross_entropy, batches(), quiet=True)
    V = risk.space.random(2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mine = model.stages[g.rank]
    weights = {n: p.detach().clone() for n, p in mine.named_parameters()}
    found: dict[str, Any] = {}
    made = {
        "stage": stage(g, mine),
        "gpipe": ScheduleGPipe(stage(g, mine), 2, cross_entropy),
        "1f1b": Schedule1F1B(stage(g, mine), 4, cross_entropy),
    }
    for name, pipeline in made.items():
        piped = qf.Risk(pipeline, cross_entropy, batches(), quiet=True)
        found[f"{name}, value"] = abs(float(piped.value() - risk.value()))
        found[f"{name}, gradient"] = apart(piped.gradient(), own(g, risk.gradient()))
        for kind in (qf.hessian, qf.gauss_newton, qf.functional)[: 3 if name == "stage" else 2]:
            found[f"{name}, {kind.__name__}"] = apart(kind(piped).apply(own(g, V)), own(g, kind(risk).apply(V)))
    found["kept"] = all(torch.equal(p, weights[n]) and p.grad is None for n, p in mine.named_parameters())
    found["forwards"] = [n for n, m in mine.named_modules() if "forward" in m.__dict__]
    x, y = batches()[1]
    schedule, losses = made["gpipe"], []  # torch's own training is as it was
    schedule._loss_fn = lambda out, target: cross_entropy(out, (None, target))
    schedule.step(*((x,) if g.first else ()), target=y if g.rank == g.world - 1 else None, losses=losses)
    cross_entropy(Whole.forward(fresh := whole(g), x), (x, y)).backward()
    theirs = {n: p.grad for n, p in mine.named_parameters() if p.grad is not None}
    found["torch"] = apart(theirs, own(g, {n: p.grad for n, p in fresh.named_parameters() if p.grad is not None}))
    return found


def pairs(g: qd.Group) -> dict[str, Any]:
    """Eigenpairs through vectors that lie in stages."""
    model = whole(g)
    risk = qf.Risk(model, cross_entropy, batches()[:1], quiet=True)
    piped = qf.Risk(stage(g, model.stages[g.rank]), cross_entropy, batches()[:1], quiet=True)
    H = qf.hessian(piped)
    want = eigenpairs(qf.hessian(risk), 3, tol=1e-8, max_products=80).top
    found = eigenpairs(H, 3, tol=1e-8, max_products=80)
    lengths = piped.space.inner(found.vectors, found.vectors)
    return {
        "values": max(abs(a.value - b.value) / abs(b.value) for a, b in zip(found.top, want, strict=True)),
        "lengths": float((lengths - 1).abs().max()),
        "sizes": [piped.space.size, risk.space.size],
    }


def refused(g: qd.Group) -> dict[str, Any]:
    mine = whole(g).stages[g.rank]
    batch, last = batches()[:1], g.rank == g.world - 1
    found: dict[str, Any] = {}

    def risk(pipeline: Any, loss: Any = cross_entropy, data: Any = batch, **options: Any) -> Any:
        return told(lambda: qf.Risk(pipeline, loss, data, quiet=True, **options))

    two = [PipelineStage(mine, g.rank + g.world * i, 2 * g.world, torch.device("cpu")) for i in range(2)]
    found["interleaved"] = risk(ScheduleInterleaved1F1B(two, g.world, cross_entropy))
    found["several"] = risk(two[0])
    sharded = whole(g).stages[g.rank]
    found["sharded"] = risk(stage(g, fully_shard(sharded)))
    tied = whole(g)
    tied.stages[-1].head.weight = tied.stages[0].embed.weight
    found["tied"] = risk(stage(g, tied.stages[g.rank]))
    found["no loss"] = risk(stage(g, mine), None)
    found["training"] = risk(stage(g, mine), train_mode=True)
    found["data"] = risk(stage(g, mine), data=batches()[:: -1 if last else 1])
    good = qf.Risk(stage(g, mine), cross_entropy, batch, quiet=True)
    found["split"] = told(
        lambda: qf.gauss_newton(good, split="blocks.0").apply(good.space.random(1, dtype=torch.float64))
    )
    found["fisher"] = told(lambda: qf.fisher(good))
    found["question"] = told(lambda: qf.taylor(stage(g, mine), batch, cross_entropy, progress=False))
    return found


def failing(g: qd.Group) -> dict[str, Any]:
    """The last process raises in a block; a number that is none comes from the first stage."""
    found: dict[str, Any] = {}
    model = whole(g)
    with torch.no_grad():
        model.stages[0].blocks[0].out.weight[0, 0] = float("nan")
    found["nan"] = told(lambda: qf.Risk(stage(g, model.stages[g.rank]), cross_entropy, batches(), quiet=True))
    mine = whole(g).stages[g.rank]
    H = qf.hessian(qf.Risk(stage(g, mine), cross_entropy, batches(), quiet=True))

    def boom(*_: Any) -> None:
        if g.rank == g.world - 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    handle, begun = mine.blocks[1].register_forward_hook(boom), time.monotonic()
    found["raised"] = told(lambda: H.apply(H.domain.random(1, dtype=torch.float64)))
    handle.remove()
    found["waited"] = time.monotonic() - begun
    found["forwards"] = [n for n, m in mine.named_modules() if "forward" in m.__dict__]
    return found


def killed(g: qd.Group) -> dict[str, Any]:
    """The last process is killed while another waits for its cotangents."""
    mine = whole(g).stages[g.rank]
    H = qf.hessian(qf.Risk(stage(g, mine), cross_entropy, batches(), quiet=True))

    def die(*_: Any) -> None:
        if g.rank == g.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    mine.blocks[1].register_forward_hook(die)
    begun = time.monotonic()
    return {"error": told(lambda: H.apply(H.domain.random(1, dtype=torch.float64))), "waited": time.monotonic() - begun}


if __name__ == "__main__":
    main(globals())
