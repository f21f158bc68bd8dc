"""Work: pieces are computed once, time ends politely, other questions are refused, damage is computed again."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from quadform.core.errors import FileError, InputError
from quadform.core.record import Estimate, Provenance, Record
from quadform.core.work import PIECES, QUESTION, WORK, TimeUp, Work

ASKED = {"verb": "test", "top": 2, "weights": "ab"}


def record(**scalars: Estimate) -> Record:
    return Record("test", {}, scalars, {}, Provenance.collect())


def never() -> Any:
    raise AssertionError("computed again")


VALUES = [
    {"a": 1, "b": [0.1, None, "x"], "c": {"d": True}},
    [math.inf, -math.inf],
    Estimate(1.5, 0.1, "estimate", 7, False, "note"),
    {"t": torch.randn(3, 2, dtype=torch.float64), "i": torch.tensor([[1, 2]]), "e": [Estimate(2.0)]},
    torch.zeros(0, 4),
    torch.tensor(3.0),
    torch.tensor([True, False]),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_pieces_come_back_bit_for_bit(value: Any, tmp_path: Path) -> None:
    """What a second run reads equals what the first computed, and what the first was given back."""
    first = Work(tmp_path)
    first.begin(ASKED)
    given = first.piece("p", lambda: value)
    second = Work(tmp_path, resume=True)
    second.begin(ASKED)
    assert "p" in second
    assert equal(second.piece("p", never), value)
    assert equal(given, value)


def equal(a: Any, b: Any) -> bool:
    if isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in b)
    if isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def test_without_resume_everything_is_new(tmp_path: Path) -> None:
    """A run that is not resumed forgets what was there."""
    Work(tmp_path).begin(ASKED)
    again = Work(tmp_path)
    again.begin(ASKED)
    again.piece("p", lambda: 1)
    third = Work(tmp_path)
    third.begin(ASKED)
    assert "p" not in third


@pytest.mark.parametrize(
    ("other", "text"), [({"top": 3}, "other settings (top 2 / 3)"), ({"weights": "cd"}, "other weights (hash ab / cd)")]
)
def test_another_question_is_refused(other: dict[str, Any], text: str, tmp_path: Path) -> None:
    """The error names what differs."""
    Work(tmp_path).begin(ASKED)
    with pytest.raises(InputError) as refused:
        Work(tmp_path, resume=True).begin({**ASKED, **other})
    assert text in str(refused.value)


def test_damaged_and_cut_lines_are_computed_again(tmp_path: Path) -> None:
    """A changed digit, half a line and a line of something else are left out; a new piece begins on a new line."""
    work = Work(tmp_path)
    work.begin(ASKED)
    for name, value in (("a", 1.25), ("b", 2.5), ("c", 3.5)):
        work.piece(name, lambda value=value: value)
    path = tmp_path / WORK / PIECES
    lines = path.read_text().splitlines()
    lines[0] = lines[0].replace("1.25", "1.26")
    path.write_text("\n".join([lines[0], lines[1], "[]", lines[2][:-9]]))
    resumed = Work(tmp_path, resume=True)
    resumed.begin(ASKED)
    assert [n for n in "abc" if n in resumed] == ["b"]
    assert resumed.piece("c", lambda: 4.5) == 4.5
    last = Work(tmp_path, resume=True)
    last.begin(ASKED)
    assert last.piece("c", never) == 4.5


def test_a_damaged_question_is_told(tmp_path: Path) -> None:
    Work(tmp_path).begin(ASKED)
    (tmp_path / WORK / QUESTION).write_text("{")
    with pytest.raises(FileError, match="damaged"):
        Work(tmp_path, resume=True).begin(ASKED)


def test_a_finished_answer_is_read_again(tmp_path: Path) -> None:
    """The folder of a complete answer has no work left; resuming gives the record, another question does not."""
    work = Work(tmp_path)
    work.begin(ASKED)
    work.piece("p", lambda: 1)
    saved = work.finish(record(x=Estimate(1.0)))
    assert saved.inputs["question"] == ASKED
    assert not (tmp_path / WORK).exists()
    found = Work(tmp_path, resume=True).finished(ASKED)
    assert found is not None
    assert found.scalars["x"].value == 1.0
    with pytest.raises(InputError, match="top 2 / 9"):
        Work(tmp_path, resume=True).finished({**ASKED, "top": 9})
    assert Work(tmp_path).finished(ASKED) is None


@pytest.mark.parametrize("partial", [True, False])
def test_an_incomplete_answer_goes_on(partial: bool, tmp_path: Path) -> None:
    """Cut short, or not converged: the record is saved, the pieces stay, and resuming computes on."""
    work = Work(tmp_path)
    work.begin(ASKED)
    work.piece("p", lambda: 1)
    work.partial = partial
    work.finish(record(x=Estimate(1.0, kind="bound", converged=partial)))
    again = Work(tmp_path, resume=True)
    assert again.finished(ASKED) is None
    again.begin(ASKED)
    assert again.piece("p", never) == 1


def test_time_is_up_between_pieces_and_inside_one() -> None:
    """However short the time: something advances, then TimeUp; the block ends and `partial` is set."""
    work = Work(seconds=0.0)
    work.begin(ASKED)
    done = []
    with work.bar(10, "test"), work.in_time():
        work.piece("a", lambda: done.append("a"))
        work.piece("b", lambda: done.append("b"))
    assert done == ["a"]
    assert work.partial

    inside = Work(seconds=0.0)
    inside.begin(ASKED)
    told = inside.report()
    told(3, 10, 0.0, "")  # found on disk
    with pytest.raises(TimeUp):
        told(4, 10, 0.0, "")


def test_the_bar_never_stalls_nor_goes_back() -> None:
    """Fewer or more products than expected: each piece ends at its own number; kept pieces are skipped."""
    seen: list[int] = []
    work = Work(progress=lambda done, total, left, text: seen.append(done))
    work.begin(ASKED)
    with work.bar(30, "test"):
        work.piece("few", lambda: work.spend(2), expected=10)
        work.piece("many", lambda: [work.spend(1) for _ in range(50)] and None, expected=10)
        work.piece("few", never, expected=10)
        work.spend(0)
    assert seen == sorted(seen)
    assert seen[-1] == 30
    assert max(b - a for a, b in itertools.pairwise(seen)) <= 10


def test_states_have_a_folder_where_keeping_pays(tmp_path: Path) -> None:
    """In the run folder; in a scratch folder where only the time is limited; nowhere for large ones without a limit."""
    assert Work(tmp_path).state("a b/c") == tmp_path / WORK / "state" / "a-b-c"
    assert Work().state("a") is None
    assert Work(tmp_path).state("a", size=1e12) is None
    with Work(seconds=9.0) as work:
        place = work.state("a", size=1e12)
        assert place is not None
        assert place.parent.is_dir()
    assert not place.parent.exists()


def test_parts_share_the_clock(tmp_path: Path) -> None:
    """One of several questions: a folder inside, the same deadline."""
    work = Work(tmp_path, seconds=5.0, resume=False)
    part = work.part("spectrum")
    assert part.deadline is work.deadline
    part.begin(ASKED)
    assert json.loads((tmp_path / "spectrum" / WORK / QUESTION).read_text()) == ASKED


def test_resuming_needs_a_folder() -> None:
    with pytest.raises(InputError, match="without a folder"):
        Work(resume=True)
