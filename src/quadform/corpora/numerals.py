"""Whole numbers from 0 to 999,999 in English, German and Korean words; torch-free.

English   American style, no "and":        123,456  one hundred twenty-three thousand four hundred fifty-six
German    one word, units before tens:     123,456  einhundertdreiundzwanzigtausendvierhundertsechsundfünfzig
Korean    Sino-Korean, grouped by 10^4:    123,456  십이만 삼천사백오십육
"""

from __future__ import annotations

from collections.abc import Callable

from quadform.core.errors import InputError

BELOW = 1_000_000
"""The first number that has no words here."""

_EN = [
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
    "seventeen",
    "eighteen",
    "nineteen",
]
_EN_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_DE = [
    "null",
    "ein",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
]
_DE_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
_KO = "영일이삼사오육칠팔구"
_KO_PLACES = ("", "십", "백", "천")


def english(n: int) -> str:
    """`n` in English words."""
    _check(n)
    thousands, rest = divmod(n, 1000)
    parts = [*(_en_below_1000(thousands), "thousand")] if thousands else []
    return " ".join([*parts, _en_below_1000(rest)] if rest or not thousands else parts)


def _en_below_1000(n: int) -> str:
    hundreds, rest = divmod(n, 100)
    parts = [f"{_EN[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        tens, unit = divmod(rest, 10)
        parts.append(_EN_TENS[tens - 2] + (f"-{_EN[unit]}" if unit else ""))
    elif rest or not hundreds:
        parts.append(_EN[rest])
    return " ".join(parts)


def german(n: int) -> str:
    """`n` in German words; a final 1 is "eins", inside a word it is "ein"; "einhundert" and "eintausend" in full."""
    _check(n)
    thousands, rest = divmod(n, 1000)
    front = _de_below_1000(thousands) + "tausend" if thousands else ""
    word = front + (_de_below_1000(rest) if rest or not thousands else "")
    return word + "s" if rest % 100 == 1 else word


def _de_below_1000(n: int) -> str:
    hundreds, rest = divmod(n, 100)
    front = f"{_DE[hundreds]}hundert" if hundreds else ""
    if rest >= 20:
        tens, unit = divmod(rest, 10)
        return front + (f"{_DE[unit]}und" if unit else "") + _DE_TENS[tens - 2]
    return front + (_DE[rest] if rest or not hundreds else "")


def korean(n: int) -> str:
    """`n` in Sino-Korean words; a space after 만 (10^4), and no 일 (1) before 십, 백, 천 and a lone 만."""
    _check(n)
    myriads, rest = divmod(n, 10_000)
    front = ("" if myriads == 1 else _ko_below_10000(myriads)) + "만" if myriads else ""
    return " ".join(part for part in (front, _ko_below_10000(rest)) if part) or _KO[0]


def _ko_below_10000(n: int) -> str:
    digits = [(place, n // 10**place % 10) for place in (3, 2, 1, 0)]
    return "".join(("" if d == 1 and place else _KO[d]) + _KO_PLACES[place] for place, d in digits if d)


LANGUAGES: dict[str, Callable[[int], str]] = {"en": english, "de": german, "ko": korean}


def _check(n: int) -> None:
    if not 0 <= n < BELOW:
        raise InputError(f"number words go from 0 to {BELOW - 1:,}; got {n:,}.")
