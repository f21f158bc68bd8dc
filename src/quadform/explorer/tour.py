"""Presets, and the guided tour: seven steps, each one control moved from one state to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .state import State


@dataclass(frozen=True, kw_only=True)
class Step:
    """Where a step starts, the control to move, and where to; its words are `tour_NAME_title` and `tour_NAME`."""

    name: str
    start: State
    control: str
    to: float | int | str

    @property
    def end(self) -> State:
        return State(**(self.start.json() | {self.control: self.to}))


PRESETS: dict[str, State] = {
    "default": State(),
    "tiny": State(scale=0.05),
    "one_hot": State(scale=30.0),
    "linear": State(attention="linear"),
    "single": State(factor="single"),
    "sink": State(sink=6.0),
    "words": State(data="text", scale=2.0),
    "pre_ln": State(design="pre-ln", depth=4),
    "collapse": State(depth=8),
}
TOUR: tuple[Step, ...] = (
    Step(name="scale", start=State(scale=0.02), control="scale", to=0.1),
    Step(name="saturation", start=State(scale=1.0), control="scale", to=30.0),
    Step(name="temperature", start=State(scale=3.0), control="temperature", to=10.0),
    Step(name="softmax", start=State(), control="attention", to="linear"),
    Step(name="norm", start=State(scale=2.0, design="pre-ln-no-norm"), control="design", to="pre-ln"),
    Step(name="depth", start=State(depth=1, design="no-skip-no-norm"), control="depth", to=8),
    Step(name="sink", start=State(), control="sink", to=8.0),
)


def as_json() -> dict[str, Any]:
    """Presets and tour as the page takes them."""
    steps = [{"name": s.name, "start": s.start.json(), "control": s.control, "to": s.to} for s in TOUR]
    return {"presets": {name: state.json() for name, state in PRESETS.items()}, "tour": steps}
