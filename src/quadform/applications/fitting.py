"""A training run and what it scores, for the verb `train`: config in, `Run` and a `Record` out."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch

from ..core.errors import InputError
from ..core.record import Estimate, Provenance, Record
from ..corpora.datasets import Dataset, dataset
from ..distributed import group
from ..nn.transformer import Transformer
from ..train.folder import RunFolder
from ..train.recipes import Plan, prepare, score_test
from ..train.runs import Run
from .configs.train import TrainVerbConfig
from .machine import DTYPES, device_of
from .subject import parse_data


def data_of(config: TrainVerbConfig) -> Dataset:
    """The data set a question names."""
    name, settings = parse_data(config.data)
    return dataset(name, **settings)


def plan(config: TrainVerbConfig) -> Plan:
    """The model, the data and the training, ready to go."""
    device = device_of(config.device)
    local = os.environ.get("LOCAL_RANK")
    if device.type == "cuda" and local is not None:  # torchrun: every process its own GPU
        device = device_of(f"cuda:{local}")
        torch.cuda.set_device(device)
    return prepare(
        data_of(config),
        design=config.design,
        objective=config.objective,
        recipe=config.recipe,
        start_from=config.start_from,
        seed=config.seed,
        device=device,
        dtype=DTYPES[config.dtype],
        **config.settings(),
    )


def run(config: TrainVerbConfig, folder: Path) -> tuple[Run, Record]:
    """Train into `folder`; what was measured, as a Record (kind "train"); process 0 leaves it in scores.json."""
    files = RunFolder(folder)
    if files.exists and not config.resume:
        raise InputError(f"`{folder}` holds a run already. Resume it, or choose another folder.")
    made = plan(config)
    done = made.train(out=folder, resume=config.resume, seconds=config.seconds)
    model = done.model
    rank = group().rank
    if made.config.average is not None and done.stopped != "time" and rank == 0:
        model = Transformer.load(files.averaged, device=model.embed.W_E.device)
    found = Run(folder, model.eval(), made.data, made.config, done.step, {}, done, made.search)
    scalars = {"loss": Estimate(done.loss), "steps": Estimate(float(done.step))}
    scalars |= {f"valid {name}": e for name, e in done.valid.items()}
    if config.test and done.stopped != "time" and rank == 0:
        scalars |= {f"test {name}": e for name, e in score_test(found, config.test).items()}
    inputs: dict[str, Any] = {
        "data": made.data.to_dict(),
        "model": made.config_of_model.to_dict(),
        "train": made.config.to_dict(),
        "stopped": done.stopped,
        "warnings": list(done.warnings),
        "parameters": sum(p.numel() for p in made.model.parameters()),
    }
    W = made.model.embed.W_E
    record = Record(
        kind="train",
        inputs=inputs,
        scalars=scalars,
        tensors={},
        made=Provenance.collect(seed=config.seed, dtype=W.dtype, device=W.device),
    )
    if rank == 0:
        body: dict[str, Any] = {"stopped": done.stopped, "start_from": config.start_from}
        body |= {name: dataclasses.asdict(e) for name, e in scalars.items()}
        files.write_scores(body)
    return found, record
