"""Packed: matrices as whole numbers of a few bits in a safetensors file, and back.

    w = scale (code - zero),   code in 0 .. 2^bits - 1, a scale and a zero point for each `group` columns of a row

quantized.safetensors
    NAME.codes   uint8 (out, ceil(in bits / 8)), codes without gaps, the first in the lowest bits
    NAME.scale   bfloat16 (out, groups)
    NAME.zero    uint8 (out, groups)
    NAME         every other tensor as it is
    metadata     {"quadform": {"schema": 1, "dtype": ..., "matrices": {NAME: {"bits", "group", "columns", "turned"}}}}

A scale of 16 bits times a code of 8 is exact in float32: a file gives the same weights in every number format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import FileError, InputError, pass_on_memory
from .record import strict_json

#: The file of a folder with a quantized model.
PACKED = "quantized.safetensors"
BITS = range(2, 9)
PARTS = ("codes", "scale", "zero")
_SCHEMA = 1


def require_bits(bits: int) -> None:
    """`bits` is one of 2 .. 8."""
    if bits not in BITS:
        raise InputError(f"bits={bits}: give a whole number from {BITS[0]} to {BITS[-1]}.")


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes (out, in) -> bytes (out, ceil(in bits / 8)); the first code in the lowest bits."""
    require_bits(bits)
    bit = (codes[..., None] >> torch.arange(bits, dtype=torch.uint8, device=codes.device)) & 1
    flat = bit.reshape(codes.shape[0], -1)
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[1] % 8)).reshape(codes.shape[0], -1, 8)
    return (flat << torch.arange(8, dtype=torch.uint8, device=codes.device)).sum(-1).to(torch.uint8)


def unpack(packed: Tensor, bits: int, columns: int) -> Tensor:
    """The inverse of `pack`."""
    require_bits(bits)
    needed = -(-columns * bits // 8)
    if packed.shape[1] != needed:
        raise InputError(f"{columns} codes of {bits} bits take {needed} bytes a row; got {packed.shape[1]}.")
    flat = (packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    bit = flat.reshape(packed.shape[0], -1)[:, : columns * bits].reshape(packed.shape[0], columns, bits)
    return (bit << torch.arange(bits, dtype=torch.uint8, device=packed.device)).sum(-1).to(torch.uint8)


@dataclass(frozen=True)
class Layout:
    """How the codes of one matrix lie: `turned` where the model stores it (in, out)."""

    bits: int
    group: int
    columns: int
    turned: bool

    def values(self, state: Mapping[str, Tensor], name: str, dtype: torch.dtype) -> Tensor:
        """The matrix of that name as the model stores it, from its codes, scale and zero point."""
        codes, scale, zero = (state[f"{name}.{part}"] for part in PARTS)
        where = torch.arange(self.columns, device=codes.device) // self.group
        whole = unpack(codes, self.bits, self.columns).to(dtype) - zero.to(dtype)[:, where]
        W = scale.to(dtype)[:, where] * whole
        return W.mT.contiguous() if self.turned else W


def is_packed(folder: str | Path) -> bool:
    """Whether a folder holds a quantized model."""
    return (Path(folder) / PACKED).is_file()


def to_bytes(tensors: Mapping[str, Tensor], matrices: Mapping[str, Layout], dtype: torch.dtype) -> bytes:
    """The file: `tensors` has codes, scale and zero of each of the matrices, and all other tensors of the model."""
    from safetensors.torch import save

    told = {"schema": _SCHEMA, "dtype": str(dtype).removeprefix("torch.")}
    told |= {"matrices": {n: asdict(layout) for n, layout in matrices.items()}}
    plain = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    return bytes(save(plain, metadata={"quadform": strict_json(told)}))


def from_bytes(blob: bytes, name: str = PACKED) -> dict[str, Tensor]:
    """The tensors of a model, its matrices as numbers again; a file that is none of ours is an error that says so."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        told: dict[str, Any] = json.loads(header["__metadata__"]["quadform"])
        if told["schema"] > _SCHEMA:
            raise FileError(f"{name} was written by a newer quadform (schema {told['schema']}). Upgrade.")
        state, dtype = load(blob), getattr(torch, told["dtype"])
        for matrix, layout in told["matrices"].items():
            state[matrix] = Layout(**layout).values(state, matrix, dtype)
            for part in PARTS:
                del state[f"{matrix}.{part}"]
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, InputError, SafetensorError) as error:
        pass_on_memory(error)
        raise FileError(f"{name} is damaged, or holds no quantized model of quadform ({error}).") from error
    return state


def dequantized(folder: str | Path) -> dict[str, Tensor]:
    """The tensors of the quantized model in a folder, by the names of its state."""
    path = Path(folder) / PACKED
    try:
        return from_bytes(path.read_bytes(), str(path))
    except OSError as error:
        raise FileError(f"there is no quantized model at {folder} ({PACKED}: {error.strerror}).") from error
