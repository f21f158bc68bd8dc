"""The lecture, served, and one engine for all tests of a module; its model has been trained for a few steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quadform.explorer.serving import Place, find_place, serving
from quadform.lecture.engine import Engine
from quadform.lecture.server import application


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine()
    made.pupil.start(steps=12)
    made.pupil.finish()
    yield made
    made.pupil.stop()
    made.pupil.finish()


@pytest.fixture(scope="module")
def place(engine: Engine) -> Iterator[Place]:
    with serving(find_place(0), lambda at: application(at, engine)) as served:
        yield served
