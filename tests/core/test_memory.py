"""Free memory is what the process may still take: the host's, or what the limit of its container leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import quadform as qf
from quadform.core import cgroup, memory
from quadform.core.cgroup import MemoryLimit, memory_limit
from quadform.core.errors import TooLarge

GIB = 1 << 30
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def group(folder: Path, files: tuple[str, str, str], limit: object, used: int, cache: int = 0) -> None:
    """The files of one control group."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / files[0]).write_text(f"{limit}\n")
    (folder / files[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{files[2]} {cache}\nactive_file 7\n")


def process(folder: Path, member: str, mounts: str) -> Path:
    """What /proc/self tells of one process."""
    (folder / "proc").mkdir()
    (folder / "proc" / "cgroup").write_text(member)
    (folder / "proc" / "mountinfo").write_text(mounts)
    return folder / "proc"


def v2(tmp_path: Path, path: str = "/", root: str = "/") -> tuple[Path, Path]:
    top = tmp_path / "sys"
    return top, process(tmp_path, f"0::{path}\n", f"31 23 0:28 {root} {top} rw,relatime - cgroup2 cgroup2 rw\n")


def test_version_2(tmp_path):
    """memory.max less what is in use, the file cache that can be given back not counted."""
    top, proc = v2(tmp_path)
    group(top, V2, 2 * GIB, GIB, cache=GIB // 4)
    assert memory_limit(proc) == MemoryLimit(2 * GIB, GIB + GIB // 4)


def test_version_1_under_the_path_of_the_host(tmp_path):
    """A container without a name space of its own: its path on the host is the root of its mount."""
    top = tmp_path / "memory"
    mounts = (
        f"30 23 0:27 /docker/abc {tmp_path / 'cpu'} rw - cgroup cgroup rw,cpu\n"
        f"31 23 0:28 /docker/abc {top} rw - cgroup cgroup rw,memory\n"
    )
    proc = process(tmp_path, "5:cpu:/docker/abc\n4:memory:/docker/abc\n0::/\n", mounts)
    group(tmp_path / "cpu", V1, 5, 1)
    group(top, V1, 3 * GIB, GIB)
    assert memory_limit(proc) == MemoryLimit(3 * GIB, 2 * GIB)


def test_the_tightest_of_all_groups_above(tmp_path):
    """A group without a limit of its own is held by the one above it."""
    top, proc = v2(tmp_path, "/a/b")
    group(top / "a" / "b", V2, "max", GIB)
    group(top / "a", V2, 2 * GIB, 2 * GIB - 100)
    group(top, V2, 64 * GIB, GIB)
    assert memory_limit(proc) == MemoryLimit(2 * GIB, 100)


def test_a_mount_whose_name_is_no_text(tmp_path):
    """Somebody's disk with a name of another alphabet is no reason to stop."""
    top, proc = v2(tmp_path)
    group(top, V2, 2 * GIB, GIB)
    mounts = proc / "mountinfo"
    mounts.write_bytes(b"40 23 0:30 / /media/\xe9t\xe9 rw - ext4 /dev/sdb rw\n" + mounts.read_bytes())
    assert memory_limit(proc) == MemoryLimit(2 * GIB, GIB)


def test_no_limit(tmp_path):
    """`max`, the huge number of version 1, and a machine without control groups are no limit."""
    top, proc = v2(tmp_path)
    group(top, V2, "max", GIB)
    assert memory_limit(proc) is None
    assert memory_limit(tmp_path / "nothing") is None
    other = tmp_path / "other"
    other.mkdir()
    proc = process(other, "4:memory:/\n", f"31 23 0:28 / {other / 'm'} rw - cgroup cgroup rw,memory\n")
    group(other / "m", V1, 9223372036854771712, GIB)
    assert memory_limit(proc) is None


def test_used_more_than_allowed_leaves_nothing(tmp_path):
    """A limit lowered below what is in use leaves 0, not less; blanks in the path of a mount are octal."""
    top = tmp_path / "a b"
    proc = process(tmp_path, "0::/\n", f"31 23 0:28 / {tmp_path}/a\\040b rw - cgroup2 cgroup2 rw\n")
    group(top, V2, GIB, 2 * GIB)
    assert memory_limit(proc) == MemoryLimit(GIB, 0)


def test_a_container_refuses_what_the_host_would_hold(monkeypatch):
    """In 2 GiB on a large host a matrix of 4 GiB is refused before it is made, and the doctor tells the limit."""
    small = MemoryLimit(2 * GIB, GIB)
    monkeypatch.setattr(memory, "_free_of_host", lambda: 64.0 * GIB)
    monkeypatch.setattr(memory, "memory_limit", lambda: small)
    monkeypatch.setattr("quadform.applications.doctor.measure.memory_limit", lambda: small)
    cpu = torch.device("cpu")
    assert memory.free_bytes(cpu) == GIB
    with pytest.raises(TooLarge, match=r"needs 4.29 GB; 1.07 GB are free"):
        memory.guard_memory(1 << 14, 1 << 15, torch.float64, cpu)
    found = {line.name: line.found for line in qf.doctor().findings}
    assert found["memory limit"] == "2.15 GB by its control group"
    assert found["free memory"] == "1.07 GB"


def test_this_machine():
    """Whatever this machine has, what is left of its limit is no more than the limit."""
    found = cgroup.memory_limit()
    assert found is None or 0 <= found.free <= found.total
