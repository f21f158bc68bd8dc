"""How a model is called on a batch: the same for curvature and for signal, and the model is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quadform as qf
from quadform.applications.signal.calls import Calls
from quadform.core.errors import InputError
from quadform.curvature.calling import called, loss_on
from quadform.curvature.settings import measured

X = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(12).reshape(2, 6) % 7


class Stack(nn.Module):
    """Blocks that map tokens to tokens; how `forward` takes its input is up to the subclass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)).double()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class ByKeys(Stack):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(scale * x)


class TheMapping(Stack):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(batch["x"])


class OwnLoss(Stack):
    def loss(self, batch: Tensor) -> Tensor:
        return self(batch).square().mean()


class InOutput(Stack):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"loss": super().forward(x).square().mean()}


class AttributeLoss(InOutput):
    """An attribute called `loss` that is no method says nothing about batches."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = F.mse_loss


def ours(kind: str, **settings: Any) -> nn.Module:
    return qf.Transformer(
        "pre-ln", kind=kind, depth=2, d_model=8, heads=2, vocab=7, seed=0, dtype=torch.float64, **settings
    )


def gpt() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=7, n_positions=8)
    model: nn.Module = transformers.GPT2LMHeadModel(config).double()
    return model


def size(out: Any, batch: Any) -> Tensor:
    found: Tensor = (out if isinstance(out, Tensor) else out.logits).square().mean()
    return found


SEQ2SEQ = {"source": IDS, "target": IDS[:, :4]}
#: name -> (model, loss or None, batch, what the loss must be)
CASES: dict[str, tuple[Callable[[], nn.Module], Any, Any, Callable[[Any], Tensor]]] = {
    "tensor": (Stack, size, X, lambda m: m(X).square().mean()),
    "tuple": (Stack, size, (X, 2 * X), lambda m: m(X).square().mean()),
    "list": (Stack, size, [X, 2 * X], lambda m: m(X).square().mean()),
    "keys": (ByKeys, size, {"x": X, "scale": torch.tensor(2.0)}, lambda m: m(X, 2.0).square().mean()),
    "mapping": (TheMapping, size, {"x": X}, lambda m: m({"x": X}).square().mean()),
    "own loss": (OwnLoss, None, X, lambda m: m.loss(X)),
    "attribute": (AttributeLoss, None, X, lambda m: m(X)["loss"]),
    "output": (InOutput, None, X, lambda m: m(X)["loss"]),
    "decoder": (lambda: ours("decoder"), None, {"tokens": IDS}, lambda m: m.loss({"tokens": IDS})),
    "decoder, outputs": (
        lambda: ours("decoder"),
        size,
        {"tokens": IDS, "labels": IDS},
        lambda m: m(IDS).square().mean(),
    ),
    "translator": (
        lambda: ours("encoder-decoder"),
        size,
        SEQ2SEQ,
        lambda m: m(IDS[:, :3], source=IDS).square().mean(),
    ),
    "hugging face": (gpt, None, {"input_ids": IDS, "labels": IDS}, lambda m: m(input_ids=IDS, labels=IDS).loss),
    "hugging face, outputs": (gpt, size, {"input_ids": IDS}, lambda m: m(input_ids=IDS).logits.square().mean()),
}


@pytest.mark.parametrize("name", CASES)
def test_curvature_and_signal_call_alike(name: str) -> None:
    """The risk of a batch, and the loss whose gradient `signal` follows, are what calling the model by hand gives."""
    make, loss, batch, by_hand = CASES[name]
    model = make().eval()
    want = by_hand(model).detach()
    data = [batch] if isinstance(batch, list) else batch
    assert torch.allclose(qf.Risk(model, loss, data, quiet=True).value(), want, rtol=1e-12)
    call = Calls(model, loss, None)
    call.look(batch)
    assert torch.allclose(call.loss(batch), want, rtol=1e-12)
    found = qf.signal(model, data, loss, progress=False)
    assert found.record.scalars


def test_a_function_is_called_with_its_tensors() -> None:
    """`function(params, batch)`: curvature takes it, signal needs blocks and says so."""
    w = {"w": torch.ones(4, dtype=torch.float64)}

    def function(params: Any, batch: Tensor) -> Tensor:
        return batch * params["w"]

    assert torch.allclose(qf.Risk(function, size, X, w, quiet=True).value(), X.square().mean())
    with pytest.raises(InputError, match=r"an nn\.Module with its batches"):
        qf.signal(function, X, size, progress=False)


def test_keys_that_do_not_fit_are_named() -> None:
    """Both say which keys the batch has and what `forward` takes."""
    for call in (lambda: qf.Risk(ByKeys(), size, {"x": X, "y": X}, quiet=True), lambda: called(ByKeys(), {"x": X})):
        with pytest.raises(InputError, match=r"the batch has the keys 'x'.*ByKeys\.forward takes"):
            call()
    assert loss_on(Stack(), X) is None


@pytest.mark.parametrize("train_mode", [False, True])
def test_a_model_is_left_as_it_was(train_mode: bool) -> None:
    """Mode of every module, random state and torch's switches; no fused step of a whole layer, which calls no hook."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    model.layers[0].train()
    modes, random = [m.training for m in model.modules()], torch.get_rng_state()
    fast, seen = torch.backends.mha.get_fastpath_enabled(), []
    handle = model.layers[1].linear1.register_forward_hook(lambda *_: seen.append(1))
    with measured(model, train_mode=train_mode), torch.no_grad():
        assert [m.training for m in model.modules()] == (modes if train_mode else [False] * len(modes))
        assert torch.backends.mha.get_fastpath_enabled() == fast  # of the whole process: not changed
        torch.randn(1)
        model(torch.randn(2, 3, 8))
    assert seen == [1]
    handle.remove()
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
