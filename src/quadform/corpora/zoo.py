"""Trained models that were fetched: opened by name, with a probe to measure them on."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadform.core.errors import FileError, InputError, UnknownName, did_you_mean, needing
from quadform.core.rng import stream
from quadform.nn.transformer import IGNORE, Transformer

from .fetch.catalogue import CATALOGUE
from .fetch.store import Fetched, fetched, megabytes

Batch = dict[str, Tensor]
#: Tokens of a sequence of SmolLM2's probe.
TOKENS = 128
#: Ten reactions of the textbook (ester, amide, biaryl, alcohol, ring, ...), for probes.
REACTIONS = (
    "CC(=O)O.CCO>>CC(=O)OCC",
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "O=Cc1ccccc1.[BH4-].[Na+]>>OCc1ccccc1",
    "C=CC=C.C=CC=O>>O=CC1CC=CCC1",
    "CCBr.[OH-]>>CCO.[Br-]",
    "CC(C)=O.C[Mg]Br>>CC(C)(C)O",
    "Oc1ccccc1.CI>>COc1ccccc1",
    "CC(C)=O.NO>>CC(C)=NO",
    "c1ccccc1.CC(=O)Cl>>CC(=O)c1ccccc1",
)


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A trained model and how to measure it.

    `probe(batch=8, length=None, seed=0)` makes a batch; `risk(batch)` is the loss on it. For our own modules the batch
    goes into `Transformer.loss`, for Hugging Face models into the model's call, and `loss` (where there is one) makes a
    number of the output. `note` says what the probe and the weights are, and belongs beside every figure.
    """

    name: str
    variant: str
    model: nn.Module
    probe: Callable[..., Batch]
    note: str
    tokenizer: Any = None
    loss: Callable[[Any, Batch], Tensor] | None = None

    def __repr__(self) -> str:
        named = f"{self.name}:{self.variant}" if self.variant else self.name
        count = sum(p.numel() for p in self.model.parameters())
        return f"Pretrained({named!r}, {type(self.model).__name__}, {count:,} parameters)"

    def risk(self, batch: Batch) -> Tensor:
        """The loss of the model on a batch of its probe."""
        if isinstance(self.model, Transformer):
            return self.model.loss(batch)
        out = self.model(**batch)
        found = getattr(out, "loss", None) if self.loss is None else self.loss(out, batch)
        if found is None:
            raise InputError(
                f"{self.name} {self.variant} has no head and so no loss; give one, a function of its output."
            )
        return found


def variants(name: str) -> list[str]:
    """The variants of a fetched model, the usual one first."""
    folder = _opened(name).folder
    if name == "sceptr":
        found = sorted(p.stem for p in folder.glob("*.safetensors"))
    else:
        found = sorted(p.name for p in folder.iterdir() if p.is_dir())
    usual = {"sceptr": "sceptr", "anarcii": "antibody-2", "rxnfp": "pretrained"}.get(name)
    return [usual, *(v for v in found if v != usual)] if usual else [""]


def load(name: str, variant: str = "", *, dtype: torch.dtype = torch.float32) -> Pretrained:
    """The fetched model of this name: `load("sceptr", "tiny")`; without a variant the usual one."""
    source, known = _opened(name), variants(name)
    variant = variant or known[0]
    if variant not in known:
        raise UnknownName(
            f"{name} has no variant {variant!r}; there are {', '.join(known)}.{did_you_mean(variant, known)}"
        )
    return {"anarcii": _anarcii, "sceptr": _sceptr, "minilm": _minilm, "rxnfp": _rxnfp, "smollm2": _smollm2}[name](
        source, variant, dtype
    )


def _opened(name: str) -> Fetched:
    models = [n for n, item in CATALOGUE.items() if item.kind == "model"]
    if name not in models:
        raise UnknownName(f"no trained model {name!r}; there are {', '.join(models)}.{did_you_mean(name, models)}")
    found = fetched(name)
    if found is None:
        item = CATALOGUE[name]
        raise FileError(
            f"{name} is not here yet. `quadform data fetch {name}` fetches it ({megabytes(item)}, licence:"
            f" {item.licence})."
        )
    return found


