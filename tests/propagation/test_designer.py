"""The designer: health holds at the last block, little is moved, and it says what it did."""

import pytest
import torch

from quadform.core.designs import DESIGNS
from quadform.core.designs import design as describe
from quadform.core.errors import InputError
from quadform.propagation.designer import RAMP, Health, design
from quadform.propagation.profile import predict

from . import stacks

torch.set_num_threads(1)
SMALL = {"d_model": 64, "heads": 4, "vocab": 16}


@pytest.mark.parametrize("name", [n for n in DESIGNS if not n.startswith("no-skip")])
def test_every_design_is_made_healthy(name):
    """cosine <= 0.4 after 8 blocks for every design with a constant to move, and the prediction is of that config."""
    health = Health(cosine=0.4)
    made = design(8, name, health=health, seq_len=12, **SMALL)
    assert health.holds(made.prediction)
    again = predict(made.config, 12)
    torch.testing.assert_close(again.tensors["cosine"], made.prediction.tensors["cosine"])
    assert len(made.blocks) == 8


@pytest.mark.parametrize(("name", "moved"), [("sas-p", "b_FF"), ("v-skipinit", "slope"), ("pre-ln", "branches")])
def test_no_more_is_moved_than_needed(name, moved):
    """The chosen constant sits on the limit: the predicted cosine is the limit itself, and the report names it."""
    made = design(12, name, health=Health(cosine=0.2), seq_len=16, d_ff=64 if name == "sas-p" else None, **SMALL)
    assert made.prediction.scalars["cosine"].value == pytest.approx(0.2, abs=2e-3)
    assert moved in str(made)


def test_healthy_constants_are_kept():
    """A healthy design comes back as published."""
    made = design(6, "sas", health=Health(cosine=0.9), seq_len=16, **SMALL)
    assert made.config == describe("sas", depth=6, **SMALL)
    assert "kept" in str(made)


@pytest.mark.parametrize("name", ["u-spa", "e-spa"])
def test_attention_only_stacks_meet_the_limit_exactly(name):
    """Without MLPs only rho_L or gamma_L moves, to the strength whose kernel has the wanted cosine."""
    made = design(9, name, health=Health(cosine=0.3), seq_len=20, mlp=False, **SMALL)
    assert made.prediction.scalars["cosine"].value == pytest.approx(0.3, abs=1e-6)
    assert ("rho_L" if name == "u-spa" else "gamma_L") in str(made)


def test_exploding_streams_are_held():
    """Health bounds growth too: Pre-LN at depth 40 is brought within a factor 3 of its input."""
    made = design(40, "pre-ln", health=Health(cosine=0.99, growth=3.0), seq_len=8, **SMALL)
    rms = made.prediction.tensors["rms"]
    assert float(rms[-1] / rms[0]) == pytest.approx(3.0, rel=1e-2)


@pytest.mark.slow
def test_drawn_networks_are_as_healthy_as_promised():
    """Networks drawn from a designed SAS-P stack (d = 512) end at the promised cosine within 0.02 or 5 %."""
    made = design(8, "sas-p", health=Health(cosine=0.3), seq_len=32, d_model=512, heads=8, d_ff=512, mlp_branch=1.0)
    drawn = torch.stack([stacks.run(made.config, 32, seed)[0] for seed in range(5)]).mean(0)
    assert abs(float(drawn[-1]) - 0.3) <= 0.02


def test_what_cannot_be_healthy_is_refused():
    """A design without a constant, and tokens that start beyond the limit, are refused with what to do."""
    with pytest.raises(InputError, match="no constant to change"):
        design(20, "no-skip", seq_len=8, **SMALL)
    alike = torch.full((6, 6), 0.8, dtype=torch.float64) + 0.2 * torch.eye(6, dtype=torch.float64)
    with pytest.raises(InputError, match="less correlated"):
        design(4, "pre-ln", health=Health(cosine=0.5), Sigma_0=alike, **SMALL)
    with pytest.raises(InputError, match="health needs"):
        Health(cosine=1.5)
    with pytest.raises(InputError, match="learning rate"):
        design(4, "sas", lr=0.0, seq_len=8, **SMALL)
    with pytest.raises(InputError, match="learning rate"):
        design(6, "sas-p", lr=float("inf"))
    with pytest.raises(InputError, match="at least 2"):
        design(6, "u-spa", seq_len=1)


def test_warm_up_follows_the_measured_ramp():
    """Skipless normalised stacks: lr / RAMP steps (450 at 1e-3); with skips or without norms no limit is known."""
    assert design(4, "sas-p", seq_len=8, lr=1e-3, **SMALL).warmup_steps == 450
    assert design(4, "sas-p", seq_len=8, lr=2e-3, **SMALL).warmup_steps == pytest.approx(2e-3 / RAMP, abs=1)
    assert design(4, "pre-ln", seq_len=8, **SMALL).warmup_steps == 0
    assert design(4, "sas-p-no-norm", seq_len=8, **SMALL).warmup_steps == 0


def test_a_strength_at_its_share_is_left_alone():
    """The published rho_L = .8 is exactly its share of the default budget .9: only the slope moves."""
    made = design(16, "u-spa", seq_len=16, **SMALL)
    assert made.blocks[-1].mixing.bias.final == 0.8
    assert "rho_L" not in str(made)
    assert "slope" in str(made)
