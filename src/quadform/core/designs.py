"""The named block designs, and a function that builds a whole model description from one.

Each design is a value: a `BlockSpec`, what is different in block 1, and how its constants depend on depth. Torch-free.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from .errors import InputError, UnknownName, did_you_mean
from .spec import SPA, BlockSpec, Gain, Mixing, ModelConfig, Norm, Projection
from .tat import tat_slope

#: A rule that sets constants of a block from the depth of its stack and the ratio d_ff / d_model.
Rule = Callable[[BlockSpec, int, float], BlockSpec]


@dataclass(frozen=True, kw_only=True)
class Design:
    """A named design: its block, the changes in block 1, a depth rule, and the final norm and init it was made for."""

    title: str
    source: str
    block: BlockSpec
    first: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule | None = None
    final_norm: Norm | None = None  # None: the norm of the blocks
    init: str = "fan-in"


# ------------------------------------------------------------------------------------------------------ depth rules
def small_mlp_branch(block: BlockSpec, depth: int, ratio: float) -> BlockSpec:
    """b_FF = 0.1 sqrt(18 / depth) (4 d / d_ff): the published 0.1 (18 blocks, d_ff = 4d), 0.2 (18, 2d), 0.1 (72, 2d).

    Source: [HH24, App.] for the values; the formula through them is [own].
    """
    gain = block.mlp or Gain()
    return replace(block, mlp=replace(gain, branch=0.1 * math.sqrt(18 / depth) * 4 / ratio))


def unit_weights(block: BlockSpec, depth: int, ratio: float) -> BlockSpec:
    """Skips without norms: every branch weighs 1/sqrt(2 depth), and the squared weights of each sum add up to 1.

    The rule of squares is [HMZ23]'s, the branch weight [own]; unit weights would grow like 3^(depth/2).
    """
    b = (2 * depth) ** -0.5
    if block.layout == "parallel":
        return replace(block, attn=Gain(skip=math.sqrt(1 - 1 / depth), branch=b), mlp=Gain(skip=0.0, branch=b))
    gain = Gain(skip=math.sqrt(1 - b * b), branch=b)
    return replace(block, attn=gain, mlp=gain)


def tat_leaky(block: BlockSpec, depth: int, ratio: float) -> BlockSpec:
    """The leaky slope that Tailored Activation Transformation gives for `depth` nonlinear layers and eta = 0.9."""
    return replace(block, slope=tat_slope(depth))


def deepnorm(block: BlockSpec, depth: int, ratio: float) -> BlockSpec:
    """Skip (2 L)^{1/4}; initial W_V, W_O and MLP weights divided by (8 L)^{1/4} (one stack)."""
    gain = Gain(skip=(2 * depth) ** 0.25)
    return replace(block, attn=gain, mlp=gain, init_gain=(8 * depth) ** -0.25)


# -------------------------------------------------------------------------------------------------------- the designs
_ORTHOGONAL = Projection(init="orthogonal")
_SHAPED = Mixing(alpha=1.0, beta=1.0, gamma=1.0, learn=("alpha", "beta", "gamma"))
_NO_SKIP = Gain(skip=0.0)
_SHORTCUT_FREE = BlockSpec(
    norm="rms", attn=_NO_SKIP, mlp=_NO_SKIP, value=_ORTHOGONAL, proj=_ORTHOGONAL, activation="leaky"
)
_SHAPED_BLOCK = BlockSpec(
    norm="rms",
    attn=Gain(skip=0.0, learn=("branch",)),
    mlp=Gain(branch=0.1, learn=("skip", "branch")),
    mixing=_SHAPED,
    value=_ORTHOGONAL,
    proj=_ORTHOGONAL,
    query_init="zero",
)
_SAS = replace(_SHAPED_BLOCK, value=None, proj=None)
_SAS_P = replace(_SAS, layout="parallel", mlp=Gain(skip=0.0, branch=0.1, learn=("branch",)))
_FIRST_VALUE = {"value": Projection(init="identity", skip=1.0, branch=1.0, learn=("skip", "branch"))}


def _spa(family: Any, final: float) -> BlockSpec:
    return replace(_SHORTCUT_FREE, mixing=Mixing(bias=SPA(family=family, final=final)), query_init="zero")


_BASE: dict[str, Design] = {
    "no-skip": Design(
        title="Attention and MLP without skips",
        source="[HMZ23]",
        block=BlockSpec(norm="rms", attn=_NO_SKIP, mlp=_NO_SKIP),
    ),
    "pre-ln": Design(title="Pre-LN", source="[HH24, Eq. 1]", block=BlockSpec()),
    "post-ln": Design(title="Post-LN", source="[VSP17]", block=BlockSpec(norm_at="post"), final_norm="none"),
    "parallel": Design(
        title="Parallel attention and MLP",
        source="[HH24, Sec. 2]",
        block=BlockSpec(layout="parallel", mlp=_NO_SKIP),
    ),
    "v-skipinit": Design(
        title="Value-SkipInit, alpha I + beta A",
        source="[HMZ23, Sec. 3]",
        block=replace(_SHORTCUT_FREE, mixing=Mixing(alpha=1.0, beta=0.0, learn=("alpha", "beta"))),
        rule=tat_leaky,
        init="orthogonal",
    ),
    "shaped": Design(
        title="Shaped attention, orthogonal W_V and W_O",
        source='[HH24] ("V-SkipInit" there)',
        block=_SHAPED_BLOCK,
        rule=small_mlp_branch,
    ),
    "u-spa": Design(
        title="Uniform signal-preserving attention",
        source="[HMZ23, Sec. 3]",
        block=_spa("u-spa", 0.8),
        rule=tat_leaky,
        init="orthogonal",
    ),
    "e-spa": Design(
        title="Exponential signal-preserving attention",
        source="[HMZ23, Sec. 3]",
        block=_spa("e-spa", 0.005),
        rule=tat_leaky,
        init="orthogonal",
    ),
    "sas": Design(
        title="Simplified block, sequential",
        source="[HH24, Sec. 4]",
        block=_SAS,
        first=_FIRST_VALUE,
        rule=small_mlp_branch,
    ),
    "sas-p": Design(
        title="Simplified block, parallel",
        source="[HH24, Sec. 4]",
        block=_SAS_P,
        first=_FIRST_VALUE,
        rule=small_mlp_branch,
    ),
    "deepnorm": Design(
        title="Post-LN with scaled skips",
        source="DeepNorm (decoder constants)",
        block=BlockSpec(norm_at="post"),
        rule=deepnorm,
        final_norm="none",
        init="xavier",
    ),
    "rezero": Design(
        title="Skips with one learned branch weight from zero, no norm",
        source="ReZero",
        block=BlockSpec(
            norm="none",
            attn=Gain(branch=0.0, learn=("branch",)),
            mlp=Gain(branch=0.0, learn=("branch",)),
            tie_gains=True,
        ),
        init="xavier",
    ),
}
_SIMPLIFIED = ("shaped", "sas", "sas-p")


def _without_norm(name: str) -> Design:
    """The design made to run without norms in its blocks: the simplified ones keep a LayerNorm in block 1 and at the
    end [HH24], those with skips get weights whose squares add up to 1."""
    base: Design = _BASE[name]
    kept: dict[str, Any] = {}
    if name in _SIMPLIFIED:
        kept = {"first": {**base.first, "norm": "layer"}, "final_norm": "layer"}
    elif name in ("pre-ln", "parallel"):
        kept = {"rule": unit_weights}
    return replace(base, title=f"{base.title}, no norm", block=replace(base.block, norm="none"), **kept)


DESIGNS: Mapping[str, Design] = MappingProxyType(
    _BASE | {f"{n}-no-norm": _without_norm(n) for n in _BASE if n not in ("post-ln", "deepnorm", "rezero")}
)
"""Every named design. Post-LN without norm is Pre-LN without norm, so it (and DeepNorm) has no such twin."""

#: The CodeParrot GPT of [HH24], its released code: `design("sas", **CODEPARROT)`.
CODEPARROT: Mapping[str, Any] = MappingProxyType(
    {
        "depth": 18,
        "d_model": 768,
        "heads": 12,
        "vocab": 50_000,
        "norm": "rms",
        "final_norm": "layer",
        "biases": ("q", "k"),
        "activation": "relu",
        "init": "normal",
    }
)
#: The crammed BERT of [HH24].
CRAMMED_BERT: Mapping[str, Any] = MappingProxyType(
    {
        "kind": "encoder",
        "depth": 16,
        "d_model": 768,
        "heads": 12,
        "vocab": 32_768,
        "seq_len": 128,
        "d_ff": 1536,
        "norm": "layer",
        "embed_norm": "layer",
        "final_norm": "layer",
        "eps": 1e-12,
        "activation": "geglu",
        "positions": "scaled-sinusoidal",
        "mlp_branch": 0.05,
        "init": "normal",
    }
)


#: Blocks of a stack: each is an entry of its description.
MOST_BLOCKS = 100_000
#: Fields of `ModelConfig` that `design` fills in itself.
_SET_BY_DESIGN = ("kind", "blocks", "encoder_blocks", "d_model", "heads", "d_ff", "vocab", "design")


#: What other libraries call a setting.
ELSEWHERE = {
    **dict.fromkeys(("dim", "width", "hidden_size", "n_embd"), "d_model"),
    **dict.fromkeys(("layers", "n_layer", "n_layers", "num_layers", "num_hidden_layers"), "depth"),
    **dict.fromkeys(("n_head", "n_heads", "nhead", "num_heads", "num_attention_heads"), "heads"),
    **dict.fromkeys(("intermediate_size", "dim_feedforward"), "d_ff"),
    "vocab_size": "vocab",
}


def _embed_scale(init: str, d_model: int, settings: Mapping[str, Any]) -> float:
    if init != "normal":
        return math.sqrt(d_model)
    std = settings.get("init_std", ModelConfig.init_std)
    return 1 / std if settings.get("positions") == "sinusoidal" and std else 1.0


def _chosen(name: str | BlockSpec) -> Design:
    """The design of a name, or of a block alone."""
    if isinstance(name, BlockSpec):
        return Design(title="own block", source="own", block=name)
    if not isinstance(name, str):
        raise InputError(f"a design is a name or a BlockSpec; got {type(name).__name__}.")
    known = name.replace("_", "-")
    if known not in DESIGNS:
        raise UnknownName(
            f"{known!r} is not a block design.{did_you_mean(known, DESIGNS)} Known designs: {', '.join(DESIGNS)}."
        )
    return DESIGNS[known]


def design(
    name: str | BlockSpec = "pre-ln",
    *,
    depth: int = 6,
    d_model: int = 64,
    heads: int = 4,
    vocab: int = 256,
    kind: str = "decoder",
    encoder_depth: int | None = None,
    d_ff: int | None = None,
    norm: Norm | None = None,
    activation: str | None = None,
    mlp: bool = True,
    mlp_branch: float | None = None,
    alpha_comb: float | None = None,
    linear: bool = False,
    merged: bool = False,
    strength: float | None = None,
    **settings: Any,
) -> ModelConfig:
    """The model description of a named design, or of a stack of your own block (a `BlockSpec` in place of the name).

    `d_ff` is 4 d_model unless given. `norm` replaces the kind of norm where the design has one ("none" takes the norms
    away and changes nothing else; the designs named `...-no-norm` are made to run without). `mlp=False` gives
    attention-only blocks. `mlp_branch` is the initial weight b_FF of the designs that learn it; `alpha_comb` makes the
    skip of a parallel block a learned scalar with this start. `linear` and `merged` leave out the softmax and merge
    W_Q W_K^T. `strength` is rho_L or gamma_L of the SPA designs. `settings` are further fields of `ModelConfig`.
    `embed_scale` makes embeddings of size 1 unless given; with init "normal" they stay at init_std, as in the papers,
    whose positions start as small, but not beside sinusoids, which would drown them.

    >>> design("sas", depth=18, d_model=768, heads=12, vocab=50_000).blocks[0].value.init
    'identity'
    """
    chosen = _chosen(name)
    name = "" if isinstance(name, BlockSpec) else name.replace("_", "-")
    open_fields = [f.name for f in fields(ModelConfig) if f.name not in _SET_BY_DESIGN]
    for key in settings:
        if key not in open_fields:
            known = [*inspect.signature(design).parameters, *open_fields]
            known.remove("settings")
            meant = did_you_mean(ELSEWHERE.get(key, key), known)
            raise UnknownName(f"a model has no setting {key!r}.{meant} Known: {', '.join(known)}.")
    d_ff = 4 * d_model if d_ff is None else d_ff
    encoder_depth = depth if encoder_depth is None else encoder_depth
    for what, number in (("depth", depth), ("encoder_depth", encoder_depth), ("d_model", d_model), ("d_ff", d_ff)):
        if not isinstance(number, int) or number < 1:
            raise InputError(f"{what} is a whole number of at least 1; got {number!r}.")
        if "depth" in what and number > MOST_BLOCKS:
            raise InputError(f"{what} is at most {MOST_BLOCKS:,} blocks; got {number:,}.")
    both = kind == "encoder-decoder"
    if name == "deepnorm" and both:
        raise InputError("deepnorm's constants here are those of one stack; use kind = encoder or decoder.")
    if settings.get("embed_norm", "none") != "none" and "norm" in chosen.first:  # already normalised once
        chosen = replace(chosen, first={k: v for k, v in chosen.first.items() if k != "norm"})

    def changes(block: BlockSpec, cross: bool) -> dict[str, Any]:
        made: dict[str, Any] = {"mixing": block.mixing}
        if norm is not None and block.norm != "none":
            made["norm"] = norm
        if activation is not None:
            made["activation"] = activation
        if mlp_branch is not None and block.mlp is not None and "branch" in block.mlp.learn:
            made["mlp"] = replace(block.mlp, branch=float(mlp_branch))
        if not mlp:
            made |= {"mlp": None, "tie_gains": False}
        if alpha_comb is not None:
            if block.layout != "parallel":
                raise InputError(f"alpha_comb is the skip of a parallel block; {name!r} is {block.layout}.")
            made["attn"] = replace(block.attn, skip=float(alpha_comb), learn=("skip", *block.attn.learn))
        if linear:
            made["mixing"] = replace(made["mixing"], kind="linear")
        if merged:
            made["mixing"] = replace(made["mixing"], scores="merged")
        if strength is not None:
            if block.mixing.bias is None:
                raise InputError(f"strength belongs to the designs with an SPA bias (u-spa, e-spa); {name!r} has none.")
            made["mixing"] = replace(made["mixing"], bias=replace(block.mixing.bias, final=float(strength)))
        made["cross"] = (block.cross or Gain(skip=0.0 if block.layout == "parallel" else 1.0)) if cross else None
        return made

    def stack(depth: int, cross: bool) -> tuple[BlockSpec, ...]:
        block = chosen.block if chosen.rule is None else chosen.rule(chosen.block, depth, d_ff / d_model)
        block = replace(block, **changes(block, cross))
        return (replace(block, **chosen.first), *[block] * (depth - 1))

    blocks = stack(depth, both)
    init = settings.pop("init", chosen.init)
    final = chosen.final_norm if chosen.final_norm is not None else blocks[-1].norm
    return ModelConfig(
        kind=kind,  # type: ignore[arg-type]  # a checked word
        blocks=blocks,
        encoder_blocks=stack(encoder_depth, False) if both else (),
        d_model=d_model,
        heads=heads,
        d_ff=d_ff,
        vocab=vocab,
        init=init,
        final_norm=settings.pop("final_norm", final),
        embed_scale=settings.pop("embed_scale", _embed_scale(init, d_model, settings)),
        design=name,
        **settings,
    )
