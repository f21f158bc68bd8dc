"""`quadform data`: what can be fetched, fetching it, and own text as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...applications.configs.data import DataConfig
from ...applications.configs.shared import Output
from ...core.errors import FileError, InputError
from ..show import print_json, print_table, table


def answer(config: DataConfig, output: Output) -> int:
    return {"list": _list, "fetch": _fetch, "build": _build}[config.action](config, output)


def _list(config: DataConfig, output: Output) -> int:
    from ...corpora.fetch import CATALOGUE, root
    from ...corpora.fetch.store import megabytes, tidy

    base = Path(output.out) if output.out else root()
    tidy(base)
    states = {name: state(name, output.out) for name in CATALOGUE}
    if output.json:
        items = [
            {
                "name": name,
                "kind": item.kind,
                "title": item.title,
                "licence": item.licence,
                "source": item.source.title,
                "bytes": item.source.size,
                "state": states[name],
            }
            for name, item in CATALOGUE.items()
        ]
        print_json({"folder": str(base), "items": items})
        return 0
    found = table("name")
    for heading in ("what", "download", "licence", "here"):
        found.add_column(heading, justify="right" if heading == "download" else "left")
    for name, item in CATALOGUE.items():
        licence = item.licence if len(item.licence) <= 40 else item.licence.partition(";")[0].partition(" (")[0]
        found.add_row(name, item.title, megabytes(item), licence, states[name])
    print_table(found)
    print(f"kept in {base} (QUADFORM_DATA); get one: `quadform data fetch tsmsg-de`")
    print(
        "more without an entry: `ddtp-LANGUAGE` (any of Debian's), `pypi-PACKAGE==VERSION` (Python source of a wheel)"
    )
    return 0


def state(name: str, out: str | None = None) -> str:
    """`yes`, `no` or `damaged`, of what was fetched under a name."""
    from ...corpora.fetch import fetched

    try:
        return "no" if fetched(name, out) is None else "yes"
    except FileError:
        return "damaged"


def _fetch(config: DataConfig, output: Output) -> int:
    from ...corpora.fetch import fetch, item

    for name in config.names:
        item(name)  # an unknown name is told before any work
    results = []
    for name in config.names:
        got = fetch(name, out=output.out, again=config.again)
        results.append(_told(got))
        if not output.json:
            how = f"quadform.data.load({name!r})" if got.kind == "model" else f"--data {name}"
            print(f"{name}: {_counted(got)}; licence {got.manifest['licence']}; checksums verified; {got.folder}")
            print(f"  use it: `{how}`" + (f" with QUADFORM_DATA={output.out}" if output.out else ""))
    if output.json:
        print_json({"fetched": results})
    return 0


def _build(config: DataConfig, output: Output) -> int:
    from ...corpora.fetch import build

    if output.out is None:
        raise InputError("where to? `quadform data build FILE ... --out DIR`; then `--data DIR` uses it.")
    made = build(config.names, output.out, held=config.held, pieces=config.pieces)
    if output.json:
        print_json(_told(made))
    else:
        print(f"{made.folder}: {made.kind}, {_counted(made)}")
        print(f"  use it: `--data {made.folder}`")
    return 0


def _counted(got: Any) -> str:
    counts = got.manifest.get("counts", {})
    return ", ".join(f"{n:,} {what.removesuffix('s') if n == 1 else what}" for what, n in counts.items())


def _told(got: Any) -> dict[str, Any]:
    shown = ("name", "kind", "title", "licence", "source", "digest", "counts", "archives", "files")
    return {"folder": str(got.folder)} | {key: got.manifest[key] for key in shown if key in got.manifest}
