"""`qf.spectrum` and `quadform spectrum`: the numbers against the dense Hessian, resuming, stopping, refusing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import quadform as qf
from quadform.answers.spectrum import Spectrum
from quadform.answers.spectrum_draft import root
from quadform.applications.probes import probe_of
from quadform.cli import main
from quadform.core.errors import FileError, InputError, UnknownName
from quadform.core.record import Estimate
from quadform.curvature import Risk, functional, hessian
from quadform.nn import Transformer
from quadform.report.spectral import PAGE, drawn, figures
from quadform.report.texts import EN, KO
from quadform.report.where import heads_of, where_heads, where_tokens

F64 = torch.float64
TINY = "new:pre-ln,depth=1,d_model=8,heads=2"


@pytest.fixture(scope="module")
def subject() -> tuple[Transformer, dict[str, torch.Tensor]]:
    model = Transformer("pre-ln", depth=2, d_model=8, heads=2, vocab=7, seq_len=8, seed=0, d_ff=8).to(F64)
    return model, {"tokens": torch.randint(0, 7, (3, 6), generator=torch.Generator().manual_seed(0))}


@pytest.fixture(scope="module")
def found(subject: Any) -> Spectrum:
    return qf.spectrum(*subject, top=3, density=True, blocks="qkv", probes=6, steps=12, route="eager", progress=False)


@pytest.fixture(scope="module")
def dense(subject: Any) -> Any:
    risk = Risk(subject[0], data=subject[1], quiet=True)
    return hessian(risk), hessian(risk).dense(), risk.space


def test_numbers_lie_within_their_errors_of_the_dense_hessian(found: Spectrum, dense: Any) -> None:
    """Eigenvalues within their residuals, trace and negative share within five standard errors."""
    _, H, _ = dense
    lam = torch.linalg.eigvalsh(H)
    for e, want in zip((*found.top, *found.bottom), (*lam.flip(0)[:3], lam[0]), strict=True):
        assert abs(e.value - float(want)) <= (e.error or 0) + 1e-9
    assert abs(found.trace.value - float(lam.sum())) <= 5 * found.trace.stderr
    share = float((lam < -1e-12).double().mean())
    assert abs(found.negative_share.value - share) <= 5 * found.negative_share.stderr
    assert found.converged
    assert found.cost["products"] == sum(e.matvecs for e in (found.top[0], found.trace, found.heterogeneity))


def test_blocks_by_layer_and_label(found: Spectrum, dense: Any) -> None:
    """`blocks("layers.1", "query", "value")` is that block's norm, within five standard errors, for every pair."""
    A, _, _ = dense
    for a, x in (("query", "W_Q"), ("key", "W_K"), ("value", "W_V")):
        for b, y in (("query", "W_Q"), ("value", "W_V")):
            e = found.blocks("layers.1", a, b)
            want = float(A.block(f"layers.1.attn.{x}", f"layers.1.attn.{y}").dense().norm())
            assert abs(e.value - want) <= 5 * e.stderr
    across = found.blocks("layers.0.attn.W_V", "layers.1.attn.W_K")
    want = float(A.block("layers.0.attn.W_V", "layers.1.attn.W_K").dense().norm())
    assert abs(across.value - want) <= 5 * across.stderr
    with pytest.raises(UnknownName, match="no block"):
        found.blocks("layers.7", "query", "value")


def test_heterogeneity_is_the_ratio_it_says(subject: Any, dense: Any) -> None:
    """Largest over smallest |H(b, b)|_F / sqrt(n_b): exact where every block has at most `probes` coordinates."""
    A, _, _ = dense
    names = ["layers.0.attn.W_Q", "layers.0.attn.W_V[1]"]
    s = qf.spectrum(*subject, top=1, density=False, blocks=names, probes=64, route="eager", progress=False)
    sizes = [float(A.block(n).dense().norm()) / n_b**0.5 for n, n_b in zip(names, (64, 32), strict=True)]
    assert s.heterogeneity.kind == "exact"
    assert s.heterogeneity.value == pytest.approx(max(sizes) / min(sizes))
    assert s.blocks(*names).kind == "exact"


