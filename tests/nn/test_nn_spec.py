"""Designs and model descriptions as values: counts, files, errors. No torch needed."""

import math
import re
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from quadform.core.errors import InputError, UnknownName
from quadform.core.spec import (
    CODEPARROT,
    CRAMMED_BERT,
    DESIGNS,
    SPA,
    BlockSpec,
    Gain,
    Mixing,
    ModelConfig,
    Projection,
    count_parameters,
    design,
)
from quadform.core.tat import tat_slope

GPT = {
    "pre-ln": 166_645_248,
    "parallel": 166_631_424,
    "sas": 146_002_112,
    "sas-p": 145_988_270,
    "sas-p-no-norm": 145_975_982,
}
BERT = {
    "pre-ln": 119_589_889,
    "parallel": 119_565_313,
    "sas": 101_305_971,
    "sas-p": 101_281_395,
    "sas-p-no-norm": 101_256_819,
}


@pytest.mark.parametrize("name", GPT)
def test_parameter_counts_of_codeparrot_gpt(name):
    """The 18-block GPT of [HH24] has exactly the counted number of parameters in each of the five designs."""
    assert count_parameters(design(name, **CODEPARROT)) == GPT[name]


@pytest.mark.parametrize("name", BERT)
def test_parameter_counts_of_crammed_bert(name):
    """So has crammed BERT; its SAS-P blocks carry a learned alpha_comb (from 0), three scalars a block."""
    comb = {"alpha_comb": 0.0} if name.startswith("sas-p") else {}
    assert count_parameters(design(name, **CRAMMED_BERT, **comb)) == BERT[name]


def test_mlp_branches_are_the_published_ones():
    """b_FF of the two models of [HH24]: 0.1 sqrt(18 / L) for the GPT with d_ff = 4 d, 0.05 for the BERT."""
    for preset, wanted in ((CODEPARROT, 0.1), (CRAMMED_BERT, 0.05)):
        assert {block.mlp.branch for block in design("sas-p", **preset).blocks} == {wanted}


@pytest.mark.parametrize(("preset", "wanted"), [(CODEPARROT, 145_412_286), (CRAMMED_BERT, 100_716_145)])
def test_parameter_counts_without_the_first_value(preset, wanted):
    """SAS with the value of block 1 removed too."""
    config = design("sas", **preset)
    config = replace(config, blocks=(config.blocks[1],) * config.depth)
    assert count_parameters(config) == wanted


@pytest.mark.parametrize("name", DESIGNS)
def test_toml_and_json_round_trip(name):
    """from(to(config)) = config, for every design, in both formats."""
    config = design(name, kind="decoder" if name == "deepnorm" else "encoder-decoder", depth=4, encoder_depth=3)
    assert ModelConfig.from_toml(config.to_toml()) == config
    assert ModelConfig.from_json(config.to_json()) == config


def test_round_trip_of_unusual_values():
    """None, nested None, tuples and whole numbers where floats are meant survive."""
    config = design("sas", mlp=False, biases=("q", "out"), kv_heads=4, pad=0, depth=3)
    assert config.blocks[1].value is None
    assert config.blocks[1].mlp is None
    assert ModelConfig.from_toml(config.to_toml()) == config
    assert ModelConfig.from_toml(config.to_toml().replace("embed_scale = 8.0", "embed_scale = 8")) == config
    odd = replace(config, design='my \U0001f600\x7f "design"\n', embed_scale=math.inf)
    assert ModelConfig.from_toml(odd.to_toml()) == odd


def test_equal_blocks_are_written_once():
    """A stack of equal blocks is one table with `repeat`; SAS has two, its first block and the rest."""
    assert design("pre-ln", depth=30).to_toml().count("[[blocks]]") == 1
    assert design("sas", depth=30).to_toml().count("[[blocks]]") == 2


