"""A corpus of Python source as one file of 16-bit tokens, for machines that have torch and numpy and nothing else."""

from __future__ import annotations

import functools
import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FileError
from ..core.progress import say
from ..core.rng import stream
from ..corpora.datasets import Batch, Dataset

#: Where the file lies unless QUADFORM_CORPUS says otherwise.
DEFAULT = Path("runs") / "corpus" / "python-source.npz"
_AT_ONCE = 512  # files that are cut into pieces together
_LEFT_OUT = {"test", "tests", "testing", "__pycache__", "_vendor"}


def place() -> Path:
    return Path(os.environ.get("QUADFORM_CORPUS", DEFAULT))


@functools.cache
def _opened(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as found:
            return {k: torch.from_numpy(found[k].astype(np.int32)) for k in ("train", "valid")} | {
                "vocab": torch.tensor(int(found["vocab"]))
            }
    except (OSError, ValueError, KeyError) as error:
        raise FileError(
            f"no packed corpus at {path} ({error}). `python benchmarks/experiments.py corpus` makes it, in a checkout."
        ) from error


@dataclass(frozen=True, kw_only=True)
class Packed(Dataset):
    """Windows of `seq_len` tokens at uniform places of the packed corpus, each with the token after it as its label.

    Files, not windows, are held out.
    """

    seq_len: int = 128

    @property
    def settings(self) -> dict[str, Any]:
        return {"kind": "decoder", "vocab": int(_opened(place())["vocab"]), "seq_len": self.seq_len}

    def stream_of(self, split: str) -> Tensor:
        """All tokens of a split, one after another."""
        return _opened(place())["valid" if split == "valid" else "train"]

    @property
    def sizes(self) -> dict[str, int]:
        """Tokens of each split."""
        return {split: len(self.stream_of(split)) for split in ("train", "valid")}

    def batches(self, split: str, batch_size: int, seed: int = 0, start: int = 0) -> Iterator[Batch]:
        tokens = self.stream_of(split)
        while True:
            generator = stream(seed, f"packed/{split}/{start}")
            at = torch.randint(len(tokens) - self.seq_len, (batch_size, 1), generator=generator)
            window = tokens[at + torch.arange(self.seq_len + 1)].long()
            yield {"tokens": window[:, :-1], "labels": window[:, 1:]}
            start += 1


def pack(path: Path | None = None, *, more: Sequence[Path] = (), pieces: int = 8192, most: int = 100_000_000) -> Path:
    """Make the file from the standard library, the Python packages installed beside this one and folders of `more`.

    Files of 200 to 200,000 bytes, duplicates and tests left out, in the order of a hash of their name until `most`
    characters are reached; one in 50 is held out by that hash. Pieces: byte-level BPE learned on a sample.
    """
    from ..nn.tokens import EOS, PieceTokenizer

    path = place() if path is None else path
    kept: dict[bytes, tuple[int, str]] = {}
    for folder in more:
        if not folder.is_dir():
            raise FileError(f"no folder {folder} to pack. Give folders of unpacked Python packages.")
    for root in {Path(sysconfig.get_path(k)) for k in ("stdlib", "purelib", "platlib")} | set(more):
        for file in root.rglob("*.py"):
            parts = set(file.relative_to(root).parts)
            if parts & _LEFT_OUT or ("site-packages" in parts and "site-packages" not in root.parts):
                continue
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if 200 <= len(text) <= 200_000:
                name = int.from_bytes(hashlib.sha256(str(file.relative_to(root)).encode()).digest()[:8], "little")
                kept.setdefault(hashlib.sha256(text.encode()).digest(), (name, text))
    files = sorted(kept.values())
    total, chosen = 0, []
    for name, text in files:
        total += len(text)
        if total > most:
            break
        chosen.append((name, text))
    say(f"{len(chosen):,} files, {sum(len(t) for _, t in chosen) / 1e6:.0f} MB")
    tokenizer = PieceTokenizer.train([t for _, t in chosen[:: max(len(chosen) // 3000, 1)]], pieces)
    streams: dict[str, list[np.ndarray]] = {"train": [], "valid": []}
    for first in range(0, len(chosen), _AT_ONCE):
        some = chosen[first : first + _AT_ONCE]
        for (name, _), ids in zip(some, tokenizer.encode_all([text for _, text in some]), strict=True):
            streams["valid" if name % 50 == 0 else "train"].append(np.array([*ids, EOS], dtype=np.uint16))
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = {k: np.concatenate(v) for k, v in streams.items()}
    np.savez_compressed(path, vocab=np.array(tokenizer.size), train=packed["train"], valid=packed["valid"])
    counts = {k: f"{len(v):,}" for k, v in packed.items()}
    say(f"{counts['train']} tokens to train, {counts['valid']} held out, {path.stat().st_size / 1e6:.0f} MB")
    return path
