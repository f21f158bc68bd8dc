"""How a model is called on a batch, and what its loss is: the same for every measurement."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ..core.errors import InputError
from ..distributed.stages import is_piped

#: (output, batch) -> one number.
Loss = Callable[[Any, Any], Tensor]


def bare(model: Any) -> Any:
    """The module inside DistributedDataParallel and torch.compile, whose parts can be differentiated once only.
    Stages and schedules of torch.distributed.pipelining are refused."""
    if is_piped(model):
        raise InputError(
            f"{type(model).__name__}: a pipeline has one stage of the model in each process, and this question needs"
            " the whole. `qf.Risk(pipeline, loss, batches)` takes it, for `qf.hessian`, `qf.gauss_newton`,"
            " `qf.functional` and their eigenpairs; or give the whole model, its weights sharded across the same"
            " processes by `fully_shard`: see docs/distributed.md."
        )
    while (inner := _inside(model)) is not model:
        model = inner
    return model


def _inside(model: Any) -> Any:
    return (
        model.module if isinstance(model, nn.parallel.DistributedDataParallel) else getattr(model, "_orig_mod", model)
    )


def called(model: nn.Module, batch: Any) -> Any:
    """The output of a model on a batch.

    A mapping is passed by its keys. Where `forward` does not take them, a model that reads its own batches does so
    (`forward_batch`), or `forward` takes the mapping itself. Of a tuple or list the first entry is the input.
    """
    if not isinstance(batch, Mapping):
        return model(batch[0] if isinstance(batch, tuple | list) else batch)
    takes = inspect.signature(model.forward)
    try:
        takes.bind(**batch)
    except TypeError as error:
        own = getattr(model, "forward_batch", None)
        if inspect.ismethod(own):
            return own(batch)
        if not _binds(takes, batch) or set(takes.parameters) & set(batch):
            raise _not_taken(model, takes, batch, error) from None
        try:
            return model(batch)
        except TypeError as inside:
            raise _not_taken(model, takes, batch, inside) from inside
    return model(**batch)


def _not_taken(model: nn.Module, takes: inspect.Signature, batch: Mapping[str, Any], error: TypeError) -> InputError:
    return InputError(
        f"the batch has the keys {', '.join(map(repr, batch))}, but {type(model).__name__}.forward takes {takes}:"
        f" {error}. Name the entries as the arguments are named, or let forward take the mapping itself."
    )


def own_loss(model: nn.Module) -> Callable[..., Tensor] | None:
    """The method `model.loss`; None where it has none, or an attribute that is no method (`self.loss = F.mse_loss`)."""
    own = getattr(model, "loss", None)
    return own if inspect.ismethod(own) else None


def loss_on(model: nn.Module, batch: Any, loss: Loss | None = None) -> Tensor | None:
    """The loss of a batch: the caller's, the model's own, or the one in its output; None where there is none."""
    own = own_loss(model) if loss is None else None
    if own is not None:
        return own(batch)
    out = called(model, batch)
    if loss is not None:
        return loss(out, batch)
    return out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)


def _binds(takes: inspect.Signature, batch: Any) -> bool:
    try:
        takes.bind(batch)
    except TypeError:
        return False
    return True
