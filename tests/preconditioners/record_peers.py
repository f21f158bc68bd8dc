"""Products of K-FAC, EKFAC, Shampoo, SOAP and PSGD of other packages on the problems of `peer_models`, recorded.

Run once, with curvlinops-for-pytorch 3.0.1, pytorch-optimizer 4.1.0, psgd-torch 0.6.1 and what they import (einops,
einconv, linear_operator, opt_einsum) on the path: `python tests/preconditioners/record_peers.py`. It writes
`peers.safetensors` beside it; the tests need that file alone.
"""

from __future__ import annotations

from pathlib import Path

import torch
from curvlinops import EKFACLinearOperator, KFACLinearOperator
from peer_models import CASES, OPTIMIZERS, SHAPES, gradients, indefinite, problem, vector
from psgd_torch import psgd
from pytorch_optimizer import SOAP, Shampoo
from safetensors.torch import save_file
from torch import Tensor, nn

from quadform.core.rng import stream


class ClassesSecond(nn.Module):
    """The peer wants (batch, classes, tokens) for a cross-entropy."""

    def __init__(self, model: nn.Module, moved: bool) -> None:
        super().__init__()
        self.model, self.moved = model, moved

    def forward(self, x: Tensor) -> Tensor:
        out = self.model(x)
        return out.transpose(1, 2) if self.moved else out


def factored(name: str, loss: str, which: str, sharing: str, scores: str, bias: str) -> Tensor:
    model, data = problem(name, loss)
    wrapped = ClassesSecond(model, name == "tokens" and loss == "cross-entropy")
    params = list(wrapped.parameters())
    operator = {"kfac": KFACLinearOperator, "ekfac": EKFACLinearOperator}[which](
        wrapped,
        {"cross-entropy": nn.CrossEntropyLoss, "mse": nn.MSELoss}[loss](),
        params,
        data,
        fisher_type={"exact": "type-2", "empirical": "empirical"}[scores],
        kfac_approx=sharing,
        separate_weight_and_bias=bias == "apart",
        check_deterministic=False,
    )
    return operator @ vector(sum(p.numel() for p in params))


def stepped(name: str) -> dict[str, Tensor]:
    """What the last gradient becomes, without momentum and decay."""
    options, count = OPTIMIZERS[name]
    params = {n: nn.Parameter(torch.zeros(s, dtype=torch.float64)) for n, s in SHAPES.items()}
    if name == "shampoo":
        optimizer = Shampoo(list(params.values()), lr=1.0)
    else:
        frequency = options["frequency"]
        optimizer = SOAP(
            list(params.values()), lr=1.0, betas=(0.0, 0.95), weight_decay=0.0, precondition_frequency=frequency
        )
    for g in gradients()[:count]:
        before = {n: p.detach().clone() for n, p in params.items()}
        for n, p in params.items():
            p.grad = g[n].clone()
        optimizer.step()
    return {n: before[n] - p.detach() for n, p in params.items()}


def fitted() -> dict[str, Tensor]:
    """Q^T Q of full PSGD, and of PSGD Kron times a vector, after 50 steps on the vectors that quadform draws; once
    with a diagonal factor for the longer axis."""
    H, generator = indefinite(), stream(0, "psgd", "cpu")
    Q, longest, krons = None, {"kron": float("inf"), "kron, diagonal": 5}, {}
    for _ in range(50):
        v = torch.randn((1, 40), generator=generator, dtype=torch.float64)
        h = v @ H
        V, G = v.view(8, 5), h.view(8, 5)
        if Q is None:
            scale = (v.square().sum() / h.square().sum()) ** 0.25
            Q = scale * torch.eye(40, dtype=torch.float64)
            krons = {kind: psgd.init_Q_exprs(V, scale, size, 10.0) for kind, size in longest.items()}
        psgd.update_precond_newton_math_(Q, None, v.T, h.T, 0.1, "2nd", 1e-300)
        for kron in krons.values():
            psgd.update_precond_kron_math_(*kron, V, G, 0.1, "2nd", 1e-300)
    W = vector(40).view(8, 5)
    return {"full": Q.T @ Q} | {kind: psgd.precond_grad_kron_math(*kron, W) for kind, kron in krons.items()}


def main() -> None:
    found = {"/".join(case): factored(*case) for case in CASES}
    found |= {f"{name}/{n}": t for name in OPTIMIZERS for n, t in stepped(name).items()}
    found |= {f"psgd/{kind}": t for kind, t in fitted().items()}
    save_file({n: t.contiguous() for n, t in found.items()}, Path(__file__).with_name("peers.safetensors"))


if __name__ == "__main__":
    main()
