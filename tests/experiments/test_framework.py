"""Claims can be seen failing, runs go on where they stopped, the gallery is what the Records say."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import runpy
import time
from pathlib import Path

import pytest
import torch

from quadform.core.errors import FileError, InputError, UnknownName
from quadform.core.number import ErrorKind
from quadform.core.record import Estimate, Record
from quadform.core.work import Work
from quadform.experiments.call import reproduce
from quadform.experiments.catalog import CATALOG, committed, experiment, recorded
from quadform.experiments.charts import figure_of, line_panel, side_by_side
from quadform.experiments.claims import Claim, at_least, at_most, near
from quadform.experiments.experiment import Experiment, Units
from quadform.experiments.gallery import _sentence, _summary, committed_entries, markdown
from quadform.experiments.pool import measure, parts_of
from quadform.experiments.runner import work_of
from quadform.report.figure import Rows

from . import VERDICTS

ROOT = Path(__file__).resolve().parents[2]


# --- claims ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "status"), [(5.85, "met"), (6.15, "met"), (6.16, "not met"), (5.84, "not met"), (math.nan, "not met")]
)
def test_a_claim_is_met_inside_its_interval_only(value: float, status: str) -> None:
    """low <= value <= high, and a number that is no number meets nothing."""
    claim = near("grows as X^6", "slope", 6, 0.15, "[own]")
    assert claim.verdict({"slope": Estimate(value)}, "smoke").status == status


@pytest.mark.parametrize(
    ("value", "error", "error_kind", "status"),
    [
        (6.1, 0.02, "stderr", "met"),
        (6.1, 0.03, "stderr", "undecided"),
        (6.1, 0.03, "residual", "met"),
        (6.1, 0.06, "residual", "undecided"),
        (6.2, 0.02, "stderr", "not met"),
        (6.2, 0.03, "stderr", "undecided"),
        (5.8, 0.03, "stderr", "undecided"),
        (6.0, math.inf, "stderr", "undecided"),
        (6.0, 0.0, "stderr", "met"),
        (math.nan, 0.1, "stderr", "not met"),
    ],
)
def test_a_claim_within_the_error_of_its_number_is_undecided(
    value: float, error: float, error_kind: ErrorKind, status: str
) -> None:
    """An end of the interval within 2 s.e., or within the residual: neither met nor not met."""
    claim = near("grows as X^6", "slope", 6, 0.15, "[own]")
    found = claim.verdict({"slope": Estimate(value, error, "estimate", error_kind=error_kind)}, "smoke")
    assert found.status == status
    assert ("within its error" in found.reason) == (status == "undecided")


def test_an_open_side_decides_nothing() -> None:
    """Only the ends of an interval count: `at most 1` has one."""
    claim = at_most("small", "x", 1, "[own]")
    assert claim.verdict({"x": Estimate(-5.0, 1.0, "estimate")}, "smoke").status == "met"
    assert claim.verdict({"x": Estimate(-1.0, 1.0, "estimate")}, "smoke").status == "undecided"


def test_a_claim_without_its_number_or_preset_is_not_tested() -> None:
    claim = near("grows as X^6", "slope", 6, 0.15, "[own]", presets=("paper",))
    assert claim.verdict({"slope": Estimate(0.0)}, "smoke").status == "not tested"
    assert claim.verdict({}, "paper").status == "not tested"
    assert claim.verdict({"slope": Estimate(0.0)}, "paper").status == "not met"
    assert "too small" in claim.verdict({}, "cpu").reason
    small = dataclasses.replace(claim, presets=("cpu",))
    assert "only cpu" in small.verdict({"slope": Estimate(0.0)}, "paper").reason


def test_a_claim_that_cannot_fail_is_refused() -> None:
    with pytest.raises(InputError):
        Claim(text="anything", source="[own]", key="x")
    with pytest.raises(InputError):
        Claim(text="nothing", source="[own]", key="x", low=1, high=0)


def test_intervals_in_words() -> None:
    assert near("", "x", 6, 0.15, "").wanted == "6 +- 0.15"
    assert at_most("", "x", 0.01, "").wanted == "at most 0.01"
    assert at_least("", "x", 10, "").wanted == "at least 10"


def test_the_python_of_a_figure_draws_it_as_often_as_it_is_run() -> None:
    """The lines below a figure, run twice as in a notebook, on the folder of its record."""
    from quadform.experiments.catalog import RECORDS

    python = (
        experiment("dependence")
        .figure(committed("dependence"))
        .python.replace('"RUN"', repr(str(RECORDS / "dependence")))
    )
    *lines, last = python.strip().splitlines()
    for _ in range(2):
        names: dict = {}
        exec("\n".join(lines), names)
        assert eval(last, names).to_dict()["$schema"]


def test_a_picture_depends_on_its_record_alone() -> None:
    """The drawer counts its ids on from figure to figure; a picture of the gallery is the same bytes again."""
    from quadform.experiments.gallery import Entry

    e, record = experiment("growth-linear"), committed("growth-linear")
    assert record is not None
    a, b = (Entry(e, record, ()) for _ in range(2))
    assert a.picture == b.picture
    assert a.kind == "svg"
    text = a.picture.decode()
    assert 'id="clip1"' in text
    assert set(re.findall(r'id="(\w+)"', text)) == set(re.findall(r"url\(#(\w+)\)", text))


# --- a small experiment of our own ----------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Config:
    parts: int = 4
    seed: int = 0


class _Toy:
    """Counts what it computes; may break once at a given part."""

    def __init__(self, breaks_at: int | None = None, error: float | None = None) -> None:
        self.computed: list[int] = []
        self.breaks_at, self.error = breaks_at, error

    def part(self, i: int) -> dict[str, torch.Tensor]:
        if i == self.breaks_at:
            self.breaks_at = None
            raise KeyboardInterrupt
        self.computed.append(i)
        return {"v": torch.tensor(float(i))}

    def run(self, config: _Config, units: Units):
        with units.plan(config.parts):
            values = [float(units(f"part {i}", lambda i=i: self.part(i))["v"]) for i in range(config.parts)]
        found = Estimate(sum(values)) if self.error is None else Estimate(sum(values), self.error, "estimate")
        return {"sum": found}, {"values": torch.tensor(values)}

    def figure(self, record: Record):
        over = Rows()
        rows = [{"x": i + 1, "y": v + 1, "series": "v"} for i, v in enumerate(record.tensors["values"].tolist())]
        chart = side_by_side(over, line_panel(over, rows, x="part", y="value"))
        return figure_of("toy", "Toy", chart, headline="sum", reading="r", not_meaning="n", columns=("v",), rows=[(1,)])

    def experiment(self, expect: float) -> Experiment:
        claim = near("the sum", "sum", expect, 0.5, "[own]")
        return Experiment(
            id="toy", title="Toy", source="[own]", presets={"smoke": _Config()}, run=self.run, figure=self.figure,
            claims=(claim,),
        )  # fmt: skip


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch):
    """The catalogue with nothing but a toy in it."""

    def plant(e: Experiment) -> None:
        monkeypatch.setattr("quadform.experiments.catalog.CATALOG", {"toy": ".toy"})
        for module in ("runner", "pool"):
            monkeypatch.setattr(f"quadform.experiments.{module}.experiment", lambda name: e)

    return plant


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, planted) -> None:
    """Parts finished before an interruption are not computed again, and the record is the uninterrupted one."""
    toy = _Toy(breaks_at=2)
    planted(toy.experiment(6))
    with pytest.raises(KeyboardInterrupt):
        reproduce(names="toy", out=tmp_path, progress=False)
    (done,) = reproduce(names="toy", out=tmp_path, progress=False).outcomes
    assert toy.computed == [0, 1, 2, 3]
    assert done.record.scalars["sum"].value == 6
    assert not (tmp_path / "toy" / "work").exists()


def test_a_finished_record_is_kept_unless_asked_again_or_otherwise(tmp_path: Path, planted) -> None:
    toy = _Toy()
    planted(toy.experiment(6))
    assert not reproduce(names="all", out=tmp_path, progress=False).outcomes[0].kept
    assert reproduce(names="all", out=tmp_path, progress=False).outcomes[0].kept
    assert not reproduce(names="all", out=tmp_path, again=True, progress=False).outcomes[0].kept
    assert not reproduce(names="all", out=tmp_path, seed=1, progress=False).outcomes[0].kept
    assert len(toy.computed) == 12


def test_parts_of_other_settings_are_not_taken_up(tmp_path: Path) -> None:
    toy = _Toy()
    for seed in (0, 1):
        e = toy.experiment(6)
        e.measure("smoke", seed=seed, work=work_of(e, "smoke", tmp_path, seed, False))
    assert len(toy.computed) == 8


def test_time_that_is_up_stops_between_parts(tmp_path: Path, planted) -> None:
    toy = _Toy()
    planted(toy.experiment(6))
    for _ in range(3):  # however short the time, a part is finished each time
        found = reproduce(names="toy", out=tmp_path, max_time=-1.0, progress=False)
        assert (found.outcomes, found.partial, found.ok) == ((), True, False)
    assert toy.computed == [0, 1, 2]
    (done,) = reproduce(names="toy", out=tmp_path, max_time=-1.0, progress=False).outcomes
    assert done.record.scalars["sum"].value == 6


def test_a_red_claim_is_red_everywhere(tmp_path: Path, planted) -> None:
    """A wrong expectation gives "not met" in the outcome and on both pages."""
    planted(_Toy().experiment(7))
    (outcome,) = reproduce(names="toy", out=tmp_path, progress=False).outcomes
    assert outcome.failed
    for page in (tmp_path / "index.html", tmp_path / "toy" / "index.html"):
        assert "✗ not met" in page.read_text()
    assert (tmp_path / "toy" / "figure.svg").read_text().startswith("<svg")
    assert (tmp_path / "toy" / "figure.png").read_bytes()[:4] == b"\x89PNG"


def test_an_undecided_claim_is_no_failure(tmp_path: Path, planted) -> None:
    """It is told as such on both pages and by the verb, whose exit code is 0."""
    planted(_Toy(error=1.0).experiment(7))
    (outcome,) = reproduce(names="toy", out=tmp_path, progress=False).outcomes
    assert [v.status for v in outcome.verdicts] == ["undecided"]
    assert not outcome.failed
    for page in (tmp_path / "index.html", tmp_path / "toy" / "index.html"):
        assert "? undecided" in page.read_text()
        assert "1 claims: 0 met, 0 not met, 1 undecided, 0 not tested" in page.read_text()


def test_the_page_fetches_nothing(tmp_path: Path, planted) -> None:
    planted(_Toy().experiment(6))
    reproduce(names="toy", out=tmp_path, progress=False)
    text = (tmp_path / "index.html").read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert "<script" not in text


# --- the catalogue --------------------------------------------------------------------------------------------------
def test_an_unknown_experiment_is_told_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean `growth`"):
        experiment("grwoth")


@pytest.mark.parametrize("name", list(CATALOG))
def test_every_experiment_is_whole(name: str) -> None:
    """Its id is its name; it has all three presets, claims with different sentences, and sources."""
    e = experiment(name)
    assert e.id == name
    assert set(e.presets) == {"smoke", "cpu", "paper"}
    assert e.claims
    assert len({c.text for c in e.claims}) == len(e.claims)
    assert e.asked.endswith("?")


def test_what_a_claim_rests_on_is_read_from_its_source() -> None:
    """A theorem or a table is stated, a figure or stored data are read, `[own]` is ours."""
    found = [at_most("", "x", 1, s).basis for s in ("[A1, Thm 3.1]", "[A1, Fig. 3]", "[A1, stored results]", "[own]")]
    assert found == ["stated", "read", "read", "ours"]


@pytest.mark.parametrize("name", list(CATALOG))
def test_a_claim_names_the_place_in_its_paper_or_is_ours(name: str) -> None:
    """No claim carries the name of a paper alone, and every paper is one of the references."""
    known = set(re.findall(r"@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text()))
    for claim in experiment(name).claims:
        place = re.fullmatch(r"\[(\w+), .+\]", claim.source)
        assert claim.source == "[own]" or (place and place[1] in known), f"{claim.text}: {claim.source}"


def test_a_negative_control_is_told_as_such_and_is_no_failure(tmp_path: Path, planted) -> None:
    """It is not met with its reason, the score counts it apart, and the run has not failed."""
    e = _Toy().experiment(7)
    control = dataclasses.replace(e.claims[0], control=True, because="the step is too long", page="0001-x.md")
    planted(dataclasses.replace(e, claims=(control,)))
    done = reproduce(names="toy", out=tmp_path, progress=False)
    assert done.ok
    assert done.outcomes[0].verdicts[0].reason == "negative control: the step is too long"
    assert "1 not met (1 of them negative controls)" in str(done)
    told = (tmp_path / "index.html").read_text()
    assert "Negative control: the step is too long. More: <code>docs/decisions/0001-x.md</code>" in told


@pytest.mark.parametrize("name", list(CATALOG))
def test_the_committed_record_gives_the_committed_verdicts(name: str) -> None:
    """A record of the repository answers a preset as it stands in the code, and its verdicts are the table's."""
    record = committed(name)
    if record is None:
        assert name not in VERDICTS["record"]
        return
    e = experiment(name)
    preset = str(record.inputs["preset"])
    asked = json.loads(json.dumps(e.inputs(preset, e.config(preset))))
    assert dict(record.inputs) == asked, "the record was made with other settings: run it again"
    assert {v.claim.text: v.status for v in e.verdicts(record)} == VERDICTS["record"][name]


