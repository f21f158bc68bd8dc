"""Resume: the state of a long estimate on disk, so that an interrupted run gives the answer of an uninterrupted one.

One file per estimator in the run folder, `state-NAME.safetensors`: tensors, and in its header one JSON text with the
numbers, the settings and a fingerprint of the operator. It is written aside and renamed, every `SAVE_EVERY` seconds
and when the run ends for whatever reason. Ctrl-C once: the product is finished, the state saved, KeyboardInterrupt
raised; twice: the run stops at once. With one number of threads the resumed answer is equal bit for bit on a CPU.

Of several processes the first writes and reads, row after row, in the same format: a run can be gone on with by another
number of processes, or by one. Where weights are cut over processes each writes its shards to a file of its own; any
number of processes goes on with it: each reads what it holds of every file (`shard_files`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..core.errors import FileError, InputError
from ..core.interrupts import Asked, gently
from ..core.operator import Operator
from ..core.record import strict_json, write_atomically
from ..core.steady import steady
from ..distributed.processes import group_of, holders
from .shard_files import ShardFiles
from .vectors import draw, multiply, probes

#: Seconds between two savings; a state that takes long to write is written less often (a tenth of the time at most).
SAVE_EVERY = 60.0
_FORMAT = "quadform-state 1"
_SKETCH = 8
#: Types of tensors by the names that safetensors has for them.
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

State = tuple[Mapping[str, Tensor], Mapping[str, Any]]


def fingerprint(A: Operator) -> dict[str, Any]:
    """What tells two operators apart: names, shapes, dtype, and eight inner products with the image of a fixed vector.

    It costs one product, which is not counted in the estimate.
    """
    held = holders(A.domain)
    image = multiply(A, probes(A, 0, "fingerprint", [0], "gaussian"))[0].double()
    sketch, signs = [], torch.empty_like(image)
    for i in range(_SKETCH):
        draw(signs, i, "fingerprint/sketch", "rademacher", A.codomain)
        sketch.append(float(held.sum(signs @ image)))
    cuts = getattr(held, "cuts", {})
    spaces = [
        [[name, list(cuts[name].shape if name in cuts else shape)] for name, shape in space]
        for space in (A.domain, A.codomain)
    ]
    return {"spaces": spaces, "dtype": str(A.dtype), "sketch": sketch}


def _short_hash(print_: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(print_, sort_keys=True).encode()).hexdigest()[:8]


def _same_operator(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Equal up to what a product of that precision repeats to (a GPU sums in varying order)."""
    if (old["spaces"], old["dtype"]) != (new["spaces"], new["dtype"]):
        return False
    a, b = (torch.tensor(p["sketch"], dtype=torch.float64) for p in (old, new))
    tolerance = {"torch.float64": 1e-10, "torch.float32": 1e-4}.get(str(new["dtype"]), 1e-2)
    return bool((a - b).norm() <= tolerance * b.norm())


