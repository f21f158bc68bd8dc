"""Data sets: formats, splits, streams that can be taken up anywhere, number words."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.core.errors import InputError, UnknownName
from quadform.corpora import dataset
from quadform.corpora.datasets import DATASETS, Addition, Letters, NumberWords, equal_cuts, in_split, part_of
from quadform.corpora.numerals import LANGUAGES, english, german, korean
from quadform.corpora.running import StandardLibrary
from quadform.nn import Transformer
from quadform.nn.transformer import IGNORE

SMALL = {"pystdlib": {"limit": 4000, "seq_len": 16}}


def take(data, count, split="train", batch_size=8, seed=0, start=0):
    return list(itertools.islice(data.batches(split, batch_size, seed, start), count))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ------------------------------------------------------------------------------------------------------ every data set
@pytest.mark.parametrize("name", DATASETS)
def test_stream_is_a_function_of_its_index(name):
    """Batch i of a stream begun at 0 is batch 0 of the stream begun at i; another seed gives other batches."""
    data = dataset(name, **SMALL.get(name, {}))
    whole = take(data, 20)
    for start in (13, 17):
        assert all(same(a, b) for a, b in zip(whole[start:], take(data, 20 - start, start=start), strict=True))
    assert not same(whole[0], take(data, 1, seed=1)[0])
    assert not any(same(a, b) for a, b in itertools.combinations(whole, 2))


@pytest.mark.parametrize("name", DATASETS)
def test_model_of_the_settings_has_a_loss(name):
    """A model made with `data.settings` takes the batches; tokens lie in the vocabulary and rows in seq_len."""
    data = dataset(name, **SMALL.get(name, {}))
    model = Transformer("pre-ln", depth=1, d_model=8, heads=1, **data.settings)
    for batch in take(data, 3):
        assert torch.isfinite(model.loss(batch))
        assert all(batch[k].shape[1] <= model.config.seq_len for k in ("tokens", "source", "target") if k in batch)


@pytest.mark.parametrize("data", [Addition(digits=2), Letters(letters=3, longest=4), NumberWords(digits=3)])
def test_splits_are_disjoint(data):
    """No question of one split is in another, whatever the seed; the shares of the hash are 1/20, 1/20, 18/20."""
    asked = {s: {tuple(q) for q, _ in data.questions(s, 60, seed)} for s, seed in (("valid", 1), ("test", 2))}
    asked["train"] = {tuple(q) for q, _ in data.questions("train", 1000, 3)}
    for a, b in itertools.combinations(asked, 2):
        assert not asked[a] & asked[b]


def test_parts_of_the_hash_are_equal():
    """The 20 parts hold equally many numbers: each within five standard deviations of n/20."""
    n = 100_000
    counts = part_of(torch.arange(n)[:, None]).bincount(minlength=20)
    assert len(counts) == 20
    assert ((counts - n / 20).abs() < 5 * (n / 20 * 19 / 20) ** 0.5).all()
    rows = torch.arange(n)[:, None]
    assert (in_split(rows, "train").int() + in_split(rows, "valid").int() + in_split(rows, "test").int() == 1).all()


def test_errors_say_what_to_do():
    """Unknown names, splits and sizes are refused by name."""
    with pytest.raises(UnknownName, match="Did you mean `reverse`"):
        dataset("revers")
    with pytest.raises(UnknownName, match="valid"):
        take(Addition(), 1, split="validation")
    with pytest.raises(InputError, match="colour"):
        dataset("copy", colour=3)
    for name, wrong in (("add", {"digits": 2.5}), ("reverse", {"longest": 2.5}), ("pystdlib", {"seq_len": 3.5})):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} is a whole number"):
            dataset(name, **wrong)
    with pytest.raises(InputError, match="Lower classes or seq_len"):
        next(dataset("packages", seq_len=10**7).batches("train", 1))
    alone = Letters(letters=1, longest=1)  # one example: valid or test, or both, have none
    with pytest.raises(InputError, match="too few"):
        [take(alone, 1, split=split) for split in ("valid", "test")]
    with pytest.raises(InputError, match="no right answers"):
        StandardLibrary(limit=4000).questions("valid", 1)


# ----------------------------------------------------------------------------------------------------------- addition
@given(
    digits=st.integers(1, 17), reverse=st.booleans(), seed=st.integers(0, 99), split=st.sampled_from(("all", "train"))
)
def test_addition_is_right(digits, reverse, seed, split):
    """Every row reads a+b=c with a + b = c (Python's integers), and the labels are c one position earlier."""
    (batch,) = take(Addition(digits=digits, reverse=reverse), 1, split, 16, seed)
    for row, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True):
        text = "".join("0123456789+="[t] for t in row)
        a, b, c = re.fullmatch(rf"(\d{{{digits}}})\+(\d{{{digits}}})=(\d{{{digits + 1}}})", text).groups()
        assert int(a) + int(b) == int(c[::-1] if reverse else c)
        assert labels == [IGNORE] * (2 * digits + 1) + row[2 * digits + 2 :] + [IGNORE]


