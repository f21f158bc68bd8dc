"""How often 2 stated standard errors contain the truth: every estimator, prescribed spectra and a trained Hessian.

    python benchmarks/coverage.py [--seeds 200] [--operator TEXT] [--only TEXT]
                                  [--out benchmarks/records/coverage-cpu.json]

A row is one estimator with one budget on one operator: the share of seeds whose `value +- 2 stderr` contains the truth
(wanted: 0.90 to 0.99), the root mean square of (value - truth) / stderr, and the errors themselves, stated and true,
relative to the truth. For eigenpairs: the largest ratio of the true residual, recomputed in float64, to the stated one
(wanted: at most 1). The committed record joins six runs, one for each operator.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quadform.core.number import Estimate
from quadform.core.operator import Dense, Operator
from quadform.core.record import Provenance, strict_json
from quadform.core.space import Space
from quadform.estimate import (
    Density,
    block_norms,
    density,
    diagonal,
    eigenpairs,
    frobenius,
    js_distance,
    nuclear_norm,
    stable_rank,
    trace,
)

N = 300
WHAT = "share of seeds whose value +- 2 stderr contains the truth; errors and bias relative to the truth"
Ask = Callable[[Operator, int], Estimate | tuple[Tensor, Tensor]]


def spectra(n: int = N) -> dict[str, Tensor]:
    """Eigenvalues by name: without outliers, with one, of both signs, and decaying as those of a trained GPT-2."""
    g = torch.Generator().manual_seed(1)
    i = torch.arange(1, n + 1, dtype=torch.float64)
    normal = torch.randn(n, generator=g, dtype=torch.float64)
    outlier = 1 + 0.1 * normal
    outlier[0] = n
    decay = i**-1.2 * torch.where(torch.rand(n, generator=g) < 0.3, -0.1, 1.0)
    decay[0] = 5
    return {
        "flat": torch.linspace(0.5, 1.5, n, dtype=torch.float64),
        "one outlier": outlier,
        "indefinite": normal + 0.1,
        "decay": decay,
    }


def with_spectrum(d: Tensor, seed: int = 0) -> Dense:
    """Q^T diag(d) Q with Q uniform, in two named parts."""
    n = len(d)
    g = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64)).Q
    M = (Q * d) @ Q.T
    return Dense((M + M.T) / 2, Space((("a", (n // 2,)), ("b", (n - n // 2,)))), symmetric=True)


def nearly_diagonal(n: int = N) -> Dense:
    """A positive diagonal and a small rest: where signs see the trace at once."""
    g = torch.Generator().manual_seed(2)
    rest = 0.02 * torch.randn(n, n, generator=g, dtype=torch.float64)
    M = torch.diag(torch.linspace(1, 3, n, dtype=torch.float64)) + rest + rest.T
    return Dense(M, Space((("a", (n // 2,)), ("b", (n - n // 2,)))), symmetric=True)


def trained(dtype: torch.dtype = torch.float64) -> Dense:
    """The Hessian of a GPT-2 with 1 layer of width 8, trained on sequences that repeat with period 3."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=9, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).double()
    ids = torch.randint(0, 11, (32, 3)).repeat(1, 3)
    step = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(300):
        step.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        step.step()
    from quadform.curvature import Risk, hessian

    def loss(out, batch):
        return torch.nn.functional.cross_entropy(
            out.logits[:, :-1].reshape(-1, 11), batch["input_ids"][:, 1:].reshape(-1)
        )

    H = hessian(Risk(model, loss, {"input_ids": ids})).dense().detach()
    n = len(H)
    return Dense((H + H.T) / 2, Space((("a", (n // 2,)), ("b", (n - n // 2,)))), symmetric=True)


def asked(A: Dense) -> Iterator[tuple[str, Ask, float | Tensor]]:
    """Every estimator that states a standard error, what it is asked, and the truth."""
    M = A.matrix
    lam = torch.linalg.eigvalsh(M)
    n, total, size = len(lam), float(lam.sum()), float(lam.norm())
    for k in (8, 20, 60):
        for method in ("auto", "hutchinson", "hutch++", "xtrace"):
            yield f"trace {method}, {k} products", partial(_seeded, trace, products=k, method=method), total
        for method in ("sketched", "sampled"):
            yield f"frobenius {method}, {k} products", partial(_seeded, frobenius, products=k, method=method), size

    def diagonals(A: Operator, seed: int) -> tuple[Tensor, Tensor]:
        d = diagonal(A, 60, seed=seed)
        return A.domain.flatten(d.value), A.domain.flatten(d.stderr)

    yield "diagonal, 60 products, every entry", diagonals, M.diagonal()
    half = n // 2
    parts = {"a": M[:half, :half], "b": M[half:, half:]}
    yield (
        "block_norms, 20 products, a pair",
        lambda A, s: block_norms(A, "ab", seed=s)["a", "b"],
        float(M[:half, half:].norm()),
    )
    sizes = torch.stack([parts[k].norm() / len(parts[k]) ** 0.5 for k in "ab"])
    yield (
        "block_norms, 20 products, ratio",
        lambda A, s: block_norms(A, "ab", seed=s).heterogeneity([half, n - half]),
        float(sizes.max() / sizes.min()),
    )
    yield "stable_rank, 60 products", lambda A, s: stable_rank(A, seed=s), float(size / lam.abs().max()) ** 2
    yield "nuclear_norm, 6 x 10", lambda A, s: nuclear_norm(A, 6, 10, seed=s), float(lam.abs().sum())
    yield from _of_density(lam)
    linear = size / math.sqrt(n)
    want = js_distance(*(density(A.block(k), n, 2) for k in "ab"), linear=linear).value

    def distance(A: Operator, seed: int) -> Estimate:
        return js_distance(*(density(A.block(k), 6, 20, seed=2 * seed + (k == "a")) for k in "ab"), linear=linear)

    yield "js_distance, 6 x 20", distance, want


def _seeded(estimator: Callable[..., Estimate], A: Operator, seed: int, **settings: Any) -> Estimate:
    return estimator(A, seed=seed, **settings)


def _of_density(lam: Tensor) -> Iterator[tuple[str, Ask, float]]:
    """What is read off a density at the default budget."""
    rms = float(lam.square().mean().sqrt())
    reads: dict[str, tuple[Callable[[Density], Estimate], float]] = {
        "second moment": (lambda d: d.moment(2), rms**2),
        "share below 0": (lambda d: d.below(0.0), float((lam < 0).double().mean())),
        "negative curvature": (lambda d: d.negative_curvature(), float(lam.clamp(max=0).abs().sum() / lam.abs().sum())),
        "effective dimension": (
            lambda d: d.effective_dimension(rms),
            float((lam.clamp(min=0) / (lam.clamp(min=0) + rms)).sum()),
        ),
    }
    for name, (read, truth) in reads.items():
        yield f"density 8 x 30: {name}", partial(_read, read), truth


def _read(read: Callable[[Density], Estimate], A: Operator, seed: int) -> Estimate:
    return read(_density(A, seed))


@cache
def _density(A: Operator, seed: int) -> Density:
    return density(A, 8, 30, seed=seed)


def covered(A: Dense, ask: Ask, truth: float | Tensor, seeds: int) -> dict[str, float] | None:
    """One row of the table; None where the estimator is exact, or the truth is 0."""
    off, said = [], []
    for seed in range(seeds):
        found = ask(A, seed)
        if isinstance(found, Estimate):
            if found.stderr is None:
                return None
            found = torch.tensor([found.value], dtype=torch.float64), torch.tensor([found.stderr], dtype=torch.float64)
        off.append(found[0] - truth)
        said.append(found[1])
    error, stderr = torch.cat(off), torch.cat(said)
    size = float(torch.as_tensor(truth, dtype=torch.float64).norm()) / math.sqrt(torch.as_tensor(truth).numel())
    if not size or not float(stderr.max()):
        return None
    return {
        "covered": float((error.abs() <= 2 * stderr).double().mean()),
        "rms score": float((error / stderr).square().mean().sqrt()),
        "true error": float(error.square().mean().sqrt()) / size,
        "stated error": float(stderr.square().mean().sqrt()) / size,
        "bias": float(error.mean()) / size,
    }


def residuals(A: Dense, seeds: int) -> dict[str, float]:
    """The largest true residual over the stated one, in float64 and float32, with and without restarts."""
    rows = {}
    for dtype in (torch.float64, torch.float32):
        low = Dense(A.matrix.to(dtype), A.domain, symmetric=True)
        M = low.matrix.double()
        for kept in (None, 20):
            worst = 0.0
            for seed in range(seeds):
                found = eigenpairs(low, 5, 2, tol=(1e-2, 1e-3, 1e-5)[seed % 3], seed=seed, rows=kept, max_products=150)
                V = A.domain.flatten(found.vectors).double()
                theta = torch.tensor([e.value for e in found.values], dtype=torch.float64)
                true = (M @ V - V * theta).norm(dim=0)
                worst = max(worst, float((true / found.residuals).max()))
            rows[f"{str(dtype)[6:]}, {'restarts' if kept else 'no restart'}"] = worst
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--operator", default="", help="operators whose names contain this")
    parser.add_argument("--only", default="", help="estimators whose names contain this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    operators: dict[str, Callable[[], Dense]] = {k: partial(with_spectrum, d) for k, d in spectra().items()}
    operators |= {"nearly diagonal": nearly_diagonal, "trained GPT-2": trained}
    rows: dict[str, dict[str, Any]] = {}
    made = asdict(Provenance.collect(seed=0, dtype=torch.float64))
    for where, make in operators.items():
        if options.operator not in where:
            continue
        A = make()
        for name, ask, truth in asked(A):
            if options.only not in name:
                continue
            found = covered(A, ask, truth, options.seeds)
            if found is not None:
                rows.setdefault(where, {})[name] = found
                print(f"{where:16} {name:38}", "  ".join(f"{k} {v:.3g}" for k, v in found.items()), flush=True)
        if not options.only:
            rows[where]["eigenpairs: true residual / stated"] = found = residuals(A, max(3, options.seeds // 20))
            print(f"{where:16} true residual / stated", found, flush=True)
        if options.out:
            body = {"what": WHAT, "seeds": options.seeds, "rows": rows, "made": made}
            options.out.write_text(strict_json(body))


if __name__ == "__main__":
    main()
