"""Errors of the kernels against float64, on the device they run on."""

from __future__ import annotations

import torch
from torch.func import grad, jvp

from kernels_common import DEVICE, HEADS, error, heads, row_products
from quadform.kernels import attention, using

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
    """Kernels for up to 128 tokens (one tile a head; small tiles) against float64."""
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
