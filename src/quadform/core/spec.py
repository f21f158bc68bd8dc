"""Block designs and model shapes as values: frozen, torch-free, readable from and written to TOML and JSON.

A block is two or three branches around a stream X of shape (tokens, d_model). Every published design we follow is one
value of one record, `BlockSpec`; nothing else in the project knows design names.

    Gain        X  ->  skip X + branch f(X)
    Mixing      A  ->  alpha I + beta softmax(Q K^T / sqrt(d_k) + B) - gamma C
    Projection  W  ->  skip W_init + branch dW

The named designs (`DESIGNS`, `design`) are in `quadform.core.designs`, parameter counts in `quadform.core.parameters`;
both can be imported from here too.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .codec import changed, decode, encode, from_json, from_toml, hints, to_json, to_toml
from .errors import InputError, UnknownName, did_you_mean

Norm = Literal["layer", "rms", "none"]
Init = Literal["default", "zero", "identity", "orthogonal"]
BIASES = ("q", "k", "v", "o", "mlp", "out")
GATED = ("geglu", "geglu-tanh", "swiglu")


@dataclass(frozen=True, kw_only=True)
class Gain:
    """X -> skip X + branch f(X). `learn` names the scalars ("skip", "branch") that are trained; the rest are fixed."""

    skip: float = 1.0
    branch: float = 1.0
    learn: tuple[str, ...] = ()

    __repr__ = changed

    def __post_init__(self) -> None:
        _check_learn(self, ("skip", "branch"))


@dataclass(frozen=True, kw_only=True)
class SPA:
    """Signal-preserving attention: an additive bias B and a row scale D that carry a chosen token kernel through depth.

    `family` is "u-spa" (uniform kernel, strength rho) or "e-spa" (exponential kernel, strength gamma); `final` is the
    strength after the last block, `start` the one before the first (None: uncorrelated tokens, Sigma_0 = I). The
    strengths between them follow the depth schedule of `propagation.shaping`. Source: [HMZ23, Sec. 3].
    """

    family: Literal["u-spa", "e-spa"]
    final: float
    start: float | None = None

    __repr__ = changed

    def __post_init__(self) -> None:
        _check_choices(self)


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How tokens are mixed, per head: alpha I + beta A - gamma C, with A = softmax(Q K^T / sqrt(d_k) + B).

    `kind="linear"` leaves the softmax out: A = Q K^T / sqrt(d_k), zero where masked. C is uniform over the keys a query
    may see (A at zero logits). `scores="merged"` stores one W_QK (heads, d, d) in place of W_Q W_K^T. `learn` names the
    trained scalars, each one number per head. Source: [HMZ23, Sec. 3] (alpha, beta, B); [HH24, Eq. 5] (gamma, C);
    [ODS25] (linear attention, merged W_QK).
    """

    kind: Literal["softmax", "linear"] = "softmax"
    scores: Literal["factored", "merged"] = "factored"
    alpha: float = 0.0
    beta: float = 1.0
    gamma: float = 0.0
    bias: SPA | None = None
    learn: tuple[str, ...] = ()

    __repr__ = changed

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_learn(self, ("alpha", "beta", "gamma"))
        if self.kind == "linear" and (self.bias is not None or self.uses("gamma")):
            raise InputError("linear attention has no softmax, so it takes no SPA bias and no centring (gamma = 0).")

    def uses(self, name: str) -> bool:
        """Whether the term with this weight ("alpha", "beta", "gamma") can ever differ from zero."""
        return getattr(self, name) != 0 or name in self.learn


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A value or output matrix: W = skip W_init + branch dW, W_init fixed, dW trained from zero.

    With skip = 0 (and not learned) there is no split: W itself is trained and starts at W_init. None in place of a
    Projection is the identity, not stored. `init="default"` is the model's own (`ModelConfig.init`).
    Source: [HH24, Sec. 4.2].
    """

    init: Init = "default"
    skip: float = 0.0
    branch: float = 1.0
    learn: tuple[str, ...] = ()

    __repr__ = changed

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_learn(self, ("skip", "branch"))
        if not self.split and (self.branch != 1 or self.learn):
            raise InputError(
                f"a projection without W_init (skip = 0) has no scalars; got branch = {self.branch}, "
                f"learn = {self.learn}. Give skip a value, or leave branch at 1."
            )

    @property
    def split(self) -> bool:
        """Whether W is stored as skip W_init + branch dW."""
        return self.skip != 0 or "skip" in self.learn


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """One Transformer block. With N = norm(X), f = attention, g = MLP:

        sequential, pre    Y = skip X + branch f(N1 X);      out = skip' Y + branch' g(N2 Y)
        sequential, post   Y = N1(skip X + branch f(X));     out = N2(skip' Y + branch' g(Y))
        parallel           out = skip X + branch f(N) + branch' g(N)     (skip is alpha_comb of [HH24])

    Args:
        layout, norm, norm_at: Which of the formulas above, with which norm.
        attn, mlp: skip and branch of attention and of the MLP; `mlp=None` is an attention-only block.
        cross: The same of cross-attention in a decoder (always plain softmax attention with its own W_V and W_O: own
            extension, the papers have none); None: no such branch.
        mixing: How tokens are mixed: softmax, shaped, identity, ...
        value, proj: W_V and W_O: learned, fixed, or None (the identity).
        query_init: Initial W_Q.
        activation, slope: Of the MLP. `slope` belongs to "leaky", sqrt(2 / (1 + slope^2)) leaky_relu, which keeps the
            second moment of a Gaussian.
        init_gain: Multiplies the initial W_V, W_O and MLP weights (DeepNorm), a fixed identity aside.
        tie_gains: Lets the MLP use the learned scalars of the attention branch (ReZero).
    """

    layout: Literal["sequential", "parallel"] = "sequential"
    norm: Norm = "layer"
    norm_at: Literal["pre", "post"] = "pre"
    attn: Gain = field(default_factory=Gain)
    cross: Gain | None = None
    mlp: Gain | None = field(default_factory=Gain)
    mixing: Mixing = field(default_factory=Mixing)
    value: Projection | None = field(default_factory=Projection)
    proj: Projection | None = field(default_factory=Projection)
    query_init: Init = "default"
    activation: Literal["relu", "gelu", "gelu-tanh", "geglu", "geglu-tanh", "swiglu", "leaky"] = "relu"
    slope: float = 0.0
    init_gain: float = 1.0
    tie_gains: bool = False

    __repr__ = changed

    def __post_init__(self) -> None:
        _check_choices(self)
        if self.layout == "parallel":
            if self.norm_at == "post":
                raise InputError("a parallel block has one norm, in front of both branches; use norm_at = pre.")
            for name, gain in (("mlp", self.mlp), ("cross", self.cross)):
                if gain is not None and (gain.skip != 0 or "skip" in gain.learn):
                    raise InputError(f"a parallel block has one skip, that of `attn`; set {name}.skip = 0.")
        if self.tie_gains and (self.mlp is None or self.mlp != self.attn):
            raise InputError("tie_gains shares the scalars of `attn` with `mlp`: the two gains must be equal.")

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of the block's norms, in order of use."""
        if self.norm == "none":
            return ()
        if self.layout == "parallel":
            return ("norm",)
        return ("norm_attn", *(("norm_cross",) if self.cross else ()), *(("norm_mlp",) if self.mlp else ()))


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A whole model: stacks of blocks between an embedding and an output.

    Args:
        kind: `decoder`, `encoder` or `encoder-decoder`.
        blocks, encoder_blocks: The stack; of an encoder-decoder the decoder and its encoder.
        d_model, heads, kv_heads, d_k, d_ff: Widths. `d_k` of a head (d_model / heads unless given), `d_ff` after the
            activation (a gated MLP reads d_model x 2 d_ff).
        vocab, source_vocab, classes, seq_len: Sizes. `source_vocab=None` shares one vocabulary and embedding;
            `classes > 0` replaces the token output by a classifier on the mean of the real tokens.
        positions, rotary_base, buckets, max_distance: Rotary position p turns pair i by p rotary_base^{-2i/d_k} (10,000
            unless given). `relative` adds a learned number to every score, one a head for each of `buckets` (32)
            distances, those from `max_distance` (128) on alike; all blocks of a stack share the table.
        attn_scale, logit_scale, embed_scale: Factors of the scores (d_k^{-1/2}), the logits (1), the embedding.
        tied: Whether the output uses the embedding.
        biases: Which of q, k, v, o, mlp, out have one.
        embed_norm, final_norm, eps: Norms after the embedding and before the output, and their eps.
        transform: Puts LayerNorm(act(X W_T + b_T)) in front of the token output, as BERT has it.
        dropout: Probability.
        init, init_std: Of all matrices not named in a block: N(0, init_std^2), N(0, 1/fan_in), Glorot uniform, or
            orthogonal.
        pad, bos, eos: Special tokens.
        design: The name it was built from.
    """

    kind: Literal["decoder", "encoder", "encoder-decoder"] = "decoder"
    blocks: tuple[BlockSpec, ...]
    encoder_blocks: tuple[BlockSpec, ...] = ()
    d_model: int
    heads: int
    kv_heads: int | None = None
    d_k: int | None = None
    d_ff: int
    vocab: int
    source_vocab: int | None = None
    classes: int = 0
    seq_len: int = 1024
    positions: Literal["learned", "sinusoidal", "scaled-sinusoidal", "rotary", "relative", "none"] = "learned"
    rotary_base: float | None = None
    buckets: int | None = None
    max_distance: int | None = None
    attn_scale: float | None = None
    tied: bool = True
    biases: tuple[str, ...] = ()
    embed_scale: float = 1.0
    embed_norm: Norm = "none"
    final_norm: Norm = "layer"
    transform: Literal["relu", "gelu", "gelu-tanh"] | None = None
    logit_scale: float | None = None
    eps: float = 1e-5
    dropout: float = 0.0
    init: Literal["normal", "fan-in", "xavier", "orthogonal"] = "fan-in"
    init_std: float = 0.02
    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    design: str = ""

    __repr__ = changed

    def __post_init__(self) -> None:
        _check_choices(self)
        for name in ("d_model", "heads", "d_ff", "vocab", "seq_len"):
            _positive(name, getattr(self, name))
        for name in ("kv_heads", "source_vocab", "d_k", "buckets", "max_distance"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        _subset("biases", self.biases, BIASES)
        if self.d_k is None and self.d_model % self.heads:
            raise InputError(f"d_model = {self.d_model} does not divide into {self.heads} heads. Change one of them.")
        if self.heads % self.key_heads:
            raise InputError(f"{self.heads} heads do not share {self.key_heads} key heads evenly. Change one of them.")
        if self.positions == "rotary" and self.head_width % 2:
            raise InputError(f"rotary positions turn pairs of coordinates; a head width of {self.head_width} is odd.")
        if self.rotary_base is not None and not 0 < self.rotary_base < math.inf:
            raise InputError(f"rotary_base is above 0 and finite; got {self.rotary_base}.")
        for name in ("attn_scale", "logit_scale"):
            number = getattr(self, name)
            if number is not None and not 0 < number < math.inf:
                raise InputError(f"{name} is above 0 and finite; got {number}.")
        self._check_relative()
        if self.transform is not None and self.classes:
            raise InputError("a transform belongs to the token output; a classifier has none.")
        if not 0 <= self.eps < math.inf:
            raise InputError(
                f"eps, which keeps norms from dividing by zero, is a number of at least 0; got {self.eps}."
            )
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is a probability below 1; got {self.dropout}.")
        if not self.blocks:
            raise InputError("a model needs at least one block; got none.")
        if (self.kind == "encoder-decoder") != bool(self.encoder_blocks):
            raise InputError(f"kind {self.kind!r} with {len(self.encoder_blocks)} encoder blocks does not fit.")
        if self.source_vocab is not None and self.kind != "encoder-decoder":
            raise InputError("source_vocab belongs to kind = encoder-decoder.")
        if self.classes < 0 or (self.classes and self.kind == "encoder-decoder"):
            raise InputError(
                f"a classifier sits on an encoder or decoder; got {self.kind} with {self.classes} classes."
            )
        for name in ("pad", "bos", "eos"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.vocab:
                raise InputError(f"{name} = {token} is not a token of a vocabulary of {self.vocab}.")
        for stack, blocks in (("blocks", self.blocks), ("encoder_blocks", self.encoder_blocks)):
            for i, block in enumerate(blocks):
                self._check_block(f"{stack}[{i}]", block, stack == "blocks")

    def _check_relative(self) -> None:
        if self.positions != "relative":
            for name in ("buckets", "max_distance"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name} belongs to relative positions; these are {self.positions}.")
            return
        buckets, most = self.relative
        if self.kind == "decoder" and buckets < 2:
            raise InputError(f"relative positions of a decoder have at least 2 buckets; got {buckets}.")
        if self.kind != "decoder" and (buckets < 4 or buckets % 2):
            raise InputError(f"an encoder has as many buckets for each side, 2 or more; got buckets = {buckets}.")
        single = buckets // (4 if self.kind == "encoder" else 2)
        if most <= single:
            raise InputError(f"the first {single} distances have a bucket each, so max_distance is above; got {most}.")

    def _check_block(self, where: str, block: BlockSpec, main: bool) -> None:
        if (block.cross is not None) != (main and self.kind == "encoder-decoder"):
            raise InputError(f"{where}: cross-attention belongs to the decoder of an encoder-decoder, and only there.")
        if block.mixing.scores == "merged" and (self.positions == "rotary" or {"q", "k"} & set(self.biases)):
            raise InputError(f"{where}: a merged W_QK has neither rotary positions nor query and key biases.")
        if self.positions == "relative" and (block.mixing.kind == "linear" or block.mixing.bias is not None):
            has = "no softmax" if block.mixing.kind == "linear" else "an SPA bias"
            raise InputError(f"{where}: relative positions are added inside a softmax, alone; this block has {has}.")
        if None in (block.value, block.proj) and self.heads * self.head_width != self.d_model:
            raise InputError(f"{where}: without W_V or W_O the heads are the columns of X, so d_k is d_model / heads.")
        if block.value is None and self.key_heads != self.heads:
            raise InputError(
                f"{where}: without W_V each head reads its own columns of X, so kv_heads must equal heads."
            )

    @property
    def summary(self) -> str:
        """In words: `pre-ln decoder, 2 blocks, d 128, 4 heads`."""
        blocks = f"{len(self.encoder_blocks)} + {self.depth}" if self.encoder_blocks else f"{self.depth}"
        counted = f"{blocks} block{'s' * (blocks != '1')}, d {self.d_model}, {self.heads} head{'s' * (self.heads > 1)}"
        return f"{self.design or 'own'} {self.kind}, {counted}"

    @property
    def depth(self) -> int:
        """Number of blocks of the main stack."""
        return len(self.blocks)

    @property
    def head_width(self) -> int:
        """d_k, also the value width: d_model / heads unless given."""
        return self.d_model // self.heads if self.d_k is None else self.d_k

    @property
    def relative(self) -> tuple[int, int]:
        """Buckets and largest distance of relative positions."""
        return self.buckets or 32, self.max_distance or 128

    @property
    def key_heads(self) -> int:
        """Number of key and value heads (grouped-query attention when below `heads`)."""
        return self.heads if self.kv_heads is None else self.kv_heads

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and texts; equal neighbouring blocks are written once with `repeat`."""
        return encode(self)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`; an unknown key or value is an error that names the nearest known one."""
        return decode(cls, body, "config")

    def to_json(self) -> str:
        return to_json(self.to_dict())

    def to_toml(self) -> str:
        return to_toml(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        return cls.from_dict(from_json(text, "the model description"))

    @classmethod
    def from_toml(cls, text: str) -> ModelConfig:
        return cls.from_dict(from_toml(text, "the model description"))


# ------------------------------------------------------------------------------------------------------- validation
def _check_choices(value: Any) -> None:
    """Every field annotated Literal[...] holds one of its values."""
    for name, hint in hints(type(value)).items():
        if typing.get_origin(hint) is Literal:
            choose(name, getattr(value, name), typing.get_args(hint))


def choose(what: str, got: Any, known: Iterable[str]) -> Any:
    """`got`, if it is one of the known values; otherwise an error that suggests the nearest."""
    known = list(known)
    if got not in known:
        raise UnknownName(f"unknown {what} {got!r}; choose from {', '.join(known)}.{did_you_mean(str(got), known)}")
    return got


def _check_learn(value: Any, allowed: tuple[str, ...]) -> None:
    _subset("learn", value.learn, allowed)


def _subset(what: str, got: Iterable[str], allowed: Iterable[str]) -> None:
    if isinstance(got, str):
        raise InputError(f"{what} is a list of names; got the text {got!r}.")
    for name in got:
        choose(f"entry of {what}", name, allowed)


def _positive(name: str, got: Any) -> None:
    if not isinstance(got, int) or isinstance(got, bool) or got < 1:
        raise InputError(f"{name} is a whole number of at least 1; got {got!r}.")


def __getattr__(name: str) -> Any:
    if name in ("DESIGNS", "CODEPARROT", "CRAMMED_BERT", "Design", "design"):
        from . import designs

        return getattr(designs, name)
    if name in ("parameter_shapes", "count_parameters"):
        from . import parameters

        return getattr(parameters, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
