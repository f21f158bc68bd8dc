"""Decoding beside others with one set of sizes: sentences a CPU second on one thread, or a second on CUDA.

    python benchmarks/decode.py [--device cpu|cuda] [--out FILE] [PART ...]

Encoder-decoder, 2 + 2 layers, d 128, 4 heads, d_ff 512, 4,000 tokens, untrained weights with room for variety, 200
sources of 5 to 30 tokens, at most 30 tokens out, batches of 64. Sides alternate; the best of several rounds counts.
    ct2      CTranslate2, the same weights: speed, and how many outputs are equal (greedy and beam 5)
    hf       Hugging Face `generate` of a model of the same shape, batches of 64 and 8; every output exactly 30 tokens
    joey     JoeyNMT's greedy search with a model of the same shape; every output exactly 30, then 60 tokens
    cuda     (on CUDA) growing and static caches, batches of 1 to 512, 6 + 6 layers, d 512, 8,000 tokens
Peers that are not installed are named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import time
from pathlib import Path

import torch

from peers import Missing, joey_model
from quadform.nn import Search, Transformer, generate
from quadform.nn.transformer import sinusoid

SIZE = {"depth": 2, "d_model": 128, "heads": 4, "d_ff": 512, "vocab": 4000}
BIG = {"depth": 6, "d_model": 512, "heads": 8, "d_ff": 1024, "vocab": 8000}
SENTENCES, LONGEST, BATCH = 200, 30, 64


def our_model(size: dict, device: str = "cpu") -> Transformer:
    """Random weights, made so that outputs vary and end at different lengths."""
    model = Transformer(
        "pre-ln", kind="encoder-decoder", **size, pad=0, bos=1, eos=2, positions="sinusoidal", norm="layer",
        biases=("q", "k", "v", "o", "mlp"), seed=1,
    )  # fmt: skip
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("W_1", "W_2", "W_Q", "W_K", "W_V", "W_O")):
                p += p.std() * torch.randn(p.shape, generator=g)
        end = model.embed.W_E[2]
        model.final_norm.bias += 0.1 * size["d_model"] ** 0.5 * end / end.norm()
    return model.to(device).eval()


def sources(vocab: int, count: int = SENTENCES) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(5, vocab) for _ in range(draw.randint(5, 30))] for _ in range(count)]


def alternate(sides: dict, rounds: int = 3) -> dict[str, float]:
    """Least CPU seconds of every side; the sides take turns."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, run in sides.items():
            start = time.process_time()
            run()
            best[name] = min(best.get(name, float("inf")), time.process_time() - start)
    return best


def compare(sides: dict, count: int = SENTENCES) -> dict:
    took = alternate(sides)
    ours, *others = took
    return {
        "sentences_per_cpu_second": {name: count / t for name, t in took.items()},
        "ours is faster by": {name: took[name] / took[ours] for name in others},
    }


