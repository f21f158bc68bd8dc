"""The start-up check that cannot be skipped: is forward over reverse right on this torch build?

Current torch builds differentiate LayerNorm wrongly in some nestings (`torch.func.hessian` is tens of per cent off).
The route used here, jvp(grad), is compared once with double backward on a LayerNorm with a weight, and probed for
symmetry; where it fails, no operator is made.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from ..core.errors import CheckFailed
from ..core.forward import jvp


@cache
def require_sound_derivatives() -> float:
    """The relative gap between jvp(grad) and double backward through LayerNorm; raises where it is not rounding."""
    generator = torch.Generator().manual_seed(0)
    x, w, u, v = (torch.randn(n, generator=generator, dtype=torch.float64) for n in ((3, 5), (30,), (30,), (30,)))

    def loss(w: Tensor) -> Tensor:
        h = torch.nn.functional.layer_norm(x @ w[:25].view(5, 5), (5,), w[25:], None)
        return torch.tanh(h).square().sum()

    def product(d: Tensor) -> Tensor:
        return jvp(torch.func.grad(loss), (w,), (d,))[1]

    leaf = w.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    (twice,) = torch.autograd.grad(g, leaf, v)
    Hv, Hu = product(v), product(u)
    gap = float((Hv - twice).norm() / twice.norm())
    asymmetry = float((u @ Hv - v @ Hu).abs() / (u.norm() * Hv.norm()))
    if not max(gap, asymmetry) < 1e-10:
        raise CheckFailed(
            f"torch {torch.__version__} differentiates LayerNorm wrongly: jvp(grad) is {gap:.1e} from double backward"
            f" and {asymmetry:.1e} from symmetric. Results would be wrong, so none are given. Use another torch."
        )
    return gap
