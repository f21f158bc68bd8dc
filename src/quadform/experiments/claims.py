"""Claims as data: a sentence of a paper, the scalar of a Record that decides it, and where that scalar must lie.

The interval is written down before the number is seen. A claim that fails stays as it is, red, and gets a page in
docs/decisions/; one whose interval ends within the error of the number is undecided. Nothing here computes: whatever a
claim reads is a scalar that the experiment's `run` put there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..core.errors import InputError

PRESETS = ("smoke", "cpu", "paper")
Status = Literal["met", "not met", "undecided", "not tested"]
STATUSES: tuple[Status, ...] = get_args(Status)
Basis = Literal["stated", "read", "ours"]
#: What the sentence of a claim rests on. Its interval is ours in every case.
BASES: dict[Basis, str] = {
    "stated": "stated in the paper",
    "read": "read from its figure or stored data",
    "ours": "ours",
}
OWN = "[own]"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`low <= scalars[key] <= high` makes the sentence `text` true. `expect` is the number the source gives, if any.

    Where an end of the interval lies within the error of the number (two standard errors, or its residual), the claim
    is "undecided": the number could lie on either side.

    `source` names the paper and the place in it, `[ODS25, Fig. 3]`, or is `[own]`. `presets` are those whose settings
    can decide it; under the others it is "not tested". `why` says where the width of the interval comes from, `because`
    in one sentence why it is not met, and `page` the decision that tells more. A `control` is expected to fail: it
    shows that the claim beside it could have.
    """

    text: str
    source: str
    key: str
    low: float = -math.inf
    high: float = math.inf
    expect: float | None = None
    presets: tuple[str, ...] = PRESETS
    why: str = ""
    because: str = ""
    page: str = ""
    control: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.high or (math.isinf(self.low) and math.isinf(self.high)):
            raise InputError(f"a claim needs an interval that can be missed; got [{self.low}, {self.high}].")
        if not set(self.presets) <= set(PRESETS):
            raise InputError(f"presets of a claim are among {', '.join(PRESETS)}; got {', '.join(self.presets)}.")

    @property
    def basis(self) -> Basis:
        """Whether the sentence is the paper's, read from its figure or stored data, or ours."""
        if self.source == OWN:
            return "ours"
        return "read" if "Fig" in self.source or "stored" in self.source else "stated"

    @property
    def wanted(self) -> str:
        """The interval in words: `6 +- 0.15`, `at most 0.01`, `0.3 to 0.6`."""
        if self.expect is not None and math.isclose(self.high - self.expect, self.expect - self.low, rel_tol=1e-9):
            width = self.high - self.expect
            return _text(self.expect) + (f" +- {width:.2g}" if width != 0.5 or self.expect % 1 else "")
        if math.isinf(self.low):
            return f"at most {self.high:.4g}"
        if math.isinf(self.high):
            return f"at least {self.low:.4g}"
        return f"{self.low:.4g} to {self.high:.4g}" if self.low != self.high else f"exactly {self.low:.4g}"

    def verdict(self, scalars: Mapping[str, Any], preset: str) -> Verdict:
        """Met, not met, undecided, or why it was not tested."""
        found = scalars.get(self.key)
        if preset not in self.presets:
            small = PRESETS.index(preset) < min(map(PRESETS.index, self.presets))
            reason = "is too small for it" if small else f"is not asked it, only {' and '.join(self.presets)}"
            return Verdict(self, "not tested", found, f"the preset {preset} {reason}")
        if found is None:
            return Verdict(self, "not tested", None, "the record has no such number")
        ends = [end for end in (self.low, self.high) if found.reach and abs(found.value - end) <= found.reach]
        if ends:
            return Verdict(self, "undecided", found, f"{ends[0]:.4g} is within its error, +- {found.reach:.2g}")
        if self.low <= found.value <= self.high:
            return Verdict(self, "met", found)
        return Verdict(self, "not met", found, f"negative control: {self.because}" if self.control else self.because)


@dataclass(frozen=True)
class Verdict:
    """What became of a claim: its status, the number (an Estimate) that decided, and a reason where none could."""

    claim: Claim
    status: Status
    found: Any = None
    reason: str = ""

    @property
    def number(self) -> str:
        """The number with its tag, as text."""
        if self.found is None:
            return "-"
        spread = f" +- {self.found.error:.2g}" if self.found.error else ""
        return f"{_text(self.found.value)}{spread} [{self.found.kind}]"

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        c, f = self.claim, self.found
        return {
            "claim": c.text,
            "source": c.source,
            "basis": c.basis,
            "control": c.control,
            "key": c.key,
            "status": self.status,
            "value": None if f is None else f.value,
            "error": None if f is None else f.error,
            "error_kind": None if f is None else f.error_kind,
            "kind": None if f is None else f.kind,
            "low": c.low,
            "high": c.high,
            "expect": c.expect,
            "reason": self.reason,
        }


def _text(value: float) -> str:
    """Four digits; a large whole number, which is a count, in full."""
    return f"{value:,.0f}" if 1e5 <= abs(value) < math.inf and value == round(value) else f"{value:.4g}"


def near(text: str, key: str, expect: float, within: float, source: str, **more: Any) -> Claim:
    """The scalar is `expect`, to `within`."""
    return Claim(text=text, key=key, expect=expect, low=expect - within, high=expect + within, source=source, **more)


def at_most(text: str, key: str, high: float, source: str, **more: Any) -> Claim:
    """The scalar is not larger than `high`."""
    return Claim(text=text, key=key, high=high, source=source, **more)


def at_least(text: str, key: str, low: float, source: str, **more: Any) -> Claim:
    """The scalar is not smaller than `low`."""
    return Claim(text=text, key=key, low=low, source=source, **more)


def between(text: str, key: str, low: float, high: float, source: str, **more: Any) -> Claim:
    """The scalar lies between two numbers."""
    return Claim(text=text, key=key, low=low, high=high, source=source, **more)
