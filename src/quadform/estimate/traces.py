"""The trace of an operator: exact by unit vectors where that is cheaper, else Hutchinson, Hutch++ or XTrace.

Hutchinson (1990): tr A = E z^T A z. Hutch++ (Meyer, Musco, Musco, Woodruff 2021): a third of the products finds an
approximate range Q, a third gives tr Q^T A Q exactly, the rest samples what is left. XTrace (Epperly, Tropp, Webber
2024): every probe serves both purposes, by leaving each one out in turn; the standard error comes from the spread of
the leave-one-out values and from what they share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.errors import InputError, TooLarge
from ..core.number import Estimate
from ..core.operator import Operator
from ..core.precision import own_precision
from ..core.progress import Progress, Report
from ..distributed.processes import holders
from .resume import Checkpoint, State
from .sampling import batch_size, mean_and_error, sample, student, sweep
from .vectors import AT_ONCE, Probe, at_least, chunks, need_square, orthonormal_rows, probes, without, working_dtype

#: Probes that are paired to see how far leave-one-out values depend on each other.
_PAIRED = 64
Method = Literal["auto", "exact", "hutchinson", "hutch++", "xtrace"]


@own_precision()
def trace(
    A: Operator,
    products: int = 60,
    *,
    method: Method = "auto",
    probe: Probe | None = None,
    tol: float | None = None,
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> Estimate:
    """tr A of a square operator from at most `products` products, with its standard error.

    `auto` is exact (n products with unit vectors) where n <= products; else XTrace on signs, or Hutchinson on the same
    products where its standard error is less than half of that (nearly diagonal operators); else, where XTrace's 3/2
    `products` vectors exceed the memory budget, Hutchinson alone, which keeps a handful. `tol` is the wanted relative
    standard error: Hutchinson stops there, and `converged` says whether it was reached. Default probes: signs for
    Hutchinson, normal for the others.
    """
    need_square(A, "the trace")
    products = at_least("products", products, 1)
    held = holders(A.domain)
    n = held.size(A.domain.size)
    if method not in ("auto", "exact", "hutchinson", "hutch++", "xtrace"):
        raise InputError(f"method is auto, exact, hutchinson, hutch++ or xtrace; got {method!r}.")
    if method == "exact" or (method == "auto" and n <= products and not held.cut):
        return Estimate(float(_exact(A)), matvecs=n, note=f"exact by {n} unit vectors")
    if method == "auto":
        try:
            if products >= 8:
                signs = probe or "rademacher"
                return _sketched(A, products, _better, "better", signs, tol, seed, memory, resume, progress)
        except TooLarge:
            pass
        method = "hutchinson"
    if method == "xtrace":
        at_least("products for XTrace", products, 4)
        return _sketched(A, products, _xtrace, "xtrace", probe, tol, seed, memory, resume, progress)
    if method == "hutch++":
        at_least("products for Hutch++", products, 6)
        return _sketched(A, products, _hutchpp, "hutch++", probe, tol, seed, memory, resume, progress)
    values = sample(
        A,
        lambda Z, AZ: held.sum((Z * AZ).sum(1, dtype=torch.float64)),
        "trace",
        products,
        probe=probe or "rademacher",
        tol=tol,
        seed=seed,
        memory=memory,
        resume=resume,
        progress=progress,
    )
    mean, error = mean_and_error(values)
    return _estimate(float(mean), float(error), len(values), tol, f"Hutchinson, {len(values)} probes")


def _estimate(value: float, error: float, products: int, tol: float | None, note: str) -> Estimate:
    reached = tol is None or error <= tol * abs(value)
    if not reached:
        note += f"; relative standard error {error / abs(value) if value else math.inf:.0e} > {tol:.0e}"
    return Estimate(value, error, "estimate", products, reached, note)


def _exact(A: Operator) -> Tensor:
    n = A.domain.size
    total = torch.zeros((), dtype=torch.float64)
    for which in chunks(0, n, AT_ONCE):
        columns = A.columns(which.start, which.stop).detach()[which.start : which.stop]
        total += columns.diagonal().sum(dtype=torch.float64).cpu()
    return total


class Images:
    """Named stacks of rows and their images, which survive an interruption."""

    def __init__(self, A: Operator, checkpoint: Checkpoint, shown: Progress, batch: int) -> None:
        self.A, self.checkpoint, self.shown, self.batch = A, checkpoint, shown, batch
        self.made: dict[str, Tensor] = {}
        self.full: dict[str, int] = {}
        if checkpoint.found is not None:
            self.made, numbers = dict(checkpoint.found[0]), dict(checkpoint.found[1])
            self.batch = int(numbers.pop("batch"))
            self.full = {name: int(k) for name, k in numbers.items()}
            shown.step(sum(self.full.values()))

    def of(self, name: str, rows: Callable[[range], Tensor], count: int, through: Operator | None = None) -> Tensor:
        """The images of `count` rows through the operator (or another one), `(count, n)`."""
        A, done = through or self.A, self.full.get(name, 0)
        out = torch.empty((count, A.codomain.size), dtype=working_dtype(A), device=A.device)
        if done:
            out[:done] = self.made[name][:done].to(out)
        self.made[name] = out

        def take(which: range, Z: Tensor, AZ: Tensor) -> None:
            out[which.start : which.stop] = AZ
            self.full[name] = which.stop

        sweep(
            A,
            range(done, count),
            self.batch,
            rows,
            take,
            checkpoint=self.checkpoint,
            state=self.state,
            shown=self.shown,
        )
        return out

    def state(self) -> State:
        return {name: t[: self.full.get(name, 0)] for name, t in self.made.items()}, {**self.full, "batch": self.batch}


def _sketched(
    A: Operator,
    products: int,
    estimator: Callable[..., tuple[float, float, int, str]],
    name: str,
    probe: Probe | None,
    tol: float | None,
    seed: int,
    memory: float | None,
    resume: str | Path | None,
    progress: bool | Report,
) -> Estimate:
    probe = probe or "gaussian"
    kept = 3 * (products // 2) + 2
    batch = batch_size(A, memory, each=4, kept=kept, purpose=f"{name} with {products} products")
    settings: dict[str, Any] = {"method": name, "products": products, "probe": probe, "seed": seed}
    with (
        Checkpoint(resume, "trace-" + name.replace("+", "p"), A, settings, rows=True) as checkpoint,
        Progress(products, "products", show=progress) as shown,
    ):
        value, error, used, note = estimator(A, products, probe, seed, Images(A, checkpoint, shown, batch))
    return _estimate(value, error, used, tol, note)


def _hutchpp(A: Operator, products: int, probe: Probe, seed: int, images: Images) -> tuple[float, float, int, str]:
    third, held = products // 3, holders(A.domain)
    Y = images.of("Y", lambda which: probes(A, seed, "hutch++/sketch", which, probe), third)
    Q, _ = orthonormal_rows(Y, held)
    del Y
    Z = images.of("Z", lambda which: Q[which.start : which.stop], len(Q))
    known = float(held.sum((Q * Z).sum(dtype=torch.float64)))
    rest = products - third - len(Q)

    def outside(which: range) -> Tensor:
        return without(probes(A, seed, "hutch++/rest", which, probe), Q, held)

    values: list[Tensor] = []
    AG = images.of("AG", outside, rest)
    for which in chunks(0, rest, AT_ONCE):
        values.append(held.sum((outside(which) * AG[which.start : which.stop]).sum(1, dtype=torch.float64).cpu()))
    mean, error = mean_and_error(torch.cat(values))
    return known + float(mean), float(error), third + len(Q) + rest, f"Hutch++, {len(Q)} directions, {rest} probes"


def _better(A: Operator, products: int, probe: Probe, seed: int, images: Images) -> tuple[float, float, int, str]:
    """XTrace, or Hutchinson from the same images where its standard error is less than half.

    The smaller of two errors is on average too small; one of two that differ by a factor is not chosen by chance.
    """
    found = _xtrace(A, products, probe, seed, images, normalise=True)
    Y = images.made["Y"]
    own = [
        (probes(A, seed, "xtrace", which, probe) * Y[which.start : which.stop]).sum(1, dtype=torch.float64).cpu()
        for which in chunks(0, len(Y), AT_ONCE)
    ]
    mean, error = mean_and_error(holders(A.domain).sum(torch.cat(own)))
    if float(error) < found[1] / 2:
        return float(mean), float(error), found[2], f"Hutchinson, {len(Y)} probes (better than XTrace on the same)"
    return found


def _xtrace(
    A: Operator, products: int, probe: Probe, seed: int, images: Images, normalise: bool = False
) -> tuple[float, float, int, str]:
    """XTrace. With Y = A Omega = Q R, s_i the unit vector along R^{-T} e_i, Q_(i) Q_(i)^T = Q (I - s_i s_i^T) Q^T:

        t_i = tr Q_(i)^T A Q_(i) + c_i u_i^T A u_i ,   u_i = (I - Q_(i) Q_(i)^T) omega_i ,

    c_i = (n - m + 1) / |u_i|^2 for probes whose direction is uniform, 1 for signs unless `normalise` asks for the
    former (a bias far below the error, which it lowers up to five times). The answer is the mean of the t_i.
    """
    held, m = holders(A.domain), products // 2
    n = held.size(A.domain.size)
    Omega_of: Callable[[range], Tensor] = lambda which: probes(A, seed, "xtrace", which, probe)  # noqa: E731
    Y = images.of("Y", Omega_of, m)
    Q, R = orthonormal_rows(Y, held)
    Z = images.of("Z", lambda which: Q[which.start : which.stop], len(Q))
    H = held.sum((Q @ Z.T).double().cpu())  # Q^T A Q
    if len(Q) < m:  # the range of A is spanned: nothing is left outside
        noise = torch.finfo(Q.dtype).eps * float(H.norm()) * math.sqrt(n)
        return float(H.trace()), noise, m + len(Q), f"XTrace: the operator has rank {len(Q)}, found whole"
    W, V, own, length = (torch.empty(s, dtype=torch.float64) for s in ((m, m), (m, m), (m,), (m,)))
    for which in chunks(0, m, AT_ONCE):
        part = slice(which.start, which.stop)
        Omega = Omega_of(which)
        W[:, part] = (Q @ Omega.T).double().cpu()
        V[:, part] = (Z @ Omega.T).double().cpu()  # (omega_i^T A Q)^T
        own[part] = (Omega * Y[part]).sum(1, dtype=torch.float64).cpu()  # omega_i^T A omega_i
        length[part] = Omega.square().sum(1, dtype=torch.float64).cpu()
    W, V, own, length = (held.sum(t) for t in (W, V, own, length))
    scaled = length if probe != "rademacher" or normalise else None
    mean, error = left_out_in_turn(R, H, W, R + V, own, scaled, n)
    return mean, error, 2 * m, f"XTrace, {m} probes left out in turn"


def left_out_in_turn(
    R: Tensor, H: Tensor, W: Tensor, cross: Tensor, own: Tensor, length: Tensor | None, n: int
) -> tuple[float, float]:
    """The mean of the leave-one-out values t_i (see `leave_one_out`) and its standard error. [own]

    The t_i share their sketch: s / sqrt(m) is too small by their covariance c, Var = s^2 / m + c. Let t_i(j) be t_i
    with probe j left out as well, d_ij = t_i - t_i(j). Given all probes but i, t_i and t_i(j) have mean tr B, and
    t_j(i) is a constant; so E d_ij (t_j(i) - tr B) = E (t_i(j) - tr B)(t_j - tr B) = 0, and c = E d_ij d_ji. Its mean
    over pairs is unbiased; the first `_PAIRED` probes are paired.
    """
    m, some = len(R), min(len(R), _PAIRED)
    values = leave_one_out(R, H, W, cross, own, length, n)
    d = torch.zeros((some, some), dtype=torch.float64)
    for j in range(some):
        rest = torch.cat([torch.arange(j), torch.arange(j + 1, m)])
        B, smaller = torch.linalg.qr(R[:, rest])
        scaled = None if length is None else length[rest]
        small = leave_one_out(smaller, B.T @ H @ B, B.T @ W[:, rest], B.T @ cross[:, rest], own[rest], scaled, n)
        d[:, j] = (values - torch.cat([small[:j], values[j : j + 1], small[j:]]))[:some]
    shared = float((d * d.T).sum()) / (some * (some - 1))
    error = math.sqrt(float(values.var()) / m + max(shared, 0.0))
    return float(values.mean()), error * student(m)


def leave_one_out(R: Tensor, H: Tensor, W: Tensor, cross: Tensor, own: Tensor, length: Tensor | None, n: int) -> Tensor:
    """The m leave-one-out values t_i of the trace of a matrix B (see `_xtrace`, where B = A) from small matrices.

    R `(m, m)`: triangular factor of the sketch; H = Q^T B Q; W = Q^T Omega; cross = Q^T (B + B^T) Omega;
    own_i = omega_i^T B omega_i; length_i = |omega_i|^2, or None for probes that are not to be scaled.
    """
    m = len(R)
    S = torch.linalg.inv(R).T
    S = S / S.norm(dim=0)
    X = W - S * (S * W).sum(0)  # coordinates of Q_(i)^T omega_i
    inside = H.trace() - ((H @ S) * S).sum(0)
    outside = own - (X * cross).sum(0) + (X * (H @ X)).sum(0)
    if length is not None:
        outside = outside * (n - m + 1) / (length - X.square().sum(0))
    return inside + outside
