"""Figures and the report: a Record in, pictures and one self-contained HTML file out. Nothing is recomputed here."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "DARK": ".style",
        "Figure": ".figure",
        "LIGHT": ".style",
        "Style": ".style",
        "blocks": ".figures",
        "cards": ".verdict",
        "export_figures": ".export",
        "figures": ".figures:",
        "growth": ".slopes",
        "heat_map": ".heat",
        "spectrum": ".figures",
        "texts": ".texts:",
        "write_report": ".html",
    },
)
