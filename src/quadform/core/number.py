"""Estimate: a number that says how far it can be trusted; torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import InputError
from .showing import html_table

Kind = Literal["exact", "estimate", "bound"]
ErrorKind = Literal["stderr", "residual", "none"]
Side = Literal["lower", "upper"]


@dataclass(frozen=True)
class Estimate:
    """A number with its tag (`exact`, `estimate` or `bound`), its error, and what that error means.

    Args:
        value: The number.
        error: Its error, None where it has none.
        kind: `exact`, `estimate` or `bound`.
        matvecs: Operator products it cost.
        converged: False for a number that is only the best so far.
        note: A remark.
        error_kind: `stderr`: 2 `error` cover the truth in about 95 % of the draws; `residual`: the truth lies within
            one `error`; `none`: no error bar. The default is `stderr` where there is an error.
        side: Of a bound: `lower` (the truth is at least `value`; the default) or `upper`.
    """

    value: float
    error: float | None = None
    kind: Kind = "exact"
    matvecs: int = 0
    converged: bool = True
    note: str = ""
    error_kind: ErrorKind | None = None
    side: Side | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "value", float(self.value))
        if self.kind not in ("exact", "estimate", "bound"):
            raise InputError(f"an estimate is 'exact', 'estimate' or 'bound'; got {self.kind!r}.")
        if self.kind == "estimate" and self.error is None:
            raise InputError("an estimate carries its error; pass error=, or kind='exact' or 'bound'.")
        if self.kind == "exact":
            if self.error:
                raise InputError(f"an exact value has no error; got {self.error}.")
            put(self, "error", None)
        if self.error is not None:
            if self.error < 0:
                raise InputError(f"an error is not negative; got {self.error}.")
            put(self, "error", float(self.error))
        self._check_meaning()

    def _check_meaning(self) -> None:
        put = object.__setattr__
        if self.error_kind not in (None, "stderr", "residual", "none"):
            raise InputError(f"the error of an estimate is 'stderr', 'residual' or 'none'; got {self.error_kind!r}.")
        if self.error is None:
            put(self, "error_kind", "none")
        elif self.error_kind == "none":
            raise InputError(f"an error of kind 'none' has no size; got error={self.error}.")
        elif self.error_kind is None:
            put(self, "error_kind", "stderr")
        if self.side not in (None, "lower", "upper"):
            raise InputError(f"the side of a bound is 'lower' or 'upper'; got {self.side!r}.")
        if self.kind != "bound" and self.side is not None:
            raise InputError(f"only a bound has a side; got kind={self.kind!r}, side={self.side!r}.")
        if self.kind == "bound" and self.side is None:
            put(self, "side", "lower")

    @property
    def stderr(self) -> float | None:
        """The standard error; None for an exact number, and where the error is a residual."""
        return self.error if self.error_kind == "stderr" else None

    @property
    def reach(self) -> float:
        """How far from `value` the truth may be: 2 standard errors, or the residual; 0 without an error."""
        return (2.0 if self.error_kind == "stderr" else 1.0) * (self.error or 0.0)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Estimate:
        """From the plain values of `dataclasses.asdict`, of this version or of records of schema 1."""
        return cls(**(_from_schema_1(body) if "stderr" in body else body))

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        word = ", residual" if self.error_kind == "residual" else " +-"
        spread = f"{word} {self.error:.2g}" if self.error else ""
        tag = f"{self.side} bound" if self.side else self.kind
        return f"{self.value:.4g}{spread} [{tag}{'' if self.converged else ', not converged'}]"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(("value", "note"), [(str(self), self.note)])


def joint_kind(of: Iterable[Estimate]) -> ErrorKind:
    """What an error means that several errors were joined into: a spread, unless none of them is one."""
    kinds = {e.error_kind for e in of}
    return "residual" if "residual" in kinds and "stderr" not in kinds else "stderr"


def _from_schema_1(body: Mapping[str, Any]) -> dict[str, Any]:
    """Schema 1 had one field `stderr` for both kinds of error, and the side of a bound in its note alone."""
    new = {name: value for name, value in body.items() if name != "stderr"}
    error, note, bound = body["stderr"], str(body.get("note", "")), body.get("kind") == "bound"
    residual = error is not None and (bound or "residual" in note)
    side = ("upper" if "an upper bound" in note else "lower") if bound else None
    return new | {"error": error, "error_kind": "residual" if residual else None, "side": side}
