"""Two threads with two models compute at the same time what they compute alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quadform.curvature import Risk, functional, gauss_newton, hessian

F64 = torch.float64


class Attends(nn.Module):
    """Torch's fused attention after a step in which `meet` may wait."""

    def __init__(self, meet: Callable[[], None]) -> None:
        super().__init__()
        self.qkv, self.head, self.meet = nn.Linear(4, 12), nn.MultiheadAttention(4, 2, batch_first=True), meet
        self.train(False)

    def forward(self, x: Tensor) -> Tensor:
        self.meet()
        q, k, v = (t.unflatten(-1, (2, 2)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(y, y, y, need_weights=False)[0]


def mse(out: Tensor, batch: Any) -> Tensor:
    return (out - batch[1]).square().mean()


def product(model: nn.Module, batch: Any, make: Any, route: str, attention: Any) -> dict[str, Tensor]:
    risk = Risk(model, mse, batch, attention=attention, quiet=True)
    v = risk.space.random(2, dtype=F64, generator=torch.Generator().manual_seed(0))
    A = make(risk, route=route)
    A @ v
    image = A @ v
    assert A.route == route
    return image


@pytest.mark.parametrize(
    ("make", "route"),
    [(hessian, "eager"), (gauss_newton, "eager"), (functional, "eager"), (gauss_newton, "traced")],
)
def test_two_threads_with_two_models(make: Any, route: str) -> None:
    """One measures through torch's math path, the other through `kernels.attention`; evaluations of one begin inside
    those of the other."""
    alone, together, errors = {}, {}, []
    models, batches = {}, {}
    for kind in ("math", "fused"):
        models[kind] = Attends(lambda: None).to(F64)
        batches[kind] = (torch.randn(2, 5, 4, dtype=F64), torch.randn(2, 5, 4, dtype=F64))
        alone[kind] = product(models[kind], batches[kind], make, route, kind)
        models[kind].meet = partial(time.sleep, 0.002)  # lets the other thread run

    def work(kind: str) -> None:
        try:
            together[kind] = product(models[kind], batches[kind], make, route, kind)
        except BaseException as error:
            errors.append(error)

    stock = nn.functional.scaled_dot_product_attention
    fast, backends = torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()
    threads = [threading.Thread(target=work, args=(kind,)) for kind in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    for kind, want in alone.items():
        for name, t in want.items():
            torch.testing.assert_close(together[kind][name], t, rtol=1e-12, atol=1e-14)
    assert nn.functional.scaled_dot_product_attention is stock
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert torch.backends.cuda.flash_sdp_enabled() == backends
