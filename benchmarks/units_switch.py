"""A long loop of products with the default route: when it changes, and what the loop takes beside the best choice.

    python benchmarks/units.py switch [--models gpt_neox ...] [--layers N] [--after N] [--limit SECONDS]

Without `--models`: a Llama of 6.7B random weights, one sequence of 2,048 tokens. `qf.hessian(risk)` is multiplied again
and again until its route has changed and `--after` more products are done, or until the time is up. The first product
by the new route takes the preparation too. `hindsight`: seconds of the loop over those of the better of two choices
made at its beginning: never to change, or to prepare at once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from quadform.core import progress
from quadform.core.record import Provenance, strict_json
from quadform.curvature import Risk, hessian


def switch(options: argparse.Namespace, out: Path | None) -> None:
    """The loops, one model after another."""
    from units import cleared

    device = "cuda" if torch.cuda.is_available() else "cpu"
    progress.quiet, began = True, time.monotonic()
    torch.set_float32_matmul_precision("high")
    record: dict[str, Any] = {"made": asdict(Provenance.collect(dtype=torch.float32, device=device)), "loops": []}
    for name in options.models or (None,):
        left = options.limit - (time.monotonic() - began)
        record["loops"].append(found := loop(name, options, device, left))
        print(told(found), flush=True)
        if out is not None:
            out.write_text(strict_json(record))
        cleared(device)


def loop(name: str | None, options: argparse.Namespace, device: str, limit: float) -> dict[str, Any]:
    """Seconds of each product and the route that it took, until `--after` products after the change."""
    from units import gap, llama, once
    from units_widths import built

    began = time.monotonic()
    if name is None:
        model, batch = llama(device, 48 if options.small else 2048, options.small)
        n = sum(p.numel() for p in model.parameters())
        found: dict[str, Any] = {"model": f"Llama of {n / 1e6:,.0f}M", "parameters": n}
    else:
        model, batch, found = built(name, options.layers, options.mask, device, options.small)
    risk = Risk(model, None, batch, quiet=True)
    H, rows = hessian(risk), list[tuple[str, float]]()
    v = risk.space.random(1, dtype=torch.float32, device=device, generator=torch.Generator(device).manual_seed(1))
    image: dict[str, Any] = {}

    def work() -> None:
        image.update(H.apply(v))

    first = once(work, device)
    route, before = str(H.route), {n: t.cpu() for n, t in image.items()}
    while time.monotonic() - began < limit:
        taken = once(work, device)
        rows.append((str(H.route), taken))
        if len(rows) > options.after and rows[-1 - options.after][0] != route:
            break
    return found | {"first_s": first, "error": gap({n: t.cpu() for n, t in image.items()}, before)} | judged(rows)


def judged(rows: list[tuple[str, float]]) -> dict[str, Any]:
    """Where the route changed, products before and after it, and the loop beside the best choice in hindsight."""
    at = next((i for i, (route, _) in enumerate(rows) if route != rows[0][0]), None)
    total, slow = sum(s for _, s in rows), statistics.median(s for _, s in rows[:at])
    found = {"routes": [rows[0][0], rows[-1][0]], "products": len(rows), "seconds": total, "before_ms": 1e3 * slow}
    if at is None or at + 1 == len(rows):
        return found
    fast = statistics.median(s for _, s in rows[at + 1 :])
    prepared, count = max(s for _, s in rows[at:]) - fast, len(rows)
    best = min(count * slow, prepared + count * fast)
    return found | {"changed_at": at, "prepared_s": prepared, "after_ms": 1e3 * fast, "hindsight": total / best}


def told(found: dict[str, Any]) -> str:
    """A loop in one line."""
    text = f"{found['model']}: {found['products']} products in {found['seconds']:.1f} s, {found['before_ms']:.1f} ms by"
    text += f" {found['routes'][0]}"
    if "changed_at" not in found:
        return f"{text}; the route did not change"
    text += f", after {found['changed_at']} of them {found['prepared_s']:.1f} s for {found['routes'][1]}"
    text += f", {found['after_ms']:.1f} ms then; {found['hindsight']:.2f} of the best choice, products differ by"
    return f"{text} {found['error']:.1e}"
