"""Trained models in our own modules: logits equal to an evaluation written here from the raw state dicts."""

from __future__ import annotations

import io
import json
import math
import zipfile

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.core.errors import FileError, InputError, UnknownName
from quadform.corpora.fetch import load, models
from quadform.corpora.proteins import (
    AMINO_ACIDS,
    REGIONS,
    numbering_net,
    pack,
    receptor,
    receptor_net,
    receptor_probe,
    residues,
)
from quadform.corpora.zoo import contrastive, from_interleaved
from quadform.nn.transformer import IGNORE, Transformer

D, FF, HEADS = 8, 12, 2


def attention(state, name: str, Q_in: Tensor, K_in: Tensor, allowed: Tensor) -> Tensor:
    """Multi-head attention by hand: W in rows (out, in), heads side by side, `allowed` (batch, queries, keys)."""
    q, k, v = (
        X @ W.mT + b
        for X, W, b in zip(
            (Q_in, K_in, K_in),
            state[f"{name}in_proj_weight"].chunk(3),
            state[f"{name}in_proj_bias"].chunk(3),
            strict=True,
        )
    )
    out = []
    for h in range(HEADS):
        part = slice(h * D // HEADS, (h + 1) * D // HEADS)
        S = q[..., part] @ k[..., part].mT / math.sqrt(D / HEADS)
        out.append(S.masked_fill(~allowed, -math.inf).softmax(-1) @ v[..., part])
    return torch.cat(out, -1) @ state[f"{name}out_proj.weight"].mT + state[f"{name}out_proj.bias"]


def norm(state, name: str, X: Tensor) -> Tensor:
    centred = X - X.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + 1e-5).sqrt() * state[f"{name}weight"] + state[f"{name}bias"]


