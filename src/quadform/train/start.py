"""Fine-tuning: the weights of a trained model in a model of other data."""

from __future__ import annotations

import dataclasses

from quadform.core.errors import InputError
from quadform.corpora.datasets import Dataset
from quadform.nn.transformer import Transformer


def started_from(model: Transformer, data: Dataset, *, seed: int = 0) -> tuple[Transformer, list[str]]:
    """(a model for `data` with the weights of `model`, the parameters that begin anew).

    The blocks, the embedding and the positions are taken over; what the new settings ask for besides (a class output
    W_C, b_C) starts as in a fresh model of this seed. A shorter text keeps the first positions; a longer one is refused
    where positions are learned, and so is another vocabulary.
    """
    old, wanted = model.config, data.settings
    if wanted["vocab"] != old.vocab:
        raise InputError(f"the model knows {old.vocab} tokens and this data {wanted['vocab']}; use the same tokens.")
    if (wanted["kind"] == "encoder-decoder") != (old.kind == "encoder-decoder"):
        raise InputError(f"a {old.kind} cannot be continued as a {wanted['kind']}. Choose other data, or start again.")
    if old.positions == "learned" and wanted["seq_len"] > old.seq_len:
        raise InputError(
            f"the model has learned {old.seq_len} positions, this data has {wanted['seq_len']}. Lower seq_len."
        )
    config = dataclasses.replace(old, **({"classes": 0} | wanted))
    W = model.embed.W_E
    new = Transformer(config, seed=seed, dtype=W.dtype, device=W.device)
    own, given = new.state_dict(), model.state_dict()
    for name, t in own.items():
        if name in given:
            t.copy_(given[name][: len(t)] if name.endswith("W_pos") else given[name])
    return new, [name for name in own if name not in given]
