"""The server: who may come in, what it answers, and that only the newest event is answered."""

from __future__ import annotations

import http.client
import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from browsing import told
from quadform.answers.attention import PARTS
from quadform.explorer import State, measure
from quadform.explorer.data import LARGEST_UPLOAD, Uploads, read
from quadform.explorer.door import LARGEST_MESSAGE, MOST_PAGES
from quadform.explorer.serving import Place


def request(place: Place, path: str = "/", *, method: str = "GET", body: bytes | None = None, **headers: str):
    """Status, headers and body of a request below the token; `host` and `origin` may be given."""
    client = http.client.HTTPConnection("127.0.0.1", place.port, timeout=20)
    try:
        client.request(method, path, body, {k.title(): v for k, v in headers.items()})
        got = client.getresponse()
        return got.status, dict(got.getheaders()), got.read()
    finally:
        client.close()


@contextmanager
def live(place: Place, **options: Any) -> Iterator[ClientConnection]:
    address = f"ws://127.0.0.1:{place.port}/{options.pop('token', place.token)}/live"
    options = {"origin": f"http://127.0.0.1:{place.port}"} | options
    with connect(address, max_size=None, **options) as socket:
        yield socket


def ask(socket: ClientConnection, state: dict[str, Any], seq: int = 1, **more: Any) -> dict[str, Any]:
    socket.send(json.dumps({"seq": seq, "state": state, **more}))
    return told(socket.recv(timeout=20))


def number(answer: dict[str, Any], name: str) -> float:
    return next(row["value"] for row in answer["numbers"] if row["name"] == name)


def test_pictures_travel_as_bytes(place: Place) -> None:
    """Entries of H, bit for bit in float32, in one frame with the words; in blocks the nine means."""
    record = measure(State())
    H = (record.tensors["H_o"] + record.tensors["H_f"]).to(torch.float32)
    with live(place) as socket:
        found = ask(socket, {}, detail="entries")["heat"]
        assert found["side"] == 192
        assert found["cells"] == H.numpy().tobytes()
        assert len(ask(socket, {}, 2)["heat"]["cells"]) == 4 * 9


# --- the door ---------------------------------------------------------------------------------------------------------
def test_the_page_needs_its_token(place: Place) -> None:
    """With it the page; without it, with a wrong one or with half of it, nothing."""
    status, _, body = request(place, f"/{place.token}/")
    assert status == 200
    assert b"<main" in body
    for path in ("/", "/x/", f"/{place.token[:-1]}/", f"/{place.token}x/", f"/x/{place.token}/", "//", "/%C3%A9/"):
        status, _, body = request(place, path)
        assert status == 403, path
        assert b"<main" not in body


@pytest.mark.parametrize("path", ["/static/main.js", "/upload", "/live", "/static/../server.py"])
def test_everything_is_behind_the_token(place: Place, path: str) -> None:
    assert request(place, path)[0] == 403
    assert request(place, f"/wrong{path}")[0] == 403


def test_other_names_of_this_machine_are_refused(place: Place) -> None:
    """DNS rebinding: the host a request names must be the loopback address and the port."""
    path = f"/{place.token}/"
    assert request(place, path, host=f"localhost:{place.port}")[0] == 200
    for host in ("evil.example", f"evil.example:{place.port}", "127.0.0.1", "127.0.0.1:1", ""):
        assert request(place, path, host=host)[0] == 403, host


def test_other_pages_are_refused(place: Place) -> None:
    """Another origin gets neither the page nor the socket nor an upload; the last two need the page's own."""
    path, own = f"/{place.token}/", f"http://127.0.0.1:{place.port}"
    assert request(place, path, origin="http://evil.example")[0] == 403
    assert request(place, path, origin="null")[0] == 403
    assert request(place, f"{path}upload?name=a.csv", method="POST", body=b"1 2", origin=own)[0] == 200
    for origin in (None, "http://evil.example", "null", f"https://127.0.0.1:{place.port}"):
        headers = {} if origin is None else {"origin": origin}
        assert request(place, f"{path}upload?name=a.csv", method="POST", body=b"1 2", **headers)[0] == 403
        with pytest.raises(InvalidStatus, match="403"), live(place, origin=origin):
            pass
    with pytest.raises(InvalidStatus, match="403"), live(place, token="0" * 32):
        pass


def test_the_page_may_not_reach_out(place: Place) -> None:
    """The policy names this server alone, scripts and styles come from it, nothing is kept by the browser."""
    _, headers, body = request(place, f"/{place.token}/")
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert f"ws://127.0.0.1:{place.port}" in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert b"http://" not in body
    assert b"https://" not in body
    assert b"<script>" not in body


def test_only_files_of_the_page_are_served(place: Place) -> None:
    base = f"/{place.token}/static/"
    assert request(place, f"{base}main.js")[1]["content-type"].startswith("text/javascript")
    assert b"--accent: #0b62a8" in request(place, f"{base}page.css")[2]
    for name in ("server.py", "..%2fserver.py", "%2e%2e/server.py", "", "main.js/x"):
        assert request(place, base + name)[0] == 404, name
    assert request(place, f"/{place.token}/", method="POST", origin=f"http://127.0.0.1:{place.port}")[0] == 405


