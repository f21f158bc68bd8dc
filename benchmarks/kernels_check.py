"""`python benchmarks/kernels_check.py`: self-test and a small benchmark on whatever device is there."""

from __future__ import annotations

import time

import torch
from torch.func import grad, jvp

from quadform.kernels import attention, last_choice, linear_cross_entropy, using

ALL = (0, 1, 2)
SIZES = ((77, 24), (192, 64))
"""Tokens and width of the self-test: tiles that overhang, and whole ones, which have kernels of their own."""


def _problem(tokens: int, width: int, kind: torch.dtype, device: str, seed: int = 0):
    gen = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, 4, tokens, width, generator=gen).to(device, kind) for _ in range(6))


def _product(x):
    q, k, v, *t = x
    loss = lambda *x: attention(*x, causal=True).float().sin().sum()  # noqa: E731
    if q.dtype == torch.float64:
        loss = lambda *x: attention(*x, causal=True).sin().sum()  # noqa: E731
    return (attention(q, k, v, causal=True), *grad(loss, ALL)(q, k, v), *jvp(grad(loss, ALL), (q, k, v), tuple(t))[1])


def _gap(ours, exact) -> float:
    return max(float((a.double() - e).norm() / e.norm()) for a, e in zip(ours, exact, strict=True))


def _seconds(f, device: str, reps: int = 5) -> float:
    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    f()
    times = []
    for _ in range(reps):
        wait()
        start = time.perf_counter()
        f()
        wait()
        times.append(time.perf_counter() - start)
    return sorted(times)[reps // 2]


def main() -> int:
    """Print the tables; 0 when every check holds, 3 otherwise."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    console.print(f"quadform kernels on {name}, torch {torch.__version__}")
    modes = [("float64", torch.float64, None, 1e-12), ("float32", torch.float32, None, 1e-5)]
    if device == "cuda":
        modes[1:] = [
            ("float32, tf32x3", torch.float32, "tf32x3", 1e-5),
            ("float32, tf32", torch.float32, "tf32", 5e-3),
            ("bfloat16", torch.bfloat16, None, 1e-2),
        ]
    title = "value, gradient, Hessian product vs float64"
    table = Table("mode", "tokens x width", "computed by", "largest error", "allowed", "", title=title)
    good = True
    for label, kind, precision, allowed in modes:
        for tokens, width in SIZES:
            x = _problem(tokens, width, kind, device)
            with using(None, precision):
                ours, chosen = _product(x), last_choice()
            with using("reference"):
                gap = _gap(ours, _plain_product(tuple(a.double() for a in x)))
            good &= gap <= allowed
            found = (f"{gap:.1e}", f"{allowed:.0e}", "ok" if gap <= allowed else "FAILED")
            table.add_row(label, f"{tokens} x {width}", chosen.backend, *found)
    console.print(table)
    table = Table("tokens", "gradient", "Hessian product", "ratio", title="attention, 4 heads of 64, float32, causal")
    for tokens in (256, 1024) if device == "cpu" else (1024, 4096, 16384):
        q, k, v, *t = _problem(tokens, 64, torch.float32, device)
        slope = grad(lambda *x: attention(*x, causal=True).sin().sum(), ALL)
        first = _seconds(lambda x=(q, k, v), f=slope: f(*x), device)
        second = _seconds(lambda x=(q, k, v), t=tuple(t), f=slope: jvp(f, x, t)[1], device)
        table.add_row(str(tokens), f"{first * 1e3:.2f} ms", f"{second * 1e3:.2f} ms", f"{second / first:.2f}")
    console.print(table)
    x, W = torch.randn(64, 16, device=device), torch.randn(16, 100, device=device)
    targets = torch.arange(64, device=device)
    gap = float((linear_cross_entropy(x, W, targets) - torch.nn.functional.cross_entropy(x @ W, targets)).abs())
    good &= gap <= 1e-2
    console.print(f"linear + cross-entropy against torch: {gap:.1e} {'ok' if gap <= 1e-2 else 'FAILED'}")
    q, k, v = _problem(77, 24, torch.float32, device)[:3]
    weights = {"alpha": 0.9, "beta": 1.1, "gamma": 0.8}
    with using(None, "tf32x3"):
        mixed, chosen = attention(q, k, v, causal=True, **weights), last_choice()
    with using("reference"):
        gap = _gap((mixed,), (attention(*(a.double() for a in (q, k, v)), causal=True, **weights),))
    good &= gap <= 1e-5
    console.print(f"shaped mixing by {chosen.backend}: {gap:.1e} {'ok' if gap <= 1e-5 else 'FAILED'}")
    return 0 if good else 3


def _plain_product(x):
    """The same numbers from softmax written out, differentiated by torch alone."""

    def plain(q, k, v):
        S = q.shape[-1] ** -0.5 * q @ k.mT
        hidden = torch.ones(S.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return S.masked_fill(hidden, float("-inf")).softmax(-1) @ v

    q, k, v, *t = x
    loss = lambda *x: plain(*x).sin().sum()  # noqa: E731
    return (plain(q, k, v), *grad(loss, ALL)(q, k, v), *jvp(grad(loss, ALL), (q, k, v), tuple(t))[1])


if __name__ == "__main__":
    raise SystemExit(main())
