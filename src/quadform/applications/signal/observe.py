"""Watching a stack of blocks at work: the tokens between them and the attention inside them, for any `nn.Module`.

Hooks see the stream, a function mode sees the softmax; both are gone afterwards. Models run inside
`curvature.settings.measured`, which gives back training mode and random state. A block is a module that maps tokens
(batch, T, d) to tokens of the same shape; a stack is a list of blocks that are called one after another. A block called
twice counts as two layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from quadform.core.errors import InputError, UnknownName, closest

#: Entries of the largest attention map that is built at once; more sequences go one after another.
_SCRATCH = 2**25
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


@dataclass(frozen=True)
class Stack:
    """The blocks of a model in the order of their calls, by module name; `name` is that of the list they stand in.

    `batch_first` is false where tokens are (T, batch, d), torch's old habit; observers get (batch, T, d) all the same.
    """

    name: str
    calls: tuple[str, ...]
    batch_first: bool = True

    @property
    def depth(self) -> int:
        return len(self.calls)


class Observer(Protocol):
    """What is told while a model runs; every method may do nothing.

    One that has a method `logits(stack, layer, number, S, visible)` is told the scores S before the softmax as well,
    where they can be seen.
    """

    def tokens(self, stack: int, layer: int, X: Tensor) -> None:
        """X (batch, T, d) after `layer` blocks of a stack; layer 0 is what the first block reads."""

    def attention(self, stack: int, layer: int, number: int, A: Tensor, visible: Tensor, rows: slice) -> None:
        """Softmax weights A (rows, heads, queries, keys) of attention `number` (0, 1, ...) inside block `layer`."""


# ------------------------------------------------------------------------------------------------ finding the blocks
def find_stacks(model: nn.Module, call: Callable[[], Any], blocks: str | None = None) -> tuple[Stack, ...]:
    """The stacks of a model, seen in one run of it (`call`).

    Without `blocks`: every outermost list of modules (ModuleList or Sequential) whose members have parts of their own,
    were all called, and gave tokens of the shape they got. `blocks` names the list (`transformer.h`) or the blocks
    themselves by a pattern (`encoder.*.block`, several with commas).
    """
    modules = dict(model.named_modules())
    lists = {} if blocks else _candidates(modules)
    named = _named(modules, blocks) if blocks else {b: l for l, members in lists.items() for b in members}
    calls: dict[str, list[str]] = {}
    odd: dict[str, str] = {}

    def hook(name: str) -> Callable[..., None]:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            before, after = _input(args, kwargs), _first_tokens(out)
            calls.setdefault(named[name], []).append(name)
            if before is None or after is None or before.shape != after.shape:
                odd[named[name]] = name

        return look

    handles = [modules[n].register_forward_hook(hook(n), with_kwargs=True) for n in named]
    try:
        with torch.no_grad():
            call()
    finally:
        for handle in handles:
            handle.remove()
    if blocks:
        if odd or not calls:
            raise InputError(f"`{blocks}`: {_why(named, odd)}. Name blocks that map (batch, tokens, d) to itself.")
        return tuple(_stack(l, calls[l], modules) for l in calls)
    good = [l for l in calls if l not in odd and set(calls[l]) == set(lists[l])]
    outer = [l for l in good if not any(l != o and l.startswith(f"{o}.") for o in good)]
    if not outer:
        raise InputError(
            "no stack of blocks was found: no list of modules (ModuleList, Sequential) whose members all map "
            "(batch, tokens, d) to the same shape. Name them with blocks='...'; lists here: "
            f"{', '.join(_lists(modules)) or 'none'}."
        )
    return tuple(_stack(l, calls[l], modules) for l in outer)


def _lists(modules: Mapping[str, nn.Module]) -> list[str]:
    return [n for n, m in modules.items() if n and isinstance(m, nn.ModuleList | nn.Sequential) and len(m)]


def _candidates(modules: Mapping[str, nn.Module]) -> dict[str, list[str]]:
    """List name -> its members, where every member has parts of its own (a lone norm or projection is no block)."""
    found = {}
    for name, m in modules.items():
        if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) and all(any(True for _ in c.children()) for c in m):
            found[name] = [f"{name}.{i}" if name else str(i) for i, _ in m.named_children()]
    return found


def _named(modules: Mapping[str, nn.Module], blocks: str) -> dict[str, str]:
    """Block name -> stack name, for what a person wrote."""
    named: dict[str, str] = {}
    for part in blocks.split(","):
        word = part.strip()
        if isinstance(modules.get(word), nn.ModuleList | nn.Sequential):
            members = [f"{word}.{i}" for i, _ in modules[word].named_children()]
        else:
            members = [n for n in modules if fnmatchcase(n, word)]
        if not members:
            near = closest(word, _lists(modules)) or _lists(modules)[:5]
            raise UnknownName(f"no block matches `{word}`. Lists of modules here: {', '.join(near) or 'none'}.")
        named |= dict.fromkeys(members, word)
    return named


def _stack(name: str, calls: list[str], modules: Mapping[str, nn.Module]) -> Stack:
    attentions = [m for n in set(calls) for m in modules[n].modules() if isinstance(m, nn.MultiheadAttention)]
    return Stack(name, tuple(calls), all(m.batch_first for m in attentions))


def _why(named: Mapping[str, str], odd: Mapping[str, str]) -> str:
    if odd:
        return f"{next(iter(odd.values()))} does not give tokens of the shape it gets"
    return f"none of its {len(named)} modules was called"


def _is_tokens(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim in (2, 3)


def _first_tokens(value: Any) -> Tensor | None:
    """The first real tensor of two or three axes in what a module got or gave."""
    if isinstance(value, Tensor):
        return value if _is_tokens(value) else None
    if isinstance(value, Mapping):
        value = list(value.values())
    return next((v for v in value if _is_tokens(v)), None) if isinstance(value, tuple | list) else None


def _input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    found = _first_tokens(args)
    if found is None:
        found = _first_tokens([kwargs.get("hidden_states")])
    return _first_tokens(dict(kwargs)) if found is None else found


def _replaced(args: tuple[Any, ...], kwargs: dict[str, Any], new: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with its tokens replaced."""
    old = _input(args, kwargs)
    return tuple(new if a is old else a for a in args), {k: new if v is old else v for k, v in kwargs.items()}


