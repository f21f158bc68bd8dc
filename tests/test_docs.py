"""The documents tell the truth: verbs exist, links lead somewhere, every cited key is in the bibliography."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quadform.cli.main import _HELP, VERBS, fields_of
from quadform.cli.parse import _flags

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
CITATION = re.compile(r"\[([A-Z][A-Za-z]*\d\d)\b[^\]]*\]")


def test_readme_verbs_exist() -> None:
    """Every `quadform VERB` of the README is a verb, and every verb is in the first column of its table."""
    assert set(re.findall(r"[`$/] ?quadform ([a-z]+)", README)) == set(VERBS)
    rows = " ".join(re.findall(r"^\| (`.*?`) \| ", README, re.M))
    assert set(re.findall(r"`quadform ([a-z]+)", rows)) == set(VERBS)


@pytest.mark.parametrize("text", [README, _HELP], ids=["README", "--help"])
def test_verbs_take_the_flags_they_are_said_to_take(text: str) -> None:
    """Every verb, those that measure or train, those that take long: each takes the flags named there."""
    start = text.index("Every verb takes")
    parts = text[start : text.index("--resume", start) + len("--resume")].split("those that")
    measure = VERBS.keys() - {"data", "ls", "reproduce", "verify", "explore", "teach"}
    long = measure - {"decode", "doctor"}
    for part, verbs, few in zip(parts, (VERBS.keys(), measure, long), (3, 4, 3), strict=True):
        named = set(re.findall(r"--[a-z-]+", part))
        assert len(named) == few, named
        for verb in verbs:
            taken = _flags(fields_of(verb))
            assert named <= taken.keys(), f"{verb} does not take all of {sorted(named)}"


def test_links_lead_somewhere() -> None:
    """Every relative link of the documents is a file or folder of the repository."""
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "ko").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_citations_are_in_the_bibliography() -> None:
    """Every key cited in code, tests or documents has an entry in docs/references.bib."""
    known = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text(), re.M))
    pages = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    cited = {key for page in pages for key in CITATION.findall(page.read_text())}
    assert {"ODS25", "HH24"} <= cited
    assert cited <= known, f"not in docs/references.bib: {sorted(cited - known)}"


@pytest.mark.parametrize(
    "room", ["curvature", "distributed", "estimate", "explorer", "lecture", "preconditioners", "report"]
)
def test_a_room_has_the_modules_its_page_says(room: str) -> None:
    """docs/modules.md, first column: every file named is there, and every module of the room is named."""
    text = (ROOT / "docs" / "modules.md").read_text().split(f"\n## {room}\n")[1]
    first = "".join(row.split("|")[1] for row in text.split("| module |")[1].split("\n\n")[0].splitlines()[2:])
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", first))
    found = {p.name for p in (ROOT / "src" / "quadform" / room).glob("*.py")} - {"__init__.py"}
    assert not [n for n in named if not (ROOT / "src" / "quadform" / room / n).exists()]
    assert found <= named, f"docs/modules.md, {room}: {sorted(found - named)} missing"


def test_architecture_names_every_room() -> None:
    """docs/architecture.md has a row for every package there is."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {p.parent.name for p in (ROOT / "src" / "quadform").glob("*/__init__.py")}
    assert not [room for room in rooms if f"`{room}/`" not in text]
