"""`quadform attention`: the exact Hessian of one attention layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...applications.configs.attention import AttentionConfig
from ...applications.configs.shared import Output
from ...core.progress import say
from ...core.record import Record
from ..earlier import result_folder
from ..folders import choose_threads, report_command
from ..show import LABELS, power, print_json, print_plan, print_table, record_json, seconds, table

if TYPE_CHECKING:
    from rich.table import Table

#: Entropy below which the attention is called one-hot.
ONE_HOT = 0.01


def answer(config: AttentionConfig, output: Output) -> int:
    from ...applications.attention import plan, run

    choose_threads(config.parameters)
    if config.dry_run:
        return print_plan(plan(config), output)
    folder = result_folder(output, "attention")
    record = run(config)
    if folder:
        record.save(folder)
    if output.json:
        print_json(record_json(record) | {"saved": str(folder) if folder else None})
        return _code(record)
    show(record)
    if folder:
        print(f"saved {folder}; next: `{report_command(folder)}`")
    else:
        say("nothing was saved; `--out runs/NAME` keeps it for `quadform report runs/NAME`")
    return _code(record)


def _code(record: Record) -> int:
    """3 where closed form and autodiff are not the same."""
    from ...report.attention.verdict import autodiff_limits

    return 0 if record.scalars["autodiff_error"].value <= autodiff_limits(record)[1] else 3


def show(record: Record) -> None:
    """What the verb `attention` prints: the headline, the table of exponents, the verdict at both ends of the sweep."""
    s, inputs = record.scalars, record.inputs
    parameters = sum(math.prod(shape) for _, shape in inputs["space"])
    head = (
        f"exact Hessian, {parameters:,} parameters, {seconds(s['seconds'].value)} per Hessian,"
        f" autodiff differs by {power(s['autodiff_error'].value)}"
    )
    print(f"{head:<84} [exact]")
    if "fit_range" in inputs:
        lo, hi = inputs["fit_range"]
        where = f"fitted {lo:.2g}-{hi:.2g}; paper's exponents in brackets"
        print(f"growth of each block's norm with the input scale ({where})")
        print_table(_growth_table(record))
    attention_verdict(record)
    if "fit_range" in inputs:
        print(_far_end(record))


def attention_verdict(record: Record) -> None:
    """Two lines: the spectrum at the scale that was asked for, and the largest step it allows."""
    s = record.scalars
    share = s["negative_share"]
    at_least = "at least " if share.kind == "bound" else ""
    print(
        f"scale {record.inputs['scale']:g}: lambda_max {s['lambda_max'].value:.3g},"
        f" lambda_min {s['lambda_min'].value:.3g}, {at_least}{100 * share.value:.0f} % of eigenvalues negative"
    )
    ceiling = s["ceiling_sgd"].value
    if math.isinf(ceiling):
        print("gradient descent: nothing curves up here, so no step overshoots")
    else:
        print(f"gradient descent: steps above 2 / lambda_max = {ceiling:.3g} overshoot (a ceiling, no advice)")


def _growth_table(record: Record) -> Table:
    growth = table("")
    names = [name for name, _ in record.inputs["space"]]
    for part in ("outer", "functional"):
        for i, name in enumerate(names):
            growth.add_column(f"{part if i == 0 else ''}\n{LABELS[name]}", justify="left")
    for i, row in enumerate(names):
        cells = [LABELS[row]]
        for part in ("outer", "functional"):
            cells += [_exponent(record, part, row, col) if j >= i else "" for j, col in enumerate(names)]
        growth.add_row(*cells)
    return growth


def _exponent(record: Record, part: str, a: str, b: str) -> str:
    s = record.scalars
    block = f"{a},{b}" if f"norm/{part}/{a},{b}" in s else f"{b},{a}"
    fitted, paper = s.get(f"slope/{part}/{block}"), s[f"paper/{part}/{block}"]
    expected = "3,5" if "mix" in paper.note else f"{paper.value:g}"
    if fitted:
        return f"{fitted.value:.1f}[{expected}]"
    zero = s[f"norm/{part}/{block}"].value == 0  # else it left floating point along the sweep
    return f"{'0  ' if zero else '-  '}[{expected}]"


def _far_end(record: Record) -> str:
    """The largest scale of the sweep: what the attention and the two extreme blocks have become."""
    t = record.tensors
    scale = float(t["scales"][-1])
    query, value = (float(t["growth_total"][-1, i]) for i in (0, -1))  # the first and last diagonal blocks
    if "growth_entropy" not in t:
        state = "no softmax, nothing saturates"
    else:
        entropy = float(t["growth_entropy"][-1])
        state = f"attention is {'one-hot' if entropy < ONE_HOT else 'not one-hot'} (entropy {entropy:.2f}"
        if "growth_undecided" in t:  # one undecided query holds the curvature of queries up: decision 0802
            state += f"; the least decided query spreads {power(float(t['growth_undecided'][-1]))}"
        state += ")"
    first, last = (LABELS[record.inputs["space"][i][0]] for i in (0, -1))
    curvature = f"{first} curvature {power(query)}, {last} curvature {power(value)} (block norms)"
    return f"scale {scale:g}: {state}: {curvature}"
