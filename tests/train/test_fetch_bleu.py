"""BLEU and chrF: sacrebleu's numbers, a named way of cutting words, a standard error that means something."""

from __future__ import annotations

import pytest
import torch

from quadform.core.errors import InputError
from quadform.corpora.datasets import dataset
from quadform.corpora.fetch import build
from quadform.nn.decode import Search
from quadform.nn.transformer import Transformer
from quadform.train.bleu import score_model, score_translations, translate

sacrebleu = pytest.importorskip("sacrebleu")
REFERENCES = [f"the option {i} may not be used with the other option {i % 3}." for i in range(30)]
HYPOTHESES = [r.replace("may", "can") if i % 2 else r for i, r in enumerate(REFERENCES)]


def test_scores_are_sacrebleus():
    """BLEU and chrF equal sacrebleu.corpus_bleu and corpus_chrf."""
    score = score_translations(HYPOTHESES, REFERENCES, "de")
    assert score.bleu.value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert score.chrf.value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert "tok:13a" in score.signature["bleu"]
    assert str(score).startswith("BLEU ")


def test_korean_puts_chrf_first_and_cuts_characters():
    """13a does not know where a Korean word ends: BLEU counts characters and says so, chrF is named first."""
    score = score_translations(["옵션을 사용할 수 없습니다."], ["옵션은 사용할 수 없습니다."], "ko")
    assert "tok:char" in score.signature["bleu"]
    assert score.first == "chrf"
    assert str(score).startswith("chrF ")


def test_standard_error_falls_with_the_number_of_sentences():
    """Four times as many sentences: half the standard error, within a third."""
    few = score_translations(HYPOTHESES, REFERENCES)
    many = score_translations(HYPOTHESES * 4, REFERENCES * 4)
    assert few.bleu.stderr > 0
    assert many.bleu.stderr / few.bleu.stderr == pytest.approx(0.5, rel=1 / 3)
    assert score_translations(REFERENCES, REFERENCES).bleu.value == pytest.approx(100)


def test_standard_error_is_that_of_resampled_sentences():
    """It equals the standard deviation of BLEU over 300 draws of the sentences made here, within a fifth."""
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(300):
        rows = torch.randint(len(REFERENCES), (len(REFERENCES),), generator=generator).tolist()
        draws.append(sacrebleu.corpus_bleu([HYPOTHESES[i] for i in rows], [[REFERENCES[i] for i in rows]]).score)
    spread = float(torch.tensor(draws).std())
    assert score_translations(HYPOTHESES, REFERENCES).bleu.stderr == pytest.approx(spread, rel=0.2)


def test_few_matches_have_a_standard_error_too():
    """Resamples without any match beside others with some: scored, with an error that is not zero."""
    score = score_translations(["", "", "", "a b c d e"], ["x y", "z w", "u v", "a b c d f"])
    assert (
        score.bleu.value == sacrebleu.corpus_bleu(["", "", "", "a b c d e"], [["x y", "z w", "u v", "a b c d f"]]).score
    )
    assert score.bleu.stderr > 0
    assert score.chrf.stderr > 0


def test_unequal_numbers_are_refused():
    """Each translation needs its reference."""
    with pytest.raises(InputError, match="2 translations and 1 references"):
        score_translations(["a", "b"], ["a"])
    with pytest.raises(InputError, match="not 0"):
        score_translations([], [])


def test_a_model_is_scored_on_the_whole_split(tmp_path):
    """score_model: every sentence of the split, decoded and put together to text, against its reference."""
    lines = [f"g{i}\t{'a b c d'[: 1 + 2 * (i % 4)]} {i}\t{'x y z w'[: 1 + 2 * (i % 4)]} {i}" for i in range(80)]
    (tmp_path / "p.tsv").write_text("\n".join(lines))
    data = dataset(str(build([tmp_path / "p.tsv"], tmp_path / "d", held=4).folder), pieces=0, longest=12)
    torch.manual_seed(0)
    model = Transformer("pre-ln", depth=1, d_model=16, heads=2, **data.settings)
    score = score_model(model, data, split="test", how=Search(beam=2, max_length=8))
    assert score.references == tuple(target for _, target in data.texts("test"))
    assert list(score.hypotheses) == translate(model, data, score.sources, Search(beam=2, max_length=8))
    assert score.bleu.value == sacrebleu.corpus_bleu(list(score.hypotheses), [list(score.references)]).score
