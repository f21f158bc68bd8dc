"""How values print and how notebooks show them: short, readable, escaped, nothing to fetch."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

import quadform as qf
from quadform.core.operator import Dense
from quadform.core.record import Estimate, Provenance, Record
from quadform.core.showing import MOST_ROWS, MissingPackage, brief, first_rows, html_table
from quadform.core.space import Space
from quadform.estimate import density, eigenpairs

LONGEST = 250


def record(scalars: dict[str, Estimate]) -> Record:
    made = Provenance.collect(dtype=torch.float64)
    return Record("test", {"n": 1}, scalars, {"H": torch.zeros(200, 200)}, made)


def things() -> dict[str, object]:
    X, W_Q, W_K, W_V, Y = qf.toy(tokens=4, d_model=3, seed=0)
    layer = qf.attention_hessian(X, W_Q, W_K, W_V, Y)
    model = nn.Linear(3, 2, dtype=torch.float64)
    risk = qf.Risk(model, lambda out, batch: (out - batch[1]).square().mean(), (X, Y[:, :2]), quiet=True)
    many = Space(tuple((f"layers.{i}.W", (2, 2)) for i in range(1000)))
    H = layer.hessian()
    return {
        "layer": layer,
        "operator": H,
        "moments": layer.moments(),
        "space": many,
        "risk": risk,
        "estimate": Estimate(1.23456, 0.1, "estimate"),
        "record": record({f"x{i}": Estimate(float(i)) for i in range(500)}),
        "eigenpairs": eigenpairs(H, 2),
        "density": density(H, probes=2, seed=0),
        "split": qf.theory.ScoreSplit(layer),
        "gauge": qf.theory.gauges(layer)[0],
        "bulk": qf.theory.layer_bulk(layer)[0],
    }


def test_values_print_in_one_short_line() -> None:
    """No address in memory, no tensor entry by entry."""
    for name, value in things().items():
        said = repr(value)
        assert " at 0x" not in said, name
        assert "tensor(" not in said, name
        assert len(said) <= LONGEST, (name, said)
        assert "\n" not in said, name


def test_what_is_said() -> None:
    found = things()
    assert repr(qf.hessian(found["risk"])) == "<symmetric Hessian 8 x 8, torch.float64, cpu>"
    assert repr(found["estimate"]) == "1.235 +- 0.1 [estimate]"
    assert repr(found["record"]).startswith("<Record 'test': 500 numbers, 1 tensors, ")
    assert repr(found["layer"]) == "<AttentionLayer over Space(W_Q 3x3, W_K 3x3, W_V 3x3; 27 coordinates), MeanSquared>"
    assert repr(found["risk"]) == "<Risk of Linear: 2 of 2 tensors, 8 parameters, 1 batches>"
    assert repr(found["moments"]) == "Moments(M1=1x4x3 float64, M2=1x4x3x3 float64, M3=1x4x9x3 float64)"
    assert repr(found["space"]).endswith(", and 994 more; 4,000 coordinates)")


def test_brief_words() -> None:
    assert brief(torch.zeros(2, 3)) == "2x3 float32"
    assert brief({str(i): i for i in range(9)}) == "{0: 0, 1: 1, 2: 2, 3: 3, ... 9 in all}"
    assert brief((1.5, "a")) == "(1.5, 'a')"


def test_notebooks_show_small_tables() -> None:
    """Operator, Estimate and Record: tables, every text escaped, rows beyond the limit counted."""
    A = Dense(torch.eye(2), Space((("<b>", (2,)),)))
    many = record({f"x{i}": Estimate(float(i), note="<script>") for i in range(500)})
    for value in (A, Estimate(1.0, note="<i>"), many):
        shown = value._repr_html_()
        assert shown.startswith("<table>")
        assert not any(tag in shown for tag in ("<b>", "<script", "<i>", "http", "src="))
    assert "&lt;b&gt;" in A._repr_html_()
    assert many._repr_html_().count("<tr>") == 1 + MOST_ROWS + 1
    assert "... 501 in all" in many._repr_html_()
    assert len(first_rows([("a", "b")] * MOST_ROWS)) == MOST_ROWS
    assert html_table(("a",), [("x",)]) == (
        "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>x</td></tr></tbody></table>"
    )


def test_a_rectangular_operator_shows_both_spaces() -> None:
    shown = Dense(torch.ones(2, 3), Space((("x", (3,)),)), Space((("y", (2,)),)))._repr_html_()
    assert "<td>from</td><td>x</td><td>3</td>" in shown
    assert "<td>to</td><td>y</td><td>2</td>" in shown


class Frame:
    """As much of a DataFrame as is used."""

    def __init__(self, rows: list[list[object]], columns: list[str]) -> None:
        self.rows, self.columns = rows, columns

    def set_index(self, name: str) -> Frame:
        self.index = name
        return self


def test_a_record_becomes_a_data_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row a number, every field of it; without pandas an error that names it."""
    kept = record({"a": Estimate(1.0, 0.5, "estimate", 7), "b": Estimate(2.0)})
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=Frame))
    frame = kept.to_dataframe()
    assert frame.columns[:4] == ["name", "value", "error", "kind"]
    assert [row[:4] for row in frame.rows] == [["a", 1.0, 0.5, "estimate"], ["b", 2.0, None, "exact"]]
    assert frame.index == "name"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match="pip install pandas"):
        kept.to_dataframe()
