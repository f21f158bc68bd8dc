"""Models of all kinds against double backward: where torch differentiates otherwise than one thinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import quadform as qf
from quadform.core.errors import InputError
from quadform.curvature import Risk, activation_hessian, fisher, functional, gauss_newton, hessian

F64 = torch.float64


def mse(out: Tensor, batch: Any) -> Tensor:
    return (out - batch[1]).square().mean()


def data(*shape: int, out: int = 2) -> tuple[Tensor, Tensor]:
    x = torch.randn(*shape, dtype=F64)
    return x, torch.randn(*shape[:-1], out, dtype=F64)


def reference(risk: Risk, loss: Callable[[Any], Tensor]) -> Tensor:
    """The Hessian of the weighted loss by double backward through the model's own parameters, row after row."""
    params = [p for n, p in risk.model.named_parameters() if n in risk.space]  # type: ignore[union-attr]
    value = sum(w * loss(b) for w, b in zip(risk.weights, risk.batches, strict=True))

    def rows(of: Tensor, **options: Any) -> Tensor:
        found = torch.autograd.grad(of, params, allow_unused=True, retain_graph=True, **options)
        return torch.cat(
            [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(params, found, strict=True)]
        )

    return torch.stack([rows(g) for g in rows(value, create_graph=True)]).detach()


def same(A: Tensor, B: Tensor) -> None:
    assert float((A - B).abs().max()) < 1e-12 * float(B.abs().max())


class Old(torch.autograd.Function):
    """x^3 with a rule of the old form, of which torch.func has neither derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g * ctx.saved_tensors[0] ** 2


class Cube(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        return Old.apply(self.linear(x))


class HalfConstant(nn.Module):
    """A part under no_grad, which training sees as a constant and torch's forward derivatives do not."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(3, 3, dtype=F64), nn.Linear(3, 2, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.inside(x).tanh()
        return self.outside(h + self.inside(x)).tanh()


@pytest.mark.parametrize("route", ["eager", "traced"])
@pytest.mark.parametrize("make", [Cube, HalfConstant])
def test_models_that_forward_derivatives_do_not_suit(make: Any, route: Any) -> None:
    """H, and H_o + H_f, are the double backward where a rule has no forward derivative, or where it has another one."""
    model, batch = make(), data(5, 3)
    risk = Risk(model, mse, batch, quiet=True)
    want = reference(risk, lambda b: mse(model(b[0]), b))
    same(hessian(risk, route=route).dense(), want)
    H_o, H_f = gauss_newton(risk, route=route).dense(), functional(risk, route=route).dense()
    same(H_o + H_f, want)
    same(H_o, H_o.T)
    same(activation_hessian(risk).dense(), 2 * torch.eye(10, dtype=F64) / 10)
    same(risk.space.flatten(risk.gradient()), torch.cat([p.flatten() for p in _gradient(model, batch)]))


