"""Second-order attention beside others: errors, time and memory of jvp, gradient and double backward.

    python benchmarks/second_attention.py [--tokens 1024 4096] [--dtype bfloat16] [--limit S] [--out FILE] [--small]
    peer: pip install --no-deps --target .cache/lib jvp-flash-attention        (and PYTHONPATH=.cache/lib)

`quadform` is `quadform.kernels.scaled_dot_product_attention`, `jvp-flash-attention` that of PyPI (`JVPAttn.fwd_dual`
for jvp as its page asks, `attention` for reverse mode), `math` torch's math path, which writes tokens x tokens. Causal,
8 sequences of 12 heads of 64 numbers (of 4,096 tokens 2). Correctness first: 128 tokens in float32 against float64.
A way that gives no derivative is a row with the reason. `--small`: on a CPU, with TRITON_INTERPRET=1 for the peer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from quadform.core.record import Provenance, strict_json
from quadform.kernels.calls import math_attention
from quadform.kernels.sdpa import scaled_dot_product_attention

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
HEADS, WIDTH = 12, 64


def ways() -> dict[str, tuple[Attend, Attend]]:
    """By each library: attention for forward mode, and for reverse mode."""
    ours: Attend = lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    plain: Attend = lambda q, k, v: math_attention(q, k, v, is_causal=True)  # noqa: E731
    found = {"quadform": (ours, ours), "math": (plain, plain)}
    try:
        from jvp_flash_attention.jvp_attention import JVPAttn, attention
    except ImportError as error:
        print(f"jvp-flash-attention: {error}", file=sys.stderr)
        return found
    options: Any = {"causal": True, "warp_specialize": False, "USE_TMA": False}
    dual: Attend = lambda q, k, v: JVPAttn.fwd_dual(q, k, v, **options)  # noqa: E731
    return found | {"jvp-flash-attention": (dual, lambda q, k, v: attention(q, k, v, **options))}


def jvp(attend: Attend, x: list[Tensor], t: list[Tensor]) -> list[Tensor]:
    """The derivative of the output along t."""
    with forward_ad.dual_level():
        out = attend(*(forward_ad.make_dual(a, b) for a, b in zip(x, t, strict=True)))
        tangent = forward_ad.unpack_dual(out).tangent
    if tangent is None:
        raise RuntimeError("the output has no tangent")
    return [tangent]


def gradient(attend: Attend, x: list[Tensor], t: list[Tensor], graph: bool = False) -> list[Tensor]:
    leaves = x if graph else [a.detach().requires_grad_() for a in x]
    return list(torch.autograd.grad(attend(*leaves).float().square().sum() / 2, leaves, create_graph=graph))


def double_backward(attend: Attend, x: list[Tensor], t: list[Tensor]) -> list[Tensor]:
    """The Hessian of |output|^2 / 2 times t, by two reverse passes."""
    leaves = [a.detach().requires_grad_() for a in x]
    g = gradient(attend, leaves, t, graph=True)
    return list(torch.autograd.grad(sum((a * b).sum() for a, b in zip(g, t, strict=True)), leaves))


def inside(attend: Attend, x: list[Tensor], t: list[Tensor]) -> list[Tensor]:
    """The same with a layer before attention: one that keeps no graph of its gradient raises no error then."""
    return double_backward(lambda *given: attend(*(a.tanh() for a in given)), x, t)


WORK: dict[str, tuple[int, Callable[..., list[Tensor]]]] = {
    "jvp": (0, jvp),
    "gradient": (1, gradient),
    "double backward": (1, double_backward),
    "behind a layer": (1, inside),
}


def tensors(B: int, T: int, heads: int, device: str, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    torch.manual_seed(0)
    made = [torch.randn(B, heads, T, WIDTH, dtype=torch.float64).to(device, dtype) for _ in range(6)]
    return made[:3], made[3:]


def off(found: list[Tensor], want: list[Tensor]) -> float:
    gap, size = (sum(float(t.double().square().sum()) for t in ts) for ts in (map(torch.sub, found, want), want))
    return (gap / size) ** 0.5


def timed(work: Callable[[], Any], device: str, times: int) -> float:
    took = []
    for _ in range(times + 2):
        begun = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(took[2:])


def row(by: str, what: str, attend: Attend, B: int, T: int, options: argparse.Namespace, device: str) -> dict[str, Any]:
    """Error in float32 on a few tokens, then time and memory."""
    _, work = WORK[what]
    heads = 2 if options.small else HEADS
    made: dict[str, Any] = {"by": by, "what": what, "batch": B, "tokens": T, "dtype": options.dtype}
    try:
        few = 32 if options.small else 128
        exact = work(
            lambda q, k, v: math_attention(q, k, v, is_causal=True), *tensors(1, few, heads, device, torch.float64)
        )
        made["error"] = off(work(attend, *tensors(1, few, heads, device, torch.float32)), exact)
        x, t = tensors(B, T, heads, device, getattr(torch, options.dtype))
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        made["ms"] = timed(lambda: work(attend, x, t), device, 1 if options.small else 9)
        if device == "cuda":
            made["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    except Exception as error:  # a way that gives no derivative is a result
        made["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--limit", type=float, default=150.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    device, began = "cuda" if torch.cuda.is_available() else "cpu", time.monotonic()
    options.small |= device == "cpu"
    if options.small:
        options.tokens, options.dtype = [64], "float32"
    record: dict[str, Any] = {"made": asdict(Provenance.collect(dtype=torch.float32, device=device)), "rows": []}
    print(f"{'':20}{'':>17}{'tokens':>8}{'ms':>10}{'GiB':>8}{'error':>10}")
    for T in options.tokens:
        for what, (place, _) in WORK.items():
            for by, attends in ways().items():
                if time.monotonic() - began > options.limit:
                    sys.exit("time is up")
                B = 1 if options.small else max(1, min(8, 8192 // T))
                found = row(by, what, attends[place], B, T, options, device)
                record["rows"].append(found)
                numbers = [found.get(key, float("nan")) for key in ("ms", "peak_gib", "error")]
                told = f"{by:20}{what:>17}{T:>8}{numbers[0]:>10.2f}{numbers[1]:>8.2f}{numbers[2]:>10.1e}"
                print(f"{told}  {found.get('failed', '')}", flush=True)
                if options.out:
                    options.out.write_text(strict_json(record))


if __name__ == "__main__":
    main()
