"""Whole models through `quadform.kernels`: GPT-2 124M, eigenvalues of a small GPT, training steps of shaped designs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.func import grad, jvp, vmap

from kernels_common import DEPTH, DEVICE, HEADS, VOCAB, WIDTH, alone, error
from kernels_profile import measure
from quadform.kernels import attention, linear_cross_entropy, program, using

# GPT-2 124M as a list of blocks over parameter trees; `kind` is the type of the matrix products, as autocast would do.


def gpt2(
    batch: int, tokens: int, kind: torch.dtype, second_order: bool, seed: int = 0, depth: int = DEPTH,
    results: torch.dtype | None = None, scores: torch.dtype | None = None, **sizes,
):  # fmt: skip
    """(blocks, params): embedding, depth blocks, head with the loss; the embedding is listed at both ends.

    `results` is the type between products (float32: operands alone are rounded to `kind`), `scores` the attention's.
    """
    d, vocab, count = sizes.get("d", HEADS * WIDTH), sizes.get("vocab", VOCAB), sizes.get("heads", HEADS)
    gen = torch.Generator(DEVICE).manual_seed(seed)
    ids = torch.randint(vocab, (batch, tokens + 1), device=DEVICE, generator=gen)
    new = lambda *s: 0.02 * torch.randn(*s, device=DEVICE, generator=gen)  # noqa: E731
    one, zero = torch.ones(d, device=DEVICE), torch.zeros

    results, scores = results or kind, scores or kind

    def linear(x, W, b):
        if results == kind:
            return x.to(kind) @ W.to(kind) + b.to(kind)
        return x.to(kind).to(results) @ W.to(kind).to(results) + b  # exact products of rounded operands

    def embed(p):
        return F.embedding(ids[:, :-1], p["E"]) + p["P"]

    def block(p, x):
        y = linear(F.layer_norm(x, (d,), p["g1"], p["b1"]), p["W_QKV"], p["b_QKV"])
        q, k, v = (a.unflatten(-1, (count, -1)).transpose(1, 2).to(scores) for a in y.chunk(3, -1))
        if second_order:
            y = attention(q, k, v, causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).flatten(2), p["W_O"], p["b_O"]).to(x.dtype)
        y = F.gelu(linear(F.layer_norm(x, (d,), p["g2"], p["b2"]), p["W_1"], p["b_W1"]), approximate="tanh")
        return x + linear(y, p["W_2"], p["b_W2"]).to(x.dtype)

    def head(p, x):
        x = F.layer_norm(x, (d,), p["g"], p["b"]).to(kind)
        if second_order:
            return linear_cross_entropy(x, p["E"].to(kind).T, ids[:, 1:])
        return F.cross_entropy((x @ p["E"].to(kind).T).float().flatten(0, 1), ids[:, 1:].flatten())

    def layer():
        return {
            "g1": one.clone(), "b1": zero(d, device=DEVICE), "W_QKV": new(d, 3 * d), "b_QKV": new(3 * d),
            "W_O": new(d, d), "b_O": new(d), "g2": one.clone(), "b2": zero(d, device=DEVICE),
            "W_1": new(d, 4 * d), "b_W1": new(4 * d), "W_2": new(4 * d, d), "b_W2": new(d),
        }  # fmt: skip

    E = new(vocab, d)
    first, last = {"E": E, "P": new(tokens, d)}, {"g": one.clone(), "b": zero(d, device=DEVICE), "E": E}
    return [embed, *[block] * depth, head], [first, *(layer() for _ in range(depth)), last]


def whole(blocks):
    """The loss of all blocks, the embedding used at both ends."""

    def loss(params):
        x = blocks[0](params[0])
        for f, p in zip(blocks[1:-1], params[1:-1], strict=True):
            x = f(p, x)
        return blocks[-1]({**params[-1], "E": params[0]["E"]}, x)

    return loss


def untied(params):
    return [*params[:-1], {n: a for n, a in params[-1].items() if n != "E"}]


def random_like(params, seed, n=None):
    gen = torch.Generator(DEVICE).manual_seed(seed)
    lead = () if n is None else (n,)
    return [{k: torch.randn(*lead, *a.shape, device=DEVICE, generator=gen) for k, a in p.items()} for p in params]


def dot(a, b):
    """Inner product of two lists of trees, in float64."""
    pairs = [(x, q[n]) for p, q in zip(a, b, strict=True) for n, x in p.items()]
    return sum((x.double() * y.double()).sum() for x, y in pairs)


def gradient(report, batch, tokens, mode) -> None:
    """Compiled gradient of GPT-2 as people run it: SDPA, logits written out."""
    kind = torch.bfloat16 if mode == "bf16" else torch.float32
    blocks, params = gpt2(batch, tokens, kind, second_order=False)
    params = untied(params)
    leaves = [a.requires_grad_() for p in params for a in p.values()]
    step = torch.compile(whole(blocks), fullgraph=True, dynamic=False)
    measure(report, f"gradient {mode} {batch}x{tokens}", lambda: torch.autograd.grad(step(params), leaves))


def stock_gradient(report, batch, tokens, mode) -> None:
    """Compiled gradient of the Hugging Face GPT-2 with SDPA: what people have without this project."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_positions=tokens, bos_token_id=0, eos_token_id=0, attn_implementation="sdpa")
    model = transformers.GPT2LMHeadModel(config).to(DEVICE).eval()
    ids = torch.randint(VOCAB, (batch, tokens), device=DEVICE)
    compiled, leaves = torch.compile(model), list(model.parameters())

    def run():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=mode == "bf16"):
            logits = compiled(input_ids=ids).logits
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
        return torch.autograd.grad(loss, leaves)

    measure(report, f"stock gradient {mode} {batch}x{tokens}", run)


