"""A model that `fully_shard` has cut over processes has the products of the whole one, and stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
from test_distributed import Found, at_work

CHECKS: dict[Any, str] = {
    2: "continued own hugging_face others asked estimates together refused planned differing stopped",
    4: "continued own copies pairs planned peaks estimates broken",
    1: "continued planned peaks",
    "2+": "raising killed",
    "2++": "out_of_memory",
}
#: Seconds in which a failure is heard of, on a busy machine.
SOON = 30
#: Declared beforehand, relative.
ROUNDING, VALUES = 1e-14, 1e-10
MODELS = ["own", "hugging_face", "copies"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return at_work(tmp_path_factory.mktemp("cut"), CHECKS, "at_sharded.py")


def results(found: Found, check: str) -> list[dict[str, Any]]:
    """What every process that ran a check found."""
    ranks = [r for world, every in found.items() for r in every if check in CHECKS[world].split()]
    every = [rank[check] for rank in (ranks[:-1] if check == "killed" else ranks)]
    assert every
    for result in every:
        assert "failed" not in result, result["failed"]
    return every


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["value", "gradient", "hessian", "gauss_newton", "functional"])
def test_products_are_those_of_one_process(found: Found, model: str, name: str) -> None:
    """Each process gives its own batches, the last one none; FSDP over 2 and 4 processes, HSDP 2 x 2, tied weights."""
    for result in results(found, model):
        assert result[name] <= ROUNDING


@pytest.mark.parametrize("model", ["Llama", "Qwen2"])
def test_models_with_norms_in_float32(found: Found, model: str) -> None:
    for result in results(found, "others"):
        for kind in ("hessian", "gauss_newton"):
            assert result[f"{model}, {kind}"] <= 1e-6


@pytest.mark.parametrize("model", MODELS)
def test_the_model_stays_as_it_was(found: Found, model: str) -> None:
    """Weights, gradients and hooks in their order; FSDP2's own gradient is right afterwards."""
    for result in results(found, model):
        assert result["kept"]
        assert result["fsdp"] <= ROUNDING


@pytest.mark.parametrize("model", MODELS)
def test_messages(found: Found, model: str) -> None:
    """A Hessian product gathers W and V forwards and again backwards, adds up one image, in 3 messages a unit, 4 where
    there are copies; that of H_o gathers V forwards alone."""
    for result in results(found, model):
        assert result["gathered"] <= 4
        assert result["of H_o, gathered"] <= 3
        for name in ("", "of H_o, "):
            assert result[f"{name}reduced"] == 1
            assert result[f"{name}calls"] <= (4 if model == "copies" else 3)


@pytest.mark.parametrize("mesh", ["fsdp", "hsdp"])
def test_eigenpairs(found: Found, mesh: str) -> None:
    """The five largest eigenvalues; vectors are shards whose inner products are added up over the processes once."""
    pieces = {"fsdp": 4, "hsdp": 2}[mesh]
    every = results(found, "pairs")
    for result in every:
        assert result[mesh] <= VALUES
        assert result[f"{mesh}, unit"] <= 1e-12
    assert abs(sum(result[f"{mesh}, share"] for result in every) - 4 / pieces) <= 1e-12


@pytest.mark.parametrize("kind", ["hessian", "gauss_newton", "functional"])
def test_plans(found: Found, kind: str) -> None:
    """FLOPs, numbers gathered and added up, and live bytes of a product on 1, 2 and 4 processes are predicted from
    shapes."""
    for result in [r for r in results(found, "planned") if kind in r]:
        flops, gathered, reduced, alive = result[kind]
        assert abs(flops - 1) <= 0.1
        assert gathered == reduced == 1
        assert abs(alive - 1) <= 0.1


def test_memory(found: Found) -> None:
    """Of 12 blocks on 1 and 4 processes a product takes its image, n / N, and at most 6 times the weights of one. In
    eigenpairs, densities and traces no tensor has more than n / N numbers, several local shards apart."""
    for result in results(found, "peaks"):
        assert result["hessian"] <= 6
        assert result["gauss_newton"] <= 4
        assert result["whole"] == []


def test_vectors_together(found: Found) -> None:
    """4 + 8 k forward passes for k vectors: what no vector touches runs once. A unit gathers W once for all
    V in each of two passes; a message has two numbers a weight at most, so that no tensor is larger than for one."""
    for result in results(found, "together"):
        for k in (1, 4):
            passes, gathered, reduced, calls = result[f"{k} together"]
            assert 4 / k + 7.5 < passes <= 4 / k + 8  # of the first matrix the input has no tangent
            assert gathered == pytest.approx(2 / k + 2)
            assert reduced == 1
            assert calls <= {1: 3, 4: 8}[k]
        assert result["apart"] <= ROUNDING


def test_questions(found: Found) -> None:
    """`qf.spectrum` and `qf.lr` give the numbers of one process, and one folder, gone on with where the time was up."""
    for result in results(found, "asked"):
        assert result["missing"] == [[], ["taylor_rate"]]  # third derivatives need whole weights
        assert result["spectrum"] <= VALUES
        assert result["lr"] <= 1e-8  # differences of gradients by displacements
        assert result["partial"]
        assert [n for n in result["states"] if n.endswith("-2.safetensors")] == [
            "state-eigenpairs-5-1-1-of-2.safetensors",
            "state-eigenpairs-5-1-2-of-2.safetensors",
        ]
        assert [n.partition("-")[0] for n in result["files"]] == ["record.json", "tensors"]
        assert result["batches"] == 2
        assert len(set(result["parameters"])) == 1, result["parameters"]  # the plan counts all shards
        assert result["products"][0] < result["products"][1]
        assert result["kept"]


