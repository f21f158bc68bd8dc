"""Curvature of a trained encoder-decoder: self- and cross-attention of the antibody-numbering net, block by block.

Cross-attention takes queries from the decoder and keys and values from the encoder. What theory says of one attention
layer holds for it unchanged, whatever surrounds it: the layer is linear in W_V, a key bias moves all scores of a query
alike, and W_Q, W_K are seen through their product only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.operator import Operator
from ..core.record import Estimate, Record
from ..core.rng import stream
from ..curvature.operators import functional, gauss_newton, hessian
from ..curvature.risk import Risk
from ..estimate.blocks import block_norms
from ..nn.transformer import Transformer
from ..report.figure import Figure, Rows
from .charts import bar_panel, cell_panel, figure_of, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units

WEIGHTS = ("W_Q", "W_K", "W_V")
KINDS = ("encoder self", "decoder self", "cross")


@dataclass(frozen=True, kw_only=True)
class Config:
    """`batch` antibody domains, their first `length` residues (0: all); `products` for each of the blocks."""

    variant: str = "antibody-2"
    batch: int = 3
    length: int = 0
    products: int = 8
    seed: int = 0


PRESETS = {
    "smoke": Config(variant="antibody-1", batch=1, length=40, products=3),
    "cpu": Config(batch=2, products=6),
    "paper": Config(batch=6, products=24),
}


def sites(model: Transformer) -> dict[str, str]:
    """`{label: path}` of every attention module: encoder self, decoder self, cross, from the first layer on."""
    found = {f"{KINDS[0]} {i + 1}": f"encoder_layers.{i}.attn" for i in range(len(model.encoder_layers))}
    for kind, last in ((KINDS[1], "attn"), (KINDS[2], "cross")):
        found |= {f"{kind} {i + 1}": f"layers.{i}.{last}" for i in range(len(model.layers))}
    return found


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    from ..corpora.zoo import load

    found = load("anarcii", config.variant, dtype=torch.float64)
    model: Any = found.model
    places = sites(model)
    risk = Risk(
        found.model,
        None,
        found.probe(batch=config.batch, length=config.length or None, seed=config.seed),
        params=[f"{path}.{kind}_{letter}" for path in places.values() for kind in "Wb" for letter in "QKV"],
        quiet=True,
    )
    with units.plan(3 + len(places)):
        maps = {
            part: units(part, _map, config, op, risk, places)
            for part, op in (("total", hessian), ("outer", gauss_newton), ("functional", functional))
        }
        laws = {label: units(label, _laws, config, risk, path) for label, path in places.items()}
    scalars: dict[str, Estimate] = {"loss": Estimate(float(risk.value().detach()), note=found.note)}
    for i, label in enumerate(places):
        q, v = (_norm(maps["total"], [3 * i + j], [3 * i + j]) for j in (0, 2))
        scalars[f"value_query/{label}"] = _product([v], [q], "|H(V, V)| / |H(Q, Q)|")
        own = range(3 * i, 3 * i + 3)
        o, f = (_norm(maps[part], own, own) for part in ("outer", "functional"))
        error = math.hypot(o.value * (f.stderr or 0.0), f.value * (o.stderr or 0.0)) / (o.value + f.value) ** 2
        note = "|H_f| / (|H_o| + |H_f|) at the logits"
        scalars[f"share/{label}"] = Estimate(f.value / (o.value + f.value), error, "estimate", note=note)
        for key, value in laws[label].items():
            scalars[f"{key}/{label}"] = Estimate(float(value))
    for key in ("hollow", "key_bias", "gauge", "outer_gauge"):
        scalars[key] = Estimate(max(scalars[f"{key}/{label}"].value for label in places), note="largest of all layers")
    scalars["least_value_query"] = min((scalars[f"value_query/{label}"] for label in places), key=float)
    for kind in KINDS:
        names = [label for label in places if label.startswith(kind)]
        each = [scalars[f"value_query/{label}"] for label in names]
        scalars[f"value_query/{kind}"] = _product(each, [], "geometric mean over layers", 1 / len(each))
        entropy = sum(scalars[f"entropy/{label}"].value for label in names) / len(names)
        scalars[f"entropy/{kind}"] = Estimate(entropy, note="of the attention, over that of a uniform one")
    scalars["cross_over_self"] = _product([scalars["value_query/cross"]], [scalars["value_query/decoder self"]])
    n = 3 * len(model.encoder_layers)
    encoder, decoder = range(n), range(n, 3 * len(places))
    among = [_norm(maps["total"], side, side) for side in (encoder, decoder)]
    between = _norm(maps["total"], encoder, decoder)
    note = "|H| between the attention of encoder and decoder over the geometric mean of |H| inside each"
    scalars["bridge"] = _product([between], [_product(among, [], power=0.5)], note)
    return scalars, {f"norms/{part}": m["value"] for part, m in maps.items()}


def _norm(found: dict[str, Tensor], rows: Sequence[int], cols: Sequence[int]) -> Estimate:
    """The norm of several blocks together: squares add up, and so do the squares of their errors."""
    N, s = (found[k][list(rows)][:, list(cols)] for k in ("value", "stderr"))
    return Estimate(float(N.norm()), float((N * s).norm() / N.norm()), "estimate")


def _product(above: Sequence[Estimate], below: Sequence[Estimate], note: str = "", power: float = 1.0) -> Estimate:
    """(product of `above` / product of `below`)^power; relative errors add as squares."""
    value = math.prod(e.value for e in above) / math.prod(e.value for e in below)
    relative = math.hypot(*((e.stderr or 0.0) / e.value for e in (*above, *below)))
    return Estimate(value**power, abs(power) * relative * value**power, "estimate", note=note)


def _map(config: Config, op: Callable[[Risk], Operator], risk: Risk, places: dict[str, str]) -> dict[str, Tensor]:
    """|A(a, b)|_F of all pairs of attention weights, A = op(risk)."""
    names = [f"{path}.{w}" for path in places.values() for w in WEIGHTS]
    found = block_norms(op(risk), names, config.products, seed=config.seed)
    return {"value": found.value, "stderr": found.stderr}


def _laws(config: Config, risk: Risk, path: str) -> dict[str, Tensor]:
    """What must hold in every attention layer exactly, as relative defects, and the entropy of its attention.

    hollow       |H_f(V, V) z| / |H_f(Q, V) z|, split at the layer's output: F is linear in W_V
    key_bias     |H e| / |H e'|, e in b_K and e' in b_Q: softmax does not see what is added to all scores of a query
    gauge        H (P B, -Q B^T) against (-g_P B^T, g_Q B), P = [W_Q; b_Q], Q = [W_K; b_K] of head 1
    outer_gauge  |H_o t| / |H_o t'| of the same tangent t and a random t' of the same length: J t = 0
    """
    generator = stream(config.seed, f"cross-attention/{path}")

    def random(*names: str) -> dict[str, Tensor]:
        return {
            f"{path}.{n}": torch.randn(risk.params[f"{path}.{n}"].shape, generator=generator, dtype=torch.float64)
            for n in names
        }

    def norm(V: dict[str, Tensor]) -> Tensor:
        return torch.stack([t.square().sum() for t in V.values()]).sum().sqrt()

    H, H_o = hessian(risk), gauss_newton(risk)
    column = _times(functional(risk, f"{path}.*", f"{path}.W_V", split=path), random("W_V"))
    hollow = column[f"{path}.W_V"].norm() / column[f"{path}.W_Q"].norm()
    key_bias = norm(_times(H, random("b_K"))) / norm(_times(H, random("b_Q")))
    tangent, image = _gauge(risk, path, generator)
    given = _times(H, tangent)
    defect = norm({n: t - image.get(n, torch.zeros_like(t)) for n, t in given.items()}) / norm(image)
    other = random("W_Q", "W_K", "b_Q", "b_K")
    other = {n: t * norm(tangent) / norm(other) for n, t in other.items()}
    outer = norm(_times(H_o, tangent)) / norm(_times(H_o, other))
    laws = {"hollow": hollow, "key_bias": key_bias, "gauge": defect, "outer_gauge": outer}
    return laws | {"entropy": _entropy(risk, path)}


def _times(A: Operator, V: dict[str, Tensor]) -> dict[str, Tensor]:
    """A V of a vector that is zero outside of V."""
    return A @ {**A.domain.zeros(dtype=torch.float64), **V}


def _gauge(risk: Risk, path: str, generator: torch.Generator) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(tangent of the orbit, H times it from the gradient alone) for a random B on the first head."""
    names = [f"{path}.{n}" for n in ("W_Q", "b_Q", "W_K", "b_K")]
    live = {n: risk.params[n].clone().requires_grad_() for n in names}
    with torch.enable_grad():
        grads = dict(zip(names, torch.autograd.grad(risk.value(live), list(live.values())), strict=True))
    module: Any = risk.model.get_submodule(path)  # type: ignore[union-attr]  # of a module, not of a function
    k = module.width
    B = torch.randn(k, k, generator=generator, dtype=torch.float64)
    tangent, image = {}, {}
    for n in names:
        query = n.endswith("_Q")
        tangent[n], image[n] = torch.zeros_like(grads[n]), torch.zeros_like(grads[n])
        W, g = risk.params[n][..., :k], grads[n][..., :k]
        tangent[n][..., :k] = W @ B if query else -(W @ B.T)
        image[n][..., :k] = -(g @ B.T) if query else g @ B
    return tangent, image