class Checkpoint:
    """`with Checkpoint(folder, "trace", A, settings) as c: ... c.reached(state)` after each product.

    `folder=None` keeps nothing and costs nothing. `c.found` is the saved `(tensors, numbers)` or None. `state` is a
    function that gives the current state; between two calls of `reached` the state may change only after a product
    has come back, so that what is saved when the operator fails is whole. Tensors named `sliced` are rows of the
    domain of which each process gives, and gets, its slice. `rows`: all tensors are rows of the domain, of which a
    process has its shard where weights are cut.
    """

    def __init__(
        self,
        folder: str | Path | None,
        name: str,
        A: Operator,
        settings: Mapping[str, Any],
        sliced: str = "",
        *,
        rows: bool = False,
    ) -> None:
        self.found: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self._group, self._n, self._sliced = group_of(A.domain), A.domain.size, sliced
        self._path = self._place(folder, name)
        self._files = ShardFiles(A.domain, self._path, lambda n: rows or self._is_sliced(n))
        self._settings = dict(settings)
        self._state: Callable[[], State] | None = None
        self._fresh = False  # whether the state on disk is the current one
        self._stack = contextlib.ExitStack()
        self._asked = Asked()
        self._saved_at, self._cost = time.monotonic(), 0.0
        self._keeps = self._told(self._prepared)
        if not self._keeps:
            return
        with steady():
            self._print = fingerprint(A)
        header = self._told(lambda: self._header(self._files.saved if self._group.cut else self._path))
        if self._group.cut and not self._same_point(header):
            return
        if header:
            self.found = self._tensors(header["tensors"]), header["numbers"]

    def _place(self, folder: str | Path | None, name: str) -> Path | None:
        """The file of this process: of shards each has one, else the first alone."""
        if not self._group.cut:
            alone = folder is None or not self._group.first
            return None if alone else Path(str(folder)) / f"state-{name}.safetensors"
        where = self._group.text("" if folder is None else str(folder))
        return Path(where) / f"state-{name}{self._group.mark}.safetensors" if where else None

    def _told(self, work: Callable[[], Any]) -> Any:
        return work() if self._group.cut else self._group.by_first(work)

    def _same_point(self, header: Mapping[str, Any]) -> bool:
        """Whether the files of all processes were saved together."""
        text = json.dumps(header.get("numbers"), sort_keys=True).encode()
        number = float(int.from_bytes(hashlib.sha256(text).digest()[:6], "little"))
        return self._group.least(number) == self._group.most(number)

    def _prepared(self) -> bool:
        """Whether there is a folder to keep the state in."""
        if self._path is None:
            return False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            folder = self._path.parent
            raise FileError(f"{folder} cannot hold a run: {error.strerror}. Choose another folder.") from error
        return True

    # --- reading ----------------------------------------------------------------------------------------------------
    def _header(self, path: Path | None) -> dict[str, Any]:
        """The numbers of a saved state, and type and shape of its tensors; another run's is an error."""
        from safetensors import SafetensorError, safe_open

        if path is None or not path.exists():
            return {}
        try:
            with safe_open(path, framework="pt") as f:
                header = f.metadata() or {}
                if header.get("format") != _FORMAT:
                    raise FileError(f"{path} does not hold the state of an interrupted run. Choose another folder.")
                body = json.loads(header["state"])
                cuts = {name: f.get_slice(name) for name in f.keys()}  # noqa: SIM118 - not a mapping
                tensors = {name: [str(cut.get_dtype()), cut.get_shape()] for name, cut in cuts.items()}
            old, settings, numbers = body["operator"], body["settings"], body["numbers"]
        except FileError:
            raise
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise FileError(f"{path} is damaged or truncated ({error}). Remove it to start afresh.") from error
        if not _same_operator(old, self._print):
            raise InputError(
                f"This run was started with other weights (hash {_short_hash(old)} / {_short_hash(self._print)})."
                " Use the old weights or another folder."
            )
        asked = json.loads(strict_json(self._settings))
        other = [f"{k} {settings.get(k)} / {asked.get(k)}" for k in asked | settings if settings.get(k) != asked.get(k)]
        if other:
            raise InputError(
                f"This run was started with other settings ({', '.join(other)})."
                " Use the old settings or another folder."
            )
        return {"numbers": numbers, "tensors": tensors}

    def _tensors(self, kinds: Mapping[str, tuple[str, list[int]]]) -> dict[str, Tensor]:
        """The tensors of the file: read by the first process and sent to the others, sliced ones row after row."""
        from safetensors import safe_open

        group, mine, found = self._group, self._group.slice(self._n), {}
        if group.cut:
            return self._files.read(kinds)
        with contextlib.ExitStack() as stack:
            f: Any = stack.enter_context(safe_open(self._path, framework="pt")) if group.first else None
            for name, (kind, shape) in kinds.items():
                whole = torch.empty((0,), dtype=_DTYPES[kind])
                if group.world > 1 and self._is_sliced(name):
                    rows = [
                        group.same(f.get_slice(name)[i] if group.first else whole.new_empty(shape[1]))[mine]
                        for i in range(shape[0])
                    ]
                    found[name] = torch.stack(rows) if rows else whole.new_empty((0, mine.stop - mine.start))
                else:
                    found[name] = group.same(f.get_tensor(name) if group.first else whole.new_empty(shape))
        return found

    def _is_sliced(self, name: str) -> bool:
        return bool(self._sliced) and name.rpartition("/")[2] == self._sliced

    # --- writing ----------------------------------------------------------------------------------------------------
    def reached(self, state: Callable[[], State]) -> None:
        """A consistent point: save when it is time to; after Ctrl-C save and raise KeyboardInterrupt."""
        if not self._keeps:
            return
        self._state, self._fresh = state, False
        due = time.monotonic() - self._saved_at >= max(SAVE_EVERY, 10 * self._cost)
        told = self._group.most(2 if self._asked.once else 1 if due else 0)
        if told:
            self._save()
        if told == 2:
            self._asked.once = True
            raise KeyboardInterrupt

    def _save(self) -> None:
        if not self._keeps or self._state is None or self._fresh:
            return
        begun = time.monotonic()
        tensors, numbers = self._state()
        body = {"operator": self._print, "settings": self._settings, "numbers": dict(numbers)}
        pieces = self._pieces(tensors, {"format": _FORMAT, "state": strict_json(body)})
        if self._group.cut:
            self._save_shards(pieces)
        elif self._path is not None:
            write_atomically(self._path, pieces)
        else:  # takes part in gathering the rows
            for _ in pieces:
                pass
        self._saved_at, self._fresh = time.monotonic(), True
        self._cost = self._saved_at - begun

    def _save_shards(self, pieces: Iterator[bytes]) -> None:
        """All processes write, then all rename: what is on disk is of one point."""
        assert self._path is not None
        aside = self._path.with_suffix(".next")
        if self._group.writes:
            write_atomically(aside, pieces)
        self._group.together("state is written")
        if self._group.writes:
            os.replace(aside, self._path)
        self._group.together("state is renamed")
        if self._group.first:
            self._files.forget_others()

    def _pieces(self, tensors: Mapping[str, Tensor], told: Mapping[str, str]) -> Iterator[bytes]:
        """A safetensors file in pieces, a row at a time: its header, then the bytes of every tensor."""
        header: dict[str, Any] = {"__metadata__": dict(told)}
        end = 0
        for name, t in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):  # aligned by size
            shape = [len(t), self._n] if self._is_sliced(name) else list(t.shape)
            start, end = end, end + math.prod(shape) * t.dtype.itemsize
            header[name] = {"dtype": _NAMES[t.dtype], "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        yield len(text).to_bytes(8, "little") + text
        for name in list(header)[1:]:
            t = tensors[name].detach()
            rows = self._group.rows(t, self._n) if self._is_sliced(name) else t.reshape(1, -1)
            for row in rows:
                yield row.cpu().contiguous().view(torch.uint8).numpy().tobytes()

    def __enter__(self) -> Checkpoint:
        if self._keeps:
            self._asked = self._stack.enter_context(gently("product"))
            self._stack.enter_context(steady())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._keeps and not self._asked.twice and self._group.together("checkpoint", error):
            self._save()
        if self._asked.once and error is None:
            raise KeyboardInterrupt