def product(report, batch, tokens, mode, many: int = 0, products: str = "torch", replay: bool = False) -> None:
    """Hessian product of GPT-2 as one program; `many` at once where asked."""
    kind = torch.bfloat16 if mode == "bf16" else torch.float32
    blocks, params = gpt2(batch, tokens, kind, second_order=True)
    params = untied(params)
    one = lambda p, v: jvp(grad(whole(blocks)), (p,), (v,))[1]  # noqa: E731
    v = random_like(params, 1, many or None)
    f = (lambda p, V: vmap(lambda v: one(p, v))(V)) if many else one
    run = program(f, params, v, products=products, replay=replay)
    name = f"product {mode} {batch}x{tokens}" + f" {many} at once" * bool(many) + " in halves" * (products == "halves")
    measure(report, name + " replayed" * replay, lambda: run(params, v), many or 1)
    if not many:
        report["models"][-1]["asymmetry"] = asymmetry(params, v, lambda v: run(params, v))


def asymmetry(params, v, run) -> float:
    """|u'Hv − v'Hu| / |u||Hv| for a second vector u."""
    u = random_like(params, 2)
    with alone():
        Hv, Hu = run(v), run(u)
        gap = float((dot(u, Hv) - dot(v, Hu)).abs() / (dot(u, u) * dot(Hv, Hv)).sqrt())
    print(f"    |u'Hv - v'Hu| / |u||Hv| = {gap:.1e}", flush=True)
    return gap


def kept(report, batch, tokens, mode, products: str = "halves") -> None:
    """One product of many at the same weights: what no vector touches was computed once and is kept."""
    from quadform.curvature.linear import Linearised

    kind = torch.bfloat16 if mode == "bf16" else torch.float32
    blocks, params = gpt2(batch, tokens, kind, second_order=True)
    params, v = untied(params), random_like(untied(params), 1)
    one = lambda p, v: jvp(grad(whole(blocks)), (p,), (v,))[1]  # noqa: E731
    run = Linearised(one, params, v, compile=True, products=products)
    values = run.at(params)
    name = f"kept product {mode} {batch}x{tokens}" + " in halves" * (products == "halves") + " replayed"
    measure(report, name, lambda: run(params, values, v))
    report["models"][-1] |= {
        "kept_gib": run.bytes / 2**30,
        "asymmetry": asymmetry(params, v, lambda v: run(params, values, v)),
    }