# --------------------------------------------------------------------------------------------------------- our modules
def _anarcii(source: Fetched, variant: str, dtype: torch.dtype) -> Pretrained:
    from .proteins import numbering_probe

    model = Transformer.load(source.folder / variant).to(dtype).eval()
    note = "probe: antibody domains with random changes; targets are the net's own greedy answers"
    return Pretrained("anarcii", variant, model, functools.partial(numbering_probe, model), note)


def _sceptr(source: Fetched, variant: str, dtype: torch.dtype) -> Pretrained:
    from safetensors.torch import load_file

    from .proteins import REGIONS, receptor_net, receptor_probe

    described = json.loads(source.path(f"{variant}.json").read_text())
    model = receptor_net(load_file(source.path(f"{variant}.safetensors")), described).to(dtype)
    names = REGIONS[described["tokeniser"]]

    def probe(batch: int = 8, length: int | None = None, seed: int = 0) -> Batch:
        if length is not None:
            raise InputError(f"length={length}: made-up receptors have the usual lengths. Leave length out.")
        return receptor_probe(names, batch, seed)

    note = "probe: made-up receptors of usual lengths, 15 % of the residues masked"
    return Pretrained("sceptr", variant, model, probe, note)


# -------------------------------------------------------------------------------------------------------- Hugging Face
def _transformers() -> Any:
    with needing("Opening this model"):
        import transformers
    return transformers


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


