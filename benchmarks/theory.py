"""The closed-form Hessian of attention against automatic differentiation: time, memory, accuracy, and how they grow.

    python benchmarks/theory.py [whole] [functional] [norms] [growth] [gpu] [--out FILE]

One thread, float64 on the CPU. Every time is printed beside the peer measured in the same run: the peer is
`vmap(jvp(grad), chunk_size=256)` over unit vectors, the fastest correct way torch has. Times are the best of several.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from quadform.core.record import Provenance, strict_json
from quadform.theory import AttentionLayer, MultiHeadAttentionLayer

SIZES = [(L, d) for L in (64, 128) for d in (16, 32, 64)]


def best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of `repeats` runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_bytes(work: Callable[[], object]) -> int:
    """How far the resident memory of this process rises above its level before `work` (Linux)."""
    status = Path("/proc/self/status")

    def read(field: str) -> int:
        return next(int(row.split()[1]) * 1024 for row in status.read_text().splitlines() if row.startswith(field))

    ctypes.CDLL(None).malloc_trim(0)  # memory freed earlier would hide what is taken now
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before = read("VmRSS")
    work()
    return read("VmHWM") - before


def problem(L: int, d: int, seed: int = 0) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    X, Y = (torch.randn(L, d, generator=g, dtype=torch.float64) for _ in range(2))
    return X, *(torch.randn(d, d, generator=g, dtype=torch.float64) / d**0.5 for _ in range(3)), Y


def by_autodiff(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, Y: Tensor, g: Tensor | None = None) -> Tensor:
    """The same matrix by `vmap(jvp(grad))`; of <g, F> when g is given (the functional part alone)."""
    d = X.shape[1]

    def scalar(w: Tensor) -> Tensor:
        F = ((X @ w[0]) @ (X @ w[1]).T / d**0.5).softmax(-1) @ (X @ w[2])
        return (F - Y).square().mean() if g is None else (g * F).sum()

    W = torch.stack([W_Q, W_K, W_V])
    units = torch.eye(W.numel(), dtype=W.dtype).view(-1, *W.shape)
    product = torch.func.vmap(lambda v: torch.func.jvp(torch.func.grad(scalar), (W,), (v,))[1], chunk_size=256)
    return product(units).flatten(1)


def whole() -> list[dict]:
    """The whole Hessian of one head at six sizes."""
    rows = []
    print("whole Hessian of one head, float64, one thread")
    print("   L   d      P   autodiff     closed  ratio     reused  ratio  memory    error")
    for L, d in SIZES:
        data = problem(L, d)
        P = 3 * d * d
        closed = lambda: AttentionLayer(*data).matrix()  # noqa: E731
        H = closed()
        memory = peak_bytes(closed) / (P * P * 8)
        few = 2 if d == 64 else 7
        ours = best(closed, few)
        out = torch.empty_like(H)
        reused = best(lambda: AttentionLayer(*data).matrix(out=out), few)
        peer = best(lambda: by_autodiff(*data), 1 if d == 64 else 3)
        reference = by_autodiff(*data) if d < 64 else None
        error = math.nan if reference is None else float((H - reference).abs().max() / reference.abs().max())
        if reference is None:  # 1.2 GB each: compare 256 rows
            part = _some_rows(data)
            error = float((H[:256] - part).abs().max() / part.abs().max())
        rows.append(
            {"L": L, "d": d, "parameters": P, "autodiff_s": peer, "closed_form_s": ours, "ratio": peer / ours}
            | {"closed_form_into_given_memory_s": reused, "ratio_into_given_memory": peer / reused}
            | {"peak_memory_over_matrix": memory, "max_error": error}
        )
        print(
            f"{L:>4} {d:>3} {P:>6} {peer:>9.3f}s {ours:>9.4f}s {peer / ours:>5.0f}x"
            f" {reused:>9.4f}s {peer / reused:>5.0f}x {memory:>6.2f}x {error:>8.1e}"
        )
    return rows


def _some_rows(data: tuple[Tensor, ...]) -> Tensor:
    """The first 256 rows of the Hessian by automatic differentiation."""
    X, W_Q, W_K, W_V, Y = data
    W = torch.stack([W_Q, W_K, W_V])

    def scalar(w: Tensor) -> Tensor:
        F = ((X @ w[0]) @ (X @ w[1]).T / X.shape[1] ** 0.5).softmax(-1) @ (X @ w[2])
        return (F - Y).square().mean()

    units = torch.zeros(256, W.numel(), dtype=W.dtype)
    units[:, :256] = torch.eye(256, dtype=W.dtype)
    product = torch.func.vmap(lambda v: torch.func.jvp(torch.func.grad(scalar), (W,), (v,))[1])
    return product(units.view(256, *W.shape)).flatten(1)


def functional() -> list[dict]:
    """H_f alone at L = 32, d = 16, contracted with dl/dF."""
    data = problem(32, 16)
    layer = AttentionLayer(*data)
    g = layer.output.g
    H_f = layer.matrix("functional")
    reference = by_autodiff(*data, g=g)
    ours = best(lambda: AttentionLayer(*data).matrix("functional"), 30)
    peer = best(lambda: by_autodiff(*data, g=g), 5)
    error = float((H_f - reference).abs().max() / reference.abs().max())
    print(f"\nH_f alone, L=32 d=16: closed form {1e3 * ours:.2f} ms, autodiff {1e3 * peer:.1f} ms, {peer / ours:.0f}x")
    return [{"L": 32, "d": 16, "closed_form_s": ours, "autodiff_s": peer, "ratio": peer / ours, "max_error": error}]


def norms() -> list[dict]:
    """Exact norms of all six blocks at the paper's size: d = 128, 64 sequences of 18 tokens, causal."""
    g = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(64, 18, 128, generator=g, dtype=torch.float64) for _ in range(2))
    W = [0.8 * torch.randn(128, 128, generator=g, dtype=torch.float64) / 128**0.5 for _ in range(3)]
    rows = []
    print("\nexact norms of all six blocks, d=128, 64 x 18 tokens (a block has 268 million entries)")
    for part in ("outer", "functional", "total"):
        seconds = best(lambda: AttentionLayer(X, *W, Y, mask="causal").norms(part), 2)
        rows.append({"part": part, "seconds": seconds})
        print(f"  {part:>10}  {seconds:.2f} s")
    return rows


