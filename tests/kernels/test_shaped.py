"""Shaped mixing α V + β attend − γ mean(V) inside the Triton kernels against plain torch in float64.

On a CPU it runs in Triton's interpreter; on a GPU the same file tests the compiled kernels.
"""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.func import grad, jvp, vmap

from quadform.kernels import attention, last_choice, using

pytest.importorskip("triton")
torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
quick = settings(
    max_examples=4, deadline=None, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck)
)


def fp64(*args, **kw):
    """The reference in float64 with the mixing in plain torch, which test_attention.py holds against the definition."""
    with using("reference"):
        return attention(*args, **kw)


def ieee(*args, **kw):
    with using("triton", "ieee"):
        out = attention(*args, **kw)
    assert last_choice().backend == "triton"
    return out


def double(tree):
    return tuple(a.double() for a in tree)


def wide(kw):
    return {n: a.double() if isinstance(a, torch.Tensor) else a for n, a in kw.items()}


def agree(ours, exact, tol=2e-6):
    """‖ours − exact‖ ≤ tol times the largest norm among the results (some vanish identically)."""
    scale = max(1e-3, *(e.norm().item() for e in exact))
    for a, e in zip(ours, exact, strict=True):
        assert torch.isfinite(a).all()
        assert (a.double() - e).norm() <= tol * scale


NAMES = ("alpha", "beta", "gamma")


@st.composite
def problems(draw):
    """Shaped mixing: rows = columns where alpha adds a token's own value, shared heads, bias; numbers or per head."""
    rows = draw(st.sampled_from([1, 16, 33, 50]))
    columns = draw(st.sampled_from([rows, rows, 17]))
    heads_k, groups, batch = draw(st.sampled_from([(1, 1, 1), (1, 2, 1), (2, 1, 2)]))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    new = lambda *s: torch.randn(*s, generator=gen).to(DEVICE)  # noqa: E731
    d, H = draw(st.sampled_from([4, 20])), heads_k * groups
    x = [new(batch, H, rows, d), new(batch, heads_k, columns, d), new(batch, heads_k, columns, 8)]
    names = NAMES if rows == columns else NAMES[1:]
    names = draw(st.sampled_from([names, names[-1:], names[:1]]))
    kw = {"causal": draw(st.booleans())}
    if draw(st.booleans()):
        kw["bias"] = new(rows, columns)
    return (*x, *(new(H) for _ in names)), names, kw, new


def loss(f, names, kw):
    return lambda *x: f(*x[:3], **kw, **dict(zip(names, x[3:], strict=True))).sin().sum()


@quick
@given(problems())
def test_shaped_mixing(problem):
    """alpha V + beta attend − gamma mean(V) inside the kernels: value, gradient, Hessian product, weights included."""
    x, names, kw, new = problem
    t, every = tuple(new(*a.shape) for a in x), tuple(range(len(x)))
    ours, exact = (loss(f, names, k) for f, k in ((ieee, kw), (fp64, wide(kw))))
    agree((ours(*x), *grad(ours, every)(*x)), (exact(*double(x)), *grad(exact, every)(*double(x))))
    agree(jvp(grad(ours, every), x, t)[1], jvp(grad(exact, every), double(x), double(t))[1])


@quick
@given(problems())
def test_shaped_mixing_by_double_backward_and_several_tangents(problem):
    """Reverse over reverse equals forward over reverse, and k tangents at once equal k products."""
    x, names, kw, new = problem
    t, every = tuple(new(2, *a.shape) for a in x), tuple(range(len(x)))
    ours = loss(ieee, names, kw)
    product = lambda *t: jvp(grad(ours, every), x, t)[1]  # noqa: E731
    one = [a.double() for a in product(*(a[1] for a in t))]
    agree([a[1] for a in vmap(product)(*t)], one)
    leaves = [a.clone().requires_grad_() for a in x]
    first = torch.autograd.grad(ours(*leaves), leaves, create_graph=True)
    agree(torch.autograd.grad(sum((g * a[1]).sum() for g, a in zip(first, t, strict=True)), leaves), one)


def test_shaped_mixing_of_batched_primals():
    """vmap over the primal too (per-example products), the weights shared or one per example."""
    gen = torch.Generator().manual_seed(0)
    x = tuple(torch.randn(3, 2, 17, 8, generator=gen).to(DEVICE) for _ in range(3))
    w = tuple(torch.randn(3, 2, generator=gen).to(DEVICE) for _ in NAMES)

    def product(f):
        return lambda *x: jvp(grad(loss(f, NAMES, {"causal": True}), (0, 2, 5)), x, x)[1]

    for dims, weights in ((0, w), (None, tuple(a[0] for a in w))):
        in_dims = (0, 0, 0, dims, dims, dims)
        ours = vmap(product(ieee), in_dims)(*x, *weights)
        agree(ours, vmap(product(fp64), in_dims)(*double(x), *double(weights)))


