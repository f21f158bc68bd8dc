"""The question of `quadform train`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro.conf import arg

from ...core.designs import DESIGNS
from ...core.errors import InputError, UnknownName, did_you_mean
from .shared import LongWork, Numerics

_RECIPE = arg(metavar="NUMBER", help_behavior_hint="(default: what fits the data)")
_Int = Annotated[int | None, _RECIPE]
_Float = Annotated[float | None, _RECIPE]
#: Questions or sentences of a test: more say nothing new, and are drawn at once.
MOST_TESTED = 1_000_000
#: Flags whose name in Python is another.
_OTHER_NAMES = {"batch": "batch_size", "optimizer": "optimiser"}


@dataclass(frozen=True, kw_only=True)
class TrainVerbConfig(LongWork, Numerics):
    """Make a model with a chosen block and train it. What is not said comes from the recipe that fits the data.

    Several GPUs or processes: `torchrun --nproc-per-node 8 --no-python quadform train ...`.
    """

    data: str = "add:digits=3"
    """A data set (`quadform ls data`) with its settings: `reverse`, `add:digits=3`, `tsmsg-de:pieces=1000`."""
    objective: Literal["auto", "causal", "masked", "seq2seq", "classify"] = "auto"
    """What is predicted; `masked` hides tokens of running text from an encoder, the others follow from the data."""
    recipe: Literal["auto", "vaswani"] = "auto"
    """What is not said: `auto` fits the data, `vaswani` is the original Transformer (Post-LN, d 512, 100,000 steps)."""
    design: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: the recipe's, or pre-ln)")] = None
    """Block design (`quadform ls designs`)."""
    start_from: Annotated[str | None, arg(metavar="RUN", help_behavior_hint="")] = None
    """Go on with the weights of a trained run (fine-tuning) in place of a fresh model."""
    depth: _Int = None
    """Blocks (on each side of an encoder-decoder)."""
    dim: _Int = None
    """Width of a token."""
    heads: _Int = None
    """Attention heads."""
    d_ff: _Int = None
    """Width of the MLP."""
    dropout: _Float = None
    """Dropout in training."""
    steps: _Int = None
    """Steps of the optimizer."""
    batch: _Int = None
    """Sequences of a batch, in the mean where batches are cut by length."""
    accumulate: _Int = None
    """Batches of a step."""
    optimizer: Annotated[
        Literal["adamw", "adam", "sgd", "muon"] | None, arg(help_behavior_hint="(default: the recipe's, or adamw)")
    ] = None
    """The optimizer; muon is for CUDA."""
    lr: _Float = None
    """Peak learning rate."""
    warmup: _Float = None
    """Warm-up: below 1 a share of the steps, from 1 on a number of steps."""
    decay: Annotated[Literal["linear", "cosine", "inverse-sqrt", "constant"] | None, _RECIPE] = None
    """How the learning rate falls after the warm-up."""
    weight_decay: _Float = None
    """Weight decay of the matrices; of adam and sgd it is 0 unless given, and then an L2 penalty in the gradient."""
    clip: _Float = None
    """Largest gradient norm; 0 does not clip."""
    smoothing: _Float = None
    """Label smoothing of the training loss."""
    valid_every: _Int = None
    """Steps between validations."""
    patience: _Int = None
    """Stop after so many validations without a better one."""
    goal: _Float = None
    """Stop once this share of held-out questions is answered exactly."""
    save_every: _Int = None
    """Steps between checkpoints."""
    average: _Int = None
    """Keep the last so many models, one at every checkpoint; the test is scored with their mean."""
    test: int = 1000
    """Questions or sentences of the test split to score at the end; 0 leaves it unseen."""
    precision: Literal["full", "bf16"] = "full"
    """bf16 products, on CUDA."""
    compile: bool = False
    """Compile the model (torch.compile)."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number format of the weights."""

    def __post_init__(self) -> None:
        LongWork.__post_init__(self)
        if self.design is not None:
            choose_design(self.design)
        if self.test < 0:
            raise InputError(f"`--test {self.test}`: give 0 or more.")
        if self.test > MOST_TESTED:
            raise InputError(f"`--test {self.test}`: give at most {MOST_TESTED:,}.")

    def settings(self) -> dict[str, Any]:
        """What was said of the model and its training, by the names of the Python functions."""
        left_out = {f.name for c in (LongWork, Numerics) for f in dataclasses.fields(c)}
        left_out |= {"data", "objective", "design", "recipe", "start_from", "test"}
        said = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in left_out}
        return {_OTHER_NAMES.get(k, k): v for k, v in said.items() if v is not None}


def choose_design(name: str) -> None:
    """Refuse a design that does not exist."""
    if name.replace("_", "-") not in DESIGNS:
        near = did_you_mean(name, DESIGNS)
        raise UnknownName(f"`--design {name}` is not a block design.{near} See `quadform ls designs`.")
