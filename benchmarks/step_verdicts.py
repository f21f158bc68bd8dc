"""Is the verdict of `lr` right? Runs at 0.2 to 5 times the ceiling, each graded by what the loss does.

    python benchmarks/step_verdicts.py --out benchmarks/records/step-verdicts-cpu.json

For each optimizer and seed a small model is trained for 60 steps on one batch, `qf.lr` measures the ceiling there, and
the training goes on from that point at ten rates between 0.2 and 5 times the ceiling. The verdict is `above` or
`below`; the outcome is whether the loss rises above where it was within 30 steps. They agree where `above` rises and
`below` does not. Rates beyond the Taylor radius, where the answer says that the bound does not apply, are counted too,
and apart. Optimizers, rates, steps and the outcome were fixed before seeds 2 to 5 were run; 0 and 1 were looked at.
"""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import quadform as qf
from quadform.answers.step_size import STABLE, StepSize
from quadform.core.record import Provenance
from quadform.corpora import dataset
from quadform.nn import Transformer

FRACTIONS = tuple(0.2 * 25 ** (i / 9) for i in range(10))
WARM, STEPS = 60, 30
OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.99)),
}


def steps(model: Transformer, optimizer: torch.optim.Optimizer, batch: Any, count: int) -> list[float]:
    """The loss before each step, and after the last."""
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = model.loss(batch)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    return [*losses, model.loss(batch).item()]


def verdict(found: StepSize, rate: float) -> tuple[str, bool]:
    """`above`, `below` or `near` the ceiling, and whether the rate is beyond the Taylor radius."""
    at = StepSize(replace(found.record, inputs={**found.record.inputs, "lr": rate, "lr_is": "yours"}))
    assert at.share is not None
    where = {"red": "above", "green": "below"}.get(STABLE.grade(at.share), "near")
    return where, at.reach is not None and rate > at.reach.value


def grade(name: str, seed: int, fractions: tuple[float, ...] = FRACTIONS) -> list[dict[str, Any]]:
    """One row for each rate."""
    data = dataset("add", digits=1)
    sizes: dict[str, Any] = {"depth": 1, "d_model": 16, "heads": 2, "activation": "gelu", "dtype": torch.float64}
    model = Transformer("pre-ln", seed=seed, **sizes, **data.settings)
    batch, optimizer = next(data.batches("train", 32, seed)), OPTIMIZERS[name](model.parameters())
    steps(model, optimizer, batch, WARM)
    found = qf.lr(model, [batch], optimizer=optimizer, verify=0, progress=False)
    rows = []
    for fraction in fractions:
        rate = fraction * found.ceiling.value
        own, run = copy.deepcopy((model, optimizer))
        for group in run.param_groups:
            group["lr"] = rate
        losses = steps(own, run, batch, STEPS)
        where, beyond = verdict(found, rate)
        rises = not max(losses) <= losses[0]
        row = {"optimizer": name, "seed": seed, "fraction": fraction, "verdict": where, "beyond_radius": beyond}
        rows.append(row | {"rises": rises, "highest": max(losses) / losses[0], "last": losses[-1] / losses[0]})
    return rows


def agrees(row: dict[str, Any]) -> bool:
    return (row["verdict"] == "above") == row["rises"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4, 5])
    args = parser.parse_args()
    rows = [row for name in OPTIMIZERS for seed in args.seeds for row in grade(name, seed)]
    apply = [row for row in rows if row["verdict"] == "above" or not row["beyond_radius"]]
    body = {
        "made": asdict(Provenance.collect(seed=args.seeds[0], dtype=torch.float64)),
        "runs": len(rows),
        "agreement": sum(map(agrees, rows)) / len(rows),
        "runs_where_the_bound_applies": len(apply),
        "agreement_where_the_bound_applies": sum(map(agrees, apply)) / len(apply),
        "rows": rows,
    }
    args.out.write_text(json.dumps(body, indent=1) + "\n")
    print({k: v for k, v in body.items() if k not in ("rows", "made")})


if __name__ == "__main__":
    main()
