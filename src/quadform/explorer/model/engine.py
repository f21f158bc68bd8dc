"""The engine behind the page of a model: a thread measures panel after panel, answers tell how far it is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...applications.subject import Subject
from ...core.errors import InputError, QuadformError
from ...core.record import Record
from ...report.style import STYLES
from ..message import answered
from ..state import ControlError
from ..texts import LANGUAGES
from .maps import Maps, Reader
from .panels import PANELS, Panel, shown

#: Letters of a sentence.
LONGEST = 2000


@dataclass
class Progress:
    """How far one panel is: `waiting`, `running`, `done` or `failed`, with its record or why there is none."""

    panel: Panel
    status: str = "waiting"
    done: int = 0
    total: int = 1
    left: float = 0.0
    text: str = ""
    record: Record | None = None

    def report(self, done: int, total: int, left: float, text: str) -> None:
        self.done, self.total, self.left, self.text = done, total, left, text

    def run(self, subject: Subject) -> None:
        self.status = "running"
        try:
            self.record, self.status = self.panel.measure(subject, self.report), "done"
        except Exception as error:  # the page and the other panels stay
            self.text = str(error) if isinstance(error, QuadformError) else f"{type(error).__name__}: {error}"[:300]
            self.status = "failed"


class ModelEngine:
    """Answers the page of one opened model; measuring begins with the first page that asks."""

    def __init__(self, subject: Subject, panels: Sequence[Panel] = PANELS) -> None:
        self.subject = subject
        self.progress = [Progress(panel) for panel in panels]
        self.pictures: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.thread: threading.Thread | None = None
        self._reader: Reader | InputError
        try:
            self._reader = Reader(subject)
        except InputError as error:
            self._reader = error

    @property
    def busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def start(self) -> None:
        """Begin to measure, once."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._measure, name="quadform-model", daemon=True)
            self.thread.start()

    def _measure(self) -> None:
        for progress in self.progress:
            progress.run(self.subject)

    def answer(self, text: str | bytes) -> dict[str, Any]:
        """How far every panel is, the pictures the page lacks (`have` names what it has), and the maps of a sentence
        where one is asked for (`text`)."""
        return answered(text, LANGUAGES, self._answer)

    def _answer(self, body: dict[str, Any], lang: str) -> dict[str, Any]:
        theme, have = body.get("theme", "light"), body.get("have", [])
        if "seq" not in body or body.get("lang", "en") != lang or theme not in [*STYLES] or not isinstance(have, list):
            raise ControlError("", "message")
        self.start()
        panels = [self._panel(p, body, lang, theme) for p in self.progress]
        found = {"kind": "answer", "seq": body["seq"], "panels": panels}
        if isinstance(body.get("text"), str):
            found["maps"] = self._maps(body["text"][:LONGEST])
        return found

    def _panel(self, progress: Progress, body: dict[str, Any], lang: str, theme: str) -> dict[str, Any]:
        name = progress.panel.name
        told = {"name": name, "status": progress.status, "done": progress.done, "total": progress.total}
        told |= {"left": progress.left, "text": progress.text}
        if progress.record is not None and name not in body.get("have", []):
            key = (name, lang, theme)
            if key not in self.pictures:
                self.pictures[key] = shown(progress.record, lang, theme)
            told["shown"] = self.pictures[key]
        return told

    def _maps(self, text: str) -> dict[str, Any]:
        if isinstance(self._reader, InputError):
            return {"error": str(self._reader)}
        try:
            maps: Maps = self._reader.read(text)
        except QuadformError as error:
            return {"error": str(error)}
        layers = {name: {"heads": len(A), "cells": A.contiguous().numpy().tobytes()} for name, A in maps.layers.items()}
        return {"labels": maps.rows, "side": len(maps.rows), "layers": layers}

    @property
    def sentence(self) -> str:
        return "" if isinstance(self._reader, InputError) else self._reader.sentence