def test_another_number_of_processes_goes_on(found: Found) -> None:
    """A search begun by 2, gone on with by 4 and ended by 1 finds what 1 does at once, in as many products."""
    every = {world: found[world][0]["continued"] for world in (2, 4, 1)}
    assert [every[world]["spent"] for world in (2, 4, 1)] == [6, 9, 9]
    for value, want in zip(every[1]["values"], every[1]["anew"], strict=True):
        assert abs(value - want) <= VALUES * abs(want)
    for world, result in every.items():
        names = [f"state-eigenpairs-3-0-{r + 1}-of-{world}.safetensors" for r in range(world)]
        assert [n for n in result["files"] if "eigenpairs" in n] == names
        assert abs(result["trace"] - every[1]["trace"]) <= VALUES * abs(every[1]["trace"])
        assert result["z"] == every[1]["z"]  # entries depend on their place alone


@pytest.mark.parametrize("name", ["hutchinson", "hutch++", "xtrace", "density", "three terms", "blocks"])
def test_estimates(found: Found, name: str) -> None:
    """On shards over 2 processes, and (some) on two copies of shards over 4: those of the whole operator, the same
    vectors."""
    every = [r for r in results(found, "estimates") if name in r]
    assert len(every) in (2, 6)
    for result in every:
        assert result[name] <= 1e-9


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "tensor parallel": "module `0` is cut by tensor parallelism",
        "gpipe": "ScheduleGPipe: a pipeline has one stage",
        "1f1b": "give the whole model, its weights sharded across the same processes by `fully_shard`",
        "beside": "Call `fully_shard` on the model too",
        "training": "evaluation mode (train_mode=False)",
        "norm": "`density`, `trace` and `block_norms` are supported",
        "exact trace": "no process holds a column",
        "optimizer": "no ceiling is known for RMSprop",
        "fisher": "this measurement does not",
        "split": "multiply with this risk as it is",
        "joined": "multiply with this risk as it is",
        "dense": "no process holds a column",
        "another question": "Other questions need whole weights",
        "output inside": "the output of the network is made inside a unit",
        "functional inside": "the output of the network is made inside a unit",
        "no data": "no batches in any process",
    }.items(),
)
def test_refused(found: Found, name: str, words: str) -> None:
    """What would be wrong, or is not known, is refused in every process."""
    for result in results(found, "refused"):
        assert result[name][0] == "InputError", result[name]
        assert words in result[name][2]


def test_mixed_precision_is_told(found: Found) -> None:
    """FSDP2 casts in its hooks, which sleep: the product is that of the stored weights, and a note says so."""
    for result in results(found, "refused"):
        without, notes, gap = result["policy"]
        assert notes == [
            *without, "the mixed-precision policy of fully_shard (float16) is not applied: measured in float64"
        ]  # fmt: skip
        assert gap == 0


def test_after_an_exception_inside_a_unit(found: Found) -> None:
    for result in results(found, "raising"):
        assert result["error"][0] == "ValueError"
        assert result["hooks"]
        assert result["finite"]
        assert not result["forwards"]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("nan", "InputError", "Loss is nan on probe batch 1 of 1"),
        ("weights", "InputError", "different copies of the weights (HSDP)"),
        ("buffers", "InputError", "different buffers"),
        ("order", "CheckFailed", "ran the modules of the model in different orders"),
    ],
)
def test_processes_that_differ(found: Found, name: str, kind: str, words: str) -> None:
    """All are told the same sentence, in time; what one alone can see the others hear from it."""
    for rank, result in enumerate(results(found, "differing")):
        error, _, text, seconds = result[name]
        assert error == ("PeerFailed" if name == "nan" and rank == 0 else kind)
        assert words in text
        assert seconds < SOON


SHORT = "process 1 of 2 stopped: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("check", "own", "told"),
    [
        ("broken", ["ValueError", None, "boom"], "process 3 of 4 stopped: ValueError: boom"),
        ("out_of_memory", ["PeerFailed", 1, SHORT], SHORT),
    ],
)
def test_one_process_raises_inside_a_unit(found: Found, check: str, own: list[Any], told: str) -> None:
    """The others hear its error while they wait for its weights; the model is as it was, and the group has parted."""
    *others, last = results(found, check)
    assert last["error"] == own
    for result in others:
        assert result["error"] == ["PeerFailed", 1, told]
    for result in (*others, last):
        assert result["waited"] < SOON
        assert result["as it was"]
        assert not result["forwards"]
        assert "an earlier error has stopped" in result["afterwards"][2]


def test_one_process_is_stopped_in_a_gather(found: Found) -> None:
    """It is not heard of for the timeout of the group (2 s): all end, it too when it goes on."""
    for result in results(found, "stopped"):
        assert result["error"][0] == "PeerFailed"
        assert "not heard of for 2 s" in result["error"][2]
        assert result["waited"] < SOON
        assert result["hooks"]


def test_one_process_is_killed_in_a_gather(found: Found) -> None:
    for result in results(found, "killed"):
        assert result["error"][0] == "PeerFailed"
        assert "one of them was killed" in result["error"][2]
        assert result["waited"] < SOON
        assert result["hooks"]