def test_one_batch_in_five_has_more_nines():
    """Share of digit pairs with sum 9: 1/10 in plain batches; 1/5 + 4/5 * 1/10 = 0.28 in one batch in five."""
    data, n = Addition(digits=5), 64 * 5
    shares = []
    for batch in take(data, 300, "all", 64):
        a, b = batch["tokens"][:, :5], batch["tokens"][:, 6:11]
        shares.append(((a + b) == 9).float().mean().item())
    shares = torch.tensor(shares)
    many = shares > 0.19
    assert abs(many.float().mean() - 0.2) < 5 * (0.2 * 0.8 / 300) ** 0.5
    assert abs(shares[many].mean() - 0.28) < 5 * (0.8 * 0.1 * 0.9 / n / many.sum()) ** 0.5
    assert abs(shares[~many].mean() - 0.1) < 5 * (0.1 * 0.9 / n / (~many).sum()) ** 0.5
    assert (
        max(
            ((b["tokens"][:, :5] + b["tokens"][:, 6:11]) == 9).float().mean()
            for b in take(Addition(nines=False), 99, "all", 64)
        )
        < 0.19
    )


# -------------------------------------------------------------------------------------------------------------- pairs
@pytest.mark.parametrize(("task", "rule"), [("copy", list), ("reverse", lambda w: w[::-1]), ("sort", sorted)])
def test_letters(task, rule):
    """The answer is the copied, reversed or sorted word; lengths 1 to `longest` all occur."""
    asked = Letters(task=task, longest=6).questions("train", 300)
    assert all(answer == rule(question[:-1]) for question, answer in asked)
    assert {len(answer) for _, answer in asked} == set(range(1, 7))


@given(st.lists(st.integers(0, 40), min_size=4, max_size=60), st.integers(1, 4))
def test_cuts_are_even(sizes, parts):
    """Runs are non-empty, keep the order, and hold total/parts tokens up to one sentence at each end."""
    pairs = [([0] * n, [0]) for n in sorted(sizes)]
    cuts = equal_cuts(pairs, parts)
    assert list(itertools.chain(*cuts)) == pairs
    assert len(cuts) == parts
    assert all(cuts)
    if len(sizes) >= 4 * parts:
        total, longest = sum(sizes) + len(sizes), max(sizes) + 1
        assert all(sum(len(s) + 1 for s, _ in cut) <= total / parts + 2 * longest for cut in cuts)


def test_batches_are_bucketed():
    """Sorting by length leaves little padding, and batches hold like numbers of tokens."""
    real = padded = 0
    tokens = []
    for batch in take(Letters(), 32, batch_size=32):
        mask = batch["target"] != 0
        real, padded = real + int(mask.sum()), padded + mask.numel()
        tokens.append(int(mask.sum() + batch["source_mask"].sum()))
        assert torch.equal(batch["source_mask"], batch["source"] != 0)
    assert real / padded > 0.93
    assert max(tokens) < 1.3 * min(tokens)


# ------------------------------------------------------------------------------------------------------- number words
KNOWN = {
    0: ("zero", "null", "영"),
    1: ("one", "eins", "일"),
    10: ("ten", "zehn", "십"),
    16: ("sixteen", "sechzehn", "십육"),
    17: ("seventeen", "siebzehn", "십칠"),
    21: ("twenty-one", "einundzwanzig", "이십일"),
    30: ("thirty", "dreißig", "삼십"),
    76: ("seventy-six", "sechsundsiebzig", "칠십육"),
    100: ("one hundred", "einhundert", "백"),
    101: ("one hundred one", "einhunderteins", "백일"),
    111: ("one hundred eleven", "einhundertelf", "백십일"),
    1000: ("one thousand", "eintausend", "천"),
    1001: ("one thousand one", "eintausendeins", "천일"),
    10_000: ("ten thousand", "zehntausend", "만"),
    11_111: ("eleven thousand one hundred eleven", "elftausendeinhundertelf", "만 천백십일"),
    20_300: ("twenty thousand three hundred", "zwanzigtausenddreihundert", "이만 삼백"),
    101_000: ("one hundred one thousand", "einhunderteintausend", "십만 천"),
    110_001: ("one hundred ten thousand one", "einhundertzehntausendeins", "십일만 일"),
    123_456: (
        "one hundred twenty-three thousand four hundred fifty-six",
        "einhundertdreiundzwanzigtausendvierhundertsechsundfünfzig",
        "십이만 삼천사백오십육",
    ),
}


