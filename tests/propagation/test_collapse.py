"""Collapse measures: their definitions by brute force, their limits, their error bars."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.core.errors import InputError, UnknownName
from quadform.propagation import collapse

torch.set_num_threads(1)
f64 = torch.float64


def draw(T, d, seed, *batch):
    return torch.randn(*batch, T, d, generator=torch.Generator().manual_seed(seed), dtype=f64)


shapes = st.tuples(st.integers(1, 7), st.integers(1, 6), st.integers(0, 99))


@given(shapes)
def test_cosine_is_the_mean_over_pairs(shape):
    """cosine = mean over i != j of <x_i, x_j> / |x_i||x_j|, by the double loop; undefined for one token."""
    X = draw(*shape)
    T = len(X)
    pairs = [float(X[i] @ X[j] / X[i].norm() / X[j].norm()) for i in range(T) for j in range(T) if i != j]
    got = float(collapse.token_cosine(X))
    assert math.isnan(got) if T == 1 else got == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


@given(shapes)
def test_participation_by_eigenvalues(shape):
    """participation = (sum lam)^2 / sum lam^2 over the eigenvalues of X X^T, whichever Gram matrix is used."""
    X = draw(*shape)
    lam = torch.linalg.eigvalsh(X @ X.T)
    assert float(collapse.participation_ratio(X)) == pytest.approx(float(lam.sum() ** 2 / lam.square().sum()))


@given(st.integers(1, 6), st.integers(6, 9))
def test_effective_rank_counts_equal_directions(rank, d):
    """effective_rank and participation of r equal orthogonal directions are r; of one direction, 1."""
    X = torch.eye(d, dtype=f64)[:rank]
    assert float(collapse.effective_rank(X)) == pytest.approx(rank)
    assert float(collapse.participation_ratio(X)) == pytest.approx(rank)
    assert float(collapse.effective_rank(X[:1].repeat(4, 1))) == pytest.approx(1)


@given(shapes)
def test_effective_rank_by_eigenvalues(shape):
    """effective_rank = exp(-sum p log p), p = lam / sum lam."""
    X = draw(*shape)
    lam = torch.linalg.eigvalsh(X @ X.T).clamp_min(1e-300)
    p = lam / lam.sum()
    assert float(collapse.effective_rank(X)) == pytest.approx(math.exp(-float((p * p.log()).sum())), rel=1e-6)


@given(shapes)
def test_residual_uses_the_composite_norm(shape):
    """residual = ||X - 1 m^T|| / ||X|| with sqrt(1-norm times inf-norm), both taken by torch.linalg."""
    X = draw(*shape)

    def norm(Z):
        return math.sqrt(float(torch.linalg.matrix_norm(Z, 1) * torch.linalg.matrix_norm(Z, math.inf)))

    assert float(collapse.residual_ratio(X)) == pytest.approx(norm(X - X.mean(0)) / norm(X), abs=1e-12)


def test_equal_tokens_are_collapsed():
    """Equal tokens: cosine 1, residual 0, ranks 1."""
    X = draw(1, 5, 0).repeat(6, 1)
    assert float(collapse.token_cosine(X)) == pytest.approx(1)
    assert float(collapse.residual_ratio(X)) == pytest.approx(0, abs=1e-15)
    assert float(collapse.participation_ratio(X)) == pytest.approx(1)


@pytest.mark.parametrize("name", collapse.MEASURES)
@given(shapes, st.integers(1, 3))
def test_padding_changes_nothing(name, shape, more):
    """A measure of a padded batch row is the measure of the sequence without padding, whatever the padding holds."""
    X = draw(*shape)
    measure = collapse.MEASURES[name]
    padded = torch.cat([X, torch.full((more, X.shape[1]), math.nan, dtype=f64)])[None]
    mask = torch.arange(len(X) + more) < len(X)
    torch.testing.assert_close(measure(padded, mask[None])[0], measure(X, None), equal_nan=True)


@given(st.integers(2, 7), st.integers(1, 6), st.integers(0, 99))
def test_kernel_measures_agree_with_token_measures(T, d, seed):
    """Read off Sigma = X X^T, cosine, participation and effective rank are those of X."""
    X = draw(T, d, seed)
    Sigma = X @ X.T
    torch.testing.assert_close(collapse.kernel_cosine(Sigma), collapse.token_cosine(X))
    torch.testing.assert_close(collapse.kernel_participation(Sigma), collapse.participation_ratio(X))
    torch.testing.assert_close(collapse.kernel_effective_rank(Sigma), collapse.effective_rank(X), rtol=1e-6, atol=0)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 99))
def test_streaming_is_the_whole(sizes, seed):
    """Batches of any sizes, streamed or merged, give the mean and the standard error over all sequences."""
    X = draw(5, 4, seed, sum(sizes))
    whole = collapse.token_cosine(X)
    stream, parts = collapse.TokenCollapse(["cosine"]), collapse.Moments()
    for batch in X.split(sizes):
        stream.update(batch)
        part = collapse.Moments()
        part.add("cosine", collapse.token_cosine(batch))
        parts.merge(part)
    for got in (stream.result()["cosine"], parts.result()["cosine"]):
        assert got.kind == "estimate"
        assert got.value == pytest.approx(float(whole.mean()))
        if len(X) > 1:
            assert got.stderr == pytest.approx(float(whole.std()) / math.sqrt(len(X)))
        else:
            assert got.stderr == math.inf
            assert not got.converged


def test_error_bars_cover_and_shrink():
    """|value - truth| <= 5 stderr on random tokens (true mean cosine 0), and stderr falls as 1/sqrt(n)."""
    errors = []
    for n in (100, 1600):
        stream = collapse.TokenCollapse(["cosine"])
        stream.update(draw(4, 8, n, n))
        e = stream.result()["cosine"]
        assert abs(e.value) <= 5 * e.stderr
        errors.append(e.stderr)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)


def test_undefined_sequences_are_counted():
    """A sequence with one real token has no cosine: left out and counted, not averaged as zero."""
    X = draw(3, 4, 1, 2)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    stream = collapse.TokenCollapse()
    stream.update(X, mask)
    e = stream.result()["cosine"]
    assert e.value == pytest.approx(float(collapse.token_cosine(X[0])))
    assert "1 left out" in e.note


def test_norm_ratio_is_the_geometric_mean():
    """growth = exp(mean log(rms ratio)); its error bar is the delta method's; shared scales cancel."""
    X, scale = draw(3, 4, 2, 6), torch.tensor([1.0, 2, 3, 1, 5, 2], dtype=f64)[:, None, None]
    stream = collapse.NormRatio("growth")
    stream.update(X * scale, X)
    e = stream.result()["growth"]
    logs = scale.flatten().log()
    assert e.value == pytest.approx(math.exp(float(logs.mean())))
    assert e.stderr == pytest.approx(e.value * float(logs.std()) / math.sqrt(6))