# ------------------------------------------------------------------------------------------------ watching
@contextlib.contextmanager
def watching(
    model: nn.Module,
    stacks: tuple[Stack, ...],
    observer: Observer,
    *,
    attention: bool = False,
    start: Callable[[int, Tensor], Tensor] | None = None,
) -> Iterator[None]:
    """Tell the observer what passes through the stacks of `model` while it runs once.

    `start(stack, X)` may put other tokens (batch, T, d) in the place of X, those the first block reads.
    """
    modules = dict(model.named_modules())
    seer = _Seer(observer)
    handles = []
    for i, stack in enumerate(stacks):
        state = _Passing(i, stack, seer, observer, start)
        for name in dict.fromkeys(stack.calls):
            block = modules[name]
            handles.append(block.register_forward_pre_hook(state.before, with_kwargs=True))
            handles.append(block.register_forward_hook(state.after))
            for m in block.modules() if attention else ():
                if isinstance(m, nn.MultiheadAttention):
                    handles.append(m.register_forward_pre_hook(seer.ask_weights, with_kwargs=True))
                    handles.append(m.register_forward_hook(seer.take_weights, with_kwargs=True))
    try:
        with seer if attention else contextlib.nullcontext():
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Passing:
    """The hooks of one stack; counts its calls."""

    def __init__(self, index: int, stack: Stack, seer: _Seer, observer: Observer, start: Any) -> None:
        self.index, self.stack, self.seer, self.observer, self.start = index, stack, seer, observer, start
        self.done = 0

    def _standard(self, X: Tensor) -> Tensor:
        """(batch, T, d), whatever the model's habit; a lone sequence (T, d) is a batch of one."""
        if X.ndim == 2:
            return X[None]
        return X if self.stack.batch_first else X.transpose(0, 1)

    def _back(self, X: Tensor, like: Tensor) -> Tensor:
        if like.ndim == 2:
            return X.reshape(like.shape)
        return X if self.stack.batch_first else X.transpose(0, 1)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        found = _input(args, kwargs)
        if found is None:
            raise InputError(f"{self.stack.calls[self.done]} of `{self.stack.name}` received no tokens in this batch.")
        X, changed = self._standard(found), None
        if self.done == 0 and self.start is not None:
            X = self.start(self.index, X)
            changed = _replaced(args, kwargs, self._back(X, found))
        if self.done == 0:
            self.observer.tokens(self.index, 0, X)
        self.seer.enter(self.index, self.done + 1, X.shape)
        return changed

    def after(self, module: nn.Module, args: Any, out: Any) -> Any:
        self.seer.leave()
        self.done += 1
        found = _first_tokens(out)
        if found is None:
            return None
        X = self._standard(found)
        self.observer.tokens(self.index, self.done, X)
        if X is found:
            return None
        again = self._back(X, found)  # so that what was told lies on the way to the loss
        return again if out is found else type(out)(again if v is found else v for v in out)


