"""`quadform report`: one self-contained HTML file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ...applications.configs.attention import AttentionConfig
from ...applications.configs.report import ReportConfig
from ...applications.configs.shared import Output
from ...core.progress import say
from ..folders import choose_threads, folder_of, load_run, writable
from ..show import print_json
from .attention import attention_verdict

#: Where `quadform report` keeps the built-in default.
DEFAULT_RUN = Path("runs/default")
REPORT_NAME = "report.html"


def answer(config: ReportConfig, output: Output) -> int:
    from ...report import write_report

    folder = writable(output)
    if config.runs:
        records = [load_run(run) for run in config.runs]
        folder = folder or folder_of(config.runs[0])
    else:
        from ...applications.attention import run

        folder = folder or writable(dataclasses.replace(output, out=str(DEFAULT_RUN)))
        assert folder is not None
        say("measuring the built-in default: one toy attention layer, 8 tokens of width 8, float64")
        question = AttentionConfig(seed=config.seed, dtype=config.dtype, device=config.device)
        choose_threads(question.parameters)
        records = [run(question)]
        records[0].save(folder)
    path = write_report(records, folder / REPORT_NAME, lang=output.lang)
    if config.open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    if output.json:
        print_json({"report": str(path), "bytes": path.stat().st_size, "records": [r.kind for r in records]})
    else:
        for record in records:
            if record.kind == "attention":
                attention_verdict(record)
        print(f"report: {path}")
    return 0
