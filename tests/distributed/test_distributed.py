"""Several processes give the numbers of one, in float64 to 1e-12; and they fail together, with one message."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from at_work import WORDS
from at_work import processes as processes_of
from torch import nn

import quadform as qf
from quadform import distributed as qd
from quadform.cli import main
from quadform.core import progress
from quadform.distributed import meeting, processes
from quadform.estimate import eigenpairs

#: Declared beforehand: rounding of products and of bases; that of the trial of `lr`, which divides differences of
#: gradients by displacements of 1e-8 to 1e-2.
ROUNDING, TRIAL = 1e-12, 1e-9
#: Eigenvalues by two sums in different orders, and residuals of 1e-6 and less.
VALUES, CUT = 1e-10, "weights sharded across 2 processes"
#: Two MINRES runs to 1e-6, whose Lanczos vectors are not kept orthogonal (5e-10 was seen before this was set).
DRIFT = 1e-8
CHECKS = {
    2: "products routes contracts few_rows causal whole_batches joined spread bases slices estimates solved resumed"
    " refusals failures interrupted questions wrapped command_line documented killed",
    3: "products few_rows causal joined bases slices solved failures",
}
Found = dict[Any, list[dict[str, Any]]]


def at_work(folder: Path, checks: Mapping[Any, str], script: str = "at_work.py") -> Found:
    """What each of the processes found, by their number (`"2+"`: two others); one has loaded torch, and all others are
    forked from it."""
    command = [sys.executable, str(Path(__file__).with_name(script)), str(folder)]
    command += [f"{world}={','.join(names.split())}" for world, names in checks.items()]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "errors").open("w") as errors:
        parent = subprocess.Popen(command, env=env, stdout=errors, stderr=errors, start_new_session=True)
    try:
        parent.wait(timeout=400)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
    files = {task: [folder / str(task) / f"{rank}.json" for rank in range(processes_of(task))] for task in checks}
    assert all(f.exists() for every in files.values() for f in every), (folder / "errors").read_text()[-3000:]
    return {world: [json.loads(f.read_text()) for f in every] for world, every in files.items()}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return at_work(tmp_path_factory.mktemp("work"), CHECKS)


def results(found: Found, check: str, checks: Mapping[int, str] = CHECKS) -> list[tuple[int, int, dict[str, Any]]]:
    """(world, rank, results) of a check in every process that ran it to its end."""
    out = []
    for world, ranks in found.items():
        for rank, every in enumerate(ranks):
            if check in checks[world].split() and not (check == "killed" and rank == world - 1):
                assert "failed" not in every[check], every[check].get("failed")
                out.append((world, rank, every[check]))
    assert out
    return out


def same(found: Found, check: str, *names: str, within: float = ROUNDING) -> None:
    for world, rank, result in results(found, check):
        for name in names:
            assert result[name] <= within, f"process {rank} of {world}: {name} differs by {result[name]:.1e}"


# --- data that are split --------------------------------------------------------------------------------------------
def test_every_row_is_in_one_process(found: Found) -> None:
    """The rows of the processes add up to all rows, the weights to 1, and no process has all or none of the ten."""
    for world, ranks in found.items():
        assert sum(every["products"]["rows"] for every in ranks) == 10
        assert abs(sum(every["products"]["weight"] for every in ranks) - 1) <= ROUNDING
        assert all(0 < every["products"]["rows"] < 10 for every in ranks), world


@pytest.mark.parametrize("name", ["hessian", "gauss_newton", "functional", "split at a module"])
def test_products(found: Found, name: str) -> None:
    """A V of the split data = A V of the whole; batches of 5, 3 and 2 rows, two fifths of the labels ignored."""
    same(found, "products", name)


def test_routes(found: Found) -> None:
    """Every route gives the product of one process; `auto` is chosen for all by the slowest."""
    same(found, "routes", "traced", "auto")


@pytest.mark.parametrize("name", ["block", "adjoint", "sum"])
def test_algebra(found: Found, name: str) -> None:
    """Blocks, adjoints of off-diagonal blocks and sums of split operators are those of the whole ones."""
    same(found, "products", name)


@pytest.mark.parametrize("name", ["empirical", "monte-carlo"])
def test_fisher(found: Found, name: str) -> None:
    """sum_b w_b g_b g_b^T over whole batches; labels are drawn as one process draws them."""
    same(found, "products", name)


def test_value_and_gradient(found: Found) -> None:
    """The risk and its gradient, where the model stands and elsewhere, in every process."""
    same(found, "products", "value", "gradient", "gradient elsewhere")


def test_hessian_of_activations(found: Found) -> None:
    """d2 risk / dF2 belongs to one whole batch and is not split."""
    same(found, "products", "activation")


def test_fewer_rows_than_processes(found: Found) -> None:
    """A process without data adds nothing: products, gradient, value and Fisher are those of one process."""
    for name in ("one row", "rows in turn"):
        same(found, "few_rows", name, *(f"{name}, {what}" for what in ("gradient", "value", "fisher", "labels")))
    for world, ranks in found.items():
        counts = [every["few_rows"]["one row, batches"] for every in ranks]
        assert sorted(counts) == [0] * (world - 1) + [1]
        turns = [every["few_rows"]["rows in turn, batches"] for every in ranks]
        assert sum(turns) == 3
        assert max(turns) <= 2  # single rows go to the processes in turn


def test_targets_are_counted(found: Found) -> None:
    """Shifted labels, ignored ones, a row without any, padding: parts weigh by their loss terms."""
    same(found, "causal", "hugging face", "ours")
    assert all(result["note"].startswith("rows split") for _, _, result in results(found, "causal"))


def test_models_without_a_forward_derivative(found: Found) -> None:
    """Their rows are split too: the slope is then taken backwards."""
    same(found, "causal", "no forward derivative")
    assert all(result["its note"].startswith("rows split") for _, _, result in results(found, "causal"))


def test_losses_in_which_rows_see_each_other(found: Found) -> None:
    """A contrastive loss is no mean over rows: its batches stay whole, and the Hessian is that of one process."""
    same(found, "whole_batches", "contrastive", "uneven")
    assert sorted(result["batches"] for _, _, result in results(found, "whole_batches")) == [1, 2]


def test_padding_that_only_the_loss_knows_of(found: Found) -> None:
    """Rows with different numbers of terms, all of nearly one loss: seen by the slope; with `count=` they split."""
    same(found, "whole_batches", "padding", "counted")
    assert [result["counted, rows"] for _, _, result in results(found, "whole_batches")] == [2, 2]


def test_data_of_their_own(found: Found) -> None:
    """`join`: batches that lie in different processes are averaged by their loss terms, as in one risk."""
    same(found, "joined", "hessian", "fisher", "value")


def test_contract(found: Found) -> None:
    """`check_operator` passes in every process."""
    assert {result["passed"] for _, _, result in results(found, "contracts")} == {6}


def test_vectors_are_dealt_out(found: Found) -> None:
    """`spread`: each process multiplies its share of the vectors; images, means, standard errors have the same bits."""
    every = results(found, "spread")
    assert sorted(result["vectors of 5"] for _, _, result in every) == [2, 3]
    for _, _, result in every:
        assert result["bits"]
        assert all(result["hutchinson"] + result["xtrace"])


# --- bases that are sliced ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["plain", "restarted", "block", "selective", "start", "hessian"])
def test_sliced_lanczos(found: Found, way: str) -> None:
    """Eigenvalues and eigenvectors of a sliced basis are those of a whole one, after as many products."""
    for world, rank, result in results(found, "bases"):
        if world == 3 and way not in ("plain", "restarted", "hessian"):
            continue
        assert result[f"{way}/values"] <= ROUNDING, (world, rank)
        assert result[f"{way}/vectors"] <= ROUNDING, (world, rank)
        assert len(set(result[f"{way}/products"])) == 1


def test_memory_of_a_basis(found: Found) -> None:
    """A process keeps k ceil(n / N) entries of a basis of k vectors, the last one fewer; the whole is orthonormal."""
    for world, rank, result in results(found, "slices"):
        each = -(-11 // world)
        assert result["entries"] == 5 * max(0, min(each, 11 - rank * each))
        assert result["orthonormal"] <= 1e-14
        assert result["rows"] == 0


ESTIMATES = ["density, full", "density, selective", "density, none", "trace", "hutch++", "diagonal", "frobenius"]


@pytest.mark.parametrize("name", [*ESTIMATES, "singular", "blocks"])
def test_estimates(found: Found, name: str) -> None:
    """Every estimator gives the numbers and the standard errors of one process."""
    same(found, "estimates", name)


@pytest.mark.parametrize("name", ["cg", "block-cg", "minres", "lsmr", "deflated", "function"])
def test_solves(found: Found, name: str) -> None:
    """x and f(A) b with vectors in slices are those of one process, with as many products; three processes run CG."""
    worlds = found if name == "cg" else {2: found[2]}
    same(worlds, "solved", name, within=DRIFT if name == "minres" else ROUNDING)


def test_a_solve_goes_on_alone(found: Found) -> None:
    """A state that several processes left is gone on with by one."""
    for world, rank, result in results(found, "solved"):
        if rank == 0 and world == 2:
            assert result["gone on"] <= DRIFT
            assert result["files"] == 1


def test_resume(found: Found) -> None:
    """Stopped after 20 products, a run goes on: by as many processes, by one alone, and begun by one, by several."""
    for _, rank, result in results(found, "resumed"):
        for name in ("same", "more", *(["fewer"] if rank == 0 else [])):
            error, first = result[name]
            assert error <= ROUNDING, name
            assert first >= 20, name  # nothing was multiplied again
        assert result["density"] <= ROUNDING
        assert result["files"] == ["state-eigenpairs-3-0.safetensors"]
        assert "other settings (tol" in result["other settings"]


# --- failing --------------------------------------------------------------------------------------------------------
def test_refusals(found: Found) -> None:
    """Different weights, data or vectors, parameters cut over processes: refused in every process, with what to do."""
    words = {
        "weights": "Load the same checkpoint",
        "data": "use `qd.join(risk, g)`",
        "vectors": "draw it from a generator with one seed",
        "by": "'columns'",
    }
    for _, _, result in results(found, "refusals"):
        for name, text in words.items():
            assert result[name][:2] == ["InputError", 2], name
            assert text in result[name][2], name
        assert result["ddp"] <= ROUNDING  # a model in DistributedDataParallel is taken out of it


def test_a_process_that_raises(found: Found) -> None:
    """It keeps its own error; all others stop with its message and its exit code, at once."""
    own = {"foreign": ["ValueError", None, "boom\nsecond line"], "own": ["InputError", 2, "a bad word"]}
    own |= {"interrupted": ["KeyboardInterrupt", None, ""], "late": ["ValueError", None, "late"]}
    for world, rank, result in results(found, "failures"):
        last = f"process {world - 1} of {world} stopped: "
        others = {
            "foreign": ["PeerFailed", 1, f"{last}ValueError: boom"],
            "own": ["PeerFailed", 2, f"{last}a bad word"],
            "interrupted": ["KeyboardInterrupt", None, ""],
            "late": ["PeerFailed", 1, f"{last}ValueError: late"],
        }
        for name in own:
            assert result[name] == (own if rank == world - 1 else others)[name]
        assert result["late, seconds"] < 30


def test_an_error_of_all(found: Found) -> None:
    """Where all raise, each has its own error."""
    for _, rank, result in results(found, "failures"):
        assert result["together"] == ["ValueError", None, f"mine {rank}"]


def test_processes_that_go_different_ways(found: Found) -> None:
    """They are told so, in every process, and the group is over."""
    for world, rank, result in results(found, "failures"):
        step = "number" if rank == world - 1 else "sum (3,)"
        assert result["ways"][0] == "CheckFailed"
        assert f"process {rank} is at `{step}" in result["ways"][2]
        assert "an earlier error has stopped" in result["parted"][2]


def test_a_silent_process(found: Found) -> None:
    """A process not heard of for the timeout (1 s) counts as lost."""
    for world, rank, result in results(found, "failures"):
        assert result["silent"][0] == "PeerFailed"
        assert "not heard of for 1 s" in result["silent"][2]
        if rank < world - 1:
            assert result["silent, seconds"] < 2.9


def test_a_process_that_dies(found: Found) -> None:
    """Its closed connection is noticed at once."""
    for _, _, result in results(found, "killed"):
        assert result["error"][0] == "PeerFailed"
        assert "has lost the others" in result["error"][2]
        assert result["waited"] < 30


def test_interruption(found: Found) -> None:
    """Ctrl-C in one process: all save and stop; the run goes on where it was; the handler of signals is as before."""
    for _, _, result in results(found, "interrupted"):
        assert result["error"][0] == "KeyboardInterrupt"
        assert result["first"] == 10
        assert result["values"] <= ROUNDING
        assert result["handler"]


# --- whole questions ------------------------------------------------------------------------------------------------
def test_questions(found: Found) -> None:
    """`qf.spectrum` and `qf.lr` in a group: the numbers of one process, also from a kept run; the first keeps it."""
    same(found, "questions", "spectrum")
    same(found, "questions", "lr", within=TRIAL)
    same(found, "questions", "trial", within=1e-5)  # float32
    for _, _, result in results(found, "questions"):
        assert result["again"] <= ROUNDING
        assert result["kept"] == ["lr-0", "spectrum-0"]
        assert result["partial"]  # the time was up: all stopped together


def test_a_model_in_a_wrapper(found: Found) -> None:
    """`qf.lr` of a model in DistributedDataParallel: names, numbers and identity are those of the model in it."""
    same(found, "wrapped", "numbers", within=TRIAL)
    assert all(result["names"] and result["weights"] for _, _, result in results(found, "wrapped"))


def test_the_page_that_explains_it(found: Found) -> None:
    """The Python of docs/distributed.md runs, and its two ways to the eigenvalues agree."""
    same(found, "documented", "eigenvalues", within=1e-6)  # two tolerances of convergence
    assert all(result["rows"] == "rows split over 2 processes" for _, _, result in results(found, "documented"))


def test_one_process_makes_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single process: nothing is begun, no collective is called, and nothing is wrapped."""

    def never(*words: Any, **options: Any) -> None:
        raise AssertionError("a collective in a single process")

    for name in ("init_process_group", "new_group", "all_reduce", "broadcast", "destroy_process_group"):
        monkeypatch.setattr(dist, name, never)
    monkeypatch.setattr(processes, "gather", never)
    monkeypatch.setattr(meeting, "gather", never)
    model = nn.Linear(2, 1).double()
    x = torch.randn(3, 2, dtype=torch.float64)
    risk = qf.Risk(model, lambda out, batch: out.square().mean(), (x, x), quiet=True)
    with qd.group() as g:
        assert (g.rank, g.world, g.first) == (0, 1, True)
        assert qd.current() is g
        assert qd.shard(risk, g) is risk
        assert qd.join(risk, g) is risk
        H = qf.hessian(risk)
        assert qd.spread(H, g) is H
        assert eigenpairs(H, 1).converged
    assert qd.current() is qd.ALONE
    assert not progress.quiet


