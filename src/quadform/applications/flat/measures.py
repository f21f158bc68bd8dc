"""Measures of flatness, each a function of a Risk. All are larger where the loss is sharper.

lambda_max, trace    of H
sam                  L(theta + rho g / |g|) - L(theta)                       [Foret et al. 2021]
asam                 the same with e = rho T^2 g / |T g|, T = |theta|         [Kwon et al. 2021]
keskar               100 (max L(theta + y) - L) / (1 + L), |y_i| <= box (|theta_i| + 1), by L-BFGS-B
                         [Keskar et al. 2017]
dimension            tr H_o (H_o + ridge)^-1, by Lanczos quadrature
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...core.number import Estimate
from ...core.space import Vector
from ...curvature.operators import gauss_newton, hessian
from ...curvature.risk import Risk
from ...estimate import density, eigenpairs, trace
from .question import FlatQuestion

#: Products of the trace; probes and steps of the density; iterations of L-BFGS-B.
TRACE, PROBES, STEPS, ITERATIONS = 32, 4, 20, 10


def measured(name: str, risk: Risk, asked: FlatQuestion) -> Estimate:
    """One measure of one model."""
    if name == "lambda_max":
        most = min(asked.products, risk.space.size)
        return eigenpairs(hessian(risk), top=1, max_products=most, tol=asked.tol, seed=asked.seed).top[0]
    if name == "trace":
        return trace(hessian(risk), TRACE, seed=asked.seed)
    if name == "dimension":
        return density(gauss_newton(risk), PROBES, STEPS, seed=asked.seed).effective_dimension(asked.ridge)
    if name == "keskar":
        return Estimate(_keskar(risk, asked), kind="bound", side="lower", note="the largest loss that was found")
    return Estimate((_sam if name == "sam" else _asam)(risk, asked))


def _loss(risk: Risk, at: Vector | None = None) -> float:
    with torch.no_grad():
        return float(risk.value(at))


def _moved(risk: Risk, step: Vector) -> float:
    return _loss(risk, {n: t + step[n] for n, t in risk.params.items()}) - _loss(risk)


def _norm(v: Vector) -> float:
    return float(sum(t.double().square().sum() for t in v.values())) ** 0.5


def _sam(risk: Risk, asked: FlatQuestion) -> float:
    g = risk.gradient()
    size = _norm(g)
    return _moved(risk, {n: asked.rho * t / size for n, t in g.items()}) if size else 0.0


def _asam(risk: Risk, asked: FlatQuestion) -> float:
    g, T = risk.gradient(), {n: t.detach().abs() for n, t in risk.params.items()}
    size = _norm({n: T[n] * t for n, t in g.items()})
    return _moved(risk, {n: asked.asam * T[n].square() * t / size for n, t in g.items()}) if size else 0.0


def _keskar(risk: Risk, asked: FlatQuestion) -> float:
    """The largest loss in the box that L-BFGS-B finds: a bound from below of Keskar's number."""
    from scipy.optimize import minimize

    space = risk.space
    start: Tensor = space.flatten({n: t.detach() for n, t in risk.params.items()}).double()
    box = (asked.box * (start.abs() + 1)).cpu().numpy()

    def climb(y: np.ndarray) -> tuple[float, np.ndarray]:
        x = space.unflatten((start + torch.as_tensor(y).to(start)).to(risk.dtype))
        g = space.flatten(risk.gradient(x)).double().cpu().numpy()
        return -_loss(risk, x), -g

    options = {"maxiter": ITERATIONS}
    found = minimize(climb, np.zeros_like(box), jac=True, method="L-BFGS-B", bounds=list(zip(-box, box, strict=True)),
                     options=options)  # fmt: skip
    here = _loss(risk)
    return 100 * max(-float(found.fun) - here, 0.0) / (1 + here)
