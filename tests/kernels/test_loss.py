"""`linear_cross_entropy` against `F.cross_entropy` of written-out logits, float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, jvp, vmap

from quadform.core.errors import InputError
from quadform.kernels import linear_cross_entropy, loss

torch.set_num_threads(1)


def plain(x, W, targets):
    return F.cross_entropy((x @ W).reshape(-1, W.shape[1]), targets.reshape(-1), ignore_index=-100)


@st.composite
def problems(draw):
    batch, tokens, d, vocab = (draw(st.integers(1, n)) for n in (2, 5, 4, 6))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    new = lambda *s: torch.randn(*s, generator=gen, dtype=torch.float64)  # noqa: E731
    targets = torch.randint(0, vocab, (batch, tokens), generator=gen)
    if batch * tokens > 1:
        targets[0, 0] = -100
    return (new(batch, tokens, d), new(d, vocab)), targets, new


@pytest.fixture(autouse=True, params=[(1 << 25, 1024), (7, 1024), (7, 1)])
def block(request, monkeypatch):
    """Every identity holds for one block of tokens and for several, the vocabulary padded or not."""
    elements, large = request.param
    monkeypatch.setattr(loss, "BLOCK_ELEMENTS", elements)
    monkeypatch.setattr(loss, "LARGE", large)
    monkeypatch.setattr(loss, "ALIGN", 4)


quick = settings(max_examples=25, deadline=None, suppress_health_check=list(__import__("hypothesis").HealthCheck))
BOTH = (0, 1)


def scalars(targets):
    """A nonlinear function of the loss, so that the cotangent of the loss has a tangent too."""
    return [lambda x, W, f=f: f(x, W, targets).exp() for f in (linear_cross_entropy, plain)]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@quick
@given(problems())
def test_value_gradient_jvp(problem):
    """Value, gradient and tangent equal those of the logits written out; ignored targets count for nothing."""
    x, targets, new = problem
    ours, theirs = scalars(targets)
    close(ours(*x), theirs(*x))
    close(grad(ours, BOTH)(*x), grad(theirs, BOTH)(*x))
    t = tuple(new(*a.shape) for a in x)
    close(jvp(ours, x, t), jvp(theirs, x, t))


@quick
@given(problems())
def test_hessian_products(problem):
    """jvp(grad), several at once, and double backward."""
    x, targets, new = problem
    ours, theirs = scalars(targets)
    t = tuple(new(2, *a.shape) for a in x)
    one = tuple(a[0] for a in t)
    exact = jvp(grad(theirs, BOTH), x, one)[1]
    close(jvp(grad(ours, BOTH), x, one)[1], exact)
    together = vmap(lambda *t: jvp(grad(ours, BOTH), x, t)[1])(*t)
    close(tuple(a[0] for a in together), exact)
    leaves = [a.clone().requires_grad_() for a in x]
    first = torch.autograd.grad(ours(*leaves), leaves, create_graph=True)
    close(torch.autograd.grad(sum((g * a).sum() for g, a in zip(first, one, strict=True)), leaves), exact)


def test_bad_input_says_what_to_do():
    """Shapes that do not fit are refused in words."""
    with pytest.raises(InputError, match="must share d"):
        linear_cross_entropy(torch.ones(2, 3), torch.ones(4, 5), torch.zeros(2, dtype=torch.long))
    with pytest.raises(InputError, match="integers of shape"):
        linear_cross_entropy(torch.ones(2, 3), torch.ones(3, 5), torch.zeros(3, dtype=torch.long))
