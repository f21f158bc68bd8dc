"""Signal on models and designs: the same measures as the live monitor, predictions met, pieces resumed, one record."""

import dataclasses
import json
import math
from functools import partial

import pytest
import torch
from torch import nn

import quadform as qf
from quadform.answers.signal_draft import SignalDraft
from quadform.applications.signal import Signal, SignalOpening
from quadform.applications.signal.calls import OF_DIRECTION, OF_LOSS, Calls
from quadform.applications.signal.curve import Curve, write
from quadform.applications.signal.jacobian import LEVELS, isometry, jacobian
from quadform.applications.signal.question import SignalQuestion
from quadform.applications.signal.subjects import Drawing
from quadform.applications.signal.units import Design, Model
from quadform.applications.subject import Subject
from quadform.core.errors import InputError, UnknownName
from quadform.core.record import Provenance
from quadform.core.work import Work
from quadform.nn import Transformer
from quadform.propagation.designer import Health, design
from quadform.testing import check_design, check_operator
from quadform.train.watch import token_cosines

torch.set_num_threads(1)
f64 = torch.float64
signal = partial(qf.signal, progress=False)
SMALL = {"depth": 2, "d_model": 16, "heads": 2, "vocab": 20}


def curves(unit) -> list[Curve]:
    """The curves of a design or a model by itself."""
    with Work(progress=False) as work:
        unit.measure(work)
        return unit.curves(work)


def answer(found) -> Signal:
    draft = SignalDraft()
    for curve in found:
        write(curve, draft)
    return draft.answer({"subjects": [], "partial": False}, Provenance.collect())


def tokens(rows=3, n=7, seed=0, vocab=20, low=0):
    return torch.randint(low, vocab, (rows, n), generator=torch.Generator().manual_seed(seed))


def padded(n, seed, rows=3):
    ids = tokens(rows, n, seed, low=1)
    for i in range(rows):
        ids[i, n - i :] = 0
    return ids


# ------------------------------------------------------------------------------------------------ the same measures
@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
@pytest.mark.parametrize("pad", [None, 0])
def test_the_live_monitor_measures_the_same(kind, pad):
    """The cosine of every block is that of `train.token_cosines`, padding and both sides included."""
    model = Transformer("pre-ln", kind=kind, pad=pad, seed=0, **SMALL)
    if kind == "encoder-decoder":
        batch = {"source": padded(9, 0), "target": padded(6, 1)}
    else:
        batch = {"tokens": padded(8, 0), "labels": padded(8, 1)}
    watched, found = token_cosines(model, batch), signal(model, batch)
    ours = {}
    for i, about in enumerate(found.record.inputs["curves"]):
        ours |= dict(zip(about["blocks"], found.layers("cosine", i)[1:], strict=True))
    assert set(ours) == set(watched)
    for name, e in watched.items():
        assert (ours[name].value, ours[name].stderr) == pytest.approx((e.value, e.stderr))


@pytest.mark.parametrize("name", ["pre-ln", "post-ln", "sas-p", "e-spa"])
def test_prediction_meets_drawn_networks(name):
    """Designs drawn at d = 256 agree with their mean field within 0.02 or 5 %, or two standard errors."""
    found = signal(name, depths=[4], d_model=256, networks=4, tokens=24, batch_size=2)
    apart = found.record.scalars[f"{name}, 4 blocks/difference"]
    assert apart.converged, str(apart)
    assert found.predicted("cosine").shape == (5,)
    grown, expected = found.layers("growth")[-1].value, float(found.predicted("growth")[-1])
    assert grown == pytest.approx(expected, rel=0.05)


