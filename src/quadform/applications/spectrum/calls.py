"""`qf.spectrum`: the Python door to `spectrum`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ...core.progress import Report
from ...curvature.groups import groups
from ...curvature.risk import Risk
from ...curvature.routes import Route
from ...distributed import current, group_of, shard
from ..configs.shared import seconds_of
from ..journal import Deadline, Journal
from ..subject import weights_hash
from .answer import Spectrum
from .measure import Wish, measure, question


def spectrum(
    model: nn.Module | Callable[..., Any],
    probe: Any,
    loss: Any = None,
    *,
    top: int = 10,
    bottom: int = 1,
    density: bool = True,
    blocks: str | Sequence[str] | Mapping[str, Sequence[str]] = "qkv",
    params: Any = "*",
    include_frozen: bool = False,
    curvature: str = "hessian",
    products: int | None = None,
    probes: int = 4,
    steps: int = 20,
    tol: float = 1e-3,
    seed: int = 0,
    route: Route = "auto",
    max_time: str | float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = True,
) -> Spectrum:
    """The spectrum of `model` on `probe` (a batch, or batches); its own loss, or `loss(output, batch)`.

    `blocks` is a kind (`curvature.groups.KINDS`), names or globs, `{label: globs}`, or "none". `include_frozen` takes
    parameters that are not trained as well. `resume` names a folder
    that keeps unfinished work: the same call goes on where it was. The model is left as it was. Inside
    `with quadform.distributed.group():` the probe is split over the processes.
    """
    risk = shard(Risk(model, loss, probe, params, include_frozen=include_frozen, quiet=not progress), current())
    wish = Wish(
        top=top,
        bottom=bottom,
        density=density,
        blocks=_blocks(risk, blocks),
        curvature=curvature,
        products=products,
        probes=probes,
        steps=steps,
        tol=tol,
        seed=seed,
        route=route,
    )
    hash_ = weights_hash(model) if isinstance(model, nn.Module) else ""
    source = {"model": type(model).__name__ if isinstance(model, nn.Module) else "function", "weights": hash_}
    group = group_of(risk.space)
    journal = Journal(resume, question(wish, source), group=group)
    seconds = seconds_of(max_time) if isinstance(max_time, str) else max_time
    return measure(risk, wish, source, journal, Deadline(seconds, group), progress)


def _blocks(risk: Risk, blocks: str | Sequence[str] | Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    if blocks == "none" or not blocks:
        return {}
    if isinstance(blocks, str):
        return groups(risk.space, blocks)
    if isinstance(blocks, Mapping):
        named = {str(label): (globs,) if isinstance(globs, str) else tuple(globs) for label, globs in blocks.items()}
    else:
        named = {glob: (glob,) for glob in blocks}
    for globs in named.values():
        risk.space.select(*globs)
    return named
