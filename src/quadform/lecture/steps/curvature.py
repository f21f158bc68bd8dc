"""The trained model measured: its Hessian block by block, its signal, its learning-rate ceiling."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...curvature.operators import hessian
from ...curvature.risk import Risk
from ...estimate import block_norms, eigenpairs
from ...nn.transformer import Transformer
from ...train.watch import token_cosines
from ..controls import Choice, Slider
from ..numbers import say
from ..pupil import DATA
from ..step import Asked, Shown, Step, bars, lines, matrix
from .stacks import state

T = TypeVar("T")
WHEN = Choice(name="when", values=("now", "before"))
NAMES = ("W_Q", "W_K", "W_V", "W_O", "W_1", "W_2")


def batch_of(size: int) -> dict[str, Tensor]:
    """Numbers to measure on, the same every time."""
    return next(iter(DATA.batches("train", size, seed=1)))


def _model(asked: Asked) -> Transformer:
    return asked.pupil.model if asked["when"] == "now" else asked.pupil.fresh


def _made(asked: Asked) -> str:
    """The Python that makes the model that is looked at."""
    return f"trained_model({asked.pupil.python if asked['when'] == 'now' else f'seed={asked.pupil.seed}, stop=0'})"


def _when(asked: Asked) -> str:
    return state(asked) if asked["when"] == "now" else asked.texts("state_before")


def _kept(asked: Asked, what: tuple[Any, ...], compute: Callable[[], T]) -> T:
    """A measurement of the model as it stands, made once."""
    pupil = asked.pupil
    now = asked["when"] == "now"
    key = (id(pupil.lesson) if now else None, pupil.step if now else 0, *what)
    if key not in pupil.kept:
        if len(pupil.kept) >= 64:
            pupil.kept.clear()
        pupil.kept[key] = compute()
    found: T = pupil.kept[key]
    return found


def risk_of(model: Transformer, size: int, params: list[str] | str = "*") -> Risk:
    """The loss of a copy on a batch, in float64, as a function of these parameters."""
    return Risk(copy.deepcopy(model).double(), None, batch_of(size), params, quiet=True)


_RISK = """\
model = {made}.double()
batch = next(iter(DATA.batches("train", {size}, seed=1)))
"""

# --- the Hessian ------------------------------------------------------------------------------------------------------
HESSIAN_PYTHON = (
    """\
import quadform as qf
from quadform.lecture import DATA, trained_model

"""
    + _RISK
    + """\
names = {names!r}
H = qf.hessian(qf.Risk(model, None, batch, names))  # {count:,} x {count:,}, never written out
found = qf.estimate.block_norms(H, {{name[-3:]: [name] for name in names}}, products={products})
print(*found.value.flatten().tolist())
"""
)


def hessian_step(asked: Asked) -> Shown:
    """Frobenius norms of the Hessian blocks of one layer, estimated from Hessian-vector products."""
    t, products, stack = asked.texts, asked["products"], asked["stack"]
    prefix = ("encoder_layers" if stack == "encoder" else "layers") + f".{asked['layer'] - 1}"
    paths = [f"{prefix}.{'attn' if name in NAMES[:4] else 'mlp'}.{name}" for name in NAMES]
    model = _model(asked)

    def measure() -> Any:
        return block_norms(hessian(risk_of(model, 16, paths)), {p[-3:]: [p] for p in paths}, products=products)

    found = _kept(asked, ("blocks", prefix, products), measure)
    V, error = found.value, found.stderr
    i, j = divmod(int(V.argmax()), len(NAMES))
    worst = float((error / V).max())
    own = V.diagonal()
    ratio = float(own[2] / own[0])
    return Shown(
        says=t(
            "says_hessian",
            a=NAMES[i],
            b=NAMES[j],
            norm=f"{float(V[i, j]):.3g}",
            error=f"{float(error[i, j]):.2g}",
            ratio=say(ratio, 1),
        )
        + " "
        + _when(asked),
        panels=[
            matrix(t("panel_blocks"), V, NAMES, NAMES, numbers=True, square=True, size="half"),
            bars(t("panel_diagonal"), own, NAMES, mark=int(own.argmax()), size="half"),
        ],
        python=HESSIAN_PYTHON.format(
            made=_made(asked),
            size=16,
            count=sum(p.numel() for name, p in model.named_parameters() if name in paths),
            names=paths,
            products=products,
        ),
        printed=V.flatten().tolist(),
        exercise=t("exercise_hessian"),
        answer=t("answer_hessian", ratio=say(ratio, 1), worst=say(100 * worst, 0), products=found.matvecs),
    )


# --- signal -----------------------------------------------------------------------------------------------------------
SIGNAL_PYTHON = """\
import torch
from quadform.lecture import DATA, trained_model
from quadform.train import token_cosines