# --- answers ----------------------------------------------------------------------------------------------------------
CHANGES = [
    {"scale": 3.0},
    {"temperature": 0.5},
    {"sink": 5.0},
    {"tokens": 5},
    {"dim": 4},
    {"attention": "linear"},
    {"factor": "single"},
    {"data": "text", "text": "to be or not to be"},
    {"seed": 3},
    {"depth": 2},
    {"depth": 3, "layer": 2, "design": "pre-ln"},
    {"design": "sas-p"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_control_reaches_the_answer(place: Place, change: dict) -> None:
    """Numbers through the socket are those of `measure` in Python, and another state gives another number."""
    with live(place) as socket:
        answer = ask(socket, change, seq=4)
        parts = {part: ask(socket, change, seq=5, part=part)["blocks"] for part in PARTS}
    want = measure(State(**change)).scalars
    assert answer["kind"] == "answer"
    assert answer["seq"] == 4
    for name in ("lambda_max", "lambda_min", "negative_share", "loss"):
        assert number(answer, name) == pytest.approx(want[name].value, rel=1e-9, abs=1e-12)
    for part, found in parts.items():
        for block, cell in found["cells"].items():
            assert cell["value"] == pytest.approx(want[f"norm/{part}/{block}"].value, rel=1e-9, abs=1e-13)
    assert number(answer, "lambda_max") != pytest.approx(measure(State()).scalars["lambda_max"].value, rel=1e-6)


def test_only_the_newest_event_is_answered(place: Place, engine) -> None:
    """Sixty events while the engine is busy with the first: two answers, to the first and to the sixtieth."""
    with live(place) as socket:
        ask(socket, {}, seq=0)
        engine.gate.clear()
        before = engine.answered
        for seq in range(1, 61):
            socket.send(json.dumps({"seq": seq, "state": {"scale": 1 + seq / 10}, "final": False}))
            if seq == 1:
                time.sleep(0.2)  # the engine has taken the first
        time.sleep(0.2)
        engine.gate.set()
        answers = [told(socket.recv(timeout=20)) for _ in range(2)]
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.3)
    assert [a["seq"] for a in answers] == [1, 60]
    assert engine.answered == before + 2
    assert answers[1]["state"]["scale"] == 7.0
    assert number(answers[1], "lambda_max") == pytest.approx(
        measure(State(scale=7.0)).scalars["lambda_max"].value, rel=1e-9
    )


def test_pages_do_not_wait_for_each_others_past(place: Place) -> None:
    """Two pages at once each get their own answers."""
    with live(place) as one, live(place) as two:
        for seq in (1, 2, 3):
            assert ask(one, {"scale": float(seq)}, seq)["state"]["scale"] == seq
            assert ask(two, {"sink": float(seq)}, seq)["state"]["sink"] == seq


def test_the_other_state_is_shown_as_a_ghost(place: Place) -> None:
    """`against`: its spectrum beside; pinned: the ratios B : A."""
    with live(place) as socket:
        moved = ask(socket, {"scale": 2.0}, against={})
        pinned = ask(socket, {"scale": 2.0}, against={}, pinned=True)
    assert sum(n for _, _, n in moved["spectrum"]["ghost"]) <= 192
    assert "ratio" not in moved["numbers"][0]
    ratio = measure(State(scale=2.0)).scalars["lambda_max"].value / measure(State()).scalars["lambda_max"].value
    assert pinned["numbers"][0]["ratio"] == f"B : A = {ratio:.0f}"
    assert pinned["blocks"]["cells"]["W_V,W_V"]["ratio"].startswith("B : A = ")


def test_a_refused_state_is_no_ghost(place: Place) -> None:
    """From a state that was refused to a good one: the answer comes, with nothing to compare."""
    with live(place) as socket:
        answer = ask(socket, {"attention": "linear"}, against={"attention": "linear", "design": "u-spa"})
    assert answer["kind"] == "answer"
    assert answer["ghost"] is None


def test_the_guard_speaks_through_the_socket(place: Place, engine) -> None:
    """A long drag waits for the release, a very long one asks, too large is refused; the page goes on."""
    with live(place) as socket:
        engine.cost.factor = 1.0
        waits = ask(socket, {"dim": 20}, 1, final=False)
        assert (waits["kind"], waits["seq"]) == ("wait", 1)
        assert "computed when you let go" in waits["text"]
        asked = ask(socket, {"dim": 48}, 2, final=True)
        assert (asked["kind"], asked["seq"]) == ("ask", 2)
        assert "takes about" in asked["text"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("quadform.explorer.cost.free_bytes", lambda device: 1e8)
            refused = ask(socket, {"dim": 48}, 3, final=True, confirmed=True)
        assert refused["kind"] == "error"
        assert refused["control"] == "dim"
        assert "largest width that fits" in refused["text"]
        assert ask(socket, {}, 4)["kind"] == "answer"


@pytest.mark.parametrize(
    ("message", "control"),
    [
        ("", ""),
        ("{", ""),
        ("[]", ""),
        ("null", ""),
        ('{"seq": 1}', ""),
        ('{"seq": "1", "state": {}}', ""),
        ('{"state": {}}', ""),
        ('{"seq": 1, "state": 3}', ""),
        ('{"seq": 1, "state": {"scale": 1e999}}', "scale"),
        ('{"seq": 1, "state": {"scale": -1}}', "scale"),
        ('{"seq": 1, "state": {"design": "__class__"}}', "design"),
        ('{"seq": 1, "state": {"data": "upload", "upload": "nothing"}}', "upload"),
        ('{"seq": 1, "state": {}, "against": {"tokens": 0}}', "tokens"),
        ('{"seq": 1, "state": {"data": "text", "text": ""}}', "text"),
        ('{"seq": 1, "state": {}, "lang": "xx"}', ""),
        ('{"seq": 1, "state": {"design": "u-spa", "attention": "linear"}}', "design"),
        ("[" * 30_000, ""),
        (b"\x00\xff", ""),
        ('{"seq": 1, "state": {}, "part": "half"}', ""),
        ('{"seq": 1, "state": {}, "detail": ["blocks"]}', ""),
    ],
)
def test_bad_messages_get_an_error_and_the_page_lives(place: Place, message: str | bytes, control: str) -> None:
    with live(place) as socket:
        socket.send(message)
        answer = told(socket.recv(timeout=20))
        assert answer["kind"] == "error"
        assert answer["control"] == control
        assert answer["text"]
        assert ask(socket, {}, 9)["seq"] == 9


def test_errors_speak_korean(place: Place) -> None:
    with live(place) as socket:
        assert ask(socket, {"scale": -1}, lang="ko")["text"].startswith("입력 크기: 0.01 ~ 30")
        assert ask(socket, {}, lang="ko")["tag"]["line"].startswith("정확값, 닫힌 공식")


def test_an_error_nobody_expected_leaves_the_page_alive(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with live(place) as socket:
        with monkeypatch.context() as patch:
            patch.setattr("quadform.explorer.engine.measure", lambda *_: 1 / 0)
            got = ask(socket, {"seed": 77})
        assert got["kind"] == "error"
        assert "ZeroDivisionError" in got["text"]
        assert ask(socket, {"seed": 77})["kind"] == "answer"


def test_a_message_that_is_too_large_closes_the_socket(place: Place) -> None:
    with live(place) as socket:
        socket.send(" " * (LARGEST_MESSAGE + 1))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=20)
        assert closed.value.rcvd.code == 1009


def test_too_many_pages_are_refused(place: Place) -> None:
    from contextlib import ExitStack

    with ExitStack() as stack:
        pages = [stack.enter_context(live(place)) for _ in range(MOST_PAGES)]
        for page in pages:
            ask(page, {})
        with live(place) as one_more, pytest.raises(ConnectionClosed):
            one_more.recv(timeout=20)


# --- uploads ----------------------------------------------------------------------------------------------------------
def send(place: Place, name: str, body: bytes, lang: str = "en") -> tuple[int, dict[str, Any]]:
    path = f"/{place.token}/upload?name={name}&lang={lang}"
    status, _, got = request(place, path, method="POST", body=body, origin=f"http://127.0.0.1:{place.port}")
    return status, json.loads(got)


def test_an_upload_is_measured(place: Place) -> None:
    """Tokens from a file: the answer is that of `measure` on the same tokens; sizes come from the file."""
    blob = io.BytesIO()
    np.save(blob, np.random.default_rng(1).normal(size=(5, 3)))
    status, got = send(place, "x.npy", blob.getvalue())
    assert (status, got["shape"]) == (200, [5, 3])
    with live(place) as socket:
        answer = ask(socket, {"data": "upload", "upload": got["upload"], "scale": 2.0})
    uploads = Uploads()
    name = uploads.add(read(blob.getvalue(), "x.npy"))
    want = measure(State(data="upload", upload=name, scale=2.0), uploads).scalars
    assert number(answer, "lambda_max") == pytest.approx(want["lambda_max"].value, rel=1e-9)
    assert answer["notes"]["tokens"] == "From the file: 5."
    assert answer["side"] == 27


def test_bad_uploads_are_refused(place: Place) -> None:
    assert send(place, "x.csv", b"1 2\n3")[0] == 422
    status, got = send(place, "x.csv", b"1" * (LARGEST_UPLOAD + 1))
    assert (status, got["control"]) == (413, "upload")
    assert "has > 1,000,000 bytes" in got["text"]  # reading stopped at the limit
    assert send(place, "x.exe", b"1", lang="ko")[1]["text"].endswith("파일을 올리십시오.")
