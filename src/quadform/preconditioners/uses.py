"""Where parameters act as matrices: every product `x -> W x (+ b)` of one evaluation, seen as torch is called.

Modules are not looked at: `nn.Linear`, `nn.MultiheadAttention`'s fused projection, GPT-2's `Conv1D`, `x @ W`, an
embedding and a convolution are calls of a few functions, whoever makes them. A transposed weight and several weights
side by side (queries, keys and values in one product) are followed. A parameter that is also used in another way is
remembered as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..kernels.calls import _none, _with

_LINEAR = {F.linear}
_MATMUL = {torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__}
_ADDMM = {torch.addmm, Tensor.addmm}
_EMBEDDING = {F.embedding}
_INDEX = {Tensor.__getitem__}
_CONVOLUTION = {F.conv1d, F.conv2d}
_PLAIN_TRANSPOSE = {torch.t, Tensor.t, Tensor.T.__get__, Tensor.mT.__get__}  # type: ignore[attr-defined]  # getters of properties
_TRANSPOSE = {torch.transpose, Tensor.transpose}
_CAT = {torch.cat, torch.concat}
#: Calls that read shape and kind of a tensor, not its values: of any argument, or of those after the first.
_NO_VALUES = {Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full, Tensor.new_tensor}
_NO_VALUES |= {torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like, torch.rand_like, torch.randn_like}
_FIRST_ONLY = {Tensor.to, Tensor.type_as, Tensor.view_as, Tensor.expand_as, Tensor.reshape_as}


@dataclass(frozen=True)
class Role:
    """How a parameter acts: `kind`; whether it is stored (in, out); its bias; window of a convolution."""

    kind: str  # "linear", "embedding" or "convolution"
    transposed: bool = False
    bias: str | None = None
    window: tuple[tuple[int, ...], ...] = ()  # kernel, stride, padding before and after, dilation


@dataclass
class Use:
    """One product: its input x, and after each backward pass the gradient g of its output, both (examples, places,
    width); None where no axis of the input counts the examples."""

    name: str
    role: Role
    columns: slice  # of the output, where several weights make it
    x: Tensor
    of_attention: int | None  # examples inside nn.MultiheadAttention, whose tensors have them on the second axis
    g: Tensor

    def inputs(self, examples: int) -> Tensor | None:
        if self.role.kind == "embedding":
            if len(self.x) != examples:  # positions, the same for all examples
                return None
            return self.x.reshape(examples, -1)
        if self.role.kind == "convolution":
            return patches(self.x, self.role.window) if len(self.x) == examples else None
        return self._rows(self.x, examples)

    def flattened(self, examples: int) -> bool:
        """Whether examples and places lie on one axis, if they do: it may count places alone."""
        return self.of_attention is None and self.x.dim() == 2 and len(self.x) != examples

    def rows(self, examples: int) -> Tensor:
        """The inputs of a use that has an axis of examples."""
        x = self.inputs(examples)
        assert x is not None
        return x

    def gradients(self, examples: int) -> Tensor:
        if self.role.kind == "convolution":
            return self.g.flatten(2).mT
        rows = self._rows(self.g[..., self.columns], examples)
        assert rows is not None
        return rows

    def _rows(self, t: Tensor, examples: int) -> Tensor | None:
        if self.of_attention is not None:
            if self.of_attention != examples:
                return None
            return t.reshape(-1, self.of_attention, t.shape[-1]).transpose(0, 1)
        if t.dim() > 2 and len(t) == examples:
            return t.reshape(examples, -1, t.shape[-1])
        if t.dim() <= 2:
            t = t.reshape(-1, t.shape[-1])
            if len(t) % examples == 0:
                return t.reshape(examples, -1, t.shape[-1])
        return None


@dataclass(frozen=True)
class _Weight:
    """What a tensor is made of: names and lengths side by side along `axis`; without a name: no parameter."""

    pieces: tuple[tuple[str | None, int], ...]
    axis: int
    transposed: bool = False

    def flipped(self) -> _Weight:
        return _Weight(self.pieces, 1 - self.axis, not self.transposed)


class Recorder(TorchFunctionMode):
    """A scope that notes in `uses` every product with one of `params`, and in `otherwise` those used another way.

    The graph begins at the outputs of these products: no derivative with respect to a weight is ever computed.
    `leaves` are the tensors where it begins.
    """

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.params = dict(params)
        self.uses: list[Use] = []
        self.otherwise: set[str] = set()
        self.leaves: list[Tensor] = []
        self.held: list[Tensor] = list(params.values())  # ids stay theirs
        self.known = {id(t): _Weight(((n, len(t)),), 0) for n, t in params.items() if t.dim()}
        self.known |= {id(t): _Weight(((n, 1),), 0) for n, t in params.items() if not t.dim()}
        self.examples: int | None = None  # inside nn.MultiheadAttention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:  # Python code, whose calls would not be seen
            return self._attention(func, args, kwargs)
        read = () if func in _NO_VALUES else args[:1] if func in _FIRST_ONLY else (args, kwargs)
        found = [w for w in _tensors(read) if id(w) in self.known]
        if not found:
            return func(*args, **kwargs)
        if torch.is_grad_enabled():
            for functions, rule in self._rules():
                if func in functions:
                    out = rule(func, args, kwargs)
                    if out is not None:
                        return out
        out = func(*args, **kwargs)
        if any(t is not w and t.is_floating_point() for t in _tensors(out) for w in found):
            self.otherwise |= {n for w in found for n, _ in self.known[id(w)].pieces if n is not None}
        return out

    def _rules(self) -> Iterator[tuple[set[Any], Callable[..., Any]]]:
        yield _LINEAR, self._linear
        yield _MATMUL, self._matmul
        yield _ADDMM, self._addmm
        yield _EMBEDDING, self._embedding
        yield _INDEX, self._indexed
        yield _CONVOLUTION, self._convolution
        yield _PLAIN_TRANSPOSE | _TRANSPOSE, self._transposed
        yield _CAT, self._cat

    # --- products ---------------------------------------------------------------------------------------------------
    def _linear(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        x, W, b = _given(("input", "weight", "bias"), args, kwargs)
        return self._product(partial(func, *args, **kwargs), x, W, b, out_axis=0)

    def _matmul(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        if len(args) != 2 or kwargs:
            return None
        return self._product(partial(func, *args), args[0], args[1], None, out_axis=1)

    def _addmm(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        if len(args) != 3 or kwargs or args[0].dim() != 1:
            return None
        return self._product(partial(func, *args), args[1], args[2], args[0], out_axis=1)

    def _product(
        self, product: Callable[[], Tensor], x: Tensor, W: Tensor, b: Tensor | None, *, out_axis: int
    ) -> Tensor | None:
        weight, bias = self.known.get(id(W)), None if b is None else self.known.get(id(b))
        if (
            weight is None
            or W.dim() != 2
            or id(x) in self.known
            or (len(weight.pieces) > 1 and weight.axis != out_axis)
        ):
            return None
        lengths = [n for _, n in weight.pieces] if len(weight.pieces) > 1 else [W.shape[out_axis]]
        biases: list[str | None] = [None] * len(lengths)
        if bias is not None:
            if [n for _, n in bias.pieces] != lengths:
                return None
            biases = [n for n, _ in bias.pieces]
        stored_in_out = weight.transposed if out_axis == 0 else not weight.transposed
        out, start = self._begun(product()), 0
        for (name, _), own, length in zip(weight.pieces, biases, lengths, strict=True):
            if name is not None:
                self._note(name, Role("linear", stored_in_out, own), slice(start, start + length), x, out)
            elif own is not None:
                self.otherwise.add(own)
            start += length
        return out

    def _embedding(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        ids, W = _given(("input", "weight"), args, kwargs)
        return self._looked_up(partial(func, *args, **kwargs), ids, W)

    def _indexed(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        W, ids = args
        whole = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.dtype != torch.bool and W.dim() == 2
        return self._looked_up(partial(func, W, ids), ids, W) if whole else None

    def _looked_up(self, product: Callable[[], Tensor], ids: Tensor, W: Tensor) -> Tensor | None:
        weight = self.known.get(id(W))
        if weight is None or weight.transposed or len(weight.pieces) > 1:
            return None
        out = self._begun(product())
        self._note(str(weight.pieces[0][0]), Role("embedding", True), slice(None), ids, out)
        return out

    def _convolution(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        x, W, b, stride, padding, dilation, groups = _given(names, args, kwargs)
        weight, bias = self.known.get(id(W)), None if b is None else self.known.get(id(b))
        if weight is None or groups not in (None, 1) or x.dim() != W.dim():
            return None
        window = _window(tuple(W.shape[2:]), stride, padding, dilation)
        own = None if bias is None else bias.pieces[0][0]
        out = self._begun(func(*args, **kwargs))
        self._note(str(weight.pieces[0][0]), Role("convolution", False, own, window), slice(None), x, out)
        return out

    def _attention(self, func: Any, args: Any, kwargs: Any) -> Any:
        query = _given(("query",), args, kwargs)[0]
        before, self.examples = self.examples, query.shape[1] if query.dim() == 3 else 1

        def linear(*args: Any, **kwargs: Any) -> Tensor:
            return self.__torch_function__(F.linear, (), args, kwargs)

        inner = {name: _with(getattr(F, name), linear=linear) for name in ("_in_projection_packed", "_in_projection")}
        try:
            return _with(func, has_torch_function=_none, linear=linear, **inner)(*args, **kwargs)
        finally:
            self.examples = before

    # --- other names for a weight -----------------------------------------------------------------------------------
    def _transposed(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        W = args[0]
        if W.dim() != 2 or (func in _TRANSPOSE and {a % 2 for a in (*args[1:], *kwargs.values())} != {0, 1}):
            return None
        return self._known_as(func(*args, **kwargs), self.known[id(W)].flipped())

    def _cat(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        tensors, dim = _given(("tensors", "dim"), args, kwargs)
        axis = (dim or 0) % tensors[0].dim()
        parts = [self.known.get(id(t), _Weight(((None, t.shape[axis]),), axis)) for t in tensors]
        flips = {w.transposed for w in parts if w.pieces[0][0] is not None}
        if len(flips) > 1 or any(len(w.pieces) > 1 and w.axis != axis for w in parts):
            return None
        pieces = [
            p for w, t in zip(parts, tensors, strict=True)
            for p in (w.pieces if len(w.pieces) > 1 else ((w.pieces[0][0], t.shape[axis]),))
        ]  # fmt: skip
        return self._known_as(func(*args, **kwargs), _Weight(tuple(pieces), axis, flips.pop()))

    def forget(self) -> None:
        """No gradient has arrived: one that does not depend on a product will be 0 there."""
        for use in self.uses:
            use.g = use.g.new_zeros(()).expand(use.g.shape)

    # --- bookkeeping ------------------------------------------------------------------------------------------------
    def _known_as(self, t: Tensor, weight: _Weight) -> Tensor:
        self.held.append(t)
        self.known[id(t)] = weight
        return t

    def _begun(self, out: Tensor) -> Tensor:
        """The output with a graph behind it; code may write into it afterwards, as activations in place do."""
        if out.requires_grad and self.leaves:
            return out
        leaf = out.detach().requires_grad_()
        self.leaves.append(leaf)
        return leaf.clone()

    def _note(self, name: str, role: Role, columns: slice, x: Tensor, out: Tensor) -> None:
        use = Use(name, role, columns, x.detach(), self.examples, out.new_zeros(()).expand(out.shape))
        self.uses.append(use)

        def arrived(g: Tensor) -> None:
            use.g = g.detach()

        out.register_hook(arrived)


def patches(x: Tensor, window: tuple[tuple[int, ...], ...]) -> Tensor:
    """The inputs of a convolution, (examples, places, channels x kernel): it is their product with the weight."""
    kernel, stride, before, after, dilation = window
    if len(kernel) == 1:
        x, kernel, stride, dilation = x[:, :, None], (1, *kernel), (1, *stride), (1, *dilation)
        before, after = (0, *before), (0, *after)
    x = F.pad(x, (before[1], after[1], before[0], after[0]))
    return F.unfold(x, kernel, dilation=dilation, stride=stride).mT


def _window(kernel: tuple[int, ...], stride: Any, padding: Any, dilation: Any) -> tuple[tuple[int, ...], ...]:
    def each(value: Any, default: int) -> tuple[int, ...]:
        if value is None:
            value = default
        return (value,) * len(kernel) if isinstance(value, int) else tuple(value) * (len(kernel) // len(value))

    dilation = each(dilation, 1)
    if padding == "same":
        whole = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        before = tuple(w // 2 for w in whole)
        after = tuple(w - b for w, b in zip(whole, before, strict=True))
    else:
        before = after = each(0 if padding == "valid" else padding, 0)
    return kernel, each(stride, 1), before, after, dilation


def _given(names: tuple[str, ...], args: Any, kwargs: Any) -> list[Any]:
    return [args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names)]


def _tensors(thing: Any) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _tensors(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _tensors(value)