def test_published_constants():
    """b_FF: 0.1 (18 blocks, d_ff 4d), 0.2 (18, 2d), 0.1 (72, 2d). First-layer exceptions, SkipInit and SPA starts."""

    def branch(depth, ratio):
        return design("sas", depth=depth, d_model=64, d_ff=64 * ratio).blocks[0].mlp.branch

    assert branch(18, 4) == pytest.approx(0.1, abs=1e-15)
    assert branch(18, 2) == pytest.approx(0.2, abs=1e-15)
    assert branch(72, 2) == pytest.approx(0.1, abs=1e-15)
    for name in ("sas", "sas-p"):
        first, second = design(name, depth=2).blocks
        assert first.value == Projection(init="identity", skip=1.0, branch=1.0, learn=("skip", "branch"))
        assert second.value is None
        assert second.proj is first.proj is None
    assert design("v-skipinit").blocks[0].mixing == Mixing(alpha=1.0, beta=0.0, learn=("alpha", "beta"))
    assert design("e-spa").blocks[0].mixing.bias == SPA(family="e-spa", final=0.005)
    assert design("u-spa").blocks[0].mixing.bias == SPA(family="u-spa", final=0.8)


def test_no_norm_keeps_the_published_norms():
    """SAS-P without norm: LayerNorm in block 1 and at the end only; none in block 1 after an embedding norm."""
    config = design("sas-p-no-norm", depth=4)
    assert [b.norm for b in config.blocks] == ["layer", "none", "none", "none"]
    assert config.final_norm == "layer"
    assert design("sas-p-no-norm", depth=4, embed_norm="layer").blocks[0].norm == "none"


@pytest.mark.parametrize("depth", [1, 2, 9])
def test_weights_of_skips_without_norm_have_unit_squares(depth):
    """pre-ln-no-norm and parallel-no-norm: the squared weights of every sum add up to 1, branches weigh 1/sqrt(2L)."""
    b = design("pre-ln-no-norm", depth=depth).blocks[0]
    assert b.attn.skip**2 + b.attn.branch**2 == pytest.approx(1, abs=1e-15)
    assert b.attn.branch**-2 == pytest.approx(2 * depth)
    b = design("parallel-no-norm", depth=depth).blocks[0]
    assert b.attn.skip**2 + b.attn.branch**2 + b.mlp.branch**2 == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("layers", "slope"), [(12, 0.0), (13, 0.024), (18, 0.146), (36, 0.351), (72, 0.508), (108, 0.584)]
)
def test_tat_slopes(layers, slope):
    """The slopes that make n leaky layers take cosine 0 to 0.9; a plain ReLU up to 12 layers."""
    assert tat_slope(layers) == pytest.approx(slope, abs=6e-4)


def test_deepnorm_constants():
    """Skip (2L)^{1/4}, initial weights divided by (8L)^{1/4}."""
    block = design("deepnorm", depth=18).blocks[0]
    assert block.attn.skip**4 == pytest.approx(36)
    assert block.init_gain**-4 == pytest.approx(144)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: design("paralel"), UnknownName, "Did you mean `parallel`?"),
        (lambda: design("pre-ln", d_model=10, heads=4), InputError, "does not divide into 4 heads"),
        (lambda: design("pre-ln", heads=4, kv_heads=3), InputError, "share 3 key heads evenly"),
        (lambda: design("sas", kv_heads=2), InputError, "kv_heads must equal heads"),
        (lambda: design("pre-ln", positions="rotry"), UnknownName, "Did you mean `rotary`?"),
        (lambda: design("pre-ln", d_model=12, heads=4, positions="rotary"), InputError, "odd"),
        (lambda: design("pre-ln", activation="gelo"), UnknownName, "Did you mean `gelu`?"),
        (lambda: design("pre-ln", merged=True, positions="rotary"), InputError, "merged"),
        (lambda: design("pre-ln", d_modle=8), UnknownName, "Did you mean `d_model`?"),
        (lambda: design("pre-ln", seq_length=8), UnknownName, "Did you mean `seq_len`?"),
        (lambda: design("pre-ln", alpha_comb=0.5), InputError, "parallel block"),
        (lambda: design("pre-ln", strength=0.5), InputError, "SPA bias"),
        (lambda: design("sas", linear=True), InputError, "no centring"),
        (lambda: design("deepnorm", kind="encoder-decoder"), InputError, "one stack"),
        (lambda: design("pre-ln", biases=("w",)), UnknownName, "entry of biases"),
        (lambda: design("pre-ln", dropout=1.0), InputError, "below 1"),
        (lambda: design("pre-ln", eos=256), InputError, "not a token"),
        (lambda: design("pre-ln", depth=0), InputError, "depth is a whole number"),
        (lambda: design("pre-ln", kind="encoder-decoder", encoder_depth=0), InputError, "encoder_depth is a whole"),
        (lambda: design("pre-ln", kind="encoder-decoder", encoder_depth=-1), InputError, "encoder_depth is a whole"),
        (lambda: design("pre-ln", eps=float("nan")), InputError, "at least 0; got nan"),
        (lambda: design("pre-ln", kind="encoder-decoder", classes=2), InputError, "classifier"),
        (lambda: Gain(learn=("skp",)), UnknownName, "Did you mean `skip`?"),
        (lambda: Projection(branch=0.5), InputError, "no scalars"),
        (lambda: BlockSpec(layout="parallel"), InputError, "one skip"),
        (lambda: BlockSpec(layout="parallel", mlp=None, norm_at="post"), InputError, "one norm"),
        (lambda: BlockSpec(tie_gains=True, mlp=Gain(skip=0.5)), InputError, "must be equal"),
        (lambda: ModelConfig.from_toml("d_modell = 3"), UnknownName, "Did you mean `d_model`?"),
        (lambda: ModelConfig.from_toml("d_model = "), InputError, "not TOML"),
        (lambda: ModelConfig.from_json("{"), InputError, "not JSON"),
        (lambda: ModelConfig.from_dict({"d_model": 8}), InputError, "incomplete"),
        (lambda: ModelConfig.from_dict({"d_model": "8"}), InputError, "config.d_model is int"),
        (lambda: ModelConfig.from_dict({"blocks": 3}), InputError, "config.blocks is a list"),
    ],
)
def test_errors_say_what_to_do(make, kind, text):
    """A wrong value is refused with what was got and what is known, never later in a forward pass."""
    with pytest.raises(kind, match=re.escape(text)):
        make()


