"""Accuracy, time and memory of `quadform.kernels` on one GPU, beside what torch has and beside the floors.

    python benchmarks/kernels.py [PART ...] [--out FILE]      (parts: see PARTS at the end)

Every part is a process of its own: they compile side by side, wait for each other, and then measure one at a time,
behind a lock. Accuracy is against float64. The floors count the products a second-order product cannot avoid at the
matrix rate measured in the same run, and each tensor read or written once at the measured bandwidth. Times are medians
over device events.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
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
from torch.func import grad, jvp, vmap

from quadform.kernels import Blockwise, attention, linear_cross_entropy, program, using

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
    """This part has compiled; wait until all have, or have ended."""
    if LOCK is None:
        return
    folder = os.path.dirname(LOCK)
    open(os.path.join(folder, f"ready-{name}"), "w").close()
    while sum(n.startswith("ready-") for n in os.listdir(folder)) < parts:
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


ALL = (0, 1, 2)


def hvp(f, x, t):
    return jvp(grad(f, ALL), x, t)[1]


def accuracy(report) -> None:
    """Error of the Hessian product of ⟨w, attention⟩ + nonlinearity, per mode, against the reference in float64."""
    gen = torch.Generator(DEVICE).manual_seed(0)
    cases = [
        ("causal, 64 wide, 512", 512, 64, 12, 12, {"causal": True}),
        ("odd length 333, 80 wide, not causal", 333, 80, 4, 4, {}),
        ("grouped heads, 128 wide, 257", 257, 128, 8, 2, {"causal": True}),
        ("256 wide, 130", 130, 256, 2, 2, {"causal": True}),
        ("16 wide, padding mask, bias", 200, 16, 4, 4, {"causal": True, "mask": True, "bias": True}),
    ]
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
            kw64 = {n: a.double() if n == "bias" else a for n, a in kw.items()}
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
    report["accuracy"] = rows
    limits = {"bf16": 5e-3, "tf32": 5e-3, "tf32x3": 1e-5, "ieee": 1e-5, "fp16": 5e-3}
    report["accuracy_ok"] = {m: max(r[m][1] for r in rows if m in r) <= limit for m, limit in limits.items()}
    print("  within the limits:", report["accuracy_ok"])


@torch.compile(dynamic=True)
def row_products(a, b):
    """Δ = rowsum(dO ∘ O), fused as in the model's program."""
    return (a.float() * b.float()).sum(-1)


def attention_alone(report, lengths) -> None:
    """The tangent kernels beside torch's forward + backward, B·H = 96."""
    ready("attention")
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
                    ops._attend_tangent(*x, None, None, O, lse, *four, *opts)
                    ops._attend_grad_tangent(*x, None, None, lse, delta, dO, *four, a, b, c, *opts)

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


# GPT-2 124M as a list of blocks over parameter trees; `kind` is the type of the matrix products, as autocast would do.


def gpt2(batch: int, tokens: int, kind: torch.dtype, second_order: bool, seed: int = 0, depth: int = DEPTH, **sizes):
    """(blocks, params): embedding, depth blocks, head with the loss; the embedding is listed at both ends."""
    d, vocab, count = sizes.get("d", HEADS * WIDTH), sizes.get("vocab", VOCAB), sizes.get("heads", HEADS)
    gen = torch.Generator(DEVICE).manual_seed(seed)
    ids = torch.randint(vocab, (batch, tokens + 1), device=DEVICE, generator=gen)
    new = lambda *s: 0.02 * torch.randn(*s, device=DEVICE, generator=gen)  # noqa: E731
    one, zero = torch.ones(d, device=DEVICE), torch.zeros

    def linear(x, W, b):
        return x.to(kind) @ W.to(kind) + b.to(kind)

    def embed(p):
        return F.embedding(ids[:, :-1], p["E"]) + p["P"]

    def block(p, x):
        y = linear(F.layer_norm(x, (d,), p["g1"], p["b1"]), p["W_QKV"], p["b_QKV"])
        q, k, v = (a.unflatten(-1, (count, -1)).transpose(1, 2) for a in y.chunk(3, -1))
        if second_order:
            y = attention(q, k, v, causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).flatten(2), p["W_O"], p["b_O"]).to(x.dtype)
        y = F.gelu(linear(F.layer_norm(x, (d,), p["g2"], p["b2"]), p["W_1"], p["b_W1"]), approximate="tanh")
        return x + linear(y, p["W_2"], p["b_W2"]).to(x.dtype)

    def head(p, x):
        x = F.layer_norm(x, (d,), p["g"], p["b"]).to(kind)
        if second_order:
            return linear_cross_entropy(x, p["E"].to(kind).T, ids[:, 1:])
        return F.cross_entropy((x @ p["E"].to(kind).T).float().flatten(0, 1), ids[:, 1:].flatten())

    def layer():
        return {
            "g1": one.clone(), "b1": zero(d, device=DEVICE), "W_QKV": new(d, 3 * d), "b_QKV": new(3 * d),
            "W_O": new(d, d), "b_O": new(d), "g2": one.clone(), "b2": zero(d, device=DEVICE),
            "W_1": new(d, 4 * d), "b_W1": new(4 * d), "W_2": new(4 * d, d), "b_W2": new(d),
        }  # fmt: skip

    E = new(vocab, d)
    first, last = {"E": E, "P": new(tokens, d)}, {"g": one.clone(), "b": zero(d, device=DEVICE), "E": E}
    return [embed, *[block] * depth, head], [first, *(layer() for _ in range(depth)), last]


