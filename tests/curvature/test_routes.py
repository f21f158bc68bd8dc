"""Programs that keep what no vector touches: same products, fewer matrix products, never stale."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quadform.core.errors import InputError
from quadform.curvature import Risk, functional, gauss_newton, hessian, kept, prediction, strategies
from quadform.curvature.linear import Linearised
from quadform.curvature.prediction import predict

F64 = torch.float64


def mse(out: Tensor, batch: Any) -> Tensor:
    return (out - batch[1]).square().mean()


@pytest.fixture
def net() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 2))
    return model.to(F64), (torch.randn(7, 3, dtype=F64), torch.randn(7, 2, dtype=F64))


def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in b) / max(float(t.abs().max()) for t in b.values())


def matrix_products(program: Any) -> int:
    counted = Counter(str(n.target) for n in program.graph.nodes)
    return sum(n for op, n in counted.items() if op.startswith(("aten.mm", "aten.addmm", "aten.bmm")))


def test_the_tangent_program_has_the_least_matrix_products(net: Any) -> None:
    """Six for each linear layer in H (three in a gradient), four in H_o; the first layer's input has no tangent."""
    model, batch = net
    risk = Risk(model, mse, batch)
    v = risk.space.random(dtype=F64)
    # H: W X' and W' X, dY' W and dY W', X'^T dY and X^T dY'; the first layer has no X' and needs no dX'.
    for make, want in ((hessian, 6 + 6 + 2), (gauss_newton, 4 + 4 + 2)):
        A = make(risk, route="traced")
        A @ v
        (program,) = A.run.programs.values()
        assert matrix_products(program._second) == want


@pytest.mark.parametrize("route", ["eager", "traced"])
def test_what_is_kept_follows_the_weights(net: Any, route: Any) -> None:
    """Weights, data or buffers written in place between two products are seen by the second."""
    model, batch = net
    model.append(nn.BatchNorm1d(2).to(F64))
    risk = Risk(model, mse, batch)
    A, v = hessian(risk, route=route), risk.space.random(dtype=F64)
    before = A @ v
    for change in (model[0].weight, batch[0], model[-1].running_var):
        with torch.no_grad():
            change.mul_(1.1)
        after = A @ v
        assert gap(after, hessian(risk) @ v) <= 1e-13
        assert gap(after, before) > 1e-3
        before = after


