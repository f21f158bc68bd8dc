"""Two families of small trained Transformers over proteins, in our own modules: anarcii and sceptr.

anarcii numbers the residues of an antibody or T-cell receptor: encoder-decoder, post-LN, learned positions; amino acids
in, positions 1 to 128 out. sceptr reads the loop regions of a T-cell receptor and guesses masked residues: a post-LN
encoder whose tokens are more than letters, hence an embedding of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadform.core.errors import InputError
from quadform.core.rng import stream
from quadform.nn.adapt import from_torch
from quadform.nn.decode import Search, generate, pad_rows
from quadform.nn.frame import Frame
from quadform.nn.transformer import IGNORE, Transformer

Batch = dict[str, Tensor]
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"

# ------------------------------------------------------------------------------------------------------------- anarcii
#: Tokens of anarcii's source side: pad, start, end, skip, then the amino acids with X between W and Y.
_RESIDUES = {letter: i for i, letter in enumerate("ACDEFGHIKLMNPQRSTVWXY", start=4)}
_PAD, _START, _END = 0, 1, 2
#: Variable domains of two therapeutic antibodies (trastuzumab heavy and light, adalimumab heavy), for probes.
ANTIBODIES = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
)
_RENAMED = (
    ("self_attention.multihead_attn.", "self_attn."),
    ("encoder_attention.multihead_attn.", "multihead_attn."),
    ("positionwise_feedforward.fc_", "linear"),
    ("self_attn_layer_norm.", "norm1."),
    ("enc_attn_layer_norm.", "norm2."),
)


def numbering_net(state: Mapping[str, Tensor], *, heads: int, dropout: float = 0.0) -> Transformer:
    """The `Transformer` with the weights of an anarcii net (its state dict): equal logits."""
    source, target = state["encoder.tok_embedding.weight"], state["decoder.tok_embedding.weight"]
    d, d_ff = source.shape[1], state["encoder.layers.0.positionwise_feedforward.fc_1.weight"].shape[0]
    depth = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("decoder.layers."))
    options: dict[str, Any] = {"batch_first": True, "dtype": source.dtype}
    module = nn.Transformer(d, heads, depth, depth, d_ff, dropout, **options)
    module.encoder.norm = module.decoder.norm = None
    module.load_state_dict(dict(_renamed(name, t) for name, t in state.items() if ".layers." in name))
    output = nn.Linear(d, len(target), dtype=source.dtype)
    output.load_state_dict({"weight": state["decoder.fc_out.weight"], "bias": state["decoder.fc_out.bias"]})
    model = from_torch(
        module,
        target,
        output,
        source_embedding=source,
        positions="learned",
        seq_len=len(state["decoder.pos_embedding.weight"]),
        embed_scale=math.sqrt(d),
        dropout=dropout,
        pad=_PAD,
        bos=_START,
        eos=_END,
    )
    with torch.no_grad():
        model.source_embed.W_pos.copy_(state["encoder.pos_embedding.weight"])
        model.embed.W_pos.copy_(state["decoder.pos_embedding.weight"])
    return model.eval()


def _renamed(name: str, t: Tensor) -> tuple[str, Tensor]:
    last = "norm3." if name.startswith("decoder.") else "norm2."
    for theirs, ours in (*_RENAMED, ("ff_layer_norm.", last)):
        name = name.replace(theirs, ours)
    return name, t


def residues(sequence: str) -> list[int]:
    """The tokens of an amino-acid sequence: start, letters (unusual ones as X), end."""
    return [_START, *(_RESIDUES.get(letter, _RESIDUES["X"]) for letter in sequence.upper()), _END]


def numbered(model: Transformer, sequences: Sequence[str]) -> list[list[int]]:
    """The net's greedy answers: the chain's letter, then a position (token 3 + position) for every residue."""
    found = generate(model, [residues(s) for s in sequences], Search(max_length=model.config.seq_len - 1))
    return [list(best[0].tokens) for best in found]


def numbering_probe(model: Transformer, batch: int = 8, length: int | None = None, seed: int = 0) -> Batch:
    """Antibody domains with one residue in twenty changed at random, and the net's own greedy answers as targets."""
    generator = stream(seed, "anarcii/probe")
    chosen = torch.randint(len(ANTIBODIES), (batch,), generator=generator).tolist()
    sequences = [_changed(ANTIBODIES[i][:length], generator) for i in chosen]
    source, source_mask = pad_rows([residues(s) for s in sequences], _PAD)
    target, _ = pad_rows([[_START, *answer, _END] for answer in numbered(model, sequences)], _PAD)
    return {"source": source, "source_mask": source_mask, "target": target}


