"""Operator: the algebra, named blocks, the dense form and the scipy bridge, for every class of core."""

from __future__ import annotations

import math
import os
import warnings
import weakref
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quadform.core import memory, operator
from quadform.core.errors import InputError, TooLarge, UnknownName
from quadform.core.matrix import kron
from quadform.core.operator import Block, Dense, Operator, Product, Scaled, Sum
from quadform.core.space import Space, View, heads
from quadform.core.structured import KroneckerSum
from quadform.testing import check_operator

TOL = {"rtol": 1e-12, "atol": 1e-12}


class Opaque(Operator):
    """A matrix known only through its products, as a Hessian is; counts them."""

    def __init__(self, base: Dense) -> None:
        super().__init__(
            base.domain,
            base.codomain,
            dtype=base.dtype,
            device=base.device,
            symmetric=base.symmetric,
            psd=base.psd,
        )
        self.base, self.products = base, 0

    def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.products += 1
        return self.base.apply(V)

    def adjoint(self) -> Operator:
        return self if self.symmetric else Opaque(self.base.adjoint())  # type: ignore[arg-type]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def symmetric(n: int, seed: int = 0) -> Tensor:
    M = randn(n, n, seed=seed)
    return M + M.T


def gram(n: int, rank: int, seed: int = 0) -> Tensor:
    J = randn(rank, n, seed=seed)
    G = J.T @ J
    return (G + G.T) / 2


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """A matrix W cut into heads, a fused tensor with views, a vector and a scalar: all that a space can hold."""
    d, h, dk = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    views = list(heads("W_V", (d, h * dk), h))
    for i, name in enumerate(("W_Q", "W_K")):
        views.append(View(name, "qk", (h, 2, dk, d), ((0, h), (i, i + 1), (0, dk), (0, d)), (h * dk, d)))
    parts = [("W_V", (d, h * dk)), ("qk", (2 * h * dk, d)), ("b", (d,)), ("g", ())]
    return Space(tuple(parts), tuple(views))


SMALL = st.integers(1, 4)
NAMES = st.sampled_from(["W_V", "W_V[0]", "W_V[*]", "W_Q", "W_?", "qk", "b", "g", "*"])


# --- every class keeps the contract -----------------------------------------------------------------------------------
@given(spaces(), SMALL)
def test_dense_keeps_the_contract(space: Space, m: int) -> None:
    """Dense: symmetric (found out), rectangular, and positive semi-definite by promise."""
    out = Space((("y", (m,)),))
    assert Dense(symmetric(space.size), space).symmetric
    check_operator(Dense(symmetric(space.size), space))
    check_operator(Dense(randn(m, space.size), space, out))
    check_operator(Dense(gram(space.size, 2), space, psd=True))


@given(spaces(), SMALL)
def test_sum_and_scaled_keep_the_contract(space: Space, m: int) -> None:
    """A + B, A - B, c A and -A are operators with the matrices one expects, symmetric and rectangular."""
    out = Space((("y", (m,)),))
    for make in (
        lambda seed: Dense(symmetric(space.size, seed), space),
        lambda seed: Opaque(Dense(randn(m, space.size, seed=seed), space, out)),
    ):
        A, B = make(1), make(2)
        a, b = A.dense(), B.dense()
        for C, want in ((A + B, a + b), (A - B, a - b), (2.5 * A, 2.5 * a), (A * 2.5, 2.5 * a), (-A, -a)):
            check_operator(C)
            torch.testing.assert_close(C.dense(), want, **TOL)
            torch.testing.assert_close(C.T.dense(), want.T, **TOL)


@given(SMALL, SMALL, SMALL)
def test_product_keeps_the_contract(m: int, n: int, p: int) -> None:
    """(A B) v = A (B v), (A B)^T = B^T A^T; A A of a symmetric A is positive semi-definite."""
    X, Y, Z = (Space((("x", (s,)),)) for s in (m, n, p))
    A, B = Dense(randn(m, n, seed=1), Y, X), Dense(randn(n, p, seed=2), Z, Y)
    check_operator(A @ B)
    torch.testing.assert_close((A @ B).dense(), A.matrix @ B.matrix, **TOL)
    torch.testing.assert_close((A @ B).T.dense(), (A.matrix @ B.matrix).T, **TOL)
    S = Dense(symmetric(m), X)
    assert (S @ S).psd
    check_operator(S @ S)


