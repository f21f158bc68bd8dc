"""The stages of a pipeline (torch.distributed.pipelining) have the products of the whole; they stay as they were."""

from __future__ import annotations

from functools import partial

import pytest
from test_distributed import Found, at_work
from test_distributed import results as results_of

CHECKS = {2: "products pairs refused failing", 3: "products failing killed"}
#: Declared beforehand, relative.
ROUNDING, VALUES = 1e-14, 1e-10
#: Seconds in which a failure is heard of, on a busy machine.
SOON = 30


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return at_work(tmp_path_factory.mktemp("piped"), CHECKS, "at_piped.py")


results = partial(results_of, checks=CHECKS)


@pytest.mark.parametrize("pipeline", ["stage", "gpipe", "1f1b"])
@pytest.mark.parametrize("name", ["value", "gradient", "hessian", "gauss_newton"])
def test_products_are_those_of_one_process(found: Found, pipeline: str, name: str) -> None:
    """Over 2 and 3 stages, two batches of unequal size, activations beside numbers that are not differentiated."""
    for _, _, result in results(found, "products"):
        assert result[f"{pipeline}, {name}"] <= ROUNDING


def test_functional_part(found: Found) -> None:
    for _, _, result in results(found, "products"):
        assert result["stage, functional"] <= ROUNDING


def test_the_model_stays_as_it_was(found: Found) -> None:
    """Weights, gradients, forward methods; torch's own schedule gives the right gradient afterwards."""
    for _, _, result in results(found, "products"):
        assert result["kept"]
        assert result["forwards"] == []
        assert result["torch"] <= ROUNDING


def test_eigenpairs(found: Found) -> None:
    """Eigenvalues are those of the whole model; a process holds the part of a vector that belongs to its stage."""
    every = results(found, "pairs")
    for _, _, result in every:
        assert result["values"] <= VALUES
        assert result["lengths"] <= 1e-12
    assert sum(result["sizes"][0] for _, _, result in every) == every[0][2]["sizes"][1]


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "interleaved": "ScheduleInterleaved1F1B has several stages in a process",
        "several": "a pipeline of 4 stages over 2 of 2 processes",
        "sharded": "inside a pipeline, which is not supported",
        "tied": "`embed.weight` of stage 0 and `head.weight` of stage 1 are tied",
        "no loss": "a pipeline needs loss=",
        "training": "measured with train_mode=False",
        "data": "each stage of a pipeline needs all batches, in one order",
        "split": "at the output of the network alone",
        "fisher": "lies in one stage of a pipeline",
        "question": "this question needs the whole",
    }.items(),
)
def test_refused(found: Found, name: str, words: str) -> None:
    """What is not known is refused in every process, by name."""
    for _, _, result in results(found, "refused"):
        assert result[name][0] == "InputError", result[name]
        assert words in result[name][2]


def test_failing(found: Found) -> None:
    """Numbers that are none are told to all; all hear of a process without memory, and its stage is as it was."""
    for world, _, result in results(found, "failing"):
        assert "Loss is nan on probe batch 1 of 2" in result["nan"][2]
        text = f"process {world - 1} of {world} stopped: OutOfMemoryError: CUDA out of memory. Tried to allocate"
        assert result["raised"][0] == "PeerFailed"
        assert text in result["raised"][2]
        assert result["waited"] < SOON
        assert result["forwards"] == []


def test_a_process_that_dies(found: Found) -> None:
    for _, _, result in results(found, "killed"):
        assert result["error"][0] == "PeerFailed"
        assert "one of them was killed" in result["error"][2]
        assert result["waited"] < SOON
