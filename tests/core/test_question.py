"""Questions check themselves, parse text, and say what they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from quadform.core.errors import InputError, UnknownName
from quadform.core.question import Question, option, options, required, seconds_of, whole_numbers, words_of


@dataclass(frozen=True, kw_only=True)
class Toy(Question):
    verb = "toy"
    again = frozenset({"products"})

    model: str = required("A model.", metavar="MODEL")
    top: int = option(5, "Number of largest eigenvalues.", least=0)
    curvature: str = option("hessian", "Which operator.", choices=("hessian", "gauss_newton"))
    momentum: float = option(0.9, "Momentum.", least=0, below=1)
    depths: Sequence[int] = option((2, 6), "Depths.", parse=whole_numbers)
    length: int | None = option(None, "Tokens.", least=1)
    products: int = option(60, "Most products.", above=0)

    def measurement(self, subject: Any = None) -> Any: ...

    @classmethod
    def answer(cls, record: Any) -> Any: ...

    def check(self) -> None:
        if self.top > self.products:
            raise InputError("more eigenvalues than products.")


def test_defaults_text_and_identity() -> None:
    """Text is parsed, what a resumed run may change is left out, tuples are lists."""
    asked = Toy(model="m", depths="6,2,2")
    assert asked.depths == (2, 6)
    assert asked.identity() == {
        "verb": "toy",
        "model": "m",
        "top": 5,
        "curvature": "hessian",
        "momentum": 0.9,
        "depths": [2, 6],
        "length": None,
    }
    assert list(options(Toy)) == ["model", "top", "curvature", "momentum", "depths", "length", "products"]
    with pytest.raises(TypeError):
        Toy()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"top": -1}, "top=-1: give at least 0."),
        ({"momentum": 1.0}, "momentum=1: give a number below 1."),
        ({"momentum": math.nan}, "momentum=nan: give a finite number."),
        ({"products": 0}, "products=0: give a number above 0."),
        ({"length": 0}, "length=0: give at least 1."),
        ({"top": 61}, "more eigenvalues than products."),
        ({"depths": "2,x"}, "'2,x': give whole numbers with commas between, such as 0,100."),
    ],
)
def test_refusals(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as refused:
        Toy(model="m", **fields)
    assert str(refused.value) == text


def test_unknown_choices_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"choose from hessian, gauss_newton. Did you mean `hessian`\?"):
        Toy(model="m", curvature="hesian")


def test_text_of_the_command_line() -> None:
    assert [seconds_of(t) for t in ("90", "90s", "1.5m", "2h")] == [90, 90, 90, 7200]
    assert words_of("a, b,,a") == ("a", "b")
    for bad in ("soon", "0", "-1s", "1d"):
        with pytest.raises(InputError, match="not a length of time"):
            seconds_of(bad)
