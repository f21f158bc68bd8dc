"""`quadform quantize`: predicted beside measured, packed models that load again, bits under a budget, refusals."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from taught import letters, squared, taught
from torch import nn

import quadform as qf
from quadform.applications.opening import Opening
from quadform.applications.quantize.measure import QuantizeMeasurement
from quadform.applications.quantize.question import QuantizeQuestion
from quadform.applications.subject import Subject
from quadform.cli import main
from quadform.core.errors import FileError, InputError, UnknownName
from quadform.core.packed import PACKED, dequantized
from quadform.nn.transformer import Transformer

MODEL = "new:pre-ln,depth=1,d_model=8,heads=2"
PROBE: dict[str, Any] = {"data": "add:digits=1", "batch_size": 4, "batches": 4, "dtype": "float64", "progress": False}


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, list[Any]]:
    return taught(300)


@pytest.fixture(scope="module")
def rounded(trained: tuple[nn.Module, list[Any]]) -> Any:
    """All methods with five bits, each matrix alone too, nothing held out."""
    model, batches = trained
    asked: dict[str, Any] = {"bits": 5, "method": ("rtn", "gptq", "hessian", "obq"), "each": True, "held_out": 0}
    return qf.quantize(model, batches, squared, **asked, group=4, progress=False)


def test_predicted_is_measured(rounded: Any, trained: tuple[nn.Module, list[Any]]) -> None:
    """Five bits are a small step: g.d + d.Hd / 2 is the rise within a tenth, of all matrices and of each alone."""
    for m in rounded.methods:
        assert m.predicted == pytest.approx(m.measured, rel=0.1, abs=1e-6)
        assert float(m.parts.sum()) == pytest.approx(m.predicted)
    for predicted, measured in rounded.each.values():
        assert predicted == pytest.approx(measured, rel=0.1, abs=1e-6)
    model, batches = trained
    risk = qf.Risk(model, squared, batches, quiet=True)
    rise = float(risk.value({**risk.params, **rounded.weights})) - float(risk.value())
    assert rounded.best.measured == pytest.approx(rise)
    assert "predicted dL" in str(rounded)


def test_all_matrices_together_lose_least(rounded: Any) -> None:
    """Rounding to nearest, one matrix at a time, all together: each loses less than the one before."""
    rise = {m.name: m.measured for m in rounded.methods}
    assert rise["hessian"] < 0.8 * rise["gptq"]
    assert min(rise["gptq"], rise["obq"]) < rise["rtn"]
    assert rounded.best.name == "hessian"


def test_what_is_stored_for_a_weight(rounded: Any, trained: tuple[nn.Module, list[Any]]) -> None:
    """Near the weights they stand for, which are as they were; five bits, and 24 more for a group."""
    own = {n: p.detach() for n, p in trained[0].named_parameters()}
    for n, t in rounded.weights.items():
        steps = [len(group.unique()) for row in t for group in row.split(4)]
        assert max(steps) <= 4
        assert 0 < float((t - own[n]).abs().max()) < 0.5 * float(own[n].abs().max())
    groups = 12 * 2 + 12 * 3 + 2 * 3
    assert rounded.methods[0].size == pytest.approx(5 + 24 * groups / 240)


def test_the_model_loads_again_in_every_verb(tmp_path: Path) -> None:
    """Codes, scales and zero points on disk; opened they are the very weights that were measured."""
    found = qf.quantize(MODEL, **PROBE, bits=3, method=("gptq",), group=8, out=tmp_path / "out")
    folder = tmp_path / "out" / "quantized"
    with safe_open(folder / PACKED, "pt") as file:
        names = set(file.keys())
        codes = file.get_tensor("layers.0.attn.W_Q.codes")
    assert found.folder == folder
    assert "layers.0.attn.W_Q" not in names
    assert codes.dtype == torch.uint8
    assert codes.shape == (8, 3)  # eight codes of three bits
    state = Transformer.load(folder).state_dict()
    assert all(torch.equal(state[n], t) for n, t in found.weights.items())
    again = Opening(model=str(folder), batch_size=4, batches=4, dtype="float64").open()
    assert again.source["data"]["digits"] == 1  # named beside the model
    assert any("whole numbers" in note for note in again.notes)
    assert qf.taylor(str(folder), batch_size=2, along=("grad",), points=3, progress=False)
    for ask in (qf.quantize, qf.prune):
        with pytest.raises(InputError, match=r"quantized already\. Take the model that they were made from"):
            ask(str(folder), **PROBE)
    assert qf.prune(str(folder), **PROBE, method=(), each=True).each  # nothing is written
    assert qf.answers.QuantizedModel.load(tmp_path / "out").bits == dict.fromkeys(found.matrices, 3)


def test_a_hugging_face_folder_with_tied_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GPT-2: Conv1D is turned, the tied output is stored once; the source is not touched, the copy opens."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    words = ["quantize", str(tmp_path / "gpt"), "--length", "8", "--batch-size", "2", "--batches", "2"]
    assert main([*words, "--dry-run"]) == 2
    assert "quantization needs data to calibrate on" in capsys.readouterr().err
    letters(tmp_path / "gpt", 11)
    before = hashes(tmp_path / "gpt")
    assert main([*words, "--method", "rtn", "--bits", "8", "--out", str(tmp_path / "out")]) == 0
    assert "predicted dL" in capsys.readouterr().out
    assert hashes(tmp_path / "gpt") == before
    state = dequantized(tmp_path / "out" / "quantized")
    assert "lm_head.weight" not in state
    original = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "gpt").state_dict()
    opened: Any = Opening(model=str(tmp_path / "out" / "quantized"), length=8, batch_size=2).open()
    assert opened.model.lm_head.weight is opened.model.transformer.wte.weight
    for n, t in opened.model.state_dict().items():
        assert float((t - original[n]).abs().max()) <= 0.01 * float(original[n].abs().max()), n
    assert torch.equal(opened.model.transformer.wte.weight, original["transformer.wte.weight"])


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def test_a_budget_is_kept_and_used(trained: tuple[nn.Module, list[Any]]) -> None:
    """Half a bit more than four: bits differ between matrices, fit, and lose less than four for all; else refused."""
    model, batches = trained
    asked: dict[str, Any] = {"group": 64, "method": ("gptq",), "held_out": 0, "progress": False}
    same = qf.quantize(model, batches, squared, bits=4, **asked)
    found = qf.quantize(model, batches, squared, budget=same.best.size + 0.5, **asked)
    assert same.best.size < found.best.size <= same.best.size + 0.5
    assert len(set(found.bits.values())) > 1
    assert found.best.measured < same.best.measured
    with pytest.raises(InputError, match=r"budget=2: 2 bits everywhere take .* a weight with groups of 64"):
        qf.quantize(model, batches, squared, budget=2, **asked)


def test_a_budget_never_loses_more_than_the_same_bits_for_all(trained: tuple[nn.Module, list[Any]]) -> None:
    """Where the curvature misleads (here its sign is turned), what is measured decides."""
    model, batches = trained
    asked: dict[str, Any] = {"group": 64, "method": ("gptq",), "held_out": 0, "progress": False}
    same = qf.quantize(model, batches, squared, bits=4, **asked)
    own = QuantizeMeasurement._curves
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuantizeMeasurement, "_curves", lambda self, name, changes: -own(self, name, changes))
        found = qf.quantize(model, batches, squared, budget=same.best.size, **asked)
    assert set(found.bits.values()) == {4}
    assert found.best.measured == pytest.approx(same.best.measured)
    (note,) = [n for n in found.record.inputs["notes"] if n.startswith("bits of the budget")]
    assert note.startswith("bits of the budget: 4 for all, the best of ")


def test_a_falling_slope_is_no_gain(trained: tuple[nn.Module, list[Any]]) -> None:
    """Along -g the loss falls, and what is lost is the curvature alone; along g it is all of the rise."""
    model, batches = trained
    found = QuantizeMeasurement(QuantizeQuestion(held_out=0), Subject.of(model, batches, squared))
    g, own = found.gradient, found.risk.params
    t = 1e-3 / float(sum(a.square().sum() for a in g.values())) ** 0.5
    with torch.no_grad():
        before, gg = float(found.risk.value()), float(sum(a.square().sum() for a in g.values()))
        down, up = ({n: own[n] + s * t * a for n, a in g.items()} for s in (-1, 1))
        falls, rises = (float(found.risk.value(w)) - before for w in (down, up))
    assert falls < 0 < rises
    assert found._lost(down, before) == pytest.approx(falls + t * gg)
    assert 0 < found._lost(down, before) < -falls
    assert found._lost(up, before) == pytest.approx(rises)


def test_what_cannot_be_quantized_is_refused(trained: tuple[nn.Module, list[Any]], tmp_path: Path) -> None:
    """One sentence each: bits, both bits and budget, methods, data, weights that are integers, damaged files."""
    model, batches = trained
    for bits in (1, 9, 4.5):
        with pytest.raises(InputError, match=f"bits={bits}: give a whole number from 2 to 8"):
            qf.quantize(model, batches, squared, bits=bits)
    with pytest.raises(InputError, match="give one of them"):
        qf.quantize(model, batches, squared, bits=4, budget=4.2)
    with pytest.raises(InputError, match="2 bits everywhere take"):
        qf.quantize.plan(model, batches, squared, budget=1.0)
    with pytest.raises(UnknownName, match=r"unknown method .gptqq.; .* Did you mean"):
        qf.quantize(model, batches, squared, method=("gptqq",))
    with pytest.raises(InputError, match="needs data"):
        qf.quantize(model, None, squared)
    integers = nn.Linear(6, 2)
    integers.weight = nn.Parameter(torch.ones(2, 6, dtype=torch.int8), requires_grad=False)
    with pytest.raises(InputError, match=r"weight is quantized already .int8."):
        qf.quantize(integers, batches, squared)
    (tmp_path / PACKED).write_bytes(b"\0" * 64)
    with pytest.raises(FileError, match="damaged"):
        dequantized(tmp_path)
    with pytest.raises(FileError, match="no quantized model"):
        dequantized(tmp_path / "nowhere")
