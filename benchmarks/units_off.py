"""Where a compiled program is off: errors by weight, with parts of the way to it taken out.

    python benchmarks/units_off.py [--model vit] [--layers 1] [--limit SECONDS] [--out FILE] [--small]

A model of `units_widths` at its real width. Errors are distances from a double backward pass of torch without TF32, of
each weight and as a share of the whole. `own`: that pass with TF32; `traced`: aten operators one by one; then compiled
as the library does (large products in scaled float16), with torch's products, without padded strides, and with
convolutions in full float32. Programs that would be refused are run all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import units_widths
from quadform.core import progress
from quadform.core.record import Provenance, strict_json
from quadform.curvature import Risk, hessian, linear, strategies

WORST = 6


@contextlib.contextmanager
def made_with(products: str) -> Iterator[None]:
    """Programs with these large products, none of them refused."""

    class Asked(linear.Linearised):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **(options | {"products": products}))

    with mock.patch.object(linear, "Linearised", Asked), mock.patch.dict(strategies.ROUNDING, {torch.float32: 1e3}):
        yield


@contextlib.contextmanager
def exact_convolutions() -> Iterator[None]:
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = True


def unpadded() -> Any:
    from torch._inductor import config

    return config.patch(comprehensive_padding=False)


WAYS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "traced": ("traced", "torch", contextlib.nullcontext),
    "traced, halves": ("traced", "halves", contextlib.nullcontext),
    "compiled, halves": ("compiled", "halves", contextlib.nullcontext),
    "compiled": ("compiled", "torch", contextlib.nullcontext),
    "compiled, halves, unpadded": ("compiled", "halves", unpadded),
    "compiled, halves, convolutions exact": ("compiled", "halves", exact_convolutions),
}


def compared(image: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, Any]:
    """The whole error, and the weights that have most of it."""
    square = lambda t: float(t.double().square().sum())  # noqa: E731
    whole = sum(square(t) for t in truth.values())
    off = {n: square(image[n] - t) for n, t in truth.items()}
    worst = sorted(off, key=lambda n: -off[n])[:WORST]
    by = {
        n: {"own": (off[n] / max(square(truth[n]), 1e-300)) ** 0.5, "of_whole": (off[n] / whole) ** 0.5} for n in worst
    }
    return {"error": (sum(off.values()) / whole) ** 0.5, "worst": by}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(units_widths.MODELS), default="vit")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=90.0, help="no way is begun later")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    progress.quiet, began = True, time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, batch, told = units_widths.built(
        options.model, options.layers, "padded", device, options.small or device == "cpu"
    )
    record: dict[str, Any] = {"made": asdict(Provenance.collect(dtype=torch.float32, device=device)), "of": told}
    v = {n: torch.randn_like(p)[None] for n, p in model.named_parameters()}
    own = lambda: units_widths.double_backward(model, batch, v, "H")  # noqa: E731
    with exact_convolutions():
        truth = own()
    record["own, convolutions in TF32"] = compared(own(), truth)
    torch.set_float32_matmul_precision("high")
    record["own, TF32"] = compared(own(), truth)
    for name, (route, products, around) in WAYS.items():
        if time.monotonic() - began > options.limit:
            print("time is up")
            break
        torch._dynamo.reset()
        risk = Risk(model, None, batch, quiet=True)
        with made_with(products), around():
            H: Any = hessian(risk, route=route)
            record[name] = compared({n: t[0] for n, t in H.apply(v).items()}, truth) | {"route": str(H.route)}
        print(f"{time.monotonic() - began:5.0f} s  {name}: {record[name]}", flush=True)
        if options.out:
            options.out.write_text(strict_json(record))
    for name, row in record.items():
        if "error" in row:
            print(f"{name:40}{row['error']:>10.1e}   {max(row['worst'], key=lambda n: row['worst'][n]['of_whole'])}")


if __name__ == "__main__":
    main()
