"""Products of a model whose stages lie in several processes (torch.distributed.pipelining).

A stage runs in torch's forward mode on what the stage before has sent: activations x with tangents x'. Its reverse pass
begins with what the stage behind sends back: cotangents g, of a Hessian with tangents g'. Both are nodes of an
ordinary graph, so that a stage is differentiated as a whole model is (`by_units`):

    x, x'  ->  f(W, x), its derivative along (W', x')            sent on
    g, g'  ->  the derivative of W, x -> <g, f(W, x)>, and its derivative along (W', x', g')        sent back

Forward over reverse, as everywhere. The sums are those of one process: no schedule changes them. Source: [own].
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from ..core.errors import InputError
from ..core.forward import alone
from ..core.space import Vector
from ..distributed.sharding import same_data
from ..distributed.stages import stage_of
from .batches import batches_of
from .by_units import add, gradients
from .calling import Loss, called
from .fsdp import mark
from .risk import Risk
from .runners import Runner
from .settings import without_cache
from .sharded import Apart
from .units import Recomputed


class Pipe:
    """One stage of a model, and its neighbours."""

    several = False  # a message has one tangent

    def __init__(self, model: Any, units: str | None, *, train_mode: bool) -> None:
        self.model, self.group = stage_of(model)
        self.stages: Any = self.group.shards
        if train_mode or units is not None:
            raise InputError("stages of a pipeline are measured with train_mode=False and units=None.")
        self.busy = False  # a product runs
        self.anchor = torch.zeros((), requires_grad=True)
        self.unanswered: dict[Any, Callable[[], Any]] = {}  # messages of a reverse pass that are still to come
        self.counts: list[int] = []
        self.notes = [f"stage {self.stages.own + 1} of {self.stages.pieces} of a pipeline"]
        self._refuse_tied()

    def _refuse_tied(self) -> None:
        """An embedding that another stage holds too is one weight of the model, but two here."""
        own = {
            f"{n}.{w}".removeprefix("."): (tuple(t.shape), *mark([t]), isinstance(m, nn.Embedding))
            for n, m in self.model.named_modules()
            for w, t in m.named_parameters(recurse=False)
            if t.dim() > 1
        }
        every: list[dict[str, Any]] = [{} for _ in range(self.stages.pieces)]
        dist.all_gather_object(every, own, group=self.group._host)
        found = [(self.stages.ranks.index(r), n, *told) for r, names in enumerate(every) for n, told in names.items()]
        for s, name, *numbers, embeds in found:
            for other, twin, *theirs, _ in found:
                if embeds and s != other and numbers == theirs:
                    raise InputError(
                        f"`{name}` of stage {s} and `{twin}` of stage {other} are tied: one weight of the model, which"
                        " lies in two stages. Give the whole model, cut by `fully_shard`: see docs/distributed.md."
                    )

    def runner(self, model: nn.Module, loss: Loss | None) -> Runner:
        if loss is None:
            raise InputError("a pipeline needs loss=(a function of the output of its last stage and the batch).")
        return PipedRunner(self, loss)

    def evaluation(self, risk: Risk, rows: tuple[str, ...] | None = None, weight: float = 1.0) -> Apart:
        return Piped(risk, self, rows, weight)

    def batches(self, data: Any) -> tuple[list[Any], int]:
        """All batches, which every process holds: the first stage needs their inputs, the last one their targets."""
        batches = batches_of(data)
        same_data(
            batches, self.group, "each stage of a pipeline needs all batches, in one order. Seed the loaders alike."
        )
        self.counts = [len(batches), *[0] * (self.stages.pieces - 1)]
        return batches, len(batches)

    def held(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = dict(self.model.named_parameters())
        return {n: t for n, t in tensors.items() if n in own}

    def only(self, batches: Sequence[Any], i: int) -> list[Any]:
        return [batches[i]]

    @contextlib.contextmanager
    def product(self) -> Iterator[None]:
        """A product runs; all processes have ended it afterwards."""
        with self.group.ringing():
            self.busy = True
            self.unanswered.clear()
            try:
                yield
            finally:
                self.busy = False
        self.group.together("product")

    # --- evaluating -------------------------------------------------------------------------------------------------
    def run(self, params: Vector, batch: Any, loss: Loss, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(loss, output of the network), the loss in every process, the output in the last one."""
        own, last = self.stages.own, self.stages.own == self.stages.pieces - 1
        if own:
            out = functional_call(self.model, dict(params), tuple(self._received()))
        else:
            out = functional_call(_Called(self.model), {f"model.{n}": t for n, t in params.items()}, (batch,))
        if not last:
            return self._sent(_tensors(out, own)), None
        F = _output(out)
        if shift is not None:
            assert F is not None
            out, F = F + shift, F
        value = loss(out, batch)
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim():
            raise InputError("the loss must be one real number per batch. Take its mean.")
        primal, tangent = (0.0 if t is None else float(t.detach()) for t in forward_ad.unpack_dual(value))
        self.stages.from_last(torch.tensor([primal, tangent], dtype=torch.float64))
        return value, F

    def _received(self) -> list[Tensor]:
        found = _pairs(self.stages.receive(self.stages.own - 1))
        pairs = [p for p in found if p is not None]
        if not torch.is_grad_enabled():
            return [_dual(*p) for p in pairs]
        moving = [i for i, (t, _) in enumerate(pairs) if t.is_floating_point()]
        key = object()
        self.unanswered[key] = partial(self.stages.send, self.stages.own - 1, [None] * 2 * len(moving))
        primal = _Received.apply(self, key, self.anchor, *(pairs[i][0] for i in moving))  # type: ignore[no-untyped-call]  # torch's
        tensors = [t for t, _ in pairs]
        for i, t in zip(moving, primal, strict=True):
            tensors[i] = t
        return [_dual(t, p[1]) for t, p in zip(tensors, pairs, strict=True)]

    def _sent(self, tensors: list[Tensor]) -> Tensor:
        """The loss, which what was sent leads to."""
        self.stages.send(self.stages.own + 1, _flat([forward_ad.unpack_dual(t) for t in tensors]))
        moving = [forward_ad.unpack_dual(t).primal for t in tensors if t.is_floating_point()]
        numbers = self.stages.from_last(torch.empty(2, dtype=torch.float64))
        value, slope = numbers.to(moving[0] if moving else torch.get_default_dtype())
        if torch.is_grad_enabled():
            key = object()
            self.unanswered[key] = partial(self.stages.receive, self.stages.own + 1)
            value = _Sent.apply(self, key, value, self.anchor, *moving)  # type: ignore[no-untyped-call]  # torch's
        return _dual(value, slope) if forward_ad._current_level >= 0 else value

    def finish(self) -> None:
        """Answer what a reverse pass had nothing to do with."""
        for answer in [*self.unanswered.values()][::-1]:
            answer()
        self.unanswered.clear()


