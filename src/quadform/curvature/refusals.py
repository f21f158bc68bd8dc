"""What a risk refuses or remarks before anything is measured: kinds of weights, values that are not finite, modes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError, QuadformError, pass_on_memory

#: Kinds of numbers with 16 bits or fewer that torch multiplies in.
_HALVES = (torch.bfloat16, torch.float16)
_UNDERFLOW = "float16 underflows in second derivatives. Load the model in float32."


def refuse_unusable(params: Mapping[str, Tensor], every: Mapping[str, Tensor]) -> None:
    """float16, halves on a CPU (of `every` parameter of the model: frozen ones are multiplied too), parameters of
    several kinds or on several devices, without numbers, not real, or cut over processes."""
    cut = [n for n, t in params.items() if hasattr(t, "_fsdp_flattened")]
    if cut:
        raise InputError(
            f"`{cut[0]}` is sharded by the first FSDP (`FullyShardedDataParallel`), which has no second"
            " derivative. Use `fully_shard` instead: see docs/distributed.md."
        )
    other = [n for n, t in params.items() if not t.is_floating_point()]
    if other:
        raise InputError(f"`{other[0]}` is {_kind_of(params[other[0]])}; a Hessian is taken over real parameters.")
    empty = [n for n, t in every.items() if t.is_meta]
    if empty:
        raise InputError(f"`{empty[0]}` holds no numbers (device meta). Load the weights before measuring.")
    kinds = {t.dtype for t in params.values()}
    if torch.float16 in kinds:
        raise InputError(_UNDERFLOW)
    refuse_halves(every)
    places = {t.device for t in params.values()}
    for found, what in ((kinds, "of several kinds"), (places, "on several devices")):
        if len(found) > 1:
            raise InputError(f"parameters are {what} ({', '.join(sorted(map(str, found)))}); choose some with params=.")


def refuse_halves(every: Mapping[str, Tensor]) -> None:
    """bfloat16 and float16 on a CPU; frozen weights are multiplied too."""
    halves = [n for n, t in every.items() if t.dtype in _HALVES and t.device.type == "cpu"]
    if halves and all(t.dtype == torch.float16 for t in every.values()):
        raise InputError(_UNDERFLOW)
    if halves:
        raise InputError(
            f"`{halves[0]}` is {_kind_of(every[halves[0]])}, in which a CPU has two or three digits and some"
            " CPUs cannot multiply at all. Use `model.float()`, or a GPU."
        )


def refuse_quantised(model: nn.Module) -> None:
    """Modules of torch that keep packed integers: they pass no derivative on, and curvature comes out as zero."""
    packed = [(n, m) for n, m in model.named_modules() if ".quantized." in f"{type(m).__module__}."]
    if packed:
        name, module = packed[0]
        raise InputError(
            f"`{name or type(module).__name__}` is quantized ({type(module).__name__}, packed integers) and has no"
            " derivatives. Nothing was measured. Load the model in float32 or bfloat16."
        )


def nothing_to_measure(weights: Mapping[str, Tensor]) -> InputError:
    """Why none of the weights can be measured: all are integers, or all are frozen."""
    integer = [t for t in weights.values() if not t.is_floating_point()]
    if integer and len(integer) == len(weights):
        return InputError(
            f"{_kind_of(integer[0])} weights cannot be differentiated twice. Load in float32 or bfloat16; of adapters"
            " choose the real parameters with params='*lora*'."
        )
    if not weights:
        return InputError("The model has no parameters, so there is no Hessian.")
    return InputError(
        "All parameters are frozen (requires_grad=False); the Hessian is taken over trainable ones. Use"
        " include_frozen=True."
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


def precision_notes(dtype: torch.dtype, device: torch.device) -> list[str]:
    """That numbers are few-digit ones, or not those of the caller's autocast."""
    coarse = dtype == torch.bfloat16
    found = ["bfloat16: products are accurate to about 1 %, use float32 for firm values"] if coarse else []
    if torch.is_autocast_enabled(device.type):
        found.append(f"autocast switched off while measuring, in {str(dtype).removeprefix('torch.')}")
    return found


def refuse_empty(counts: Sequence[float]) -> None:
    """Refuse batches without loss terms, by their numbers of terms."""
    for i, c in enumerate(counts):
        if not 0 < c < math.inf:
            raise InputError(f"batch {i + 1} of {len(counts)} has no loss terms (their number is {c:g}).")


def twice(runner: Any, run: Callable[[], Tensor]) -> list[Tensor]:
    """What two evaluations of a batch give; a model that runs once only is refused."""
    runner.ran = False
    try:
        return [run() for _ in range(2)]
    except Exception as error:
        pass_on_memory(error)
        if not runner.ran or isinstance(error, QuadformError):
            raise
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the model ran once and failed when it was run again ({told}). Derivatives take several evaluations of the"
            " same batch: give a model that a call does not change."
        ) from error


def refuse_losses(pairs: Sequence[Sequence[Any]], where: Callable[[int], str]) -> None:
    """Refuse a loss that is no finite real number, or not the same twice; `where(i)` tells where that of batch i stops
    to be finite."""
    for i, (a, b) in enumerate(pairs):
        if not isinstance(a, Tensor) or not a.is_floating_point():
            kind = str(a.dtype) if isinstance(a, Tensor) else type(a).__name__
            raise InputError(f"the loss must be a real tensor that can be differentiated; it is {kind}.")
        if a.dim() != 0:
            raise InputError(f"the loss must be one number per batch; it has shape {tuple(a.shape)}. Take its mean.")
        if not bool(torch.isfinite(a)):
            of = f"{i + 1} of {len(pairs)}"
            raise InputError(f"Loss is {float(a)} on probe batch {of} ({where(i)}). Nothing was measured.")
        if not torch.equal(a, b):
            gap = abs(float(a - b)) / max(abs(float(a)), 1e-300)
            raise InputError(
                f"The loss is not deterministic (two evaluations differ by {100 * gap:.2g} %), so it has no"
                " single Hessian. Use eval mode (train_mode=False) or fix the randomness."
            )
