"""Batches on their way to the device: this process's share, targets counted, few shapes, made ahead on CUDA."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.core.spec import ModelConfig
from quadform.corpora.datasets import Batch, Dataset
from quadform.nn.transformer import IGNORE, Transformer

from .score import targets, to_device

AHEAD = 8
"""Steps whose batches are ready before they are wanted, on CUDA."""


@dataclass(frozen=True)
class Meal:
    """The batches of one step, on the device, and the number of their targets."""

    batches: list[Batch]
    targets: int

    def __repr__(self) -> str:
        shapes = [{name: tuple(t.shape) for name, t in batch.items()} for batch in self.batches]
        return f"Meal({shapes}, {self.targets:,} targets)"


def meals(
    model: Transformer,
    data: Dataset,
    *,
    batch_size: int,
    accumulate: int,
    seed: int,
    step: int = 0,
    bucket: int = 1,
    rank: int = 0,
    world: int = 1,
) -> Iterator[Meal]:
    """The meals of steps `step`, `step + 1`, ...: batches i world + rank of the training stream.

    On CUDA a thread makes them ahead in pinned memory; nothing here waits for the device.
    """
    device = model.embed.W_E.device
    stream = data.batches("train", batch_size, seed, step * accumulate * world)
    mine = itertools.islice(stream, rank, None, world)

    def made() -> Iterator[Meal]:
        while True:
            batches = [rounded(next(mine), bucket, model.config) for _ in range(accumulate)]
            yield Meal(batches, sum(int(targets(model, b).sum()) for b in batches))

    if device.type != "cuda":
        yield from (Meal([to_device(b, device) for b in m.batches], m.targets) for m in made())
        return
    pinned = (Meal([{k: t.pin_memory() for k, t in b.items()} for b in m.batches], m.targets) for m in made())
    for meal in ahead(pinned, AHEAD):
        yield Meal([to_device(b, device) for b in meal.batches], meal.targets)


def ahead(source: Iterator[Meal], count: int) -> Iterator[Meal]:
    """The same items, up to `count` of them made in advance by a thread; its errors are raised here."""
    ready: queue.Queue[Meal | BaseException] = queue.Queue(count)
    over = threading.Event()

    def work() -> None:
        try:
            for item in source:
                while not over.is_set():
                    try:
                        ready.put(item, timeout=0.1)
                        break
                    except queue.Full:
                        continue
                if over.is_set():
                    return
        except BaseException as error:
            ready.put(error)

    worker = threading.Thread(target=work, name="quadform batches", daemon=True)
    worker.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        over.set()
        worker.join()


def rounded(batch: Batch, multiple: int, config: ModelConfig) -> Batch:
    """The batch with rows and lengths padded up to a multiple, so that compiled code meets few shapes.

    Padding carries no loss and is seen by nobody. The side that predicts its own next token is one longer. Lengths stop
    at the learned positions. Without a padding token the batch stays as it is.
    """
    if multiple <= 1 or config.pad is None:
        return batch
    most = config.seq_len if config.positions == "learned" else None

    def up(n: int, limit: int | None = None) -> int:
        n = -(-n // multiple) * multiple
        return n if limit is None else min(n, limit)

    def wide(name: str, t: Tensor) -> int:
        shifted = name == "target" or (
            name in ("tokens", "mask") and config.kind == "decoder" and "labels" not in batch
        )
        return max(up(t.shape[1] - shifted, most) + shifted, t.shape[1])

    out = {}
    for name, t in batch.items():
        fill = IGNORE if name == "labels" else False if t.dtype == torch.bool else config.pad
        rows = up(len(t)) - len(t)
        sides = (0, wide(name, t) - t.shape[1], 0, rows) if t.ndim == 2 else (0, rows)
        out[name] = F.pad(t, sides, value=fill)
    return out
