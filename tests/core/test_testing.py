"""The checker is checked: an operator broken in one way fails under the name of that property."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quadform.core.errors import CheckFailed
from quadform.core.operator import Block, Dense, Operator
from quadform.core.space import Space, heads
from quadform.testing import Finding, check_operator
from quadform.testing import operators as testing

SPACE = Space((("a", (2, 4)), ("b", (3,)), ("g", ())), heads("a", (2, 4), 2))
OUT = Space((("y", (5,)),))
N = SPACE.size
M = torch.randn(N, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
S = M + M.T
R = M[:5]

Images = dict[str, Tensor]


class Good(Operator):
    """A correct symmetric operator; each class below breaks one thing of it."""

    matrix = S

    def __init__(self, **options: Any) -> None:
        super().__init__(SPACE, **{"dtype": torch.float64, "device": "cpu", "symmetric": True} | options)

    def apply(self, V: Mapping[str, Tensor]) -> Images:
        return SPACE.unflatten(self.matrix.to(self.dtype) @ SPACE.flatten(V))


class Affine(Good):
    def apply(self, V: Mapping[str, Tensor]) -> Images:
        return {n: t + 1e-3 for n, t in super().apply(V).items()}


class Absolute(Good):
    """Homogeneous and yet not linear."""

    def apply(self, V: Mapping[str, Tensor]) -> Images:
        return {n: t.abs() for n, t in super().apply(V).items()}


class FalselySymmetric(Good):
    matrix = M


class Rectangular(Operator):
    """A correct operator that is not symmetric."""

    def __init__(self) -> None:
        super().__init__(SPACE, OUT, dtype=torch.float64, device="cpu", symmetric=False)

    def apply(self, V: Mapping[str, Tensor]) -> Images:
        return OUT.unflatten(R @ SPACE.flatten(V))

    def adjoint(self) -> Operator:
        return Dense(R.T, OUT, SPACE)


class WrongAdjoint(Rectangular):
    def adjoint(self) -> Operator:
        return Dense(1.001 * R.T, OUT, SPACE)


class NoAdjoint(Rectangular):
    def adjoint(self) -> Operator:
        return Operator.adjoint(self)


class WrongDtype(Good):
    def apply(self, V: Mapping[str, Tensor]) -> Images:
        return {n: t.float() for n, t in super().apply(V).items()}


class WrongShape(Good):
    def apply(self, V: Mapping[str, Tensor]) -> Images:
        return {n: t.flatten(1) if n == "a" else t for n, t in super().apply(V).items()}


class MissingName(Good):
    def apply(self, V: Mapping[str, Tensor]) -> Images:
        return {n: t for n, t in super().apply(V).items() if n != "b"}


class UnknownResult(Good):
    def apply(self, V: Mapping[str, Tensor]) -> Images:
        return super().apply(V) | {"c": torch.zeros(3)}


class MixesVectors(Good):
    """Linear, symmetric for a single vector, but a stack is centred: the k images depend on each other."""

    def apply(self, V: Mapping[str, Tensor]) -> Images:
        out = super().apply(V)
        return {n: t - t.mean(0) if len(t) > 1 else t for n, t in out.items()}


class WrongBlock(Good):
    """One block among the others is 1 % too large."""

    def sub(self, rows: Space, cols: Space) -> Operator:
        part = Block(self, rows, cols)
        return 1.01 * part if (rows.names, cols.names) == (("b",), ("a",)) else part


class BlockOfAnotherShape(Good):
    def sub(self, rows: Space, cols: Space) -> Operator:
        return Block(self, cols, rows)


class WrongDense(Good):
    def columns(self, start: int, stop: int) -> Tensor:
        return self.matrix[:, start:stop].flip(1)


class FalselyDefinite(Good):
    """Positive except for one direction, which random vectors hardly see."""

    matrix = torch.diag(torch.cat([torch.full((N - 1,), 10.0), torch.tensor([-0.1])])).double()

    def __init__(self) -> None:
        super().__init__(psd=True)


class NegativeDefinite(Good):
    matrix = -torch.eye(N, dtype=torch.float64)

    def __init__(self) -> None:
        super().__init__(psd=True)


class WrongScipy(Good):
    def to_scipy(self) -> Any:
        return 2 * super().to_scipy()


class WrongScipyAdjoint(Rectangular):
    def to_scipy(self) -> Any:
        from scipy.sparse.linalg import LinearOperator

        return LinearOperator(self.shape, matvec=lambda x: R.numpy() @ x, rmatvec=lambda y: np.zeros(N), dtype=float)


class NotANumber(Good):
    def apply(self, V: Mapping[str, Tensor]) -> Images:
        out = super().apply(V)
        out["b"][0, 0] = torch.nan
        return out


class Infinite(Good):
    def apply(self, V: Mapping[str, Tensor]) -> Images:
        return {n: t / 0 for n, t in super().apply(V).items()}


class WritesIntoItsArgument(Good):
    def apply(self, V: Mapping[str, Tensor]) -> Images:
        out = super().apply(V)
        V["b"].zero_()
        return out


class NeverTheSame(Good):
    """Dropout left on."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def apply(self, V: Mapping[str, Tensor]) -> Images:
        keep = torch.rand(N, generator=self.generator, dtype=torch.float64) > 0.5
        return SPACE.unflatten((S * keep * keep[:, None]) @ SPACE.flatten(V))


class WrongFlatForm(Good):
    def __matmul__(self, v: Any) -> Any:
        return 2 * super().__matmul__(v) if isinstance(v, Tensor) else super().__matmul__(v)


class Raises(Good):
    def apply(self, V: Mapping[str, Tensor]) -> Images:
        raise RuntimeError("out of luck")


