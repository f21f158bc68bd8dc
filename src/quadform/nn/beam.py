"""Beam search over a batch of sentences; the rules it follows are written in `quadform.nn.decode`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from .decode import Hypothesis, Run, Search


@dataclass(frozen=True)
class Grown:
    """One step of a beam, (sentences, beam) each: the hypotheses that are kept, and those that ended (where `ends`).

    `log_prob` is summed over the tokens so far; `parent` counts among the kept hypotheses of the step before.
    """

    log_prob: Tensor
    parent: Tensor
    token: Tensor
    ends: Tensor
    ended_log_prob: Tensor
    ended_parent: Tensor


def beam_search(run: Run, how: Search, watch: Callable[[Grown], None] | None = None) -> list[list[Hypothesis]]:
    """Beam search, all sentences at once; the bookkeeping of ended hypotheses is vectorised too.

    `watch` is told of every step.
    """
    device = run.given.device
    K, B = how.beam, len(run.given)
    tokens = run.given.new_zeros(B, K, run.capacity)
    tokens[:, :, : run.given.shape[1]] = run.given[:, None]
    score = torch.full((B, K), -math.inf, dtype=torch.float64, device=device)
    score[:, 0] = 0.0
    pool = Pool(B, K, run.capacity, device)
    sentences = torch.arange(B, device=device)
    answers: list[list[Hypothesis]] = [[] for _ in range(B)]
    t = run.shortest
    penalties = torch.tensor(
        [1.0, *(how.normaliser(n) for n in range(1, run.capacity + 1))], dtype=torch.float64, device=device
    )
    while True:
        B = len(tokens)
        if t == run.shortest:  # one row a sentence so far: the prefix runs once, then spreads over the beam
            logits = run.logits(tokens[:, 0, :t])[:, None].expand(B, K, -1)
            run.select(torch.arange(B, device=device).repeat_interleave(K))
        else:
            logits = run.logits(tokens[:, :, :t].flatten(0, 1)).view(B, K, -1)
        made = t - run.lengths
        forced = made < 0 if t < run.longest else None
        score, parent, choice, ends = _candidates(run, logits, score, made)
        if watch is not None:
            watch(Grown(score, parent, choice, *(ends or (torch.zeros_like(choice, dtype=torch.bool), score, parent))))
        n = (made + 1).clamp_min(1)
        if ends is not None and bool(ends[0].any()):
            hits, values, rows = ends
            if forced is not None:
                hits = hits & ~forced[:, None]
            pool.add(hits, values, values / penalties[n][:, None], rows, tokens, t, run.eos, n, True)
        if forced is not None:
            choice = torch.where(forced[:, None], run.given[:, min(t, run.given.shape[1] - 1)][:, None], choice)
            alone = torch.full_like(score, -math.inf)
            alone[:, 0] = 0.0
            score = torch.where(forced[:, None], alone, score)
        tokens = tokens.gather(1, parent[:, :, None].expand_as(tokens))
        tokens[:, :, t] = choice
        t += 1
        limit = n >= run.limits if forced is None else (n >= run.limits) & ~forced
        done = limit | _proved(how, score, pool, n, penalties, run.limits)
        if how.stop == "count":
            done = done | (pool.count >= K)
        rows = parent + K * torch.arange(B, device=device)[:, None]
        if not bool(done.any()):
            run.select(rows.flatten())
            continue
        over = (limit & done)[:, None] & (score > -math.inf)
        pool.add(
            over,
            score,
            score / penalties[n][:, None],
            torch.arange(K, device=device).expand(B, K),
            tokens,
            t,
            None,
            n,
            False,
        )
        for b in done.nonzero()[:, 0].tolist():
            answers[int(sentences[b])] = _best(run, how, pool, b, int(run.lengths[b]))
        keep = (~done).nonzero()[:, 0]
        if not len(keep):
            return answers
        run.select(rows[keep].flatten(), keep)
        tokens, score, sentences = tokens[keep], score[keep], sentences[keep]
        pool.select(keep)


def _candidates(run: Run, logits: Tensor, score: Tensor, made: Tensor):
    """The K best continuations that do not end: their log-probabilities, parents and tokens (B, K); and the ended.

    Ended is None without an end token, else (hits, log-probabilities, parents): those among the K best candidates.
    """
    K, V = logits.shape[1:]
    lse = logits.logsumexp(-1, keepdim=True)
    logits = run.without_early_end(logits, made)
    most = min(V, K + 1 if run.eos is not None else K)
    top, index = logits.topk(most, dim=-1)
    total = (score[:, :, None] + (top - lse).double()).flatten(1)
    total, order = total.topk(min(2 * K, total.shape[1]), dim=-1)
    parent, choice = order // most, index.flatten(1).gather(1, order)
    if total.shape[1] < 2 * K:  # a vocabulary smaller than the beam needs: dead candidates fill up
        short = 2 * K - total.shape[1]
        total, parent, choice = (
            F.pad(total, (0, short), value=-math.inf),
            F.pad(parent, (0, short)),
            F.pad(choice, (0, short)),
        )
    if run.eos is None:
        return total[:, :K], parent[:, :K], choice[:, :K], None
    ended = (choice == run.eos) & (total > -math.inf)
    ends = ended[:, :K], total[:, :K], parent[:, :K]
    live = total.masked_fill(ended, -math.inf)
    live, order = live.sort(dim=-1, descending=True, stable=True)
    order = order[:, :K]
    return live[:, :K], parent.gather(1, order), choice.gather(1, order), ends


def _proved(how: Search, score: Tensor, pool: Pool, n: Tensor, penalties: Tensor, limits: Tensor) -> Tensor:
    """Sentences whose n_best-th ended score no live hypothesis can pass any more."""
    best = score.amax(1)
    reach = best / penalties[limits if how.alpha >= 0 else (n + 1).clamp_max(len(penalties) - 1)]
    return pool.score[:, how.n_best - 1] >= reach


def _best(run: Run, how: Search, pool: Pool, b: int, start: int) -> list[Hypothesis]:
    found = []
    for j in range(how.n_best):
        if pool.score[b, j] == -math.inf:
            break
        made = pool.tokens[b, j, start : start + int(pool.length[b, j])].tolist()
        found.append(run.hypothesis(made, float(pool.log_prob[b, j]), bool(pool.finished[b, j])))
    return found


class Pool:
    """The K best ended hypotheses of every sentence, best first."""

    def __init__(self, B: int, K: int, capacity: int, device: torch.device) -> None:
        self.score = torch.full((B, K), -math.inf, dtype=torch.float64, device=device)
        self.log_prob = self.score.clone()
        self.length = torch.zeros(B, K, dtype=torch.long, device=device)
        self.finished = torch.zeros(B, K, dtype=torch.bool, device=device)
        self.tokens = torch.zeros(B, K, capacity, dtype=torch.long, device=device)
        self.count = torch.zeros(B, dtype=torch.long, device=device)

    def add(self, hits, log_prob, score, parents, tokens, t: int, last: int | None, n, finished: bool) -> None:
        """Merge the hypotheses `hits` (B, K): `tokens` of their parents up to t, then the token `last` if any."""
        K = self.score.shape[1]
        new = tokens.gather(1, parents[:, :, None].expand(-1, -1, tokens.shape[2]))
        if last is not None:
            new[:, :, t] = last
        score = score.masked_fill(~hits, -math.inf)
        joined = torch.cat((self.score, score), 1)
        self.score, order = joined.sort(dim=1, descending=True, stable=True)
        self.score, order = self.score[:, :K], order[:, :K]
        pairs = {
            "log_prob": log_prob,
            "length": n[:, None].expand_as(hits),
            "finished": torch.full_like(hits, finished),
        }
        for name, value in pairs.items():
            setattr(self, name, torch.cat((getattr(self, name), value), 1).gather(1, order))
        self.tokens = torch.cat((self.tokens, new), 1).gather(1, order[:, :, None].expand(-1, -1, new.shape[2]))
        if finished:
            self.count += hits.sum(1)

    def select(self, keep: Tensor) -> None:
        for name in ("score", "log_prob", "length", "finished", "tokens", "count"):
            setattr(self, name, getattr(self, name)[keep])
