"""The exact Hessian of one attention head: [ODS25, Thms 3.1, 3.2] and what follows from them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kronecker import kronecker_blocks
from strategies import attention_problems, randn, seeds, sizes, weight
from torch import Tensor

from quadform.core.errors import CheckFailed, InputError, UnknownName
from quadform.core.operator import Dense
from quadform.core.space import Space
from quadform.testing import check_operator
from quadform.theory import AttentionLayer, writing
from quadform.theory.layer import PARTS, autodiff_hessian
from quadform.theory.loss import CrossEntropy

NAMES = ("W_Q", "W_K", "W_V")


def relative(got: Tensor, want: Tensor, scale: Tensor | None = None) -> float:
    """max |got - want| / max |scale|, the measure the project promises its accuracy in."""
    size = (want if scale is None else scale).abs().max().clamp_min(1e-300)
    return float((got - want).abs().max() / size)


def plain_loss(problem: dict) -> object:
    """The loss written down again, from the definition, for automatic differentiation."""
    X, Y, context = problem["X"], problem["Y"], problem.get("context")
    Z = X if context is None else context
    mask, loss = problem.get("mask"), problem.get("loss", "mse")

    def scalar(w: dict[str, Tensor]) -> Tensor:
        T = (X @ w["W_Q"]) @ (Z @ w["W_K"]).mT / (problem["temperature"] * w["W_Q"].shape[1] ** 0.5)
        if isinstance(mask, str):
            T = T.masked_fill(torch.ones_like(T[0], dtype=torch.bool).triu(1), -torch.inf)
        elif mask is not None and mask.dtype == torch.bool:
            T = T.masked_fill(~mask, -torch.inf)
        elif mask is not None:
            T = T + mask
        F = T.softmax(-1) @ Z @ w["W_V"]
        if loss == "mse":
            return ((F - Y) ** 2).mean()
        return torch.nn.functional.cross_entropy(F.flatten(0, 1), Y.flatten())

    return scalar


@given(attention_problems(losses=("mse", "cross-entropy")))
def test_the_hessian_equals_automatic_differentiation(problem: dict) -> None:
    """H(closed form) = jvp(grad(loss)) for every block, mask, context, batch and temperature."""
    layer = AttentionLayer(**problem)
    H = autodiff_hessian(plain_loss(problem), layer.weights)
    assert relative(layer.matrix(), H) <= 1e-12
    assert relative(layer.loss, plain_loss(problem)(layer.weights)) <= 1e-13


def test_cross_entropy_with_soft_and_missing_labels() -> None:
    """Probabilities as targets, of any total mass; and class numbers -100 that do not count."""
    g = torch.Generator().manual_seed(0)
    X, W = randn(g, 2, 5, 4), [weight(g, 4, n) for n in (3, 3, 3)]
    soft = torch.rand(2, 5, 3, generator=g, dtype=X.dtype)
    hard = torch.randint(0, 3, (2, 5), generator=g)
    hard[0, :3] = -100

    def logits(w: dict[str, Tensor]) -> Tensor:
        return (((X @ w["W_Q"]) @ (X @ w["W_K"]).mT / 3**0.5).softmax(-1) @ X @ w["W_V"]).flatten(0, 1)

    cross_entropy = torch.nn.functional.cross_entropy
    for Y, flat in ((soft, soft.flatten(0, 1)), (hard, hard.flatten())):
        layer = AttentionLayer(X, *W, Y, loss="cross-entropy")
        H = autodiff_hessian(lambda w, flat=flat: cross_entropy(logits(w), flat), layer.weights)
        assert relative(layer.matrix(), H) <= 1e-12


@pytest.mark.parametrize("z", [1.0, 20.0, 40.0, 300.0])
def test_cross_entropy_of_sure_predictions_keeps_its_digits(z: float) -> None:
    """Two classes with logits (z, 0): g = -+ sigmoid(-z) and Hl = sigmoid(z) sigmoid(-z) [[1, -1], [-1, 1]]."""
    F = torch.tensor([[z, 0.0]], dtype=torch.float64)
    loss = CrossEntropy.at(F, torch.tensor([0]))
    rest = 1 / (1 + math.exp(z))
    assert loss.g.tolist()[0] == pytest.approx([-rest, rest], rel=1e-13, abs=0)
    want = rest * (1 - rest)
    got = loss.token_matrices()[0].flatten().tolist()
    assert got == pytest.approx([want, -want, -want, want], rel=1e-13, abs=0)


@given(attention_problems(losses=("mse", "cross-entropy", "given")))
def test_both_parts_equal_automatic_differentiation(problem: dict) -> None:
    """H_f = d2 <g, F> and H_o = H - H_f, for losses given by name or by (g, Hl)."""
    layer = AttentionLayer(**problem)
    for part in PARTS:
        layer.check(part, tolerance=1e-12)


def test_weights_in_training_give_plain_values() -> None:
    """Weights that require gradients give the same Hessian, and it keeps no graph."""
    g = torch.Generator().manual_seed(6)
    X, Y, W = randn(g, 4, 3), randn(g, 4, 3), [weight(g, 3, 3) for _ in range(3)]
    H = AttentionLayer(X, *(w.clone().requires_grad_() for w in W), Y).matrix()
    assert not H.requires_grad
    assert torch.equal(H, AttentionLayer(X, *W, Y).matrix())


@pytest.mark.parametrize("part", PARTS)
def test_large_blocks_equal_automatic_differentiation(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks written as large ones are: in steps, and by the symmetry of (Q, Q) and (K, K)."""
    monkeypatch.setattr(writing, "_LARGE", 0)
    monkeypatch.setattr(writing, "_SCRATCH", 1 << 12)
    g = torch.Generator().manual_seed(5)
    W = [weight(g, 6, 4), weight(g, 6, 4), weight(g, 6, 5)]
    layer = AttentionLayer(randn(g, 2, 5, 6), *W, randn(g, 2, 5, 5), mask="causal")
    layer.check(part, tolerance=1e-12)
    H = layer.matrix(part)
    assert torch.allclose(H, H.T, rtol=0, atol=1e-14)