@given(spaces(), NAMES, NAMES)
def test_block_keeps_the_contract(space: Space, rows: str, cols: str) -> None:
    """A.block(rows, cols) = R_rows A R_cols^T for tensors, heads and fused views, of opaque and of known matrices."""
    M = symmetric(space.size)
    i, j = space.coordinates(space.select(rows)), space.coordinates(space.select(cols))
    want = M[i[:, None], j]
    composed = 2.0 * (Opaque(Dense(M, space)) + Dense(M, space)) - Dense(M, space)
    for A, factor in ((Opaque(Dense(M, space)), 1), (Dense(M, space), 1), (composed, 3)):
        part = A.block(rows, cols)
        torch.testing.assert_close(part.dense(), factor * want, **TOL)
        torch.testing.assert_close(part.T.dense(), factor * want.T, **TOL)
        assert part.symmetric == (space.select(rows).parts == space.select(cols).parts)
    assert isinstance(Opaque(Dense(M, space)).block(rows, cols), Block)
    check_operator(Opaque(Dense(M, space)).block(rows, cols))


@given(spaces(), NAMES, NAMES)
def test_block_of_a_product_and_of_a_rectangular_operator(space: Space, rows: str, cols: str) -> None:
    """Blocks of operators that are not symmetric, and of A B, are slices of their matrices; so are their adjoints."""
    M, N = randn(space.size, space.size, seed=1), randn(space.size, space.size, seed=2)
    i, j = space.coordinates(space.select(rows)), space.coordinates(space.select(cols))
    for A, want in ((Opaque(Dense(M, space)), M), (Dense(M, space) @ Dense(N, space), M @ N)):
        part = A.block(rows, cols)
        check_operator(part)
        torch.testing.assert_close(part.dense(), want[i[:, None], j], **TOL)


@given(*[SMALL] * 5)
def test_kronecker_sum_keeps_the_contract(N: int, p: int, q: int, r: int, s: int) -> None:
    """sum_n A_n kron B_n acts as V -> sum_n A_n V B_n^T; its adjoint has transposed factors."""
    A, B = randn(N, p, q, seed=1), randn(N, r, s, seed=2)
    K = KroneckerSum(A, B, Space((("V", (q, s)),)), Space((("U", (p, r)),)))
    check_operator(K)
    want = sum(kron(a, b) for a, b in zip(A, B, strict=True))
    torch.testing.assert_close(K.dense(), want, **TOL)
    torch.testing.assert_close(K.T.dense(), want.T, **TOL)


@given(SMALL, SMALL, SMALL)
def test_symmetric_kronecker_sum_is_found_out(N: int, p: int, r: int) -> None:
    """Symmetric factors give a symmetric operator, positive semi-definite ones a psd one."""
    A, B = (torch.stack([gram(m, 2, seed=10 * t + i) for i in range(N)]) for t, m in enumerate((p, r)))
    K = KroneckerSum(A, B, Space((("V", (p, r)),)), psd=True)
    assert K.symmetric
    check_operator(K)