def dense(state, name: str, X: Tensor) -> Tensor:
    return X @ state[f"{name}weight"].mT + state[f"{name}bias"]


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {name: 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def pair(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}weight": shape, f"{name}bias": shape[:1]}


def mha(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}in_proj_weight": (3 * D, D), f"{name}in_proj_bias": (3 * D,), **pair(f"{name}out_proj.", D, D)}


# ------------------------------------------------------------------------------------------------------------- anarcii
def numbering_state(layers: int = 2) -> dict[str, Tensor]:
    """Random weights under anarcii's names: 25 source tokens, 30 targets, 20 positions."""
    shapes: dict[str, tuple[int, ...]] = pair("decoder.fc_out.", 30, D)
    for side, vocab in (("encoder", 25), ("decoder", 30)):
        shapes |= {f"{side}.tok_embedding.weight": (vocab, D), f"{side}.pos_embedding.weight": (20, D)}
        for i in range(layers):
            at = f"{side}.layers.{i}."
            shapes |= mha(f"{at}self_attention.multihead_attn.") | pair(f"{at}self_attn_layer_norm.", D)
            shapes |= pair(f"{at}positionwise_feedforward.fc_1.", FF, D) | pair(
                f"{at}positionwise_feedforward.fc_2.", D, FF
            )
            shapes |= pair(f"{at}ff_layer_norm.", D)
            if side == "decoder":
                shapes |= mha(f"{at}encoder_attention.multihead_attn.") | pair(f"{at}enc_attn_layer_norm.", D)
    return drawn(shapes)


def numbering_logits(state, source: Tensor, target: Tensor) -> Tensor:
    """anarcii's formula: post-LN, embedding times sqrt(d) plus position, no final norm."""

    def embed(side: str, tokens: Tensor) -> Tensor:
        places = state[f"{side}.pos_embedding.weight"][: tokens.shape[1]]
        return state[f"{side}.tok_embedding.weight"][tokens] * math.sqrt(D) + places

    def feed(at: str, X: Tensor) -> Tensor:
        Y = dense(state, f"{at}positionwise_feedforward.fc_1.", X).relu()
        return norm(state, f"{at}ff_layer_norm.", X + dense(state, f"{at}positionwise_feedforward.fc_2.", Y))

    real = (source != 0)[:, None]
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()[None]
    M, X = embed("encoder", source), embed("decoder", target)
    for i in range(2):
        at = f"encoder.layers.{i}."
        A = attention(state, f"{at}self_attention.multihead_attn.", M, M, real)
        M = feed(at, norm(state, f"{at}self_attn_layer_norm.", M + A))
    for i in range(2):
        at = f"decoder.layers.{i}."
        A = attention(state, f"{at}self_attention.multihead_attn.", X, X, causal)
        X = norm(state, f"{at}self_attn_layer_norm.", X + A)
        A = attention(state, f"{at}encoder_attention.multihead_attn.", X, M, real)
        X = feed(at, norm(state, f"{at}enc_attn_layer_norm.", X + A))
    return dense(state, "decoder.fc_out.", X)


def test_numbering_net_has_equal_logits():
    """Our encoder-decoder with anarcii's weights = anarcii's formula, to rounding, padding included."""
    state = numbering_state()
    model = numbering_net(state, heads=HEADS)
    source = torch.tensor([[1, 5, 9, 24, 2], [1, 7, 2, 0, 0]])
    target = torch.tensor([[1, 6, 29, 4], [1, 3, 3, 8]])
    want = numbering_logits(state, source, target)
    got = model(target, source=source)
    assert float((got - want).detach().abs().max()) < 1e-12 * float(want.abs().max())
    assert sum(p.numel() for p in model.parameters()) == sum(t.numel() for t in state.values())


def test_residues_are_anarciis_tokens():
    """pad 0, start 1, end 2, skip 3, then ACDEFGHIKLMNPQRSTVWXY; unusual letters are X."""
    assert residues("ACWXYBz") == [1, 4, 5, 22, 23, 24, 23, 23, 2]


def test_wheels_become_saved_models(tmp_path):
    """The reader of a wheel writes `Transformer` folders that load again with equal weights, and nothing executable."""
    state = numbering_state()
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        blob = io.BytesIO()
        torch.save(state, blob)
        wheel.writestr("anarcii/models/toy/toy_2.json", json.dumps({"HEADS": HEADS, "DROPOUT": 0.1, "LAYERS": 2}))
        wheel.writestr("anarcii/models/toy/toy_2.pt", blob.getvalue())
    (tmp_path / "out").mkdir()
    told = models.anarcii([tmp_path / "a.whl"], tmp_path / "out")
    assert told["counts"]["nets"] == 1
    again = Transformer.load(tmp_path / "out" / "toy-2")
    assert torch.equal(again.W_U, state["decoder.fc_out.weight"].mT)
    assert {p.suffix for p in (tmp_path / "out").rglob("*") if p.is_file()} == {".json", ".safetensors"}


class Evil:
    def __reduce__(self):
        return print, ("executed",)


def test_weights_that_are_more_than_tensors_are_refused(tmp_path, capsys):
    """A pickle that would run code is an error, and the code does not run."""
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        blob = io.BytesIO()
        torch.save({"w": Evil()}, blob)
        wheel.writestr("anarcii/models/toy/toy_2.json", json.dumps({"HEADS": 2, "DROPOUT": 0.1, "LAYERS": 2}))
        wheel.writestr("anarcii/models/toy/toy_2.pt", blob.getvalue())
    with pytest.raises(FileError, match="more than tensors"):
        models.anarcii([tmp_path / "a.whl"], tmp_path)
    assert "executed" not in capsys.readouterr().out


# -------------------------------------------------------------------------------------------------------------- sceptr
def receptor_state(kind: str) -> dict[str, Tensor]:
    """Random weights under sceptr's names, for each of its three ways to embed a residue (6 regions)."""
    inner = "_self_attention_stack."
    stack = inner * 2 if kind == "learned" else f"{inner}_standard_stack.{inner}"
    shapes: dict[str, tuple[int, ...]] = pair("_mlm_token_prediction_projector.projector.", 20, D)
    for i in range(2):
        at = f"{stack}layers.{i}."
        shapes |= mha(f"{at}self_attn.") | pair(f"{at}norm1.", D) | pair(f"{at}norm2.", D)
        shapes |= pair(f"{at}linear1.", FF, D) | pair(f"{at}linear2.", D, FF)
    if kind == "learned":
        shapes |= {
            "_token_embedder.token_embedding.weight": (23, D),
            "_token_embedder.compartment_embedding.weight": (7, D),
        }
        shapes |= {"_token_embedder.position_embedding.position_embedding_matrix": (101, D)}
    elif kind == "one-hot":
        shapes |= {"_token_embedder._token_embedding._token_embeddings": (23, 22)}
        shapes |= {"_self_attention_stack._initial_projector.weight": (D, 29)}
    else:
        shapes |= {"_token_embedder._blosum_embedding._blosum_embeddings": (23, 20)}
        shapes |= {"_token_embedder._blosum_embedding._special_token_embeddings.weight": (3, 20)}
        shapes |= {"_self_attention_stack._initial_projector.weight": (D, 27)}
    if kind != "learned":
        shapes |= {"_token_embedder._compartment_embedding._token_embeddings": (7, 6)}
    state = drawn(shapes)
    if kind == "learned":
        for name in ("token_embedding", "compartment_embedding"):
            state[f"_token_embedder.{name}.weight"][0] = 0
    return state


def receptor_logits(state, kind: str, rows: list[list[tuple[int, int, int, int]]]) -> Tensor:
    """sceptr's formula on (token, position, length, region), all rows of one length."""
    token, position, _, region = torch.tensor(rows).unbind(-1)
    if kind == "learned":
        letters = state["_token_embedder.token_embedding.weight"][token]
        regions = state["_token_embedder.compartment_embedding.weight"][region]
        places = state["_token_embedder.position_embedding.position_embedding_matrix"][position]
        X = math.sqrt(D) * (letters + places + regions)
        stack = "_self_attention_stack." * 2
    else:
        if kind == "one-hot":
            letters = state["_token_embedder._token_embedding._token_embeddings"][token]
        else:
            special = state["_token_embedder._blosum_embedding._special_token_embeddings.weight"]
            letters = state["_token_embedder._blosum_embedding._blosum_embeddings"][token]
            letters = letters + torch.where(token[..., None] < 3, special[token.clamp_max(2)], 0.0)
        place = torch.tensor(
            [[0.0 if p == 0 else 0.5 if n == 1 else (p - 1) / (n - 1) for _, p, n, _ in row] for row in rows],
            dtype=torch.float64,
        )
        regions = state["_token_embedder._compartment_embedding._token_embeddings"][region]
        features = torch.cat((letters, place[..., None], regions), -1)
        X = features @ state["_self_attention_stack._initial_projector.weight"].mT
        stack = "_self_attention_stack._standard_stack._self_attention_stack."
    real = (token != 0)[:, None]
    for i in range(2):
        at = f"{stack}layers.{i}."
        X = norm(state, f"{at}norm1.", X + attention(state, f"{at}self_attn.", X, X, real))
        Y = dense(state, f"{at}linear2.", dense(state, f"{at}linear1.", X).relu())
        X = norm(state, f"{at}norm2.", X + Y)
    return dense(state, "_mlm_token_prediction_projector.projector.", X)


@pytest.mark.parametrize("kind", ["one-hot", "blosum", "learned"])
def test_receptor_net_has_equal_logits(kind):
    """Our encoder with sceptr's weights = sceptr's formula, for each embedding, masked residues and padding too."""
    state = receptor_state(kind)
    model = receptor_net(state, {"heads": HEADS})
    rows = [
        [(2, 0, 0, 0), (5, 1, 3, 1), (1, 2, 3, 1), (9, 3, 3, 1), (22, 1, 1, 6)],
        [(2, 0, 0, 0), (3, 1, 2, 4), (4, 2, 2, 4), (0, 0, 0, 0), (0, 0, 0, 0)],
    ]
    tokens = torch.tensor([[pack(*one) for one in row] for row in rows])
    mask = tokens != 0
    want = receptor_logits(state, kind, rows)
    got = model(tokens, mask)
    assert float((got - want)[mask].detach().abs().max()) < 1e-12 * float(want.abs().max())


def test_receptor_tokens():
    """A class token, then letters with place, length and region; other letters and regions are refused."""
    row = receptor({"cdr3b": "CF"}, REGIONS["BetaCdrTokeniser"])
    assert row == [pack(2), pack(4, 1, 2, 3), pack(7, 2, 2, 3)]
    with pytest.raises(InputError, match="'B' is not an amino acid"):
        receptor({"cdr3b": "CB"}, REGIONS["BetaCdrTokeniser"])
    with pytest.raises(InputError, match="has the regions cdr1b, cdr2b, cdr3b"):
        receptor({"cdr3a": "CF"}, REGIONS["BetaCdrTokeniser"])


def test_receptor_probe_masks_residues_only():
    """Labels are the amino acids of the masked places, at least one a receptor; the class token is never masked."""
    batch = receptor_probe(REGIONS["CdrTokeniser"], batch=16, seed=1)
    hidden = batch["labels"] != IGNORE
    assert hidden.any(1).all()
    assert not hidden[:, 0].any()
    assert not (hidden & ~batch["mask"]).any()
    assert (batch["tokens"][hidden] % 32 == 1).all()
    assert int(batch["labels"][hidden].max()) < len(AMINO_ACIDS)
    assert 0.08 < float(hidden.sum() / batch["mask"].sum()) < 0.25


# -------------------------------------------------------------------------------------------------------- Hugging Face
def test_rotary_rows_come_back():
    """from_interleaved undoes GGUF's order: row (pair p, half h) of a head goes to (half h, pair p)."""
    W = torch.arange(16.0).view(16, 1)
    assert from_interleaved(W, 2).flatten().tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]


