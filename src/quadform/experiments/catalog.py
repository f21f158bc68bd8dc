"""Which experiments there are: an id, and the module that holds it. Torch-free; a module is imported when asked for."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UnknownName, did_you_mean

if TYPE_CHECKING:
    from ..core.record import Record
    from .experiment import Experiment

#: In the order of the gallery.
CATALOG: dict[str, str] = {
    "heterogeneity": ".heterogeneity",
    "growth": ".growth",
    "growth-depth": ".growth_depth",
    "growth-norm": ".growth_norm",
    "growth-linear": ".growth_linear",
    "dependence": ".dependence",
    "temperature": ".temperature",
    "components": ".components",
    "scalar-spectra": ".scalar_spectra",
    "scalar-sinks": ".scalar_sinks",
    "rank-collapse": ".rank_collapse",
    "signal-preserving": ".signal_preserving",
    "projections": ".projections",
    "blocks": ".blocks",
    "collapse": ".collapse",
    "encoders": ".encoders",
    "training": ".training",
    "step-ceiling": ".step_ceiling",
    "gpt-sinks": ".gpt_sinks",
    "real-sinks": ".real_sinks",
    "trained-hessian": ".trained_hessian",
    "cross-attention": ".cross_attention",
    "finetuned-spectra": ".finetuned_spectra",
}

HERE = Path(__file__).parent
#: Small Records of the largest preset that was run, and the verdicts they and the smoke presets give.
RECORDS = HERE / "records"
VERDICTS = HERE / "verdicts.json"


def experiment(name: str) -> Experiment:
    """The experiment with this id."""
    if name not in CATALOG:
        raise UnknownName(
            f"{name!r} is not an experiment.{did_you_mean(name, CATALOG)} `quadform ls experiments` lists them."
        )
    return importlib.import_module(CATALOG[name], __package__).EXPERIMENT


def committed(name: str) -> Record | None:
    """The Record of this experiment that comes with the package; None where there is none yet."""
    from ..core.record import JSON_NAME, Record

    folder = RECORDS / name
    return Record.load(folder) if (folder / JSON_NAME).exists() else None


def expected_verdicts() -> dict[str, dict[str, dict[str, str]]]:
    """`{"smoke" or "record": {experiment: {key of the claim: status}}}`: what the tests compare with."""
    table: dict[str, Any] = json.loads(VERDICTS.read_text(encoding="utf-8"))
    return table
