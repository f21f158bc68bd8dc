"""Hugging Face models: a local folder, or a hub id from the local cache or by download where that is allowed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..answers.measured import RANDOM
from ..core.errors import FileError, InputError, QuadformError, needing
from ..core.rng import stream
from .machine import widened
from .opening import Opening
from .probes import rows_of, text_of

#: Tokens of a sequence where neither the question nor the model says.
DEFAULT_LENGTH = 128
#: Files that hold Python objects.
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")

#: Model, batches, what both are in plain JSON, notes.
Opened = tuple[nn.Module, list[Any], dict[str, Any], list[str]]


def from_hub(question: Opening, device: torch.device, dtype: torch.dtype) -> Opened:
    """A hub id: from the local cache, or by download where that is allowed."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", question.model) or question.model.startswith("."):
        raise FileError(
            f"there is no model at `{question.model}`. Give a run folder, a Hugging Face folder, or"
            " `new:pre-ln,depth=6`."
        )
    try:
        return from_folder(question, device, dtype)
    except QuadformError:  # it is there, and cannot be measured
        raise
    except (OSError, ValueError) as error:
        if question.allow_download:
            raise FileError(f"`{question.model}` could not be downloaded: {_first_line(error)}") from error
        raise FileError(
            f"`{question.model}` is not in the local cache and no network is used. Give a folder, or allow the"
            " download once (allow_download)."
        ) from error


def from_folder(question: Opening, device: torch.device, dtype: torch.dtype) -> Opened:
    """The model of a local folder (or of the cache), and its probe: a text through its tokenizer, or random tokens."""
    transformers, config, cls = _described(question)
    where, local = question.model, not question.allow_download
    with _quiet(transformers), _readable(where):
        model: Any = cls.from_pretrained(
            where, local_files_only=local, dtype=dtype, use_safetensors=_safe(question)
        ).to(device)
    tokenizer, notes = tokenizer_of(transformers, where, local), widened(config.dtype, dtype)
    length = _length(question, config)
    if tokenizer is not None:
        with _quiet(transformers):
            text = text_of(question)
            ids = tokenizer(text.text, add_special_tokens=False)["input_ids"]
        rows, described = rows_of(ids, question, length), text.described
        unknown = float((torch.cat(rows) == tokenizer.unk_token_id).double().mean()) if tokenizer.unk_token else 0.0
        if unknown > 0.05:
            notes.append(f"{100 * unknown:.0f} % of the probe's tokens are unknown to its tokenizer")
    elif question.data != "auto":
        raise InputError(f"`{where}` has no tokenizer to read `{question.data}` with. Leave out data.")
    elif not hasattr(config, "vocab_size"):
        raise InputError(f"`{where}` ({type(model).__name__}) takes no tokens; use Python with batches of your own.")
    else:
        generator = stream(question.seed, "probe")
        shape = (question.batches * question.batch, length)
        rows = list(torch.randint(config.vocab_size, shape, generator=generator).split(question.batch))
        described = RANDOM
        notes.append("this folder has no tokenizer: the probe is random tokens")
    batches = [_labelled(model, ids.to(device), tokenizer, question.seed) for ids in rows]
    if config.is_encoder_decoder and "labels" in batches[0]:
        notes.append("encoder-decoder: its target is its own input")
    with _quiet(transformers):
        _try(model, batches[0], where, getattr(config, "max_position_embeddings", None))
    source = {"kind": "hugging-face", "architecture": type(model).__name__, "data": described, "length": length}
    return model.eval(), batches, source, notes


def outline_of_folder(question: Opening, dtype: torch.dtype) -> tuple[nn.Module, list[Any]]:
    """The model of a local folder without its weights, on the meta device, and batches of the shape it would have."""
    transformers, config, cls = _described(question)
    if question.data != "auto":
        text_of(question)  # what cannot be read is told now
    with _quiet(transformers), torch.device("meta"):
        model = cls(config).to(dtype)
        ids = torch.zeros((question.batch, _length(question, config)), dtype=torch.long)
    batch = _labelled(model, ids, None, question.seed)
    del batch["attention_mask"]  # it hides nothing
    return model.eval(), [batch] * question.batches


def _length(question: Opening, config: Any) -> int:
    return question.length or min(DEFAULT_LENGTH, getattr(config, "max_position_embeddings", DEFAULT_LENGTH))


