"""The table of architectures: a sample of its cells measured anew, all of them with `--all-cells`, and its page."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from cells import ALLOWED, DoubleBackward, blocks, error, products, wrong
from fill import COLUMNS, PAGE, RECORD, page
from tiny_models import ARCHITECTURES, Architecture

RECORDED = json.loads(RECORD.read_text())
CELLS = [(name, batch) for name, a in ARCHITECTURES.items() for batch in a.batches]
SAMPLE = [
    ("GPT2", "packed"),
    ("Gemma2", "left"),
    ("Mixtral", "ones"),
    ("Bloom", "right"),
    ("Bart", "right"),
    ("Wav2Vec2", "right"),
]
NAMED = ["CodeGen"]


def allowed(architecture: Architecture) -> float:
    return ALLOWED[str(architecture.dtype).removeprefix("torch.")]


def pytest_generate_tests(metafunc: Any) -> None:
    every = metafunc.config.getoption("all_cells")
    if "cell" in metafunc.fixturenames:
        metafunc.parametrize("cell", CELLS if every else SAMPLE, ids=lambda c: f"{c[0]}, {c[1]}")
    if "named" in metafunc.fixturenames:
        metafunc.parametrize("named", ARCHITECTURES if every else NAMED)


def test_a_cell_is_right(cell: tuple[str, str], capsys: Any) -> None:
    """H, H_o and H_f, eager and by units, are those of a double backward; the routes are those of the table."""
    name, batch = cell
    found = products(ARCHITECTURES[name], ARCHITECTURES[name].batches[batch](), ("eager", "units"))
    assert wrong(found) == []
    kept = RECORDED["rows"][name]["batches"][batch]
    assert found.get("refused") == kept.get("refused")
    for route, by in found.get("routes", {}).items():
        assert (by["route"], by["why"]) == (kept["routes"][route]["route"], kept["routes"][route]["why"])


def test_named_blocks_are_slices_of_the_hessian(named: str, capsys: Any) -> None:
    """W_Q, W_K, W_V and one head, between each other."""
    architecture = ARCHITECTURES[named]
    (batch,) = RECORDED["rows"][named]["blocks"]
    found = blocks(architecture, architecture.batches[batch]())
    assert found == architecture.qkv if isinstance(found, str) else found <= allowed(architecture)


def test_the_record_has_every_cell_and_no_wrong_one() -> None:
    rows = RECORDED["rows"]
    assert [(n, b) for n, r in rows.items() for b in r["batches"]] == CELLS
    assert len(rows) >= 40
    assert {f"{n}, {b}": w for n, r in rows.items() for b, c in r["batches"].items() if (w := wrong(c))} == {}
    for name, row in rows.items():
        (named,) = row["blocks"].values()
        assert named == ARCHITECTURES[name].qkv if isinstance(named, str) else named <= allowed(ARCHITECTURES[name])
    assert {b for _, b in CELLS} <= set(COLUMNS)


def test_the_page_is_that_of_the_record() -> None:
    assert PAGE.read_text() == page(RECORDED)


def test_the_double_backward_of_the_table_is_that_of_a_dense_hessian() -> None:
    """The oracle itself: H v = H_o v + H_f v, and H v is a dense matrix, row by row, times v."""
    architecture = ARCHITECTURES["Llama"]
    assert isinstance(architecture.qkv, dict)
    truth = DoubleBackward(architecture, architecture.batches["right"]())
    moving = [of for of, _, _ in architecture.qkv.values()]
    v = {n: torch.randn_like(p) if n in moving else torch.zeros_like(p) for n, p in truth.params.items()}
    found = truth.along(v)
    assert error({n: found["H_o"][n] + found["H_f"][n] for n in v}, found["H"]) <= ALLOWED["float64"]
    flat, image = (torch.cat([of[n].reshape(-1) for n in moving]) for of in (v, found["H"]))
    assert float((truth.dense(moving) @ flat - image).norm() / image.norm()) <= ALLOWED["float64"]