def test_a_wrong_prediction_is_told():
    """A network whose residual branches are scaled down after the prediction was made disagrees with it."""
    model = Transformer("pre-ln", seed=0, depth=4, d_model=128, heads=4, vocab=64)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n.endswith(("W_O", "W_2")):
                p *= 0.1
    subject = dataclasses.replace(Subject.of(model, [{"tokens": tokens(8, 32, vocab=64)}]), name="new:scaled")
    (curve,) = curves(Model(SignalQuestion(), subject))
    assert answer([curve]).ok  # one network: not judged
    curve.unit = "networks"
    found = answer([curve])
    assert not found.record.scalars["new:scaled/difference"].converged
    assert not found.ok
    assert "DISAGREES" in str(found)


# ------------------------------------------------------------------------------------------------ designed models
@pytest.mark.parametrize(("name", "health"), [("u-spa", Health(cosine=0.8)), ("pre-ln", Health(cosine=0.3))])
def test_designed_models_are_healthy_when_built(name, health):
    """A designed model, built by nn and measured, meets the criterion it was designed for: cosine within 0.02 or 5 %
    of the limit or below it (mean of four networks), size within the stated factor; and it keeps every contract.
    """
    settings = {"d_model": 256, "heads": 4, "vocab": 64, "d_ff": 512}
    sizes = {"d_model": 256, "heads": 4, "settings": {"vocab": 64, "d_ff": 512}}
    start = signal(name, depths=[1], networks=4, tokens=24, batch_size=4, **sizes).record.tensors["0/kernel/0"]
    made = design(6, name, health=health, Sigma_0=start, **settings)
    assert made.config.blocks != design(6, name, health=Health(cosine=0.999), Sigma_0=start, **settings).config.blocks
    (curve,) = curves(Design(SignalQuestion(), Drawing(made.config, networks=4, batch=4, tokens=24)))
    measured, grown = curve.measured["cosine"][-1].value, curve.measured["growth"][-1].value
    assert measured <= health.cosine + max(0.02, 0.05 * health.cosine)
    assert measured >= health.cosine - 0.15  # no more was changed than was needed
    assert 1 / health.growth <= grown <= health.growth


def test_designed_blocks_keep_the_contract():
    """BlockSpecs from the designer pass `check_design` in a small model."""
    made = design(3, "u-spa", health=Health(cosine=0.6), seq_len=8, d_model=16, heads=4, vocab=13)
    assert check_design(dataclasses.replace(made.config, seq_len=64), depth=3)


# ------------------------------------------------------------------------------------------------ Jacobians
@pytest.mark.parametrize("which", ["stack", 1, 2])
@pytest.mark.parametrize("name", ["pre-ln", "sas"])
def test_jacobian_is_the_derivative(name, which):
    """J and its adjoint equal the dense derivative of the blocks, and are adjoint to each other."""
    model, ids = Transformer(name, seed=0, dtype=f64, **SMALL), tokens(n=4)
    J = jacobian(model, model, ids, which, at_once=3)
    with torch.no_grad():
        streams, frame = model.streams(ids[:1]), model._frame(ids[:1], None, True)
    layers = list(model.layers) if which == "stack" else [model.layers[which - 1]]

    def through(X):
        for layer in layers:
            X = layer(X, frame)
        return X

    at = streams[0] if which == "stack" else streams[which - 1]
    dense = torch.autograd.functional.jacobian(through, at).reshape(64, 64)
    torch.testing.assert_close(J.dense(), dense)
    torch.testing.assert_close(J.T.dense(), dense.T)
    check_operator(J)


def test_singular_values_both_ways():
    """Golub-Kahan and Lanczos quadrature give the ends and the mean square of the dense singular values."""
    model, ids = Transformer("pre-ln", seed=0, dtype=f64, **SMALL), tokens(n=6)
    J = jacobian(model, model, ids)
    s = torch.linalg.svdvals(J.dense())
    exact, matrix_free = isometry(J), isometry(J, dense=0, max_products=400)
    for found in (exact, matrix_free):
        assert found.largest.value == pytest.approx(float(s[0]), rel=1e-3)
        assert found.smallest.value == pytest.approx(float(s[-1]), rel=2e-3)
        allowed = 5 * (found.mean_square.stderr or 1e-9)
        assert abs(found.mean_square.value - float(s.square().mean())) <= allowed
        assert found.quantiles[3] == pytest.approx(float(s.median()), rel=0.15)
        assert len(found.quantiles) == len(LEVELS)
    assert exact.exact
    assert not matrix_free.exact


