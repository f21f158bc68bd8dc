"""Bad input, case by case (what happened, why, what to do): text and exit code; nothing on stdout, no traceback."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quadform.applications.subject import Subject
from quadform.cli import main
from quadform.core import progress
from quadform.core.errors import InputError, TooLarge
from quadform.core.record import Record
from quadform.curvature.operators import hessian
from quadform.curvature.risk import Risk
from quadform.nn.transformer import Transformer
from quadform.report.style import LIGHT

MODEL = "new:pre-ln,depth=1,d_model=8,heads=2"
SMALL = [MODEL, "--data", "add:digits=2", "--batch-size", "2"]
QUICK = ["--top", "1", "--blocks", "none", "--products", "4", "--quiet"]
MODELS = "a run folder, a Hugging Face folder, a fetched model (`sceptr:tiny`), or `new:pre-ln,depth=6,d_model=64`."


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(progress, "quiet", False)
    monkeypatch.chdir(tmp_path)


def refused(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """What a refused command said: one line on stderr after the progress, nothing on stdout."""
    capsys.readouterr()
    assert main(words) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    last = said.err.splitlines()[-1]
    assert last.startswith("quadform: ")
    return last.removeprefix("quadform: ")


class Named(nn.Module):
    """A module with dropout and a layer that can be made to break."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.h = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.h[1](self.h[0](x)))

    def loss(self, batch: Any) -> torch.Tensor:
        return (self(batch[0]) - batch[1]).square().mean()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 2, generator=generator), torch.randn(4, 2, generator=generator)


@pytest.fixture
def gpt2(tmp_path: Path) -> Any:
    """A tiny GPT-2 configuration and its module `transformers`."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    return transformers, config


# --- words ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("verb", ["spectrum", "lr", "why"])
def test_no_model(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A verb without its MODEL says what one can be."""
    assert refused([verb], capsys) == f"`quadform {verb}` needs a MODEL: {MODELS} See `quadform {verb} --help`."
    assert refused([verb, "--json", "--seed", "3"], capsys).startswith(f"`quadform {verb}` needs a MODEL: a run folder")


