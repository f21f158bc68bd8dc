"""The subject of a question: a model, a probe of data, and how they make a loss.

MODEL is a run folder, a saved quadform model, a local Hugging Face folder, or `new:pre-ln,depth=6,dim=64`. Nothing here
reaches for a network unless `allow_download` says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.designs import design
from ..core.errors import FileError, InputError, MissingExtra, QuadformError, UnknownName, did_you_mean
from ..core.rng import stream
from ..curvature.risk import Risk
from ..nn.transformer import Transformer
from ..train.corpora import is_corpus
from ..train.datasets import DATASETS, Dataset, dataset
from ..train.fetch.catalogue import CATALOGUE
from ..train.runs import Run, is_run, open_run
from .configs.shared import ModelQuestion
from .machine import DTYPES, device_of
from .probes import whole_tensors

#: Data of a new model that names none.
DEFAULT_DATA = "add"
#: Tokens of a sequence where neither the question nor the data says.
DEFAULT_LENGTH = 128
#: Trained models that can be fetched.
TRAINED = tuple(name for name, item in CATALOGUE.items() if item.kind == "model")
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")


@dataclass(eq=False)
class Subject:
    """A model with its probe. `source` says, in plain JSON, what both are; `run` is there for training runs."""

    name: str
    model: nn.Module
    batches: list[Any]
    source: dict[str, Any]
    loss: Callable[[Any, Any], Tensor] | None = None
    run: Run | None = None
    notes: list[str] = field(default_factory=list)

    def risk(self, question: ModelQuestion | None = None, **options: Any) -> Risk:
        """The loss of the model on its probe, over the parameters the question names."""
        if question is not None:
            options = {
                "params": [glob.strip() for glob in question.params.split(",")],
                "include_frozen": question.include_frozen,
                "train_mode": question.train_mode,
            } | options
        risk = Risk(self.model, self.loss, self.batches, **options)
        risk.notes[:0] = [*self.notes, *whole_tensors(risk, options.get("params", "*"))]
        return risk

    @property
    def step(self) -> int:
        """The training step the model stands at."""
        return self.run.step if self.run else 0

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def weights_hash(model: nn.Module) -> str:
    """SHA-256 of names, shapes and values of all parameters and buffers: what a resumed run must find again."""
    digest = hashlib.sha256()
    for name, t in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(t.shape)} {t.dtype}".encode())
        digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def open_subject(question: ModelQuestion) -> Subject:
    """The model and the probe of a question; what cannot be opened is an error that says what can."""
    device, dtype = device_of(question.device), DTYPES[question.dtype]
    path = Path(question.model)
    if question.model.startswith("new:"):
        subject = _new(question, device, dtype)
    elif is_run(path):
        run = open_run(path, device=device, dtype=dtype)
        subject = _ours(question, question.model, run.model, run.data, run)
        subject.notes += _widened(run.tensors["model/embed.W_E"].dtype, dtype)
    elif (path / "model.json").exists():
        model = Transformer.load(path, device=device)
        widened = _widened(model.embed.W_E.dtype, dtype)
        subject = _ours(question, question.model, model.to(dtype), None, None)
        subject.notes += widened
    elif (path / "config.json").exists():
        subject = _hugging_face(question, device, dtype)
    elif question.model.partition(":")[0] in TRAINED and not path.exists():
        subject = _trained(question, device, dtype)
    elif path.suffix in _PICKLES and path.exists():
        raise FileError(
            f"`{question.model}` holds Python objects and could run code, and no description of its model. Convert it"
            " to a Hugging Face folder or a quadform model (safetensors), or use Python with the module you made."
        )
    elif path.is_file():
        raise FileError(f"`{question.model}` is a file. Give the folder of the model: `{path.parent}`.")
    elif path.is_dir():
        raise FileError(
            f"`{question.model}` holds no model: neither a training run (`checkpoint/`), nor a saved quadform model"
            " (`model.json`), nor a Hugging Face folder (`config.json`)."
        )
    else:
        subject = _hub(question, device, dtype)
    subject.source |= {"model": question.model, "step": subject.step, "weights": weights_hash(subject.model)}
    return subject


def _widened(stored: Any, dtype: torch.dtype) -> list[str]:
    """What is said of weights that lie in halves on the disk."""
    halves = stored in (torch.bfloat16, torch.float16)
    return [f"stored in {_kind(stored)}, analysed in {_kind(dtype)}"] if halves else []


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- trained models that were fetched ---------------------------------------------------------------------------------
def _trained(question: ModelQuestion, device: torch.device, dtype: torch.dtype) -> Subject:
    """`sceptr:tiny`, `smollm2`: a model of `quadform data fetch NAME` with its own probe."""
    if question.data != "auto":
        raise InputError(f"`{question.model}` brings its own probe; leave out `--data {question.data}`.")
    from ..train.zoo import load

    name, _, variant = question.model.partition(":")
    found = load(name, variant, dtype=dtype)
    probes = [
        found.probe(batch=question.batch, length=question.length, seed=question.seed + i)
        for i in range(question.batches)
    ]
    batches = [{k: v.to(device) for k, v in probe.items()} for probe in probes]
    source = {"kind": "fetched", "architecture": type(found.model).__name__, "data": "the model's own probe"}
    notes = [found.note] if found.note else []
    return Subject(question.model, found.model.to(device).eval(), batches, source, loss=found.loss, notes=notes)


# --- our own models -------------------------------------------------------------------------------------------------
def parse_new(text: str) -> tuple[str, dict[str, Any]]:
    """`pre-ln,depth=6,dim=64` as (design, settings)."""
    name, *pairs = [part.strip() for part in text.removeprefix("new:").split(",")]
    if not name:
        raise InputError("`new:` needs a block design (`quadform ls designs`). Write `new:pre-ln,depth=6,dim=64`.")
    return name, _settings(pairs, f"new:{name},depth=6,dim=64")


def parse_data(text: str) -> tuple[str, dict[str, Any]]:
    """`add:digits=3` as (name, settings)."""
    name, _, rest = text.partition(":")
    return name.strip(), _settings([p.strip() for p in rest.split(",") if p.strip()], f"{name}:NAME=VALUE")


def _settings(pairs: list[str], example: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or not value:
            raise InputError(f"`{pair}` is not a setting. Write `{example}`.")
        try:
            found[key.strip()] = json.loads(value)
        except ValueError:
            found[key.strip()] = value
    return found


def _new(question: ModelQuestion, device: torch.device, dtype: torch.dtype) -> Subject:
    name, settings = parse_new(question.model)
    data = _data(question, DEFAULT_DATA)
    known = [n for n in inspect.signature(design).parameters if n not in ("name", "settings")]
    given = data.settings | settings
    try:
        model = Transformer(name, seed=question.seed, dtype=dtype, device=device, **given)
    except TypeError as error:
        raise InputError(f"`{question.model}`: {error}. Settings: {', '.join(known)}.") from error
    return _ours(question, question.model, model, data, None)


def _data(question: ModelQuestion, otherwise: str) -> Dataset:
    text = otherwise if question.data == "auto" else question.data
    name, settings = parse_data(text)
    if name not in DATASETS and not is_corpus(name):
        raise UnknownName(
            f"`--data {text}` is neither a data set nor a file.{did_you_mean(name, DATASETS)} See `quadform ls data`."
        )
    if question.length is not None and name in DATASETS and "seq_len" in inspect.signature(DATASETS[name]).parameters:
        settings |= {"seq_len": question.length}
    return dataset(name, **settings)


def _ours(question: ModelQuestion, name: str, model: Transformer, data: Dataset | None, run: Run | None) -> Subject:
    """A model of ours: batches come from its data's validation split, or from the data the question names."""
    config: Any = model.config
    if question.data != "auto" and Path(question.data).is_file():
        tokenizer = getattr(data, "tokenizer", None)
        if tokenizer is None:
            raise InputError(f"`{name}` has no tokenizer to read `{question.data}` with. Name a data set instead.")
        ids = tokenizer.encode(_text(question))
        length = question.length or config.seq_len
        batches = [{"tokens": rows} for rows in _rows(ids, question, length)]
        described: Any = question.data
    else:
        if data is None or question.data != "auto":
            data = _data(question, DEFAULT_DATA)
        _fits(model, data, name)
        batches = list(itertools.islice(data.batches("valid", question.batch, question.seed), question.batches))
        described = data.to_dict()
    device = next(model.parameters()).device
    batches = [{k: v.to(device) for k, v in b.items()} for b in batches]
    source = {"kind": "quadform", "config": config.to_dict(), "data": described, "split": "valid"}
    return Subject(name, model.eval(), batches, source, run=run)


