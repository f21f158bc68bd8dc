"""The formula of every block, in the symbols of theory/, and which numbers stand behind its symbols.

Per token n: x the token, q = W_Q^T x, m = M1 the mean key, s = 1 / (t sqrt(d_K)), g = dl/dF, N = M3 contracted with
W_V g, u = M2 W_V g. Source: [ODS25, Thms 3.1, 3.2] in the moment form of `theory.attention`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ..answers.live import LiveAnswer
from ..answers.numbers import number
from ..report.typeset import Kind, runs

_J = {
    "W_Q": "J_Q = xᵀ ⊗ s W_Vᵀ M2 W_K",
    "W_K": "J_K = s W_Vᵀ M2 ⊗ qᵀ",
    "W_QK": "J_QK = xᵀ ⊗ s W_Vᵀ M2",
    "W_V": "J_V = mᵀ ⊗ I",
}
_SOFTMAX = {
    "W_Q,W_Q": "s² Σ x xᵀ ⊗ W_Kᵀ N W_K",
    "W_K,W_K": "s² Σ N ⊗ q qᵀ",
    "W_Q,W_K": "s² Σ x qᵀ ⊗ W_Kᵀ N + G ⊗ I,   G = s Σ x uᵀ = ∂L/∂(W_Q W_Kᵀ)",
    "W_V,W_Q": "s Σ M2 W_K ⊗ g xᵀ",
    "W_V,W_K": "s Σ M2 ⊗ g qᵀ",
    "W_QK,W_QK": "s² Σ x xᵀ ⊗ N",
    "W_V,W_QK": "s Σ M2 ⊗ g xᵀ",
    "W_V,W_V": "0",
}
_LINEAR = {
    "W_Q,W_Q": "0",
    "W_K,W_K": "0",
    "W_V,W_V": "0",
    "W_Q,W_K": "s (Γ W_Vᵀ G2) ⊗ I,   Γ = Σ x gᵀ",
    "W_V,W_Q": "s G2 W_K ⊗ Γᵀ,   Γ = Σ x gᵀ",
    "W_V,W_K": "s G2 ⊗ (W_Qᵀ Γ)ᵀ,   Γ = Σ x gᵀ",
}
#: Symbol in a formula -> (scalar of the record, how it is written).
_NUMBERS = {
    "s": ("ingredient/sc", "s"),
    "M2": ("moment/M2", "‖M2‖"),
    "N": ("moment/M3", "‖M3‖"),
    "m": ("ingredient/m", "‖m‖"),
    "G2": ("ingredient/G2", "‖G2‖, G2 = XᵀX"),
    "x": ("ingredient/x", "‖x‖"),
    "g": ("ingredient/g", "‖g‖"),
    "W_Q": ("ingredient/W_Q", "‖W_Q‖"),
    "W_K": ("ingredient/W_K", "‖W_K‖"),
    "W_V": ("ingredient/W_V", "‖W_V‖"),
    "W_QK": ("ingredient/W_QK", "‖W_QK‖"),
}


@dataclass(frozen=True)
class Formula:
    """Lines of one formula, and its symbols as numbers (norms are means over tokens)."""

    lines: tuple[str, ...]
    numbers: tuple[tuple[str, str], ...]


def formula(answer: LiveAnswer, part: str, block: str) -> Formula:
    """The formula of one block of one part; for a stack, how automatic differentiation makes it."""
    a, b = block.split(",")
    A, B = (name.removeprefix("W_") for name in (a, b))
    lines: tuple[str, ...]
    if not answer.closed:
        outer = f"H_o({A},{B}) = (2 / L d) Σ J_{A}ᵀ J_{B},   J = dF/dW"
        functional = f"H_f({A},{B}) = Σ ⟨∂ℓ/∂F, ∂²F/∂W_{A}∂W_{B}⟩"
    else:
        linear = not answer.softmax
        jacobians = dict.fromkeys(_J[name].replace("M2", "G2") if linear else _J[name] for name in (a, b))
        outer = f"H_o({A},{B}) = Σ J_{A}ᵀ (∂²ℓ/∂F²) J_{B};   " + ";   ".join(jacobians)
        functional = f"H_f({A},{B}) = " + (_LINEAR if linear else _SOFTMAX)[block]
    lines = {"outer": (outer,), "functional": (functional,)}.get(part, (f"H({A},{B}) = H_o + H_f", outer, functional))
    words = " ".join(lines).replace("ᵀ", " ").replace("²", " ").replace("(", " ").replace(")", " ")
    found = [
        _NUMBERS[symbol]
        for symbol in dict.fromkeys(words.replace(",", " ").replace(";", " ").split())
        if symbol in _NUMBERS
    ]
    symbols = answer.symbols
    shown = [(text, number(symbols[key].value)) for key, text in found if key in symbols]
    return Formula(lines, tuple(dict.fromkeys(shown)))


@lru_cache(maxsize=256)
def typeset(line: str) -> list[tuple[Kind, str]]:
    """A line as the report sets its formulas, in pieces: symbols and single letters slanted, indices below,
    exponents and transposes above."""
    line = re.sub(r"\b([MG])([123])\b", r"\1_\2", line)
    found: list[tuple[Kind, str]] = []
    for kind, text in runs(line):
        if kind != "plain":
            found.append((kind, text))
            continue
        for piece in re.split(r"([ᵀ²]|(?<![A-Za-z])[A-Za-z](?![A-Za-z]))", text):
            if piece in _RAISED:
                found.append(("sup", _RAISED[piece]))
            elif piece:
                found.append(("symbol" if re.fullmatch("[A-Za-z]", piece) else "plain", piece))
    return found


_RAISED = {"ᵀ": "⊤", "²": "2"}
