"""The dense Hessian of a trained Transformer, a receptor encoder, and of the same net at initialisation."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import jacrev

from ..answers.numbers import number
from ..core.record import Estimate, Record
from ..core.rng import stream
from ..curvature.operators import hessian, output_gradient
from ..curvature.risk import Risk
from ..report.figure import Figure, Rows
from .charts import bar_panel, figure_of, line_panel, side_by_side
from .claims import at_least, at_most, between
from .experiment import Experiment, Units

STATES = ("trained", "at initialisation")
WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")


@dataclass(frozen=True, kw_only=True)
class Config:
    """`batch` made-up receptors, masked residues; `params` chooses the parameters by name."""

    variant: str = "tiny"
    params: str = "*"
    batch: int = 8
    seed: int = 0


PRESETS = {
    "smoke": Config(params="layers.2.attn.W_*", batch=2),
    "cpu": Config(params="layers.*.attn.W_*", batch=8),
    "paper": Config(batch=2),
}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    with units.plan(2):
        found = {state: units(state, _spectrum, config, state) for state in STATES}
    scalars, tensors = {}, {}
    for state, part in found.items():
        lam = part["eigenvalues"]
        reach = float(lam.abs().max())
        scalars[f"top/{state}"] = Estimate(float(lam[-1]))
        scalars[f"bottom/{state}"] = Estimate(float(lam[0]))
        negative = float((lam < -1e-7 * reach).double().mean())
        scalars[f"negative/{state}"] = Estimate(negative, note="share of eigenvalues below -1e-7 |lambda|max")
        scalars[f"outliers/{state}"] = Estimate(reach / float(lam.abs().median()), note="|lambda|max over the median")
        scalars[f"share/{state}"] = Estimate(float(part["share"]), note="|H_f| / (|H_o| + |H_f|), Frobenius")
        scalars[f"loss/{state}"] = Estimate(float(part["loss"]))
        norms = part["norms"]
        for name, v in zip(WEIGHTS, norms.tolist(), strict=True):
            scalars[f"norm/{name}/{state}"] = Estimate(v, note="of the last layer's diagonal block")
        scalars[f"value_query/{state}"] = Estimate(float(norms[2] / norms[0]), note="|H(V, V)| / |H(Q, Q)|, last layer")
        tensors[f"eigenvalues/{state}"] = lam[torch.linspace(0, len(lam) - 1, min(len(lam), 600)).round().long()]
    return scalars, tensors


@torch.no_grad()
def _drawn_anew(model: nn.Module, seed: int) -> nn.Module:
    """The same net with its blocks at initialisation: matrices ~ N(0, 1/fan-in), gains 1, biases 0; embedding kept."""
    fresh = copy.deepcopy(model)
    for name, p in fresh.named_parameters():
        if name.startswith("layers."):
            if p.ndim == 2:
                p.copy_(torch.randn(p.shape, generator=stream(seed, name), dtype=p.dtype) / p.shape[0] ** 0.5)
            else:
                p.fill_(1.0 if name.endswith(".weight") else 0.0)
    return fresh


def _spectrum(config: Config, state: str) -> dict[str, Tensor]:
    from ..corpora.zoo import load

    found = load("sceptr", config.variant, dtype=torch.float64)
    model = found.model if state == "trained" else _drawn_anew(found.model, config.seed)
    risk = Risk(model, None, found.probe(batch=config.batch, seed=config.seed), params=config.params, quiet=True)
    H = hessian(risk, chunk=32).dense()
    H = (H + H.T) / 2
    H_o = outer_dense(risk)
    last = len(model.get_submodule("layers")) - 1  # type: ignore[arg-type]  # a ModuleList
    norms = []
    for name in WEIGHTS:
        at = risk.space.coordinates(risk.space.select(f"layers.{last}.attn.{name}"))
        norms.append(H[at[:, None], at].norm())
    outer, curved = H_o.norm(), (H - H_o).norm()
    del H_o
    return {
        "eigenvalues": torch.linalg.eigvalsh(H),
        "norms": torch.stack(norms),
        "share": curved / (outer + curved),
        "loss": risk.value().detach(),
    }


def outer_dense(risk: Risk) -> Tensor:
    """H_o of cross-entropy from the Jacobian of the logits that count: sum_i J_i^T L_i L_i^T J_i / N, (P, P).

    diag(p) - p p^T = L L^T with L = diag(sqrt p) - p sqrt(p)^T. Few tokens are masked, so J is far cheaper than P
    products.
    """
    batch = risk.batches[0]
    with risk.context():
        counted = output_gradient(risk, risk.params, batch, None).abs().sum(-1) > 0
        p = risk.output(risk.params, batch)[counted].detach().softmax(-1)
        J = jacrev(lambda theta: risk.output(theta, batch)[counted], chunk_size=64)(risk.params)
    rows = torch.cat([J[n].detach().flatten(2) for n in risk.space.names], -1)  # (N, classes, P)
    L = torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None, :]
    half = (L.mT @ rows).flatten(0, 1)
    return half.mT @ half / len(p)


CLAIMS = (
    at_least(
        "the loss of a trained Transformer still curves down: a tenth of the eigenvalues are negative",
        "negative/trained",
        0.1,
        "[own]",
    ),
    at_least("... with outliers: |lambda|max is over 100 times the median", "outliers/trained", 100, "[own]"),
    at_least(
        "softmax heterogeneity survives training: |H(V, V)| at least twice |H(Q, Q)|",
        "value_query/trained",
        2,
        "[own]",
        because="training has grown W_Q and W_K, which lifts H(Q, Q): 18 at initialisation, 1.9 trained",
        page="0807-a-trained-encoder.md",
    ),
    at_most(
        "at a trained point Gauss-Newton holds most of H: share of H_f below 0.5",
        "share/trained",
        0.5,
        "[own]",
        because="the probe is made up, so its residuals are large, and H_f carries them; open on data like its "
        "training set",
        page="0807-a-trained-encoder.md",
    ),
    between("at initialisation H_f is not small", "share/at initialisation", 0.1, 1.0, "[own]"),
)


def figure(record: Record) -> Figure:
    over, t, s = Rows(), record.tensors, record.scalars
    panels = []
    for sign, title in ((1, "positive eigenvalues"), (-1, "negative eigenvalues, size")):
        rows = []
        for state in STATES:
            lam = (sign * t[f"eigenvalues/{state}"]).tolist()
            kept = sorted((v for v in lam if v > 1e-12), reverse=True)
            rows += [{"x": (i + 1) / len(lam), "y": v, "series": state} for i, v in enumerate(kept)]
        panels.append(
            line_panel(
                over,
                rows,
                x="share of all eigenvalues",
                y="|eigenvalue|",
                log=(False, True),
                title=title,
                points=False,
                order=STATES,
                size=(290, 210),
            )
        )
    bars = [{"name": n, "value": s[f"norm/{n}/{state}"].value, "group": state} for n in WEIGHTS for state in STATES]
    norms = bar_panel(over, bars, x="norm of the diagonal block, last layer", log=True, groups=STATES, width=620)
    return figure_of(
        "trained-hessian",
        "The Hessian of a trained Transformer",
        side_by_side(over, *panels, below=norms),
        headline=f"lambda_max is {number(s['top/at initialisation'].value)} before training and "
        f"{number(s['top/trained'].value)} after, lambda_min {number(s['bottom/at initialisation'].value)} and "
        f"{number(s['bottom/trained'].value)}; "
        f"{s['negative/trained'].value:.0%} of the eigenvalues are negative "
        f"({s['negative/at initialisation'].value:.0%} at initialisation), the share of H_f goes from "
        f"{s['share/at initialisation'].value:.2f} to {s['share/trained'].value:.2f}.",
        reading="Each line lists eigenvalues from the largest down; where it meets the axis its sign runs out.",
        not_meaning="The probe is made up (usual lengths, random residues), not the training data.",
        columns=("quantity", *STATES),
        rows=[
            (k, *(s[f"{k}/{state}"].value for state in STATES))
            for k in ("loss", "top", "bottom", "negative", "outliers", "share", "value_query")
        ],
        caption=f"sceptr {record.inputs['config']['variant']}, `{record.inputs['config']['params']}`, dense, float64.",
    )


EXPERIMENT = Experiment(
    id="trained-hessian",
    title="The dense Hessian of a trained Transformer (sceptr)",
    source="[own]",
    asked="What does the whole Hessian of a trained Transformer look like?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    needs=lambda config: ("sceptr",),
)