def growth() -> list[dict]:
    """How the cost grows: fitted exponents beside the predicted order. Sizes are large enough for the leading term."""

    def fit(sizes: list[int], work: Callable[[int], Callable[[], object]]) -> float:
        times = [best(work(n), 5) for n in sizes]
        return statistics.linear_regression([math.log(n) for n in sizes], [math.log(t) for t in times]).slope

    def layer(L: int, d: int, batch: int = 1) -> AttentionLayer:
        X, *W, Y = problem(batch * L, d)
        return AttentionLayer(X.view(batch, L, d), *W, Y.view(batch, L, d))

    big = [256, 362, 512, 724, 1024]
    rows = [
        {
            "what": "moments M2 and N",
            "in": "L",
            "predicted": 2,
            "fitted": fit(big, lambda L: lambda: layer(L, 16).head.M2),
        },
        {"what": "whole Hessian", "in": "L", "predicted": 1, "fitted": fit(big, lambda L: _matrix_of(layer(L, 16)))},
        {
            "what": "whole Hessian",
            "in": "d",
            "predicted": 4,
            "fitted": fit([16, 23, 32, 45], lambda d: _matrix_of(layer(128, d))),
        },
        {"what": "Hessian product", "in": "L", "predicted": 2, "fitted": fit(big, lambda L: _product_of(layer(L, 32)))},
        {
            "what": "norm of (Q, Q)",
            "in": "N",
            "predicted": 2,
            "fitted": fit([16, 32, 64, 128], lambda b: _norm_of(layer(18, 64, b))),
        },
    ]
    print("\ngrowth of the cost (log-log fit)")
    for row in rows:
        print(f"  {row['what']:<18} in {row['in']}: {row['fitted']:.2f} (leading order {row['predicted']})")
    return rows