# --- torchrun -------------------------------------------------------------------------------------------------------
def torchrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """torchrun keeps what it writes of itself in the folder of temporary files."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    code = "import sys; from quadform.cli import main; sys.exit(main())"
    return subprocess.run(
        [*command, "--no-python", sys.executable, "-c", code, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `quadform spectrum` in one process."""
    folder = tmp_path_factory.mktemp("alone")
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*WORDS, str(folder), "--route", "eager"]) == 0
    return folder


def same_answer(
    alone: Path, folder: Path, printed: str, note: str, within: float, names: Callable[[str], bool]
) -> None:
    """One answer is printed and kept: that of one process."""
    two, one = json.loads(printed), json.loads((alone / "record.json").read_text())
    assert two["scalars"].keys() == one["scalars"].keys()
    for name in filter(names, one["scalars"]):
        a, b = (record["scalars"][name]["value"] for record in (one, two))
        assert abs(b - a) <= within * abs(a), name
    assert note in two["inputs"]["notes"]
    assert two["inputs"]["batches"] == 2
    assert [p.name for p in folder.iterdir() if p.suffix == ".json"] == ["record.json"]


def test_the_command_line(found: Found, alone: Path) -> None:
    """`quadform spectrum MODEL --json` in two processes prints the answer of one, in the first process."""
    (_, _, first), (_, _, second) = results(found, "command_line")
    assert (first["code"], second["code"], second["printed"]) == (0, 0, "")
    note = "rows split over 2 processes"
    same_answer(alone, Path(first["folder"]), first["printed"], note, ROUNDING, lambda name: True)


