"""Layers whose token Jacobians are a vector times a small matrix: linear attention and MLPs share this."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.space import Space
from .attention import outer_term
from .head import Factor
from .layer import Part, TokenLayer, known_part
from .loss import output_loss
from .terms import Term

Loss = str | tuple[Tensor, Tensor | Operator]


class FactorLayer(TokenLayer):
    """A layer whose token Jacobians are `dF_n/dW = l_n (x) R_n`: the outer part follows from the factors alone."""

    shape: tuple[int, ...]

    @abstractmethod
    def factor(self, name: str) -> Factor:
        """The token Jacobian of the output with respect to one weight."""

    @abstractmethod
    def functional_terms(self, a: str, b: str) -> list[Term]:
        """`H_f(a, b) = <g, d2F/da db>` as a sum over tokens, a not before b."""

    def _settle(self, weights: dict[str, Tensor], F: Tensor, Y: Tensor | None, loss: Loss, prefix: str) -> None:
        self.weights, self.prefix, self.shape = weights, prefix, tuple(F.shape[:-1])
        self.space = Space.of(weights).rename(prefix)
        self.F, self.output = F, output_loss(loss, F.reshape(-1, F.shape[-1]), Y)

    @property
    def g(self) -> Tensor:
        """dl/dF, of the shape of F."""
        return self.output.g.reshape(self.F.shape)

    @property
    def loss(self) -> Tensor | None:
        """The value of the loss; None for a loss given by (g, Hl)."""
        return self.output.value

    def per_token(self, values: Tensor) -> Tensor:
        return values.unflatten(0, self.shape)

    def _fits(self) -> None:
        """Refuse a point where the loss or the Hessian leaves floating point: where H does, so does H times a random
        vector. A loss that couples tokens is not asked for products here: they may cost a whole network."""
        gen = torch.Generator().manual_seed(0)
        V = {name: torch.randn(1, *w.shape, generator=gen, dtype=w.dtype).to(w) for name, w in self.weights.items()}
        with torch.no_grad():
            seen = [*self.products(V, "total" if self.output.token_wise else "functional").values()]
        if self.loss is not None:
            seen.append(self.loss)
        if not all(bool(t.isfinite().all()) for t in seen):
            raise InputError(
                f"the loss or its Hessian exceeds the range of {self.dtype}; make inputs, weights or targets smaller."
            )

    def terms(self, part: Part, a: str, b: str) -> list[Term]:
        out = [] if part == "functional" else [outer_term(self.factor(a), self.factor(b), self.output)]
        out = out if part == "outer" else out + self.functional_terms(a, b)
        for t in out:
            # Vectors and small matrices may leave floating point where their product does not.
            vectors = float(t.r.detach().abs().max()) * float(t.c.detach().abs().max()) * len(t.r)
            if not (vectors <= torch.finfo(t.r.dtype).max and bool(t.E.isfinite().all())):
                raise InputError(
                    f"the factors of block ({a}, {b}) exceed the range of {self.dtype}; bring inputs"
                    " and weights nearer in size."
                )
        return out

    def shape_of(self, name: str) -> tuple[int, ...]:
        """A weight as the matrix its terms speak of: (inputs, outputs), one row for biases and structured weights."""
        factor = self.factor(name)
        small, vector = factor.R.shape[2], factor.l.shape[1]
        return (vector, small) if factor.vector_first else (small, vector)

    @torch.no_grad()
    def diagonal(self, part: Part = "total") -> dict[str, Tensor]:
        """The diagonal of the Hessian, shaped like the weights (which need not be matrices here)."""
        part = known_part(part)
        out = {}
        for name, w in self.weights.items():
            if part != "functional" and not self.output.token_wise:
                flat = self.dense(part, name, name).diagonal()
            else:
                each = [term.diagonal() for term in self.terms(part, name, name)]
                flat = torch.stack(each).sum(0) if each else torch.zeros_like(w)
            out[self.prefix + name] = flat.reshape(w.shape)
        return out

    def jacobian(self, name: str) -> Tensor:
        return self.factor(name).dense()

    def curved(self, dF: Tensor) -> Tensor:
        """`(d2l/dF2) dF` for k output perturbations (k, N, o)."""
        return self.output.hessian_times(dF.permute(1, 2, 0)).permute(2, 0, 1)
