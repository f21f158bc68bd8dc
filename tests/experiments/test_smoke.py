"""Every experiment's smoke preset: it runs, it draws, and its verdicts are those of the committed table.

A claim that is not met is no failure of these tests; a verdict that changed is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quadform.experiments.catalog import CATALOG, expected_verdicts, experiment


@pytest.mark.parametrize("name", list(CATALOG))
def test_smoke_verdicts_are_the_committed_ones(name: str, tmp_path: Path) -> None:
    e = experiment(name)
    if e.needs:
        pytest.skip(f"{name} needs fetched data: {', '.join(e.needs)}")
    record = e.measure("smoke", progress=False)
    assert {v.claim.text: v.status for v in e.verdicts(record)} == expected_verdicts()["smoke"][name]
    record.save(tmp_path)
    figure = e.figure(record)
    assert figure.svg().startswith("<svg")
    assert figure.headline
    assert figure.table.rows
