"""One training run as a part of an experiment: a recipe in, curves out. Torch and numpy alone, on a CPU or a GPU.

On CUDA the forward and backward pass run in bfloat16 autocast, blocks are compiled, and a step is recorded once as a
CUDA graph, each where that works. Wall-clock is taken between synchronised points, validation and the first steps, in
which all this is made, left out.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.designs import design
from ..core.errors import InputError
from ..core.graphs import record, rehearse
from ..core.progress import say
from ..core.record import Provenance
from ..core.spec import Gain, ModelConfig, Projection
from ..core.work import Deadline
from ..corpora.datasets import Batch, Dataset
from ..nn.transformer import Transformer
from ..train.checkpoint import load_checkpoint, restore, save_checkpoint
from ..train.config import TrainConfig
from ..train.feed import ahead
from ..train.optimizer import Optimizer
from ..train.schedule import Schedule
from ..train.steps import Loop
from ..train.watch import token_cosines

#: Steps on CUDA that are not timed: the blocks are compiled and the step is recorded in them.
SETTLE = 8
#: Batches made in advance on CUDA.
AHEAD = 8
Look = Callable[[int, Transformer, Batch], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A design and how it is trained. `warmup` below 1 is a share of the steps. AdamW, decay on matrices, clip 1.

    `queries` other than "" replaces the start of W_Q; `mlp_skip=False` takes the skip around the MLP away.
    `projections=(init, beta)` makes W_V and W_O = W_init + beta dW with beta fixed. `branch` is the start of b_FF in
    the designs that learn it (None: theirs). Parameters whose name has a part of `frozen` in it stay as they are.
    `model` are further settings of `design`, as pairs.
    """

    design: str
    depth: int
    dim: int
    heads: int
    d_ff: int
    steps: int
    batch: int
    lr: float
    warmup: float
    seed: int
    init: str = "fan-in"
    norm: Literal["layer", "rms", "none"] = "rms"
    queries: str = ""
    mlp_skip: bool = True
    projections: tuple[str, float] | None = None
    branch: float | None = None
    positions: str = "learned"
    frozen: tuple[str, ...] = ()
    model: tuple[tuple[str, Any], ...] = ()

    def model_config(self, data: Dataset) -> ModelConfig:
        """The model of this recipe for some data. Embeddings of init "normal" enter unscaled, also beside sinusoids."""
        scale: dict[str, Any] = {"embed_scale": 1.0} if self.init == "normal" else {}
        config = design(self.design, depth=self.depth, d_model=self.dim, heads=self.heads, d_ff=self.d_ff,
                        norm=self.norm, init=self.init, mlp_branch=self.branch, positions=self.positions, **scale,
                        **dict(self.model), **data.settings)  # fmt: skip
        change: dict[str, Any] = {"query_init": self.queries} if self.queries else {}
        if self.projections is not None:
            start, beta = self.projections
            change |= dict.fromkeys(("value", "proj"), Projection(init=start, skip=1.0, branch=beta))  # type: ignore[arg-type]  # a checked word

        def changed(block: Any) -> Any:
            if not self.mlp_skip:
                gain = Gain(skip=0.0, branch=1.0, learn=("branch",))
                return dataclasses.replace(block, mlp=gain, activation="leaky", slope=0.2, **change)
            return dataclasses.replace(block, **change)

        return dataclasses.replace(config, blocks=tuple(changed(b) for b in config.blocks))


def gpu_or_cpu(needed: bool, what: str) -> str:
    """A GPU where there is one; where it is `needed` and there is none, a refusal that names the preset to take."""
    if torch.cuda.is_available():
        return "cuda"
    if needed:
        raise InputError(f"the paper preset of `{what}` needs a GPU; this machine has no CUDA. Use the preset cpu.")
    return "cpu"