def _fits(model: Transformer, data: Dataset, name: str) -> None:
    wanted = data.settings
    for key in ("kind", "vocab"):
        have = getattr(model.config, key)
        if key in wanted and wanted[key] != have:
            raise InputError(
                f"`{name}` has {key} {have}, the data {type(data).__name__} needs {wanted[key]}. Choose other data."
            )


def _rows(ids: list[int], question: ModelQuestion, length: int) -> list[Tensor]:
    """`batches` tensors (batch, length) of consecutive tokens; fewer sequences where the text is short."""
    rows = len(ids) // length
    if rows < 1:
        raise InputError(f"the text has {len(ids)} tokens, one sequence has {length}. Give more text or `--length`.")
    table = torch.tensor(ids[: rows * length]).reshape(rows, length)[: question.batch * question.batches]
    return list(table.split(question.batch))


# --- Hugging Face ---------------------------------------------------------------------------------------------------
def _hub(question: ModelQuestion, device: torch.device, dtype: torch.dtype) -> Subject:
    """A hub id: from the local cache, or by download where that is allowed."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", question.model) or question.model.startswith("."):
        raise FileError(
            f"there is no model at `{question.model}`. Give a run folder, a Hugging Face folder, or"
            " `new:pre-ln,depth=6`."
        )
    try:
        return _hugging_face(question, device, dtype)
    except QuadformError:  # it is there, and cannot be measured
        raise
    except (OSError, ValueError) as error:
        if question.allow_download:
            raise FileError(f"`{question.model}` could not be downloaded: {_first_line(error)}") from error
        raise FileError(
            f"`{question.model}` is not in the local cache and no network is used. Give a folder, or run once with"
            " `--allow-download`."
        ) from error


def _hugging_face(question: ModelQuestion, device: torch.device, dtype: torch.dtype) -> Subject:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("Reading Hugging Face models", "hf") from error
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
    with _quiet(transformers), _readable(where):
        model: Any = cls.from_pretrained(
            where, local_files_only=local, dtype=dtype, use_safetensors=_safe(question)
        ).to(device)
    tokenizer, notes = tokenizer_of(transformers, where, local), _widened(config.dtype, dtype)
    length = question.length or min(DEFAULT_LENGTH, getattr(config, "max_position_embeddings", DEFAULT_LENGTH))
    if tokenizer is not None:
        with _quiet(transformers):
            ids = tokenizer(_text(question), add_special_tokens=False)["input_ids"]
        rows, described = _rows(ids, question, length), question.data
        if question.data == "auto":
            described = "source of Python's standard library"
        unknown = float((torch.cat(rows) == tokenizer.unk_token_id).double().mean()) if tokenizer.unk_token else 0.0
        if unknown > 0.05:
            notes.append(f"{100 * unknown:.0f} % of the probe's tokens are unknown to its tokenizer")
    elif question.data != "auto":
        raise InputError(f"`{where}` has no tokenizer to read `{question.data}` with. Leave out `--data`.")
    elif not hasattr(config, "vocab_size"):
        raise InputError(f"`{where}` ({type(model).__name__}) takes no tokens; use Python with batches of your own.")
    else:
        generator = stream(question.seed, "probe")
        shape = (question.batches * question.batch, length)
        rows = list(torch.randint(config.vocab_size, shape, generator=generator).split(question.batch))
        described = "random tokens"
        notes.append("this folder has no tokenizer: the probe is random tokens")
    batches = [_labelled(model, ids.to(device), tokenizer, question.seed) for ids in rows]
    if config.is_encoder_decoder and "labels" in batches[0]:
        notes.append("encoder-decoder: its target is its own input")
    with _quiet(transformers):
        _try(model, batches[0], where, getattr(config, "max_position_embeddings", None))
    source = {"kind": "hugging-face", "architecture": type(model).__name__, "data": described, "length": length}
    return Subject(where, model.eval(), batches, source, notes=notes)


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
        advice = f" It has {positions} positions: give a smaller `--length`." if long else ""
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


def _text(question: ModelQuestion) -> str:
    if question.data == "auto":
        from ..train.corpus import library_files

        return "\n".join(text for _, text in itertools.islice(library_files(), 50))
    path = Path(question.data)
    if not path.is_file():
        raise FileError(f"`--data {question.data}`: there is no such text file.")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"`--data {question.data}` cannot be read as UTF-8 text: {error}.") from error


def _safe(question: ModelQuestion) -> bool | None:
    """Only safetensors, unless pickles are trusted."""
    folder = Path(question.model)
    if question.trust_pickle:
        return None
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLES)
        if pickles:
            raise FileError(
                f"`{pickles[0]}` holds Python objects and could run code. Convert to safetensors, or `--trust-pickle`"
                " if you made it."
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
    """What transformers cannot read of a folder, whatever it raises, in one line; of a hub id `_hub` tells."""
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


def plain(source: Mapping[str, Any]) -> dict[str, Any]:
    """A source as it comes back from JSON (tuples as lists), for comparing with a saved one."""
    return json.loads(json.dumps(source))
