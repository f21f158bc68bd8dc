"""How good a translation is: BLEU and chrF of sacrebleu, with their standard errors.

BLEU counts words, so it depends on how words are cut; the cut is named beside the number (`signature`). Korean,
Japanese and Chinese are not cut at blanks: there chrF comes first, and BLEU counts characters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quadform.core.errors import InputError, needing
from quadform.core.record import Estimate
from quadform.corpora.opened import ParallelText, encode_all
from quadform.nn.decode import Search, generate
from quadform.nn.tokens import EOS
from quadform.nn.transformer import Transformer

_BOOTSTRAP = 1000
_BY_CHARACTER = ("ko", "ja", "zh")


@dataclass(frozen=True)
class TranslationScore:
    """Corpus scores from 0 to 100 and how they were counted; `first` names the one to look at for this language."""

    bleu: Estimate
    chrf: Estimate
    signature: dict[str, str]
    first: str = "bleu"
    hypotheses: tuple[str, ...] = field(default=(), repr=False)
    references: tuple[str, ...] = field(default=(), repr=False)
    sources: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        shown = {"bleu": f"BLEU {_text(self.bleu)}", "chrf": f"chrF {_text(self.chrf)}"}
        order = (self.first, "chrf" if self.first == "bleu" else "bleu")
        return f"{', '.join(shown[name] for name in order)}   ({self.signature['bleu']})"


def _text(e: Estimate) -> str:
    return f"{e.value:.1f} ± {e.stderr:.1f}"


def score_translations(hypotheses: Sequence[str], references: Sequence[str], language: str = "") -> TranslationScore:
    """BLEU and chrF of translations into a language ("de"; decides how BLEU cuts words: 13a, or characters).

    The standard error is that of resampling sentences: half of sacrebleu's 95 % interval of 1000 draws, over 1.96.
    """
    with needing("BLEU and chrF"):
        from sacrebleu.metrics import BLEU, CHRF
    if len(hypotheses) != len(references) or not references:
        raise InputError(f"{len(hypotheses)} translations and {len(references)} references: give equally many, not 0.")
    characters = language[:2] in _BY_CHARACTER
    metrics = {"bleu": _plain(BLEU)(tokenize="char" if characters else "13a"), "chrf": _plain(CHRF)()}
    values: dict[str, Any] = {}
    signature: dict[str, str] = {}
    for name, metric in metrics.items():
        score = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=_BOOTSTRAP)
        signature[name] = str(metric.get_signature())
        body = json.loads(score.format(width=8, signature=signature[name], is_json=True))
        stderr = body.get("confidence_var", 0.0) / 1.96  # there is none beside a mean of 0
        values[name] = Estimate(score.score, stderr if len(references) > 1 else math.inf, "estimate")
    return TranslationScore(
        **values,
        signature=signature,
        first="chrf" if characters else "bleu",
        hypotheses=tuple(hypotheses),
        references=tuple(references),
    )


def _plain(metric: type[Any]) -> Any:
    """The metric with scores that are floats: a resample without a match is 0.0, others are numpy.float32, and
    sacrebleu's mean takes no list of both.
    """

    class Plain(metric):
        def _compute_score_from_stats(self, stats: Any) -> Any:
            score = super()._compute_score_from_stats(stats)
            score.score = float(score.score)
            return score

    return Plain


def translate(
    model: Transformer, data: ParallelText, texts: Sequence[str], how: Search | None = None, *, batch_size: int = 64
) -> list[str]:
    """The model's translations of texts; an input longer than the data's `longest` tokens is cut off there."""
    how = Search(max_length=data.longest + 1) if how is None else how
    inputs = [[*ids[: data.longest], EOS] for ids in encode_all(data.tokenizer, list(texts))]
    return [data.tokenizer.decode(best[0].tokens) for best in generate(model, inputs, how, batch_size=batch_size)]


def score_model(
    model: Transformer,
    data: ParallelText,
    *,
    split: str = "valid",
    count: int | None = None,
    how: Search | None = None,
    seed: int = 0,
    batch_size: int = 64,
) -> TranslationScore:
    """BLEU and chrF of a model on `count` sentences of a split (None: all of it), decoded as `how` says (greedy)."""
    pairs = data.sentences(split, count, seed)
    found = translate(model, data, [source for source, _ in pairs], how, batch_size=batch_size)
    score = score_translations(found, [target for _, target in pairs], data.language)
    return replace(score, sources=tuple(source for source, _ in pairs))