def test_functional_parts_are_exact_where_theory_covers_the_layer(found: Spectrum, subject: Any) -> None:
    """|H_f| of attention blocks inside a whole model, split at the layer's output, equals that from autograd."""
    risk = Risk(subject[0], data=subject[1], quiet=True)
    for layer in ("layers.0", "layers.1"):
        H_f = functional(risk, split=f"{layer}.attn")
        for a, b in (("W_Q", "W_K"), ("W_V", "W_Q"), ("W_V", "W_V"), ("W_Q", "W_Q")):
            e = found.functional(layer, a, b)
            want = float(H_f.block(f"{layer}.attn.{a}", f"{layer}.attn.{b}").dense().norm())
            assert e.kind == "exact"
            assert e.value == pytest.approx(want, rel=1e-8, abs=1e-12)
    with pytest.raises(UnknownName, match="no closed form covers"):
        found.functional("layers.5", "W_Q", "W_K")


def test_a_layer_that_is_another_function_is_not_covered() -> None:
    """With biases in Q and K the closed form gives another output, so nothing is claimed."""
    from quadform.applications.spectrum.exact_parts import functional_norms

    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 11, (2, 6))
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.bias.normal_()
    risk = Risk(model, data={"input_ids": ids, "labels": ids}, quiet=True)
    assert list(functional_norms(risk)) == ["transformer.h.0.attn"]