def test_an_isometry_is_seen_as_one():
    """ReZero starts as the identity: every singular value of every block and of the stack is one."""
    found = signal("rezero", depths=[2], d_model=16, heads=2, networks=1, tokens=4, batch_size=1, jacobian=True)
    for name in ("block 1", "block 2", "stack"):
        assert found.record.tensors[f"0/jacobian/{name}"].tolist() == pytest.approx([1.0] * len(LEVELS), rel=1e-5)


def test_a_block_that_is_not_there():
    model, ids = Transformer("pre-ln", seed=0, **SMALL), tokens()
    with pytest.raises(InputError, match="block from 1 to 2"):
        jacobian(model, model, ids, 3)


# ------------------------------------------------------------------------------------------------ any model
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3))

    def forward(self, ids):
        X = self.embed(ids)
        for block in self.blocks:
            X = block(X)
        return X


@pytest.mark.parametrize("loss", [None, lambda out, batch: out.square().mean()])
def test_any_module(loss):
    """A plain torch module: blocks found, model left in training mode, no prediction and said so."""
    torch.manual_seed(0)
    model = Plain()
    found = signal(model, [tokens(), tokens(seed=1)], loss=loss)
    about = found.record.inputs["curves"][0]
    assert (about["stack"], about["depth"], about["over"]) == ("blocks", 3, "6 sequences")
    assert about["notes"][-2:] == [OF_LOSS if loss else OF_DIRECTION, "no prediction: " + _not_ours()]
    assert model.training
    assert found.predicted() is None
    assert len(found.layers("gradient")) == 4


def _not_ours():
    return "this model is not one of quadform's designs"


def test_a_mask_may_be_given():
    """`mask=` leaves padding out of a model that knows none."""
    torch.manual_seed(0)
    model, ids = Plain().eval(), padded(8, 0)
    whole, masked = signal(model, ids), signal(model, ids, mask=lambda batch: batch != 0)
    assert whole.layers("cosine")[0].value != masked.layers("cosine")[0].value
    mean = []
    for row in ids:
        X = model.embed(row[row != 0]).detach()
        U = X / X.norm(dim=-1, keepdim=True)
        mean.append(float(((U @ U.T).sum() - len(U)) / (len(U) * (len(U) - 1))))
    assert masked.layers("cosine")[0].value == pytest.approx(sum(mean) / 3, rel=1e-5)


def test_sequences_of_several_lengths():
    """Batches of different lengths are measured; there is no one kernel, so no prediction, and the note says why."""
    model = Transformer("pre-ln", seed=0, **SMALL)
    found = signal(model, [{"tokens": tokens(n=5)}, {"tokens": tokens(n=8)}])
    assert found.record.inputs["curves"][0]["over"] == "6 sequences"
    assert any("differ in length" in note for note in found.record.inputs["curves"][0]["notes"])


def test_hugging_face_decoder_masks():
    """The padding of an encoder-decoder's source is not taken for that of its decoder."""
    model = nn.Module()
    model.config = type("Config", (), {"is_encoder_decoder": True})()
    call, mask = Calls(model, None, None), torch.ones(2, 5, dtype=torch.long)
    batch = {"input_ids": mask, "attention_mask": mask}
    assert call._mask(batch, "decoder.block") is None
    assert call._mask(batch, "encoder.block").dtype == torch.bool


# ------------------------------------------------------------------------------------------------ the result
@pytest.fixture(scope="module")
def drawn():
    return signal(
        ["pre-ln", "no-skip"], depths=[2, 9], d_model=32, heads=2, networks=2, tokens=6, batch_size=2, jacobian=True
    )


