"""Where the O-tables have a sum, each addend on its own: X^5 + X^3, M3 + M2, W_K W_Q W_V + W_V of H_f(Q, K).

The attention matrix is held fixed by a score bias that follows (log A minus the scores), as the tables do when they
leave the softmax out. Then H_f(Q, K) = s^p P + s^q R exactly along every path, with P the part through the third moment
and R the T-functional part. Moments are parted by tokens z_j = v + c_j with A c = 0: M1 = v, and M2, M3 are those of c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..core.rng import stream
from ..report.figure import Figure, Rows
from ..theory.attention import AttentionLayer
from ..theory.score_split import ScoreSplit
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .measure import grid, norm_of, slope

#: What is scaled, and the powers of the two addends of H_f(Q, K): through M3, T-functional. Source: [ODS25], tables.
PATHS: dict[str, tuple[float, float]] = {
    "X": (5, 3),
    "W_Q": (1, 0),
    "W_K": (1, 0),
    "W_V": (1, 1),
    "spread": (3, 2),
}
#: Powers of M1 (the mean of the tokens alone) and of the spread about it, by part and block. Source: [ODS25], tables.
MOMENTS: dict[tuple[str, str], tuple[float, float]] = {
    ("outer", "W_Q,W_Q"): (0, 4),
    ("outer", "W_K,W_Q"): (0, 4),
    ("outer", "W_K,W_K"): (0, 4),
    ("outer", "W_V,W_Q"): (1, 2),
    ("outer", "W_V,W_K"): (1, 2),
    ("outer", "W_V,W_V"): (2, 0),
    ("functional", "W_Q,W_Q"): (0, 3),
    ("functional", "W_K,W_K"): (0, 3),
    ("functional", "W_V,W_Q"): (0, 2),
    ("functional", "W_V,W_K"): (0, 2),
}
POINTS = 25


@dataclass(frozen=True, kw_only=True)
class Config:
    """Random heads of these sizes, more keys than tokens; the powers are exact, so the sizes do not matter."""

    tokens: int = 6
    keys: int = 14
    dim: int = 6
    draws: int = 20
    seed: int = 0


PRESETS = {"smoke": Config(draws=2), "cpu": Config(draws=5), "paper": Config()}


class _Head:
    """One random head whose attention matrix, loss gradient and loss Hessian stay while other things are scaled."""

    def __init__(self, config: Config, seed: int) -> None:
        generator = stream(seed, "sums")

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        L, K, d, d_K, d_V = config.tokens, config.keys, config.dim, max(config.dim - 1, 1), max(config.dim - 2, 1)
        self.X, self.v, c = normal(L, d), normal(d), normal(K, d)
        self.W = {name: normal(d, n) / d**0.5 for name, n in (("W_Q", d_K), ("W_K", d_K), ("W_V", d_V))}
        self.A = normal(L, K).softmax(-1)
        self.c = c - torch.linalg.pinv(self.A) @ (self.A @ c)  # A c = 0: the mean of every row is v
        root = normal(L, d_V, d_V)
        self.loss = (normal(L, d_V), root @ root.mT)

    def at(self, **s: float) -> AttentionLayer:
        """The head with X, W_Q, W_K, W_V, the mean of the keys' tokens or their spread multiplied.

        `X` multiplies all tokens, those of the keys too.
        """
        x = s.get("X", 1.0)
        W = {name: s.get(name, 1.0) * w for name, w in self.W.items()}
        X, Z = x * self.X, x * (s.get("mean", 1.0) * self.v + s.get("spread", 1.0) * self.c)
        scores = X @ W["W_Q"] @ (Z @ W["W_K"]).T / math.sqrt(W["W_K"].shape[1])
        bias = self.A.log() - scores
        return AttentionLayer(X, *W.values(), context=Z, mask=bias, loss=self.loss)


def _block(layer: AttentionLayer) -> Tensor:
    return layer.functional("W_K", "W_Q")


def _addends(layer: AttentionLayer) -> tuple[Tensor, Tensor]:
    """H_f(K, Q): the part through M3 and the T-functional part, each from its own closed form."""
    split = ScoreSplit(layer)
    return split.t_outer("functional").block("W_K", "W_Q").dense(), split.t_functional().block("W_K", "W_Q").dense()


def _parted(one: Tensor, two: Tensor, s: float, powers: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """P and R of s^p P + s^q R from the block at 1 and at s, p != q."""
    p, q = powers
    P = (two - s**q * one) / (s**p - s**q)
    return P, one - P


def _draw(config: Config, seed: int) -> dict[str, Tensor]:
    head, scales = _Head(config, seed), grid(0.1, 10.0, POINTS)
    out: dict[str, Tensor] = {}
    P, R = _addends(head.at())
    for path, powers in PATHS.items():
        norms = torch.zeros(3, POINTS, dtype=torch.float64)
        for i, s in enumerate(scales.tolist()):
            layer = head.at(**{path: s})
            norms[:, i] = torch.stack([M.norm() for M in (_block(layer), *_addends(layer))])
        out[f"norms/{path}"] = norms
        found = [slope(scales, row) for row in norms[1:]]
        out[f"gap/{path}"] = torch.tensor([abs(a - b) for a, b in zip(found, powers, strict=True)]).double()
        if powers[0] != powers[1]:
            at = {s: _block(head.at(**{path: s})) for s in (1.0, 2.0, 5.0)}
            p, r = _parted(at[1.0], at[2.0], 2.0, powers)
            third = 5.0 ** powers[0] * p + 5.0 ** powers[1] * r
            out[f"third/{path}"] = (third - at[5.0]).norm() / at[5.0].norm()
            out[f"parted/{path}"] = torch.maximum((p - P).norm() / P.norm(), (r - R).norm() / R.norm())
            share = norms[1] / (norms[1] + norms[2])
            out[f"span/{path}"] = share.max() - share.min()
    mirrored = _block(head.at(spread=-1.0))
    even, odd = (_block(head.at()) + mirrored) / 2, (_block(head.at()) - mirrored) / 2
    out["mirror"] = torch.maximum((even - R).norm() / R.norm(), (odd - P).norm() / P.norm())
    gap = 0.0
    one = head.at()
    for i, path in enumerate(("mean", "spread")):
        three = head.at(**{path: 3.0})
        for (part, block), powers in MOMENTS.items():
            seen = math.log(norm_of(three, block, part) / norm_of(one, block, part)) / math.log(3)
            gap = max(gap, abs(seen - powers[i]))
    out["moments"] = torch.tensor(gap, dtype=torch.float64)
    return out


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    with units.plan(config.draws):
        found = [units(f"draw {i}", _draw, config, config.seed + i) for i in range(config.draws)]

    def worst(key: str, note: str) -> Estimate:
        return Estimate(max(float(f[key].max()) for f in found), kind="bound", note=note)

    scalars = {}
    for path, powers in PATHS.items():
        scalars[f"gap/{path}"] = worst(f"gap/{path}", "largest |slope - power| of the two addends")
        if powers[0] != powers[1]:
            scalars[f"third/{path}"] = worst(f"third/{path}", "block at 5 from those at 1 and 2, relative")
            scalars[f"parted/{path}"] = worst(f"parted/{path}", "addends of the block against closed forms, relative")
            least = min(float(f[f"span/{path}"]) for f in found)
            scalars[f"span/{path}"] = Estimate(least, kind="bound", note="smallest range of the share of the first")
    scalars["third"] = Estimate(max(s.value for k, s in scalars.items() if k.startswith("third/")), kind="bound")
    scalars["parted"] = Estimate(max(s.value for k, s in scalars.items() if k.startswith("parted/")), kind="bound")
    scalars["mirror"] = worst("mirror", "even and odd part in the spread against the two addends, relative")
    scalars["moments"] = worst("moments", "largest |power - table|, every other block")
    tensors = {f"norms/{path}": torch.stack([f[f"norms/{path}"] for f in found]).mean(0) for path in PATHS}
    return scalars, {"scales": grid(0.1, 10.0, POINTS), **tensors}


_TABLES = "[ODS25, O-tables]"
_SUMS = {
    "X": "H_f(Q, K), X^5 + X^3: the addends have the powers 5 and 3 of the data",
    "W_Q": "H_f(Q, K), W_K W_Q W_V + W_V: the addends have the powers 1 and 0 of W_Q",
    "W_K": "... and of W_K",
    "W_V": "... and both the power 1 of W_V",
    "spread": "H_f(Q, K), M3 + M2: the addends have the powers 3 and 2 of the tokens about their mean",
}
CLAIMS = (
    *(at_most(words, f"gap/{path}", 1e-9, _TABLES) for path, words in _SUMS.items()),
    at_most(
        "every other block has the published powers of M1 and of M2 or M3, each moved alone", "moments", 1e-9, _TABLES
    ),
    at_most("the block is that sum and nothing else: at 1 and 2 it gives the block at 5", "third", 1e-9, "[own]"),
    at_most("the addends found so are the M3 part and the T-functional part", "parted", 1e-9, "[own]"),
    at_most("mirroring the tokens about their mean turns the sign of the M3 addend alone", "mirror", 1e-9, "[own]"),
    at_least("both are seen: from scale 0.1 to 10 the share of the X^5 addend moves by 0.8", "span/X", 0.8, "[own]"),
)


def figure(record: Record) -> Figure:
    over, t, s = Rows(), record.tensors, record.scalars
    scales = t["scales"].tolist()
    words = {"X": "data X", "W_Q": "query weights W_Q", "spread": "tokens about their mean"}
    names = ("whole block", "through M_3", "T-functional")
    panels = []
    for path, title in words.items():
        rows = [
            {"x": x, "y": float(y), "series": name}
            for name, line in zip(names, t[f"norms/{path}"], strict=True)
            for x, y in zip(scales, line, strict=True)
        ]
        powers = dict(zip(names[1:], PATHS[path], strict=True))
        panels.append(
            line_panel(over, rows, x=f"factor on the {title}", y="|H_f(W_Q, W_K)|", order=names, points=False,
                       title=f"slopes {powers['through M_3']:g} and {powers['T-functional']:g}", size=(220, 200),
                       guides=powers, legend="" if path == "spread" else None)
        )  # fmt: skip
    gap = max(s[f"gap/{path}"].value for path in PATHS)
    return figure_of(
        "sums",
        "Sums of the tables, addend by addend",
        side_by_side(over, *panels, columns=3, colours="shared"),
        headline=f"H_f(Q, K) is a sum of two powers along every path: both addends have the published powers to "
        f"{gap:.0e}, "
        f"and the block at two scales gives a third to {s['third'].value:.0e}.",
        reading="The whole block follows the flatter addend on the left and the steeper one on the right; where they "
        "cross both count.",
        not_meaning="The attention is held fixed by a score bias. In a real layer it changes with the scale as well.",
        columns=("path", "power of the first", "power of the second", "largest gap"),
        rows=[(path, *powers, s[f"gap/{path}"].value) for path, powers in PATHS.items()],
        caption="First addend: through M_3; second: T-functional. Norms are means over draws.",
    )


EXPERIMENT = Experiment(
    id="sums",
    title="The sums of the tables, addend by addend",
    source=_TABLES,
    asked="Where the tables have a sum, is each of its addends there, with its own power?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
