"""`quadform prune`: predicted beside measured, models that load again, structures, refusals."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from taught import letters, squared, taught
from torch import nn

import quadform as qf
from quadform.answers.prune import Pruned
from quadform.applications.compressing.question import CalibrationOpening
from quadform.applications.compressing.writing import write
from quadform.applications.opening import Opening
from quadform.applications.subject import Subject
from quadform.cli import main
from quadform.core.errors import InputError, UnknownName
from quadform.core.record import Record
from quadform.curvature.operators import hessian
from quadform.nn.transformer import Transformer

MODEL = "new:pre-ln,depth=1,d_model=8,heads=2"
PROBE: dict[str, Any] = {"data": "add:digits=1", "batch_size": 4, "batches": 4, "dtype": "float64", "progress": False}


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, list[Any]]:
    return taught(400)


def test_predicted_is_measured_to_second_order(trained: tuple[nn.Module, list[Any]]) -> None:
    """Few small weights: slope and curvature say what the loss does, and the curvature is needed for it."""
    model, batches = trained
    found = qf.prune(model, batches, squared, method=("magnitude",), sparsity=0.03, held_out=0, progress=False)
    (m,) = found.methods
    flat = {n: p.detach() for n, p in model.named_parameters()}
    risk = qf.Risk(model, squared, batches, quiet=True)
    slope = float(sum(((found.weights[n] - flat[n]) * risk.gradient()[n]).sum() for n in found.weights))
    assert abs(m.predicted - m.measured) < 0.1 * abs(slope - m.measured)
    assert float(m.parts.sum()) == pytest.approx(m.predicted)
    assert m.held is None


def test_the_global_method_beats_the_others(trained: tuple[nn.Module, list[Any]]) -> None:
    """At one half, on batches held out: all matrices together lose less than the smallest weights alone."""
    model, batches = trained
    before = {n: p.clone() for n, p in model.named_parameters()}
    found = qf.prune(model, batches, squared, progress=False)
    rise = {m.name: m.held for m in found.methods}
    assert rise["hessian"] < 0.5 * rise["magnitude"]
    assert found.best is not None
    assert found.best.held == min(rise.values())
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert "hessian" in str(found)


def test_rounds_follow_the_curvature(trained: tuple[nn.Module, list[Any]]) -> None:
    """Where one step leaves the range of the quadratic model, several with new curvature lose less."""
    model, batches = trained
    options: dict[str, Any] = {"method": ("hessian",), "sparsity": 0.7, "held_out": 0, "progress": False}
    one, four = (qf.prune(model, batches, squared, rounds=k, **options).methods[0] for k in (1, 4))
    assert four.measured < one.measured
    assert four.size == one.size


def test_compensation_is_a_choice_of_its_own(trained: tuple[nn.Module, list[Any]]) -> None:
    """The masks of one method with all compensations: the one that looks at the loss rises least on what it saw."""
    model, batches = trained
    ways = ("none", "sweep", "least-squares", "hessian")
    options: dict[str, Any] = {"method": ("wanda",), "sparsity": 0.3, "rounds": 1, "held_out": 0, "progress": False}
    found = {way: qf.prune(model, batches, squared, compensate=way, **options) for way in ways}
    rise = {way: answer.methods[0].measured for way, answer in found.items()}
    assert min(rise, key=lambda way: rise[way]) == "hessian"
    assert len({round(r, 12) for r in rise.values()}) == 4
    masks = [{n: t == 0 for n, t in answer.weights.items()} for answer in found.values()]
    assert all(torch.equal(m[n], masks[0][n]) for m in masks for n in m)


def test_obs_and_woodfisher(trained: tuple[nn.Module, list[Any]]) -> None:
    """Compensated by the Fisher of rows, or by the whole |H|: at most half of what the smallest weights alone lose."""
    model, batches = trained
    asked: dict[str, Any] = {"method": ("magnitude", "woodfisher", "obs"), "sparsity": 0.3, "held_out": 0}
    found = qf.prune(model, batches, squared, damping=1e-3, progress=False, **asked)
    rise = {m.name: m.measured for m in found.methods}
    assert max(rise["obs"], rise["woodfisher"]) < 0.5 * rise["magnitude"]
    assert {m.name: m.way for m in found.methods} == {"magnitude": "none", "woodfisher": "fisher", "obs": "obs"}
    assert all(m.size == pytest.approx(0.3, abs=0.01) for m in found.methods)


def test_whole_heads_go() -> None:
    """Half of the heads: one of two in each matrix of attention, the feed-forward part as it was."""
    found = qf.prune(MODEL, **PROBE, method=("magnitude", "woodfisher"), structure="heads", held_out=0)
    assert found.best.size == pytest.approx(4 * 32 / (4 * 64 + 2 * 256))
    zeros = dict(zip(found.matrices, found.zeros("magnitude").tolist(), strict=True))
    assert {n.split(".")[-1]: z for n, z in zeros.items() if z} == dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), 0.5)


@pytest.mark.parametrize("structure", ["none", "2:4", "rows"])
def test_the_model_loads_again(structure: str, tmp_path: Path) -> None:
    """The best model lies in `pruned/`, opens as any other, and has the zeros that were stated."""
    asked: dict[str, Any] = {**PROBE, "method": ("magnitude", "hessian"), "products": 8}
    found = qf.prune(MODEL, **asked, structure=structure, out=tmp_path / "out")
    model = Transformer.load(tmp_path / "out" / "pruned")
    assert found.folder == tmp_path / "out" / "pruned"
    state = model.state_dict()
    for n, share in zip(found.matrices, found.zeros(found.best.name).tolist(), strict=True):
        W = state[n].mT  # (out, in)
        assert float((W == 0).double().mean()) == pytest.approx(share)
        if structure == "2:4":
            assert bool(((W.reshape(-1, 4) == 0).sum(1) == 2).all())
        if structure == "rows":
            assert set((W == 0).double().mean(1).tolist()) <= {0.0, 1.0}
    total = sum(state[n].numel() for n in found.matrices)
    assert found.best.size == pytest.approx(0.5, abs=32 / total)
    again = Opening(model=str(found.folder), batch_size=4, batches=4, dtype="float64").open()
    assert again.source["data"]["digits"] == 1
    assert float(again.risk(quiet=True).value()) > 0
    assert qf.answers.Pruned.load(tmp_path / "out").methods[0].predicted == found.methods[0].predicted


def test_a_hugging_face_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GPT-2 with Conv1D and a tied output: written as safetensors, opened again, the source not touched."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    words = ["prune", str(tmp_path / "gpt"), "--length", "8", "--batch-size", "2", "--batches", "2", "--products", "8"]
    words += ["--method", "sparsegpt,hessian", "--out", str(tmp_path / "out")]
    assert main(words) == 2, "random tokens are nothing to calibrate on"
    assert "pruning needs data to calibrate on" in capsys.readouterr().err
    letters(tmp_path / "gpt", 11)
    before = hashes(tmp_path / "gpt")
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[4].split() == ["method", "compensate", "zeros", "predicted", "dL", "measured", "dL"], "no empty columns"
    assert said[7].startswith("hessian: "), "how it was found is told below the table"
    assert hashes(tmp_path / "gpt") == before
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out" / "pruned")
    W = model.transformer.h[0].mlp.c_fc.weight
    assert bool((W == 0).any())
    assert not bool((model.transformer.wte.weight == 0).any())
    assert model.lm_head.weight is model.transformer.wte.weight


def test_an_encoder_without_a_head_keeps_its_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The loss is how far the hidden states move: 0 before, and the measured rise is that of the model written."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=11,
        max_position_embeddings=8,
    )  # fmt: skip
    torch.manual_seed(0)
    net = transformers.BertModel(config).eval()
    net.save_pretrained(tmp_path / "encoder")
    letters(tmp_path / "encoder", 11)
    words = ["--length", "8", "--batch-size", "2", "--batches", "2", "--held-out", "0", "--products", "8"]
    given = [str(tmp_path / "encoder"), *words]
    assert main(["prune", *given, "--method", "wanda,hessian", "--each", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "no head: the loss is |F - F_0|^2" in said
    assert "raises the loss least" in said
    assert "of the loss each" not in said, "a share of 0 counts nothing"
    found = Pruned(Record.load(tmp_path / "out"))
    assert found.loss == 0
    rise = {m.name: m.measured for m in found.methods}
    assert 0 < rise["hessian"] < 0.9 * rise["wanda"]
    pruned = transformers.BertModel.from_pretrained(tmp_path / "out" / "pruned").eval()
    subject = CalibrationOpening(model=str(tmp_path / "encoder"), length=8, batch_size=2, batches=2).open()
    with torch.no_grad():
        F, F_0 = ([m(**b).last_hidden_state for b in subject.batches] for m in (pruned, net))
        moved = [float((a - b).square().sum() / b.square().sum()) for a, b in zip(F, F_0, strict=True)]
    assert sum(moved) / 2 == pytest.approx(rise["hessian"], rel=1e-4)
    assert main(["quantize", *given, "--budget", "5", "--method", "gptq", "--out", str(tmp_path / "bits")]) == 0
    assert main(["prune", str(tmp_path / "bits" / "quantized"), *words]) == 2
    assert "quantized already" in capsys.readouterr().err


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def test_a_training_run_has_its_score(tmp_path: Path) -> None:
    """The task's own score before and after, on the test split."""
    small: dict[str, Any] = {"data": "add:digits=1", "depth": 1, "d_model": 4, "heads": 2, "steps": 3, "batch_size": 2}
    qf.fit(**small, test=4, out=tmp_path / "run", progress=False)
    asked: dict[str, Any] = {"method": ("magnitude",), "batch_size": 2, "batches": 1, "progress": False}
    found = qf.prune(str(tmp_path / "run"), **asked, score=10)
    assert found.record.inputs["score"] == "exact"
    assert 0 <= found.methods[0].score.value <= 1
    assert qf.prune(str(tmp_path / "run"), **asked, score=0).methods[0].score is None


