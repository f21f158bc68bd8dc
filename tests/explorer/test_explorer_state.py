"""States, sentences and the verb: what is taken, what is refused, at which control, in which language."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import string
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quadform.explorer
from browsing import told
from quadform.cli import main
from quadform.core.errors import InputError
from quadform.explorer.notebook import Page, explore
from quadform.explorer.serving import find_place, kept_token, on_signals, open_browser
from quadform.explorer.state import CHOICES, RANGES, ControlError, State
from quadform.explorer.texts import en, ko
from quadform.explorer.tour import PRESETS, TOUR

FOLDER = Path(quadform.explorer.__file__).parent


# --- states -----------------------------------------------------------------------------------------------------------
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "scale": st.floats(*RANGES["scale"]),
            "tokens": st.integers(1, 64),
            "depth": st.integers(1, 12),
            "layer": st.integers(1, 12),
            "design": st.sampled_from(CHOICES["design"]),
            "data": st.sampled_from(["random", "upload"]),
        },
    )
)
def test_a_state_survives_json(body: dict) -> None:
    """State -> JSON -> State is the same; the layer never lies behind the last block."""
    state = State.of(json.loads(json.dumps(State.of(body).json())))
    assert state == State.of(body)
    assert state.layer <= state.depth
    assert State(**State().json() | state.changes()) == state


@pytest.mark.parametrize(
    ("body", "control"),
    [
        ({"scale": 0}, "scale"),
        ({"scale": 31.0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"scale": "1"}, "scale"),
        ({"scale": True}, "scale"),
        ({"tokens": 2.5}, "tokens"),
        ({"tokens": 10**30}, "tokens"),
        ({"depth": None}, "depth"),
        ({"design": "paralel"}, "design"),
        ({"attention": 1}, "attention"),
        ({"text": "x" * 1001}, "text"),
        ({"text": " ", "data": "text"}, "text"),
        ({"colour": 1}, ""),
        ([], ""),
    ],
)
def test_a_wrong_value_is_told_at_its_control(body: object, control: str) -> None:
    with pytest.raises(ControlError) as caught:
        State.of(body)
    assert caught.value.control == control
    assert caught.value.said("ko") != str(caught.value)


def test_presets_and_steps_are_states_of_the_page() -> None:
    """Seven steps that each move one control; every preset but the first differs from the start."""
    assert len(TOUR) == 7
    assert all(set(s.end.changes(s.start)) == {s.control} for s in TOUR)
    assert [name for name, state in PRESETS.items() if state == State()] == ["default"]


# --- sentences --------------------------------------------------------------------------------------------------------
def places(sentence: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def test_both_languages_have_the_same_sentences() -> None:
    """Same keys in the same order, the same places; no Korean in English; no particle after a place."""
    assert list(en.SENTENCES) == list(ko.SENTENCES)
    particle = re.compile(r"\}(은|는|이|가|을|를|과|와|로|으로)(?![가-힣])")
    for key, sentence in en.SENTENCES.items():
        assert places(sentence) == places(ko.SENTENCES[key]), key
        assert not re.search("[가-힣]", sentence) or key == "explore_language", key
        assert not particle.search(ko.SENTENCES[key]), key
        words = re.findall(r"[a-z]{4,}", re.sub(r"\{\w+\}", "", sentence))
        if words and key != "explore_language":
            assert re.search("[가-힣]", ko.SENTENCES[key]), key


def test_every_sentence_is_used() -> None:
    """Each key stands in the code or the template, whole or as the rest of a built name."""
    files = [*(p for p in FOLDER.rglob("*.py") if p.parent.name != "texts"), *(FOLDER / "templates").iterdir()]
    sources = "".join(p.read_text("utf-8") for p in files)
    built = (
        "preset",
        "control",
        "choice",
        "tour",
        "number",
        "tag",
        "guard",
        "error",
        "part",
        "detail",
        "tip",
        "told",
        "panel",
        "status",
    )
    for key in en.SENTENCES:
        stem, _, rest = key.partition("_")
        assert f'"{key}"' in sources or (stem in built and f"{stem}_" in sources and rest), key
        if stem == "error":
            assert f'"{rest}"' in sources or f'"{key}"' in sources, key
        if key.endswith("_name"):
            assert f'"{key}"' in sources or f'"{key.removesuffix("_name")}"' in sources, key


# --- the verb ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "a port is a number from 0 to 65535"),
        (["--device", "cuda"], "`--device` is not a flag of `quadform explore`"),
        (["--out", "runs/x"], "`--out` is not a flag of `quadform explore`"),
        (["--seed", "-1"], "seeds from 0 to 999"),
        (["--max-time", "soon"], "is not a length of time"),
    ],
)
def test_bad_flags(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", *words]) == 2
    assert said in capsys.readouterr().err


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """The address is printed, the page is served, Ctrl-C ends it with exit code 0 and no traceback, though a page is
    open and a long computation is under way."""
    from websockets.sync.client import connect

    env = os.environ | {"XDG_STATE_HOME": str(tmp_path), "DISPLAY": "", "WAYLAND_DISPLAY": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "quadform.cli.main", "explore", "--no-open", "--port", "0"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        line = running.stdout.readline()
        url = line.removeprefix("live page: ").strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", url), line
        with urllib.request.urlopen(url, timeout=20) as page:
            assert b"<main" in page.read()
        origin = re.match(r"http://[^/]+", url)[0]
        with connect(url.replace("http", "ws") + "live", origin=origin, max_size=None) as page:
            page.send(json.dumps({"seq": 1, "state": {}}))
            assert told(page.recv(timeout=20))["kind"] == "answer"
            page.send(json.dumps({"seq": 2, "state": {"dim": 40}, "confirmed": True}))
            time.sleep(0.5)  # a computation of many seconds is under way
            started = time.monotonic()
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=20)
        assert time.monotonic() - started < 8
    finally:
        running.kill()
    assert running.returncode == 0, err
    assert "Traceback" not in err
    assert err.endswith("closed\n")
    assert out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_background_job_ends(number: signal.Signals, tmp_path: Path) -> None:
    """SIGINT inherited as ignored, as a shell starts its background jobs: both signals end the server with exit code 0,
    even when they come as soon as the address is printed."""
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path), "DISPLAY": "", "WAYLAND_DISPLAY": "", "OMP_NUM_THREADS": "1"}
    words = ["explore", "--no-open", "--port", "0"]
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "quadform.cli.main", *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert running.stdout.readline().startswith("live page: ")
        running.send_signal(number)
        _, err = running.communicate(timeout=20)
    finally:
        running.kill()
    assert running.returncode == 0, err
    assert err.endswith("closed\n")


def test_signals_are_handled_as_before_afterwards() -> None:
    """`on_signals` calls its function while it lasts, whatever was set before, and puts that back."""
    seen: list[str] = []
    outside = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with on_signals(lambda: seen.append("end")):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, outside)
    assert seen == ["end", "end"]


def test_a_taken_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = find_place(port, token="t")
        with place.listening:
            assert place.port > port
            assert place.note == f"Port {port} is in use; opened on {place.port} instead."
    with pytest.raises(InputError, match="none of the ports"):
        find_place(65_536, token="t")


def test_the_token_outlives_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same token again from a file only its owner can read; another one when others could read or change it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token = kept_token()
    file = tmp_path / "quadform" / "explore-token"
    assert re.fullmatch("[0-9a-f]{32}", token)
    assert kept_token() == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    assert kept_token() != token
    file.write_text("guessed")
    assert re.fullmatch("[0-9a-f]{32}", kept_token())
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    assert kept_token() != kept_token()


def test_no_browser_without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("webbrowser.open", lambda url: pytest.fail("a browser was opened"))
    assert open_browser("http://127.0.0.1:1/") is False
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    assert open_browser("http://127.0.0.1:1/") is True


# --- notebooks --------------------------------------------------------------------------------------------------------
def test_a_layer_is_explored(monkeypatch: pytest.MonkeyPatch) -> None:
    """`explore(layer)` serves the layer's own tensors; a frame on this machine, a link elsewhere; `close` ends it."""
    import quadform as qf

    for name in ("SSH_CONNECTION", "JUPYTERHUB_USER", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    X, W_Q, W_K, W_V, Y = qf.toy(tokens=3, d_model=2, seed=5)
    layer = qf.attention_hessian(X, W_Q, W_K, W_V, Y, temperature=2.0)
    page = explore(layer)
    try:
        with urllib.request.urlopen(page.url, timeout=20) as got:
            assert b'"data":"upload"' in got.read()
        assert page._repr_html_().startswith("<iframe")
        monkeypatch.setenv("SSH_CONNECTION", "x")
        assert page._repr_html_().startswith("<a ")
        assert page.url in repr(page)
    finally:
        page.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(page.url, timeout=2)
    assert isinstance(page, Page)


def test_layers_the_page_cannot_show_are_refused() -> None:
    import quadform as qf

    X, W_Q, W_K, W_V, Y = qf.toy(tokens=3, d_model=2)
    with pytest.raises(InputError, match="one sequence without mask"):
        explore(qf.attention_hessian(X, W_Q, W_K, W_V, Y, mask="causal"))
    with pytest.raises(InputError, match="got int"):
        explore(3)
    with pytest.raises(ControlError, match="Input scale takes values"):
        explore(scale=-1)