def _gradient(model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
    return torch.autograd.grad(mse(model(batch[0]), batch), list(model.parameters()))


class _WrongTwice(torch.autograd.Function):
    """Products of neighbours, whose derivative is right and whose second derivative is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.roll(1, -1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return g * x.roll(1, -1).detach() + (g * x).roll(-1, -1)


def test_a_wrong_rule_is_refused() -> None:
    """A second backward pass that is not symmetric: nothing is given."""

    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return _WrongTwice.apply(x)

    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), Wrong(), nn.Linear(3, 2)).to(F64)
    risk = Risk(model, mse, data(5, 3), quiet=True)
    with pytest.raises(InputError, match="not symmetric"):
        hessian(risk) @ risk.space.random(dtype=F64)


@pytest.mark.parametrize("route", ["eager", "units", "traced"])
def test_weight_norm_is_right(route: Any) -> None:
    """torch's second derivative of it is wrong in 2.13: W = g v / |v| is differentiated as it is written."""
    normed = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(*(nn.Sequential(normed(nn.Linear(3, 3)), nn.Tanh()) for _ in range(2)), nn.Linear(3, 2)).to(
        F64
    )
    batch = data(5, 3)
    risk = Risk(model, mse, batch, quiet=True)

    def gradient(theta: dict[str, Tensor]) -> Tensor:
        at = {n: t.clone().requires_grad_() for n, t in theta.items()}
        g = torch.autograd.grad(mse(functional_call(model, at, (batch[0],)), batch), list(at.values()))
        return torch.cat([t.flatten() for t in g])

    v = risk.space.random(dtype=F64)
    near = [{n: t + s * 1e-6 * v[n] for n, t in risk.params.items()} for s in (1, -1)]
    want = (gradient(near[0]) - gradient(near[1])) / 2e-6
    H = hessian(risk, route=route)
    found = H @ risk.space.flatten(v)
    assert H.route == route  # type: ignore[attr-defined]
    assert float((found - want).norm() / want.norm()) < 1e-6


@pytest.mark.parametrize("route", ["eager", "units", "traced"])
@pytest.mark.parametrize("padding", [1, -1])
def test_the_padding_token_of_an_embedding_is_a_constant(route: Any, padding: int) -> None:
    """No gradient reaches its row through the embedding, so no tangent does, on any route; a head that is tied to the
    embedding moves all rows."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(6, 4, padding_idx=padding)
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
            with torch.no_grad():
                self.embed.weight.normal_()

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for layer in self.layers:
                x = x + layer(x)
            return x @ self.embed.weight.T

    model = Tied().to(F64)
    batch = (torch.tensor([[0, 1, 5, 2], [1, 3, 4, 5]]), torch.randn(2, 4, 6, dtype=F64))
    risk = Risk(model, mse, batch, quiet=True)
    want = reference(risk, lambda b: mse(model(b[0]), b))
    for part in (hessian, gauss_newton):
        A = part(risk, route=route)
        found = A.dense()
        assert A.route == route  # type: ignore[attr-defined]
        same(found if part is hessian else found + functional(risk, route=route).dense(), want)


def test_a_flat_or_fitted_model_is_symmetric_enough() -> None:
    """A fitted linear model, whose gradient is rounding, and one without curvature at all are not refused."""
    x, model = torch.randn(20, 3, dtype=F64), nn.Linear(3, 2, dtype=F64)
    fitted = torch.linalg.lstsq(
        torch.cat([x, torch.ones(20, 1, dtype=F64)], 1), y := torch.randn(20, 2, dtype=F64)
    ).solution
    with torch.no_grad():
        model.weight.copy_(fitted[:3].T), model.bias.copy_(fitted[3])
    for route in ("eager", "traced"):
        H = hessian(Risk(model, mse, (x, y), quiet=True), route=route).dense()  # type: ignore[arg-type]
        same(H, gauss_newton(Risk(model, mse, (x, y), quiet=True)).dense())
        assert not hessian(Risk(model, lambda o, b: o.mean(), (x, y), quiet=True), route=route).dense().any()  # type: ignore[arg-type]


def test_batch_norm_in_training_mode_keeps_its_statistics() -> None:
    """Every product of every route with statistics of the batch; running ones, which each evaluation moves, stay."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).to(F64).train()
    batch = data(6, 3)
    before = {n: t.clone() for n, t in model.named_buffers()}
    risk = Risk(model, mse, batch, train_mode=True, quiet=True)
    found = [hessian(risk, route=r).dense() for r in ("eager", "traced")]  # type: ignore[arg-type]
    found += [gauss_newton(risk, route=r).dense() + functional(risk).dense() for r in ("eager", "traced")]  # type: ignore[arg-type]
    assert all(torch.equal(t, before[n]) for n, t in model.named_buffers())
    want = reference(risk, lambda b: mse(model(b[0]), b))
    for H in found:
        same(H, want)


@pytest.mark.parametrize("route", ["eager", "traced"])
def test_weights_that_are_not_measured_count(route: Any) -> None:
    """What is kept between products is made anew when a weight outside `params` is written."""
    model, batch = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).to(F64), data(5, 3)
    risk = Risk(model, mse, batch, params="0.*", quiet=True)
    H = hessian(risk, route=route)
    before = H.dense()
    with torch.no_grad():
        model[2].weight.mul_(3)
    want = reference(risk, lambda b: mse(model(b[0]), b))
    same(H.dense(), want)
    assert float((before - want).abs().max()) > 1e-3


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.loss = nn.Linear(3, 2, dtype=F64), nn.functional.mse_loss

    def forward(self, x: Tensor, scale: float, y: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(scale * self.linear(x).tanh(), y)}


@pytest.mark.parametrize("route", ["eager", "traced"])
def test_plain_numbers_in_a_batch_count(route: Any) -> None:
    """Two batches that differ in a number that is no tensor; the model keeps a function as its attribute `loss`."""
    model, (x, y) = Scaled(), data(5, 3)
    risk = Risk(model, None, [{"x": x, "scale": 1.0, "y": y}, {"x": x, "scale": 5.0, "y": y}], quiet=True)
    same(hessian(risk, route=route).dense(), reference(risk, lambda b: model(**b)["loss"]))


