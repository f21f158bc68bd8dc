"""Formulas in words: `lambda_max`, `H_f`, `X^6`, `1e-3` set with symbols, subscripts and exponents.

Figures and sentences are written with the names of the code. Whatever shows them passes its text through here, so that
they read like those of a paper, and the same names stand in tables, tests and code.
"""

from __future__ import annotations

import html
import re
from typing import Literal

Kind = Literal["plain", "symbol", "sub", "sup"]

_GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "eta": "η", "theta": "θ", "lambda": "λ", "mu": "μ", "rho": "ρ",
    "sigma": "σ", "Sigma": "Σ", "Omega": "Ω",
}  # fmt: skip
_SIGNS = {"+-": "±", "<=": "≤", ">=": "≥", "<<": "≪", ">>": "≫", "->": "→", "sqrt(": "√("}
#: A symbol (a letter, or a Greek one by name), a number that is raised, or `log10`; then what stands below and above.
_FORMULA = re.compile(
    rf"(?<![\w^])(?:(?P<base>{'|'.join(_GREEK)}|[A-Za-zα-ωΑ-Ω](?=[_^])|10(?=\^)|log(?=10\b))"
    r"(?:(?<=log)(?P<ten>10)|_(?P<sub>−?[A-Za-z0-9]+))?(?:\^(?P<sup>-\d+/\d+|-?\d+(?:\.\d+)?|[A-Za-z]\b|\([^()]*\)))?"
    r"|1e(?P<exponent>-?\d+))(?![A-Za-z_])"
)

#: Longer indices in sentences are names of the code (`d_model`, `c_attn`).
LONGEST_INDEX = 3


def runs(text: str) -> list[tuple[Kind, str]]:
    """The text as pieces, each on the line, a symbol (drawn slanted), below the line or above it."""
    for name, sign in _SIGNS.items():
        text = text.replace(name, sign)
    found: list[tuple[Kind, str]] = []
    end = 0
    for m in _FORMULA.finditer(text):
        base = m["base"] or "10"
        pieces: list[tuple[Kind, str | None]] = [
            ("plain", text[end : m.start()]),
            ("plain" if base in ("10", "log") else "symbol", _GREEK.get(base, base)),
            ("sub", m["sub"] or m["ten"]),
            ("sup", (m["sup"] or m["exponent"] or "").strip("()").replace("-", "−")),
        ]
        found += [(kind, piece) for kind, piece in pieces if piece]
        end = m.end()
    return [*found, *([("plain", text[end:])] if text[end:] else [])]  # type: ignore[list-item]  # a literal


def typeset(svg: str) -> str:
    """A picture with the formulas of its words set."""
    return re.sub(r"(<text\b[^>]*>)([^<]+)(</text>)", lambda m: m[1] + _spans(m[1], m[2]) + m[3], svg)


def _spans(tag: str, escaped: str) -> str:
    pieces = runs(html.unescape(escaped))
    size = re.search(r'font-size="([\d.]+)', tag)
    em, level, out = float(size[1]) if size else 12.0, 0.0, ""
    for kind, piece in pieces:
        wanted = {"sub": 0.22, "sup": -0.36}.get(kind, 0.0) * em
        told = f' dy="{wanted - level:.2f}"' if wanted != level else ""
        told += f' font-size="{0.75 * em:.4g}px"' if kind in ("sub", "sup") else ""
        told += ' font-style="italic"' if kind == "symbol" else ""
        level = wanted
        words = html.escape(piece, quote=False)
        out += f"<tspan{told}>{words}</tspan>" if told else words
    return out


def words(text: str) -> str:
    """A sentence as HTML with its formulas set. Its text stays: `_` and `^` are copied and read out, and not seen.

    No line ends inside a formula or before the exponent of a number.
    """
    out, end = "", 0
    for m in _FORMULA.finditer(text):
        if len(m["base"] or "") == 1 and (m["sub"] or m["sup"]) and len(m["sub"] or "") <= LONGEST_INDEX:
            out += _plain(text[end : m.start()]) + _set(m)
            end = m.end()
    return out + _plain(text[end:])


def _plain(text: str) -> str:
    return re.sub(r"\b[\d.]+e-\d+", r'<span class="formula">\g<0></span>', html.escape(text))


def _set(m: re.Match[str]) -> str:
    below = f"{_hidden('_')}<sub>{m['sub']}</sub>" if m["sub"] else ""
    return f'<span class="formula"><i>{m["base"]}</i>{below}{_raised(m["sup"]) if m["sup"] else ""}</span>'


def _raised(sup: str) -> str:
    opened, closed = ("(", ")") if sup[0] == "(" else ("", "")
    return f"{_hidden('^' + opened)}<sup>{sup.strip('()')}</sup>{_hidden(closed)}"


def _hidden(mark: str) -> str:
    return f'<span class="unseen">{mark}</span>' if mark else ""
