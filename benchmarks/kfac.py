"""K-FAC of GPT-2 124M, 8 x 1,024 tokens, against curvlinops in the same run; correctness first, on a small model.

    PYTHONPATH=src:lib python benchmarks/kfac.py [--out FILE] [--small]

`lib/` holds curvlinops-for-pytorch (3.0.1) and what it imports: einops, einconv, linear_operator with jaxtyping,
wadler_lindig and mpmath, opt_einsum (`pip install --no-deps --target lib ...`; all pure Python). transformers makes the
model, with random weights. The peer knows nn.Linear alone: both take a GPT-2 whose Conv1D are nn.Linear, and the
weights and biases of its blocks (the embedding is the output layer too: not the peer's); ours is also timed on the
stock model.

JSON: the relative difference of the operators at the data's labels (small model in float64, the large one in float32);
for labels drawn once a token the median seconds of the factors and peak memory, with TF32 off and on; the seconds of
the damped inverse times a gradient.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from curvlinops import KFACInverseLinearOperator, KFACLinearOperator
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from curvature import gib, in_turns, once
from quadform.core import progress
from quadform.core.record import Provenance, strict_json
from quadform.curvature import Risk
from quadform.preconditioners import kfac

SMALL = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 101, "n_positions": 64}
DAMPING = 1e-3


class Logits(nn.Module):
    """(batch, tokens, classes), or with classes second as the peer wants them."""

    def __init__(self, model: nn.Module, classes_second: bool) -> None:
        super().__init__()
        self.model, self.classes_second = model, classes_second

    def forward(self, ids: Tensor) -> Tensor:
        out = self.model(input_ids=ids, use_cache=False).logits
        return out.transpose(1, 2) if self.classes_second else out


def gpt2(sizes: dict[str, int], device: str, dtype: torch.dtype, *, linear: bool) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).to(device, dtype).eval()
    if linear:
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, Conv1D):
                    layer = nn.Linear(*child.weight.shape, device=device, dtype=dtype)
                    layer.load_state_dict({"weight": child.weight.T, "bias": child.bias})
                    setattr(parent, name, layer)
    return model


class Both:
    """The two packages on one model and batch."""

    def __init__(self, sizes: dict[str, int], shape: tuple[int, int], device: str, dtype: torch.dtype) -> None:
        self.model = gpt2(sizes, device, dtype, linear=True)
        ids = torch.randint(0, self.model.config.vocab_size, (2, *shape), device=device)
        self.data = (ids[0], ids[1])
        chosen = [f"model.{n}" for n, m in self.model.named_modules() if isinstance(m, nn.Linear) and ".h." in f".{n}"]
        self.names = [f"{n}.{part}" for n in chosen for part in ("weight", "bias")]
        self.risk = self._risk(self.model, self.names)

    def _risk(self, model: nn.Module, names: list[str]) -> Risk:
        def loss(out: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
            return F.cross_entropy(out.flatten(0, 1), batch[1].flatten())

        return Risk(Logits(model, False), loss, self.data, params=names, quiet=True)

    def stock(self, sizes: dict[str, int], device: str, dtype: torch.dtype) -> Risk:
        """The same risk of the model as transformers makes it."""
        return self._risk(gpt2(sizes, device, dtype, linear=False), self.names)

    def theirs(self, fisher: str) -> KFACLinearOperator:
        wrapped = Logits(self.model, True)
        by_name = dict(wrapped.named_parameters())
        params = [by_name[n] for n in self.risk.space.names]
        options = {"fisher_type": fisher, "separate_weight_and_bias": False, "check_deterministic": False}
        made = KFACLinearOperator(wrapped, nn.CrossEntropyLoss(), params, [self.data], **options)
        made.compute_kronecker_factors()
        return made

    def difference(self) -> float:
        """|ours v - theirs v| / |theirs v| at the data's labels."""
        v = self.risk.space.random(dtype=self.risk.dtype, device=self.risk.device)
        ours = kfac(self.risk, scores="empirical") @ v
        theirs = self.theirs("empirical") @ [v[n] for n in self.risk.space.names]
        gap = sum(float((ours[n] - t).double().square().sum()) for n, t in zip(v, theirs, strict=True))
        return (gap / sum(float(t.double().square().sum()) for t in theirs)) ** 0.5


def timed(both: Both, sizes: dict[str, int], device: str, repeats: int) -> dict[str, Any]:
    """Median seconds and peak memory of the factors."""
    stock = both.stock(sizes, device, torch.float32)
    works = {
        "quadform": lambda: kfac(both.risk),
        "curvlinops": lambda: both.theirs("mc"),
        "quadform, stock Conv1D": lambda: kfac(stock),
    }
    seconds = in_turns(works, device, repeats)
    peaks = {name: gib(work, device) for name, work in works.items()}
    return {"seconds": seconds, "ratio": seconds["quadform"] / seconds["curvlinops"], "peak_gib": peaks}


def inverses(both: Both, device: str) -> dict[str, float]:
    """Seconds of the damped inverse, eigenvectors included, times a gradient."""
    g, ours, theirs = both.risk.gradient(), kfac(both.risk), both.theirs("mc")
    flat = [g[n] for n in both.risk.space.names]
    works = {
        "quadform": lambda: ours.inverse(damping=DAMPING) @ g,
        "curvlinops": lambda: KFACInverseLinearOperator(theirs, damping=DAMPING, use_exact_damping=True) @ flat,
    }
    return {name: once(work, device) for name, work in works.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "kfac.json")
    parser.add_argument("--small", action="store_true", help="time the small model too, in place of GPT-2 124M")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    progress.quiet = True
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {"made": asdict(Provenance.collect(dtype=torch.float32, device=device))}

    def tell(**parts: Any) -> None:
        found.update(parts)
        options.out.write_text(strict_json(found))
        print(parts, flush=True)

    difference = Both(SMALL, (3, 16), device, torch.float64).difference()
    tell(small_difference_float64=difference)
    if not difference < 1e-6:
        raise SystemExit(f"the operators differ by {difference:.2e} on the small model; nothing is timed.")
    small = options.small or device == "cpu"
    sizes, shape = (SMALL, (4, 64)) if small else ({}, (8, 1024))
    both = Both(sizes, shape, device, torch.float32)
    tell(model={"sizes": sizes, "tokens": list(shape), "parameters": both.risk.space.size})
    tell(difference_float32=both.difference())
    tell(**timed(both, sizes, device, repeats=3))
    torch.backends.cuda.matmul.allow_tf32 = True
    tell(tf32=timed(both, sizes, device, repeats=3))
    torch.backends.cuda.matmul.allow_tf32 = False
    tell(inverse_times_gradient_seconds=inverses(both, device))


if __name__ == "__main__":
    main()
