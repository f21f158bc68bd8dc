"""The docstrings of public names: each begins with a sentence, and every example in them runs."""

from __future__ import annotations

import doctest
import inspect
import re

import pytest
import torch
from torch import nn

import quadform as qf

NAMES = [n for n in dir(qf) if not n.startswith("_") and callable(getattr(qf, n))]
#: The objects of the library, each with an example; questions have theirs in the guides.
WITH_EXAMPLES = {"hessian", "gauss_newton", "functional", "fisher", "solve", "Space", "Operator"}
WITH_EXAMPLES |= {"toy", "attention_hessian", "vary", "Transformer"}


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_begins_with_a_sentence(name: str) -> None:
    """A capital or a symbol first, a full stop, a question mark or a colon at the end of the first paragraph."""
    doc = inspect.getdoc(getattr(qf, name)) or ""
    first = doc.split("\n\n")[0]
    assert first
    assert first[-1] in ".?:"


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_described(name: str) -> None:
    """Sections `Args` (or `Fields`, of a question) name every parameter, and no other."""
    doc, given = inspect.getdoc(getattr(qf, name)) or "", inspect.signature(getattr(qf, name)).parameters
    section = re.search(r"^(Args|Fields):\n((?: {4}.*(?:\n|$))+)", doc, re.M)
    assert section or len(given) < 2
    if section and section[1] == "Args":
        told = [n for names in re.findall(r"^ {4}(\w[\w, ]*):", section[2], re.M) for n in names.split(", ")]
        assert sorted(told) == sorted(given)


@pytest.mark.parametrize("name", sorted(WITH_EXAMPLES))
def test_examples_run(name: str) -> None:
    """As a reader would type them, after `import quadform as qf`, `import torch`, `from torch import nn`."""
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc(getattr(qf, name)) or "", {"qf": qf, "torch": torch, "nn": nn}, name, None, None
    )
    assert example.examples
    torch.manual_seed(0)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)
