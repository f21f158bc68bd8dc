"""Top-5 eigenpairs and single products by quadform and by other libraries, on the same float32 GPT-2.

Peers that are not installed are left out (`pip install --target DIR ...` and PYTHONPATH=DIR bring them in without
touching anything else). Truth: scipy's eigsh over a float64 double backward, no code of any library in it. Errors of
eigenvalues are relative to the largest; residuals |H v - lambda v| / lambda are taken with the float64 Hessian.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from curvature import double_backward, off, once, resized, twins
from curvature import loss as model_loss
from peers_spectrum import TOP, Flat
from quadform.curvature import Risk, hessian
from quadform.estimate import eigenpairs

TOL = 1e-3


def truth(exact: Any, batch: dict[str, Tensor]) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The float64 Hessian as a map of flat vectors, and its TOP largest eigenvalues."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    shapes = {n: p.shape for n, p in exact.named_parameters()}
    n = sum(s.numel() for s in shapes.values())

    def product(v: Tensor) -> Tensor:
        parts = v.split([s.numel() for s in shapes.values()])
        named = {name: t.view(s) for (name, s), t in zip(shapes.items(), parts, strict=True)}
        return torch.cat([t.reshape(-1) for t in double_backward(exact, batch, named).values()])

    A = LinearOperator((n, n), matvec=lambda x: product(torch.from_numpy(x.reshape(-1))).numpy(), dtype="float64")
    values = eigsh(A, k=TOP, which="LA", tol=1e-8, ncv=40, return_eigenvectors=False)
    return product, torch.from_numpy(values.copy()).sort(descending=True).values


def run(options: argparse.Namespace) -> list[dict]:
    model, exact, batch = twins(resized(options, device="cpu"))
    ids = batch["input_ids"]
    x, y = ids, ids[:, 1:].flatten()
    params = dict(model.named_parameters())
    v = torch.randn(sum(p.numel() for p in params.values()), generator=torch.Generator().manual_seed(0))
    product, want = truth(exact, batch)
    exact_v = product(v.double())
    rows: list[dict] = []
    print("\npeers: top 5 eigenpairs, processor seconds; GPT-2 with 4 layers, d=128, 2 x 64 tokens, float32")
    head = f"  {'':<46} {'product':>8} {'seconds':>8} {'first':>7} {'products':>8} {'eigenvalue':>10} {'residual':>9}"
    print(f"{head}\n  {'':<46} {'error':>8} {'':>8} {'extra':>7} {'':>8} {'error':>10} {'(worst)':>9}")

    def add(name: str, apply: Callable[[Tensor], Tensor], find: Callable[[], tuple], prepare: float = 0.0) -> None:
        error = off({"v": apply(v)}, {"v": exact_v})
        values, vectors, products = [None], [None], [0]

        def work() -> None:
            values[0], vectors[0], products[0] = find()

        seconds = once(work, "cpu")
        got = torch.as_tensor(values[0], dtype=torch.float64).sort(descending=True).values
        gap = float((got - want).abs().max() / want[0])
        worst = None
        if vectors[0] is not None:
            units = [u.double() / u.double().norm() for u in vectors[0]]
            pairs = zip(units, torch.as_tensor(values[0], dtype=torch.float64), strict=True)
            worst = max(float((product(u) - lam * u).norm() / lam.abs()) for u, lam in pairs)
        row = {"what": name, "product_error": error, "seconds": seconds, "prepare_s": prepare}
        row |= {"products": products[0], "eigenvalue_error": gap, "worst_residual": worst}
        rows.append(row)
        shown = f"{worst:.0e}" if worst is not None else "-"
        print(
            f"  {name:<46} {error:>8.0e} {seconds:>8.2f} {prepare:>7.1f} {products[0]:>8} {gap:>10.0e} {shown:>9}",
            flush=True,
        )

    risk = Risk(model, model_loss, batch, quiet=True)
    for route in ("eager", "traced", "compiled"):
        A = hessian(risk, route=route)
        start = time.process_time()
        A @ v
        prepare = time.process_time() - start if route != "eager" else 0.0

        def ours(A: Any = A) -> tuple:
            pairs = eigenpairs(A, TOP, tol=TOL)
            flat = risk.space.flatten(pairs.vectors).T
            return [e.value for e in pairs.top], list(flat), pairs.products

        add(f"quadform, {A.route}", lambda u, A=A: A @ u, ours, prepare)
    for peer in (curvlinops, pyhessian, eigenthings):
        try:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                peer(model, params, x, y, add)
        except ImportError as error:
            print(f"  {peer.__name__}: not installed ({error})")
            rows.append({"what": peer.__name__, "missing": str(error)})
    return rows


def curvlinops(model: Any, params: dict, x: Tensor, y: Tensor, add: Any) -> None:
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import LinearOperator, eigsh

    H = HessianLinearOperator(
        Flat(model), nn.CrossEntropyLoss(), list(params.values()), [(x, y)], check_deterministic=False
    )
    count = [0]

    def matvec(u: Any) -> Any:
        count[0] += 1
        return (H @ torch.as_tensor(u, dtype=torch.float32).reshape(-1)).detach().numpy()

    def find() -> tuple:
        count[0] = 0
        values, vectors = eigsh(LinearOperator(H.shape, matvec=matvec, dtype="float32"), k=TOP, which="LA", tol=TOL)
        return values.copy(), list(torch.from_numpy(vectors.T.copy())), count[0]

    add("curvlinops + scipy eigsh(tol=1e-3)", lambda u: (H @ u).detach(), find)


def pyhessian(model: Any, params: dict, x: Tensor, y: Tensor, add: Any) -> None:
    from pyhessian import hessian as power_iteration
    from pyhessian.utils import hessian_vector_product

    H = power_iteration(Flat(model), nn.CrossEntropyLoss(), data=(x, y), cuda=False)

    def apply(u: Tensor) -> Tensor:
        parts = u.split([p.numel() for p in H.params])
        v = [t.view_as(p) for t, p in zip(parts, H.params, strict=True)]
        return torch.cat([t.reshape(-1) for t in hessian_vector_product(H.gradsH, H.params, v)]).detach()

    def find() -> tuple:
        values, vectors = H.eigenvalues(top_n=TOP)
        return values, [torch.cat([t.reshape(-1) for t in v]) for v in vectors], -1

    add("PyHessian eigenvalues (largest size, defaults)", apply, find)
    model.zero_grad(set_to_none=True)


def eigenthings(model: Any, params: dict, x: Tensor, y: Tensor, add: Any) -> None:
    from hessian_eigenthings import HessianOperator, lanczos, supervised_loss

    H = HessianOperator(Flat(model), [(x, y)], supervised_loss(nn.functional.cross_entropy))
    for steps, said in ((None, "defaults: 10 steps"), (48, "48 steps")):

        def find(steps: int | None = steps) -> tuple:
            found = lanczos(H, k=TOP, which="LA", max_iter=steps, seed=0)
            return found.eigenvalues, list(found.eigenvectors), steps or 2 * TOP

        add(f"hessian-eigenthings lanczos ({said})", lambda u: H.matvec(u).detach(), find)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(argparse.Namespace(dim=128, tokens=64, batch=2, device="cpu"))
