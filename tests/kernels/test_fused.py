"""The Triton twin against float64, value, first and second derivative, odd sizes.

On a CPU it runs in Triton's interpreter; on a GPU the same file tests the compiled kernels.
"""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.func import grad, jvp, vmap

from quadform.core.errors import InputError
from quadform.kernels import attention, last_choice, program, programs, using

pytest.importorskip("triton")
torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
quick = settings(
    max_examples=8, deadline=None, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck)
)


def fp64(*args, **kw):
    """The reference in float64, which test_attention.py holds against the definition."""
    with using("reference"):
        return attention(*args, **kw)


def ieee(*args, **kw):
    with using("triton", "ieee"):
        return attention(*args, **kw)


@st.composite
def problems(draw):
    """Shapes on both sides of the tile edges (16 rows, 32 columns), padded widths, shared heads, masks, bias."""
    length = st.sampled_from([1, 16, 33])
    rows, columns = draw(length), draw(length)
    d, dv = draw(st.sampled_from([4, 16, 20])), draw(st.sampled_from([4, 16, 20]))
    heads_k, groups, batch = draw(st.sampled_from([(1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2)]))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    new = lambda *s: torch.randn(*s, generator=gen).to(DEVICE)  # noqa: E731
    H = heads_k * groups
    x = (new(batch, H, rows, d), new(batch, heads_k, columns, d), new(batch, heads_k, columns, dv))
    kw = {"causal": draw(st.booleans())}
    if draw(st.booleans()):
        kw["bias"] = new(*draw(st.sampled_from([(rows, columns), (H, 1, columns), (batch, 1, rows, columns)])))
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(rows, columns), (batch, 1, 1, columns)]))
        kw["mask"] = new(*shape) > -0.5
    return x, kw, new


def double(tree):
    return type(tree)(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in tree)


def wide(kw):
    return dict(zip(kw, double(tuple(kw.values())), strict=True))


def loss(f, kw):
    return lambda *x: f(*x, **kw).sin().sum()


def agree(ours, exact, tol=2e-6):
    """‖ours − exact‖ ≤ tol times the largest norm among the results (some vanish identically)."""
    scale = max(1e-3, *(e.norm().item() for e in exact))
    for a, e in zip(ours, exact, strict=True):
        assert torch.isfinite(a).all()
        assert (a.double() - e).norm() <= tol * scale


ALL = (0, 1, 2)


@quick
@given(problems())
def test_value_and_gradient(problem):
    """Triton in ieee mode equals float64 to single precision: value and gradient."""
    x, kw, _ = problem
    agree((ieee(*x, **kw),), (fp64(*double(x), **wide(kw)),))
    assert last_choice().backend == "reference"
    agree(grad(loss(ieee, kw), ALL)(*x), grad(loss(fp64, wide(kw)), ALL)(*double(x)))


@quick
@given(problems())
def test_jvp_and_jvp_of_grad(problem):
    """Triton in ieee mode equals float64: tangent of the value and Hessian product."""
    x, kw, new = problem
    t = tuple(new(*a.shape) for a in x)
    (ours, tangent), (exact, wide_tangent) = (
        jvp(lambda *x, f=f, kw=kw: f(*x, **kw), x, t)
        for f, x, t, kw in ((ieee, x, t, kw), (fp64, double(x), double(t), wide(kw)))
    )
    agree((ours, tangent), (exact, wide_tangent))
    ours = jvp(grad(loss(ieee, kw), ALL), x, t)[1]
    agree(ours, jvp(grad(loss(fp64, wide(kw)), ALL), double(x), double(t))[1])


@quick
@given(problems())
def test_several_tangents(problem):
    """vmap(jvp(grad)): k tangents in one launch equal k products."""
    x, kw, new = problem
    t = tuple(new(3, *a.shape) for a in x)
    product = lambda *t: jvp(grad(loss(ieee, kw), ALL), x, t)[1]  # noqa: E731
    together = vmap(product)(*t)
    for i in range(3):
        agree([a[i] for a in together], [a.double() for a in product(*(a[i] for a in t))])


@quick
@given(problems())
def test_double_backward(problem):
    """Reverse over reverse through torch.autograd."""
    x, kw, new = problem
    t = tuple(new(*a.shape) for a in x)

    def product(f, x, t, kw):
        x = [a.clone().requires_grad_() for a in x]
        first = torch.autograd.grad(loss(f, kw)(*x), x, create_graph=True)
        return torch.autograd.grad(sum((g * a).sum() for g, a in zip(first, t, strict=True)), x)

    agree(product(ieee, x, t, kw), product(fp64, double(x), double(t), wide(kw)))


def test_batched_primal():
    """vmap over the primal as well (per-example Hessian products), bias and mask shared."""
    gen = torch.Generator().manual_seed(0)
    q, k, v, tq, tk, tv = torch.randn(6, 3, 2, 17, 8, generator=gen).to(DEVICE)
    kw = {
        "bias": torch.randn(17, 17, generator=gen).to(DEVICE),
        "mask": torch.rand(1, 17, generator=gen).to(DEVICE) > 0.3,
    }
    product = lambda f, kw: lambda x, t: jvp(grad(loss(f, kw), ALL), x, t)[1]  # noqa: E731
    ours = vmap(product(ieee, kw))((q, k, v), (tq, tk, tv))
    exact = vmap(product(fp64, wide(kw)))(double((q, k, v)), double((tq, tk, tv)))
    agree(ours, exact)
    shared = vmap(product(ieee, kw), in_dims=((0, None, None), None))((q, k[0], v[0]), (tq[0], tk[0], tv[0]))
    exact = vmap(product(fp64, wide(kw)), in_dims=((0, None, None), None))(
        double((q, k[0], v[0])), double((tq[0], tk[0], tv[0]))
    )
    agree(shared, exact)


