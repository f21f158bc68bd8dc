"""Symmetries of a `Transformer` that come from its norms, its constants and its residual stream.

Norms: gain and bias j of a norm, minus row j of every matrix that reads it, where nothing else does.

Constants: some moves add a constant vector to one place of the model (queries, values, hidden units, logits):

    a bias                             itself
    the bias d of a norm               d W for every reader W, and d for the stream that takes the norm's output too
    W + (1 / gain) u^T, W a reader     kappa u of a layer norm, kappa = sum_j bias_j / gain_j: (x_j - bias_j) / gain_j
                                       sums to 0 over j for every token. Values reach the stream through W_O

Combinations that add nothing which is seen are symmetries. Not seen are a constant of all keys (softmax, unless
positions are rotary), 1 in a stream that layer norms alone read, and 1 in the logits (softmax).

Streams: norms alone read a residual stream, and they see neither

    its rotation A        writers W A, readers -gain^-1 A gain W, the norm's bias b gain^-1 A gain: A antisymmetric,
                          A 1 = 0 for a layer norm; not where the output is tied to the embedding
    nor its scale         up to their eps: w.Hw is of order (eps / variance)^2 there, below the rounding of H for the
                          usual eps

Source: [own]; rotations: Ashkboos et al. 2024 (SliceGPT).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch
from torch import Tensor

from ...nn.attention import Attention
from ...nn.block import Block
from ...nn.transformer import Transformer
from .wiring import Site, Stream, Wiring

Rows = dict[str, Tensor]
EPS = "(up to the eps of the norms)"


def generators(model: Transformer, params: Mapping[str, Tensor], lead: str) -> Iterator[tuple[str, Rows]]:
    """Names and generators, `{parameter: (k, *shape)}`; `lead` stands before the names of all parameters. Those whose
    name ends with `EPS` are symmetries up to the eps of the norms."""
    wiring = Wiring(model, params, lead)
    for site in wiring.sites:
        if rows := _norm(wiring, site):
            yield f"{site.name}: scalings", rows
        if rows := _constants(wiring, site):
            yield f"{site.name}: constants", rows
    for stream in wiring.streams:
        if not stream.open:
            if rows := _rotations(wiring, stream):
                yield f"{stream.name}: rotations of the stream", rows
            if rows := _scale(wiring, stream):
                yield f"{stream.name}: scale of the stream {EPS}", rows
    yield from _shifts(wiring)
    yield from _pieces(wiring)
    yield from _gains_of_branches(wiring)


def scalings(ways: Mapping[str, tuple[Tensor, int, float]]) -> Rows:
    """Generator j: entry j along an axis of each tensor, times a sign; zero elsewhere."""
    rows: Rows = {}
    for name, (M, axis, sign) in ways.items():
        moved = M.movedim(axis, 0)
        out = sign * torch.diag_embed(moved.movedim(0, -1)).movedim((-2, -1), (0, 1))
        rows[name] = out.movedim(1, axis + 1)
    return rows


def eye(n: int, like: Tensor) -> Tensor:
    """The identity (n, n), of the type and on the device of another tensor."""
    return torch.eye(n, dtype=like.dtype, device=like.device)


# --- norms and constants --------------------------------------------------------------------------------------------
def _gains(wiring: Wiring, site: Site) -> tuple[str | None, str | None]:
    """The names of gain and bias of a norm."""
    return (None, None) if site.norm is None else (wiring.named(site.norm, "weight"), wiring.named(site.norm, "bias"))


def _norm(wiring: Wiring, site: Site) -> Rows | None:
    gain, bias = _gains(wiring, site)
    if gain is None or not (site.alone and site.movable):
        return None
    ways = {name: (wiring.params[name], 0, 1.0) for name in (gain, bias) if name is not None}
    return scalings(ways | {r.W: (r.value, 0, -1.0) for r in site.readers if r.W is not None})


def _constants(wiring: Wiring, site: Site) -> Rows | None:
    """The combinations of moves whose constants nobody sees."""
    params, moves = wiring.params, list[tuple[Rows, dict[str, Tensor]]]()
    gain, bias = _gains(wiring, site)
    for r in site.readers:
        one = eye(r.value.shape[1], r.value)
        if r.W is not None and gain is not None and wiring.layered(site.norm):
            kappa = 0.0 if bias is None else float((params[bias] / params[gain]).sum())
            rows = one[:, None, :] / params[gain][None, :, None]
            moves.append(({r.W: rows}, {place: r.factor * kappa * E for place, E in r.effect.items()}))
        if r.b is not None:
            moves.append(({r.b: one}, dict(r.effect)))
    if (shared := bias if site.norm else _whole_input(wiring, site)) is not None and site.whole:
        M = params[shared]
        one = eye(M.shape[-1], M)
        effect: dict[str, Tensor] = {}
        for r in site.readers:
            for place, E in r.effect.items():
                effect[place] = effect.get(place, 0) + r.factor * r.value @ E
        if site.skip is not None:
            effect[site.skip[0]] = effect.get(site.skip[0], 0) + site.skip[1] * one
        moves.append(({shared: one if M.dim() == 1 else one[:, None, :].expand(-1, *M.shape)}, effect))
    for name, place, factor in site.written:
        one = eye(len(params[name]), params[name])
        moves.append(({name: one}, {place: factor * one}))
    return _kernel(wiring, moves) if moves else None


def _whole_input(wiring: Wiring, site: Site) -> str | None:
    """The positions, where the first branch reads the embedding without a norm: a vector in all rows is a constant."""
    first = {f"{stack}.0.attn": path for stack, path in (("layers", "embed"), ("encoder_layers", "source_embed"))}
    return wiring.named(first[site.name], "W_pos") if site.name in first else None


def _kernel(wiring: Wiring, moves: list[tuple[Rows, dict[str, Tensor]]]) -> Rows | None:
    counts = [len(next(iter(rows.values()))) for rows, _ in moves]
    starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
    like = next(iter(moves[0][0].values()))
    seen = {p: like.new_zeros(starts[-1], E.shape[1]) for _, effect in moves for p, E in effect.items()}
    whole = {name: like.new_zeros(starts[-1], *M.shape[1:]) for rows, _ in moves for name, M in rows.items()}
    for (rows, effect), (a, b) in zip(moves, pairwise(starts), strict=True):
        for name, M in rows.items():
            whole[name][a:b] += M
        for place, E in effect.items():
            seen[place][a:b] += E
    parts = [E - E.mean(1, keepdim=True) if wiring.unseen(place) else E for place, E in seen.items()]
    U, s, _ = torch.linalg.svd(torch.cat([like.new_zeros(starts[-1], 1), *parts], 1))
    N = U[:, int((s > 1e-10 * s.max()).sum()) :].T
    return {name: torch.tensordot(N, M, 1) for name, M in whole.items()} if len(N) else None


# --- streams --------------------------------------------------------------------------------------------------------
def _rotations(wiring: Wiring, stream: Stream) -> Rows | None:
    gains = [(site, *_gains(wiring, site)) for site in stream.sites]
    if stream.tied or not gains or any(gain is None or not site.movable for site, gain, _ in gains):
        return None
    like = wiring.params[stream.writers[0]]
    d = like.shape[-1]
    Q = eye(d, like)
    if any(wiring.layered(site.norm) for site in stream.sites):
        Q = torch.linalg.qr(torch.cat([like.new_ones(d, 1), eye(d, like)[:, 1:]], 1)).Q[:, 1:]
    i, j = torch.triu_indices(Q.shape[1], Q.shape[1], 1)
    if not len(i):
        return None
    A = Q.T[i, :, None] * Q.T[j, None, :]
    A = A - A.mT
    rows = {name: wiring.params[name] @ A for name in stream.writers}
    for site, gain, bias in gains:
        assert gain is not None
        g = wiring.params[gain]
        turned = A * g / g[:, None]
        rows |= {r.W: -turned @ r.value for r in site.readers if r.W is not None}
        if bias is not None:
            rows[bias] = wiring.params[bias] @ turned
    return rows


def _scale(wiring: Wiring, stream: Stream) -> Rows:
    signs = dict.fromkeys(stream.writers, 1.0)
    return _scaled(wiring, signs | (_untied(wiring) if stream.tied else {}))


def _untied(wiring: Wiring) -> dict[str, float]:
    """What shrinks where the embedding grows, and the output reads it too."""
    norm = wiring.sites[-1].norm
    names = [wiring.named(norm, t) for t in ("weight", "bias")] if norm else []
    return {name: -1.0 for name in names if name is not None}


def _scaled(wiring: Wiring, signs: Mapping[str, float]) -> Rows:
    return {name: sign * wiring.params[name][None] for name, sign in signs.items()}


def _shifts(wiring: Wiring) -> Iterator[tuple[str, Rows]]:
    """A vector from all tokens to all positions; one in all columns of the output; 1 in all of a tied embedding."""
    params = wiring.params
    for path in ("embed", "source_embed"):
        W_E, W_pos = wiring.named(path, "W_E"), wiring.named(path, "W_pos")
        if W_E is not None and W_pos is not None:
            one = eye(params[W_E].shape[1], params[W_E])[:, None, :]
            tokens = one.expand(-1, *params[W_E].shape) / wiring.at(path).scale
            yield f"{path}: a vector from W_E to W_pos", {W_E: tokens, W_pos: -one.expand(-1, *params[W_pos].shape)}
        if W_E is not None and wiring.tied and path == "embed":
            yield "embed: 1 in all of W_E", {W_E: torch.ones_like(params[W_E])[None]}
    if (W := wiring.named("", "W_C", "W_U")) is not None:
        M = params[W]
        yield "softmax: a vector in all columns of the output", {W: eye(len(M), M)[:, :, None].expand(-1, *M.shape)}
    for path in ("relative", "encoder_relative"):
        if (R := wiring.named(path, "W_R")) is not None:
            one = eye(params[R].shape[1], params[R])[:, None, :]
            yield f"softmax: a constant in all distances of {path}", {R: one.expand(-1, *params[R].shape)}


def _pieces(wiring: Wiring) -> Iterator[tuple[str, Rows]]:
    """Post-LN: what lies between two norms, one by one. Its readers shrink, what writes to it grows."""
    model = wiring.model
    blocks = [*model.layers, *model.encoder_layers]
    if not all(b.spec.norm_at == "post" and b.spec.norm != "none" and b.spec.cross is None for b in blocks):
        return
    held = [("embed", "W_E"), ("embed", "W_pos")]
    if not wiring.tied:
        yield from _means_of_tokens(wiring)
    for i, block in enumerate(model.layers):
        for part in ("attn", "mlp"):
            if getattr(block, part) is None:
                continue
            here = f"layers.{i}.{part}"
            grown = [*held, *((here, t) for t in ("W_O", "b_O", "W_2", "b_2"))]
            shrunk = [(here, t) for t in ("W_Q", "W_K", "W_V", "W_1")]
            named = [(wiring.named(*at), sign) for sign, many in ((1.0, grown), (-1.0, shrunk)) for at in many]
            signs = {name: sign for name, sign in named if name is not None}
            if held[0][0] == "embed" and wiring.tied:
                signs |= _untied(wiring)
            yield f"{here}: scale of what it reads {EPS}", _scaled(wiring, signs)
            held = [(f"layers.{i}.norm_{part}", "weight"), (f"layers.{i}.norm_{part}", "bias")]


def _means_of_tokens(wiring: Wiring) -> Iterator[tuple[str, Rows]]:
    """Post-LN: the embedding X becomes X + (X a) 1^T, and what reads it loses a (1^T W); the next norm sees no 1."""
    first, params = wiring.sites[0], wiring.params
    names = [n for t in ("W_E", "W_pos") if (n := wiring.named("embed", t)) is not None]
    if first.norm is not None or not first.movable or not wiring.unseen("layers.0.attn.stream"):
        return
    rows = {n: params[n].mT[:, :, None].expand(-1, -1, params[n].shape[1]) for n in names}
    rows |= {r.W: -eye(len(r.value), r.value)[:, :, None] * r.value.sum(0) for r in first.readers if r.W is not None}
    yield "embed: means of tokens", rows


def _gains_of_branches(wiring: Wiring) -> Iterator[tuple[str, Rows]]:
    """Learned weights of a branch against what it writes; those of a head (alpha, beta, gamma) against its W_O."""
    for path, module in wiring.model.named_modules():
        if isinstance(module, Attention) and module.mixing.learn:
            mixing = [wiring.named(path, x) for x in ("alpha", "beta", "gamma") if module.mixing.uses(x)]
            W_O = wiring.named(path, "W_O")
            if W_O is not None and all(mixing):
                heads = wiring.params[W_O].reshape(module.heads, -1)
                rows = scalings({"W_O": (heads, 0, -1.0)})["W_O"].reshape(module.heads, *wiring.params[W_O].shape)
                learned = {n: torch.diag(wiring.params[n]) for n in mixing if n is not None}
                yield f"{path}: weights of heads", learned | {W_O: rows}
        for part in ("attn", "cross", "mlp") if isinstance(module, Block) else ():
            gain = wiring.named(path, f"{part}_branch")
            parts = ("attn", "mlp") if isinstance(module, Block) and module.spec.tie_gains else (part,)
            tensors = [(f"{path}.{p}", t) for p in parts for t in (("W_2", "b_2") if p == "mlp" else ("W_O", "b_O"))]
            written = [n for at in tensors if (n := wiring.named(*at)) is not None]
            if gain is not None and any(not n.rpartition(".")[2].startswith("b") for n in written):
                yield (
                    f"{path}.{part}: weight of the branch",
                    _scaled(wiring, {gain: 1.0} | dict.fromkeys(written, -1.0)),
                )
