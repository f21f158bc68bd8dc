"""Hessian products on the batches people have: attention masks, padding, `use_cache`, labels; and memory given back.

    python benchmarks/curvature_batches.py [--out FILE] [--limit SECONDS] [--model gpt2 llama] [--small]

Every row is a stock Hugging Face model with its own loss, a batch of one kind, and `hessian(risk, route="compiled")`:
seconds of the first product (preparing included), the median of the later ones, its ratio to the compiled gradient of
the same model and batch in the same run, the error against an eager product, and the bytes that stay allocated after
`del H, risk`. On a GPU: GPT-2 124M, 8 x 1,024 tokens, and a Llama of 1.24B parameters, 2 x 1,024, eager. Random
weights.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from curvature import in_turns, once
from quadform.core import progress
from quadform.core.record import Provenance, strict_json
from quadform.curvature import Risk, hessian


def gpt2(small: bool) -> tuple[Any, tuple[int, int]]:
    import transformers

    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 503} if small else {}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config), (2, 32) if small else (8, 1024)


def llama(small: bool) -> tuple[Any, tuple[int, int]]:
    import transformers

    sizes = dict(zip(SHAPE, (64, 2, 4, 2, 128, 503) if small else (2048, 16, 32, 8, 8192, 128256), strict=True))
    config = transformers.LlamaConfig(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.LlamaForCausalLM(config), (2, 32) if small else (2, 1024)


SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
MODELS: dict[str, Callable[[bool], tuple[Any, tuple[int, int]]]] = {"gpt2": gpt2, "llama": llama}


def batches(model: Any, shape: tuple[int, int], device: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """What a tokenizer and a trainer give, one kind after another."""
    ids = torch.randint(0, model.config.vocab_size, shape, device=device)
    ones = torch.ones_like(ids)
    yield "plain", {"input_ids": ids, "labels": ids}
    model.config.use_cache = False
    yield "mask of ones, use_cache off", {"input_ids": ids, "attention_mask": ones, "labels": ids}
    model.config.use_cache = True
    mask = (
        torch.arange(shape[1], device=device)[None]
        < torch.linspace(0.5, 1, shape[0], device=device)[:, None] * shape[1]
    )
    labels = ids.masked_fill(~mask, -100)
    yield "padded right", {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


def allocated(device: str) -> float:
    """Bytes in live tensors."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return float(torch.cuda.memory_allocated())
    seen = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in gc.get_objects() if type(t) is Tensor}
    return float(sum(seen.values()))


def row(model: Any, kind: str, batch: dict[str, Tensor], route: str, device: str) -> dict[str, Any]:
    before = allocated(device)
    found = measured(model, kind, batch, route, device)
    torch._dynamo.reset()
    return found | {"left_bytes": allocated(device) - before}


def measured(model: Any, kind: str, batch: dict[str, Tensor], route: str, device: str) -> dict[str, Any]:
    params = list(model.parameters())
    risk = Risk(model, None, batch, quiet=True)
    H: Any = hessian(risk, route=route)
    v = risk.space.random(1, dtype=torch.float32, device=device)
    first = once(lambda: H.apply(v), device)
    found: dict[str, Any] = {"batch": kind, "asked": route, "route": str(H.route), "first_seconds": first}
    loss_of = torch.compile(lambda: model(**batch).loss) if route == "compiled" else lambda: model(**batch).loss
    works = {"product": lambda: H.apply(v), "gradient": lambda: torch.autograd.grad(loss_of(), params)}
    took = in_turns(works, device, 10)
    found |= {f"{name}_ms": 1e3 * t for name, t in took.items()} | {"ratio": took["product"] / took["gradient"]}
    if route != "eager":
        a, b = H.apply(v), hessian(risk, route="eager").apply(v)
        gap, size = (sum(float(t.double().square().sum()) for t in ts) for ts in ([a[n] - b[n] for n in b], b.values()))
        found["error"] = (gap / size) ** 0.5
    return found | {"notes": list(risk.notes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=540.0)
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    device, began = "cuda" if torch.cuda.is_available() else "cpu", time.monotonic()
    small = options.small or device == "cpu"
    progress.quiet = True
    torch.set_float32_matmul_precision("high")
    made, rows = asdict(Provenance.collect(dtype=torch.float32, device=device)), []
    for name in options.model:
        torch.manual_seed(0)
        model, shape = MODELS[name](small)
        model = model.to(device).eval()
        for kind, batch in batches(model, shape, device):
            for route in ("eager",) if name == "llama" else ("compiled",):
                if time.monotonic() - began > options.limit:
                    print("time is up", file=sys.stderr)
                    break
                found = {"model": name, "shape": list(shape), **row(model, kind, batch, route, device)}
                rows.append(found)
                print({k: round(v, 6) if isinstance(v, float) else v for k, v in found.items()}, flush=True)
                if options.out:
                    options.out.write_text(strict_json({"made": made, "rows": rows}))
        del model


if __name__ == "__main__":
    main()
