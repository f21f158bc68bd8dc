"""The flags of a verb are the fields of its questions: types, defaults, help and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from quadform.cli.flags import read
from quadform.cli.options import LongWork, Output
from quadform.core.errors import InputError
from quadform.core.question import Fields, option, required, whole_numbers


@dataclass(frozen=True, kw_only=True)
class Opening(Fields):
    model: str = required("A run folder or a model.", metavar="MODEL")
    seed: int = option(0, "Seed.")
    batches: int = option(1, "Batches.", least=1)


@dataclass(frozen=True, kw_only=True)
class Toy(Fields):
    """A toy question."""

    top: int = option(5, "Number of largest eigenvalues.", least=0)
    seed: int = option(0, "Seed.")
    curvature: str = option("hessian", "Which operator.", choices=("hessian", "gauss_newton"))
    depths: Sequence[int] = option((2, 6), "Depths.", parse=whole_numbers)
    length: int | None = option(None, "Tokens.", shown="(default: the data's)", metavar="INT")
    params: str | tuple[str, ...] = option("*", "Which parameters.")
    callback: Any = option(None, "A function.", command_line=False)


PARTS = (Toy, Opening, LongWork, Output)


def test_parts_of_a_command() -> None:
    """Every part gets its own fields; a field of two parts is one flag; text not given leaves the default."""
    words = [
        "m",
        "--top",
        "3",
        "--seed",
        "7",
        "--depths",
        "4,2",
        "--max-time",
        "2m",
        "--out",
        "x",
        "--json",
        "--params",
        "a",
    ]
    asked, opening, limits, output = read("toy", PARTS, words)
    assert asked == Toy(top=3, seed=7, depths=(2, 4), params="a")
    assert opening == Opening(model="m", seed=7)
    assert limits == LongWork(max_time=120.0)
    assert output == Output(out="x", json=True)
    assert read("toy", PARTS, ["m"])[0] == Toy()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Defaults and help texts come from the fields; what is for Python alone is not shown."""
    with pytest.raises(SystemExit):
        read("toy", PARTS, ["--help"])
    out = capsys.readouterr().out
    for text in ("A toy question.", "--top INT", "(default: 5)", "{hessian,gauss_newton}", "(default: 2,6)"):
        assert text in out
    assert "(default: the data's)" in out
    assert "--callback" not in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "needs a MODEL: a run folder or a model."),
        (["m", "--tpo", "3"], "Did you mean `--top`?"),
        (["m", "--top", "many"], "takes a whole number"),
        (["m", "--top", "-1"], "top=-1: give at least 0."),
        (["m", "--curvature", "hesian"], "Did you mean `hessian`?"),
        (["m", "--depths", "a"], "whole numbers with commas"),
        (["m", "--max-time", "soon"], "not a length of time"),
        (["m", "--batches", "0"], "batches=0: give at least 1."),
        (["m", "--top"], "needs a value"),
        (["m", "n"], "takes no more words"),
    ],
)
def test_refusals(words: list[str], text: str) -> None:
    with pytest.raises(InputError) as refused:
        read("toy", PARTS, words)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)
