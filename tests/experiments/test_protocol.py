"""One training run as a part of an experiment: recipes are what they say, curves are reproducible."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from quadform.core.errors import FileError, InputError
from quadform.core.work import Deadline, TimeUp, Work
from quadform.corpora.datasets import Addition
from quadform.experiments import blocks, gpt_code, packed, parity, v_skipinit
from quadform.experiments.experiment import Units
from quadform.experiments.gpt_sinks import captured
from quadform.experiments.packed import Packed
from quadform.experiments.protocol import Kept, Recipe, train_run
from quadform.nn.tokens import EOS
from quadform.nn.transformer import Transformer

RECIPE = Recipe(design="sas-p", depth=2, dim=8, heads=2, d_ff=16, steps=12, batch=8, lr=1e-2, warmup=0.3, seed=0)


def test_a_run_depends_on_its_recipe_alone() -> None:
    """The same recipe twice gives the same losses; another seed gives others."""
    data = Addition(digits=1)
    a, b = train_run(RECIPE, data, valid_batches=1), train_run(RECIPE, data, valid_batches=1)
    assert torch.equal(a["loss"], b["loss"])
    assert not torch.equal(a["loss"], train_run(dataclasses.replace(RECIPE, seed=1), data, valid_batches=1)["loss"])
    assert float(a["loss"][-1]) < float(a["loss"][0])


def test_looking_changes_nothing() -> None:
    """Measuring along the way leaves the run as it was, and comes back by name."""
    data, seen = Addition(digits=1), []

    def look(step: int, model: Transformer, batch: dict) -> dict[str, float]:
        seen.append(step)
        return {"loss": float(model.loss(batch).detach())}

    looked = train_run(RECIPE, data, valid_batches=1, at=(0, 5, 12), look=look)
    assert seen == [0, 5, 12]
    assert looked["look/loss"].shape == (3,)
    assert torch.equal(looked["loss"], train_run(RECIPE, data, valid_batches=1)["loss"])


def test_recipes_change_what_they_name() -> None:
    """Queries, MLP skip and projections of the model follow the recipe."""
    settings = Addition(digits=1)
    plain = RECIPE.model_config(settings).blocks[-1]
    assert plain.query_init == "zero"
    assert (
        dataclasses.replace(RECIPE, queries="orthogonal").model_config(settings).blocks[-1].query_init == "orthogonal"
    )
    sequential = dataclasses.replace(RECIPE, design="sas", mlp_skip=False).model_config(settings).blocks[-1]
    assert sequential.mlp is not None
    assert sequential.mlp.skip == 0
    moved = (
        dataclasses.replace(RECIPE, design="shaped", projections=("identity", 0.2)).model_config(settings).blocks[-1]
    )
    assert moved.value is not None
    assert (moved.value.init, moved.value.branch) == ("identity", 0.2)
    other = dataclasses.replace(RECIPE, branch=0.7, positions="sinusoidal").model_config(settings)
    assert {b.mlp.branch for b in other.blocks if b.mlp} == {0.7}
    assert other.positions == "sinusoidal"


def test_frozen_weights_stay_and_the_others_move() -> None:
    """`frozen` is a part of a parameter's name: the weights of the MLPs, their learned gain b_FF not among them."""
    data = Addition(digits=1)
    recipe = dataclasses.replace(RECIPE, frozen=(".mlp.",))
    model = Transformer(recipe.model_config(data), seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train_run(recipe, data, valid_batches=1, model=model)
    stayed = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
    assert stayed == {f"layers.{i}.mlp.W_{j}" for i in range(2) for j in (1, 2)}


def test_steps_to_equal_loss_are_counted_in_steps() -> None:
    """A run of 1,000 steps that passes at step 100 the loss another ends at after 2,000 took a twentieth of them."""
    fast, slow = torch.ones(1000), torch.full((2000,), 2.0)
    fast[:96], slow[-40:] = 3.0, 1.5  # windows of 16 and of 33 steps
    ratio = blocks._steps_ratio({"loss": fast}, {"loss": slow})
    assert ratio == pytest.approx(20, rel=0.15)
    assert math.isnan(blocks._steps_ratio({"loss": fast + 1}, {"loss": slow}))


def test_the_protocol_names_every_run_once() -> None:
    """The deciding runs come first, three seeds each; every name is a recipe."""
    config = blocks.PRESETS["paper"]
    runs = blocks.plan(config)
    assert len(set(runs)) == len(runs)
    assert [name for name, _ in runs[:9]] == list(blocks.MAIN) * 3
    assert all(blocks.recipe(config, name, seed).steps >= 1000 for name, seed in runs)


def test_the_matched_pre_ln_has_the_blocks_of_sas_p_in_parameters() -> None:
    """d_ff - d in place of d_ff takes from a Pre-LN block what W_V and W_O are, 2 d^2: then it has one of SAS-P."""
    from quadform.core.parameters import count_parameters

    config, data = blocks.PRESETS["smoke"], Addition(digits=1)

    def block_of(name: str) -> int:
        made = blocks.recipe(config, name, 0)
        a, b = (count_parameters(dataclasses.replace(made, depth=d).model_config(data)) for d in (3, 4))
        return b - a

    one_norm, scalars = config.dim, 2 + 3 * config.heads  # SAS-P: one norm less, b_SA, b_FF, alpha, beta, gamma more
    assert block_of("pre-ln, matched") - one_norm + scalars == block_of("sas-p")
    assert block_of("pre-ln") > block_of("pre-ln, matched")


def test_a_packed_corpus_is_windows_of_its_tokens(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are windows of the file's tokens, labels the next ones; held-out tokens never appear in training."""
    path = tmp_path / "c.npz"
    np.savez_compressed(
        path, vocab=np.array(60), train=np.arange(50, dtype=np.uint16), valid=np.full(20, 55, dtype=np.uint16)
    )
    monkeypatch.setenv("QUADFORM_CORPUS", str(path))
    data = Packed(seq_len=8)
    assert data.settings["vocab"] == 60
    batch = next(data.batches("train", 16, seed=1))
    tokens, labels = batch["tokens"], batch["labels"]
    assert torch.equal(tokens - tokens[:, :1], torch.arange(8).expand(16, 8))
    assert torch.equal(labels, tokens + 1)
    assert int(labels.max()) < 50
    assert set(next(data.batches("valid", 4))["tokens"].flatten().tolist()) == {55}


def test_sooner_counts_the_steps_to_the_others_last_loss() -> None:
    """A run that is where another ends after a quarter of the steps took a quarter; one that never is there, 1."""
    slow = torch.linspace(4.0, 2.0, 80)
    fast = torch.cat((torch.full((18,), 3.0), torch.full((62,), 1.0)))
    assert v_skipinit.sooner(fast, slow) == pytest.approx(4.0)
    assert v_skipinit.sooner(torch.full((80,), 3.0), slow) == 1.0


def test_v_skipinit_is_trained_with_each_of_its_rates_at_both_depths() -> None:
    """The others have one rate; beta < 1 is of the first depth and moves W_V and W_O alone."""
    config = v_skipinit.PRESETS["paper"]
    runs = v_skipinit.plan(config, 0)
    own = [(r.depth, r.lr) for name, r in runs.items() if name.startswith("shaped, depth")]
    assert own == [(d, r) for d in (18, 72) for r in config.rates]
    assert {r.lr for name, r in runs.items() if not name.startswith("shaped, depth")} == {config.lr}
    assert runs["shaped, beta 0.2"].projections == ("orthogonal", 0.2)
    assert runs["shaped, beta 0.2"].depth == 18


def test_packing_keeps_every_file_once(monkeypatch, tmp_path) -> None:
    """Each text stands between two ends, a copy of it once; tests are left out; the same folders give the same file."""
    folder = tmp_path / "more"
    (folder / "tests").mkdir(parents=True)
    texts = {f"{i}.py": f"def name_{i}(x):\n    return x + {i}\n" * 12 for i in range(150)}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "copy.py").write_text(texts["7.py"])
    (folder / "tests" / "left_out.py").write_text("left = out\n" * 30)
    monkeypatch.setattr(packed.sysconfig, "get_path", lambda key: str(tmp_path / "nothing"))
    made = [packed.pack(tmp_path / f"{i}.npz", more=[folder], pieces=300) for i in range(2)]
    with np.load(made[0]) as first, np.load(made[1]) as again:
        found = {k: first[k] for k in ("train", "valid")}
        assert all(np.array_equal(found[k], again[k]) for k in found)
        assert first["vocab"] <= 300
    ends = [int((found[k] == EOS).sum()) for k in found]
    assert sum(ends) == len(texts)
    assert 0 < ends[1] < 15


def test_fresh_text_is_read_once(monkeypatch, tmp_path) -> None:
    """No window comes twice, both seeds read other orders of the same, and a text that is too short is refused."""
    where = tmp_path / "corpus.npz"
    np.savez(where, vocab=np.array(500), train=np.arange(401, dtype=np.uint16), valid=np.arange(50, dtype=np.uint16))
    monkeypatch.setenv("QUADFORM_CORPUS", str(where))
    data = parity.Fresh(data=Packed(seq_len=8))
    read = [torch.cat([b["tokens"] for b in data.batches("train", 5, seed)]) for seed in (0, 1)]
    assert all(torch.equal(r.flatten().sort().values, torch.arange(400)) for r in read)
    assert not torch.equal(*read)
    batch = next(data.batches("train", 5, 0))
    assert torch.equal(batch["labels"], batch["tokens"] + 1)
    later = next(data.batches("train", 5, 0, start=3))
    assert torch.equal(later["tokens"], read[0][15:20])
    config = parity.Config(seq_len=8, batch=5, steps=11, corpus="packed")
    with pytest.raises(InputError, match=r"need 441 tokens; the corpus has 401"):
        parity.data_of(config)
    assert parity.data_of(dataclasses.replace(config, steps=10)).data == Packed(seq_len=8)


def test_a_run_that_is_stopped_after_every_step_is_the_run_that_never_stops(tmp_path) -> None:
    """Losses, weights, what was looked at and the validation loss are the same bit for bit; the clock goes on."""
    data, recipe, at = Addition(digits=1), dataclasses.replace(RECIPE, steps=5), (0, 3, 5)

    def look(step: int, model: Transformer, batch: dict) -> dict[str, float]:
        return {"loss": float(model.loss(batch).detach())}

    whole = train_run(recipe, data, valid_batches=1, at=at, look=look)
    stops = 0
    while True:
        try:
            kept = Kept(tmp_path, Deadline(0.0))
            parts = train_run(recipe, data, valid_batches=1, at=at, look=look, kept=kept)
            break
        except TimeUp:
            stops += 1
    assert stops == 5
    assert float(parts.pop("seconds")) > 0
    assert all(torch.equal(whole[key], t) for key, t in parts.items())


def test_gpt_code_goes_on_inside_its_training_and_needs_its_weights_after_it(tmp_path) -> None:
    """Stopped after every step and every part it has the numbers of a run in one go; without its weights it says so."""
    config = dataclasses.replace(gpt_code.PRESETS["smoke"], steps=3)

    def attempt(folder, seconds: float | None) -> tuple[Work, dict]:
        work = Work(folder, seconds=seconds, resume=True, progress=False)
        work.begin({"experiment": "gpt-code"})
        found: dict = {}
        with work.in_time():
            found = gpt_code.run(config, Units(work, "gpt-code"))[1]
        return work, found

    whole = attempt(tmp_path / "whole", None)[1]
    tries = 0
    while (found := attempt(tmp_path / "parts", 0.0))[0].partial:
        tries += 1
    assert tries >= 3 + len(config.heights)
    assert all(torch.equal(whole[key], t) for key, t in found[1].items())
    gpt_code._trained.cache_clear()
    with pytest.raises(FileError, match="weights of the finished training are not in"):
        gpt_code._trained(config, 3, tmp_path / "lost")


def test_passes_read_every_window_once_in_each(monkeypatch, tmp_path) -> None:
    """A pass is all windows in an order of its own; a stream that begins later is the rest of one from the start."""
    where = tmp_path / "corpus.npz"
    np.savez(where, vocab=np.array(500), train=np.arange(161, dtype=np.uint16), valid=np.arange(9, dtype=np.uint16))
    monkeypatch.setenv("QUADFORM_CORPUS", str(where))
    data = gpt_code.Passes(data=parity.Fresh(data=Packed(seq_len=8)))
    stream = [b["tokens"] for _, b in zip(range(8), data.batches("train", 5), strict=False)]
    first, second = torch.cat(stream[:4]), torch.cat(stream[4:])
    assert torch.equal(first.flatten().sort().values, torch.arange(160))
    assert torch.equal(second.flatten().sort().values, torch.arange(160))
    assert not torch.equal(first, second)
    assert torch.equal(next(data.batches("train", 5, start=6))["tokens"], stream[6])
    with pytest.raises(InputError, match="a batch of 5 windows; the valid text has 1"):
        next(data.batches("valid", 5))


def test_a_lifted_first_position_draws_attention() -> None:
    """Ascending draws more of it than the first gradient does; at height 0 nothing moves."""
    data = Addition(digits=2)
    recipe = dataclasses.replace(RECIPE, design="pre-ln", norm="layer")
    tokens = next(data.batches("valid", 8))["tokens"]
    shares = []
    for height, ascents in ((0.0, 5), (8.0, 0), (8.0, 20)):
        model = Transformer(recipe.model_config(data), seed=0).double()
        before = model.embed.W_pos.detach().clone()
        gpt_code.lift(model, tokens, height, ascents)
        shares.append(float(captured(model, tokens).detach()))
        assert torch.equal(model.embed.W_pos[1:], before[1:])
        assert torch.equal(model.embed.W_pos[0], before[0]) == (height == 0)
    assert shares == sorted(set(shares))


def test_directions_per_decade_add_up() -> None:
    """The area under the curve over the decades is the number of directions with that sign."""
    nodes = torch.tensor([[-1.0, 1e-3, 1e-1], [-1.0, 1e-2, 1e-1]], dtype=torch.float64)
    weights = torch.tensor([[0.5, 0.25, 0.25]] * 2, dtype=torch.float64)
    curve = gpt_code.spread(nodes, weights, 200.0, 1e-5, 1e1)
    assert torch.trapezoid(curve[:, 1], curve[:, 0].log10()).item() == pytest.approx(100.0, rel=1e-3)