def _opened_folder(folder: Path, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """(model, tokenizer) of a local folder; no network is used."""
    transformers = _transformers()
    with _quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        cls = getattr(transformers, config.architectures[0])
        model = cls.from_pretrained(folder, local_files_only=True, dtype=dtype)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer


def _minilm(source: Fetched, variant: str, dtype: torch.dtype) -> Pretrained:
    model, tokenizer = _opened_folder(source.folder, dtype)

    def probe(batch: int = 8, length: int | None = None, seed: int = 0) -> Batch:
        pairs = docstrings()
        if batch > len(pairs):
            raise InputError(f"the probe has {len(pairs)} pairs of sentences; {batch} were asked for.")
        order = torch.randperm(len(pairs), generator=stream(seed, "minilm/probe"))[:batch].tolist()
        texts = [pairs[i][0] for i in order] + [pairs[i][1] for i in order]
        return dict(tokenizer(texts, padding=True, truncation=True, max_length=length or 64, return_tensors="pt"))

    note = (
        "probe: names and first lines of the standard library's docstrings; loss: the second half belongs to the first"
    )
    return Pretrained("minilm", "", model, probe, note, tokenizer, contrastive)


def contrastive(out: Any, batch: Batch) -> Tensor:
    """Cross-entropy of sentence i (first half) naming its partner i + batch/2 by cosine, scaled by 20; mean-pooled."""
    return of_partners(pooled(out, batch))


def pooled(out: Any, batch: Batch) -> Tensor:
    """The mean over the tokens of each sentence, of length 1."""
    weight = batch["attention_mask"][..., None].to(out.last_hidden_state.dtype)
    return F.normalize((out.last_hidden_state * weight).sum(1) / weight.sum(1), dim=-1)


def of_partners(sentences: Tensor) -> Tensor:
    """Cross-entropy of each of the first half naming its partner in the second by cosine, scaled by 20."""
    first, second = sentences.chunk(2)
    return F.cross_entropy(20.0 * first @ second.mT, torch.arange(len(first), device=first.device))


@functools.cache
def docstrings() -> list[tuple[str, str]]:
    """(name in words, first line of the docstring) of functions of the standard library."""
    from .running import library_files

    pattern = re.compile(r'^ *def ([a-z]\w+_\w+)\(.*\).*:\n +"""([A-Z][^"\n]{20,100}\.)', re.M)
    found: dict[str, str] = {}
    for _, text in library_files():
        for name, line in pattern.findall(text):
            found.setdefault(line, name.replace("_", " ").strip())
    return sorted((name, line) for line, name in found.items())


def _rxnfp(source: Fetched, variant: str, dtype: torch.dtype) -> Pretrained:
    model, tokenizer = _opened_folder(source.folder / variant, dtype)

    def probe(batch: int = 8, length: int | None = None, seed: int = 0) -> Batch:
        texts = list(itertools.islice(itertools.cycle(REACTIONS), seed, seed + batch))
        made = dict(tokenizer(texts, padding=True, truncation=True, max_length=length or 512, return_tensors="pt"))
        if variant == "finetuned-10k":
            with torch.no_grad():
                return made | {"labels": model(**made).logits.argmax(-1)}
        if variant == "finetuned":
            return made
        return hidden(tokenizer, made, stream(seed, "rxnfp/probe"))

    with_loss = {"pretrained": ", 15 % of the tokens masked", "finetuned-10k": "; labels are the net's own answers"}
    note = f"probe: ten reactions of the textbook{with_loss.get(variant, '; no head, so no loss')}"
    return Pretrained("rxnfp", variant, model, probe, note, tokenizer)


def hidden(tokenizer: Any, batch: Batch, generator: torch.Generator) -> Batch:
    """15 % of the tokens of each sequence masked, at least one; they are the labels."""
    ids = batch["input_ids"]
    u = torch.rand(ids.shape, generator=generator)
    special = torch.tensor(tokenizer.all_special_ids)
    u = u.masked_fill(torch.isin(ids, special), 2.0)
    gone = (u < 0.15) | (u == u.amin(1, keepdim=True))
    masked = ids.masked_fill(gone, tokenizer.mask_token_id)
    return batch | {"input_ids": masked, "labels": ids.masked_fill(~gone, IGNORE)}


def outline(name: str, dtype: torch.dtype) -> nn.Module | None:
    """A fetched model without its weights, on the meta device; None where only its weights tell what it is."""
    if name != "smollm2":
        return None
    transformers, config, _ = _gguf(_opened(name))
    with _quiet(transformers), torch.device("meta"):
        return transformers.LlamaForCausalLM(config).to(dtype).eval()


def _gguf(source: Fetched) -> tuple[Any, Any, dict[str, Any]]:
    """(transformers, configuration, how the files of the folder are read)."""
    transformers = _transformers()
    options = {"gguf_file": "model.gguf", "local_files_only": True}
    with _quiet(transformers):
        return transformers, transformers.AutoConfig.from_pretrained(source.folder, **options), options


def _smollm2(source: Fetched, variant: str, dtype: torch.dtype) -> Pretrained:
    (transformers, config, options), path = _gguf(source), source.path("model.gguf")
    with _quiet(transformers):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.folder, **options)
    model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    state = dequantised(path, config.num_attention_heads, config.num_key_value_heads)
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model.load_state_dict(state)

    def probe(batch: int = 8, length: int | None = None, seed: int = 0) -> Batch:
        from .running import library_files

        length = length or TOKENS
        text = "\n".join(text for _, text in library_files()[:20])
        ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
        places = torch.randint(len(ids) - length + 1, (batch, 1), generator=stream(seed, "smollm2/probe"))
        rows = ids[places + torch.arange(length)]
        return {"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": rows}

    note = "weights were 4-bit (Q4_1) and are dequantised: use them for signal propagation, not for fine loss curvature"
    return Pretrained("smollm2", "", model, probe, note, tokenizer)


#: Names of a Llama's tensors in GGUF files and in Hugging Face's module.
_GGUF = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def dequantised(path: Path, heads: int, key_heads: int) -> dict[str, Tensor]:
    """The weights of a Llama's GGUF file in float32 under Hugging Face's names.

    GGUF keeps the rows of W_Q and W_K of each head in the order of interleaved rotary pairs; here the two halves of a
    head are its pairs again.
    """
    with needing("Dequantising SmolLM2"):
        import gguf
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        block, _, name = tensor.name.removesuffix(".weight").rpartition(".")
        W = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        if name in ("attn_q", "attn_k"):
            W = from_interleaved(W, heads if name == "attn_q" else key_heads)
        prefix = f"model.layers.{block.removeprefix('blk.')}." if block else ""
        state[f"{prefix}{_GGUF[name]}.weight"] = W.reshape([int(n) for n in reversed(tensor.shape)])
    return state


def from_interleaved(W: Tensor, heads: int) -> Tensor:
    """Rows of each head from (pair, half) to (half, pair) order."""
    rows, columns = W.shape
    return W.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
