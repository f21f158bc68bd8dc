"""Kernels compiled ahead: what a rehearsal notes is what derivatives launch (`at_ahead`, without a GPU)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from quadform.kernels import ahead


@pytest.fixture(scope="module")
def launched():
    if torch.cuda.is_available():
        pytest.skip("the script stands in for a GPU's driver, and there is a GPU")
    script = Path(__file__).with_name("at_ahead.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", ["causal", "masked", "grouped", "half", "biased"])
def test_what_is_compiled_ahead_is_what_is_launched(launched, case):
    """With a second derivative announced, no launch finds its kernel missing."""
    assert len(launched[case]) >= 6
    late = [(name, key) for warmup, name, key in launched[case] if not warmup]
    assert not late


def test_nothing_is_compiled_ahead_where_no_second_derivative_is_announced(launched):
    assert {warmup for warmup, *_ in launched["not announced"]} == {False}


def test_a_launch_whose_compilation_ahead_failed_compiles_by_itself(launched):
    assert sorted(launched["failed"]) == sorted(launched["not announced"])


def test_a_rehearsal_that_fails_changes_nothing():
    def rehearsal():
        raise ValueError("not like this")

    ahead.begin("a test", rehearsal, torch.device("cpu"))
    assert not ahead._compiling
    assert ahead._noted.get() is None
