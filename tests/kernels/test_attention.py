"""`quadform.kernels.attention` against plain softmax attention differentiated by autograd, float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, jvp, vmap

from quadform.core.errors import InputError
from quadform.kernels import attention, last_choice, reference, using

torch.set_num_threads(1)


def plain(q, k, v, causal=False, mask=None, bias=None, scale=None, alpha=None, beta=None, gamma=None):
    """The definition, every matrix written out; a row that sees nothing gives zeros."""
    g = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(g, -3), v.repeat_interleave(g, -3)
    S = (q.shape[-1] ** -0.5 if scale is None else scale) * q @ k.mT
    if bias is not None:
        S = S + bias
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if mask is not None:
        seen = seen & mask
    seen = seen.expand(S.shape)
    E = torch.where(seen, (torch.where(seen, S, -1e300)).softmax(-1), 0.0)
    out = E @ v
    C = seen.double() / seen.double().sum(-1, keepdim=True).clamp_min(1)
    h = (slice(None), None, None)
    if beta is not None:
        out = beta[h] * out
    if alpha is not None:
        out = out + alpha[h] * v
    if gamma is not None:
        out = out - gamma[h] * (C @ v)
    return out


@st.composite
def problems(draw):
    """Random shapes, masks, biases, mixings: (tensors that are differentiated, keyword arguments of the rest)."""
    n = st.integers(1, 5)
    heads_k, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    rows, columns, d, dv = draw(n), draw(n), draw(n), draw(n)
    mixed = draw(st.booleans())
    if mixed:
        columns = rows
    lead = draw(st.sampled_from([(), (2,), (2, 1)]))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    new = lambda *shape: torch.randn(*shape, generator=gen, dtype=torch.float64)  # noqa: E731
    H = heads_k * groups
    x = {"q": new(*lead, H, rows, d), "k": new(*lead, heads_k, columns, d), "v": new(*lead, heads_k, columns, dv)}
    kw = {"causal": draw(st.booleans())}
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(rows, columns), (1, columns), (H, rows, columns), (*lead, H, 1, columns)]))
        x["bias"] = new(*shape)
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(rows, columns), (*lead, 1, 1, columns)]))
        kw["mask"] = torch.rand(*shape, generator=gen) > 0.3
    if mixed:
        x |= {"alpha": new(H), "beta": new(H), "gamma": new(H)}
    if draw(st.booleans()):
        kw["scale"] = 0.7
    return x, kw, new


def scalars(x, kw, new):
    """The two losses to compare, twice differentiable and nonlinear in the output."""
    weight = new(*plain(**x, **kw).shape)
    return tuple(lambda x, f=f: (weight * torch.sin(f(**x, **kw))).sum() for f in (attention, plain))


def close(a, b, tol=1e-11):
    for name in b:
        torch.testing.assert_close(a[name], b[name], rtol=tol, atol=tol)


@pytest.fixture(autouse=True, params=[1 << 24, 1])
def block(request, monkeypatch):
    """Every identity holds for one block of rows and for one row at a time."""
    monkeypatch.setattr(reference, "BLOCK_ELEMENTS", request.param)


fast = settings(max_examples=25, deadline=None, suppress_health_check=list(__import__("hypothesis").HealthCheck))


@fast
@given(problems())
def test_value_and_gradient(problem):
    """attention = its definition, and so are its gradients in every argument."""
    x, kw, new = problem
    ours, theirs = scalars(x, kw, new)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)
    close(grad(ours)(x), grad(theirs)(x))


@fast
@given(problems())
def test_jvp(problem):
    """Forward mode through the value."""
    x, kw, new = problem
    t = {n: new(*a.shape) for n, a in x.items()}
    ours, theirs = (jvp(lambda x, f=f: f(**x, **kw), (x,), (t,))[1] for f in (attention, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@fast
@given(problems())
def test_jvp_of_grad(problem):
    """Hessian product, forward over reverse."""
    x, kw, new = problem
    ours, theirs = scalars(x, kw, new)
    t = {n: new(*a.shape) for n, a in x.items()}
    close(jvp(grad(ours), (x,), (t,))[1], jvp(grad(theirs), (x,), (t,))[1])


@fast
@given(problems())
def test_vmap_of_jvp_of_grad(problem):
    """Several Hessian products at once, each with its own tangent in every argument."""
    x, kw, new = problem
    ours, theirs = scalars(x, kw, new)
    t = {n: new(3, *a.shape) for n, a in x.items()}
    close(*(vmap(lambda t, f=f: jvp(grad(f), (x,), (t,))[1])(t) for f in (ours, theirs)))


@fast
@given(problems())
def test_double_backward(problem):
    """Hessian product, reverse over reverse, through torch.autograd."""
    x, kw, new = problem
    ours, theirs = scalars(x, kw, new)
    t = {n: new(*a.shape) for n, a in x.items()}

    def product(f):
        leaves = {n: a.clone().requires_grad_() for n, a in x.items()}
        first = torch.autograd.grad(f(leaves), list(leaves.values()), create_graph=True)
        inner = sum((g * t[n]).sum() for g, n in zip(first, leaves, strict=True))
        return dict(zip(leaves, torch.autograd.grad(inner, list(leaves.values()), materialize_grads=True), strict=True))

    close(product(ours), product(theirs))


def test_third_derivative_through_the_reference():
    """D³ of the loss along three directions: the rules compose with themselves where torch computes them."""
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(3, 1, 4, 2, generator=gen, dtype=torch.float64)
    t = torch.randn(3, 1, 4, 2, generator=gen, dtype=torch.float64)

    def third(f):
        leaf = x.clone().requires_grad_()
        value = f(leaf[0], leaf[1], leaf[2]).sin().sum()
        for _ in range(3):
            value = (torch.autograd.grad(value, leaf, create_graph=True)[0] * t).sum()
        return value

    torch.testing.assert_close(third(attention), third(plain), rtol=1e-11, atol=1e-11)


def test_per_example_gradients():
    """vmap(grad) over the batch equals the gradients taken one by one."""
    gen = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 4, 2, 5, 3, generator=gen, dtype=torch.float64)
    f = lambda q, k, v: attention(q, k, v, causal=True).sin().sum()  # noqa: E731
    batched = vmap(grad(f, argnums=(0, 1, 2)))(q, k, v)
    for i in range(4):
        for b, one in zip(batched, grad(f, argnums=(0, 1, 2))(q[i], k[i], v[i]), strict=True):
            torch.testing.assert_close(b[i], one)


def test_one_traced_program():
    """make_fx flattens jvp(grad) through the rules into one graph with the same answer."""
    from torch.fx.experimental.proxy_tensor import make_fx

    gen = torch.Generator().manual_seed(0)
    x, t = torch.randn(2, 3, 2, 5, 4, generator=gen, dtype=torch.float64)
    product = lambda x, t: jvp(grad(lambda x: attention(*x, causal=True).sin().sum()), (x,), (t,))[1]  # noqa: E731
    torch.testing.assert_close(make_fx(product)(x, t)(x, t), product(x, t))


def test_half_types_are_computed_in_float32():
    """bfloat16 in and out, the arithmetic in float32: the error is that of rounding the result."""
    gen = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 7, 4, generator=gen).bfloat16()
    exact = plain(q.double(), k.double(), v.double(), causal=True)
    out = attention(q, k, v, causal=True)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-6)


def test_choice_is_recorded():
    """On a CPU the reference computes, and says why."""
    attention(*torch.randn(3, 1, 2, 3, dtype=torch.float64))
    assert last_choice().backend == "reference"
    assert last_choice().reason in ("inputs are on cpu", "type torch.float64")


@pytest.mark.parametrize(
    ("shapes", "kw", "text"),
    [
        (((2, 3), (2, 3), (2, 3)), {}, "heads, tokens, width"),
        (((3, 2, 3), (2, 2, 3), (2, 2, 3)), {}, "cannot be shared"),
        (((1, 2, 3), (1, 4, 3), (1, 4, 3)), {"alpha": 1.0}, "rows and columns must match"),
        (((1, 2, 3), (1, 4, 3), (1, 4, 3)), {"mask": torch.ones(2, 4)}, "mask must be boolean"),
        (((1, 2, 3), (1, 4, 3), (1, 4, 3)), {"bias": torch.ones(3, 4)}, "does not broadcast"),
        (((1, 2, 3), (1, 4, 2), (1, 4, 3)), {}, "one width"),
    ],
)
def test_bad_input_says_what_to_do(shapes, kw, text):
    """Inputs that cannot be used are refused in words."""
    with pytest.raises(InputError, match=text):
        attention(*(torch.randn(*s) for s in shapes), **kw)


def test_unknown_backend_is_refused():
    """Only known twins can be forced."""
    with pytest.raises(InputError, match="unknown"), using("cuda"):
        pass


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_look_at_gives_zeros(rows, columns):
    """No rows, or no keys: zeros of the right shape, with gradients of zero, as torch's own attention gives."""
    q, k, v = (torch.randn(2, 2, n, 4, dtype=torch.float64, requires_grad=True) for n in (rows, columns, columns))
    out = attention(q, k, v)
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), (q, k, v), allow_unused=True) if g is not None)
