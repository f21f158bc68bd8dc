"""Which experiments there are: an id, and the module that holds it. Torch-free; a module is imported when asked for."""

from __future__ import annotations

import functools
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import FileError, UnknownName, did_you_mean

if TYPE_CHECKING:
    from ..core.record import Record
    from .experiment import Experiment

CATALOG: dict[str, str] = {
    "heterogeneity": ".heterogeneity",
    "growth": ".growth",
    "growth-depth": ".growth_depth",
    "growth-norm": ".growth_norm",
    "norm-depth": ".norm_depth",
    "growth-linear": ".growth_linear",
    "dependence": ".dependence",
    "sums": ".sums",
    "temperature": ".temperature",
    "components": ".components",
    "scalar-spectra": ".scalar_spectra",
    "gauss-newton": ".gauss_newton",
    "scalar-sinks": ".scalar_sinks",
    "rank-collapse": ".rank_collapse",
    "signal-preserving": ".signal_preserving",
    "projections": ".projections",
    "beta": ".beta",
    "v-skipinit": ".v_skipinit",
    "blocks": ".blocks",
    "parity": ".parity",
    "collapse": ".collapse",
    "encoders": ".encoders",
    "training": ".training",
    "warm-up": ".warm_up",
    "step-ceiling": ".step_ceiling",
    "spikes": ".spikes",
    "newton": ".newton",
    "flatness": ".flatness",
    "obs": ".obs",
    "quantization": ".quantization",
    "pruning": ".pruning",
    "compression": ".compression",
    "adam-diagonal": ".adam_diagonal",
    "sgd-adam": ".sgd_adam",
    "optimizers": ".optimizers",
    "gpt-sinks": ".gpt_sinks",
    "gpt-code": ".gpt_code",
    "real-sinks": ".real_sinks",
    "trained-hessian": ".trained_hessian",
    "cross-attention": ".cross_attention",
    "finetuned-spectra": ".finetuned_spectra",
}
"""Experiments by id, each with the module that holds it, in the order of the gallery."""

HERE = Path(__file__).resolve().parent
#: Records of the largest preset that was run, in the repository; the package has a summary of them.
RECORDS = HERE.parents[2] / "docs" / "gallery" / "records"
RECORDED = HERE / "recorded.json"


def experiment(name: str) -> Experiment:
    """The experiment with this id."""
    return importlib.import_module(module_of(name), __package__).EXPERIMENT


def module_of(name: str) -> str:
    """The module of the experiment with this id."""
    if name not in CATALOG:
        raise UnknownName(
            f"{name!r} is not an experiment.{did_you_mean(name, CATALOG)} `quadform ls experiments` lists them."
        )
    return CATALOG[name]


def committed(name: str) -> Record | None:
    """The Record of this experiment that is kept in the repository; None where there is none yet."""
    from ..core.record import JSON_NAME, Record

    if not RECORDS.is_dir():
        raise FileError(
            f"the records of the experiments are in the repository (docs/gallery/records), not in the installed"
            f" package. Use a checkout, or measure again: `quadform reproduce {name}`."
        )
    folder = RECORDS / name
    return Record.load(folder) if (folder / JSON_NAME).exists() else None


@dataclass(frozen=True)
class Recorded:
    """What a Record of the repository says: its preset, its cost, and how many claims have which status."""

    preset: str
    seconds: float
    device: str
    claims: dict[str, int]


@functools.cache
def recorded() -> dict[str, Recorded]:
    """By experiment, what its Record says; those without a Record are left out."""
    table = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {name: Recorded(**row) for name, row in table.items()}