def test_what_cannot_be_pruned_is_refused(trained: tuple[nn.Module, list[Any]]) -> None:
    """One sentence each: the share, the method, the structure, data, maps."""
    model, batches = trained
    for sparsity in (-0.1, 1.0, 1.5):
        with pytest.raises(InputError, match=f"sparsity={sparsity:g}"):
            qf.prune(model, batches, squared, sparsity=sparsity)
    with pytest.raises(UnknownName, match=r"unknown method .wando.; choose from .* Did you mean"):
        qf.prune(model, batches, squared, method=("wando",))
    with pytest.raises(InputError, match=r"not rows\. Leave it out"):
        qf.prune(model, batches, squared, structure="rows", method=("magnitude", "sparsegpt"))
    with pytest.raises(InputError, match="obs chooses single weights, not heads"):
        qf.prune(model, batches, squared, structure="heads", method=("obs",))
    with pytest.raises(InputError, match="no attention heads"):
        qf.prune(model, batches, squared, structure="heads", method=("magnitude",), progress=False)
    wide = nn.Sequential(nn.Linear(6, 700), nn.Linear(700, 2)).double()
    with pytest.raises(InputError, match="the whole Hessian, of 5,600 weights here; at most 5,000"):
        qf.prune(wide, batches, squared, method=("obs",), progress=False)
    with pytest.raises(InputError, match="the whole Hessian"):
        qf.prune.plan(wide, batches, squared, method=("magnitude",), compensate="obs")
    with pytest.raises(InputError, match="one half"):
        qf.prune(model, batches, squared, structure="2:4", sparsity=0.4)
    with pytest.raises(InputError, match="multiple of 4"):
        qf.prune(model, batches, squared, structure="2:4", method=("magnitude",), progress=False)
    with pytest.raises(InputError, match="needs data"):
        qf.prune(model, None, squared)
    with pytest.raises(InputError, match="leave none"):
        qf.prune(model, batches, squared, held_out=4)
    norm = nn.LayerNorm(6).double()
    with pytest.raises(InputError, match="nothing to prune"):
        qf.prune(norm, [(b[0], b[0]) for b in batches], squared, progress=False)


