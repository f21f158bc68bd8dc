"""Risk: the empirical risk of a model on data, as a function of named parameters. It never changes the model.

risk(theta) = sum_b w_b l_b(theta),   w_b the share of batch b in all loss terms
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from ..core.errors import InputError, UnknownName, closest, pass_on_memory
from ..core.forward import jvp
from ..core.progress import say
from ..core.space import Space, Vector, View
from ..distributed.processes import Group, group_of
from ..distributed.shards import local
from ..kernels.calls import Attention, math_attention
from .batches import batches_of, of_batch
from .calling import Loss
from .choosing import of_function, of_module
from .counting import shifts, terms
from .foresight import graph_bytes
from .fsdp import Apartness, apart
from .refusals import first_not_finite, precision_notes, refuse_empty, refuse_losses, refuse_unusable, twice
from .retained import gradients
from .runners import FunctionRunner, ModuleRunner, Runner
from .settings import measured
from .wide import whole

if TYPE_CHECKING:
    from .soundness import Soundness


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Risk:
    """The mean loss of `model` over `data`, twice differentiable in the chosen parameters.

    A risk does not change. `notes` are remarks, printed with it.

    Args:
        model: A module, or a function `f(params, batch)` with `params={name: tensor}`.
        loss: `loss(output, batch)`, a mean over the batch's loss terms, or a loss of torch (`nn.CrossEntropyLoss()`,
            `F.mse_loss`) for batches `(x, y)`. Without it the model's own is used: a method `model.loss(batch)`, or the
            `loss` of its output (Hugging Face, with `labels` in the batch).
        data: One batch or an iterable of batches. A batch is `(x, y)`, a mapping (passed as keywords) or anything else
            (passed as one argument).
        params: Names with wildcards among `named_parameters()`; tied weights are one parameter; parts of fused matrices
            have names of their own (`h.0.attn.W_Q`, `h.0.attn.W_Q[3]`).
        count: `count(batch)`, the number of loss terms by which batches are averaged. By default that is sum over mean
            of a model's own loss that takes `reduction=`; else the labels that are not -100 (one fewer a row where the
            model shifts them), or the entries of y.
        include_frozen: Also parameters with `requires_grad=False`.
        train_mode: Measure in training mode; by default dropout is switched off.
        attention: What replaces torch's fused attention, which has no second derivative: torch's `"math"` path (memory
            grows with tokens squared), `kernels.attention` (`"fused"`, linear memory), or `"auto"`: fused on a GPU in
            float32 and bfloat16, math elsewhere.
        units: Names with wildcards of the modules that are run again backwards where memory is short, or
            `route="units"` is asked for; by default the repeated blocks of the model.
        quiet: Print no remarks.
    """

    model: nn.Module | Callable[..., Any]
    loss: Loss | None
    count: Callable[[Any], float] | None
    train_mode: bool
    batches: list[Any]
    weights: list[float]
    params: dict[str, Tensor]
    space: Space
    dtype: torch.dtype
    device: torch.device
    coverage: str
    notes: tuple[str, ...]
    fused: bool  # torch's attention is answered by `kernels.attention`, else by torch's math path
    writes: bool  # evaluations write into buffers
    shifted: bool  # the loss leaves out the first label of every row
    units: dict[str, nn.Module]  # parts that can be run again backwards
    shards: Apartness | None  # how the model lies in several processes: cut by FSDP, or in stages
    runner: Runner
    _whole: Risk | None

    def __init__(
        self,
        model: nn.Module | Callable[..., Any],
        loss: Loss | None = None,
        data: Any = None,
        params: str | Sequence[str] | Mapping[str, Tensor] = "*",
        *,
        count: Callable[[Any], float] | None = None,
        include_frozen: bool = False,
        train_mode: bool = False,
        attention: Literal["auto", "math", "fused"] = "auto",
        units: str | None = None,
        quiet: bool = False,
    ) -> None:
        if data is None:
            raise InputError("a risk needs data: one batch, or an iterable of batches.")
        if attention not in ("auto", "math", "fused"):
            raise InputError(f"attention {attention!r} is not 'auto', 'math' or 'fused'.")
        loss = None if loss is None else of_batch(loss)
        model, shards = apart(model, units, train_mode=train_mode)
        batches, own = (batches_of(data), None) if shards is None else shards.batches(data)
        runner: Runner
        if isinstance(model, nn.Module):
            writes = train_mode and any(True for _ in model.buffers())  # batch norm writes into its buffers
            evaluate = None
            if shards is None:
                runner = own_runner = ModuleRunner(model, loss, writes)
                evaluate = partial(runner.cutting, partial(own_runner.call, batches[0]))
            else:
                runner = shards.runner(model, loss)
            chosen = of_module(model, params, evaluate, include_frozen=include_frozen, train_mode=train_mode)
        else:
            if not isinstance(params, Mapping) or loss is None:
                raise InputError(
                    "a function model needs params={name: tensor} and loss=(a function of output and batch)."
                )
            writes, runner, chosen = False, FunctionRunner(model, loss), of_function(params)
        every = dict(model.named_parameters()) if isinstance(model, nn.Module) else chosen.params
        refuse_unusable(chosen.params, every)
        at = {name: local(t) for name, t in chosen.params.items()}
        first = next(iter(at.values()))
        dtype, device = first.dtype, first.device
        fused = attention == "fused" or (attention == "auto" and device.type == "cuda" and dtype != torch.float64)
        self._set(
            model=model, loss=loss, train_mode=train_mode, count=count, batches=batches, writes=writes, params=at,
            coverage=chosen.coverage, space=self._space(at, chosen.views, shards), dtype=dtype, device=device,
            fused=fused, units=self._units_of(model, units, train_mode), shards=shards, runner=runner, _whole=None,
        )  # fmt: skip
        shift = shifts(self) if count is None else None
        self._set(shifted=shift is not None)
        counts = [self.terms(b) for b in batches]
        group_of(self.space).agreed("loss terms", partial(refuse_empty, counts))
        self._set(weights=self._shares(counts[:own], len(counts)))
        of_shards = () if shards is None else shards.notes
        self._set(
            notes=(
                *chosen.notes,
                *of_shards,
                *precision_notes(dtype, device),
                *self._evaluated(shift if shards is None else None),
            )
        )
        if not quiet and group_of(self.space).first:
            say(str(self))

    @staticmethod
    def _space(at: dict[str, Tensor], views: tuple[View, ...], shards: Apartness | None) -> Space:
        return Space.of(at, views) if shards is None else dataclasses.replace(Space.of(at), group=shards.group)

    def _shares(self, counts: list[float], batches: int) -> list[float]:
        """The shares of the batches in all loss terms of all processes; batches that stand in for others have none."""
        total = float(group_of(self.space).over_data(torch.tensor(sum(counts), dtype=torch.float64)))
        return [*(c / total for c in counts), *[0.0] * (batches - len(counts))]

    @staticmethod
    def _units_of(model: Any, named: str | None, train_mode: bool) -> dict[str, nn.Module]:
        from .units import find

        if not isinstance(model, nn.Module) or train_mode:  # random numbers would be others the second time
            return {}
        return find(model, named)

    def _set(self, **fields: Any) -> None:
        """Give fields their values; of use to those who make a risk alone, which is frozen afterwards."""
        self.__dict__.update(fields)

    # --- what it is -------------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        return f"<Risk of {type(self.model).__name__}: {self.coverage}, {len(self.batches)} batches>"

    def __str__(self) -> str:
        return "; ".join([self.coverage, f"{len(self.batches)} batch{'es' * (len(self.batches) > 1)}", *self.notes])

    def value(self, params: Vector | None = None) -> Tensor:
        """The risk at `params` (default: where the model stands)."""
        at = self._at(params)
        with self.context():
            found = [w * self.run(at, b)[0] for w, b in zip(self.weights, self.batches, strict=True)]
        here = torch.stack(found).sum() if found else torch.zeros((), dtype=self.dtype, device=self.device)
        return group_of(self.space).over_data(here)

    def _at(self, params: Vector | None) -> dict[str, Tensor]:
        unknown = [n for n in params or {} if n not in self.params]
        if unknown:
            near = ", ".join(closest(unknown[0], self.params) or list(self.params)[:3])
            raise UnknownName(f"`{unknown[0]}` is not a parameter of this risk. Closest names: {near}.")
        return {**self.params, **(params or {})}

    def slopes(self, v: Vector) -> list[tuple[Tensor, Tensor]]:
        """The loss of each batch where the model stands, and its derivative along v."""

        def along(batch: Any) -> tuple[Tensor, Tensor]:
            def loss(p: Vector) -> Tensor:
                return self.run(p, batch)[0]

            try:
                value, slope = jvp(loss, (self.params,), (dict(v),))[:2]
            except RuntimeError as error:  # an operator without a forward derivative
                pass_on_memory(error)
                g, value = grad_and_value(loss)(self.params)
                slope = self.space.inner(g, v)
            return value, slope

        with self.context(), torch.no_grad():
            return [along(b) for b in self.batches]

    def gradient(self, params: Vector | None = None) -> dict[str, Tensor]:
        """The gradient of the risk at `params` (default: where the model stands)."""
        at = self._at(params)
        total: dict[str, Tensor] = {}
        with self.context():
            for weight, batch in zip(self.weights, self.batches, strict=True):
                for n, g in self._weighed_gradient(at, batch, weight).items():
                    total[n] = g + total[n] if n in total else g
        return group_of(self.space).total(total or {n: torch.zeros_like(t) for n, t in at.items()}, at)

    def _weighed_gradient(self, params: Vector, batch: Any, weight: float) -> dict[str, Tensor]:
        if self.shards is None:
            return {n: weight * g for n, g in self.batch_gradient(params, batch).items()}
        return self.shards.evaluation(self, weight=weight).gradient(batch, params)

    def batch_gradient(self, params: Vector, batch: Any) -> dict[str, Tensor]:
        """The gradient of the loss of one batch, inside a `context`; by units where memory runs out."""
        try:
            with torch.enable_grad():
                at = {n: t.detach().requires_grad_() for n, t in params.items()}
                return gradients(self.run(at, batch)[0], at)
        except torch.OutOfMemoryError:
            if not self.units:
                raise
        from .by_units import Evaluation

        return Evaluation(self, self.units).gradient(batch, params)

    def run(
        self, params: Vector, batch: Any, split: str | None = None, shift: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(loss, output of the module `split`) of one batch; `shift` is added to that output.

        `split` None is the network's output: what the model returns, or the module that makes its logits. The output is
        None where that module gives no tensor, or several.
        """
        return self.runner.run(params, batch, split, shift)

    def output(self, params: Vector, batch: Any, split: str | None = None) -> Tensor:
        """The output of the module `split` (None: of the network) on one batch."""
        F = self.run(params, batch, split)[1]
        if F is None:
            where = "the model" if split is None else f"module {split!r}"
            raise InputError(
                f"{where} does not return one tensor per call; choose a module that does with split='name'."
            )
        return whole(F)

    def constants(self) -> dict[str, Tensor]:
        """Tensors of the model beside the parameters that are measured: frozen weights and buffers, by name."""
        if not isinstance(self.model, nn.Module):
            return {}
        held = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        return {n: t.detach() for n, t in held.items() if n not in self.params}

    @property
    def room(self) -> float:
        """Bytes this process may still allocate."""
        return group_of(self.space).free_here(self.device)

    # --- split over processes ---------------------------------------------------------------------------------------
    @property
    def batch_count(self) -> int:
        """How many batches the data have, those of all processes together."""
        return len(self.whole.batches) if self.shards is None else sum(self.shards.counts)

    @property
    def whole(self) -> Risk:
        """The risk this is a process's share of (`distributed.shard`); itself where it is none."""
        return self if self._whole is None else self._whole

    def share(self, batches: list[Any], weights: list[float], group: Group, note: str, whole: Risk | None) -> Risk:
        """The part of this risk that one process keeps: some of its data with their weights, which may be none."""
        space = dataclasses.replace(self.space, group=group)
        return self._with(batches=batches, weights=weights, _whole=whole, space=space, notes=(*self.notes, note))

    def noted(self, *notes: str, first: bool = False) -> Risk:
        """The same risk with more remarks, after or before its own."""
        return self._with(notes=(*notes, *self.notes) if first else (*self.notes, *notes))

    def moved(self, params: Vector) -> Risk:
        """The same risk where the parameters have other values; the model is left as it is."""
        return self._with(params=self._at(params))

    def checked_on(self, batch: Any) -> Risk:
        """The same risk, whose derivatives are checked now, on a batch that may be smaller than its own."""
        return self._with(soundness=self._with(batches=[batch], weights=[1.0]).soundness)

    def plain(self) -> Risk:
        """The same risk with attention by torch's math path, which has derivatives of every order."""
        return self._with(fused=False) if self.fused else self

    def _with(self, **fields: Any) -> Risk:
        own = copy.copy(self)
        own._set(**fields)
        return own

    # --- keeping the model as it is ---------------------------------------------------------------------------------
    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Evaluation mode, attention that can be differentiated twice, no autocast, random state: set inside, restored
        after."""
        if torch.is_inference_mode_enabled():
            raise InputError("inside `torch.inference_mode()` nothing can be differentiated; use `torch.no_grad()`.")
        return measured(self.model, device=self.device, train_mode=self.train_mode, attention=self.attention)

    @property
    def attention(self) -> Attention:
        """What answers torch's fused attention inside the measurement."""
        if not self.fused:
            return math_attention
        from ..kernels.sdpa import scaled_dot_product_attention  # loads torch's compiler

        return scaled_dot_product_attention

    def _evaluated(self, shift: tuple[int, list[Tensor], bool] | None) -> list[str]:
        """Two evaluations must agree, and be finite; otherwise H would be another matrix at every product. Those of one
        batch may be there already (`shifts`; processes that share a model evaluate equally often). A remark."""
        replaced, pairs = False, []
        with torch.no_grad():
            for i, batch in enumerate(self.batches):
                if shift is not None and i == shift[0]:
                    pairs.append(shift[1])
                    replaced |= not i and shift[2]
                    continue
                with self.context() as attention:
                    pairs.append(twice(self.runner, partial(self._value, batch)))
                replaced |= not i and attention.calls > 0
            group_of(self.space).agreed("evaluated", partial(refuse_losses, pairs, self._where))
        path = "quadform kernel" if self.fused else "math path"
        return [f"fused attention has no second derivative: the {path} is used while measuring"] * replaced

    def _value(self, batch: Any) -> Tensor:
        return self.run(self.params, batch)[0]

    def _where(self, i: int) -> str:
        """Where the loss of a batch stops to be finite."""
        if self.shards is not None:  # all processes would have to run it again
            return "weights and batches of this process"
        with self.context():
            return first_not_finite(self.model, partial(self.run, self.params, self.batches[i]), self.batches[i])

    def terms(self, batch: Any) -> float:
        """How many loss terms a batch has, see the class."""
        return float(terms(self, batch) if self.count is None else self.count(batch))

    @cached_property
    def soundness(self) -> Soundness:
        """Which derivatives of this risk can be trusted; checked once, and known to copies made afterwards."""
        from .soundness import Soundness, check

        return check(self) if self.shards is None else Soundness()  # products look for themselves

    @cached_property
    def foreseen(self) -> tuple[float, float]:
        """Bytes that the graphs of the loss and of its gradient would hold; 0 without units. See `foresight`."""
        return graph_bytes(self) if self.units else (0.0, 0.0)

    def trusted(self, route: str) -> Soundness:
        """`soundness` for a route: by units, that of derivatives by units, at the memory of one such product."""
        if "units" not in route or not self.units or self.shards is not None or self._seen_by_units("soundness"):
            return self.soundness
        return self._by_units or self.soundness

    @property
    def seen_by_units(self) -> bool:
        """Whether derivatives by all units were looked at, for whatever route."""
        return self._seen_by_units("soundness") or self._seen_by_units("_by_units")

    def _seen_by_units(self, name: str) -> bool:
        known = self.__dict__.get(name)
        return known is not None and known.by_units

    def through(self, route: str) -> bool:
        """Whether the loss sees the parameters through the network's output alone."""
        found = self.trusted(route)
        return self._through_by_units if found.by_units else found.through

    @cached_property
    def _by_units(self) -> Soundness | None:
        from .soundness import check_by_units

        return check_by_units(self)

    @cached_property
    def _through_by_units(self) -> bool:
        from .soundness import through_by_units

        return through_by_units(self)

    @cached_property
    def convex(self) -> bool:
        """Whether the loss is known to be convex in the network's output, see `convexity`; known to copies as well."""
        from .convexity import convex

        return convex(self)