def _described(question: Opening) -> tuple[Any, Any, Any]:
    """(transformers, configuration, class) of a folder or hub id."""
    with needing("Reading Hugging Face models"):
        import transformers
    where, local = question.model, not question.allow_download
    with _quiet(transformers), _readable(where):
        config = transformers.AutoConfig.from_pretrained(where, local_files_only=local)
    packed = getattr(config, "quantization_config", None)
    if packed is not None:
        told = packed if isinstance(packed, dict) else packed.to_dict()
        bits = told.get("bits") or (4 if told.get("load_in_4bit") else 8 if told.get("load_in_8bit") else None)
        raise InputError(
            f"{f'{bits}-bit' if bits else 'quantized'} weights cannot be differentiated twice. Load `{where}` in"
            " float32, save that, and measure it."
        )
    names = [n for n in config.architectures or [] if isinstance(n, str) and hasattr(transformers, n)]
    cls: Any = getattr(transformers, names[0]) if names else transformers.AutoModelForCausalLM
    return transformers, config, cls


def _labelled(model: nn.Module, ids: Tensor, tokenizer: Any, seed: int) -> dict[str, Tensor]:
    """The batch with the labels the model's own loss wants: the tokens themselves, or the masked ones (15 %)."""
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    name = type(model).__name__
    if "CausalLM" in name or "LMHead" in name or "ConditionalGeneration" in name:
        return batch | {"labels": ids}
    if "MaskedLM" in name or "PreTraining" in name:
        hidden = torch.rand(ids.shape, generator=stream(seed, "mask")).to(ids.device) < 0.15
        hidden[:, 0] |= ~hidden.any(dim=1)
        mask = getattr(tokenizer, "mask_token_id", None) or 0
        return batch | {"input_ids": ids.masked_fill(hidden, mask), "labels": ids.masked_fill(~hidden, -100)}
    return batch


def _try(model: nn.Module, batch: dict[str, Tensor], where: str, positions: int | None) -> None:
    """One batch forward: what the model cannot take is told before anything is measured."""
    try:
        with torch.no_grad():
            model(**batch)
    except Exception as error:
        length = batch["input_ids"].shape[1]
        long = positions is not None and length > positions - 3  # some keep two positions for themselves
        advice = f" It has {positions} positions: give a smaller length." if long else ""
        raise InputError(
            f"`{where}` ({type(model).__name__}) cannot be run on {length} tokens: {_first_line(error)}.{advice}"
        ) from error


def tokenizer_of(transformers: Any, where: str, local: bool) -> Any:
    """The tokenizer of a folder or hub id; None where there is none."""
    try:
        with _quiet(transformers):
            found = transformers.AutoTokenizer.from_pretrained(where, local_files_only=local)
            names = list(found.vocab_files_names.values())  # none for bytes
            known = any((Path(where) / name).exists() for name in (*names, "tokenizer.json"))
            if names and not known and Path(where).is_dir():
                return None  # made up from the config alone: every word would be unknown
            return found if found("a word", add_special_tokens=False)["input_ids"] else None  # files missing: empty
    except Exception:  # any of many: no files, no fast tokenizer, no sentencepiece
        return None


def _safe(question: Opening) -> bool | None:
    """Only safetensors, unless pickles are trusted."""
    folder = Path(question.model)
    if question.trust_pickle:
        return None
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)
        if pickles:
            raise FileError(
                f"`{pickles[0]}` holds Python objects and could run code. Convert to safetensors, or trust it"
                " (trust_pickle) if you made it."
            )
    return True


class _quiet:
    """transformers without its progress bars and advice, as before afterwards."""

    def __init__(self, transformers: Any) -> None:
        self.logging = transformers.utils.logging

    def __enter__(self) -> None:
        self.level = self.logging.get_verbosity()
        self.logging.set_verbosity_error()
        self.logging.disable_progress_bar()

    def __exit__(self, *error: object) -> None:
        self.logging.set_verbosity(self.level)
        self.logging.enable_progress_bar()


@contextlib.contextmanager
def _readable(where: str) -> Iterator[None]:
    """What transformers cannot read of a folder, whatever it raises, in one line; of a hub id `from_hub` tells."""
    try:
        yield
    except QuadformError:
        raise
    except Exception as error:
        if not Path(where).is_dir():
            raise
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise FileError(f"`{where}` cannot be opened as a Hugging Face model: {told}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