@given(st.tuples(sizes, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)), seeds)
def test_moment_form_equals_kronecker_form(shape: tuple[int, int, int, int], seed: int) -> None:
    """Every block of H_o and H_f in moment form equals the theorem's Kronecker form."""
    L, d, d_K, d_V = shape
    g = torch.Generator().manual_seed(seed)
    X, Y = randn(g, L, d), randn(g, L, d_V)
    W = weight(g, d, d_K), weight(g, d, d_K), weight(g, d, d_V)
    layer = AttentionLayer(X, *W, Y)
    whole = layer.matrix()
    for (part, a, b), want in kronecker_blocks(X, *W, Y).items():
        assert relative(layer.dense(part, a, b), want, whole) <= 1e-13, (part, a, b)


@given(attention_problems(losses=("mse", "cross-entropy", "given")))
def test_operators_keep_the_contract(problem: dict) -> None:
    """Analytic products, blocks and dense forms of H, H_o and H_f agree with each other."""
    layer = AttentionLayer(**problem, prefix="layers.0.attn.")
    for A in (layer.hessian(), layer.outer_operator(), layer.functional_operator()):
        check_operator(A)


@given(attention_problems(losses=("mse", "cross-entropy", "given")))
def test_norms_traces_and_diagonals_never_need_the_block(problem: dict) -> None:
    """Token Gram sums give ||block||_F, trace and diagonal of the dense blocks."""
    layer = AttentionLayer(**problem)
    for part in PARTS:
        whole = layer.matrix(part)
        size = whole.abs().max()
        for (a, b), norm in layer.norms(part).items():
            # a norm is the root of a sum that cancels: compare squares
            assert abs(norm.value**2 - layer.dense(part, a, b).norm() ** 2) <= 1e-12 * max(
                size**2 * whole.numel(), 1e-300
            )
        diagonal = layer.space.flatten(layer.diagonal(part))
        assert relative(diagonal, whole.diagonal(), whole) <= 1e-13
        assert abs(layer.trace(part).value - whole.trace()) <= 1e-12 * size * whole.shape[0]


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e-5), (torch.float64, 1e-35), (torch.float64, 1e100)])
def test_norms_of_blocks_whose_squares_leave_floating_point(dtype: torch.dtype, scale: float) -> None:
    """H_o(Q, Q) ~ scale^6 and H(V, V) ~ scale^2 fit floating point where their squares do not."""
    g = torch.Generator().manual_seed(0)
    X, W, Y = scale * randn(g, 4, 6), [weight(g, 6, n) for n in (2, 2, 3)], randn(g, 4, 3)
    layer = AttentionLayer(X.to(dtype), *(w.to(dtype) for w in W), Y.to(dtype))
    for (a, b), norm in layer.norms("outer").items():
        M = layer.outer(a, b).double()
        size = M.abs().max()
        want = float(size) * float((M / size).norm()) if size > 0 else 0.0
        assert norm.value == pytest.approx(want, rel=1e-5, abs=0), (a, b)
        assert size == 0 or float(layer.attribution(a, b, "outer").sum()) == pytest.approx(1, abs=1e-5)