model = {made}
batch = next(iter(DATA.batches("train", {size}, seed=1)))
with torch.no_grad():
    cosines = token_cosines(model, batch)  # after every block
model.loss(batch).backward()
blocks = [*model.encoder_layers, *model.layers]
norms = [sum(float(p.grad.square().sum()) for p in b.parameters()) ** 0.5 for b in blocks]
print(*(c.value for c in cosines.values()), *norms)
"""


def _signal(model: Transformer, size: int) -> tuple[list[float], list[float]]:
    """Token cosine after every block, and the norm of the loss gradient by the weights of every block."""
    own = copy.deepcopy(model)
    batch = batch_of(size)
    with torch.no_grad():
        cosines = [c.value for c in token_cosines(own, batch).values()]
    own.loss(batch).backward()
    blocks = [*own.encoder_layers, *own.layers]
    norms = [sum(float(p.grad.square().sum()) for p in b.parameters() if p.grad is not None) ** 0.5 for b in blocks]
    return cosines, norms


def signal(asked: Asked) -> Shown:
    """Forward: how alike the letters become. Backward: how large the gradient is in every block."""
    t, size = asked.texts, asked["batch"]
    cosines, norms = _signal(_model(asked), size)
    then, _ = _signal(asked.pupil.fresh, size)
    depth = len(asked.pupil.fresh.encoder_layers)
    labels = [t("label_encoder", layer=i + 1) for i in range(depth)]
    labels += [t("label_decoder", layer=i + 1) for i in range(depth)]
    most = max(range(len(cosines)), key=lambda k: cosines[k])
    ratio = max(norms) / min(norms)
    said = {"cosine": say(cosines[most]), "block": labels[most], "then": say(then[most]), "ratio": say(ratio, 1)}
    return Shown(
        says=t("says_signal" if cosines[most] < 0.95 else "says_signal_collapse", **said) + " " + _when(asked),
        panels=[
            bars(t("panel_alike"), torch.tensor(cosines), labels, mark=most, size="half", high=1.0),
            bars(t("panel_gradient"), torch.tensor(norms), labels, mark=norms.index(max(norms)), size="half"),
        ],
        python=SIGNAL_PYTHON.format(made=_made(asked), size=size),
        printed=[*cosines, *norms],
        exercise=t("exercise_signal"),
        answer=t("answer_signal", ratio=say(ratio, 1)),
    )


# --- the learning-rate ceiling ----------------------------------------------------------------------------------------
CEILING_PYTHON = (
    """\
import quadform as qf
from quadform.lecture import DATA, trained_model

"""
    + _RISK
    + """\
