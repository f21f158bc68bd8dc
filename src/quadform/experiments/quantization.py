"""Few bits for the matrices of trained Transformers: methods, the prediction of the Hessian, bits under a budget.

For each model and number of bits the loss is measured after rounding to nearest, GPTQ and (at 4 bits) the method for
all matrices together. At 8 to 5 bits each matrix is rounded alone, and g.d + d.Hd / 2 is held against the rise of the
loss. The budget is what 4 bits take, scales and zero points included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..applications.quantize import quantize
from ..core.record import Estimate, Record
from ..core.work import Work
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import Claim, at_least, at_most
from .compressed_models import ANARCII, OWN, Chosen, fetched, panels, ratio, rises
from .experiment import Experiment, Units

METHODS = ("rtn", "gptq", "hessian")
#: Bits at which the methods are compared, and those at which the prediction is.
COMPARED, PREDICTED = 4, (8, 6, 5)
#: A prediction is close where it is within this share of what was measured.
CLOSE = 0.1


@dataclass(frozen=True, kw_only=True)
class Config:
    """`models` at each of `bits` in groups of `group`; `products` of the method for all matrices together."""

    models: tuple[Chosen, ...] = (OWN, ANARCII)
    bits: tuple[int, ...] = (8, 6, 5, 4, 3)
    group: int = 64
    products: int = 24
    seed: int = 0


PRESETS = {
    "smoke": Config(models=(Chosen(name="own", batch_size=2, steps=2),), bits=(5, 4), products=8),
    "cpu": Config(models=(OWN,)),
    "paper": Config(),
}


def _rounded(config: Config, model: Chosen, bits: int, work: Work) -> dict[str, Tensor]:
    """One model with one number of bits; each matrix alone where that is asked."""
    opened = model.opened(work)
    shared = {"group": config.group, "products": config.products, "seed": config.seed, "dtype": "float64"}
    methods = METHODS if bits == COMPARED else METHODS[:2]
    found = quantize(**opened, **shared, bits=bits, method=methods)
    each = {}
    if bits in PREDICTED:
        alone = quantize(**opened, **shared, bits=bits, method=("gptq",), each=True)
        each = {"each": torch.tensor(list(alone.each.values()), dtype=torch.float64)}
    return rises(found) | each | {"size": torch.tensor(found.methods[0].size)}


def _budget(config: Config, model: Chosen, budget: float, work: Work) -> dict[str, Tensor]:
    found = quantize(
        **model.opened(work), group=config.group, seed=config.seed, dtype="float64", budget=budget, method=("gptq",)
    )
    return rises(found) | {"bits": torch.tensor(list(found.bits.values()))}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    scalars: dict[str, Estimate] = {}
    tensors: dict[str, Tensor] = {}
    with units.plan(len(config.models) * (len(config.bits) + 1)):
        for model in config.models:
            name, close = model.short, []
            curve = torch.full((3, len(config.bits)), torch.nan, dtype=torch.float64)
            for i, bits in enumerate(config.bits):
                found = units(f"{name}, {bits} bits", _rounded, config, model, bits, units.work)
                curve[: len(found["measured"]), i] = found["measured"]
                if "each" in found:
                    predicted, measured = found["each"].unbind(1)
                    close.append((predicted - measured).abs() <= CLOSE * measured.abs())
                if bits == COMPARED:
                    same = found
            chosen = units(f"{name}, budget", _budget, config, model, float(same["size"]), units.work)
            tensors |= {f"measured/{name}": curve, f"bits/{name}": chosen["bits"]}
            rtn, gptq, together = same["measured"]
            scalars |= {
                f"loss/{name}": Estimate(float(same["loss"]), note="before"),
                f"close/{name}": Estimate(
                    float(torch.cat(close).double().mean()), note=f"share of {len(torch.cat(close))} matrices and bits"
                ),
                f"gptq/{name}": ratio(gptq, rtn, "rise with GPTQ over that with rounding to nearest, 4 bits"),
                f"together/{name}": ratio(together, gptq, "rise with all matrices together over GPTQ's, 4 bits"),
                f"together-held/{name}": ratio(same["held"][2], same["held"][1], "the same on batches held out"),
                f"budget/{name}": ratio(
                    chosen["measured"][0], gptq, "rise with the budget of 4 bits over that of 4 bits"
                ),
                f"rise/{name}": Estimate(float(gptq), note="rise of the loss with GPTQ, 4 bits"),
            }
    return scalars, tensors


def _claims() -> tuple[Claim, ...]:
    found = []
    for model in (OWN, ANARCII):
        name = model.short
        presets = ("cpu", "paper") if name == "own" else ("paper",)
        found += [
            at_least(f"{name}: g.d + d.Hd/2 is within 10 % at 8 to 5 bits for 90 % of the matrices", f"close/{name}",
                     0.9, "[own]", presets=presets, page="0442-what-compression-found.md",
                     because="100 %, 83 % and 58 % at 8, 6 and 5 bits: at 5 terms beyond the second order count."),
            at_most(f"{name}: bits under the budget lose at most 0.7 of what 4 bits for all do", f"budget/{name}", 0.7,
                    "[own]", presets=presets),
            at_most(f"{name}: all matrices together lose at most 0.8 of what GPTQ does at 4 bits", f"together/{name}",
                    0.8, "[own]", presets=presets),
        ]  # fmt: skip
    return tuple(found)


def figure(record: Record) -> Figure:
    over, s, bits = Rows(), record.scalars, record.inputs["config"]["bits"]
    names = panels(record)
    charts, table = [], []
    for name in names:
        curve = record.tensors[f"measured/{name}"]
        rows = [
            {"x": b, "y": float(y), "series": method}
            for method, line in zip(METHODS, curve, strict=True)
            for b, y in zip(bits, line, strict=True)
            if float(y) > 0
        ]
        given = s[f"budget/{name}"].value * s[f"rise/{name}"].value
        rows += [{"x": COMPARED, "y": given, "series": "gptq, budget"}] * (given > 0)
        charts.append(
            line_panel(
                over,
                rows,
                x="bits",
                y="rise of the loss",
                title=f"{name}, loss {s[f'loss/{name}'].value:.2g}",
                log=(False, True),
                order=(*METHODS, "gptq, budget"),
                legend="" if name == names[-1] else None,
            )
        )
        table += [(name, m, *(float(v) for v in line)) for m, line in zip(METHODS, curve, strict=True)]
    told = [
        f"{n}: {100 * s[f'close/{n}'].value:.0f} % of the predictions within 10 %, all together"
        f" {s[f'together/{n}'].value:.2g} of GPTQ's rise, the budget {s[f'budget/{n}'].value:.2g}"
        for n in names
    ]
    return figure_of(
        "quantization",
        "What few bits cost the loss",
        side_by_side(over, *charts, columns=2),
        headline="; ".join(told) + ".",
        reading="Down and left is better. The budget is what 4 bits take. Where the loss falls there is no point.",
        not_meaning="The loss on the batches of the calibration, with weights rounded and activations not. The"
        " targets of anarcii are its own answers, and its loss is nearly 0.",
        columns=("model", "method", *(f"{b} bits" for b in bits)),
        rows=table,
    )


EXPERIMENT = Experiment(
    id="quantization",
    title="Few bits for trained Transformers",
    source="[own]",
    asked="How few bits do trained matrices need, and does the Hessian foretell the cost?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=_claims(),
    needs=lambda config: fetched(config.models),
)
