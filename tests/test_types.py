"""mypy looks at every room, and what it is told to overlook says why."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MYPY = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
STRICT = ("disallow_untyped_defs", "disallow_untyped_calls", "disallow_any_generics", "strict_equality")
REASON = re.compile(r"# type: ignore\[[a-z-]+(, ?[a-z-]+)*\]  # \w")


def test_no_room_is_left_out() -> None:
    """The whole package is checked; no module of it is silenced, and four rooms are strict."""
    assert MYPY["packages"] == ["quadform"]
    ours = [part for part in MYPY["overrides"] if any(name.startswith("quadform") for name in part["module"])]
    assert not [part for part in ours if part.get("ignore_errors") or part.get("follow_imports")]
    (strict,) = ours
    assert strict["module"] == [f"quadform.{room}.*" for room in ("core", "theory", "estimate", "curvature")]
    assert all(strict[flag] for flag in STRICT)


def test_an_ignored_type_says_why() -> None:
    """`# type: ignore[code]  # reason` in the package: the code and the reason."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "src").rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "type: ignore" in line and not REASON.search(line)
    ]
    assert not found