def test_the_summary_in_the_package_is_that_of_the_records() -> None:
    """`recorded()` has the numbers of every record of the repository, in the order of the catalogue."""
    script = runpy.run_path(str(ROOT / "benchmarks" / "experiments.py"))
    assert {name: dataclasses.asdict(row) for name, row in recorded().items()} == script["summary"]()
    assert list(recorded()) == [name for name in CATALOG if committed(name) is not None]


def test_an_installed_package_says_where_the_records_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the repository: a sentence that says what to do."""
    monkeypatch.setattr("quadform.experiments.catalog.RECORDS", tmp_path / "none")
    with pytest.raises(FileError, match=r"docs/gallery/records.*Use a checkout, or .*`quadform reproduce growth`\.$"):
        committed("growth")


def test_every_red_claim_has_its_page() -> None:
    """What is not met, under smoke or in the committed records, is explained in docs/decisions/."""
    for kind in VERDICTS.values():
        for name, statuses in kind.items():
            for claim in experiment(name).claims:
                if statuses[claim.text] == "not met":
                    assert claim.because, f"{name}: {claim.text}"
                    assert claim.page, f"{name}: {claim.text}"
                    assert (ROOT / "docs" / "decisions" / claim.page).exists()


def test_the_gallery_is_drawn_from_the_committed_records() -> None:
    """docs/gallery.md is what `python benchmarks/experiments.py gallery docs` writes, and its pictures are there."""
    entries = committed_entries()
    assert entries
    assert (ROOT / "docs" / "gallery.md").read_text() == markdown(entries)
    assert _summary(entries) in (ROOT / "README.md").read_text()
    for e in entries:
        assert (ROOT / "docs" / "gallery" / f"{e.experiment.id}.{e.kind}").exists()


# --- many processes ---------------------------------------------------------------------------------------------------
def test_several_processes_give_what_one_gives(tmp_path: Path, planted) -> None:
    """Parts computed by two processes make the record that one makes; nothing is computed where they are collected."""
    toy = _Toy()
    planted(toy.experiment(6))
    assert [name for name, _ in parts_of(toy.experiment(6), _Config())] == [f"part {i}" for i in range(4)]
    assert toy.computed == []
    assert measure(tmp_path, "smoke", 2, 60.0, ["toy"]) == ["toy"]
    assert toy.computed == []  # the other processes did
    assert Record.load(tmp_path / "toy").scalars["sum"].value == 6


def test_processes_out_of_time_leave_what_they_did(tmp_path: Path, planted) -> None:
    """A time that is over finishes nothing, and does not count as finished."""
    planted(_Toy().experiment(6))
    assert measure(tmp_path, "smoke", 1, -1.0, ["toy"]) == []


def test_a_part_keeps_what_it_cost(tmp_path: Path) -> None:
    """The processor time of a part is part of the run that takes it up again."""

    def slow() -> dict[str, torch.Tensor]:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
        return {"v": torch.tensor(1.0)}

    first = Work(tmp_path)
    first.begin({})
    Units(first, "toy")("a", slow)
    again = Work(tmp_path, resume=True)
    again.begin({})
    assert Units(again, "toy")("a", lambda: pytest.fail("computed again")).keys() == {"v"}
    assert again.seconds >= 0.05


def test_experiments_without_their_data_are_left_out_of_all(tmp_path: Path, planted, capsys) -> None:
    """`all` runs what can be run and says what it left out and how to get it."""
    planted(dataclasses.replace(_Toy().experiment(6), needs=lambda config: ("sceptr",)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quadform.corpora.fetch.store.fetched", lambda name: None)
        assert reproduce(names="all", out=tmp_path, progress=False).outcomes == ()
    assert "quadform data fetch sceptr" in capsys.readouterr().err


def test_a_reason_is_one_sentence_that_keeps_its_symbols() -> None:
    """It begins with a capital unless with a symbol, and ends with one full stop."""
    said = {"both are low": "Both are low.", "A is B.": "A is B.", "a CNN": "A CNN."}
    said |= {"lambda_max tells": "lambda_max tells.", "v averages": "v averages."}
    assert {reason: _sentence(reason) for reason in said} == said
