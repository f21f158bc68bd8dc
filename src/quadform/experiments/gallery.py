"""The gallery: every figure with its one-sentence reading, its claims and verdicts, and the command that makes it.

Drawn from Records alone, as one HTML file that needs no network (`page`) and as Markdown for the documentation.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..core.record import Record, write_atomically
from ..report.figure import Figure, png
from .catalog import CATALOG, committed, experiment
from .claims import BASES, STATUSES, Status, Verdict
from .experiment import Experiment

#: Marks of the largest figure that the gallery keeps as SVG.
SVG_MOST = 4000
#: Pixels of a picture in the index per pixel of the figure.
THUMBNAIL = 0.25
MARKS: dict[Status, str] = {"met": "✓", "not met": "✗", "undecided": "?", "not tested": "–"}


@dataclass(frozen=True)
class Entry:
    """One experiment of the gallery."""

    experiment: Experiment
    record: Record
    verdicts: tuple[Verdict, ...]

    @property
    def preset(self) -> str:
        return str(self.record.inputs["preset"])

    @property
    def command(self) -> str:
        return f"quadform reproduce {self.experiment.id} --preset {self.preset}"

    @property
    def seconds(self) -> float:
        return self.record.scalars["cpu_seconds"].value

    @property
    def cost(self) -> str:
        """`208 processor seconds`, or seconds of a GPU."""
        return f"{self.seconds:.0f} {'GPU' if self.record.made.device.startswith('cuda') else 'processor'} seconds"

    @cached_property
    def figure(self) -> Figure:
        return self.experiment.figure(self.record)

    @cached_property
    def drawn(self) -> str:
        """The figure as SVG."""
        return numbered(self.figure.svg())

    @property
    def kind(self) -> str:
        """ "svg" or "png": a figure of many cells is smaller as pixels."""
        return "svg" if sum(map(len, self.figure.chart.datasets.values())) <= SVG_MOST else "png"

    @cached_property
    def picture(self) -> bytes:
        """The bytes of the figure, as its kind."""
        return self.drawn.encode() if self.kind == "svg" else png(self.drawn, 1.5)

    def count(self, status: str) -> int:
        return sum(v.status == status for v in self.verdicts)


def numbered(svg: str) -> str:
    """The picture with its ids counted from 1: the drawer counts on from figure to figure, and nothing else changes.

    Only for a picture in a file of its own: two in one page would share ids.
    """
    seen: dict[str, int] = {}
    return re.sub(
        r'(id="|url\(#)(clip|gradient_)(\d+)', lambda m: m[1] + m[2] + str(seen.setdefault(m[3], len(seen) + 1)), svg
    )


def committed_entries() -> list[Entry]:
    """The experiments whose Records are kept, in the order of the catalogue."""
    found = []
    for name in CATALOG:
        record = committed(name)
        if record is not None:
            e = experiment(name)
            found.append(Entry(e, record, e.verdicts(record)))
    return found


def write_gallery(folder: str | Path) -> list[Path]:
    """`gallery.md`, `gallery.html` and the pictures in `gallery/` from the committed Records."""
    folder = Path(folder)
    entries = committed_entries()
    (folder / "gallery").mkdir(parents=True, exist_ok=True)
    files = {
        folder / "gallery.md": markdown(entries).encode(),
        folder / "gallery.html": page(entries, "python benchmarks/experiments.py gallery docs").encode(),
    }
    for e in entries:
        files[folder / _file(e)] = e.picture
    for path, blob in files.items():
        write_atomically(path, blob)
    return list(files)


def score(verdicts: Sequence[Verdict]) -> str:
    """`198 met, 34 not met (13 of them negative controls), 15 undecided, 3 not tested`."""
    controls = sum(v.status == "not met" and v.claim.control for v in verdicts)
    told = {"not met": f" ({controls} of them negative controls)"} if controls else {}
    return ", ".join(f"{sum(v.status == s for v in verdicts)} {s}{told.get(s, '')}" for s in STATUSES)


def _summary(entries: Sequence[Entry]) -> str:
    found = [v for e in entries for v in e.verdicts]
    return f"{len(entries)} experiments, {len(found)} claims: {score(found)}."


def _by_basis(entries: Sequence[Entry]) -> list[tuple[str, list[int]]]:
    """What the claims rest on, and how many of each have which status."""
    found = [v for e in entries for v in e.verdicts]
    return [
        (words, [sum(v.claim.basis == basis and v.status == s for v in found) for s in STATUSES])
        for basis, words in BASES.items()
    ]


# ------------------------------------------------------------------------------------------------------- Markdown
_HEAD = """\
# Gallery

