"""Shampoo, SOAP, PSGD, Adam, Adafactor, diagonals and exact blocks: what each divides a gradient by."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peer_models import OPTIMIZERS, gradients, indefinite, vector
from safetensors.torch import load_file
from torch import Tensor, nn

import quadform as qf
from quadform import preconditioners as pre
from quadform.core.errors import InputError
from quadform.core.matrix import kron
from quadform.testing import check_operator

PEERS = load_file(Path(__file__).with_name("peers.safetensors"))


def close(a: Tensor, b: Tensor, rtol: float = 1e-9) -> bool:
    return float((a - b).abs().max()) <= rtol * float(b.abs().max())


def power_of(M: Tensor, p: float) -> Tensor:
    s, U = torch.linalg.eigh(M)
    return (U * s**p) @ U.T


# --- second moments of gradients ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_peer(name: str) -> None:
    """pytorch-optimizer's Shampoo and SOAP, eight gradients of a matrix, a vector and a kernel, to 1e-6."""
    options, count = OPTIMIZERS[name]
    given = gradients()[:count]
    P = {"shampoo": pre.shampoo, "soap": pre.soap}[name.split(",")[0]](given, **options)
    update = P.inverse() @ given[-1]
    assert all(close(t, PEERS[f"{name}/{n}"], 1e-6) for n, t in update.items())
    check_operator(P)
    check_operator(P.sqrt_inverse(damping=0.1))


def test_shampoo_formula() -> None:
    """P = L^1/4 kron R^1/4 of sums; with decay and another exponent those of the moving averages."""
    given = [{"W": g["W"]} for g in gradients()]
    L, R = (0.01 * torch.eye(n, dtype=torch.float64) for n in (4, 3))
    for g in given:
        L, R = L + g["W"] @ g["W"].T, R + g["W"].T @ g["W"]
    assert close(pre.shampoo(given, eps=0.01).dense(), kron(power_of(L, 0.25), power_of(R, 0.25)))
    L, R = (0.01 * torch.eye(n, dtype=torch.float64) for n in (4, 3))
    for g in given:
        L, R = 0.9 * L + 0.1 * g["W"] @ g["W"].T, 0.9 * R + 0.1 * g["W"].T @ g["W"]
    P = pre.shampoo(given, eps=0.01, decay=0.9, exponent=0.5)
    assert close(P.dense(), kron(power_of(L, 0.5), power_of(R, 0.5)))
    rows = pre.shampoo(given, eps=0.01, decay=0.9, longest=3)
    assert close(rows.dense(), kron(torch.diag(L.diagonal() ** 0.25), power_of(R, 0.25)))


def test_gradients_of_a_risk() -> None:
    """A risk gives the gradients of its batches in order."""
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(6, 3).double(), torch.randn(6, 2).double()
    risk = qf.Risk(model, lambda out, b: (out - b[1]).square().mean(), [(x[:2], y[:2]), (x[2:], y[2:])], quiet=True)
    with risk.context():
        given = [risk.batch_gradient(risk.params, b) for b in risk.batches]
    assert torch.equal(pre.shampoo(risk).dense(), pre.shampoo(given).dense())
    assert torch.equal(pre.soap(risk).dense(), pre.soap(given).dense())
    with pytest.raises(InputError, match="got one gradient"):
        pre.soap(given[:1])
    with pytest.raises(InputError, match="needs at least one; got none"):
        pre.shampoo([])


# --- PSGD -----------------------------------------------------------------------------------------------------------
SPACE = qf.Space((("W", (5, 4)), ("V", (4, 4)), ("b", (4,))))


