"""Units: blocks that keep their input alone give the products of a float64 double backward, at less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import FlopCounterMode

from quadform.core.designs import DESIGNS
from quadform.core.errors import InputError
from quadform.curvature import Risk, functional, gauss_newton, hessian
from quadform.curvature.units import find
from quadform.kernels import programs
from quadform.nn import Transformer

F64 = torch.float64
KINDS = (hessian, gauss_newton, functional)


def gap(a: Any, b: Any) -> float:
    """The largest difference over the largest entry."""
    return max(float((a[n] - b[n]).abs().max()) for n in b) / max(1e-300, *(float(t.abs().max()) for t in b.values()))


def mse(out: Any, batch: Any) -> Tensor:
    return (out - batch[1]).square().mean()


def agree(risk: Risk, tolerance: float = 1e-12, vectors: int = 2) -> None:
    """H, H_o, H_f by units are those of the other routes, which double backward answers, and nothing is said."""
    V = risk.space.random(vectors, dtype=risk.dtype, generator=torch.Generator().manual_seed(0))
    for make in KINDS:
        A = make(risk, route="units")
        assert gap(A @ V, make(risk) @ V) <= tolerance
        assert A.route == "units"
        assert not A.why


class Block(nn.Module):
    """Norms, an activation whose reverse rule needs a graph (silu), and attention."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(d), nn.MultiheadAttention(d, 2, batch_first=True)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        h = self.norm(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        x = x if bias is None else x + bias
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


class Net(nn.Module):
    """A norm and an activation outside the blocks too."""

    def __init__(self, d: int = 4, blocks: int = 3) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Linear(3, d), nn.ModuleList(Block(d) for _ in range(blocks))
        self.norm, self.leave = nn.LayerNorm(d), nn.Linear(d, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.mish(self.enter(x))
        for block in self.blocks:
            h = block(h)
        return self.leave(self.norm(h))


def net(**sizes: int) -> tuple[Net, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = Net(**sizes).to(F64)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model, (torch.randn(2, 5, 3, dtype=F64), torch.randn(2, 5, 2, dtype=F64))


def double_backward(model: nn.Module, loss: Callable[[], Tensor], v: Any) -> dict[str, Tensor]:
    params = dict(model.named_parameters())
    g = torch.autograd.grad(loss(), list(params.values()), create_graph=True)
    inner = sum((a * v[n]).sum() for n, a in zip(params, g, strict=True))
    return dict(zip(params, torch.autograd.grad(inner, list(params.values())), strict=True))


def test_products_are_those_of_a_double_backward() -> None:
    """Layer norm inside and outside the blocks, silu, mish: reverse over forward is wrong there; this is not."""
    model, batch = net()
    risk = Risk(model, mse, batch, quiet=True)
    v = risk.space.random(dtype=F64)
    with risk.context():
        want = double_backward(model, lambda: mse(model(batch[0]), batch), v)
    assert gap(hessian(risk, route="units") @ v, want) <= 1e-13
    agree(risk)


@pytest.mark.parametrize("design", DESIGNS)
def test_own_designs(design: str) -> None:
    torch.manual_seed(0)
    model = Transformer(design, d_model=8, heads=2, vocab=11, depth=2, seq_len=6, dtype=F64)
    agree(Risk(model, data={"tokens": torch.randint(1, 11, (2, 6))}, quiet=True), vectors=1)


def test_objects_with_tensors_as_arguments() -> None:
    """Encoder and decoder, padding, and learned biases of distances that all layers share in one object."""
    sizes = {"d_model": 8, "heads": 2, "vocab": 11, "depth": 2, "encoder_depth": 2, "seq_len": 6}
    model = Transformer("pre-ln", kind="encoder-decoder", positions="relative", pad=0, dtype=F64, **sizes)
    ids = torch.randint(1, 11, (2, 6))
    ids[0, -2:] = 0
    risk = Risk(model, data={"source": ids, "target": ids}, quiet=True)
    assert set(find(model)) == {"encoder_layers.0", "encoder_layers.1", "layers.0", "layers.1"}
    agree(risk)


def test_torch_encoder() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True, dtype=F64)
    model = nn.Sequential(nn.TransformerEncoder(layer, 3), nn.Linear(4, 2, dtype=F64))
    batch = (torch.randn(2, 5, 4, dtype=F64), torch.randn(2, 5, 2, dtype=F64))
    assert len(find(model)) == 3
    agree(Risk(model, mse, batch, quiet=True))


def tiny(name: str) -> tuple[Any, dict[str, Any]]:
    """A Hugging Face model of a few thousand weights, with a batch as tokenizers make it."""
    T = pytest.importorskip("transformers")
    torch.manual_seed(0)
    tokens: Any = {"vocab_size": 31, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    sizes: Any = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    grouped: Any = {**sizes, **tokens, "num_key_value_heads": 1}
    gpt: Any = {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 16, **tokens}
    t5: Any = {"d_model": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "d_kv": 4, "decoder_start_token_id": 0}
    model = {
        "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(**gpt)),
        "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**grouped)),
        "gemma2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(head_dim=4, **grouped)),
        "bert": lambda: T.BertForMaskedLM(T.BertConfig(**sizes, **tokens)),
        "t5": lambda: T.T5ForConditionalGeneration(T.T5Config(**t5, **tokens)),
        "mixtral": lambda: T.MixtralForCausalLM(T.MixtralConfig(num_local_experts=2, **grouped)),
        "vit": lambda: T.ViTForImageClassification(
            T.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **sizes)
        ),
    }[name]()
    if name == "vit":
        return model.to(F64), {"pixel_values": torch.randn(2, 1, 8, 8, dtype=F64), "labels": torch.tensor([0, 2])}
    ids, mask = torch.randint(1, 31, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    mask[0, :2] = 0
    return model.to(F64), {"input_ids": ids, "attention_mask": mask, "labels": ids}


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "mixtral", "vit"])
def test_hugging_face(name: str) -> None:
    """Untouched models: padding on the left, tied weights, caches of keys, experts (some compute in float32)."""
    model, batch = tiny(name)
    agree(Risk(model, data=batch, quiet=True), tolerance=1e-6)


