"""Whether a training fits this machine, told before any of it is made."""

from __future__ import annotations

import torch

from quadform.core.errors import TooLarge
from quadform.core.memory import free_bytes, in_words
from quadform.core.parameters import count_parameters
from quadform.core.spec import ModelConfig

from .config import TrainConfig

_TOKEN = 8  # bytes of a token id


def optimizer_copies(optimizer: str) -> int:
    """Numbers kept for each weight: itself, its gradient, and one moment (sgd) or two."""
    return 3 if optimizer == "sgd" else 4


def check_size(
    model: ModelConfig, training: TrainConfig, dtype: torch.dtype, device: torch.device | str, *, made: bool = False
) -> None:
    """Refuse a training whose least memory is not there.

    The least: weights (unless the model is `made` already) with what the optimizer keeps, one input of every block for
    every sequence of a batch (each has a token), and the token ids of all batches of a step.
    """
    weights = count_parameters(model) * (optimizer_copies(training.optimizer) - made) * dtype.itemsize
    blocks = len(model.blocks) + len(model.encoder_blocks)
    streams = training.batch_size * blocks * model.d_model * dtype.itemsize
    tokens = training.batch_size * training.accumulate * _TOKEN
    need, have = weights + streams + tokens, free_bytes(torch.device(device))
    if need > have:
        raise TooLarge(
            f"this training needs at least {in_words(need)} ({in_words(weights)} of weights, gradients and moments, "
            f"{in_words(streams + tokens)} of batches); {in_words(have)} are free. Make the model, batch_size or "
            f"accumulate smaller."
        )
