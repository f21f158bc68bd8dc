"""Products of 16-bit operands with float32 results, and programs whose float32 products are taken that way."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, jvp, vmap

from quadform.core.errors import InputError
from quadform.kernels import linear_cross_entropy, products, program

torch.set_num_threads(1)
D, HIDDEN, VOCAB = 32, 96, 48


def problem(size=1.0, vectors=()):
    gen = torch.Generator().manual_seed(0)
    new = lambda *s: torch.randn(*s, generator=gen)  # noqa: E731
    shapes = {"W": (D, HIDDEN), "b": (HIDDEN,), "U": (HIDDEN, D), "E": (VOCAB, D)}
    p = {n: 0.1 * new(*s) for n, s in shapes.items()}
    v = {n: size * new(*vectors, *s) for n, s in shapes.items()}
    x, y = new(2, 20, D), torch.randint(VOCAB, (2, 20), generator=gen)

    def loss(p):
        h = F.gelu(F.linear(x.to(p["W"]), p["W"].T, p["b"])) @ p["U"]
        return size * linear_cross_entropy(h, p["E"].T, y)

    return p, v, lambda p, v: jvp(grad(loss), (p,), (v,))[1]


def wide(tree):
    return {n: a.double() for n, a in tree.items()}


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e9])
def test_program_in_halves(size, monkeypatch):
    """Every product rewritten; error that of ten mantissa bits (TF32's), whatever the size of vector and loss."""
    monkeypatch.setattr(products, "LEAST", 8)
    p, v, hvp = problem(size)
    exact = hvp(wide(p), wide(v))
    run = program(hvp, p, v, compile=False, products="halves")
    names = [str(n.target) for n in run.graph.nodes]
    assert not any(n.startswith(("aten.mm", "aten.addmm", "aten.bmm")) for n in names)
    for n, a in run(p, v).items():
        gap = (a.double() - exact[n]).norm() / exact[n].norm()
        assert 1e-5 < gap < 2e-3


def test_operands_are_scaled_once(monkeypatch):
    """A matrix used both ways round, and by value and tangent, becomes float16 once: fewer casts than operands."""
    monkeypatch.setattr(products, "LEAST", 8)
    p, v, hvp = problem()
    names = [str(n.target) for n in program(hvp, p, v, compile=False, products="halves").graph.nodes]
    assert names.count("quadform.halve.default") < 1.5 * names.count("quadform.wide_product.default")


@pytest.mark.parametrize("turned", [False, True])
def test_rows_off_the_boundary_are_padded(turned, monkeypatch):
    """A vocabulary of 45: no operand of a product has rows off a 16-byte boundary, and the numbers stay."""
    monkeypatch.setattr(products, "LEAST", 8)
    gen = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, D, generator=gen), torch.randint(45, (40,), generator=gen)
    W, v = torch.randn(2, *((D, 45) if turned else (45, D)), generator=gen)
    loss = lambda W: F.cross_entropy(x.to(W) @ (W if turned else W.T), y)  # noqa: E731
    hvp = lambda W, v: jvp(grad(loss), (W,), (v,))[1]  # noqa: E731
    run = program(hvp, W, v, compile=False, products="halves")
    calls = [n for n in run.graph.nodes if n.target is torch.ops.quadform.wide_product.default]
    assert calls
    for operand in [a.meta["val"] for n in calls for a in n.args] + [n.meta["val"] for n in calls]:
        assert all(s == 1 or s % products.ALIGN == 0 for s in operand.stride())
    exact = hvp(W.double(), v.double())
    assert 1e-5 < (run(W, v).double() - exact).norm() / exact.norm() < 2e-3


def test_several_vectors_in_halves(monkeypatch):
    """k vectors at once through batched products equal one at a time, to the same ten bits."""
    monkeypatch.setattr(products, "LEAST", 8)
    p, v, hvp = problem(vectors=(3,))
    together = program(lambda p, V: vmap(lambda v: hvp(p, v))(V), p, v, compile=False, products="halves")(p, v)
    exact = hvp(wide(p), {n: a[1].double() for n, a in v.items()})
    for n, a in together.items():
        assert (a[1].double() - exact[n]).norm() < 2e-3 * exact[n].norm()


