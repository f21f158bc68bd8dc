"""Designs side by side: sizes counted, signal and ceilings as the parts give them, verdicts, budget, resume."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch

from quadform.answers import compare as answered
from quadform.answers.compare import COLUMNS, LONG, Compare
from quadform.applications import machine, short_run
from quadform.applications.compare import measure
from quadform.applications.compare.call import compare
from quadform.applications.compare.measure import BESIDE, CompareMeasurement
from quadform.applications.compare.question import SORTS, CompareQuestion
from quadform.applications.compare.sizes import size
from quadform.applications.short_run import ShortRun
from quadform.applications.step_size import ceiling
from quadform.applications.step_size.ceiling import SEEN, seen_first
from quadform.applications.step_size.rules import Stepper, adam
from quadform.cli.main import main
from quadform.core.errors import InputError, UnknownName
from quadform.core.record import Estimate, Provenance, Record
from quadform.core.work import Work
from quadform.corpora import dataset
from quadform.curvature import Risk, hessian
from quadform.estimate import eigenpairs
from quadform.nn import Transformer
from quadform.propagation.collapse import participation_ratio, token_cosine
from quadform.train import Schedule, TrainConfig


@pytest.fixture(scope="module")
def data():
    return dataset("add", digits=1)


OPTIONS = {"d_model": 4, "heads": 2, "batch_size": 4, "budget": 0.5, "dtype": "float64", "progress": False}


@pytest.fixture(scope="module")
def found(data) -> Compare:
    return compare(designs=["pre-ln", "no-skip"], depths=[1, 2], data=data, **OPTIONS)


def test_every_cell_has_every_number(found):
    """Two designs at two depths: four rows without a gap, each number an Estimate with its tag."""
    assert found.cells == [("pre-ln", 1), ("no-skip", 1), ("pre-ln", 2), ("no-skip", 2)]
    for cell in found.cells:
        assert all(found.get(*cell, measure) is not None for measure in COLUMNS), cell
    assert found.get("pre-ln", 1, "parameters").kind == "exact"
    assert found.get("pre-ln", 1, "lambda_max").kind in ("estimate", "exact")


def test_a_clock_that_stands_still_gives_a_speed(data, monkeypatch):
    """Where a step is shorter than a tick of the clock, its speed is a number."""
    monkeypatch.setattr(machine, "busy_seconds", lambda device: 5.0)
    monkeypatch.setattr(short_run, "busy_seconds", lambda device: 5.0)
    model = Transformer("pre-ln", depth=1, d_model=4, heads=2, **data.settings)
    run = ShortRun(model, data, TrainConfig(steps=2, lr=1e-3, batch_size=4, seed=0), None)
    run.to(2)
    assert len(run.speeds) == 2
    assert all(0 < v < math.inf for v in run.speeds)


def test_the_numbers_are_those_of_the_model(found, data):
    """Cosine and rank after the last block, lambda_max and the parameters, computed another way."""
    model = Transformer("pre-ln", depth=2, d_model=4, heads=2, dtype=torch.float64, **data.settings)
    batch = next(data.batches("valid", 4))
    X = model.streams(batch["tokens"])[-1].detach()
    assert found.get("pre-ln", 2, "cosine").value == pytest.approx(float(token_cosine(X).mean()), rel=1e-9)
    assert found.get("pre-ln", 2, "rank").value == pytest.approx(float(participation_ratio(X).mean()), rel=1e-9)
    lam = torch.linalg.eigvalsh(hessian(Risk(model, None, batch, quiet=True)).dense())[-1]
    assert found.get("pre-ln", 2, "lambda_max").value == pytest.approx(float(lam), rel=1e-4)
    assert found.get("pre-ln", 2, "parameters").value == sum(p.numel() for p in model.parameters())


def test_flops_are_those_of_the_matrix_products(data):
    """A forward pass of a block is 2 x (its matrices) a token, plus 4 n d for scores and mixing, plus the output."""
    d, n, ff = 8, 6, 32
    model = Transformer("pre-ln", depth=3, d_model=d, heads=2, **data.settings)
    batch = next(data.batches("valid", 5))
    vocab = model.config.vocab
    a_token = 3 * (2 * 4 * d * d + 4 * n * d + 2 * 2 * d * ff) + 2 * d * vocab
    assert size(model, batch)["flops"].value == pytest.approx(a_token, rel=1e-12)


def test_memory_counts_four_copies_of_the_weights(data):
    """Weights, gradients and two moments are 16 bytes a float32 parameter; activations come on top and grow with n."""
    model = Transformer("pre-ln", depth=1, d_model=8, heads=2, **data.settings)
    small, large = (size(model, next(data.batches("valid", b)))["memory"].value for b in (2, 20))
    weights = 16e-6 * sum(p.numel() for p in model.parameters())
    assert small > weights
    assert large - weights == pytest.approx(10 * (small - weights), rel=0.3)


def test_rows_are_sorted_with_the_best_first(found):
    for sort, sign in (("lr_ceiling", -1), ("loss", 1), ("rank", -1), ("parameters", 1)):
        values = [sign * v for v in found.table(sort=sort).column(COLUMNS[sort])]
        assert values == sorted(values), sort
    assert found.table(sort="design").column("design") == ("pre-ln", "no-skip", "pre-ln", "no-skip")
    with pytest.raises(UnknownName, match="Did you mean `loss`"):
        found.table(sort="los")


def test_training_lasts_as_long_as_the_budget_says(data):
    """More budget, more steps; every cell trains at least one step."""
    short, long = (
        compare(designs=["pre-ln"], depths=1, data=data, **{**OPTIONS, "budget": b}).get("pre-ln", 1, "steps").value
        for b in (0.01, 3.0)
    )
    assert 1 <= short < long


def test_a_training_ends_with_its_share_of_the_budget(data, monkeypatch):
    """Steps that take longer than planned are cut, for every model; the row says so, and the answer is whole."""
    monkeypatch.setattr(CompareMeasurement, "share", lambda *words: 0.0)
    found = compare(designs=["pre-ln", "sas-p"], depths=1, data=data, **{**OPTIONS, "budget": 5.0})
    planned = [note for _, _, note in found.record.inputs["notes"] if "its share of the budget was over" in note]
    assert [found.get(name, 1, "steps").value for name in ("pre-ln", "sas-p")] == [1, 1]
    assert len(planned) == 2
    assert planned[0].startswith("trained 1 of ")
    assert not found.record.inputs["partial"]


def test_shares_are_equal_parts_of_what_is_left(data):
    """100 s are left, 20 s of them for measuring two models: one is measured, so 90 s for two trainings."""
    plan = {"steps": {"pre-ln/1": 5, "sas-p/1": 5}, "measuring": 20.0}
    work = work_of(data, 1.0)
    assert work.share(plan, {"health/pre-ln/1": 0}, 100.0) == 45.0
    assert work.share(plan, {"health/pre-ln/1": 0, "training/pre-ln/1": 0, "health/sas-p/1": 0}, 100.0) == 100.0


def test_the_end_of_the_budget_ends_the_measuring(data, monkeypatch):
    """A comparison that is past its budget and its grace stops with what there is, marked partial."""
    monkeypatch.setattr(measure, "GRACE", -1e6)
    found = compare(designs=["pre-ln"], depths=1, data=data, **OPTIONS)
    assert found.record.inputs["partial"]
    assert not found.ok


# --- words ----------------------------------------------------------------------------------------------------------
def fake(lr: float = 1e-3, **cells: dict[str, tuple[float, float]]) -> Compare:
    scalars = {f"{d}/1/{m}": Estimate(v, e, "estimate") for d, ms in cells.items() for m, (v, e) in ms.items()}
    inputs = {"cells": [[d, 1] for d in cells], "lr": lr, "partial": False, "sort": "loss", "notes": []}
    return Compare(Record(kind="compare", inputs=inputs, scalars=scalars, tensors={}, made=Provenance({}, "", "")))


def work_of(data, budget):
    sizes = {"d_model": 8, "heads": 2, "batch_size": 4, "dtype": "float64"}
    return CompareQuestion(designs=["pre-ln"], depths=2, data=data, budget=budget, **sizes).measurement()


def test_the_budget_pays_for_timing_measuring_and_training(data):
    """What is told before the start adds up to the budget, the timing that was needed to tell it included."""
    plan = work_of(data, 100.0).timed(progress=False)
    assert plan["timing"] > 0
    assert plan["timing"] + plan["measuring"] + plan["training"] == pytest.approx(100.0)
    assert "timing " in work_of(data, 100.0).plan_text(plan)


def test_the_plan_counts_what_measuring_takes_beside_products(data, monkeypatch):
    """Evaluations of the loss outside the searches, three a training step: as counted, to a factor of 2."""
    work, calls, loss = work_of(data, 1.0), [], Transformer.loss
    products = []
    monkeypatch.setattr(Transformer, "loss", lambda model, *a, **k: calls.append(0) or loss(model, *a, **k))

    def search(*words, **options):
        before = len(calls)
        found = eigenpairs(*words, **options)
        products.append(len(calls) - before)
        return found

    monkeypatch.setattr(measure, "eigenpairs", search)
    monkeypatch.setattr(ceiling, "eigenpairs", search)
    work.health("pre-ln", 2, {"steps": {"pre-ln/2": 1}}, Work(progress=False))
    gradients = SEEN + 2  # of Adam, of P, and the backward pass of the signal
    spent = len(calls) - sum(products) + 2 * gradients
    assert 0.5 < spent / (3 * BESIDE) < 2, spent


def test_short_training_is_not_written_down(data, tmp_path, monkeypatch):
    """Checkpoints of a training of seconds cost more than they save: none is written, and none with a kill in mind."""
    kept = []
    monkeypatch.setattr(ShortRun, "save", lambda run: kept.append(run.folder))
    compare(designs=["pre-ln"], depths=1, data=data, out=tmp_path / "short", **OPTIONS)
    assert set(kept) == {None}
    monkeypatch.setattr(measure, "KEPT_FROM", 0.0)
    compare(designs=["pre-ln"], depths=1, data=data, out=tmp_path / "long", **OPTIONS)
    assert set(kept) == {None, tmp_path / "long" / "work" / "state" / "pre-ln-1"}


def test_adam_sees_each_batch_once(data, monkeypatch):
    """Its second moments after 8 batches are those of their gradients, with one evaluation of the loss for each."""
    model = Transformer("pre-ln", depth=1, d_model=8, heads=2, dtype=torch.float64, dropout=0.5, **data.settings)
    names = tuple(n for n, _ in model.named_parameters())
    stepper = Stepper(adam(0.9, "AdamW"), names, beta2=0.9, eps=1e-8)
    first = list(itertools.islice(data.batches("train", 4), SEEN))
    expected = stepper.after(Risk(model, None, b, quiet=True).gradient() for b in first)
    calls, loss = [], model.loss
    monkeypatch.setattr(model, "loss", lambda batch: calls.append(batch) or loss(batch))
    found = seen_first(stepper, model, data.batches("train", 4))
    assert len(calls) == SEEN
    assert model.training
    for n in names:
        torch.testing.assert_close(found.second[n], expected.second[n], rtol=1e-9, atol=1e-18)


def raced(steps: int, **losses: tuple[float, float]) -> Compare:
    return fake(**{n: {"loss": loss, "steps": (steps, 0)} for n, loss in losses.items()})


def test_a_winner_is_named_beyond_its_error_alone():
    """The lowest loss wins where every other lies two standard errors of the difference above it."""
    near, far = {"a": (1.0, 0.1), "b": (1.2, 0.1)}, {"a": (1.0, 0.1), "b": (1.3, 0.1)}
    tie, won = (raced(LONG, **losses).verdicts()[0] for losses in (near, far))
    assert (tie.status, tie.sentence()) == ("yellow", "No winner: b × 1 within two standard errors of a × 1 (1).")
    assert (won.status, won.value) == ("green", "a × 1")
    assert won.sentence().startswith("Lowest loss in equal time")
    assert won.sentence().endswith("a × 1 (1).")


def test_a_short_race_has_no_winner():
    """After 1 to 10 steps nothing is ranked, however far apart the losses are; it is said why and what to do."""
    far = {"a": (1.0, 0.001), "b": (9.0, 0.001)}
    for steps in (1, 10, LONG - 1):
        told = raced(steps, **far).verdicts()[0]
        assert told.status == "yellow"
        assert told.sentence().startswith(f"No winner: the shortest training had {steps} steps")
        assert "larger budget" in told.sentence()
    assert "nothing to compare" in raced(5, a=(1.0, 0.1)).said("en")


def test_the_first_step_and_the_peak_are_held_against_the_ceiling_apart():
    """Warm-up begins below the peak: a ceiling between the two is above the first rate."""
    first = 1e-3 * Schedule().factor(0, 400)
    a, b, c = (
        {"loss": (1, 0), "first_lr": (first, 0), "lr_ceiling": (v, 0)} for v in (0.9 * first, 1.1 * first, 1.1e-3)
    )
    told = {v.name: v for v in fake(a=a, b=b, c=c).verdicts()}["rates"]
    assert told.status == "red"
    assert "first step is above the ceiling at initialization: a × 1." in told.sentence()
    told = {v.name: v for v in fake(b=b, c=c).verdicts()}["rates"]
    assert told.status == "yellow"
    assert "The peak rate 0.001, which warm-up reaches later, is above the ceiling" in told.sentence()
    assert told.sentence().endswith("b × 1.")
    assert {v.name: v for v in fake(c=c).verdicts()}["rates"].status == "green"
    noisy = c | {"lr_ceiling": (0.8e-3, 0.3e-3)}  # the peak is above it by less than its error
    assert {v.name: v for v in fake(c=noisy).verdicts()}["rates"].status == "undecided"


def test_the_rate_of_the_first_step_is_recorded(found):
    """That of the schedule the models are trained with."""
    steps = int(found.get("pre-ln", 1, "steps").value)
    assert found.get("pre-ln", 1, "first_lr").value == pytest.approx(found.lr * Schedule().factor(0, steps))


def test_collapse_lost_gradients_and_low_ceilings_are_named_by_their_limits():
    bad = fake(
        a={"loss": (1, 0), "cosine": (0.995, 0), "gradient": (1, 0), "lr_ceiling": (1e-2, 0)},
        b={"loss": (1, 0), "cosine": (0.98, 0), "gradient": (1e-3, 0), "lr_ceiling": (1e-4, 0)},
    )
    told = {v.name: v for v in bad.verdicts()}
    assert (told["collapse"].status, told["lost"].status) == ("red", "red")
    assert "(cosine above 0.99): a × 1." in told["collapse"].sentence()
    assert "more than 100 times between input and last block: b × 1." in told["lost"].sentence()
    assert told["rates"].sentence().endswith("above the ceiling at initialization: b × 1.")
    fine = fake(a={"loss": (1, 0), "cosine": (0.2, 0), "gradient": (1, 0)})
    assert "No design collapses" in fine.said("en")


def test_the_orders_are_those_of_the_question():
    assert answered.SORTS == SORTS


# --- stopping, files, the verb --------------------------------------------------------------------------------------
class Killed(BaseException):
    pass


def test_killed_and_resumed_gives_the_same(data, tmp_path):
    """Stopped in the middle: the same folder ends with the numbers of an undisturbed run, speed excepted.

    The undisturbed run takes over the plan (steps from timings), which is written down first.
    """
    count = 0

    def kill(done, total, left, text):
        nonlocal count
        count += 1
        if count == 45:
            raise Killed

    asked = {"designs": ["pre-ln", "post-ln"], "depths": 1, "data": data, "resume": True}
    with pytest.raises(Killed):
        compare(**asked, out=tmp_path / "a", **{**OPTIONS, "progress": kill})
    begun, other = tmp_path / "a" / "work", tmp_path / "b" / "work"
    other.mkdir(parents=True)
    (other / "question.json").write_bytes((begun / "question.json").read_bytes())
    plan = (begun / "pieces.jsonl").read_text().splitlines()[0]
    (other / "pieces.jsonl").write_text(plan + "\n")
    again = compare(**asked, out=tmp_path / "a", **OPTIONS)
    whole = compare(**asked, out=tmp_path / "b", **OPTIONS)
    left = [{k: e for k, e in c.record.scalars.items() if not k.endswith("/speed")} for c in (again, whole)]
    assert left[0] == left[1]
    assert all(torch.equal(t, whole.record.tensors[n]) for n, t in again.record.tensors.items())


def test_time_that_is_over_leaves_a_partial_answer(data):
    cut = compare(designs=["pre-ln"], depths=1, data=data, max_time=1e-9, **OPTIONS)
    assert cut.record.inputs["partial"]
    assert "PARTIAL" in str(cut)


def test_a_design_that_cannot_be_built_is_a_note(tmp_path):
    """DeepNorm has no constants for two stacks: it is told, the others are measured."""
    words = dataset("reverse", letters=3, longest=3)
    found = compare(designs=["deepnorm", "pre-ln"], depths=1, data=words, **OPTIONS)
    assert "deepnorm" in str(found)
    assert "one stack" in str(found)
    assert math.isfinite(found.get("pre-ln", 1, "loss").value)


def test_the_verb(capsys, tmp_path):
    flags = ["--designs", "pre-ln,sas", "--depths", "1", "--d-model", "4", "--heads", "2", "--batch-size", "4"]
    flags += ["--data", "add:digits=1", "--budget", "1s"]
    assert main(["compare", *flags, "--out", str(tmp_path / "c"), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "Lowest loss in equal time" in out or "No winner" in out
    assert "Adam has seen no gradient" in out, "sas starts with W_Q = 0"
    again = Compare.load(tmp_path / "c")
    assert json.loads(again.json())["kind"] == "compare"
    assert main(["compare", *flags, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("plan: 2 models")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--designs", "paralel"], "Did you mean `parallel`"),
        (["--depths", "0"], "at least 1"),
        (["--budget", "long"], "not a length of time"),
        (["--d-model", "30", "--heads", "4"], "does not divide"),
        (["--data", "nothing"], "nothing"),
    ],
)
def test_refusals(words, message, capsys):
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err


def test_python_refuses_the_same(data):
    with pytest.raises(UnknownName, match="parallel"):
        compare(designs=["paralel"], data=data)
    with pytest.raises(InputError, match="at least one design"):
        compare(designs=[], data=data)
    with pytest.raises(InputError, match="takes its fields by name"):
        compare(["pre-ln"], data=data)


def test_the_question_is_plain_values(data):
    """A Dataset and its text are the same question, as JSON has it."""
    by_name = CompareQuestion(data="add:digits=1", designs="pre-ln", depths="1").identity()
    assert json.loads(json.dumps(by_name)) == CompareQuestion(data=data, designs=["pre_ln"], depths=1).identity()
