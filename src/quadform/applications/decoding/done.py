"""What a trained run has written."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...answers.texts import line
from ...core.errors import FileError, InputError
from ...core.question import Done
from ...core.record import strict_json, write_atomically
from ...core.work import Work
from ...nn.decode import Sampling, Search
from ...train.runs import Decoded, open_run
from ..machine import DTYPES, device_of
from .question import DecodeTask


@dataclass(frozen=True)
class Decodings(Done):
    """The hypotheses of every text, best first."""

    asked: DecodeTask
    step: int
    texts: tuple[str, ...]
    found: tuple[tuple[Decoded, ...], ...]

    def plain(self) -> dict[str, Any]:
        outputs = [
            {"input": text, "hypotheses": [vars(h) for h in best]}
            for text, best in zip(self.texts, self.found, strict=True)
        ]
        return {"run": self.asked.model, "step": self.step, "outputs": outputs}

    def beside(self) -> str:
        asked = self.asked
        how = line("line_greedy") if asked.beam == 1 else line("line_beam", beam=asked.beam)
        if asked.sample:
            how = line("line_sampled", temperature=f"{asked.temperature:g}", seed=asked.seed)
        return line("line_decoded", count=len(self.texts), run=asked.model, step=f"{self.step:,}", how=how)

    def __str__(self) -> str:
        scored = self.asked.n_best > 1
        return "\n".join(
            f"{h.score:.4f}\t{_one_line(h.text)}" if scored else _one_line(h.text) for best in self.found for h in best
        )


def decoded(asked: DecodeTask, work: Work) -> Decodings:
    """Open the run, search or draw; `decoded.json` in the folder of the work has the same."""
    texts = texts_of(asked)
    device, dtype = device_of(asked.device), DTYPES[asked.dtype]
    run = open_run(asked.model, device=device, dtype=dtype, average=asked.average)
    penalty: Any = asked.penalty
    how: Search | Sampling = (
        Sampling(temperature=asked.temperature, top_k=asked.top_k, top_p=asked.top_p, seed=asked.seed)
        if asked.sample
        else Search(beam=asked.beam, n_best=asked.n_best, alpha=asked.length_penalty, penalty=penalty)
    )
    if asked.max_length is not None:
        most = int(asked.max_length)
        relative = asked.max_length.startswith("+")
        how = dataclasses.replace(how, beyond=most) if relative else dataclasses.replace(how, max_length=most)
    found = tuple(tuple(best) for best in run.decode(texts, how, batch_size=asked.batch_size))
    done = Decodings(asked, run.step, tuple(texts), found)
    if work.folder is not None:
        write_atomically(work.folder / "decoded.json", strict_json(done.plain()).encode())
    return done


def texts_of(asked: DecodeTask) -> list[str]:
    """The texts that were given, the lines of a file, or of stdin."""
    if asked.texts:
        return list(asked.texts)
    if asked.file in (None, "-"):
        if asked.file is None and sys.stdin.isatty():
            raise InputError(
                f"nothing to decode. Give texts (`quadform decode {asked.model} TEXT`), a file, or pipe lines in."
            )
        text = sys.stdin.read()
    else:
        try:
            text = Path(str(asked.file)).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise FileError(f"the file {asked.file} cannot be read: {error}.") from error
    if not text:
        raise InputError("nothing to decode: no line was read.")
    return text.removesuffix("\n").split("\n")  # not at U+2028 and the like, which belong to a text


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")
