"""Units of a measurement: a design at one depth, whose pieces are networks; a model, whose pieces are batches."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from ...answers.measured import data_words
from ...core.errors import InputError
from ...core.parameters import count_parameters
from ...core.progress import clock
from ...core.rng import stream
from ...core.spec import ModelConfig
from ...core.work import Work
from ...curvature.calling import bare
from ...curvature.settings import measured
from ...nn.transformer import Transformer
from ..probes import probe_of
from ..subject import Subject, batches_hash
from .calls import Calls
from .curve import Curve
from .jacobian import Isometry, isometry, jacobian
from .observe import Stack, find_stacks
from .question import SignalQuestion
from .stacks import add_prediction, curve_of, joined, over_networks, profiled
from .subjects import Drawing

#: Forward passes of a drawn network that its piece takes the time of, the measures themselves included (as measured).
PASSES = 9
#: Widths up to this are measured on one thread: threads that wait for each other on a busy machine cost far more.
ONE_THREAD_UP_TO = 512
#: Tokens times width up to which sixteen copies of a sequence are carried for a Jacobian.
SMALL = 4096


class Unit(ABC):
    """One or several stacks that are measured in the same passes."""

    label: str
    dtype: torch.dtype
    device: torch.device

    @property
    @abstractmethod
    def width(self) -> int:
        """About how wide its matrices are."""

    @property
    @abstractmethod
    def pieces(self) -> int:
        """How many pieces of work there are."""

    @abstractmethod
    def cost(self) -> tuple[str, float]:
        """What will be done, in words, and its seconds here."""

    @abstractmethod
    def measure(self, work: Work) -> None:
        """All pieces; TimeUp when the time is over."""

    @abstractmethod
    def curves(self, work: Work) -> list[Curve]:
        """The curves of the pieces that are finished; none where none is."""

    @contextlib.contextmanager
    def threads(self) -> Iterator[None]:
        """One thread for narrow models."""
        before = torch.get_num_threads()
        if self.width <= ONE_THREAD_UP_TO:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class Design(Unit):
    """Networks drawn from a design; the error bars are over them."""

    def __init__(self, asked: SignalQuestion, drawing: Drawing) -> None:
        self.asked, self.drawing, self.label = asked, drawing, drawing.label
        self.dtype, self.device = drawing.dtype, drawing.device
        self.names = [f"{self.label}, network {k}" for k in range(drawing.networks)]

    @property
    def width(self) -> int:
        return self.drawing.config.d_model

    @property
    def pieces(self) -> int:
        return len(self.names) + len(_places(self.drawing.config.depth, self.asked))

    def cost(self) -> tuple[str, float]:
        drawn, config = self.drawing, self.drawing.config
        size, T = count_parameters(config), drawn.tokens
        one = 2 * size * T + 4 * config.depth * T * T * config.d_model  # a forward pass of one sequence
        work = PASSES * drawn.networks * drawn.batch * one
        seconds = work / _flops_a_second(self.device, self.dtype)
        text = (
            f"{config.design}, {config.depth} blocks: {drawn.networks} networks of {size / 1e6:.3g}M parameters on"
            f" {drawn.batch} x {T} tokens, {work / 1e9:.3g} GFLOP, about {max(1, round(seconds))} s here"
        )
        return text, seconds

    def measure(self, work: Work) -> None:
        for k, name in enumerate(self.names):
            work.piece(name, partial(self._profiled, k))
        for where in _places(self.drawing.config.depth, self.asked):
            work.piece(_jacobian_name(self.label, where), partial(self._jacobian, where))
        self.__dict__.pop("_last", None)

    def curves(self, work: Work) -> list[Curve]:
        found = [work[name] for name in self.names if name in work]
        if not found:
            return []
        curve = curve_of(joined(found), 0, self.label, fresh=True)
        curve.notes.append(found[-1]["gradient"])
        over_networks(curve, found)
        add_prediction(curve, self.drawing.config)
        _add_jacobians(curve, work, self.asked)
        return [curve]

    def _network(self, k: int) -> tuple[Transformer, Calls, dict[str, Any]]:
        """Network `k`, how it is called, and the tokens drawn for it."""
        drawn = self.drawing
        model = Transformer(drawn.config, seed=drawn.seed + k, dtype=self.dtype, device=self.device)
        generator = stream(drawn.seed + k, "signal tokens")
        X = torch.randint(drawn.config.vocab, (drawn.batch, drawn.tokens), generator=generator).to(self.device)
        rows = {"tokens": X} if drawn.config.kind == "decoder" else {"tokens": X, "labels": X}
        return model, Calls(model, None, None), rows

    def _profiled(self, k: int) -> dict[str, Any]:
        model, call, rows = self._network(k)
        with measured(model):
            stacks = find_stacks(model, lambda: call.look(rows))
            return profiled(model, stacks, call, rows, self.asked.seed)

    @cached_property
    def _last(self) -> tuple[Transformer, Calls, dict[str, Any], Stack]:
        """The last network, whose Jacobians are measured."""
        model, call, rows = self._network(self.drawing.networks - 1)
        with measured(model):
            return model, call, rows, find_stacks(model, lambda: call.look(rows))[0]

    def _jacobian(self, where: int | str) -> dict[str, Any]:
        model, call, rows, stack = self._last
        return _jacobian(model, call, rows, stack, where, self.drawing.tokens * self.width, self.asked.seed)


class Model(Unit):
    """A model on its batches; the error bars are over their sequences."""

    def __init__(self, asked: SignalQuestion, subject: Subject) -> None:
        if not isinstance(subject.model, nn.Module):
            raise InputError("signal needs the name of a design or of a model, or an nn.Module with its batches.")
        if subject.batches is None:
            raise InputError("a model is measured on data: give one batch, or an iterable of batches.")
        self.asked, self.subject, self.label = asked, subject, subject.name
        self.model: nn.Module = bare(subject.model)  # a compiled model's parts carry the hooks
        self.batches = subject.batches
        self.call = Calls(self.model, subject.loss, asked.mask)
        with measured(self.model):
            self.stacks = find_stacks(self.model, lambda: self.call.look(self.batches[0]), asked.blocks)
        first = next(self.model.parameters(), torch.empty(0))
        self.dtype, self.device = first.dtype, first.device
        self._timed: dict[str, Any] | None = None

    @cached_property
    def names(self) -> list[str]:
        """A piece is named by what it is measured on: the batch, and what a mask hides of it."""
        mask = self.asked.mask
        seen = [batches_hash([batch, None if mask is None else mask(batch)]) for batch in self.batches]
        return [f"{self.label}, batch {i} ({seen[i][:8]})" for i in range(len(seen))]

    @property
    def width(self) -> int:
        """The shorter side of the largest matrix."""
        matrices = [p for p in self.model.parameters() if p.ndim == 2]
        return min(max(matrices, key=lambda p: p.numel()).shape) if matrices else 0

    @property
    def pieces(self) -> int:
        return len(self.batches) + sum(len(_places(stack.depth, self.asked)) for stack in self.stacks)

    def cost(self) -> tuple[str, float]:
        """The first batch is measured for it, and kept."""
        start = time.perf_counter()
        with self.threads():
            self._timed = self._profiled(0)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = self.subject.scale * len(self.batches) * (time.perf_counter() - start)
        many = round(self.subject.scale * sum(probe_of([batch])["probe"][0] for batch in self.batches))
        return f"{self.label}: {many} sequences, about {clock(max(1.0, seconds))} here", seconds

    def measure(self, work: Work) -> None:
        for i, name in enumerate(self.names):
            work.piece(name, partial(self._profiled, i))
        whole = joined([work[name] for name in self.names])
        for i, stack in enumerate(self.stacks):
            kernel, d_model = whole.profiles[i].kernels.get(0), whole.profiles[i].d_model
            size = 0 if kernel is None else len(kernel.result()) * d_model
            for where in _places(stack.depth, self.asked):
                compute = partial(
                    _jacobian, self.model, self.call, self.batches[0], stack, where, size, self.asked.seed
                )
                work.piece(_jacobian_name(self._label(i), where), compute)

    def curves(self, work: Work) -> list[Curve]:
        found = [work[name] for name in self.names if name in work]
        if not found:
            return []
        whole, config, notes = joined(found), getattr(self.model, "config", None), self._notes()
        curves = [curve_of(whole, i, self._label(i), fresh=self._fresh) for i in range(len(self.stacks))]
        for curve in curves:
            curve.notes += [*notes, found[0]["gradient"]]
            add_prediction(curve, config if isinstance(config, ModelConfig) else None)
            _add_jacobians(curve, work, self.asked)
        return curves

    def _label(self, i: int) -> str:
        return f"{self.label}: {self.stacks[i].name}" if len(self.stacks) > 1 else self.label

    @property
    def _fresh(self) -> bool:
        return self.subject.run is None and self.subject.name.startswith("new:")

    def _notes(self) -> list[str]:
        subject = self.subject
        if subject.source["kind"] == "python":
            return list(subject.notes)
        step = [f"step {subject.step}"] if subject.step else []
        return [f"data: {data_words(subject.source)}", *subject.notes, *step]

    def _profiled(self, i: int) -> dict[str, Any]:
        if i == 0 and self._timed is not None:
            return self._timed
        with measured(self.model):
            return profiled(self.model, self.stacks, self.call, self.batches[i], self.asked.seed)


# --- Jacobians --------------------------------------------------------------------------------------------------------
def _places(depth: int, asked: SignalQuestion) -> list[int | str]:
    """The first, the middle and the last block, and the whole stack."""
    return [*sorted({1, (depth + 1) // 2, depth}), "stack"] if asked.jacobian else []


def _named(where: int | str) -> str:
    return where if isinstance(where, str) else f"block {where}"


def _jacobian_name(label: str, where: int | str) -> str:
    return f"{label}, Jacobian of {_named(where)}"


def _jacobian(
    model: nn.Module, call: Calls, batch: Any, stack: Stack, where: int | str, size: int, seed: int
) -> dict[str, Any]:
    J = jacobian(model, call, batch, where, stack=stack, at_once=16 if size <= SMALL else 2)
    return vars(isometry(J, seed=seed))


def _add_jacobians(curve: Curve, work: Work, asked: SignalQuestion) -> None:
    for where in _places(curve.stack.depth, asked):
        name = _jacobian_name(curve.label, where)
        if name in work:
            found = work[name]
            curve.isometry[_named(where)] = Isometry(**found | {"quantiles": tuple(found["quantiles"])})


def _flops_a_second(device: torch.device, dtype: torch.dtype) -> float:
    A = torch.ones(512, 512, dtype=dtype, device=device)
    start = time.perf_counter()
    for _ in range(4):
        A = A @ A / 512
    float(A[0, 0])
    return 4 * 2 * 512**3 / (time.perf_counter() - start)
