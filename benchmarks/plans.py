"""What plans say beside what the work takes: ten questions on a small GPT-2 of Hugging Face.

    python benchmarks/plans.py [--out FILE] [--limit SECONDS] [--only spectrum lr ...] [--done FILE]

Every question is planned (`qf.VERB.plan`) and then answered in the same process. On a CPU one thread, and all clocks
are processor time, so that other work on the machine matters less. Questions that `--done` answers are not asked again.
`ratio`: taken over planned; the goal is 1/2 to 2.
"""

from __future__ import annotations

import time

import torch

if not torch.cuda.is_available():  # before anybody takes a clock by its name
    time.perf_counter = time.monotonic = time.process_time
    torch.set_num_threads(1)

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import quadform as qf
from quadform.core import progress
from quadform.core.record import Provenance, from_json, strict_json

QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("spectrum", {"top": 3}),
    ("spectrum", {"top": 5, "tol": 1e-3}),
    ("lr", {}),
    ("lr", {"optimizer": "adamw"}),
    ("point", {}),
    ("flat", {}),
    ("taylor", {}),
    ("precond", {}),
    ("landscape", {}),
    ("prune", {}),
    ("quantize", {}),
    ("signal", {}),
)


def problem(device: str) -> tuple[Any, list[Any]]:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 211, "n_positions": 64}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    ids = torch.randint(0, 211, (2, 4, 48), device=device)
    return model.to(device).eval(), [{"input_ids": x, "attention_mask": torch.ones_like(x), "labels": x} for x in ids]


def asked(verb: str, fields: dict[str, Any], device: str) -> dict[str, Any]:
    row: dict[str, Any] = {"verb": verb, "fields": fields}
    try:
        plan = getattr(qf, verb).plan(*problem(device), **fields)
        row |= {"planned_s": plan.seconds, "planned_products": plan.products}
        given, begun = problem(device), time.perf_counter()
        getattr(qf, verb)(*given, progress=False, **fields)
        row["taken_s"] = time.perf_counter() - begun
        row["ratio"] = row["taken_s"] / plan.seconds if plan.seconds else float("nan")
    except Exception as error:  # a question that this model has no answer to is a row
        row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=300.0, help="no question is begun later")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--done", type=Path, help="a record whose answers are taken over")
    options = parser.parse_args()
    progress.quiet = True
    device, began = "cuda" if torch.cuda.is_available() else "cpu", time.monotonic()
    record: dict[str, Any] = {"made": asdict(Provenance.collect(dtype=torch.float32, device=device)), "rows": []}
    if options.done is not None:
        old = from_json(json.loads(options.done.read_text()))["rows"]
        record["rows"] = [row for row in old if "failed" not in row]
    asked("spectrum", {"top": 1}, device)  # loads and warms up
    for verb, fields in QUESTIONS:
        done = any((row["verb"], row["fields"]) == (verb, fields) for row in record["rows"])
        if done or (options.only and verb not in options.only):
            continue
        if time.monotonic() - began > options.limit:
            sys.exit("time is up")
        record["rows"].append(row := asked(verb, fields, device))
        numbers = [row.get(key, float("nan")) for key in ("planned_s", "taken_s", "ratio")]
        told = f"{verb:12}{fields!s:34}{numbers[0]:>9.2f} s{numbers[1]:>9.2f} s{numbers[2]:>8.2f}"
        print(f"{told}  {row.get('failed', '')}", flush=True)
        if options.out:
            options.out.write_text(strict_json(record))
    ratios = [row["ratio"] for row in record["rows"] if row.get("ratio", float("nan")) > 0]
    print(f"{sum(0.5 <= r <= 2 for r in ratios)} of {len(ratios)} within a factor of 2")


if __name__ == "__main__":
    main()
