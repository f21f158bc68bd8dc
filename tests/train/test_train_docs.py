"""docs/training.md tells the truth: its example runs as printed, its table names the data sets."""

from __future__ import annotations

import re
from pathlib import Path

from quadform.core import progress
from quadform.corpora.datasets import DATASETS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text()


def test_example_runs(tmp_path, monkeypatch):
    """The example learns to reverse words, and leaves the folder the loop promises."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "quiet", True)
    own: dict = {}
    exec(compile(re.search(r"```python\n(.*?)```", PAGE, re.S)[1], "training.md", "exec"), own)
    assert own["done"].valid["exact"].value > 0.9
    assert {p.name for p in (tmp_path / "runs" / "reverse").iterdir()} == {
        "metrics.jsonl",
        "checkpoint",
        "along",
        "best",
        "model",
    }


def test_every_data_set_is_in_the_table():
    """The table of the page has exactly the names of DATASETS."""
    rows = re.search(r"\| name \| task.*?\n\n", PAGE, re.S)[0].strip().splitlines()[2:]
    named = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])]
    assert named == list(DATASETS)
