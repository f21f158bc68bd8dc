"""The engine behind the lecture: a message in, a step with its pictures out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..explorer.message import answered
from .controls import Refused, read
from .course import STEPS
from .pupil import Pupil
from .step import Asked, Shown, Step
from .texts import LANGUAGES, Texts

BY_NAME = {step.name: step for step in STEPS}


@dataclass
class Engine:
    """Answers messages one after the other, on one thread: the matrices are small."""

    pupil: Pupil = field(default_factory=Pupil)
    acted: str = ""

    @property
    def busy(self) -> bool:
        """Whether a model is being trained."""
        return self.pupil.running

    def answer(self, text: str | bytes) -> dict[str, Any]:
        """The answer to a message as it came: an `answer`, or an `error` at a control."""
        return answered(text, LANGUAGES, self._answer)

    def _answer(self, body: dict[str, Any], lang: str) -> dict[str, Any]:
        seq, step = body.get("seq"), BY_NAME.get(str(body.get("step")))
        if not isinstance(seq, int) or isinstance(seq, bool) or step is None:
            raise Refused("", "message")
        values, texts = read(step.controls, body.get("values", {}), lang), LANGUAGES[lang]
        torch.set_num_threads(1)
        asked = Asked(values=values, texts=texts, pupil=self.pupil)
        acted = self._act(step, asked, body.get("action"))
        return {"kind": "answer", "seq": seq, "acted": acted, **view(step, values, step.show(asked), texts)}

    def _act(self, step: Step, asked: Asked, action: Any) -> str | None:
        """Do what a button asks, once: the page repeats it until it is answered, since only its newest event counts."""
        if action is None:
            return None
        name, number = (str(action.get("name")), action.get("id")) if isinstance(action, dict) else ("", None)
        if name not in step.acts or not isinstance(number, str):
            raise Refused("", "message")
        if number != self.acted:
            self.acted = number
            step.acts[name](asked)
        return number


def view(step: Step, values: dict[str, Any], shown: Shown, texts: Texts) -> dict[str, Any]:
    """A step as the page takes it."""
    most = shown.most
    clipped = {n: min(v, most[n]) if n in most else v for n, v in values.items()}
    controls = [
        {
            "name": c.name,
            "label": texts(f"action_{shown.actions[c.name]}" if c.name in shown.actions else f"control_{c.name}"),
            "value": clipped[c.name],
            "action": shown.actions.get(c.name, ""),
            **c.json(clipped[c.name], texts, most.get(c.name)),
        }
        for c in step.controls
        if c.name not in shown.hidden
    ]
    return {
        "step": step.name,
        "controls": controls,
        "says": shown.says,
        "panels": shown.panels,
        "exercise": shown.exercise,
        "answer": shown.answer,
        "python": shown.python,
        "running": shown.running,
    }
