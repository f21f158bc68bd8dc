"""The question of `quadform lr` and `qf.lr`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.question import option
from ..opening import CutOpening, ModelQuestion


@dataclass(frozen=True, kw_only=True)
class StepSizeOpening(CutOpening):
    """A model and several batches, so that the ceilings on each alone have a range."""

    batches: int = option(
        4,
        "Number of batches; the loss is their mean. The ceiling is also computed on each batch alone;"
        " its range is shown.",
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class StepSizeQuestion(ModelQuestion):
    """The largest stable learning rate at this point of training: a ceiling from curvature, not a recommendation.

    SGD: 2 / lambda_max(H). Momentum b: (2 + 2b) / lambda_max(H). Adam and AdamW:
    (2 + 2 b1) / (1 - b1) / lambda_max(P^-1 H), with P from the optimizer state. Above the ceiling, steps along the
    sharpest direction of the loss grow. Optimizers without a known rule (Muon, Lion, Adafactor, ...) are run on
    copies of the model instead.
    """

    verb = "lr"
    again = frozenset({"products"})

    optimizer: str = option(
        "auto",
        "Optimizer whose ceiling is judged; `auto` is the run's own optimizer, or AdamW. In Python also a torch"
        " optimizer.",
        choices=("auto", "sgd", "momentum", "adam", "adamw"),
    )
    state: str | None = option(
        None,
        "Optimizer state for P: a run folder, or torch's optimizer.pt (read without running any code in it).",
        metavar="CKPT",
    )
    momentum: float = option(0.9, "Momentum of SGD.", least=0, below=1)
    beta1: float = option(0.9, "First decay rate of Adam, if no optimizer state is given.", least=0, below=1)
    beta2: float = option(0.999, "Second decay rate of Adam, if no optimizer state is given.", least=0, below=1)
    weight_decay: float = option(0.0, "Weight decay of matrices, if no optimizer state is given.", least=0)
    lr: float | None = option(
        None,
        "Your learning rate, compared with the ceiling.",
        above=0,
        metavar="FLOAT",
        shown="(default: the run's)",
    )
    verify: int = option(
        20, "Steps of each test on a copy of the model (at 0.5x, 1x, 2x the ceiling); 0: no test.", least=0
    )
    checkpoints: int = option(
        7,
        "Number of checkpoints of a run at which ceiling and learning rate are compared; 0: only the given one.",
        least=0,
    )
    short_run: int = option(
        100,
        "For `new:` models: steps of a short training run along which the schedule is judged; 0: no run.",
        least=0,
    )
    warmup: float | None = option(
        None,
        "Warm-up of the short run: below 1 a share of all steps, otherwise a number of steps.",
        least=0,
        metavar="NUMBER",
        shown="(default: what fits the data)",
    )
    products: int = option(60, "Maximum number of Hessian-vector products for one eigenvalue.", least=1)
    tol: float = option(1e-3, "Relative residual at which an eigenvalue counts as converged.", above=0)

    def check(self) -> None:
        if self.state is not None:
            object.__setattr__(self, "state", str(self.state))  # a Path in Python

    def identity(self, subject: Any = None) -> dict[str, Any]:
        """Where P comes from belongs to it: another state, or the same file at another step, is another question."""
        own = super().identity(subject)
        if subject is None:
            return own
        from .chosen import identity_of
        from .unruled import identity_of_parts, parts_of

        parts = parts_of(self, subject)
        return own | (identity_of_parts(parts) if parts else identity_of(self, subject))

    def measurement(self, subject: Any = None) -> Any:
        from .measure import StepSizeMeasurement
        from .unruled import UnruledMeasurement, parts_of

        parts = parts_of(self, subject)
        return UnruledMeasurement(self, subject, parts) if parts else StepSizeMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.step_size import StepSize

        return StepSize(record)
