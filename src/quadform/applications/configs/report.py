"""The question of `quadform report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from .shared import LongWork, Numerics


@dataclass(frozen=True, kw_only=True)
class ReportConfig(LongWork, Numerics):
    """One self-contained HTML file. With no word it trains the built-in default, two-digit addition, and studies it.

    Folders that hold saved records are redrawn and nothing is computed; several are set side by side. A MODEL (a run
    folder, a local Hugging Face folder, `new:pre-ln,depth=6`) is measured first: learning rate, spectrum, signal, and
    what each of its parts does. `--resume` keeps the stages that are finished; with `--max-time` the page is drawn from
    those there are, and says which are missing.
    """

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="[MODEL|RUN ...]", help_behavior_hint="")] = ()
    """Saved studies or single records (`--out DIR` of any verb), or models to be measured."""
    data: str = "auto"
    """Data of the probe when a model is measured: a data set, a text file, or `auto` (what the run was trained on)."""
    figures: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Write every figure there as SVG, PNG and PDF too."""
    open: bool = False
    """Show the file in the browser when it is written."""
