"""`solve`: (A + damping I) x = b, the choice of a method, memory, resuming and progress."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.inverting import SolveMethod, closed_inverse
from ...core.operator import Operator
from ...core.precision import own_precision
from ...core.progress import Progress, Report
from ...core.space import Vector
from ..lanczos import Eigenpairs
from ..resume import Checkpoint
from ..vectors import at_least, rows_that_fit
from .conjugate import BlockConjugateGradients, ConjugateGradients
from .deflation import Deflated
from .lsmr import LeastSquaresMinimalResidual
from .minres import MinimalResidual
from .recurrence import Recurrence
from .run import Run
from .solution import Solution, digest, rows_of, unit
from .system import LeastSquares, Symmetric, System, column, product

#: Most steps of one right-hand side where `max_products` is not given.
STEPS = 10_000
METHODS: dict[str, type[Recurrence]] = {
    "cg": ConjugateGradients,
    "block-cg": BlockConjugateGradients,
    "minres": MinimalResidual,
    "lsmr": LeastSquaresMinimalResidual,
}


@own_precision()
def solve(
    A: Operator,
    b: Vector | Tensor,
    *,
    damping: float = 0.0,
    method: SolveMethod = "auto",
    preconditioner: Operator | None = None,
    deflate: Eigenpairs | None = None,
    start: Vector | Tensor | None = None,
    tol: float = 1e-6,
    max_products: int | None = None,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> Solution:
    """Solve (A + damping I) x = b to a relative residual `tol`, for any operator A.

    Args:
        A: The operator.
        b: One right-hand side or k of them: a dict, or a flat `(n,)`, `(n, k)`.
        damping: Added to the diagonal.
        method: `auto` takes the closed form of a class that has one (`exact`), else `cg` for a positive semi-definite
            operator, `minres` for a symmetric one, `lsmr` for all others; the result says which. `lsmr` solves
            min |A x - b|^2 + damping |x|^2; it has converged where |r| <= tol |b| or |A^T r| <= tol |A| |r|.
            `block-cg` seeks all k solutions in one Krylov space.
        preconditioner: M ~ (A + damping I)^-1, symmetric positive definite; for `cg`, `block-cg` and `minres`.
        deflate: Eigenpairs that `eigenpairs` found; for the same methods.
        start: The first guess; 0 by default.
        tol: Relative residual.
        max_products: Of all right-hand sides together; default 10 n steps each, at most 10,000.
        memory: Bytes that vectors may take.
        resume: A folder that keeps the state; a larger `max_products` goes on.
        progress: Show progress, or a function that is told it.

    Returns:
        A `Solution`: `x`, its true residuals, and whether it converged; `note` says why not.

    >>> A = qf.Dense(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), qf.Space((("w", (2,)),)))
    >>> qf.solve(A, torch.tensor([2.0, 2.0])).x
    tensor([1.0000, 0.5000])
    """
    if not 0 < tol < 1:
        raise InputError(f"tol is a relative residual between 0 and 1; got {tol}.")
    B, scale = unit(rows_of(A.codomain, A, b, "b"))
    k, n = len(B), A.domain.size
    exact = closed_inverse(A, damping, method)
    if exact is not None:
        return _by_closed_form(A, exact, b, B, scale, damping, tol)
    method = chosen_method(A, method, damping)
    if method == "lsmr":
        if preconditioner is not None or deflate is not None:
            raise InputError("lsmr takes no preconditioner and no deflation; use cg or minres on A^T A or on A.")
        system: System = LeastSquares(A, damping)
    else:
        M = _checked(A, preconditioner)
        system = Symmetric(A, damping, M if deflate is None else Deflated(A, deflate, damping, M))
    X = torch.zeros((k, n), dtype=B.dtype, device=B.device)
    if start is not None:
        X = rows_of(A.domain, A, start, "start").expand(k, n) / column(scale, X)
    least = 2 * k * (system.check_cost + 1)
    budget = k * min(STEPS, 10 * n) * system.check_cost + least if max_products is None else max_products
    budget = at_least(f"max_products for {k} right-hand side{'s' * (k > 1)}", budget, least)
    rows_that_fit(A, memory, least=k * (METHODS[method].kept + 4), purpose=method, sliced=method != "lsmr")

    name = f"solve-{method}-{digest(B, scale)}"
    settings = {"damping": damping, "tol": tol, "start": digest(X), "preconditioner": repr(preconditioner)}
    settings["deflate"] = None if deflate is None else [e.value for e in deflate.values]
    with (
        Checkpoint(resume, name, A, settings, sliced="rows") as checkpoint,
        Progress(budget, "products", show=progress) as shown,
    ):
        run = Run(system, METHODS[method], system.given(B), tol)
        if checkpoint.found is not None:
            run.load(*checkpoint.found)
            shown.skip(system.products)
        elif start is not None:
            run.look(system.rows.cut(X))
        while not run.done() and system.products + run.cost() <= budget:
            before = system.products
            run.advance()
            checkpoint.reached(run.state)
            shown.step(system.products - before, f"residual {run.text()}")
    return run.result(b, scale, method)


def chosen_method(A: Operator, method: SolveMethod, damping: float) -> SolveMethod:
    """The iterative method that `auto` stands for; one that cannot solve this system is refused."""
    if method not in get_args(SolveMethod):
        raise InputError(f"method is one of {', '.join(get_args(SolveMethod))}; got {method!r}.")
    if method == "auto":
        method = "lsmr" if not A.symmetric else "cg" if A.psd and damping >= 0 else "minres"
    if method != "lsmr" and not A.symmetric:
        raise InputError(f"{method} needs a symmetric operator; got {A!r}. Use lsmr.")
    if method == "lsmr" and not damping >= 0:
        raise InputError(f"the damping of least squares is not negative; got {damping}.")
    return method


def _by_closed_form(
    A: Operator, inverse: Operator, b: Vector | Tensor, B: Tensor, scale: Tensor, damping: float, tol: float
) -> Solution:
    system = Symmetric(A, damping, None)
    X = system.rows.cut(product(inverse, B))
    run = Run(system, ConjugateGradients, system.given(B), tol)
    run.look(X)
    return run.result(b, scale, "exact")


def _checked(A: Operator, M: Operator | None) -> Operator | None:
    if M is None:
        return None
    if not M.symmetric or M.domain.parts != A.domain.parts:
        raise InputError(
            f"a preconditioner is a symmetric operator of {A.domain} into itself, an approximation of the inverse; got"
            f" {M!r}."
        )
    if M.dtype != A.dtype or M.device.type != A.device.type:
        raise InputError(f"operator and preconditioner differ in dtype or device: {A!r} and {M!r}.")
    return M
