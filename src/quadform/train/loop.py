"""The training loop: `train(model, data, config, out=folder)`; `train.folder` says what lies where in the folder.

On CUDA nothing waits for the device inside a step: batches are made ahead, and the loss and gradient norm of a step are
looked at one step later. A step whose gradient is not finite changes no weights; the device itself decides that.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quadform.core import progress as bars
from quadform.core.errors import FileError, InputError
from quadform.core.interrupts import gently
from quadform.core.record import Estimate, Provenance
from quadform.core.rng import stream
from quadform.corpora.datasets import Batch, Dataset
from quadform.distributed import Group, current, group
from quadform.nn.transformer import Transformer

from .along import marks
from .checkpoint import load_checkpoint, restore, save_checkpoint
from .config import TrainConfig
from .ddp import hold, parallel
from .feed import Meal, meals
from .folder import RunFolder
from .machinery import compiled, differences, plain
from .optimizer import Optimizer
from .score import accuracy, evaluate, exact_match
from .size import check_size, optimizer_copies
from .snapshots import average
from .steps import Loop
from .watch import Diverged, broken_layer, keeps_apart, steepest_layer, token_cosines

LATE_ON = ("cuda",)
"""Devices on which the numbers of a step are looked at one step later."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A run that ended. `stopped` says why: "steps", "patience" or "goal"; "time" where it can go on.

    `model` holds the weights of the last step; those of the best validation (`best_step`) are in `folder / "best"`.
    """

    model: Transformer
    step: int
    loss: float
    valid: dict[str, Estimate]
    best_step: int
    stopped: str
    warnings: tuple[str, ...]
    folder: Path | None

    def __repr__(self) -> str:
        valid = "".join(f", valid {name} {e.value:.4g} ± {e.stderr or 0:.1g}" for name, e in self.valid.items())
        where = "" if self.folder is None else f"; {self.folder}"
        return f"Trained({self.model.summary}; step {self.step:,} ({self.stopped}), loss {self.loss:.4g}{valid}{where})"


def train(
    model: Transformer,
    data: Dataset,
    config: TrainConfig | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = True,
    seconds: float | None = None,
    progress: bool | bars.Report = True,
) -> Trained:
    """Train `model` in place on the "train" split, and validate on "valid".

    With `out` a run that was stopped or killed goes on where its last checkpoint is; `resume=False` begins anew. The
    same model, data, config and seed give the same weights, interrupted or not (bit for bit on a CPU). After `seconds`
    the run writes a checkpoint and ends. Ctrl-C finishes the step, writes a checkpoint and raises KeyboardInterrupt.
    Under torchrun every process takes its share of the batches (see `quadform.train.ddp`).
    """
    config = TrainConfig() if config is None else config
    device = model.embed.W_E.device
    if config.precision == "bf16" and device.type != "cuda":
        raise InputError("precision bf16 is for CUDA (many CPUs have no bfloat16 products); use precision = full.")
    if config.optimizer == "gauss-newton" and current().world > 1:
        raise InputError("gauss-newton trains in one process; use adamw under torchrun.")
    check_size(model.config, config, model.embed.W_E.dtype, device, made=True)
    if config.average is not None and out is None:
        raise InputError("the models to be averaged are kept in a folder; give `out`, or leave `average` out.")
    next(iter(data.batches("valid", config.batch_size, config.seed)))  # what cannot be validated is not trained first
    with group() as processes, processes.parting():
        run = _Run(model, data, config, RunFolder(out) if out is not None else None, processes)
        if run.out is not None:
            run.take_up(run.out, resume)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            run.go(progress if processes.first else False, seconds)
    return run.result()


@dataclass
class _State:
    """What a run carries from step to step, besides weights and optimizer state."""

    first_loss: float | None = None
    loss: float = math.nan
    recent: list[float] = field(default_factory=list)
    valid: dict[str, dict[str, Any]] = field(default_factory=dict)
    best: list[float] | None = None
    best_step: int = 0
    waits: int = 0
    stopped: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Seen:
    """Loss and gradient norm of a step, on their way from the device, and the batches they come from."""

    step: int
    numbers: Tensor
    batches: list[Batch]
    ready: torch.cuda.Event | None = None


class _Run(Loop[Meal]):
    def __init__(
        self, model: Transformer, data: Dataset, config: TrainConfig, out: RunFolder | None, group: Group
    ) -> None:
        super().__init__(model, config, Optimizer(model, config))
        self.data, self.out, self.group = data, out, group
        self.state = _State()
        loss_of = compiled(model.loss, dynamic=config.bucket > 1) if config.compile else model.loss
        self.loss_of = parallel(loss_of, model, group)
        self.made = Provenance.collect(seed=config.seed, dtype=model.embed.W_E.dtype, device=self.device)
        self.started = time.monotonic()
        self.late = self.device.type in LATE_ON and self.optimizer.skips
        self.pending: _Seen | None = None
        self.norm, self.interrupted, self.out_of_time = math.nan, False, False
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        self.marks = marks(config, (optimizer_copies(config.optimizer) - 1) * weights)

    # ------------------------------------------------------------------------------------------------------- files
    def identity(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to be taken up."""
        same = {"train": self.config.to_dict(), "model": self.model.config.to_dict(), "data": self.data.to_dict()}
        return same | ({"processes": self.group.world} if self.group.world > 1 else {})

    def take_up(self, out: RunFolder, resume: bool) -> None:
        """Go on from the checkpoint in `out`, or empty its log and begin."""
        out.make()
        if not resume and self.group.first:
            out.forget()
        self.group.together("folder")
        found = load_checkpoint(out.checkpoint)
        if found is None:
            if self.group.first:
                out.cut_log(-1)
            return
        state, tensors = found
        try:
            changed = differences(state["identity"], plain(self.identity()))
            if changed:
                raise InputError(
                    f"{out.path} holds a run with other settings ({', '.join(changed)}). Give the same ones to resume, "
                    f"or another folder to start again (from Python also resume=False)."
                )
            self.step, self.state = int(state["state"].pop("step")), _State(**state["state"])
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{out.checkpoint} is not complete ({error}). Use resume=False to start again.") from error
        restore(self.model, self.optimizer, tensors)
        self.group.together("checkpoint")  # all have read what process 0 will write
        if self.group.first:
            out.cut_log(self.step)
            bars.say(f"going on from step {self.step} in {out.path}")

    def save(self, *, snapshot: bool) -> None:
        self.settle()
        if self.out is not None and self.group.first:
            if snapshot and self.config.average is not None:
                self.out.keep_snapshot(self.model, self.step, self.config.average)
            self.write(self.out.checkpoint)

    def write(self, folder: Path) -> None:
        """A checkpoint of this step."""
        state = {"identity": self.identity(), "state": {"step": self.step, **vars(self.state)}}
        save_checkpoint(folder, self.model, self.optimizer, state, self.made)

    def log(self, **numbers: Any) -> None:
        if self.out is None or not self.group.first:
            return
        line = {"step": self.step, "seconds": round(time.monotonic() - self.started, 3), **numbers}
        self.out.add_line(plain(line))

    # ------------------------------------------------------------------------------------------------------- steps
    def go(self, progress: bool | bars.Report, seconds: float | None) -> None:
        c, g = self.config, self.group
        sizes = {"batch_size": c.batch_size, "accumulate": c.accumulate, "bucket": c.bucket}
        stream_of: Any = meals(self.model, self.data, **sizes, seed=c.seed, step=self.step, rank=g.rank, world=g.world)
        self.seconds = seconds
        with bars.Progress(c.steps, "training", show=progress) as self.bar, gently() as self.asked:
            if self.step:
                self.bar.step(self.step)
            if not self.state.stopped:
                self.run(stream_of, c.steps)
        if self.out is not None and g.first:
            self.model.save(self.out.model)
            if c.average is not None and self.state.stopped:
                average(self.out.kept()).save(self.out.averaged)

    def after(self, meal: Meal, lr: float) -> bool:
        c, s, g = self.config, self.state, self.group
        if self.step % c.log_every == 0 or self.step == c.steps:
            self.settle()
            self.log(loss=sum(s.recent) / len(s.recent), gradient_norm=self.norm, lr=lr)
        if c.watch_every and (self.step % c.watch_every == 0 or self.step == 1):
            self.watch(meal.batches[0])
        if self.step % c.valid_every == 0 or self.step == c.steps:
            self.validate()
        if not s.stopped and self.step == c.steps:
            s.stopped = "steps"
        if self.step in self.marks and self.out is not None and g.first:
            self.settle()
            self.write(self.out.checkpoint_at(self.step))
        interrupted = False
        if g.world == 1 or self.step % c.log_every == 0:  # processes agree now and then, not at every step
            over = self.seconds is not None and time.monotonic() - self.started > self.seconds
            self.out_of_time, interrupted = g.any(over), g.any(self.asked.once)
        leaves = interrupted or self.out_of_time
        if self.step % c.save_every == 0 or s.stopped or leaves:
            self.save(snapshot=self.step % c.save_every == 0 or bool(s.stopped))
        self.bar.step(text=self.text())
        if interrupted and not s.stopped:
            raise KeyboardInterrupt
        return leaves or bool(s.stopped)

    def backward(self, meal: Meal) -> Tensor:
        """The mean loss over the targets of all batches of the step, in all processes."""
        c, g = self.config, self.group
        torch.manual_seed(stream(c.seed, f"step/{self.step}" + (f"/{g.rank}" if g.rank else "")).initial_seed())
        if meal.targets == 0 and g.world == 1:
            raise InputError(
                f"the batch of step {self.step + 1} has no target to predict. Check the labels and the padding."
            )
        total: Tensor | int = meal.targets
        if g.world > 1:
            total = g.add(torch.tensor(float(total), device=self.device)) / g.world
        parts = []
        for i, batch in enumerate(meal.batches):
            with hold(self.loss_of, g, last=i == len(meal.batches) - 1):
                with torch.autocast("cuda", torch.bfloat16, enabled=c.precision == "bf16"):
                    part = self.loss_of(batch, smoothing=c.smoothing, reduction="sum") / total
                part.backward()
            parts.append(part.detach())
        return g.add(torch.stack(parts).sum()) / g.world

    def batches(self, meal: Meal) -> list[Batch]:
        return list(meal.batches)

    def judge(self, loss: Tensor, norm: Tensor, meal: Meal) -> Tensor | None:
        """Look at this step, or, where that would mean waiting for the device, at the one before."""
        seen = _Seen(self.step + 1, torch.stack((loss.double(), norm.double())), meal.batches)
        if not self.late:
            self.look(seen)
            return None
        skip = 1 - seen.numbers.isfinite().all().float()
        seen.numbers = seen.numbers.to("cpu", non_blocking=True)
        if self.device.type == "cuda":
            seen.ready = torch.cuda.Event()
            seen.ready.record()
        self.settle()
        self.pending = seen
        return skip

    def settle(self) -> None:
        """Look at the numbers that are still on their way from the device."""
        seen, self.pending = self.pending, None
        if seen is not None:
            if seen.ready is not None:
                seen.ready.synchronize()
            self.look(seen)

    def look(self, seen: _Seen) -> None:
        """Give the run up when loss or gradient are not finite (that step changed no weights) or have exploded."""
        c, s = self.config, self.state
        loss, self.norm = seen.numbers.tolist()
        if not math.isfinite(loss) or not math.isfinite(self.norm):
            layer = broken_layer(self.model, seen.batches, again=self.late)
            what = f"the {'loss' if not math.isfinite(loss) else 'gradient'} is not finite; it begins in {layer}"
        else:
            s.loss = loss
            s.first_loss = loss if s.first_loss is None else s.first_loss
            s.recent = [*s.recent, loss][-c.log_every :]
            ceiling = c.diverged_at * max(s.first_loss, math.log(self.model.config.classes or self.model.config.vocab))
            if len(s.recent) < c.log_every or sum(s.recent) / len(s.recent) <= ceiling:
                return
            layer = steepest_layer(self.model, seen.batches)
            what = (
                f"the mean loss of {c.log_every} steps is above {ceiling:.3g}, {c.diverged_at:g} times where it began; "
                f"the largest gradient is in {layer}"
            )
        kept = ""
        if self.out is not None and self.out.exists:
            kept = f" The last checkpoint in {self.out.path} is from before."
        raise Diverged(
            f"training stopped at step {seen.step}: {what}. Lower lr (now {c.lr:g}), lengthen the warm-up (now "
            f"{c.schedule.warmup_steps(c.steps)} steps), clip the gradient (now {c.clip or 'off'}), or take a design "
            f"with norms.{kept}",
            seen.step,
            layer,
        )

    # ---------------------------------------------------------------------------------------------------- measures
    def watch(self, batch: Batch) -> None:
        if not self.group.first:
            return
        cosines = {name: e.value for name, e in token_cosines(self.model, batch).items()}
        self.log(cosine=cosines)
        name, value = max(cosines.items(), key=lambda entry: entry[1], default=("", 0.0))
        if value >= self.config.collapse_at and not self.state.warnings:
            text = (
                f"step {self.step}: tokens point the same way after {name} (mean cosine {value:.3f}): rank "
                f"collapse. {keeps_apart(self.model.config)}"
            )
            self.state.warnings.append(text)
            self.log(warning=text)
            bars.say(text)

    def validate(self) -> None:
        c, s = self.config, self.state
        self.settle()
        sizes: dict[str, Any] = {"batches": c.valid_batches, "batch_size": c.batch_size, "seed": c.seed}
        asked: dict[str, Any] = {"loss": lambda: evaluate(self.model, self.data, **sizes)}
        if c.questions:
            asked["exact"] = lambda: exact_match(self.model, self.data, count=c.questions, seed=c.seed)
        if self.model.config.kind == "encoder":
            asked["accuracy"] = lambda: accuracy(self.model, self.data, **sizes)
        seen = [measure() if self.group.first else Estimate(math.nan) for measure in asked.values()]
        numbers = [x for e in seen for x in (e.value, e.stderr or 0.0)]
        told = self.group.same(torch.tensor(numbers, dtype=torch.float64)).tolist()
        values = [Estimate(told[2 * i], told[2 * i + 1], "estimate") for i in range(len(seen))]
        found = dict(zip(asked, values, strict=True))
        s.valid = {name: vars(e) for name, e in found.items()}
        self.log(valid={name: {"value": e.value, "stderr": e.stderr} for name, e in found.items()})
        now = [found["exact"].value if c.questions else 0.0, -found["loss"].value]
        if s.best is None or now > s.best:
            s.best, s.best_step, s.waits = now, self.step, 0
            if self.out is not None and self.group.first:
                self.model.save(self.out.best)
        else:
            s.waits += 1
        if c.patience and s.waits >= c.patience:
            s.stopped = "patience"
        if c.goal and found["exact"].value >= c.goal:
            s.stopped = "goal"

    def text(self) -> str:
        valid = "".join(f"  {name} {e['value']:.3f}" for name, e in self.state.valid.items())
        return f"loss {self.state.loss:.3f}" + (f"  valid{valid}" if valid else "")

    def result(self) -> Trained:
        s = self.state
        valid = {name: Estimate.read(e) for name, e in s.valid.items()}
        why = s.stopped or "time"
        folder = None if self.out is None else self.out.path
        return Trained(self.model, self.step, s.loss, valid, s.best_step, why, tuple(s.warnings), folder)
