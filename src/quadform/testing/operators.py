"""Contract checks that users can run on their own operators, and that every operator of the project passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import CheckFailed
from ..core.operator import Operator
from ..core.rng import stream
from ..core.space import Space, Vector

#: Above this many entries the dense form is not built, and the checks that need it are left out (and said to be).
_DENSE_LIMIT = 4_000_000


@dataclass(frozen=True)
class Finding:
    """One property of the contract: its name, how far it is off (relative), and whether that is within tolerance."""

    name: str
    error: float
    ok: bool
    note: str = ""

    def __str__(self) -> str:
        return f"{'ok    ' if self.ok else 'FAILED'} {self.name}: {self.note or f'relative error {self.error:.1e}'}"


def check_operator(A: Operator, *, seed: int = 0, k: int = 3, rtol: float | None = None) -> list[Finding]:
    """Test the contract of an operator; raise `CheckFailed` naming every broken property, else return the findings.

    Checked: dtype, device, names and shapes of the result, that it is finite, the same twice, and leaves its argument
    alone; linearity; symmetry, or <u, A v> = <A^T u, v>; positive semi-definiteness where promised; k vectors at once
    equal k single products; dict and flat forms agree; a named block equals the slice of the dense matrix; scipy's
    operator gives the same products in both directions. Relative errors up to `rtol` are round-off.
    """
    if rtol is None:
        rtol = 1e-10 if A.dtype == torch.float64 else 2e-3 if A.dtype == torch.float32 else 5e-2
    generator = stream(seed, "check_operator", A.device)
    options: dict[str, Any] = {"generator": generator, "dtype": A.dtype, "device": A.device}
    V, W = A.domain.random(k, **options), A.domain.random(k, **options)
    U = A.codomain.random(k, **options)
    v0 = {name: t[0] for name, t in V.items()}
    findings: list[Finding] = []

    def compare(name: str, got: Tensor, want: Tensor, scale: Tensor | None = None) -> None:
        if got.shape != want.shape:
            findings.append(Finding(name, math.inf, False, f"shape {tuple(got.shape)} instead of {tuple(want.shape)}"))
            return
        size = _largest(want if scale is None else scale)
        off = _largest(got - want)
        error = off / size if size > 0 else math.inf if off else 0.0
        findings.append(Finding(name, error, error <= rtol))  # NaN compares false: it fails

    def attempt(name: str, check: Callable[[], None]) -> None:
        try:
            check()
        except Exception as error:  # a contract check reports whatever the operator does wrong
            findings.append(Finding(name, math.inf, False, f"raised {type(error).__name__}: {error}"))

    given = _copied(V)
    try:
        AV = dict(A.apply(given))
    except Exception as error:
        raise _failure(A, [Finding("apply", math.inf, False, f"raised {type(error).__name__}: {error}")]) from error

    wrong = [
        f"{n} is {t.dtype} on {t.device}" for n, t in AV.items() if t.dtype != A.dtype or t.device.type != A.device.type
    ]
    wrong += [f"{n} missing" for n in A.codomain.names if n not in AV] + [
        f"{n} unknown" for n in AV if n not in A.codomain
    ]
    wrong += [f"{n} has shape {tuple(AV[n].shape)}" for n, s in A.codomain if n in AV and tuple(AV[n].shape) != (k, *s)]
    findings.append(Finding("dtype, device, names and shapes", float(len(wrong)), not wrong, "; ".join(wrong)))
    finite = not wrong and all(bool(t.isfinite().all()) for t in AV.values())
    if not wrong:
        findings.append(Finding("finite", 0.0, finite, "" if finite else "NaN or infinity in the result"))
    if not finite:
        raise _failure(A, findings)
    untouched = all(torch.equal(given[n], V[n]) for n in A.domain.names)
    findings.append(Finding("argument left alone", 0.0, untouched, "" if untouched else "apply changed it in place"))
    flat_AV = A.codomain.flatten(AV).clone()  # the result may share memory with the argument

    def repeatable() -> None:
        compare("same product twice", A.codomain.flatten(A.apply(_copied(V))), flat_AV)

    def linearity() -> None:
        mixed = {n: 2 * V[n] - 3 * W[n] for n in A.domain.names}
        want = 2 * flat_AV - 3 * A.codomain.flatten(A.apply(_copied(W)))
        compare("linearity", A.codomain.flatten(A.apply(mixed)), want, flat_AV)

    def adjoint() -> None:
        left = (A.codomain.flatten(U) * flat_AV).sum(0)
        right = A.domain.inner(A.T.apply(_copied(U)), V)
        compare(transposed, left, right, flat_AV.norm(dim=0) * A.codomain.flatten(U).norm(dim=0))

    def definiteness(lowest: Tensor, scale: Tensor) -> None:
        below, size = -float(lowest), float(scale)
        error = below / size if below > 0 else 0.0
        findings.append(Finding("positive semi-definite", error, error <= rtol))

    def one_by_one() -> None:
        single = [A.codomain.flatten(A.apply({n: t[i : i + 1].clone() for n, t in V.items()})) for i in range(k)]
        compare("k vectors = k single products", torch.cat(single, 1), flat_AV)

    def forms() -> None:
        compare("dict form = flat form", A.codomain.flatten(A @ _copied(v0)), A @ A.domain.flatten(v0), flat_AV)

    def blocks() -> None:
        matrix = A.dense()
        compare("dense = products", matrix @ A.domain.flatten(V), flat_AV)
        for rows, cols in _some_blocks(A):
            part = A.sub(rows, cols)
            want = matrix[A.codomain.coordinates(rows)][:, A.domain.coordinates(cols)]
            compare(f"block ({rows.names[0]}, {cols.names[0]}) = slice of dense", part.dense(), want, matrix)
        if A.symmetric:
            compare("dense matrix symmetric", matrix, matrix.T)
        if A.psd:
            eigenvalues = torch.linalg.eigvalsh(matrix.double())
            definiteness(eigenvalues.min(), eigenvalues.abs().max())

    def scipy_bridge() -> None:
        S = A.to_scipy()
        x, y = A.domain.flatten(v0), A.codomain.flatten({n: t[0] for n, t in U.items()})
        compare("scipy product", torch.from_numpy(S.matvec(x.cpu().numpy())), (A @ x).cpu())
        compare("scipy adjoint product", torch.from_numpy(S.rmatvec(y.cpu().numpy())), (A.T @ y).cpu())

    transposed = "symmetry" if A.symmetric else "adjoint"
    attempt("same product twice", repeatable)
    attempt("linearity", linearity)
    attempt(transposed, adjoint)
    if A.psd:
        flat_V = A.domain.flatten(V)
        definiteness((flat_V * flat_AV).sum(0).min(), (flat_V.norm(dim=0) * flat_AV.norm(dim=0)).max())
    attempt("k vectors = k single products", one_by_one)
    attempt("dict form = flat form", forms)
    if A.shape[0] * A.shape[1] <= _DENSE_LIMIT:
        attempt("block = slice of dense", blocks)
    else:
        findings.append(
            Finding("block = slice of dense", 0.0, True, f"left out: {A.shape[0]:,} x {A.shape[1]:,} entries")
        )
    if A.dtype in (torch.float32, torch.float64):
        attempt("scipy product", scipy_bridge)
    if not all(f.ok for f in findings):
        raise _failure(A, findings)
    return findings


def check_inverse(
    A: Operator, inverse: Operator, *, damping: float = 0.0, seed: int = 0, k: int = 3, rtol: float = 1e-6
) -> list[Finding]:
    """Test that `inverse` is (A + damping I)^-1 to `rtol` in both orders, and that it keeps the operators' contract."""
    findings = check_operator(inverse, seed=seed, k=k, rtol=rtol)
    V = A.domain.flatten(
        A.domain.random(k, generator=stream(seed, "check_inverse", A.device), dtype=A.dtype, device=A.device)
    )
    for name, got in (
        ("(A + damping I) A^-1 = I", A @ (W := inverse @ V) + damping * W),
        ("A^-1 (A + damping I) = I", inverse @ (A @ V + damping * V)),
    ):
        error = _largest(got - V) / _largest(V)
        findings.append(Finding(name, error, error <= rtol))
    if not all(f.ok for f in findings):
        raise _failure(inverse, findings)
    return findings


def _copied(V: Vector) -> dict[str, Tensor]:
    """The same vectors in memory of their own: a broken `apply` may write into its argument."""
    return {name: t.clone() for name, t in V.items()}


def _largest(t: Tensor) -> float:
    return float(t.abs().max()) if t.numel() else 0.0


def _some_blocks(A: Operator) -> list[tuple[Space, Space]]:
    """Names (and views) against each other, diagonal and off-diagonal: all of up to five, else three spread ones."""

    def some(space: Space) -> list[Space]:
        names = [*space.names, *(v.name for v in space.views)]
        if len(names) > 5:
            names = [names[0], names[len(names) // 2], names[-1]]
        return [space.select(n) for n in names]

    return [(rows, cols) for rows in some(A.codomain) for cols in some(A.domain)]


def _failure(A: Operator, findings: list[Finding]) -> CheckFailed:
    broken = "\n  ".join(str(f) for f in findings if not f.ok)
    return CheckFailed(f"{A!r} breaks the operator contract:\n  {broken}")
