"""How others use the kernels: one program, SDPA users, Hugging Face models."""

import runpy
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, jvp

from quadform.core.errors import InputError
from quadform.kernels import attention, linear_cross_entropy, program, second_order_sdpa

torch.set_num_threads(1)
VOCAB, D, HEADS, TOKENS, DEPTH = 7, 6, 2, 5, 3


def embed(p):
    return p["E"][torch.arange(TOKENS) % VOCAB][None]


def block(p, x):
    q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (x @ p["qkv"]).chunk(3, -1))
    x = x + attention(q, k, v, causal=True).transpose(1, 2).flatten(2)
    return x + torch.tanh(F.layer_norm(x, (D,), p["g"]) @ p["W"])


def head(p, x):
    return linear_cross_entropy(x, p["E"].T, torch.arange(TOKENS)[None] % 3)


def model():
    gen = torch.Generator().manual_seed(0)
    new = lambda *s: torch.randn(*s, generator=gen, dtype=torch.float64)  # noqa: E731
    tree = lambda: [  # noqa: E731
        {"E": new(VOCAB, D)},
        *({"qkv": new(D, 3 * D), "W": new(D, D), "g": new(D)} for _ in range(DEPTH)),
        {"E": new(VOCAB, D)},
    ]
    return [embed, *[block] * DEPTH, head], tree(), tree()


def whole(blocks):
    def loss(params):
        x = blocks[0](params[0])
        for f, p in zip(blocks[1:], params[1:], strict=True):
            x = f(p, x)
        return x

    return loss


def test_program_drops_what_is_not_asked():
    """The traced product equals the eager one and computes no more nodes than the trace with the loss kept."""
    blocks, params, tangents = model()
    product = lambda p, v: jvp(grad(whole(blocks)), (p,), (v,))[1]  # noqa: E731
    traced = program(product, params, tangents, compile=False)
    torch.testing.assert_close(traced(params, tangents), product(params, tangents), rtol=1e-11, atol=1e-11)
    assert not any(str(n.target).startswith("aten.logsumexp") for n in traced.graph.nodes)
    with pytest.raises(InputError, match="traced for arguments"):
        traced(params, tangents[1:])


def test_training_step_compiles_as_one_graph():
    """torch.compile(fullgraph=True) of a loss through `attention` has its value and gradient."""
    _, params, _ = model()
    leaves = [p.requires_grad_() for tree in params for p in tree.values()]
    loss = lambda: block(params[1], embed(params[0])).sin().sum()  # noqa: E731
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")()
    torch.testing.assert_close(compiled, loss())
    exact = torch.autograd.grad(loss(), leaves[:4])
    torch.testing.assert_close(torch.autograd.grad(compiled, leaves[:4]), exact, rtol=1e-11, atol=1e-11)


def sdpa_problem(heads_k=2):
    gen = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 5, 3, generator=gen, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, heads_k, 5, 3, generator=gen, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize(
    "kw",
    [
        {"is_causal": True},
        {"attn_mask": torch.ones(5, 5).tril().bool()},
        {"attn_mask": torch.linspace(-1, 1, 25, dtype=torch.float64).reshape(5, 5)},
        {"scale": 0.3},
    ],
)
@pytest.mark.parametrize("heads_k", [2, 4])
def test_sdpa_users_get_second_order(kw, heads_k):
    """Inside the scope the function has the value of torch's, and double backward equals that of the math backend."""
    x = sdpa_problem(heads_k)
    gqa = heads_k != 4

    def product():
        out = F.scaled_dot_product_attention(*x, enable_gqa=gqa, **kw)
        first = torch.autograd.grad(out.sin().sum(), x, create_graph=True)
        return (out, *torch.autograd.grad(sum((g.sin()).sum() for g in first), x))

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        exact = product()
    before = F.scaled_dot_product_attention
    with second_order_sdpa():
        ours = product()
    assert F.scaled_dot_product_attention is before
    torch.testing.assert_close(ours, exact, rtol=1e-11, atol=1e-11)


def test_sdpa_refuses_dropout():
    """A random loss has no Hessian."""
    with second_order_sdpa(), pytest.raises(InputError, match="dropout"):
        F.scaled_dot_product_attention(*sdpa_problem(4), dropout_p=0.1)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", ["GPT2LMHeadModel", "T5ForConditionalGeneration"])
def test_hugging_face_model(family, padded):
    """attn_implementation="quadform": loss and Hessian product of the eager twin; T5 adds learned positions."""
    transformers = pytest.importorskip("transformers")
    from quadform.integrations import register_hf

    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 5, "num_layers": 1, "num_heads": 2, "vocab_size": 11}
    if family == "GPT2LMHeadModel":
        config = transformers.GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=8)
    else:
        config = transformers.T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0)
    ids = torch.arange(10).reshape(2, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]) if padded else None
    answers = []
    for name in ("eager", register_hf()):
        config._attn_implementation = name
        torch.manual_seed(0)
        net = getattr(transformers, family)(config).double().eval()
        params = {n: p.detach() for n, p in net.named_parameters()}
        gen = torch.Generator().manual_seed(1)
        v = {n: torch.randn(p.shape, generator=gen, dtype=p.dtype) for n, p in params.items()}
        labels = ids if mask is None else torch.where(mask.bool(), ids, -100)

        def loss(p, net=net, labels=labels):
            return functional_call(net, p, (), {"input_ids": ids, "attention_mask": mask, "labels": labels}).loss

        answers.append((loss(params), jvp(grad(loss), (params,), (v,))[1]))
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-6, atol=1e-8)


