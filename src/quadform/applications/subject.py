"""The subject of a question: a model, a probe of data, and how they make a loss.

MODEL is a run folder, a saved quadform model, a local Hugging Face folder, or `new:pre-ln,depth=6,d_model=64`. Nothing
here reaches for a network unless `allow_download` says so.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..answers.measured import OWN, RANDOM
from ..core.designs import design
from ..core.errors import FileError, InputError, UnknownName, did_you_mean, pass_on_memory
from ..core.packed import is_packed
from ..corpora.datasets import DATASETS, Dataset, dataset
from ..corpora.fetch.catalogue import CATALOGUE
from ..corpora.opened import is_corpus
from ..corpora.text_files import text_file
from ..curvature.batches import batches_of
from ..curvature.calling import bare
from ..curvature.refusals import refuse_quantised
from ..curvature.risk import Risk
from ..distributed.processes import current
from ..distributed.shards import gathered_tensors, is_cut, is_sharded
from ..integrations import reading as hf
from ..integrations.trainer_files import TrainerFiles, trainer_files
from ..nn.transformer import Transformer
from ..train.folder import is_run
from ..train.runs import Run, open_run
from .machine import DTYPES, device_of, guard_probe, widened
from .opening import Opening
from .others import others_of, tensors_of
from .probes import length_of, random_rows, rows_of, text_of, whole_tensors

#: Data of a new model that names none.
DEFAULT_DATA = "add"
#: The file beside a saved model that names its data.
DATA = "data.json"
#: Trained models that can be fetched.
TRAINED = tuple(name for name, item in CATALOGUE.items() if item.kind == "model")


@dataclass(eq=False)
class Subject:
    """A model with its probe. `source` says, in plain JSON, what both are; `run` is there for training runs, `trainer`
    for the checkpoints of a Hugging Face trainer. In Python a function has its tensors in `params`, and `optimizer` is
    what trains the model."""

    name: str
    model: nn.Module
    batches: list[Any]
    source: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    loss: Callable[[Any, Any], Tensor] | None = None
    params: Mapping[str, Tensor] | None = None
    run: Run | None = None
    scale: float = 1.0  # how many times longer a product takes on the batches that are meant than on these
    trainer: TrainerFiles | None = None
    optimizer: Any = None
    through: Any = None  # other models, or their tensors, that a landscape passes through
    world: int = 1  # processes that a plan is made for

    @classmethod
    def of(
        cls, model: Any, batches: Any, loss: Any = None, params: Any = None, optimizer: Any = None, through: Any = None
    ) -> Subject:
        """A model of Python's: a module or a function, a batch or batches, its own loss or `loss(output, batch)`.

        A question that also trains takes a Dataset in place of the batches.
        """
        model = bare(model)
        if isinstance(model, nn.Module):
            refuse_quantised(model)
        name = type(model).__name__ if isinstance(model, nn.Module) else "function"
        name = name.removeprefix("FSDP") if is_sharded(model) else name
        drawn = isinstance(batches, Dataset)
        without = is_sharded(model) and isinstance(batches, list) and not batches  # a process without data
        batches = batches if batches is None or drawn or without else batches_of(batches)
        data = {"data": batches.to_dict(), "split": "valid"} if drawn else {}
        found = cls(name, model, batches, {"kind": "python", "model": name, **data}, loss=loss, params=params)
        found.source["weights"], found.optimizer = found.weights(), optimizer
        found.through = through
        return found

    def weights(self) -> str:
        """The hash of the weights as they are now."""
        return weights_hash(self.model) if isinstance(self.model, nn.Module) else tensors_hash(self.params or {})

    @property
    def changed(self) -> bool:
        """Whether the weights are others than those the subject was made with."""
        return bool(self.weights() != self.source["weights"])

    def identity(self) -> dict[str, Any]:
        """What a resumed run must find again."""
        data = {"data": self.source["data"]} if "data" in self.source else {}
        batches = batches_hash(self.batches)
        if is_sharded(self.model):  # every process has its own
            every = current().every(torch.frombuffer(bytearray.fromhex(batches), dtype=torch.uint8).double())
            batches = tensors_hash({"batches": every})
        hashes = {"weights": self.source["weights"], "batches": batches}
        if self.through is not None:
            hashes["through"] = ",".join(tensors_hash(tensors_of(other)) for other in others_of(self.through))
        return {"model": self.name, **data, **hashes}

    def risk(self, question: Any = None, **options: Any) -> Risk:
        """The loss of the model on its probe, over the parameters the question names."""
        if question is not None:
            globs = getattr(question, "globs", None) or [glob.strip() for glob in question.params.split(",")]
            options = {
                "params": globs if self.params is None else self.params,
                "include_frozen": question.include_frozen,
                "train_mode": question.train_mode,
                "quiet": True,
            } | options
        risk = Risk(self.model, self.loss, self.batches, **options)
        return risk.noted(*self.notes, *whole_tensors(risk, options.get("params", "*")), first=True)

    @property
    def step(self) -> int | None:
        """The training step the model stands at; None where nothing tells."""
        if self.run is not None:
            return self.run.step
        return self.trainer.step if self.trainer is not None else 0 if self.name.startswith("new:") else None

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def weights_hash(model: nn.Module) -> str:
    """SHA-256 of names, shapes and values of all parameters and buffers: what a resumed run must find again."""
    return _hash(gathered_tensors(model) if is_sharded(model) else sorted(model.state_dict().items()))


def tensors_hash(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of names, shapes and values, and of a text. What is cut over processes is gathered, one after another."""
    return _hash(((n, t.full_tensor() if is_cut(t) else t) for n, t in sorted(tensors.items())), text)  # type: ignore[attr-defined]  # a DTensor


