"""`quadform decode`: what a trained run writes."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from ...applications.configs.decode import DecodeConfig
from ...applications.configs.shared import Output
from ...core.errors import FileError, InputError
from ...core.record import strict_json, write_atomically
from ..folders import writable
from ..show import print_json


def answer(config: DecodeConfig, output: Output) -> int:
    from ...applications.machine import DTYPES, device_of
    from ...nn.decode import Sampling, Search
    from ...train.runs import open_run

    folder = writable(output)
    texts = _texts(config)
    device, dtype = device_of(config.device), DTYPES[config.dtype]
    run = open_run(config.run, device=device, dtype=dtype, average=config.average)
    penalty: Any = config.penalty
    how: Search | Sampling = (
        Sampling(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, seed=config.seed)
        if config.sample
        else Search(beam=config.beam, n_best=config.n_best, alpha=config.length_penalty, penalty=penalty)
    )
    if config.max_length is not None:
        most = int(config.max_length)
        relative = config.max_length.startswith("+")
        how = dataclasses.replace(how, beyond=most) if relative else dataclasses.replace(how, max_length=most)
    found = run.decode(texts, how, batch=config.batch)
    body = {
        "run": config.run,
        "step": run.step,
        "outputs": [
            {"input": text, "hypotheses": [vars(h) for h in best]} for text, best in zip(texts, found, strict=True)
        ],
    }
    if folder:
        write_atomically(folder / "decoded.json", strict_json(body).encode())
    if output.json:
        print_json(body)
    else:
        for best in found:
            for h in best:
                print(f"{h.score:.4f}\t{_one_line(h.text)}" if config.n_best > 1 else _one_line(h.text))
    return 0


def _texts(config: DecodeConfig) -> list[str]:
    """The texts of the command line, of a file, or of stdin."""
    if config.texts:
        return list(config.texts)
    if config.file in (None, "-"):
        if config.file is None and sys.stdin.isatty():
            raise InputError(
                f"nothing to decode. Write `quadform decode {config.run} TEXT`, or `--file FILE`, or pipe lines in."
            )
        text = sys.stdin.read()
    else:
        try:
            text = Path(str(config.file)).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise FileError(f"`--file {config.file}` cannot be read: {error}.") from error
    if not text:
        raise InputError("nothing to decode: no line was read.")
    return text.removesuffix("\n").split("\n")  # not at U+2028 and the like, which belong to a text


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")
