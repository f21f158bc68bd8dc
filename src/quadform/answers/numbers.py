"""How numbers are written for people: three significant digits, a real minus sign, powers of ten as powers of ten."""

from __future__ import annotations

import math
from pathlib import PurePath

from ..core.number import Estimate

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(exponent: int) -> str:
    """`10⁻⁵`."""
    return "10" + str(exponent).translate(_SUPERSCRIPT)


def number(value: float, digits: int = 3) -> str:
    """`0.758`, `12,300`, `−2.06`, `3.4×10⁻¹⁶`, `0`; `not a number` and infinities as signs everybody knows."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    sign = "−" if value < 0 else ""
    mantissa, exponent = f"{abs(value):.{digits - 1}e}".split("e")
    if -4 < int(exponent) < 6:
        rounded = float(f"{mantissa}e{exponent}")
        places = max(digits - 1 - int(exponent), 0)
        text = f"{rounded:,.{places}f}"
        return sign + (text.rstrip("0").rstrip(".") if "." in text else text)
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{sign}{power(int(exponent))}" if mantissa == "1" else f"{sign}{mantissa}×{power(int(exponent))}"


def percent(share: float) -> str:
    """A share of 1 as per cent: `41 %`, `0.3 %`; never rounded to 0 or to 100 when it is neither."""
    value = 100 * share
    if 0 < value < 0.1:
        return "< 0.1 %"
    if 99.9 < value < 100:
        return "> 99.9 %"
    return f"{value:.1f} %" if 0 < value < 1 or 99 < value < 100 else f"{value:.0f} %"


def times(ratio: float) -> str:
    """A ratio as `1.9`, `40`, `2.1×10⁶`."""
    return number(ratio, 2)


def rate_text(value: float) -> str:
    """A learning rate as it is typed: `2.24e-03`, `0.0165`."""
    return f"{value:.3g}" if not 0 < abs(value) < 0.01 else f"{value:.2e}"


def short_name(model: str) -> str:
    """A model as people call it: of a folder with its whole path the last two parts, anything else as it is."""
    path = PurePath(model)
    return "/".join(path.parts[-2:]) if path.is_absolute() else model


def with_error(e: Estimate) -> str:
    """`12.3 ± 0.4`."""
    return number(e.value, 4) + (f" ± {number(e.error, 2)}" if e.error else "")


def share_with_error(e: Estimate) -> str:
    """`41 % ± 2 %`."""
    if not math.isfinite(e.value):
        return with_error(e)
    return percent(e.value) + (f" ± {percent(e.error)}" if e.error else "")
