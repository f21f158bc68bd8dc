"""Monitors inside other trainers, and set-ups people train with: adapters, checkpointing, autocast, averages."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import quadform as qf
from quadform.core.errors import InputError
from quadform.curvature.operators import hessian
from quadform.curvature.risk import Risk
from quadform.integrations import torchtitan

WORDS = 7


class Tiny(nn.Module):
    """Two layers with attention, by `torch.utils.checkpoint` where asked (reentrant or not)."""

    def __init__(self, checkpointed: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.read, self.checkpointed = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS), checkpointed
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True) for _ in range(2))
        self.autocast: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.autocast.append(torch.is_autocast_enabled("cpu"))
        x = self.embed(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.checkpointed) if self.checkpointed is not None else layer(x)
        return self.read(x)


def loss(out: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), batch[1].flatten())


def batches(count: int, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    ids = torch.randint(0, WORDS, (count, 4, 5), generator=torch.Generator().manual_seed(seed))
    return [(x, x.flip(1)) for x in ids]


def first_reading(model: nn.Module, **given: Any) -> Any:
    trained = [p for p in model.parameters() if p.requires_grad]
    return qf.Monitor(model, torch.optim.AdamW(trained, 1e-2), batches(1), loss=loss, every=1, **given).step()


# --- set-ups --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_number(reentrant: bool) -> None:
    """A model that checkpoints in eval mode too; attention has no second derivative where it is run again."""
    plain, kept = first_reading(Tiny()), first_reading(Tiny(checkpointed=reentrant))
    assert kept.lambda_max.value == pytest.approx(plain.lambda_max.value, rel=1e-4)
    assert kept.ceiling == pytest.approx(plain.ceiling, rel=1e-4)


def test_a_reading_inside_autocast_is_one_without_it() -> None:
    model = Tiny()
    with torch.autocast("cpu", dtype=torch.float16):
        inside = first_reading(model)
    assert not any(model.autocast)
    assert inside.lambda_max.value == first_reading(Tiny()).lambda_max.value


def test_weights_in_halves_are_measured_as_float32() -> None:
    """The numbers are those of a float32 model of the same weights; weights and state are the tensors they were."""
    model, twin = Tiny().bfloat16(), Tiny()
    twin.load_state_dict({n: t.float() for n, t in model.state_dict().items()})
    readings = []
    for m in (model, twin):
        optimizer = torch.optim.AdamW(m.parameters(), 0.0, foreach=False)
        for p in m.parameters():
            p.grad = torch.full_like(p, 0.5)
        optimizer.step()
        before = {n: (p.data_ptr(), p.dtype, p.grad.dtype) for n, p in m.named_parameters()}
        readings.append(qf.Monitor(m, optimizer, batches(1), loss=loss, every=1).step())
        assert before == {n: (p.data_ptr(), p.dtype, p.grad.dtype) for n, p in m.named_parameters()}
    half, full = readings
    assert half.lambda_max.value == full.lambda_max.value
    assert half.lambda_P.value == pytest.approx(full.lambda_P.value, rel=5e-3)  # its second moments have 8 bits
    torch.testing.assert_close(half.logits, full.logits)


class Scale(nn.Module):
    """No matrix product; keeps whether each forward pass ran in autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.seen = nn.Parameter(torch.ones(3)), list[bool]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(torch.is_autocast_enabled("cpu"))
        return self.w.square() * x


def test_accelerate_with_mixed_precision_and_accumulation(request: pytest.FixtureRequest) -> None:
    """Its wrapped optimizer is read; its autocast, put around the model's forward, is left outside of readings."""
    accelerate = pytest.importorskip("accelerate")
    forget = functools.partial(accelerate.state.AcceleratorState._reset_state, reset_partial_state=True)
    forget()  # a Trainer of another test has made one
    request.addfinalizer(forget)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = Scale()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    mean = lambda out, batch: out.mean()  # noqa: E731
    monitor = qf.Monitor(model, optimizer, [torch.ones(2, 3)], loss=mean, every=1)
    inside = model.seen.copy()
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(mean(model(torch.ones(2, 3)), None))
            model.seen.pop()
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                monitor.step()
    assert not any(inside + model.seen)
    assert [r.step for r in monitor.history] == [1, 2]
    assert monitor.last.lambda_max.value == pytest.approx(2 / 3, rel=1e-5)
    assert monitor.last.ceiling is not None


def test_averaged_copies_are_left_alone() -> None:
    """An EMA copy beside the model: the same with and without a monitor, and the model that trains is measured."""
    found = []
    for watched in (False, True):
        model = Tiny()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, every=1) if watched else None
        for batch in batches(3, seed=2):
            optimizer.zero_grad()
            loss(model(batch[0]), batch).backward()
            optimizer.step()
            ema.update_parameters(model)
            if monitor is not None:
                monitor.step()
        found.append(ema.state_dict())
        assert monitor is None or not monitor.warnings
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_adapters_of_peft_alone_are_measured() -> None:
    """lambda_max is that of the Hessian over the LoRA matrices, the base model frozen."""
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    base = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9)).double()
    settings = peft.LoraConfig(r=1, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True)
    model = peft.get_peft_model(base, settings)
    ids = torch.randint(0, 9, (3, 6))
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), 1e-3)
    held = {"input_ids": ids, "labels": ids}
    reading = qf.Monitor(model, optimizer, held, every=1).step()
    H = hessian(Risk(model, None, held, list(trained), quiet=True)).dense()
    assert len(H) == sum(p.numel() for p in trained.values()) < 100
    assert reading.lambda_max.value == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=0.05)
    assert reading.logits.shape == (1, 2)


