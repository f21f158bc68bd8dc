"""Theorems of the scalar-token model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, jacfwd

from quadform.core.errors import InputError
from quadform.testing import check_operator
from quadform.theory.scalar_token import ScalarTokenModel

torch.set_num_threads(1)
TOL = 1e-12


@st.composite
def models(draw, min_width=1):
    """Scalar-token models: 1 to 6 tokens, one sequence or a batch, width 1 to 7, with or without a score bias."""
    L, d_K = draw(st.integers(1, 6)), draw(st.integers(min_width, 7))
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rand = lambda *shape: torch.randn(*shape, generator=gen, dtype=torch.float64)  # noqa: E731
    bias = rand(L, L) if draw(st.booleans()) else None
    t = draw(st.sampled_from([0.7, 1.0, 2.0]))
    return ScalarTokenModel(rand(*batch, L), rand(*batch, L), rand(d_K), rand(d_K), rand(()), bias, t)


def oracle(model, split="hessian"):
    """Dense autograd: derivative of the gradient, or J^T J for the Gauss-Newton part."""
    d_K = model.d_K

    def forward(theta):
        return replace(model, w_Q=theta[:d_K], w_K=theta[d_K:-1], w_V=theta[-1])

    theta = torch.cat([model.w_Q, model.w_K, model.w_V[None]])
    if split == "hessian":
        return jacfwd(grad(lambda th: forward(th).loss_value()))(theta)
    J = jacfwd(lambda th: (th[-1] * forward(th).moments()[0]).reshape(-1))(theta)
    return 2 * J.T @ J / J.shape[0]


def close(got, want, scale=None):
    return float((got - want).abs().max()) <= TOL * max(float((want if scale is None else scale).abs().max()), 1e-30)


@settings(max_examples=40, deadline=None)
@given(models())
def test_matrix_is_autograd(model):
    """H = e^2 L_ss vv^T + e L_s (I off the diagonal) + L_sV cross + L_VV equals the derivative of the gradient."""
    assert close(model.hessian().dense(), oracle(model))
    assert close(model.hessian("outer").dense(), oracle(model, "outer"))


@settings(max_examples=40, deadline=None)
@given(models())
def test_spectrum_is_closed_form(model):
    """All 2 d_K + 1 eigenvalues of the Hessian are +-c, d_K - 1 times each, and three outliers."""
    H = oracle(model)
    spectrum = model.spectrum()
    assert spectrum.multiplicity == model.d_K - 1
    assert spectrum.eigenvalues().numel() == 2 * model.d_K + 1
    assert close(spectrum.eigenvalues(), torch.linalg.eigvalsh(H), scale=H)


@settings(max_examples=30, deadline=None)
@given(models())
def test_gauss_newton_spectrum(model):
    """The Gauss-Newton part has c = 0, so rank at most 2, and the same closed form."""
    H = oracle(model, "outer")
    spectrum = model.spectrum("outer")
    assert float(spectrum.c) == 0
    assert close(spectrum.eigenvalues(), torch.linalg.eigvalsh(H), scale=H)


@settings(max_examples=30, deadline=None)
@given(models())
def test_outer_plus_functional(model):
    """H = H_o + H_f, and H_f is zero on w_V."""
    parts = model.hessian("outer").dense() + model.hessian("functional").dense()
    assert close(parts, model.hessian().dense())
    assert float(model.hessian("functional").dense()[-1, -1]) == 0


@settings(max_examples=30, deadline=None)
@given(models(), st.floats(0.1, 10))
def test_rescaling_keeps_function_and_bulk(model, alpha):
    """q -> alpha q, k -> k/alpha keeps the loss and c."""
    other = model.rescaled(alpha)
    assert torch.allclose(other.loss_value(), model.loss_value(), rtol=1e-12, atol=0)
    assert torch.allclose(other.spectrum().c, model.spectrum().c, rtol=1e-9, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(models(), st.floats(0.1, 10))
def test_balanced_is_flattest(model, alpha):
    """Among the rescalings of (q, k), lambda_max(H_o), and lambda_max(H) when L_ss >= 0, is smallest at |q| = |k|."""
    flat, other = model.balanced(), model.rescaled(alpha)
    assert math.isclose(float(flat.w_Q.norm()), float(flat.w_K.norm()), rel_tol=1e-12)
    splits = ["outer"] + (["hessian"] if float(model.coefficients().L_ss) >= 0 else [])
    for split in splits:
        top, rival = flat.spectrum(split).outliers[-1], other.spectrum(split).outliers[-1]
        assert float(top) <= float(rival) * (1 + 1e-12) + 1e-14


def test_balance_theorem_needs_its_condition():
    """Where L_ss < 0 the largest eigenvalue of H may fall away from balance: the condition is not decoration."""
    gen = torch.Generator().manual_seed(0)
    rand = lambda *s: torch.randn(*s, generator=gen, dtype=torch.float64)  # noqa: E731
    seen = 0
    for _ in range(200):
        model = ScalarTokenModel(rand(4), 5 * rand(4), rand(3), rand(3), rand(()))
        if float(model.coefficients().L_ss) < 0:
            flat = model.balanced()
            seen += float(flat.rescaled(1.5).spectrum().outliers[-1]) < float(flat.spectrum().outliers[-1]) - 1e-9
    assert seen > 0


def test_condition_number_grows_with_imbalance():
    """At fixed function |outlier|/|c| grows with |q|^2 + |k|^2: as alpha^2 |L_ss| |q|^2 e^2 / |c|."""
    gen = torch.Generator().manual_seed(3)
    rand = lambda *s: torch.randn(*s, generator=gen, dtype=torch.float64)  # noqa: E731
    model = ScalarTokenModel(rand(16, 12), rand(16, 12), rand(8), rand(8), rand(())).balanced()
    ratios = [model.rescaled(alpha).spectrum().outlier_to_bulk for alpha in (1, 2, 4, 8)]
    assert ratios == sorted(ratios)
    far = model.rescaled(1e5).spectrum()
    limit = 1e10 * model.coefficients().L_ss.abs() * model.w_Q.norm() ** 2 * model.scale**2 / far.c.abs()
    assert math.isclose(far.outlier_to_bulk, float(limit), rel_tol=1e-6)
    assert far.condition_number > model.spectrum().condition_number >= 1


def test_sink_limit():
    """A sink that has captured every query leaves the bulk at zero and one outlier at 2 x_sink^2 (L_VV -> 2 b^2)."""
    gen = torch.Generator().manual_seed(1)
    x = 1 + 0.1 * torch.rand(32, 8, generator=gen, dtype=torch.float64)
    w = torch.full((4,), 1.0, dtype=torch.float64)
    model = ScalarTokenModel(x, torch.zeros_like(x), w, w, torch.tensor(1.0, dtype=torch.float64)).with_sink(40.0)
    assert bool((model.capture() > 1 - 1e-12).all())
    assert float(model.spectrum().c.abs()) < 1e-12
    want = 2 * float((model.x[:, 0] ** 2).mean())
    assert math.isclose(float(model.spectrum().outliers[-1]), want, rel_tol=1e-9)


def sink_sweep(mean, spread, heights):
    """|c|, largest outlier, share of captured queries; 256 sequences of 32 tokens, s = 2, w_V = 1, y ~ N(0, 1)."""
    gen = torch.Generator().manual_seed(0)
    x = mean + spread * torch.randn(256, 32, generator=gen, dtype=torch.float64)
    y = torch.randn(256, 32, generator=gen, dtype=torch.float64)
    w = torch.full((4,), 1.0, dtype=torch.float64)
    out = []
    for height in heights:
        model = ScalarTokenModel(x, y, w, w, w[0]).with_sink(height)
        spectrum = model.spectrum()
        captured = (model.capture_margin() > 0) & (model.capture() > 0.5)
        out.append(
            (float(spectrum.c.abs()), float(spectrum.outliers.abs().max()), float(captured[:, 1:].double().mean()))
        )
    return zip(*out, strict=True)


def test_sink_shrinks_the_bulk_only_after_capture():
    """Tokens near 1: the bulk first GROWS with the sink and shrinks once most queries are captured; outliers grow."""
    bulk, top, captured = sink_sweep(1.0, 0.25, (0, 2, 3, 4, 8, 16))
    assert bulk[0] < bulk[1]
    assert captured[1] < 0.5
    assert captured[3] > 0.5
    assert bulk[2] > bulk[3] > bulk[4] > bulk[5]
    assert bulk[5] < bulk[0]
    assert list(top) == sorted(top)


def test_sink_that_half_the_queries_flee():
    """Zero-mean tokens: half the queries flee, a share ~ 1/b stays undecided; the bulk grows as b, the top as b^2."""
    bulk, top, captured = sink_sweep(0.0, 1.0, (16, 1024))
    assert all(0.4 < share < 0.5 for share in captured)
    assert math.log(bulk[1] / bulk[0], 64) == pytest.approx(1, abs=0.15)
    assert math.log(top[1] / top[0], 64) == pytest.approx(2, abs=0.15)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.floats(0.2, 3), st.floats(0.1, 8), st.floats(-1.5, 1.5))
def test_capture_criterion(L, s, height, level):
    """If the other tokens are equal, d mu2_i / d height < 0 exactly where s x_i b (2 p_i - 1) > 2 (i not the sink)."""
    one = torch.ones(1, dtype=torch.float64)
    x = torch.full((L,), level, dtype=torch.float64)
    model = ScalarTokenModel(x, x, s * one, one, one[0])

    def variance(b):
        lifted = torch.cat([x[:1] + b, x[1:]])
        return replace(model, x=lifted).moments()[1][1:]

    slope = jacfwd(variance)(torch.tensor(height, dtype=torch.float64))
    margin = model.with_sink(height).capture_margin()[1:]
    decided = (margin.abs() > 1e-6) & (slope.abs() > 1e-12)
    assert bool(((slope < 0) == (margin > 0))[decided].all())


@pytest.mark.parametrize("split", ["hessian", "outer", "functional"])
def test_operator_contract(split):
    """The matrix is an operator over w_Q, w_K, w_V."""
    gen = torch.Generator().manual_seed(2)
    rand = lambda *s: torch.randn(*s, generator=gen, dtype=torch.float64)  # noqa: E731
    check_operator(ScalarTokenModel(rand(5), rand(5), rand(3), rand(3), rand(())).hessian(split))


def test_input_errors():
    """Shapes that cannot be used are named."""
    one = torch.ones(3, dtype=torch.float64)
    with pytest.raises(InputError, match="targets y"):
        ScalarTokenModel(one, one[:2], one, one, one[0])
    with pytest.raises(InputError, match="vectors of one length"):
        ScalarTokenModel(one, one, one, one[:2], one[0])
    for bias, named in [(torch.zeros(2, 2), "bias has shape"), (one * math.nan, "one visible key")]:
        with pytest.raises(InputError, match=named):
            ScalarTokenModel(one, one, one, one, one[0], bias=bias)
    with pytest.raises(InputError, match="split"):
        ScalarTokenModel(one, one, one, one, one[0]).spectrum("ggn")
    with pytest.raises(InputError, match="different from zero"):
        ScalarTokenModel(one, one, 0 * one, one, one[0]).balanced()


@pytest.mark.parametrize(
    ("which", "fits", "leaves"), [("x", 80, 120), ("y", 150, 160), ("w_Q", 120, 160), ("w_V", 150, 160)]
)
def test_numbers_that_leave_floating_point_are_named(which, fits, leaves):
    """Huge tokens, targets or weights: finite eigenvalues, or a refusal that does not speak of the bias."""
    gen = torch.Generator().manual_seed(3)
    drawn = {"x": (4,), "y": (4,), "w_Q": (2,), "w_K": (2,), "w_V": ()}
    values = {n: torch.randn(s, generator=gen, dtype=torch.float64) for n, s in drawn.items()}
    model = ScalarTokenModel(**values | {which: values[which] * 10.0**fits})
    assert bool(model.spectrum().eigenvalues().isfinite().all())
    assert bool(model.hessian().dense().isfinite().all())
    for power in (leaves, 200, 300):
        with pytest.raises(InputError, match=r"exceeds? the range of torch\.float64; make"):
            ScalarTokenModel(**values | {which: values[which] * 10.0**power})


def test_a_boolean_bias_is_a_mask():
    """True = visible, as in every layer here; not the number 1."""
    gen = torch.Generator().manual_seed(4)
    rand = lambda *s: torch.randn(*s, generator=gen, dtype=torch.float64)  # noqa: E731
    values = rand(4), rand(4), rand(2), rand(2), rand(())
    seen = torch.ones(4, 4).tril().bool()
    added = torch.zeros(4, 4, dtype=torch.float64).masked_fill(~seen, -math.inf)
    got, want = (ScalarTokenModel(*values, bias=b).spectrum().eigenvalues() for b in (seen, added))
    assert torch.equal(got, want)
