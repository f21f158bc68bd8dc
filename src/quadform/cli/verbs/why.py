"""`quadform why`: what softmax, norm, skip and the product of queries and keys each do to curvature."""

from __future__ import annotations

from ...applications.configs.shared import Output
from ...applications.configs.why import WhyConfig
from ..long_work import answer_with


def answer(config: WhyConfig, output: Output) -> int:
    from ...applications.why import Why, plan, run

    return answer_with(config, output, plan=plan, run=run, result=Why, verb="why", subject=config.model)