def test_self_test_runs(capsys):
    """`python benchmarks/kernels_check.py` checks itself and ends well."""
    check = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "kernels_check.py"))
    assert check["main"]() == 0
    assert "ok" in capsys.readouterr().out


class SdpaModel(torch.nn.Module):
    """A plain torch model that calls SDPA: attention without norms, then a linear map to classes."""

    def __init__(self):
        super().__init__()
        gen = torch.Generator().manual_seed(0)
        new = lambda *s: torch.nn.Parameter(torch.randn(*s, generator=gen, dtype=torch.float64))  # noqa: E731
        self.qkv, self.W = new(D, 3 * D), new(D, VOCAB)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (x @ self.qkv).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(2)[:, -1] @ self.W


def sdpa_model():
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(3, TOKENS, D, generator=gen, dtype=torch.float64)
    y = torch.randint(VOCAB, (3,), generator=gen)
    model = SdpaModel()
    tangents = [torch.randn(p.shape, generator=gen, dtype=p.dtype) for p in model.parameters()]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        params = dict(model.named_parameters())
        loss = lambda p: F.cross_entropy(functional_call(model, p, (x,)), y)  # noqa: E731
        exact = jvp(grad(loss), (params,), (dict(zip(params, tangents, strict=True)),))[1]
    return model, x, y, tangents, [a.detach() for a in exact.values()]


def test_plain_autograd_of_a_module():
    """autograd.grad(create_graph=True), then grad, on a module that calls SDPA: the written-out product."""
    model, x, y, tangents, exact = sdpa_model()
    params = list(model.parameters())
    with second_order_sdpa():
        first = torch.autograd.grad(F.cross_entropy(model(x), y), params, create_graph=True)
        inner = sum((g * t).sum() for g, t in zip(first, tangents, strict=True))
        product = torch.autograd.grad(inner, params)
    torch.testing.assert_close(list(product), exact, rtol=1e-11, atol=1e-11)


def test_curvlinops():
    """curvlinops' HessianLinearOperator inside `second_order_sdpa` multiplies with the same Hessian."""
    curvlinops = pytest.importorskip("curvlinops")
    model, x, y, tangents, exact = sdpa_model()
    params = list(model.parameters())
    with second_order_sdpa():
        H = curvlinops.HessianLinearOperator(model, torch.nn.CrossEntropyLoss(), params, [(x, y)])
        product = H @ torch.cat([t.flatten() for t in tangents])
    torch.testing.assert_close(product.detach(), torch.cat([e.flatten() for e in exact]), rtol=1e-9, atol=1e-9)


def test_compiled_models_take_the_stock_attention():
    """torch.compile of a plain model keeps torch's own attention; inside a torch.func transform it takes ours."""
    from quadform.nn.attend import attend

    seen = []

    def backend(graph, _):
        seen.append({str(n.target) for n in graph.graph.nodes})
        return graph

    q = torch.randn(1, 2, 5, 4, requires_grad=True)
    torch.compile(lambda q: attend(q, q, q, causal=True).sum(), backend=backend, fullgraph=True)(q)
    assert any("scaled_dot_product" in name for name in seen.pop())
    inner = grad(lambda q: attend(q, q, q, causal=True).sum())
    torch.compile(lambda q: inner(q), backend=backend)(q.detach())
    assert not any("scaled_dot_product" in name for names in seen for name in names)


def test_the_scope_of_a_thread_is_its_own():
    """Another thread keeps torch's attention; scopes end in any order; nothing of torch changes."""
    stock, x, entered, left = F.scaled_dot_product_attention, sdpa_problem(4), threading.Event(), threading.Event()
    refuses = lambda: pytest.raises(InputError, match="dropout")  # noqa: E731

    def first():
        with second_order_sdpa():
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(10)
    F.scaled_dot_product_attention(*x, dropout_p=0.1)  # torch's own takes it
    with second_order_sdpa():
        left.set()
        thread.join()
        with refuses():
            F.scaled_dot_product_attention(*x, dropout_p=0.1)
        assert F.scaled_dot_product_attention is stock
    F.scaled_dot_product_attention(*x, dropout_p=0.1)


def test_the_scope_reaches_imported_names_and_multihead_attention():
    """Torch's function under a name of its own, and `nn.MultiheadAttention`, whose Python code calls it."""
    under_its_own_name = F.scaled_dot_product_attention
    with second_order_sdpa() as scope:
        under_its_own_name(*sdpa_problem(4))
        assert scope.calls == 1
        x = torch.randn(2, 5, 8)
        layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
        with torch.no_grad():
            ours = layer(x, x, x, need_weights=False)[0]
        assert scope.calls == 2
    torch.testing.assert_close(ours, layer(x, x, x)[0])


def test_another_thread_does_not_see_that_one_traces():
    """`torch.compiler.is_compiling()` belongs to the thread that traces."""
    seen = {}

    def look(name):
        seen[name] = bool(torch.compiler.is_compiling())

    def traced(x):
        look("here")
        thread = threading.Thread(target=look, args=("there",))
        thread.start()
        thread.join()
        return x.sin()

    program(traced, torch.ones(2), compile=False)
    look("after")
    assert seen == {"here": True, "there": False, "after": False}