def test_caches_asked_for_by_the_batch() -> None:
    model, batch = tiny("gpt2")
    agree(Risk(model, data={**batch, "use_cache": True}, quiet=True), tolerance=1e-6)
    assert model.config.use_cache


def test_blocks_of_the_matrix() -> None:
    """Rows in one unit, columns in another or outside; a split inside a unit, whose unit is then run as it is."""
    model, batch = net()
    risk = Risk(model, mse, batch, quiet=True)
    for rows, cols in (("blocks.0.*", "blocks.2.*"), ("leave.*", "blocks.1.*"), ("blocks.1.*", "enter.*")):
        A, B = (hessian(risk, rows, cols, route=route) for route in ("units", "eager"))
        v = A.domain.random(dtype=F64)
        assert gap(A @ v, B @ v) <= 1e-12
    v = risk.space.random(dtype=F64)
    for make in (gauss_newton, functional):
        for split in ("blocks.1", "blocks.1.up", "leave"):
            A, B = (make(risk, split=split, route=route) for route in ("units", "eager"))
            assert gap(A @ v, B @ v) <= 1e-12
            assert A.route == "units"


def test_some_parameters_of_a_model() -> None:
    """Weights that are not measured have no tangent and take no gradient, though torch would give them one."""
    model, batch = net()
    for params in ("blocks.1.*", "*norm*", "leave.*"):
        agree(Risk(model, mse, batch, params=params, quiet=True))


def test_units_can_be_named() -> None:
    model, batch = net()
    risk = Risk(model, mse, batch, units="blocks.*", quiet=True)
    assert list(risk.units) == ["blocks.0", "blocks.1", "blocks.2"]
    agree(risk)
    plain = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2)).to(F64)
    agree(Risk(plain, mse, batch, units="[01]", quiet=True))
    with pytest.raises(InputError, match=r"units: `layers.\*` matches none of \d+ modules. Closest names: `"):
        Risk(model, mse, batch, units="layers.*", quiet=True)


def test_a_model_without_repeated_blocks_goes_another_way(capsys: Any) -> None:
    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv1d(3, 4, 3), nn.Conv1d(4, 4, 2), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.a(x.mT).tanh()).tanh().flatten(1))

    batch = (torch.randn(3, 5, 3, dtype=F64), torch.randn(3, 2, dtype=F64))
    risk = Risk(Convolutions().to(F64), mse, batch, quiet=True)
    v = risk.space.random(dtype=F64)
    A = hessian(risk, route="units")
    assert gap(A @ v, hessian(risk) @ v) <= 1e-13
    assert A.route == "eager"
    (why,) = A.why
    assert "no repeated blocks; name its parts in `Risk(..., units=)`" in why
    assert capsys.readouterr().err == why + "\n"


