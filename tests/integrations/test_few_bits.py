"""Adam of bitsandbytes and torchao: their states as they lie in memory and in files, made here by their layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadform as qf
from quadform.applications.step_size.rules import read_optimizer
from quadform.applications.step_size.state import stepper_of_file
from quadform.core.errors import UnknownName
from quadform.preconditioners import as_of_torch

QMAP = torch.linspace(0, 1, 256) ** 2


def packed(v: Tensor, block: int) -> dict[str, Any]:
    """A tensor in 8 bits with a scale for each run of `block` entries, as bitsandbytes keeps a second moment."""
    rows = nn.functional.pad(v.flatten(), (0, -v.numel() % block)).reshape(-1, block)
    scales = rows.amax(1)
    codes = (rows / scales[:, None].clamp(min=1e-30))[..., None].sub(QMAP).abs().argmin(-1)
    codes = codes.flatten()[: v.numel()].reshape(v.shape).to(torch.uint8)
    return {"state1": torch.zeros_like(codes), "state2": codes, "qmap2": QMAP, "absmax2": scales, "step": 7}


@pytest.mark.parametrize("block", [256, 2048])
def test_codes_times_the_scale_of_their_run(block: int) -> None:
    """Entry i is qmap[code_i] absmax[i // block]; from a file the parts lie one level deeper."""
    v = torch.rand(53, 50, generator=torch.Generator().manual_seed(0)) * 1e-4
    state = packed(v, block)
    found = as_of_torch(state)["exp_avg_sq"]
    for i in (0, 255, 256, 2049, v.numel() - 1):
        code, scale = state["state2"].flatten()[i], state["absmax2"][i // block]
        assert found.flatten()[i] == QMAP[int(code)] * scale
    assert float((found - v).abs().max()) < 0.005 * float(v.max())
    step = state.pop("step")
    torch.testing.assert_close(as_of_torch({"step": step, "__bnb_optimizer_quant_state__": state})["exp_avg_sq"], found)


class AdamW8bit(torch.optim.Optimizer):
    """What is read of an 8-bit AdamW: its groups and its state."""

    def __init__(self, params: Any, layout: str) -> None:
        super().__init__(params, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01})
        self.layout = layout

    def fill(self, v: dict[Tensor, Tensor]) -> None:
        for p, t in v.items():
            if self.layout == "bitsandbytes":
                self.state[p] = packed(t, 256)
            elif self.layout == "torchao":
                self.state[p] = {"step": torch.tensor(7.0), "exp_avg_sq": Codes(t)}
            else:
                self.state[p] = {"step": 7, "secret": t}


class Codes:
    """A tensor of torchao, as far as it is read."""

    def __init__(self, t: Tensor) -> None:
        self.codes, self.own, self.shape = t, t, t.shape

    def dequantize(self) -> Tensor:
        return self.own


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 2))


def moments(model: nn.Module) -> dict[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return {p: 1e-4 * (0.1 + torch.rand(p.shape, generator=g)) for p in model.parameters()}


@pytest.mark.parametrize("layout", ["bitsandbytes", "torchao"])
def test_the_ceiling_is_that_of_torch_s_adamw(layout: str, tmp_path: Path) -> None:
    model = net()
    held = (torch.randn(8, 6), torch.randn(8, 2))
    v = moments(model)
    own, few = torch.optim.AdamW(model.parameters(), 1e-3), AdamW8bit(model.parameters(), layout)
    few.fill(v)
    for p, t in v.items():
        own.state[p] = {"step": torch.tensor(7.0), "exp_avg": torch.zeros_like(t), "exp_avg_sq": t}
    ceilings = [
        qf.Monitor(model, optimizer, held, loss=nn.MSELoss(), every=1).step().ceiling for optimizer in (own, few)
    ]
    assert ceilings[1] == pytest.approx(ceilings[0], rel=0.02)
    if layout == "bitsandbytes":
        torch.save(few.state_dict(), tmp_path / "optimizer.pt")
        names = tuple(n for n, _ in model.named_parameters())
        read, live = stepper_of_file(tmp_path, model, names), read_optimizer(few, model)
        torch.testing.assert_close(dict(read.second), dict(live.second))
        assert read.rule == live.rule


def test_a_state_that_cannot_be_read_is_told_and_has_no_ceiling() -> None:
    """It is not taken for an optimizer that has not stepped."""
    model = net()
    optimizer = AdamW8bit(model.parameters(), "another")
    optimizer.fill(moments(model))
    with pytest.raises(UnknownName, match="the state of AdamW8bit cannot be read"):
        read_optimizer(optimizer, model)
    held = (torch.randn(8, 6), torch.randn(8, 2))
    monitor = qf.Monitor(model, optimizer, held, loss=nn.MSELoss(), every=1)
    assert monitor.step().ceiling is None
    assert "cannot be read" in monitor.record().inputs["notes"][0]