def whole(blocks):
    """The loss of all blocks, the embedding used at both ends."""

    def loss(params):
        x = blocks[0](params[0])
        for f, p in zip(blocks[1:-1], params[1:-1], strict=True):
            x = f(p, x)
        return blocks[-1]({**params[-1], "E": params[0]["E"]}, x)

    return loss


def untied(params):
    return [*params[:-1], {n: a for n, a in params[-1].items() if n != "E"}]


def random_like(params, seed, n=None):
    gen = torch.Generator(DEVICE).manual_seed(seed)
    lead = () if n is None else (n,)
    return [{k: torch.randn(*lead, *a.shape, device=DEVICE, generator=gen) for k, a in p.items()} for p in params]


def dot(a, b):
    """Inner product of two lists of trees, in float64."""
    pairs = [(x, q[n]) for p, q in zip(a, b, strict=True) for n, x in p.items()]
    return sum((x.double() * y.double()).sum() for x, y in pairs)


def gradient(report, batch, tokens, mode) -> None:
    """Compiled gradient of GPT-2 as people run it: SDPA, logits written out."""
    kind = torch.bfloat16 if mode == "bf16" else torch.float32
    blocks, params = gpt2(batch, tokens, kind, second_order=False)
    params = untied(params)
    leaves = [a.requires_grad_() for p in params for a in p.values()]
    step = torch.compile(whole(blocks), fullgraph=True, dynamic=False)
    measure(report, f"gradient {mode} {batch}x{tokens}", lambda: torch.autograd.grad(step(params), leaves))


def product(report, batch, tokens, mode, many: int = 0) -> None:
    """Hessian product of GPT-2 as one program; `many` at once where asked."""
    kind = torch.bfloat16 if mode == "bf16" else torch.float32
    blocks, params = gpt2(batch, tokens, kind, second_order=True)
    params = untied(params)
    one = lambda p, v: jvp(grad(whole(blocks)), (p,), (v,))[1]  # noqa: E731
    v = random_like(params, 1, many or None)
    run = program((lambda p, V: vmap(lambda v: one(p, v))(V)) if many else one, params, v)
    measure(
        report, f"product {mode} {batch}x{tokens}" + f" {many} at once" * bool(many), lambda: run(params, v), many or 1
    )
    if not many:
        u = random_like(params, 2)
        with alone():
            Hv, Hu = run(params, v), run(params, u)
            gap = float((dot(u, Hv) - dot(v, Hu)).abs() / (dot(u, u) * dot(Hv, Hv)).sqrt())
        print(f"    |u'Hv - v'Hu| / |u||Hv| = {gap:.1e}", flush=True)
        report["models"][-1]["asymmetry"] = gap


def measure(report, name, run, vectors=1, reps=5) -> None:
    """Compile by running (side by side with the other parts), then time and memory, alone."""
    clock = time.time()
    run()
    torch.cuda.synchronize()
    built = time.time() - clock
    torch.cuda.empty_cache()
    ready(sys.argv[1])
    with alone():
        row = {"name": name, "ms": timed(run, reps, 1) / vectors, "gib": peak(run), "first_call_s": built}
    report.setdefault("models", []).append(row)
    print(f"  {name}: {row['ms']:.1f} ms, {row['gib']:.1f} GiB (first call {built:.0f} s)", flush=True)
    if os.environ.get("QUADFORM_PROFILE"):
        with alone(), torch.profiler.profile() as profile:
            run()
            torch.cuda.synchronize()
        print(profile.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=60))


