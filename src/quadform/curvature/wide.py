"""Wide results, as the logits of a language model, that are never whole: cut along tokens, from the layer that makes
them to the loss of each token.

Inside `Cut`, a linear map whose result is large gives a `Wide` in its place: its input x and the steps that were asked
for since. A step acts on each row alone (a soft cap, another type, log_softmax), or picks and reshapes rows, which x
can do as well. What has few numbers a row, as a cross-entropy, is computed for some rows at a time. A step that is none
of these raises `NotCut`; the evaluation is then begun anew without cutting.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

#: Numbers of a wide result that are made at a time; a result of fewer is not cut.
AT_ONCE = 2**25


class NotCut(Exception):
    """A wide result is used in a way that needs it whole."""

    def __init__(self, step: str) -> None:
        super().__init__(f"`{step}` takes the logits whole")


@dataclass(frozen=True)
class Here:
    """Stands for the rows in a step."""


@dataclass(frozen=True)
class Given:
    """Stands for tensor number `i` beside the rows in a step: one for all rows, or (`cut`) some of its own rows."""

    i: int
    cut: bool


Step = tuple[Callable[..., Any], Any, Any]


def stepped(x: Tensor, whole: Sequence[Tensor], cut: Sequence[Tensor], steps: Sequence[Step]) -> Tensor:
    """The steps one after another on some rows."""

    def put(part: Any) -> Any:
        if isinstance(part, Here):
            return x
        if isinstance(part, Given):
            return (cut if part.cut else whole)[part.i]
        return part

    for step, args, options in steps:
        x = step(*map(put, args), **{name: put(part) for name, part in options.items()})
    return x


def as_output(x: Tensor) -> Tensor:
    """The step that marks where the output of the network passes."""
    return x


def passed(F: Tensor) -> Tensor:
    """F, marked as the output of the network where it is not made."""
    if isinstance(F, Wide):
        F.steps.append((as_output, (Here(),), {}))
    return F


def restore(module: nn.Module, before: Any) -> None:
    """Give a module the `forward` of its own that it had, or none."""
    module.__dict__.pop("forward", None)
    if before is not None:
        module.__dict__["forward"] = before


def at_once(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """Call a function: how some rows are run where nothing is differentiated."""
    return function(*args)


class Cut(TorchFunctionMode):
    """A scope in which large results of linear maps are `Wide`, but for those inside `blocks`. `run(stepped, ...)` runs
    some rows."""

    def __init__(self, blocks: Iterable[nn.Module], run: Callable[..., Tensor] = at_once) -> None:
        super().__init__()
        self.blocks, self.run, self.inside = list(blocks), run, 0
        self._scopes: list[contextlib.ExitStack] = []

    def __enter__(self) -> Cut:
        with contextlib.ExitStack() as stack:
            for block in self.blocks:
                stack.callback(restore, block, block.__dict__.get("forward"))
                block.forward = partial(self._asleep, block.forward)
            self._scopes.append(stack.pop_all())
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's
        self._scopes.pop().close()

    def _asleep(self, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.inside += 1
        try:
            return forward(*args, **options)
        finally:
            self.inside -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.inside and func in _LINEAR and not kwargs and _widens(func, *args):
            x, *rest = args
            weights = [t for t in rest if t is not None]
            step: Step = (func, (Here(), *(Given(i, False) for i in range(len(weights)))), {})
            width = _width(func, weights[0])
            return Wide(self.run, x, weights, [], [step], width, width)
        return func(*args, **kwargs)


_LINEAR = {functional.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__}


def _width(func: Any, weight: Tensor) -> int:
    return weight.shape[0 if func is functional.linear else 1]


def _widens(func: Any, x: Any, weight: Any, *rest: Any) -> bool:
    plain = all(
        isinstance(t, Tensor) and not isinstance(t, Wide) and not torch._C._functorch.is_functorch_wrapped_tensor(t)
        for t in (x, weight)
    )
    if not plain or weight.dim() != 2 or x.dim() < 2:
        return False
    width = _width(func, weight)
    return bool(width > x.shape[-1] and math.prod(x.shape[:-1]) * width > AT_ONCE)


class Wide(Tensor):
    """Steps on the rows of x, not made. `turned`: classes stand before the last dimension, as `cross_entropy` has them.

    x (*batch, d), `cut` (*batch, any), of this shape (*batch, width).
    """

    run: Callable[..., Tensor]
    x: Tensor
    whole: list[Tensor]
    cut: list[Tensor]
    steps: list[Step]
    width: int
    most: int  # the largest width on the way here
    turned: bool

    @staticmethod
    def __new__(
        cls,
        run: Callable[..., Tensor],
        x: Tensor,
        whole: Sequence[Tensor],
        cut: Sequence[Tensor],
        steps: Sequence[Step],
        width: int,
        most: int,
        dtype: torch.dtype | None = None,
        turned: bool = False,
    ) -> Wide:
        shape = [*x.shape[:-1], width]
        if turned:
            shape.insert(1, shape.pop())
        grad = any(t.requires_grad for t in (x, *whole, *cut))
        own: Wide = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype or x.dtype, device=x.device, requires_grad=grad and torch.is_grad_enabled()
        )
        own.run, own.x, own.whole, own.cut, own.steps = run, x, list(whole), list(cut), list(steps)
        own.width, own.most, own.turned = width, most, turned
        return own

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        name = func.__self__.__name__ if name == "__get__" else name
        if "input" in kwargs:
            args = (kwargs["input"], *args)
            kwargs = {n: part for n, part in kwargs.items() if n != "input"}
        with torch._C.DisableTorchFunctionSubclass():
            if name in _TOLD:
                return func(*args, **kwargs)
            plain = name.strip("_").removeprefix("r") if name.startswith("__r") else name.strip("_")
            answer = None if _in_place(name) else _ANSWERS.get(plain)
            if answer is None or not (answer is _pointwise or isinstance(args[0], Wide)):
                raise NotCut(plain)
            return answer(func, *args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # as torch calls it
        raise NotCut(func.__name__)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]  # as torch calls it
        return f"<Wide of {len(self.steps)} steps>"

    # --- steps ------------------------------------------------------------------------------------------------------
    def then(self, func: Any, args: Any, kwargs: Any, width: int | None = None, dtype: Any = None) -> Wide:
        """One more step, in whose arguments this stands."""
        if self.turned:
            raise NotCut(func.__name__)
        whole, cut = list(self.whole), list(self.cut)

        def place(part: Any) -> Any:
            if part is self:
                return Here()
            if not isinstance(part, Tensor):
                return part
            own = part.dim() > 0 and part.shape[:-1] == self.x.shape[:-1]
            if isinstance(part, Wide) or not (own or part.dim() < 2):
                raise NotCut(func.__name__)
            (cut if own else whole).append(part)
            return Given(len(cut if own else whole) - 1, own)

        step = (func, tuple(map(place, args)), {n: place(part) for n, part in kwargs.items()})
        steps = [*self.steps, step]
        return Wide(self.run, self.x, whole, cut, steps, width or self.width, self.most, dtype or self.dtype)

    def rows(self, change: Callable[[Tensor], Tensor]) -> Wide:
        """Other rows, or in another order."""
        if self.turned:
            raise NotCut("transpose")
        return self.like(change(self.x), [change(t) for t in self.cut])

    def like(self, x: Tensor, cut: Sequence[Tensor], *, turned: bool = False) -> Wide:
        """The same steps on other rows."""
        return Wide(self.run, x, self.whole, cut, self.steps, self.width, self.most, self.dtype, turned)

    def made(self) -> Tensor:
        """What it stands for, some rows at a time."""
        batch, some = self.x.shape[:-1], max(1, AT_ONCE // self.most)
        parts = [t.flatten(0, -2).split(some) for t in (self.x, *self.cut)]
        found = [self.run(stepped, x, self.whole, cut, self.steps) for x, *cut in zip(*parts, strict=True)]
        whole = torch.cat(found).unflatten(0, batch)
        return whole.movedim(-1, 1) if self.turned else whole


def whole(F: Tensor) -> Tensor:
    """A tensor, made where it is not yet."""
    if not isinstance(F, Wide):
        return F
    with torch._C.DisableTorchFunctionSubclass():
        return F.made()


def _in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")


# --- what can be cut ------------------------------------------------------------------------------------------------
#: What a tensor tells without its numbers.
_TOLD = {
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "size", "dim", "numel", "_version",
    "is_floating_point", "is_complex", "__len__",
}  # fmt: skip


def _pointwise(func: Any, *args: Any, **kwargs: Any) -> Wide:
    wide = {id(a): a for a in args if isinstance(a, Wide)}
    like = [torch.empty(min(a.dim(), 1), dtype=a.dtype) if isinstance(a, Tensor) else a for a in args]
    if len(wide) != 1:
        raise NotCut(func.__name__)
    (own,) = wide.values()
    return own.then(func, args, kwargs, dtype=func(*like, **kwargs).dtype)


def _distribution(func: Any, own: Wide, dim: Any = None, *args: Any, **kwargs: Any) -> Wide:
    _require_last(func, own, None if args else dim)
    kwargs = {n: part for n, part in kwargs.items() if part is not None and n != "_stacklevel"}
    return own.then(func, (own, -1), kwargs, dtype=kwargs.get("dtype"))


def _require_last(func: Any, own: Wide, dim: Any) -> None:
    if dim not in (-1, own.x.dim() - 1) or own.turned:
        raise NotCut(func.__name__)


def _reshaped(func: Any, own: Wide, *args: Any, **kwargs: Any) -> Wide:
    like = func(torch.empty(own.shape, dtype=own.dtype, device="meta"), *args, **kwargs)
    if not like.dim() or like.shape[-1] != own.width or like.dtype != own.dtype:
        raise NotCut(func.__name__)
    return own.rows(lambda t: t.reshape(*like.shape[:-1], t.shape[-1]))


def _picked(func: Any, own: Wide, index: Any) -> Wide:
    if isinstance(index, Tensor):
        if index.dim() > (own.x.dim() - 1 if index.dtype == torch.bool else 1):
            raise NotCut("[]")
        return own.rows(lambda t: t[index])
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, Tensor | list) for part in parts):
        raise NotCut("[]")
    batch = own.x.shape[:-1]
    if any(torch.empty(*batch, n, device="meta")[index].shape[-1:] != (n,) for n in (own.width, own.width + 1, 1)):
        raise NotCut("[]")
    return own.rows(lambda t: t[index])


def _turned(func: Any, own: Wide, *args: Any) -> Wide:
    if own.x.dim() != 3 or own.turned or {a % 3 for a in args} != {1, 2}:
        raise NotCut(func.__name__)
    return own.like(own.x, own.cut, turned=True)


def _cross_entropy(
    func: Any,
    own: Wide,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    **smoothing: float,
) -> Tensor:
    """Losses of the tokens, and their sum or mean."""
    upright = own.turned or own.x.dim() == 2
    if (
        target.is_floating_point()
        or target.shape != own.x.shape[:-1]
        or not upright
        or (size_average, reduce) != (None,) * 2
    ):
        raise NotCut(func.__name__)
    flat = own.like(own.x, own.cut).rows(lambda t: t.flatten(0, -2))
    labels = target.flatten()
    options = {"weight": weight, "ignore_index": ignore_index, "reduction": "none", **smoothing}
    lost = flat.then(_lost, (flat, labels[:, None], func), options, width=1).made()[:, 0]
    if reduction == "none":
        return lost.view(target.shape)
    counted = labels != ignore_index
    mass = counted.sum() if weight is None else weight[torch.where(counted, labels, 0)][counted].sum()
    return lost.sum() if reduction == "sum" else lost.sum() / mass


def _lost(x: Tensor, labels: Tensor, loss: Callable[..., Tensor], **options: Any) -> Tensor:
    """The losses of some rows, as a column."""
    return loss(x, labels[:, 0], **options)[:, None]


def _gathered(func: Any, own: Wide, dim: int, index: Tensor) -> Tensor:
    _require_last(func, own, dim)
    return own.then(func, (own, -1, index), {}, width=index.shape[-1]).made()


def _reduced(func: Any, own: Wide, dim: Any = None, keepdim: bool = False, **options: Any) -> Tensor:
    """A number for each row; of the sum also that over all."""
    if dim is None and func.__name__ == "sum" and not options:
        return own.then(func, (own, -1, True), {}, width=1).made().sum()
    _require_last(func, own, dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim)
    found = own.then(func, (own, -1, True), options, width=1).made()
    return found if keepdim else found.squeeze(-1)


_ANSWERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("mul", "div", "truediv", "add", "sub", "neg", "tanh", "float", "double", "to"), _pointwise),
    **dict.fromkeys(("log_softmax", "softmax"), _distribution),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten"), _reshaped),
    **dict.fromkeys(("cross_entropy", "nll_loss"), _cross_entropy),
    **dict.fromkeys(("transpose", "swapaxes"), _turned),
    **dict.fromkeys(("logsumexp", "sum", "mean"), _reduced),
    "getitem": _picked,
    "gather": _gathered,
    "mT": lambda func, own: _turned(func, own, 1, 2),
    "contiguous": lambda func, own, **options: own,
}
