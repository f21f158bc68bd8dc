"""A designer: constants of a block design, chosen so that the signal is healthy after the last block.

`design(depth, "sas-p")` starts from the published constants, predicts the token kernel of every layer (mean field), and
moves as few constants as it must, as little as it must:

    u-spa, e-spa              rho_L or gamma_L, when the attention alone is over the limit; then the slope
    Leaky ReLU without skip   slope of the activation towards 1 (u-spa, e-spa, v-skipinit)
    learned MLP branch        b_FF towards 0 (shaped, sas, sas-p)
    any design with skips     weights of both branches towards 0 (pre-ln, post-ln, parallel)

A design with none of these (no-skip) is refused when it is not healthy. The result says what was done, and its `config`
goes to `quadform.nn.Transformer` as it is. The warm-up is a measured rule, not a prediction: see `RAMP`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from quadform.core import designs
from quadform.core.errors import InputError
from quadform.core.record import Record
from quadform.core.spec import BlockSpec, Gain, ModelConfig

from .collapse import kernel_cosine
from .profile import predict
from .shaping import target

#: Fastest rise of the learning rate, per step, that skipless normalised stacks were seen to survive: 1e-3 in 450 steps
#: (18 blocks). 1e-3 in 75 steps collapsed the same stacks to unigram loss. [own]
RAMP = 1e-3 / 450
#: The share of the cosine budget that attention may use when an MLP follows: the published .8 of .9. [HMZ23]
ATTENTION_SHARE = 0.8 / 0.9
_BISECTIONS = 16


@dataclass(frozen=True, kw_only=True)
class Health:
    """What must hold after the last block: mean token cosine at most `cosine` (default: TAT's eta), and the size of the
    stream within a factor `growth` of its input.
    """

    cosine: float = 0.9
    growth: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.cosine < 1 or not self.growth > 1:
            raise InputError(f"health needs 0 < cosine < 1 and growth > 1; got {self.cosine} and {self.growth}.")

    def holds(self, record: Record) -> bool:
        rms = record.tensors["rms"]
        ratio, rounding = float(rms[-1] / rms[0]), 1e-9
        cosine = record.scalars["cosine"].value
        return cosine <= self.cosine + rounding and 1 / self.growth <= ratio <= self.growth

    def __str__(self) -> str:
        return f"cosine <= {self.cosine:g} and rms within a factor {self.growth:g} after the last block"


@dataclass(frozen=True, kw_only=True)
class Designed:
    """A healthy model description, its predicted profile, the warm-up it wants, and what was done to get there."""

    config: ModelConfig
    prediction: Record
    warmup_steps: int
    did: tuple[str, ...]

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        return self.config.blocks

    def __str__(self) -> str:
        return "\n".join(self.did)


def design(
    depth: int,
    name: str = "sas-p",
    *,
    health: Health | None = None,
    seq_len: int = 64,
    lr: float = 1e-3,
    Sigma_0: Tensor | None = None,
    **settings: Any,
) -> Designed:
    """The named design at this depth, its constants chosen so that `health` holds on sequences of `seq_len` tokens.

    `settings` go to `quadform.core.designs.design` (d_model, heads, vocab, activation, mlp=False, ...). Sigma_0 (T, T)
    is the kernel of the embedded tokens, None: uncorrelated. `lr` is the peak learning rate the warm-up is meant for.
    """
    health = Health() if health is None else health
    config = designs.design(name, depth=depth, **settings)
    T = seq_len if Sigma_0 is None else Sigma_0.shape[0]
    if T == 1:
        raise InputError("health is the cosine between tokens: give seq_len at least 2, or a Sigma_0 of two tokens.")
    did = [f"{config.design}, {depth} blocks: wanted {health}, for {T} tokens."]

    def ask(candidate: ModelConfig) -> Record:
        return predict(candidate, T, Sigma_0)

    record = ask(config)
    did.append(f"published constants: {_state(record)}{', healthy: kept.' if health.holds(record) else '.'}")
    if not health.holds(record):
        config, said = _weaken_attention(config, health, T)
        did += said
        config, record, said = _turn(config, health, ask)
        did += said
    warmup, said = _warmup(config, lr)
    return Designed(config=config, prediction=record, warmup_steps=warmup, did=(*did, *said))


# ------------------------------------------------------------------------------------------------ knobs
@dataclass(frozen=True)
class Knob:
    """One constant: its name, published value, the value at which the block is the identity, and how to set it."""

    name: str
    start: float
    safe: float
    apply: Callable[[BlockSpec, float], BlockSpec]


def knob(config: ModelConfig) -> Knob | None:
    """The constant of a design that trades expressiveness for a healthy signal; None when it has none."""
    block = config.blocks[-1]
    mlp = block.mlp
    if mlp is not None and "branch" in mlp.learn and mlp.branch > 0 and block.attn.skip == 0:
        return Knob("b_FF", mlp.branch, 0.0, lambda b, v: replace(b, mlp=replace(b.mlp or Gain(), branch=v)))
    if mlp is not None and block.activation == "leaky" and mlp.skip == 0:
        return Knob("Leaky ReLU slope", block.slope, 1.0, lambda b, v: replace(b, slope=v))
    if block.attn.skip != 0 and block.attn.branch > 0:

        def weaken(b: BlockSpec, v: float) -> BlockSpec:
            return replace(
                b,
                attn=replace(b.attn, branch=v * b.attn.branch),
                mlp=None if b.mlp is None else replace(b.mlp, branch=v * b.mlp.branch),
            )

        return Knob("factor on both branches", 1.0, 0.0, weaken)
    return None


def _turn(
    config: ModelConfig, health: Health, ask: Callable[[ModelConfig], Record]
) -> tuple[ModelConfig, Record, list[str]]:
    """Bisect the design's knob between its published and its safe value for the first healthy prediction."""
    record = ask(config)
    if health.holds(record):
        return config, record, []
    chosen = knob(config)
    if chosen is None:
        raise InputError(
            f"{config.design} at depth {config.depth} ends at {_state(record)} and has no constant to change. Take a "
            f"design with skips or shaped attention (pre-ln, sas-p, v-skipinit), or relax the health criterion."
        )

    def at(value: float) -> ModelConfig:
        return replace(config, blocks=tuple(chosen.apply(b, value) for b in config.blocks))

    if not health.holds(ask(at(chosen.safe))):
        raise InputError(
            f"{config.design} at depth {config.depth}: even {chosen.name} = {chosen.safe:g} ends at "
            f"{_state(ask(at(chosen.safe)))}. Relax the health criterion, or start from less correlated tokens."
        )
    sick, well = chosen.start, chosen.safe
    for _ in range(_BISECTIONS):
        middle = (sick + well) / 2
        sick, well = (sick, middle) if health.holds(ask(at(middle))) else (middle, well)
    config = at(well)
    record = ask(config)
    return config, record, [f"{chosen.name}: {chosen.start:.4g} -> {well:.4g}; {_state(record)}."]


def _weaken_attention(config: ModelConfig, health: Health, T: int) -> tuple[ModelConfig, list[str]]:
    """Lower rho_L (raise gamma_L) when the target kernel alone exceeds its share of the cosine budget."""
    bias = config.blocks[-1].mixing.bias
    if bias is None:
        return config, []
    limit = health.cosine * (1.0 if config.blocks[-1].mlp is None else ATTENTION_SHARE)

    def cosine(strength: float) -> float:
        return float(kernel_cosine(target(bias.family, strength, T)))

    if cosine(bias.final) <= limit + 1e-9:
        return config, []
    if bias.family == "u-spa":
        final = limit  # the off-diagonal cosine is rho itself
    else:
        low, high = math.log(bias.final), math.log(50.0)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if cosine(math.exp(middle)) > limit else (low, middle)
        final = math.exp(high)
    symbol = "rho_L" if bias.family == "u-spa" else "gamma_L"
    blocks = tuple(replace(b, mixing=replace(b.mixing, bias=replace(bias, final=final))) for b in config.blocks)
    said = f"{symbol}: {bias.final:g} -> {final:.4g}, so that the attention alone ends at cosine {cosine(final):.3f}."
    return replace(config, blocks=blocks), [said]


def _warmup(config: ModelConfig, lr: float) -> tuple[int, list[str]]:
    """Steps of linear warm-up: the measured limit for skipless stacks that renormalise, none needed otherwise."""
    if not 0 < lr < math.inf:
        raise InputError(f"a learning rate is positive and finite; got {lr}.")
    block = config.blocks[-1]
    if block.attn.skip != 0 or block.norm == "none":
        return 0, ["warm-up: no lower limit was measured for this design; the usual few per cent of the run."]
    steps = math.ceil(lr / RAMP - 1e-9)
    return steps, [
        f"warm-up: {steps} steps to lr {lr:g}. Skipless normalised stacks collapsed in training when the rate rose "
        f"1e-3 in 75 steps and did not in 450 (measured at 18 blocks)."
    ]


def _state(record: Record) -> str:
    rms = record.tensors["rms"]
    return f"cosine {record.scalars['cosine'].value:.3f}, rms x {float(rms[-1] / rms[0]):.3g}"
