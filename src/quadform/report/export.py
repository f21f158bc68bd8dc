"""Figures as files for papers and slides: SVG, PNG, PDF, drawn without a browser and without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..core.errors import FileError, UnknownName, did_you_mean
from ..core.record import Record, write_atomically
from .figure import pdf, png
from .page import drawn
from .style import LIGHT, Style
from .texts import language

#: Pixels of a PNG per pixel of the figure.
PNG_SCALE = 3


def export_figures(
    record: Record,
    folder: str | Path,
    formats: Iterable[str] = ("svg", "png", "pdf"),
    lang: str = "en",
    style: Style = LIGHT,
) -> list[Path]:
    """Write every figure of the record to `folder` (made if missing) in every format; the paths, figure by figure."""
    how = writers()
    formats = tuple(formats)
    for name in formats:
        if name not in how:
            raise UnknownName(f"{name!r} is not a figure format ({', '.join(how)}).{did_you_mean(name, how)}")
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for draw in drawn(record):
            figure = draw(record, language(lang), style)
            for name in formats:
                paths.append(folder / f"{figure.name}.{name}")
                write_atomically(paths[-1], how[name](figure.svg()))
    except OSError as error:
        raise FileError(f"cannot write figures to {folder}: {error}. Choose another folder.") from error
    return paths


def writers() -> dict[str, Callable[[str], bytes]]:
    """By format, what makes the bytes of a file from an SVG picture."""
    return {"svg": str.encode, "png": lambda picture: png(picture, PNG_SCALE), "pdf": pdf}