@pytest.mark.parametrize("n", KNOWN)
def test_known_words(n):
    """Words written by hand."""
    assert (english(n), german(n), korean(n)) == KNOWN[n]


def read_english(text):
    ones = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
    ]
    ones += ["seventeen", "eighteen", "nineteen"]
    values = {w: i for i, w in enumerate(ones)}
    values |= {
        w: 10 * i
        for i, w in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
    }
    total = group = 0
    for word in re.split("[ -]", text):
        if word == "thousand":
            total, group = 1000 * group, 0
        else:
            group = 100 * group if word == "hundred" else group + values[word]
    return total + group


def read_german(word):
    for unit, size in (("tausend", 1000), ("hundert", 100)):
        if unit in word:
            front, rest = word.split(unit)
            return read_german(front) * size + (read_german(rest) if rest else 0)
    tens = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
    ones = ["null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
    if "und" in word:
        unit, ten = word.split("und")
        return ones.index(unit) + 10 * tens.index(ten) + 20
    if word in tens:
        return 10 * tens.index(word) + 20
    teens = {"dreizehn": 13, "vierzehn": 14, "fünfzehn": 15, "sechzehn": 16, "siebzehn": 17, "achtzehn": 18}
    return {**teens, "neunzehn": 19, "eins": 1}.get(word) or ones.index(word)


def read_korean(text):
    total = group = digit = 0
    for c in text.replace(" ", ""):
        if c == "만":
            total, group, digit = 10_000 * (group + digit or 1), 0, 0
        elif c in "십백천":
            group, digit = group + (digit or 1) * 10 ** ("십백천".index(c) + 1), 0
        else:
            digit = "영일이삼사오육칠팔구".index(c)
    return total + group + digit


@pytest.mark.parametrize(("language", "read"), [("en", read_english), ("de", read_german), ("ko", read_korean)])
def test_words_read_back(language, read):
    """Reading the words by an independent rule gives the number, for all below 2,000 and every 211th to 999,999."""
    for n in (*range(2000), *range(2000, 10**6, 211), 999_999):
        assert read(LANGUAGES[language](n)) == n


@pytest.mark.parametrize(
    ("to", "digits", "pieces"), [("ko", 6, 0), ("de", 6, 0), ("ko", 2, 0), ("de", 4, 300), ("de", 5, 261)]
)
def test_number_words_are_encoded_whole(to, digits, pieces):
    """Source and answer decode to the English and the other words: no unknown character; none longer than seq_len."""
    if pieces:
        pytest.importorskip("tokenizers")
    data = NumberWords(to=to, digits=digits, pieces=pieces)
    for source, answer in data.questions("all", 200):
        n = read_english(data.tokenizer.decode(source))
        assert data.tokenizer.decode(answer) == LANGUAGES[to](n)
        assert n < 10**digits
    numbers = (*range(3, 10**digits, 37), 757_757 % 10**digits)
    longest = max(len(data._pair([n])[side]) for n in numbers for side in (0, 1))
    assert data.settings["seq_len"] >= longest + 2


# ------------------------------------------------------------------------------------------------------------- corpus
def test_standard_library_windows():
    """Windows are runs of the split's bytes, and no file is in two splits."""
    data = StandardLibrary(limit=20_000, seq_len=32)
    text = bytes((data.stream_of("valid") - 5).clamp_min(0).to(torch.uint8).tolist())
    for row in take(data, 1, "valid")[0]["tokens"]:
        assert bytes((row - 5).clamp_min(0).to(torch.uint8).tolist()) in text
    train, valid = (set(StandardLibrary().texts(s)) for s in ("train", "valid"))
    assert len(train) > 10 * len(valid) > 0
    assert not {t for t in train & valid if len(t) > 200}
    assert "Python" in data.version


def test_standard_library_pieces():
    """Sub-word pieces need fewer tokens than bytes and decode to the same text."""
    pytest.importorskip("tokenizers")
    data = StandardLibrary(limit=20_000, pieces=400)
    assert len(data.stream_of("train")) < 0.7 * len(StandardLibrary(limit=20_000).stream_of("train"))
    assert data.tokenizer.decode(data.tokenizer.encode(data.texts("train")[0])) == data.texts("train")[0]
