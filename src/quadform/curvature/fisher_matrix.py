"""The Fisher matrix of a risk: from the gradients of its batches, or with labels drawn from the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.func import vjp, vmap

from ..core.errors import InputError
from ..core.forward import jvp
from ..core.operator import Operator
from ..core.rng import stream
from ..core.space import Vector
from ..distributed.processes import group_of
from ..distributed.sharding import shard
from .labels import label_weights
from .reverse import output_curvature, through_output
from .risk import Risk
from .routes import CHUNK
from .selfcheck import require_sound_derivatives


def fisher(risk: Risk, *, kind: str = "empirical", samples: int = 1, seed: int = 0, chunk: int = CHUNK) -> Operator:
    """The Fisher matrix as an operator.

    Args:
        risk: The loss of a model over batches.
        kind: `empirical`: the second moment of the per-batch gradients at the labels of the data. `monte-carlo`:
            J^T E[s s^T] J with labels drawn from the model (cross-entropy at its logits); its mean is H_o.
        samples: Labels drawn for each loss term.
        seed: Seed of the drawn labels.
        chunk: Vectors that share one pass.

    Returns:
        A positive semi-definite `Operator`.

    >>> risk = qf.Risk(nn.Linear(2, 1), nn.MSELoss(), [(torch.ones(4, 2), torch.zeros(4, 1))])
    >>> qf.fisher(risk).psd
    True
    """
    if kind not in ("empirical", "monte-carlo"):
        raise InputError(f"fisher kind {kind!r} is not 'empirical' or 'monte-carlo'.")
    if risk.whole is not risk:  # a gradient belongs to a whole batch
        risk = shard(risk.whole, group_of(risk.space), by="batches")
    return _EmpiricalFisher(risk) if kind == "empirical" else _SampledFisher(risk, samples, seed, chunk)


@final
class _EmpiricalFisher(Operator):
    """sum_b w_b g_b g_b^T over the gradients of the batches: give batches of one example for the per-example Fisher."""

    def __init__(self, risk: Risk) -> None:
        super().__init__(risk.space, dtype=risk.dtype, device=risk.device, symmetric=True, psd=True)
        with risk.context():
            self.gradients = [risk.batch_gradient(risk.params, b) for b in risk.batches]
        self.risk = risk

    def apply(self, V: Vector) -> dict[str, Tensor]:
        k = next(iter(V.values())).shape[0]
        out = self.domain.zeros(k, dtype=self.dtype, device=self.device)
        for weight, g in zip(self.risk.weights, self.gradients, strict=True):
            along = self.domain.inner({n: t.expand(k, *t.shape) for n, t in g.items()}, V)
            for n, t in g.items():
                out[n] += weight * along.view(k, *(1,) * t.dim()) * t
        return group_of(self.domain).total(out, V)


@final
class _SampledFisher(Operator):
    """J^T (mean of s s^T) J with s = dl/dF at labels drawn from softmax(F), the same draws at every product."""

    def __init__(self, risk: Risk, samples: int, seed: int, chunk: int) -> None:
        require_sound_derivatives()
        super().__init__(risk.space, dtype=risk.dtype, device=risk.device, symmetric=True, psd=True)
        self.risk, self.chunk = risk, chunk
        self.scores: list[Tensor] = []
        rank = group_of(risk.space).rank if risk.whole is risk else 0  # joined data: each process draws its own labels
        generator = stream(seed, f"fisher/{rank}" if rank else "fisher", risk.device)
        group = group_of(risk.space)
        mine = (
            range(len(risk.batches)) if risk.whole is risk else range(group.rank, len(risk.whole.batches), group.world)
        )
        for i, batch in enumerate(risk.whole.batches):  # the labels of all, so that they are those of one process
            with risk.context(), torch.no_grad():
                F = risk.output(risk.params, batch)
            p = F.softmax(-1).flatten(0, -2)
            drawn = torch.multinomial(p, samples, replacement=True, generator=generator).T  # (samples, tokens)
            if i not in mine:
                continue
            with risk.context():
                weight = label_weights(F, partial(output_curvature, risk, batch, None, F))
            if weight is None:
                raise InputError(
                    "the Monte-Carlo Fisher needs a cross-entropy of the network's output; use gauss_newton instead."
                )
            onehot = torch.nn.functional.one_hot(drawn, p.shape[1]).to(F.dtype)
            self.scores.append((weight.flatten().sqrt()[:, None] * (p - onehot) / samples**0.5).view(samples, *F.shape))

    def apply(self, V: Vector) -> dict[str, Tensor]:
        risk = self.risk
        with risk.context():
            out: dict[str, Tensor] | None = None
            if risk.soundness.forward:
                with contextlib.suppress(RuntimeError):  # an operator without a forward rule
                    out = vmap(lambda v: self._one(v, self._forward), chunk_size=self.chunk)(dict(V))
            if out is None:
                each = [
                    self._one({n: t[j] for n, t in V.items()}, self._reverse)
                    for j in range(len(V[risk.space.names[0]]))
                ]
                out = {n: torch.stack([image[n] for image in each]) for n in V}
        return group_of(self.domain).total({n: t.detach() for n, t in out.items()}, V)

    def _one(self, v: Vector, product: Callable[..., dict[str, Tensor]]) -> dict[str, Tensor]:
        """The product with one vector, summed over the batches."""
        total = {n: torch.zeros_like(t) for n, t in v.items()}
        for weight, batch, s in zip(self.risk.weights, self.risk.batches, self.scores, strict=True):
            image = product(v, batch, lambda F, dF, s=s: (s * (s * dF).sum(-1, keepdim=True)).sum(0))
            total = {n: t + weight * image[n] for n, t in total.items()}
        return total

    def _forward(self, v: Vector, batch: Any, curve: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
        F = lambda p: self.risk.output(p, batch)  # noqa: E731
        output, dF = jvp(F, (self.risk.params,), (dict(v),))
        _, pull = vjp(F, self.risk.params)  # type: ignore[misc]  # without has_aux a pair
        return pull(curve(output, dF))[0]

    def _reverse(self, v: Vector, batch: Any, curve: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
        return through_output(self.risk, batch, None, v, tuple(v), curve)