# --- Lightning ------------------------------------------------------------------------------------------------------
@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The callback over the real `Callback` of Lightning, or where it is not installed over an empty class."""
    from quadform.integrations import lightning

    if lightning.Callback is not object:
        yield lightning
        return
    package = types.ModuleType("lightning")
    package.pytorch = types.ModuleType("lightning.pytorch")  # type: ignore[attr-defined]
    package.pytorch.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", package)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", package.pytorch)
    yield importlib.reload(lightning)
    monkeypatch.undo()
    importlib.reload(lightning)


def test_without_lightning_it_is_told_in_one_line() -> None:
    from quadform.integrations import lightning

    if lightning.Callback is object:
        with pytest.raises(ImportError, match="needs Lightning: `pip install lightning`"):
            lightning.CurvatureCallback(batches(1), loss=loss)


class Logger:
    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append((step, metrics))


def test_the_callback_counts_steps_of_the_optimizer(lightning: Any) -> None:
    """The events a Trainer sends, with gradients accumulated over two batches, from a checkpoint at step 10."""
    model, logger = Tiny(), Logger()
    trainer = types.SimpleNamespace(
        optimizers=[torch.optim.AdamW(model.parameters(), 1e-3)], global_step=10, loggers=[logger]
    )
    callback = lightning.CurvatureCallback(batches(1), loss=loss, every=2)
    callback.on_train_start(trainer, model)
    for i in range(8):
        trainer.global_step += i % 2
        callback.on_train_batch_end(trainer, model, None, None, i)
    history = callback.monitor.history
    assert [r.step for r in history] == [12, 14]
    assert logger.lines == [(r.step, {f"curvature/{n}": v for n, v in r.numbers().items()}) for r in history]
    trainer.optimizers *= 2
    with pytest.raises(InputError, match="2 optimizers"):
        callback.on_train_start(trainer, model)


def test_a_real_trainer_of_lightning(tmp_path: Path) -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from quadform.integrations import lightning

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Tiny()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> Tensor:
            return loss(self(batch[0]), batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-2)

    weights = []
    for watched in (True, False):
        module, callback = Module(), lightning.CurvatureCallback(batches(1), loss=loss, every=2)
        logger = pl.loggers.CSVLogger(tmp_path)
        trainer = pl.Trainer(
            max_steps=4, accumulate_grad_batches=2, accelerator="cpu", logger=logger, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[callback] if watched else [],
        )  # fmt: skip
        torch.manual_seed(3)
        trainer.fit(module, torch.utils.data.DataLoader(batches(8, seed=2), batch_size=None))
        weights.append(module.state_dict())
        if watched:
            assert [r.step for r in callback.monitor.history] == [2, 4]
            assert not callback.monitor.warnings
            logger.save()
            assert "curvature/lambda_max" in Path(logger.log_dir, "metrics.csv").read_text()
    torch.testing.assert_close(*weights, rtol=0, atol=0)


# --- torchtitan -----------------------------------------------------------------------------------------------------
class Titan:
    """What a monitor needs of `torchtitan.train.Trainer`, with the loop of its `train`."""

    def __init__(self) -> None:
        self.model_parts = [Tiny()]
        self.optimizers = [torch.optim.AdamW(self.model_parts[0].parameters(), 1e-2)]
        self.step = 0
        self.logged: list[tuple[dict[str, float], int]] = []
        log = lambda metrics, step: self.logged.append((metrics, step))  # noqa: E731
        self.metrics_processor = types.SimpleNamespace(logger=types.SimpleNamespace(log=log))

    def train_step(self, data: Any) -> None:
        x, y = next(data)
        self.optimizers[0].zero_grad()
        loss(self.model_parts[0](x["input"]), (x, y)).backward()
        self.optimizers[0].step()

    def train(self, steps: int) -> None:
        data = iter([({"input": x}, y) for x, y in batches(steps, seed=2)])
        for _ in range(steps):
            self.step += 1
            self.train_step(data)


def test_a_trainer_of_torchtitan_is_watched() -> None:
    plain, watched = Titan(), Titan()
    monitor = torchtitan.watch(watched, [({"input": x}, y) for x, y in batches(1)], every=2)
    for trainer in (plain, watched):
        torch.manual_seed(5)
        trainer.train(4)
    assert [step for _, step in watched.logged] == [r.step for r in monitor.history] == [2, 4]
    assert watched.logged[0][0]["curvature/ceiling"] == monitor.history[0].ceiling
    torch.testing.assert_close(*(t.model_parts[0].state_dict() for t in (plain, watched)), rtol=0, atol=0)
    watched.model_parts *= 2
    with pytest.raises(InputError, match="2 pipeline stages"):
        torchtitan.watch(watched, batches(1))


def test_the_page_of_torchtitan() -> None:
    """Its function, with the trainer that has the parts it names."""
    page = Path(__file__).parents[2] / "docs" / "monitor-torchtitan.md"
    own: dict[str, Any] = {}
    exec(compile(page.read_text().split("```python\n")[1].split("```")[0], page.name, "exec"), own)
    trainer = Titan()
    trainer.train = functools.partial(trainer.train, 2)  # type: ignore[method-assign]
    assert own["watched"](trainer, [({"input": x}, y) for x, y in batches(1)]).steps == 2
