"""The tokens of a state: drawn, from words, or uploaded. Uploads live in memory, few and small, and nowhere else."""

from __future__ import annotations

import hashlib
import io
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..core.rng import stream
from .state import RANGES, ControlError, State

#: Bytes of one upload, and how many are kept.
LARGEST_UPLOAD = 1_000_000
MOST_UPLOADS = 8
_NAMES = ("X", "W_Q", "W_K", "W_V", "Y")


def words_as_tokens(text: str, dim: int, seed: int = 0, most: int = 64) -> Tensor:
    """One row a word, (words, dim), entries ~ N(0, 1): the same word has the same row wherever it stands."""
    rows = [
        torch.randn(dim, generator=stream(seed, f"word/{word}"), dtype=torch.float64) for word in text.split()[:most]
    ]
    return torch.stack(rows)


@dataclass(frozen=True)
class Given:
    """Tokens X (L, d) that were given, and any of W_Q, W_K (d, d_K), W_V (d, d_V), Y (L, d_V) that came with them."""

    tensors: Mapping[str, Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        """Tokens, width."""
        L, d = self.tensors["X"].shape
        return L, d

    def __post_init__(self) -> None:
        t = dict(self.tensors)
        for name, value in t.items():
            if value.dim() != 2 or 0 in value.shape:
                raise ControlError("upload", "upload_matrix", name=name, shape=_shape(value))
            if not bool(torch.isfinite(value).all()):
                raise ControlError("upload", "upload_finite", name=name)
        if "X" not in t:
            raise ControlError("upload", "upload_missing")
        L, d = t["X"].shape
        widest = int(RANGES["dim"][1])
        if RANGES["tokens"][1] < L or d > widest:
            raise ControlError("upload", "upload_size", shape=_shape(t["X"]), most=f"{RANGES['tokens'][1]} × {widest}")
        for name in ("W_Q", "W_K", "W_V"):
            if name in t and (t[name].shape[0] != d or t[name].shape[1] > widest):
                need = f"{d} × 1 … {widest}"
                raise ControlError("upload", "upload_shape", name=name, shape=_shape(t[name]), need=need)
        if len({t[name].shape[1] for name in ("W_Q", "W_K") if name in t}) > 1 or ("W_Q" in t) != ("W_K" in t):
            raise ControlError("upload", "upload_pair")
        d_v = t["W_V"].shape[1] if "W_V" in t else d
        if "Y" in t and tuple(t["Y"].shape) != (L, d_v):
            raise ControlError("upload", "upload_shape", name="Y", shape=_shape(t["Y"]), need=f"{L} × {d_v}")


def _shape(t: Tensor) -> str:
    return " × ".join(map(str, t.shape))


@dataclass
class Uploads:
    """What was given, by the first letters of its SHA-256; the oldest leaves when there are too many."""

    kept: OrderedDict[str, Given] = field(default_factory=OrderedDict)

    def add(self, given: Given) -> str:
        blob = b"".join(
            name.encode() + str(tuple(t.shape)).encode() + t.numpy().tobytes() for name, t in given.tensors.items()
        )
        name = hashlib.sha256(blob).hexdigest()[:12]
        self.kept[name] = given
        self.kept.move_to_end(name)
        while len(self.kept) > MOST_UPLOADS:
            self.kept.popitem(last=False)
        return name

    def get(self, name: str) -> Given:
        if name not in self.kept:
            raise ControlError("upload", "upload_gone" if name else "upload_none")
        self.kept.move_to_end(name)
        return self.kept[name]


def read(blob: bytes, name: str) -> Given:
    """Tokens from a file: .npy (a matrix), .csv or .txt (rows of numbers), .safetensors (X, and W_Q, W_K, W_V, Y)."""
    if len(blob) > LARGEST_UPLOAD:
        raise ControlError("upload", "upload_large", count=f"{len(blob):,}", most=f"{LARGEST_UPLOAD:,}")
    kind = name.rsplit(".", 1)[-1].lower()
    try:
        if kind == "npy":
            found = {"X": torch.from_numpy(np.load(io.BytesIO(blob), allow_pickle=False).astype(np.float64))}
        elif kind in ("csv", "txt"):
            rows = blob.decode("utf-8-sig").replace(",", " ").replace(";", " ")
            found = {"X": torch.from_numpy(np.loadtxt(io.StringIO(rows), ndmin=2, dtype=np.float64))}
        elif kind == "safetensors":
            from safetensors.torch import load

            found = {key: t.double() for key, t in load(blob).items() if key in _NAMES}
        else:
            raise ControlError("upload", "upload_kind", name=name[:40])
    except ControlError:
        raise
    except Exception as error:  # whatever a damaged file makes a reader say
        raise ControlError("upload", "upload_read", name=name[:40], why=type(error).__name__) from error
    return Given(found)


def tokens_of(state: State, uploads: Uploads) -> tuple[int, int, Mapping[str, Tensor]]:
    """Tokens, width and the tensors that are given; the rest is drawn from the seed."""
    if state.data == "upload":
        given = uploads.get(state.upload)
        return *given.shape, given.tensors
    if state.data == "text":
        X = words_as_tokens(state.text, state.dim, state.seed, state.tokens)
        return len(X), state.dim, {"X": X}
    return state.tokens, state.dim, {}


def labels_of(state: State, tokens: int) -> list[str]:
    """What the rows of the attention matrix are called: words, or numbers from 1."""
    return state.text.split()[:tokens] if state.data == "text" else [str(i + 1) for i in range(tokens)]
