"""Are these slices queries, keys and values? Seen by scaling them, not told by their names.

Of attention, A = softmax(Q K^T + anything) and F = A V,

    F(2 Q, K / 2, V) = F(Q, K, V)              scores see the product of queries and keys alone, rotated, biased, normed
    F(Q, K, 2 V) - F(Q, K, V) = F(Q, K, V) - F(Q, K, 0) != 0        linear in values
    F(s Q, K, V) stays of the size of the values as s grows         a softmax: a gate or a convolution grows with s
    F(0 Q_h, K, V) = F(Q, K, V) where V_h = 0                       a head's queries act on its own values

Fused matrices in another order, gated queries, activations after the projection and convolutions fail one of them.
Source: [own].
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import pass_on_memory
from ..core.space import View

#: What rounding may leave of an identity, relative to what the queries can do.
_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3}
_LARGE = 1e6
_SMALL = 1e-30  # of float32 too, and its inverse

Factors = Mapping[str, float]


def seen_by_scaling(model: nn.Module, claimed: Mapping[str, Sequence[View]], run: Callable[[], Any]) -> set[str]:
    """The names of those views of `claimed` ({path of a module: its views}) that a run of the model shows to be what
    they say: of attention the matrices, and their heads where each acts by itself (a norm over all heads ties them).

    One module of each kind is looked at: layers of one class with weights of the same shapes are alike.
    """
    if any(p.is_meta for p in model.parameters()):  # no numbers to scale: names are believed
        return {v.name for views in claimed.values() for v in views}
    kinds: dict[Any, list[str]] = {}
    for path, views in claimed.items():
        shapes = tuple((v.name.removeprefix(path), v.seen_as, v.cut) for v in views)
        kinds.setdefault((type(model.get_submodule(path)), shapes), []).append(path)
    found: set[str] = set()
    for kind, call in _first_calls(model, kinds, run).items():
        called, paths = call[0], kinds[kind]
        whole, heads = _Attention(model, called, claimed[called], *call[1:]).holds()
        found.update(v.name for p in paths for v in claimed[p] if whole and (heads or not v.name.endswith("]")))
    return found


class _Seen(Exception):
    """One module of each kind was called."""


def _first_calls(
    model: nn.Module, kinds: Mapping[Any, list[str]], run: Callable[[], Any]
) -> dict[Any, tuple[str, Any, Any]]:
    """The path and the arguments of the first call of each kind; the run ends with the last of them."""
    calls: dict[Any, tuple[str, Any, Any]] = {}

    def note(kind: Any, path: str, module: nn.Module, args: Any, options: dict[str, Any]) -> None:
        without = {n: None if "past" in n else False if n == "use_cache" else t for n, t in options.items()}
        calls.setdefault(kind, (path, args, without))
        if len(calls) == len(kinds):
            raise _Seen

    with contextlib.ExitStack() as stack, torch.no_grad():
        for kind, paths in kinds.items():
            for path in paths:
                hook = partial(note, kind, path)
                stack.callback(model.get_submodule(path).register_forward_pre_hook(hook, with_kwargs=True).remove)
        try:
            run()
        except Exception as error:  # told where the loss is evaluated
            pass_on_memory(error)
    return calls


@contextlib.contextmanager
def _norms_without_epsilon(module: nn.Module) -> Iterator[None]:
    """Norms of queries and keys see no scale inside this scope, of however small weights."""
    held = [
        (m, name, eps)
        for m in module.modules()
        for name in ("eps", "variance_epsilon")
        if isinstance(eps := getattr(m, name, None), float)
    ]
    try:
        for m, name, _ in held:
            setattr(m, name, _SMALL)
        yield
    finally:
        for m, name, eps in held:
            setattr(m, name, eps)


class _Attention:
    """One module with the arguments of its first call, and the outputs of its projections that its views claim."""

    def __init__(self, model: nn.Module, path: str, views: Sequence[View], args: Any, options: Any) -> None:
        self.module, self.args, self.options = model.get_submodule(path), args, options
        self.slices: dict[str, tuple[nn.Module, Tensor]] = {}
        for view in views:
            projection = model.get_submodule(view.of.rpartition(".")[0])
            weight: Any = projection.weight
            inside = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
            inside.view(view.seen_as)[tuple(slice(a, b) for a, b in view.cut)] = True
            outputs = inside.any(0 if type(projection).__name__ == "Conv1D" else 1)
            self.slices[view.name.removeprefix(path).lstrip(".")] = (projection, outputs)
            self.allowed = _ROUNDING.get(weight.dtype, 0.05)

    def holds(self) -> tuple[bool, bool]:
        """Whether the matrices are what they are called, and whether their heads are."""
        if not {"W_Q", "W_K", "W_V"} <= set(self.slices):
            return False, False
        try:
            with _norms_without_epsilon(self.module):
                whole = self._whole()
                return whole, whole and all(self._head(h) for h in self._groups())
        except Exception as error:  # a module that cannot be called by itself is not known
            pass_on_memory(error)
            return False, False

    def _whole(self) -> bool:
        F = self({})
        values, twice = self({"W_V": 0.0}) - F, self({"W_V": 2.0}) - F
        least, most = self({"W_Q": 0.0}) - F, self({"W_Q": _LARGE}) - F
        size = max(float(least.norm()), float(most.norm()))
        return (
            float(values.norm()) > 0
            and 0 < size <= 1e3 * float(values.norm())
            and float((values + twice).norm()) <= self.allowed * float(values.norm())
            and float((self({"W_Q": 2.0, "W_K": 0.5}) - F).norm()) <= self.allowed * size
        )

    def _head(self, names: tuple[list[str], str, str]) -> bool:
        queries, key, value = names
        F, without = self({}), self({value: 0.0})
        effect = max(float((self(dict.fromkeys(queries, s)) - F).norm()) for s in (0.0, _LARGE))
        bent = self({**dict.fromkeys(queries, 2.0), key: 0.5})
        apart = self({**dict.fromkeys(queries, 0.0), value: 0.0})
        allowed = self.allowed * effect
        return float((bent - F).norm()) <= allowed and float((apart - without).norm()) <= allowed

    def _groups(self) -> Iterator[tuple[list[str], str, str]]:
        """The first and the last key with its queries and its value, where heads are claimed."""
        counts = [sum(name.startswith(f"{w}[") for name in self.slices) for w in ("W_Q", "W_K", "W_V")]
        if not all(counts):
            return
        each = counts[0] // counts[1]
        for g in sorted({0, counts[1] - 1}):
            yield [f"W_Q[{h}]" for h in range(g * each, (g + 1) * each)], f"W_K[{g}]", f"W_V[{g}]"

    def __call__(self, factors: Factors) -> Tensor:
        """What the module gives with its claimed queries, keys and values scaled: where it has an output projection,
        what goes into that (a norm or a skip may follow)."""
        before: list[Tensor] = []
        with contextlib.ExitStack() as stack, torch.no_grad():
            if "W_O" in self.slices:
                projection = self.slices["W_O"][0]
                stack.callback(projection.register_forward_pre_hook(lambda m, args: before.append(args[0])).remove)
            for name, factor in factors.items():
                projection, outputs = self.slices[name]

                def scaled(
                    module: nn.Module, args: Any, out: Tensor, by: float = factor, at: Tensor = outputs
                ) -> Tensor:
                    return torch.where(at, by * out, out)

                stack.callback(projection.register_forward_hook(scaled).remove)
            out = self.module(*self.args, **self.options)
        F = before[0] if before else out[0] if isinstance(out, tuple) else out
        return F.double()
