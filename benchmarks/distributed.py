"""One process against several: time of a product, memory of a Lanczos basis, price of meeting.

python benchmarks/distributed.py [--processes 2] [--rounds 9] [--json FILE]

Each process has one thread. Products of one process (the others wait) and of all alternate in one run, and the fastest
round of each counts; the processor time of one process is beside it, which other programs do not stretch. Memory is
the growth of the largest resident set of a fresh process while it finds eigenpairs of a diagonal operator.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import quadform as qf
from quadform import distributed as qd
from quadform.core.operator import Operator
from quadform.core.record import Provenance, strict_json, write_atomically
from quadform.core.space import Space
from quadform.estimate import eigenpairs
from quadform.nn import Transformer

SHAPE = {"depth": 4, "d_model": 128, "heads": 4, "seq_len": 128, "vocab": 1000}
ROWS, SIZE, KEPT = 8, 2_000_000, 48


class Diagonal(Operator):
    """diag(d): a product that costs nothing beside the basis."""

    def __init__(self, d: Tensor, group: qd.Group) -> None:
        super().__init__(Space((("x", (len(d),)),), group=group), dtype=d.dtype, device=d.device, symmetric=True)
        self.d = d

    def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"x": self.d * V["x"]}


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def products(g: qd.Group, rounds: int) -> dict[str, Any]:
    """Seconds of a Hessian product and of one Lanczos step around it, by the first process alone and by all."""
    model = Transformer("pre-ln", seed=0, **SHAPE)
    tokens = torch.randint(0, SHAPE["vocab"], (ROWS, SHAPE["seq_len"]), generator=torch.Generator().manual_seed(0))
    whole = qf.Risk(model, None, {"tokens": tokens}, quiet=True)
    alone, shared = qf.hessian(whole), qf.hessian(qd.shard(whole, g))
    v = whole.space.random(1, generator=torch.Generator().manual_seed(1))
    alone.apply(v), shared.apply(v)
    found: dict[str, list[tuple[float, float]]] = {"one": [], "all": []}
    for _ in range(rounds):
        if g.first:
            found["one"].append(timed(lambda: alone.apply(v)))
        g.any(False)
        found["all"].append(timed(lambda: shared.apply(v)))
        g.any(False)
    out: dict[str, Any] = {"parameters": whole.space.size}
    for name, times in found.items():
        if times:
            out[name] = {"seconds": min(t[0] for t in times), "processor": min(t[1] for t in times)}
    meetings = [timed(lambda: g.any(False))[0] for _ in range(200)]
    out["meeting"] = sorted(meetings)[len(meetings) // 2]
    small = Diagonal(torch.linspace(-1, 1, 1000, dtype=torch.float64) ** 3, g)
    steps = timed(lambda: eigenpairs(small, 3, tol=1e-10, max_products=60))
    out["lanczos_step"] = steps[0] / 60
    return out


def basis(g: qd.Group) -> dict[str, Any]:
    """Bytes by which this process grew."""
    eigenpairs(Diagonal(torch.linspace(-1, 1, 1000), g), 3)  # what is loaded once is not counted
    A = Diagonal(torch.linspace(-1, 1, SIZE) ** 9, g)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pairs = eigenpairs(A, 3, rows=KEPT, tol=1e-6, max_products=KEPT + 10)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    basis_bytes = KEPT * g.longest(SIZE) * 4
    return {"grown": 1024 * (after - before), "basis": basis_bytes, "top": [e.value for e in pairs.top]}


def work(job: str, rank: int, world: int, folder: str, rounds: int) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/{job}", rank=rank, world_size=world)
    with qd.group() as g:
        found = products(g, rounds) if job == "products" else basis(g)
    Path(folder, f"{job}-{world}-{rank}.json").write_text(json.dumps(found))


def start(job: str, world: int, folder: str, rounds: int) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "--work", job, "--folder", folder, "--rounds", str(rounds)]
    each = [[*command, "--rank", str(r), "--processes", str(world)] for r in range(world)]
    running = [subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}) for words in each]
    codes = [p.wait() for p in running]
    if any(codes):
        raise SystemExit(f"{job} with {world} processes failed: {codes}")
    return [json.loads(Path(folder, f"{job}-{world}-{r}.json").read_text()) for r in range(world)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    for hidden in ("--work", "--folder", "--rank"):
        parser.add_argument(hidden, default="0", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.work != "0":
        return work(words.work, int(words.rank), words.processes, words.folder, words.rounds)
    world, load = words.processes, os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        ranks = start("products", world, folder, words.rounds)
        grown = {n: start("basis", n, folder, words.rounds) for n in (1, world)}
    one, every = ranks[0]["one"], [r["all"] for r in ranks]
    slowest = {k: max(e[k] for e in every) for k in ("seconds", "processor")}
    results = {
        "shape": {**SHAPE, "rows": ROWS, "parameters": ranks[0]["parameters"]},
        "product": {"one": one, "all": slowest, "speedup": {k: one[k] / slowest[k] for k in one}},
        "meeting_seconds": ranks[0]["meeting"],
        "lanczos_step_seconds": ranks[0]["lanczos_step"],
        "lanczos": {
            "vectors": KEPT,
            "entries": SIZE,
            "one": {k: grown[1][0][k] for k in ("grown", "basis")},
            "each": {k: max(r[k] for r in grown[world]) for k in ("grown", "basis")},
            "eigenvalues_differ": max(
                abs(a - b) for a, b in zip(grown[1][0]["top"], grown[world][0]["top"], strict=True)
            ),
        },
    }
    p, m = results["product"], results["lanczos"]
    print(f"load average {load:.1f} before; {world} processes, one thread each")
    for k in ("seconds", "processor"):
        print(f"product, {k}: one {p['one'][k]:.3f}, all {p['all'][k]:.3f}: {p['speedup'][k]:.2f}x")
    print(
        f"meeting {1e3 * results['meeting_seconds']:.2f} ms;"
        f" a Lanczos step around its product {1e3 * results['lanczos_step_seconds']:.1f} ms"
    )
    print(f"basis of {KEPT} vectors of {SIZE:,}: one grows by {m['one']['grown'] / 1e6:.0f} MB, each of {world} by"
          f" {m['each']['grown'] / 1e6:.0f} MB; eigenvalues differ by {m['eigenvalues_differ']:.0e}")  # fmt: skip
    if words.json:
        made = asdict(Provenance.collect(dtype=torch.float32))
        body = {"benchmark": "distributed", "made": made, "processes": world, "load": load, "loaded": load > 0.5}
        write_atomically(words.json, strict_json(body | {"results": results}).encode())


if __name__ == "__main__":
    main()
