"""Accuracy, time and memory of `quadform.kernels` on one GPU, beside what torch has and beside the floors.

    python benchmarks/kernels.py [PART ...] [--out FILE]      (parts: see PARTS at the end)

Every part is a process of its own: they compile side by side, wait for each other, and then measure one at a time,
behind a lock. Accuracy is against float64. The floors count the products a second-order product cannot avoid at the
matrix rate measured in the same run, and each tensor read or written once at the measured bandwidth. Times are medians
over device events.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch.func import grad, jvp

from kernels_common import DEVICE, HEADS, LOCK, WIDTH, alone, ceilings, error, peak, ready, timed
from kernels_models import blockwise, eigen, gradient, kept, product, product_error, stock_gradient, training
from kernels_profile import rates
from quadform.kernels import attention, using


def heads(batch, tokens, kind, gen, width=WIDTH, count=HEADS, n=3):
    new = lambda: torch.randn(batch, tokens, count, width, device=DEVICE, generator=gen).to(kind)  # noqa: E731
    return tuple(new().transpose(1, 2) for _ in range(n))


ALL = (0, 1, 2)


def hvp(f, x, t):
    return jvp(grad(f, ALL), x, t)[1]


CASES = [
    ("causal, 64 wide, 512", 512, 64, 12, 12, {"causal": True}),
    ("odd length 333, 80 wide, not causal", 333, 80, 4, 4, {}),
    ("grouped heads, 128 wide, 257", 257, 128, 8, 2, {"causal": True}),
    ("256 wide, 130", 130, 256, 2, 2, {"causal": True}),
    ("16 wide, padding mask, bias", 200, 16, 4, 4, {"causal": True, "mask": True, "bias": True}),
]
SHAPED = [
    ("shaped, 64 wide, 300", 300, 64, 4, 4, {"causal": True, "mix": True}),
    ("shaped, 32 wide, 129, not causal", 129, 32, 4, 2, {"mix": True}),
]


def accuracy(report, cases=CASES, key: str = "accuracy") -> None:
    """Error of the Hessian product of ⟨w, attention⟩ + nonlinearity, per mode, against the reference in float64."""
    gen = torch.Generator(DEVICE).manual_seed(0)
    modes = [
        ("bf16", torch.bfloat16, "tf32"),
        ("fp16", torch.float16, "tf32"),
        ("tf32", torch.float32, "tf32"),
        ("tf32x3", torch.float32, "tf32x3"),
        ("ieee", torch.float32, "ieee"),
    ]
    rows = []
    for label, tokens, width, count, count_k, options in cases:
        kw = {"causal": options.get("causal", False)}
        if options.get("mask"):
            kw["mask"] = torch.rand(2, 1, 1, tokens, device=DEVICE, generator=gen) > 0.2
        if options.get("bias"):
            kw["bias"] = torch.randn(count, tokens, tokens, device=DEVICE, generator=gen)
        if options.get("mix"):
            weights = 1 + 0.5 * torch.randn(3, count, device=DEVICE, generator=gen)
            kw |= dict(zip(("alpha", "beta", "gamma"), weights, strict=True))
        row = {"case": label}
        for mode, kind, precision in modes:
            if mode in ("ieee", "tf32x3") and width > 64:
                continue
            make = lambda n, c, kind=kind: heads(2, tokens, kind, gen, width, c, n)  # noqa: E731
            x, t = make(1, count) + make(2, count_k), make(1, count) + make(2, count_k)
            w = torch.randn(2, count, tokens, width, device=DEVICE, generator=gen)
            wide = lambda a: tuple(b.double() for b in a)  # noqa: E731
            f = lambda *x, kw=kw, w=w: (w.to(x[0].dtype) * attention(*x, **kw).sin()).sum()  # noqa: E731
            g = lambda *x, kw=kw, w=w: (w.double() * attention(*x, **kw).sin()).sum()  # noqa: E731
            kw64 = {n: a if n in ("causal", "mask") else a.double() for n, a in kw.items()}
            if kind != torch.float32:
                f = lambda *x, kw=kw, w=w: (w * attention(*x, **kw).float().sin()).sum()  # noqa: E731
            with using("triton", precision):
                first, second = grad(f, ALL)(*x), hvp(f, x, t)
            with using("reference"):
                g = lambda *x, kw=kw64, w=w: (w.double() * attention(*x, **kw).sin()).sum()  # noqa: E731
                row[mode] = [error(first, grad(g, ALL)(*wide(x))), error(second, hvp(g, wide(x), wide(t)))]
        rows.append(row)
        print(
            f"  {label:38s}" + "".join(f"  {m}: {row[m][0]:.1e} {row[m][1]:.1e}" for m in row if m != "case"),
            flush=True,
        )
    report[key] = rows
    limits = {"bf16": 5e-3, "tf32": 5e-3, "tf32x3": 1e-5, "ieee": 1e-5, "fp16": 5e-3}
    report[f"{key}_ok"] = {m: max(r[m][1] for r in rows if m in r) <= limit for m, limit in limits.items()}
    print("  within the limits:", report[f"{key}_ok"])


def accuracy_short(report) -> None:
    """Kernels for up to 128 tokens (one tile a head; small tiles) against float64: value, gradient, weights' gradient."""
    from quadform.kernels import ops
    from quadform.kernels import short as one_tile

    ops._stock = lambda *_: False  # cuDNN would take the plain ones
    gen = torch.Generator(DEVICE).manual_seed(0)
    rows = []
    for tokens, width, causal in ((128, 64, True), (128, 64, False), (100, 64, True), (77, 40, True), (16, 16, False)):
        for kind in (torch.bfloat16, torch.float16):
            q, k, v, g = heads(4, tokens, kind, gen, width, n=4)
            mix = 1 + 0.5 * torch.randn(1, HEADS, 3, device=DEVICE, generator=gen)
            options = (causal, width**-0.5)
            wide = [a.double().requires_grad_() for a in (q, k, v, *mix[0].T)]

            def exact(names, wide=wide, causal=causal, g=g):
                with using("reference"):
                    out = attention(*wide[:3], causal=causal, **dict(zip(names, wide[3:], strict=False)))
                used = wide[: 3 + len(names)]
                return out, torch.autograd.grad(out, used, g.double())

            out, lse = one_tile.short(q, k, v, mix, *options)
            *first, dmix = one_tile.short_grad(q, k, v, mix, lse, g, *options)
            value, slope = exact(("alpha", "beta", "gamma"))
            row = {"case": f"{tokens} tokens, {width} wide, causal {causal}, {str(kind)[6:]}"}
            row["one tile"] = [error((out,), (value,)), error(first, slope[:3]), error(dmix.sum(0).T, slope[3:])]
            both = []
            for names in ((), ("alpha", "beta", "gamma")):
                m = mix if names else None
                out, O, lse = ops._attend(q, k, v, None, None, m, *options, "tf32")
                delta = row_products(g, O if names else out)
                *first, _ = ops._attend_grad(q, k, v, None, None, m, out, lse, delta, g, *options, "tf32")
                value, slope = exact(names)
                both += [error((out,), (value,)), error(first, slope[:3])]
            row["small tiles"] = both
            rows.append(row)
            print(f"  {row['case']:48s}", *(f"{e:.1e}" for e in row["one tile"] + row["small tiles"]), flush=True)
    report["accuracy_short"] = rows
    report["accuracy_short_ok"] = max(max(r["one tile"] + r["small tiles"]) for r in rows) <= 1e-2
    print("  all within 1e-2:", report["accuracy_short_ok"])


