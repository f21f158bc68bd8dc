"""The answer of `quadform spectrum`: its numbers by name, its verdicts, the lines of the terminal, the table.

Record "spectrum": scalars `top/0 ...`, `bottom/0 ...`, `trace`, `loss`, `gradient_norm`, `descent`, with a density
`negative_share`, `negative_curvature`, `rms` and `linear`, with blocks `heterogeneity` and `functional/LAYER/A,B`;
tensors `density/x, u, density, stderr` (a curve) and `blocks/value, stderr, exact, sizes`, the Frobenius norms of all
pairs of the blocks `inputs["blocks"]`; `where/layer, matrix, head, token`, the shares of each eigenvector's squared
length under the labels `inputs["where"]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from ..core.errors import FileError, InputError, UnknownName
from ..core.memory import in_words
from ..core.progress import clock
from ..core.record import Estimate, Record, write_atomically
from ..core.space import WORDS, layer_of, paper_name, part_of
from .answer import Answer, Grid, cell
from .numbers import number, percent, share_with_error, times
from .point import Point
from .spectrum_parts import Block, Curve
from .texts import line
from .verdict import NOTHING, Limits, Said, Verdict, judged, say

#: Share of negative curvature.
NEGATIVE = Limits(0.01, 0.25)
#: Largest over smallest root mean square eigenvalue of the blocks.
UNEVEN = Limits(3.0, 10.0)
#: The file of the eigenvectors.
VECTORS = "vectors.safetensors"
#: Numbers beside the eigenvalues, in the order they are shown.
NUMBERS = ("trace", "negative_share", "negative_curvature", "rms", "heterogeneity", "loss")


class Spectrum(Answer):
    """The spectrum of one operator at one point. Eigenvectors lie beside the record, in `vectors.safetensors`."""

    kind = "spectrum"

    def __init__(
        self, record: Record, vectors: dict[str, Tensor] | None = None, folder: str | Path | None = None
    ) -> None:
        super().__init__(record)
        self._vectors, self._folder = vectors, folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        return cls(Record.load(folder), folder=folder)

    # --- eigenvectors -----------------------------------------------------------------------------------------------
    @property
    def vectors(self) -> dict[str, Tensor] | None:
        """Unit eigenvectors `{name: (k, *shape)}`, those of `top` first, then those of `bottom`; None where they were
        not kept."""
        if self._vectors is None and self._folder is not None and (Path(self._folder) / VECTORS).exists():
            self._vectors = _read_vectors(Path(self._folder) / VECTORS, self._eigenvalues())
        return self._vectors

    def save_beside(self, folder: Path) -> None:
        if self._vectors is not None:
            from safetensors.torch import save

            kept = {n: t.detach().cpu().contiguous() for n, t in self._vectors.items()}
            write_atomically(Path(folder) / VECTORS, save(kept, {"eigenvalues": self._eigenvalues()}))

    def _eigenvalues(self) -> str:
        return " ".join(e.value.hex() for e in (*self.top, *self.bottom))

    def where(self, i: int = 0, by: str = "matrix") -> tuple[tuple[str, float], ...]:
        """Where eigenvector i lives: (name, share of its squared length), largest first.

        i counts the largest eigenvalues from 0 and the smallest from -1 downwards: 0 is lambda_max, -1 lambda_min. `by`
        is `layer`, `matrix`, `head`, or `token`: the rows of an embedding with the largest shares.
        """
        t, known = self.record.tensors, self.record.inputs.get("where", {})
        if by not in known:
            raise UnknownName(f"shares by {by!r} were not measured; there are {', '.join(known) or 'none'}.")
        row = i if i >= 0 else len(self.top) - 1 - i
        if not 0 <= (i if i >= 0 else -1 - i) < (len(self.top) if i >= 0 else len(self.bottom)):
            raise UnknownName(f"no eigenvector {i}; they go from {-len(self.bottom)} to {len(self.top) - 1}.")
        share = t[f"where/{by}"][row]
        if by == "token":
            rows = zip(t["where/token_row"][row].tolist(), share.tolist(), strict=True)
            return tuple((f"{known[by][0]}[{token}]", s) for token, s in rows)
        order = share.argsort(descending=True).tolist()
        return tuple((known[by][j], float(share[j])) for j in order)

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
    def loss(self) -> Estimate:
        return self._need("loss")

    @property
    def negative_curvature(self) -> Estimate | None:
        """The share of negative curvature in the sum of |lambda|; None without a density."""
        return self.record.scalars.get("negative_curvature")

    @property
    def rms(self) -> Estimate:
        """Root mean square eigenvalue; needs the density."""
        return self._need("rms")

    @property
    def density(self) -> Curve | None:
        """The density of all eigenvalues, where it was asked for."""
        t = self.record.tensors
        if "density/u" not in t:
            return None
        x, u, density, stderr = (t[f"density/{n}"] for n in ("x", "u", "density", "stderr"))
        return Curve(x, u, density, stderr, self._need("linear").value)

    @property
    def point(self) -> Point | None:
        """What kind of point this is; None where the gradient or an end of the spectrum is not known."""
        s = self.record.scalars
        if not {"loss", "gradient_norm", "descent", "top/0", "bottom/0"} <= set(s):
            return None
        return Point(s["loss"], s["gradient_norm"], s["descent"], s["top/0"], s["bottom/0"])

    @property
    def numbers(self) -> dict[str, Estimate]:
        """The numbers beside the eigenvalues that were measured, by name."""
        return {n: e for n in NUMBERS if (e := self.record.scalars.get(n)) is not None}

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
    def diagonal(self) -> tuple[Block, ...]:
        """The blocks on the diagonal."""
        sizes = self.record.tensors["blocks/sizes"].tolist() if self.names else []
        norms = [self._pair(i, i) for i in range(len(self.names))]
        return tuple(
            Block(n, e, e.value / math.sqrt(size)) for n, e, size in zip(self.names, norms, sizes, strict=True)
        )

    @property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Norms of all pairs of blocks and their standard errors, (blocks, blocks) each."""
        return self.record.tensors["blocks/value"].double(), self.record.tensors["blocks/stderr"].double()

    @property
    def curvature(self) -> str:
        """`hessian`, `gauss_newton` or `functional`."""
        return str(self.record.inputs["curvature"])

    @property
    def parameters(self) -> int:
        return int(self.record.inputs["parameters"])

    @property
    def batches(self) -> int:
        return int(self.record.inputs["batches"])

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
        products = self.cost["products"]
        if "blocks/exact" in t and bool(t["blocks/exact"][i, j]):
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

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """The largest eigenvalue, the share of negative curvature, the sharpest against the flattest block."""
        found = [self._eigen(self.top[0])] if self.top else []
        if (e := self.negative_curvature) is not None:
            said = say("card_downwards", share=share_with_error(e))
            found.append(judged("downwards", e, NEGATIVE, share_with_error(e), said, percent))
        if (e := self.record.scalars.get("heterogeneity")) is not None:
            key = {"green": "spectral_even", "undecided": "spectral_ratio"}.get(UNEVEN.grade(e), "spectral_split")
            said = say(key, ratio=times(e.value), **self._apart(e))
            found.append(judged("uneven", e, UNEVEN, f"{times(e.value)} : 1", said, times))
        return tuple(found)

    def _eigen(self, e: Estimate) -> Verdict:
        told = {"high": number(e.value), "ceiling": number(2 / e.value) if e.value > 0 else "∞"}
        if not e.converged:
            return Verdict("eigen", "yellow", number(e.value), e, say("card_eigen_open", **told), check=True)
        said = say("spectral_high", **told)
        if self.bottom:
            said = say("spectral_sharp", low=number(self.bottom[0].value), **told)
        return Verdict("eigen", "green", number(e.value), e, said, check=True)

    @staticmethod
    def _apart(e: Estimate) -> dict[str, Any]:
        """The sharpest and the flattest block by name, in each language."""
        ends = [Block(name, e, 0.0) for name in e.note.partition(" over ")[::2]]
        return {"sharp": ends[0].label, "flat": ends[1].label}

    @property
    def said(self) -> Said:
        step = self.source.get("step")
        found = say("spectral_after", step=f"{step:,}") if step else NOTHING
        found = sum((v.both for v in self.verdicts() if v.name != "downwards"), found)
        return found + (self.point.said or NOTHING if self.point else NOTHING) + self.cut_short

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        """One row for each number."""
        named = [(f"lambda_{i + 1}" if i else "lambda_max", e) for i, e in self._series("top")]
        named += [(f"lambda_-{i + 1}" if i else "lambda_min", e) for i, e in self._series("bottom")]
        named += self.numbers.items()
        rows = [(n, e.value, e.error, e.kind, e.matvecs or None) for n, e in named]
        for i, a in enumerate(self.names):
            e = self._pair(i, i)
            rows.append((f"|{a}|", e.value, e.error, e.kind, None))
        return Grid(("what", "value", "+-", "tag", "products"), tuple(rows))

    def to_pandas(self) -> Any:
        """`table()` as a DataFrame."""
        return self.to_dataframe()

    def lines(self) -> Sequence[str]:
        cost = self.cost
        spent = line(
            "line_cost", products=cost["products"], time=clock(cost["seconds"]), memory=in_words(cost["bytes"])
        )
        out = ["; ".join([self.coverage, *self.notes, spent])]
        measured = line("line_loss", probe=self.probe, loss=f"{self.loss.value:.4g}")
        out += [line("line_untouched", probe=measured), line("line_data", data=self.data())]
        ends = {"lambda_max": self.top[:1], "lambda_min": self.bottom[:1]}
        shown = {name: e for name, found in ends.items() for e in found}
        shown |= {"trace": e} if (e := self.numbers.get("trace")) is not None else {}
        tag = "exact" if {e.kind for e in shown.values()} == {"exact"} else "estimate"
        out.append(f"{'   '.join(_said(name, e) for name, e in shown.items()):<84} [{tag}]")
        out += [said] if (said := self._point()) else []
        out += self._where_lines()
        rest = [cell(e.value) for e in self.top[1:]]
        if rest:
            out.append(line("line_next", values=", ".join(rest)))
        out += [e.note for e in (*self.top, *self.bottom) if not e.converged]
        return [*out, *self._block_lines(), *self.verdict_lines()]

    def _point(self) -> str:
        """Whether the point is stationary, and how many eigenvalues are negative where that was measured."""
        said, e = self.point.said if self.point else None, self.numbers.get("negative_share")
        if said is None or e is None:
            return said() if said else ""
        return f"{said()} " + line("line_negative", share=f"{100 * e.value:.0f}", error=f"{100 * (e.error or 0):.0f}")

    def _where_lines(self) -> list[str]:
        """Where the first eigenvector of each end lives."""
        ends = [("lambda_max", 0)] * bool(self.top) + [("lambda_min", -1)] * bool(self.bottom)
        return (
            [line("line_lives", name=name, place=self._place(i)) for name, i in ends]
            if self.record.inputs.get("where")
            else []
        )

    def shares(self, by: str) -> tuple[tuple[str, ...], Tensor] | None:
        """The names of that kind, and the shares (eigenvectors, names) in them; None where they were not measured."""
        known = self.record.inputs.get("where", {})
        return (tuple(known[by]), self.record.tensors[f"where/{by}"]) if by in known else None

    def _place(self, i: int) -> str:
        """`h.3 (71 %): W_Q 40 %, W_K 31 %; head W_Q[2] 38 %`."""
        layer, share = self.where(i, "layer")[0]
        inside = [(n, s) for n, s in self.where(i, "matrix") if f"{n}.".startswith(f"{layer}.") and s >= 0.01][:3]
        text = f"{line('line_layer', number=layer) if layer.isdigit() else layer} ({100 * share:.0f} %)"
        if inside and inside[0][0] != layer:
            text += ": " + ", ".join(f"{n.removeprefix(layer + '.')} {100 * s:.0f} %" for n, s in inside)
        heads = self.where(i, "head")[:1] if "head" in self.record.inputs["where"] else ()
        more = [line("line_head", head=n, share=f"{100 * s:.0f}") for n, s in heads if s >= 0.01]
        return "; ".join([text, *more])

    def _block_lines(self) -> list[str]:
        """The norms inside the layer whose blocks differ most."""
        layers: dict[str, list[Block]] = {}
        for block in self.diagonal:
            layers.setdefault(layer_of(block.name) or "", []).append(block)
        found = {
            layer: max(b.rms for b in blocks) / least
            for layer, blocks in layers.items()
            if len(blocks) > 1 and (least := min(b.rms for b in blocks)) > 0
        }
        if not found:
            return []
        layer = max(found, key=found.__getitem__)
        blocks = layers[layer]
        short = [_short(b.name) for b in blocks]
        if len(set(short)) < len(short):  # self- and cross-attention in one layer
            short = [b.name.removeprefix(f"{layer}.") for b in blocks]
        norms = "  ".join(f"{n} {cell(b.norm.value)}" for n, b in list(zip(short, blocks, strict=True))[:8])
        return [line("line_norms", layer=layer or "model", norms=norms + "  ..." * (len(blocks) > 8))]


def _short(name: str) -> str:
    """`transformer.h.3.attn.W_Q[2]` -> `query[2]`."""
    part, bracket, head = part_of(name).partition("[")
    return WORDS.get(part, part) + bracket + head


def _said(name: str, e: Estimate) -> str:
    if e.kind == "exact":
        return f"{name} {cell(e.value)}"
    if name == "trace" and e.value:
        return f"{name} {cell(e.value)} +-{100 * abs((e.error or 0) / e.value):.0f} %"
    mark = "" if e.converged else {"top": ">= ", "lambda_max": ">= ", "lambda_min": "<= "}.get(name, "")
    return f"{name} {mark}{cell(e.value)} +-{(e.error or 0):.1g}"


def _read_vectors(path: Path, eigenvalues: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as f:
            if (f.metadata() or {}).get("eigenvalues") != eigenvalues:
                raise FileError(f"{path} holds the eigenvectors of another spectrum. Measure again.")
            return {n: f.get_tensor(n) for n in f.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} cannot be read ({error}). Measure again.") from error
