"""A program replayed from a CUDA graph: its hundreds of launches become one.

A Hessian product of GPT-2 124M (8 × 1,024 tokens, products in halves) keeps an H200 busy for 72 ms, but starting its
2,900 kernels and fills one by one takes the host 149 ms; replayed it takes 72.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quadform.core.graphs import record
from quadform.core.progress import say

#: Entries of replayed and plain results may differ by this share of the largest.
SAME = 1e-3


class Shared:
    """What replays that never run at once use in turn: working memory, where inputs are copied to, and results.

    A second graph costs no memory but that of the kernels' arguments. It lives as long as one of its graphs.
    """

    def __init__(self) -> None:
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.inputs: dict[Any, list[Any]] = {}
        self.outputs: dict[Any, Sequence[Any]] = {}

    def graph(self, run: Callable[..., Sequence[Any]], fixed: Sequence[Any], moving: Sequence[Any]) -> tuple:
        """(the graph of one run, where it reads what is not fixed, where its results will be)."""
        pool = next((graph.pool() for graph in self._graphs), None)
        if pool is None:
            self.inputs, self.outputs = {}, {}
        kind = tuple(_kind(t) for t in moving)
        inputs = self.inputs.get(kind) or [torch.empty_like(t) if isinstance(t, Tensor) else t for t in moving]

        def into_place(*leaves: Any) -> Sequence[Any]:
            results = run(*leaves)
            places = self.outputs.get(key := tuple(_kind(t) for t in results))
            if places is None:  # the first graph: its results are the place
                self.outputs[key] = results
                return results
            for place, t in zip(places, results, strict=True):
                if isinstance(place, Tensor):
                    place.copy_(t)
            return places

        graph, outputs = record(lambda: into_place(*fixed, *inputs), pool)
        self.inputs[kind] = inputs
        self._graphs.add(graph)
        return graph, inputs, outputs


class Replay:
    """`run(*leaves)`, replayed from its second call in a row with the same first `fixed` leaves on.

    run        leaves of tensors -> list of tensors, the same work for all values
    fixed      so many leaves are read where they lie: others in their place start over. The rest is copied to where the
               graph reads it, and results are copied out, so that those of an earlier call stay as they are; they are
               not differentiated further
    shared     memory in common with other replays that never run at the same time

    The graph holds the memory of one run for as long as this object lives. Where it cannot be made (work that waits for
    the host, too little memory), or where its first results are not those of `run`, that is said once, and `run` is
    called as before.
    """

    def __init__(self, run: Callable[..., Sequence[Any]], fixed: int = 0, shared: Shared | None = None) -> None:
        self.run, self.fixed = run, fixed
        self.shared = Shared() if shared is None else shared
        self._seen: list[Any] | None = None
        self._graph: Any = None
        self._inputs: list[Any] = []
        self._outputs: Sequence[Any] = ()
        self._given_up = False

    @property
    def replayed(self) -> bool:
        """Whether the next call with the same fixed leaves is replayed."""
        return self._graph is not None

    def __call__(self, *leaves: Any) -> Sequence[Any]:
        leaves = tuple(t.detach() if isinstance(t, Tensor) else t for t in leaves)
        if self._given_up or not _on_gpu(leaves):
            return self.run(*leaves)
        places = [_place(t) for t in leaves[: self.fixed]]
        again = places == self._seen
        self._seen = places
        if not again:
            self._forget()
            return self.run(*leaves)
        if self._graph is None:
            return self._first(leaves)
        return self._replayed(leaves)

    def _first(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Results of `run` itself; the graph is made beside them and kept if it gives the same."""
        results = self.run(*leaves)
        try:
            parts = leaves[: self.fixed], leaves[self.fixed :]
            self._graph, self._inputs, self._outputs = self.shared.graph(self.run, *parts)
            if not _alike(self._replayed(leaves), results):
                raise RuntimeError("its results differ")
        except (RuntimeError, torch.OutOfMemoryError) as problem:
            self._forget()
            self._given_up = True
            torch.cuda.empty_cache()
            why = str(problem).splitlines()[0][:120]
            say(f"no CUDA graph of this program ({why}); it is started kernel by kernel.")
        return results

    def _replayed(self, leaves: Sequence[Any]) -> Sequence[Any]:
        for mine, given in zip(self._inputs, leaves[self.fixed :], strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(given)
        self._graph.replay()
        return [t.clone() if isinstance(t, Tensor) else t for t in self._outputs]

    def _forget(self) -> None:
        self._graph, self._inputs, self._outputs = None, [], ()


def _alike(replayed: Sequence[Any], plain: Sequence[Any]) -> bool:
    """Equal but for the order of additions; what is not finite must be so in both."""
    pairs = [(a, b) for a, b in zip(replayed, plain, strict=True) if isinstance(a, Tensor)]
    return all(torch.allclose(a, b, rtol=0, atol=SAME * _size(b), equal_nan=True) for a, b in pairs)


def _size(t: Tensor) -> float:
    return float(t.abs().amax().nan_to_num(posinf=0.0)) if t.numel() else 0.0


def _place(t: Any) -> Any:
    """Where a tensor lies and how: what a graph that reads it depends on."""
    return (t.data_ptr(), t.shape, t.stride(), t.dtype) if isinstance(t, Tensor) else t


def _kind(t: Any) -> Any:
    return (t.shape, t.stride(), t.dtype, t.device) if isinstance(t, Tensor) else t


def _on_gpu(leaves: Sequence[Any]) -> bool:
    return any(isinstance(t, Tensor) and t.is_cuda for t in leaves)