@pytest.mark.parametrize("name", ["pre-ln", "sas-p", "e-spa", "shaped-no-norm"])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_reprs_are_short_and_python(name, kind):
    """A description is printed as the Python that makes it, equal blocks once, what is usual left out."""
    config = design(name, kind=kind, depth=48, vocab=50_000, biases=("q",), pad=0)
    text = repr(config)
    assert eval(text) == config
    assert len(text) < 2000
    assert repr(BlockSpec()) == "BlockSpec()"
    assert repr(BlockSpec(norm="rms", attn=Gain(skip=0.0))) == "BlockSpec(norm='rms', attn=Gain(skip=0.0))"


def test_summaries():
    """What a model is in one line; an own block has no name."""
    assert design("pre-ln", depth=2, d_model=128).summary == "pre-ln decoder, 2 blocks, d 128, 4 heads"
    both = design(BlockSpec(), kind="encoder-decoder", depth=1, encoder_depth=3, heads=1, d_model=8)
    assert both.summary == "own encoder-decoder, 3 + 1 blocks, d 8, 1 head"


def test_own_blocks_make_models():
    """A BlockSpec in the place of a name: the stack of that block; cross-attention where the kind wants it."""
    block = BlockSpec(norm="rms", activation="gelu")
    assert design(block, depth=3).blocks == (block,) * 3
    assert design(block, depth=2, norm="layer").blocks == (BlockSpec(activation="gelu"),) * 2
    crossed = BlockSpec(cross=Gain(skip=0.5))
    both = design(crossed, kind="encoder-decoder", depth=1)
    assert both.blocks[0].cross == Gain(skip=0.5)
    assert both.encoder_blocks[0].cross is None
    assert design(crossed, depth=1).blocks[0].cross is None
    with pytest.raises(InputError, match="a name or a BlockSpec; got int"):
        design(3)


def test_records_are_frozen_and_keyword_only():
    """The values cannot be changed in place, nor built by position."""
    for kind in (Gain, Mixing, Projection, BlockSpec, ModelConfig, SPA):
        assert kind.__dataclass_params__.frozen
        assert all(f.kw_only for f in fields(kind))


def test_spec_loads_no_torch():
    """Describing and counting models needs no torch."""
    code = (
        "import sys; from quadform.core.spec import design, count_parameters; count_parameters(design('sas'));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("word", "ours"), [("dim", "d_model"), ("num_heads", "heads"), ("n_layer", "depth")])
def test_names_of_other_libraries_are_understood(word, ours):
    """A setting by the name that another library gives it is refused with ours."""
    with pytest.raises(UnknownName, match=f"Did you mean `{ours}`"):
        design("pre-ln", **{word: 4})
