"""LSMR: least squares min |A x - b| of any operator with an adjoint (Fong and Saunders 2011).

Golub-Kahan bidiagonalisation, A V = U B; |A^T r| falls in every step. A damping is in the system itself, so that a run
can start again from any residual.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from .recurrence import Recurrence, numbers
from .system import LeastSquares, column


@final
class LeastSquaresMinimalResidual(Recurrence):
    """The bidiagonal matrix is turned by two sequences of rotations (c, s) and (cbar, sbar).

    Names are those of the paper: rho, rhobar, theta, zeta; `zetabar` is |A^T r|, and |r| comes from Lemma 3.2 there
    (`betadd`, `betad`, `rhod`, `tautilde`, `thetatilde`).
    """

    kept = 7
    system: LeastSquares

    @classmethod
    def start(cls, system: LeastSquares, R: Tensor, target: Tensor) -> LeastSquaresMinimalResidual:
        rows = system.rows
        beta = rows.norm(R)
        U = R / column(beta.clamp(min=1e-300), R)
        V = system.transposed(U)
        alpha = rows.norm(V)
        V = V / column(alpha.clamp(min=1e-300), V)
        one, zero = torch.ones_like(beta), torch.zeros_like(beta)
        n = {"alpha": alpha, "alphabar": alpha, "zetabar": alpha * beta, "betadd": beta, "normr": beta}
        n |= {"rho": one, "rhobar": one, "cbar": one, "rhod": one}
        n |= dict.fromkeys(("sbar", "zeta", "betad", "tautilde", "thetatilde"), zero)
        size = system.off(beta, alpha * beta)
        vectors = {"X": torch.zeros_like(V), "U": U, "V": V, "H": V.clone(), "Hbar": torch.zeros_like(V)}
        return cls(system, vectors, numbers(size, target, **{k: t.clone() for k, t in n.items()}))

    @property
    def cost(self) -> int:
        return 2 * int(self.open.sum())

    def step(self) -> None:
        system, rows, on = self.system, self.system.rows, self.open.nonzero()[:, 0]
        v, n = self._taken(on)
        U = system.times(v["V"])
        U = torch.addcmul(U, column(-n["alpha"], U), v["U"])
        beta = rows.norm(U)
        U = U / column(beta.clamp(min=1e-300), U)
        V = system.transposed(U)
        V = torch.addcmul(V, column(-beta, V), v["V"])
        alpha = rows.norm(V)
        V = V / column(alpha.clamp(min=1e-300), V)

        rho = torch.hypot(n["alphabar"], beta)
        c, s = n["alphabar"] / rho, beta / rho
        theta, alphabar = s * alpha, c * alpha
        thetabar, rhotemp = n["sbar"] * rho, n["cbar"] * rho
        rhobar = torch.hypot(rhotemp, theta)
        cbar, sbar = rhotemp / rhobar, theta / rhobar
        zeta, zetabar = cbar * n["zetabar"], -sbar * n["zetabar"]

        Hbar = v["H"] - column(thetabar * rho / (n["rho"] * n["rhobar"]), V) * v["Hbar"]
        X = torch.addcmul(v["X"], column(zeta / (rho * rhobar), Hbar), Hbar)
        H = V - column(theta / rho, V) * v["H"]

        betahat, betadd = c * n["betadd"], -s * n["betadd"]
        rhotilde = torch.hypot(n["rhod"], thetabar)
        ctilde, stilde = n["rhod"] / rhotilde, thetabar / rhotilde
        tautilde = (n["zeta"] - n["thetatilde"] * n["tautilde"]) / rhotilde
        thetatilde, rhod = stilde * rhobar, ctilde * rhobar
        betad = ctilde * betahat - stilde * n["betad"]
        taud = (zeta - thetatilde * tautilde) / rhod
        normr = torch.hypot(betad - taud, betadd)

        scalars = {"alpha": alpha, "alphabar": alphabar, "zetabar": zetabar, "betadd": betadd, "normr": normr}
        scalars |= {"rho": rho, "rhobar": rhobar, "cbar": cbar, "sbar": sbar, "zeta": zeta, "rhod": rhod}
        scalars |= {"betad": betad, "tautilde": tautilde, "thetatilde": thetatilde}
        scalars["size"] = system.off(normr, zetabar.abs())
        self._put(on, {"X": X, "U": U, "V": V, "H": H, "Hbar": Hbar}, scalars)
