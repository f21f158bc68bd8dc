"""Models of transformers read from a local folder, or from the local cache by their hub id, or downloaded where that is
allowed. Nothing is run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import FileError, InputError, QuadformError, needing
from ..core.packed import dequantized, is_packed
from ..core.rng import stream

#: Files that hold Python objects.
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def read_model(
    where: str,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    allow_download: bool = False,
    trust_pickle: bool = False,
) -> nn.Module:
    """The model of a folder or hub id, in eval mode. 4-bit weights are refused, and pickles that are not trusted."""
    config, cls = described(where, allow_download=allow_download)
    safe, local = _safe(where, trust_pickle), not allow_download
    with _found(where, allow_download), quiet():
        if is_packed(where):
            model = _unpacked(where, cls(config)).to(dtype)
        else:
            model = cls.from_pretrained(where, local_files_only=local, dtype=dtype, use_safetensors=safe)
    read: nn.Module = model.to(device).eval()
    return read


def _unpacked(where: str, model: Any) -> Any:
    """The model with the weights of its quantized file; names that are missing are those of tied tensors."""
    state = dequantized(where)
    told = model.load_state_dict(state, strict=False)
    filled = {t.data_ptr() for n, t in model.state_dict().items() if n in state}
    lost = [n for n in told.missing_keys if model.state_dict()[n].data_ptr() not in filled]
    if lost or told.unexpected_keys:
        wrong = ", ".join([*lost, *told.unexpected_keys][:3])
        raise FileError(f"`{where}` does not hold the tensors of a {type(model).__name__}: {wrong}.")
    return model


def read_outline(where: str, dtype: torch.dtype, *, allow_download: bool = False) -> nn.Module:
    """The same model without its weights, on the meta device."""
    config, cls = described(where, allow_download=allow_download)
    with quiet(), torch.device("meta"):
        model: nn.Module = cls(config).to(dtype)
    return model.eval()


def read_tokenizer(where: str, *, allow_download: bool = False) -> Any:
    """The tokenizer of a folder or hub id; None where there is none."""
    with needing("Reading Hugging Face models"):
        import transformers
    try:
        with quiet():
            found = transformers.AutoTokenizer.from_pretrained(where, local_files_only=not allow_download)
            names = list(found.vocab_files_names.values())  # none for bytes
            known = any((Path(where) / name).exists() for name in (*names, "tokenizer.json"))
            if names and not known and Path(where).is_dir():
                return None  # made up from the config alone: every word would be unknown
            return found if found("a word", add_special_tokens=False)["input_ids"] else None  # files missing: empty
    except Exception:  # any of many: no files, no fast tokenizer, no sentencepiece
        return None


def labelled(model: nn.Module, ids: Tensor, tokenizer: Any, seed: int) -> dict[str, Tensor]:
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


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """transformers without its progress bars and advice, as before afterwards."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


def described(where: str, *, allow_download: bool = False) -> tuple[Any, Any]:
    """(configuration, class) of the model of a folder or hub id; its weights are not read."""
    with needing("Reading Hugging Face models"):
        import transformers
    with _found(where, allow_download), quiet():
        config = transformers.AutoConfig.from_pretrained(where, local_files_only=not allow_download)
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
    return config, cls


def _safe(where: str, trust_pickle: bool) -> bool | None:
    """Only safetensors, unless pickles are trusted."""
    folder = Path(where)
    if trust_pickle:
        return None
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)
        if pickles:
            raise FileError(
                f"`{pickles[0]}` holds Python objects and could run code. Convert to safetensors, or trust it"
                " (trust_pickle) if you made it."
            )
    return True


@contextlib.contextmanager
def _found(where: str, allow_download: bool) -> Iterator[None]:
    """What transformers cannot read, whatever it raises, in one line."""
    folder = Path(where).is_dir()
    if not folder and not _HUB_ID.fullmatch(where):
        raise FileError(
            f"there is no model at `{where}`. Give a run folder, a Hugging Face folder, or `new:pre-ln,depth=6`."
        )
    try:
        yield
    except Exception as error:
        if isinstance(error, QuadformError) or not (folder or isinstance(error, OSError | ValueError)):
            raise
        told = " ".join(str(error).split())[:300] or type(error).__name__
        if folder:
            raise FileError(f"`{where}` cannot be opened as a Hugging Face model: {told}") from error
        if allow_download:
            raise FileError(f"`{where}` could not be downloaded: {first_line(error)}") from error
        raise FileError(
            f"there is no folder `{where}`, and the local cache of Hugging Face has no model of that name. Check the"
            " path, or allow the download from the hub (allow_download)."
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of an error, or its name."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
