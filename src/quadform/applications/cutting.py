"""A model that is opened to be cut: its weights over the processes of torchrun, whole batches to each."""

from __future__ import annotations

from dataclasses import replace

from ..core.errors import InputError
from ..curvature.fsdp import cut
from ..distributed import current
from ..distributed.sharding import mapped
from .machine import device_of
from .opening import CutOpening
from .subject import Subject, open_subject


def open_cut(opening: CutOpening) -> Subject:
    """The subject of an opening with its weights cut over the processes; each has every so many-th batch."""
    group, device = current(), device_of(opening.device)
    if group.world == 1:
        raise InputError(
            "fsdp shards the weights across several processes, and this is a single one. Start it with torchrun."
        )
    found = open_subject(replace(opening, device="cpu"))  # on the host, until it is cut
    found.model = cut(found.model, device.type)
    mine = found.batches[group.rank :: group.world]
    found.batches = [mapped(batch, lambda t: t.to(device)) for batch in mine]
    found.notes.append(f"weights sharded across {group.world} processes")
    return found
