"""`quadform signal`: does the signal survive depth?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...applications.configs.shared import Output
from ...applications.configs.signal import SignalConfig
from ...core.progress import say
from ...core.record import Record
from ..earlier import result_folder
from ..folders import report_command, resume_command
from ..show import print_json, record_json

if TYPE_CHECKING:
    from ...applications.signal.result import Signal

#: Cosine after the last block: what the verdict calls it, above which value.
_WORDS = ((0.99, "collapsed"), (0.9, "nearly collapsed"), (float("-inf"), "alive"))

#: Widths up to this are measured on one thread: threads that wait for each other on a busy machine cost far more.
_ONE_THREAD_UP_TO = 512


def answer(config: SignalConfig, output: Output) -> int:
    if config.table:
        return _table(config, output)
    from ...applications.signal import plan, run

    if config.dim <= _ONE_THREAD_UP_TO:
        import torch

        torch.set_num_threads(1)
    told = plan(config)
    if config.dry_run:
        if output.json:
            print_json({"plan": told})
        else:
            print("\n".join(told))
        return 0
    for line in told:
        say(line)
    folder = result_folder(output, "signal", ", ".join(config.subjects), resume=config.resume)
    found = run(config, folder)
    if folder:
        found.save(folder)
    if output.json:
        print_json(record_json(found.record) | {"saved": str(folder) if folder else None})
    else:
        show(found)
        if folder:
            print(f"saved {folder}; next: `{report_command(folder)}`")
        else:
            say("nothing was saved; `--out runs/NAME` keeps it, with the figure, for `quadform report runs/NAME`")
    if found.partial:
        say(f"stopped by `--max-time`: partial; go on with `{resume_command()}`")
    return 3 if found.partial or _disagreeing(found) else 0


def show(found: Signal) -> None:
    """The headline of each curve, the table, what was not done and why."""
    about = found.record.inputs["curves"]
    print(
        "after the last block: mean token cosine, participation ratio, norm over input; prediction in [ ]   [estimate]"
    )
    print("gradient: at the input over the last layer; entropy: of its maximum, least to most head; sink: largest head")
    print(found.table())
    kind = found.record.made.dtype
    for c in about:
        e = found.record.scalars[f"{c['label']}/cosine"]
        word = next(w for limit, w in _WORDS if e.value > limit)
        size = f"{c['depth']} blocks of width {c['dim']}, {c['tokens'] or 'varying'} tokens, {c['over']}, {kind}"
        print(f"{c['label']}: {word} ({size}; {'; '.join(c['notes'])})")
        for name in c["jacobians"]:
            ends = [found.record.scalars[f"{c['label']}/jacobian/{name}/{end}"] for end in ("smallest", "largest")]
            square = found.record.scalars[f"{c['label']}/jacobian/{name}/mean_square"]
            low = f"{'<= ' if ends[0].kind == 'bound' else ''}{ends[0].value:.3g}"
            print(f"  Jacobian of {name}: singular values {low} to {ends[1].value:.3g}, mean square {square}")
    apart = _disagreeing(found)
    if apart:
        print(f"prediction and measurement differ by more than 0.02 and 5 % for {', '.join(apart)}.")


def _disagreeing(found: Signal) -> list[str]:
    """The curves whose prediction is off by more than the tolerance and the error of the measurement."""
    scalars, about = found.record.scalars, found.record.inputs["curves"]
    return [c["label"] for c in about if c["judged"] and not scalars[f"{c['label']}/difference"].converged]


def _table(config: SignalConfig, output: Output) -> int:
    """The rank-collapse table with its claims."""
    from ...propagation import table

    folder = result_folder(output, "signal --table")
    record: Record = table.rank_collapse_table(seeds=config.networks, progress=True)
    verdicts = table.check(record)
    failed = [statement for statement, holds in verdicts.items() if not holds]
    if folder:
        record.save(folder)
    if output.json:
        print_json(record_json(record) | {"claims": verdicts, "saved": str(folder) if folder else None})
        return 3 if failed else 0
    print(f"mean token cosine of {config.networks} networks a row, mean field in brackets; T = 100, d = 256, 8 heads")
    print(table.markdown(record))
    print(f"{len(verdicts) - len(failed)} of {len(verdicts)} claims hold.")
    for statement in failed:
        print(f"not met: {statement}")
    if folder:
        print(f"saved {folder}")
    return 3 if failed else 0