class Beside(nn.Module):
    """Blocks one of whose tensors leaves it beside its output, or that read a weight of the model around them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(3))
        self.seen: list[Tensor] = []
        if how == "leaves":
            self.blocks[0][0].register_forward_hook(lambda module, args, out: self.seen.append(out))
        elif how == "reads":
            self.blocks[0].register_module("more", nn.Tanh())
            self.blocks[0].more.forward = lambda x: (x * self.scale).tanh()  # type: ignore[method-assign]
        elif how == "writes":
            self.blocks[1][1].forward = lambda x: x.tanh().exp().mul_(2)  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        self.seen.clear()
        for block in self.blocks:
            x = block(x)
        return x * self.scale + sum(t.square() for t in self.seen)


@pytest.mark.parametrize(
    ("how", "told"),
    [("leaves", "a tensor leaves a unit beside its output"), ("reads", "`blocks.0` uses weights from outside")],
)
def test_blocks_that_are_no_units_are_told(how: str, told: str) -> None:
    batch = (torch.randn(4, 3, dtype=F64), torch.randn(4, 3, dtype=F64))
    risk = Risk(Beside(how).to(F64), mse, batch, quiet=True)
    v = risk.space.random(dtype=F64)
    A = hessian(risk, route="units")
    assert gap(A @ v, hessian(risk) @ v) <= 1e-13
    assert A.route == "eager"
    assert told in A.why[0]


def test_results_written_over_inside_a_unit_are_refused() -> None:
    batch = (torch.randn(4, 3, dtype=F64), torch.randn(4, 3, dtype=F64))
    risk = Risk(Beside("writes").to(F64), mse, batch, quiet=True)
    with pytest.raises(InputError, match="was overwritten by an inplace operation"):
        hessian(risk, route="units") @ risk.space.random(dtype=F64)


class Once(torch.autograd.Function):
    """The square, with a forward rule and a reverse one that is marked."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * dx

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


@pytest.mark.parametrize("where", ["enter", "blocks.1.up", "leave"])
def test_operators_that_can_be_differentiated_once_are_refused(where: str) -> None:
    """Before, inside and behind the units, as on the other routes; no graph of the whole is made to see it."""
    model, batch = net()
    module = model.get_submodule(where)
    own = module.forward
    module.forward = lambda x: Once.apply(own(x))
    risk = Risk(model, mse, batch, quiet=True)
    for route in ("units", "eager"):
        with pytest.raises(InputError, match="differentiated once only"):
            hessian(risk, route=route) @ risk.space.random(dtype=F64)


@pytest.mark.parametrize("where", ["enter", "blocks.1.up", "leave"])
def test_wrong_second_derivatives_are_refused_by_units(where: str) -> None:
    """A reverse rule with a right value and a wrong derivative: H is not symmetric then."""

    class Wrong(Once):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            other = x.roll(1, -1)
            return 2 * x * g + g * (other - forward_ad.unpack_dual(other).primal)  # zero, with a derivative

    model, batch = net()
    module = model.get_submodule(where)
    own = module.forward
    module.forward = lambda x: Wrong.apply(own(x))
    risk = Risk(model, mse, batch, quiet=True)
    with pytest.raises(InputError, match="not symmetric"):
        hessian(risk, route="units") @ risk.space.random(dtype=F64)


def test_a_loss_that_sees_the_weights_in_other_ways_is_told_by_units(capsys: Any) -> None:
    model, batch = net()

    def decayed(out: Tensor, batch: Any) -> Tensor:
        return mse(out, batch) + model.leave.weight.square().sum()

    for make in (gauss_newton, functional):
        make(Risk(model, mse, batch, quiet=True), route="units")
    assert not capsys.readouterr().err
    gauss_newton(Risk(model, decayed, batch, quiet=True), route="units")
    assert "not only through the network's output" in capsys.readouterr().err


def test_training_mode_goes_another_way() -> None:
    model, batch = net()
    risk = Risk(model, mse, batch, train_mode=True, quiet=True)
    A = hessian(risk, route="units")
    A @ risk.space.random(dtype=F64)
    assert A.route == "eager"
    assert "random numbers would be others the second time" in A.why[0]