def test_an_answer_is_saved_loaded_and_shown(found: Spectrum, tmp_path: Path) -> None:
    """save/load keep every number; table, text, JSON, figures in both languages, one HTML file."""
    again = Spectrum.load(found.save(tmp_path / "s"))
    assert [e.value for e in again.top] == [e.value for e in found.top]
    assert str(again.table()) == str(found.table())
    assert "[estimate]" in str(again)
    assert json.loads(again.json())["kind"] == "spectrum"
    assert [f.name for f in figures(again.record, "ko")] == [
        "density",
        "where",
        "where_heads",
        "where_tokens",
        "block_map",
        "block_pairs",
    ]
    assert all(f.svg().startswith("<svg") for f in figures(again.record))
    assert "λ_max" in PAGE.summary(again.record, EN)
    assert PAGE.summary(again.record, KO) != PAGE.summary(again.record, EN)
    html = again.report(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "The density of all eigenvalues" in html
    assert again.plot("block_map") is not None


def test_a_smaller_wish_leaves_out_what_it_did_not_ask(subject: Any) -> None:
    """Without density and blocks: eigenvalues and trace; asking for the rest says what it needs."""
    s = qf.spectrum(
        *subject, top=1, density=False, blocks="none", curvature="gauss_newton", route="eager", progress=False
    )
    assert s.bottom[0].value >= -1e-9  # Gauss-Newton of a cross-entropy
    assert [draw.__name__ for draw in drawn(s.record)] == ["where_map", "where_heads", "where_tokens"]
    with pytest.raises(InputError, match="density=True"):
        _ = s.negative_share
    with pytest.raises(InputError, match="blocks='qkv'"):
        s.blocks("layers.0", "query", "value")
    with pytest.raises(UnknownName, match="choose from"):
        qf.spectrum(*subject, blocks="qvk", progress=False)


def test_more_time_gives_the_answer_of_an_uninterrupted_run(subject: Any, tmp_path: Path) -> None:
    """Stopped again and again by the clock, then resumed: the same numbers, bit for bit."""
    wish: dict[str, Any] = {"top": 2, "density": True, "blocks": "qkv", "probes": 3, "steps": 6, "route": "eager"}
    want = qf.spectrum(*subject, **wish, progress=False)
    first = qf.spectrum(*subject, **wish, progress=False, max_time=1e-9, out=tmp_path, resume=True)
    assert first.partial
    assert not first.converged
    for seconds in (1e-9, 1e-9, 0.3, 60):
        got = qf.spectrum(*subject, **wish, progress=False, max_time=seconds, out=tmp_path, resume=True)
        if not got.partial:
            break
    assert got.record.scalars == want.record.scalars
    assert all(torch.equal(t, want.record.tensors[n]) for n, t in got.record.tensors.items())
    other, data = (
        Transformer("pre-ln", depth=2, d_model=8, heads=2, vocab=7, seq_len=8, seed=1, d_ff=8).to(F64),
        subject[1],
    )
    with pytest.raises(InputError, match="other weights"):
        qf.spectrum(other, data, **wish, progress=False, out=tmp_path, resume=True)


def test_the_model_is_left_as_it_was(subject: Any) -> None:
    """Weights, gradients, mode and random state."""
    model, batch = subject
    model.train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    torch.manual_seed(3)
    want = torch.rand(4)
    torch.manual_seed(3)
    qf.spectrum(model, batch, top=1, density=False, blocks="none", route="eager", progress=False)
    assert torch.equal(torch.rand(4), want)
    assert model.training
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


# --- the verb -------------------------------------------------------------------------------------------------------
def test_the_verb_prints_saves_and_reports(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """Coverage and cost first, results on stdout, a folder by default, which the report shows."""
    monkeypatch.chdir(tmp_path)
    assert main(["spectrum", TINY, "--top", "1", "--density", "--probes", "2", "--steps", "5"]) == 0
    out, err = capsys.readouterr()
    assert "tensors" in out.splitlines()[0]
    assert "lambda_max" in out
    assert "saved runs/pre-ln-depth-1-d_model-8-heads-2-spectrum" in out
    assert "products" in err
    assert "\r" not in err
    assert main(["report", "runs/pre-ln-depth-1-d_model-8-heads-2-spectrum", "--quiet"]) == 0


def test_dry_run_tells_the_cost_and_stops(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """Products, time, memory; nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert main(["spectrum", TINY, "--dry-run", "--json", "--quiet"]) == 0
    cost = json.loads(capsys.readouterr().out)
    assert cost["products"] == sum(cost["planned"].values())
    assert cost["seconds"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--blocks", "qvk"], "is not one of `auto`"),
        (["--top", "0", "--bottom", "0"], "ask for at least one eigenvalue"),
        (["--products", "1"], "need at least as many"),
        (["--probes", "1"], "give at least 2"),
        (["--params", "layers.*.q"], "0 of 14 tensors"),
        (["--max-time", "soon"], "is not a length of time"),
    ],
)
def test_bad_flags_are_told_in_one_line(flags: list[str], text: str, capsys: Any) -> None:
    """Exit code 2 and what to do."""
    assert main(["spectrum", TINY, *flags]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.strip().count("\n") <= 1


def test_no_products_left_is_said_and_leaves_with_three(tmp_path: Path, capsys: Any) -> None:
    """Eigenvalues that did not converge are bounds; the line says how to go on."""
    flags = ["--top", "2", "--bottom", "0", "--products", "2", "--blocks", "none", "--tol", "1e-12"]
    assert main(["spectrum", TINY, *flags, "--out", str(tmp_path), "--quiet"]) == 3
    out = capsys.readouterr().out
    assert "resume with products=4" in out
    assert ">= " in out


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_goes_on(tmp_path: Path) -> None:
    """Interrupted once: finishes the product, saves, tells how to go on, leaves with 130; then resumes."""
    flags = ["spectrum", TINY, "--top", "40", "--tol", "1e-13", "--blocks", "none", "--out", str(tmp_path)]
    words = [sys.executable, "-m", "quadform.cli.main", *flags, "--route", "eager"]
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    said = []
    assert running.stderr is not None
    for line in running.stderr:
        said.append(line)
        if "/" in line and "left" in line:
            running.send_signal(signal.SIGINT)
            break
    said.append(running.communicate(timeout=120)[1])
    assert running.returncode == 130, "".join(said)
    assert "--resume" in "".join(said)
    assert list((tmp_path / "work").rglob("*.safetensors"))
    assert subprocess.run([*words, "--resume", "--quiet"], stdout=subprocess.DEVNULL).returncode in (0, 3)


def test_grouped_heads_have_rows_of_their_own() -> None:
    """Four query heads and two key heads are not added up by their numbers; a name may have no layer before it."""
    labels = ("h.0.W_Q[0]", "h.0.W_Q[1]", "h.0.W_Q[2]", "h.0.W_Q[3]", "h.0.W_K[0]", "h.0.W_K[1]", "W_V[0]")
    found = heads_of(labels, torch.tensor([[0.1, 0.2, 0.3, 0.05, 0.15, 0.12, 0.08]], dtype=torch.float64))
    assert found == {"h.0.W_Q": [0.1, 0.2, 0.3, 0.05], "h.0.W_K": [0.15, 0.12], "": [0.08]}


def test_error_of_the_root_mean_square():
    """sqrt(x +- s) is sqrt(x) +- s / (2 sqrt(x)); nothing stays nothing."""
    e = root(Estimate(4.0, 0.04, "estimate"))
    assert (e.value, e.stderr) == pytest.approx((2.0, (4.04**0.5 - 3.96**0.5) / 2), rel=1e-4)
    assert root(Estimate(0.0, 0.0, "estimate")).stderr == 0


def test_eigenvectors_are_kept_and_placed(tmp_path: Path) -> None:
    """`where` tells the shares of the kept vectors; a spectrum that is loaded again has them."""
    found = qf.spectrum(
        "new:pre-ln,depth=2,d_model=8,heads=2", out=tmp_path / "s", top=2, data="add:digits=1", progress=False
    )
    again = type(found).load(tmp_path / "s")
    assert again.vectors is not None
    for name, t in found.vectors.items():
        assert torch.equal(again.vectors[name], t)
    share = {n: float(t[0].double().square().sum()) for n, t in found.vectors.items()}
    for name, s in found.where(0):
        if name in share:
            assert s == pytest.approx(share[name], rel=1e-5, abs=1e-9)
    assert sum(s for _, s in again.where(1, "layer")) == pytest.approx(1)
    assert again.where(-1, "head")[0][1] <= 1
    assert again.where(0, "token")[0][0].startswith("embed.W_E[")
    heads = {(n, h): s for n, h, s in where_heads(again.record).table.rows}
    own = [s for n, s in found.where(0, "head") if n.startswith("layers.1.attn.") and n.endswith("[0]")]
    assert len(own) == 3  # W_Q, W_K, W_V
    assert heads["layers.1.attn", 0] == pytest.approx(sum(own))
    assert where_tokens(again.record).table.rows == again.where(0, "token")
    with pytest.raises(UnknownName, match="no eigenvector 2"):
        again.where(2)
    with pytest.raises(UnknownName, match="layer"):
        again.where(0, "planet")
    other = qf.spectrum(
        "new:pre-ln,depth=1,d_model=4,heads=2", out=tmp_path / "t", top=1, data="add:digits=1", progress=False
    )
    (tmp_path / "t" / "vectors.safetensors").replace(tmp_path / "s" / "vectors.safetensors")
    assert other.vectors is not None
    with pytest.raises(FileError, match="another spectrum"):
        _ = type(found).load(tmp_path / "s").vectors


def test_layers_of_a_sequential_and_batches_of_images_are_named() -> None:
    """A loader gives lists; a layer that is a number is called so; batches without tensors are counted."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))
    data = TensorDataset(torch.randn(6, 1, 3, 3), torch.randint(2, (6,)))
    found = qf.spectrum(model, DataLoader(data, 3), nn.CrossEntropyLoss(), top=1, progress=False)
    text = str(found)
    assert "probe 2 batches of 3 x 1 x 3 x 3, float32" in text
    assert [b.label(EN) for b in found.diagonal] == ["layer 0", "layer 3"]
    assert re.search(r"eigenvector of lambda_max: layer [03] \(\d+ %\)", text)
    assert probe_of([object()] * 3) == {"batches": 3, "probe": [], "of": ""}
    assert probe_of([{"input_ids": torch.ones(2, 5, dtype=torch.long)}])["probe"] == [2, 5]
