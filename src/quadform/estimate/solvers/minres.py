"""MINRES: the smallest residual in the Krylov space of a symmetric system, definite or not (Paige, Saunders 1975)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from .recurrence import OUTSIDE, Recurrence, numbers
from .system import Symmetric, column


@final
class MinimalResidual(Recurrence):
    """Lanczos with a preconditioner, and a QR factorisation of its tridiagonal matrix by reflections (c, s).

    `V` and `old` are the last two Lanczos vectors before preconditioning and scaling, `Y` = M V; `W`, `W2` the last two
    directions of x. The residual itself is carried along, r = s^2 r - phibar c v, so that its norm is Euclidean with a
    preconditioner as well.
    """

    kept = 7
    system: Symmetric

    @classmethod
    def start(cls, system: Symmetric, R: Tensor, target: Tensor) -> MinimalResidual:
        Y, energy = system.precondition(R)
        zero = torch.zeros_like(R)
        vectors = {"X": zero, "R": R.clone(), "V": R.clone(), "Y": Y.clone(), "old": zero.clone()}
        vectors |= {"W": zero.clone(), "W2": zero.clone()}
        beta, nothing = energy.sqrt(), torch.zeros_like(energy)
        more = {name: nothing.clone() for name in ("dbar", "epsilon", "s", "norm")}
        more |= {"beta": beta, "before": nothing.clone(), "phibar": beta.clone(), "c": nothing - 1}
        return cls(system, vectors, numbers(system.rows.norm(R), target, **more))

    def step(self) -> None:
        system, rows, on = self.system, self.system.rows, self.open.nonzero()[:, 0]
        v, n = self._taken(on)
        beta = n["beta"]
        q = v["Y"] / column(beta, v["Y"])  # the Lanczos vector
        image = system.times(q)
        ratio = torch.where(n["before"] > 0, beta / n["before"], torch.zeros_like(beta))
        image = torch.addcmul(image, column(-ratio, image), v["old"])
        alpha = rows.dot(q, image)
        V = torch.addcmul(image, column(-alpha / beta, image), v["V"])
        Y, energy = system.precondition(V)
        new = energy.sqrt()

        # the new column of the tridiagonal matrix, turned by the last two reflections and then by its own
        delta = n["c"] * n["dbar"] + n["s"] * alpha
        gbar = n["s"] * n["dbar"] - n["c"] * alpha
        dbar, epsilon = -n["c"] * new, n["s"] * new
        gamma = torch.hypot(gbar, new)
        # |A r| = phibar |(gbar, dbar)|: zero where x is a least-squares solution, r != 0 outside the range
        norm = torch.maximum(n["norm"], torch.sqrt(alpha**2 + beta**2 + new**2))
        ended = (torch.hypot(gbar, dbar) <= system.eps**0.75 * norm) | (gamma <= system.eps * norm)
        safe = torch.where(ended, torch.ones_like(gamma), gamma)
        c, s = gbar / safe, new / safe
        phi, phibar = c * n["phibar"], s * n["phibar"]
        W = (q - column(n["epsilon"], q) * v["W2"] - column(delta, q) * v["W"]) / column(safe, q)
        X = torch.addcmul(v["X"], column(phi, W), W)
        last = torch.where(new > 0, phibar * c / new.clamp(min=1e-300), torch.zeros_like(new))
        R = column(s * s, q) * v["R"] - column(last, q) * V

        go = ~ended
        vectors = {"X": X, "R": R, "V": V, "Y": Y, "old": v["V"], "W": W, "W2": v["W"]}
        scalars = {"beta": new, "before": beta, "phibar": phibar, "dbar": dbar, "epsilon": epsilon, "c": c, "s": s}
        scalars |= {"norm": norm, "size": rows.norm(R)}
        if bool(ended.any()):
            self.scalars["why"][on[ended]] = OUTSIDE
            vectors = {name: t[go.to(t.device)] for name, t in vectors.items()}
            scalars = {name: t[go] for name, t in scalars.items()}
        self._put(on[go], vectors, scalars)