def exactly(model: Transformer, batch: Batch) -> list[bool]:
    """For each sequence of a probe: whether the net's greedy answer is the target, all of it."""
    sources = [row[:n].tolist() for row, n in zip(batch["source"], batch["source_mask"].sum(1), strict=True)]
    found = generate(model, sources, Search(max_length=model.config.seq_len - 1))
    wanted = [[t for t in row.tolist() if t not in (_PAD, _START, _END)] for row in batch["target"]]
    return [list(best[0].tokens) == target for best, target in zip(found, wanted, strict=True)]


def _changed(sequence: str, generator: torch.Generator) -> str:
    hit = torch.rand(len(sequence), generator=generator) < 0.05
    other = torch.randint(len(AMINO_ACIDS), (len(sequence),), generator=generator).tolist()
    return "".join(AMINO_ACIDS[o] if h else letter for letter, h, o in zip(sequence, hit.tolist(), other, strict=True))


# -------------------------------------------------------------------------------------------------------------- sceptr
#: The loop regions each tokeniser reads, in order: the names of `receptor` and their numbers.
REGIONS = {
    "CdrTokeniser": ("cdr1a", "cdr2a", "cdr3a", "cdr1b", "cdr2b", "cdr3b"),
    "AlphaCdrTokeniser": ("cdr1a", "cdr2a", "cdr3a"),
    "BetaCdrTokeniser": ("cdr1b", "cdr2b", "cdr3b"),
    "Cdr3Tokeniser": ("cdr3a", "cdr3b"),
}
_NULL, _MASK, _CLS, _FIRST = 0, 1, 2, 3
_SIDE = 128  # positions, lengths and region numbers are below this
_LETTERS = 32


def pack(token: int, position: int = 0, length: int = 0, region: int = 0) -> int:
    """One whole number for a residue: its token, its place (from 1) in a region of some length, the region's number."""
    return ((region * _SIDE + length) * _SIDE + position) * _LETTERS + token