# -------------------------------------------------------------------------------------------------------- CTranslate2
def ctranslate2_model(model: Transformer, folder: Path):
    """The same weights as a CTranslate2 model on one thread in float32, and its vocabulary."""
    try:
        import ctranslate2
        import numpy as np
        from ctranslate2.specs import common_spec, transformer_spec
    except ImportError as error:
        raise Missing(f"ctranslate2 ({error})") from error
    c = model.config
    spec = transformer_spec.TransformerSpec.from_config(
        (len(c.encoder_blocks), c.depth), c.heads, pre_norm=True, activation=common_spec.Activation.RELU
    )
    places = sinusoid(torch.arange(512), c.d_model).float().numpy()

    def array(t):
        return t.detach().float().numpy().astype(np.float32).copy()

    def norm(to, of):
        to.gamma, to.beta = array(of.weight), array(of.bias)

    def linear(to, weights, biases):
        to.weight, to.bias = np.concatenate([array(W.T) for W in weights]), np.concatenate([array(b) for b in biases])

    def stack(to, layers, final, decoder):
        embed = to.embeddings if decoder else to.embeddings[0]
        embed.weight, to.scale_embeddings, to.position_encodings.encodings = array(model.embed.W_E), True, places
        norm(to.layer_norm, final)
        for x, y in zip(to.layer, layers, strict=True):
            a = y.attn
            norm(x.self_attention.layer_norm, y.norm_attn)
            linear(x.self_attention.linear[0], [a.W_Q, a.W_K, a.W_V], [a.b_Q, a.b_K, a.b_V])
            linear(x.self_attention.linear[1], [a.W_O], [a.b_O])
            if decoder:
                a = y.cross
                norm(x.attention.layer_norm, y.norm_cross)
                linear(x.attention.linear[0], [a.W_Q], [a.b_Q])
                linear(x.attention.linear[1], [a.W_K, a.W_V], [a.b_K, a.b_V])
                linear(x.attention.linear[2], [a.W_O], [a.b_O])
            norm(x.ffn.layer_norm, y.norm_mlp)
            linear(x.ffn.linear_0, [y.mlp.W_1], [y.mlp.b_1])
            linear(x.ffn.linear_1, [y.mlp.W_2], [y.mlp.b_2])

    stack(spec.encoder, model.encoder_layers, model.encoder_norm, False)
    stack(spec.decoder, model.layers, model.final_norm, True)
    spec.decoder.projection.weight = array(model.embed.W_E)
    words = ["<pad>", "<s>", "</s>", *(f"t{i}" for i in range(3, c.vocab))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.add_source_eos = spec.config.add_source_bos = False
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = "<pad>", "<s>", "</s>"
    spec.config.decoder_start_token = "<s>"
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(folder))
    kinds = {"inter_threads": 1, "intra_threads": 1, "compute_type": "float32"}
    return ctranslate2.Translator(str(folder), device="cpu", **kinds), words


def ct2() -> dict:
    model, inputs = our_model(SIZE), sources(SIZE["vocab"])
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        other, words = ctranslate2_model(model, Path(folder))
        texts = [[words[i] for i in x] for x in inputs]
        for beam in (1, 5):
            how = Search(beam=beam, max_length=LONGEST, alpha=1.0)
            their = {"beam_size": beam, "max_batch_size": BATCH, "max_decoding_length": LONGEST, "length_penalty": 1.0}

            def ours(how=how):
                return generate(model, inputs, how, batch_size=BATCH)

            def theirs(their=their):
                return other.translate_batch(texts, **their)

            same = sum(
                [words[i] for i in a[0].tokens] == b.hypotheses[0] for a, b in zip(ours(), theirs(), strict=True)
            )
            lengths = {len(a[0].tokens) for a in ours()}
            told = compare({"ours": ours, "ctranslate2": theirs})
            found["greedy" if beam == 1 else f"beam {beam}"] = told | {
                "equal": f"{same}/{len(inputs)}",
                "lengths": [min(lengths), max(lengths)],
            }
    return found


# ------------------------------------------------------------------------------------------------------- Hugging Face
def hf() -> dict:
    try:
        from transformers import MarianConfig, MarianMTModel
    except ImportError as error:
        raise Missing("transformers") from error
    config = MarianConfig(
        vocab_size=SIZE["vocab"], d_model=SIZE["d_model"], encoder_layers=SIZE["depth"], decoder_layers=SIZE["depth"],
        encoder_attention_heads=SIZE["heads"], decoder_attention_heads=SIZE["heads"], encoder_ffn_dim=SIZE["d_ff"],
        decoder_ffn_dim=SIZE["d_ff"], pad_token_id=0, eos_token_id=2, bos_token_id=1, decoder_start_token_id=1,
        activation_function="relu", scale_embedding=True, max_position_embeddings=512, attn_implementation="sdpa",
        forced_eos_token_id=None,
    )  # fmt: skip
    other, model = MarianMTModel(config).eval(), our_model(SIZE)
    inputs = sorted(sources(SIZE["vocab"]), key=len)
    from quadform.nn.decode import pad_rows

    found = {}
    for beam, size in ((1, BATCH), (5, BATCH), (1, 8), (5, 8)):
        how = Search(beam=beam, max_length=LONGEST, min_length=LONGEST)
        batches = [pad_rows(inputs[i : i + size], 0) for i in range(0, len(inputs), size)]

        def ours(how=how, size=size):
            return generate(model, inputs, how, batch_size=size)

        @torch.inference_mode()
        def theirs(beam=beam, batches=batches):
            return [
                other.generate(
                    input_ids=x,
                    attention_mask=m.long(),
                    num_beams=beam,
                    do_sample=False,
                    max_new_tokens=LONGEST,
                    min_new_tokens=LONGEST,
                )
                for x, m in batches
            ]

        assert theirs()[0].shape[1] == LONGEST + 1
        found[f"beam {beam}, batch {size}"] = compare({"ours": ours, "hf generate": theirs})
    return found


