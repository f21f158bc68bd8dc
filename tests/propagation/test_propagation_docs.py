"""The examples of docs/propagation.md run as they are written, and their stated numbers hold."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
PAGE = Path(__file__).parents[2] / "docs" / "propagation.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_example_runs(number):
    """Each block runs in a fresh namespace with two batches of tokens and a model at hand."""
    batches = [(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)) for _ in range(2)]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        names = {"batches": batches, "model": torch.nn.TransformerEncoder(block, 3, enable_nested_tensor=False)}
        exec(BLOCKS[number], names)
    if "record" in names:
        assert float(names["record"].tensors["cosine"][-1]) == pytest.approx(0.80, abs=5e-3)
    if "Health" in names:
        assert "slope" in out.getvalue()
    if "found" in names:
        assert len(names["found"].layers("cosine")) == 4
    if "B" in names:
        assert bool(torch.isfinite(names["B"]).all())


def test_there_are_examples():
    """The page has its five examples (a changed fence would otherwise pass unseen)."""
    assert len(BLOCKS) == 5
