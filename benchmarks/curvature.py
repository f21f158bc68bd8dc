"""Hessian, Gauss-Newton and functional products of a Hugging Face GPT-2, against its gradient and the peers' route.

    python benchmarks/curvature.py [accuracy] [products] [--layers 4 --dim 128 --tokens 128 --batch 2] [--out FILE]

On a GPU without size flags: GPT-2 124M, batch 8, 1,024 tokens, TF32. Every time is a ratio to the gradient of the same
run: eager, and compiled. `double backward` is what other libraries do. Errors are against float64 double backward with
TF32 off. Random weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quadform.core import progress
from quadform.core.record import Provenance, strict_json
from quadform.curvature import Risk, functional, gauss_newton, hessian

VOCAB = 50257


def build(options: argparse.Namespace, layers: int, dtype: torch.dtype) -> tuple[Any, dict[str, Tensor]]:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    vocab = VOCAB if options.dim >= 768 else 1000
    config = transformers.GPT2Config(
        n_layer=layers, n_head=options.dim // 64, n_embd=options.dim, vocab_size=vocab, n_positions=options.tokens
    )
    config.bos_token_id = config.eos_token_id = 0
    model = transformers.GPT2LMHeadModel(config).to(options.device, dtype).eval()
    ids = torch.randint(0, vocab, (options.batch, options.tokens), device=options.device)
    return model, {"input_ids": ids}


def loss(out: Any, batch: dict[str, Tensor]) -> Tensor:
    """Next-token cross-entropy in the model's own precision (the library's is always float32)."""
    logits = out.logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch["input_ids"][:, 1:].flatten())


def seconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """Median seconds after two warm-up runs."""
    times = []
    for i in range(repeats + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if i >= 2:
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def gib(work: Callable[[], object], device: str) -> float | None:
    if device != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def double_backward(model: Any, batch: dict[str, Tensor], v: dict[str, Tensor]) -> dict[str, Tensor]:
    params = dict(model.named_parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        g = torch.autograd.grad(loss(model(**batch), batch), list(params.values()), create_graph=True)
        return dict(zip(params, torch.autograd.grad(g, list(params.values()), [v[n] for n in params]), strict=True))


def accuracy(options: argparse.Namespace) -> list[dict]:
    """Float32 products against float64, beside the error of a float32 double backward in the same run."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    small = argparse.Namespace(**{**vars(options), "dim": 128, "tokens": 64, "batch": 2})
    exact, batch = build(small, 4, torch.float64)
    model, _ = build(small, 4, torch.float32)
    with torch.no_grad():
        for p, q in zip(model.parameters(), exact.parameters(), strict=True):
            q.copy_(p.double())
    risk, fine = Risk(model, loss, batch), Risk(exact, loss, batch)
    v = risk.space.random(dtype=torch.float32, device=options.device)
    wide = {n: t.double() for n, t in v.items()}

    def off(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
        gap = sum(float((got[n].double() - want[n]).square().sum()) for n in want)
        return (gap / sum(float(t.square().sum()) for t in want.values())) ** 0.5

    truth = double_backward(exact, batch, wide)
    rows = [{"what": "double backward, float32", "error": off(double_backward(model, batch, v), truth)}]
    for name, make in {"hessian": hessian, "gauss_newton": gauss_newton, "functional": functional}.items():
        want = truth if make is hessian else make(fine) @ wide
        rows.append({"what": name, "error": off(make(risk) @ v, want)})
    parts = [make(fine) @ wide for make in (gauss_newton, functional)]
    rows.append({"what": "H_o + H_f - H, float64", "error": off({n: parts[0][n] + parts[1][n] for n in truth}, truth)})
    print("error against float64 double backward, GPT-2 with 4 layers, d=128, LayerNorm, TF32 off")
    for row in rows:
        print(f"  {row['what']:<26} {row['error']:.1e}")
    torch.backends.cuda.matmul.allow_tf32 = allowed
    return rows


def products(options: argparse.Namespace) -> list[dict]:
    """Time and memory of every route, as multiples of the gradient."""
    device, few = options.device, 3 if options.device == "cpu" else 10
    model, batch = build(options, options.layers, torch.float32)
    params = list(model.parameters())
    risk = Risk(model, loss, batch)
    v = risk.space.random(dtype=torch.float32, device=device)
    V = risk.space.random(4, dtype=torch.float32, device=device)
    rows: list[dict] = []
    size = sum(p.numel() for p in params)
    where = f"{options.layers} layers, batch {options.batch} x {options.tokens} tokens"
    print(f"\nproducts: {size / 1e6:.1f}M parameters, {where}")
    print(f"  {'route':<34} {'first s':>8} {'ms':>9} {'/eager':>7} {'/compiled':>9} {'GiB':>6}")

    def row(name: str, work: Callable[[], object], vectors: int = 1) -> float:
        start = time.perf_counter()
        try:
            work()
            cold = time.perf_counter() - start
            took, memory = seconds(work, device, few) / vectors, gib(work, device)
        except torch.cuda.OutOfMemoryError:
            print(f"  {name:<34} out of memory")
            rows.append({"route": name, "out_of_memory": True})
            return float("nan")
        base = [r["seconds"] for r in rows[:2]]
        ratios = [took / b for b in base] + [None] * (2 - len(base))
        rows.append(
            {"route": name, "seconds": took, "first_call_s": cold, "gib": memory, "vectors": vectors}
            | {"over_eager_gradient": ratios[0], "over_compiled_gradient": ratios[1]}
        )
        shown = [f"{r:.2f}x" if r is not None else "" for r in ratios]
        used = f"{memory:.1f}" if memory is not None else ""
        print(f"  {name:<34} {cold:>8.1f} {1e3 * took:>9.1f} {shown[0]:>7} {shown[1]:>9} {used:>6}", flush=True)
        return took

    row("gradient, eager", lambda: torch.autograd.grad(loss(model(**batch), batch), params))
    faster = torch.compile(model)
    row("gradient, compiled", lambda: torch.autograd.grad(loss(faster(**batch), batch), params))
    row("double backward (peers)", lambda: double_backward(model, batch, v))
    for route in ("eager", "compiled"):
        for make in (hessian, gauss_newton):
            A = make(risk, route=route)
            row(f"{make.__name__}, {route}", lambda: A @ v)
            rows[-1]["ran"] = A.route  # a product that could not be compiled ran eagerly
    if options.four:
        A = hessian(risk, route="compiled")
        row("hessian, compiled, 4 at once (each)", lambda: A @ V, 4)
    return rows


def main() -> None:
    jobs = {"accuracy": accuracy, "products": products}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    gpu = torch.cuda.is_available()
    parser.add_argument("jobs", nargs="*", help="accuracy, products (default: both)")
    parser.add_argument("--layers", type=int, default=12 if gpu else 4)
    parser.add_argument("--dim", type=int, default=768 if gpu else 128)
    parser.add_argument("--tokens", type=int, default=1024 if gpu else 128)
    parser.add_argument("--batch", type=int, default=8 if gpu else 2)
    parser.add_argument("--four", action="store_true", help="four vectors at once too (88 GiB at the default GPU size)")
    parser.add_argument("--out", type=Path, help="write the record there (JSON)")
    options = parser.parse_args()
    options.device = "cuda" if gpu else "cpu"
    progress.quiet = False
    torch.set_num_threads(torch.get_num_threads() if gpu else 1)
    torch.backends.cuda.matmul.allow_tf32 = True
    results = {name: jobs[name](options) for name in options.jobs or jobs}
    if options.out:
        made = asdict(Provenance.collect(dtype=torch.float32, device=options.device))
        shape = {n: getattr(options, n) for n in ("layers", "dim", "tokens", "batch")}
        made["command"] = " ".join(["benchmarks/curvature.py", *results])
        options.out.write_text(
            strict_json({"benchmark": "curvature", "made": made, "shape": shape, "results": results})
        )
        print(f"\nrecord: {options.out}")


if __name__ == "__main__":
    main()