def train_run(
    recipe: Recipe,
    data: Dataset,
    *,
    valid_batches: int = 8,
    device: str = "cpu",
    at: tuple[int, ...] = (),
    look: Look | None = None,
    model: Transformer | None = None,
    kept: Kept | None = None,
) -> dict[str, Tensor]:
    """Train and return `loss` (steps,), `valid` (its mean and standard error), `cosine` (blocks,) at the end,
    `seconds` of all steps (processor time on a CPU; on a GPU wall-clock, the first steps counted as the others),
    `parameters`, `diverged` (0 or 1), and `made`: of 2 whether the blocks were compiled and the step recorded.

    `look(step, model, batch)` is called before step `at[i]` (and after the last, for `steps`) on a held-out batch; its
    numbers come back as `look/NAME` (points,). A given `model` is trained on, whatever the
    recipe's design and sizes. A run that is `kept` goes on where it was; on a CPU it gives the losses of one that was
    never stopped, bit for bit.
    """
    torch.manual_seed(recipe.seed)
    model = model or Transformer(recipe.model_config(data), seed=recipe.seed, device=device)
    for name, p in model.named_parameters():
        if any(part in name for part in recipe.frozen):
            p.requires_grad_(False)
    held = [_to(b, device) for b in islice(data.batches("valid", recipe.batch, 0), valid_batches)]
    run = _Run(model, recipe, at, look, held[0], kept)
    run.run(_feed(data.batches("train", recipe.batch, recipe.seed, run.step), device), recipe.steps)
    made, losses = run.close(), run.losses
    model.train()
    if not run.diverged:
        run.see()
    out = torch.full((recipe.steps,), math.nan)
    out[: len(losses)] = torch.stack(losses).float().cpu()
    with torch.no_grad():
        model.eval()
        each = torch.stack([_loss(model, b, device) for b in held]).double().cpu()
    cosine = list(token_cosines(model, held[0]).values())
    return {
        "loss": out,
        "valid": torch.tensor(
            [float(each.mean()), float(each.std(correction=min(1, len(each) - 1)) / len(each) ** 0.5)]
        ),
        "cosine": torch.tensor([c.value for c in cosine]),
        "seconds": torch.tensor(run.seconds * run.step / (run.step - run.settled)),
        "parameters": torch.tensor(sum(p.numel() for p in model.parameters())),
        "diverged": torch.tensor(run.diverged),
        "made": torch.tensor(made),
        **({f"look/{k}": torch.tensor([s[k] for s in run.seen]) for k in run.seen[0]} if run.seen else {}),
    }


def _loss(model: Transformer, batch: Batch, device: str) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16, enabled=device != "cpu", cache_enabled=False):
        return model.loss(batch)


class Kept:
    """An unfinished run in a folder: saved every so many seconds, at its end, and where the time is up (`TimeUp`)."""

    def __init__(self, folder: Path, deadline: Deadline, every: float = 300.0) -> None:
        self.folder, self.deadline, self.every = folder, deadline, every
        self.saved = time.monotonic()

    def take_up(self, run: _Run) -> None:
        """Put weights, optimizer state, losses and clock of the folder's run in their places."""
        found = load_checkpoint(self.folder)
        if found is not None:
            state, tensors = found
            restore(run.model, run.optimizer, tensors)
            run.step = run.first = state["step"]
            run.seconds, run.settled, run.seen = state["seconds"], state["settled"], state["seen"]
            run.losses = list(torch.tensor(state["losses"], device=run.device))

    def reached(self, run: _Run) -> None:
        """After each step."""
        ends = run.step == run.config.steps or self.deadline.left <= 0
        if ends or time.monotonic() - self.saved > self.every:
            run.pause()
            losses = torch.stack(run.losses).tolist()
            state = {"step": run.step, "seconds": run.seconds, "settled": run.settled, "seen": run.seen}
            made = Provenance.collect(seed=0, device=run.device.type)
            save_checkpoint(self.folder, run.model, run.optimizer, {**state, "losses": losses}, made)
            run.began, self.saved = run.clock(), time.monotonic()
        self.deadline.check()


