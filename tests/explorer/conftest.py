"""A served page for the tests, and an engine whose work can be held."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from quadform.explorer.cost import Cost, Size
from quadform.explorer.engine import Engine
from quadform.explorer.server import application
from quadform.explorer.serving import Place, find_place, serving
from quadform.explorer.state import State


class Steady(Cost):
    """Predictions that do not follow the load of the machine the tests run on."""

    def learn(self, state: State, size: Size, seconds: float) -> None:
        pass


class Held(Engine):
    """An engine that waits before each answer while `gate` is closed, and counts what it answered."""

    def __init__(self) -> None:
        super().__init__(cost=Steady())
        self.gate, self.answered = threading.Event(), 0
        self.gate.set()

    def answer(self, text: str | bytes) -> dict[str, Any]:
        assert self.gate.wait(20)
        self.answered += 1
        return super().answer(text)


@pytest.fixture(scope="module")
def engine() -> Held:
    return Held()


@pytest.fixture(scope="module")
def place(engine: Held) -> Iterator[Place]:
    with serving(find_place(0), lambda place: application(place, engine)) as served:
        yield served
