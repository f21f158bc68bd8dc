"""Shaped activations: the conditions they promise, and the authors' own package as oracle."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.core.errors import CheckFailed, InputError, UnknownName
from quadform.core.tat import leaky_cosine_map
from quadform.propagation import activations as A
from quadform.propagation.duals import dual

torch.set_num_threads(1)
f64 = torch.float64


@pytest.mark.parametrize("name", A.SMOOTH)
@pytest.mark.parametrize("layers", [2, 10, 100])
def test_dks_conditions(name, layers):
    """DKS: Q(1) = Q'(1) = 1, C(0) = 0 and the chain's slope C'(1)^layers = zeta."""
    maps = A.local_maps(A.shape(name, layers, "dks", 1.5))
    assert (maps.Q, maps.Q_slope) == (pytest.approx(1, abs=1e-8), pytest.approx(1, abs=1e-7))
    assert abs(maps.C0) < 1e-9
    assert maps.C_slope**layers == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("name", A.SMOOTH)
@pytest.mark.parametrize("layers", [4, 40])
def test_tat_conditions(name, layers):
    """TAT: Q(1) = Q'(1) = C'(1) = 1 and the chain's curvature layers C''(1) = tau."""
    maps = A.local_maps(A.shape(name, layers, "tat", 0.3))
    assert (maps.Q, maps.Q_slope) == (pytest.approx(1, abs=1e-8), pytest.approx(1, abs=1e-7))
    assert maps.C_slope == pytest.approx(1, abs=1e-7)
    assert maps.C_curvature * layers == pytest.approx(0.3, rel=1e-5)


@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_local_maps_are_derivatives_of_the_kernel(name):
    """C(0), C'(1), C''(1), Q'(1) from moments equal finite differences of the dual kernel itself."""
    phi = A.SMOOTH[name]
    maps, h = A.local_maps(phi), 1e-3
    c = torch.tensor([0.0, 1 - 2 * h, 1 - h, 1.0], dtype=f64)
    C = A.cosine_map(phi, c)
    assert float(C[0]) == pytest.approx(maps.C0, abs=1e-12)
    first, second = (3 * C[3] - 4 * C[2] + C[1]) / (2 * h), (C[3] - 2 * C[2] + C[1]) / h**2
    assert float(first) == pytest.approx(maps.C_slope, rel=1e-4)
    assert float(second) == pytest.approx(maps.C_curvature, rel=2e-2)
    up, down = (float(dual(name, torch.full((1, 1), q, dtype=f64))) for q in (1 + h, 1 - h))
    assert (up - down) / (2 * h) == pytest.approx(maps.Q_slope, rel=1e-4)


def test_cosine_map_knows_its_error():
    """The C map of tanh(s x) against the dual of tanh at q = s^2: within 1e-6, and refused where the series is not."""
    c = torch.tensor([-0.99, 0.5, 0.99], dtype=f64)
    for s in (0.5, 1.0, 2.0):
        Sigma = s**2 * torch.stack([torch.tensor([[1, x], [x, 1]], dtype=f64) for x in c.tolist()])
        K = dual("tanh", Sigma)
        torch.testing.assert_close(
            A.cosine_map(lambda x, s=s: torch.tanh(s * x), c), K[:, 0, 1] / K[:, 0, 0], rtol=0, atol=1e-6
        )
    with pytest.raises(CheckFailed, match=r"too steep for 96 Hermite terms"):
        A.cosine_map(lambda x: torch.tanh(5 * x), c)


@given(st.integers(13, 150))
def test_leaky_chain_ends_at_eta(layers):
    """The Leaky ReLU slope puts C^{(layers)}(0) at eta = 0.9, whatever the depth beyond 12."""
    slope, c = A.shape_leaky(layers).slope, 0.0
    for _ in range(layers):
        c = leaky_cosine_map(c, slope)
    assert 0 < slope < 1
    assert c == pytest.approx(0.9, abs=1e-9)


