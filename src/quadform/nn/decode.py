"""Decoding: greedy, beam search, sampling, over one cached step function. Batched, and equal to one by one.

What is scored is printed here once. For generated tokens y_1 ... y_n (the end token included, a forced prefix not):

    log_prob(y) = sum_t log p(y_t | before)          as teacher forcing gives it
    score(y)    = log_prob(y) / penalty(n),          penalty(n) = n^alpha ("power") or ((5 + n) / 6)^alpha ("gnmt")

When a sentence is finished (beam K, the n_best hypotheses wanted):

    bound   the n_best-th ended score is at least every score a live hypothesis can still reach. Log-probabilities only
            fall, so with alpha >= 0 a live s reaches at most s / penalty(limit), with alpha < 0 at most
            s / penalty(n + 1). Stopping here never changes the answer.
    count   K hypotheses have ended (the usual rule), or the bound holds.

An end token counts as an ended hypothesis when it is among the K best candidates of its step; the beam is refilled from
the best candidates that did not end. At the length limit live hypotheses end as they are (`finished=False`). With
beam 1 and stop "count" this is greedy search.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.core.errors import InputError, TooLarge
from quadform.core.memory import free_bytes, in_words
from quadform.core.rng import stream
from quadform.core.spec import ModelConfig

from .attention import joined_weights
from .beam import beam_search
from .frame import LayerCache, Memory
from .static import StaticDecoder
from .transformer import Transformer

Cache = Literal["kv", "x", "static", "none"]
"""Keys and values; inputs, where a layer allows it; keys and values at fixed places (`quadform.nn.static`); nothing."""

MOST_ALPHA = 20
"""The largest power of a length penalty: that of a million tokens is still a number."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """Greedy (beam 1) or beam search. `max_length` and `min_length` count generated tokens, the end token included.

    With `beyond` a text is also at most so many tokens longer than its source (the source's end token included).
    """

    beam: int = 1
    n_best: int = 1
    max_length: int = 128
    beyond: int | None = None
    min_length: int = 0
    alpha: float = 1.0
    penalty: Literal["power", "gnmt"] = "power"
    stop: Literal["count", "bound"] = "count"
    cache: Cache = "kv"

    def __post_init__(self) -> None:
        _check_lengths(self.max_length, self.min_length, self.beyond, self.cache)
        if not isinstance(self.beam, int) or not isinstance(self.n_best, int) or not 1 <= self.n_best <= self.beam:
            raise InputError(f"n_best lies between 1 and the beam, whole numbers; got {self.n_best} and {self.beam}.")
        if not -MOST_ALPHA <= self.alpha <= MOST_ALPHA:
            raise InputError(f"alpha lies between -{MOST_ALPHA} and {MOST_ALPHA}; got {self.alpha}.")
        if self.penalty not in ("power", "gnmt") or self.stop not in ("count", "bound"):
            raise InputError(f"penalty is power or gnmt, stop is count or bound; got {self.penalty}, {self.stop}.")

    def normaliser(self, n: int) -> float:
        """penalty(n) for n generated tokens."""
        return (n if self.penalty == "power" else (5 + n) / 6) ** self.alpha


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Draw from p^(1/temperature) among the top_k likeliest tokens (0: all) and the smallest set of mass top_p.

    Lengths are those of `Search`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_length: int = 128
    beyond: int | None = None
    min_length: int = 0
    cache: Cache = "kv"

    def __post_init__(self) -> None:
        _check_lengths(self.max_length, self.min_length, self.beyond, self.cache)
        whole = isinstance(self.top_k, int) and self.top_k >= 0
        if not 0 < self.temperature < math.inf or not whole or not 0 < self.top_p <= 1:
            raise InputError(
                f"temperature is above 0 and finite, top_k 0, 1, 2, ..., top_p in (0, 1]; got {self.temperature}, "
                f"{self.top_k}, {self.top_p}. For the likeliest token use Search()."
            )


def _check_lengths(most: int, least: int, beyond: int | None, cache: str) -> None:
    if not isinstance(most, int) or not isinstance(least, int) or most < 1 or not 0 <= least <= most:
        raise InputError(
            f"max_length is a whole number of at least 1, min_length one from 0 to it; got {most}, {least}."
        )
    if beyond is not None and (not isinstance(beyond, int) or beyond < 0):
        raise InputError(f"beyond is a whole number of tokens of at least 0, or None; got {beyond!r}.")
    if cache not in get_args(Cache):
        raise InputError(f"a cache is {', '.join(get_args(Cache))}; got {cache!r}.")


@dataclass(frozen=True)
class Hypothesis:
    """Generated tokens (no prefix, no end token), their log-probability and score, and whether the end token came."""

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool


@torch.inference_mode()
def generate(
    model: Transformer,
    inputs: Sequence[Sequence[int]],
    how: Search | Sampling | None = None,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    batch_size: int = 64,
) -> list[list[Hypothesis]]:
    """The best hypotheses of every input, best first.

    `inputs` are source sentences of an encoder-decoder, or prompts of a decoder (lists of token ids; lengths may
    differ). `prefixes` are forced beginnings of the targets, [bos] where not given. Inputs of like length share a
    batch; the answers come back in the order of the inputs.
    """
    how = Search() if how is None else how
    both = model.config.kind == "encoder-decoder"
    if model.config.kind == "encoder" or model.config.classes:
        raise InputError("an encoder or classifier writes no text; decoding needs a decoder or an encoder-decoder.")
    if not both and prefixes is not None:
        raise InputError("the prompts of a decoder are its `inputs`; prefixes belong to an encoder-decoder.")
    if not both and how.beyond is not None:
        raise InputError("`beyond` counts from the length of a source, which a decoder does not have; use max_length.")
    starts = _starts(model, inputs, prefixes) if both else inputs
    if len(starts) != len(inputs) or batch_size < 1:
        raise InputError(
            f"every input has a prefix, and a batch at least 1 input; got {len(inputs)} inputs, {len(starts)} prefixes "
            f"and batches of {batch_size}."
        )
    for i, (x, start) in enumerate(zip(inputs, starts, strict=True)):
        if len(x) == 0 or len(start) == 0:
            raise InputError(f"input {i} is empty; give it at least one token.")
    answers: list[list[Hypothesis]] = [[] for _ in inputs]
    order = sorted(range(len(inputs)), key=lambda i: (len(starts[i]), len(inputs[i])))
    training = model.training
    model.eval()
    static = StaticDecoder(model) if how.cache == "static" else None
    weights = contextlib.ExitStack()
    try:
        weights.enter_context(joined_weights(model))
        for at in range(0, len(order), batch_size):
            rows = order[at : at + batch_size]
            memory = None
            if both:
                source, mask = pad_rows([inputs[i] for i in rows], model.config.pad or 0, _device(model))
                memory = model.encode(source, None if model.config.pad is None and bool(mask.all()) else mask)
                memory.keys_values = {}
            limits = [_limit(how, len(inputs[i])) for i in rows]
            run = Run(model, [list(starts[i]) for i in rows], memory, how, static, limits)
            if isinstance(how, Sampling):
                found = run.stepwise(_sampler(how, rows, _device(model)))
            else:
                found = run.stepwise(None) if how.beam == 1 and how.stop == "count" else beam_search(run, how)
            for i, hypotheses in zip(rows, found, strict=True):
                answers[i] = hypotheses
    finally:
        weights.close()
        model.train(training)
    return answers


@torch.inference_mode()
def log_probabilities(
    model: Transformer,
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[float]:
    """log p(output | input) by teacher forcing, summed over the output's tokens (give the end token to count it)."""
    both = model.config.kind == "encoder-decoder"
    starts = _starts(model, inputs, prefixes) if both else inputs
    whole, mask = pad_rows([[*s, *o] for s, o in zip(starts, outputs, strict=True)], 0, _device(model))
    given = torch.tensor([len(s) for s in starts], device=whole.device)
    sides = {}
    if both:
        sides["source"], sides["source_mask"] = pad_rows(inputs, model.config.pad or 0, whole.device)
    training = model.training
    model.eval()
    logs = F.log_softmax(model(whole[:, :-1], **sides), -1).gather(-1, whole[:, 1:, None])[..., 0]
    model.train(training)
    counted = mask[:, 1:] & (torch.arange(1, whole.shape[1], device=whole.device) >= given[:, None])
    return logs.masked_fill(~counted, 0.0).sum(1).tolist()


def _limit(how: Search | Sampling, source: int) -> int:
    """Tokens generated at most for a source of so many tokens."""
    return how.max_length if how.beyond is None else max(min(how.max_length, source + how.beyond), 1)


def _starts(
    model: Transformer, inputs: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None
) -> Sequence[Sequence[int]]:
    if prefixes is not None:
        return prefixes
    if model.config.bos is None:
        raise InputError("this model names no bos token; give `prefixes`, or set bos in its config.")
    return [[model.config.bos]] * len(inputs)


def pad_rows(rows: Sequence[Sequence[int]], pad: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """(tokens, mask), both (batch, longest): rows padded on the right; the mask is True for real tokens."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < torch.tensor([[len(row)] for row in rows], device=device)


def _device(model: Transformer) -> torch.device:
    return model.embed.W_E.device


def _argmax(logits: Tensor) -> Tensor:
    """argmax(-1), the first of equals; numpy's is ten times faster than torch's on a CPU."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    return torch.from_numpy(logits.numpy().argmax(-1))


Draw = Callable[[Tensor, Tensor, Tensor], Tensor]


def _sampler(how: Sampling, rows: list[int], device: torch.device) -> Draw:
    """(logits (rows, vocab), sentences, generated so far) -> drawn tokens, by inversion of the distribution function.

    Sentence i takes the uniform numbers of its own stream in order, whatever stands beside it in the batch.
    """
    numbers = torch.stack(
        [torch.rand(how.max_length, generator=stream(how.seed, f"sample {i}"), dtype=torch.float64) for i in rows]
    ).to(device)

    def draw(logits: Tensor, sentences: Tensor, made: Tensor) -> Tensor:
        # the largest first made 0, so that no temperature makes it infinite
        logits = (logits - logits.amax(-1, keepdim=True)) / max(how.temperature, torch.finfo(logits.dtype).tiny)
        if how.top_k:
            kth = logits.topk(min(how.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < kth, -math.inf)
        if how.top_p < 1:
            ranked, index = logits.sort(dim=-1, descending=True)
            p = ranked.softmax(-1)
            outside = p.cumsum(-1) - p >= how.top_p  # the token that crosses the mass stays
            logits = logits.masked_fill(outside.scatter(-1, index, outside), -math.inf)
        mass = logits.double().softmax(-1).cumsum(-1)
        u = numbers[sentences, made.clamp(0, how.max_length - 1)][:, None] * mass[:, -1:]
        return (mass <= u).sum(-1).clamp_max(logits.shape[-1] - 1)

    return draw


class Run:
    """One batch on its way: prefixes of unequal length run in lock step, a longer one forces its own next tokens."""

    def __init__(
        self,
        model: Transformer,
        starts: list[list[int]],
        memory: Memory | None,
        how: Search | Sampling,
        static: StaticDecoder | None = None,
        limits: Sequence[int] | None = None,
    ) -> None:
        self.model, self.memory, self.how, self.eos = model, memory, how, model.config.eos
        self.given, _ = pad_rows(starts, 0, _device(model))
        self.lengths = torch.tensor([len(s) for s in starts], device=self.given.device)
        self.shortest, self.longest = min(map(len, starts)), max(map(len, starts))
        self.limits = torch.tensor(limits or [how.max_length] * len(starts), device=self.given.device)
        most = int(self.limits.max())
        self.capacity = self.longest + most
        if model.config.positions == "learned" and self.capacity - 1 > model.config.seq_len:
            raise InputError(
                f"a prefix of {self.longest} and {most} new tokens exceed the {model.config.seq_len} learned "
                f"positions of this model (seq_len). Lower max_length, or shorten the prefix."
            )
        self._check_size(model.config)
        self.cache: list[LayerCache] | None = None
        if how.cache != "none":
            self.cache = model.caches(self.capacity, how.cache)
        self.static, self.started = static, False

    def _check_size(self, config: ModelConfig) -> None:
        """Refuse a beam, batch or length whose tokens, scores and caches do not fit the memory."""
        beam = self.how.beam if isinstance(self.how, Search) else 1
        kept = 0 if self.how.cache == "none" else config.depth * config.key_heads * config.head_width
        each = self.capacity * (3 * self.given.element_size() + kept * self.model.embed.W_E.element_size())
        scores = 2 * config.vocab * self.model.embed.W_E.element_size()
        need, have = len(self.given) * beam * (each + scores), free_bytes(self.given.device)
        if need > have:
            raise TooLarge(
                f"decoding {len(self.given)} texts with a beam of {beam:,} and up to {self.capacity:,} tokens needs at "
                f"least {in_words(need)}; {in_words(have)} are free. Lower the beam, max_length or the batch size."
            )

    def logits(self, tokens: Tensor) -> Tensor:
        """Scores of the next token, (rows, vocab), after `tokens` (rows, t); the cache may know all but the newest."""
        if self.static is not None and self.cache and self.cache[0].length:
            if not self.started:
                self.static.start(self.cache, self.memory, len(self.given), self.capacity)
                self.started = True
            out = self.static.logits(tokens[:, -1], tokens.shape[1] - 1)
        else:
            new = tokens[:, self.cache[0].length :] if self.cache else tokens
            out = self.model.logits(self.model.hidden(new, None, self.memory, self.cache)[:, -1])
        return out.float() if out.dtype in (torch.bfloat16, torch.float16) else out

    def without_early_end(self, logits: Tensor, made: Tensor) -> Tensor:
        """The logits (rows, ..., vocab) with the end token ruled out (in place) where the text would be too short."""
        if self.eos is not None and self.how.min_length > 1:
            early = made + 1 < self.how.min_length
            logits = logits.contiguous()  # the first step of a beam is one row seen K times
            ends = logits[..., self.eos]
            ends.masked_fill_(early.view(-1, *[1] * (ends.ndim - 1)), -math.inf)
        return logits

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows of the caches, and these sentences of the memory."""
        if self.started and self.static is not None:
            self.static.select(rows, sentences)
        else:
            for layer in self.cache or ():
                layer.select(rows)
        if sentences is not None:
            self.given, self.lengths, self.limits = (x[sentences] for x in (self.given, self.lengths, self.limits))
            if self.memory is not None and not self.started:
                self.memory = self.memory.select(sentences)

    # ------------------------------------------------------------------------------------------- greedy and sampling
    def stepwise(self, draw: Draw | None) -> list[list[Hypothesis]]:
        """One hypothesis a sentence: the likeliest token at every step, or a drawn one."""
        device = self.given.device
        tokens = self.given.new_zeros(len(self.given), self.capacity)
        tokens[:, : self.given.shape[1]] = self.given
        log_prob = torch.zeros(len(tokens), dtype=torch.float64, device=device)
        closed = torch.zeros(len(tokens), dtype=torch.bool, device=device)
        sentences = torch.arange(len(tokens), device=device)
        answers: list[list[Hypothesis]] = [[] for _ in tokens]
        t = self.shortest
        while True:
            logits = self.logits(tokens[:, :t])
            made = t - self.lengths  # generated so far
            logs = F.log_softmax(logits, -1)
            allowed = self.without_early_end(logits, made)
            choice = _argmax(allowed) if draw is None else draw(allowed, sentences, made)
            gained = logs.gather(-1, choice[:, None])[:, 0].double()
            if t < self.longest:  # some rows are still inside their prefix
                forced = made < 0
                choice = torch.where(forced, self.given[:, min(t, self.given.shape[1] - 1)], choice)
                gained = gained.masked_fill(forced, 0.0)
                running = ~forced & ~closed
            else:
                running = ~closed
            tokens[:, t] = choice
            log_prob += gained
            t += 1
            ends = running & (choice == self.eos) if self.eos is not None else torch.zeros_like(closed)
            new = ends | (running & (t - self.lengths >= self.limits))
            if not bool(new.any()):
                continue
            for row in new.nonzero()[:, 0].tolist():
                body = tokens[row, int(self.lengths[row]) : t].tolist()
                answers[int(sentences[row])] = [self.hypothesis(body, float(log_prob[row]), bool(ends[row]))]
            closed = closed | new
            gone = int(closed.sum())
            if gone == len(closed):
                return answers
            if 4 * gone >= len(closed):  # move on with the others
                keep = (~closed).nonzero()[:, 0]
                self.select(keep, keep)
                tokens, log_prob, closed, sentences = (x[keep] for x in (tokens, log_prob, closed, sentences))

    def hypothesis(self, made: list[int], log_prob: float, finished: bool) -> Hypothesis:
        how = self.how
        score = log_prob / how.normaliser(max(len(made), 1)) if isinstance(how, Search) else log_prob
        return Hypothesis(tuple(made[:-1] if finished else made), log_prob, score, finished)
