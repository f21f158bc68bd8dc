"""Five journeys in Python, line by line as they are told to newcomers; only the sizes are smaller."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quadform as qf
from quadform.answers import Answer


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Weights, gradients, modes and random state are those of before."""

    def state() -> tuple[Any, ...]:
        weights = b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())
        modes = tuple(m.training for m in model.modules())
        grads = tuple(p.grad is None for p in model.parameters())
        return hashlib.sha256(weights).hexdigest(), modes, grads, torch.get_rng_state().numpy().tobytes()

    before = state()
    yield
    assert state() == before


def shows(answer: Any, path: Path) -> None:
    """What every result can do: a table, a chart, a page, strict JSON, a notebook's HTML, a folder and back."""
    assert str(answer.table())
    assert answer.plot().to_dict()["$schema"].startswith("https://vega.github.io/schema/vega-lite")
    assert path.with_suffix(".html") == answer.report(path.with_suffix(".html"))
    assert path.with_suffix(".html").read_text().lstrip().lower().startswith("<!doctype html>")
    body = json.loads(answer.json(), parse_constant=lambda word: pytest.fail(f"{word} is not strict JSON"))
    assert "<" in answer._repr_html_()
    answer.save(path)
    again = type(answer).load(path)
    assert json.loads(again.json()) == body
    if isinstance(answer, Answer):
        assert str(again) == str(answer)


def test_1_why_does_my_transformer_need_adam(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One part at a time taken out: table, sentence, chart without a file, report."""
    m = qf.Transformer(design="pre-ln", depth=1, d_model=4, heads=2, vocab=256, seed=0)
    with unchanged(m):
        why = qf.why(
            m,
            qf.datasets.addition(digits=1),
            remove=["softmax", "norm", "skip", "qk"],
            steps=[0, 1],
            batch_size=4,
            progress=False,
        )
    print(why.table())
    said = capsys.readouterr().out
    for column in ("lambda_max", "negative", "value:query", "SGD ceiling", "AdamW ceiling", "H_f share"):
        assert column in said
    assert all(f"no {part}" in said for part in ("softmax", "norm", "skip", "qk"))
    assert len(why.table()) == 5 * 2
    assert why.sentence("adam").endswith(".")
    before = set(tmp_path.iterdir())
    assert why.plot("blocks").to_dict()
    assert set(tmp_path.iterdir()) == before
    shows(why, tmp_path / "why")


def test_2_what_learning_rate_can_i_use(tmp_path: Path) -> None:
    """Any module, any loss, a torch optimizer with its state: ceiling, rule, interval over batches, a fraction."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    batches = [(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(3)]

    def loss_fn(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return (out - batch[1]).square().mean()

    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    for _ in range(3):
        loss_fn(model(batches[0][0]), batches[0]).backward()
        opt.step()
        opt.zero_grad()
    with unchanged(model):
        lr = qf.lr(model, batches, loss=loss_fn, optimizer=opt, verify=5, progress=False)
    assert lr.rule == "38 / lambda_max(P^-1 H)"
    low, high = lr.interval
    assert 0 < low <= high
    assert low / 3 < lr.ceiling.value < 3 * high
    assert lr.suggest(fraction=0.2) == pytest.approx(0.2 * lr.ceiling.value)
    assert [t.fraction for t in lr.trials] == [0.5, 1.0, 2.0]
    shows(lr, tmp_path / "lr")


def test_3_compare_blocks_before_i_commit_gpu_money(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Five designs, a budget, a folder that resumes; the table sorted by ceiling, a chart, a report."""
    corpus = qf.datasets.addition(digits=1)
    options: dict[str, Any] = {"depths": [1], "d_model": 4, "heads": 2, "batch_size": 4, "data": corpus, "budget": "1s"}
    designs = ["pre-ln", "post-ln", "parallel", "sas-p", "v-skipinit"]
    c = qf.compare(designs=designs, **options, out="runs/blocks", resume=True, progress=False)
    print(c.table(sort="lr_ceiling"))
    said = capsys.readouterr().out
    assert all(word in said for word in ("lr ceiling", "rank", "gradient", "loss", *designs))
    ceilings = [v for v in c.table(sort="lr_ceiling").column("lr ceiling") if v is not None]
    assert ceilings == sorted(ceilings, reverse=True)
    assert c.plot("rank").to_dict()
    shows(c, tmp_path / "blocks")
    again = qf.compare(designs=designs, **options, out="runs/blocks", resume=True, progress=False)
    assert again.record.scalars == c.record.scalars  # read, not measured: speeds would differ


def test_4_spectrum_of_my_hugging_face_model(tmp_path: Path) -> None:
    """A local folder, a tokenizer, texts: coverage, cost, eigenvalues, trace, a block inside the fused c_attn."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path / "gpt"
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=40, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(40)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    texts = [" ".join(f"w{(7 * i + j) % 40}" for j in range(20)) for i in range(4)]

    from transformers import AutoModelForCausalLM, AutoTokenizer

    with contextlib.redirect_stderr(io.StringIO()):
        m, tok = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    probe = qf.probe(tok, texts, length=8)
    with unchanged(m):
        s = qf.spectrum(
            m, probe, top=2, density=True, blocks="qkv", steps=4, probes=2, out="runs/my-gpt", progress=False
        )
    assert s.cost["products"] > 0
    assert s.coverage.endswith("split into query/key/value")
    assert "28 of 28 tensors" in s.coverage
    assert s.top[0].value >= s.top[1].value
    assert s.trace.kind == "estimate"
    assert s.trace.stderr > 0
    assert s.blocks("h.1", "query", "value").value > 0
    s.save("runs/my-gpt/spectrum")
    shows(s, tmp_path / "spectrum")
    if importlib.util.find_spec("pandas"):
        assert list(s.to_pandas().columns) == ["what", "value", "+-", "tag", "products"]
    else:
        with pytest.raises(ImportError, match="pip install pandas"):
            s.to_pandas()


def test_5_teach_me_the_exact_hessian_of_attention() -> None:
    """The closed form of one layer: blocks by either name, moments, the check, growth with the scale."""
    X, Wq, Wk, Wv, Y = qf.toy(tokens=8, d_model=8, seed=0)
    H = qf.attention_hessian(X, Wq, Wk, Wv, Y)
    assert H.outer("W_Q", "W_Q").shape == (64, 64)
    assert H.functional("W_V", "W_V").abs().max() == 0
    assert torch.equal(H.outer("query", "value"), H.outer("W_Q", "W_V"))
    M = H.moments()
    assert torch.allclose(M.M1.reshape(8, 8), torch.softmax(X @ Wq @ Wk.T @ X.T / 8**0.5, dim=1) @ X)
    assert M.M2.numel() == 8 * 8 * 8
    assert M.M3.numel() == 8 * 8 * 8 * 8
    assert H.check().value < 1e-12
    slopes = qf.vary(H, "scale", 0.01, 0.3).slopes()
    assert slopes["W_Q", "W_Q"] == pytest.approx(6, abs=0.05)
    assert slopes["W_V", "W_V"] == pytest.approx(2, abs=0.05)


def test_the_signal_of_any_model_shows_like_the_others(tmp_path: Path) -> None:
    """`qf.signal` gives a result with the same doors."""
    found = qf.signal(["pre-ln", "no-skip"], depths=[2], d_model=8, heads=2, tokens=6, batch_size=2, networks=2)
    shows(found, tmp_path / "signal")
