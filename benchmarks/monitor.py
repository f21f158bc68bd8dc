"""What a monitor costs: training steps with and without `qf.Monitor`, in turns, in one process.

    python benchmarks/monitor.py --out monitor.json --tiny --block 100 --blocks 40      a tiny GPT on a CPU
    python benchmarks/monitor.py --out monitor.json --limit 900                         a small GPT on a CPU
    python benchmarks/monitor.py --out monitor.json --device cuda --block 40 --plain 10 --blocks 90 --limit 190
                                                   GPT-2 124M, 8 x 1,024 tokens, float32 with TF32

Two models that are copies of each other train on the same batches, one of them with a monitor, by `--overhead` or
`--every`; blocks of `--block` steps alternate, so that both see the same machine (those of the plain model may be
shorter, `--plain`). The monitor's clock runs only while its own model trains; on a CPU all times are those of the
processor, so that others on the machine do not count. Before, a monitor that is thrown away is made (`cold_setup_s`:
derivatives are checked, kernels compiled) and reads once (`cold_s`: caches filled), and another makes one full search
(`full_s`). `setup_s` is what it took to make the one that is measured, before its first step; it is in no share.

    reading         time of the readings / time of the plain steps, over whole cycles: a cycle goes from one reading to
                    the step at which the next is due; the one that the end cuts is left out
    idle            mean over pairs of blocks of (watched - readings) / plain by the step, less 1: what the monitor
                    costs between its readings, by its own call and by the memory that steps find
    overhead_share  reading + idle; `interval_95` by a paired t statistic
    overhead_all    the quotient of all blocks by the step, less 1, the cut cycle included

`equal` says whether both have the same weights in the end (on a GPU torch's own sums may differ from run to run). The
file is written after every pair of blocks; `--limit SECONDS` ends after the pair in which that time is over.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student
from torch.nn import functional as F

import quadform as qf
from quadform.core.record import Provenance
from quadform.nn import Transformer


def loss(out: Any, batch: torch.Tensor) -> torch.Tensor:
    logits = getattr(out, "logits", out)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def model_of(device: str, tiny: bool) -> tuple[torch.nn.Module, int, tuple[int, int]]:
    """Model, vocabulary, (rows, tokens) of a batch."""
    if device == "cpu":
        depth, d_model, rows, tokens = (2, 32, 4, 32) if tiny else (4, 128, 8, 128)
        model = Transformer("pre-ln", depth=depth, d_model=d_model, heads=4, vocab=256, seq_len=tokens)
        return model, 256, (rows, tokens)
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).to(device), 50257, (8, 1024)


class Run:
    """One model that trains, with a clock that runs only inside its blocks."""

    def __init__(self, model: torch.nn.Module, device: str) -> None:
        self.model, self.device = model, device
        self.now = time.process_time if device == "cpu" else time.perf_counter
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
        self.monitor: qf.Monitor | None = None
        self.seconds: list[float] = []
        self.begun: float | None = None

    def clock(self) -> float:
        """Seconds spent in blocks so far."""
        return sum(self.seconds) + (0.0 if self.begun is None else self.now() - self.begun)

    def block(self, batches: list[torch.Tensor]) -> None:
        self.wait()
        self.begun = self.now()
        for x in batches:
            self.optimizer.zero_grad()
            loss(self.model(x), x).backward()
            self.optimizer.step()
            if self.monitor is not None:
                self.monitor.step()
        self.wait()
        self.seconds.append(self.now() - self.begun)
        self.begun = None

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Train both in turns; every pair of blocks is written down."""
    torch.manual_seed(0)
    model, words, shape = model_of(args.device, args.tiny)
    plain, watched = Run(copy.deepcopy(model), args.device), Run(model, args.device)
    draw = torch.Generator().manual_seed(1)

    def batches(count: int) -> list[torch.Tensor]:
        return [torch.randint(0, words, shape, generator=draw).to(args.device) for _ in range(count)]

    held = batches(args.held)
    for run in (plain, watched):  # caches, autotuning
        run.block(held[:1] * 3)
    before = tried(watched, held)
    _memory_of(args.device, reset=True)
    for run in (plain, watched):
        run.block(held[:1] * 3)
        run.seconds.clear()
    memory = {"step_bytes": _memory_of(args.device, reset=True)}
    pace = {"overhead": args.overhead} if args.every is None else {"every": args.every}
    begun = watched.now()
    watched.monitor = monitor = qf.Monitor(
        watched.model, watched.optimizer, held, loss=loss, part=args.part, clock=watched.clock, **pace
    )
    watched.wait()
    before["setup_s"] = watched.now() - begun
    about = {
        "machine": Provenance.collect(device=args.device).machine,
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "parameters": sum(p.numel() for p in model.parameters()),
        "batch": list(shape),
        "held_batches": args.held,
        "part": args.part,
        "block": args.block,
        **pace,
        **before,
    }
    begun, found = time.perf_counter(), dict[str, Any]()
    for i in range(args.blocks):
        if time.perf_counter() - begun > args.limit:
            break
        data = batches(args.block)
        for run in (plain, watched) if i % 2 else (watched, plain):
            run.block(data if run is watched else data[: args.plain])
        memory["peak_bytes"] = _memory_of(args.device)
        found = about | summary(plain, watched, args.plain, args.block) | memory | {"load_end": os.getloadavg()[0]}
        if args.plain == args.block:
            found["equal"] = all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
        found |= {"blocks": {"plain": plain.seconds, "watched": watched.seconds}, "warnings": monitor.warnings}
        found["history"] = [{"step": r.step, **r.numbers()} for r in monitor.history]
        args.out.write_text(json.dumps(found, indent=1))
    return found