@given(attention_problems())
def test_gradients_equal_automatic_differentiation(problem: dict) -> None:
    """dL/dW_Q, dL/dW_K, dL/dW_V in closed form."""
    layer = AttentionLayer(**problem)
    want = torch.func.grad(plain_loss(problem))(layer.weights)
    for name, got in layer.gradients().items():
        assert relative(got, want[name], torch.cat([w.flatten() for w in want.values()])) <= 1e-13


@given(attention_problems())
def test_functional_value_block_is_exactly_zero(problem: dict) -> None:
    """F is linear in W_V, so H_f(V, V) = 0: not small, zero."""
    layer = AttentionLayer(**problem)
    assert not layer.functional("W_V", "W_V").any()
    assert layer.norm("W_V", "W_V", "functional").value == 0


@given(attention_problems(losses=("mse",)))
def test_token_shares_sum_to_one_and_match_the_blocks(problem: dict) -> None:
    """Shares <B_n, B> / ||B||^2 sum to 1; leaving all other tokens out of the sum gives B_n."""
    layer = AttentionLayer(**problem)
    share = layer.attribution("W_V", "W_V")
    assert abs(share.sum() - 1) <= 1e-12
    m, c = layer.head.m, layer.output.curvature
    B = layer.outer("W_V", "W_V")
    own = torch.stack([(c * torch.kron(torch.outer(v, v), torch.eye(layer.F.shape[2])) * B).sum() for v in m])
    assert relative(share.flatten(), own / B.norm() ** 2) <= 1e-12


@pytest.mark.parametrize("mixing", [True, False])
def test_any_network_behind_the_layer(mixing: bool) -> None:
    """With g and d2(l o D)/dF2 at the layer's output, the layer's Hessian is exact for any network D behind it: here a
    residual, a second attention (which couples tokens) and a tanh layer."""
    g = torch.Generator().manual_seed(3)
    B, L, d, d_V = 2, 4, 3, 3
    X, W = randn(g, B, L, d), [weight(g, d, n) for n in (2, 2, d_V)]
    other, Y = weight(g, d_V, d_V), randn(g, B, L, d_V)

    def behind(F: Tensor) -> Tensor:
        h = X + F
        if mixing:
            h = h + (h @ other @ h.mT).softmax(-1) @ h
        return ((torch.tanh(h @ other) - Y) ** 2).mean()

    F = AttentionLayer(
        X, *W, loss=(torch.zeros(B, L, d_V, dtype=X.dtype), torch.zeros(B, L, d_V, d_V, dtype=X.dtype))
    ).F
    space = Space((("F", (B, L, d_V)),))
    curvature = Dense(autodiff_hessian(lambda w: behind(w["F"]), {"F": F}), space)
    layer = AttentionLayer(X, *W, loss=(torch.func.grad(behind)(F), curvature))

    def whole(w: dict[str, Tensor]) -> Tensor:
        T = (X @ w["W_Q"]) @ (X @ w["W_K"]).mT / 2**0.5
        return behind(T.softmax(-1) @ X @ w["W_V"])

    assert relative(layer.matrix(), autodiff_hessian(whole, layer.weights)) <= 1e-12
    for A in (layer.hessian(), layer.outer_operator(), layer.functional_operator()):
        check_operator(A)
    assert layer.norm("W_Q", "W_K").value == pytest.approx(float(layer.block("W_Q", "W_K").norm()), rel=1e-12)