def _matrix_of(layer: AttentionLayer) -> Callable[[], object]:
    layer.head.M2  # noqa: B018 the moments are timed on their own
    return layer.matrix


def _product_of(layer: AttentionLayer) -> Callable[[], object]:
    H, v = layer.hessian(), layer.space.random(dtype=torch.float64)
    return lambda: H @ v


def _norm_of(layer: AttentionLayer) -> Callable[[], object]:
    layer.head.M2  # noqa: B018
    return lambda: layer.norm("W_Q", "W_Q")


def gpu() -> list[dict]:
    """Exact norms on the GPU: L = 1024, d = 1024, a head of width 64, alone and as one of two with W_O."""
    if not torch.cuda.is_available():
        print("\nno GPU here; `gpu` left out")
        return []
    rows = []
    print(f"\nexact norms on {torch.cuda.get_device_name()}, L=1024, d=1024, heads of width 64")
    for dtype in (torch.float64, torch.float32):
        options = {"device": "cuda", "dtype": dtype}
        X, Y = torch.randn(1024, 1024, **options), torch.randn(1024, 64, **options)
        W = [torch.randn(1024, 64, **options) / 32 for _ in range(3)]
        both = [torch.cat([w, w.flip(0)], 1) for w in W]
        W_O = torch.cat([W[0].T, W[1].T])
        for name, make in {
            "one head": lambda: AttentionLayer(X, *W, Y, mask="causal"),
            "two heads and W_O": lambda: MultiHeadAttentionLayer(X, *both, W_O, X, heads=2, mask="causal"),
        }.items():
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            start = time.perf_counter()
            found = make().norms()
            torch.cuda.synchronize()
            seconds, gib = time.perf_counter() - start, torch.cuda.max_memory_allocated() / 2**30
            kind = str(dtype).removeprefix("torch.")
            rows.append({"what": name, "dtype": kind, "seconds": seconds, "peak_gib": gib, "blocks": len(found)})
            print(f"  {name:<18} {kind}: {seconds:6.2f} s, {gib:5.1f} GiB, {len(found)} blocks")
        small = [torch.randn(96, 48, **options), *(torch.randn(48, 16, **options) / 7 for _ in range(3))]
        layer = AttentionLayer(*small, torch.randn(96, 16, **options))
        bound = 1e-10 if dtype == torch.float64 else 1e-3
        worst = max(abs(v.value / float(layer.block(a, b).norm()) - 1) for (a, b), v in layer.norms().items())
        print(f"  against the dense blocks at L=96, d=48: {worst:.1e} (bound {bound:.0e})")
        rows.append({"what": "norms against dense blocks, L=96 d=48", "dtype": kind, "max_relative_error": worst})
        if worst > bound:
            raise SystemExit("norms are wrong on this device")
    return rows


def main() -> None:
    jobs = {"whole": whole, "functional": functional, "norms": norms, "growth": growth, "gpu": gpu}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", choices=[*jobs, []], help="default: all that run here")
    parser.add_argument("--out", type=Path, help="write the record there (JSON)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    results = {name: jobs[name]() for name in options.jobs or jobs}
    if options.out:
        made = asdict(Provenance.collect(dtype=torch.float64, device="cuda" if torch.cuda.is_available() else "cpu"))
        made["command"] = " ".join(["benchmarks/theory.py", *results])
        options.out.write_text(strict_json({"benchmark": "theory", "made": made, "results": results}))
        print(f"\nrecord: {options.out}")


if __name__ == "__main__":
    main()