def tried(run: Run, held: list[torch.Tensor]) -> dict[str, float]:
    """Seconds of the first monitor in this process and its reading, and of a full search after it."""
    begun = run.now()
    cold = qf.Monitor(run.model, run.optimizer, held, loss=loss, overhead=0.5, clock=run.now)
    run.wait()
    made = run.now() - begun
    cold.step()
    full = qf.Monitor(run.model, run.optimizer, held, loss=loss, every=1, clock=run.now)
    full.step()
    return {"cold_setup_s": made, "cold_s": cold.history[0].seconds, "full_s": full.history[0].seconds}


def summary(plain: Run, watched: Run, shorter: int, block: int) -> dict[str, Any]:
    """The numbers of the docstring, from the blocks so far."""
    assert watched.monitor is not None
    history = watched.monitor.history
    step = statistics.fmean(plain.seconds) / shorter
    taken = [sum(r.seconds for r in history if (r.step - 1) // block == i) for i in range(len(plain.seconds))]
    pairs = zip(watched.seconds, taken, plain.seconds, strict=True)
    idle = [(w - s) / block / (p / shorter) - 1 for w, s, p in pairs]
    mean, half = statistics.fmean(idle), None
    if len(idle) > 1:
        half = float(student.ppf(0.975, len(idle) - 1)) * statistics.stdev(idle) / len(idle) ** 0.5
    reading = total = None
    if len(history) > 1:
        reading = sum(r.seconds for r in history[:-1]) / (step * (history[-1].step - history[0].step))
        total = reading + mean
    warm = [r for r in history if not r.full]
    return {
        "steps": block * len(plain.seconds),
        "readings": len(history),
        "cycles": len(history) - 1,
        "step_s": step,
        "first_s": history[0].seconds,
        "warm_s": statistics.median(r.seconds for r in warm) if warm else None,
        "warm_steps": statistics.median(r.seconds for r in warm) / step if warm else None,
        "warm_products": statistics.fmean(map(_products, warm)) if warm else None,
        "reading": reading,
        "idle": mean,
        "overhead_share": total,
        "interval_95": None if total is None or half is None else [total - half, total + half],
        "overhead_all": statistics.fmean(watched.seconds) / block / step - 1,
        "share": watched.monitor.share,
    }


def _memory_of(device: str, reset: bool = False) -> int | None:
    """The largest memory so far on a GPU."""
    if device != "cuda":
        return None
    most = torch.cuda.max_memory_allocated()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return most


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
    parser.add_argument("--plain", type=int, help="steps of the plain model's block, by default as many")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    args = parser.parse_args()
    args.plain = args.plain or args.block
    torch.set_float32_matmul_precision("high")
    found = measure(args)
    print({k: v for k, v in found.items() if k not in ("blocks", "history")})


if __name__ == "__main__":
    main()
