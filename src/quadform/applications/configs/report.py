"""The question of `quadform report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from .shared import Numerics


@dataclass(frozen=True, kw_only=True)
class ReportConfig(Numerics):
    """One self-contained HTML file. With no RUN it measures the built-in default first: a seeded toy attention layer.

    With RUN folders it redraws from what they hold and computes nothing.
    """

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="[RUN ...]", help_behavior_hint="")] = ()
    """Folders that hold a saved record (made by `quadform attention --out DIR` or an earlier report)."""
    open: bool = False
    """Show the file in the browser when it is written."""
