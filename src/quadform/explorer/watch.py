"""The page of a training run that a monitor watches: it follows the record, and draws it again when it has grown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..answers.monitor import MonitorAnswer
from ..core.errors import FileError, InputError, QuadformError
from ..core.record import JSON_NAME, Record
from ..report.monitor import figures
from ..report.style import STYLES
from .door import Starlette, behind, files_of, filled
from .message import answered
from .state import ControlError
from .texts import LANGUAGES

if TYPE_CHECKING:
    from .serving import Place

_HERE = Path(__file__).parent


@dataclass
class Watching:
    """Answers `{"seq", "lang", "theme", "version"}`: what the record says, with pictures where it is newer than that
    version."""

    folder: Path
    busy: bool = False

    def answer(self, text: str | bytes) -> dict[str, Any]:
        """The sentence, the warnings and the pictures of the record as it is now."""
        return answered(text, LANGUAGES, self._answer)

    def _answer(self, body: dict[str, Any], lang: str) -> dict[str, Any]:
        seq, known, theme = body.get("seq"), body.get("version"), body.get("theme")
        if seq is None or known is None or theme not in [*STYLES] or body.get("lang") != lang:
            raise ControlError("", "message")
        texts = LANGUAGES[lang]
        try:
            version = (self.folder / JSON_NAME).stat().st_mtime_ns
            if known == str(version):
                return {"kind": "answer", "seq": seq, "version": str(version)}
            record = Record.load(self.folder)
            answer = MonitorAnswer(record)
            drawn = [draw(record, texts, STYLES[theme]) for draw in figures(record)]
            pictures = [{"title": f.title, "svg": f.svg(), "alt": f.headline} for f in drawn]
            told = {"said": answer.said(lang), "warnings": list(answer.warnings)}
            return {"kind": "answer", "seq": seq, "version": str(version), **told, "pictures": pictures}
        except (QuadformError, OSError):  # it is just being written; the page asks again
            return {"kind": "answer", "seq": seq, "version": ""}


def watched(folder: str | Path) -> Path:
    """A folder with the record of a monitor; another is refused."""
    path = Path(folder)
    try:
        kind = Record.load(path).kind
    except FileError as error:
        raise InputError(
            f"`{folder}` holds no record of a monitor. Give the folder that qf.Monitor(out=...) writes, after its first"
            f" reading ({error})"
        ) from error
    if kind != MonitorAnswer.kind:
        raise InputError(f"`{folder}` holds a record of {kind!r}, which does not grow; `quadform report` draws it.")
    return path


def application(place: Place, folder: Path) -> Starlette:
    """The page for a server at `place`."""
    texts = {lang: t("watch_title", name=folder.name) for lang, t in LANGUAGES.items()}

    def render(lang: str) -> str:
        return filled(_HERE / "templates" / "watch.html.j2", t=LANGUAGES[lang], lang=lang, title=texts[lang])

    files = files_of(_HERE / "templates" / "page.css.j2", (_HERE / "static").glob("*.js"))
    return behind(place, Watching(folder), render, lambda: files)
