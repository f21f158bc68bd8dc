"""The memory a control group of Linux allows this process: a container's limit, which `/proc/meminfo` does not tell.

Version 1 keeps it in `memory.limit_in_bytes`, version 2 in `memory.max`; a group is also held by the limits of all
groups above it. A process that passes the limit is killed, however much memory the host has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

#: Files of a group in either version: limit, bytes in use, and the entry of `memory.stat` that can be given back.
_FILES = {
    "cgroup2": ("memory.max", "memory.current", "inactive_file"),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
#: What version 1 says for "no limit" is near 2^63.
_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class MemoryLimit:
    """The bytes a group may use, and those that are left of them."""

    total: int
    free: int


def memory_limit(process: Path = Path("/proc/self")) -> MemoryLimit | None:
    """The limit that leaves the least, of the group of this process and of all above; None where there is none."""
    found = [limit for folder, kind in _groups(process) if (limit := _limit(folder, kind)) is not None]
    return min(found, key=lambda limit: limit.free, default=None)


def _groups(process: Path) -> Iterator[tuple[Path, str]]:
    """The folders of the memory groups the process is in, each with its version, from the innermost outwards."""
    try:
        member = (process / "cgroup").read_text(errors="surrogateescape")  # a path is bytes
        mounts = (process / "mountinfo").read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return
    own = {}
    for line in member.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            own["cgroup2"] = path
        elif "memory" in names.split(","):
            own["cgroup"] = path
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.partition(" ")[0]
        options = after.rpartition(" ")[2].split(",")
        if kind not in own or len(fields) < 5 or (kind == "cgroup" and "memory" not in options):
            continue
        root, top = PurePosixPath(_plain(fields[3])), Path(_plain(fields[4]))
        inside = PurePosixPath(own[kind])
        # A container sees its own group at the mount point, under the path it has on the host or under none.
        folder = top / inside.relative_to(root) if inside.is_relative_to(root) else top
        while folder != top and folder.is_relative_to(top):
            yield folder, kind
            folder = folder.parent
        yield top, kind


def _limit(folder: Path, kind: str) -> MemoryLimit | None:
    limit, usage, given_back = _FILES[kind]
    try:
        total = int((folder / limit).read_text())  # "max": no limit
        used = int((folder / usage).read_text())
    except (OSError, ValueError):
        return None
    if total >= _UNLIMITED:
        return None
    try:
        cache = re.search(rf"^{given_back} (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
    except OSError:
        cache = None
    return MemoryLimit(total, max(total - used + (int(cache[1]) if cache else 0), 0))


def _plain(field: str) -> str:
    """A path of mountinfo: blanks are written in octal there."""
    return re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), field)
