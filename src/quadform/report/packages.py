"""The packages of the extra `report`; importing this module says in one sentence which of them is missing."""

from __future__ import annotations

from ..core.errors import needing

with needing("A figure"):
    import altair as alt
    import jinja2
    import markupsafe
    import vl_convert

__all__ = ["alt", "jinja2", "markupsafe", "vl_convert"]
