"""What the layers refuse, all in the same words."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from strategies import randn

from quadform.core.errors import InputError, UnknownName
from quadform.theory import (
    AttentionLayer,
    DeepLinearTransformer,
    HiddenLayerMLP,
    LinearAttentionLayer,
    LinearMLP,
    MergedLayer,
    MultiHeadAttentionLayer,
    ScalarTokenModel,
    ScoreAttentionLayer,
    ScoreSplit,
)
from quadform.theory.layer import PARTS
from quadform.theory.scores import dot_product, masked

G = torch.Generator().manual_seed(0)
X, Y, A, B, V = (randn(G, *shape) for shape in ((4, 3), (4, 5), (3, 2), (3, 2), (3, 5)))

#: Name -> (builder of a layer, its tensors).
LAYERS: dict[str, tuple[Callable, tuple]] = {
    "attention": (AttentionLayer, (X, A, B, V, Y)),
    "multihead": (lambda *a: MultiHeadAttentionLayer(*a, heads=1), (X, A, B, V, randn(G, 5, 2), randn(G, 4, 2))),
    "merged": (lambda *a: MergedLayer(*a, d_K=2), (X, randn(G, 3, 3), V, Y)),
    "linear": (LinearAttentionLayer, (X, A, B, V, Y)),
    "scores": (
        lambda X, A, B, V, Y: ScoreAttentionLayer(dot_product(X), {"W_Q": A, "W_K": B}, X, V, Y),
        (X, A, B, V, Y),
    ),
    "linear mlp": (lambda X, A, B, Y: LinearMLP(X, [A, B], Y), (X, randn(G, 3, 4), randn(G, 4, 5), Y)),
    "mlp": (
        lambda X, A, a, B, b, Y: HiddenLayerMLP(X, A, B, Y, b_1=a, b_2=b),
        (X, randn(G, 3, 4), randn(G, 4), randn(G, 4, 5), randn(G, 5), Y),
    ),
    "deep": (lambda X, A, B, V, Y: DeepLinearTransformer(X, [(A, B, V)], Y), (X, A, B, V, Y)),
    "scalar": (ScalarTokenModel, (randn(G, 4), randn(G, 4), randn(G, 2), randn(G, 2), torch.tensor(1.0).double())),
}


def spoilt(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[-1] = math.nan
    return tensor


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_is_built_on_what_is_no_number(name: str) -> None:
    """NaN in any tensor, the targets too, is refused before anything is computed."""
    build, tensors = LAYERS[name]
    build(*tensors)
    for i, tensor in enumerate(tensors):
        with pytest.raises(InputError, match="is not finite: nan at index"):
            build(*tensors[:i], spoilt(tensor), *tensors[i + 1 :])


@pytest.mark.parametrize("name", LAYERS)
def test_one_dtype_for_all_weights(name: str) -> None:
    """A weight of another dtype, or one that is missing, is named."""
    build, tensors = LAYERS[name]
    for other, text in ((tensors[1].float(), "one floating dtype"), (None, "is a NoneType; give a tensor")):
        with pytest.raises(InputError, match=text):
            build(tensors[0], other, *tensors[2:])


def test_a_part_that_does_not_exist_is_no_other_part() -> None:
    """ "gauss-newton" was once read as the whole Hessian."""
    for name in ("attention", "multihead", "merged", "linear", "linear mlp", "mlp"):
        build, tensors = LAYERS[name]
        layer = build(*tensors)
        first = next(iter(layer.weights))
        asked = [layer.matrix, layer.norms, layer.diagonal, layer.trace, layer.check]
        asked += [lambda part, f=f, a=first: f(a, a, part) for f in (layer.norm, layer.attribution)]
        asked += [lambda part, f=layer.dense, a=first: f(part, a, a)]
        for ask in asked:
            with pytest.raises(
                UnknownName, match="unknown part of a Hessian 'outter'; choose from total, outer, functional"
            ):
                ask("outter")
    split = ScoreSplit(AttentionLayer(X, A, B, V, Y))
    for ask in (LAYERS["scores"][0](X, A, B, V, Y).matrix, LAYERS["deep"][0](X, A, B, V, Y).log_norms, split.t_outer):
        with pytest.raises(UnknownName, match="unknown part of a Hessian 'outter'"):
            ask("outter")


def test_a_row_without_a_visible_key_is_refused() -> None:
    """Its attention would be 0 / 0."""
    visible = torch.ones(4, 4).tril(-1).bool()
    with pytest.raises(InputError, match="every query one visible key"):
        ScoreAttentionLayer(masked(dot_product(X), visible), {"W_Q": A, "W_K": B}, X, V, Y)
    build, tensors = LAYERS["scalar"]
    with pytest.raises(InputError, match="every query one visible key"):
        build(*tensors, bias=torch.zeros(4, 4).double().masked_fill(~visible, -math.inf))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"b_1": torch.zeros(1)}, "b_1 has shape \\(1,\\); this layer needs \\(4,\\)"),
        ({"b_2": torch.zeros(4)}, "b_2 has shape \\(4,\\); this layer needs \\(5,\\)"),
        ({"W_2": torch.zeros(4)}, "do not match"),
        ({"X": torch.zeros(0, 3)}, "all sizes are at least 1"),
    ],
)
def test_shapes_of_a_hidden_layer(change: dict, text: str) -> None:
    good = {"X": torch.ones(2, 3), "W_1": torch.ones(3, 4), "W_2": torch.ones(4, 5), "Y": torch.ones(2, 5)}
    with pytest.raises(InputError, match=text):
        HiddenLayerMLP(**(good | change))


def test_weights_of_linear_attention_are_matrices() -> None:
    with pytest.raises(InputError, match="W_Q, W_K and W_V are matrices"):
        LinearAttentionLayer(X, A, B[:, 0], V, Y)


def test_what_leaves_floating_point_is_refused() -> None:
    """Scores or outputs beyond the largest number, and temperatures whose inverse square is: no NaN comes out."""
    for name in ("attention", "multihead", "merged", "linear", "linear mlp", "mlp"):
        build, tensors = LAYERS[name]
        with pytest.raises(InputError, match=r"the output of the layer exceeds the range of torch\.float64"):
            build(1e200 * tensors[0], *(1e120 * t for t in tensors[1:-1]), tensors[-1])
    for temperature in (1e-300, 1e-320):
        with pytest.raises(InputError, match="is too small"):
            AttentionLayer(X, A, B, V, Y, temperature=temperature)
    single = (t.float() for t in (X, A, B, V, Y))
    with pytest.raises(InputError, match=r"1 / temperature\^2 exceeds the range of torch\.float32"):
        AttentionLayer(*single, temperature=1e-25)


def test_at_infinite_temperature_attention_is_uniform() -> None:
    """One head, and the same with one matrix W_QK: only the value block of H is left."""
    layer = AttentionLayer(X, A, B, V, Y, temperature=math.inf)
    merged = MergedLayer.of(layer)
    assert torch.equal(layer.A, torch.full((1, 4, 4), 0.25).double())
    assert torch.equal(merged.block("W_V", "W_V"), layer.block("W_V", "W_V"))
    assert not merged.block("W_QK", "W_QK").any()


@pytest.mark.filterwarnings("error:Converting a tensor with requires_grad")
@pytest.mark.parametrize("name", ["attention", "multihead", "merged", "linear", "linear mlp", "mlp"])
def test_weights_in_training_give_plain_values(name: str) -> None:
    """Every number equals that of plain weights and keeps no graph: what it is made of (the moments) has none."""
    build, tensors = LAYERS[name]
    plain = build(*tensors)
    layer = build(tensors[0], *(t.clone().requires_grad_() for t in tensors[1:-1]), tensors[-1])
    first, v = next(iter(plain.weights)), plain.space.random(dtype=torch.float64)
    for pair, norm in layer.norms().items():
        assert norm.value == pytest.approx(plain.norms()[pair].value, rel=1e-12)
    for ask in (
        lambda l: l.space.flatten(l.diagonal()),
        lambda l: l.space.flatten(l.gradients()),
        lambda l: l.space.flatten(l.hessian() @ v),
        lambda l: l.attribution(first, first, "outer"),
        lambda l: l.matrix(),
    ):
        assert not ask(layer).requires_grad
        assert torch.allclose(ask(layer), ask(plain), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "fits", "leaves"), [("linear", 45, 60), ("linear mlp", 150, 160), ("mlp", 150, 160)])
def test_a_hessian_that_leaves_floating_point_is_refused(name: str, fits: int, leaves: int) -> None:
    """Degree 6 in the data (linear attention) or 2 (MLPs): finite numbers before 1e308, a refusal by name after it."""
    build, (X, *rest) = LAYERS[name]
    layer = build(X * 10.0**fits, *rest)
    for part in PARTS:
        assert bool(layer.matrix(part).isfinite().all())
        assert all(math.isfinite(e.value) for e in layer.norms(part).values())
    for power in (leaves, leaves + 20, 250):
        with pytest.raises(InputError, match=r"exceeds the range of torch\.float64"):
            build(X * 10.0**power, *rest)


@pytest.mark.parametrize("name", ["attention", "merged", "linear", "scalar"])
def test_temperatures_whose_square_leaves_floating_point(name: str) -> None:
    """1 / t^2 stands in every second derivative: such a t is refused, with the number that was given."""
    kinds = {
        "attention": lambda t: AttentionLayer(X, A, B, V, Y, temperature=t),
        "merged": lambda t: MergedLayer(X, A @ B.T, V, Y, d_K=7, temperature=t),
        "linear": lambda t: LinearAttentionLayer(X, A, B, V, Y, temperature=t),
        "scalar": lambda t: ScalarTokenModel(*LAYERS["scalar"][1], temperature=t),
    }
    for t in (1e-200, 1e-320):
        with pytest.raises(InputError, match=f"temperature {t} is too small"):
            kinds[name](t)


def test_factors_that_differ_too_much_in_size() -> None:
    """x^2 B^2 fits float64 where B^2 does not: the product does, the block is refused and never NaN."""
    layer = LinearMLP(X * 1e-160, [randn(G, 3, 4), 1e160 * randn(G, 4, 5)], Y)
    assert all(
        bool(t.isfinite().all())
        for t in layer.products({n: w[None] for n, w in layer.weights.items()}, "total").values()
    )
    with pytest.raises(InputError, match=r"factors of block \(W_1, W_1\)"):
        layer.block("W_1", "W_1")