BROKEN: list[tuple[Callable[[], Operator], str]] = [
    (Affine, "linearity: relative error"),
    (Absolute, "linearity: relative error"),
    (FalselySymmetric, "symmetry: relative error"),
    (FalselySymmetric, "dense matrix symmetric: relative error"),
    (WrongAdjoint, "adjoint: relative error"),
    (NoAdjoint, "adjoint: raised InputError: NoAdjoint is not symmetric and gives no adjoint."),
    (WrongDtype, "dtype, device, names and shapes: a is torch.float32 on cpu"),
    (WrongShape, "dtype, device, names and shapes: a has shape (3, 8)"),
    (MissingName, "dtype, device, names and shapes: b missing"),
    (UnknownResult, "dtype, device, names and shapes: c is torch.float32 on cpu; c unknown"),
    (MixesVectors, "k vectors = k single products: relative error"),
    (WrongBlock, "block (b, a) = slice of dense: relative error"),
    (BlockOfAnotherShape, "block (a, g) = slice of dense: shape (1, 8) instead of (8, 1)"),
    (WrongDense, "dense = products: relative error"),
    (FalselyDefinite, "positive semi-definite: relative error 1.0e-02"),
    (NegativeDefinite, "positive semi-definite: relative error 1.0e+00"),
    (WrongScipy, "scipy product: relative error 1.0e+00"),
    (WrongScipyAdjoint, "scipy adjoint product: relative error 1.0e+00"),
    (NotANumber, "finite: NaN or infinity in the result"),
    (Infinite, "finite: NaN or infinity in the result"),
    (WritesIntoItsArgument, "argument left alone: apply changed it in place"),
    (NeverTheSame, "same product twice: relative error"),
    (WrongFlatForm, "dict form = flat form: relative error"),
    (Raises, "apply: raised RuntimeError: out of luck"),
]


@pytest.mark.parametrize(("make", "named"), BROKEN, ids=lambda x: getattr(x, "__name__", None))
def test_a_broken_operator_fails_under_the_name_of_what_is_broken(make: Callable[[], Operator], named: str) -> None:
    """Each kind of breach is found and named."""
    with pytest.raises(CheckFailed) as caught:
        check_operator(make())
    assert f"FAILED {named}" in str(caught.value)
    assert "breaks the operator contract" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "only"),
    [
        (WrongBlock, {"block (b, a) = slice of dense"}),
        (FalselyDefinite, {"positive semi-definite"}),
        (WrongScipy, {"scipy product", "scipy adjoint product"}),
        (WrongAdjoint, {"adjoint"}),
        (WritesIntoItsArgument, {"argument left alone"}),
    ],
)
def test_what_is_not_broken_is_not_blamed(make: Callable[[], Operator], only: set[str]) -> None:
    """The failure lists the broken property alone."""
    with pytest.raises(CheckFailed) as caught:
        check_operator(make())
    blamed = {line.split("FAILED ")[1].split(":")[0] for line in str(caught.value).splitlines()[1:]}
    assert blamed == only


@pytest.mark.parametrize("make", [Good, Rectangular, lambda: Good(dtype=torch.float32)])
def test_a_good_operator_passes_and_every_finding_is_told(make: Callable[[], Operator]) -> None:
    """The findings come back, all ok, one for each property of the contract."""
    findings = check_operator(make())
    assert all(f.ok for f in findings)
    names = {f.name for f in findings}
    assert {"dtype, device, names and shapes", "finite", "argument left alone", "same product twice"} <= names
    assert {"linearity", "k vectors = k single products", "dict form = flat form", "scipy product"} <= names
    assert names & {"symmetry", "adjoint"}
    assert sum("slice of dense" in n for n in names) >= 3


def test_heads_are_among_the_blocks_checked() -> None:
    """Views are names too: the last head is checked against the slice of the dense matrix."""
    assert "block (a[1], a[1]) = slice of dense" in {f.name for f in check_operator(Good())}


def test_the_zero_operator_passes_in_every_precision() -> None:
    """Errors are relative; where there is nothing to be relative to, zero error is none."""
    for dtype in (torch.float64, torch.float32):
        check_operator(Dense(torch.zeros(N, N, dtype=dtype), SPACE, psd=True))


def test_a_large_operator_is_checked_without_its_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the dense form is not built, and the finding says so."""
    monkeypatch.setattr(testing, "_DENSE_LIMIT", N * N - 1)
    monkeypatch.setattr(Operator, "dense", lambda *_: pytest.fail("built"))
    assert f"left out: {N} x {N} entries" in [f.note for f in check_operator(Good())]


def test_tolerance_and_seed_are_arguments() -> None:
    """A small defect passes under a wide tolerance; the same seed gives the same errors."""
    check_operator(WrongAdjoint(), rtol=1e-2)
    assert check_operator(Good(), seed=5) == check_operator(Good(), seed=5)
    assert str(Finding("linearity", 2e-3, False)) == "FAILED linearity: relative error 2.0e-03"


def test_definiteness_of_a_large_operator_is_probed_by_random_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the matrix, v^T A v of the random vectors still exposes a grossly false promise."""
    monkeypatch.setattr(testing, "_DENSE_LIMIT", 0)
    with pytest.raises(CheckFailed, match="FAILED positive semi-definite: relative error 1"):
        check_operator(NegativeDefinite())


def test_of_many_names_three_spread_ones_are_compared() -> None:
    """Nine blocks, whatever the number of tensors and heads."""
    space = Space(tuple((f"p{i}", (1,)) for i in range(12)))
    findings = check_operator(Dense(torch.eye(12, dtype=torch.float64), space, psd=True))
    assert sum("slice of dense" in f.name for f in findings) == 9
