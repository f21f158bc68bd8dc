"""Presets, and the guided tour: seven steps, each one control moved from one state to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .state import State


@dataclass(frozen=True, kw_only=True)
class Step:
    """Where a step starts, the control to move, where to, and which parts of the page it speaks of (their ids).

    Its words: `tour_NAME_title`, what to do (`tour_NAME`), and what is found, which `telling` writes from the numbers.
    """

    name: str
    start: State
    control: str
    to: float | int | str
    looks: tuple[str, ...]
    part: str = "total"

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
_PATTERN, _BLOCKS, _SLOPES = "attention-figure", "blocks-figure", "slopes-part"
TOUR: tuple[Step, ...] = (
    Step(name="scale", start=State(scale=0.02), control="scale", to=0.1, looks=(_SLOPES,)),
    Step(name="saturation", start=State(scale=1.0), control="scale", to=30.0, looks=(_PATTERN, _BLOCKS)),
    Step(name="temperature", start=State(scale=3.0), control="temperature", to=10.0, looks=(_PATTERN, "facts")),
    Step(name="softmax", start=State(), control="attention", to="linear", looks=("heat-figure",), part="functional"),
    Step(
        name="norm",
        start=State(scale=2.0, design="pre-ln-no-norm"),
        control="design",
        to="pre-ln",
        looks=("facts", _SLOPES),
    ),
    Step(name="depth", start=State(depth=1, design="no-skip-no-norm"), control="depth", to=8, looks=("depth-figure",)),
    Step(name="sink", start=State(), control="sink", to=8.0, looks=(_PATTERN, _BLOCKS)),
)


STEPS = {step.name: step for step in TOUR}


def as_json() -> dict[str, Any]:
    """Presets and tour as the page takes them."""
    steps = [
        {
            "name": s.name,
            "start": s.start.json(),
            "control": s.control,
            "to": s.to,
            "part": s.part,
            "looks": [f"control-{s.control}", *s.looks],
        }
        for s in TOUR
    ]
    return {"presets": {name: state.json() for name, state in PRESETS.items()}, "tour": steps}
