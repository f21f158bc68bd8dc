"""Signal measured on models: depth profiles of any `nn.Module`, and of drawn designs beside their prediction.

    qf.signal(model, batches)                                    # ours, Hugging Face, any module with a list of blocks
    qf.signal(["pre-ln", "sas-p"], depths=[6, 24], dim=256)      # networks drawn from designs, predicted and measured

A *curve* is one stack of blocks: of one model, with error bars over sequences, or of one design at one depth, with
error bars over networks. The model is left as it was. Definitions of the measures: `quadform.propagation.collapse`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.designs import DESIGNS, design
from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.parameters import count_parameters
from ...core.progress import Progress, Report, clock
from ...core.record import Estimate
from ...core.rng import stream
from ...core.spec import ModelConfig
from ...curvature.refusals import first_not_finite
from ...nn.transformer import Transformer
from ...propagation.collapse import Moments, kernel_participation
from ...propagation.observe import Stack, find_stacks, untouched
from ...propagation.profile import predict
from ...propagation.profiler import HEADS, TOKENS, Profiler
from ...report.rows import data_words
from ..configs.signal import SignalConfig
from ..machine import DTYPES, device_of, guard_kept, guard_tokens
from ..subject import open_subject, weights_hash
from .calls import Calls, Loss, batches_of, digest
from .guards import VOCAB, guard_designs
from .jacobian import isometry
from .jacobian import jacobian as jacobian_of
from .parts import Parts
from .result import Curve, Signal

#: Forward passes of a drawn network that its piece takes the time of, the measures themselves included (as measured).
PASSES = 9
#: Longer sequences are measured but not predicted: the maps cost O(T^3) a layer.
PREDICTED_UP_TO = 1024


def signal(
    subject: nn.Module | str | Sequence[str],
    data: Any = None,
    *,
    loss: Loss | None = None,
    mask: Callable[[Any], Tensor] | None = None,
    blocks: str | None = None,
    jacobian: bool = False,
    depths: Sequence[int] = (12,),
    networks: int = 4,
    tokens: int = 64,
    batch: int = 8,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    label: str = "model",
    progress: bool | Report = False,
    **settings: Any,
) -> Signal:
    """Does the signal survive depth? A `Signal` with `.table() .plot() .report() .save() .json()`.

    A module is measured on `data`, one batch or an iterable of them: tensors, (x, y), or mappings passed as keywords.
    `loss(output, batch)` is for the gradient-norm ratio; without it the model's own is taken, and where there is none
    a random direction after the last block. `mask(batch)` gives the real tokens (batch, T), True = real; without it
    `attention_mask` and `mask` of the batch and the model's padding token are used.

    One or several names of designs are drawn, `networks` of each of `depths`, with `settings` for
    `quadform.core.designs.design` (dim=256 and heads=8 unless given), on `batch` random sequences of `tokens` tokens.
    """
    if isinstance(subject, nn.Module):
        if settings:
            raise InputError(f"settings of a design ({', '.join(settings)}) do not apply to a model that is there.")
        if data is None:
            raise InputError("a model is measured on data: give one batch, or an iterable of batches.")
        measure = Measure(seed=seed, jacobian=jacobian, progress=progress)
        curves = measure.model(subject, batches_of(data), label, loss=loss, mask=mask, blocks=blocks)
        return Signal.of(curves, {"subjects": [label], "seed": seed}, partial=measure.partial)
    names = [subject] if isinstance(subject, str) else list(subject)
    settings = {"dim": 256, "heads": 8, "vocab": VOCAB} | settings
    measure = Measure(seed=seed, jacobian=jacobian, progress=progress)
    curves = []
    for name, depth in ((n, d) for n in names for d in depths):
        config = design(name, depth=depth, **settings)
        curves.append(measure.design(config, networks, batch, tokens, dtype=dtype, device=device))
    asked = {"subjects": names, "depths": list(depths), "networks": networks, "tokens": tokens, "batch": batch}
    return Signal.of(
        curves, asked | {"seed": seed, "settings": settings}, partial=measure.partial, seed=seed, dtype=dtype
    )


def run(config: SignalConfig, out: Path | None = None) -> Signal:
    """The answer to a config. Finished pieces are kept in `out` until all are done, and found again with `resume`."""
    device, dtype = device_of(config.device), DTYPES[config.dtype]
    guard_designs(config)
    measure = Measure(
        seed=config.seed,
        jacobian=config.jacobian,
        progress=True,
        parts=Parts(out, config.resume),
        until=None if config.seconds is None else time.monotonic() + config.seconds,
    )
    curves: list[Curve] = []
    for subject in config.subjects:
        if subject in config.designs:
            for depth in config.depth_list:
                described = design(subject, depth=depth, dim=config.dim, heads=config.heads, vocab=VOCAB)
                if not measure.expired or not curves:
                    curves.append(
                        measure.design(
                            described, config.networks, config.batch, config.tokens, dtype=dtype, device=device
                        )
                    )
        elif not measure.expired or not curves:
            _is_model(subject)
            found = open_subject(config.question(subject))
            drawn = found.run is None and subject.startswith("new:")
            curves += measure.model(
                found.model,
                found.batches,
                subject,
                loss=found.loss,
                blocks=config.blocks,
                fresh=drawn,
                notes=[
                    f"data: {data_words(found.source)}",
                    *found.notes,
                    *([f"step {found.step}"] if found.step else []),
                ],
            )
    measure.parts.finish(not measure.partial)
    asked = {k: v for k, v in asdict(config).items() if k not in ("resume", "max_time", "dry_run", "table")}
    return Signal.of(curves, asked, partial=measure.partial, seed=config.seed, dtype=dtype, device=device)


def plan(config: SignalConfig) -> list[str]:
    """What will be done and what it costs, one line a curve: networks, parameters, tokens, arithmetic, seconds here."""
    guard_designs(config)
    lines, speed = [], _flops_a_second(config.device, DTYPES[config.dtype])
    for subject in config.subjects:
        if subject not in config.designs:
            _is_model(subject)
            many = f"{config.batches} batch{'es' * (config.batches > 1)} of {config.batch} sequences"
            lines.append(f"{subject}: {many}, about {clock(max(1.0, seconds_of_model(config, subject)))} here")
            continue
        for depth in config.depth_list:
            described = design(subject, depth=depth, dim=config.dim, heads=config.heads, vocab=VOCAB)
            size, T, d = count_parameters(described), config.tokens, config.dim
            one = 2 * size * T + 4 * depth * T * T * d  # a forward pass of one sequence
            work = PASSES * config.networks * config.batch * one
            lines.append(
                f"{described.design}, {depth} blocks: {config.networks} networks of {size / 1e6:.3g}M parameters on"
                f" {config.batch} x {T} tokens, {work / 1e9:.3g} GFLOP, about {max(1, round(work / speed))} s here"
            )
    return lines


def seconds_of_model(config: SignalConfig, subject: str) -> float:
    """Time of measuring a model on its probe: its first batch is measured for it, the second of two times."""
    found, measure = open_subject(config.question(subject)), Measure(seed=config.seed)
    model = getattr(found.model, "_orig_mod", found.model)
    call = Calls(model, found.loss, None)
    with untouched(model):
        stacks = find_stacks(model, lambda: call.look(found.batches[0]), config.blocks)
        measure._piece(model, stacks, call, found.batches[0])
        start = time.perf_counter()
        measure._piece(model, stacks, call, found.batches[0])
        if config.device.startswith("cuda"):
            torch.cuda.synchronize()
    return len(found.batches) * (time.perf_counter() - start)


def _flops_a_second(device: str, dtype: torch.dtype) -> float:
    A = torch.ones(512, 512, dtype=dtype, device=device_of(device))
    start = time.perf_counter()
    for _ in range(4):
        A = A @ A / 512
    float(A[0, 0])
    return 4 * 2 * 512**3 / (time.perf_counter() - start)


def _is_model(word: str) -> None:
    """A word that looks like a mistyped design is told so, rather than looked for as a model."""
    near = did_you_mean(word, DESIGNS)
    if near and not word.startswith("new:") and "/" not in word and not Path(word).exists():
        raise UnknownName(f"`{word}` is neither a block design nor a model here.{near} See `quadform ls designs`.")


# ------------------------------------------------------------------------------------------------ measuring
class Measure:
    """Makes curves, piece by piece: a batch of a model or a network of a design is one piece."""

    def __init__(
        self,
        *,
        seed: int = 0,
        jacobian: bool = False,
        progress: bool | Report = False,
        parts: Parts | None = None,
        until: float | None = None,
    ) -> None:
        self.seed, self.jacobian, self.progress, self.until = seed, jacobian, progress, until
        self.parts = Parts(None, False) if parts is None else parts
        self.partial = False

    @property
    def expired(self) -> bool:
        late = self.until is not None and time.monotonic() > self.until
        self.partial |= late
        return late

    def _pieces(self, count: int, what: str) -> Iterator[int]:
        """0, 1, ..., count - 1 until the time is up; at least one."""
        with Progress(count, what, show=self.progress) as bar:
            for i in range(count):
                if i and self.expired:
                    return
                yield i
                bar.step()

    def model(
        self,
        model: nn.Module,
        batches: Sequence[Any],
        label: str,
        *,
        loss: Loss | None = None,
        mask: Callable[[Any], Tensor] | None = None,
        blocks: str | None = None,
        fresh: bool = False,
        notes: Sequence[str] = (),
    ) -> list[Curve]:
        """One curve a stack."""
        model = getattr(model, "_orig_mod", model)  # a compiled model's own modules carry the hooks
        call = Calls(model, loss, mask)
        with untouched(model):
            stacks = find_stacks(model, lambda: call.look(batches[0]), blocks)
            whole = Profiler(stacks, _kept(stacks))
            if self.parts.keeps:
                self.parts.same(label, weights_hash(model))
            for i in self._pieces(len(batches), f"{label}: batches"):
                identity = {"label": label, "blocks": [s.calls for s in stacks], "batch": digest(batches[i])}
                self.parts.add(whole, identity, partial(self._piece, model, stacks, call, batches[i]))
        curves = [self._curve(label, whole, i, len(stacks) > 1, fresh) for i in range(len(stacks))]
        for i, curve in enumerate(curves):
            curve.notes += [*notes, call.gradient_of]
            config = getattr(model, "config", None)
            self._predict(curve, config if isinstance(config, ModelConfig) else None, stacks[i].name)
            if self.jacobian:
                self._jacobians(curve, model, call, batches[0], stacks[i])
        return curves

    def design(
        self,
        config: ModelConfig,
        networks: int,
        batch: int,
        tokens: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Curve:
        """One curve: the mean over drawn networks."""
        guard_tokens(batch, tokens, config.d_model, config.heads, torch.device(device), dtype)
        guard_kept(networks * config.depth, f"the signal of {networks:,} networks")
        label = f"{config.design}, {config.depth} block{'s' * (config.depth > 1)}"
        each: list[Profiler] = []
        for k in self._pieces(networks, f"{label}: networks"):
            model = Transformer(config, seed=self.seed + k, dtype=dtype, device=device)
            generator = stream(self.seed + k, "signal tokens")
            X = torch.randint(config.vocab, (batch, tokens), generator=generator).to(device)
            rows = {"tokens": X} if config.kind == "decoder" else {"tokens": X, "labels": X}
            call = Calls(model, None, None)
            with untouched(model):
                stacks = find_stacks(model, partial(call.look, rows))
                each.append(Profiler(stacks, _kept(stacks)))
                identity = {"config": config.to_dict(), "seed": self.seed + k, "batch": batch, "tokens": tokens}
                identity |= {"dtype": str(dtype)}
                self.parts.add(each[-1], identity, partial(self._piece, model, stacks, call, rows))
        curve = self._curve(label, _joined(each), 0, False, True)
        curve.notes.append(call.gradient_of)
        if len(each) > 1:
            curve.unit = "networks"
            curve.measured = {m: _over_networks([p.profiles[0].layers(m) for p in each]) for m in curve.measured}
        self._predict(curve, config, "layers")
        if self.jacobian:
            self._jacobians(curve, model, call, rows, stacks[0])
        return curve

    def _piece(self, model: nn.Module, stacks: tuple[Stack, ...], call: Calls, batch: Any) -> Profiler:
        profiler = Profiler(stacks, _kept(stacks))
        try:
            profiler.forward(model, lambda: call(batch), call.masks(batch, stacks))
        except torch.linalg.LinAlgError as error:  # singular values of what is not finite
            where = first_not_finite(model, lambda: call(batch), batch)
            raise InputError(f"The signal is not finite ({where}). Nothing was measured.") from error
        call.backward(profiler, batch, stacks, self.seed)
        return profiler

    def _curve(self, label: str, profiler: Profiler, i: int, several: bool, fresh: bool) -> Curve:
        profile = profiler.profiles[i]
        name = profile.stack.name
        measured = {m: found for m in (*TOKENS, "growth", "gradient") if (found := profile.layers(m))}
        heads = {m: profile.head_layers(m) for m in HEADS}
        Sigma = {l: kernel.result() for l, kernel in profile.kernels.items()}
        curve = Curve(
            label=f"{label}: {name}" if several else label,
            stack=profile.stack,
            unit="sequences",
            measured=measured,
            heads=heads,
            dim=profile.dim,
            tokens=len(Sigma[0]) if 0 in Sigma else None,
            fresh=fresh,
            Sigma=Sigma,
            sequences=int(profile.kernels[0].state()[1].max()) if 0 in profile.kernels else 0,
        )
        unseen = sum(not row for row in heads["sink"])
        if unseen:
            curve.notes.append(f"no softmax attention was seen in {unseen} of {len(heads['sink'])} blocks")
        return curve

    # --- beside it ---------------------------------------------------------------------------------------------------
    def _predict(self, curve: Curve, config: ModelConfig | None, stack: str) -> None:
        """The mean-field profile of the design, from the measured kernel of the embedded tokens."""
        Sigma_0 = curve.Sigma.get(0)
        if config is None:
            why = "this model is not one of quadform's designs"
        elif stack == "layers" and config.kind == "encoder-decoder":
            why = "the maps do not cover cross-attention"
        elif stack not in ("layers", "encoder_layers"):
            why = f"`{stack}` is not a stack of the design"
        elif Sigma_0 is None or bool(Sigma_0.isnan().any()):
            why = "its sequences differ in length"
        elif len(Sigma_0) > PREDICTED_UP_TO:
            why = f"{len(Sigma_0)} tokens are more than {PREDICTED_UP_TO}"
        else:
            if stack == "encoder_layers":
                config = replace(config, kind="encoder", blocks=config.encoder_blocks, encoder_blocks=())
            found = predict(config, Sigma_0=Sigma_0, keep=True).tensors
            curve.predicted = {
                "cosine": found["cosine"],
                "participation": kernel_participation(found["kernels"], _width(curve)),
                "growth": found["rms"] / found["rms"][0],
            }
            if config.positions in ("rotary", "relative"):
                curve.notes.append(f"the prediction leaves out {config.positions} positions")
            return
        curve.notes.append(f"no prediction: {why}")

    def _jacobians(self, curve: Curve, model: nn.Module, call: Calls, batch: Any, stack: Stack) -> None:
        chosen: list[int | str] = [*sorted({1, (stack.depth + 1) // 2, stack.depth}), "stack"]
        for which in chosen:
            small = (curve.tokens or 0) * curve.dim <= 4096
            J = jacobian_of(model, call, batch, which, stack=stack, at_once=16 if small else 2)
            name = which if which == "stack" else f"block {which}"
            curve.isometry[str(name)] = isometry(J, seed=self.seed, progress=self.progress)


def _width(curve: Curve) -> int | None:
    """The width for the finite-width correction: a kernel that is the mean of N sequences has 1 / N of it already."""
    N = curve.sequences
    return round(curve.dim * N / (N - 1)) if N > 1 else None


def _kept(stacks: Iterable[Stack]) -> tuple[int, ...]:
    """The layers whose kernels are kept: first, middle, last of each stack."""
    return tuple({l for s in stacks for l in (0, s.depth // 2, s.depth)})


def _joined(each: Sequence[Profiler]) -> Profiler:
    whole = Profiler(each[0].stacks, _kept(each[0].stacks))
    for profiler in each:
        whole.load(*profiler.state())
    return whole


def _over_networks(each: Sequence[list[Estimate]]) -> list[Estimate]:
    """Mean and spread over networks of each layer's value."""
    moments = Moments()
    for layers in each:
        for l, e in enumerate(layers):
            moments.add(str(l), torch.tensor(e.value))
    found = moments.result()
    return [replace(found[str(l)], note=found[str(l)].note.replace("sequence", "network")) for l in range(len(each[0]))]