def test_short_memory_recomputes(net: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Where nothing may be kept, every product runs both programs, says so once, and is the same."""
    model, batch = net
    risk = Risk(model, mse, [batch, batch])
    v = risk.space.random(dtype=F64)
    want = hessian(risk) @ v
    monkeypatch.setattr(kept, "MAY_KEEP", 0.0)
    for route in ("eager", "traced"):
        A = hessian(risk, route=route)
        for _ in range(2):
            assert gap(A @ v, want) <= 1e-13
        assert not A.run.kept
    assert capsys.readouterr().err.count("recomputed for each product") == 2


def test_as_many_batches_are_kept_as_fit(net: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Two of three batches in 0.6 of a memory that holds almost five; what is kept is part of it."""
    model, batch = net
    risk = Risk(model, mse, [batch] * 3)
    v = risk.space.random(dtype=F64)
    A = hessian(risk, route="traced")
    want = A @ v
    size = next(iter(A.run.programs.values())).bytes
    A.run.kept.clear()
    monkeypatch.setattr(type(A.run.group), "free_here", lambda group, device: (4.9 - len(A.run.kept)) * size)
    for _ in range(2):
        assert gap(A @ v, want) <= 1e-13
        assert list(A.run.kept) == [0, 1]
    assert capsys.readouterr().err.count("2 of 3 batches fit the memory") == 1


def test_entries_made_again_are_not_kept(net: Any) -> None:
    """For the compiler, entrywise functions of kept values are made again: less memory, same numbers."""
    from quadform.curvature import linear

    model, batch = net
    risk = Risk(model, mse, batch)
    A, v = hessian(risk), risk.space.random(1, dtype=F64)
    primal = (dict(risk.params), list(batch))
    whole = lambda primal, V: A.run.kind.stacked(primal[0], tuple(primal[1]), V)  # noqa: E731
    with risk.context():
        all_kept = Linearised(whole, primal, v, compile=False)
        before, linear.cut = linear.cut, lambda g, n, remake: before(g, n, linear._ENTRYWISE)
        try:
            fewer = Linearised(whole, primal, v, compile=False)
        finally:
            linear.cut = before
        assert 0 < fewer.bytes < all_kept.bytes
        assert gap(fewer(primal, fewer.at(primal), v), A @ v) <= 1e-13


def test_products_in_halves_keep_halves(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large float32 products in scaled float16: error of ten mantissa bits; operands no vector touches are kept so."""
    from quadform.kernels import products

    monkeypatch.setattr(products, "LEAST", 2)
    model, batch = net
    model, batch = model.float(), tuple(t.float() if t.is_floating_point() else t for t in batch)
    risk = Risk(model, mse, batch)
    A, v = hessian(risk), risk.space.random(1, dtype=torch.float32)
    primal = (dict(risk.params), list(batch))
    whole = lambda primal, V: A.run.kind.stacked(primal[0], tuple(primal[1]), V)  # noqa: E731
    with risk.context():
        halves = Linearised(whole, primal, v, compile=False, products="halves")
        kept = halves.at(primal)
    assert any(t.dtype == torch.float16 for t in kept)
    assert halves.bytes == sum(t.nbytes for t in kept)
    assert 1e-6 < gap(halves(primal, kept, v), A @ v) < 3e-3


def test_blocks_of_a_traced_whole_use_its_program(net: Any) -> None:
    """A block asked for after the whole was traced is cut from it; before, it has a smaller program of its own."""
    model, batch = net
    risk = Risk(model, mse, batch)
    A = hessian(risk, route="traced")
    own = A.block("0.weight", "3.weight")
    A @ risk.space.random(dtype=F64)
    cut = A.block("0.weight", "3.weight")
    want = hessian(risk).block("0.weight", "3.weight").dense()
    assert float((own.dense() - want).abs().max()) <= 1e-14
    assert float((cut.dense() - want).abs().max()) <= 1e-14
    assert len(A.run.programs) == 1


def test_prediction_prefers_preparation_only_when_it_pays() -> None:
    """Few products run eagerly, many small ones traced, very many or long ones compiled."""

    def best(eager: float, products: int) -> str:
        times = predict(200, eager, products, "cpu")
        return min(times, key=lambda route: times[route])

    assert best(0.01, 1) == "eager"
    assert best(0.15, 100) == "traced"
    assert best(10.0, 100) == "compiled"


def test_the_first_product_is_not_the_rate(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first product of a process may load and warm up for a minute: the plan counts with the second."""
    model, batch = net
    risk = Risk(model, mse, batch)
    A = hessian(risk, products=10)
    times = iter((60.0, 0.5))
    monkeypatch.setattr(prediction, "timed", lambda run, v: next(times))
    assert prediction.measure(A.run, risk.space.random(1, dtype=F64))["eager"] == 10 * 0.5


def test_auto_says_what_it_took(net: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The route is chosen at the first product and said in one line where somebody would wait."""
    model, batch = net
    risk = Risk(model, mse, batch)
    v = risk.space.random(dtype=F64)
    A = hessian(risk, route="auto", products=3)
    assert A.route == "auto"
    A @ v
    assert A.route == "eager"
    monkeypatch.setattr(prediction, "TRACE_S", {"cpu": 1e-9})
    monkeypatch.setattr(prediction, "COMPILE_S", {"cpu": 1e9})
    A = gauss_newton(risk, route="auto", products=10**7)
    assert gap(A @ v, gauss_newton(risk) @ v) <= 1e-13
    assert A.route == "traced"
    assert "traced route for 10000000 products, about" in capsys.readouterr().err
    with pytest.raises(InputError, match="is not one of"):
        hessian(risk, route="quick")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [hessian, functional])
def test_reverse_over_reverse_and_forward_over_reverse_agree(net: Any, make: Any) -> None:
    """The kept graph of the gradient and jvp(grad) give one Hessian and one functional part, whole and in blocks."""
    model, batch = net
    risk = Risk(model, mse, batch)
    A, B = make(risk), make(risk)
    B.run.kind = dataclasses.replace(B.run.kind, scalar=None)
    V = risk.space.random(3, dtype=F64)
    assert gap(A @ V, B @ V) <= 1e-13
    assert A.run.retained
    assert not A.why
    assert not B.run.retained
    blocks = [X.block("0.weight", "3.*").dense() for X in (A, B)]
    assert float((blocks[0] - blocks[1]).abs().max()) <= 1e-14


class Once(torch.autograd.Function):
    """exp with a forward rule and a reverse rule that has no derivative of its own in reverse."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t * ctx.saved_tensors[0]


@pytest.mark.parametrize("make", [hessian, gauss_newton, functional])
@pytest.mark.parametrize("route", ["eager", "traced"])
def test_operators_without_a_second_derivative_are_refused(make: Any, route: Any) -> None:
    """Both nestings give silent zeros through `once_differentiable`; here nothing is given."""
    W = {"W": torch.randn(3, 2, dtype=F64)}
    batch = (torch.randn(4, 3, dtype=F64), torch.randn(4, 2, dtype=F64))
    risk = Risk(lambda p, b: Once.apply(b[0] @ p["W"]), mse, batch, W)
    with pytest.raises(InputError, match="differentiated once only"):
        make(risk, route=route) @ risk.space.random(dtype=F64)


def test_a_model_without_a_second_backward_pass_goes_forward(net: Any, monkeypatch: Any, capsys: Any) -> None:
    """Where reverse over reverse fails, one line says so and forward over reverse answers."""
    model, batch = net
    risk = Risk(model, mse, batch)
    v = risk.space.random(dtype=F64)
    want = hessian(risk) @ v

    def refuse(*args: Any) -> None:
        raise RuntimeError("derivative is not implemented")

    A = hessian(risk)
    monkeypatch.setattr(strategies.Retained, "__call__", refuse)
    assert gap(A @ v, want) <= 1e-13
    assert "no second backward pass for this model (derivative is not implemented)" in capsys.readouterr().err


class Attention(nn.Module):
    """One fused attention, called as torch's function."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 2)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("route", ["eager", "traced"])
def test_both_ways_to_attention_agree(route: Any) -> None:
    """The math path and `kernels.attention` inside the measurement give one Hessian; torch's function comes back."""
    model = Attention().to(F64)
    batch = (torch.randn(2, 5, 4, dtype=F64), torch.randn(2, 5, 4, dtype=F64))
    stock = nn.functional.scaled_dot_product_attention
    products = []
    for attention, text in (("math", "math path"), ("fused", "quadform kernel")):
        risk = Risk(model, mse, batch, attention=attention)  # type: ignore[arg-type]
        assert f"the {text} is used while measuring" in str(risk)
        v = risk.space.random(2, dtype=F64, generator=torch.Generator().manual_seed(1))
        products.append([make(risk, route=route) @ v for make in (hessian, gauss_newton, functional)])
    for a, b in zip(*products, strict=True):
        assert gap(a, b) <= 1e-12
    assert nn.functional.scaled_dot_product_attention is stock
    with pytest.raises(InputError, match="'auto', 'math' or 'fused'"):
        Risk(model, mse, batch, attention="flash")  # type: ignore[arg-type]


def test_hugging_face_attention_is_switched_and_restored() -> None:
    """A model set to flex attention, which has no second derivative, is measured through torch's and left as it was."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).to(F64)
    ids = torch.randint(0, 11, (2, 6))
    batch = {"input_ids": ids, "labels": ids}
    v = Risk(model, data=batch).space.random(dtype=F64)
    want = hessian(Risk(model, data=batch)) @ v
    model.config._attn_implementation = "flex_attention"
    assert gap(hessian(Risk(model, data=batch)) @ v, want) <= 1e-6
    assert model.config._attn_implementation == "flex_attention"


class Otherwise(nn.Module):
    """Another function while it is traced, as models with shortcuts of their own may be."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y.tanh() if torch.compiler.is_compiling() else y.sigmoid()


@pytest.mark.parametrize("make", [hessian, gauss_newton, functional])
def test_a_program_that_differs_from_the_model_is_not_used(make: Any, capsys: Any) -> None:
    """The first product of a program is compared with the model's own before it is given."""
    batch = (torch.randn(5, 3, dtype=F64), torch.randn(5, 2, dtype=F64))
    risk = Risk(Otherwise(), mse, batch, quiet=True)
    v = risk.space.random(dtype=F64)
    A = make(risk, route="traced")
    assert gap(A @ v, make(risk) @ v) <= 1e-13
    assert A.route == "eager"
    (why,) = A.why
    assert "differs from that of the model's own code" in why
    assert capsys.readouterr().err == why + "\n"


class Scattered(nn.Module):
    """Two equal tensors of zeros, one of which is written into."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).tanh()
        chosen, other = torch.zeros_like(y), torch.zeros_like(y)
        chosen.scatter_(1, y.argmax(1, keepdim=True), 1)
        return y * chosen + y.square() * (1 - other)


def test_equal_values_are_merged_only_where_none_is_written(capsys: Any) -> None:
    batch = (torch.randn(5, 3, dtype=F64), torch.randn(5, 2, dtype=F64))
    risk = Risk(Scattered(), mse, batch, quiet=True)
    v = risk.space.random(dtype=F64)
    A = hessian(risk, route="traced")
    assert gap(A @ v, hessian(risk) @ v) <= 1e-13
    assert A.route == "traced"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("make", [hessian, gauss_newton, functional])
def test_layer_norms_that_are_not_measured_are_traced(net: Any, make: Any, capsys: Any) -> None:
    """Weights outside `params` have no tangent; they are read where they lie, not kept as constants."""
    model, batch = net
    risk = Risk(model, mse, batch, params="0.*", quiet=True)
    v = risk.space.random(dtype=F64)
    A = make(risk, route="traced")
    assert gap(A @ v, make(risk) @ v) <= 1e-13
    assert A.route == "traced"
    assert capsys.readouterr().err == ""


class Alone(torch.autograd.Function):
    """exp with rules for one vector, and none for vmap."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].exp()

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t * ctx.saved_tensors[0]


class Looks(nn.Module):
    """Looks at a value, which a trace does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).tanh()
        return Alone.apply(y if float(y.detach().sum()) < 1e6 else -y)


def test_ways_that_do_not_suit_are_left_one_by_one(capsys: Any) -> None:
    """Each is told once, with what comes in its place; the product is right and the next one tells nothing."""
    batch = (torch.randn(5, 3, dtype=F64), torch.randn(5, 2, dtype=F64))
    risk = Risk(Looks(), mse, batch, quiet=True)
    V = risk.space.random(3, dtype=F64)
    A = gauss_newton(risk, route="traced")
    for _ in range(2):
        image = A @ V
    traced, stacked = A.why
    assert traced.startswith("Gauss-Newton: cannot be traced (")
    assert traced.endswith("; step by step instead, about 2.6 times as long a product.")
    assert stacked.startswith("Gauss-Newton: batching over vectors (vmap) failed (")
    assert stacked.endswith("; one vector at a time.")
    assert capsys.readouterr().err == f"{traced}\n{stacked}\n"
    one = gauss_newton(risk)
    for j in range(3):
        assert gap({n: t[j] for n, t in image.items()}, one @ {n: t[j] for n, t in V.items()}) <= 1e-13
    assert not one.why  # a single vector is not batched


def test_fewer_vectors_at_once_where_memory_is_short(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that share a call are halved until they fit; the products are the same and the choice stays."""
    model, batch = net
    risk = Risk(model, mse, batch, quiet=True)
    V = risk.space.random(7, dtype=F64)
    want = gauss_newton(risk) @ V
    stacked, sizes = strategies.Kind.stacked, []

    def small(kind: Any, theta: Any, batch: Any, V: Any) -> Any:
        sizes.append(len(next(iter(V.values()))))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("too large")
        return stacked(kind, theta, batch, V)

    monkeypatch.setattr(strategies.Kind, "stacked", small)
    A = gauss_newton(risk)
    for _ in range(2):
        assert gap(A @ V, want) <= 1e-13
    assert sizes == [7, 4, *[2, 2, 2, 1] * 2]
    assert len(A.why) == 2


def test_products_are_functions_of_their_vectors(net: Any) -> None:
    """What is prepared gives the same image whatever was multiplied before, and with another batch between."""
    model, batch = net
    risk = Risk(model, mse, [batch, (batch[0] + 1, batch[1])], quiet=True)
    v, w = (risk.space.random(1, dtype=F64) for _ in range(2))
    for route in ("eager", "traced"):
        run = hessian(risk, route=route).run
        run(v)
        way = run.choice.ways[0]
        first, second = (way.prepare(i, v, run.kept) for i in (0, 1))
        before = first.apply(v)
        second.apply(w), first.apply(w)
        assert gap(first.apply(v), before) == 0


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y.tanh() if float(y.detach().sum()) > 0 else y


@pytest.mark.parametrize(
    ("route", "why"),
    [
        ("traced", "cannot be traced (its code takes a value out of a tensor"),
        ("compiled-units", "cannot be compiled block by block (the model has no repeated blocks"),
    ],
)
def test_one_line_says_why_a_route_was_left(route: Any, why: str) -> None:
    """A model that branches on values; a model without blocks, which is asked for them once."""
    batch = (torch.randn(3, 2), torch.randn(3, 2))
    risk = Risk(Branching(), lambda out, batch: (out - batch[1]).square().mean(), batch, quiet=True)
    H = hessian(risk, route=route)
    H @ risk.space.random(dtype=torch.float32)
    assert H.route == "eager"
    assert len(H.why) == 1
    assert why in H.why[0]