@pytest.mark.parametrize(("dtype", "tol"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_types(dtype, tol):
    """bfloat16 and float16 inputs, products accumulated in float32: error of the type's rounding."""
    if dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("the interpreter multiplies the bit patterns of bfloat16")
    gen = torch.Generator().manual_seed(0)
    x = tuple(torch.randn(1, 2, 33, 16, generator=gen).to(DEVICE, dtype) for _ in range(3))
    t = tuple(torch.randn(1, 2, 33, 16, generator=gen).to(DEVICE, dtype) for _ in range(3))
    f = lambda a: lambda *x: a(*x, causal=True).double().sin().sum()  # noqa: E731
    ours = jvp(grad(f(ieee), ALL), x, t)[1]
    agree(ours, jvp(grad(f(fp64), ALL), double(x), double(t))[1], tol)


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e12])
def test_float32_products_in_scaled_halves(size):
    """tf32 mode: float32 in and out, products with ten mantissa bits, whatever the size of tangents and cotangents."""
    gen = torch.Generator().manual_seed(0)
    x = tuple(torch.randn(1, 2, 33, 16, generator=gen).to(DEVICE) for _ in range(3))
    t = tuple(size * torch.randn(2, 1, 2, 33, 16, generator=gen).to(DEVICE) for _ in range(3))
    t = tuple(torch.stack([a[0], 1e-6 * a[1]]) for a in t)

    def product(f, x, t):
        loss = lambda *x: size * f(*x, causal=True).sin().sum()  # noqa: E731
        return grad(loss, ALL)(*x), vmap(lambda *t: jvp(grad(loss, ALL), x, t)[1])(*t)

    with using("triton", "tf32"):
        first, second = product(attention, x, t)
    first_exact, second_exact = product(fp64, double(x), double(t))
    assert second[0].dtype == torch.float32
    for i in range(2):
        exact = [a[i] for a in second_exact]
        scale = max(e.norm() for e in exact)
        for a, e in zip(second, exact, strict=True):
            assert (a[i].double() - e).norm() <= 2e-3 * scale
    scale = max(e.norm() for e in first_exact)
    assert all((a.double() - e).norm() <= 2e-3 * scale for a, e in zip(first, first_exact, strict=True))


def test_views_are_read_in_place():
    """Strided inputs (a fused QKV split and transposed, as models have them) give the same result as dense ones."""
    gen = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 19, 3, 2, 8, generator=gen).to(DEVICE)
    views = tuple(a.transpose(1, 2) for a in qkv.unbind(2))
    dense = tuple(a.contiguous() for a in views)
    ours, exact = (jvp(grad(loss(ieee, {"causal": True}), ALL), x, x)[1] for x in (views, dense))
    for a, b in zip(ours, exact, strict=True):
        assert torch.equal(a, b)


def test_one_traced_program():
    """make_fx turns the whole Hessian product into one graph that holds the kernels as single nodes."""
    from torch.fx.experimental.proxy_tensor import make_fx

    gen = torch.Generator().manual_seed(0)
    x = tuple(torch.randn(1, 1, 17, 8, generator=gen).to(DEVICE) for _ in range(3))
    product = lambda x, t: jvp(grad(loss(ieee, {"causal": True}), ALL), x, t)[1]  # noqa: E731
    traced = make_fx(product, tracing_mode="fake")(x, x)
    names = {str(node.target) for node in traced.graph.nodes}
    assert {"quadform.attend.default", "quadform.attend_grad_tangent.default"} <= names
    agree(traced(x, x), [a.double() for a in product(x, x)])


@pytest.mark.parametrize(("tokens", "padded"), [(197, False), (256, True)])
def test_rows_that_attention_reads_are_not_padded(tokens, padded, monkeypatch):
    """The compiler may pad the strides of log-sum-exps of 197 tokens, not of 256: then it is told not to pad."""
    from torch._inductor import compile_fx

    asked = []
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, leaves, **given: asked.append(given["config_patches"]))
    x = tuple(torch.zeros(1, 8, tokens, 8, device=DEVICE) for _ in range(3))
    run = program(lambda x, t: jvp(grad(loss(ieee, {}), ALL), x, t)[1], x, x, compile=False)
    programs._for_layout(torch.fx.GraphModule({}, run.graph), x + x)
    assert asked == [None if padded else {"comprehensive_padding": False}]


def test_operators_obey_their_contract():
    """torch's own check of schema, fake kernel and reverse rule of both differentiable operators."""
    from quadform.kernels import ops

    x = tuple(torch.randn(1, 2, 17, 8, device=DEVICE, requires_grad=True) for _ in range(3))
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    mix = torch.randn(1, 2, 3, device=DEVICE, requires_grad=True)
    torch.library.opcheck(ops._attend, (*x, None, None, mix, True, 0.3, "ieee"), test_utils=checks)
    torch.library.opcheck(ops._attend, (*x, None, None, None, True, 0.3, "ieee"), test_utils=checks)


def test_differentiated_bias_is_refused_when_forced():
    """The kernels take a constant bias; a trained one goes to the reference, or is refused when Triton is forced."""
    x = torch.randn(3, 1, 1, 4, 4, device=DEVICE)
    bias = torch.zeros(4, 4, device=DEVICE, requires_grad=True)
    attention(*x, bias=bias)
    assert last_choice().backend == "reference"
    with pytest.raises(InputError, match="bias is differentiated"):
        ieee(*x, bias=bias)