@pytest.mark.parametrize(("sigma", "bound"), [(1.0, 1e-12), (3.0, 1e-8), (10.0, 1e-8)])
def test_accuracy_holds_for_large_inputs(sigma: float, bound: float) -> None:
    """Sums run over centred keys, so saturated attention costs no digits; a common offset of all tokens neither."""
    g = torch.Generator().manual_seed(1)
    L, d = 12, 8
    for offset in (0.0, 5.0 * sigma):
        X = sigma * randn(g, L, d) + offset
        W = [weight(g, d, n) for n in (6, 6, 5)]
        layer = AttentionLayer(X, *W, randn(g, L, 5))
        layer.check(tolerance=bound if offset == 0 else 1e-8)


def test_identical_tokens_leave_only_the_value_block() -> None:
    """Rank collapse: M2 = M3 = 0, so every row of H for W_Q and W_K vanishes; H(V, V) survives. [NAB22]"""
    g = torch.Generator().manual_seed(0)
    X = randn(g, 1, 4).expand(6, 4)
    layer = AttentionLayer(X, *(weight(g, 4, 3) for _ in range(3)), randn(g, 6, 3))
    H = layer.matrix()
    assert float(H[:24].abs().max()) <= 1e-15 * float(H.abs().max())
    assert float(layer.block("W_V", "W_V").norm()) > 0.1


def test_growth_exponents_of_all_blocks() -> None:
    """Block norms grow as sigma^6,6,6,4,4,2 (H_o: QQ QK KK VQ VK VV) and sigma^5,3,5,3,3 (H_f) for sigma in [.01, .1].
    [ODS25, Sec. 3]; H_f(Q, K) has the T-functional exponent 3 at small scale."""
    g = torch.Generator().manual_seed(0)
    L, d, d_K, d_V = 12, 8, 6, 5
    scales = torch.logspace(-2, -1, 6, dtype=torch.float64)
    pairs = [("W_Q", "W_Q"), ("W_K", "W_Q"), ("W_K", "W_K"), ("W_V", "W_Q"), ("W_V", "W_K"), ("W_V", "W_V")]
    X, Y = randn(g, L, d), randn(g, L, d_V)
    W = weight(g, d, d_K), weight(g, d, d_K), weight(g, d, d_V)
    for part, exponents in (("outer", (6, 6, 6, 4, 4, 2)), ("functional", (5, 3, 5, 3, 3))):
        rows = []
        for sigma in scales:
            norms = AttentionLayer(sigma * X, *W, Y).norms(part)
            rows.append([norms[p].value for p in pairs[: len(exponents)]])
        logs = torch.tensor(rows, dtype=torch.float64).log()
        x = scales.log() - scales.log().mean()
        slopes = (x[:, None] * logs).sum(0) / (x**2).sum()
        assert torch.allclose(slopes, torch.tensor(exponents, dtype=torch.float64), atol=0.05), (part, slopes)


def test_targets_of_another_width_of_float() -> None:
    """Targets, and a loss given by (g, Hl), take the dtype of the layer."""
    g = torch.Generator().manual_seed(0)
    X, W, Y = randn(g, 3, 2).float(), [weight(g, 2, 2).float() for _ in range(3)], randn(g, 3, 2)
    H = AttentionLayer(X, *W, Y.float()).matrix()
    assert torch.equal(AttentionLayer(X, *W, Y).matrix(), H)
    layer = AttentionLayer(X, *W, Y.float())
    given = layer.g.double(), torch.eye(2).double().expand(1, 3, 2, 2) * layer.output.curvature
    assert torch.allclose(AttentionLayer(X, *W, loss=given).matrix(), H, atol=1e-6)


def test_a_matrix_has_each_weight_once() -> None:
    """`query` is W_Q: asked for twice, the second block would be left unwritten."""
    g = torch.Generator().manual_seed(0)
    layer = AttentionLayer(randn(g, 3, 2), *(weight(g, 2, 2) for _ in range(3)), randn(g, 3, 2))
    with pytest.raises(InputError, match="each weight once; got W_Q, W_Q"):
        layer.matrix("total", ["W_Q", "query"])


def test_a_part_that_is_nothing_beside_the_others_passes_the_check() -> None:
    """The error is measured against H: a part that is zero, or the rounding of the others, is no failure."""
    g = torch.Generator().manual_seed(0)
    X, W = randn(g, 1, 2), [weight(g, 2, 2) for _ in range(3)]
    zero = AttentionLayer(X.float(), *(w.float() for w in W[:2]), torch.zeros(2, 2), torch.zeros(1, 2))
    assert zero.check("functional").value == 0
    flat = AttentionLayer(40 * randn(g, 3, 2), *W, loss=(randn(g, 3, 2), torch.eye(2).double().expand(3, 2, 2)))
    for part in PARTS:
        flat.check(part, tolerance=1e-12)


