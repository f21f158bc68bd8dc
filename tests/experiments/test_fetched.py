"""Smoke presets of the experiments on fetched models, where the models are here; skipped by name where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from quadform.experiments.catalog import experiment
from quadform.experiments.runner import missing

from .test_smoke import NEEDY, check_smoke


@pytest.mark.parametrize("name", NEEDY)
def test_smoke_verdicts_on_fetched_models(name: str, tmp_path: Path) -> None:
    """Verdicts are those of the committed table."""
    lacking = missing(experiment(name), "smoke")
    if lacking:
        pytest.skip(f"{name} needs fetched data: {', '.join(lacking)}")
    check_smoke(name, tmp_path)
