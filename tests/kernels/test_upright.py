"""The column kernel with upright score tiles against the other one and against float64.

Triton's interpreter multiplies bit patterns of bfloat16, so on a CPU the kernel is asked for in float16.
"""

import pytest
import torch
from torch.func import grad, jvp, vmap

pytest.importorskip("triton")

from quadform.kernels import attention, launch, upright, using

torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16
ALL = (0, 1, 2)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setattr(launch, "UPRIGHT", (DTYPE,))
    launch._plan.cache_clear()
    yield
    launch._plan.cache_clear()


def problem(heads=2, tokens=128, count=None):
    gen = torch.Generator().manual_seed(0)
    front = () if count is None else (count,)
    new = lambda: torch.randn(*front, 1, heads, tokens, 64, generator=gen).to(DEVICE, DTYPE)  # noqa: E731
    return tuple(new() for _ in range(3))


def products(x, t):
    """Hessian products along the tangents t, one axis in front."""
    loss = lambda *x: attention(*x, causal=True).double().sin().sum()  # noqa: E731
    return vmap(lambda *t: jvp(grad(loss, ALL), x, t)[1])(*t)


def test_the_kernel_is_taken_where_it_was_measured():
    """Plain, causal, whole tiles of 64, as many key heads as heads; otherwise the other kernel."""
    one = (2, 3, 128, 64)
    rest = (False, False, False, True, "tf32", 2, False)
    taken = lambda *a: launch._plan("tangent_columns", *a)[0] is upright._tangent_columns  # noqa: E731
    assert taken(DTYPE, one, one, one, *rest)
    assert launch._plan("tangent_columns", DTYPE, one, one, one, *rest)[1] == (2, 6, 2)
    assert not taken(torch.float64, one, one, one, *rest)
    odd, narrow, shared = (2, 3, 127, 64), (2, 3, 128, 32), (2, 1, 128, 64)
    for q, k in ((odd, odd), (narrow, narrow), (one, shared)):
        assert not taken(DTYPE, q, k, k, *rest)
    for i in (0, 1, 2, 3, 6):  # bias, mask, mixing, not causal, scaled operands
        assert not taken(DTYPE, one, one, one, *(not a if j == i else a for j, a in enumerate(rest)))


def test_it_gives_what_the_other_kernel_gives(monkeypatch):
    """Hessian products along two tangents with either kernel, both near float64."""
    x, t = problem(), problem(count=2)
    with using("triton"):
        ours = products(x, t)
        monkeypatch.setattr(launch, "UPRIGHT", ())
        launch._plan.cache_clear()
        other = products(x, t)
    with using("reference"):
        exact = products(tuple(a.double() for a in x), tuple(a.double() for a in t))
    for a, b, e in zip(ours, other, exact, strict=True):
        assert (a.double() - b.double()).norm() <= 2e-3 * e.norm()
        assert (a.double() - e).norm() <= 1e-2 * e.norm()