@pytest.mark.parametrize("size", [1.0, 1e-9])
def test_shaped_mixing_in_scaled_halves(size):
    """tf32 mode: gradient and Hessian product to ten mantissa bits, small tangents and cotangents included."""
    gen = torch.Generator().manual_seed(0)
    x = (*torch.randn(3, 1, 2, 33, 16, generator=gen).to(DEVICE), *torch.randn(3, 2, generator=gen).to(DEVICE))
    t = (*size * torch.randn(3, 1, 2, 33, 16, generator=gen).to(DEVICE), *size * torch.ones(3, 2, device=DEVICE))
    every = tuple(range(6))

    def product(f, x, t):
        small = lambda *x: size * loss(f, NAMES, {"causal": True})(*x)  # noqa: E731
        return (*grad(small, every)(*x), *(a / size for a in jvp(grad(small, every), x, t)[1]))

    with using("triton", "tf32"):
        ours = product(attention, x, t)
    for a, e in zip(ours, product(fp64, double(x), double(t)), strict=True):
        assert (a.double() - e).norm() <= 3e-3 * e.norm()


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_shaped_mixing_compiles_as_one_graph(kind, monkeypatch):
    """torch.compile of a training step takes an operator with its registered gradient, weights included."""
    from quadform.kernels import ops, rules, short  # noqa: F401  the operators exist once they are imported

    monkeypatch.setattr(rules, "choose_traced", lambda *_: "ieee")
    gen = torch.Generator().manual_seed(0)
    x = [torch.randn(1, 2, 17, 8, generator=gen).to(DEVICE, kind).requires_grad_() for _ in range(3)]
    x += [torch.randn(2, generator=gen).to(DEVICE).requires_grad_() for _ in NAMES]
    compiled = torch.compile(loss(attention, NAMES, {"causal": True}), fullgraph=True, backend="aot_eager")(*x)
    ours = torch.autograd.grad(compiled, x)
    exact = loss(fp64, NAMES, {"causal": True})
    agree(
        (compiled, *ours),
        (exact(*double(x)), *grad(exact, tuple(range(6)))(*double(x))),
        2e-6 if kind == torch.float32 else 2e-3,
    )


@pytest.mark.parametrize(("tokens", "d", "causal"), [(17, 8, True), (16, 16, False), (50, 20, True)])
def test_short_sequences_in_one_tile(tokens, d, causal):
    """Up to 128 tokens a compiled step takes one kernel each way: value and gradient, weights included, in float16."""
    from quadform.kernels import short

    gen = torch.Generator().manual_seed(0)
    x = [torch.randn(2, 3, tokens, d, generator=gen).to(DEVICE, torch.float16).requires_grad_() for _ in range(3)]
    mix = torch.randn(1, 3, 3, generator=gen).to(DEVICE).requires_grad_()
    ours = short.short(*x, mix, causal, 0.3)[0]
    first = torch.autograd.grad(ours.double().sin().sum(), (*x, mix))
    leaves = [a.detach().double().requires_grad_() for a in (*x, mix)]
    weights = dict(zip(NAMES, leaves[3][0].unbind(-1), strict=True))
    exact = fp64(*leaves[:3], causal=causal, scale=0.3, **weights)
    for a, e in zip((ours, *first), (exact, *torch.autograd.grad(exact.sin().sum(), leaves)), strict=True):
        assert (a.double() - e).norm() <= 2e-3 * e.norm()


@pytest.mark.parametrize("name", ["sas-p", "v-skipinit"])
def test_models_use_it(name, monkeypatch):
    """A shaped model through the one kernel has the loss and gradient of the same model with the mixing written out."""
    from quadform.nn import Transformer
    from quadform.nn.attention import Attention

    model = Transformer(name, depth=2, d_model=16, heads=2, vocab=11, seed=0).to(DEVICE)
    gen = torch.Generator().manual_seed(0)
    for p in model.parameters():  # away from the start, where queries and some weights are zero
        p.data += 0.1 * torch.randn(p.shape, generator=gen).to(DEVICE)
    batch = {"tokens": torch.randint(11, (2, 18), generator=gen).to(DEVICE)}
    answers = []
    for one in (True, False):
        monkeypatch.setattr(Attention, "_one_kernel", lambda *_, one=one: one)
        with using("triton" if one else None, "ieee"):
            value = model.loss(batch)
            answers.append([value.detach(), *torch.autograd.grad(value, tuple(model.parameters()))])
    agree(answers[0], [a.double() for a in answers[1]], 1e-5)
