"""A study: everything the instrument knows of one model, section by section, each a Record in the study's folder."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Report": ".answer",
        "ReportQuestion": ".question",
        "Study": ".answer",
        "holds_run": ".targets",
        "records_in": ".targets",
        "study": ".call",
    },
)