@torch.compile(dynamic=True)
def row_products(a, b):
    """Δ = rowsum(dO ∘ O), fused as in the model's program."""
    return (a.float() * b.float()).sum(-1)


def attention_alone(report, lengths) -> None:
    """The tangent kernels beside torch's forward + backward, B·H = 96."""
    ready(sys.argv[1])
    from quadform.kernels import ops

    rates = report["ceilings"]
    rows = []
    gen = torch.Generator(DEVICE).manual_seed(0)
    for mode, kind in (("bf16", torch.bfloat16), ("tf32", torch.float32)):
        for tokens in lengths:
            batch, reps = 8, 10 if tokens <= 4096 else 3
            if tokens > 16384 and mode == "tf32":
                continue
            if tokens > 16384:
                batch = 1
            x, t = heads(batch, tokens, kind, gen), heads(batch, tokens, kind, gen)
            dO, tdO = heads(batch, tokens, kind, gen, n=2)
            leaves = [a.detach().requires_grad_() for a in x]

            def stock(leaves=leaves, dO=dO):
                torch.autograd.grad(F.scaled_dot_product_attention(*leaves, is_causal=True), leaves, dO)

            opts = (True, WIDTH**-0.5, "tf32")
            O, lse = ops.forward(*x, None, None, *opts)
            delta = row_products(dO, O)

            def tangents(x=x, t=t, O=O, lse=lse, delta=delta, dO=dO, tdO=tdO, opts=opts):
                _, tlse = ops.forward_tangent(*x, None, None, O, lse, *t, None, *opts)
                tdelta = delta  # stands for rowsum(dȮ ∘ O + dO ∘ Ȯ), which the model's program computes
                ops.backward_tangent(*x, None, None, lse, delta, dO, *t, None, tlse, tdelta, tdO, *opts)

            def first_order(x=x, dO=dO, opts=opts):
                O, lse = ops.forward(*x, None, None, *opts)
                delta = row_products(dO, O)
                ops.backward(*x, None, None, O, lse, delta, dO, *opts)

            four = tuple(torch.stack([a] * 4) for a in t)
            with alone():
                stock_ms, ours_ms, first_ms = timed(stock, reps), timed(tangents, reps), timed(first_order, reps)
            four_ms = None
            if tokens <= 16384:
                tlse4, tdelta4, tdO4 = (torch.stack([a] * 4) for a in (lse, delta, tdO))

                def many(x=x, four=four, O=O, lse=lse, delta=delta, dO=dO, a=tlse4, b=tdelta4, c=tdO4, opts=opts):
                    ops._attend_tangent(*x, None, None, None, O, lse, *four, None, *opts)
                    ops._attend_grad_tangent(*x, None, None, None, lse, delta, dO, *four, None, a, b, c, *opts)

                with alone():
                    four_ms = timed(many, reps) / 4
            product = 2 * batch * HEADS * tokens**2 * WIDTH / 2 / 1e9  # GFLOP of one product, causal half
            size = batch * HEADS * tokens * WIDTH * x[0].element_size() / 1e9
            row = {
                "mode": mode, "tokens": tokens, "batch_heads": batch * HEADS, "stock_fwd_bwd_ms": stock_ms,
                "ours_fwd_bwd_ms": first_ms, "tangents_ms": ours_ms, "tangents_ms_each_of_4": four_ms,
                "ratio": ours_ms / stock_ms, "ratio_with_gradient": (ours_ms + first_ms) / stock_ms,
                "ratio_each_of_4": four_ms / stock_ms if four_ms else None, "first_order_ratio": first_ms / stock_ms,
                "executed_rate": 23 * product / ours_ms, "executed_share": 23 * product / ours_ms / rates[mode],
                "floor_products_ms": 17 * product / rates[mode], "floor_bytes_ms": 13 * size / rates["copy"],
                "gib": peak(tangents),
            }  # fmt: skip
            rows.append(row)
            print(
                f"  {mode} {tokens:6d}: torch {stock_ms:.3f} ms, gradient {first_ms:.3f} ({first_ms / stock_ms:.2f}x), "
                f"tangents {ours_ms:8.3f} ({row['ratio']:.2f}x, {row['executed_rate']:.0f} TFLOP/s = "
                f"{row['executed_share']:.0%}), with gradient {row['ratio_with_gradient']:.2f}x, each of 4 "
                f"{row['ratio_each_of_4'] or math.nan:.2f}x; floors {row['floor_products_ms']:.3f} / "
                f"{row['floor_bytes_ms']:.3f} ms; {row['gib']:.2f} GiB",
                flush=True,
            )
            del x, t, dO, tdO, leaves, O, lse, delta, four
            torch.cuda.empty_cache()
    report["attention"] = rows


