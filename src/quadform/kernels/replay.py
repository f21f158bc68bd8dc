"""A program replayed from a CUDA graph: its hundreds of launches become one.

A Hessian product of GPT-2 124M (8 × 1,024 tokens, products in halves) keeps an H200 busy for 72 ms, but starting its
2,900 kernels and fills one by one takes the host 149 ms; replayed it takes 72.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quadform.core.progress import say

#: Entries of replayed and plain results may differ by this share of the largest.
SAME = 1e-3


class Replay:
    """`run(*leaves)`, replayed from its second call in a row with the same first `fixed` leaves on.

    run        leaves of tensors -> list of tensors, the same work for all values
    fixed      so many leaves are read where they lie: others in their place start over. The rest is copied to where the
               graph reads it, and results are copied out, so that those of an earlier call stay as they are; they are
               not differentiated further

    The graph holds the memory of one run for as long as this object lives. Where it cannot be made (work that waits for
    the host, too little memory), or where its first results are not those of `run`, that is said once, and `run` is
    called as before.
    """

    def __init__(self, run: Callable[..., Sequence[Any]], fixed: int = 0) -> None:
        self.run, self.fixed = run, fixed
        self._seen: list[Any] | None = None
        self._graph: Any = None
        self._inputs: list[Any] = []
        self._outputs: Sequence[Any] = ()
        self._given_up = False

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
            self._inputs = [t.clone() if isinstance(t, Tensor) else t for t in leaves[self.fixed :]]
            self._graph, self._outputs = _captured(self.run, [*leaves[: self.fixed], *self._inputs])
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


def _on_gpu(leaves: Sequence[Any]) -> bool:
    return any(isinstance(t, Tensor) and t.is_cuda for t in leaves)


def _captured(run: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """The graph of one run (which is not carried out yet) and where its results will be."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = run(*inputs)
    return graph, outputs
