# %% [markdown]
# # An experiment with claims
#
# **What you will learn.** How to write an experiment whose sentences are checked by numbers: each claim names the number that decides
# it and the interval in which it must lie, before the number is seen. You write one, run it, draw it and read its verdicts.
#
# ## 1. The question
#
# Attention divides its scores by a temperature t. How fast does the curvature in the queries, |H_o(W_Q, W_Q)|, fall as t grows? And that
# in the values? (Symbols: [notation](../notation.md).)
#
# ## 2. Settings and measurement
#
# Settings are a frozen dataclass with a seed. `run` returns numbers (`qf.Estimate`) and tensors; it does not print, draw or write. It
# hands out its work in parts, `units(name, function, *arguments)`: a run that is cut short resumes with the part it was at.

# %%
from dataclasses import dataclass

import torch

import quadform as qf
from quadform.experiments import Experiment, at_most, charts, near
from quadform.report import Rows


@dataclass(frozen=True, kw_only=True)
class Config:
    draws: int = 3
    seed: int = 0


TEMPERATURES = torch.logspace(1, 3, 9, dtype=torch.float64)


def norms_of(seed):
    X, W_Q, W_K, W_V, Y = qf.toy(tokens=8, d_model=6, seed=seed)
    found = {"W_Q": [], "W_V": []}
    for t in TEMPERATURES.tolist():
        layer = qf.AttentionLayer(X, W_Q, W_K, W_V, Y, temperature=t)
        for name in found:
            found[name].append(layer.norm(name, name, "outer").value)
    return {name: torch.tensor(values) for name, values in found.items()}


def run(config, units):
    with units.plan(config.draws):
        drawn = [
            units(f"draw {i}", norms_of, config.seed + i) for i in range(config.draws)
        ]
    norms = {name: torch.stack([d[name] for d in drawn]) for name in ("W_Q", "W_V")}
    slopes = {
        name: (n[:, -1] / n[:, 0]).log() / (TEMPERATURES[-1] / TEMPERATURES[0]).log()
        for name, n in norms.items()
    }
    scalars = {
        f"slope/{name}": qf.Estimate(
            float(s.mean()), float(s.std() / config.draws**0.5), "estimate"
        )
        for name, s in slopes.items()
    }
    return scalars, {"temperatures": TEMPERATURES} | {
        name: n.mean(0) for name, n in norms.items()
    }


# %% [markdown]
# ## 3. Claims
#
# The width of an interval is your decision; write it before you run. A claim that you expect to fail can stand beside the one that it
# controls (`control=True`): it shows that the other could have failed too.

# %%
CLAIMS = (
    near("curvature in the queries falls as t^-2", "slope/W_Q", -2, 0.05, "[own]"),
    near(
        "curvature in the values does not depend on t", "slope/W_V", 0, 0.05, "[own]"
    ),
    at_most(
        "curvature in the values falls too",
        "slope/W_V",
        -1,
        "[own]",
        control=True,
        because="values are outside the softmax",
    ),
)


def figure(record):
    t, over = record.tensors, Rows()
    slope = record.scalars["slope/W_Q"].value
    rows = [
        {"x": x, "y": float(t[name][i]), "series": name}
        for name in ("W_Q", "W_V")
        for i, x in enumerate(t["temperatures"].tolist())
    ]
    return charts.figure_of(
        "hot-attention",
        "Curvature of hot attention",
        charts.side_by_side(
            over, charts.line_panel(over, rows, x="temperature t", y="|H_o(W, W)|")
        ),
        headline=f"Query curvature falls as t^{slope:.2f}.",
        reading="Both axes are logarithmic: a power of t is a straight line.",
        not_meaning="A small curvature does not mean that a matrix does not matter.",
        columns=("temperature", "matrix", "norm"),
        rows=[(r["x"], r["series"], r["y"]) for r in rows],
    )


EXPERIMENT = Experiment(
    id="hot-attention",
    title="Curvature of hot attention",
    source="[own]",
    asked="How fast does query curvature fall with the temperature?",
    presets={"smoke": Config(), "cpu": Config(draws=20)},
    run=run,
    figure=figure,
    claims=CLAIMS,
)

# %% [markdown]
# ## 4. Run it
#
# `measure` runs one preset and returns a `qf.Record`: settings, numbers, tensors, versions and machine, all in one folder when you save it.

# %%
record = EXPERIMENT.measure("smoke")
for verdict in EXPERIMENT.verdicts(record):
    print(f"{verdict.status}: {verdict.claim.text}")
    print(f"    {verdict.number}, wanted {verdict.claim.wanted}")

# %%
EXPERIMENT.figure(record).chart

# %% [markdown]
# **How to read it.** A claim is *met*, *not met*, *undecided* (an end of the interval lies within the error of the number) or *not tested*
# (this preset is too small). The last claim is a control and is expected to fail. Do not widen an interval afterwards: a claim that
# fails stays, and says why (`because`).
#
# ## 5. Add it to the project
#
# Save the code as `src/quadform/experiments/hot_attention.py`, add the line `"hot-attention": ".hot_attention"` to `CATALOG` in
# `catalog.py`, and run `quadform reproduce hot-attention`. It is then saved, drawn, judged and listed like the others.
#
# ## What to try next
#
# - [Experiments](../experiments.md): presets, records, how a run resumes after Ctrl-C.
# - [The gallery](../gallery.md): what came out for every experiment of the papers, red claims included.
