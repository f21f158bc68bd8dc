"""Tests of experiments. VERDICTS, the table they compare with: `smoke` or `record`, experiment, claim -> status."""

import json
from pathlib import Path

VERDICTS: dict[str, dict[str, dict[str, str]]] = json.loads(
    Path(__file__).with_name("verdicts.json").read_text(encoding="utf-8")
)