def test_contrastive_loss_by_hand():
    """Cross-entropy of 20 cos(a_i, b_j) with the partner as class, sentences pooled over their real tokens."""
    torch.manual_seed(1)
    H, mask = torch.randn(4, 3, 5), torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]])
    pooled = torch.stack([H[i, : int(mask[i].sum())].mean(0) for i in range(4)])
    cosine = F.cosine_similarity(pooled[:2, None], pooled[None, 2:], dim=-1)
    want = -(20 * cosine).log_softmax(-1).diagonal().mean()
    out = type("Out", (), {"last_hidden_state": H})()
    assert float(contrastive(out, {"attention_mask": mask})) == pytest.approx(float(want), rel=1e-5)


def test_reactions_are_cut_into_atoms(tmp_path):
    """One token an atom, bond or bracket, [CLS] before and [SEP] after, unknown ones [UNK]."""
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "Cl", "(", ")", "=", "O", ">>", "[Na+]", "c", "1"]
    models._reaction_tokenizer(words, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    ids = tokenizer("CCl(=O)[Na+]>>c1Q")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == [
        *("[CLS]", "C", "Cl", "(", "=", "O", ")", "[Na+]", ">>", "c", "1", "[UNK]", "[SEP]"),
    ]
    assert (tokenizer.mask_token_id, tokenizer.pad_token_id) == (4, 0)


def test_models_are_asked_for_by_name(monkeypatch, tmp_path):
    """What is not fetched says how, with size and licence; what does not exist says what is near."""
    monkeypatch.setenv("QUADFORM_DATA", str(tmp_path))
    with pytest.raises(FileError, match=r"quadform data fetch sceptr.*10\.9 MB, licence: MIT"):
        load("sceptr")
    with pytest.raises(UnknownName, match="Did you mean `sceptr`"):
        load("scepter")
