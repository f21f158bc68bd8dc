"""The callback for transformers' Trainer: a real Trainer for a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quadform.integrations import hf

transformers = pytest.importorskip("transformers")


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(0, 9, (count, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in ids]


def held() -> dict[str, torch.Tensor]:
    return {n: torch.stack([r[n] for r in rows(4)]) for n in ("input_ids", "labels")}


def test_steps_of_a_trainer_are_read_and_logged(tmp_path: Path) -> None:
    """Every second step; names in the trainer's history; and the weights are those of a run without it."""
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")
    weights = []
    for watched in (True, False):
        callback = hf.CurvatureCallback(held(), every=2)
        args = transformers.TrainingArguments(
            str(tmp_path),
            max_steps=4,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            gradient_checkpointing=True,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        model = gpt2()
        trainer = transformers.Trainer(model, args, train_dataset=rows(16), callbacks=[callback] if watched else [])
        callback.trainer = trainer
        trainer.train()
        weights.append({n: p.clone() for n, p in model.state_dict().items()})
        if watched:
            assert [r.step for r in callback.monitor.history] == [2, 4]
            logged = [e["curvature/lambda_max"] for e in trainer.state.log_history if "curvature/lambda_max" in e]
            assert logged == [r.lambda_max.value for r in callback.monitor.history]
            assert all(r.ceiling > 0 and r.logits.shape == (2, 2) for r in callback.monitor.history)
            assert not callback.monitor.warnings
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_the_callback_counts_on_from_a_checkpoint() -> None:
    """Without a Trainer: the events it would send, at step 10 of a run that goes on."""
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    logged: list[dict[str, float]] = []
    callback = hf.CurvatureCallback(held(), every=4, trainer=type("T", (), {"log": lambda self, n: logged.append(n)})())
    state = transformers.TrainerState(global_step=10)
    callback.on_train_begin(None, state, None, model=model, optimizer=optimizer)
    for _ in range(3):
        callback.on_step_end(None, state, None)
    (reading,) = callback.monitor.history
    assert reading.step == 12
    assert logged == [{f"curvature/{n}": v for n, v in reading.numbers().items()}]
