"""The real things, fetched: skipped by name where their registry is not reachable.

They are kept in `.cache/data` of the repository (or in QUADFORM_DATA), so a second run only verifies checksums.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import torch

from quadform.core.errors import FileError
from quadform.corpora.datasets import dataset
from quadform.corpora.fetch import Fetched, Unreachable, fetch, load
from quadform.corpora.proteins import AMINO_ACIDS, ANTIBODIES, REGIONS, numbered, receptor
from quadform.nn.tokens import PAD

ROOT = Path(__file__).resolve().parents[2] / ".cache" / "data"


def get(name: str) -> Fetched:
    """The item, or a skip that names it."""
    try:
        return fetch(name, progress=False)
    except FileError as error:
        if not isinstance(error, Unreachable) and "not installed here" not in str(error):
            raise  # a wrong checksum or an unreadable archive is no missing network
        pytest.skip(f"{name} cannot be fetched here: {str(error).splitlines()[0][:120]}")


@pytest.fixture(autouse=True)
def _kept(monkeypatch):
    if "QUADFORM_DATA" not in os.environ:
        monkeypatch.setenv("QUADFORM_DATA", str(ROOT))


def test_typescript_messages():
    """2,083 German pairs; every text comes back through its pieces; splits share no source; placeholders survive."""
    found = get("tsmsg-de")
    assert found.manifest["counts"]["pairs"] == 2083
    data = dataset("tsmsg-de")
    assert data.settings["vocab"] == 1000
    texts = [text for split in ("train", "valid", "test") for pair in data.texts(split) for text in pair]
    assert [data.tokenizer.decode(ids) for ids in data.tokenizer.encode_all(texts)] == texts
    sources = [{s for s, _ in data.texts(split)} for split in ("train", "valid", "test")]
    assert not sources[0] & (sources[1] | sources[2])
    assert dict(data.texts("all"))["'{0}' expected."] == '"{0}" wurde erwartet.'
    pool = list(itertools.islice(data.batches("train", 48), 16))
    padding = sum(int((b["target"] == PAD).sum()) for b in pool) / sum(b["target"].numel() for b in pool)
    assert padding < 0.15


def test_korean_messages():
    """Hangul in syllables (NFC), comes back through the pieces."""
    get("tsmsg-ko")
    data = dataset("tsmsg-ko")
    assert data.language == "ko"
    targets = [t for _, t in data.texts("valid")]
    assert any("\uac00" <= c <= "\ud7a3" for c in targets[0])
    assert [data.tokenizer.decode(data.tokenizer.encode(t)) for t in targets] == targets


def test_anarcii_numbers_an_antibody():
    """Trastuzumab's heavy chain: chain letter H, then positions that never fall, one a residue, up to 128 (IMGT)."""
    get("anarcii")
    model = load("anarcii").model
    (answer,) = numbered(model, [ANTIBODIES[0]])
    assert answer[0] == 133  # H
    positions = [token - 3 for token in answer[1:] if token < 132]  # 132: an insertion
    assert len(answer) == len(ANTIBODIES[0]) + 1
    assert positions == sorted(positions)
    assert positions[0] == 1
    assert positions[-1] == 128


def test_sceptr_knows_how_a_third_loop_begins():
    """With the first residue of CDR3 masked the net names C, and F where the last one is masked."""
    get("sceptr")
    one = load("sceptr", "tiny", dtype=torch.float64)
    assert sum(p.numel() for p in one.model.parameters()) == 10_644
    row = receptor({"cdr3a": "CAVRDSNYQLIF", "cdr3b": "CASSLGQAYEQYF"}, REGIONS["CdrTokeniser"])
    first, last = 1 + 12, len(row) - 1
    masked = torch.tensor([row, row])
    for i, place in enumerate((first, last)):
        masked[i, place] += 1 - masked[i, place] % 32
    logits = one.model(masked, torch.ones_like(masked, dtype=torch.bool))
    assert AMINO_ACIDS[int(logits[0, first].argmax())] == "C"
    assert AMINO_ACIDS[int(logits[1, last].argmax())] == "F"
    batch = one.probe(4, seed=2)
    assert torch.isfinite(one.risk(batch))


@pytest.mark.skipif("QUADFORM_LARGE" not in os.environ, reason="250 MB: set QUADFORM_LARGE=1 to fetch them")
@pytest.mark.parametrize(("name", "variant"), [("minilm", ""), ("rxnfp", "pretrained"), ("smollm2", "")])
def test_large_models(name, variant):
    """minilm, rxnfp and smollm2 open without a network once fetched, and their loss on the probe is small."""
    pytest.importorskip("transformers")
    get(name)
    one = load(name, variant)
    with torch.no_grad():
        assert float(one.risk(one.probe(4))) < 3.0
