"""Risk: the empirical risk of a model on data, as a function of named parameters. It never changes the model.

risk(theta) = sum_b w_b l_b(theta),   w_b the share of batch b in all loss terms
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from ..core.errors import InputError, UnknownName, closest
from ..core.forward import jvp
from ..core.progress import say
from ..core.space import Space, Vector, View
from ..distributed.processes import Group, group_of
from ..kernels.calls import math_attention
from .batches import IGNORED, batches_of, targets
from .refusals import first_not_finite, mode_notes, nothing_to_measure, refuse_halves, refuse_quantised, refuse_unusable
from .retained import gradients
from .runners import FunctionRunner, Loss, ModuleRunner, Runner, own_loss
from .settings import measured
from .views import attention_views


class Risk:
    """The mean loss of `model` over `data`, twice differentiable in the chosen parameters.

    `model` is a module, or a function `f(params, batch)` with `params={name: tensor}`. A batch is `(x, y)`, a mapping
    (passed as keywords) or anything else (passed as one argument); `data` is one batch or an iterable of batches.
    `loss(output, batch)` is a mean over the batch's loss terms; without it the model's own is used: a method
    `model.loss(batch)`, or the `loss` of its output (Hugging Face, with `labels` in the batch). Batches are averaged
    by the number of their loss terms: `count(batch)`. By default that is sum over mean of a model's own loss that takes
    `reduction=`; else the labels that are not -100 (one fewer a row where the model shifts them), or the entries of y.

    `params` chooses by glob among `named_parameters()`; tied weights are one parameter; parts of fused matrices have
    names of their own (`h.0.attn.W_Q`, `h.0.attn.W_Q[3]`). Dropout is switched off unless `train_mode`.

    `attention` replaces torch's fused attention, which has no second derivative, inside the measurement: by torch's
    `"math"` path (memory grows with tokens squared), by `kernels.attention` (`"fused"`, linear memory), or `"auto"`:
    fused on a GPU in float32 and bfloat16, math elsewhere.
    """

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
        quiet: bool = False,
    ) -> None:
        if data is None:
            raise InputError("a risk needs data: one batch, or an iterable of batches.")
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        model = getattr(model, "_orig_mod", model)  # torch.compile'd: its parts can be differentiated once only
        self.model: nn.Module | Callable[..., Any] = model
        self.loss, self.train_mode, self.count = loss, train_mode, count
        self.batches = batches_of(data)
        self._whole: Risk | None = None
        self.notes: list[str] = []
        self.writes = False
        self.twice = False  # whether it was seen that all its operators can be differentiated twice
        self.through = False  # whether it was seen that the loss sees all parameters through the output alone
        self.forward: bool | None = None  # whether forward derivatives agree with reverse ones, where it was measured
        if isinstance(model, nn.Module):
            self.writes = train_mode and any(True for _ in model.buffers())  # batch norm writes into its buffers
            runner = ModuleRunner(model, loss, self.writes)
            self._runner: Runner = runner
            chosen, self.coverage, views = self._choose(model, params, include_frozen, runner)
        else:
            if not isinstance(params, Mapping) or loss is None:
                raise InputError(
                    "a function model needs params={name: tensor} and loss=(a function of output and batch)."
                )
            chosen, views = dict(params), []
            self.coverage = (
                f"{len(chosen)} of {len(chosen)} tensors, {sum(t.numel() for t in chosen.values()):,} parameters"
            )
            self._runner = FunctionRunner(model, loss)
        refuse_unusable(chosen, dict(model.named_parameters()) if isinstance(model, nn.Module) else chosen)
        self.params = {name: t.detach() for name, t in chosen.items()}
        self.space = Space.of(self.params, views)
        first = next(iter(self.params.values()))
        self.dtype, self.device = first.dtype, first.device
        if self.dtype == torch.bfloat16:
            self.notes.append("bfloat16: products are accurate to about 1 %, use float32 for firm values")
        if torch.is_autocast_enabled(self.device.type):
            self.notes.append(f"autocast switched off while measuring, in {str(self.dtype).removeprefix('torch.')}")
        if attention not in ("auto", "math", "fused"):
            raise InputError(f"attention {attention!r} is not 'auto', 'math' or 'fused'.")
        on_gpu = self.device.type == "cuda" and self.dtype != torch.float64
        self.fused = attention == "fused" or (attention == "auto" and on_gpu)
        self.shifted = count is None and self._shifts()
        counts = [self.terms(b) for b in self.batches]
        for i, c in enumerate(counts):
            if not 0 < c < math.inf:
                raise InputError(f"batch {i + 1} of {len(counts)} has no loss terms (their number is {c:g}).")
        self.weights = [c / sum(counts) for c in counts]
        self.check_deterministic()
        if not quiet:
            say(str(self))

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
        return group_of(self.space).sum(here)

    def _at(self, params: Vector | None) -> dict[str, Tensor]:
        unknown = [n for n in params or {} if n not in self.params]
        if unknown:
            near = ", ".join(closest(unknown[0], self.params) or list(self.params)[:3])
            raise UnknownName(f"`{unknown[0]}` is no parameter of this risk. Closest names: {near}.")
        return {**self.params, **(params or {})}

    def slopes(self, v: Vector) -> list[tuple[Tensor, Tensor]]:
        """The loss of each batch where the model stands, and its derivative along v."""

        def along(batch: Any) -> tuple[Tensor, Tensor]:
            def loss(p: Vector) -> Tensor:
                return self.run(p, batch)[0]

            try:
                value, slope = jvp(loss, (self.params,), (dict(v),))[:2]
            except RuntimeError:  # an operator without a forward derivative
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
                for n, g in self.batch_gradient(at, batch).items():
                    total[n] = weight * g + total[n] if n in total else weight * g
        return group_of(self.space).total(total or {n: torch.zeros_like(t) for n, t in at.items()}, at)

    def batch_gradient(self, params: Vector, batch: Any) -> dict[str, Tensor]:
        """The gradient of the loss of one batch, inside a `context`."""
        with torch.enable_grad():
            at = {n: t.detach().requires_grad_() for n, t in params.items()}
            return gradients(self.run(at, batch)[0], at)

    def run(
        self, params: Vector, batch: Any, split: str | None = None, shift: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(loss, output of the module `split`) of one batch; `shift` is added to that output.

        `split` None is the network's output: what the model returns, or the module that makes its logits. The output is
        None where that module gives no tensor, or several.
        """
        return self._runner.run(params, batch, split, shift)

    def output(self, params: Vector, batch: Any, split: str | None = None) -> Tensor:
        """The output of the module `split` (None: of the network) on one batch."""
        F = self.run(params, batch, split)[1]
        if F is None:
            where = "the model" if split is None else f"module {split!r}"
            raise InputError(
                f"{where} does not give one tensor an evaluation; choose a module that does with split='name'."
            )
        return F

    def constants(self) -> dict[str, Tensor]:
        """Tensors of the model beside the parameters that are measured: frozen weights and buffers, by name."""
        if not isinstance(self.model, nn.Module):
            return {}
        held = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        return {n: t.detach() for n, t in held.items() if n not in self.params}

    # --- split over processes ---------------------------------------------------------------------------------------
    @property
    def whole(self) -> Risk:
        """The risk this is a process's share of (`distributed.shard`); itself where it is none."""
        return self if self._whole is None else self._whole

    def share(self, batches: list[Any], weights: list[float], group: Group, note: str, whole: Risk | None) -> Risk:
        """The part of this risk that one process keeps: some of its data with their weights, which may be none."""
        own = copy.copy(self)
        own.batches, own.weights, own._whole = batches, weights, whole
        own.space = dataclasses.replace(self.space, group=group)
        own.notes = [*self.notes, note]
        return own

    # --- keeping the model as it is ---------------------------------------------------------------------------------
    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Evaluation mode, attention that can be differentiated twice, no autocast, random state: set inside, restored
        after."""
        if torch.is_inference_mode_enabled():
            raise InputError("inside `torch.inference_mode()` nothing can be differentiated; use `torch.no_grad()`.")
        attention = math_attention
        if self.fused:
            from ..kernels.sdpa import scaled_dot_product_attention as attention  # loads torch's compiler
        return measured(self.model, device=self.device, train_mode=self.train_mode, attention=attention)

    def check_deterministic(self) -> None:
        """Two evaluations must agree, and be finite; otherwise H would be another matrix at every product."""
        with torch.no_grad():
            for i, batch in enumerate(self.batches):
                with self.context() as attention:
                    a, b = (self.run(self.params, batch)[0] for _ in range(2))
                if attention.calls and not i:
                    path = "quadform kernel" if self.fused else "math path"
                    self.notes.append(f"fused attention -> {path} while measuring, as it has no second derivative")
                if not isinstance(a, Tensor) or not a.is_floating_point():
                    kind = str(a.dtype) if isinstance(a, Tensor) else type(a).__name__
                    raise InputError(f"the loss must be a real tensor that can be differentiated; it is {kind}.")
                if a.dim() != 0:
                    raise InputError(
                        f"the loss must be one number a batch; it has shape {tuple(a.shape)}. Take its mean."
                    )
                if not bool(torch.isfinite(a)):
                    with self.context():
                        where = first_not_finite(self.model, partial(self.run, self.params, batch), batch)
                    of = f"{i + 1} of {len(self.batches)}"
                    raise InputError(f"Loss is {float(a)} on probe batch {of} ({where}). Nothing was measured.")
                if not torch.equal(a, b):
                    gap = abs(float(a - b)) / max(abs(float(a)), 1e-300)
                    raise InputError(
                        f"The loss is not deterministic (two evaluations differ by {100 * gap:.2g} %), so it has no"
                        " single Hessian. Use eval mode (train_mode=False) or fix the randomness."
                    )

    def terms(self, batch: Any) -> float:
        """How many loss terms a batch has, see the class."""
        return float(self._terms(batch) if self.count is None else self.count(batch))

    def _terms(self, batch: Any) -> float:
        if self.loss is None and isinstance(self.model, nn.Module):
            own = own_loss(self.model)
            if own is not None and "reduction" in inspect.signature(own).parameters:
                with torch.no_grad(), self.context():
                    total, mean = own(batch, reduction="sum"), own(batch, reduction="mean")
                counted = float(total / mean) if float(mean) else math.nan
                return counted if math.isfinite(counted) else targets(batch, shifted=False)
        return targets(batch, shifted=self.shifted)

    def _shifts(self) -> bool:
        """Whether the loss leaves out the first label of every row, as that of the next token does."""
        for batch in self.batches:
            labels = batch.get("labels") if isinstance(batch, Mapping) else None
            if not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
                return False
            if bool((labels[..., 0] != IGNORED).any()) and bool((labels[..., 1:] != IGNORED).any()):
                without = labels.clone()
                without[..., 0] = IGNORED
                with torch.no_grad(), self.context():
                    a, b = (self.run(self.params, {**batch, "labels": t})[0] for t in (labels, without))
                return isinstance(a, Tensor) and torch.equal(a, b)
        return False

    def _choose(
        self, model: nn.Module, params: Any, include_frozen: bool, runner: ModuleRunner
    ) -> tuple[dict[str, Tensor], str, list[View]]:
        if isinstance(params, Mapping):
            raise InputError("params={...} is for function models; for a module give globs of parameter names.")
        refuse_quantised(model)
        named = dict(model.named_parameters())
        lazy = [n for n, p in named.items() if nn.parameter.is_lazy(p)]
        if lazy:
            raise InputError(
                f"`{lazy[0]}` has no shape yet (a lazy module). Call the model on one batch before measuring."
            )
        usable = {n: p for n, p in named.items() if p.is_floating_point() and (p.requires_grad or include_frozen)}
        frozen = [n for n, p in named.items() if p.is_floating_point() and not p.requires_grad]
        integer = [n for n, p in named.items() if not p.is_floating_point()]
        if not usable:
            raise nothing_to_measure(named)
        refuse_halves(named)
        with measured(model):
            views = attention_views(model, set(usable), lambda: runner.call(self.batches[0]))
        whole = Space.of(usable, views)
        globs = (params,) if isinstance(params, str) else tuple(params)
        try:
            names = [_owner(whole, n) for n in whole.select(*globs).names]
        except KeyError:
            near = closest(globs[0], [*whole.names, *(v.name for v in views)]) or whole.names[:3]
            asked, there = (", ".join(f"`{n}`" for n in names) for names in (globs, near))
            text = f"params: {asked} match 0 of {len(usable)} tensors. Closest names: {there}."
            raise InputError(text) from None
        chosen: dict[str, Tensor] = {n: usable[n] for n in usable if n in set(names)}
        size = sum(p.numel() for p in chosen.values())
        text = f"{len(chosen)} of {len(named)} tensors, {size:,} parameters"
        text += f", {len(frozen)} frozen" * bool(frozen and not include_frozen)
        text += f", {len(integer)} not real" * bool(integer)
        fused = {v.of for v in views if v.name.endswith(".W_Q") and v.of in chosen and v.shape != v.seen_as}
        if fused:
            stored = sorted({n.removesuffix(".weight").rpartition(".")[2] for n in fused})
            text += f"; {', '.join(stored)} split into query/key/value"
        self.notes += mode_notes(model, self.train_mode)
        return dict(chosen), text, [v for v in views if v.of in chosen]


def _owner(space: Space, name: str) -> str:
    """The parameter a name belongs to: itself, or what it is a view of."""
    return next((v.of for v in space.views if v.name == name), name)
