"""Hessian, Gauss-Newton, functional part of a risk as operators over its named parameters.

    H   = d2 risk                                  products by reverse over reverse, or jvp(grad): see `routes`
    H_o = J^T (d2l/dF2) J                          Gauss-Newton, split at the output F of the network or of one module
    H_f = <dl/dF, d2F>                             functional part; H = H_o + H_f; its own product, no subtraction

`torch.func.hessian` and every route of the form jvp(jacrev) are wrong through LayerNorm on current torch and are not
used. Source of the split: [ODS25, Sec. 2]; at a module's output: [own].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.func import grad, vjp

from ..core.errors import InputError
from ..core.forward import jvp
from ..core.operator import Block, Operator
from ..core.progress import say
from ..core.space import Space, Vector
from .retained import Retained
from .reverse import output_curvature, through_output
from .risk import Risk
from .routes import CHUNK, Products
from .selfcheck import require_sound_derivatives
from .strategies import Kind, Product, Route, Scalar


def hessian(
    risk: Risk,
    rows: str = "*",
    cols: str = "*",
    *,
    route: Route = "auto",
    chunk: int = CHUNK,
    products: int | None = None,
) -> Operator:
    """The Hessian of a risk as an operator: `H @ v` is exact, and no matrix is formed.

    Args:
        risk: The loss of a model over batches.
        rows: Names of parameters with wildcards; `rows="*.W_Q", cols="*.W_V"` is a block, and nothing else is computed.
        cols: The same for the columns.
        route: How products run: `eager`, `traced`, `compiled`, `units`, `compiled-units`, or `auto`. Without
            `products`, `auto` starts eagerly and switches to a faster route once the products so far would have paid
            for preparing it. The moment depends on time, so results repeat up to rounding; with `eager` they repeat
            exactly.
        chunk: Vectors that share one pass.
        products: Products expected in all, from which `auto` chooses; of 1 no batch keeps its graph.

    Returns:
        An `Operator` over `risk.space`, symmetric where rows and columns are the same.

    >>> risk = qf.Risk(nn.Linear(2, 1), nn.MSELoss(), (torch.ones(4, 2), torch.zeros(4, 1)))
    >>> H = qf.hessian(risk)
    >>> Hv = H @ risk.space.random()
    >>> H.block("weight", "bias").dense()
    tensor([[2.],
            [2.]])
    """

    def product(theta: Vector, batch: Any, v: Vector, rows: tuple[str, ...]) -> dict[str, Tensor]:
        return _derivative_of_gradient(lambda p: risk.run(p, batch)[0], theta, v, rows)

    def scalar(theta: Vector, batch: Any) -> Tensor:
        return risk.run(theta, batch)[0]

    A = _RiskOperator(risk, product, what="Hessian", route=route, chunk=chunk, products=products, scalar=scalar)
    return _select(A, rows, cols)


def functional(
    risk: Risk,
    rows: str = "*",
    cols: str = "*",
    *,
    split: str | None = None,
    route: Route = "auto",
    chunk: int = CHUNK,
    products: int | None = None,
) -> Operator:
    """The functional part H_f = H - H_o of the Hessian: the curvature of the network itself, which Gauss-Newton omits.

    H_f = <g, d2F> with g = dl/dF held fixed: the derivative of theta -> J(theta)^T g. F is the network's output, or
    that of the module named by `split` (then over the parameters inside it).

    Args:
        risk, rows, cols, route, chunk, products: As in `hessian`.
        split: Name of a module whose output is F; by default the whole network's.

    Returns:
        A symmetric `Operator`, in general not positive semi-definite.

    >>> risk = qf.Risk(nn.Linear(2, 1), nn.MSELoss(), (torch.ones(4, 2), torch.zeros(4, 1)))
    >>> float(qf.functional(risk).dense().abs().max())  # a linear network has no curvature of its own
    0.0
    """

    def product(theta: Vector, batch: Any, v: Vector, rows: tuple[str, ...]) -> dict[str, Tensor]:
        g = output_gradient(risk, theta, batch, split)
        return _derivative_of_gradient(lambda p: (g * risk.output(p, batch, split)).sum(), theta, v, rows)

    if split is None:
        _say_other_ways(risk, route)
    options: Any = {"route": route, "chunk": chunk, "products": products, "split": split}
    scalar = partial(along_output, risk, split)
    A = _RiskOperator(risk, product, what="functional part", scalar=scalar, fixed=True, **options)
    return _select(A, rows, cols)


def along_output(risk: Risk, split: str | None, theta: Vector, batch: Any) -> Tensor:
    """<g, F> with g = dl/dF held fixed, whose Hessian is H_f."""
    F = risk.output(theta, batch, split)
    shift = torch.zeros_like(F, requires_grad=True)
    fixed = {n: t.detach() for n, t in theta.items()}
    (g,) = torch.autograd.grad(risk.run(fixed, batch, split, shift)[0], shift)
    return (g * F).sum()


def gauss_newton(
    risk: Risk,
    rows: str = "*",
    cols: str = "*",
    *,
    split: str | None = None,
    route: Route = "auto",
    chunk: int = CHUNK,
    products: int | None = None,
) -> Operator:
    """The Gauss-Newton matrix H_o = J^T (d2l/dF2) J as an operator.

    F is the network's output or, with `split="layers.0.attn"`, that of a module; then d2l/dF2 is the Hessian of
    everything behind it, and H_o need not be positive semi-definite. At the network's output it promises to be so where
    the loss is known to be convex (`convexity`).

    Args:
        risk, rows, cols, route, chunk, products: As in `hessian`.
        split: Name of a module whose output is F; by default the whole network's.

    Returns:
        A symmetric `Operator`.

    >>> risk = qf.Risk(nn.Linear(2, 1), nn.MSELoss(), (torch.ones(4, 2), torch.zeros(4, 1)))
    >>> H_o = qf.gauss_newton(risk)
    >>> H_o.psd
    True
    >>> step = H_o.solve(risk.gradient(), damping=0.1)
    """

    def product(theta: Vector, batch: Any, v: Vector, rows: tuple[str, ...]) -> dict[str, Tensor]:
        def F(p: Vector) -> Tensor:
            return risk.output({**theta, **p}, batch, split)

        output, dF = jvp(F, ({n: theta[n] for n in v},), (dict(v),))
        curved = _output_curvature(risk, theta, batch, split, output, dF)
        _, pull = vjp(F, {n: theta[n] for n in rows})  # type: ignore[misc]  # without has_aux a pair
        return pull(curved)[0]

    def by_reverse(theta: Vector, batch: Any, v: Vector, rows: tuple[str, ...]) -> dict[str, Tensor]:
        return through_output(risk, batch, split, v, rows, partial(output_curvature, risk, batch, split))

    if split is None:
        _say_other_ways(risk, route)
    options: Any = {"route": route, "chunk": chunk, "products": products, "split": split}
    psd = split is None and risk.convex
    A = _RiskOperator(risk, product, what="Gauss-Newton", by_reverse=by_reverse, psd=psd, **options)
    return _select(A, rows, cols)


def activation_hessian(risk: Risk, module: str | None = None) -> Operator:
    """d2 risk / dF2 with respect to the output of a module (default: of the network), for data of one batch."""
    risk = risk.whole
    if len(risk.batches) != 1:
        raise InputError(f"activations belong to one batch; this risk has {len(risk.batches)}. Give it one.")
    with risk.context(), torch.no_grad():
        F = risk.output(risk.params, risk.batches[0], module)
    return _ActivationHessian(risk, module, F)


# --- derivatives ----------------------------------------------------------------------------------------------------
def _derivative_of_gradient(
    scalar: Callable[[Vector], Tensor], theta: Vector, v: Vector, rows: tuple[str, ...]
) -> dict[str, Tensor]:
    """d/de grad_rows scalar(theta + e v): one forward-over-reverse pass; v lives on some of the parameters."""

    def gradient(moving: Vector) -> dict[str, Tensor]:
        at = {**theta, **moving}
        return grad(lambda r: scalar({**at, **r}))({n: at[n] for n in rows})

    return jvp(gradient, ({n: theta[n] for n in v},), (dict(v),))[1]


def output_gradient(risk: Risk, theta: Vector, batch: Any, split: str | None) -> Tensor:
    """g = dl/dF: the derivative of the loss with respect to a shift of the output."""
    with torch.no_grad():
        F = risk.output(theta, batch, split)
    return grad(lambda shift: risk.run(theta, batch, split, shift)[0])(torch.zeros_like(F)).detach()


def _output_curvature(risk: Risk, theta: Vector, batch: Any, split: str | None, F: Tensor, dF: Tensor) -> Tensor:
    """(d2l/dF2) dF for everything behind the split."""
    gradient = grad(lambda shift: risk.run(theta, batch, split, shift)[0])
    return jvp(gradient, (torch.zeros_like(F),), (dF,))[1]


def _say_other_ways(risk: Risk, route: Route) -> None:
    """Tell if the loss sees the parameters not only through the network's output."""
    if not risk.through(route):
        say(
            "the loss sees the parameters not only through the network's output (another head, a penalty on weights):"
            " H_o and H_f are those of the output and do not add up to H"
        )