class _Seer(TorchFunctionMode):
    """Sees softmax attention inside blocks: scaled_dot_product_attention, plain softmax, nn.MultiheadAttention."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer
        self.where: tuple[int, int] | None = None
        self.shape = (0, 0)
        self.number = 0
        self.asked: list[tuple[bool, bool] | None] = []  # (need_weights, average_attn_weights) as the caller wrote

    def enter(self, stack: int, layer: int, shape: torch.Size) -> None:
        self.where, self.shape, self.number = (stack, layer), (shape[0], shape[1]), 0

    def leave(self) -> None:
        self.where = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.where is not None:
            if func is F.scaled_dot_product_attention:
                self._from_sdpa(*args, **kwargs)
            elif func in _SOFTMAX:
                self._from_softmax(out, *args, **kwargs)
        return out

    @torch.no_grad()
    def _from_sdpa(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        if query.ndim != 4 or (query.shape[0], query.shape[-2]) != self.shape:
            return
        B, H, T, width = query.shape
        keys = key.shape[-2]
        scale = width**-0.5 if scale is None else scale
        mask = (
            None
            if attn_mask is None
            else attn_mask.expand(B, attn_mask.shape[-3] if attn_mask.ndim > 2 else 1, T, keys)
        )
        step = max(1, _SCRATCH // (H * T * keys))
        for a in range(0, B, step):
            rows = slice(a, min(a + step, B))
            q, k = _wide(query[rows]), _wide(key[rows])
            S = scale * q @ k.repeat_interleave(H // k.shape[1], 1).mT
            visible = torch.ones(T, keys, dtype=torch.bool, device=S.device)
            if is_causal:
                visible = visible.tril()
            if mask is not None and mask.dtype == torch.bool:
                visible = visible & mask[rows]
            elif mask is not None:
                S, visible = S + mask[rows], visible & _open(mask[rows])
            S = S.masked_fill(~visible, float("-inf"))
            A = torch.nan_to_num(S.softmax(-1)) if mask is not None else S.softmax(-1)
            self._tell(A, visible, rows, S)
        self.number += 1

    @torch.no_grad()
    def _from_softmax(self, A: Tensor, input: Tensor, dim: int | None = None, *rest: Any, **more: Any) -> None:
        B, T = self.shape
        if dim not in (-1, A.ndim - 1) or A.ndim not in (3, 4) or A.shape[-2] != T:
            return
        if A.ndim == 3:  # heads folded into the batch
            if A.shape[-1] != T or A.shape[0] % B:
                return
            A, input = A.unflatten(0, (B, -1)), input.unflatten(0, (B, -1))
        if A.shape[0] == B:
            self._tell(A, _open(input), slice(0, B), input)
            self.number += 1

    def _tell(self, A: Tensor, visible: Tensor, rows: slice, S: Tensor | None = None) -> None:
        if self.where is None:
            return
        self.observer.attention(*self.where, self.number, A, visible.expand(A.shape), rows)
        logits = getattr(self.observer, "logits", None)
        if S is not None and logits is not None:
            logits(*self.where, self.number, S, visible.expand(A.shape))

    # --- nn.MultiheadAttention gives its weights when asked ----------------------------------------------------------
    def ask_weights(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if len(args) > 4:  # written without names: leave the call as it is
            self.asked.append(None)
            return None
        self.asked.append((kwargs.get("need_weights", True), kwargs.get("average_attn_weights", True)))
        return args, {**kwargs, "need_weights": True, "average_attn_weights": False}

    def take_weights(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        asked = self.asked.pop()
        if asked is None:
            return None
        Y, A = out
        seen = A.detach() if A.ndim == 4 else A.detach()[None]
        if (seen.shape[0], seen.shape[-2]) == self.shape:
            self._tell(seen, seen > 0, slice(0, len(seen)), _scores(module, args, kwargs))
            self.number += 1
        need, average = asked
        return Y, None if not need else A.mean(-3) if average else A


@torch.no_grad()
def _scores(module: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Scores (batch, heads, queries, keys) of `nn.MultiheadAttention`; None where it adds keys or numbers to them."""
    mask = kwargs.get("attn_mask")
    adds = mask is not None and mask.is_floating_point() and bool((mask[mask.isfinite()] != 0).any())
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn or adds:
        return None
    given = dict(zip(("query", "key"), args, strict=False)) | kwargs
    biases = (None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    q, k = (
        F.linear(given[n], W, b)
        for n, W, b in zip(("query", "key"), module.in_proj_weight.chunk(3), biases, strict=False)
    )
    if q.ndim == 2:
        q, k = q[None], k[None]
    elif not module.batch_first:
        q, k = q.transpose(0, 1), k.transpose(0, 1)
    q, k = (_wide(t).unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for t in (q, k))
    return module.head_dim**-0.5 * q @ k.mT


def _open(logits: Tensor) -> Tensor:
    """Where a logit or additive mask does not hide its key."""
    return logits > torch.finfo(logits.dtype).min / 4


def _wide(X: Tensor) -> Tensor:
    return X.to(torch.promote_types(X.dtype, torch.float32))
