"""Figures as files for papers and slides: SVG, PNG, PDF, drawn without a browser and without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..core.errors import FileError, UnknownName, did_you_mean
from ..core.record import Record, write_atomically
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
    writers = _writers()
    formats = tuple(formats)
    for name in formats:
        if name not in writers:
            raise UnknownName(f"{name!r} is not a figure format ({', '.join(writers)}).{did_you_mean(name, writers)}")
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for draw in drawn(record):
            figure = draw(record, language(lang), style)
            for name in formats:
                paths.append(folder / f"{figure.name}.{name}")
                write_atomically(paths[-1], writers[name](figure.spec))
    except OSError as error:
        raise FileError(f"cannot write figures to {folder}: {error}. Choose another folder.") from error
    return paths


def _writers() -> dict[str, Callable[[dict[str, Any]], bytes]]:
    from .packages import vl_convert

    return {
        "svg": lambda spec: vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]).encode(),
        "png": lambda spec: vl_convert.vegalite_to_png(spec, scale=PNG_SCALE, allowed_base_urls=[]),
        "pdf": lambda spec: vl_convert.vegalite_to_pdf(spec, allowed_base_urls=[]),
    }
