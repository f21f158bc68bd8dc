"""Hessian products by units beside the other routes: first product, ratio to the gradient, memory.

    python benchmarks/units.py [--out FILE] [--limit SECONDS] [--routes units ...] [--mask ones] [--small]
    python benchmarks/units.py long [--tokens 65536]   GPT-2 124M, one sequence: H by default, without a route given
    python benchmarks/units.py large [--tokens 2048] [--top STEPS]   a Llama of 6.7B random weights: H by default, its
                                                       largest eigenvalue and the residual
    python benchmarks/units.py first [--models gpt2]   seconds to the first product where the disk cache is empty, and
                                                       in the next process
    python benchmarks/units.py switch                  when the default route changes (`units_switch.py`)
    python benchmarks/units.py widths                  eleven architectures at their real width (`units_widths.py`)

GPT-2 124M of Hugging Face, random weights, 8 x 1,024 tokens with an attention mask (of half of the sequences the last
quarter is padding; `--mask ones`: nothing is), its own loss, float32 with TF32. Route `default`: none is given. On a
CPU (`--small`): 4 layers of 128 numbers, 2 x 128 tokens, beside the eager gradient; processor time.
Correctness first: 2 layers in float64 against a double backward, then every route against the eager product. Then, a
fresh risk for each route: seconds to make it (`risk_s`) and of the first product (checks, tracing and compiling
included), the median of the later ones, their ratio to the compiled gradient of the same run, and the most memory that
was allocated (`peak_first_gib`: with everything before the first product, the risk, its checks, compiling). `$OUT`
names a folder for the record where `--out` is not given.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import units_switch
import units_widths
from quadform.core import progress
from quadform.core.record import Provenance, strict_json
from quadform.curvature import Risk, functional, gauss_newton, hessian

ROUTES = ("units", "compiled-units", "eager", "compiled")
FRESH_ROUTES = {"first": ("compiled-units", "compiled", "eager"), "widths": ("compiled",), "switch": ()}
JOBS: dict[str, Callable[..., None] | None] = {
    "routes": None, "long": None, "large": None, "first": units_widths.first, "widths": units_widths.widths,
    "switch": units_switch.switch,
}  # fmt: skip


def gpt2(
    device: str, dtype: torch.dtype, shape: tuple[int, int], mask: str = "ones", **sizes: Any
) -> tuple[Any, dict[str, Tensor]]:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(bos_token_id=0, eos_token_id=0, n_positions=max(1024, shape[1]), **sizes)
    model = transformers.GPT2LMHeadModel(config).to(device, dtype).eval()
    with torch.device(device):
        return model, units_widths.tokens(config.vocab_size, *shape, mask)


def gap(a: Any, b: Any) -> float:
    off, size = (sum(float(t.double().square().sum()) for t in ts) for ts in ([a[n] - b[n] for n in b], b.values()))
    return (off / size) ** 0.5


def correct(device: str, routes: list[str], halves: bool = True) -> dict[str, float]:
    """Errors of a small model in float64, whose loss is outside (transformers take theirs in float32); `halves`: of
    H_o and H_f too."""
    model, batch = gpt2(device, torch.float64, (2, 48), n_layer=2, n_head=2, n_embd=64, vocab_size=211)

    def loss(out: Any, batch: Any) -> Tensor:
        return torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    inputs = {k: t for k, t in batch.items() if k != "labels"}
    data = {**inputs, "labels": batch["labels"]}
    risk = Risk(model, loss, data, quiet=True)
    v = risk.space.random(dtype=torch.float64, device=device)
    with risk.context():
        params = dict(model.named_parameters())
        g = torch.autograd.grad(loss(model(**data), data), list(params.values()), create_graph=True)
        inner = sum((a * v[n]).sum() for n, a in zip(params, g, strict=True))
        want = dict(zip(params, torch.autograd.grad(inner, list(params.values())), strict=True))
    found = {"hessian, units": gap(hessian(risk, route="units") @ v, want)}
    for make in (gauss_newton, functional) if halves else ():
        found[f"{make.__name__}, units"] = gap(make(risk, route="units") @ v, make(risk) @ v)  # type: ignore[operator]
    if "compiled-units" in routes:
        found["hessian, compiled-units"] = gap(hessian(risk, route="compiled-units") @ v, want)
    return found


def llama(device: str, tokens: int, small: bool) -> tuple[Any, dict[str, Tensor]]:
    """The sizes of Llama 2 7B, weights made where they stay."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    tiny: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**(tiny | {"vocab_size": 503} if small else {}))
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config).eval()
        return model, units_widths.tokens(config.vocab_size, 1, tokens, "ones")


