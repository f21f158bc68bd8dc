"""Evaluations of a risk with every product of its parameters in sight, and scores sent back through them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.rng import stream
from ..curvature.risk import Risk
from ..curvature.settings import measured
from ..distributed.processes import group_of
from .scores import Drawing, Scores
from .uses import Recorder, Role, Use

Sharing = Literal["expand", "reduce"]
#: (weight of the batch in the risk, its examples, the products of each parameter)
Step = Callable[[float, int, dict[str, list[Use]]], None]


class Sweep:
    """Passes over the data of a risk: `before` is called once a batch, `after` once a score, with its gradients."""

    def __init__(
        self, risk: Risk, sharing: Sharing, scores: Scores, samples: int, seed: int, *, alone: bool = False
    ) -> None:
        if sharing not in ("expand", "reduce"):
            raise InputError(f"sharing {sharing!r} is not 'expand' or 'reduce'.")
        if scores not in ("exact", "sampled", "empirical"):
            raise InputError(f"scores {scores!r} are not 'exact', 'sampled' or 'empirical'.")
        if samples < 1 or (samples > 1 and scores != "sampled"):
            raise InputError(f"samples={samples}: at least 1, and more than 1 only where scores are sampled.")
        if group_of(risk.space).world > 1:
            raise InputError("K-FAC is measured in one process; give it a risk that is not split over several.")
        self.risk, self.sharing, self.scores, self.samples, self.seed = risk, sharing, scores, samples, seed
        self.alone = alone or scores == "exact" or sharing == "reduce"  # examples must not see each other
        self.roles: dict[str, Role] | None = None

    def __call__(self, before: Step | None, after: Step) -> None:
        draw = Drawing(self.scores, self.samples, stream(self.seed, "kfac", self.risk.device))
        for weight, batch in zip(self.risk.weights, self.risk.batches, strict=True):
            with self._context(), torch.enable_grad():
                with Recorder(self.risk.params) as recorder:
                    value, F = self.risk.run({**self.risk.constants(), **recorder.params}, batch)
                if F is None or not F.requires_grad:
                    raise InputError(
                        "no parameter of this risk acts as a matrix on the way to its output, so K-FAC has no factors."
                        " Use `diagonal` or `block_diagonal`."
                    )
                uses = self._covered(recorder, F)
                if before is not None:
                    with torch.no_grad():
                        before(weight, len(F), uses)
                for s in draw(value, F, self.risk.terms(batch)):
                    _send(recorder, F, s)
                    with torch.no_grad():
                        after(weight, len(F), uses)

    def _context(self) -> contextlib.AbstractContextManager[object]:
        """That of the risk, but with torch's own attention: the model is differentiated once."""
        return measured(self.risk.model, device=self.risk.device, train_mode=self.risk.train_mode)

    def _covered(self, recorder: Recorder, F: Tensor) -> dict[str, list[Use]]:
        """The products of every parameter that has factors: used as one matrix, in one way, at places of examples."""
        owners: dict[str | None, set[str]] = {}
        for use in recorder.uses:
            owners.setdefault(use.role.bias, set()).add(use.name)
        uses: dict[str, list[Use]] = {}
        for use in recorder.uses:
            if use.role.bias in recorder.otherwise or len(owners[use.role.bias]) > 1:
                use.role = replace(use.role, bias=None)
            uses.setdefault(use.name, []).append(use)
        covered = {
            name: own for name, own in uses.items()
            if name not in recorder.otherwise and len({u.role for u in own}) == 1
            and all(u.inputs(len(F)) is not None for u in own)
        }  # fmt: skip
        if self.alone and len(F) > 1:
            covered = _apart(recorder, F, covered)
        roles_now = {n: own[0].role for n, own in covered.items()}
        if self.roles is not None and self.roles != roles_now:
            changed = sorted(n for n in {*self.roles, *roles_now} if self.roles.get(n) != roles_now.get(n))
            raise InputError(f"the batches use `{changed[0]}` in different ways; measure them separately.")
        self.roles = roles_now
        return covered


def _send(recorder: Recorder, F: Tensor, s: Tensor) -> None:
    """The gradients of <s, F> at the outputs of all products."""
    recorder.forget()
    torch.autograd.grad(F, recorder.leaves, s, retain_graph=True, allow_unused=True)


def _apart(recorder: Recorder, F: Tensor, uses: dict[str, list[Use]]) -> dict[str, list[Use]]:
    """The parameters through which the first output sees the first example alone: else scores cannot share a pass.

    Where rows were taken for examples and places but are places that all examples share, the parameter is left out; a
    model whose examples see each other is refused.
    """
    s = torch.zeros_like(F)
    s[0] = torch.sin(torch.arange(1, s[0].numel() + 1, dtype=s.dtype, device=s.device)).view_as(s[0])
    _send(recorder, F, s)
    apart = {}
    for name, own in uses.items():
        if not any(bool(u.gradients(len(F))[1:].any()) for u in own):
            apart[name] = own
        elif not any(u.flattened(len(F)) for u in own):
            raise InputError(
                f"the examples of a batch see each other (at `{name}`), or the first axis of the output does not count"
                " examples. Use sharing='expand' with sampled or empirical scores, or batches of one example."
            )
    return apart
