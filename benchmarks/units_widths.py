"""Architectures at their real width: products with H (of GPT-2 also H_o) over the compiled gradient.

    python benchmarks/units.py widths [--models gpt2 llama ...] [--routes compiled] [--layers N] [--mask ones]
                                      [--limit SECONDS] [--each SECONDS] [--room GIB] [--done FILE] [--small]

Random weights from the configuration of a released model, float32 with TF32; `--layers`: at most so many blocks (4, of
Mixtral 1; of GPT-2 all; 0: all), which the table says. A batch has an attention mask: of half of the sequences the last
quarter is padding, or (`--mask ones`) nothing is. Each model in a process of its own, several at a time; the times of a
model are taken while all others stand still (`beside`). The gradient is that of the same model and batch in the same
process, through `torch.compile` (on a CPU as it is). Rows of `--done` are not measured again.

Correctness first: `error` is the distance from a double backward pass of torch in float32 without TF32, one sequence
after another, over its length; `tf32_error` is the same of that pass with TF32. Where a product is further off than
`TOLERANCE` and than 1.2 times that, rounding may have switched a ReLU unit (OPT) or an expert (Mixtral): it is taken
again without TF32 (`exact_error`), and has failed if it is further off than `EXACT` then.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beside import Job, beside, turn
from fresh import fresh
from quadform.core import progress
from quadform.core.record import Provenance, from_json, strict_json
from quadform.curvature import Risk, gauss_newton, hessian

#: Seconds below which no further process is begun.
LEAST = 15.0
#: How far products may be from those without TF32. With it, torch's own differ by up to 5e-3, of OPT by 2.8e-2.
TOLERANCE = 2e-2
#: The same where neither has it.
EXACT = 1e-3
NAN = float("nan")
MAKE: dict[str, Any] = {"H": hessian, "H_o": gauss_newton}


@dataclass(frozen=True)
class Width:
    """A released model: classes of transformers, sizes by the names of its configuration, its batch."""

    of: str  # whose sizes
    kind: str  # the names of its classes begin so
    task: str
    shape: tuple[int, int]  # sequences and tokens
    gib: float  # of a GPU, at most
    layers: tuple[str, ...]  # names of the numbers of blocks
    sizes: dict[str, Any]
    small: dict[str, Any]


def _sizes(hidden: int, inner: int, blocks: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": blocks, "num_attention_heads": heads,
        "vocab_size": vocab, **more,
    }  # fmt: skip


_FEW = _sizes(32, 64, 2, 2, 97)
_GROUPED = _FEW | {"num_key_value_heads": 1}
_BLOCKS, _CAUSAL = ("num_hidden_layers",), "ForCausalLM"
MODELS = {
    "gpt2": Width(
        "GPT-2 124M", "GPT2", "LMHeadModel", (8, 1024), 63, ("n_layer",), {"n_layer": 12},
        {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 97},
    ),
    "llama": Width(
        "Llama 3.2 1B", "Llama", _CAUSAL, (2, 1024), 26, _BLOCKS,
        _sizes(2048, 8192, 16, 32, 128256, num_key_value_heads=8, tie_word_embeddings=True), _GROUPED,
    ),
    "qwen3": Width(
        "Qwen3 0.6B", "Qwen3", _CAUSAL, (2, 1024), 20, _BLOCKS,
        _sizes(1024, 3072, 28, 16, 151936, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
        _GROUPED | {"head_dim": 16},
    ),
    "mistral": Width(
        "Mistral 7B", "Mistral", _CAUSAL, (2, 1024), 36, _BLOCKS,
        _sizes(4096, 14336, 32, 32, 32000, num_key_value_heads=8, sliding_window=None), _GROUPED,
    ),
    "gemma2": Width(
        "Gemma 2 2B", "Gemma2", _CAUSAL, (2, 1024), 45, _BLOCKS,
        _sizes(2304, 9216, 26, 8, 256000, num_key_value_heads=4, head_dim=256), _GROUPED | {"head_dim": 16},
    ),
    "gpt_neox": Width(
        "Pythia 410M", "GPTNeoX", _CAUSAL, (4, 1024), 14, _BLOCKS, _sizes(1024, 4096, 24, 16, 50304), _FEW,
    ),
    "opt": Width(
        "OPT 1.3B", "OPT", _CAUSAL, (2, 1024), 16, _BLOCKS,
        {"hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32, "vocab_size": 50272,
         "word_embed_proj_dim": 2048},
        {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 97,
         "word_embed_proj_dim": 32},
    ),
    "mixtral": Width(
        "Mixtral 8x7B", "Mixtral", _CAUSAL, (1, 1024), 48, _BLOCKS,
        _sizes(4096, 14336, 32, 32, 32000, num_key_value_heads=8, num_local_experts=8),
        _GROUPED | {"num_local_experts": 2},
    ),
    "bert": Width("BERT base", "Bert", "ForMaskedLM", (8, 512), 10, _BLOCKS, _sizes(768, 3072, 12, 12, 30522), _FEW),
    "t5": Width(
        "T5 base", "T5", "ForConditionalGeneration", (8, 512), 12, ("num_layers", "num_decoder_layers"),
        {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12},
        {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
         "vocab_size": 97},
    ),
    "vit": Width(
        "ViT base, 224", "ViT", "ForImageClassification", (32, 224), 8, _BLOCKS,
        {"num_hidden_layers": 12, "num_labels": 1000},
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 5},
    ),
}  # fmt: skip
_FEW_EXPERTS = {"mixtral": 1}  # a block of Mixtral has 1.4 billion weights


def built(name: str, layers: int, mask: str, device: str, small: bool) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A model, its batch, and what they are."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    what, (B, T) = MODELS[name], (2, 24) if small else MODELS[name].shape
    sizes = dict(what.small if small else what.sizes)
    all_blocks = sizes[what.layers[0]]
    most = all_blocks if layers == 0 or name == "gpt2" else min(layers, all_blocks, _FEW_EXPERTS.get(name, all_blocks))
    sizes |= dict.fromkeys(what.layers, most)
    if what.task == "ForImageClassification":
        B, T = (2, 32) if small else (B, T)
        sizes["image_size"] = T
    else:
        sizes |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if name == "t5":
        sizes["decoder_start_token_id"] = 0
    config = getattr(transformers, f"{what.kind}Config")(**sizes)
    with torch.device(device):
        model = getattr(transformers, f"{what.kind}{what.task}")(config).eval()
        batch = _batch(config, what.task, B, T, mask)
    n = sum(p.numel() for p in model.parameters())
    told = {"model": name, "of": what.of, "parameters": n, "blocks": most, "of_blocks": all_blocks, "batch": [B, T]}
    return model, batch, told


def _batch(config: Any, task: str, B: int, T: int, mask: str) -> dict[str, Any]:
    if task == "ForImageClassification":
        return {"pixel_values": torch.randn(B, 3, T, T), "labels": torch.randint(0, config.num_labels, (B,))}
    return tokens(config.vocab_size, B, T, mask)


def tokens(vocab: int, B: int, T: int, mask: str) -> dict[str, Any]:
    """Tokens with labels and a mask of ones, or of half of the sequences the last quarter is padding."""
    ids = torch.randint(1, vocab, (B, T))
    seen = torch.ones_like(ids)
    if mask == "padded":
        seen[: (B + 1) // 2, T - T // 4 :] = 0
    return {"input_ids": ids * seen, "attention_mask": seen, "labels": ids.masked_fill(seen == 0, -100)}


def one(options: argparse.Namespace) -> None:
    """One operator of one model in this process, kept after each step; times when its turn comes."""
    from units import cleared, gap

    device, kind = _device(), options.kind
    to = options.folder / "found.json" if options.folder is not None else None
    progress.quiet = True
    model, batch, found = built(options.models[0], options.layers, options.mask, device, options.small)
    found |= {"kind": kind, "mask": options.mask if "attention_mask" in batch else None, "tolerance": TOLERANCE}
    keep(to, found)
    v = {n: torch.randn_like(p)[None] for n, p in model.named_parameters()}
    truth = _moved(double_backward(model, batch, v, kind), "cpu")
    torch.set_float32_matmul_precision("high")
    found["tf32_error"] = gap(_moved(double_backward(model, batch, v, kind), "cpu"), truth)
    keep(to, found)
    v = _moved(v, "cpu")  # not in the gradient's memory
    slope, told = _gradient(model, batch, device)
    found["gradient"] = told
    keep(to, found)
    v, risk = _moved(v, device), Risk(model, None, batch, quiet=True)
    operator = MAKE[kind](risk, route=options.routes[0])
    product, told = _product(operator, v, device)
    found |= told
    image = {n: t[0].cpu() for n, t in operator.apply(v).items()}
    found |= {"error": gap(image, truth), "route": str(operator.route), "why": list(operator.why)}
    cleared(device)
    keep(to, found)
    if not found["error"] <= max(TOLERANCE, 1.2 * found["tf32_error"]):
        torch.set_float32_matmul_precision("highest")
        image = {n: t[0].cpu() for n, t in MAKE[kind](risk, route=options.routes[0]).apply(v).items()}
        torch.set_float32_matmul_precision("high")
        found["exact_error"] = gap(image, truth)
        keep(to, found)
    if not found.get("exact_error", 0.0) <= EXACT:
        found["failed"] = f"its product differs from that of a double backward pass by {found['error']:.1e}"
        keep(to, found)
        return
    with turn(options.folder):
        found |= _times(slope, product, device, options.times)
    keep(to, found)


def _moved(tensors: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    return {n: t.to(device) for n, t in tensors.items()}


def _gradient(model: Any, batch: Any, device: str) -> tuple[Callable[[int], None], dict[str, Any]]:
    from units import cleared, once, peak

    params, compile = list(model.parameters()), device == "cuda"
    loss_of = torch.compile(lambda: model(**batch).loss) if compile else lambda: model(**batch).loss

    def slope(k: int = 1) -> None:
        torch.autograd.grad(loss_of(), params)

    cleared(device)
    first = once(slope, device)
    cleared(device)
    slope()
    return slope, {"compiled": compile, "first_s": first, "peak_gib": peak(device)}


def _product(operator: Any, v: dict[str, Tensor], device: str) -> tuple[Callable[[int], None], dict[str, Any]]:
    from units import cleared, once, peak

    def product(k: int = 1) -> None:
        operator.apply({n: t.expand(k, *t.shape[1:]) for n, t in v.items()})

    cleared(device)
    first = once(product, device)
    told = {"first_s": first, "peak_first_gib": peak(device)}
    cleared(device)
    product()
    return product, told | {"peak_gib": peak(device)}


def _times(slope: Callable[[int], None], product: Callable[[int], None], device: str, times: int) -> dict[str, Any]:
    """Milliseconds of the gradient and of products, in turns; their ratios."""
    from units import once

    whole: dict[str, list[float]] = {"gradient_ms": [], "product_ms": [], "each_of_four_ms": []}
    for work, k in ((slope, 1), (product, 1), (product, 4)):  # warm again after it stood still
        work(k)
    for _ in range(times):
        for name, work, k in zip(whole, (slope, product, product), (1, 1, 4), strict=True):
            whole[name].append(1e3 * once(lambda: work(k), device) / k)
    found: dict[str, Any] = {name: statistics.median(list_) for name, list_ in whole.items()}
    found |= {"times": whole, "ratio": found["product_ms"] / found["gradient_ms"]}
    return found | {"ratio_of_four": found["each_of_four_ms"] / found["gradient_ms"]}


def double_backward(model: Any, batch: dict[str, Any], v: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """H v or H_o v by torch alone, one sequence after another; H_o of a model that predicts the next token."""
    params = dict(model.named_parameters())
    total: dict[str, Tensor] = {n: torch.zeros_like(p) for n, p in params.items()}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others have no second derivative
        value = 0.0
        for part, share in sequences(batch, causal=type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))):
            out = model(**part)
            value += share * float(out.loss.detach())
            if kind == "H":
                g = torch.autograd.grad(out.loss, list(params.values()), create_graph=True, allow_unused=True)
                used = [(a, v[n][0]) for n, a in zip(params, g, strict=True) if a is not None and a.requires_grad]
                inner = torch.stack([(a * b).sum() for a, b in used]).sum()
                some = torch.autograd.grad(inner, list(params.values()), allow_unused=True)
            else:
                some = _gauss_newton(out.logits, part["labels"], list(params.values()), [t[0] for t in v.values()])
            for n, t in zip(params, some, strict=True):
                if t is not None:
                    total[n] += share * t
            del out, some
        with torch.no_grad():
            whole = float(model(**batch).loss)
    if abs(value - whole) > 1e-3 * abs(whole):
        raise RuntimeError(f"the loss of the batch is {whole}, that of its sequences {value}")
    return total


def _gauss_newton(logits: Tensor, labels: Tensor, at: list[Tensor], v: list[Tensor]) -> Any:
    """J^T (d2l/dF2) J v, of which J v is the derivative of J^T u in u."""
    u = torch.zeros_like(logits).requires_grad_()
    back = torch.autograd.grad(logits, at, u, create_graph=True)
    (dF,) = torch.autograd.grad(back, u, v)
    F = logits.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(F[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    (slope,) = torch.autograd.grad(loss, F, create_graph=True)
    (curved,) = torch.autograd.grad(slope, F, dF.detach())
    return torch.autograd.grad(logits, at, curved)


def sequences(batch: dict[str, Tensor], causal: bool) -> Iterator[tuple[dict[str, Tensor], float]]:
    """The batches of one sequence, and the share of each in the terms of the loss."""
    labels = batch["labels"]
    used = (labels[:, 1:] if causal else labels.reshape(len(labels), -1)) != -100
    for i in range(len(labels)):
        yield {n: t[i : i + 1] for n, t in batch.items()}, float(used[i].sum() / used.sum())


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def keep(to: Path | None, found: dict[str, Any]) -> None:
    """Write what is known so far; whoever reads it never sees half of it."""
    if to is not None:
        part = to.with_suffix(".part")
        part.write_text(strict_json(found))
        part.replace(to)


def widths(options: argparse.Namespace, out: Path | None) -> None:
    """The table, several models at a time."""
    record: dict[str, Any] = {"made": asdict(Provenance.collect(dtype=torch.float32, device=_device())), "models": {}}
    if options.done is not None and options.done.exists():
        old = from_json(json.loads(options.done.read_text()))["models"]
        record["models"] = {name: row for name, row in old.items() if "ratio" in row and "failed" not in row}
    jobs = []
    for name in options.models or MODELS:
        call = ["--models", name, "--layers", str(options.layers), "--mask", options.mask, "--routes", *options.routes]
        for kind in ("H", "H_o") if name == "gpt2" else ("H",):
            job = Job(f"{name}, {kind}", (*call, "--kind", kind, *["--small"] * options.small), MODELS[name].gib)
            jobs += [job] * (job.name not in record["models"])
    room = options.room or (0.9 * torch.cuda.mem_get_info()[0] / 2**30 if _device() == "cuda" else 2 * 63)
    print(HEAD)
    for name, found in beside(__file__, jobs, limit=options.limit, each=options.each, room=room):
        record["models"][name] = found
        print(line(name, found), flush=True)
        if out is not None:
            out.write_text(strict_json(record))
    ratios = [row["ratio"] for name, row in record["models"].items() if "ratio" in row and name.endswith(" H")]
    if ratios:
        told = f"median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}"
        print(f"H of {len(ratios)} models: {told} {'compiled' if _device() == 'cuda' else 'eager'} gradients")


HEAD = (
    f"{'':15}{'weights':>9}{'blocks':>12}{'batch':>12}{'route':>15}{'first s':>9}{'ms':>9}{'gradient':>9}{'ratio':>7}"
    f"{'of four':>8}{'memory':>8}{'error':>9}{'TF32':>9}{'all s':>7}"
)


def line(name: str, found: dict[str, Any]) -> str:
    """A row of the table."""
    if "ratio" not in found:
        return f"{name:15} {found.get('failed', '')}"
    (B, T), why = found["batch"], f"  {found['why'][0][:110]}" if found["why"] else ""
    memory = found["peak_gib"] / found["gradient"]["peak_gib"]
    return (
        f"{name:15}{found['parameters'] / 1e6:>8.0f}M{found['blocks']:>5} of {found['of_blocks']:<3}{B:>5} x {T:<4}"
        f"{found['route']:>15}{found['first_s']:>9.1f}{found['product_ms']:>9.1f}{found['gradient_ms']:>9.1f}"
        f"{found['ratio']:>7.2f}{found['ratio_of_four']:>8.2f}{memory:>8.2f}{found['error']:>9.1e}"
        f"{found['tf32_error']:>9.1e}{found['process_s']:>7.0f}{why}"
    )


def cold(options: argparse.Namespace) -> None:
    """The first product alone, in this process."""
    from units import measured

    device = _device()
    progress.quiet = True
    torch.set_float32_matmul_precision("high")
    model, batch, found = built(options.models[0], options.layers, options.mask, device, options.small)
    row, _ = measured(model, batch, MAKE[options.kind], options.routes[0], device, 0)
    options.to.write_text(strict_json(found | row))


def first(options: argparse.Namespace, out: Path | None) -> None:
    """Seconds to the first product in a process whose disk cache is empty, and in the next one."""
    import tempfile

    began = time.monotonic()
    record: dict[str, Any] = {"made": asdict(Provenance.collect(dtype=torch.float32, device=_device())), "first": []}
    print(f"{'':8}{'route':>16}{'':>16}{'risk':>10}{'first product':>16}{'whole process':>16}{'GiB':>8}")
    for name in options.models or ("gpt2", "llama"):
        for route in options.routes:
            with tempfile.TemporaryDirectory() as folder:
                env = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
                for when in ("cold", "second process"):
                    left = options.limit - (time.monotonic() - began)
                    if left < LEAST:
                        print("time is up", file=sys.stderr)
                        return
                    call = ["--models", name, "--layers", "0", "--mask", "ones", "--routes", route]
                    call += ["--small"] * options.small
                    found = fresh(__file__, call, min(left, options.each), env)
                    row = found | {"model": name, "when": when, "asked": route}
                    record["first"].append(row)
                    told = f"{name:8}{row.get('route') or route:>16}{when:>16}{row.get('risk_s', NAN):>8.1f} s"
                    told += f"{row.get('first_s', NAN):>14.1f} s"
                    most, failed = row.get("peak_first_gib", NAN), row.get("failed", "")
                    print(f"{told}{row['process_s']:>14.1f} s{most:>8.1f}  {failed}", flush=True)
                    if out is not None:
                        out.write_text(strict_json(record))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS))
    parser.add_argument("--layers", type=int, default=4, help="at most so many blocks; 0: all")
    parser.add_argument("--mask", choices=("ones", "padded"), default="padded")
    parser.add_argument("--each", type=float, default=200.0, help="seconds for one process")
    parser.add_argument("--room", type=float, help="GiB for the processes that run at once; by default what is free")
    parser.add_argument("--done", type=Path, help="a record whose models are not measured again")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--routes", nargs="+", default=["compiled"])
    parser.add_argument("--kind", choices=tuple(MAKE), default="H")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--to", type=Path, help="the first product alone, into this file")
    parser.add_argument("--folder", type=Path, help="where one of several processes writes")
    sys.path.insert(0, os.path.dirname(__file__))
    asked = parser.parse_args()
    one(asked) if asked.to is None else cold(asked)