# ------------------------------------------------------------------------------------------------------------ JoeyNMT
def joey() -> dict:
    other, model = joey_model(SIZE), our_model(SIZE)
    other.eval()
    from joeynmt.search import greedy

    from quadform.nn.decode import pad_rows

    inputs = sorted(sources(SIZE["vocab"]), key=len)
    batches = [pad_rows(inputs[i : i + BATCH], 1) for i in range(0, len(inputs), BATCH)]
    found = {}
    for length in (LONGEST, 2 * LONGEST):
        how = Search(max_length=length, min_length=length)

        def ours(how=how):
            return generate(model, inputs, how, batch_size=BATCH)

        @torch.inference_mode()
        def theirs(length=length):
            out = []
            for x, m in batches:
                states, hidden, *_ = other(return_type="encode", src=x, src_length=m.sum(1), src_mask=m[:, None])
                lengths = {"max_output_length": length, "min_output_length": length}
                out.append(
                    greedy(src_mask=m[:, None], model=other, encoder_output=states, encoder_hidden=hidden, **lengths)
                )
            return out

        assert theirs()[0][0].shape[1] == length
        found[f"greedy, {length} tokens"] = compare({"ours": ours, "joeynmt": theirs})
    return found


# --------------------------------------------------------------------------------------------------------------- CUDA
def cuda() -> dict:
    torch.set_float32_matmul_precision("high")
    model = our_model(BIG, "cuda")
    found: dict = {}
    for batch in (1, 16, 128, 512):
        inputs = sources(BIG["vocab"], {1: 8, 16: 64, 128: 512, 512: 1024}[batch])
        for beam in (1, 5):
            outputs = {}
            for cache in ("kv", "static"):
                how = Search(beam=beam, max_length=60, cache=cache)
                generate(model, inputs[:batch], how, batch_size=batch)
                torch.cuda.synchronize()
                start = time.monotonic()
                outputs[cache] = [h[0].tokens for h in generate(model, inputs, how, batch_size=batch)]
                rate = len(inputs) / (time.monotonic() - start)
                found[f"batch {batch}, beam {beam}, {cache}"] = {"sentences_per_s": rate}
            same = sum(a == b for a, b in zip(*outputs.values(), strict=True))
            found[f"batch {batch}, beam {beam}, static"]["equal"] = f"{same}/{len(inputs)}"
            found[f"batch {batch}, beam {beam}, static"]["tokens"] = sum(map(len, outputs["kv"])) / len(inputs)
            print(
                batch, beam, {c: round(found[f"batch {batch}, beam {beam}, {c}"]["sentences_per_s"]) for c in outputs}
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    parts = {"cuda": cuda} if args.device == "cuda" else {"ct2": ct2, "hf": hf, "joey": joey}
    told = {"device": torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or "cpu"}
    told |= {"torch": torch.__version__, "when": time.strftime("%Y-%m-%d"), "load": os.getloadavg(), "shape": SIZE}
    for name in args.parts or parts:
        try:
            told[name] = parts[name]()
        except Missing as error:
            told[name] = {"missing": str(error)}
        print(name, json.dumps(told[name], indent=1), flush=True)
        if args.out:
            args.out.write_text(json.dumps(told, indent=1, default=list) + "\n")


if __name__ == "__main__":
    main()