def test_torchrun(alone: Path, tmp_path: Path) -> None:
    """`torchrun ... quadform spectrum MODEL --fsdp --json`. Of shards other random vectors are drawn, so that the trace
    is another estimate."""
    several = torchrun(tmp_path, *WORDS, str(tmp_path / "two"), "--fsdp")
    assert several.returncode == 0, several.stderr[-2000:]
    same_answer(alone, tmp_path / "two", several.stdout, CUT, VALUES, lambda name: "/" in name or name == "loss")


def test_a_plan_for_many_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """Each process sends (N - 1) / N of what is gathered and added up, and holds 1 / N of the weights."""
    words = ["spectrum", "new:pre-ln,depth=2,d_model=8", "--dry-run", "--json", "--quiet", "--blocks", "none"]
    shares = []
    for world in (2, 64):
        assert main([*words, "--world", str(world)]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert f"each of {world} processes" in plan["text"]
        shares.append(plan["share"])
    few, many = shares
    assert few["weights"] == 32 * many["weights"]
    assert few["gathered"] == many["gathered"]
    assert abs(few["sent"] / many["sent"] - (1 / 2) / (63 / 64)) <= 1e-12
    assert few["flops"] == many["flops"]
    assert main(["lr", words[1], "--dry-run", "--quiet", "--verify", "0", "--world", "8"]) == 0
    assert "each of 8 processes" in capsys.readouterr().out
    assert main([*words[:2], "--world", "64", "--quiet"]) == 2
    assert "world=64 is for a plan alone." in capsys.readouterr().err


def test_verbs_for_one_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A verb that is not split says so once, and leaves with an error; what is cut needs processes."""
    assert main(["spectrum", "new:pre-ln,depth=1,d_model=8", "--fsdp", "--quiet"]) == 2
    assert "Start it with torchrun." in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, lines in ((0, 1), (1, 0)):
        monkeypatch.setenv("RANK", str(rank))
        with contextlib.suppress(SystemExit):
            assert main(["why", "new:pre-ln"]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        text = "`quadform why` runs in one process; torchrun serves `spectrum`, `lr`, `train`."
        assert told.err.count(text) == lines