def test_compiled_models_are_taken_apart() -> None:
    """torch.compile keeps a model behind names of its own, and its programs have one derivative."""
    model, batch = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).to(F64), data(5, 3)
    risk = Risk(torch.compile(model, backend="aot_eager"), mse, batch, quiet=True)
    assert risk.space.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    same(hessian(risk).dense(), reference(risk, lambda b: mse(model(b[0]), b)))


def test_no_vector_at_all() -> None:
    assert (
        hessian(Risk(nn.Linear(3, 2, dtype=F64), mse, data(5, 3), quiet=True)) @ torch.ones(8, 0, dtype=F64)
    ).shape == (8, 0)


def confident(out: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(out, batch[1])


def test_monte_carlo_fisher_of_certain_predictions() -> None:
    """Tokens whose first class has probability 0 or 1 in floating point; mean over many draws: H_o."""
    model = nn.Linear(3, 4, dtype=F64)
    x = torch.randn(3, 3, dtype=F64)
    shift = torch.tensor([[800.0, 0, 0, 0], [-800.0, 0, 0, 0], [0, 0, 0, 0]], dtype=F64)
    batch, weights = (x, torch.tensor([0, 1, 2])), {"W": model.weight.T}
    risk = Risk(lambda p, b: b[0] @ p["W"] + shift, confident, batch, weights, quiet=True)
    H_o = gauss_newton(risk).dense()
    F = fisher(risk, kind="monte-carlo", samples=20_000).dense()
    assert float((F - H_o).norm() / H_o.norm()) < 0.05


def test_positions_of_answers_are_counted() -> None:
    """Question answering: a row is one term, however long it is."""

    class Spans(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones((), dtype=F64))

        def forward(self, input_ids: Tensor, start_positions: Tensor) -> dict[str, Tensor]:
            return {"loss": self.a.square() * input_ids.shape[1]}

    batches = [
        {"input_ids": torch.ones(r, t).long(), "start_positions": torch.zeros(r).long()} for r, t in ((2, 9), (1, 3))
    ]
    assert Risk(Spans(), None, batches, quiet=True).weights == [2 / 3, 1 / 3]


LINEAR = nn.Linear(3, 2, dtype=F64)
XY = data(5, 3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Risk(LINEAR, lambda o, b: mse(o, b).item(), XY), "must be a real tensor.*float"),
        (lambda: hessian(Risk(LINEAR, lambda o, b: mse(o, b).detach(), XY)).dense(), "has no gradient"),
        (
            lambda: Risk(LINEAR, mse, [XY, data(4, 3)], count=lambda b: 1 if b is XY else torch.nan),
            "2 of 2 has no loss terms",
        ),
        (lambda: Risk(nn.LazyLinear(2), mse, XY), "has no shape yet"),
        (lambda: Risk(nn.Linear(3, 2, device="meta"), mse, XY), "holds no numbers"),
        (lambda: Risk(lambda p, b: p["a"] * b[0], mse, XY, {"a": torch.tensor(2)}), "is int64"),
        (lambda: Risk(LINEAR, mse, XY).value({"wieght": LINEAR.weight}), "is not a parameter.*Closest names: weight"),
        (lambda: Risk(LINEAR, mse, 3), "iterable of batches; got int"),
    ],
)
def test_bad_input_says_what_to_do(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        make()


def test_inference_mode_is_refused() -> None:
    with torch.inference_mode(), pytest.raises(InputError, match=r"use `torch\.no_grad\(\)`"):
        Risk(LINEAR, mse, XY)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = (nn.Linear(3, n, dtype=F64) for n in (3, 2, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x).tanh()
        return self.one(h), self.two(h)


@pytest.mark.parametrize("part", [gauss_newton, functional])
def test_other_ways_to_the_loss_are_told(part: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """H_o + H_f is H where the loss sees the weights through the output alone; a second head or a penalty is said."""
    model, plain = Heads(), nn.Linear(3, 2, dtype=F64)
    part(Risk(plain, mse, XY, quiet=True))
    assert "do not add up" not in capsys.readouterr().err
    part(Risk(model, lambda out, b: mse(out[0], b) + mse(out[1].tanh(), b), XY, quiet=True))
    assert "do not add up to H" in capsys.readouterr().err
    part(Risk(plain, lambda out, b: mse(out, b) + sum(p.square().sum() for p in plain.parameters()), XY, quiet=True))
    assert "do not add up to H" in capsys.readouterr().err


def test_rounding_of_a_saturated_model_is_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    """float32, predictions certain but for rounding: both derivatives are noise there, and nothing is said of it."""
    torch.manual_seed(0)
    x, model = 100 * torch.randn(64, 1).sign(), nn.Linear(1, 2)
    y = model(x).argmax(1)
    hessian(Risk(model, confident, (x, y), quiet=True), route="traced").dense()
    assert capsys.readouterr().err == ""


class Named:
    """A batch of one's own kind; two of them print alike."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __repr__(self) -> str:
        return "Named(5)"


class Opened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=F64)

    def forward(self, batch: Named) -> Tensor:
        return (self.linear(batch.x).tanh() - batch.y).square().mean()


@pytest.mark.parametrize("route", ["eager", "traced"])
def test_batches_that_are_objects(route: Any) -> None:
    """A program traced with one object is not used for another."""
    model = Opened()
    risk = Risk(model, lambda out, b: out, [Named(*data(5, 3)), Named(*data(5, 3))], quiet=True)
    same(hessian(risk, route=route).dense(), reference(risk, model))


def test_sparse_data(capsys: pytest.CaptureFixture[str]) -> None:
    """A sparse batch has no storage to look at; the gradient is kept all the same."""
    model, (x, y) = nn.Linear(3, 2, dtype=F64), data(5, 3)
    sparse = x.relu().to_sparse()
    loss = lambda p, b: (torch.sparse.mm(b[0], p["W"]).tanh() - b[1]).square().mean()  # noqa: E731
    risk = Risk(loss, lambda out, b: out, (sparse, y), {"W": model.weight.T}, quiet=True)
    dense = Risk(loss, lambda out, b: out, (x.relu(), y), {"W": model.weight.T}, quiet=True)
    same(hessian(risk).dense(), hessian(dense).dense())
    assert capsys.readouterr().err == ""


class TakesMapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=F64)

    def forward(self, batch: dict[str, Tensor], scale: float = 1.0) -> dict[str, Tensor]:
        return {"loss": (scale * self.linear(batch["x"]).tanh() - batch["y"]).square().mean()}


@pytest.mark.parametrize("route", ["eager", "traced"])
def test_a_module_that_takes_the_mapping_itself(route: Any) -> None:
    """Keywords where the names are those of forward, else the mapping as the one argument; anything between is told."""
    model, (x, y) = TakesMapping(), data(5, 3)
    risk = Risk(model, None, {"x": x, "y": y}, quiet=True)
    same(hessian(risk, route=route).dense(), reference(risk, lambda b: model(b)["loss"]))
    with pytest.raises(InputError, match=r"keys 'x', 'scale', 'z', but Scaled\.forward takes .*missing.*'y'"):
        Risk(Scaled(), None, {"x": x, "scale": 1.0, "z": y}, quiet=True)


class Scale(nn.Module):
    """Notes whether autocast reached it. No matrix product: some CPUs cannot multiply bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.inside = nn.Parameter(torch.ones(2)), set()

    def forward(self, x: Tensor) -> Tensor:
        self.inside.add(torch.is_autocast_enabled("cpu"))
        return (x * self.a).tanh()


def test_autocast_of_the_caller_is_left_outside() -> None:
    """Inside `torch.autocast` the Hessian is that of the weights' own precision, and it is said."""
    model, batch = Scale(), (torch.randn(5, 2), torch.randn(5, 2))
    want = hessian(Risk(model, mse, batch, quiet=True)).dense()
    with torch.autocast("cpu", torch.bfloat16):
        risk = Risk(model, mse, batch, quiet=True)
        v = risk.space.random(dtype=torch.float32)
        assert torch.is_autocast_enabled("cpu")
        found = [hessian(risk, route=route) @ v for route in ("eager", "traced")]
    assert model.inside == {False}
    assert "autocast switched off while measuring, in float32" in str(risk)
    for Hv in found:
        torch.testing.assert_close(risk.space.flatten(Hv), want @ risk.space.flatten(v))


def test_quantised_modules_are_refused() -> None:
    """Packed integers have no derivative: curvature of the weights before them would come out as zero."""
    model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2))
    model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(InputError, match=r"`1` is quantized \(Linear, packed integers\) and has no derivatives"):
        Risk(model, mse, (torch.randn(5, 3), torch.randn(5, 2)), quiet=True)
    with pytest.raises(InputError, match=r"`1` is quantized"):
        qf.spectrum(model, (torch.randn(5, 3), torch.randn(5, 2)), mse)
    with pytest.raises(InputError, match="has no parameters"):
        Risk(nn.Tanh(), mse, (torch.randn(5, 3), torch.randn(5, 3)), quiet=True)
