"""Measuring what a smaller model costs: a piece for each method, predicted beside measured."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from ...answers.compressed import CompressDraft, Compressed, best_of
from ...answers.measured import RANDOM
from ...compress.layerwise import BLOCK, compensate
from ...compress.maps import linear_maps
from ...core.errors import InputError
from ...core.record import Provenance
from ...core.work import Work
from ...curvature.operators import gauss_newton, hessian
from ...curvature.outline import Outline
from ...distributed import current
from ...estimate.diagonals import diagonal
from ..machine import least_seconds
from ..probes import probe_of
from ..room import PEAK, Room
from ..subject import Subject
from ..threads import fitting_threads
from .writing import Kept, scored

#: Time of a product with H or H_o, in evaluations of the loss, as a rule.
PRODUCT = 9

A = TypeVar("A", bound=Compressed)


class CompressMeasurement(ABC, Generic[A]):
    """The methods of one question on one model, ready to be measured."""

    #: What is done, in words: `pruning`, `pruned`.
    doing: ClassVar[tuple[str, str]]
    answer: ClassVar[type[Compressed]]
    #: The methods that do without H_o.
    flat: ClassVar[str]

    def __init__(self, asked: Any, subject: Subject) -> None:
        self.asked, self.subject = asked, subject
        if asked.methods:
            require_plain(subject)
            self._require_text()
        doing = self.doing[0]
        if current().world > 1:
            raise InputError(f"{doing} runs in one process; start it without torchrun.")
        if not isinstance(subject.batches, list) or not subject.batches:
            raise InputError(f"{doing} needs data: one batch, or a list of batches.")
        count = len(subject.batches)
        held = count // 4 if asked.held_out is None else asked.held_out
        if held >= count:
            raise InputError(
                f"held_out={held} of {count} batches leave none to calibrate on; give fewer, or more batches."
            )
        self.seen = dataclasses.replace(subject, batches=subject.batches[: count - held])
        self.unseen = dataclasses.replace(subject, batches=subject.batches[count - held :]) if held else None
        self.whole = self.seen.risk(asked)

    def _require_text(self) -> None:
        """Refuse random tokens: what they leave untouched says nothing of what the model needs."""
        if self.subject.source.get("data") == RANDOM:
            raise InputError(
                f"{self.doing[0]} needs data to calibrate on, and `{self.subject.name}` has no tokenizer to read a text"
                " with. Put the tokenizer into that folder, or give batches in Python:"
                f" qf.{self.asked.verb}(model, batches)."
            )

    # --- what each verb gives ---------------------------------------------------------------------------------------
    @property
    @abstractmethod
    def ways(self) -> Mapping[str, str]:
        """The methods, each with a word on how it goes about it."""

    @abstractmethod
    def expected(self, method: str) -> int:
        """Products of one method."""

    @abstractmethod
    def method(self, method: str) -> dict[str, Any]:
        """What one method found: `compared`, and what else its draft takes."""

    @abstractmethod
    def inputs(self) -> dict[str, Any]:
        """What was asked, for the record."""

    @abstractmethod
    def finish(self, found: A, method: str, folder: Path | None) -> None:
        """Give the answer its weights, and write the model."""

    def prepare(self, work: Work, draft: CompressDraft) -> None:
        """What is measured before the methods."""

    @abstractmethod
    def alone(self, best: str | None) -> Mapping[str, Callable[[], Mapping[str, Tensor]]]:
        """What is changed while all else stays as it is, by name: how its tensors look then."""

    @property
    def before(self) -> int:
        """Products beside those of the methods."""
        return self._diagonal * int(self.asked.products)

    @property
    @abstractmethod
    def _diagonal(self) -> bool:
        """Whether a method needs the diagonal of H_o."""

    @property
    def curved(self) -> list[str]:
        """What needs H_o."""
        return [m for m, way in self.ways.items() if m in ("obd", "hessian") or way == "hessian"]

    # --- planning ---------------------------------------------------------------------------------------------------
    @cached_property
    def matrices(self) -> dict[str, Tensor]:
        """The parameters that may be linear maps, as far as can be told before a batch has run."""
        model = self.whole.model
        named = model.named_modules() if isinstance(model, nn.Module) else ()
        tables = {f"{name}.weight" for name, m in named if isinstance(m, nn.Embedding)}
        return {n: t for n, t in self.whole.params.items() if t.dim() == 2 and n not in tables}

    @property
    def moments(self) -> int:
        """Bytes of the second moments of inputs; which axis of a matrix they belong to is not known yet."""
        return sum(max(t.shape) ** 2 for t in self.matrices.values()) * self.whole.dtype.itemsize

    def room(self, vectors: float) -> Room:
        """Memory for so many bytes of vectors and a product. What does not fit is refused; on a GPU, where a product
        that does not fit takes another way, it is only said."""
        whole, room = self.whole, Room.of(self.whole, vectors)
        if whole.device.type != "cuda":
            return room.require(whole)
        with whole.context():
            return dataclasses.replace(room, product=PEAK * whole.foreseen[1])

    def seconds_of_walk(self) -> float:
        """Time of one walk through the columns of all matrices: that of a small one by the column."""
        if isinstance(self.whole, Outline):
            return 0.0
        W = torch.eye(BLOCK, dtype=self.whole.dtype, device=self.whole.device)
        once = least_seconds(lambda: compensate(W, W, W.bool()), self.whole.device)
        return once / BLOCK * sum(sum(t.shape) / 2 for t in self.matrices.values())

    # --- measuring --------------------------------------------------------------------------------------------------
    def measure(self, work: Work) -> A:
        """All methods, or as many as the time allows, marked partial."""
        self.require()
        draft = self.answer.draft()
        self.work, self.kept = work, Kept(work)
        products = self.before + sum(map(self.expected, self.ways))
        with fitting_threads(self.whole), work.bar(products, self.asked.verb), work.in_time():
            draft.take_before(work.piece("before", lambda: self._losses(self.risk.params), 0))
            self.prepare(work, draft)
            if self._diagonal and not all(m in work for m in self.ways):
                with work.counting("diagonal", self.asked.products):
                    self.diagonal = self._diagonal_of()
            for name in self.ways:
                draft.take(name, work.piece(name, partial(self.method, name), self.expected(name)))
            best = best_of(draft.scalars, self.ways)
            for name, make in self.alone(best).items() if self.asked.each else ():
                draft.take_each(name, work.piece(f"each {name}", partial(self._alone, make), 1))
        best = best_of(draft.scalars, self.ways)
        inputs = {
            "source": dict(self.subject.source),
            "coverage": self.whole.coverage,
            "notes": [*self.whole.notes, self._note(), *draft.notes],
            **probe_of(self.seen.batches),
            "held_out": len(self.unseen.batches) if self.unseen else 0,
            "ways": dict(self.ways),
            "damping": self.asked.damping,
            "matrices": list(self.maps),
            "each": list(draft.each),
            **self.inputs(),
            "score": draft.score,
            "best": best,
            "partial": work.partial,
        }
        made = Provenance.collect(seed=self.asked.seed, dtype=self.whole.dtype, device=self.whole.device)
        found: Any = self.answer(draft.record(self.answer.kind, inputs, made))
        if best is not None:
            self.finish(found, best, work.folder)
        return found

    def _note(self) -> str:
        n = sum(self.risk.params[m].numel() for m in self.maps)
        left = len(self.whole.params) - len(self.maps)
        return (
            f"{n:,} weights of {len(self.maps)} linear maps are {self.doing[1]}; embeddings, norms, biases and other"
            f" tensors ({left}) are not"
        )

    # --- what is measured once --------------------------------------------------------------------------------------
    @cached_property
    def maps(self) -> Any:
        return linear_maps(self.whole)

    @cached_property
    def risk(self) -> Any:
        """The loss over the chosen matrices alone."""
        return self._over(self.seen)

    def _over(self, subject: Subject) -> Any:
        own = subject.params
        return subject.risk(self.asked, params=list(self.maps) if own is None else {n: own[n] for n in self.maps})

    @cached_property
    def others(self) -> Any:
        return None if self.unseen is None else self._over(self.unseen)

    @cached_property
    def gradient(self) -> dict[str, Tensor]:
        return self.risk.gradient()

    def turned(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters as matrices (out, in), or back."""
        return {n: self.maps[n].matrix(t) for n, t in tensors.items()}

    def require(self) -> None:
        """Refuse, before the work, what cannot be done with this model: a plan says so too."""
        if isinstance(self.whole, Outline):
            return
        self._require_output()
        self.require_sizes()

    def require_sizes(self) -> None:
        """Refuse what does not fit the matrices."""

    def _require_output(self) -> None:
        """What needs H_o, where the model has no single output to split H at."""
        if not (need := self.curved):
            return
        with self.whole.context(), torch.no_grad():
            F = self.whole.run(self.whole.params, self.whole.batches[0])[1]
        if F is None:
            raise InputError(
                f"{', '.join(need)}: this needs H_o, the curvature of the loss in the output of the model, and this"
                " model returns no single tensor that the loss is computed from. Nothing was measured. Choose"
                f" method={self.flat!r}, or give a module that returns one tensor."
            )

    def _diagonal_of(self) -> dict[str, Tensor]:
        """The diagonal of H_o."""
        size = 3 * self.risk.space.size * self.risk.dtype.itemsize
        found = diagonal(
            gauss_newton(self.risk),
            self.asked.products,
            seed=self.asked.seed,
            resume=self.work.state("diagonal", size),
            progress=self.work.report(),
        )
        return {n: t.to(self.risk.dtype) for n, t in found.value.items()}

    # --- predicted and measured -------------------------------------------------------------------------------------
    def parts(self, d: Mapping[str, Tensor]) -> dict[str, float]:
        """g.d + d.Hd / 2 with the exact Hessian, the share of each matrix."""
        Hd = hessian(self.risk, products=1) @ d
        self.work.spend(1)
        return {n: float((d[n] * (self.gradient[n] + Hd[n] / 2)).sum()) for n in d}

    def compared(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """What the loss is predicted to rise by, and what it is with these weights."""
        parts = self.parts({n: weights[n] - t for n, t in self.risk.params.items()})
        named = {"predicted": sum(parts.values()), "parts": torch.tensor(list(parts.values()), dtype=torch.float64)}
        return named | self._losses(weights)

    def _alone(self, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, float]:
        """Some tensors changed, the others as they are."""
        risk, changed = self.risk, make()
        d = {n: changed[n] - t if n in changed else torch.zeros_like(t) for n, t in risk.params.items()}
        with torch.no_grad():
            loss = float(risk.value({**risk.params, **changed}))
        return {"predicted": sum(self.parts(d).values()), "loss": loss}

    def _losses(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """The loss on the batches that were seen, on those held out, and the score of the task."""
        with torch.no_grad():
            found: dict[str, Any] = {"loss": float(self.risk.value(weights))}
            if self.others is not None:
                found["held"] = float(self.others.value(weights))
        return found | scored(self.subject, weights, self.asked.score)


def require_plain(subject: Subject) -> None:
    """Refuse weights that are on a grid already: a smaller model of them would have the errors of both."""
    told = "Take the model that they were made from."
    if subject.source.get("quantized"):
        raise InputError(f"the weights of `{subject.name}` are quantized already. {told}")
    if not isinstance(subject.model, nn.Module):
        return
    for name, t in subject.model.state_dict(keep_vars=True).items():
        if not isinstance(t, Tensor):
            raise InputError(f"{name} is quantized already ({type(t).__name__}). {told}")
        if t.is_quantized or (isinstance(t, nn.Parameter) and (not t.is_floating_point() or t.dtype.itemsize < 2)):
            raise InputError(f"{name} is quantized already ({str(t.dtype).removeprefix('torch.')}). {told}")