@torch.no_grad()
def _entropy(risk: Risk, path: str) -> Tensor:
    """Mean entropy of the rows of A over that of a uniform row, rows that see one key left out."""
    module: Any = risk.model.get_submodule(path)  # type: ignore[union-attr]  # of a module, not of a function
    seen: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, *, causal=False, mask=None, bias=None, scale=None) -> Tensor:
        S = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        visible = torch.ones(S.shape[-2:], dtype=torch.bool).tril() if causal else torch.ones_like(S, dtype=torch.bool)
        visible = (visible if mask is None else visible & mask).expand_as(S)
        A = S.masked_fill(~visible, -math.inf).softmax(-1)
        many = visible.sum(-1)
        h = -torch.xlogy(A, A).sum(-1) / many.clamp(min=2).to(S.dtype).log()
        seen.append(h[many > 1].mean())
        return A @ v

    usual, module.attend = module.attend, attend
    try:
        risk.run(risk.params, risk.batches[0])
    finally:
        module.attend = usual
    return seen[0]


_OWN = "[own]"
_KEYS = "queries and keys come from two streams of different sizes there, and the key block is the large one"
CLAIMS = (
    at_most("every attention, cross-attention too, is linear in W_V: H_f(V, V) = 0 in the split at its output",
            "hollow", 1e-12, _OWN, why="exact; round-off of float64"),
    at_most("a key bias is flat: H e = 0 for every direction e of b_K", "key_bias", 1e-9, _OWN,
            why="exact; round-off, the whole Hessian being small at a trained point"),
    at_most("H along the gauge directions of W_Q, W_K follows from the gradient, cross-attention too", "gauge", 1e-8,
            _OWN, why="exact; round-off"),
    at_most("... and Gauss-Newton does not see them", "outer_gauge", 1e-9, _OWN, why="exact; round-off"),
    at_least("|H(V, V)| is above |H(Q, Q)| in every attention layer of the trained net", "least_value_query", 1, _OWN,
             presets=("cpu", "paper"), because=_KEYS, page="0808-cross-attention.md"),
    at_least("... at least twice in cross-attention", "value_query/cross", 2, _OWN, presets=("cpu", "paper"),
             because=_KEYS, page="0808-cross-attention.md"),
    at_most("cross-attention has learned to point: its entropy is below half of a uniform one", "entropy/cross", 0.5,
            _OWN, presets=("cpu", "paper")),
    at_least("the more it points, the further query and value curvature part: cross- above decoder self-attention",
             "cross_over_self", 1, _OWN, presets=("cpu", "paper"), why="one-hot attention has no query curvature",
             because=_KEYS, page="0808-cross-attention.md"),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, s = Rows(), record.scalars
    labels = [k.removeprefix("share/") for k in s if k.startswith("share/")]
    N = record.tensors["norms/total"]
    panels = [
        cell_panel(
            over,
            N.log10().tolist(),
            title="|H(a, b)| of all attention weights",
            legend="log10 |H|",
            size=300,
            blocks=[(label, 3) for label in labels],
        )
    ]
    rows = [
        {"name": label, "value": float(N[3 * i + j, 3 * i + j]), "group": w}
        for i, label in enumerate(labels)
        for j, w in enumerate(WEIGHTS)
    ]
    panels.append(bar_panel(over, rows, x="norm of the diagonal block", log=True, groups=WEIGHTS, width=280))
    rows = [{"name": label, "value": s[f"entropy/{label}"].value} for label in labels]
    panels.append(bar_panel(over, rows, x="entropy of the attention : uniform", width=280, domain=[0, 1.15]))
    rows = [{"name": label, "value": s[f"share/{label}"].value} for label in labels]
    panels.append(bar_panel(over, rows, x="share of H_f, at the logits", width=280, domain=[0, 1.15]))
    return figure_of(
        "cross-attention",
        "Self- and cross-attention of a trained encoder-decoder",
        side_by_side(over, *panels),
        headline=f"|H(V, V)| : |H(Q, Q)| is {s['value_query/encoder self'].value:.2g} in the encoder, "
        f"{s['value_query/decoder self'].value:.2g} in the decoder's self-attention and "
        f"{s['value_query/cross'].value:.2g} in cross-attention.",
        reading="Cells: W_Q, W_K, W_V of each attention in the order of the bars. Bright ones off the diagonal are "
        "weights that curve together, encoder with decoder among them.",
        not_meaning="The targets are the net's own answers, so the loss is nearly zero and all curvature is small.",
        columns=("attention", "|H(V, V)| : |H(Q, Q)|", "s.e.", "share of H_f", "entropy : uniform", "gauge defect"),
        rows=[
            (label, s[f"value_query/{label}"].value, s[f"value_query/{label}"].stderr, s[f"share/{label}"].value,
             s[f"entropy/{label}"].value, s[f"gauge/{label}"].value)
            for label in labels
        ],
        tags=("exact", "estimate"),
        caption=f"anarcii {record.inputs['config']['variant']}, {record.inputs['config']['batch']} antibody domains, "
        f"float64, norms from {record.inputs['config']['products']} products a block.",
    )  # fmt: skip


EXPERIMENT = Experiment(
    id="cross-attention",
    title="Self- and cross-attention of a trained encoder-decoder (anarcii)",
    source="[own]",
    asked="Do the laws of self-attention's Hessian hold for the cross-attention of a trained model?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    needs=lambda config: ("anarcii",),
)
