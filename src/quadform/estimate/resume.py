"""Resume: the state of a long estimate on disk, so that an interrupted run gives the answer of an uninterrupted one.

One file per estimator in the run folder, `state-NAME.safetensors`: tensors, and in its header one JSON text with the
numbers, the settings and a fingerprint of the operator. It is written aside and renamed, every `SAVE_EVERY` seconds
and when the run ends for whatever reason. Ctrl-C once: the product is finished, the state saved, KeyboardInterrupt
raised; twice: the run stops at once. With one number of threads the resumed answer is equal bit for bit on a CPU.
"""

from __future__ import annotations

import hashlib
import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..core.errors import FileError, InputError
from ..core.operator import Operator
from ..core.progress import say
from ..core.record import strict_json, write_atomically
from ..core.rng import stream
from .vectors import multiply, probes

#: Seconds between two savings; a state that takes long to write is written less often (a tenth of the time at most).
SAVE_EVERY = 60.0
_FORMAT = "quadform-state 1"
_SKETCH = 8

State = tuple[Mapping[str, Tensor], Mapping[str, Any]]


def fingerprint(A: Operator) -> dict[str, Any]:
    """What tells two operators apart: names, shapes, dtype, and eight inner products with the image of a fixed vector.

    It costs one product, which is not counted in the estimate.
    """
    image = multiply(A, probes(A, 0, "fingerprint", [0], "gaussian"))[0].double()
    sketch = []
    for i in range(_SKETCH):
        signs = torch.randint(
            0, 2, image.shape, generator=stream(i, "fingerprint/sketch", A.device), device=A.device, dtype=torch.int8
        )
        sketch.append(float(torch.where(signs.bool(), image, -image).sum()))
    spaces = [[[name, list(shape)] for name, shape in space] for space in (A.domain, A.codomain)]
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
    has come back, so that what is saved when the operator fails is whole.
    """

    def __init__(self, folder: str | Path | None, name: str, A: Operator, settings: Mapping[str, Any]) -> None:
        self.found: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self._path = None if folder is None else Path(folder) / f"state-{name}.safetensors"
        self._settings = dict(settings)
        self._state: Callable[[], State] | None = None
        self._fresh = False  # whether the state on disk is the current one
        self._asked = self._forced = False
        self._before: Any = None
        self._saved_at, self._cost = time.monotonic(), 0.0
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"{folder} cannot hold a run: {error.strerror}. Choose another folder.") from error
        self._print = fingerprint(A)
        if self._path.exists():
            self.found = self._read(self._path)

    # --- reading ----------------------------------------------------------------------------------------------------
    def _read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as f:
                header = f.metadata() or {}
                if header.get("format") != _FORMAT:
                    raise FileError(f"{path} is no state of an interrupted run. Choose another folder.")
                body = json.loads(header["state"])
                tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - not a mapping
            old, settings, numbers = body["operator"], body["settings"], body["numbers"]
        except FileError:
            raise
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise FileError(f"{path} is damaged or truncated ({error}). Remove it to start afresh.") from error
        if not _same_operator(old, self._print):
            raise InputError(
                f"This run was started with other weights (hash {_short_hash(old)} / {_short_hash(self._print)})."
                " Start fresh with `--out` or name the old weights."
            )
        asked = json.loads(strict_json(self._settings))
        other = [f"{k} {settings.get(k)} / {asked.get(k)}" for k in asked | settings if settings.get(k) != asked.get(k)]
        if other:
            raise InputError(
                f"This run was started with other settings ({', '.join(other)})."
                " Start fresh with `--out` or name the old settings."
            )
        return tensors, numbers

    # --- writing ----------------------------------------------------------------------------------------------------
    def reached(self, state: Callable[[], State]) -> None:
        """A consistent point: save when it is time to; after Ctrl-C save and raise KeyboardInterrupt."""
        if self._path is None:
            return
        self._state, self._fresh = state, False
        if self._asked:
            self._save()
            raise KeyboardInterrupt
        if time.monotonic() - self._saved_at >= max(SAVE_EVERY, 10 * self._cost):
            self._save()

    def _save(self) -> None:
        from safetensors.torch import save

        if self._path is None or self._state is None or self._fresh:
            return
        begun = time.monotonic()
        tensors, numbers = self._state()
        body = {"operator": self._print, "settings": self._settings, "numbers": dict(numbers)}
        own = {n: t.detach().cpu().clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
        write_atomically(self._path, save(own, {"format": _FORMAT, "state": strict_json(body)}))
        self._saved_at, self._fresh = time.monotonic(), True
        self._cost = self._saved_at - begun

    def __enter__(self) -> Checkpoint:
        if self._path is not None and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def _interrupted(self, number: int, frame: Any) -> None:
        if self._asked:
            self._forced = True
            raise KeyboardInterrupt
        self._asked = True
        say("interrupted: finishing the product and saving (once more to stop now)")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
        if not self._forced:
            self._save()
        if self._asked and error is None:
            raise KeyboardInterrupt
