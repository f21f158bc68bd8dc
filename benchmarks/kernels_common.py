"""What the parts of `kernels.py` share: clocks, the lock behind which one part measures at a time, ceilings."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

import torch

HEADS, WIDTH, DEPTH, VOCAB = 12, 64, 12, 50257
DEVICE = "cuda"
LOCK = os.environ.get("QUADFORM_BENCHMARK_LOCK")


@contextlib.contextmanager
def alone():
    """Nobody else measures meanwhile."""
    if LOCK is None:
        yield
        return
    with open(LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ready(name: str, parts: int = int(os.environ.get("QUADFORM_BENCHMARK_PARTS", "1"))) -> None:
    """This part has compiled; wait until all have, or have ended, or patience has (then others still compile)."""
    if LOCK is None:
        return
    folder = os.path.dirname(LOCK)
    open(os.path.join(folder, f"ready-{name}"), "w").close()
    end = float(os.environ["QUADFORM_BENCHMARK_END"])
    while sum(n.startswith("ready-") for n in os.listdir(folder)) < parts and time.time() < end:
        time.sleep(0.2)


def timed(f, reps: int = 10, warm: int = 2) -> float:
    """Median milliseconds of f()."""
    for _ in range(warm):
        f()
    marks = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(reps)]
    for start, end in marks:
        start.record()
        f()
        end.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in marks)
    return times[len(times) // 2]


def peak(f) -> float:
    """GiB at the highest point of f(), everything alive before it included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    f()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def error(ours, exact) -> float:
    """‖ours − exact‖ / ‖exact‖ over a tuple of tensors."""
    gap = sum((a.double() - e.double()).square().sum() for a, e in zip(ours, exact, strict=True))
    return float((gap / sum(e.double().square().sum() for e in exact)).sqrt())


def ceilings() -> dict[str, float]:
    """Matrix rates in TFLOP/s and copy bandwidth in TB/s, on random data."""
    out, n = {}, 8192
    for name, kind in (("bf16", torch.bfloat16), ("tf32", torch.float32)):
        a, b = (torch.randn(n, n, device=DEVICE).to(kind) for _ in range(2))
        out[name] = 2 * n**3 / timed(lambda a=a, b=b: a @ b) / 1e9
    a = torch.randn(2**28, device=DEVICE)
    b = torch.empty_like(a)
    out["copy"] = 2 * a.numel() * 4 / timed(lambda: b.copy_(a)) / 1e9
    return out


def heads(batch, tokens, kind, gen, width=WIDTH, count=HEADS, n=3):
    new = lambda: torch.randn(batch, tokens, count, width, device=DEVICE, generator=gen).to(kind)  # noqa: E731
    return tuple(new().transpose(1, 2) for _ in range(n))


@torch.compile(dynamic=True)
def row_products(a, b):
    """Δ = rowsum(dO ∘ O), fused as in the model's program."""
    return (a.float() * b.float()).sum(-1)