def test_kronecker_sum_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum over n is cut so that A_n V stays within the scratch limit; the pieces add up to the same product."""
    A, B = randn(7, 3, 2, seed=1), randn(7, 2, 4, seed=2)
    K = KroneckerSum(A, B, Space((("V", (2, 4)),)), Space((("U", (3, 2)),)))
    whole = K.dense()
    sizes: list[int] = []
    einsum = torch.einsum
    monkeypatch.setattr(torch, "einsum", lambda eq, a, *rest: sizes.append(len(a)) or einsum(eq, a, *rest))
    monkeypatch.setattr(operator, "_SCRATCH", 2 * 8 * 3 * 4)
    torch.testing.assert_close(K.dense(), whole, **TOL)
    assert sizes == [2, 2, 2, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_class_keeps_the_contract_on_a_gpu() -> None:
    """Products, blocks of views, the dense form and the scipy bridge of operators whose tensors live on a GPU."""
    space = Space((("W", (2, 4)), ("g", ())), heads("W", (2, 4), 2))
    A = Dense(symmetric(9).cuda(), space)
    K = KroneckerSum(randn(3, 2, 2).cuda(), randn(3, 4, 4).cuda(), Space((("W", (2, 4)),)))
    for op in (A, Opaque(A), A - 2 * Opaque(A), A @ A, Opaque(A).block("W[1]", "g"), A.block("W[*]"), K):
        check_operator(op)
        assert op.dense().is_cuda
    with pytest.raises(InputError, match="on cpu; this operator works in"):
        A @ torch.zeros(9, dtype=torch.float64)


# --- the algebra ------------------------------------------------------------------------------------------------------
def test_flags_propagate() -> None:
    """symmetric and psd of sums, multiples, squares and blocks follow from those of the terms, and only where true."""
    space = Space((("a", (2,)), ("b", (2,))))
    S, P, N = Dense(symmetric(4), space), Dense(gram(4, 2), space, psd=True), Dense(randn(4, 4), space)
    flags = lambda A: (A.symmetric, A.psd)  # noqa: E731
    assert flags(S) == (True, False)
    assert flags(P) == (True, True)
    assert flags(N) == (False, False)
    assert flags(S + P) == (True, False)
    assert flags(P + P) == (True, True)
    assert flags(P - P) == (True, False)
    assert flags(S + N) == (False, False)
    assert flags(2 * P) == (True, True)
    assert flags(0 * P) == (True, True)
    assert flags(-1 * P) == (True, False)
    assert flags(S @ S) == (True, True)
    assert flags(S @ P) == (False, False)
    assert flags(N @ N) == (False, False)
    for A in (P, Opaque(P)):
        assert flags(A.block("a")) == (True, True)
        assert flags(A.block("a", "b")) == (False, False)
    assert S.T is S
    assert (S + P).T.dense().equal((S + P).dense())


def test_nested_sums_are_flattened_and_blocks_of_blocks_are_blocks() -> None:
    """(A + B) + C has three terms; a block of a block reaches the base in one step."""
    space = Space((("a", (2,)), ("b", (2,)), ("c", (1,))))
    A = Opaque(Dense(symmetric(5), space))
    assert len(((A + A) + (A + A)).terms) == 4
    twice = A.block(("a", "b")).block("a", "b")
    assert isinstance(twice, Block)
    assert twice.base is A
    assert torch.equal(twice.dense(), A.dense()[:2, 2:4])


def test_products_with_every_form_of_vector() -> None:
    """A @ v keeps the kind: dict -> dict, stack -> stack, (n,) -> (m,), (n, k) -> (m, k), operator -> operator."""
    space, out = Space((("a", (2, 2)), ("g", ()))), Space((("y", (3,)),))
    A = Dense(randn(3, 5), space, out)
    x = randn(5, 2, seed=1)
    torch.testing.assert_close(A @ x[:, 0], (A @ x)[:, 0], **TOL)
    torch.testing.assert_close(A @ x, A.matrix @ x, **TOL)
    single, stack = A @ space.unflatten(x[:, 0]), A @ space.unflatten(x)
    assert single["y"].shape == (3,)
    assert stack["y"].shape == (2, 3)
    assert torch.equal(stack["y"].T, A @ x)
    assert (A @ x[:, :0]).shape == (3, 0)
    assert isinstance(A.T @ A, Product)


@pytest.mark.parametrize("factor", [2, 2.0, np.float64(2), np.int64(2), torch.tensor(2.0)])
def test_multiples_by_any_kind_of_number(factor) -> None:
    """c A and A c for Python's, numpy's and torch's numbers."""
    A = Dense(symmetric(3), Space((("x", (3,)),)))
    for C in (factor * A, A * factor):
        assert isinstance(C, Scaled)
        assert torch.equal(C.dense(), 2 * A.matrix)


