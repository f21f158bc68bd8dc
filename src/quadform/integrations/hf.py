"""Hugging Face models: from a local folder, with a probe from their tokenizer. No hub is ever contacted from here.

model, tok = hf.load("./my-gpt")
probe = hf.probe(tok, texts, length=128)
s = qf.spectrum(model, probe)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from ..core.errors import FileError, InputError, needing
from ..core.space import LABELS
from ..curvature.settings import measured
from ..curvature.views import attention_views
from .attention import register_hf
from .reading import read_model, read_tokenizer

#: The label that losses leave out.
IGNORED = -100


def __getattr__(name: str) -> Any:
    if name == "CurvatureCallback":  # a subclass of transformers' own, which is loaded for it
        with needing("hf.CurvatureCallback"):
            from .callback import CurvatureCallback

            return CurvatureCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(
    folder: str | Path,
    *,
    dtype: Literal["float32", "float64"] = "float32",
    device: str = "cpu",
    trust_pickle: bool = False,
) -> tuple[nn.Module, Any]:
    """The model of a local folder in eval mode, and its tokenizer (None where the folder has none).

    Only files of the folder are read; 4-bit weights and pickles are refused as everywhere.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise FileError(f"`{folder}` is not a Hugging Face folder: it has no config.json. Give a local folder.")
    model = read_model(str(path), getattr(torch, dtype), device, trust_pickle=trust_pickle)
    return model, read_tokenizer(str(path))


@overload
def probe(tokenizer: Any, texts: str | Iterable[str], length: int = ..., *, device: str = ...) -> dict[str, Tensor]: ...
@overload
def probe(
    tokenizer: Any, texts: str | Iterable[str], length: int = ..., *, batch: int, device: str = ...
) -> list[dict[str, Tensor]]: ...
def probe(
    tokenizer: Any,
    texts: str | Iterable[str],
    length: int = 128,
    *,
    batch: int | None = None,
    device: str = "cpu",
) -> dict[str, Tensor] | list[dict[str, Tensor]]:
    """A batch for next-token losses: `input_ids`, `attention_mask` and `labels`, each (rows, length).

    The labels are the tokens themselves; the models shift them.

    Args:
        tokenizer: Of Hugging Face.
        texts: One text is cut into rows, its last incomplete row left out. Several texts are one row each, cut at
            `length`; shorter ones are filled up with what the mask hides and the labels leave out (-100).
        length: Tokens per row.
        batch: Rows per batch; the result is then a list of batches.
        device: Where the tensors are.
    """
    if length < 2:
        raise InputError(f"a row of {length} token has no next token; give a length of at least 2.")
    if isinstance(texts, str):
        text = _encode(tokenizer, texts)
        if len(text) < length:
            raise InputError(
                f"the text has {len(text)} tokens, but one row needs {length}. Give more text or a smaller length."
            )
        rows = [text[i : i + length] for i in range(0, len(text) - length + 1, length)]
    else:
        rows = [row[:length] for row in (_encode(tokenizer, text) for text in texts) if len(row) > 1]
        if not rows:
            raise InputError("none of the texts has two tokens, so there is no next token to predict.")
    width = max(map(len, rows))
    filler = getattr(tokenizer, "pad_token_id", None)
    filler = (getattr(tokenizer, "eos_token_id", None) or 0) if filler is None else filler
    ids = torch.full((len(rows), width), int(filler), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    whole = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}
    whole = {name: t.to(device) for name, t in whole.items()}
    if batch is None:
        return whole
    if batch < 1:
        raise InputError(f"a batch has at least one row; got batch={batch}.")
    return [{n: t[i : i + batch] for n, t in whole.items()} for i in range(0, len(rows), batch)]


def _encode(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a text by a Hugging Face tokenizer, one of `tokenizers`, or ours."""
    if callable(tokenizer):
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    found = tokenizer.encode(text)
    return list(getattr(found, "ids", found))


def names(model: nn.Module, batch: Mapping[str, Any] | None = None) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The paper's names of the attention weights: `{"h.0.attn.W_Q": ("h.0.attn.c_attn.weight", shape), ...}`.

    Names are given where an evaluation on `batch` (default: a few tokens, or a black image) shows that the weights are
    what the names say; of attention of another kind there are none.
    Heads are `h.0.attn.W_Q[3]`; the labels query, key, value and out stand for W_Q, W_K, W_V and W_O everywhere.
    """
    known = {name for name, _ in model.named_parameters()}
    own = {n: (n, tuple(p.shape)) for n, p in model.named_parameters() if n.rpartition(".")[2] in set(LABELS.values())}
    with measured(model):
        views = attention_views(model, known, lambda: model(**(_example(model) if batch is None else batch)))
    return own | {v.name: (v.of, tuple(v.shape)) for v in views}


def _example(model: nn.Module) -> dict[str, Tensor]:
    """A batch that models of transformers take, as far as their configuration tells."""
    config: Any = getattr(model, "config", None)
    device = next(model.parameters()).device
    if getattr(model, "main_input_name", None) == "pixel_values":
        size = config.image_size
        return {"pixel_values": torch.zeros(1, config.num_channels, size, size, device=device)}
    ids = (torch.arange(3, 11, device=device) % config.vocab_size)[None]
    return {"input_ids": ids} | ({"decoder_input_ids": ids} if config.is_encoder_decoder else {})


@contextlib.contextmanager
def second_order(model: nn.Module) -> Iterator[nn.Module]:
    """Inside the scope the model's attention is `kernels.attention`: twice differentiable, memory linear in tokens.

    `Risk` and everything on top of it does this by itself where it helps; this is for derivatives of your own.
    """
    name = register_hf()
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [(c, c._attn_implementation) for c in configs.values() if hasattr(c, "_attn_implementation")]
    if not before:
        raise InputError(f"{type(model).__name__} has no attention that transformers can switch.")
    try:
        for config, _ in before:
            config._attn_implementation = name
        yield model
    finally:
        for config, how in before:
            config._attn_implementation = how
