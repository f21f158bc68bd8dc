"""Where a program's time goes: kernels in groups, products by shape, a replay without launches, product rates."""

from __future__ import annotations

import sys
import time

import torch

from kernels_common import DEVICE, HEADS, VOCAB, WIDTH, alone, peak, ready, timed

OURS = ("_forward", "_forward_tangent", "_grad_rows", "_grad_columns")
GROUPS = (
    ("attention", (*OURS, "fmha", "flash", "cudnn")),
    ("scaling", ("_largest", "_scale", "_tops", "_halves")),
    ("loss", ("_rows_of_logits", "_row_sums")),
    ("matrix products", ("gemm", "nvjet", "cutlass", "splitk", "sm90_", "cublas", "gemv", "triton_tem")),
    ("copies", ("memcpy", "memset", "direct_copy", "catarray")),
    ("fused by the compiler: reductions", ("triton_red", "triton_per")),
    ("fused by the compiler: entrywise", ("triton_poi", "triton_for")),
)


def group(name: str) -> str:
    low = name.lower()
    for label, words in GROUPS:
        if any(low == w or low.startswith(w + "(") or (not w.startswith("_") and w in low) for w in words):
            return label
    return "other (torch's own kernels)"


def profiled(run) -> dict:
    """Device milliseconds of one run by group of kernels, the longest kernels, and matrix products by shape."""
    run()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        run()
        torch.cuda.synchronize()
    groups: dict[str, list] = {}
    kernels: dict[str, list] = {}
    for event in profile.events():
        if event.device_type != torch.autograd.DeviceType.CUDA or event.name.startswith("##"):
            continue
        ms = event.device_time_total / 1e3
        for table, key in ((groups, group(event.name)), (kernels, event.name[:90])):
            row = table.setdefault(key, [0.0, 0])
            row[0] += ms
            row[1] += 1
    shapes: dict[str, list] = {}
    for row in profile.key_averages(group_by_input_shape=True):
        if row.key in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm") and row.device_time_total:
            two = [s for s in row.input_shapes if len(s) >= 2][-2:]
            shapes[f"{row.key[6:]} {two}"] = [row.device_time_total / 1e3, row.count]
    order = lambda table: dict(sorted(table.items(), key=lambda item: -item[1][0]))  # noqa: E731
    total = sum(v[0] for v in groups.values())
    return {
        "device_ms": total,
        "groups": order(groups),
        "kernels": dict(list(order(kernels).items())[:40]),
        "products": dict(list(order(shapes).items())[:40]),
    }


def show(name: str, table: dict, few: int = 14) -> None:
    print(f"  {name}: {table['device_ms']:.1f} ms on the device")
    for label, (ms, count) in table["groups"].items():
        print(f"    {ms:8.2f} ms  {count:5d}  {label}")
    for label, (ms, count) in list(table["kernels"].items())[:few]:
        print(f"      {ms:7.2f} ms {count:5d}  {label[:80]}")
    for label, (ms, count) in list(table["products"].items())[: 2 * few]:
        print(f"      {ms:7.2f} ms {count:5d}  {label}", flush=True)


def rates(report, tokens: int = 8192) -> None:
    """TFLOP/s of the shapes a Hessian product of GPT-2 multiplies: TF32 and float16, each way round, stacked or not."""
    d = HEADS * WIDTH
    layers = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    table = {}

    def rate(name, m, k, n, a_way, b_way):
        row = {}
        for kind in (torch.float32, torch.float16):
            a = (
                torch.randn(m, k, device=DEVICE).to(kind)
                if a_way == "n"
                else torch.randn(k, m, device=DEVICE).to(kind).T
            )
            b = (
                torch.randn(k, n, device=DEVICE).to(kind)
                if b_way == "n"
                else torch.randn(n, k, device=DEVICE).to(kind).T
            )
            if kind == torch.float32:
                run = lambda a=a, b=b: torch.mm(a, b)  # noqa: E731
            else:
                run = lambda a=a, b=b: torch.mm(a, b, out_dtype=torch.float32)  # noqa: E731
            row[str(kind)[6:]] = [2 * m * k * n / (ms := timed(run, 5)) / 1e9, ms]
        table[name] = row
        print(
            f"  {name:44s}" + "".join(f"  {kind} {r:5.0f} ({ms:.3f} ms)" for kind, (r, ms) in row.items()), flush=True
        )

    ready("rates")
    with alone():
        for name, (k, n) in layers.items():
            rate(f"{name} forward", tokens, k, n, "n", "n")
            rate(f"{name} forward, rows stacked", 2 * tokens, k, n, "n", "n")
            rate(f"{name} forward, weights transposed", tokens, k, n, "n", "t")
            rate(f"{name} inputs' gradient", tokens, n, k, "n", "t")
            rate(f"{name} inputs' gradient, weights transposed", tokens, n, k, "n", "n")
            rate(f"{name} weights' gradient", k, tokens, n, "t", "n")
            rate(f"{name} weights' gradient, rows stacked", k, 2 * tokens, n, "t", "n")
        for rows, vocab in ((631, VOCAB), (640, VOCAB + 47), (2048, VOCAB), (2048, VOCAB + 47)):
            rate(f"logits {rows}x{vocab}", rows, d, vocab, "n", "t")
            rate(f"logits {rows}x{vocab}, weights other way", rows, d, vocab, "n", "n")
            rate(f"logits' inputs {rows}x{vocab}", rows, vocab, d, "n", "n")
            rate(f"logits' inputs {rows}x{vocab}, weights other way", rows, vocab, d, "n", "t")
            rate(f"logits' weights {rows}x{vocab}", d, rows, vocab, "t", "n")
            rate(f"logits' weights {rows}x{vocab}, transposed", vocab, rows, d, "t", "n")
    report["rates"] = table


def measure(report, name, run, vectors=1, reps=5, look: bool = True) -> None:
    """Compile by running (side by side with the other parts), then time and memory, alone; `look` inside it too."""
    clock = time.time()
    for _ in range(20):
        try:
            run()
            break
        except torch.cuda.OutOfMemoryError:  # the others' first calls
            torch.cuda.empty_cache()
            time.sleep(3)
    torch.cuda.synchronize()
    built = time.time() - clock
    torch.cuda.empty_cache()
    ready(sys.argv[1])
    with alone():
        held = peak(run)  # before the clock: a program replayed from a graph takes its memory at its second call
        row = {"name": name, "ms": timed(run, reps, 1) / vectors, "gib": held, "first_call_s": built}
        print(f"  {name}: {row['ms']:.1f} ms, {row['gib']:.1f} GiB (first call {built:.0f} s)", flush=True)
        report.setdefault("models", []).append(row)
        if look:
            row["profile"] = profiled(run)
            show(name, row["profile"])