def test_psgd_equals_the_peer() -> None:
    """psgd-torch after 50 steps on the same pairs (v, H v), to 1e-6: both kinds, and with a diagonal factor."""
    H = indefinite()
    full = pre.psgd(qf.Dense(H, SPACE), "full", steps=50)
    assert close(full.inverse().dense(), PEERS["psgd/full"], 1e-6)
    matrix = qf.Dense(H, qf.Space((("W", (8, 5)),)))
    for kind, longest in (("kron", 8192), ("kron, diagonal", 5)):
        image = pre.psgd(matrix, steps=50, longest=longest).inverse() @ {"W": vector(40).view(8, 5)}
        assert close(image["W"], PEERS[f"psgd/{kind}"], 1e-6)


def test_full_psgd_reaches_the_inverse_of_the_absolute_hessian() -> None:
    """argmin_P E[h^T P h + v^T P^-1 v] = |H|^-1 for an indefinite H of 40 parameters."""
    s, U = torch.linalg.eigh(indefinite())
    s = s + s.sign()  # the smaller |H|, the more steps
    assert s.min() < -1
    H = qf.Dense((U * s) @ U.T, SPACE, symmetric=True)
    P = pre.psgd(H, "full", steps=700, rate=1.0, probes=40)
    assert close(P.inverse().dense(), (U / s.abs()) @ U.T, 1e-6)
    assert close(P.dense(), (U * s.abs()) @ U.T, 1e-6)
    assert close(P.sqrt_inverse().dense(), (U / s.abs().sqrt()) @ U.T, 1e-6)


def test_psgd_kron_is_exact_on_a_kronecker_hessian() -> None:
    """H = A kron B is reached by Q_1 kron Q_2; a long axis has a diagonal factor."""
    A, B = indefinite(4), torch.diag(torch.arange(1.0, 4.0).double())
    H = qf.Dense(kron(A, B), qf.Space((("W", (4, 3)),)))
    P = pre.psgd(H, steps=600, rate=0.5, probes=12)
    assert close(P.dense(), kron(power_of(A @ A, 0.5), B), 1e-6)
    diagonal = pre.psgd(H, steps=5, longest=3).blocks[0].base.factors
    assert [F.dim() for F in diagonal] == [1, 2]
    check_operator(P.inverse(damping=0.1))
    with pytest.raises(InputError, match="H v is 0 in `W`"):
        pre.psgd(qf.Dense(torch.zeros(12, 12), H.domain))


# --- states of optimizers -------------------------------------------------------------------------------------------
def trained(make: object, steps: int, **options: object) -> tuple[torch.optim.Optimizer, qf.Risk, dict[str, Tensor]]:
    """A model after some steps, the risk of it, and what the last step subtracted for a gradient of ones."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    data = (torch.randn(5, 3).double(), torch.randn(5, 2).double())
    risk = qf.Risk(model, lambda out, b: (out - b[1]).square().mean(), data, quiet=True)
    optimizer = make(model.parameters(), **options)
    moved = {}
    for step in range(steps):
        optimizer.zero_grad()
        (0.1**step * (model(data[0]) - data[1]).square().mean()).backward()  # v falls: its largest is another
        moved = {n: p.detach().clone() for n, p in model.named_parameters()}
        last = {n: p.grad.clone() for n, p in model.named_parameters()}
        optimizer.step()
    rate = {n: (moved[n] - p.detach()) / last[n] for n, p in model.named_parameters()} if steps else {}
    return optimizer, risk, rate


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("steps", [1, 5])
def test_adam_divides_as_its_last_step_did(make: object, amsgrad: bool, steps: int) -> None:
    """Without momentum the last step was lr g / P, bias correction and epsilon included."""
    options = {"lr": 1e-3, "betas": (0.0, 0.9), "eps": 1e-3, "amsgrad": amsgrad, "weight_decay": 0.0}
    optimizer, risk, rate = trained(make, steps, **options)
    P = pre.adam(optimizer, risk)
    ones = {n: torch.ones_like(t) for n, t in rate.items()}
    assert all(close(1e-3 * t, rate[n], 1e-6) for n, t in (P.inverse() @ ones).items())
    assert P.notes == (f"{type(optimizer).__name__} at step {steps}",)
    check_operator(P)


@pytest.mark.parametrize("steps", [1, 4])
def test_adafactor_divides_as_its_last_step_did(steps: int) -> None:
    """The direction of the last step of every tensor is g / P; its length is Adafactor's own rule."""
    optimizer, risk, rate = trained(torch.optim.Adafactor, steps, weight_decay=0.0)
    P = pre.adafactor(optimizer, risk)
    for n, t in (P.inverse() @ {n: torch.ones_like(t) for n, t in rate.items()}).items():
        assert close(t / t.norm(), rate[n] / rate[n].norm(), 1e-6)
    check_operator(P)