class _Run(Loop[Batch]):
    """The steps of a recipe. Losses stay on the device; looking, and the first steps on CUDA, are not timed."""

    def __init__(
        self,
        model: Transformer,
        recipe: Recipe,
        at: Sequence[int],
        look: Look | None,
        held: Batch,
        kept: Kept | None = None,
    ) -> None:
        schedule = Schedule(warmup=recipe.warmup)
        config = TrainConfig(steps=recipe.steps, lr=recipe.lr, weight_decay=0.1, schedule=schedule)
        gpu = model.embed.W_E.device.type != "cpu"
        super().__init__(model, config, Optimizer(model, config, fused=gpu))
        self.at, self.look, self.held, self.kept = at, look, held, kept
        self.recorded = _Recorded(self) if gpu else None
        self.clock = time.monotonic if gpu else time.process_time
        self.losses: list[Tensor] = []
        self.seen: list[dict[str, float]] = []
        self.seconds, self.settled, self.diverged, self.first = 0.0, 0, 0, 0
        if kept is not None:
            kept.take_up(self)
        self.earlier, self.began = self.seconds, self.clock()

    def before(self) -> None:
        if self.recorded is not None and self.step == self.first + SETTLE:
            torch.cuda.synchronize()
            self.seconds, self.settled, self.began = self.earlier, self.settled + SETTLE, self.clock()
        if self.step in self.at:
            self.pause()
            self.see()
            self.began = self.clock()

    def see(self) -> None:
        if self.step in self.at and self.look is not None:
            self.seen.append(self.look(self.step, self.model, self.held))

    def backward(self, batch: Batch) -> Tensor:
        self.model.zero_grad(set_to_none=True)  # what was looked at may have left gradients
        loss = _loss(self.model, batch, self.device.type)
        loss.backward()
        return loss.detach()

    def judge(self, loss: Tensor, norm: Tensor, batch: Batch) -> None:
        """Nothing waits for the device; `after` looks now and then."""

    def descend(self, batch: Batch, lr: float | None) -> Tensor:
        if self.recorded is None or lr is None:
            self.losses.append(super().descend(batch, lr))
        else:
            self.losses.append(self.recorded(batch, lr))
        return self.losses[-1]

    def after(self, batch: Batch, lr: float) -> bool:
        self.diverged = int(self.step % 100 == 0 and not math.isfinite(float(self.losses[-1])))
        if self.kept is not None and not self.diverged:
            self.kept.reached(self)
        elif self.diverged or self.step == self.config.steps:
            self.pause()
        return bool(self.diverged)

    def pause(self) -> None:
        """Count the seconds since `began`."""
        if self.recorded is not None:
            torch.cuda.synchronize()
        self.seconds += self.clock() - self.began

    def close(self) -> int:
        return 0 if self.recorded is None else self.recorded.close()


class _Recorded:
    """Steps recorded as one CUDA graph after a few plain ones, blocks compiled; without either where it fails."""

    def __init__(self, run: _Run) -> None:
        self.run, self.optimizer = run, run.optimizer
        self.optimizer.capturable()
        self.taken, self.works, self.compiled = 0, True, True
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream()
        torch._dynamo.reset()
        for block in run.model.layers:
            block.forward = torch.compile(block.forward, dynamic=False)

    def plain(self, batch: Batch, lr: float | None) -> Tensor:
        return Loop.descend(self.run, batch, lr)

    def _uncompiled(self) -> None:
        for block in self.run.model.layers:
            block.__dict__.pop("forward", None)

    def close(self) -> int:
        """Take the compiled blocks and the recording away; how many of the two there were."""
        self._uncompiled()
        self.graph = None
        return int(self.compiled) + int(self.works)

    def _first(self, batch: Batch, lr: float | None) -> Tensor:
        """A plain step; where the compiler gives up, before any weight has moved, the same without it."""
        try:
            return self.plain(batch, lr)
        except Exception as error:
            if self.taken > 1 or not self.compiled:
                raise
            say(f"blocks are not compiled ({type(error).__name__}: {str(error)[:120]}); plain ones instead")
            self.compiled = False
            self._uncompiled()
            return self.plain(batch, lr)

    def __call__(self, batch: Batch, lr: float) -> Tensor:
        self.taken += 1
        if not self.works:
            return self.plain(batch, lr)
        if self.graph is None and self.taken <= 3:  # allocations settle on a side stream, as capturing asks
            return rehearse(lambda: self._first(batch, lr).clone(), self.stream)
        if self.graph is None:
            try:
                self.batch = {k: t.clone() for k, t in batch.items()}
                self.optimizer.set_rate(lr)
                self.graph, self.loss = record(lambda: self.plain(self.batch, None))
            except RuntimeError as error:
                say(f"steps are not recorded as a graph ({str(error).splitlines()[0][:120]}); plain steps instead")
                self.works = False
                torch.cuda.synchronize()
                return self.plain(batch, lr)
        for k, t in batch.items():
            self.batch[k].copy_(t)
        self.optimizer.set_rate(lr)
        self.graph.replay()
        return self.loss.clone()


def _to(batch: Batch, device: str) -> Batch:
    return batch if device == "cpu" else {k: t.to(device, non_blocking=True) for k, t in batch.items()}


def _feed(batches: Iterator[Batch], device: str) -> Generator[Batch, None, None]:
    """The batches on the device; for a GPU a thread makes them ahead in pinned memory."""
    if device == "cpu":
        yield from batches
        return
    pinned: Any = ({k: t.pin_memory() for k, t in b.items()} for b in batches)
    made: Any = ahead(pinned, AHEAD)
    for batch in made:
        yield _to(batch, device)
