"""The errors people meet: kinds, exit codes, texts, suggestions; names that load when first used; random streams."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch

import quadform
import quadform.core
from quadform.core import errors
from quadform.core.errors import closest, did_you_mean
from quadform.core.lazy import attach
from quadform.core.rng import stream


@pytest.mark.parametrize(
    ("kind", "bases", "code"),
    [
        (errors.QuadformError, (Exception,), 1),
        (errors.InputError, (errors.QuadformError, ValueError), 2),
        (errors.UnknownName, (errors.InputError, KeyError), 2),
        (errors.FileError, (errors.InputError,), 2),
        (errors.TooLarge, (errors.InputError, MemoryError), 2),
        (errors.CheckFailed, (errors.QuadformError,), 3),
    ],
)
def test_kinds_and_exit_codes(kind: type[errors.QuadformError], bases: tuple[type, ...], code: int) -> None:
    """Each error is also Python's own of its kind, prints its text as it is, and survives a process boundary."""
    error = kind("what was 'asked'.")
    assert isinstance(error, bases)
    assert kind.exit_code == code
    assert str(error) == "what was 'asked'."
    assert str(pickle.loads(pickle.dumps(error))) == "what was 'asked'."


def test_a_missing_extra_says_what_to_type() -> None:
    """An ImportError with the exact command; exit code 4."""
    error = errors.MissingExtra("Reading these models", "transformers")
    assert str(error) == "Reading these models needs transformers: pip install 'quadform[hf]'"
    assert isinstance(error, ImportError)
    assert error.exit_code == 4
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


NAMES = [f"layers.{i}.attn.{w}" for i in range(3) for w in ("W_Q", "W_K", "W_V")]


@pytest.mark.parametrize(
    ("word", "best"),
    [
        ("layers.1.attn.W_q", "layers.1.attn.W_Q"),
        ("layer.2.attn.W_V", "layers.2.attn.W_V"),
        ("W_V", "layers.0.attn.W_V"),
        ("w_k", "layers.0.attn.W_K"),
    ],
)
def test_the_closest_name_comes_first(word: str, best: str) -> None:
    """Whole names first, last parts second; case does not count."""
    assert closest(word, NAMES)[0] == best


def test_far_names_are_not_suggested() -> None:
    """Nothing near: no suggestion, and no sentence about one."""
    assert closest("zzzzzz", NAMES) == []
    assert did_you_mean("zzzzzz", NAMES) == ""
    assert did_you_mean("paralel", ["serial", "parallel"]) == " Did you mean `parallel`?"
    assert did_you_mean("PARALLEL", ["serial", "parallel"]) == " Did you mean `parallel`?"
    assert len(closest("layers.0.attn.W_X", NAMES, most=2)) == 2


# --- names that load when first used ----------------------------------------------------------------------------------
def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    """`import quadform` and its core load neither torch, numpy, scipy, nor the figure and web libraries."""
    heavy = "{'torch', 'numpy', 'scipy', 'altair', 'tqdm', 'safetensors', 'starlette', 'triton'} & set(sys.modules)"
    assert run(f"import sys, quadform, quadform.core, quadform.core.errors; print({heavy} or 'nothing')") == "nothing"


@pytest.mark.parametrize("name", quadform.core.__all__)
def test_every_name_of_core_is_there_at_first_use(name: str) -> None:
    """Each entry of the table leads to something, also through `from quadform.core import name`."""
    assert getattr(quadform.core, name) is not None
    exec(f"from quadform.core import {name}")


def test_every_name_of_core_works_in_a_fresh_process() -> None:
    """No name is there only because another was imported before."""
    names = quadform.core.__all__
    code = f"import importlib, sys, quadform.core as c\nfor n in {names}: getattr(c, n); print(n)"
    assert run(code).split() == names
    assert run("import quadform.core as c; print(c.progress.Progress.__name__)") == "Progress"


@pytest.mark.parametrize("where", [".moments", ".means"])
def test_a_name_that_a_module_would_hide_is_refused(where: str) -> None:
    """`{"moments": ".moments"}` is an error where it is written, not where another import has changed its meaning."""
    with pytest.raises(ValueError, match=r"room.moments would be hidden by the module .moments"):
        attach("room", {"Moments": ".moments", "moments": where})


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    """As of any module; and `dir` lists the names."""
    with pytest.raises(AttributeError, match="module 'quadform' has no attribute 'Hessian_'"):
        _ = quadform.Hessian_
    assert set(quadform.core.__all__) <= set(dir(quadform.core))


# --- random streams ---------------------------------------------------------------------------------------------------
def test_streams_depend_on_seed_and_name_alone() -> None:
    """Same seed and name, same numbers, whatever was drawn before; another seed or name, others."""
    draw = lambda *key: torch.randn(4, generator=stream(*key)).tolist()  # noqa: E731
    torch.manual_seed(5)
    first = draw(0, "a")
    torch.randn(10)
    assert draw(0, "a") == first
    assert len({tuple(draw(*key)) for key in ((0, "a"), (1, "a"), (0, "b"), (0,), (-1, "a"), (2**80, "a"))}) == 6