X, Y = Space((("x", (3,)),)), Space((("y", (2,)),))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda A: A @ "v", "multiplies a dict of tensors, a flat tensor or an operator; got str"),
        (lambda A: A @ np.zeros(3), "got ndarray"),
        (lambda A: A @ torch.zeros(4, dtype=torch.float64), r"has shape \(3,\) or \(3, k\); got \(4,\)"),
        (lambda A: A @ torch.tensor(1.0, dtype=torch.float64), r"got \(\)"),
        (lambda A: A @ torch.zeros(3, 1, 1, dtype=torch.float64), r"got \(3, 1, 1\)"),
        (lambda A: A @ torch.zeros(3), r"x is torch.float32 on cpu; this operator works in torch.float64"),
        (lambda A: A @ {"x": torch.zeros(3)}, "Convert the vector with"),
        (lambda A: A @ {"z": torch.zeros(3)}, "missing x; unknown z"),
        (lambda A: A * A, "the product of two operators is `A @ B`"),
        (lambda A: A + Dense(randn(2, 3), X, Y), r"x 3; 3 coordinates\) and .*y 2"),
        (lambda A: A + Dense(torch.eye(3), X), "differ in dtype or device: torch.float64 on cpu and torch.float32"),
        (lambda A: A @ Dense(torch.eye(3), X), "differ in dtype or device"),
        (lambda A: A @ Dense(randn(2, 3), X, Y), "needs A's domain to be B's codomain"),
        (lambda A: Dense(randn(2, 2), X), r"has shape \(3, 3\); got \(2, 2\)"),
        (lambda A: Dense(randn(2, 3), X, Y, symmetric=True), "a symmetric operator maps a space to itself"),
        (lambda A: Dense(randn(3, 3), X, psd=True), "pass symmetric=True with psd=True"),
        (lambda A: KroneckerSum(randn(1, 2, 2), randn(2, 2, 2), X), "one kind; got"),
        (lambda A: KroneckerSum(randn(2, 2), randn(2, 2), X), r"are \(N, p, q\) and \(N, r, s\)"),
        (lambda A: KroneckerSum(randn(1, 2, 2), randn(1, 2, 2), X), r"one tensor of shape \(2, 2\)"),
        (lambda A: KroneckerSum(randn(1, 1, 1), torch.ones(1, 3, 3), X), "of one kind"),
    ],
)
def test_what_cannot_be_multiplied_or_added_is_refused(make, text: str) -> None:
    """Wrong shapes, kinds and partners are InputErrors that say what was got."""
    with pytest.raises(InputError, match=text):
        make(Dense(symmetric(3), X))


def test_numbers_cannot_be_added() -> None:
    """A + 1 is no operator: Python's own TypeError."""
    for make in (lambda A: A + 1, lambda A: A - 1, lambda A: 1 + A):
        with pytest.raises(TypeError):
            make(Dense(symmetric(3), X))


def test_unknown_block_names_list_the_known_ones() -> None:
    """The text promised to people: what was asked, what there is."""
    A = Dense(symmetric(6), Space((("W_Q", (2,)), ("W_K", (2,)), ("W_V", (2,)))))
    with pytest.raises(UnknownName) as caught:
        A.block("W_Q", "W_O")
    assert str(caught.value) == "no parameter matches 'W_O'; this space has W_Q, W_K, W_V."


def test_an_operator_without_adjoint_says_so() -> None:
    """A class that is not symmetric and gives no adjoint refuses `.T`."""

    class OneWay(Operator):
        def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {"y": V["x"][:, :2]}

    with pytest.raises(InputError, match="OneWay is not symmetric and gives no adjoint"):
        _ = OneWay(X, Y, dtype=torch.float64, device="cpu", symmetric=False).T


def test_repr_tells_kind_size_and_place() -> None:
    """`<psd Dense 3 x 3, torch.float64, cpu>`."""
    assert repr(Dense(gram(3, 3), X, psd=True)) == "<psd Dense 3 x 3, torch.float64, cpu>"
    assert repr(Dense(randn(2, 3), X, Y)) == "<Dense 2 x 3, torch.float64, cpu>"


def test_operators_never_change_what_they_are_given() -> None:
    """Sums, multiples and blocks of an operator that hands its argument back leave that argument as it was."""

    class Identity(Operator):
        def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return V  # type: ignore[return-value]

    space = Space((("a", (2,)), ("b", (1,))))
    E = Identity(space, dtype=torch.float64, device="cpu", symmetric=True, psd=True)
    for A in (E + E, 2 * E - E, E @ E, (E + E).block("a")):
        check_operator(A)
        V = A.domain.random(2, dtype=torch.float64)
        before = {n: t.clone() for n, t in V.items()}
        A.apply(V)
        assert set(V) == set(before)
        assert all(torch.equal(V[n], before[n]) for n in before)


