"""Figures and the report: a Record in, pictures and one self-contained HTML file out. Nothing is recomputed here."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "DARK": ".style",
        "Figure": ".figure",
        "LIGHT": ".style",
        "Style": ".style",
        "blocks": ".attention.figures",
        "block_map": ".spectral",
        "block_pairs": ".spectral",
        "course": ".training",
        "ablations": ".why",
        "block_bars": ".why",
        "ceilings": ".step_size",
        "loss_map": ".landscape",
        "loss_bars": ".compare",
        "rank_lines": ".compare",
        "density_curve": ".spectral",
        "export_figures": ".export",
        "drawn": ".page",
        "growth": ".attention.slopes",
        "attention_course": ".monitor",
        "monitored": ".monitor",
        "moments": ".attention.moments",
        "heads": ".depth",
        "heat_map": ".attention.heat",
        "jacobians": ".isometry",
        "spectrum": ".attention.figures",
        "taylor_lines": ".taylor",
        "texts": ".texts:",
        "through_depth": ".depth",
        "where_map": ".spectral",
        "write_report": ".html",
    },
)