Every figure is drawn from a Record of the repository (`docs/gallery/records/`); nothing is computed for this page,
which `python benchmarks/experiments.py gallery docs` writes. The sentence of a claim is *stated* in a paper, *read*
from its figure or stored data, or *ours*; the interval is ours in every case, and stood in the code before the number
where the claim says nothing else. A claim that fails stays, with its reason. It is undecided where its interval ends
within two standard errors of the number. A negative control is expected to fail. How experiments are made:
[experiments.md](experiments.md).
"""


def markdown(entries: Sequence[Entry]) -> str:
    """The gallery as Markdown; pictures are beside it in `gallery/`."""
    columns = " | ".join(STATUSES)
    lines = [_HEAD, f"**{_summary(entries)}**", "", f"| claims | {columns} |", "|---|" + "---|" * len(STATUSES)]
    lines += [f"| {words} | {' | '.join(map(str, counts))} |" for words, counts in _by_basis(entries)]
    lines += ["", f"| | experiment | source | {columns} |", "|---|---|---|" + "---|" * len(STATUSES)]
    lines += [
        f'| <a href="#{e.experiment.id}"><img src="{_file(e)}" width="150" alt=""></a>'
        f" | [{e.experiment.title}](#{e.experiment.id}) | {e.experiment.source} |"
        + "".join(f" {e.count(s)} |" for s in STATUSES)
        for e in entries
    ]
    for e in entries:
        name, f = e.experiment.id, e.figure
        lines += [
            "",
            f'## <a id="{name}"></a>{e.experiment.title}',
            "",
            f"**Asked:** {e.experiment.asked}",
            "",
            f"**Found:** {f.headline}",
            "",
            f"![{e.experiment.title}]({_file(e)})",
            "",
            f"Read it like this: {f.reading} It does not mean: {f.not_meaning} {f.caption}".strip(),
            "",
            f"`{e.command}` ({e.cost}; source {e.experiment.source})",
            "",
            "| | claim | found | wanted | source |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {MARKS[v.status]} {v.status} | {_pipe(v.claim.text)}{_pipe(_reason(v))}{_page(v)} | {_pipe(v.number)} |"
            f" {v.claim.wanted} | {_rests_on(v)} |"
            for v in e.verdicts
        ]
    return "\n".join(lines) + "\n"


def _file(e: Entry) -> str:
    return f"gallery/{e.experiment.id}.{e.kind}"


def _pipe(text: str) -> str:
    return text.replace("|", "\\|")


def _rests_on(v: Verdict) -> str:
    """`stated, [ODS25, Thm 3.1]`, or `ours`."""
    return v.claim.basis if v.claim.basis == "ours" else f"{v.claim.basis}, {v.claim.source}"


def _reason(v: Verdict) -> str:
    """Why a claim is not met, or was not tested; an undecided one has its error beside its number."""
    return f". *{_sentence(v.reason)}*" if v.reason and v.status != "undecided" else ""


def _sentence(reason: str) -> str:
    """With a capital, unless it begins with a symbol (`lambda_max`, `v`), and one full stop."""
    first = reason.split()[0]
    symbol = "_" in first or (len(first) == 1 and first != "a")
    return f"{reason if symbol else reason[0].upper() + reason[1:]}".rstrip(".") + "."


def _page(v: Verdict) -> str:
    return f" ([more](decisions/{v.claim.page}))" if _has_page(v) else ""


def _told(v: Verdict) -> str:
    """Where more is told, in a page that may lie anywhere."""
    return f" More: <code>docs/decisions/{v.claim.page}</code>" if _has_page(v) else ""


def _has_page(v: Verdict) -> bool:
    return bool(v.claim.page) and v.status in ("not met", "undecided")


# ----------------------------------------------------------------------------------------------------------- HTML
_CSS = """
:root { color-scheme: light }
body { font: 16px/1.5 'Segoe UI', 'Noto Sans', 'DejaVu Sans', Roboto, Arial, sans-serif; color: #1c2530;
  background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 3rem; border-top: 1px solid #e3e7ec; padding-top: 1.5rem }
img { max-width: 100%; height: auto }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #e3e7ec }
td:first-child { white-space: nowrap; font-weight: 600 }
.met { color: #00664d } .not-met { color: #a3221c } .undecided { color: #8a5a00 } .not-tested { color: #5a6675 }
code { background: #f6f7f9; padding: .1rem .3rem }
.scroll { overflow-x: auto }
.index { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 1rem; padding: 0;
  list-style: none }
.index a { display: block; color: inherit; text-decoration: none; border: 1px solid #e3e7ec; padding: .5rem }
.index img { display: block; width: 100%; height: 7rem; object-fit: contain }
.score { font-size: 1.15rem }
"""


_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(entries: Sequence[Entry], made_by: str) -> str:
    """One HTML file with every figure in it; it fetches nothing."""
    t = html.escape
    body = [
        f'<h1>Figures and claims</h1><p class="score"><b>{t(_summary(entries))}</b></p>',
        f"<p>Made by <code>{t(made_by)}</code>.</p>{_grid(('claims', *STATUSES), _by_basis(entries))}",
    ]
    if len(entries) > 1:
        body.append(f'<ul class="index">{"".join(map(_card, entries))}</ul>')
    body += [_section(e) for e in entries]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>quadform: figures and claims</title><style>{_CSS}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>"
    )


def _grid(columns: Sequence[str], rows: Sequence[tuple[str, list[int]]]) -> str:
    head = "".join(f'<th scope="col">{c}</th>' for c in columns)
    body = "".join(f"<tr><td>{words}</td>{''.join(f'<td>{n}</td>' for n in counts)}</tr>" for words, counts in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _card(e: Entry) -> str:
    """An experiment of the index: its picture in small, its title, its score."""
    told = ", ".join(f"{e.count(s)} {s}" for s in STATUSES if e.count(s))
    return (
        f'<li><a href="#{e.experiment.id}"><img alt="" src="{_data("png", png(e.drawn, THUMBNAIL))}">'
        f"<b>{html.escape(e.experiment.title)}</b><br>{told}</a></li>"
    )


def _data(kind: str, blob: bytes) -> str:
    return f"data:image/{'svg+xml' if kind == 'svg' else 'png'};base64,{base64.b64encode(blob).decode()}"


def _section(e: Entry) -> str:
    t, f = html.escape, e.figure
    source = _data(e.kind, e.picture)
    made = e.record.made
    rows = "".join(
        f'<tr><td class="{v.status.replace(" ", "-")}">{MARKS[v.status]} {v.status}</td>'
        f"<td>{t(v.claim.text)}{t(_reason(v)).replace('*', '')}{_told(v)}</td>"
        f"<td>{t(v.number)}</td><td>{t(v.claim.wanted)}</td><td>{t(_rests_on(v))}</td></tr>"
        for v in e.verdicts
    )
    return (
        f'<section id="{e.experiment.id}"><h2>{t(e.experiment.title)}</h2>'
        f"<p><b>Asked:</b> {t(e.experiment.asked)}</p><p><b>Found:</b> {t(f.headline)}</p>"
        f'<img alt="{t(f.headline, quote=True)}" src="{source}">'
        f"<p>Read it like this: {t(f.reading)}</p><p>It does not mean: {t(f.not_meaning)}</p><p>{t(f.caption)}</p>"
        f'<div class="scroll"><table><thead><tr><th scope="col">verdict</th><th scope="col">claim</th>'
        f'<th scope="col">found</th><th scope="col">wanted</th><th scope="col">source</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        f"<p><code>{t(e.command)}</code> ({t(e.cost)}). Source {t(e.experiment.source)}. Made {t(made.made_at)}, "
        f"seed {made.seed}, "
        f"{t(', '.join(f'{k} {v}' for k, v in made.versions.items()))}, {t(made.git)}.</p></section>"
    )