def test_the_model_is_left_as_it_was() -> None:
    """After a product, and after an error inside a unit, blocks have their own forward again."""
    model, batch = net()
    risk = Risk(model, mse, batch, quiet=True)
    v = risk.space.random(dtype=F64)
    want = hessian(risk, route="units") @ v
    assert all("forward" not in block.__dict__ for block in model.blocks)
    own = model.blocks[1].up.forward

    def fail(x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    A = hessian(risk, route="units")
    A @ v
    model.blocks[1].up.forward = fail  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        A @ v
    assert all("forward" not in block.__dict__ for block in model.blocks)
    model.blocks[1].up.forward = own  # type: ignore[method-assign]
    assert gap(A @ v, want) == 0


@pytest.fixture
def uncompiled(monkeypatch: Any) -> None:
    """Programs as they are traced: what the compiler makes of them is not tested here."""
    monkeypatch.setattr(programs, "compiled", lambda graph: graph)


def made(A: Any) -> list[int]:
    """How many programs there are for each kind of call."""
    run = A.run.choice.ways[0].made[0].programs
    return [len(found) for found in run.made.values()]


@pytest.mark.parametrize("make", KINDS)
def test_one_program_for_all_blocks(make: Any, uncompiled: None) -> None:
    model, batch = net()
    risk = Risk(model, mse, batch, quiet=True)
    V, A = risk.space.random(2, dtype=F64), make(risk, route="compiled-units")
    assert gap(A @ V, make(risk) @ V) <= 1e-12
    assert (A.route, A.why) == ("compiled-units", ())
    assert made(A) == [1]
    with torch.no_grad():  # weights, of one block too, are arguments of the program
        model.blocks[1].norm.weight.mul_(1.5)
    assert gap(A @ V, make(risk) @ V) <= 1e-12
    assert made(A) == [1]


@pytest.mark.parametrize("make", [hessian, gauss_newton, functional])
def test_one_program_for_four_vectors(make: Any, uncompiled: None) -> None:
    """One for four vectors and one for a single one, none for two or three."""
    model, batch = net()
    risk = Risk(model, mse, batch, quiet=True)
    V, A = risk.space.random(7, dtype=F64), make(risk, route="compiled-units")
    want = make(risk) @ V
    four = {n: t[:4] for n, t in V.items()}
    assert gap(A @ four, {n: t[:4] for n, t in want.items()}) <= 1e-12
    assert made(A) == [1]
    for _ in range(2):  # four, then three one after another
        assert gap(A @ V, want) <= 1e-12
    assert (A.route, A.why) == ("compiled-units", ())
    assert made(A) == [1, 1]


def test_programs_for_four_vectors_do_the_shared_work_once(uncompiled: None) -> None:
    model, batch = net()
    risk = Risk(model, mse, batch, quiet=True)
    V, A = risk.space.random(4, dtype=F64), hessian(risk, route="compiled-units")
    one = {n: t[:1] for n, t in V.items()}
    A @ V, A @ one
    with FlopCounterMode(display=False) as four:
        A @ V
    with FlopCounterMode(display=False) as single:
        A @ one
    assert four.get_total_flops() <= 0.8 * 4 * single.get_total_flops()


def test_programs_see_no_scope_around_them(uncompiled: None) -> None:
    """The compiler guards on scopes; the first call and later ones, forwards and backwards, are to look the same."""
    depths = []
    run = programs.compiled

    def compiled(graph: Any) -> Any:
        own = run(graph)

        def looked(*leaves: Any) -> Any:
            depths.append(torch._C._len_torch_function_stack())
            return own(*leaves)

        return looked

    model, batch = net()
    risk = Risk(model, mse, batch, quiet=True)
    v, A = risk.space.random(dtype=F64), hessian(risk, route="compiled-units")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "compiled", compiled)
        for _ in range(2):
            A @ v
    assert set(depths) == {0}
    assert len(depths) > 4


def test_blocks_that_compute_something_else_have_programs_of_their_own(uncompiled: None) -> None:
    """Same class and shapes, another scale: seen when the block is first run, in its numbers."""
    model, batch = net()
    own = model.blocks[2].up.forward
    model.blocks[2].up.forward = lambda x: 2 * own(x)  # type: ignore[method-assign]
    risk = Risk(model, mse, batch, quiet=True)
    v, A = risk.space.random(dtype=F64), hessian(risk, route="compiled-units")
    for _ in range(2):
        assert gap(A @ v, hessian(risk) @ v) <= 1e-12
    assert made(A) == [2]


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_programs_of_hugging_face_blocks(name: str, uncompiled: None) -> None:
    """Of an encoder-decoder two for each side: the first block makes the biases that the others take."""
    model, batch = tiny(name)
    risk = Risk(model, data=batch, quiet=True)
    v, A = risk.space.random(dtype=F64), hessian(risk, route="compiled-units")
    for _ in range(2):
        assert gap(A @ v, hessian(risk) @ v) <= 1e-6
    assert (A.route, A.why) == ("compiled-units", ())
    assert sum(made(A)) == {"gpt2": 1, "t5": 4}[name]


def test_programs_that_cannot_be_made_give_way_to_units(monkeypatch: Any) -> None:
    def refuse(graph: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(programs, "compiled", refuse)
    model, batch = net()
    risk = Risk(model, mse, batch, quiet=True)
    v, A = risk.space.random(dtype=F64), hessian(risk, route="compiled-units")
    assert gap(A @ v, hessian(risk) @ v) <= 1e-12
    assert A.route == "units"
    assert "cannot be compiled block by block (no compiler)" in A.why[0]