class _Received(torch.autograd.Function):
    """What the stage before has sent; backwards, its cotangents are sent there."""

    @staticmethod
    def forward(ctx: Any, pipe: Pipe, key: object, anchor: Tensor, *tensors: Tensor) -> Any:
        ctx.pipe, ctx.key = pipe, key
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        pairs = [None if g is None else forward_ad.unpack_dual(g) for g in cotangents]
        ctx.pipe.unanswered.pop(ctx.key, None)
        ctx.pipe.stages.send(ctx.pipe.stages.own - 1, _flat(pairs))
        return (None, None, None, *[None] * len(cotangents))


class _Sent(torch.autograd.Function):
    """What the stage behind was sent, as the loss; backwards, its cotangents come from there."""

    @staticmethod
    def forward(ctx: Any, pipe: Pipe, key: object, value: Tensor, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.pipe, ctx.key = pipe, key
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        ctx.pipe.unanswered.pop(ctx.key, None)
        found = _pairs(ctx.pipe.stages.receive(ctx.pipe.stages.own + 1))
        return (None, None, None, None, *(None if p is None else _dual(*p) for p in found))


class _Called(nn.Module):
    """The first stage, called on a batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return called(self.model, batch)


def _tensors(out: Any, own: int) -> list[Tensor]:
    """What a stage gives to the next: a tensor, or some in a tuple."""
    tensors = list(out) if isinstance(out, tuple | list) else [out]
    if not all(isinstance(t, Tensor) for t in tensors):
        raise InputError(f"stage {own} of the pipeline gives {type(out).__name__} to the next one, and not tensors.")
    return tensors


def _output(out: Any) -> Tensor | None:
    """The output of the network, where it is one tensor."""
    out = out[0] if isinstance(out, tuple | list) and len(out) == 1 else out
    out = getattr(out, "logits", out)
    return out if isinstance(out, Tensor) else None


def _flat(pairs: Sequence[Any]) -> list[Tensor | None]:
    return [t for p in pairs for t in ((None, None) if p is None else p)]


def _pairs(message: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor | None] | None]:
    return [None if t is None else (t, d) for t, d in zip(message[::2], message[1::2], strict=True)]


def _dual(t: Tensor, tangent: Tensor | None) -> Tensor:
    return t if tangent is None else forward_ad.make_dual(t, tangent)


class PipedRunner(Runner):
    """Evaluates the stage of this process together with those of others."""

    def __init__(self, pipe: Pipe, loss: Loss) -> None:
        self.pipe, self.loss = pipe, loss

    def run(self, params: Vector, batch: Any, split: str | None, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if split is not None:
            raise InputError(f"split={split!r}: stages of a pipeline are split at the output of the network alone.")
        if self.pipe.busy:
            return self.pipe.run(params, batch, self.loss, shift)
        moved = [n for n, t in params.items() if t.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(t)]
        if moved:
            raise InputError(
                f"`{moved[0]}` lies in one stage of a pipeline: hessian, gauss_newton and functional differentiate it,"
                " this measurement does not. It needs the whole model: see docs/distributed.md."
            )
        with self.pipe.group.ringing(), torch.no_grad():
            return self.pipe.run(params, batch, self.loss, shift)


class Piped(Apart):
    """Derivatives over the parameters of one stage."""

    def __init__(self, risk: Risk, pipe: Pipe, rows: tuple[str, ...] | None, weight: float) -> None:
        super().__init__(risk, pipe, risk.units, rows, weight)
        self.pipe = pipe
        self.recording = True  # a stage cannot begin anew by itself

    @property
    def cut(self) -> Mapping[str, nn.Module] | None:
        return None

    def gauss_newton(self, batch: Any, v: Vector, split: str | None) -> dict[str, Tensor]:
        return self._split(batch, v, split, fixed=False)

    def functional(self, batch: Any, v: Vector, split: str | None, scalar: Any) -> dict[str, Tensor]:
        return self._split(batch, v, split, fixed=True)

    def _split(self, batch: Any, v: Vector, split: str | None, *, fixed: bool) -> dict[str, Tensor]:
        """H_o v: the cotangent of the output is the tangent of dl/dF, and backwards there are no tangents. H_f v: it
        is dl/dF, held fixed."""
        sums: dict[str, Tensor] = {}
        with self.pipe.product(), alone, torch.enable_grad():
            with forward_ad.dual_level():
                theta = self._moving(self.risk.params, v)
                run = self._run(theta, partial(add, sums), second=fixed)
                with run.scope(), without_cache(self.risk.model):
                    value, F = self.risk.run({**self.frozen, **theta}, batch, split)
                outs, cotangents = self._behind(value, F, fixed)
                if fixed:
                    self._back(outs, cotangents, theta, run)
            if not fixed:
                self._back(outs, cotangents, theta, run)
            return self._whole(sums)

    def _behind(self, value: Tensor, F: Tensor | None, fixed: bool) -> tuple[list[Tensor], list[Tensor] | None]:
        """What the reverse pass of this stage begins with."""
        if self.pipe.stages.own < self.pipe.stages.pieces - 1:
            return [value], None
        if F is None:
            raise InputError("the last stage of the pipeline does not give one tensor: H_o and H_f are not defined.")
        (g,) = gradients([value], [F], None, self.recording)
        g = torch.zeros_like(F) if g is None else g
        primal, tangent = forward_ad.unpack_dual(g)
        chosen = primal if fixed else tangent
        return [F], [torch.zeros_like(primal) if chosen is None else chosen.detach()]

    def _back(self, outs: list[Tensor], cotangents: list[Tensor] | None, theta: Vector, run: Recomputed) -> None:
        at = [*(theta[n] for n in self.rows), run.anchor, self.pipe.anchor]
        found = gradients(outs, at, cotangents, self.recording)
        for n, g in zip(self.rows, found[:-2], strict=True):
            if g is not None and (part := run.wanted(g)) is not None:
                run.sink(n, part)
        self.pipe.finish()

    def _whole(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n: self.weight * t for n, t in super()._whole(found).items()}
