"""`check_design`: the contract every block design of the project keeps, as a test users can run on their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.errors import CheckFailed
from ..core.rng import stream
from ..core.spec import DESIGNS, BlockSpec, ModelConfig, design, parameter_shapes
from ..nn.attend import spa_strengths
from ..nn.frame import Frame, Memory
from ..nn.transformer import Transformer
from ..propagation.shaping import target
from .operators import Finding

KINDS = ("decoder", "encoder", "encoder-decoder")
_TOKENS, _PADDING = 7, 3


def check_design(what: str | ModelConfig, *, seed: int = 0, depth: int = 72, rtol: float = 1e-10) -> list[Finding]:
    """Test the contract of a design; raise `CheckFailed` naming every broken property, else return the findings.

    `what` is the name of a design, checked as decoder, encoder and encoder-decoder, or one `ModelConfig`. Checked in
    double precision, on weights moved away from their start: parameters are those `parameter_shapes` promises; no token
    sees a later one; padding on either side changes nothing; attention equals its own matrix times values; cached
    decoding (also after rows are reordered, also from the X-cache) equals the full pass; save and load give the same
    model. At the start: shaped attention is the identity, signal-preserving attention carries its kernels exactly;
    gradients at `depth` blocks are finite.
    """
    findings: list[Finding] = []
    if isinstance(what, ModelConfig):
        room = replace(what, seq_len=max(what.seq_len, _TOKENS + _PADDING))  # for learned positions
        _Check(room, findings, seed, rtol).run(depth)
    else:
        for kind in KINDS[: 2 if what == "deepnorm" else 3]:
            config = design(what, kind=kind, depth=3, d_model=16, heads=4, vocab=13, seq_len=64)
            _Check(config, findings, seed, rtol, f"{kind}: ").run(depth)
    if not all(f.ok for f in findings):
        name = what if isinstance(what, str) else what.design or "this model"
        raise CheckFailed("\n".join([f"{name} breaks the contract of a design:", *map(str, findings)]))
    return findings


def _attentions(model: Transformer) -> list[Any]:
    """The attention of every layer."""
    layers: Any = model.layers
    return [layer.attn for layer in layers]


class _Check:
    def __init__(self, config: ModelConfig, findings: list[Finding], seed: int, rtol: float, prefix: str = ""):
        self.config, self.findings, self.seed, self.rtol, self.prefix = config, findings, seed, rtol, prefix
        self.fresh = Transformer(config, seed=seed, dtype=torch.float64).eval()
        self.model = Transformer(config, seed=seed, dtype=torch.float64).eval()
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=stream(seed, f"moved {name}"), dtype=p.dtype))
        self.random = stream(seed, "check_design")
        self.tokens, self.source = self._draw(2, _TOKENS, config.vocab), None
        if config.kind == "encoder-decoder":
            self.source = self._draw(2, _TOKENS - 2, config.source_vocab or config.vocab)

    def _draw(self, rows: int, n: int, vocab: int) -> Tensor:
        low = 0 if vocab < 3 else 1  # leave a token over for padding
        drawn = torch.randint(low, vocab, (rows, n), generator=self.random)
        return drawn if self.config.pad is None else drawn.masked_fill(drawn == self.config.pad, vocab - 1)

    def run(self, depth: int) -> None:
        causal = self.config.kind != "encoder" and not self.config.classes
        self._try("parameters are as promised", self.parameters, "names or shapes differ")
        if causal:
            self._try("no token sees a later one", self.causal)
            for cache in ("kv", "x"):
                self._try(f"decoding from a {cache} cache = full pass", partial(self.cached, cache))
        self._try("padding changes nothing", self.padding)
        self._try("attention = its matrix times values", self.matrix)
        self._try("save and load", self.files, "tensors differ")
        mixing = self.config.blocks[-1].mixing
        if self.config.blocks[-1].query_init == "zero" and mixing.uses("alpha"):
            self._try("shaped attention is the identity at the start", self.identity)
        if mixing.bias is not None:
            self._try("kernels are carried exactly at the start", self.kernels)
        self._try(f"gradients finite at depth {depth}", lambda: self.gradients(depth), "tensors have none that is")

    def _try(self, name: str, check: Callable[[], float], counted: str = "") -> None:
        """One finding; the error is relative, or a number of things that are `counted`."""
        try:
            error = check()
        except Exception as problem:  # a contract check reports whatever the design does wrong
            note = f"raised {type(problem).__name__}: {problem}"
            self.findings.append(Finding(self.prefix + name, float("inf"), False, note))
            return
        note = f"{error:.0f} {counted}" if counted and error else ""
        sound = error <= self.rtol  # NaN compares false: it fails
        self.findings.append(Finding(self.prefix + name, error, sound, note))

    def _out(self, tokens: Tensor, mask: Tensor | None = None, **sides: Tensor) -> Tensor:
        if self.source is not None:
            sides = {"source": self.source, **sides}
        return self.model(tokens, mask, **sides).detach()

    def parameters(self) -> float:
        got = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        return float(len(got.items() ^ parameter_shapes(self.config).items()))

    def causal(self) -> float:
        """Tokens from position 4 on are replaced; the outputs before it must not move, that at 4 must."""
        other = self.tokens.clone()
        other[:, 4:] = self._draw(2, _TOKENS - 4, self.config.vocab)
        other[:, 4] = (self.tokens[:, 4] + 1) % self.config.vocab
        before, after = self._out(self.tokens), self._out(other)
        if torch.equal(after[:, 4], before[:, 4]):
            return float("inf")
        return _relative(after[:, :4], before[:, :4])

    def padding(self) -> float:
        """Two fillings of the padding, on the right and on the left; outputs at real tokens equal those without it."""
        plain, worst = self._out(self.tokens), 0.0
        for left, right in ((0, _PADDING), (2, 0), (1, 2)):
            for _ in range(2):
                fill = lambda n: self._draw(2, n, self.config.vocab)  # noqa: E731
                tokens = torch.cat((fill(left), self.tokens, fill(right)), 1)
                mask = torch.zeros(tokens.shape, dtype=torch.bool)
                mask[:, left : left + _TOKENS] = True
                sides = {}
                if self.source is not None:
                    extra = self._draw(2, 2, self.config.source_vocab or self.config.vocab)
                    sides["source"] = torch.cat((self.source, extra), 1)
                    sides["source_mask"] = torch.arange(sides["source"].shape[1]).expand(2, -1) < self.source.shape[1]
                out = self._out(tokens, mask, **sides)
                out = out if self.config.classes else out[:, left : left + _TOKENS]
                worst = max(worst, _relative(out, plain))
        return worst

    def matrix(self) -> float:
        """Every layer: concat over heads of (matrix V_h), times W_O, equals the layer."""
        causal = self.config.kind != "encoder"
        mask = torch.ones(2, _TOKENS, dtype=torch.bool)
        mask[1, 5:] = False
        worst = 0.0
        for given in (None, mask):
            frame = self.model._frame(self.tokens, given, causal)
            for attn in _attentions(self.model):
                N = torch.randn(2, _TOKENS, self.config.d_model, generator=self.random, dtype=torch.float64)
                v = attn.values(N)
                Y = attn.matrix(N, frame) @ v.repeat_interleave(attn.heads // v.shape[1], 1)
                want, got = attn._project(Y), attn(N, frame)
                real = slice(None) if given is None else given
                worst = max(worst, _relative(got[real].detach(), want[real].detach()))
        return worst

    def cached(self, kind: str) -> float:
        """Three tokens at once, then one by one, with the two rows exchanged half-way."""
        full, caches = self._out(self.tokens), self.model.caches(_TOKENS, kind)
        memory = None
        if self.source is not None:
            memory = self.model.encode(self.source)
            memory = Memory(memory.X, memory.mask, {})
        got: list[Tensor] = []
        swapped = torch.tensor([1, 0])
        tokens = self.tokens
        for start, stop in ((0, 3), (3, 4), (4, 5), (5, _TOKENS)):
            if start == 4:
                tokens, full = tokens[swapped], full[swapped]
                got = [g[swapped] for g in got]
                for cache in caches:
                    cache.select(swapped)
                memory = None if memory is None else memory.select(swapped)
            got.append(self.model.logits(self.model.hidden(tokens[:, start:stop], None, memory, caches)))
        return _relative(torch.cat(got, 1).detach(), full)

    def files(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            again = Transformer.load(self.model.save(folder))
        if again.config != self.config:
            return float("inf")
        state = again.state_dict()
        return float(sum(not torch.equal(state.pop(n), t) for n, t in self.model.state_dict().items()) + len(state))

    def _frame(self, causal: bool) -> Frame:
        return self.fresh._frame(self.tokens, None, causal)

    def identity(self) -> float:
        frame, eye = self._frame(self.config.kind != "encoder"), torch.eye(_TOKENS, dtype=torch.float64)
        N = torch.randn(2, _TOKENS, self.config.d_model, generator=self.random, dtype=torch.float64)
        return max(_relative(attn.matrix(N, frame).detach(), eye) for attn in _attentions(self.fresh))

    def kernels(self) -> float:
        """A Sigma_{l-1} A^T = Sigma_l for every block, from the start to the end of the schedule."""
        frame = self._frame(self.config.kind != "encoder")
        N = torch.randn(1, _TOKENS, self.config.d_model, generator=self.random, dtype=torch.float64)
        mixing = self.config.blocks[0].mixing
        assert mixing.bias is not None, "asked of designs with SPA alone"
        strengths = spa_strengths(mixing, self.config.depth)
        Sigmas = [target(mixing.bias.family, s, _TOKENS) for s in strengths]
        worst = 0.0
        for attn, Sigma, wanted in zip(_attentions(self.fresh), Sigmas[:-1], Sigmas[1:], strict=True):
            A = attn.matrix(N, frame)[0, 0].detach()
            worst = max(worst, _relative(A @ Sigma @ A.T, wanted))
        return worst

    def gradients(self, depth: int) -> float:
        """0 when every parameter has a finite gradient in single precision, else how many have not."""
        c = self.config

        def named(depth: int) -> tuple[BlockSpec, ...]:
            return design(c.design, kind=c.kind, depth=depth, d_model=c.d_model, heads=c.heads, d_ff=c.d_ff).blocks

        if c.design in DESIGNS and c.blocks == named(c.depth):  # as it is published: its constants follow the depth
            blocks = named(depth)
        else:
            blocks = (c.blocks[0], *[c.blocks[-1]] * (depth - 1))
        config = replace(c, blocks=blocks)
        model = Transformer(config, seed=self.seed, dtype=torch.float32)
        sides = {} if self.source is None else {"source": self.source}
        model(self.tokens, **sides).logsumexp(-1).sum().backward()
        return float(sum(p.grad is not None and not bool(p.grad.isfinite().all()) for p in model.parameters()))


def _relative(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-300))
