"""Progress: a bar on a terminal, a line per 10 % in a log, silence when quiet; results stay alone on stdout."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import termios
import time

import pytest

from quadform.core import progress
from quadform.core.progress import Progress, say


def work(total: int, step: int = 1, **options) -> str:
    stream = io.StringIO()
    with Progress(total, "products", stream=stream, **options) as p:
        for i in range(0, total, step):
            p.step(step, text=f"lambda {i}")
    return stream.getvalue()


@pytest.mark.parametrize("total", [1, 3, 10, 25, 1000])
def test_a_log_gets_one_line_per_tenth(total: int) -> None:
    """At most ten lines whatever the total, the last one complete; no carriage return, no escape sequence."""
    text = work(total)
    lines = text.splitlines()
    assert len(lines) == min(total, 10)
    assert lines[-1] == f"products  {total}/{total}  lambda {total - 1}  0:00 left"
    assert "\r" not in text
    assert "\x1b" not in text


def test_large_steps_skip_tenths() -> None:
    """A step over several tenths is one line."""
    assert [line.split()[1] for line in work(100, step=34).splitlines()] == ["34/100", "68/100", "102/100"]


def test_more_steps_than_announced_leave_no_negative_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate that ran over its budget has 0:00 left."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with Progress(1, "products", stream=stream) as p:
        now[0] = 100
        p.step(3)
    assert stream.getvalue() == "products  3/1  0:00 left\n"


def test_a_slow_log_gets_a_line_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tenths a line comes after sixty seconds; the time left is what the pace so far promises."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with Progress(1000, "products", stream=stream) as p:
        for _ in range(4):
            now[0] += 30
            p.step()
    assert stream.getvalue().splitlines() == ["products  2/1000  499:00 left", "products  4/1000  498:00 left"]


def test_the_first_step_is_not_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first product compiles for 100 s, each after it takes 1 s: the time left is that of the later ones."""
    now, left = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress(50, "products", show=lambda done, total, seconds, text: left.append(seconds)) as p:
        p.skip(10)  # of an earlier run
        now[0] += 100
        p.step()
        p.step(0)
        for _ in range(39):
            now[0] += 1
            p.step()
    assert left == [float("inf"), float("inf"), *range(38, -1, -1)]


def test_the_last_text_stays_until_the_next() -> None:
    """A step without text shows the best value known."""
    stream = io.StringIO()
    with Progress(2, "products", stream=stream) as p:
        p.step(text="lambda 1.9")
        p.step()
    assert stream.getvalue().splitlines()[1].startswith("products  2/2  lambda 1.9")


def test_no_work_is_no_error() -> None:
    """A total of zero, and work that fails, leave quietly; the failure is not swallowed."""
    with Progress(0, "nothing", stream=io.StringIO()):
        pass
    with pytest.raises(RuntimeError, match="mine"), Progress(3, "products", stream=io.StringIO()):
        raise RuntimeError("mine")


def test_silence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`show=False` and `--quiet` print nothing at all."""
    assert work(10, show=False) == ""
    monkeypatch.setattr(progress, "quiet", True)
    assert work(10) == ""
    say("hello")
    assert capsys.readouterr() == ("", "")


def test_a_callable_is_told_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """`show=f` calls f(done, total, seconds_left, text) at each step, prints nothing, and --quiet does not stop it."""
    monkeypatch.setattr(progress, "quiet", True)
    told: list[tuple] = []
    assert work(3, show=lambda *a: told.append(a)) == ""
    assert [(d, t, x) for d, t, _, x in told] == [(1, 3, "lambda 0"), (2, 3, "lambda 1"), (3, 3, "lambda 2")]
    assert all(isinstance(left, float) and left >= 0 for _, _, left, _ in told)
    assert told[-1][2] == 0


def test_progress_and_notes_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on stdout: it belongs to the results."""
    with Progress(2, "products") as p:
        p.step(2)
    say("a note")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["products  2/2  0:00 left", "a note"]


CHILD = """
from quadform.core.progress import Progress, say
import sys
with Progress(20, "products") as p:
    for i in range(20):
        p.step(text=f"lambda {i}")
        p._bar and p._bar.refresh()
say("done")
print("result")
"""


def on_a_terminal(**environment: str) -> tuple[str, str]:
    """stdout (a pipe) and stderr (a terminal of 24 x 80) of the child."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    env = {k: v for k, v in os.environ.items() if k != "CI"} | environment
    done = subprocess.run(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=slave, text=True, check=True, env=env
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            block = os.read(master, 65536)
        except OSError:  # Linux ends a closed pseudo-terminal with an error
            break
        if not block:
            break
        seen += block
    os.close(master)
    return done.stdout, seen.decode()


def screen(written: str) -> list[str]:
    """What remains to be seen: a carriage return goes back to the start of the line, later letters cover earlier."""
    rows = []
    for line in written.replace("\r\n", "\n").removesuffix("\n").split("\n"):
        row = ""
        for piece in line.split("\r"):
            row = piece + row[len(piece) :]
        rows.append(row.rstrip())
    return rows


def test_a_terminal_gets_a_bar() -> None:
    """On a terminal stderr shows a bar that is redrawn and taken away at the end; stdout holds the result alone."""
    out, shown = on_a_terminal()
    assert out == "result\n"
    assert "\r" in shown
    assert "20/20" in shown
    assert "lambda 19" in shown
    assert "left" not in shown  # no log lines beside the bar
    assert screen(shown) == ["done"]


def test_continuous_integration_gets_lines() -> None:
    """With `CI` set, a terminal is treated as a log."""
    out, shown = on_a_terminal(CI="true")
    assert out == "result\n"
    assert len(shown.splitlines()) == 11
    assert "\r" not in shown.replace("\r\n", "\n")


def test_a_pipe_gets_lines() -> None:
    """The same program with stderr redirected: ten lines and the note, no carriage return."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert done.stdout == "result\n"
    assert len(done.stderr.splitlines()) == 11
    assert "\r" not in done.stderr
