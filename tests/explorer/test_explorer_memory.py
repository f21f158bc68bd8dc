"""What the engine keeps: the last records, no more bytes than it says, and nobody else holds the others."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pytest

from quadform.core.record import Record
from quadform.explorer import engine as engine_module
from quadform.explorer.engine import KEPT_BYTES, LEAST_KEPT, Engine
from quadform.explorer.measurement import measure
from quadform.explorer.state import State

MOVES = 24


def held(record: Record) -> int:
    return sum(t.untyped_storage().nbytes() for t in record.tensors.values())


def drag(engine: Engine, states: list[State], pin: State | None = None) -> None:
    """Asks for one state after the other, compared with the one before or with `pin`."""
    before: State | None = pin
    for seq, state in enumerate(states):
        body: dict[str, Any] = {"seq": seq, "state": state.json(), "pinned": pin is not None, "final": True}
        answer = engine.answer(json.dumps(body | {"against": before and before.json()}))
        assert answer["kind"] == "answer", answer
        before = pin or state


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More moves than there is room for: the records kept fit `KEPT_BYTES`, and every other one is freed."""
    made: list[weakref.ref[Record]] = []

    def measured(*asked: Any) -> Record:
        record = measure(*asked)
        made.append(weakref.ref(record))
        return record

    monkeypatch.setattr(engine_module, "measure", measured)
    engine, states = Engine(), [State(scale=1 + i / 10) for i in range(MOVES)]
    drag(engine, states)
    gc.collect()
    kept = engine.kept.values()
    assert len(made) == MOVES
    assert held(next(iter(kept))) * MOVES > KEPT_BYTES  # not all of them could have been kept
    assert sum(map(held, kept)) <= KEPT_BYTES <= 20 * 2**20
    assert sum(ref() is not None for ref in made) == len(kept)
    assert set(engine.kept) == set(states[-len(kept) :])


def test_a_pinned_state_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing but `LEAST_KEPT` records has room, the state the page compares with stays."""
    monkeypatch.setattr(engine_module, "KEPT_BYTES", 0)
    seen: list[State] = []
    monkeypatch.setattr(engine_module, "measure", lambda state, uploads: seen.append(state) or measure(state, uploads))
    engine, pin = Engine(), State(dim=3)
    drag(engine, [pin, *(State(dim=3, scale=float(i)) for i in range(2, 6))], pin)
    assert seen.count(pin) == 1
    assert len(engine.kept) == LEAST_KEPT


def test_no_state_of_a_drag_is_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two records, each move compared with the one before: every state is measured once."""
    monkeypatch.setattr(engine_module, "KEPT_BYTES", 0)
    seen: list[State] = []
    monkeypatch.setattr(engine_module, "measure", lambda state, uploads: seen.append(state) or measure(state, uploads))
    states = [State(dim=3, scale=1 + i / 10) for i in range(6)]
    drag(Engine(), states)
    assert seen == states
