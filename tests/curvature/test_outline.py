"""Costs from shapes: counted without numbers, they are those of the product that runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from quadform.curvature import Risk
from quadform.curvature.outline import Counted, Outline, Work, cost_of, rates
from quadform.curvature.retained import Retained


class Net(nn.Module):
    """A network with matrix products, a softmax that keeps its own result, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 6), nn.Linear(6, 11)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: Any = None) -> dict[str, Any]:
        if attention_mask is not None and not bool(attention_mask.all()):  # a value decides
            raise ValueError("no padding")
        x = self.embed(input_ids)
        x = torch.softmax(self.scale * x @ x.mT, -1) @ x
        return {"loss": nn.functional.cross_entropy(self.out(x).flatten(0, 1), labels.flatten())}


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def test_counted_is_what_runs(batch: dict[str, torch.Tensor]) -> None:
    """Kept bytes, matrix work of forward pass, gradient and product are those of the real ones."""
    risk = Risk(Net(), None, batch, quiet=True)
    found = cost_of(risk)
    with risk.context():
        with FlopCounterMode(display=False) as flops, torch.no_grad():
            risk.run(risk.params, batch)
        assert found.forward.flops == flops.get_total_flops() > 0
        with FlopCounterMode(display=False) as flops:
            graph = Retained(lambda p: risk.run(p, batch)[0], risk.params, tuple(risk.params))
        assert found.gradient.flops == flops.get_total_flops()
        with FlopCounterMode(display=False) as flops:
            graph(risk.params, tuple(risk.params))
        assert found.product.flops == flops.get_total_flops()
    assert found.kept == graph.bytes > 0
    assert found.gradient.flops < found.product.flops


def test_an_outline_has_the_names_and_sizes_of_the_risk(batch: dict[str, torch.Tensor]) -> None:
    risk = Risk(Net(), None, [batch, batch], quiet=True)
    with torch.device("meta"):
        empty = Net()
    ids = batch["input_ids"].to("meta")
    shapes = {"input_ids": ids, "labels": ids}
    outline = Outline(empty, None, [shapes, shapes])
    assert outline.space == risk.space
    assert outline.coverage == risk.coverage
    assert outline.cost == cost_of(risk)
    assert outline.weight_bytes == sum(t.numel() * 4 for t in risk.model.state_dict().values())  # type: ignore[union-attr]
    assert outline.seconds() == 2 * outline.cost.product.seconds(torch.float32)
    assert outline.seconds(6.0) == 2 * outline.cost.forward.times(6).seconds(torch.float32)


def test_a_mask_that_hides_something_cannot_be_left_out(batch: dict[str, torch.Tensor]) -> None:
    """The model looks at it, so it cannot be counted without numbers."""
    risk = Risk(Net(), None, batch, quiet=True)
    batch["attention_mask"][0, 0] = 0
    risk.batches[0]["attention_mask"] = batch["attention_mask"]
    with pytest.raises(RuntimeError, match="meta"):
        cost_of(risk)


def test_work_of_operators() -> None:
    """m n k products take 2 m n k operations; a sum reads two and writes one; a view moves nothing."""
    a, b = torch.ones(2, 3, device="meta"), torch.ones(3, 5, device="meta")
    with Counted() as counted:
        a @ b
        assert counted.taken() == Work(1, 2 * 2 * 3 * 5, 0)
        b.view(15)
        assert counted.taken() == Work(1, 0, 0)
        a + a
        assert counted.taken() == Work(1, 0, 3 * 6 * 4)


def test_seconds_follow_the_rates() -> None:
    matrix, bandwidth = rates(torch.float32, torch.get_num_threads())
    assert Work(7, matrix, 0.0).seconds(torch.float32) == pytest.approx(1)
    assert Work(7, 0.0, 2 * bandwidth).seconds(torch.float32) == pytest.approx(2)
