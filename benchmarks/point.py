"""Are the zeros of a Hessian the symmetries of its model, to the last one? Counted at a Transformer of 10,000 weights.

    python benchmarks/point.py --out benchmarks/records/point-cpu.json [--small] [--noise 1e-7]

A Pre-LN Transformer with random weights (two blocks, two heads, ReLU, all biases, output not tied) labels random tokens
with its own probabilities, so its loss is at a minimum. `qf.point` computes all eigenvalues there. With `--noise` the
weights are moved by that much of the size of each tensor, and polished first. Goal, fixed before the run: as many zeros
as directions of symmetries, and none negative. Beside the count stands the gap: the largest |eigenvalue| among the
zeros and the smallest one that is none. About 10 minutes on one core, 6 GiB, an hour with noise; `--small` has 1,072
weights.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import quadform as qf
from quadform.core import progress
from quadform.core.record import Provenance, strict_json
from quadform.nn import Transformer

SIZES: dict[str, Any] = {"depth": 2, "d_model": 20, "heads": 2, "d_ff": 66, "vocab": 24, "seq_len": 8}
SMALL: dict[str, Any] = {"depth": 1, "d_model": 8, "heads": 2, "d_ff": 32, "vocab": 8, "seq_len": 6}
BATCHES, ROWS = 2, 40


def divergence(out: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean Kullback-Leibler divergence from the labels."""
    p = batch[1]
    return (p * (p.log() - out.log_softmax(-1))).sum(-1).mean()


def taught(sizes: dict[str, Any], noise: float) -> tuple[Transformer, list[tuple[Tensor, Tensor]]]:
    """The teacher of its batches, moved by some noise."""
    biases = ("q", "k", "v", "o", "mlp", "out")
    model = Transformer("pre-ln", seed=0, dtype=torch.float64, tied=False, biases=biases, **sizes)
    drawn = torch.Generator().manual_seed(1)

    def moved(size: float) -> None:
        with torch.no_grad():
            for p in model.parameters():  # gains and biases do not begin at 1 and 0
                p += size * torch.randn(p.shape, generator=drawn, dtype=p.dtype)

    moved(0.2)
    batches = []
    for _ in range(BATCHES):
        tokens = torch.randint(0, sizes["vocab"], (ROWS, sizes["seq_len"]), generator=drawn)
        with torch.no_grad():
            batches.append((tokens, model(tokens).softmax(-1)))
    moved(noise)
    return model, batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("point.json"))
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    progress.quiet = True
    model, batches = taught(SMALL if args.small else SIZES, args.noise)
    count = sum(p.numel() for p in model.parameters())
    begun = time.perf_counter()
    found = qf.point(model, batches, divergence, polish=args.noise > 0, steps=args.steps, inertia=count, progress=False)
    seconds = time.perf_counter() - begun
    print(found)
    assert found.inertia is not None
    assert found.eigenvalues is not None
    assert found.explained is not None
    sizes, zeros = found.eigenvalues.abs().sort().values, found.inertia[1]
    row = {
        "parameters": count,
        "outcomes": sum(labels[..., 1:].numel() for _, labels in batches),
        "seconds": seconds,
        "inertia": list(found.inertia),
        "explained": found.explained,
        "goal_met": zeros == found.explained and found.inertia[2] == 0,
        "largest_zero": float(sizes[zeros - 1]),
        "smallest_other": float(sizes[zeros]) if zeros < count else None,
        "symmetries": found.symmetries,
        "scalars": {name: e.value for name, e in found.record.scalars.items()},
        "verdict": found.verdicts()[0].sentence(),
    }
    made = asdict(Provenance.collect(seed=0, dtype=torch.float64, device="cpu"))
    args.out.write_text(strict_json({"made": made, "noise": args.noise, "point": row}))
    print(
        {key: row[key] for key in ("parameters", "inertia", "explained", "goal_met", "largest_zero", "smallest_other")}
    )


if __name__ == "__main__":
    main()