def blockwise(report, batch, tokens, mode, reps=1) -> None:
    """Whole GPT-2 with one block in memory at a time; gradient and product."""
    kind = torch.bfloat16 if mode == "bf16" else torch.float32
    blocks, params = gpt2(batch, tokens, kind, second_order=True)
    v = random_like(params, 1)
    v[-1]["E"] = v[0]["E"]
    product = Blockwise(blocks, program)
    run = lambda: product(params, v)  # noqa: E731
    measure(report, f"blockwise gradient + product {mode} {batch}x{tokens}", run, reps=reps)


def eigen(report) -> None:
    """Top-10 eigenvalues of a small GPT's Hessian, written out column by column, per mode against float64."""
    out = {}
    for mode, kind, precision in (("float64", torch.float64, "tf32"), ("tf32", torch.float32, "tf32"),
                                  ("tf32x3", torch.float32, "tf32x3"), ("bf16", torch.bfloat16, "tf32")):  # fmt: skip
        blocks, params = gpt2(2, 33, kind, second_order=True, depth=2, d=16, vocab=11, heads=1)
        params = untied(params)
        flat = [a * 10 if a.dim() > 1 else a for p in params for a in p.values()]
        names = [list(p) for p in params]
        base = torch.float64 if kind == torch.float64 else torch.float32
        flat = [a.to(base) for a in flat]
        sizes = [a.numel() for a in flat]

        def tree(vector, flat=flat, names=names, sizes=sizes):
            parts = iter(a.reshape(b.shape) for a, b in zip(vector.split(sizes), flat, strict=True))
            return [{n: next(parts) for n in group} for group in names]

        theta = torch.cat([a.flatten() for a in flat])
        f = lambda theta, blocks=blocks, tree=tree: whole(blocks)(tree(theta))  # noqa: E731
        torch.set_float32_matmul_precision("highest" if precision == "tf32x3" else "high")
        with using(None if kind != torch.float64 else "reference", precision):
            eye = torch.eye(theta.numel(), device=DEVICE, dtype=base)
            H = torch.cat(
                [vmap(lambda v, f=f, theta=theta: jvp(grad(f), (theta,), (v,))[1])(c) for c in eye.split(512)]
            )
        values = torch.linalg.eigvalsh((H + H.T).double() / 2)
        out[mode] = values.abs().sort(descending=True)[0][:10].tolist()
    torch.set_float32_matmul_precision("high")
    gaps = {m: max(abs(a - b) / b for a, b in zip(out[m], out["float64"], strict=True)) for m in out}
    report["eigen"] = {"parameters": theta.numel(), "top10": out, "largest_gap": gaps}
    print(
        f"  {theta.numel()} parameters, largest relative gap among the top 10:",
        {m: f"{g:.1e}" for m, g in gaps.items()},
    )


PARTS = {
    "accuracy": accuracy,
    "attention": lambda report: attention_alone(report, [1024, 4096, 16384, 65536]),
    "eigen": eigen,
    "gradient-1k": lambda report: gradient(report, 8, 1024, "tf32"),
    "product-1k": lambda report: product(report, 8, 1024, "tf32"),
    "four-1k": lambda report: product(report, 8, 1024, "tf32", 4),
    "gradient-16k": lambda report: gradient(report, 1, 16384, "bf16"),
    "product-16k": lambda report: product(report, 1, 16384, "bf16"),
    "blockwise-16k": lambda report: blockwise(report, 1, 16384, "bf16", 3),
    "blockwise-64k": lambda report: blockwise(report, 1, 65536, "bf16", 1),
}


def part(name: str, report: dict, out: str) -> None:
    """One part in this process; what goes wrong is part of the record."""
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
    """Time and memory of each product over those of the gradient at the same size."""
    rows = {row["name"]: row for row in report.get("models", [])}
    out = {}
    for name, row in rows.items():
        size = next((word for word in name.split() if "x" in word and word[0].isdigit()), "")
        base = next((r for n, r in rows.items() if n.startswith("gradient") and size in n.split()), None)
        if base and base is not row:
            out[name] = {"time": row["ms"] / base["ms"], "memory": row["gib"] / base["gib"]}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "kernels.json"))
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
        print(f"  {name}: {value['time']:.2f}x the time and {value['memory']:.2f}x the memory of the gradient")
    with open(options.out, "w") as file:
        json.dump(report, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