def _hash(tensors: Iterable[tuple[str, Tensor]], text: str = "") -> str:
    digest = hashlib.sha256(text.encode())
    for name, t in tensors:
        digest.update(f"{name} {tuple(t.shape)} {t.dtype}".encode())
        digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def batches_hash(value: Any) -> str:
    """SHA-256 of the tensors inside a batch or batches, by where they stand."""
    return tensors_hash(_tensors(value))


def _tensors(value: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors inside a batch or batches, by where they stand."""
    if isinstance(value, Tensor):
        return {name: value}
    inside = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    )
    return {n: t for key, part in inside for n, t in _tensors(part, f"{name}/{key}").items()}


def open_subject(question: Opening) -> Subject:
    """The model and the probe of a question; what cannot be opened is an error that says what can."""
    device, dtype = device_of(question.device), DTYPES[question.dtype]
    path = Path(question.model)
    if question.model.startswith("new:"):
        subject = new_subject(question, device, dtype)
    elif is_run(path):
        run = open_run(path, device=device, dtype=dtype)
        subject = _ours(question, question.model, run.model, run.data, run, own=True)
        subject.notes += widened(run.tensors["model/embed.W_E"].dtype, dtype)
    elif (path / "model.json").exists():
        model = Transformer.load(path, device=device)
        stored = model.embed.W_E.dtype
        subject = _ours(question, question.model, model.to(dtype), data_beside(path), None, own=True)
        subject.notes += widened(stored, dtype)
    elif (path / "config.json").exists():
        subject = _hugging_face(question, device, dtype)
        subject.trainer = trainer_files(path)
    elif question.model.partition(":")[0] in TRAINED and not path.exists():
        subject = _trained(question, device, dtype)
    elif path.suffix in hf.PICKLES and path.exists():
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
        subject = _hugging_face(question, device, dtype)
    if is_packed(path):
        subject.source["quantized"] = True
        subject.notes.append("its weights are whole numbers on a grid, written out as numbers here")
    return _described(question, subject)


def _described(question: Opening, subject: Subject) -> Subject:
    subject.source |= {"model": question.model, "step": subject.step, "weights": weights_hash(subject.model)}
    return subject


def ours(question: Opening, model: Transformer, data: Dataset) -> Subject:
    """A model that was just made, with batches of its data; nothing is opened."""
    return _described(question, _ours(question, question.model, model, data, None))


# --- trained models that were fetched ---------------------------------------------------------------------------------
def _trained(question: Opening, device: torch.device, dtype: torch.dtype) -> Subject:
    """`sceptr:tiny`, `smollm2`: a model of `quadform data fetch NAME` with its own probe."""
    if question.data != "auto":
        raise InputError(f"`{question.model}` has its own batches; leave out data={question.data}.")
    from ..corpora.zoo import load

    name, _, variant = question.model.partition(":")
    found = load(name, variant, dtype=dtype)
    guard_probe(question.batches, question.batch_size, found.probe(batch=1, length=question.length, seed=question.seed))
    probes = [
        found.probe(batch=question.batch_size, length=question.length, seed=question.seed + i)
        for i in range(question.batches)
    ]
    batches = [{k: v.to(device) for k, v in probe.items()} for probe in probes]
    source = {"kind": "fetched", "architecture": type(found.model).__name__, "data": OWN}
    notes = [found.note] if found.note else []
    return Subject(question.model, found.model.to(device).eval(), batches, source, loss=found.loss, notes=notes)


# --- models of Hugging Face -------------------------------------------------------------------------------------------
def _hugging_face(question: Opening, device: torch.device, dtype: torch.dtype) -> Subject:
    """A folder or hub id with its probe: a text through its tokenizer, or random tokens."""
    where, allowed, trusted = question.model, question.allow_download, question.trust_pickle
    config, _ = hf.described(where, allow_download=allowed)
    notes, length = widened(config.dtype, dtype), length_of(question, config)
    model = hf.read_model(where, dtype, device, allow_download=allowed, trust_pickle=trusted)
    tokenizer = hf.read_tokenizer(where, allow_download=allowed)
    if tokenizer is not None:
        text = text_of(question)
        encode = lambda t: tokenizer(t, add_special_tokens=False)["input_ids"]  # noqa: E731
        with hf.quiet():
            rows, short = rows_of(encode, text.text, question, length)
        notes, described = notes + short, text.described
        unknown = float((torch.cat(rows) == tokenizer.unk_token_id).double().mean()) if tokenizer.unk_token else 0.0
        if unknown > 0.05:
            notes.append(f"{100 * unknown:.0f} % of the probe's tokens are unknown to its tokenizer")
    elif question.data != "auto":
        raise InputError(f"`{where}` has no tokenizer to read `{question.data}` with. Leave out data.")
    elif not hasattr(config, "vocab_size"):
        raise InputError(f"`{where}` ({type(model).__name__}) takes no tokens; use Python with batches of your own.")
    else:
        rows, described = random_rows(question, length, config.vocab_size), RANDOM
        notes.append("this folder has no tokenizer: the probe is random tokens")
    batches = [hf.labelled(model, ids.to(device), tokenizer, question.seed) for ids in rows]
    if config.is_encoder_decoder and "labels" in batches[0]:
        notes.append("encoder-decoder: its target is its own input")
    _try(model, batches[0], where, getattr(config, "max_position_embeddings", None))
    source = {"kind": "hugging-face", "architecture": type(model).__name__, "data": described, "length": length}
    return Subject(where, model, batches, source, notes)


def _try(model: nn.Module, batch: dict[str, Tensor], where: str, positions: int | None) -> None:
    """One sequence forward: what the model cannot take is told before anything is measured."""
    try:
        with torch.no_grad(), hf.quiet():
            model(**{name: t[:1] for name, t in batch.items()})
    except Exception as error:
        pass_on_memory(error)
        length = batch["input_ids"].shape[1]
        long = positions is not None and length > positions - 3  # some keep two positions for themselves
        advice = f" It has {positions} positions: give a smaller length." if long else ""
        raise InputError(
            f"`{where}` ({type(model).__name__}) cannot be run on {length} tokens: {hf.first_line(error)}.{advice}"
        ) from error


# --- our own models -------------------------------------------------------------------------------------------------
def parse_new(text: str) -> tuple[str, dict[str, Any]]:
    """`pre-ln,depth=6,d_model=64` as (design, settings)."""
    name, *pairs = [part.strip() for part in text.removeprefix("new:").split(",")]
    if not name:
        raise InputError("`new:` needs a block design (`quadform ls designs`). Write `new:pre-ln,depth=6,d_model=64`.")
    return name, _settings(pairs, f"new:{name},depth=6,d_model=64")


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


def new_subject(question: Opening, device: torch.device, dtype: torch.dtype) -> Subject:
    """`new:pre-ln,depth=6,d_model=64`: drawn with the seed; on the meta device without numbers."""
    name, settings = parse_new(question.model)
    data = _data(question, DEFAULT_DATA)
    known = [n for n in inspect.signature(design).parameters if n not in ("name", "settings")]
    given = data.settings | settings
    try:
        model = Transformer(name, seed=question.seed, dtype=dtype, device=device, **given)
    except TypeError as error:
        raise InputError(f"`{question.model}`: {error}. Settings: {', '.join(known)}.") from error
    return _ours(question, question.model, model, data, None)


def _data(question: Opening, otherwise: str) -> Dataset:
    text = otherwise if question.data == "auto" else question.data
    name, settings = parse_data(text)
    if name not in DATASETS and not is_corpus(name):
        raise UnknownName(
            f"data={text} is neither a data set nor a file.{did_you_mean(name, DATASETS)} See `quadform ls data`."
        )
    if question.length is not None:
        if name not in DATASETS or "seq_len" not in inspect.signature(DATASETS[name]).parameters:
            raise InputError(_own_lengths(question, f"`{name}`"))
        settings |= {"seq_len": question.length}
    return dataset(name, **settings)


def _own_lengths(question: Opening, what: str) -> str:
    return f"length={question.length}: the sequences of {what} have their own lengths. Leave length out."


def _ours(
    question: Opening, name: str, model: Transformer, data: Dataset | None, run: Run | None, own: bool = False
) -> Subject:
    """A model of ours: batches come from its data's validation split, or from the data the question names. `own`: the
    data stand in the model's folder."""
    config: Any = model.config
    if question.data != "auto" and text_file(question.data) is not None:
        tokenizer = getattr(data, "tokenizer", None)
        if tokenizer is None:
            raise InputError(f"`{name}` has no tokenizer to read `{question.data}` with. Name a data set instead.")
        text = text_of(question)
        rows, notes = rows_of(tokenizer.encode, text.text, question, question.length or config.seq_len)
        batches = [{"tokens": t} for t in rows]
        described: Any = text.described
        split = {}
    else:
        if data is None or question.data != "auto":
            data = _data(question, DEFAULT_DATA)
        elif own and question.length is not None:
            raise InputError(_own_lengths(question, f"the model's own data ({data})"))
        _fits(model, data, name)
        guard_probe(question.batches, question.batch_size, next(data.batches("valid", 1, question.seed)))
        batches = list(itertools.islice(data.batches("valid", question.batch_size, question.seed), question.batches))
        described, split, notes = data.to_dict(), {"split": "valid"}, []
    device = next(model.parameters()).device
    batches = [{k: v.to(device) for k, v in b.items()} for b in batches]
    source = {"kind": "quadform", "config": config.to_dict(), "data": described, **split}
    return Subject(name, model.eval(), batches, source, notes, run=run)


def data_beside(folder: Path) -> Dataset | None:
    """The data that a saved model was measured on, where its folder names it."""
    path = folder / DATA
    return Dataset.from_dict(json.loads(path.read_text())) if path.exists() else None


def _fits(model: Transformer, data: Dataset, name: str) -> None:
    wanted = data.settings
    if model.config.positions == "learned" and wanted.get("seq_len", 0) > model.config.seq_len:
        raise InputError(
            f"`{name}` has {model.config.seq_len} positions, the data {type(data).__name__} needs {wanted['seq_len']}."
            " Name the data it was trained on."
        )
    for key in ("kind", "vocab"):
        have = getattr(model.config, key)
        if key in wanted and wanted[key] != have:
            raise InputError(
                f"`{name}` has {key} {have}, the data {type(data).__name__} needs {wanted[key]}. Choose other data."
            )