def product_error(report) -> None:
    """Hessian product of a GPT-2 of 2 blocks (all widths, the vocabulary cut to 5,000) against float64, per mode."""
    answers = {}
    torch.set_float32_matmul_precision("high")
    modes = {
        "float64": (torch.float64, "torch"),
        "tf32": (torch.float32, "torch"),
        "tf32 in halves": (torch.float32, "halves"),
        "bf16": (torch.bfloat16, "torch"),
    }
    for mode, (kind, products) in modes.items():
        blocks, params = gpt2(2, 256, kind, second_order=True, depth=2, vocab=5000)
        params, v = untied(params), random_like(untied(params), 1)
        if kind == torch.float64:
            params, v = ([{n: a.double() for n, a in p.items()} for p in x] for x in (params, v))
        one = lambda p, v, blocks=blocks: jvp(grad(whole(blocks)), (p,), (v,))[1]  # noqa: E731
        with using("reference" if kind == torch.float64 else None):
            out = program(one, params, v, compile=False, products=products)(params, v)
        answers[mode] = [a for p in out for a in p.values()]
    report["product_error"] = {m: error(a, answers["float64"]) for m, a in answers.items() if m != "float64"}
    print("  Hessian product of a GPT-2 of 2 blocks against float64:", report["product_error"], flush=True)


def training(report, name, fused: bool = True, batch: int = 128, tokens: int = 128) -> None:
    """One compiled training step (bf16 autocast, fused AdamW) of the 18-block CodeParrot GPT of [HH24] in one design.

    `fused=False` takes torch's attention and mixes around it, as on other devices.
    """
    from quadform.core.designs import CODEPARROT, design
    from quadform.nn import Transformer
    from quadform.nn.attention import Attention

    if not fused:
        Attention._one_kernel = lambda *_: False
    model = Transformer(design(name, **CODEPARROT, seq_len=tokens), device=DEVICE)
    ids = torch.randint(model.config.vocab, (batch, tokens + 1), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss_of = torch.compile(model.loss, fullgraph=True, dynamic=False)

    def step():
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = loss_of({"tokens": ids})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    label = f"training {name} {batch}x{tokens}" + ("" if fused else " mixed by torch")
    measure(report, label, step, reps=20, look=False)
    report["models"][-1]["parameters"] = sum(p.numel() for p in model.parameters())


def eigen(report) -> None:
    """Top-10 eigenvalues of a small GPT's Hessian, written out column by column, per mode against float64."""
    out = {}
    wide, half = torch.float32, torch.bfloat16
    modes = (
        ("float64", torch.float64, "tf32", {}),
        ("tf32", wide, "tf32", {}),
        ("tf32x3", wide, "tf32x3", {}),
        ("bf16", half, "tf32", {}),
        ("bf16 operands, float32 between products", half, "tf32x3", {"results": wide}),
        ("bf16 attention in a float32 model", wide, "tf32x3", {"scores": half}),
    )
    for mode, kind, precision, types in modes:
        blocks, params = gpt2(2, 33, kind, second_order=True, depth=2, d=16, vocab=11, heads=1, **types)
        params = untied(params)
        flat = [a * 10 if a.dim() > 1 else a for p in params for a in p.values()]
        names = [list(p) for p in params]
        base = torch.float64 if kind == torch.float64 else torch.float32
        flat = [a.to(base) for a in flat]
        sizes = [a.numel() for a in flat]

        def tree(vector, flat=flat, names=names, sizes=sizes):
            parts = iter(a.reshape(b.shape) for a, b in zip(vector.split(sizes), flat, strict=True))
            return [{n: next(parts) for n in group} for group in names]

        theta = torch.cat([a.flatten() for a in flat])
        f = lambda theta, blocks=blocks, tree=tree: whole(blocks)(tree(theta))  # noqa: E731
        torch.set_float32_matmul_precision("highest" if precision == "tf32x3" else "high")
        with using(None if kind != torch.float64 else "reference", precision):
            eye = torch.eye(theta.numel(), device=DEVICE, dtype=base)
            H = torch.cat(
                [vmap(lambda v, f=f, theta=theta: jvp(grad(f), (theta,), (v,))[1])(c) for c in eye.split(512)]
            )
        values = torch.linalg.eigvalsh((H + H.T).double() / 2)
        out[mode] = values.abs().sort(descending=True)[0][:10].tolist()
    torch.set_float32_matmul_precision("high")
    gaps = {m: max(abs(a - b) / b for a, b in zip(out[m], out["float64"], strict=True)) for m in out}
    report["eigen"] = {"parameters": theta.numel(), "top10": out, "largest_gap": gaps}
    print(
        f"  {theta.numel()} parameters, largest relative gap among the top 10:",
        {m: f"{g:.1e}" for m, g in gaps.items()},
    )
