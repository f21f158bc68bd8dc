"""`quadform data` and `quadform ls`: what they print, refuse and leave behind, without a network."""

from __future__ import annotations

import json

import pytest

from quadform.cli import main
from quadform.cli.listing import formula, mixing
from quadform.core import progress
from quadform.core.designs import DESIGNS, design
from quadform.core.parameters import count_parameters
from quadform.core.spec import BlockSpec, Gain, Mixing
from quadform.corpora.datasets import DATASETS, dataset
from quadform.corpora.fetch import CATALOGUE


@pytest.fixture(autouse=True)
def _own_root(monkeypatch, tmp_path):
    monkeypatch.setenv("QUADFORM_DATA", str(tmp_path / "root"))
    monkeypatch.setattr(progress, "quiet", False)


def test_list_shows_every_name_with_licence_and_size(capsys):
    """One row a name; `here` is `no` in an empty folder; the folder is named."""
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line for line in out.splitlines() if line.split()}
    assert set(CATALOGUE) <= set(rows)
    assert "Apache-2.0" in rows["tsmsg-de"]
    assert "4.4 MB" in rows["tsmsg-de"]
    assert rows["tsmsg-de"].endswith(" no")
    assert "root (QUADFORM_DATA)" in out


def test_list_as_json(capsys):
    """Strict JSON with bytes, licence and source; nothing else on stdout."""
    assert main(["data", "list", "--json"]) == 0
    items = {i["name"]: i for i in json.loads(capsys.readouterr().out)["items"]}
    assert items["ddtp-it"]["licence"].startswith("not stated as a whole; each description")
    assert items["sympy"]["source"] == "PyPI sympy 1.14.0"
    assert items["sympy"]["bytes"] > 6e6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "fetch"], "fetch what?"),
        (["data", "fetch", "tsmsg-dee"], "Did you mean `tsmsg-de`?"),
        (["data", "list", "moby"], "quadform data fetch moby"),
        (["data", "build"], "build from which files?"),
        (["data", "build", "x.tsv"], "where to?"),
        (["data", "get"], "is not one of `list`, `fetch`, `build`"),
        (["ls", "desings"], "Did you mean `designs`?"),
        (["ls", "designs", "--depth", "0"], "depth=0: give at least 1."),
    ],
)
def test_refusals_say_what_to_do(words, said, capsys):
    """Exit code 2, one line on stderr, nothing on stdout, no folder made."""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_offline_is_an_error_of_one_paragraph(monkeypatch, tmp_path, capsys):
    """No npm: exit code 2, what is missing and what to do."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["data", "fetch", "tsmsg-de"]) == 2
    err = capsys.readouterr().err
    assert err.index("licence: Apache-2.0") < err.index("`npm`, which is not installed here")


def test_build_then_use(tmp_path, capsys):
    """Own pairs become a folder that `dataset` opens; the second line says how to use it."""
    (tmp_path / "own.tsv").write_text("".join(f"source {i}\ttarget {i}\n" for i in range(40)))
    assert main(["data", "build", str(tmp_path / "own.tsv"), "--out", str(tmp_path / "own"), "--held", "5"]) == 0
    out = capsys.readouterr().out
    assert "pairs, 40 pairs" in out
    assert f"--data {tmp_path / 'own'}" in out
    data = dataset(str(tmp_path / "own"))
    assert len(data.texts("all")) == 40
    assert main(["data", "build", str(tmp_path / "own.tsv"), "--out", str(tmp_path / "own"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["pairs"] == 40


def test_ls_designs_counts_parameters(capsys):
    """Every design once, with the number of parameters of the asked shape."""
    assert main(["ls", "designs", "--depth", "2", "--d-model", "16", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["designs"]
    assert [row["design"] for row in rows] == list(DESIGNS)
    for row in rows:
        assert row["parameters"] == f"{count_parameters(design(row['design'], depth=2, d_model=16)):,}"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("pre-ln", "Y = X + A N(X) W_V W_O; Y + MLP(N(Y))"),
        ("post-ln", "Y = N(X + A X W_V W_O); N(Y + MLP(Y))"),
        ("parallel", "X + A N(X) W_V W_O + MLP(N(X))"),
        ("sas", "Y = b (alpha I + beta A - gamma C) N(X); s Y + b MLP(N(Y))"),
        ("sas-p", "b (alpha I + beta A - gamma C) N(X) + b MLP(N(X))"),
        ("deepnorm", "Y = N(1.86 X + A X W_V W_O); N(1.86 Y + MLP(Y))"),
        ("no-skip-no-norm", "Y = A X W_V W_O; MLP(Y)"),
    ],
)
def test_formulas_are_the_published_blocks(name, line):
    """The line is made from the values of the block, not from its name. Source: [HH24], [VSP17]."""
    assert formula(design(name, depth=6).blocks[-1]) == line


def test_formulas_follow_the_values():
    """Fixed numbers are printed, learned scalars are letters, a missing MLP leaves one equation."""
    assert mixing(Mixing(alpha=0.5, beta=2.0)) == "(0.5 I + 2 A)"
    assert mixing(Mixing(kind="linear")) == "Q K^T"
    assert formula(BlockSpec(mlp=None, attn=Gain(branch=0.25), norm="none")) == "X + 0.25 A X W_V W_O"


def test_ls_data_and_experiments(capsys):
    """Every data set made here or fetched, every experiment; models are no data."""
    assert main(["ls", "data", "--json"]) == 0
    names = [row["data"] for row in json.loads(capsys.readouterr().out)["data"]]
    assert names == [*DATASETS, *(n for n, item in CATALOGUE.items() if item.kind != "model")]
    assert main(["ls", "experiments"]) == 0
    assert "quadform reproduce" in capsys.readouterr().out
