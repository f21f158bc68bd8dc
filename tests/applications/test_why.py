"""What each part of a block does to curvature: variants, measures against dense matrices, sentences, resume."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from quadform.answers.why import MEASURES, Why
from quadform.applications.short_run import ShortRun
from quadform.applications.subject import weights_hash
from quadform.applications.why.ablation import config_without, model_without
from quadform.applications.why.call import why
from quadform.applications.why.other_models import linear_attention, module_without
from quadform.applications.why.question import REMOVABLE
from quadform.cli.main import main
from quadform.core.designs import design
from quadform.core.errors import InputError, UnknownName
from quadform.core.record import Estimate, Provenance, Record
from quadform.corpora import dataset
from quadform.curvature import Risk, functional, gauss_newton, hessian
from quadform.nn import Transformer
from quadform.train import TrainConfig


@pytest.fixture(scope="module")
def data():
    return dataset("add", digits=1)


def make(data, name="pre-ln", **options) -> Transformer:
    given = {"depth": 1, "d_model": 4, "heads": 2, "dtype": torch.float64, **options}
    return Transformer(name, **given, **data.settings)


# --- variants -------------------------------------------------------------------------------------------------------
def test_without_the_product_it_is_the_same_function(data):
    """W_QK[h] = W_Q[h] W_K[h]^T: the logits of the variant without `qk` are those of the model."""
    model = make(data, depth=2, d_model=8)
    tokens = next(data.batches("valid", 4))["tokens"]
    torch.testing.assert_close(model_without(model, "qk")(tokens), model(tokens))


def test_without_softmax_norm_or_skip_it_is_another_function_of_the_same_weights(data):
    """Every tensor both have is equal; the logits are not."""
    model = make(data, depth=2, d_model=8)
    tokens = next(data.batches("valid", 4))["tokens"]
    for what in ("softmax", "norm", "skip"):
        part = model_without(model, what)
        assert not torch.allclose(part(tokens), model(tokens))
        theirs = model.state_dict()
        assert all(torch.equal(t, theirs[n]) for n, t in part.state_dict().items())


@pytest.mark.parametrize("name", ["pre-ln", "post-ln", "parallel", "sas", "sas-p", "shaped", "u-spa", "deepnorm"])
def test_designs_lose_what_they_have(name):
    """Softmax goes from every design; what a design has not is refused by name."""
    config = design(name, depth=2, d_model=8, heads=2)
    for what in REMOVABLE:
        try:
            made = config_without(config, what)
        except InputError as error:
            assert what in str(error)  # noqa: PT017 - some designs have no skip
            continue
        blocks = made.blocks
        if what == "softmax":
            assert all(b.mixing.kind == "linear" for b in blocks)
        if what == "norm":
            assert made.final_norm == "none"
            assert all(b.norm == "none" for b in blocks)
        if what == "skip":
            assert all(g.skip == 0 and "skip" not in g.learn for b in blocks for g in (b.attn, b.mlp))


# --- measures -------------------------------------------------------------------------------------------------------
def test_the_numbers_are_those_of_the_dense_matrices(data):
    """lambda_max, lambda_min, ceilings, value:query and the share of H_f against dense H, H_o and H_f."""
    model = make(data)
    found = why(model, data, remove=("qk",), batch_size=8, progress=False)
    probe = next(data.batches("valid", 8))
    for variant, what in (("full", "nothing"), ("no qk", "qk")):
        risk = Risk(model_without(model, what), None, probe, quiet=True)
        H = hessian(risk)
        lam = torch.linalg.eigvalsh(H.dense())
        query = "*.attn.W_Q" if what == "nothing" else "*.attn.W_QK"
        exact = {
            "loss": float(risk.value()),
            "lambda_max": float(lam[-1]),
            "lambda_min": float(lam[0]),
            "ceiling_sgd": 2 / float(lam[-1]),
            "ratio": float(H.block("*.attn.W_V", "*.attn.W_V").dense().norm() / H.block(query, query).dense().norm()),
        }
        parts = [float(A(risk).dense().norm()) for A in (functional, gauss_newton)]
        exact["H_f_share"] = parts[0] / sum(parts)
        for measure, value in exact.items():
            e = found.get(variant, measure)
            assert e.value == pytest.approx(value, rel=1e-6, abs=6 * (e.stderr or 0.0)), (variant, measure)
        share = found.get(variant, "negative_curvature")
        assert abs(share.value - float(lam[lam < 0].abs().sum() / lam.abs().sum())) <= 5 * share.stderr


def test_the_model_is_left_untouched(data):
    model = make(data).train()
    before = weights_hash(model), torch.get_rng_state()
    why(model, data, remove=("norm",), steps=(0, 2), batch_size=4, progress=False)
    assert weights_hash(model) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert model.training


def test_a_run_stops_and_goes_on(data, tmp_path):
    """Training 0 -> 3 -> 6 with a stop, or from a saved stop, ends with the weights of 0 -> 6."""
    config = TrainConfig(steps=6, batch_size=4)
    whole = ShortRun(make(data), data, config, None)
    whole.to(6)
    ShortRun(make(data), data, config, tmp_path).to(3)
    again = ShortRun(make(data), data, config, tmp_path)
    assert again.step == 3
    again.to(6)
    assert weights_hash(again.model) == weights_hash(whole.model)
    assert again.losses == whole.losses


def test_a_run_that_breaks_is_told(data):
    """A loss that is not finite stops the training of that variant; its cells are absent and the note says why."""
    model = make(data)
    with torch.no_grad():
        model.embed.W_E.mul_(1e200)
    run = ShortRun(model, data, TrainConfig(steps=3, batch_size=4), None)
    run.to(3)
    assert "diverged at training step 1" in run.broken


# --- words ----------------------------------------------------------------------------------------------------------
def fake(**values: tuple[float, float]) -> Why:
    """A record with chosen numbers: `full_0_ratio=(40, 1)` is value and standard error."""
    scalars, variants, steps = {}, [], []
    for key, (value, error) in values.items():
        variant, step, measure = key.split("_", 2)
        variant = f"no {variant.removeprefix('no')}" if variant.startswith("no") else variant
        variants.append(variant)
        steps.append(int(step))
        scalars[f"{variant}/{step}/{measure}"] = Estimate(value, error, "estimate")
    inputs = {"variants": list(dict.fromkeys(variants)), "steps": sorted(set(steps)), "notes": [], "partial": False}
    inputs |= {"name": "m", "probe": "p"}
    return Why(Record(kind="why", inputs=inputs, scalars=scalars, tensors={}, made=Provenance({}, "", "")))


def test_query_against_value_is_said_from_three_times_on():
    told = fake(full_0_ratio=(40, 1)).sentence("adam")
    assert told.startswith("Step 0: query blocks are 40 times flatter than value blocks, so one step size fits neither")
    assert "value blocks are 4 times flatter" in fake(full_0_ratio=(0.25, 0.01)).sentence("adam")
    assert "can fit both" in fake(full_0_ratio=(2.9, 0.01)).sentence("adam")
    for ratio in ((4.0, 3.9), (0.1, 0.12)):  # within its error nothing is claimed, in the report neither
        unsure = fake(full_0_ratio=ratio)
        assert unsure.verdicts()[0].status == "undecided"
        assert "Within two standard errors" in unsure.sentence("adam")
        assert "fits neither" not in unsure.said("en")
    assert "40 times flatter" in fake(full_0_ratio=(40, 1)).said("en")


def test_the_largest_change_is_one_beyond_its_error():
    """A part whose lambda_max is 3 times as large within its error is not said to matter most."""
    sure = {"full_0_lambda_max": (1, 0.01), "nonorm_0_lambda_max": (2.5, 0.01)}
    noisy = {"noskip_0_lambda_max": (3.0, 3.0)}
    assert fake(**sure, **noisy).largest_change == ("norm", 2.5)
    assert "Removing norm" in fake(**sure, **noisy).said("en")
    assert "No component changes" in fake(full_0_lambda_max=(1, 0.01), **noisy).said("en")


def test_a_part_is_said_to_matter_beyond_twice_and_its_error_alone():
    told = fake(full_0_lambda_max=(1, 0.01), nonorm_0_lambda_max=(30, 0.1)).sentence("norm")
    assert told == "Without norm lambda_max rises 30x (1 to 30)."
    quiet = "no measure changes"
    assert quiet in fake(full_0_lambda_max=(1, 0.01), nonorm_0_lambda_max=(1.9, 0.01)).sentence("norm")
    assert quiet in fake(full_0_lambda_max=(1, 0.5), nonorm_0_lambda_max=(2.2, 1.0)).sentence("norm")
    falls = fake(full_0_lambda_max=(8, 0.1), noskip_0_lambda_max=(2, 0.1)).sentence("skip")
    assert "falls 4x" in falls
    share = fake(
        full_0_lambda_max=(1, 0), full_0_negative_curvature=(0.5, 0.01), noqk_0_lambda_max=(1, 0),
        noqk_0_negative_curvature=(0.2, 0.01),
    )  # fmt: skip
    assert share.sentence("qk").endswith("the share of negative curvature goes from 50 % to 20 %.")


def test_warm_up_is_advised_where_the_ceiling_starts_low():
    assert fake(full_0_ceiling_adamw=(1e-4, 0), full_9_ceiling_adamw=(1e-3, 0)).sentence("warmup").endswith("warm up.")
    assert "decay the learning rate rather" in fake(
        full_0_ceiling_adamw=(1e-3, 0), full_9_ceiling_adamw=(1e-4, 0)
    ).sentence("warmup")
    assert "no reason" in fake(full_0_ceiling_adamw=(1e-3, 0), full_9_ceiling_adamw=(1.5e-3, 0)).sentence("warmup")
    unsure = fake(full_0_ceiling_adamw=(1e-3, 1e-3), full_9_ceiling_adamw=(3e-3, 1e-3)).sentence("warmup")
    assert "warm up." not in unsure
    assert "Within two standard errors" in unsure


def test_an_unknown_sentence_is_refused():
    with pytest.raises(UnknownName, match="Did you mean `adam`"):
        fake(full_0_ratio=(40, 1)).sentence("adma")


# --- stopping, files, the verb --------------------------------------------------------------------------------------
class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", [60])
def test_killed_and_resumed_gives_the_same(moment, data, tmp_path):
    """Stopped at any product: the same folder ends with the numbers of an undisturbed run, bit for bit."""
    count, options = 0, {"remove": ("norm",), "steps": (0, 2), "batch_size": 4}

    def kill(done, total, left, text):
        nonlocal count
        count += 1
        if count == moment:
            raise Killed

    model = make(data)
    with pytest.raises(Killed):
        why(model, data, out=tmp_path / "w", resume=True, progress=kill, **options)
    again = why(model, data, out=tmp_path / "w", resume=True, progress=False, **options)
    whole = why(model, data, progress=False, **options)
    assert again.record.scalars == whole.record.scalars
    assert not (tmp_path / "w" / "work").exists()


def test_time_that_is_over_leaves_a_partial_answer(data):
    cut = why(make(data), data, remove=("norm",), batch_size=4, max_time=1e-9, progress=False)
    assert cut.record.inputs["partial"]
    assert not cut.ok
    assert "PARTIAL" in str(cut)


TINY = ["new:pre-ln,depth=1,d_model=4,heads=2", "--data", "add:digits=1", "--batch-size", "4"]


def test_the_verb(capsys, tmp_path):
    """Table, sentences and the saved record; loaded again it says the same."""
    assert main(["why", *TINY, "--remove", "softmax", "--out", str(tmp_path / "w"), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "no softmax" in out
    assert "Without softmax" in out
    again = Why.load(tmp_path / "w")
    assert str(again) in out
    assert again.table().columns[0] == "variant"
    assert len(again.table()) == 2
    assert json.loads(again.json())["kind"] == "why"
    assert set(MEASURES) <= {k.rsplit("/", 1)[-1] for k in again.record.scalars}


def test_the_plan(capsys):
    assert main(["why", *TINY, "--dry-run", "--steps", "0,5"]) == 0
    out = capsys.readouterr().out
    assert "10 variants and steps" in out
    assert "25 training steps" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new:pre-ln", "--remove", "softmix"], "Did you mean `softmax`"),
        (["new:pre-ln", "--steps", "soon"], "give whole numbers"),
        (["new:pre-ln", "--steps", "-3"], "at least 0"),
        (["new:pre-ln", "--params", "*.W_Q"], "is not a flag"),
    ],
)
def test_refusals(words, message, capsys):
    assert main(["why", *words]) == 2
    assert message in capsys.readouterr().err


def test_other_peoples_models_are_refused(data):
    with pytest.raises(InputError, match="give batches it takes"):
        why(torch.nn.Linear(2, 2), data)
    with pytest.raises(InputError, match="nothing can be removed from Linear"):
        why(torch.nn.Linear(2, 2), [{"input": torch.ones(1, 2)}])
    with pytest.raises(InputError, match="needs a model of quadform and a data set"):
        why(make(data), [next(data.batches("valid", 4))], steps=(0, 5))
    with pytest.raises(InputError, match="returns no loss of its own"):
        why(make(data), data, loss=lambda out, batch: out.sum())


def test_a_folder_begun_with_other_data_is_refused(data, tmp_path):
    """A resumed run has the data set it was begun with, not only the same weights."""
    how = {"remove": (), "batch_size": 2, "out": tmp_path, "resume": True, "progress": False}
    why(make(data), data, max_time=1e-9, **how)
    with pytest.raises(InputError, match="other settings"):
        why(make(data), dataset("add", digits=2), **how)


def test_python_and_a_named_model_give_the_same_numbers(data):
    """A model that was made in Python with a Dataset, and the same model by its name."""
    named = why(TINY[0], data="add:digits=1", batch_size=4, remove="norm", steps="2,0", progress=False)
    made = Transformer("pre-ln", depth=1, d_model=4, heads=2, dtype=torch.float32, **data.settings)
    here = why(made, data, batch_size=4, remove=["norm"], steps=[0, 2], progress=False)
    assert here.record.scalars == named.record.scalars
    assert here.steps == (0, 2)


# --- models of others -------------------------------------------------------------------------------------------------
SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}


def other(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=8)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1, max_position_embeddings=8)
        model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, 20, (3, 6))
    return model.eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_others_without_its_softmax(masked):
    """A_ij = q_i . k_j scale where key j is seen, else 0: token by token, grouped keys and padding included."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, heads, 4, 3, dtype=torch.float64) for heads in (4, 2, 2))
    seen = torch.ones(2, 1, 4, 4, dtype=torch.bool).tril()
    if masked:
        seen[1, :, :, 0] = False
    module = torch.nn.Module()
    out, _ = linear_attention(module, q, k, v, seen if masked else None, scaling=0.3)
    for b, h, i in itertools.product(range(2), range(4), range(4)):
        keys = [j for j in range(4) if seen[b, 0, i, j]]
        expected = sum(
            (0.3 * (q[b, h, i] @ k[b, h // 2, j]) * v[b, h // 2, j] for j in keys), torch.zeros(3, dtype=q.dtype)
        )
        torch.testing.assert_close(out[b, i, h], expected)
    additive = torch.zeros(2, 1, 4, 4, dtype=torch.float64).masked_fill(~seen, -1e30)
    torch.testing.assert_close(linear_attention(module, q, k, v, additive, scaling=0.3)[0], out)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_models_of_others_lose_norm_and_softmax(name):
    """The losses of the variants are those of the copies; the model itself stays; skip and qk are left out."""
    model, batch = other(name)
    before = weights_hash(model)
    found = why(model, [batch], progress=False)
    assert found.variants == ("full", "no softmax", "no norm")
    for variant, part in (("full", "nothing"), ("no softmax", "softmax"), ("no norm", "norm")):
        with torch.no_grad():
            expected = float(module_without(model, part)(**batch).loss)
        assert found.get(variant, "loss").value == pytest.approx(expected, rel=1e-5)
    losses = {round(found.get(v, "loss").value, 6) for v in found.variants}
    assert len(losses) == 3
    assert found.get("full", "ratio").value > 0  # query and value blocks are found under their paper names
    assert found.get("full", "ceiling_adamw").value > 0
    assert weights_hash(model) == before
    assert not any("Identity" in type(m).__name__ for m in model.modules())


def test_the_verb_takes_hugging_face_folders(tmp_path, capsys):
    model, _ = other("gpt2")
    model.save_pretrained(tmp_path / "gpt")
    words = ["why", str(tmp_path / "gpt"), "--batch-size", "2", "--length", "6", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "w")]) == 0
    printed = capsys.readouterr()
    assert "Without norm" in printed.out
    assert "data: random tokens" in printed.out
    assert "skip is left out: GPT2LMHeadModel is not a quadform model" in printed.out
    assert main([*words, "--remove", "skip,qk"]) == 2
    assert "only softmax and norm can be removed" in capsys.readouterr().err
    assert main([*words, "--steps", "0,5"]) == 2
    assert "needs a model of quadform and a data set" in capsys.readouterr().err
