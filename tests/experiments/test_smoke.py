"""Every experiment's smoke preset: it runs, it draws, and its verdicts are those of the committed table.

A claim that is not met is no failure of these tests; a verdict that changed is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quadform.core.work import Work
from quadform.experiments.catalog import CATALOG, experiment

from . import VERDICTS

NEEDY = [name for name in CATALOG if experiment(name).needs(experiment(name).config("smoke"))]


@pytest.mark.parametrize("name", [name for name in CATALOG if name not in NEEDY])
def test_smoke_verdicts_are_the_committed_ones(name: str, tmp_path: Path) -> None:
    check_smoke(name, tmp_path)


def check_smoke(name: str, tmp_path: Path) -> None:
    e = experiment(name)
    record = e.measure("smoke", work=Work(progress=False))
    assert {v.claim.text: v.status for v in e.verdicts(record)} == VERDICTS["smoke"][name]
    record.save(tmp_path)
    figure = e.figure(record)
    assert figure.svg().startswith("<svg")
    assert figure.headline
    assert figure.table.rows
