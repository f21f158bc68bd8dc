"""What the report reads off an attention record is what its matrices say."""

from __future__ import annotations

import pytest

from quadform.answers.attention import AttentionAnswer
from quadform.applications.attention import attention
from quadform.report.attention.tables import measured
from quadform.report.texts import EN


@pytest.mark.parametrize("factor", ["qk", "single"])
def test_norm_of_the_whole_counts_each_off_diagonal_block_twice(factor: str) -> None:
    """|H|_F from the norms of the unique blocks is that of the whole matrix, for H, H_o and H_f."""
    record = attention(tokens=4, d_model=3, factor=factor, progress=False).record
    read = AttentionAnswer(record)
    H = {"outer": record.tensors["H_o"], "functional": record.tensors["H_f"]}
    H["total"] = H["outer"] + H["functional"]
    for part, matrix in H.items():
        assert read.whole_norm(part) == pytest.approx(float(matrix.norm()), rel=1e-12), part


def test_settings_are_told_once_and_alone() -> None:
    """The rows of settings are those of the layer; the question a record answers is not repeated as one of them."""
    record = attention(tokens=3, d_model=2, vary=None, progress=False).record
    rows = [row for row in measured(record) if row.group == EN("group_setting")]
    assert not any("{" in row.value for row in rows)
    assert {row.label for row in rows} == {
        EN(f"row_{name}") for name in ("layer", "shape", "mask", "precision", "seed", "scale", "temperature", "sink")
    }
