"""A small network at its minimum nearly, for what takes weights away or rounds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def squared(output: Tensor, batch: Any) -> Tensor:
    return (output - batch[1]).square().mean()


def taught(steps: int) -> tuple[nn.Module, list[Any]]:
    """A network that was taught by another one, and the four batches it was taught on."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    student = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2)).double()
    draws = [torch.randn(64, 6, dtype=torch.float64) for _ in range(4)]
    batches = [(x, teacher(x).detach()) for x in draws]
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        squared(student(batches[step % 4][0]), batches[step % 4]).backward()
        optimizer.step()
    return student, batches


def letters(folder: Path, count: int) -> None:
    """A tokenizer in the folder of a Hugging Face model: so many tokens, the frequent letters of English among them."""
    import tokenizers
    import transformers

    known = ["?", *"etaoinsrhl"][:count]
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({c: i for i, c in enumerate(known)}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)
