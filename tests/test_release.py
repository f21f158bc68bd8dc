"""Files of a release agree with each other: version, citation, changelog, support table, issue templates."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import quadform

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import support  # noqa: E402  # a script beside the package

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_is_of_this_version() -> None:
    """CITATION.cff has the fields that its format asks for, and says what pyproject.toml says."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert str(cited["version"]) == quadform.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["keywords"] == PROJECT["keywords"]
    assert [author["name"] for author in cited["authors"]] == [author["name"] for author in PROJECT["authors"]]


def test_the_changelog_has_a_section_of_this_version() -> None:
    """The newest section is of this version, with `Unreleased` at most above it; a section has a heading once."""
    sections = re.findall(r"^## \[(.*?)\]", CHANGELOG, re.M)
    assert next(name for name in sections if name != "Unreleased") == quadform.__version__
    assert "Unreleased" not in sections[1:]
    for section in re.split(r"^## ", CHANGELOG, flags=re.M)[1:]:
        headings = re.findall(r"^### (.*)$", section, re.M)
        assert len(set(headings)) == len(headings), f"a heading twice: {headings}"


def test_changelog_and_citation_have_one_date() -> None:
    """The date of the newest version is the date of release in CITATION.cff."""
    dated = re.search(rf"^## \[{re.escape(quadform.__version__)}\] - (\d{{4}}-\d\d-\d\d)$", CHANGELOG, re.M)
    assert dated
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["date-released"]) == dated[1]


def test_the_support_table_is_that_of_the_record() -> None:
    """The rows are the Pythons of pyproject.toml; a cell says what ran there and passed."""
    text = (ROOT / "docs" / "support.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^\|.*\|$", text, re.M)]
    torches = [head.removeprefix("torch ") for head in rows[0][1:]]
    table = {
        (row[0].removeprefix("Python "), t): cell for row in rows[2:] for t, cell in zip(torches, row[1:], strict=True)
    }
    assert {python for python, _ in table} == {c.rpartition(" :: ")[2] for c in PROJECT["classifiers"] if ":: 3." in c}
    assert f"torch>={torches[0]}" in PROJECT["dependencies"]
    record = json.loads((ROOT / "benchmarks" / "records" / "support.json").read_text())
    passed = {(minor(row["python"]), minor(row["torch"])): row["ran"] for row in record if row["ok"]}
    said = {"checked": "sample", "smoke test": "smoke"}
    assert {cell: said[words] for cell, words in table.items() if words in said} == passed
    assert support.table() in text, "run: python benchmarks/support.py table"


def minor(version: str) -> str:
    """3.11.7 -> 3.11."""
    return ".".join(version.split(".")[:2])


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.stem)
def test_issue_forms_are_complete(form: Path) -> None:
    """A name, a description, and fields with a kind, a label and an id of their own."""
    found = yaml.safe_load(form.read_text())
    assert found["name"]
    assert found["description"]
    assert all(field["type"] in ("textarea", "input") and field["attributes"]["label"] for field in found["body"])
    assert len({field["id"] for field in found["body"]}) == len(found["body"])