# --- dense ------------------------------------------------------------------------------------------------------------
@given(spaces(), st.integers(1, 9))
def test_dense_form_by_chunks(space: Space, chunk: int) -> None:
    """The chunk changes the number of products, ceil(n / chunk), and not the matrix."""
    A = Opaque(Dense(randn(2, space.size), space, Y))
    torch.testing.assert_close(A.dense(chunk=chunk), A.base.matrix, **TOL)
    assert A.products == math.ceil(space.size / chunk)


def test_a_small_block_of_a_huge_operator_is_built_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns at once are counted by the length of the vectors that products see, the base's for a block."""
    space = Space((("small", (6,)), ("huge", (94,))))
    A = Opaque(Dense(symmetric(100), space))
    monkeypatch.setattr(operator, "_SCRATCH", 200)
    for op, want, products in (
        (A.block("small"), A.base.matrix[:6, :6], 3),
        (A.block("small") + A.block("small"), 2 * A.base.matrix[:6, :6], 6),
        (A.block("small", "huge"), A.base.matrix[:6, 6:], 47),
        (A, A.base.matrix, 50),
    ):
        A.products = 0
        torch.testing.assert_close(op.dense(), want, **TOL)
        assert A.products == products


def test_dense_is_a_copy() -> None:
    """Writing into `A.dense()` does not change A."""
    A = Dense(symmetric(3), X)
    A.dense().zero_()
    assert bool(A.matrix.any())


def test_dense_form_of_known_matrices_makes_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and multiples of dense matrices are added entry by entry: n^2 work, not n^3."""
    A, B = Dense(symmetric(3, 1), X), Dense(symmetric(3, 2), X)
    monkeypatch.setattr(Dense, "apply", lambda *_: pytest.fail("multiplied"))
    torch.testing.assert_close((A - 2 * B).dense(), A.matrix - 2 * B.matrix, **TOL)


def test_memory_of_the_dense_form_is_the_matrix_and_a_few_chunks() -> None:
    """Peak of live tensor bytes in `dense()`: the matrix and at most four chunks (units, images, their flat form)."""
    n, chunk = 600, 16
    space = Space((("a", (n // 2,)), ("b", (n // 2,))))
    D = randn(n, 1)

    class Diagonal(Operator):
        def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
            half = n // 2
            return {"a": V["a"] * D[:half, 0], "b": V["b"] * D[half:, 0]}

    A = Diagonal(space, dtype=torch.float64, device="cpu", symmetric=True)
    for op in (A, A + A + A, 2.0 * A):
        with LiveBytes() as live:
            op.dense(chunk=chunk)
        assert 8 * n * n <= live.peak <= 8 * (n * n + 4 * n * chunk), f"{live.peak / (8 * n * n):.3f} matrices"


class LiveBytes(TorchDispatchMode):
    """Counts the most bytes that tensors made while it is on hold at once (each storage once)."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[weakref.ref[Tensor]] = []
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.made = [r for r in self.made if r() is not None]
        self.made += [weakref.ref(t) for t in (out if isinstance(out, list | tuple) else [out]) if torch.is_tensor(t)]
        stores = [t.untyped_storage() for t in (r() for r in self.made) if t is not None]
        self.peak = max(self.peak, sum({s.data_ptr(): s.nbytes() for s in stores}.values()))
        return out


def test_a_matrix_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal tells what is needed, what is free, and the two ways out; it comes before anything is computed."""
    A = Opaque(Dense(symmetric(400), Space((("x", (400,)),))))
    monkeypatch.setattr(memory, "free_bytes", lambda device: 50.0)
    with pytest.raises(TooLarge) as caught:
        A.dense()
    assert str(caught.value) == (
        "The full matrix of 400 x 400 entries needs 1.28 MB; 50 B are free."
        " Use products (`A @ v`, matrix-free) or a named block (`A.block(rows, cols).dense()`)."
    )
    assert isinstance(caught.value, MemoryError)
    assert A.products == 0


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 B"), (999.7, "1 kB"), (1.6e9, "1.6 GB"), (62e15, "62 PB"), (5e18, "5e+03 PB")]
)
def test_bytes_in_words(count: float, text: str) -> None:
    """Three digits and a unit."""
    assert memory.in_words(count) == text


def test_free_memory_is_what_the_system_says() -> None:
    """More than nothing, not more than the machine has; where the kernel tells nothing, all of it."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory.free_bytes(torch.device("cpu")) <= total


