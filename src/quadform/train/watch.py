"""Watching a run: do tokens collapse onto one direction, and where did a run break?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quadform.core.errors import CheckFailed
from quadform.core.record import Estimate
from quadform.core.spec import ModelConfig
from quadform.corpora.datasets import Batch
from quadform.nn.block import Block
from quadform.nn.transformer import Transformer
from quadform.propagation.collapse import TokenCollapse


class Diverged(CheckFailed):
    """A run that was given up: at which `step`, in which `layer`, and what to try."""

    def __init__(self, text: str, step: int, layer: str) -> None:
        super().__init__(text)
        self.step, self.layer = step, layer

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (str(self), self.step, self.layer)


@torch.no_grad()
def token_cosines(model: Transformer, batch: Batch) -> dict[str, Estimate]:
    """Mean cosine between the tokens of a sequence after every block, by the block's name; 1 = rank collapse.

    Measured on the sides the batch has, padding left out, dropout off; sequences of one token have no cosine.
    """
    pad, both = model.config.pad, model.config.kind == "encoder-decoder"
    tokens = batch["target"][:, :-1] if both else batch["tokens"]
    main, source = batch.get("mask"), batch.get("source_mask")
    if pad is not None:
        seen = batch["target"][:, 1:] if both else tokens  # the end token predicts nothing
        main = seen != pad if main is None else main
        source = batch["source"] != pad if both and source is None else source
    streams: dict[str, TokenCollapse] = {}

    def hook(name: str, mask: Tensor | None):
        def measure(module: nn.Module, inputs: object, out: Tensor) -> None:
            streams[name] = TokenCollapse(("cosine",))
            streams[name].update(out, mask)

        return measure

    handles = [
        module.register_forward_hook(hook(name, source if name.startswith("encoder_layers") else main))
        for name, module in model.named_modules()
        if isinstance(module, Block)
    ]
    training = model.training
    model.eval()
    try:
        model.forward_batch(batch)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    found = {name: watched.result()["cosine"] for name, watched in streams.items()}
    return {name: e for name, e in found.items() if math.isfinite(e.value)}


def keeps_apart(config: ModelConfig) -> str:
    """What to do against collapse, by what the design has: an SPA target, shaped attention, a skip, or nothing."""
    block = config.blocks[-1]
    spa = block.mixing.bias
    if spa is not None:
        other = "smaller" if spa.family == "u-spa" else "larger"
        return f"{spa.family} of strength {spa.final:g} aims near it; a {other} strength keeps them further apart."
    if block.attn.skip != 0 or block.mixing.uses("alpha"):
        return "A longer warm-up or a lower lr keeps them apart; so do embeddings not much smaller than the positions."
    return "A skip connection, or shaped attention (the designs shaped, sas, sas-p), keeps them apart."


@torch.no_grad()
def broken_layer(model: Transformer, batches: Sequence[Batch], again: bool = False) -> str:
    """Where a loss or gradient that is not finite comes from, in the words of the module names.

    In this order: a parameter that is not finite; the first module of the forward pass whose output is not; the last
    parameter whose gradient is not (the backward pass goes from the output to the input), taken `again` where the
    gradients of the batches are gone.
    """
    for name, p in model.named_parameters():
        if not torch.isfinite(p).all():
            return f"the weights {name}"
    first: list[str] = []

    def hook(name: str):
        def check(module: nn.Module, inputs: object, out: object) -> None:
            if not first and isinstance(out, Tensor) and not torch.isfinite(out).all():
                first.append(name)

        return check

    handles = [m.register_forward_hook(hook(name)) for name, m in model.named_modules() if name]
    try:
        finite = all(bool(torch.isfinite(model.loss(batch))) for batch in batches)
    finally:
        for handle in handles:
            handle.remove()
    if first:
        return f"the output of {first[0]}"
    if not finite:
        return "the logits or the loss"
    if again:
        _gradients(model, batches)
    bad = [n for n, p in model.named_parameters() if p.grad is not None and not torch.isfinite(p.grad).all()]
    return f"the gradient of {bad[-1]}" if bad else "the norm of the gradient"


@torch.enable_grad()
def _gradients(model: Transformer, batches: Sequence[Batch]) -> None:
    model.zero_grad(set_to_none=True)
    for batch in batches:
        model.loss(batch).backward()


def steepest_layer(model: Transformer, batches: Sequence[Batch]) -> str:
    """The block (or other part) with the largest gradient norm on these batches."""
    _gradients(model, batches)
    squares: dict[str, float] = {}
    for name, p in model.named_parameters():
        if p.grad is not None:
            parts = name.split(".")
            layer = ".".join(parts[:2]) if parts[0].endswith("layers") else parts[0]
            squares[layer] = squares.get(layer, 0.0) + float(p.grad.double().square().sum())
    return max(squares, key=lambda layer: squares[layer])
