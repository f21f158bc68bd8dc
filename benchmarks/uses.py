"""What the uses of the Hessian cost on a GPU: a landscape of 51 x 51 points, a polished point, the ceiling of Muon.

    python benchmarks/uses.py [--out FILE] [--limit SECONDS] [--small]

`landscape`: GPT-2 124M with random weights, float32 with TF32, two random directions; first the losses of a small model
on a plane against those on a CPU, then the seconds of 51 x 51 points at 1 x 1,024 and 8 x 1,024 tokens (goal: 60).
`polish`: `qf.point(polish=True)` of a one-block Transformer that is trained first: |g| before and after, kind, seconds.
`muon`: `qf.lr` with torch's Muon of the matrices of four blocks; then copies are trained by hand at half and twice the
ceiling: the loss must rise at twice it alone. `--small` makes everything small, for a try on a CPU (without Muon).
Each part is written when it ends; no part begins after `--limit` seconds.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

import quadform as qf
from quadform.applications.step_size.unruled import RISE
from quadform.core import progress
from quadform.core.record import Provenance, strict_json
from quadform.corpora import dataset
from quadform.curvature import Risk
from quadform.curvature.landscape import Plane, evaluate, random_axis
from quadform.nn import Transformer
from units import gpt2

GOAL = 60.0
STEPS = 10
TINY: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 97}
Tell = Callable[..., None]


def waited(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def plane_of(risk: Risk) -> Plane:
    axes = [random_axis(risk.params, torch.Generator(risk.device).manual_seed(i)) for i in (0, 1)]
    return Plane(dict(risk.params), tuple(axes))


def grid(points: int) -> torch.Tensor:
    steps = torch.linspace(-1, 1, points, dtype=torch.float64)
    return torch.cartesian_prod(steps, steps)


def landscape(device: str, small: bool, tell: Tell) -> None:
    """Correctness on a small model, then seconds."""
    model, batch = gpt2("cpu", torch.float64, (2, 16), **TINY)
    here = Risk(model, None, batch, quiet=True)
    plane, points = plane_of(here), grid(5)
    there = Risk(copy.deepcopy(model).to(device), None, {n: t.to(device) for n, t in batch.items()}, quiet=True)
    moved = Plane(dict(there.params), tuple({n: t.to(device) for n, t in axis.items()} for axis in plane.axes))
    one_by_one = torch.stack([here.value(plane.at(x.tolist())).detach().double() for x in points])
    found = evaluate(there, moved, points)
    difference = float((found - one_by_one).abs().max() / one_by_one.abs().max())
    tell(landscape_difference=difference)
    if not difference < 1e-6:  # the loss of transformers is float32
        raise SystemExit(f"the losses differ by {difference:.2e}; nothing is timed.")
    rows = []
    for tokens in ((2, 16),) if small else ((1, 1024), (8, 1024)):
        model, batch = gpt2(device, torch.float32, tokens, **(TINY if small else {}))
        begun = waited(device)
        answer = qf.landscape(model, [batch], plane="random", points=5 if small else 51, progress=False)
        rows.append(
            {"tokens": list(tokens), "seconds": waited(device) - begun, "goal": GOAL, "points": answer.loss.numel()}
        )
        tell(landscape=rows)


def polish(device: str, small: bool, tell: Tell) -> None:
    """A trained block, moved to where its gradient vanishes."""
    data = dataset("add", digits=1)
    sizes: dict[str, Any] = {"depth": 1, "d_model": 4 if small else 24, "heads": 2, "activation": "gelu"}
    model = Transformer("pre-ln", seed=0, dtype=torch.float64, **sizes, **data.settings).to(device)
    drawn = data.batches("train", 64, 0)
    batches = [{n: t.to(device) for n, t in next(drawn).items()} for _ in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for i in range(20 if small else 200):
        optimizer.zero_grad()
        model.loss(batches[i % 4]).backward()
        optimizer.step()
    optimizer.zero_grad()
    begun = waited(device)
    answer = qf.point(model, batches, polish=True, inertia=0, steps=2 if small else 100, progress=False)
    seconds = waited(device) - begun
    told = {key: e.value for key, e in answer.record.scalars.items()}
    count = sum(p.numel() for p in model.parameters())
    tell(polish={"parameters": count, "seconds": seconds, "verdict": answer.verdicts()[0].sentence(), **told})


def muon(device: str, small: bool, tell: Tell) -> None:
    """The ceiling on copies, and what the loss does at half and twice it."""
    if device == "cpu":
        return
    sizes: dict[str, Any] = {"depth": 2 if small else 4, "d_model": 64 if small else 256, "heads": 4}
    model = Transformer("pre-ln", vocab=256, seq_len=64, seed=0, **sizes).to(device)
    batch = {"input_ids": torch.randint(0, 256, (8, 64), device=device)}
    params = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    optimizer = torch.optim.Muon(params, lr=1e-3)
    begun = waited(device)
    found = qf.lr(model, [batch], optimizer=optimizer, verify=STEPS, progress=False)
    row: dict[str, Any] = {"parameters": sum(p.numel() for p in params), "seconds": waited(device) - begun}
    row |= {"ceiling": found.ceiling.value, "error": found.ceiling.error, "kind": found.ceiling.kind}
    for factor in (0.5, 2.0):
        own, run = copy.deepcopy((model, optimizer))
        run.param_groups[0]["lr"] = factor * found.ceiling.value
        row[f"rises at {factor:g}"] = rises(own, run, batch)
    tell(muon=row)


def rises(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> bool:
    losses = []
    for _ in range(STEPS + 1):
        optimizer.zero_grad()
        loss = model.loss(batch)  # type: ignore[operator]  # Transformer.loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return not max(losses) <= losses[0] + RISE * abs(losses[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "uses.json")
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    begun, progress.quiet = time.monotonic(), True
    torch.backends.cuda.matmul.allow_tf32 = True
    found: dict[str, Any] = {"made": asdict(Provenance.collect(dtype=torch.float32, device=device))}

    def tell(**parts: Any) -> None:
        found.update(parts)
        args.out.write_text(strict_json(found))
        print(parts, flush=True)

    for part in (landscape, muon, polish):
        if time.monotonic() - begun < args.limit:
            part(device, args.small, tell)


if __name__ == "__main__":
    main()
