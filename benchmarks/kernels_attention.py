"""Times of attention alone: tangents beside torch's forward + backward, short sequences, kernels by tile."""

from __future__ import annotations

import math
import sys

import torch
import torch.nn.functional as F

from kernels_common import DEVICE, HEADS, WIDTH, alone, heads, peak, ready, row_products, timed
from kernels_profile import profiled

PRODUCTS = {"forward_tangent": 5, "tangent_rows": 8, "tangent_columns": 10}


def executed(tokens: int, mode: torch.dtype) -> float:
    """Products the tangent kernels execute per pair of tiles of the causal half, masked parts of tiles included."""
    from quadform.kernels import launch

    total = 0.0
    for kernel, count in PRODUCTS.items():
        one, scaled = (8, HEADS, tokens, WIDTH), mode == torch.float32
        kind = torch.float16 if scaled else mode
        plan = launch._plan(kernel, kind, one, one, one, False, False, False, True, "tf32", 1, scaled)
        BM, BN = plan[3]["BM"], plan[3]["BN"]
        if kernel == "tangent_columns":
            area = sum(tokens - c // BM * BM for c in range(0, tokens, BN)) * BN
        else:
            area = sum(-(-(m + BM) // BN) * BN for m in range(0, tokens, BM)) * BM
        total += count * area / (tokens**2 / 2)
    return total


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
                "executed_products": (done := executed(tokens, kind)), "executed_rate": done * product / ours_ms,
                "executed_share": done * product / ours_ms / rates[mode],
                "share_of_23": 23 * product / ours_ms / rates[mode],
                "floor_products_ms": 17 * product / rates[mode], "floor_bytes_ms": 13 * size / rates["copy"],
                "gib": peak(tangents),
            }  # fmt: skip
            if tokens <= 1024:  # calls made one by one wait for their launches: what the device does
                with alone():
                    both = {"stock": stock, "tangents": tangents, "ours_fwd_bwd": first_order}
                    row["device_ms"] = {name: profiled(f)["device_ms"] for name, f in both.items()}
                print("   on the device:", {n: round(ms, 3) for n, ms in row["device_ms"].items()})
            rows.append(row)
            print(
                f"  {mode} {tokens:6d}: torch {stock_ms:.3f} ms, gradient {first_ms:.3f} ({first_ms / stock_ms:.2f}x), "
                f"tangents {ours_ms:8.3f} ({row['ratio']:.2f}x, {row['executed_rate']:.0f} TFLOP/s = "
                f"{row['executed_share']:.1%}; of 23 products {row['share_of_23']:.1%}), "
                f"with gradient {row['ratio_with_gradient']:.2f}x, each of 4 "
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
            launch._plan.cache_clear()
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


def tiles(report, tokens: int = 4096) -> None:
    """Each tangent kernel by itself, bf16, by tile: milliseconds, and the rate counted on the causal half."""
    from quadform.kernels import launch, ops

    gen = torch.Generator(DEVICE).manual_seed(0)
    q, k, v, g = heads(8, tokens, torch.bfloat16, gen, n=4)
    tq, tk, tv, tg = (t[None] for t in heads(8, tokens, torch.bfloat16, gen, n=4))
    options = (True, WIDTH**-0.5, "tf32")
    O, _, lse = ops._attend(q, k, v, None, None, None, *options)
    delta = row_products(g, O)
    tlse, tdelta = lse[None], delta[None]
    known, run = launch.tiles, ops._launch
    choices = {
        "forward_tangent": [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2)],
        "tangent_rows": [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2)],
        "tangent_columns": [
            (64, 128, 8, 1),
            (64, 128, 8, 2),
            (64, 128, 8, 3),
            (64, 64, 4, 1),
            (64, 64, 4, 2),
            (32, 128, 8, 3),
            (32, 128, 8, 4),
            (32, 64, 4, 3),
            (128, 64, 8, 1),
            (128, 64, 8, 2),
            (128, 128, 16, 1),
            (64, 128, 4, 2),
        ],
    }

    def call(kernel):
        if kernel == "forward_tangent":
            return ops._attend_tangent(q, k, v, None, None, None, O, lse, tq, tk, tv, None, *options)
        rest = (tq, tk, tv, None, tlse, tdelta, tg, *options)
        return ops._attend_grad_tangent(q, k, v, None, None, None, lse, delta, g, *rest)

    def each():
        for kernel, sizes in choices.items():
            ops._launch = lambda name, *a, kernel=kernel: name == kernel and run(name, *a)
            launch.UPRIGHT = (torch.bfloat16,)
            if kernel == "tangent_columns":
                launch._plan.cache_clear()
                yield kernel, "upright"
                launch.UPRIGHT = ()
            for tile in sizes:
                launch.tiles = lambda *_, tile=tile: tile
                launch._plan.cache_clear()
                yield kernel, tile

    failed = set()
    for kernel, tile in each():
        try:
            call(kernel)
        except Exception as problem:  # does not fit
            failed.add((kernel, tile))
            print(f"  {kernel} {tile}: {str(problem)[:80]}", flush=True)
    ready("tiles")
    out = {}
    with alone():
        for kernel, tile in each():
            if (kernel, tile) in failed:
                continue
            ms = timed(lambda kernel=kernel: call(kernel))
            rate = PRODUCTS[kernel] * 2 * 8 * HEADS * tokens**2 * WIDTH / 2 / ms / 1e9
            share = rate / report["ceilings"]["bf16"]
            out[f"{kernel} {tile}"] = {"ms": ms, "share": share}
            print(f"  {kernel} {tile}: {ms:.3f} ms, {rate:.0f} TFLOP/s = {share:.1%}", flush=True)
    launch.tiles, ops._launch = known, run
    report["tiles"] = out
