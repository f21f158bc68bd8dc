"""Signal measured: depth profiles of any `nn.Module`, and of drawn designs beside their prediction.

    qf.signal(model, batches)                                    # ours, Hugging Face, any module with a list of blocks
    qf.signal(["pre-ln", "sas-p"], depths=[6, 24], d_model=256)  # networks drawn from designs, predicted and measured

A *curve* is one stack of blocks: of one model, with error bars over sequences, or of one design at one depth, with
error bars over networks. The model is left as it was. Definitions of the measures: `quadform.propagation.collapse`.
"""

from __future__ import annotations

from ...answers.signal import Signal
from ...answers.signal_draft import SignalDraft
from ...core.errors import InputError
from ...core.question import Plan
from ...core.record import Provenance
from ...core.work import Work
from ..subject import Subject
from .curve import write
from .question import SignalQuestion
from .subjects import Drawing, Subjects
from .units import Design, Model, Unit


class SignalMeasurement:
    """Designs and models, ready to be measured."""

    def __init__(self, asked: SignalQuestion, subject: Subjects | Subject) -> None:
        found = subject if isinstance(subject, Subjects) else Subjects((subject.name,), (subject,))
        self.asked, self.names = asked, found.names
        self.units: list[Unit] = [
            Design(asked, each) if isinstance(each, Drawing) else Model(asked, each) for each in found.each
        ]
        labels = [unit.label for unit in self.units]
        if len(set(labels)) < len(labels):
            raise InputError(f"two curves have one name: {', '.join(labels)}.")

    def plan(self) -> Plan:
        """What will be done and what it costs, one line a unit: networks, parameters, tokens, arithmetic, seconds."""
        costs = [unit.cost() for unit in self.units]
        lines = [text for text, _ in costs]
        return Plan("\n".join(lines), seconds=sum(seconds for _, seconds in costs), details={"plan": lines})

    def measure(self, work: Work) -> Signal:
        """Every curve, or those the time allows; one that is cut short holds the networks or batches that are done."""
        with work.bar(sum(unit.pieces for unit in self.units), "signal", each=1), work.in_time():
            for unit in self.units:
                with unit.threads():
                    unit.measure(work)
        curves = [curve for unit in self.units for curve in unit.curves(work)]
        first = self.units[0]
        made = Provenance.collect(seed=self.asked.seed, dtype=first.dtype, device=first.device)
        draft = SignalDraft()
        for curve in curves:
            write(curve, draft)
        return draft.answer({"subjects": list(self.names), "partial": work.partial}, made)
