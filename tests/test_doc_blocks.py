"""Every Python block of the documents runs as printed, and every command in them is one that `quadform` takes.

Blocks of a page share their names, as a reader would type them one after the other; those of the README stand alone.
A block of text right after a block of Python is what it prints, but for its numbers; `...` stands for other lines.
The Korean pages have the same blocks (tests/test_korean.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from quadform.cli.main import VERBS, fields_of
from quadform.cli.parse import _flags

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README": ROOT / "README.md"} | {p.stem: p for p in sorted((ROOT / "docs").glob("*.md"))}
BLOCK = re.compile(r"^ *```python\n(.*?)^ *```\n(?:\n```text\n(.*?)^```)?", re.M | re.S)

#: Blocks that are not run, by page and number, each with its reason.
NOT_RUN = {
    ("data", 1): "fetches a corpus of Debian packages; tests/corpora run the same calls on what was fetched",
    ("data", 2): "scores translations of that corpus; tests/train/test_fetch_bleu.py scores others",
    ("data", 3): "opens a model that was fetched; tests/corpora/test_fetch_models.py does",
    ("distributed", 2): "weights cut over processes; tests/distributed/at_sharded.py has these lines",
    ("distributed", 3): "weights cut over processes, a call of torch alone",
    ("distributed", 4): "a stage of a pipeline in each process; tests/distributed/at_piped.py has these lines",
    ("distributed", 5): "shows a defect of torch on two processes",
    ("kernels", 3): "needs curvlinops, which is not installed with the tests",
}

_GPT = """
import quadform as qf, torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_head=4, n_embd=8, vocab_size=11, n_positions=8)).eval()
ids = torch.randint(0, 11, (2, 6))
batches, loss = [{"input_ids": ids, "labels": ids}], None
H = qf.hessian(qf.Risk(model, loss, batches))
"""
_MLP = """
import quadform as qf, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
batches = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(2)]
loss = loss_fn = nn.MSELoss()
optimizer = opt = torch.optim.AdamW(model.parameters(), 1e-3)
"""
#: What a page takes for granted before its block of that number.
BEFORE = {
    ("curvature", 1): _GPT,
    ("estimate", 1): _GPT,
    ("designs", 1): "import torch\ntokens = torch.randint(0, 256, (2, 8)); prompts = tokens[:, :3]",
    ("designs", 2): _GPT + "model.save_pretrained('my-gpt2')",
    ("distributed-trainers", 1): _MLP,
    ("distributed", 1): _MLP,
    ("kernels", 1): "import torch\nfrom torch.func import grad, jvp\nq, k, v = torch.randn(3, 2, 4, 8)\n"
    "params = vector = torch.randn(5)\nloss = lambda p: p.tanh().sum()",
    ("kernels", 2): _MLP
    + "from quadform.kernels import second_order_sdpa\n(x, y), params = batches[0], list(model.parameters())\n"
    "v = [torch.ones_like(p) for p in params]",
    ("monitor", 2): "from types import SimpleNamespace\nlogged = []\nwriter = None\n"
    "wandb = SimpleNamespace(log=lambda numbers, step: logged.append(numbers))\nbatches = [batch()]",
    ("panel", 1): _MLP + "qf.fit(data='reverse', steps=4, batch_size=4, depth=1, d_model=8, heads=1, out='runs/x')",
    ("panel", 3): "corpus = 'reverse'",
    ("propagation", 1): "import torch\nfrom torch import nn\nbatches = [torch.randn(4, 6, 8)]\n"
    "model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)",
    ("propagation", 3): "batches = [(torch.randn(4, 6, 8), torch.ones(4, 6, dtype=torch.bool))]",
    ("report", 1): "import quadform as qf\nqf.attention(tokens=4, d_model=4, vary=None, out='runs/attention')",
}
#: Sizes a test does not wait for: what stands in the page, what is run.
SMALLER = {
    ("designs", 1): [("max_length=40", "max_length=4")],
    ("estimate", 1): [("probes=8, steps=30", "probes=2, steps=5"), ("products=60", "products=6")],
    ("landscape", 2): [("points=9", "points=3")],
    ("landscape", 3): [("curve=20, points=9", "curve=2, points=3")],
    ("landscape", 4): [("loss)", "loss, random=1, points=5)")],
    ("landscape", 5): [("loss)", 'loss, measures=("trace", "sam"), rounds=0)')],
    ("panel", 2): [
        ("depth=6, d_model=64, heads=4", "depth=1, d_model=8, heads=1"),
        ("[0, 100, 1000]", "[0, 1]"),
        ('["softmax", "norm", "skip", "qk"]', '["softmax"]'),
    ],
    ("panel", 3): [
        ('["pre-ln", "post-ln", "parallel", "sas-p", "v-skipinit"]', '["pre-ln", "sas-p"]'),
        ("[6, 18, 48], d_model=128", "[1], d_model=16"),
        ('"5m"', '"3s"'),
    ],
    ("propagation", 1): [("depths=[4, 8], d_model=64", "depths=[2], d_model=16")],
    ("training", 1): [("steps=500", "steps=4"), ("questions=200, valid_every=100", "questions=4, valid_every=2")],
}


def _splits(own: dict[str, Any], printed: str) -> None:
    H, H_o, H_f = own["H"], own["H_o"], own["H_f"]
    v = own["risk"].space.random()
    assert all(torch.allclose((H_o @ v)[n] + (H_f @ v)[n], (H @ v)[n], atol=1e-4) for n in v)


def _estimate(own: dict[str, Any], printed: str) -> None:
    assert "cg: converged, relative residual" in printed
    assert all(own[name].converged for name in ("step", "newton", "saddle_free", "again"))
    assert own["newton"].method == "minres"
    space = own["H"].domain
    for got in (own["P"] @ own["g"], own["again"].x):
        assert torch.allclose(space.flatten(got), space.flatten(own["step"].x), rtol=1e-3, atol=1e-4)


def _monitor(own: dict[str, Any], printed: str) -> None:
    assert printed.startswith("5 measurements in 100 steps")
    assert Path("runs/watched/record.json").exists()


def _trainer(own: dict[str, Any], printed: str) -> None:
    monitor = own["callback"].monitor if "callback" in own else own["monitor"]
    assert [r.step for r in monitor.history] == [10, 20, 30]
    assert not [line for line in monitor.warnings if "nothing was measured" in line]
    assert "lambda_max" in printed


def _compress(own: dict[str, Any], printed: str) -> None:
    assert "hessian" in printed
    weights = [own["model"][i].weight for i in (0, 2)]
    assert sum(int((w == 0).sum()) for w in weights) == sum(w.numel() for w in weights) // 2


def _measured(own: dict[str, Any], printed: str) -> None:
    value, step = own["measured"](own["model"], own["batches"], own["loss"], own["optimizer"])
    assert value > 0
    assert step.ceiling.value > 0


#: What must hold at the end of a page.
AFTER: dict[str, Callable[[dict[str, Any], str], None]] = {
    "measure": _splits,
    "estimate": _estimate,
    "monitor": _monitor,
    "monitor-hf": _trainer,
    "monitor-accelerate": _trainer,
    "monitor-lightning": _trainer,
    "compress": _compress,
    "distributed-trainers": _measured,
}
NEEDS = {
    "monitor-hf": "accelerate",
    "monitor-accelerate": "accelerate",
    "monitor-lightning": "pytorch_lightning",
    "designs": "transformers",
}


def blocks(page: str) -> list[tuple[str, str]]:
    """(code, what it prints or nothing) of every Python block of a page."""
    return [(dedent(code), shown) for code, shown in BLOCK.findall(PAGES[page].read_text())]


def words(text: str) -> list[str]:
    """What is printed, its numbers and the width of its columns aside."""
    return re.sub(r"-?\d[\d.,]*(e[-+]?\d+)?%?", "#", text).split()


def prints(shown: str, printed: str) -> bool:
    """Whether the lines that a page shows are those that came, and in their order."""
    if "..." not in shown.splitlines():
        return words(shown) == words(printed)
    came = iter([words(line) for line in printed.splitlines()])
    return all(words(line) in came for line in shown.splitlines() if line != "...")


def runs(page: str) -> bool:
    return any((page, number) not in NOT_RUN for number, _ in enumerate(blocks(page), 1))


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)])
def test_blocks_run(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, in an empty folder; what a page says is printed is printed."""
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    monkeypatch.chdir(tmp_path)
    own: dict[str, Any] = {}
    everything = ""
    for number, (code, shown) in enumerate(blocks(page), 1):
        if (page, number) in NOT_RUN:
            continue
        if page == "README":
            own = {}
        for old, new in SMALLER.get((page, number), []):
            assert old in code, f"{page}, block {number}: SMALLER replaces {old!r}, which is not there"
            code = code.replace(old, new)
        exec(BEFORE.get((page, number), ""), own)
        capsys.readouterr()
        exec(compile(code, f"{page}.md, block {number}", "exec"), own)
        printed = capsys.readouterr().out
        everything += printed
        assert not shown or prints(shown, printed), f"{page}.md, block {number} prints\n{printed}"
    if page in AFTER:
        AFTER[page](own, everything)


