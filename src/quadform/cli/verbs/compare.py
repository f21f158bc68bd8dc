"""`quadform compare`: which block before spending GPU money."""

from __future__ import annotations

from ...applications.configs.compare import CompareConfig
from ...applications.configs.shared import Output
from ..long_work import answer_with


def answer(config: CompareConfig, output: Output) -> int:
    from ...applications.compare import Compare, plan, run

    return answer_with(
        config, output, plan=plan, run=run, result=Compare, verb="compare", subject=", ".join(config.names)
    )