def test_the_record_comes_back(drawn, tmp_path):
    """Saved and loaded, the record says the same; JSON is strict; labels and depths are all there."""
    again = Signal.load(drawn.save(tmp_path / "run"))
    assert again.table() == drawn.table()
    assert drawn.labels == [f"{n}, {d} blocks" for n in ("pre-ln", "no-skip") for d in (2, 9)]
    body = json.loads(drawn.json())
    assert body["tensors"]["1/cosine"]["shape"] == [10]
    assert again.layers("cosine", "no-skip, 9 blocks")[-1].value > 0.99
    with pytest.raises(UnknownName, match=r"participation.*rms"):
        drawn.layers("rank")
    with pytest.raises(UnknownName, match="no curve"):
        drawn.layers("cosine", "no-skip")


def test_figures_and_report(drawn, tmp_path):
    """The chart holds points and lines of every curve; the report holds every figure and the verdict of the worst."""
    from quadform.report.depth import through_depth
    from quadform.report.page import drawn as figures_of
    from quadform.report.texts import KO

    spec = drawn.plot().to_dict()
    rows = [r for table in spec["datasets"].values() for r in table]
    assert sum("low" in r for r in rows) == 3 * (3 + 10) * 2  # three panels, two depths, two designs
    assert {r.get("text") for r in rows} >= set(drawn.labels)
    figure = through_depth(drawn.record)
    assert "Rank collapse" in figure.headline
    assert "no-skip, 9 blocks" in figure.headline
    assert len(figure.table.rows) == 26
    assert [f.__name__ for f in figures_of(drawn.record)] == ["through_depth", "heads", "jacobians"]
    for draw in figures_of(drawn.record):
        assert "<svg" in draw(drawn.record).svg()
        assert draw(drawn.record, KO).headline != draw(drawn.record).headline
    page = drawn.report(tmp_path / "signal.html").read_text()
    assert "Rank collapse" in page
    assert "no-skip, 9 blocks" in drawn._repr_html_()


# ------------------------------------------------------------------------------------------------ work that is stopped
DRAWN = {"depths": [2], "d_model": 16, "heads": 2, "networks": 3, "tokens": 6, "batch_size": 2}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n].nan_to_num(), b[n].nan_to_num()) for n in a)


@pytest.mark.parametrize("kept", [0, 2, 4])
def test_killed_and_resumed(tmp_path, monkeypatch, kept):
    """Stopped in the middle and resumed, the result equals that of an uninterrupted run; done pieces are not redone."""
    from quadform.applications.signal import units as module

    whole = signal("pre-ln", **DRAWN, jacobian=True)
    reals, made, limit = {n: getattr(module, n) for n in ("profiled", "isometry")}, [], [kept]

    def counted(name):
        def piece(*rest, **options):
            if len(made) == limit[0]:
                raise KeyboardInterrupt
            made.append(name)
            return reals[name](*rest, **options)

        return piece

    for name in reals:
        monkeypatch.setattr(module, name, counted(name))
    with pytest.raises(KeyboardInterrupt):
        signal("pre-ln", **DRAWN, jacobian=True, out=tmp_path)
    made.clear()
    limit[0] = 99
    again = signal("pre-ln", **DRAWN, jacobian=True, out=tmp_path, resume=True)
    assert len(made) == 3 + 3 - kept  # networks, and Jacobians of two blocks and of the stack
    assert same(whole.record.tensors, again.record.tensors)
    assert whole.record.scalars == again.record.scalars
    assert not (tmp_path / "work").exists()


def test_a_model_is_resumed(tmp_path):
    """Of a model the batches that are done are kept; the time limit lets one more through each time."""
    model, data = Transformer("pre-ln", seed=0, **SMALL), [{"tokens": tokens(seed=i)} for i in range(3)]
    found = [signal(model, data, out=tmp_path, resume=i > 0, max_time=1e-9) for i in range(3)]
    assert [f.partial for f in found] == [True, True, False]
    assert [f.record.inputs["curves"][0]["over"] for f in found] == [f"{3 * (i + 1)} sequences" for i in range(3)]
    assert same(found[-1].record.tensors, signal(model, data).record.tensors)