def _select(A: Operator, rows: str, cols: str) -> Operator:
    return A if rows == cols == "*" else A.block(rows, cols)


# --- operators ------------------------------------------------------------------------------------------------------
@final
class _RiskOperator(Operator):
    """Sum over batches of one kind of product, by a route (see `routes`)."""

    def __init__(
        self,
        risk: Risk,
        product: Product,
        *,
        what: str,
        route: Route,
        chunk: int,
        products: int | None,
        scalar: Scalar | None = None,
        by_reverse: Product | None = None,
        split: str | None = None,
        fixed: bool = False,
        psd: bool = False,
        rows: Space | None = None,
        cols: Space | None = None,
    ) -> None:
        require_sound_derivatives()
        rows = risk.space if rows is None else rows
        cols = risk.space if cols is None else cols
        same = rows.parts == cols.parts
        super().__init__(cols, rows, dtype=risk.dtype, device=risk.device, symmetric=same, psd=psd and same)
        self.risk, self.whole_psd = risk, psd
        kind = Kind(what, risk, rows.names, product, scalar, by_reverse, split, fixed)
        self.run = Products(kind, route, chunk=chunk, expected=products)

    @property
    def _title(self) -> str:
        return self.run.kind.what

    @property
    def route(self) -> Route:
        """The route in use; before the first product, the one that was asked for."""
        return self.run.route

    @property
    def why(self) -> tuple[str, ...]:
        """Why products are not run as was asked: one line for each way that does not suit the model."""
        return self.run.why

    def by(self, route: Route) -> Operator:
        """The same operator by another route."""
        return self._between(self.codomain, self.domain, route)

    def point(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The risk and its gradient as of the last product of a whole Hessian, from the graphs it kept; where it kept
        none, or not those of all batches, they are evaluated."""
        graphs = self.run.kept.values() if self.run.retained and self.run.group.world == 1 else []
        if len(graphs) != len(self.risk.batches):
            return self.risk.value().detach(), self.risk.gradient()
        weighed = list(zip(self.risk.weights, graphs, strict=True))
        value = torch.stack([w * G.value for w, G in weighed]).sum()
        total = {n: torch.zeros_like(self.risk.params[n]) for n in self.domain.names}
        for w, G in weighed:
            for n, g in G.gradient.items():
                total[n] += 0 if g is None else w * g.detach()
        return value, total

    def apply(self, V: Vector) -> dict[str, Tensor]:
        return self.run.group.total(self.run(V), V)

    def adjoint(self) -> Operator:
        return self if self.symmetric else self._between(self.domain, self.codomain, self.run.asked)

    def sub(self, rows: Space, cols: Space) -> Operator:
        if self.run.programs:  # made for the whole: used again rather than traced anew for a part
            return Block(self, rows, cols)
        if all(n in self.risk.space for n in (*rows.names, *cols.names)):
            return self._between(rows, cols, self.run.asked)
        owner = {v.name: v.of for v in self.risk.space.views}
        wide, high = (self.risk.space.select(*dict.fromkeys(owner.get(n, n) for n in s.names)) for s in (cols, rows))
        return Block(self._between(high, wide, self.run.asked), rows, cols)

    def _between(self, rows: Space, cols: Space, route: Route) -> Operator:
        kind, run = self.run.kind, self.run
        options: Any = {"what": kind.what, "route": route, "chunk": run.chunk, "products": run.expected}
        options |= {"scalar": kind.scalar, "by_reverse": kind.by_reverse, "split": kind.split, "psd": self.whole_psd}
        return _RiskOperator(self.risk, kind.product, rows=rows, cols=cols, fixed=kind.fixed, **options)


@final
class _ActivationHessian(Operator):
    """d2 risk / dF2 over the output of one module: the Hessian in a shift of that output."""

    def __init__(self, risk: Risk, module: str | None, F: Tensor) -> None:
        require_sound_derivatives()
        space = Space(((module or "output", tuple(F.shape)),))
        super().__init__(space, dtype=F.dtype, device=F.device, symmetric=True)
        self.risk, self.module, self.F = risk, module, F

    def apply(self, V: Vector) -> dict[str, Tensor]:
        (name,) = self.domain.names
        risk = self.risk

        def behind(shift: Vector) -> Tensor:
            return risk.run(risk.params, risk.batches[0], self.module, shift[name])[0]

        with risk.context():
            H = Retained(behind, {name: torch.zeros_like(self.F)}, (name,))
            out = torch.zeros_like(V[name])
            for row, v in zip(out, V[name], strict=True):
                row.copy_(H({name: v}, (name,))[name])
        return {name: out}
