"""Signal propagation: the rank-collapse table, and what measuring and predicting a profile costs.

python benchmarks/propagation.py table       the table of docs/propagation.md, drawn anew, with its claims
python benchmarks/propagation.py cost        seconds a layer of each measure and map; 72 layers, d = 768, T = 512
python benchmarks/propagation.py profile     whole models of 18, 36, 72 layers, d = 768, T = 512: a minute, linear?
python benchmarks/propagation.py meanfield   every design at d = 512: predicted and measured cosine, within 0.02 or 5 %?

`--json FILE` keeps the numbers of the last two.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from quadform.applications.signal import signal
from quadform.core.designs import DESIGNS, design
from quadform.core.record import Provenance, strict_json, write_atomically
from quadform.core.rng import stream
from quadform.experiments import rank_collapse_table as table
from quadform.nn import Transformer
from quadform.propagation import collapse, shaping
from quadform.propagation.profile import predict


def print_table(seeds: int) -> int:
    record = table.rank_collapse_table(seeds=seeds, progress=True)
    print(table.markdown(record))
    failed = [statement for statement, holds in table.check(record).items() if not holds]
    print(f"\n{len(table.CLAIMS) - len(failed)} of {len(table.CLAIMS)} claims hold.", *failed, sep="\n  failed: ")
    return 3 if failed else 0


def seconds(work: Callable[..., object], *arguments: object) -> str:
    """Wall time and processor time of one call; the second is what a busy machine does not inflate."""
    wall, processor = time.perf_counter(), time.process_time()
    work(*arguments)
    return f"{time.perf_counter() - wall:.2f} s ({time.process_time() - processor:.2f} s of processor time)"


def measure(X: torch.Tensor, layers: int, measures: tuple[str, ...]) -> None:
    for _ in range(layers):
        collapse.TokenCollapse(measures).update(X)


def print_cost(depth: int, dim: int, tokens: int) -> int:
    print(f"{torch.get_num_threads()} threads; d = {dim}, T = {tokens}, batch 1, float32 tokens")
    X = torch.randn(1, tokens, dim)
    for layers in (depth // 2, depth):
        print(f"measure {', '.join(collapse.CHEAP)}; {layers} layers: {seconds(measure, X, layers, collapse.CHEAP)}")
    print(f"measure effective_rank; 4 layers: {seconds(measure, X, 4, ('effective_rank',))}")
    for name in ("sas-p", "e-spa", "pre-ln"):
        for layers in (depth // 2, depth):
            print(f"predict {name}; {layers} layers: {seconds(predict, design(name, depth=layers), tokens)}")
    for family, strengths in (("u-spa", (0.0, 0.02)), ("e-spa", (math.inf, 1.4))):
        print(f"{family} bias of one layer, T = 1024: {seconds(shaping.spa_bias, family, *strengths, 1024)}")
    return 0


def print_profile(depth: int, dim: int, tokens: int, name: str, path: Path | None) -> int:
    """Time of the whole answer (`qf.signal`) on a model that is there: tokens, attention, gradients, prediction."""
    ids, rows = torch.randint(1024, (1, tokens), generator=stream(0, "profile")), []
    for layers in (depth // 4, depth // 2, depth):
        model = Transformer(name, depth=layers, d_model=dim, heads=dim // 64, vocab=1024, seed=0, seq_len=tokens)
        wall, processor = time.perf_counter(), time.process_time()
        found = signal(model, {"tokens": ids}, progress=False)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        rows.append({"layers": layers, "wall_s": wall, "processor_s": processor,
                     "parameters": sum(p.numel() for p in model.parameters()),
                     "cosine": found.layers("cosine")[-1].value})  # fmt: skip
        print(f"{name}; {layers} layers: {wall:.1f} s wall, {processor:.1f} s of processor time", flush=True)
        del model
    x = torch.tensor([[1.0, r["layers"]] for r in rows], dtype=torch.float64)
    y = torch.tensor([[r["processor_s"]] for r in rows], dtype=torch.float64)
    a, b = torch.linalg.lstsq(x, y).solution[:, 0].tolist()
    off = float((x @ torch.tensor([[a], [b]], dtype=torch.float64) / y - 1).abs().max())
    print(f"processor time = {a:.2f} s + {b:.3f} s x layers, largest deviation {100 * off:.1f} %")
    print(
        f"one minute for {depth} layers: {'met' if rows[-1]['wall_s'] < 60 else 'NOT MET'} ({rows[-1]['wall_s']:.1f} s)"
    )
    keep(path, {"design": name, "dim": dim, "tokens": tokens, "rows": rows, "fit": [a, b], "deviation": off})
    return 0 if rows[-1]["wall_s"] < 60 else 3


def print_meanfield(networks: int, dim: int, tokens: int, depth: int, path: Path | None) -> int:
    """Cosine after the last block of every design, the mean of drawn networks beside the mean field."""
    print(f"d = {dim}, {depth} blocks, {tokens} tokens, {networks} networks; tolerance 0.02 or 5 % at every layer")
    print("| design | measured | predicted | largest difference | |\n| --- | --- | --- | --- | --- |")
    rows, failed = [], 0
    for name in DESIGNS:
        sizes = {"depths": [depth], "d_model": dim, "heads": 8, "settings": {"d_ff": 2 * dim}}
        found = signal(name, **sizes, networks=networks, tokens=tokens, batch_size=4, progress=False)
        measured = torch.tensor([e.value for e in found.layers("cosine")], dtype=torch.float64)
        line = found.predicted("cosine")
        gap = (line - measured).abs()
        ok = bool((gap <= torch.maximum(torch.tensor(0.02, dtype=torch.float64), 0.05 * measured.abs())).all())
        failed += not ok
        last = found.layers("cosine")[-1]
        rows.append({"design": name, "measured": measured.tolist(), "predicted": line.tolist(), "stderr": last.stderr,
                     "difference": float(gap.max()), "within": ok})  # fmt: skip
        cells = (f"{last.value:.3f} +- {last.stderr:.3f}", f"{float(line[-1]):.3f}")
        apart = f"{float(gap.max()):.3f} at layer {int(gap.argmax())}"
        print(f"| {name} | {cells[0]} | {cells[1]} | {apart} | {'within' if ok else 'BEYOND'} |", flush=True)
    print(f"{len(rows) - failed} of {len(rows)} designs within 0.02 or 5 % at every layer")
    keep(path, {"dim": dim, "tokens": tokens, "depth": depth, "networks": networks, "rows": rows})
    return 3 if failed else 0


def keep(path: Path | None, body: dict[str, object]) -> None:
    if path is not None:
        made = asdict(Provenance.collect(seed=0, dtype=torch.float32))
        write_atomically(path, strict_json({**body, "made": made}).encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "cost", "profile", "meanfield"))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--depth", type=int, default=72)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--networks", type=int, default=6)
    parser.add_argument("--design", default="pre-ln")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if options.what == "profile":
        return print_profile(options.depth, options.dim, options.tokens, options.design, options.json)
    if options.what == "meanfield":
        return print_meanfield(options.networks, 512, 32, 6, options.json)
    if options.what == "table":
        return print_table(options.seeds)
    return print_cost(options.depth, options.dim, options.tokens)


if __name__ == "__main__":
    raise SystemExit(main())