def test_leaky_slopes_of_the_papers_depths():
    """Published-depth slopes: .024, .146, .351, .508, .584 at 13, 18, 36, 72, 108 layers; at 12 a ReLU reaches .897."""
    assert [round(A.shape_leaky(n).slope, 3) for n in (12, 13, 18, 36, 72, 108)] == [
        0,
        0.024,
        0.146,
        0.351,
        0.508,
        0.584,
    ]
    assert A.shape_leaky(18).output_scale == pytest.approx(1.399, abs=1e-3)


@given(st.floats(-1, 1), st.floats(0, 0.95))
def test_leaky_map_is_the_dual_kernel(c, slope):
    """The scalar C map of a Leaky ReLU equals its dual on a two-token kernel."""
    Sigma = torch.tensor([[1.0, c], [c, 1.0]], dtype=f64)
    assert float(dual("leaky", Sigma, slope)[0, 1]) == pytest.approx(leaky_cosine_map(c, slope), abs=1e-12)


def test_leaky_in_another_network():
    """`network` takes any composition: half the layers behind an averaging skip need a smaller slope."""

    def skip(C):
        c = 0.0
        for _ in range(40):
            c = (c + C(c)) / 2
        return c

    loose, tight = A.shape_leaky(40, 0.9, skip), A.shape_leaky(40, 0.9)
    assert loose.slope < tight.slope
    assert skip(lambda c: leaky_cosine_map(c, loose.slope)) == pytest.approx(0.9, abs=1e-9)


@pytest.mark.parametrize(
    ("method", "ours", "theirs"), [("dks", "gelu", "gelu_exact"), ("dks", "tanh", "tanh"), ("tat", "silu", "swish")]
)
def test_against_the_authors_package(method, ours, theirs):
    """The shaped function equals the one of the `dks` package to 1e-6 (same conditions, same branch)."""
    package = pytest.importorskip("dks.base.activation_transform")
    layers = 20
    made = package.get_transformed_activations(
        [theirs], method=method.upper(), max_slope_func=lambda x: x**layers, max_curv_func=lambda x: x * layers
    )[theirs]
    x = torch.linspace(-3, 3, 25, dtype=f64)
    torch.testing.assert_close(A.shape(ours, layers, method)(x), torch.from_numpy(made(x.numpy())), rtol=0, atol=1e-6)


def test_leaky_against_the_authors_package():
    """TAT for Leaky ReLU equals the `dks` package's slope and scale to 1e-6."""
    package = pytest.importorskip("dks.base.activation_transform")

    def chain(x, r):
        for _ in range(36):
            x = r(x)
        return x

    made = package.get_transformed_activations(["leaky_relu"], method="TAT", subnet_max_func=chain)["leaky_relu"]
    x = torch.linspace(-3, 3, 25, dtype=f64)
    torch.testing.assert_close(A.shape_leaky(36)(x), torch.from_numpy(made(x.numpy())), rtol=0, atol=1e-6)


def test_shaping_keeps_a_deep_chain_alive():
    """A hundred DKS-shaped softplus layers keep cosine 0 below 0.5; a hundred plain ones send it to one."""
    shaped, plain = torch.zeros((), dtype=f64), torch.zeros((), dtype=f64)
    phi = A.shape("softplus", 100, "dks")
    for _ in range(100):
        shaped, plain = A.cosine_map(phi, shaped), A.cosine_map(A.SMOOTH["softplus"], plain)
    assert float(shaped) < 0.5
    assert float(plain) > 0.95


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda: A.shape("relu", 3), UnknownName),
        (lambda: A.shape("gelu", 3, "dsk"), UnknownName),
        (lambda: A.shape("gelu", 0), InputError),
        (lambda: A.shape("gelu", 3, "dks", 0.9), InputError),
        (lambda: A.shape("gelu", 3, "tat", -1.0), InputError),
        (lambda: A.shape_leaky(10, 1.5), InputError),
    ],
)
def test_bad_input_is_named(ask, error):
    """Names, depths and targets out of range are errors that say what to do."""
    with pytest.raises(error):
        ask()


def test_scale_of_the_scaled_leaky():
    """sqrt(2 / (1 + s^2)) leaky_relu keeps the second moment of a unit Gaussian."""
    phi = A.ShapedLeaky(0.4)
    z = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=f64)
    assert float(phi(z).square().mean()) == pytest.approx(1, abs=5 * math.sqrt(3 / 200_000) * 1.2)