class ReceptorEmbedding(nn.Module):
    """X = scale (F W_E + P[position]), F = [token features | (position - 1) / (length - 1) | region features].

    W_E (features, d) is trained; the features and P are fixed. A token is a packed whole number (`pack`); 0 is padding.
    """

    tokens: Tensor
    regions: Tensor
    table: Tensor | None

    def __init__(
        self, W_E: Tensor, tokens: Tensor, regions: Tensor, *, relative: bool, table: Tensor | None, scale: float
    ) -> None:
        super().__init__()
        self.W_E = nn.Parameter(W_E.clone())
        self.relative, self.scale = relative, scale
        self.register_buffer("tokens", tokens.clone())
        self.register_buffer("regions", regions.clone())
        self.register_buffer("table", None if table is None else table.clone())

    def features(self, packed: Tensor) -> Tensor:
        """F (batch, n, features)."""
        token, rest = packed % _LETTERS, packed // _LETTERS
        position, length, region = rest % _SIDE, rest // _SIDE % _SIDE, rest // _SIDE**2
        parts = [self.tokens[token]]
        if self.relative:
            place = (position - 1).to(self.W_E.dtype) / (length - 1).clamp_min(1)
            place = torch.where(length == 1, 0.5, place).masked_fill(position == 0, 0.0)
            parts.append(place[..., None].to(self.W_E.dtype))
        return torch.cat([*parts, self.regions[region]], dim=-1)

    def forward(self, packed: Tensor, frame: Frame) -> Tensor:
        X = self.features(packed) @ self.W_E
        if self.table is not None:
            X = X + self.table[packed // _LETTERS % _SIDE]
        return X if self.scale == 1 else self.scale * X


def receptor_net(state: Mapping[str, Tensor], described: Mapping[str, Any]) -> Transformer:
    """The `Transformer` with the weights of a sceptr variant: equal logits over the 20 amino acids.

    Its `embed` is a `ReceptorEmbedding`; tokens are packed whole numbers (`receptor`), and batches carry their mask.
    """
    prefix = "_self_attention_stack."
    stack = f"{prefix}_standard_stack.{prefix}"
    stack = stack if any(name.startswith(stack) for name in state) else prefix * 2
    layers = {name.removeprefix(stack): t for name, t in state.items() if name.startswith(stack + "layers.")}
    depth = 1 + max(int(name.split(".")[1]) for name in layers)
    d_ff, d = layers["layers.0.linear1.weight"].shape
    layer = nn.TransformerEncoderLayer(
        d, described["heads"], d_ff, batch_first=True, dtype=layers["layers.0.linear1.weight"].dtype
    )
    module = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    module.load_state_dict(layers)
    output = nn.Linear(d, len(AMINO_ACIDS), dtype=layer.linear1.weight.dtype)
    head = "_mlm_token_prediction_projector.projector."
    output.load_state_dict({name: state[head + name] for name in ("weight", "bias")})
    model = from_torch(module, torch.zeros(len(AMINO_ACIDS), d, dtype=output.weight.dtype), output, seq_len=_SIDE)
    model.embed = _receptor_embedding(state, d)  # type: ignore[assignment]  # called as an Embedding is
    return model.eval()


def _receptor_embedding(state: Mapping[str, Tensor], d: int) -> ReceptorEmbedding:
    own = {name.removeprefix("_token_embedder."): t for name, t in state.items() if name.startswith("_token_embedder.")}
    if "token_embedding.weight" in own:  # learned letters and regions, sinusoidal positions
        letters, regions = own["token_embedding.weight"], own["compartment_embedding.weight"]
        if letters[0].any() or regions[0].any():
            raise InputError("this network embeds padding as a nonzero vector, which is not supported.")
        one_hot = [torch.eye(len(t), dtype=t.dtype)[:, 1:] for t in (letters, regions)]
        W_E, table = torch.cat((letters[1:], regions[1:])), own["position_embedding.position_embedding_matrix"]
        return ReceptorEmbedding(W_E, *one_hot, relative=False, table=table, scale=math.sqrt(d))
    if "_blosum_embedding._blosum_embeddings" in own:
        letters = own["_blosum_embedding._blosum_embeddings"].clone()
        special = own["_blosum_embedding._special_token_embeddings.weight"]
        letters[: len(special)] += special
    else:
        letters = own["_token_embedding._token_embeddings"]
    W_E = state["_self_attention_stack._initial_projector.weight"].mT.contiguous()
    regions = own["_compartment_embedding._token_embeddings"]
    return ReceptorEmbedding(W_E, letters, regions, relative=True, table=None, scale=1.0)


def receptor(regions: Mapping[str, str], names: Sequence[str]) -> list[int]:
    """The packed tokens of a receptor: a class token, then the residues of every region in the order of `names`."""
    unknown = set(regions) - set(names)
    if unknown or not regions:
        raise InputError(f"a receptor has the regions {', '.join(names)}; got {', '.join(regions) or 'none'}.")
    row = [pack(_CLS)]
    for number, name in enumerate(names, start=1):
        letters = regions.get(name, "")
        for place, letter in enumerate(letters, start=1):
            if letter not in AMINO_ACIDS:
                raise InputError(f"{letter!r} is not an amino acid; regions are written with {AMINO_ACIDS}.")
            row.append(pack(_FIRST + AMINO_ACIDS.index(letter), place, len(letters), number))
    return row


def receptor_probe(names: Sequence[str], batch: int = 8, seed: int = 0, share: float = 0.15) -> Batch:
    """Random receptors (usual lengths; third loops begin with C and end with F) with `share` of the residues masked.

    Made up, since the package brings no receptors: right for curvature at the weights, not for a judgement of the net.
    """
    generator = stream(seed, "sceptr/probe")

    def drawn(low: int, high: int) -> str:
        count = int(torch.randint(low, high + 1, (), generator=generator))
        return "".join(AMINO_ACIDS[i] for i in torch.randint(20, (count,), generator=generator).tolist())

    rows = [
        receptor({n: f"CA{drawn(8, 13)}F" if n.startswith("cdr3") else drawn(5, 7) for n in names}, names)
        for _ in range(batch)
    ]
    tokens, mask = pad_rows(rows, _NULL)
    return masked_receptors(tokens, mask, generator, share)


def masked_receptors(tokens: Tensor, mask: Tensor, generator: torch.Generator, share: float) -> Batch:
    """`tokens` with a share of the residues masked (at least one a receptor), and which amino acids they were."""
    letters = tokens % _LETTERS
    real = mask & (letters >= _FIRST)
    u = torch.rand(tokens.shape, generator=generator).masked_fill(~real, 2.0)
    hidden = (u < share) | ((u == u.amin(1, keepdim=True)) & real)
    labels = torch.where(hidden, letters - _FIRST, IGNORE)
    return {"tokens": torch.where(hidden, tokens - letters + _MASK, tokens), "mask": mask, "labels": labels}
