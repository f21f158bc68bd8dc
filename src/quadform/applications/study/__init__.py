"""A study: everything the instrument knows of one model, stage by stage, each stage a Record in the study's folder.

    FOLDER/study.json                                         what was asked and which stages belong to it
    FOLDER/training  spectrum  lr  signal  why  attention     one record each; `quadform report FOLDER` redraws them
    FOLDER/run                                                the training run, where the study trained the model itself

With no model the embedded default is trained first: two Pre-LN layers on two-digit addition.
"""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Study": ".folder",
        "holds_run": ".folder",
        "open_studies": ".measure",
        "plan": ".measure",
        "records_in": ".folder",
    },
)