def test_where_small_weights_matter_it_begins_at_sparsegpt() -> None:
    """Inputs a hundred times as large, weights a hundred times as small: by size alone the first matrix goes whole."""
    model, batches = taught(200)
    with torch.no_grad():
        model[0].weight /= 100
    batches = [(100 * x, y) for x, y in batches]
    asked: dict[str, Any] = {"held_out": 0, "progress": False, "rounds": 1, "products": 8}
    methods = qf.prune(model, batches, squared, method=("magnitude", "sparsegpt", "hessian"), **asked).methods
    rise = {m.name: m.measured for m in methods}
    assert rise["sparsegpt"] < 0.8 * rise["magnitude"]
    assert rise["hessian"] < 0.8 * rise["sparsegpt"]
    assert methods[-1].size == pytest.approx(0.5, abs=0.02)
    published = qf.prune(model, batches, squared, method=("sparsegpt",), damping=0.01, **asked).methods[0]
    heavy = qf.prune(model, batches, squared, method=("hessian",), damping=10.0, **asked).methods[0]
    assert heavy.measured <= published.measured, "it begins at the better of both dampings, as asked and as published"


def test_a_fetched_model_keeps_its_tokenizer(tmp_path: Path) -> None:
    """It is opened by a name; the tokenizer lies in the folder it was read from."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "own")
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 9, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    model.config._name_or_path = model.name_or_path = str(tmp_path / "own")
    subject = Subject("named", model, [], {"kind": "fetched", "model": "named"})
    written = write(tmp_path / "small", subject, {})
    assert transformers.AutoTokenizer.from_pretrained(written, local_files_only=True).get_vocab() == {"a": 0, "b": 1}


class Several(nn.Module):
    """Gives two tensors under names; a loss reads one of them."""

    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__()
        self.names, self.first, self.second = names, nn.Linear(6, 8).double(), nn.Linear(8, 2).double()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.first(x).tanh()
        return dict(zip(self.names, (self.second(h), h.mean(-1)), strict=True))


def reading(name: str) -> Any:
    return lambda out, batch: (out[name] - batch[1].reshape(-1)[0]).square().mean()


def test_a_model_that_returns_several_tensors(trained: tuple[nn.Module, list[Any]]) -> None:
    """H_o is split at `last_hidden_state` where the loss reads it; else methods that need none of it are named."""
    batches = trained[1]
    asked: dict[str, Any] = {"progress": False, "products": 8, "rounds": 1}
    model = Several(("last_hidden_state", "pooler_output"))
    found = qf.prune(model, batches, reading("last_hidden_state"), method=("hessian",), **asked)
    assert found.best.size == pytest.approx(0.5, abs=0.01)
    for other, name in ((model, "pooler_output"), (Several(("one", "two")), "one")):
        for ask in (qf.prune.plan, qf.prune):
            with pytest.raises(InputError, match=r"obd, hessian: this needs H_o.*Choose method='magnitude,wanda"):
                ask(other, batches, reading(name))
        assert qf.prune(other, batches, reading(name), method=("magnitude", "wanda", "sparsegpt"), progress=False).best
        with pytest.raises(InputError, match=r"a budget: this needs H_o.*'rtn,gptq'"):
            qf.quantize(other, batches, reading(name), budget=4.5, method=("rtn",), group=4, progress=False)


def test_one_product_keeps_no_graph_of_a_batch(trained: tuple[nn.Module, list[Any]]) -> None:
    """Memory of one batch, however many there are; with several products to come they are kept."""
    model, batches = trained
    risk = qf.Risk(model, squared, batches, quiet=True)
    v = risk.gradient()
    kept = {}
    for products in (1, 2):
        H = hessian(risk, products=products)
        kept[products] = (H @ v, len(H.run.kept))
    assert (kept[1][1], kept[2][1]) == (0, len(batches))
    torch.testing.assert_close(kept[1][0], kept[2][0])


def test_plans_count_matrices_that_are_no_tables() -> None:
    """A table of 5,000 words would take 200 MB for inputs it has not."""
    model = nn.Sequential(nn.Embedding(5000, 8), nn.Linear(8, 4)).double()
    ids = torch.arange(12).view(3, 4)
    plan = qf.prune.plan(model, [(ids, torch.zeros(3, 4, 4).double())] * 2, squared, method=("sparsegpt",))
    assert "32 weights" in plan.text
    assert plan.bytes < 1e5


def test_each_matrix_and_head_alone() -> None:
    """Small steps: predicted is measured. A head is gone: its measured rise is that of the model without all of it."""
    asked: dict[str, Any] = {"method": (), "each": True, "held_out": 0}
    found = qf.prune(MODEL, **PROBE, **asked, sparsity=0.05)
    assert not found.methods
    assert found.best is None
    heads = [n for n in found.each if n.endswith("]")]
    assert heads == ["layers.0.attn[0]", "layers.0.attn[1]"]
    assert set(found.each) - set(heads) == set(found.matrices)
    for name in found.matrices:
        predicted, measured = found.each[name]
        assert predicted == pytest.approx(measured, rel=0.1, abs=1e-4)
    opened = Opening(model=MODEL, **{k: v for k, v in PROBE.items() if k != "progress"}).open()
    risk = opened.risk(quiet=True)
    W = {n: t.detach().clone() for n, t in risk.params.items()}
    for part in ("W_Q", "W_K", "W_V"):
        W[f"layers.0.attn.{part}"][:, :4] = 0
    W["layers.0.attn.W_O"][:4] = 0
    rise = float(risk.value(W)) - float(risk.value())
    assert found.each["layers.0.attn[0]"][1] == pytest.approx(rise, abs=1e-12)
    (verdict,) = found.verdicts()
    ranked = sorted(found.each, key=lambda n: found.each[n][1])
    assert ranked[0] in verdict.said.en
    assert ranked[-1] in verdict.said.ko
    assert "prune-each" in found.figures()


def test_a_prediction_that_is_far_off_is_told(trained: tuple[nn.Module, list[Any]]) -> None:
    """More than half of what is measured: the change is beyond the quadratic model. 1 weight in 100 is within it."""
    model, batches = trained
    for sparsity, far in ((0.01, False), (0.9, True)):
        found = qf.prune(model, batches, squared, sparsity=sparsity, method=("magnitude",), progress=False)
        m = found.best
        assert (abs(m.predicted - m.measured) > 0.5 * abs(m.measured)) == far
        assert ("beyond the quadratic model" in found.verdicts()[0].said.en) == far


def test_rounding_of_the_loss_is_not_beyond_the_quadratic_model() -> None:
    """A weight that hardly counts: both changes are below what float32 can tell of the loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.mul_(1e-4)
    batches = [(torch.randn(8, 4), torch.full((8, 1), 100.0)) for _ in range(2)]
    asked: dict[str, Any] = {"sparsity": 0.5, "method": ("magnitude",), "held_out": 0, "progress": False}
    found = qf.prune(model, batches, nn.MSELoss(), params=["0.weight"], **asked)
    assert found.best.measured != found.best.predicted
    assert abs(found.best.predicted) < 1e-6 * found.loss
    assert "beyond the quadratic model" not in found.verdicts()[0].said.en


def test_rows_take_the_methods_that_fit(trained: tuple[nn.Module, list[Any]]) -> None:
    """SparseGPT chooses single weights; without a method being named it is left out."""
    model, batches = trained
    found = qf.prune(model, batches, squared, structure="rows", products=8, rounds=1, progress=False)
    assert [m.name for m in found.methods] == ["magnitude", "wanda", "obd", "hessian"]


def test_a_verdict_says_what_the_best_method_costs(trained: tuple[nn.Module, list[Any]]) -> None:
    """Judged by the rise over the loss on the batches held out; nothing was changed, so it is never red."""
    model, batches = trained
    found = qf.prune(model, batches, squared, method=("magnitude",), progress=False)
    (verdict,) = found.verdicts()
    assert verdict.number.value == pytest.approx(found.best.held / found.record.scalars["held"].value)
    assert verdict.status == ("green" if verdict.number.value <= 0.1 else "yellow")
    assert ("To lose less" in verdict.said.en) == (verdict.status == "yellow")
    with pytest.raises(InputError, match="at least one of"):
        qf.prune(model, batches, squared, method=(), progress=False)
