"""Programs replayed from a CUDA graph; on a CPU a stand-in records the run and carries it out when replayed."""

import gc

import pytest
import torch
from torch.func import grad, jvp

from quadform.curvature import Risk, hessian, kept, linear
from quadform.kernels import program, replay

torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
F64 = torch.float64


class Recorded:
    """A CUDA graph in small: reads the recorded inputs and writes the recorded results when replayed."""

    made = 0

    def __init__(self, run, pool):
        Recorded.made += 1
        self.run = run
        self.memory = object() if pool is None else pool
        self.outputs = run()
        for t in self.outputs:
            t.fill_(torch.nan)

    def pool(self):
        return self.memory

    def replay(self):
        for mine, new in zip(self.outputs, self.run(), strict=True):
            mine.copy_(new)


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(replay, "_on_gpu", lambda leaves: True)

        def captured(*given):
            graph = Recorded(*given)
            return graph, graph.outputs

        monkeypatch.setattr(replay, "record", captured)
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

    def refuse(run, pool):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(replay, "record", refuse)
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

    def captured(*given):
        graph = Wrong(*given)
        return graph, graph.outputs

    if DEVICE == "cuda":
        monkeypatch.setattr(replay, "_alike", lambda *_: False)
    else:
        monkeypatch.setattr(replay, "record", captured)
    run = replay.Replay(lambda a: [a + 1])
    assert [float(run(torch.zeros(1, device=DEVICE))[0]) for _ in range(4)] == [1, 1, 1, 1]
    assert capsys.readouterr().err.count("its results differ") == 1


def test_replays_in_turn_share_their_memory():
    """Two points, one program: a graph each, one place for inputs and results, earlier results left alone."""
    shared = replay.Shared()
    points = [torch.full((3,), x, device=DEVICE) for x in (2.0, 5.0)]
    runs = [replay.Replay(lambda a, b: [a * b], fixed=1, shared=shared) for _ in points]
    results = []
    for x in (1.0, 2.0, 3.0, 4.0):
        b = torch.full((3,), x, device=DEVICE)
        results += [(run(a, b)[0], float(a[0]) * x) for run, a in zip(runs, points, strict=True)]
    assert all(run.replayed for run in runs)
    assert [float(r[0]) for r, _ in results] == [want for _, want in results]
    assert runs[0]._inputs is runs[1]._inputs
    assert runs[0]._outputs[0] is runs[1]._outputs[0]
    assert runs[0]._graph.pool() == runs[1]._graph.pool()


def test_shared_memory_starts_over_without_graphs():
    """When all its graphs are gone, so is their memory; the next graph has its own."""
    shared = replay.Shared()
    a, b = torch.ones(3, device=DEVICE), torch.full((3,), 2.0, device=DEVICE)
    places = []
    for factor in (1, 10):
        run = replay.Replay(lambda a, b, factor=factor: [factor * a * b], fixed=1, shared=shared)
        assert [float(run(a, b)[0][0]) for _ in range(3)] == [2 * factor] * 3
        places.append(run._outputs[0])
        del run
        gc.collect()
        assert not shared._graphs
    assert places[0] is not places[1]


@torch.library.custom_op("quadform_tests::too_large", mutates_args=())
def too_large(x: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("too large")


@too_large.register_fake
def _(x):
    return torch.empty_like(x)


def test_running_out_of_memory_is_said_as_such():
    """A compiled program that does not fit the memory says that, and nothing about the compiler."""
    run = program(too_large, torch.ones(3, device=DEVICE))
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="too large"):
            run(torch.ones(3, device=DEVICE))


# Products with a risk of several batches: `torch.compile` itself is left out where a stand-in records the graphs.


def several(monkeypatch):
    """A model, four batches of two shapes, and its Hessian by the compiled route."""
    if DEVICE == "cpu":
        monkeypatch.setattr(linear, "compiled", lambda graph: graph.forward)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).to(DEVICE, F64)
    new = lambda n, d: torch.randn(n, d, dtype=F64, device=DEVICE)  # noqa: E731
    batches = [(new(n, 3), new(n, 2)) for n in (5, 5, 5, 6)]
    risk = Risk(model, lambda out, batch: (out - batch[1]).square().mean(), batches, quiet=True)
    return model, risk, hessian(risk, route="compiled")


def close(a, b):
    for n in b:
        torch.testing.assert_close(a[n], b[n], rtol=1e-12, atol=1e-12)


def test_every_batch_has_its_graph(monkeypatch):
    """Products with four batches equal eager ones at every call; each batch is replayed; changed weights are seen."""
    model, risk, H = several(monkeypatch)
    for change in range(2):
        pairs = []
        for _ in range(4):
            v = risk.space.random(dtype=F64, device=DEVICE)
            pairs.append((H @ v, hessian(risk) @ v))
        for ours, want in pairs:
            close(ours, want)
        assert H.route == "compiled"
        assert [there.run.replayed for there in H.run.kept.values()] == [True] * 4
        assert len(H.run.programs) == 2
        if DEVICE == "cpu":
            assert Recorded.made == 4 * (change + 1)
        with torch.no_grad():
            model[0].weight.mul_(1.5)


def test_batches_that_cannot_be_kept_share_a_graph(monkeypatch, capsys):
    """Where nothing may be kept, one graph for each shape of batch runs the whole product, and it is said once."""
    _, risk, H = several(monkeypatch)
    monkeypatch.setattr(kept, "MAY_KEEP", 0.0)
    for _ in range(3):
        v = risk.space.random(dtype=F64, device=DEVICE)
        close(H @ v, hessian(risk) @ v)
    assert H.route == "compiled"
    assert not H.run.kept
    assert [program._anew.replayed for program in H.run.programs.values()] == [True, True]
    assert capsys.readouterr().err.count("recomputed for each product") >= 1
    if DEVICE == "cpu":
        assert Recorded.made == 2