# --- scipy ------------------------------------------------------------------------------------------------------------
@given(spaces(), st.integers(0, 5))
def test_eigsh_through_the_bridge_equals_eigh(space: Space, seed: int) -> None:
    """The extreme eigenvalues by `scipy.sparse.linalg.eigsh(A.to_scipy())` are those of `eigh` of the matrix."""
    from scipy.sparse.linalg import eigsh

    M = symmetric(space.size, seed)
    if space.size < 4:
        return
    A = Opaque(Dense(M, space))
    got = np.sort(eigsh(A.to_scipy(), k=2, which="LM", v0=np.ones(space.size), return_eigenvectors=False))
    exact = np.linalg.eigvalsh(M.numpy())
    want = np.sort(exact[np.argsort(-abs(exact))][:2])
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_scipy_products_in_both_directions() -> None:
    """matvec, matmat, rmatvec, rmatmat; complex vectors by linearity; read-only ones without a warning."""
    A = Dense(randn(2, 3), X, Y)
    S, M = A.to_scipy(), A.matrix.numpy()
    x, y = np.arange(6.0).reshape(3, 2), np.arange(4.0).reshape(2, 2)
    x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(S @ x, M @ x)
        np.testing.assert_allclose(S.matvec(x[:, 1]), M @ x[:, 1])
        np.testing.assert_allclose(S.rmatvec(y[:, 1]), M.T @ y[:, 1])
        np.testing.assert_allclose(S.rmatmat(y), M.T @ y)
        np.testing.assert_allclose(S @ (x[:, 0] + 1j * x[:, 1]), M @ (x[:, 0] + 1j * x[:, 1]))
    assert S.dtype == np.float64
    with pytest.raises(InputError, match="scipy works in float32 and float64"):
        Dense(torch.eye(3, dtype=torch.float16), X).to_scipy()


def test_scipy_keeps_float32() -> None:
    """A float32 operator gives a float32 bridge, so that eigsh runs in single precision."""
    S = Dense(torch.eye(3), X).to_scipy()
    assert S.dtype == np.float32
    assert S.matvec(np.ones(3, dtype=np.float32)).dtype == np.float32


def test_sum_holds_two_images_at_a_time() -> None:
    """Of many terms, A_1 v + ... + A_t v keeps the running total and one image alive."""
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    class Copy(Operator):
        def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
            nonlocal most
            most = max(most, sum(r() is not None for r in alive))
            out = V["x"].clone()
            alive.append(weakref.ref(out))
            return {"x": out}

    E = Copy(X, dtype=torch.float64, device="cpu", symmetric=True)
    total = Sum(*[E] * 6) @ torch.ones(3, dtype=torch.float64)
    assert torch.equal(total, torch.full((3,), 6.0, dtype=torch.float64))
    assert most <= 2


def test_blocks_of_blocks_inside_a_fused_matrix():
    """The block of W_Q and W_V, then that of a head of each: the entries of the whole matrix between these heads."""
    d, h = 3, 2
    shape = (d, 3 * d * h)
    views = []
    for i, name in enumerate(("W_Q", "W_K", "W_V")):
        for label, a, b in ((name, 0, h), *((f"{name}[{j}]", j, j + 1) for j in range(h))):
            run = ((i * h + a) * d, (i * h + b) * d)
            views.append(View(label, "c_attn", shape, ((0, d), run), (d, run[1] - run[0])))
    space = Space((("c_attn", shape), ("b", (3,))), tuple(views))
    M = torch.randn(space.size, space.size, dtype=torch.float64)
    A = Dense(M, space)
    found = A.block("W_Q", "W_V").block("W_Q[1]", "W_V[0]")
    rows, cols = (space.coordinates(space.select(n)) for n in ("W_Q[1]", "W_V[0]"))
    assert torch.equal(found.dense(), M[rows][:, cols])
    twice = (A.block("W_Q", "W_V") + A.block("W_Q", "W_V")).block("W_Q[1]", "W_V[0]")
    assert torch.equal(twice.dense(), 2 * M[rows][:, cols])