def test_no_run_to_decode(capsys: pytest.CaptureFixture[str]) -> None:
    """The same for RUN of `decode`."""
    assert refused(["decode"], capsys) == (
        "`quadform decode` needs a MODEL: the folder of a run written by `quadform train --out RUN`."
        " See `quadform decode --help`."
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["train", "--design", "paralel"], "design='paralel' is not a block design. Did you mean `parallel`?"),
        (
            ["compare", "--designs", "pre-ln,paralel"],
            "designs='paralel' is not a block design. Did you mean `parallel`?",
        ),
        (["spectrum", "new:paralel"], "'paralel' is not a block design. Did you mean `parallel`?"),
        (["signal", "paralel"], "`paralel` is neither a block design nor a model here. Did you mean `parallel`?"),
    ],
)
def test_typo_in_a_design(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A design that does not exist: the nearest one that does."""
    assert text in refused(words, capsys)


# --- sizes and precision ----------------------------------------------------------------------------------------------
def test_full_matrix_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    """What it needs, what is free, and the way without a matrix; before anything is allocated."""
    said = refused(["attention", "--d-model", "5000"], capsys)
    assert said.startswith("The exact Hessian of 75,000,000 parameters with its eigenvalues needs 270 PB; ")
    assert said.endswith("parameters fit here: lower d_model, or measure it matrix-free with `quadform spectrum`.")
    model = nn.Linear(3000, 3000, bias=False)
    x = torch.zeros(1, 3000)
    risk = Risk(model, lambda out, b: out.square().mean(), (x, x), quiet=True)
    with pytest.raises(TooLarge, match=r"9,000,000 x 9,000,000 entries needs 324 TB.*Use products.*block"):
        hessian(risk).dense()


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("verb", ["spectrum", "lr", "why", "signal", "attention"])
def test_half_precision_is_refused_by_the_verbs(verb: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Second derivatives in halves are no firm values, so no verb computes in them; it says why and what instead."""
    words = [verb, *([] if verb == "attention" else [MODEL]), "--dtype", kind]
    said = refused(words, capsys)
    why = "underflow in float16" if kind == "float16" else "in bfloat16 are good to about 1 % only"
    assert said.startswith(f"`--dtype {kind}` is refused: second derivatives {why}. Use `--dtype float")
    assert said.strip().endswith(f"; models stored in {kind} are read into these.")


def test_half_precision_in_python() -> None:
    """float16 is refused, bfloat16 on a CPU too; a float32 adapter on a bfloat16 model multiplies in bfloat16."""

    class Scale(nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(3, dtype=dtype))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a * x

    def squared(out: torch.Tensor, b: Any) -> torch.Tensor:
        return out.float().square().mean()

    x = torch.ones(3, dtype=torch.bfloat16)
    frozen = nn.Sequential(Scale(torch.bfloat16).requires_grad_(False), Scale(torch.float32))
    for model in (Scale(torch.bfloat16), frozen):
        with pytest.raises(InputError, match=r"is bfloat16, in which a CPU has two or three digits.*model\.float\(\)"):
            Risk(model, squared, (x, x), quiet=True)
    with pytest.raises(InputError, match=r"float16 underflows in second derivatives\. Load the model in float32"):
        Risk(Scale(torch.float16), squared, (x.half(), x.half()), quiet=True)


# --- the model --------------------------------------------------------------------------------------------------------
def test_fused_attention_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The note that another path is taken while measuring, before the work and in the answer."""
    note = "fused attention has no second derivative: the math path is used while measuring"
    main(["spectrum", *SMALL, "--top", "1", "--blocks", "none", "--products", "4"])
    said = capsys.readouterr()
    assert note in said.err
    assert note in said.out


def test_no_loss(tmp_path: Path, gpt2: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A model without a head has no loss."""
    transformers, config = gpt2
    transformers.GPT2Model(config).save_pretrained(tmp_path / "bare")
    assert refused(["spectrum", str(tmp_path / "bare"), "--length", "4", *QUICK], capsys) == (
        "The model returned no loss. Pass `labels` in the batch or `loss=` (a function of output and batch); Hugging"
        " Face folders need a model with a head (GPT2LMHeadModel, not GPT2Model)."
    )


def test_filter_matches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The filter, how many tensors there are, and names that are near."""
    said = refused(["spectrum", *SMALL, "--params", "layers.*.W_X", *QUICK], capsys)
    assert said.startswith("params: `layers.*.W_X` match 0 of 14 tensors. Closest names: `layers.0.")


def frozen_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MODEL be a small model whose parameters are all frozen."""
    from quadform.applications import subject

    model = Transformer("pre-ln", depth=1, d_model=8, heads=2, vocab=12, seq_len=8).requires_grad_(False)
    rows = {"tokens": torch.arange(16).reshape(2, 8) % 12}
    monkeypatch.setattr(subject, "open_subject", lambda _: Subject("m", model, [rows], {"weights": "0", "model": "m"}))


def test_nothing_trainable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All frozen: refused with the flag that takes them all the same, and that flag works."""
    frozen_subject(monkeypatch)
    assert refused(["spectrum", MODEL, *QUICK], capsys) == (
        "All parameters are frozen (requires_grad=False); the Hessian is taken over trainable ones. Use"
        " include_frozen=True."
    )
    assert main(["spectrum", MODEL, *QUICK, "--include-frozen"]) in (0, 3)
    assert capsys.readouterr().out.startswith("14 of 14 tensors, ")


@pytest.mark.parametrize(
    ("how", "bits"), [({"load_in_4bit": True}, "4-bit"), ({"bits": 8}, "8-bit"), ({}, "quantized")]
)
def test_quantized_weights(
    how: dict[str, Any], bits: str, tmp_path: Path, gpt2: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of quantised weights is refused from its configuration, before any weight is read."""
    _, config = gpt2
    config.save_pretrained(tmp_path)
    body = json.loads((tmp_path / "config.json").read_text())
    body["quantization_config"] = {"quant_method": "bitsandbytes"} | how
    (tmp_path / "config.json").write_text(json.dumps(body))
    said = refused(["spectrum", str(tmp_path), *QUICK], capsys)
    assert said.startswith(f"{bits} weights cannot be differentiated twice. Load `{tmp_path}` in float32")


def test_integer_weights() -> None:
    """A module of integers alone."""
    model = nn.Module()
    model.W = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    with pytest.raises(InputError, match=r"8-bit weights cannot be differentiated twice.*params='\*lora\*'"):
        Risk(model, lambda out, b: out, batch())


def test_dropout() -> None:
    """Dropout is switched off and said so; kept on, the loss is random and is refused with its spread."""
    model = Named(dropout=0.5)
    risk = Risk(model, None, batch(), quiet=True)
    assert "dropout switched off while measuring (eval mode)" in str(risk)
    assert model.training
    text = r"The loss is not deterministic \(two evaluations differ by \S+ %\).*train_mode=False"
    with pytest.raises(InputError, match=text):
        Risk(model, None, batch(), train_mode=True, quiet=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_finite(value: float) -> None:
    """The batch and the module where the first value that is not finite appears; the model keeps no hooks."""
    model = Named()
    x, y = batch()
    with torch.no_grad():
        model.h[1].weight[0, 0] = value
    with pytest.raises(InputError) as refusal:
        Risk(model, None, [(x, y)], quiet=True)
    shown = "nan" if value != value else "inf"
    text = f"Loss is {shown} on probe batch 1 of 1 (first not finite: `h.1`). Nothing was measured."
    assert str(refusal.value) == text
    assert not any(m._forward_hooks for m in model.modules())
    whole = Named()
    with pytest.raises(InputError, match=r"batch 2 of 3 \(the batch itself is not finite\)"):
        Risk(whole, None, [(x, y), (x * value, y), (x, y)], quiet=True)


def test_not_finite_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A saved model with a broken weight: the module's name, and nothing left in `--out`."""
    model = Transformer("pre-ln", depth=2, d_model=8, heads=2, vocab=12, seq_len=16)
    with torch.no_grad():
        model.layers[1].mlp.W_1.fill_(float("nan"))
    model.save(tmp_path / "m")
    words = ["spectrum", str(tmp_path / "m"), "--data", "add:digits=2", *QUICK, "--out", str(tmp_path / "out")]
    assert refused(words, capsys) == (
        "Loss is nan on probe batch 1 of 1 (first not finite: `layers.1.mlp`). Nothing was measured."
    )
    assert not list((tmp_path / "out").iterdir())


# --- the work ---------------------------------------------------------------------------------------------------------
def test_not_converged(capsys: pytest.CaptureFixture[str]) -> None:
    """Results are kept and marked as bounds, exit code 3, with the command that goes on; going on gets there."""
    words = ["spectrum", *SMALL, "--blocks", "none", "--top", "1", "--out", "s", "--quiet"]
    assert main([*words, "--products", "3"]) == 3
    said = capsys.readouterr().out
    assert "lambda_max >= " in said
    assert "after 3 products, residual " in said
    assert "Reported as a lower bound; resume with products=6." in said
    assert main([*words, "--products", "80", "--resume", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["ok"]
    assert body["scalars"]["top/0"]["kind"] != "bound"


def test_resume_with_other_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """`--resume` in the folder of other weights: both hashes and what to do."""
    words = ["spectrum", *SMALL, *QUICK, "--out", "s"]
    main(words)
    said = refused([*words, "--resume", "--seed", "1"], capsys)
    assert said.startswith("This run was started with other weights (hash ")
    assert said.endswith("). Use the old weights or another folder.")


# --- files and packages -----------------------------------------------------------------------------------------------
def test_pickles(tmp_path: Path, gpt2: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with a pickle alone is not opened unless it is trusted; a bare pickle says what to make of it."""
    transformers, config = gpt2
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path)
    torch.save(transformers.GPT2LMHeadModel(config).state_dict(), tmp_path / "pytorch_model.bin")
    words = ["spectrum", str(tmp_path), "--length", "4", "--batch-size", "2", *QUICK]
    assert refused(words, capsys) == (
        "`pytorch_model.bin` holds Python objects and could run code. Convert to safetensors, or trust it"
        " (trust_pickle) if you made it."
    )
    assert main([*words, "--trust-pickle"]) in (0, 3)
    said = refused(["spectrum", str(tmp_path / "pytorch_model.bin")], capsys)
    assert "holds Python objects and could run code" in said


def test_hub_id_without_network(capsys: pytest.CaptureFixture[str], gpt2: Any) -> None:
    """A hub id that is not in the cache: no network is used, and that is said."""
    assert refused(["spectrum", "quadform-nobody/nothing", *QUICK], capsys) == (
        "there is no folder `quadform-nobody/nothing`, and the local cache of Hugging Face has no model of that name."
        " Check the path, or allow the download from the hub (allow_download)."
    )


# --- what the verbs have in common ------------------------------------------------------------------------------------
def test_no_help_loads_torch() -> None:
    """`quadform --help` and the `--help` of every verb load neither torch nor numpy."""
    code = (
        "import contextlib, io, sys\n"
        "from quadform.cli.main import VERBS, main\n"
        "for words in (['--help'], *([v, '--help'] for v in VERBS)):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as said: code = main(words)\n"
        "    found = [m for m in ('torch', 'numpy', 'altair', 'scipy') if m in sys.modules]\n"
        "    assert code == 0 and said.getvalue() and not found, (words, code, found)\n"
        "print(len(VERBS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 14


# --- names and numbers no machine can use -----------------------------------------------------------------------------
LONG = "a" * 300
HUGE = "99999999999"


@pytest.mark.parametrize(
    "words",
    [
        ["lr", LONG],
        ["spectrum", LONG, "--out", "here"],
        ["why", LONG],
        ["signal", LONG],
        ["report", LONG],
        ["decode", LONG, "text"],
        ["train", "--data", LONG, "--out", "here"],
        ["lr", MODEL, "--data", LONG],
        ["compare", "--data", LONG],
        ["ls", "runs", LONG],
        ["attention", "--out", LONG],
    ],
)
def test_a_name_longer_than_a_file_can_have(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No model, run or data set has it: one sentence with the reason, not an internal error."""
    assert "a" * 40 in refused(words, capsys)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["attention", "--tokens", HUGE], "attention of 99,999,999,999 tokens"),
        (["verify", "--largest", HUGE], "The exact Hessian of "),
        (["spectrum", *SMALL[:-1], HUGE], "a probe of 1 x 99,999,999,999 sequences"),
        (["spectrum", *SMALL, "--batches", HUGE], "a probe of 99,999,999,999 x 2 sequences"),
        (["lr", *SMALL[:-1], HUGE], "a probe of 4 x 99,999,999,999 sequences"),
        (["lr", *SMALL, "--batches", HUGE], "a probe of 99,999,999,999 x 2 sequences"),
        (["lr", *SMALL, "--verify", HUGE], "the course of 99,999,999,999 steps on a copy"),
        (["why", *SMALL, "--batches", HUGE], "a probe of 99,999,999,999 x 2 sequences"),
        (["why", *SMALL, "--steps", HUGE], "the course of 99,999,999,999 training steps"),
        (["compare", "--batch-size", HUGE], "a probe of 1 x 99,999,999,999 sequences"),
        (["compare", "--depths", HUGE], "with 99,999,999,999 blocks of width 64"),
        (["compare", "--d-model", "99999999996"], "blocks of width 99,999,999,996"),
        (["signal", "pre-ln", "--depths", HUGE], "with 99,999,999,999 blocks of width 256"),
        (["signal", "pre-ln", "--tokens", HUGE], "attention of 8 x 99,999,999,999 tokens"),
        (["signal", "pre-ln", "--batch-size", HUGE], "attention of 99,999,999,999 x 64 tokens"),
        (["signal", "pre-ln", "--networks", HUGE], "the signal of 99,999,999,999 networks"),
        (["signal", MODEL, "--batches", HUGE], "a probe of 99,999,999,999 x 8 sequences"),
    ],
)
def test_sizes_are_held_against_memory(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What it needs and what is free, before anything is computed."""
    said = refused([*words, "--quiet"], capsys)
    assert re.search(rf"{re.escape(what)}.* needs \S+ \S?B; \S+ \S?B are free\. ", said), said


@pytest.mark.parametrize(
    "words",
    [
        ["lr", *SMALL, "--batches", "9" * 30],
        ["why", *SMALL, "--steps", "9" * 30],
        ["compare", "--depths", "9" * 30],
        ["signal", "pre-ln", "--depths", "9" * 30],
        ["attention", "--seed", "9" * 30],
    ],
)
def test_whole_numbers_torch_cannot_count_to(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "a whole number is at most 9,223,372,036,854,775,807." in refused(words, capsys)


@pytest.mark.parametrize("words", [["compare", "--budget", "9" * 400], ["explore", "--max-time", "9" * 400 + "h"]])
def test_times_no_clock_can_wait(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a length of time" in refused(words, capsys)


def test_other_numbers_out_of_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["spectrum", *SMALL, "--tol", "inf"], capsys) == "tol=inf: give a finite number."
    assert "describes up to 10,000 blocks" in refused(["ls", "designs", "--depth", HUGE], capsys)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000000000 bytes."),
            2,
            "8 GB",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), 2, "does not fit the memory"),
        (MemoryError(), 2, "does not fit the memory"),
        (OSError(28, "No space left on device", "runs/x"), 2, "`runs/x` cannot be used: No space left on device."),
        (RuntimeError("shapes differ"), 1, "internal error (please report): RuntimeError: shapes differ."),
        (
            FileNotFoundError(2, "No such file or directory", "ours"),
            1,
            "internal error (please report): FileNotFoundError",
        ),
    ],
)
def test_what_the_machine_says(
    error: Exception, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory and disks that are full are told as such; a mistake of ours stays an internal error."""

    def fails(*words: Any) -> int:
        raise error

    monkeypatch.setattr("quadform.applications.doctor.measure.DoctorMeasurement.measure", fails)
    assert said in refused(["doctor"], capsys, code)


def test_a_record_that_contradicts_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tensors of another size than the scalars say: told by `report`, and by `ls runs` in its row."""
    monkeypatch.setattr("quadform.report.html.DRAWN", (LIGHT,))  # in dark colours it is the same code
    assert main(["attention", "--tokens", "3", "--d-model", "2", "--out", "run", "--quiet"]) == 0
    record = Record.load("run")
    for i, name in enumerate(record.tensors):
        other = torch.zeros((1,) if i % 2 else (2, 3, 5, 7), dtype=torch.float64)
        changed = dataclasses.replace(record, tensors={**record.tensors, name: other})
        changed.save("changed")
        capsys.readouterr()
        code, said = main(["report", "changed", "--quiet"]), capsys.readouterr().err
        assert code in (0, 2), (name, said)
        assert said.count("\n") == (code == 2)
        assert main(["ls", "runs", "changed"]) == 0