H = qf.hessian(qf.Risk(model, None, batch))  # {count:,} x {count:,}, never written out
sharpest = qf.estimate.eigenpairs(H, top=1, tol=1e-2).values[0]
print(sharpest.value, 2 / sharpest.value)  # lambda_max, and the ceiling of plain gradient descent
"""
)
TRIED = 12
#: Size of the push along the sharpest direction.
PUSH = 1e-4


def _descend(model: Transformer, batch: dict[str, Tensor], rate: float, push: dict[str, Tensor]) -> list[float]:
    """Gradient descent from the weights and from weights pushed along a direction v: v . difference after each step,
    over its start, and the losses of the first."""
    runs = [copy.deepcopy(model).double().train() for _ in range(2)]
    weights = [dict(run.named_parameters()) for run in runs]
    with torch.no_grad():
        for name, v in push.items():
            weights[1][name].add_(v, alpha=PUSH)
    grown, losses = [1.0], []
    for _ in range(TRIED):
        for run, own in zip(runs, weights, strict=True):
            loss = run.loss(batch)
            grads = torch.autograd.grad(loss, list(own.values()))
            with torch.no_grad():
                for p, g in zip(own.values(), grads, strict=True):
                    p.sub_(g, alpha=rate)
            if run is runs[0]:
                losses.append(float(loss.detach()))
        apart = sum(float(((weights[1][n] - weights[0][n]).detach() * v).sum()) for n, v in push.items())
        grown.append(abs(apart) / PUSH)
    return [*grown, *losses]


def ceiling(asked: Asked) -> Shown:
    """2 / lambda_max, and gradient descent at a multiple of it."""
    t, factor, model = asked.texts, asked["factor"], _model(asked)

    def measure() -> Any:
        return eigenpairs(hessian(risk_of(model, 16)), top=1, tol=1e-2)

    found = _kept(asked, ("sharpest",), measure)
    sharpest = found.values[0]
    lam = sharpest.value
    top = 2 / lam if lam > 0 else torch.inf
    rate = factor * top
    push = {
        name: v[0] if v.ndim > dict(model.named_parameters())[name].ndim else v for name, v in found.vectors.items()
    }
    tried = _kept(asked, ("tried", factor), lambda: _descend(model, batch_of(16), rate, push))
    grown, losses = tried[: TRIED + 1], tried[TRIED + 1 :]
    law = abs(1 - 2 * factor)
    foretold = [law**k for k in range(TRIED + 1)]
    floor = 1e-12
    said = {
        "lam": say(lam),
        "error": say(sharpest.error or 0.0),
        "top": f"{top:.3g}",
        "factor": f"{factor:g}",
        "law": say(law),
        "grown": f"{grown[-1]:.2g}",
        "first": say(losses[0], 3),
        "last": say(losses[-1], 3),
        "steps": TRIED,
    }
    says = t("says_ceiling_above" if grown[-1] > 1 else "says_ceiling_below", **said)
    if not 0.1 < max(grown[-1], floor) / max(foretold[-1], floor) < 10:
        says += " " + t("says_ceiling_left")
    return Shown(
        says=f"{says} {_when(asked)}",
        panels=[
            lines(
                t("panel_push"),
                t("axis_descent"),
                t("axis_push"),
                [
                    {"name": t("line_measured"), "points": _points(grown, floor), "chosen": True, "dots": True},
                    {"name": t("line_foretold"), "points": _points(foretold, floor)},
                ],
                size="half",
                log=True,
            ),
            lines(
                t("panel_descent"),
                t("axis_descent"),
                t("axis_loss"),
                [{"name": "", "points": _points(losses, floor), "chosen": True, "dots": True}],
                size="half",
                log=True,
            ),
        ],
        python=CEILING_PYTHON.format(made=_made(asked), size=16, count=sum(p.numel() for p in model.parameters())),
        printed=[lam, 2 / lam],
        exercise=t("exercise_ceiling", factor=f"{factor:g}"),
        answer=t("answer_ceiling", factor=f"{factor:g}", law=say(law)),
    )


def _points(values: list[float], floor: float) -> list[list[float]]:
    """Finite points that a logarithm can show."""
    return [[i, max(y, floor)] for i, y in enumerate(values) if y < 1e12]


HESSIAN = Step(
    name="hessian",
    controls=(
        Choice(name="stack", values=("encoder", "decoder")),
        Slider(name="layer", low=1, high=2, start=1),
        Slider(name="products", low=4, high=16, start=8),
        WHEN,
    ),
    show=hessian_step,
)
SIGNAL = Step(name="signal", controls=(Slider(name="batch", low=4, high=64, start=32), WHEN), show=signal)
CEILING = Step(
    name="ceiling", controls=(Slider(name="factor", low=0.1, high=3.0, start=0.8, log=True), WHEN), show=ceiling
)
