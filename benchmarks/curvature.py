"""Products with the Hessian, Gauss-Newton and functional part of a Hugging Face GPT-2, against its gradient and peers.

    python benchmarks/curvature.py [accuracy] [products] [route] [growth] [peers] [checks] [--out FILE]
                                   [--layers 4 --dim 128 --tokens 128 --batch 2 --four --batches 4 --limit SECONDS
                                    --rows "gauss_newton, compiled" ...]

accuracy   float32 products against a float64 double backward, beside the error of a float32 double backward
products   time and memory of every route, as multiples of the gradient measured in turns with it
route      seconds to trace and compile for each operator of a forward pass: the calibration of `route="auto"`
growth     how the cost of a product grows with tokens, batch and parameters
peers      curvlinops, PyHessian and hessian-eigenthings on the same model (`curvature_peers.py`)
checks     the GPU tests, with pytest or without it

On a GPU without size flags: GPT-2 124M, batch 8, 1,024 tokens, TF32. `double backward` is what other libraries do.
Random weights. On a CPU one thread, and times are processor time, so that other work on the machine matters less.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import inspect
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from quadform.core import progress
from quadform.core.record import Provenance, strict_json
from quadform.curvature import Risk, functional, gauss_newton, hessian, kept, prediction

VOCAB = 50257
HERE = Path(__file__).resolve().parent


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


def resized(options: argparse.Namespace, **sizes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(options), **sizes})


def loss(out: Any, batch: dict[str, Tensor]) -> Tensor:
    """Next-token cross-entropy in the model's own precision (the library's is always float32)."""
    logits = out.logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch["input_ids"][:, 1:].flatten())


def gradient(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss(model(**batch), batch), list(model.parameters()))


def double_backward(model: Any, batch: dict[str, Tensor], v: dict[str, Tensor]) -> dict[str, Tensor]:
    params = dict(model.named_parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        g = torch.autograd.grad(loss(model(**batch), batch), list(params.values()), create_graph=True)
        return dict(zip(params, torch.autograd.grad(g, list(params.values()), [v[n] for n in params]), strict=True))


# --- measuring --------------------------------------------------------------------------------------------------------
def once(work: Callable[[], object], device: str) -> float:
    """Seconds of one run: processor time on a CPU, time of day on a GPU."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def in_turns(works: dict[str, Callable[[], object]], device: str, repeats: int) -> dict[str, float]:
    """Median seconds of each, run in turns after one warm-up, so that a busy machine is busy for all of them."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for i in range(repeats + 1):
        for name, work in works.items():
            took = once(work, device)
            if i:
                times[name].append(took)
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def gib(work: Callable[[], object], device: str) -> float | None:
    if device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def off(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """|got - want| / |want| over all parameters."""
    gap = sum(float((got[n].double() - want[n]).square().sum()) for n in want)
    return (gap / sum(float(t.square().sum()) for t in want.values())) ** 0.5


# --- jobs -------------------------------------------------------------------------------------------------------------
def accuracy(options: argparse.Namespace) -> list[dict]:
    """Float32 products against float64, beside the error of a float32 double backward in the same run."""
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    model, exact, batch = twins(options)
    risk, fine = Risk(model, loss, batch), Risk(exact, loss, batch)
    v = risk.space.random(dtype=torch.float32, device=options.device)
    wide = {n: t.double() for n, t in v.items()}
    truth = double_backward(exact, batch, wide)
    rows = [{"what": "double backward, float32", "error": off(double_backward(model, batch, v), truth)}]
    for name, make in {"hessian": hessian, "gauss_newton": gauss_newton, "functional": functional}.items():
        want = truth if make is hessian else make(fine) @ wide
        for route in ("eager", "traced"):
            rows.append({"what": f"{name}, {route}", "error": off(make(risk, route=route) @ v, want)})
    parts = [make(fine) @ wide for make in (gauss_newton, functional)]
    rows.append({"what": "H_o + H_f - H, float64", "error": off({n: parts[0][n] + parts[1][n] for n in truth}, truth)})
    print("error against float64 double backward, GPT-2 with 4 layers, d=128, LayerNorm, TF32 off")
    for row in rows:
        print(f"  {row['what']:<26} {row['error']:.1e}")
    torch.set_float32_matmul_precision(allowed)
    return rows


def twins(options: argparse.Namespace) -> tuple[Any, Any, dict[str, Tensor]]:
    """A small model in float32, the same weights in float64, a batch."""
    small = resized(options, d_model=128, tokens=64, batch=2)
    exact, batch = build(small, 4, torch.float64)
    model, _ = build(small, 4, torch.float32)
    with torch.no_grad():
        for p, q in zip(model.parameters(), exact.parameters(), strict=True):
            q.copy_(p.double())
    return model, exact, batch


def products(options: argparse.Namespace) -> list[dict]:
    """Time and memory of every route, as multiples of the gradient."""
    device, few, begun = options.device, 5 if options.device == "cpu" else 7, time.perf_counter()
    model, batch = build(options, options.layers, torch.float32)
    size = sum(p.numel() for p in model.parameters())
    print(
        f"\nproducts: {size / 1e6:.1f}M parameters, {options.layers} layers, {options.batch} x {options.tokens} tokens"
    )
    print(f"  {'route':<42} {'first s':>8} {'ms':>9} {'/eager':>7} {'/compiled':>9} {'GiB':>6}")
    rows: list[dict] = []
    compiled = torch.compile(model)
    start = time.perf_counter()
    gradient(compiled, batch)
    compile_s = time.perf_counter() - start

    def row(
        name: str, work: Callable[[], Any], vectors: int = 1, first: float | None = None, about: Any = None
    ) -> None:  # fmt: skip
        if options.limit and time.perf_counter() - begun > options.limit:
            print(f"  {name:<42} left out: the time is up")
            return
        start = time.perf_counter()
        try:
            work()
            first = time.perf_counter() - start if first is None else first
            both = {"eager": lambda: gradient(model, batch), "compiled": lambda: gradient(compiled, batch)}
            took = in_turns({**both, "work": work}, device, few)
            memory = gib(work, device)
        except torch.OutOfMemoryError:
            print(f"  {name:<42} out of memory")
            rows.append({"route": name, "out_of_memory": True})
            return
        each = took["work"] / vectors
        ratios = {f"over_{n}_gradient": each / took[n] for n in ("eager", "compiled")}
        rows.append(
            {"route": name, "seconds": each, "first_call_s": first, "gib": memory, "vectors": vectors, **ratios}
        )
        if about is not None:  # a product that could not be compiled ran otherwise
            there = about.run.kept.values()
            bytes_kept = sum(p.bytes for p in about.run.programs.values()) * len(there)
            replays = [k.run for k in there] if about.route == "compiled" else []
            replays += [p._anew for p in about.run.programs.values() if p._anew is not None]
            rows[-1] |= {"ran": about.route, "kept_gib": bytes_kept / 2**30, "unchanged": unchanged(work)}
            rows[-1]["replayed"] = sum(bool(getattr(r, "replayed", False)) for r in replays)
        shown = [f"{r:.2f}x" for r in ratios.values()]
        used = f"{memory:.1f}" if memory is not None else ""
        print(f"  {name:<42} {first:>8.1f} {1e3 * each:>9.1f} {shown[0]:>7} {shown[1]:>9} {used:>6}", flush=True)
        write(options, {**options.results, "products": rows})  # a run that is cut short leaves what it measured

    row("gradient, eager", lambda: gradient(model, batch))
    row("gradient, compiled", lambda: gradient(compiled, batch), first=compile_s)
    flat = Risk(model, loss, batch, quiet=True).space.random(dtype=torch.float32, device=device)
    four = {n: torch.randn((4, *t.shape), device=device) for n, t in flat.items()} if options.four else {}
    row("double backward (peers)", lambda: double_backward(model, batch, flat))

    def operator(make: Callable[..., Any], route: Any, attention: Any = "auto") -> None:
        note = "" if attention == "auto" else f", {attention} attention"
        if options.rows and f"{make.__name__}, {route}{note}" not in options.rows:
            return
        give_back()
        A = make(Risk(model, loss, batch, attention=attention, quiet=True), route=route, chunk=1)
        row(f"{make.__name__}, {route}{note}", lambda: A @ flat, about=A)
        if four and make is hessian and route == "compiled":
            row(f"hessian, compiled{note}, 4 vectors (each)", lambda: A @ four, 4, about=A)

    operator(hessian, "compiled")
    if options.batches > 1:
        several_batches(options, model, batch, flat, row)
    for make, how in ((gauss_newton, "compiled"), (hessian, "eager"), (gauss_newton, "eager")):
        operator(make, how)
    for make in (hessian, gauss_newton):
        operator(make, "traced")
    for make in (hessian, gauss_newton) if device == "cuda" else ():
        operator(make, "compiled", "math")
    return rows


def several_batches(options: argparse.Namespace, model: Any, batch: dict, v: dict, row: Callable[..., None]) -> None:
    """Rows of the compiled route with several batches, what no vector touches kept for each of them or not."""
    give_back()
    ids = torch.randint(0, model.config.vocab_size, (options.batches - 1, *batch["input_ids"].shape))
    data = [batch, *({"input_ids": i} for i in ids.to(options.device))]
    A = hessian(Risk(model, loss, data, quiet=True), route="compiled")
    name, may_keep = f"hessian, compiled, {options.batches} batches", kept.MAY_KEEP
    row(f"{name} (each)", lambda: A @ v, options.batches, about=A)
    kept.MAY_KEEP = 0.0
    A.run.kept.clear()
    row(f"{name}, nothing kept (each)", lambda: A @ v, options.batches, about=A)
    kept.MAY_KEEP = may_keep


def give_back() -> None:
    """The memory of operators that are gone."""
    gc.collect()
    torch.cuda.empty_cache()


def unchanged(work: Callable[[], Any]) -> bool:
    """Whether a result is the same after two more calls."""
    out = work()
    before = [t.clone() for t in out.values()]
    work(), work()
    return all(torch.equal(a, b) for a, b in zip(before, out.values(), strict=True))


def route(options: argparse.Namespace) -> list[dict]:
    """Calibration of `route="auto"`: what it predicts against what is measured, on models of several sizes."""
    rows = []
    print("\nroute: seconds by the clock; predicted / measured for 60 products")
    sizes = [(2, 64, 32), (4, 128, 128), (8, 128, 64)] if options.device == "cpu" else [(4, 256, 256), (12, 768, 512)]
    for layers, dim, tokens in sizes:
        small = resized(options, d_model=dim, tokens=tokens, batch=2)
        model, batch = build(small, layers, torch.float32)
        risk = Risk(model, loss, batch, quiet=True)
        v = risk.space.random(dtype=torch.float32, device=options.device)
        with risk.context(), torch.no_grad(), prediction.Count() as counted:
            risk.run(risk.params, batch)
        works, first = {}, {}
        for how in ("eager", "traced", "compiled"):
            A = hessian(risk, route=how, chunk=1)
            start = time.perf_counter()
            A @ v
            if options.device == "cuda":
                torch.cuda.synchronize()
            first[how] = time.perf_counter() - start
            works[how] = lambda A=A: A @ v
        took = in_turns(works, options.device, 5)
        predicted = prediction.predict(counted.operators, took["eager"], 60, options.device, retained=True)
        measured = {how: first[how] + 59 * took[how] for how in works}
        row = {"layers": layers, "dim": dim, "tokens": tokens, "operators": counted.operators}
        row |= {"trace_s_per_operator": first["traced"] / counted.operators}
        row |= {"compile_s_per_operator": (first["compiled"] - first["traced"]) / counted.operators}
        row |= {f"{how}_over_eager": took[how] / took["eager"] for how in ("traced", "compiled")}
        row |= {"predicted": predicted, "measured": measured}
        rows.append(row)
        said = "  ".join(f"{how} {predicted[how]:.1f}/{measured[how]:.1f}" for how in works)
        print(f"  {layers} layers, d={dim}, {tokens} tokens, {counted.operators} operators: {said}")
        print("    " + "  ".join(f"{k} {v:.3f}" for k, v in row.items() if "_over_" in k or "_s_per_" in k))
    return rows


def growth(options: argparse.Namespace) -> list[dict]:
    """Seconds of a gradient and of a traced Hessian product as tokens, batch or parameters grow, each in turn."""
    gpu = options.device == "cuda"
    base = {"layers": 4, "dim": 256, "tokens": 512, "batch": 8} if gpu else {"layers": 2, "dim": 64, "tokens": 64}
    base = {"batch": 2, **base}
    steps = {"tokens": (1, 2, 4, 8), "batch": (1, 2, 4, 8), "layers": (1, 2, 4), "dim": (1, 2, 4)}
    rows = []
    print("\ngrowth: one product over one gradient")
    for name, factors in steps.items():
        for factor in factors:
            sizes = {**base, name: base[name] * factor}
            model, batch = build(resized(options, **sizes), sizes["layers"], torch.float32)
            risk = Risk(model, loss, batch, quiet=True)
            v = risk.space.random(dtype=torch.float32, device=options.device)
            A = hessian(risk, route="traced")
            works = {"gradient": lambda: gradient(model, batch), "hessian": lambda: A @ v}
            took = in_turns(works, options.device, 5)
            kept = sum(p.bytes for p in A.run.programs.values())
            size = sum(p.numel() for p in model.parameters())
            rows.append({"varied": name, **sizes, "parameters": size, "kept_bytes": kept, **took})
            ratio = took["hessian"] / took["gradient"]
            ms, mib = 1e3 * took["gradient"], kept / 2**20
            print(f"  {name} {sizes[name]:>5}: gradient {ms:8.1f} ms, product {ratio:5.2f}x, kept {mib:.0f} MiB")
    if options.out:
        draw_growth(rows, options.out.with_name(options.out.stem + "-growth.svg"))
    return rows


def draw_growth(rows: list[dict], path: Path) -> None:
    """Seconds of a gradient and of a product against what was varied, log-log, in the house style."""
    import altair as alt

    from quadform.report import LIGHT

    points = [
        {"varied": r["varied"], "size": r[r["varied"]], "work": work, "seconds": r[work]}
        for r in rows
        for work in ("gradient", "hessian")
    ]
    scale = alt.Scale(type="log", nice=False, padding=8)
    panels = []
    for name in dict.fromkeys(r["varied"] for r in rows):
        own = [p for p in points if p["varied"] == name]
        axis = alt.Axis(title=name, values=sorted({p["size"] for p in own}), format="d", grid=False)
        panels.append(
            alt.Chart(alt.Data(values=own))
            .mark_line(point=True)
            .encode(
                x=alt.X("size:Q", scale=scale, axis=axis),
                y=alt.Y("seconds:Q", scale=alt.Scale(type="log", nice=False, padding=8), title="seconds"),
                color=alt.Color("work:N", scale=alt.Scale(range=[LIGHT.query, LIGHT.key]), title="one"),
                strokeDash=alt.StrokeDash("work:N", title="one"),
            )
            .properties(width=150, height=170)
        )
    alt.hconcat(*panels).configure(**LIGHT.config()).save(str(path))
    print(f"  figure: {path}")


def peers(options: argparse.Namespace) -> list[dict]:
    sys.path.insert(0, str(HERE))
    return importlib.import_module("curvature_peers").run(options)


class _Anything(ModuleType):
    """Stands in for a test library that is missing: decorators give back what they decorate."""

    def __getattr__(self, name: str) -> Any:
        return _Anything(name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        decorates = len(args) == 1 and inspect.isfunction(args[0]) and not options
        return args[0] if decorates and self.__name__ != "composite" else self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> bool:  # pytest.raises
        return True

    def __eq__(self, other: object) -> bool:  # pytest.approx: checked where pytest is installed
        return True

    __hash__ = ModuleType.__hash__


def checks(options: argparse.Namespace) -> list[dict]:
    """The tests that need a GPU; with pytest where it is installed, else function by function."""
    tests = HERE.parent / "tests"
    wanted = {tests / "estimate/test_cuda.py": "test_", tests / "core/test_operator.py": "test_gpu"}
    try:
        import hypothesis  # noqa: F401
        import pytest
    except ImportError:
        for name in ("pytest", "hypothesis", "hypothesis.strategies"):
            sys.modules.setdefault(name, _Anything(name))
    else:
        code = pytest.main(["-p", "no:xdist", "-o", "addopts=", "-q", *map(str, wanted), "-k", "cuda or gpu"])
        return [{"what": "pytest", "exit": int(code)}]
    rows = []
    for path in wanted:
        sys.path.insert(0, str(path.parent))
        module = importlib.import_module(path.stem)
        for name, test in inspect.getmembers(module, inspect.isfunction):
            source = inspect.getsource(test) if name.startswith("test_") else ""
            if "cuda" not in source:
                continue
            some = [torch.float64, torch.float32] if "dtype" in inspect.signature(test).parameters else [None]
            for dtype in some:
                given: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
                if "tmp_path" in inspect.signature(test).parameters:
                    given["tmp_path"] = Path(tempfile.mkdtemp())
                try:
                    test(**given)
                    result = "ok"
                except Exception as error:
                    result = f"{type(error).__name__}: {str(error)[:200]}"
                rows.append({"what": f"{path.name}::{name}", "dtype": str(dtype), "result": result})
                print(f"  {rows[-1]['what']} {dtype or ''}: {result}", flush=True)
    return rows


def write(options: argparse.Namespace, results: dict[str, list[dict]]) -> None:
    """The record of what there is so far."""
    if options.out is None:
        return
    made = asdict(Provenance.collect(dtype=torch.float32, device=options.device))
    made["command"] = " ".join(["benchmarks/curvature.py", *results])
    shape = {n: getattr(options, n) for n in ("layers", "dim", "tokens", "batch")}
    body = {"benchmark": "curvature", "made": made, "loaded": options.loaded, "shape": shape}
    options.out.write_text(strict_json({**body, "results": results}))


def main() -> None:
    jobs = {"accuracy": accuracy, "products": products, "route": route, "growth": growth, "peers": peers}
    jobs |= {"checks": checks}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    gpu = torch.cuda.is_available()
    parser.add_argument("jobs", nargs="*", help="default: accuracy products", default=["accuracy", "products"])
    parser.add_argument("--layers", type=int, default=12 if gpu else 4)
    parser.add_argument("--dim", type=int, default=768 if gpu else 128)
    parser.add_argument("--tokens", type=int, default=1024 if gpu else 128)
    parser.add_argument("--batch", type=int, default=8 if gpu else 2)
    parser.add_argument("--four", action="store_true", help="four vectors through the compiled route too")
    parser.add_argument("--batches", type=int, default=1, help="so many batches through the compiled route too")
    parser.add_argument("--limit", type=float, help="seconds after which `products` begins no further row")
    parser.add_argument("--rows", nargs="+", help='rows of `products` wanted, such as "gauss_newton, compiled"; all')
    parser.add_argument("--loaded", action="store_true", help="say in the record that the machine was busy")
    parser.add_argument("--out", type=Path, help="write the record there (JSON)")
    options = parser.parse_args()
    options.device = "cuda" if gpu else "cpu"
    progress.quiet = False
    torch.set_num_threads(torch.get_num_threads() if gpu else 1)
    torch.set_float32_matmul_precision("high")
    results = options.results = {}
    for name in options.jobs:
        try:
            results[name] = jobs[name](options)
        except Exception as error:  # one job that fails does not lose the others
            results[name] = [{"failed": f"{type(error).__name__}: {error}"[:500]}]
            print(f"{name} failed: {results[name][0]['failed']}", flush=True)
        write(options, results)
    if options.out:
        print(f"\nrecord: {options.out}")


if __name__ == "__main__":
    main()
