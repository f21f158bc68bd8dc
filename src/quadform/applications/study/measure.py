"""Studies measured: the sections of a model in turn, under one clock, all on one opened model; then the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.errors import CheckFailed
from ...core.memory import in_words
from ...core.progress import clock, say
from ...core.question import Plan
from ...core.record import JSON_NAME, Record
from ...core.work import Work
from ..asking import ask
from ..opening import folder_name
from ..room import short_of
from ..subject import Subject
from .answer import PAGE, Report, Study
from .question import ReportQuestion
from .sections import sections_of
from .targets import EXACT, SECTIONS, Target, Targets, studies_of


class ReportMeasurement:
    """Saved studies and models, ready to be measured and drawn."""

    def __init__(self, asked: ReportQuestion, subject: Targets | Subject) -> None:
        self.asked, self.of = asked, Targets.of(asked, subject)

    # --- the cost ---------------------------------------------------------------------------------------------------
    def plan(self) -> Plan:
        """One line for all sections of a model, one for each; nothing is written."""
        plans = [self._plan(target) for target in self.of.each]
        return _added("\n".join(plan.text for plan in plans), plans, {"studies": [plan.to_json() for plan in plans]})

    def _plan(self, target: Target) -> Plan:
        if not target.measured:
            count = sum(len(study.records) for study in target.saved)
            text = f"{target.word}: {count} record{'s' * (count > 1)} there; redrawn, nothing is computed"
            return Plan(text, details={"subject": target.word, "stages": []})
        folder = Path(self.of.opening.folder or "") if target.model is None else Path()
        sections = sections_of(replace(self.of, each=(target,)), folder, self.asked.seed)
        plans = [section.plan(self.of.light) for section in sections]
        whole = _added("", plans, {})
        head = (
            f"plan for {target.word}: {len(plans)} stage{'s' * (len(plans) != 1)}, about {whole.products:,} products,"
            f" {clock(whole.seconds)} in all, {in_words(whole.bytes)} beside the model"
            f"{short_of(p.details['room'] for p in plans if 'room' in p.details)}"
        )
        both = list(zip(sections, plans, strict=True))
        rows = [f"  {s.name:<10} {clock(p.seconds):>6}  {s.what}" for s, p in both]
        told = [{"stage": s.name, "what": s.what} | replace(p, details={}).to_json() for s, p in both]
        return replace(whole, text="\n".join([head, *rows]), details={"subject": target.word, "stages": told})

    # --- the work ---------------------------------------------------------------------------------------------------
    def measure(self, work: Work) -> Report:
        """All studies, or as much of them as the time allows, and their page."""
        studies: list[Study] = []
        folders: list[str] = []
        for target in self.of.each:
            if not target.measured:
                studies += target.saved
                folders += [] if target.home is None else [str(target.home.resolve())]
            elif len(self.of.each) == 1:
                studies += self._study(work)
            else:  # each in a folder of its own, with a page of its own
                name, inner = folder_name(target.word), replace(self.asked, figures=None, open=False)
                folders.append(name)
                studies += ask(inner, work.part(name), replace(self.of, each=(target,))).studies
        if not any(study.records for study in studies):
            raise CheckFailed("the time was up before anything could be drawn; resume the run.")
        return self._drawn(work, studies, folders)

    def _study(self, work: Work) -> list[Study]:
        """The sections in turn; what is finished is read, what the time does not allow is told as missing."""
        folder = work.folder
        if folder is not None and not work.resume:  # what an older study left here would be drawn beside the new one
            for name in (*SECTIONS, EXACT):
                (folder / name / JSON_NAME).unlink(missing_ok=True)
        sections = sections_of(self.of, folder or Path(), self.asked.seed)
        found: dict[str, Record] = {}
        for i, section in enumerate(sections):
            if work.deadline.left <= 0 and work.deadline.advanced:  # something advances, however short the time
                continue
            if work.progress:
                say(f"[{i + 1}/{len(sections)}] {section.what}")
            with work.part(section.name) as part, work.in_time():
                record = ask(section.question, part, section.subject()).record
                if record.scalars:
                    found[section.name] = record
                elif part.folder is not None:  # the time was over before anything was known
                    (part.folder / JSON_NAME).unlink()
        return studies_of(found, [section.name for section in sections])

    def _drawn(self, work: Work, studies: list[Study], folders: list[str]) -> Report:
        asked = self.asked
        work.partial = any(study.missing for study in studies)
        into = self.of.page if work.folder is None else work.folder
        inputs: dict[str, Any] = {
            "name": self.of.named,
            "folders": folders,
            "records": [record.kind for study in studies for record in study.records],
            "missing": [name for study in studies for name in study.missing],
            "report": None if into is None else str(into / PAGE),
            "figures": asked.figures,
            "partial": work.partial,
        }
        found = Report(Record(Report.kind, inputs, {}, {}, studies[0].records[0].made), studies, asked.lang)
        if into is not None:
            found.drawn = found.report(into / PAGE, asked.lang)
        if asked.figures is not None:
            found.exported = found.export(asked.figures)
        if asked.open and found.drawn is not None:
            import webbrowser

            webbrowser.open(found.drawn.resolve().as_uri())
        return found


def _added(text: str, plans: list[Plan], details: dict[str, Any]) -> Plan:
    """Products and seconds of all, the largest memory."""
    most = max((plan.bytes for plan in plans), default=0.0)
    return Plan(text, sum(p.products for p in plans), sum(p.seconds for p in plans), most, details)
