"""From passes of a model to curves: profiles of its stacks kept as plain data, joined, predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...answers.signal import MEASURES
from ...core.errors import InputError
from ...core.record import Estimate
from ...core.spec import ModelConfig
from ...curvature.refusals import first_not_finite
from ...propagation.collapse import Moments, kernel_participation
from ...propagation.profile import predict
from .calls import Calls
from .curve import Curve
from .observe import Stack
from .profiler import HEADS, Profiler

#: Longer sequences are measured but not predicted: the maps cost O(T^3) a layer.
PREDICTED_UP_TO = 1024


# --- passes -----------------------------------------------------------------------------------------------------------
def profiled(model: nn.Module, stacks: tuple[Stack, ...], call: Calls, batch: Any, seed: int) -> dict[str, Any]:
    """The profile of one batch as plain data and tensors."""
    profiler = _empty(stacks)
    try:
        profiler.forward(model, lambda: call(batch), call.masks(batch, stacks))
    except torch.linalg.LinAlgError as error:  # singular values of what is not finite
        where = first_not_finite(model, lambda: call(batch), batch)
        raise InputError(f"The signal is not finite ({where}). Nothing was measured.") from error
    call.backward(profiler, batch, stacks, seed)
    numbers, tensors = profiler.state()
    seen = [{"name": s.name, "calls": s.calls, "batch_first": s.batch_first} for s in stacks]
    return {"stacks": seen, "profiles": numbers, "tensors": tensors, "gradient": call.gradient_of}


def joined(pieces: Sequence[dict[str, Any]]) -> Profiler:
    """The profiler that saw all the batches of `pieces`."""
    stacks = tuple(Stack(s["name"], tuple(s["calls"]), s["batch_first"]) for s in pieces[0]["stacks"])
    whole = _empty(stacks)
    for piece in pieces:
        whole.load(piece["profiles"], piece["tensors"])
    return whole


def _empty(stacks: tuple[Stack, ...]) -> Profiler:
    return Profiler(stacks, _kept(stacks))


def _kept(stacks: Iterable[Stack]) -> tuple[int, ...]:
    """The layers whose kernels are kept: first, middle, last of each stack."""
    return tuple({l for s in stacks for l in (0, s.depth // 2, s.depth)})


# --- curves -----------------------------------------------------------------------------------------------------------
def curve_of(profiler: Profiler, i: int, label: str, *, fresh: bool) -> Curve:
    """The curve of stack `i`, without its prediction."""
    profile = profiler.profiles[i]
    heads = {m: profile.head_layers(m) for m in HEADS}
    Sigma = {l: kernel.result() for l, kernel in profile.kernels.items()}
    curve = Curve(
        label=label,
        stack=profile.stack,
        unit="sequences",
        measured={m: found for m in MEASURES if (found := profile.layers(m))},
        heads=heads,
        d_model=profile.d_model,
        tokens=len(Sigma[0]) if 0 in Sigma else None,
        fresh=fresh,
        Sigma=Sigma,
        sequences=int(profile.kernels[0].state()[1].max()) if 0 in profile.kernels else 0,
    )
    unseen = sum(not row for row in heads["sink"])
    if unseen:
        curve.notes.append(f"no softmax attention was seen in {unseen} of {len(heads['sink'])} blocks")
    return curve


def over_networks(curve: Curve, pieces: Sequence[dict[str, Any]]) -> None:
    """Mean and spread over networks, a piece each, of every layer's value."""
    if len(pieces) < 2:
        return
    each = [joined([piece]).profiles[0] for piece in pieces]
    curve.unit = "networks"
    curve.measured = {m: _over([profile.layers(m) for profile in each]) for m in curve.measured}


def _over(each: Sequence[list[Estimate]]) -> list[Estimate]:
    moments = Moments()
    for layers in each:
        for l, e in enumerate(layers):
            moments.add(str(l), torch.tensor(e.value))
    found = moments.result()
    return [replace(found[str(l)], note=found[str(l)].note.replace("sequence", "network")) for l in range(len(each[0]))]


def add_prediction(curve: Curve, config: ModelConfig | None) -> None:
    """The mean-field profile of the design, from the measured kernel of the embedded tokens; a note where there is
    none."""
    why = _not_predicted(curve, config)
    if why or config is None:
        curve.notes.append(f"no prediction: {why}")
        return
    if curve.stack.name == "encoder_layers":
        config = replace(config, kind="encoder", blocks=config.encoder_blocks, encoder_blocks=())
    found = predict(config, Sigma_0=curve.Sigma[0], keep=True).tensors
    curve.predicted = {
        "cosine": found["cosine"],
        "participation": kernel_participation(found["kernels"], _width(curve)),
        "growth": found["rms"] / found["rms"][0],
    }
    if config.positions in ("rotary", "relative"):
        curve.notes.append(f"the prediction leaves out {config.positions} positions")


def _not_predicted(curve: Curve, config: ModelConfig | None) -> str:
    """Why there is no prediction; empty where there is one."""
    Sigma_0, stack = curve.Sigma.get(0), curve.stack.name
    if config is None:
        return "this model is not one of quadform's designs"
    if stack == "layers" and config.kind == "encoder-decoder":
        return "the maps do not cover cross-attention"
    if stack not in ("layers", "encoder_layers"):
        return f"`{stack}` is not a stack of the design"
    if Sigma_0 is None or bool(Sigma_0.isnan().any()):
        return "its sequences differ in length"
    return f"{len(Sigma_0)} tokens are more than {PREDICTED_UP_TO}" if len(Sigma_0) > PREDICTED_UP_TO else ""


def _width(curve: Curve) -> int | None:
    """The width for the finite-width correction: a kernel that is the mean of N sequences has 1 / N of it already."""
    N = curve.sequences
    return round(curve.d_model * N / (N - 1)) if N > 1 else None
