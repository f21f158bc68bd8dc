"""Decoding steps of one fixed shape: static caches, and on CUDA one recorded graph that is replayed at every step.

A step of a small model is many small kernels; launched one by one they take longer to launch than to run. Here all
tensors of a step keep their place: caches have their full capacity, the position is a number on the device, tokens that
are not there yet are masked. So the step can be recorded once (a CUDA graph) and replayed, for this batch and for later
ones of the same shape. A recording looks at the first so many places of the caches (`WINDOW`, twice that, ...); the
next larger one takes over when they are full. Sentences that have ended leave the search, not the shape; when three
quarters have left, the rest moves to a smaller step. Without CUDA the same step runs unrecorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quadform.core.graphs import record, rehearse

from .frame import Frame, LayerCache, Memory
from .transformer import Transformer

STEP = 16
"""Sentences, source lengths and capacities are rounded up to multiples of this, so that few steps are recorded."""


WINDOW = 32
"""Places of the caches that the first recording of a step looks at."""


def rounded(n: int) -> int:
    """n, rounded up to a multiple of STEP."""
    return -(-n // STEP) * STEP


@dataclass(repr=False)
class StaticCache(LayerCache):
    """A cache that writes at the position `at` (1,) on the device, and shows its first `window` places."""

    at: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.long))
    window: int = 0

    def append(self, *new: Tensor) -> list[Tensor]:
        """Put the newest token's tensors (rows, heads, 1, width) in their place; return all places in the window."""
        for store, x in zip(self.kept, new, strict=True):
            store.index_copy_(2, self.at, x.to(store.dtype))
        return [store[:, :, : self.window] for store in self.kept]

    def running_total(self, v: Tensor) -> Tensor:
        assert self.total is not None, "a static cache is made with the total of the cache it takes over"
        return self.total.add_(v)

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] was."""
        for store in self.kept:
            store[:, :, : self.window] = store[:, :, : self.window].index_select(0, rows)
        if self.total is not None:
            self.total.copy_(self.total.index_select(0, rows))


class Step:
    """One decoding step of `sentences` x `beams` rows: newest tokens in, logits of the next ones out."""

    def __init__(
        self,
        model: Transformer,
        sentences: int,
        beams: int,
        capacity: int,
        like: Sequence[LayerCache],
        memory: Memory | None,
    ) -> None:
        self.model, self.sentences, self.beams, self.capacity = model, sentences, beams, capacity
        rows, device = sentences * beams, like[0].kept[0].device
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        self.parents = torch.arange(rows, device=device)
        self.places = torch.arange(capacity, device=device)

        def empty(x: Tensor, first: int, third: int) -> Tensor:
            return x.new_zeros(first, x.shape[1], third, x.shape[3])

        self.cache = [
            StaticCache(
                capacity,
                kept=[empty(x, rows, capacity) for x in layer.kept],
                total=None if layer.total is None else empty(layer.total, rows, 1),
                at=self.at,
            )
            for layer in like
        ]
        self.memory: Memory | None = None
        if memory is not None:
            m = rounded(memory.X.shape[1])
            known = memory.keys_values or {}
            kept = {i: (empty(k, sentences, m), empty(v, sentences, m)) for i, (k, v) in known.items()}
            mask = torch.zeros(sentences, m, dtype=torch.bool, device=device)
            self.memory = Memory(memory.X.new_zeros(sentences, m, 1), mask, kept)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.logits: Tensor | None = None

    def take(
        self, cache: Sequence[LayerCache], memory: Memory | None, slots: Tensor, rows: Tensor, places: Tensor
    ) -> None:
        """Copy `rows` of other caches to the rows `slots`, and the sentences of a memory to those of `places`.

        Of a growing cache only what it holds: the rest is not initialised, and 0 times it may be NaN.
        """
        for mine, theirs in zip(self.cache, cache, strict=True):
            for store, x in zip(mine.kept, theirs.kept, strict=True):
                width = theirs.length or min(store.shape[2], x.shape[2])
                store[slots, :, :width] = x[rows, :, :width]
            if mine.total is not None and theirs.total is not None:
                mine.total[slots] = theirs.total[rows]
        if self.memory is None or memory is None:
            return
        mask, given = self.memory.mask, memory.keys_values or {}
        assert mask is not None, "the memory of a step has a mask"
        m = memory.X.shape[1]
        mask.fill_(False)
        mask[places, :m] = True if memory.mask is None else memory.mask
        for i, kept in (self.memory.keys_values or {}).items():
            for place, values in zip(kept, given[i], strict=True):
                place[places, :, :m] = values[:, :, :m]

    def _once(self, window: int) -> None:
        for layer in self.cache:
            layer.window = window
            if self.beams > 1:
                layer.reorder(self.parents)
        visible = (self.places[:window] <= self.at)[None, None, None]
        frame = self.model.placed(Frame(True, 1, None, visible, self.at, start=1, static=True))
        out = self.model.logits(self.model.hidden(self.tokens, None, self.memory, self.cache, frame)[:, -1])
        self.logits = out if self.logits is None else self.logits.copy_(out)

    def __call__(self, tokens: Tensor, position: int, slots: Tensor) -> Tensor:
        """Logits (rows, vocab) of the rows `slots`, whose newest tokens (rows,) stand at `position`."""
        self.tokens[slots, 0] = tokens
        self.at.fill_(position)
        window = WINDOW
        while window <= position:
            window *= 2
        window = min(window, self.capacity)
        if self.tokens.device.type != "cuda":
            self._once(window)
        else:
            if window not in self.graphs:
                self._record(window)
            self.graphs[window].replay()
        if self.beams > 1:
            self.parents.copy_(torch.arange(len(self.parents), device=self.parents.device))
        assert self.logits is not None
        return self.logits[slots]

    def _record(self, window: int) -> None:
        """Record the step. A rehearsal changes caches only in ways that the true step does again."""
        order = self.parents.clone()
        self.parents.copy_(torch.arange(len(order), device=order.device))
        totals = [None if layer.total is None else layer.total.clone() for layer in self.cache]
        if self.logits is None:  # libraries make their workspaces in the first run
            rehearse(lambda: self._once(window))
        self.graphs[window], _ = record(lambda: self._once(window))
        self.parents.copy_(order)
        for layer, total in zip(self.cache, totals, strict=True):
            if total is not None and layer.total is not None:
                layer.total.copy_(total)


class StaticDecoder:
    """The steps of one call of `generate` by shape, and where the live rows of the current batch stand in them."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.steps: dict[tuple[int, ...], Step] = {}
        self.step: Step | None = None

    @property
    def current(self) -> Step:
        """The step in use, from `start` on."""
        assert self.step is not None
        return self.step

    def _step(
        self, live: int, beams: int, capacity: int, cache: Sequence[LayerCache], memory: Memory | None, m: int
    ) -> Step:
        key = (rounded(live), beams, rounded(capacity), rounded(m))
        if key not in self.steps:
            self.steps[key] = Step(self.model, key[0], beams, key[2], cache, memory)
        return self.steps[key]

    def start(self, cache: list[LayerCache], memory: Memory | None, sentences: int, capacity: int) -> None:
        """Take over the caches after the prefix: rows are sentences x beams."""
        rows = len(cache[0].kept[0])
        beams, device = rows // sentences, cache[0].kept[0].device
        m = memory.X.shape[1] if memory is not None else 0
        self.step = self._step(sentences, beams, capacity, cache, memory, m)
        self.places = torch.arange(sentences, device=device)
        self.slots = torch.arange(rows, device=device)
        self.step.take(cache, memory, self.slots, self.slots, self.places)

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Keep these live rows in this order, and these sentences."""
        step, source = self.current, self.slots[rows]
        if sentences is not None:
            self.places = self.places[sentences]
        self.slots = self._slots(self.places, step.beams)
        step.parents[self.slots] = source
        live = len(self.places)
        if 4 * rounded(live) <= step.sentences:
            m = step.memory.X.shape[1] if step.memory is not None else 0
            smaller = self._step(live, step.beams, step.capacity, step.cache, step.memory, m)
            places = torch.arange(live, device=self.places.device)
            slots = self._slots(places, step.beams)
            memory = None if step.memory is None else step.memory.select(self.places)
            smaller.take(step.cache, memory, slots, source, places)
            step.parents.copy_(torch.arange(len(step.parents), device=source.device))
            self.step, self.places, self.slots = smaller, places, slots

    @staticmethod
    def _slots(places: Tensor, beams: int) -> Tensor:
        return (places[:, None] * beams + torch.arange(beams, device=places.device)).flatten()

    def logits(self, tokens: Tensor, position: int) -> Tensor:
        """Logits (rows, vocab) after the newest tokens (rows,) of the live rows, which stand at `position`."""
        return self.current(tokens, position, self.slots)
