"""The model that is trained in the lecture: trained as `train` does, stopped, decoded, measured."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from quadform.corpora.numerals import english, korean
from quadform.lecture.engine import Engine
from quadform.lecture.maps import attention_maps, cross_matrix
from quadform.lecture.pupil import DATA, Pupil, number_config, number_model, source_of, target_of, trained_model
from quadform.lecture.steps.curvature import PUSH, TRIED, _descend, batch_of
from quadform.lecture.steps.decoding import LONGEST, search, tree
from quadform.lecture.steps.training import curve, held_out
from quadform.nn import Search, generate
from quadform.nn.block import Block
from quadform.nn.decode import log_probabilities
from quadform.nn.tokens import BOS, EOS
from quadform.train import train


def ask(engine: Engine, step: str, **more: Any) -> dict[str, Any]:
    return engine.answer(json.dumps({"seq": 1, "lang": "en", "step": step, **more}))


# --- training ---------------------------------------------------------------------------------------------------------
def test_a_lesson_is_train(engine: Engine) -> None:
    """The same weights, bit for bit, as `train` with the same settings."""
    own = number_model()
    done = train(own, DATA, number_config(steps=12), progress=False)
    lesson = engine.pupil.lesson
    assert lesson is not None
    assert lesson.losses[-1] == done.loss
    for a, b in zip(own.parameters(), engine.pupil.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_start_stop_and_go_back() -> None:
    """A button starts one run however often its message comes; stop ends it; the model stays until it is trained
    again, which begins from the start."""
    engine = Engine()
    assert "Not trained yet" in ask(engine, "training")["says"]
    values = {"steps": 1500}
    first = ask(engine, "training", values=values, action={"name": "start", "id": "a"})
    assert (first["kind"], first["acted"], first["running"]) == ("answer", "a", True)
    lesson = engine.pupil.lesson
    ask(engine, "training", values=values, action={"name": "start", "id": "a"})
    assert engine.pupil.lesson is lesson
    button = next(c for c in first["controls"] if c["kind"] == "button")
    assert button["action"] == "stop"
    ask(engine, "training", action={"name": "stop", "id": "b"})
    engine.pupil.finish()
    stopped = ask(engine, "training")
    assert not stopped["running"]
    step = engine.pupil.step
    assert 0 < step < 1500
    assert f"After {step} of 1500 steps" in stopped["says"]
    again = trained_model(steps=1500, stop=step)  # what its Python says
    assert f"stop={step}" in stopped["python"]
    for a, b in zip(again.parameters(), engine.pupil.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert ask(engine, "decoder")["says"].endswith(f"trained for {step} steps.")
    engine.pupil.start(steps=2)
    engine.pupil.finish()
    assert engine.pupil.step == 2


@pytest.mark.parametrize(
    "action", ["start", {"name": "start"}, {"name": "jump", "id": "x"}, {"name": "start", "id": 3}]
)
def test_what_is_no_action_is_refused(engine: Engine, action: Any) -> None:
    assert ask(engine, "training", action=action)["kind"] == "error"


def test_a_run_that_breaks_down_says_so() -> None:
    """A rate far above every ceiling: the page tells it and does not hang."""
    pupil = Pupil()
    pupil.start(lr=1e20, steps=12)
    pupil.finish()
    assert pupil.lesson is not None
    assert pupil.lesson.broken
    assert "broke down" in ask(Engine(pupil), "training")["says"]


def test_numbers_of_the_table_are_held_out() -> None:
    """None of them is in 3,000 numbers of the training stream."""
    trained = {tuple(source) for cut in DATA._pool("train", 200, 0, 0) for source, _ in cut}
    assert len(held_out()) == 5
    assert not any(tuple(source_of(n)) in trained for n in held_out())


def test_a_curve_keeps_the_mean() -> None:
    losses = [float(i % 7) for i in range(1000)]
    points = curve(losses)
    assert len(points) == 200
    assert sum(y for _, y in points) / 200 == pytest.approx(sum(losses) / 1000)
    assert curve(losses[:3]) == [[1, 0.0], [2, 1.0], [3, 2.0]]


# --- maps -------------------------------------------------------------------------------------------------------------
def test_maps_are_what_the_layers_do(engine: Engine) -> None:
    """A V W_O of every map is the output of its layer in the very same pass."""
    model, source, target = engine.pupil.model, source_of(42), target_of(42)
    outputs: dict[str, Any] = {}

    def note(name: str) -> Any:
        return lambda module, given, out: outputs.__setitem__(name, (module, given, out))

    handles = []
    for kind, stack in (("encoder", model.encoder_layers), ("decoder", model.layers)):
        for i, block in enumerate(stack):
            assert isinstance(block, Block)
            handles.append(block.attn.register_forward_hook(note(f"{kind}.{i}")))
            if block.cross is not None:
                handles.append(block.cross.register_forward_hook(note(f"cross.{i}")))
    maps = attention_maps(model, source, target)
    for handle in handles:
        handle.remove()
    assert maps.keys() == outputs.keys() == {f"{k}.{i}" for k in ("encoder", "decoder", "cross") for i in range(2)}
    for name, (attn, given, out) in outputs.items():
        read = given[3].X if name.startswith("cross") else given[0]
        made = attn._project((maps[name] @ attn.values(read)[0])[None])
        torch.testing.assert_close(made, out, rtol=1e-4, atol=1e-5)
    assert maps["cross.0"].shape == (4, len(target) - 1, len(source))
    attn, given, _ = outputs["cross.1"]
    torch.testing.assert_close(cross_matrix(attn, given[0], given[3])[0].sum(-1), torch.ones(4, len(target) - 1))


def test_numbers_are_read_and_written() -> None:
    assert DATA.tokenizer.decode(source_of(42)) == english(42) == "forty-two"
    assert DATA.tokenizer.decode(target_of(42)) == korean(42)
    assert (target_of(7)[0], target_of(7)[-1], source_of(7)[-1]) == (BOS, EOS, EOS)


# --- decoding ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("beam", [1, 3])
def test_the_tree_is_the_search(engine: Engine, beam: int) -> None:
    """Every node's number is the log-probability of its path by teacher forcing; the answers are those of `generate`;
    a step keeps `beam` nodes."""
    model, source = engine.pupil.model, source_of(61)
    grown, found = search(model, source, beam)
    how = Search(beam=beam, n_best=beam, alpha=0.0, max_length=LONGEST)
    assert [h.tokens for h in found] == [h.tokens for h in generate(model, [source], how)[0]]
    nodes = tree(grown, found[0], 4)[1:]
    wanted = log_probabilities(model, [source] * len(nodes), [list(n["path"]) for n in nodes])
    assert [n["log_prob"] for n in nodes] == pytest.approx(wanted, abs=1e-4)
    for depth in range(1, min(4, len(grown)) + 1):
        assert sum(n["depth"] == depth and n["kind"] != "ended" for n in nodes) == beam
    whole = (*found[0].tokens, EOS) if found[0].finished else found[0].tokens
    assert [n["path"] for n in nodes if n["best"]] == [whole[:depth] for depth in range(1, min(4, len(whole)) + 1)]
    assert {n["kind"] for n in nodes} <= {"kept", "dropped", "ended"}


def test_a_tree_grows_with_its_slider(engine: Engine) -> None:
    sizes = [len(ask(engine, "decoding", values={"number": 61, "letters": k})["panels"][0]["nodes"]) for k in (1, 2, 3)]
    assert sizes == sorted(set(sizes))


# --- curvature --------------------------------------------------------------------------------------------------------
def test_the_ceiling_is_that_of_the_loss(engine: Engine) -> None:
    """The gradient's change along the sharpest direction is lambda_max v; a push along it is multiplied by 1 - eta
    lambda_max in the first step, whatever the rate."""
    answer = ask(engine, "ceiling")
    found = next(kept for key, kept in engine.pupil.kept.items() if key[-1] == "sharpest")
    lam = found.values[0].value
    v = {name: x[0] for name, x in found.vectors.items()}
    model, batch = number_model().double(), batch_of(16)
    model.load_state_dict({k: x.double() for k, x in engine.pupil.model.state_dict().items()})

    def gradient(push: float) -> torch.Tensor:
        own = number_model().double()
        own.load_state_dict({n: (p + push * v[n]).detach() for n, p in model.named_parameters()})
        found = torch.autograd.grad(own.loss(batch), list(own.parameters()))
        return torch.cat([g.flatten() for g in found])

    flat = torch.cat([v[n].flatten() for n, _ in model.named_parameters()])
    change = (gradient(1e-4) - gradient(-1e-4)) / 2e-4
    assert float((change - lam * flat).norm()) <= 0.02 * lam
    assert f"λ_max is {lam:.2f}" in answer["says"]
    assert f"the ceiling is {2 / lam:.3g}." in answer["says"]
    assert answer["panels"][0]["series"][0]["points"][1][1] == pytest.approx(0.6, abs=0.05)  # |1 - 2 x 0.8|
    for factor in (0.3, 2.0):
        grown = _descend(engine.pupil.model, batch, factor * 2 / lam, v)
        assert len(grown) == 2 * TRIED + 1
        assert grown[1] == pytest.approx(abs(1 - 2 * factor), abs=0.05)
    assert PUSH < 1e-3


def test_what_was_measured_is_not_measured_again(engine: Engine) -> None:
    """Going back to a step is free; a newly trained model is measured anew."""
    first = ask(engine, "hessian")["panels"]
    kept = dict(engine.pupil.kept)
    assert ask(engine, "hessian")["panels"] == first
    assert engine.pupil.kept == kept
    assert not math.isclose(
        first[0]["values"][0][0], ask(engine, "hessian", values={"when": "before"})["panels"][0]["values"][0][0]
    )
