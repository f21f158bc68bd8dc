"""What a risk refuses or remarks before anything is measured: kinds of weights, values that are not finite, modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError


def refuse_unusable(params: Mapping[str, Tensor]) -> None:
    """float16, parameters of several kinds or on several devices, and parameters that are cut over processes."""
    cut = [n for n, t in params.items() if type(t).__name__ == "DTensor" or hasattr(t, "_fsdp_flattened")]
    if cut:
        raise InputError(
            f"`{cut[0]}` is cut over processes (FSDP, DTensor): torch has no second derivative of the way its parts are"
            " gathered. Give every process the whole model and split its data (`qd.shard`): see docs/distributed.md."
        )
    kinds = {t.dtype for t in params.values()}
    if torch.float16 in kinds:
        raise InputError("float16 underflows in second derivatives. Load the model in float32 or bfloat16.")
    if len(kinds) > 1 or len({t.device for t in params.values()}) > 1:
        raise InputError(f"parameters are of several kinds ({', '.join(map(str, kinds))}); choose some with params=.")


def nothing_to_measure(weights: Mapping[str, Tensor]) -> InputError:
    """Why none of the weights can be measured: all are integers, or all are frozen."""
    integer = [t for t in weights.values() if not t.is_floating_point()]
    if integer and len(integer) == len(weights):
        return InputError(
            f"{_kind_of(integer[0])} weights cannot be differentiated twice. Load in float32 or bfloat16; for adapters"
            " use `--params '*lora*'`."
        )
    return InputError(
        "All parameters are frozen (requires_grad=False); the Hessian is taken over trainable ones. Add"
        " `--include-frozen` (Python: include_frozen=True)."
    )


def _kind_of(weight: Tensor) -> str:
    """`4-bit`, `8-bit`, `int32`: the kind of a weight that is no real number."""
    packed = type(weight).__name__ == "Params4bit"
    return "4-bit" if packed else "8-bit" if weight.dtype.itemsize == 1 else str(weight.dtype).removeprefix("torch.")


def first_not_finite(model: Any, run: Callable[[], Any], batch: Any) -> str:
    """Where the first value that is not finite comes from when `run()` evaluates `model`: the batch, or a module."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else [batch]
    if not all(map(_finite, parts)):
        return "the batch itself is not finite"
    if not isinstance(model, nn.Module):
        return "it comes from the function"
    seen: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            if not all(map(_finite, out if isinstance(out, tuple) else [out])):
                seen.append(name or type(module).__name__)

        return hook

    handles = [m.register_forward_hook(look(n)) for n, m in model.named_modules()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return f"first not finite: `{seen[0]}`" if seen else "every module is finite, the loss is not"


def _finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(torch.isfinite(value).all())


def mode_notes(model: nn.Module, train_mode: bool) -> list[str]:
    """That dropout was on, where it is switched off for the measurement."""
    active = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 and m.training]
    return ["dropout switched off while measuring (eval mode)"] if active and not train_mode else []
