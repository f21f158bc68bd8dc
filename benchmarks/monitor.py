"""What a monitor costs: training steps with and without `qf.Monitor`, in turns, in one process.

    python benchmarks/monitor.py --out monitor.json                  a small GPT on a CPU
    python benchmarks/monitor.py --out monitor.json --tiny --block 500 --blocks 24      long enough for 2 %
    python benchmarks/monitor.py --out monitor.json --device cuda    GPT-2 124M, 8 x 1,024 tokens, float32 with TF32

Two models that are copies of each other train on the same batches, one of them with a monitor, by `--overhead` or
`--every`; blocks of `--block` steps alternate, so that both see the same machine. `share` is the monitor's own count,
`ratio` the time of the watched steps over that of the others without the first block of each, in which, by
overhead, the first reading is made: a full search (`first_s`); `ratio_all` is the same with that block.
`full_s` and `warm_s` are medians of single readings, `warm_steps` is the latter in training steps. `equal` says whether
both have the same weights in the end (on a GPU torch's own sums may differ from run to run). `--limit SECONDS` ends
after the pair of blocks in which that time is over.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import quadform as qf
from quadform.core.record import Provenance
from quadform.nn import Transformer


def loss(out: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def model_of(device: str, tiny: bool) -> tuple[torch.nn.Module, int, tuple[int, int]]:
    """Model, vocabulary, (rows, tokens) of a batch."""
    if device == "cpu":
        depth, d_model, rows, tokens = (2, 32, 4, 32) if tiny else (4, 128, 8, 128)
        model = Transformer("pre-ln", depth=depth, d_model=d_model, heads=4, vocab=256, seq_len=tokens)
        return model, 256, (rows, tokens)
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).to(device), 50257, (8, 1024)


class Run:
    """One model that trains, with its clock."""

    def __init__(self, model: torch.nn.Module, device: str) -> None:
        self.model, self.device = model, device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
        self.monitor: qf.Monitor | None = None
        self.seconds: list[float] = []

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        out = self.model(x)
        return getattr(out, "logits", out)

    def block(self, batches: list[torch.Tensor]) -> None:
        self.wait()
        start = time.perf_counter()
        for x in batches:
            self.optimizer.zero_grad()
            loss(self.logits(x), x).backward()
            self.optimizer.step()
            if self.monitor is not None:
                self.monitor.step()
        self.wait()
        self.seconds.append(time.perf_counter() - start)

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    model, words, shape = model_of(args.device, args.tiny)
    plain, watched = Run(copy.deepcopy(model), args.device), Run(model, args.device)
    draw = torch.Generator().manual_seed(1)

    def batches(count: int) -> list[torch.Tensor]:
        return [torch.randint(0, words, shape, generator=draw).to(args.device) for _ in range(count)]

    held = batches(args.held)
    for run in (plain, watched):  # caches, autotuning
        run.block(held[:1] * 3)
    pace = {"overhead": args.overhead} if args.every is None else {"every": args.every}
    own = lambda out, batch: loss(getattr(out, "logits", out), batch)  # noqa: E731
    watched.monitor = monitor = qf.Monitor(watched.model, watched.optimizer, held, loss=own, part=args.part, **pace)
    plain.seconds.clear(), watched.seconds.clear()
    begun = time.perf_counter()
    for i in range(args.blocks):
        if time.perf_counter() - begun > args.limit:
            break
        data = batches(args.block)
        for run in (plain, watched) if i % 2 else (watched, plain):
            if run is watched and i == 0 and args.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            run.block(data)
    full, warm = ([r.seconds for r in monitor.history if r.full is kind] for kind in (True, False))
    a, b = (dict(run.model.named_parameters()) for run in (plain, watched))
    return {
        "machine": Provenance.collect(device=args.device).machine,
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in a.values()),
        "batch": list(shape),
        "held_batches": args.held,
        "part": args.part,
        **pace,
        "steps": args.block * len(plain.seconds),
        "readings": len(monitor.history),
        "step_s": statistics.median(plain.seconds) / args.block,
        "first_s": full[0],
        "full_s": statistics.median(full),
        "warm_s": statistics.median(warm) if warm else None,
        "warm_steps": statistics.median(warm) * args.block / statistics.median(plain.seconds) if warm else None,
        "warm_products": statistics.mean(_products(r) for r in monitor.history if not r.full) if warm else None,
        "ratio_all": sum(watched.seconds) / sum(plain.seconds),
        "ratio": sum(watched.seconds[1:]) / sum(plain.seconds[1:]),
        "blocks": {"plain": plain.seconds, "watched": watched.seconds},
        "share": monitor.share,
        "equal": all(torch.equal(p, b[n]) for n, p in a.items()),
        "peak_bytes": torch.cuda.max_memory_allocated() if args.device == "cuda" else None,
        "warnings": monitor.warnings,
        "history": [{"step": r.step, **r.numbers()} for r in monitor.history],
    }


def _products(r: Any) -> int:
    """Hessian products of a reading: of H and, where that is another operator, of P^-1 H."""
    return r.lambda_max.matvecs + (r.lambda_P.matvecs if r.lambda_P else 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--overhead", type=float, default=0.02)
    parser.add_argument("--every", type=int, help="steps between readings, in place of the overhead")
    parser.add_argument("--held", type=int, default=1, help="held batches")
    parser.add_argument("--tiny", action="store_true", help="on a CPU: a model of which many steps take little time")
    parser.add_argument("--part", type=float, default=1.0, help="share of the held batches between full searches")
    parser.add_argument("--block", type=int, default=50, help="steps of one side before the other takes its turn")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    found = measure(args)
    args.out.write_text(json.dumps(found, indent=1))
    print({k: v for k, v in found.items() if k not in ("blocks", "history")})


if __name__ == "__main__":
    main()
