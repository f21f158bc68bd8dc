"""What every test shares: one torch thread, reproducible hypothesis draws, float64 tensors from a seed."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from quadform.core import progress

torch.set_num_threads(1)
# Tests press Ctrl-C. A shell that runs them in the background has it ignored, here and in every process started here.
signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.cuda.is_available():  # Triton then runs in its interpreter; it reads the variable when first imported
    os.environ["TRITON_INTERPRET"] = "1"

# `--hypothesis-profile=thorough` draws ten times as many examples, with new ones at each run.
settings.register_profile(
    "quadform", max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", parent=settings.get_profile("quadform"), max_examples=200, derandomize=False)
settings.load_profile("quadform")


#: The files that take longest, longest first. They begin first, so that no worker is left alone with one at the end.
LONGEST = (
    "test_killed.py",
    "test_sharded.py",
    "test_units.py",
    "test_scores.py",
    "test_study.py",
    "test_questions.py",
    "test_distributed.py",
    "test_browser.py",
    "test_smoke.py",
    "test_every_verb.py",
    "test_fetched.py",
    "test_verbs.py",
    "test_curvature.py",
    "test_prune.py",
    "test_softmax_layers.py",
    "test_step_size.py",
    "test_bad_input.py",
    "test_tutorials.py",
    "test_html.py",
    "test_why.py",
    "test_doc_blocks.py",
    "test_fuzz.py",
    "test_wide.py",
    "test_teach_browser.py",
    "test_explorer_browser.py",
    "test_wheel.py",
    "test_site.py",
    "test_cached.py",
    "test_piped.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cells", action="store_true", help="every cell of the table of architectures")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    turn = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: turn.get(item.path.name, len(turn)))


def pytest_collection_finish() -> None:
    """What the imports made stays to the end: the collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_start() -> None:
    """The same random numbers from the global generator in every order of running, and nothing hushed."""
    torch.manual_seed(0)
    progress.quiet = False


@pytest.fixture
def randn64() -> Callable[..., Tensor]:
    """`randn64(3, 4)`: a standard normal float64 tensor; successive calls of one test give different ones."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Chromium; `make test` installs the system package."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.fail("no Chromium on this machine; install the system package `chromium`.")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        yield running
        running.close()
