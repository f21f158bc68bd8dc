"""Programs replayed from a CUDA graph; on a CPU a stand-in records the run and carries it out when replayed."""

import pytest
import torch
from torch.func import grad, jvp

from quadform.kernels import program, replay

torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Recorded:
    """A CUDA graph in small: reads the recorded inputs and writes the recorded results when replayed."""

    made = 0

    def __init__(self, run, inputs):
        Recorded.made += 1
        self.run, self.inputs = run, inputs
        self.outputs = [torch.full_like(t, torch.nan) for t in run(*inputs)]

    def replay(self):
        for mine, new in zip(self.outputs, self.run(*self.inputs), strict=True):
            mine.copy_(new)


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(replay, "_on_gpu", lambda leaves: True)

        def captured(run, inputs):
            graph = Recorded(run, inputs)
            return graph, graph.outputs

        monkeypatch.setattr(replay, "_captured", captured)
    Recorded.made = 0


def test_replayed_products_are_those_of_the_program():
    """Every call equals the plain product, for new vectors and weights; earlier results stay as they are."""
    gen = torch.Generator().manual_seed(0)
    new = lambda: torch.randn(5, 5, generator=gen).to(DEVICE)  # noqa: E731
    hvp = lambda p, v: jvp(grad(lambda p: (p @ p).sin().sum()), (p,), (v,))[1]  # noqa: E731
    p, v = new(), new()
    run = program(hvp, p, v, compile=False, replay=True)
    results, wanted = [], []
    for _ in range(4):
        p, v = new().requires_grad_(), new()
        results.append(run(p, v))
        wanted.append(hvp(p, v))
    for a, b in zip(results, wanted, strict=True):
        assert not a.requires_grad
        torch.testing.assert_close(a, b.detach())


def test_fixed_leaves_are_read_where_they_lie():
    """Values written into a fixed leaf are seen; another tensor in its place starts over."""
    run = replay.Replay(lambda a, b: [a * b], fixed=1)
    a, b = torch.ones(3, device=DEVICE), torch.full((3,), 2.0, device=DEVICE)
    assert [float(run(a, b)[0][0]) for _ in range(3)] == [2, 2, 2]
    a.fill_(5)
    assert float(run(a, b)[0][0]) == 10
    other = torch.full((3,), 7.0, device=DEVICE)
    assert float(run(other, b)[0][0]) == 14
    assert not run._inputs
    assert [float(run(other, b)[0][0]) for _ in range(2)] == [14, 14]
    assert float(run(a, b)[0][0]) == 10
    if DEVICE == "cpu":
        assert Recorded.made == 2


def test_what_cannot_be_captured_runs_as_before(monkeypatch, capsys):
    """A run that fails under capture is said once and carried out kernel by kernel."""

    def refuse(run, inputs):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(replay, "_captured", refuse)
    run = replay.Replay(lambda a: [a + 1])
    assert [float(run(torch.zeros(1, device=DEVICE))[0]) for _ in range(4)] == [1, 1, 1, 1]
    assert not run._inputs
    assert capsys.readouterr().err.count("kernel by kernel") == 1


def test_a_graph_with_other_results_is_not_used(monkeypatch, capsys):
    """What the first replay gives is compared with the plain run; where it differs the plain run goes on."""

    class Wrong(Recorded):
        def replay(self):
            super().replay()
            self.outputs[0].mul_(1.01)

    def captured(run, inputs):
        graph = Wrong(run, inputs)
        return graph, graph.outputs

    monkeypatch.setattr(replay, "_captured", captured)
    run = replay.Replay(lambda a: [a + 1])
    assert [float(run(torch.zeros(1, device=DEVICE))[0]) for _ in range(4)] == [1, 1, 1, 1]
    assert capsys.readouterr().err.count("its results differ") == 1
