"""The rank-collapse table: drawn stacks reproduce the stated numbers, and claims can be seen failing."""

import dataclasses

import pytest
import torch

from quadform.core.errors import InputError
from quadform.core.record import Estimate, Record
from quadform.experiments import rank_collapse_table as table

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def record():
    """The first ten layers of the full-size table (T = 100, d = 256, H = 8, schedules of 100 layers)."""
    return table.rank_collapse_table(depths=(1, 3, 10), seeds=4, schedule_depth=100)


@pytest.mark.slow
def test_stated_numbers_hold(record):
    """Every stated number at depths up to 10 agrees with four newly drawn networks."""
    result = table.check(record)
    assert len(result) == 7 * 3 + 3
    assert all(result.values()), [statement for statement, holds in result.items() if not holds]


@pytest.mark.slow
def test_prediction_beside_the_drawing(record):
    """The mean-field column lies within 0.05 of the drawn mean everywhere (d = 256, four networks)."""
    assert float((record.tensors["cosine"] - record.tensors["predicted"]).abs().max()) < 0.05
    exact = table.ROWS["U-SPA"].spa[1]
    assert float(record.tensors["predicted"][5, 10]) == pytest.approx(1 - (1 - exact) ** 0.1, abs=1e-12)


@pytest.mark.slow
def test_a_wrong_number_fails(record):
    """A claim moved by ten per cent is seen to fail; so is a bound that is not met."""
    claim = next(c for c in table.CLAIMS if c.key == "no skip/cosine/3")
    assert claim.holds(record)
    assert not dataclasses.replace(claim, expect=0.9 * claim.expect).holds(record)
    assert not table.Claim("", "no skip, bidirectional/residual/3", 1e-30, most=True).holds(record)


def test_a_claim_allows_for_the_spread_of_both_means():
    """Two means of networks, of n and of m, differ by t sqrt(s^2 / n + s^2 / m), s^2 / n the squared standard error."""
    near = table.rank_collapse_table(seq_len=4, dim=4, heads=1, depths=(1,), seeds=2, predict=False)
    near = dataclasses.replace(near, inputs={"seeds": 8}, scalars={"x": Estimate(0.0, 1.0, "estimate")})
    width = 4.4 * (1 + 8 / 2) ** 0.5  # Student's t of 7 degrees of freedom at 0.3 %: 4.40
    assert table.Claim("", "x", 0.98 * width, networks=2).holds(near)
    assert not table.Claim("", "x", 1.02 * width, networks=2).holds(near)


def test_the_table_reads_and_saves(tmp_path):
    """A small table survives saving, and prints one line a row with the predictions in brackets."""
    small = table.rank_collapse_table(seq_len=6, dim=8, heads=2, depths=(1, 2), seeds=2)
    loaded = Record.load(small.save(tmp_path / "table"))
    text = table.markdown(loaded).splitlines()
    assert len(text) == 2 + len(table.ROWS)
    assert "(" in text[2]
    assert loaded.scalars["no skip/cosine/2"] == small.scalars["no skip/cosine/2"]
    assert isinstance(loaded.scalars["no skip/cosine/2"], Estimate)


def test_bad_input_is_named():
    """Heads that do not divide, schedules shorter than the depth, and claims on one network are refused."""
    with pytest.raises(InputError, match="heads"):
        table.rank_collapse_table(dim=10, heads=3)
    with pytest.raises(InputError, match="schedule_depth"):
        table.rank_collapse_table(depths=(1, 5), schedule_depth=3)
    one = table.rank_collapse_table(seq_len=4, dim=4, heads=1, depths=(1,), seeds=1, predict=False)
    with pytest.raises(InputError, match="at least two"):
        table.CLAIMS[0].holds(one)
