"""What `quadform train` and `qf.fit` are asked. Torch-free."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.designs import DESIGNS
from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.question import Plan, Task, option, options
from ..opening import Numerics

if TYPE_CHECKING:
    from ...core.work import Work
    from .done import Fitted

#: Questions or sentences of a test: more say nothing new, and are drawn at once.
MOST_TESTED = 1_000_000


@dataclass(frozen=True, kw_only=True)
class TrainTask(Numerics, Task):
    """Train a model with a chosen block design. Values that are not given come from the recipe that fits the data.

    Several GPUs or processes: `torchrun --nproc-per-node 8 --no-python quadform train ...`.
    """

    verb = "train"
    first = "data"

    data: str | object = option(
        "add:digits=3",
        "A data set (`quadform ls data`) with its settings: `reverse`, `add:digits=3`, `tsmsg-de:pieces=1000`.",
    )
    objective: str = option(
        "auto",
        "Training objective. `masked` masks tokens of running text for an encoder; the others follow from the data.",
        choices=("auto", "causal", "masked", "seq2seq", "classify"),
    )
    recipe: str = option(
        "auto",
        "Defaults for values that are not given: `auto` fits the data, `vaswani` is the original Transformer"
        " (Post-LN, 100,000 steps).",
        choices=("auto", "vaswani"),
    )
    design: str | None = option(
        None, "Block design (`quadform ls designs`).", metavar="NAME", shown="(default: the recipe's, or pre-ln)"
    )
    start_from: str | None = option(
        None, "Start from the weights of a trained run (fine-tuning) instead of a new model.", metavar="RUN"
    )
    depth: int | None = option(
        None, "Number of blocks (in encoder and decoder each).", metavar="NUMBER", shown="(default: what fits the data)"
    )
    d_model: int | None = option(None, "Width of a token.", metavar="NUMBER", shown="(default: what fits the data)")
    heads: int | None = option(None, "Attention heads.", metavar="NUMBER", shown="(default: what fits the data)")
    d_ff: int | None = option(None, "Width of the MLP.", metavar="NUMBER", shown="(default: what fits the data)")
    dropout: float | None = option(
        None, "Dropout in training.", metavar="NUMBER", shown="(default: what fits the data)"
    )
    steps: int | None = option(None, "Steps of the optimizer.", metavar="NUMBER", shown="(default: what fits the data)")
    batch_size: int | None = option(
        None,
        "Sequences per batch (on average, if batches are grouped by length).",
        metavar="NUMBER",
        shown="(default: what fits the data)",
    )
    accumulate: int | None = option(None, "Batches per step.", metavar="NUMBER", shown="(default: what fits the data)")
    optimizer: str | None = option(
        None,
        "The optimizer. gauss-newton is for small models (up to 100 products per step).",
        shown="(default: the recipe's, or adamw)",
        choices=("adamw", "adam", "sgd", "muon", "gauss-newton"),
    )
    lr: float | None = option(None, "Peak learning rate.", metavar="NUMBER", shown="(default: what fits the data)")
    warmup: float | None = option(
        None,
        "Warm-up: below 1 a share of all steps, otherwise a number of steps.",
        metavar="NUMBER",
        shown="(default: what fits the data)",
    )
    decay: str | None = option(
        None,
        "How the learning rate falls after the warm-up.",
        shown="(default: what fits the data)",
        choices=("linear", "cosine", "inverse-sqrt", "constant"),
    )
    weight_decay: float | None = option(
        None,
        "Weight decay of the matrices. For adam and sgd the default is 0, and it is an L2 penalty in the gradient.",
        metavar="NUMBER",
        shown="(default: what fits the data)",
    )
    clip: float | None = option(
        None, "Clip the gradient to this norm; 0: no clipping.", metavar="NUMBER", shown="(default: what fits the data)"
    )
    smoothing: float | None = option(
        None, "Label smoothing of the training loss.", metavar="NUMBER", shown="(default: what fits the data)"
    )
    valid_every: int | None = option(
        None, "Steps between validations.", metavar="NUMBER", shown="(default: what fits the data)"
    )
    patience: int | None = option(
        None,
        "Stop after this many validations without improvement.",
        metavar="NUMBER",
        shown="(default: what fits the data)",
    )
    goal: float | None = option(
        None,
        "Stop when this share of held-out questions is answered exactly.",
        metavar="NUMBER",
        shown="(default: what fits the data)",
    )
    save_every: int | None = option(
        None, "Steps between checkpoints.", metavar="NUMBER", shown="(default: what fits the data)"
    )
    average: int | None = option(
        None,
        "Keep the last N models, one per checkpoint; the test score uses the mean of their weights.",
        metavar="NUMBER",
        shown="(default: what fits the data)",
    )
    test: int = option(
        1000,
        "Number of questions or sentences of the test split to score at the end; 0: none.",
        least=0,
    )
    precision: str = option("full", "bf16: matrix products in bfloat16, on CUDA.", choices=("full", "bf16"))
    compile: bool = option(False, "Compile the model (torch.compile).")
    dtype: str = option("float32", "Floating-point type of the weights.", choices=("float32", "float64"))

    def check(self) -> None:
        if self.design is not None and self.design.replace("_", "-") not in DESIGNS:
            near = did_you_mean(self.design, DESIGNS)
            raise UnknownName(f"design={self.design!r} is not a block design.{near} See `quadform ls designs`.")
        if self.test > MOST_TESTED:
            raise InputError(f"test={self.test}: give at most {MOST_TESTED:,}.")

    def settings(self) -> dict[str, Any]:
        """What was said of the model and its training, by the names of `train.prepare`."""
        beside = {f.name for f in dataclasses.fields(Numerics)} | {"data", "test"}
        said = {n: getattr(self, n) for n in options(type(self)) if n not in beside}
        return {k: v for k, v in said.items() if v is not None}

    def folder(self, out: str | None) -> str:
        """`runs/DATA-DESIGN` beside where the command runs, unless another was named."""
        made = self.design or ("pre-ln" if self.recipe == "auto" else self.recipe)
        name = re.sub(r"[^\w.-]+", "-", f"{Path(str(self.data)).name}-{made}").strip("-.")
        return out or str(Path("runs") / name[:100])  # of a long path its beginning tells enough

    def plan(self) -> Plan:
        from .done import planned

        return planned(self)

    def run(self, work: Work) -> Fitted:
        from .done import fitted

        return fitted(self, work)
