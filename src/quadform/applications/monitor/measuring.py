"""The measurement behind a monitor: a risk over what the optimizer trains, and the eigenvectors followed so far."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...answers.step_size import FLOOR
from ...core.errors import InputError, UnknownName
from ...core.number import Estimate
from ...core.operator import Operator
from ...core.space import Vector, layer_of
from ...core.steady import steady
from ...curvature.batches import batches_of, of_batch
from ...curvature.calling import Loss, bare, loss_on
from ...curvature.operators import gauss_newton, hessian
from ...curvature.risk import Risk
from ...curvature.settings import measured
from ...estimate.vectors import multiply, probes
from ..step_size.measure import is_plain
from ..step_size.rules import Stepper, floor_share, read_optimizer, unwrapped
from .halves import in_float32, widened
from .heads import observed, qk_norms, stacks_of
from .portion import Scale, few_rows, part_of
from .reading import Reading
from .tracking import FIRST, Pair, beginning, follow, search


@dataclass(frozen=True)
class Curved:
    """The loss, lambda_max of H and of P^-1 H, which of them is the optimizer's, and the share of its direction in
    entries Adam has seen no gradient for."""

    loss: float
    pairs: dict[str, Pair]
    yours: str
    unseen: float


class Measuring:
    """Everything that is measured of one training run; it reads weights and optimizer state and writes neither."""

    def __init__(
        self, model: nn.Module, optimizer: Any, batches: Any, loss: Loss | None, traces: int, share: float
    ) -> None:
        self.model, self.optimizer, self.traces = bare(model), unwrapped(optimizer), traces
        self.loss = None if loss is None else of_batch(loss)
        self.note, self.pairs, self.scales = "", dict[tuple[str, bool], Pair](), dict[str, Scale]()
        stepper = self._stepper()
        self.rule = "" if stepper is None else stepper.rule.name
        device = next(self.model.parameters()).device
        held = tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, batches_of(batches))
        self.places = self._places()
        with in_float32(self.model):
            self.whole = self._risk(widened(held))
            if self.whole.shards is not None:
                raise InputError("the weights are sharded (FSDP); a monitor needs them whole in each process.")
            self.risk = self.whole if share == 1 else self._risk(part_of(self.whole.batches, share))
            self.watched = self.risk.batches[0]
            with measured(self.model, device=self.risk.device):
                self.stacks = stacks_of(self.model, self._forward)

    # --- the point ---------------------------------------------------------------------------------------------------
    def _trained(self) -> dict[str, Tensor]:
        held = {id(p) for g in self.optimizer.param_groups for p in g["params"]}
        return {n: p for n, p in self.model.named_parameters() if id(p) in held and p.requires_grad}

    def _places(self) -> dict[str, int]:
        return {n: p.data_ptr() for n, p in self._trained().items()}

    def _risk(self, batches: Any) -> Risk:
        names = list(self._trained())
        if not names:
            raise InputError("the optimizer trains no parameter of this model; give the one that trains it.")
        risk = Risk(self.model, self.loss, batches, names, quiet=True)
        return risk if risk.shards is not None else risk.checked_on(few_rows(risk))

    def _stepper(self) -> Stepper | None:
        """The optimizer as it stands; None where no ceiling is known for it."""
        try:
            return read_optimizer(self.optimizer, self.model)
        except UnknownName as error:
            self.note = str(error)
            return None

    def _current(self, places: dict[str, int]) -> None:
        """Weights that were unfrozen, frozen or moved make a new risk; vectors over other weights are dropped."""
        if places == self.places:
            return
        if list(places) != list(self.places):
            self.pairs.clear()
        alone = self.risk is self.whole
        self.whole, self.places = self._risk(self.whole.batches), places
        self.risk = self.whole if alone else self._risk(self.risk.batches)

    def _forward(self) -> Any:
        return loss_on(self.model, self.watched, self.loss)

    # --- the measurement ---------------------------------------------------------------------------------------------
    def read(self, step: int, full: bool) -> Reading:
        """One reading; `seconds` is for the caller to fill in."""
        places = self._places()
        with in_float32(self.model), steady():  # a program would serve one reading alone
            self._current(places)
            return self._read(step, full)

    def _read(self, step: int, full: bool) -> Reading:
        risk, stepper = self.risk, self._stepper()
        if stepper is not None:
            stepper = dataclasses.replace(stepper, names=tuple(risk.params))
        with measured(self.model, device=risk.device):
            first, logits, entropy = observed(self.model, self.stacks, self._forward)
        if not math.isfinite(first):
            raise InputError(f"the loss on the held batches is {first}")
        H = hessian(risk)
        found = self._curved(H, stepper, full)
        if self.whole is not risk and (full or not self.scales):
            everything = self._curved(hessian(self.whole), stepper, full)
            for name, pair in everything.pairs.items():
                self.scales[name] = Scale.of(pair.theta / found.pairs[name].theta, self.scales.get(name))
        top, lam = (self._estimate(found, name) for name in ("H", found.yours))
        known = stepper is not None and lam.value > 0 and found.unseen <= FLOOR
        ceiling = stepper.rule.factor / lam.value if known and stepper is not None else None
        qk = qk_norms(self.model, risk.space.views, risk.params)
        shares = self._shares(H, step) if self.traces else {}
        lam_P = None if stepper is None else lam
        where = by_layer(H, found.pairs[found.yours].v.square())
        functional = self._functional(risk, found.pairs["H"].v) if full else None
        seen = (logits, entropy, qk, shares, where, functional)
        return Reading(step, 0.0, full, found.loss, self._rate(), top, lam_P, ceiling, *seen)

    def _functional(self, risk: Risk, v: Tensor) -> float | None:
        """1 - <v, H_o v> / <v, H v>; None where the loss is no function of the model's output."""
        try:
            outer, whole = (float(multiply(A, v[None])[0] @ v) for A in (gauss_newton(risk), hessian(risk)))
        except InputError:
            return None
        return 1 - outer / whole if whole else None

    def _rate(self) -> float | None:
        """The largest learning rate of the next step."""
        return max(float(g["lr"]) for g in self.optimizer.param_groups)

    def _pair(self, name: str, A: Operator, full: bool, whole: bool, g: Callable[[], Vector]) -> Pair:
        """The top pair: searched for, or followed from where it was; the first time from the gradient g."""
        known = self.pairs.get((name, whole))
        if full:
            pair = search(A, None if known is None else A.domain.unflatten(known.v.to(A.dtype)))
        else:
            pair = follow(A, beginning(A, g()), FIRST) if known is None else follow(A, known.v)
        self.pairs[name, whole] = pair
        return pair

    def _curved(self, H: Any, stepper: Stepper | None, full: bool) -> Curved:
        """lambda_max of H and of the optimizer's operator on the data of H."""
        risk, whole = H.risk, H.risk is self.whole
        top = self._pair("H", H, full, whole, risk.gradient)
        loss, gradient = H.point()
        if stepper is None or is_plain(stepper):
            return Curved(float(loss), {"H": top}, "H", 0.0)
        P = stepper.preconditioner(gradient, risk.params)
        A = stepper.operator(H, P)
        slope = lambda: {n: A.S[n] * t for n, t in gradient.items()}  # noqa: E731
        lam, unseen = self._pair("P^-1 H", A, full, whole, slope), 0.0
        if stepper.rule.adaptive:
            unseen = floor_share(P, stepper.eps, A.domain.unflatten(lam.v.to(A.dtype)))
        return Curved(float(loss), {"H": top, "P^-1 H": lam}, "P^-1 H", unseen)

    def _estimate(self, found: Curved, name: str) -> Estimate:
        pair, scale = found.pairs[name], self.scales.get(name)
        return pair.estimate if scale is None else scale(pair)

    def _shares(self, H: Operator, step: int) -> dict[str, float]:
        """Shares of tr H by layer: the mean of z . H z over `traces` vectors of random signs; none where tr H <= 0."""
        Z = probes(H, 0, f"monitor/{step}", range(self.traces), "rademacher")
        return by_layer(H, (Z * multiply(H, Z)).sum(0))


def by_layer(H: Operator, entries: Tensor) -> dict[str, float]:
    """The share of each layer in the sum of the entries (n,) of a vector; none where that is not above 0."""
    sums: dict[str, float] = {}
    for n, t in H.domain.unflatten(entries).items():
        layer = layer_of(n) or n.partition(".")[0]
        sums[layer] = sums.get(layer, 0.0) + float(t.sum())
    total = sum(sums.values())
    return {n: s / total for n, s in sums.items()} if total > 0 else {}
