"""docs/preconditioners.md: its Python runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "preconditioners.md"


def test_the_page_runs() -> None:
    """Every block of Python, with what it says it prints."""
    seen, first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names: dict = {}
    exec(compile(first, PAGE.name, "exec"), names)
    assert names["P"].notes[0] == "K-FAC expand, exact scores: 4 of 6 tensors"
    assert set(names["step"]) == {n for n, _ in names["model"].named_parameters()}
    assert torch.isfinite(names["top"])
    exec(compile(seen, PAGE.name, "exec"), names)
    assert [x.name for x in names["found"].seen] == ["none", "adam", "kfac", "blocks"]
    exec(compile(second, PAGE.name, "exec"), names)
    errors = names["kronecker_errors"](names["layer"])["W_Q"]
    for kind, value in re.findall(r'"([^"]+)": (0\.\d+)', second):
        assert errors[kind] == pytest.approx(float(value), abs=6e-4)