def graphed(f, calls: int = 10) -> float:
    """Milliseconds of f() without launches: `calls` of it in one CUDA graph."""
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            f()
    return timed(graph.replay) / calls


def short(report, batch: int = 128, tokens: int = 128) -> None:
    """Forward and backward of attention at 128 tokens, bf16: torch, ours, and ours with the mixing inside; per tile."""
    from quadform.kernels import launch, ops
    from quadform.kernels import short as one_tile

    gen = torch.Generator(DEVICE).manual_seed(0)
    q, k, v, dO = heads(batch, tokens, torch.bfloat16, gen, n=4)
    mix, opts = torch.ones(1, HEADS, 3, device=DEVICE), (True, WIDTH**-0.5, "tf32")
    leaves = [a.detach().requires_grad_() for a in (q, k, v)]
    plain = F.scaled_dot_product_attention(*leaves, is_causal=True)
    delta, known, run = row_products(dO, plain), launch.tiles, ops._launch
    ops._stock = lambda *_: False
    tiles = ((64, 64, 4, 2), (128, 64, 8, 2))
    choices = {"known": known} | {"{}x{}, {} warps, {} stages".format(*t): lambda *_, t=t: t for t in tiles}

    def calls(m):
        _, O, lse = out = ops._attend(q, k, v, None, None, m, *opts)
        rest = (q, k, v, None, None, m, out[0] if m is None else O, lse, delta, dO, *opts)
        forward = lambda: ops._attend(q, k, v, None, None, m, *opts)  # noqa: E731
        return {"forward": forward, "columns": lambda: ops._attend_grad(*rest), "rows": lambda: ops._attend_grad(*rest)}

    def each():
        for tile, choice in choices.items():
            launch.tiles = choice
            for name, m in (("plain", None), ("shaped", mix)):
                ops._launch = run
                for kind, call in calls(m).items():
                    ops._launch = lambda kernel, *a, kind=kind: kernel.endswith(kind) and run(kernel, *a)
                    yield f"{name} {kind}, {tile}", call

    _, lse = one_tile.short(q, k, v, mix, *opts[:2])
    single = {
        "one tile forward": lambda: one_tile.short(q, k, v, mix, *opts[:2]),
        "one tile backward": lambda: one_tile.short_grad(q, k, v, mix, lse, dO, *opts[:2]),
    }
    for _, call in each():
        call()
    for call in single.values():
        call()
    ready("short")
    out = {}
    with alone():
        out["torch forward"] = graphed(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        out["torch backward"] = timed(lambda: torch.autograd.grad(plain, leaves, dO, retain_graph=True), 30)
        for name, call in single.items():
            out[name] = graphed(call)
        for name, call in each():
            out[name] = graphed(call)
    report["short"] = out
    for name, ms in out.items():
        print(f"  {name}: {ms * 1e3:.1f} us", flush=True)


PARTS = {
    "accuracy": accuracy,
    "accuracy-shaped": lambda report: accuracy(report, SHAPED, "accuracy_shaped"),
    "accuracy-short": accuracy_short,
    "attention": lambda report: attention_alone(report, [1024, 4096, 16384, 65536]),
    "attention-short": lambda report: attention_alone(report, [1024, 4096]),
    "short": short,
    "eigen": eigen,
    "product-error": product_error,
    "gradient-1k": lambda report: gradient(report, 8, 1024, "tf32"),
    "rates": rates,
    "stock-gradient-1k": lambda report: stock_gradient(report, 8, 1024, "tf32"),
    "product-1k": lambda report: product(report, 8, 1024, "tf32", replay=True),
    "product-1k-halves": lambda report: product(report, 8, 1024, "tf32", products="halves", replay=True),
    "four-1k-halves": lambda report: product(report, 8, 1024, "tf32", 4, "halves", replay=True),
    "kept-1k": lambda report: kept(report, 8, 1024, "tf32"),
    "gradient-16k": lambda report: gradient(report, 1, 16384, "bf16"),
    "product-16k": lambda report: product(report, 1, 16384, "bf16"),
    "blockwise-16k": lambda report: blockwise(report, 1, 16384, "bf16", 3),
    "blockwise-64k": lambda report: blockwise(report, 1, 65536, "bf16", 1),
    "train-pre-ln": lambda report: training(report, "pre-ln"),
    "train-sas-p": lambda report: training(report, "sas-p"),
    "train-sas-p-no-norm": lambda report: training(report, "sas-p-no-norm"),
    "train-sas-p-torch": lambda report: training(report, "sas-p", fused=False),
    "train-sas-p-no-norm-torch": lambda report: training(report, "sas-p-no-norm", fused=False),
}


QUIET = ("accuracy", "accuracy-shaped", "accuracy-short", "eigen", "product-error")
"""Parts without a clock; nobody waits for them."""


def part(name: str, report: dict, out: str) -> None:
    """One part in this process; what goes wrong is part of the record."""
    if LOCK is not None and name in QUIET:
        open(os.path.join(os.path.dirname(LOCK), f"ready-{name}"), "w").close()
    try:
        PARTS[name](report)
    except Exception as problem:
        report.setdefault("failed", {})[name] = repr(problem)[:2000]
        print(f"  {name} FAILED", repr(problem)[:1500], flush=True)
    with open(out, "w") as file:
        json.dump(report, file)
    if LOCK is not None:
        open(os.path.join(os.path.dirname(LOCK), f"ready-{name}"), "w").close()


def ratios(report: dict) -> dict[str, float]:
    """Time and memory of each product over those of the gradient at its size; of each training step over Pre-LN's."""
    rows = {row["name"]: row for row in report.get("models", [])}
    out = {}
    for name, row in rows.items():
        size = next((word for word in name.split() if "x" in word and word[0].isdigit()), "")
        kind = "training pre-ln" if name.startswith("training") else "gradient"
        base = next((r for n, r in rows.items() if n.startswith(kind) and size in n.split()), None)
        if base and base is not row:
            out[name] = {"time": row["ms"] / base["ms"], "memory": row["gib"] / base["gib"]}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "kernels.json"))
    parser.add_argument("--patience", type=float, default=600, help="seconds the parts wait for each other to compile")
    parser.add_argument("--limit", type=float, default=1800, help="seconds after which unfinished parts are dropped")
    options = parser.parse_args()
    import triton

    torch.set_float32_matmul_precision("high")
    if LOCK is not None:
        with open(os.environ["QUADFORM_BENCHMARK_REPORT"]) as file:
            report = {"ceilings": json.load(file)["ceilings"]}
        part(options.parts[0], report, options.out)
        return
    report = {
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "ceilings": ceilings(),
    }
    print({n: round(r, 2) for n, r in report["ceilings"].items()}, "(TFLOP/s, TFLOP/s, TB/s)", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        first = os.path.join(folder, "report.json")
        with open(first, "w") as file:
            json.dump(report, file)
        env = {
            **os.environ,
            "QUADFORM_BENCHMARK_LOCK": os.path.join(folder, "lock"),
            "QUADFORM_BENCHMARK_REPORT": first,
        }
        env["QUADFORM_BENCHMARK_PARTS"] = str(len(options.parts))
        env["QUADFORM_BENCHMARK_END"] = str(time.time() + options.patience)
        outs = {name: os.path.join(folder, f"{name}.json") for name in options.parts}
        runs = {n: subprocess.Popen([sys.executable, __file__, n, "--out", o], env=env) for n, o in outs.items()}
        end = time.time() + options.limit
        for name, run in runs.items():
            try:
                run.wait(max(0.1, end - time.time()))
            except subprocess.TimeoutExpired:
                run.kill()
                report.setdefault("failed", {})[name] = "not finished in time"
            if os.path.exists(outs[name]):
                with open(outs[name]) as file:
                    for key, value in json.load(file).items():
                        if key == "models":
                            report.setdefault(key, []).extend(value)
                        elif key == "failed":
                            report.setdefault(key, {}).update(value)
                        else:
                            report[key] = value
    report["ratios"] = ratios(report)
    for name, value in report["ratios"].items():
        print(f"  {name}: {value['time']:.3f}x the time and {value['memory']:.2f}x the memory of its base")
    with open(options.out, "w") as file:
        json.dump(report, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
