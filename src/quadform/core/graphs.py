"""CUDA graphs: work that is recorded once and replayed, for programs, decoding steps and training steps alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def rehearse(run: Callable[[], T], stream: torch.cuda.Stream | None = None) -> T:
    """Do the work on another stream, as a recording asks: in the first run libraries make their workspaces."""
    side = torch.cuda.Stream() if stream is None else stream
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out = run()
    torch.cuda.current_stream().wait_stream(side)
    return out


def record(run: Callable[[], T], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """The graph of one run (which is not carried out yet) and where its results will be; memory comes from `pool`.

    Other threads, which make batches, may use the device meanwhile.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        out = run()
    return graph, out
