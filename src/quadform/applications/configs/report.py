"""The question of `quadform report`."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.question import option
from .shared import LongWork, Numerics


@dataclass(frozen=True, kw_only=True)
class ReportConfig(LongWork, Numerics):
    """One self-contained HTML file. With no word it trains the built-in default, two-digit addition, and studies it.

    Folders that hold saved records are redrawn and nothing is computed; several are set side by side. A MODEL (a run
    folder, a local Hugging Face folder, `new:pre-ln,depth=6`) is measured first: learning rate, spectrum, signal, and
    what each of its parts does. `--resume` keeps the stages that are finished; with `--max-time` the page is drawn from
    those there are, and says which are missing.
    """

    runs: tuple[str, ...] = option(
        (),
        "Saved studies or single records (`--out DIR` of any verb), or models to be measured.",
        positional=True,
        metavar="[MODEL|RUN ...]",
    )
    data: str = option(
        "auto",
        "Data of the probe when a model is measured: a data set, a text file, or `auto` (what the run was trained on).",
    )
    figures: str | None = option(None, "Write every figure there as SVG, PNG and PDF too.", metavar="DIR")
    lang: str = option("en", "Language of the report.", choices=("en", "ko"))
    open: bool = option(False, "Show the file in the browser when it is written.")