def test_one_network_is_complete(tmp_path):
    """One network has no spread, so its numbers are not converged; nothing is left to resume all the same."""
    found = signal("pre-ln", **DRAWN | {"networks": 1}, out=tmp_path)
    assert found.complete
    assert found.ok
    assert not (tmp_path / "work").exists()


def test_other_questions_are_refused(tmp_path):
    """A run started with other weights, other data or another design under the same name is not resumed."""
    batch = {"tokens": tokens()}
    signal(Transformer("pre-ln", seed=0, **SMALL), batch, out=tmp_path)
    with pytest.raises(InputError, match="started with other weights"):
        signal(Transformer("pre-ln", seed=1, **SMALL), batch, out=tmp_path, resume=True)
    with pytest.raises(InputError, match=r"other settings \(batches"):
        signal(Transformer("pre-ln", seed=0, **SMALL), {"tokens": tokens(seed=1)}, out=tmp_path, resume=True)
    with pytest.raises(InputError, match="without a folder"):
        signal("pre-ln", resume=True)


def test_another_mask_is_not_taken_for_the_same(tmp_path):
    """Pieces are named by what the mask hides: another mask is measured anew in a resumed run."""
    torch.manual_seed(0)
    model, ids = Plain().eval(), [padded(8, 0), padded(8, 1)]
    first = signal(model, ids, mask=lambda batch: batch >= 0, out=tmp_path, max_time=1e-9)
    assert first.partial
    again = signal(model, ids, mask=lambda batch: batch != 0, out=tmp_path, resume=True)
    assert same(again.record.tensors, signal(model, ids, mask=lambda batch: batch != 0).record.tensors)


def test_time_that_is_up_keeps_what_is_there():
    """After `max_time` the finished networks are kept and the result is marked partial."""
    found = signal(["pre-ln", "sas"], **DRAWN, max_time=1e-6)
    assert found.partial
    assert not found.ok
    assert found.labels == ["pre-ln, 2 blocks"]
    assert math.isfinite(found.layers("cosine")[-1].value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subjects": ()}, "needs a design or a model"),
        ({"subjects": ("pre-ln",), "depths": "6,x"}, "whole numbers with commas"),
        ({"subjects": ("pre-ln",), "depths": [0, 6]}, "at least 1 block"),
        ({"subjects": ("pre-ln",), "d_model": 30, "heads": 4}, "does not divide"),
        ({"subjects": ("runs/x",), "depths": [3]}, "belongs to designs"),
        ({"subjects": ("pre-ln", "pre-ln")}, "named twice"),
        ({"subjects": ("pre-ln",), "tokens": 1}, "between tokens"),
        ({"subjects": ("pre-ln",), "networks": 0}, "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(given, text):
    with pytest.raises(InputError, match=text):
        SignalOpening(**given)


def test_a_mistyped_design_is_not_looked_for_as_a_model():
    with pytest.raises(UnknownName, match="Did you mean `pre-ln`"):
        signal("pre-lm")


def test_what_is_neither_named_nor_a_module():
    with pytest.raises(InputError, match=r"nn\.Module with its batches"):
        signal(3)
    with pytest.raises(InputError, match="measured on data"):
        signal(Transformer("pre-ln", seed=0, **SMALL))
    with pytest.raises(InputError, match="two curves have one name"):
        signal(["pre-ln", "pre_ln"])


def test_one_thread_for_narrow_models_and_what_was_before():
    """A narrow model is measured on one thread; the caller's number of threads comes back."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        unit, seen = Model(SignalQuestion(), Subject.of(Plain(), tokens())), []
        with unit.threads():
            seen.append(torch.get_num_threads())
        assert unit.width == 16
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)
