"""What came of a training: the run, what it scored, and what to do next."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from dataclasses import dataclass
from typing import Any

import torch

from ...answers.texts import line
from ...core.errors import InputError
from ...core.progress import clock
from ...core.question import Done
from ...core.question import Plan as Cost
from ...core.record import Estimate, Provenance, Record
from ...core.work import Work
from ...corpora.datasets import dataset
from ...distributed import group
from ...nn.transformer import Transformer
from ...train.folder import RunFolder
from ...train.recipes import Plan, prepare, score_test
from ...train.runs import Decoded, Run
from ..machine import DTYPES, device_of
from ..subject import parse_data
from .question import TrainTask

_SHARES = ("exact", "accuracy")


@dataclass(frozen=True)
class Fitted(Done):
    """A training that ended, or whose time was up: the `run`, and its scores as a Record (kind "train")."""

    run: Run
    record: Record
    seconds: float

    @property
    def partial(self) -> bool:
        return bool(self.record.inputs["stopped"] == "time")

    @property
    def ok(self) -> bool:  # type: ignore[override]  # found, not given
        return not self.partial

    @property
    def model(self) -> Transformer:
        return self.run.model

    def decode(self, texts: Any, how: Any = None, *, batch_size: int = 64) -> list[list[Decoded]]:
        """`Run.decode`: what the model makes of every text."""
        return self.run.decode(texts, how, batch_size=batch_size)

    def plain(self) -> dict[str, Any]:
        r = self.record
        scalars = {name: dataclasses.asdict(e) for name, e in r.scalars.items()}
        told = {"kind": r.kind, "inputs": dict(r.inputs), "scalars": scalars, "tensors": {}}
        return told | {"made": dataclasses.asdict(r.made), "schema": r.schema, "partial": self.partial}

    def __str__(self) -> str:
        inputs, s = self.record.inputs, self.record.scalars
        about = {"model": self.run.model.config.summary, "count": f"{inputs['parameters']:,}"}
        lines = [line("line_trained", **about, steps=f"{s['steps'].value:.0f}", time=clock(self.seconds))]
        if inputs["stopped"] != "steps":
            lines[0] += ", " + line(f"line_stopped_{inputs['stopped']}")
        lines.append(line("line_train_loss", loss=f"{s['loss'].value:.4f}"))
        for split in ("valid", "test"):
            found = [f"{n.removeprefix(split + ' ')} {_text(n, e)}" for n, e in s.items() if n.startswith(split)]
            lines += [f"{split + ':':<7}{', '.join(found)}  [estimate]"] if found else []
        lines += [line("line_warning", text=text) for text in inputs["warnings"]]
        if self.run.folder is not None:
            folder = str(self.run.folder)
            more = {} if self.partial else {"command": self._next()}
            lines.append(line("line_saved_next" if more else "line_saved", folder=folder, **more))
        return "\n".join(lines)

    def _next(self) -> str:
        named = shlex.quote(str(self.run.folder))
        writes = "" if self.run.model.config.kind == "encoder" else f"quadform decode {named} TEXT`, `"
        return f"{writes}quadform spectrum {named}"


def _text(name: str, e: Estimate) -> str:
    share = name.split(" ", 1)[-1] in _SHARES
    scale, unit = (100, " %") if share else (1, "")
    digits = 1 if share or "BLEU" in name or "chrF" in name else 4
    return f"{scale * e.value:.{digits}f}{unit} ± {scale * (e.stderr or 0):.{digits}f}"


def prepared(asked: TrainTask) -> Plan:
    """The model, the data and the training, ready to go."""
    device = device_of(asked.device)
    local = os.environ.get("LOCAL_RANK")
    if device.type == "cuda" and local is not None:  # torchrun: every process its own GPU
        device = device_of(f"cuda:{local}")
        torch.cuda.set_device(device)
    data: Any = asked.data
    if isinstance(data, str):
        name, settings = parse_data(data)
        data = dataset(name, **settings)
    return prepare(data, seed=asked.seed, device=device, dtype=DTYPES[asked.dtype], **asked.settings())


def planned(asked: TrainTask) -> Cost:
    """What it takes, from a few steps on a copy."""
    made = prepared(asked)
    c, cost = made.config, made.cost()
    flops, step = cost["flops_per_step"], cost["seconds_per_step"]
    schedule = f"{c.schedule.warmup_steps(c.steps)} warm-up, then {c.schedule.decay}"
    total = cost["weight_bytes"] + cost["activation_bytes"]
    shown = f"{1e3 * step:.3g} ms" if step < 1 else f"{step:.3g} s"
    lines = (
        f"{made.config_of_model.summary}, {cost['parameters']:,.0f} parameters; data {made.data}",
        f"{c.steps:,} steps of {c.accumulate} x {c.batch_size} sequences, {c.update} ({schedule})",
        f"a step: {flops / 1e9:.3g} GFLOP of matrix products, {shown} here  [estimate, a few steps on a copy]",
        f"memory about {total / 2**20:,.0f} MiB: weights, gradients and moments {cost['weight_bytes'] / 2**20:,.0f},"
        f" activations {cost['activation_bytes'] / 2**20:,.0f}",
        f"in all {flops * c.steps / 1e12:.3g} TFLOP, about {clock(cost['seconds'])}; nothing was trained",
    )
    return Cost("\n".join(lines), seconds=cost["seconds"], bytes=total, details=dict(cost))


def fitted(asked: TrainTask, work: Work) -> Fitted:
    """Train, in the folder of the work where it has one; process 0 leaves the scores in it."""
    began = time.monotonic()
    files = None if work.folder is None else RunFolder(work.folder)
    if files is not None and files.exists and not work.resume:
        raise InputError(f"`{files.path}` holds a run already. Resume it, or name another folder.")
    made = prepared(asked)
    seconds = None if work.deadline.until is None else work.deadline.left
    done = made.train(out=work.folder, resume=work.resume, seconds=seconds, progress=work.progress)
    model, first = done.model, group().first
    if files is not None and made.config.average is not None and done.stopped != "time" and first:
        model = Transformer.load(files.averaged, device=model.embed.W_E.device)
    run = Run(work.folder, model.eval(), made.data, made.config, done.step, {}, done, made.search)
    scalars = {"loss": Estimate(done.loss), "steps": Estimate(float(done.step))}
    scalars |= {f"valid {name}": e for name, e in done.valid.items()}
    if asked.test and done.stopped != "time" and first:
        scalars |= {f"test {name}": e for name, e in score_test(run, asked.test).items()}
    inputs: dict[str, Any] = {
        "data": made.data.to_dict(),
        "model": made.config_of_model.to_dict(),
        "train": made.config.to_dict(),
        "stopped": done.stopped,
        "warnings": list(done.warnings),
        "parameters": sum(p.numel() for p in made.model.parameters()),
    }
    W = made.model.embed.W_E
    made_by = Provenance.collect(seed=asked.seed, dtype=W.dtype, device=W.device)
    if files is not None and first:
        told = {name: dataclasses.asdict(e) for name, e in scalars.items()}
        files.write_scores({"stopped": done.stopped, "start_from": asked.start_from} | told)
    return Fitted(run, Record("train", inputs, scalars, {}, made_by), time.monotonic() - began)