def asked(options: argparse.Namespace, device: str, small: bool) -> tuple[Any, Any, list[tuple[Any, str]]]:
    """The model, its batch, and what is measured on them."""
    if options.what == "large":
        model, batch = llama(device, options.tokens or (48 if small else 2048), small)
        return model, batch, [(hessian, r) for r in options.routes or ("default",)]
    sizes: Any = {"n_layer": 4, "n_head": 2, "n_embd": 128, "vocab_size": 1000} if small else {}
    if options.what == "long":
        model, batch = gpt2(device, torch.float32, (1, options.tokens or (256 if small else 65536)), **sizes)
        return model, batch, [(hessian, r) for r in options.routes or ("default",)]
    model, batch = gpt2(device, torch.float32, (2, 128) if small else (8, 1024), options.mask, **sizes)
    return model, batch, [(make, r) for make in (hessian, gauss_newton) for r in options.routes or ROUTES]


def once(work: Callable[[], Any], device: str) -> float:
    """Seconds of some work; on a CPU of the processor."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    begun = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - begun


def cleared(device: str) -> float:
    """GiB in use, after what is not held any more was freed; the peak is counted from here."""
    gc.collect()
    if device != "cuda":
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**30


def peak(device: str) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")


def measured(model: Any, batch: Any, make: Any, route: str, device: str, times: int, **options: Any) -> tuple[Any, Any]:
    """The row of `products`, and what is left of its memory afterwards."""
    before = cleared(device)
    found, image = products(model, batch, make, route, device, times, **options)
    torch._dynamo.reset()
    return found | {"left_gib": cleared(device) - before}, image


def products(
    model: Any,
    batch: Any,
    make: Any,
    route: str,
    device: str,
    times: int,
    four: bool = False,
    top: int = 0,
    note: Callable[[dict[str, Any]], None] = lambda found: None,
) -> tuple[dict[str, Any], Any]:
    """A row, of which `note` learns after each step; with `four`, also the image of a vector."""
    made: list[Any] = []
    found: dict[str, Any] = {"kind": make.__name__, "asked": route}
    found["risk_s"] = once(lambda: made.append(Risk(model, None, batch, quiet=True)), device)
    note(found)
    risk = made.pop()
    H: Any = make(risk) if route == "default" else make(risk, route=route)
    v = risk.space.random(1, dtype=torch.float32, device=device, generator=torch.Generator(device).manual_seed(1))
    found["first_s"] = once(lambda: H.apply(v), device)
    found |= {"route": str(H.route), "peak_first_gib": peak(device), "why": list(H.why)}
    note(found)
    cleared(device)
    took = statistics.median([once(lambda: H.apply(v), device) for _ in range(times)] or [float("nan")])
    found |= {"route": str(H.route), "product_ms": 1e3 * took, "peak_gib": peak(device), "why": list(H.why)}
    note(found)
    image = {n: t.cpu() for n, t in H.apply(v).items()} if four else {}
    if four:
        V = {n: t.expand(4, *t.shape[1:]).contiguous() for n, t in v.items()}
        H.apply(V)
        found["each_of_four_ms"] = 250 * statistics.median(once(lambda: H.apply(V), device) for _ in range(times))
    if top:
        try:
            found |= largest(H, v, top)
        except torch.OutOfMemoryError as error:
            found["largest_failed"] = str(error)[:160]
    return found, image


def largest(H: Any, v: dict[str, Tensor], steps: int) -> dict[str, Any]:
    """The largest eigenvalue by Lanczos without a basis, three vectors at a time; v is used up.

    The residual of a Ritz pair is beta |last entry of its vector in the basis| (Paige, 1976): lost orthogonality copies
    values that have converged, it does not change them.
    """
    before, alpha, beta, values = None, [], [0.0], []
    norm = sum(float(t.double().square().sum()) for t in v.values()) ** 0.5
    for t in v.values():
        t /= norm
    for _ in range(steps):
        image = H.apply(v)
        alpha.append(sum(float((t * v[n]).sum(dtype=torch.float64)) for n, t in image.items()))
        for n in v:
            image[n].sub_(v[n], alpha=alpha[-1])
            if before is not None:
                image[n].sub_(before[n], alpha=beta[-1])
        before = {n: v.pop(n) for n in list(v)}
        beta.append(sum(float(t.double().square().sum()) for t in image.values()) ** 0.5)
        v.update({n: image.pop(n).div_(beta[-1]) for n in list(image)})
        T = torch.diag(torch.tensor(alpha, dtype=torch.float64))
        off = torch.diag(torch.tensor(beta[1:-1], dtype=torch.float64), 1) if len(alpha) > 1 else torch.zeros(1, 1)
        theta, S = torch.linalg.eigh(T + off + off.T)
        values.append((float(theta[-1]), beta[-1] * abs(float(S[-1, -1]))))
        print(f"  {len(alpha)} products: {values[-1][0]:.6g}, residual {values[-1][1] / values[-1][0]:.1e}", flush=True)
    return {"largest": values[-1][0], "residual": values[-1][1] / abs(values[-1][0]), "products": values}


def gradient(model: Any, batch: Any, device: str, compile: bool, times: int) -> dict[str, Any]:
    params = list(model.parameters())
    loss_of = torch.compile(lambda: model(**batch).loss) if compile else lambda: model(**batch).loss
    work = lambda: torch.autograd.grad(loss_of(), params)  # noqa: E731
    cleared(device)
    first = once(work, device)
    cleared(device)
    took = statistics.median(once(work, device) for _ in range(times))
    name = "compiled gradient" if compile else "eager gradient"
    return {
        "kind": name,
        "asked": "",
        "route": "",
        "first_s": first,
        "product_ms": 1e3 * took,
        "peak_gib": peak(device),
    }


def show(rows: list[dict[str, Any]]) -> None:
    heads = f"{'x gradient':>12}{'of four':>10}{'GiB':>8}{'error':>10}{'left GiB':>10}"
    print(f"{'':22}{'route':>16}{'first s':>10}{'ms':>10}{heads}")
    for r in rows:
        ratio, four, error, left = (r.get(k, float("nan")) for k in ("ratio", "each_of_four", "error", "left_gib"))
        print(
            f"{r['kind']:22}{r['route']:>16}{r['first_s']:>10.1f}{r['product_ms']:>10.1f}{ratio:>12.2f}{four:>10.2f}"
            f"{r['peak_gib']:>8.1f}{error:>10.1e}{left:>10.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=tuple(JOBS), default="routes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=420.0)
    parser.add_argument("--routes", nargs="+")
    parser.add_argument("--tokens", type=int, help="of the sequence of `long` and `large`")
    parser.add_argument("--top", type=int, default=0, help="products for the largest eigenvalue of `large`")
    parser.add_argument("--after", type=int, default=20, help="products of `switch` after its change")
    parser.add_argument("--small", action="store_true")
    units_widths.add_options(parser)
    options = parser.parse_args()
    device, began = "cuda" if torch.cuda.is_available() else "cpu", time.monotonic()
    small = options.small or device == "cpu"
    name = "units.json" if options.what == "routes" else f"units-{options.what}.json"
    out = options.out or (Path(os.environ["OUT"]) / name if os.environ.get("OUT") else None)
    if job := JOBS[options.what]:
        options.small, options.routes = small, options.routes or list(FRESH_ROUTES[options.what])
        job(options, out)
        return
    progress.quiet = True
    torch.set_float32_matmul_precision("high")
    record: dict[str, Any] = {"made": asdict(Provenance.collect(dtype=torch.float32, device=device)), "rows": []}
    gradients = options.what == "routes"
    checked = [] if small else options.routes or list(ROUTES if gradients else ())
    record["errors in float64"] = correct(device, checked, gradients)
    print(record["errors in float64"], flush=True)
    if any(error > 1e-9 for error in record["errors in float64"].values()):
        sys.exit("products are wrong; nothing was timed")
    model, batch, wants = asked(options, device, small)
    times, rows = 9 if small else 1 if options.what == "long" else 3, record["rows"]
    if gradients:
        rows += [gradient(model, batch, device, compile, times) for compile in (False, *([True] * (not small)))]
    truth: Any = None

    def note(found: dict[str, Any]) -> None:
        """What is known of a row that is not done, kept: a run may be ended from outside."""
        print(f"{time.monotonic() - began:.0f} s: {found}", flush=True)
        if out:
            out.write_text(strict_json(record | {"begun": found}))

    faulthandler.dump_traceback_later(options.limit)  # where it is then
    for make, route in sorted(wants, key=lambda w: w[1] != "eager") if gradients else wants:
        if time.monotonic() - began > options.limit:
            print("time is up", file=sys.stderr)
            break
        try:
            four, top = gradients, options.top if options.what == "large" else 0
            row, image = measured(model, batch, make, route, device, times, four=four, top=top, note=note)
        except torch.OutOfMemoryError as error:
            print(f"{make.__name__}, {route}: {str(error)[:120]}", file=sys.stderr)
            continue
        if make is hessian and route == "eager":
            truth = image
        elif make is hessian and truth:
            row["error"] = gap(image, truth)
        if gradients:
            beside = rows[1 if not small else 0]
            row["ratio"] = row["product_ms"] / beside["product_ms"]
            row["each_of_four"] = row["each_of_four_ms"] / beside["product_ms"]
            row["memory"] = row["peak_gib"] / beside["peak_gib"]
        rows.append(row)
        print(row, flush=True)
        if out:
            out.write_text(strict_json(record))
    show(rows)


if __name__ == "__main__":
    main()
