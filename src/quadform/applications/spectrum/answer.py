"""The answer of `quadform spectrum`: names for its numbers, the lines of the terminal, the table.

Record "spectrum": scalars `top/0 ...`, `bottom/0 ...`, `trace`, `loss`, with a density `negative_share`,
`negative_curvature` and `rms`, with
blocks `heterogeneity`; tensors `density/x, u, density, stderr` (a curve) and `blocks/value, stderr, exact, sizes`, the
Frobenius norms of all pairs of the blocks `inputs["blocks"]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from ...core.errors import InputError, UnknownName
from ...core.memory import in_words
from ...core.progress import clock
from ...core.record import Estimate, Record
from ...core.space import LABELS, paper_name
from ...curvature.groups import layer_of, part_of
from ...report import point
from ...report.rows import data_words
from ..answers import Answer, Grid, cell
from ..probes import probe_words

KIND = "spectrum"
_WORDS = {paper: label for label, paper in reversed(LABELS.items())}
#: A ratio of block sizes from which one step size is said not to fit.
APART = 10.0


class Spectrum(Answer):
    """The spectrum of one operator at one point. `vectors` are the eigenvectors, in this process only."""

    kind = KIND

    def __init__(self, record: Record, vectors: dict[str, Tensor] | None = None) -> None:
        super().__init__(record)
        self.vectors = vectors

    # --- numbers ----------------------------------------------------------------------------------------------------
    @property
    def top(self) -> tuple[Estimate, ...]:
        """The largest eigenvalues, largest first."""
        return tuple(e for _, e in self._series("top"))

    @property
    def bottom(self) -> tuple[Estimate, ...]:
        """The smallest eigenvalues, smallest first."""
        return tuple(e for _, e in self._series("bottom"))

    @property
    def trace(self) -> Estimate:
        return self._need("trace")

    @property
    def negative_share(self) -> Estimate:
        """The share of eigenvalues below zero; needs the density."""
        return self._need("negative_share")

    @property
    def heterogeneity(self) -> Estimate:
        """Largest over smallest root mean square eigenvalue |H(b, b)|_F / sqrt(n_b) of the diagonal blocks."""
        return self._need("heterogeneity")

    @property
    def names(self) -> tuple[str, ...]:
        """The blocks whose norms were measured."""
        return tuple(self.record.inputs["blocks"])

    @property
    def converged(self) -> bool:
        """Whether nothing is missing and every eigenvalue reached its tolerance."""
        return not self.partial and all(e.converged for e in (*self.top, *self.bottom))

    @property
    def coverage(self) -> str:
        """`148 of 148 tensors, 124.4M parameters; c_attn split into query/key/value`."""
        return str(self.record.inputs["coverage"])

    @property
    def cost(self) -> dict[str, Any]:
        """products, seconds, bytes and the route they were run by."""
        return dict(self.record.inputs["cost"])

    def blocks(self, layer: str, row: str, col: str | None = None) -> Estimate:
        """|H(row, col)|_F inside a layer: `blocks("h.3", "query", "value")`; with two full names, of any pair."""
        if col is None:
            return self._pair(self._block(layer), self._block(row))
        return self._pair(self._block(layer, row), self._block(layer, col))

    def functional(self, layer: str, row: str, col: str) -> Estimate:
        """|H_f(row, col)|_F inside a layer, split at its attention's output: exact, where a closed form covers it."""
        a, b = paper_name(row), paper_name(col)
        for name, e in self.record.scalars.items():
            kind, _, rest = name.partition("/")
            path, _, pair = rest.rpartition("/")
            if kind == "functional" and f".{layer}." in f".{path}." and pair in (f"{a},{b}", f"{b},{a}"):
                return e
        raise UnknownName(f"no closed form covers {row}, {col} in {layer!r}; `blocks` has estimates of the whole.")

    def _pair(self, i: int, j: int) -> Estimate:
        t = self.record.tensors
        value, error = float(t["blocks/value"][i, j]), float(t["blocks/stderr"][i, j])
        products = self.record.inputs["cost"]["products"]
        if bool(t["blocks/exact"][i, j]):
            return Estimate(value, matvecs=products)
        return Estimate(value, error, "estimate", products)

    def _block(self, name: str, part: str | None = None) -> int:
        if not self.names:
            raise InputError("no block norms were measured; ask for them with blocks='qkv'.")
        wanted = paper_name(name if part is None else part)
        for i, label in enumerate(self.names):
            inside = part is None or f".{name}." in f".{label}."
            if inside and (label == wanted or (part is not None and part_of(label) == wanted)):
                return i
        said = name if part is None else f"{part} in {name}"
        raise UnknownName(
            f"no block {said!r}; the blocks are {', '.join(self.names[:6])}{', ...' * (len(self.names) > 6)}."
        )

    def _series(self, end: str) -> Iterator[tuple[int, Estimate]]:
        for i in range(len(self.record.scalars)):
            if f"{end}/{i}" in self.record.scalars:
                yield i, self.record.scalars[f"{end}/{i}"]

    def _need(self, name: str) -> Estimate:
        if name not in self.record.scalars:
            needs = {"negative_share": "density=True", "heterogeneity": "blocks='qkv'"}.get(name, "more time")
            raise InputError(f"{name} was not measured; it needs {needs}.")
        return self.record.scalars[name]

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        """One row for each number."""
        s = self.record.scalars
        named = [(f"lambda_{i + 1}" if i else "lambda_max", e) for i, e in self._series("top")]
        named += [(f"lambda_-{i + 1}" if i else "lambda_min", e) for i, e in self._series("bottom")]
        named += [
            (n, s[n])
            for n in ("trace", "negative_share", "negative_curvature", "rms", "heterogeneity", "loss")
            if n in s
        ]
        rows = [(n, e.value, e.error, e.kind, e.matvecs or None) for n, e in named]
        for i, a in enumerate(self.names):
            e = self._pair(i, i)
            rows.append((f"|{a}|", e.value, e.error, e.kind, None))
        return Grid(("what", "value", "+-", "tag", "products"), tuple(rows))

    def to_pandas(self) -> Any:
        """`table()` as a DataFrame."""
        return self.to_dataframe()

    def lines(self) -> Sequence[str]:
        inputs, s = self.record.inputs, self.record.scalars
        cost = inputs["cost"]
        spent = f"{cost['products']} products, {clock(cost['seconds'])}, {in_words(cost['bytes'])}"
        out = ["; ".join([inputs["coverage"], *inputs["notes"], spent])]
        out.append(f"{probe_words(self.record)}, loss {s['loss'].value:.4g}; model left untouched")
        out.append(f"data: {data_words(inputs['source'])}")
        first = []
        if "top/0" in s:
            first.append(_said("lambda_max", s["top/0"]))
        if "bottom/0" in s:
            first.append(_said("lambda_min", s["bottom/0"]))
        if "trace" in s:
            first.append(_said("trace", s["trace"]))
        if "negative_curvature" in s:
            e = s["negative_curvature"]
            first.append(f"{100 * e.value:.0f} +-{100 * (e.error or 0):.0f} % of the curvature negative")
        kinds = {s[n].kind for n in ("top/0", "bottom/0", "trace") if n in s}
        tag = "exact" if kinds == {"exact"} else "estimate"
        out.append(f"{'   '.join(first):<84} [{tag}]")
        out += [said] if (said := self._point()) else []
        rest = [cell(e.value) for e in self.top[1:]]
        if rest:
            out.append(f"next: {', '.join(rest)}")
        out += [e.note for e in (*self.top, *self.bottom) if not e.converged]
        out += self._block_lines()
        if self.partial:
            out.append("stopped before everything was measured: partial")
        return out

    def _point(self) -> str:
        """Whether the point is stationary, and how many eigenvalues are negative where that was measured."""
        said, e = point.sentence(self.record), self.record.scalars.get("negative_share")
        if not said or e is None:
            return said
        return f"{said} {100 * e.value:.0f} +-{100 * (e.error or 0):.0f} % of the eigenvalues are negative."

    def _block_lines(self) -> list[str]:
        """The layer whose blocks differ most, and what that says."""
        layers: dict[str, list[int]] = {}
        for i, name in enumerate(self.names):
            layers.setdefault(layer_of(name) or "", []).append(i)
        found = []
        for layer, members in layers.items():
            sizes = {i: self._rms(i) for i in members}
            if len(members) > 1 and min(sizes.values()) > 0:
                found.append((max(sizes.values()) / min(sizes.values()), layer, members))
        if not found:
            return []
        ratio, layer, members = max(found)
        short = {i: _short(self.names[i]) for i in members}
        if len(set(short.values())) < len(short):  # self- and cross-attention in one layer
            short = {i: self.names[i].removeprefix(f"{layer}.") for i in members}
        norms = "  ".join(f"{short[i]} {cell(self._pair(i, i).value)}" for i in members[:8])
        verdict = "one step size cannot fit all" if ratio >= APART else "one step size nearly fits all"
        head = f"{layer or 'model'} block norms: {norms}{'  ...' * (len(members) > 8)}"
        return [f"{head}   -> {ratio:.3g} : 1, {verdict}"]

    def _rms(self, i: int) -> float:
        t = self.record.tensors
        return float(t["blocks/value"][i, i]) / math.sqrt(float(t["blocks/sizes"][i]))

    def figures(self, lang: str = "en") -> dict[str, Any]:
        """Density with the extreme eigenvalues as ticks, and the block map: those the record has the data for."""
        from ...report.spectral import figures

        return {figure.name: figure for figure in figures(self.record, lang)}


def _short(name: str) -> str:
    """`transformer.h.3.attn.W_Q[2]` -> `query[2]`."""
    part, bracket, head = part_of(name).partition("[")
    return _WORDS.get(part, part) + bracket + head


def _said(name: str, e: Estimate) -> str:
    if e.kind == "exact":
        return f"{name} {cell(e.value)}"
    if name == "trace" and e.value:
        return f"{name} {cell(e.value)} +-{100 * abs((e.error or 0) / e.value):.0f} %"
    mark = "" if e.converged else {"top": ">= ", "lambda_max": ">= ", "lambda_min": "<= "}.get(name, "")
    return f"{name} {mark}{cell(e.value)} +-{(e.error or 0):.1g}"
