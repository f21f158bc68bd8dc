"""Architectures at their real width: the Hessian product by the best route over the compiled gradient.

    python benchmarks/units.py widths [--models gpt2 llama ...] [--routes compiled eager] [--layers N] [--mask ones]
                                      [--limit SECONDS] [--each SECONDS] [--done FILE] [--small]

Random weights from the configuration of a released model, float32 with TF32; `--layers`: at most so many blocks (4; of
GPT-2 all; 0: all), which the table says. A batch has an attention mask: of half of the sequences the last quarter is
padding, or (`--mask ones`) nothing is. Each model in a process of its own. Rows of `--done` are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fresh import fresh
from quadform.core import progress
from quadform.core.record import Provenance, from_json, strict_json
from quadform.curvature import hessian

#: Seconds below which no further model is begun.
LEAST = 45.0
NAN = float("nan")


@dataclass(frozen=True)
class Width:
    """A released model: classes of transformers, sizes by the names of its configuration, its batch."""

    of: str  # whose sizes
    kind: str  # the names of its classes begin so
    task: str
    shape: tuple[int, int]  # sequences and tokens
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
        "GPT-2 124M", "GPT2", "LMHeadModel", (8, 1024), ("n_layer",), {"n_layer": 12},
        {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 97},
    ),
    "llama": Width(
        "Llama 3.2 1B", "Llama", _CAUSAL, (2, 1024), _BLOCKS,
        _sizes(2048, 8192, 16, 32, 128256, num_key_value_heads=8, tie_word_embeddings=True), _GROUPED,
    ),
    "qwen3": Width(
        "Qwen3 0.6B", "Qwen3", _CAUSAL, (2, 1024), _BLOCKS,
        _sizes(1024, 3072, 28, 16, 151936, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
        _GROUPED | {"head_dim": 16},
    ),
    "mistral": Width(
        "Mistral 7B", "Mistral", _CAUSAL, (2, 1024), _BLOCKS,
        _sizes(4096, 14336, 32, 32, 32000, num_key_value_heads=8, sliding_window=None), _GROUPED,
    ),
    "gemma2": Width(
        "Gemma 2 2B", "Gemma2", _CAUSAL, (2, 1024), _BLOCKS,
        _sizes(2304, 9216, 26, 8, 256000, num_key_value_heads=4, head_dim=256), _GROUPED | {"head_dim": 16},
    ),
    "gpt_neox": Width(
        "Pythia 410M", "GPTNeoX", _CAUSAL, (8, 1024), _BLOCKS, _sizes(1024, 4096, 24, 16, 50304), _FEW,
    ),
    "opt": Width(
        "OPT 1.3B", "OPT", _CAUSAL, (4, 1024), _BLOCKS,
        {"hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32, "vocab_size": 50272,
         "word_embed_proj_dim": 2048},
        {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 97,
         "word_embed_proj_dim": 32},
    ),
    "mixtral": Width(
        "Mixtral 8x7B", "Mixtral", _CAUSAL, (1, 1024), _BLOCKS,
        _sizes(4096, 14336, 32, 32, 32000, num_key_value_heads=8, num_local_experts=8),
        _GROUPED | {"num_local_experts": 2},
    ),
    "bert": Width("BERT base", "Bert", "ForMaskedLM", (16, 512), _BLOCKS, _sizes(768, 3072, 12, 12, 30522), _FEW),
    "t5": Width(
        "T5 base", "T5", "ForConditionalGeneration", (8, 512), ("num_layers", "num_decoder_layers"),
        {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12},
        {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
         "vocab_size": 97},
    ),
    "vit": Width(
        "ViT base, 224", "ViT", "ForImageClassification", (32, 224), _BLOCKS,
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


def one(options: argparse.Namespace) -> dict[str, Any]:
    """All about one model, in this process; kept after each step."""
    from units import cleared, gap, gradient, measured

    device = _device()
    progress.quiet = True
    torch.set_float32_matmul_precision("high")
    model, batch, found = built(options.models[0], options.layers, options.mask, device, options.small)
    found |= {"mask": options.mask if "attention_mask" in batch else None, "rows": []}
    if options.times:
        found["gradient"] = gradient(model, batch, device, device == "cuda", options.times)
        torch._dynamo.reset()
        cleared(device)
        keep(options.to, found)
    truth: Any = None
    for route in sorted(options.routes, key=lambda r: r != "eager") if options.times else options.routes:
        try:
            row, image = measured(model, batch, hessian, route, device, options.times)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            row, image = {"asked": route, "route": "", "failed": f"{type(error).__name__}: {str(error)[:160]}"}, {}
        if options.times and "failed" not in row:
            row["ratio"] = row["product_ms"] / found["gradient"]["product_ms"]
            if truth is not None and row["route"] != "eager":
                row["error"] = gap(image, truth)
            elif row["route"] == "eager":
                truth = image
        found["rows"].append(row)
        keep(options.to, found)
    done = [row for row in found["rows"] if "ratio" in row]
    found["best"] = min(done, key=lambda row: row["ratio"], default=None)
    keep(options.to, found)
    return found


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def keep(to: Path | None, found: dict[str, Any]) -> None:
    if to is not None:
        to.write_text(strict_json(found))


def widths(options: argparse.Namespace, out: Path | None) -> None:
    """The table, one model after another."""
    began = time.monotonic()
    record: dict[str, Any] = {"made": asdict(Provenance.collect(dtype=torch.float32, device=_device())), "models": {}}
    if options.done is not None and options.done.exists():
        old = from_json(json.loads(options.done.read_text()))["models"]
        record["models"] = {name: row for name, row in old.items() if "failed" not in row and row.get("best")}
    for name in options.models or MODELS:
        left = options.limit - (time.monotonic() - began)
        if name in record["models"]:
            continue
        if left < LEAST:
            print(f"time is up before {name}", file=sys.stderr)
            break
        call = ["--models", name, "--layers", str(options.layers), "--mask", options.mask, "--routes", *options.routes]
        call += ["--small"] * options.small
        record["models"][name] = found = fresh(__file__, call, min(left, options.each))
        if found.get("rows") and not found.get("best"):  # what was measured before it was stopped
            done = [row for row in found["rows"] if "ratio" in row]
            found["best"] = min(done, key=lambda row: row["ratio"], default=None)
        print(line(found), flush=True)
        if out is not None:
            out.write_text(strict_json(record))
    show(record["models"])


def line(found: dict[str, Any]) -> str:
    best = found.get("best")
    if best is None:
        return f"{found.get('of', '?'):14} {found.get('failed') or [r.get('failed') for r in found.get('rows', [])]}"
    (B, T), why = found["batch"], f"  {best['why'][0][:110]}" if best["why"] else ""
    what = f"{found['of']:14}{found['parameters'] / 1e6:>8.0f}M{found['blocks']:>6} of {found['of_blocks']:<4}"
    took = f"{best['route']:>15}{best['first_s']:>9.1f}{best['product_ms']:>10.1f}{best['ratio']:>8.2f}"
    return (
        f"{what}{B:>4} x {T:<6}{took}{best.get('peak_gib', NAN):>8.1f}{best.get('error', NAN):>10.1e}"
        f"{found['process_s']:>8.0f}{why}"
    )


def show(models: dict[str, Any]) -> None:
    print(
        f"\n{'':14}{'weights':>9}{'blocks':>13}{'batch':>13}{'best route':>15}{'first s':>9}{'ms':>10}{'ratio':>8}"
        f"{'GiB':>8}{'error':>10}{'all s':>8}"
    )
    for found in models.values():
        print(line(found))
    ratios = sorted(found["best"]["ratio"] for found in models.values() if found.get("best"))
    if ratios:
        print(f"{len(ratios)} models: median {ratios[len(ratios) // 2]:.2f}, worst {ratios[-1]:.2f} compiled gradients")


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
                    if left < LEAST / 3:
                        print("time is up", file=sys.stderr)
                        return
                    call = ["--models", name, "--layers", "0", "--mask", "ones", "--routes", route, "--times", "0"]
                    call += ["--small"] * options.small
                    found = fresh(__file__, call, min(left, options.each), env)
                    row = next(iter(found.get("rows", [])), {}) | {"model": name, "when": when, "asked": route}
                    row |= {k: found[k] for k in ("process_s", "failed") if k in found}
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
    parser.add_argument("--done", type=Path, help="a record whose models are not measured again")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--routes", nargs="+", default=["compiled", "eager"])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--to", type=Path)
    sys.path.insert(0, os.path.dirname(__file__))
    one(parser.parse_args())
