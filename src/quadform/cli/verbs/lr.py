"""`quadform lr`: the largest stable learning rate."""

from __future__ import annotations

from ...applications.configs.lr import LrConfig
from ...applications.configs.shared import Output
from ..long_work import answer_with


def answer(config: LrConfig, output: Output) -> int:
    from ...applications.step_size import StepSize, plan, run

    return answer_with(config, output, plan=plan, run=run, result=StepSize, verb="lr", subject=config.model)