def test_the_check_fails_for_a_wrong_closed_form() -> None:
    """A third moment that is off by 1e-6 is told, at the tolerance that is set when none is given."""
    g = torch.Generator().manual_seed(0)
    layer = AttentionLayer(randn(g, 4, 3), *(weight(g, 3, 3) for _ in range(3)), randn(g, 4, 3))
    layer.check()
    layer.head.N.mul_(1 + 1e-6)
    layer._curvatures.clear()
    for part in ("total", "functional"):
        with pytest.raises(CheckFailed, match="closed form and automatic differentiation differ"):
            layer.check(part)
    layer.check("outer")


def test_labels_and_prefixes_name_blocks() -> None:
    """`query` is W_Q; names work with and without the prefix; an unknown name lists what there is."""
    g = torch.Generator().manual_seed(0)
    layer = AttentionLayer(randn(g, 3, 2), *(weight(g, 2, 2) for _ in range(3)), randn(g, 3, 2), prefix="h.0.")
    assert torch.equal(layer.block("query", "h.0.W_V"), layer.block("W_Q", "value"))
    with pytest.raises(UnknownName, match="no parameter matches 'W_O'; this space has W_Q, W_K, W_V"):
        layer.outer("W_O", "W_Q")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"X": torch.zeros(3)}, "expected \\(tokens, d\\)"),
        ({"W_Q": torch.zeros(5, 2)}, "weights are used as X @ W"),
        ({"W_K": torch.zeros(2, 3)}, "they must agree"),
        ({"X": torch.tensor([[1.0, float("nan")]] * 3)}, "X is not finite: nan at index \\(0, 0, 1\\)"),
        ({"W_V": torch.zeros(2, 2, dtype=torch.float64)}, "one floating dtype"),
        ({"Y": torch.zeros(3, 7)}, "the output is 3 tokens x 2"),
        ({"Y": None}, "needs targets Y"),
        ({"mask": "casual"}, "'casual' is not 'causal'"),
        ({"mask": torch.zeros(3, 3, dtype=torch.bool)}, "every query one visible key"),
        ({"mask": torch.ones(4, 4, dtype=torch.bool)}, "expected \\(3, 3\\)"),
        ({"mask": torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]])}, "mask is torch.int64; give a boolean one"),
        ({"mask": torch.full((3, 3), -1e300, dtype=torch.float64)}, "every query one visible key"),
        ({"Y": torch.tensor([[1.0, float("nan")]] * 3)}, "Y is not finite: nan at index \\(0, 1\\)"),
        ({"Y": torch.rand(2, 2), "loss": "cross-entropy"}, "class probabilities need 3 tokens x 2"),
        ({"Y": -torch.rand(3, 2), "loss": "cross-entropy"}, "class probabilities in Y are not negative"),
        ({"Y": None, "loss": (torch.full((3, 2), float("inf")), torch.ones(3, 2, 2))}, "g = dl/dF is not finite"),
        ({"W_K": None}, "W_K is a NoneType; give a tensor"),
        ({"X": torch.zeros(3, 2).half()}, "X is torch.float16; closed forms work in float32 or float64"),
        ({"X": torch.zeros(3, 2).bfloat16()}, "X is torch.bfloat16; closed forms work in float32 or float64"),
        ({"temperature": 0.0}, "above 0"),
        ({"loss": "hinge"}, "is not one of 'mse', 'cross-entropy'"),
        ({"loss": "cross-entropy", "Y": torch.tensor([0, 1, 2])}, "must lie in 0..1"),
        ({"context": torch.zeros(2, 3, 2)}, "one context per sequence"),
        ({"Y": None, "loss": (torch.ones(3, 2), torch.ones(3, 2, 2).triu())}, "Hl is not symmetric"),
    ],
)
def test_bad_input_says_what_to_do(change: dict, text: str) -> None:
    good = {"X": torch.randn(3, 2), "Y": torch.randn(3, 2)} | {n: torch.randn(2, 2) for n in NAMES}
    with pytest.raises(InputError, match=text):
        AttentionLayer(**(good | change))
