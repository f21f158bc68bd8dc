"""Products of models that `fully_shard` has cut: memory against the plan, work, messages, time.

    python benchmarks/sharded.py memory [--device cuda] [--small] [--limit SECONDS] [--out FILE]
    python benchmarks/sharded.py cost [--processes 2] [--rounds 9] [--out FILE]
    python benchmarks/sharded.py plan [--models 7B ...] [--out FILE]

`memory`: one process, so that units are not cut. First the error of a small model in float64 against eager products.
Then GPT-2 124M by `qf.nn.Transformer` and a wider one, float32: the most bytes that were allocated while a product ran
(of H, H_o), over those that `share_of` plans for it; seconds.

`cost`: N processes with one thread each, gloo. Numbers gathered and added up over n, messages a unit, matrix work over
that of one forward pass, for one vector and each of four; a product's seconds over those of FSDP2's own gradient, in
turns, fastest of the rounds, by the clock and by the processor time of one process.

`plan`: what `share_of` counts without numbers for Llamas of 7B, 70B and 405B on 8, 64 and 1,024 processes, 4,096 tokens
each, float32: H, and its matrix work over that of one forward pass.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import quadform as qf
from quadform import distributed as qd
from quadform.core.record import Provenance, strict_json, write_atomically
from quadform.curvature.alive import Alive
from quadform.curvature.outline import Counted, Outline
from quadform.curvature.share import share_of
from quadform.curvature.units import find

GPT2 = {"depth": 12, "d_model": 768, "heads": 12, "seq_len": 1024, "vocab": 50_257}
WIDE = {"depth": 16, "d_model": 2048, "heads": 16, "seq_len": 1024, "vocab": 32_000}
SMALL = {"depth": 3, "d_model": 32, "heads": 2, "seq_len": 16, "vocab": 53}
#: Of `cost`: weights outweigh activations a little, as in training.
MIDDLE = {"depth": 6, "d_model": 192, "heads": 4, "seq_len": 48, "vocab": 256}


def _llama(width: int, inner: int, depth: int, heads: int, keys: int) -> dict[str, int]:
    return {
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": depth, "num_attention_heads": heads,
        "num_key_value_heads": keys,
    }  # fmt: skip


KINDS = {"hessian": qf.hessian, "gauss_newton": qf.gauss_newton}


def cross_entropy(out: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(out.flatten(0, -2), batch[1].flatten())


def made(sizes: dict[str, int], rows: int, device: str, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """The model with random weights, and a batch."""
    torch.manual_seed(0)
    with torch.device(device):
        model = qf.nn.Transformer("pre-ln", seed=0, **sizes, dtype=dtype).to(device)
        tokens = torch.randint(0, sizes["vocab"], (rows, sizes["seq_len"]))
    return model, (tokens, tokens.roll(1, 1))


def cut(model: nn.Module, device: str, world: int) -> nn.Module:
    mesh = init_device_mesh(device, (world,))
    for block in find(model).values():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    off, size = (sum(float(t.double().square().sum()) for t in ts) for ts in ([a[n] - b[n] for n in b], b.values()))
    return (off / size) ** 0.5


def seconds(work: Any, device: str) -> float:
    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    wait()
    begun = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - begun


# --- memory -----------------------------------------------------------------------------------------------------------
def errors(device: str) -> dict[str, float]:
    """Of a product of one process with units that are not cut, float64, against the eager one."""
    model, batch = made(SMALL, 2, device, torch.float64)
    found = {}
    whole = qf.Risk(model, cross_entropy, batch, quiet=True)
    v = whole.space.random(1, generator=torch.Generator(device).manual_seed(0), dtype=torch.float64, device=device)
    want = {name: kind(whole).apply(v) for name, kind in KINDS.items()}
    risk = qf.Risk(cut(model, device, 1), cross_entropy, batch, quiet=True)
    for name, kind in KINDS.items():
        found[name] = gap(kind(risk).apply(v), want[name])
    return found


def peaks(name: str, sizes: dict[str, int], rows: int, device: str) -> list[dict[str, Any]]:
    model, batch = made(sizes, rows, device, torch.float32)
    plain = qf.Risk(model, cross_entropy, batch, quiet=True)
    plans = {kind: share_of(plain, kind, 1) for kind in KINDS}
    n = sum(p.nbytes for p in model.parameters())
    unit = sum(p.nbytes for p in next(iter(find(model).values())).parameters())
    del plain
    risk = qf.Risk(cut(model, device, 1), cross_entropy, batch, quiet=True)
    v = risk.space.random(1, dtype=torch.float32, device=device)
    out = []
    for kind, make in KINDS.items():
        A = make(risk)
        A.apply(v)
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            took = seconds(lambda A=A: A.apply(v), device)
            peak = torch.cuda.max_memory_allocated() - before
        else:
            with Alive() as alive:
                A.apply(v)
            took, peak = seconds(lambda A=A: A.apply(v), device), alive.peak
        plan = plans[kind]
        out.append(
            {
                "model": name, "tokens": rows * sizes["seq_len"], "kind": kind, "weights_mib": n / 2**20,
                "peak_mib": peak / 2**20, "planned_mib": plan.product / 2**20, "over_plan": peak / plan.product,
                "units_beside_image": (peak - n) / unit, "seconds": took, "tflops": plan.flops / took / 1e12,
            }
        )  # fmt: skip
    return out


def memory(options: argparse.Namespace) -> None:
    device, begun = options.device, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        record: dict[str, Any] = {
            "provenance": asdict(Provenance.collect(dtype=torch.float32)),
            "device": _named(device),
        }
        record |= {"errors": errors(device), "rows": []}
        print(record["errors"])
        cases = [("GPT-2 124M", GPT2, 1), ("GPT-2 124M", GPT2, 8), ("16 x 2048", WIDE, 1), ("16 x 2048", WIDE, 8)]
        for case in [("small", SMALL, 1), ("small", SMALL, 8)] if options.small else cases:
            if time.monotonic() - begun > options.limit:
                print(f"{case[0]}: no time left")
                break
            for row in peaks(*case, device):
                record["rows"].append(row)
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
                write(options.out, record)
        dist.destroy_process_group()


# --- cost -------------------------------------------------------------------------------------------------------------
def costs(g: qd.Group, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    model, batch = made(MIDDLE, 4, "cpu", torch.float32)
    with Counted() as forward, torch.no_grad():
        cross_entropy(model(batch[0]), batch)
    n = sum(p.numel() for p in model.parameters())
    cut(model, "cpu", g.world)
    risk = qf.Risk(model, cross_entropy, batch, quiet=True)
    shards, units = risk.shards.shards, len(risk.units) + 1
    one = forward.taken().flops
    V = risk.space.random(4, dtype=torch.float32)
    for name, kind in KINDS.items():
        A = kind(risk)
        for k in (1, 4):
            v = {m: t[:k] for m, t in V.items()}
            A.apply(v)
            A.apply(v)
            shards.gathered = shards.reduced = shards.calls = 0
            with Counted() as counted:
                A.apply(v)
            found[f"{name}, {k}"] = {
                "gathered": shards.gathered / n / k, "reduced": shards.reduced / n / k,
                "calls_a_unit": shards.calls / units, "forward_passes": counted.taken().flops / one / k,
            }  # fmt: skip

    def gradient() -> None:
        cross_entropy(model(batch[0]), batch).backward()
        model.zero_grad()

    H, v = qf.hessian(risk), {m: t[:1] for m, t in V.items()}
    H.apply(v)
    gradient()
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        for what, work in (("product", lambda: H.apply(v)), ("gradient", gradient)):
            begun = time.process_time()
            took.setdefault(what, []).append(seconds(work, "cpu"))
            took.setdefault(f"{what}, processor", []).append(time.process_time() - begun)
    fastest = {what: min(every) for what, every in took.items()}
    ratios = {by: fastest[f"product{by}"] / fastest[f"gradient{by}"] for by in ("", ", processor")}
    return found | {"seconds": fastest, "ratio": ratios, "parameters": n}


def cost(options: argparse.Namespace) -> None:
    world = options.processes
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            child = os.fork()
            if child:
                children.append(child)
                continue
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
            with qd.group(120) as g:
                found = costs(g, options.rounds)
            Path(folder, f"{rank}.json").write_text(json.dumps(found))
            os._exit(0)
        for child in children:
            os.waitpid(child, 0)
        found = json.loads(Path(folder, "0.json").read_text())
    record = {"provenance": asdict(Provenance.collect(dtype=torch.float32)), "processes": world, **found}
    print(json.dumps(found, indent=1))
    write(options.out, record)


# --- plan -------------------------------------------------------------------------------------------------------------
def plan(options: argparse.Namespace) -> None:
    import transformers

    record: dict[str, Any] = {"provenance": asdict(Provenance.collect(dtype=torch.float32)), "rows": []}
    for name, world, sizes in LLAMAS:
        if options.models and name not in options.models:
            continue
        begun = time.perf_counter()
        config = transformers.LlamaConfig(vocab_size=128_256, max_position_embeddings=4096, **sizes)
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(config)
            batch = {k: torch.zeros(1, 4096, dtype=torch.int64) for k in ("input_ids", "labels")}
        n = sum(p.numel() for p in model.parameters())
        risk = Outline(model, None, [batch] * world)
        risk.run_empty()  # also looks for the output
        with Counted() as counted:
            risk.run_empty()
        forward, share = counted.taken().flops, share_of(risk, "hessian", world)
        row = {"model": name, "parameters": n, "forward_passes": share.flops / forward}
        row |= asdict(share) | {"counted_in_s": time.perf_counter() - begun}
        record["rows"].append(row)
        print(row, flush=True)
        write(options.out, record)


LLAMAS: list[tuple[str, int, dict[str, int]]] = [
    ("7B", 8, _llama(4096, 11_008, 32, 32, 32)),
    ("70B", 64, _llama(8192, 28_672, 80, 64, 8)),
    ("405B", 1024, _llama(16_384, 53_248, 126, 128, 8)),
]


def _named(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def write(out: str | None, record: dict[str, Any]) -> None:
    if out is not None:
        write_atomically(Path(out), strict_json(record).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("memory", "cost", "plan"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--models", nargs="*", help="of the plan: 7B 70B 405B")
    parser.add_argument("--out")
    options = parser.parse_args()
    {"memory": memory, "cost": cost, "plan": plan}[options.job](options)


if __name__ == "__main__":
    main()