@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 99))
def test_attention_entropy_and_sink_by_loops(T, heads, seed):
    """Causal maps: entropy, entropy share and sink of each head by loops over the queries that see two keys."""
    logits = torch.randn(2, heads, T, T, generator=torch.Generator().manual_seed(seed), dtype=f64)
    A = logits.masked_fill(torch.triu(torch.ones(T, T, dtype=torch.bool), 1), -math.inf).softmax(-1)
    stream = collapse.AttentionCollapse(causal=True)
    stream.update(A)
    result = stream.result()
    for h in range(heads):
        rows = [A[b, h, i, : i + 1] for b in range(2) for i in range(1, T)]
        entropy = [-float((row * row.log()).sum()) for row in rows]
        share = [e / math.log(len(row)) for e, row in zip(entropy, rows, strict=True)]
        assert result[f"entropy[{h}]"].value == pytest.approx(sum(entropy) / len(rows))
        assert result[f"entropy_share[{h}]"].value == pytest.approx(sum(share) / len(rows))
        assert result[f"sink[{h}]"].value == pytest.approx(sum(float(row[0]) for row in rows) / len(rows))


def test_attention_padding_moves_the_sink():
    """With left padding the sink is the first real key, and uniform attention over real keys has entropy share 1."""
    visible = torch.tensor([False, True, True, True])
    A = (visible / 3.0).to(f64).expand(1, 2, 4, 4)
    stream = collapse.AttentionCollapse()
    stream.update(A, visible[None, None, None])
    result = stream.result()
    assert result["entropy_share[1]"].value == pytest.approx(1)
    assert result["sink[0]"].value == pytest.approx(1 / 3)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 99))
def test_mean_kernel_is_the_mean_over_real_pairs(sizes, seed):
    """MeanKernel averages <x_i, x_j> / d over the sequences where both tokens are real, whatever the batches."""
    X = draw(4, 3, seed, sum(sizes))
    mask = torch.rand(sum(sizes), 4, generator=torch.Generator().manual_seed(seed)) < 0.7
    stream = collapse.MeanKernel()
    for x, m in zip(X.split(sizes), mask.split(sizes), strict=True):
        stream.update(x.masked_fill(~m[..., None], math.nan), m)
    for i in range(4):
        for j in range(4):
            seen = [float(x[i] @ x[j]) / 3 for x, m in zip(X, mask, strict=True) if m[i] and m[j]]
            got = float(stream.result()[i, j])
            assert got == pytest.approx(sum(seen) / len(seen)) if seen else math.isnan(got)


def test_repeat_kernel_is_the_kernel_of_orthogonal_embeddings():
    """Positions hold the same token in a share of the sequences: the mean kernel of one-hot embeddings, d Sigma."""
    tokens = torch.randint(0, 3, (5, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < torch.tensor([6, 5, 6, 4, 6])[:, None]
    stream = collapse.MeanKernel()
    stream.update(torch.nn.functional.one_hot(tokens, 3).to(f64), mask)
    torch.testing.assert_close(collapse.repeat_kernel(tokens, mask), 3 * stream.result())


def test_half_precision_is_raised():
    """bfloat16 tokens are measured in float32 (and never multiplied in bfloat16)."""
    stream = collapse.TokenCollapse()
    stream.update(draw(4, 8, 0, 3).to(torch.bfloat16))
    assert all(math.isfinite(e.value) for e in stream.result().values())


def test_bad_input_is_named():
    """Unknown measures, integer tokens and wrong masks are errors that say what to do."""
    with pytest.raises(UnknownName, match="Did you mean `cosine`"):
        collapse.TokenCollapse(["cosin"])
    with pytest.raises(InputError, match="token ids"):
        collapse.TokenCollapse().update(torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(InputError, match="padding mask"):
        collapse.TokenCollapse().update(torch.ones(2, 3), torch.ones(2))
    kernel = collapse.MeanKernel()
    with pytest.raises(InputError, match="no sequence"):
        kernel.result()
    kernel.update(torch.ones(2, 3))
    with pytest.raises(InputError, match="one length"):
        kernel.update(torch.ones(4, 3))
    with pytest.raises(InputError, match="heads, queries, keys"):
        collapse.AttentionCollapse().update(torch.ones(2, 3))