def test_the_lists_name_blocks_that_exist() -> None:
    """A block that was removed is removed from the lists as well."""
    for page, number in (*NOT_RUN, *BEFORE, *SMALLER):
        assert number <= len(blocks(page)), f"{page} has no block {number}"
    assert all(blocks(page) for page in (*AFTER, *NEEDS))


def commands() -> list[tuple[str, str]]:
    """(page, command) of every `quadform ...` in a console block or a span of code."""
    found = []
    for page, path in PAGES.items():
        text = path.read_text()
        for block in re.findall(r"```(?:console|bash)?\n(.*?)```", text, re.S):
            lines = block.replace("\\\n", " ").splitlines()
            found += [(page, line) for line in lines if re.search(r"^(\$ )?(torchrun .*)?quadform [a-z]", line)]
        found += [(page, span) for span in re.findall(r"`(quadform [a-z][^`]*)`", text)]
    return [(page, re.sub(r"^.*?\bquadform ", "", line).split(" #")[0]) for page, line in found]


def test_commands_of_the_documents_parse() -> None:
    """The verb is one, and so is each of its flags."""
    asked = commands()
    assert len(asked) > 100
    wrong = []
    for page, line in asked:
        verb, *rest = shlex.split(line.replace("'", ""))
        flags = [word.partition("=")[0] for word in rest if re.match("--[a-z]", word)]
        if verb not in VERBS:
            wrong.append(f"{page}: quadform {line}: no verb {verb!r}")
        else:
            known = _flags(fields_of(verb)).keys()
            wrong += [f"{page}: quadform {line}: no flag {flag}" for flag in flags if flag not in known]
    assert not wrong, "\n".join(wrong)