def test_states_that_are_not_there_are_refused() -> None:
    fresh, risk, _ = trained(torch.optim.AdamW, 0)
    with pytest.raises(InputError, match=r"this AdamW has not stepped `0.weight` yet.*step it first"):
        pre.adam(fresh, risk)
    factor, other, _ = trained(torch.optim.Adafactor, 0)
    with pytest.raises(InputError, match=r"this Adafactor has not stepped `0.weight` yet"):
        pre.adafactor(factor, other)
    with pytest.raises(InputError, match="the state of Adam or AdamW was asked for; got Adafactor"):
        pre.adam(factor, other)
    with pytest.raises(InputError, match=r"does not train `0.weight`"):
        pre.adam(trained(torch.optim.Adam, 1)[0], risk)


# --- parts of the operator itself -----------------------------------------------------------------------------------
def test_diagonal() -> None:
    """|diag H|, exact or with standard errors; entries below 0 are told."""
    H = qf.Dense(indefinite(), SPACE)
    P = pre.diagonal(H)
    assert close(P.dense(), torch.diag(H.matrix.diagonal().abs()))
    assert P.notes[0] == "|diagonal| (exact by 40 unit vectors)"
    assert P.notes[1] == f"{int((H.matrix.diagonal() < 0).sum())} of 40 entries are below 0"
    assert not P.stderr
    few = pre.diagonal(H, products=20)
    off = SPACE.flatten(few @ {n: torch.ones(s).double() for n, s in SPACE}) - H.matrix.diagonal().abs()
    assert float((off.abs() < 3 * SPACE.flatten(few.stderr)).double().mean()) > 0.9
    check_operator(few.inverse(damping=1.0))


def test_block_diagonal() -> None:
    """Exact blocks of single tensors and of groups; inverse of each block; indefinite blocks have no real root."""
    H = qf.Dense(indefinite(), SPACE)
    M = H.matrix
    want = torch.block_diag(M[:20, :20], M[20:36, 20:36], M[36:, 36:])
    P = pre.block_diagonal(H)
    assert close(P.dense(), want)
    assert close(P.inverse(damping=0.5).dense(), torch.linalg.inv(want + 0.5 * torch.eye(40)), 1e-8)
    check_operator(P)
    joined = pre.block_diagonal(H, {"W and b": ("W", "b")})
    want = M.clone()
    want[20:36, :20], want[:20, 20:36], want[20:36, 36:], want[36:, 20:36] = 0, 0, 0, 0
    assert close(joined.dense(), want)
    assert joined.notes == ("exact blocks: 2, the largest 24 wide",)
    with pytest.raises(InputError, match="not positive: its eigenvalues reach"):
        P.sqrt_inverse()
    with pytest.raises(InputError, match="disjoint groups of whole tensors"):
        pre.block_diagonal(H, {"a": ("W", "b"), "c": ("b",)})
    psd = qf.Dense(M @ M, SPACE, symmetric=True)
    root = pre.block_diagonal(psd).sqrt_inverse(damping=0.1)
    want = torch.block_diag(*(psd.matrix[a:b, a:b] for a, b in ((0, 20), (20, 36), (36, 40))))
    assert close(root.dense(), power_of(want + 0.1 * torch.eye(40), -0.5), 1e-6)