def test_small_products_stay():
    """Below LEAST a side the program is the same with and without."""
    p, v, hvp = problem()
    plain, halves = (program(hvp, p, v, compile=False, products=name) for name in ("torch", "halves"))
    assert [str(n.target) for n in plain.graph.nodes] == [str(n.target) for n in halves.graph.nodes]


@pytest.mark.parametrize("dims", [(None, None), (0, None), (None, 0), (0, 0)])
def test_wide_product(dims):
    """float16 operands, float32 result, batched or not, against float64."""
    gen = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4, 5, 5, generator=gen).half() for _ in range(2))
    a, b = (x if d == 0 else x[0] for x, d in zip((a, b), dims, strict=True))
    out = products.wide_product(a, b) if dims == (None, None) else vmap(products.wide_product, dims)(a, b)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 1000, 9000])
@pytest.mark.parametrize("size", [1.0, 3e-20, 2e20])
def test_halve(n, size):
    """half · back = x to ten bits, the largest magnitude between 2^14 and 2^15: torch and the Triton twin alike."""
    triton = pytest.importorskip("triton")
    assert triton
    from quadform.kernels import scaling

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = size * torch.randn(n, generator=torch.Generator().manual_seed(0)).to(device)
    for half, back in (products.halve(x), scaling.halve(x, torch.empty_like(x, dtype=torch.float16))):
        assert 2**14 <= half.abs().max() <= 2**15
        assert ((half.double() * back.double() - x.double()).abs() <= 2**-11 * x.abs() + 2**-39 * x.abs().max()).all()


@pytest.mark.parametrize("size", [1.0, 1e-15, 1e15])
def test_operands_of_the_attention_kernels(size):
    """Q as it is, dO and tangents times a power of two near 1/8, one for each tangent; strided, odd sizes."""
    pytest.importorskip("triton")
    from quadform.kernels import scaling

    gen = torch.Generator().manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    new = lambda *s: torch.randn(*s, generator=gen).to(device)  # noqa: E731
    q = new(2, 19, 3, 2, 8).unbind(2)[0].transpose(1, 2)
    each = size * torch.tensor([1.0, 1e-9, 1e9], device=device).view(3, 1, 1, 1, 1)
    tk, g = each * new(3, 2, 1, 21, 8), new(2, 2, 19, 20) / size
    tg = each / size * new(3, 2, 2, 19, 20)
    outs, units = scaling.operands((q, tk, tg, g), (scaling.AS_IS, scaling.TANGENT, scaling.BOTH, scaling.COTANGENT))
    first, own = units[0], units[1:].view(3, 1, 1, 1, 1)
    assert torch.equal(units.log2(), units.log2().round())
    for out, exact in zip(outs, (q, tk * own, tg * own * first, g * first), strict=True):
        assert out.dtype == torch.float16
        torch.testing.assert_close(out.float(), exact, rtol=2**-10, atol=2**-24)
    assert 1 / 8 <= outs[3].abs().max() <= 1 / 4
    largest = torch.maximum(outs[1].flatten(1).abs().amax(1), outs[2].flatten(1).abs().amax(1))
    assert (largest >= 1 / 8).all()
    assert (largest <= 1 / 4).all()


def test_halve_obeys_its_contract():
    """torch's own check of schema and fake kernel, for dense, transposed and sliced input; zeros stay zeros."""
    x = torch.randn(6, 8)
    for a in (x, x.T, x[:, 1:3]):
        torch.library.opcheck(products.halve, (a,), test_utils=("test_schema", "test_faketensor"))
    assert not products.halve(torch.zeros(3))[0].any()


def test_unknown_products_are_refused():
    """Only known ways to multiply."""
    with pytest.raises(InputError, match="use one of torch, halves"):
        program(lambda x: x, torch.ones(1), products="int8")
