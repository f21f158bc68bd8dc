"""Hessian products of a Hugging Face GPT-2 through `quadform.curvature`, and the tests of the kernels, on a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import torch

from kernels_common import DEVICE, VOCAB, alone, error, peak, ready, timed
from kernels_profile import profiled, show

HERE = Path(__file__).resolve().parent


def checks(report, limit: float = 400) -> None:
    """Every file of tests/kernels and the self-test, each in a process of its own."""
    tests = sorted((HERE.parent / "tests" / "kernels").glob("test_*.py"))
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "-q", "--tb=short"]
    commands = {f.name: [*pytest, str(f)] for f in tests} | {"self-test": [sys.executable, "-m", "quadform.kernels"]}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    runs = {name: subprocess.Popen(command, **pipes) for name, command in commands.items()}
    end, out = time.time() + limit, {}
    for name, run in runs.items():
        try:
            text = run.communicate(timeout=max(1.0, end - time.time()))[0]
        except subprocess.TimeoutExpired:
            run.kill()
            text = run.communicate()[0] + "\nnot finished in time"
        last = text.strip().splitlines()[-1] if text.strip() else ""
        out[name] = {"exit": run.returncode, "said": re.sub(r"\x1b\[[0-9;]*m", "", last)}
        print(f"  {name}: exit {run.returncode}, {last}", flush=True)
        if run.returncode or name == "self-test":
            print(text[-3500:], flush=True)
    report["checks"] = out


def stock(layers: int, batch: int, tokens: int, count: int = 1, dtype=torch.float32):
    """A Hugging Face GPT-2 with random weights and `count` batches of random tokens."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_positions=tokens, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).to(DEVICE, dtype).eval()
    ids = torch.randint(VOCAB, (count, batch, tokens), device=DEVICE)
    return model, [{"input_ids": i} for i in ids]


def loss(out, batch):
    """Next-token cross-entropy in the model's own precision (the library's is always float32)."""
    logits = out.logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch["input_ids"][:, 1:].flatten())


def values(x) -> list:
    return list(x.values())


def vector(risk, seed: int) -> dict:
    gen = torch.Generator(DEVICE).manual_seed(seed)
    return risk.space.random(generator=gen, dtype=torch.float32, device=DEVICE)


def dot(a, b) -> float:
    return float(sum((a[n].double() * b[n].double()).sum() for n in a))


def seconds(f) -> tuple[float, object]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    out = f()
    torch.cuda.synchronize()
    return time.perf_counter() - start, out


def route(report, batch: int, tokens: int, count: int = 1, layers: int = 12, reps: int = 10) -> None:
    """The `compiled` route of `hessian` on `count` batches: first, second, later products; results stay as they are."""
    from quadform.curvature import Risk, hessian

    model, data = stock(layers, batch, tokens, count)
    risk = Risk(model, loss, data, quiet=True)
    H = hessian(risk, route="compiled")
    v, u = vector(risk, 1), vector(risk, 2)
    for _ in range(20):
        try:
            first_s, Hv = seconds(lambda: H @ v)
            break
        except torch.OutOfMemoryError:  # the others' first calls
            torch.cuda.empty_cache()
            time.sleep(3)
    torch.cuda.empty_cache()
    ready(sys.argv[1])
    with alone():
        before = [t.clone() for t in values(Hv)]
        second_s, Hu = seconds(lambda: H @ u)
        third_s, again = seconds(lambda: H @ v)
        fourth_s, _ = seconds(lambda: H @ u)
        kept_before = all(torch.equal(a, b) for a, b in zip(before, values(Hv), strict=True))
        gap, size = abs(dot(u, Hv) - dot(v, Hu)), (dot(u, u) * dot(Hv, Hv)) ** 0.5
        row = {
            "name": f"route compiled {count} of {batch}x{tokens}, {layers} layers", "batches": count, "ran": H.route,
            "first_s": first_s, "second_s": second_s, "third_s": third_s, "fourth_s": fourth_s,
            "ms": timed(lambda: H @ v, reps, 2), "gib": peak(lambda: H @ v),
            "earlier_results_unchanged": kept_before, "replayed_against_first": error(values(again), before),
            "asymmetry": gap / size, **state(H),
        }  # fmt: skip
        row["ms_per_batch"] = row["ms"] / count
        print(f"  {row}", flush=True)
        row["profile"] = profiled(lambda: H @ v)
        show(row["name"], row["profile"])
    report.setdefault("routes", []).append(row)


def state(H) -> dict:
    """What the programs of an operator hold and whether they are replayed."""
    programs, kept = list(H.run.programs.values()), H.run.kept.values()
    return {
        "programs": len(programs),
        "kept_gib": sum(p.bytes for p in programs) / 2**30,
        "kept_batches": len(kept),
        "replayed": [k.run.replayed for k in kept] if H.route == "compiled" else [],
    }


def route_error(report, batch: int = 2, tokens: int = 512, layers: int = 2, count: int = 2) -> None:
    """Products of the compiled route, TF32 allowed, against float64, beside eager ones; one batch and several."""
    from quadform.curvature import Risk, hessian

    out = {}
    for n in dict.fromkeys((1, count)):
        model, data = stock(layers, batch, tokens, n)
        wide = stock(layers, batch, tokens, n)[0].double()
        exact_risk = Risk(wide, loss, data, quiet=True)
        v = vector(exact_risk, 1)
        exact = values(hessian(exact_risk) @ {name: t.double() for name, t in v.items()})
        risk = Risk(model, loss, data, quiet=True)
        for mode in ("highest", "high"):
            torch.set_float32_matmul_precision(mode)
            for how in ("eager", "compiled"):
                H = hessian(risk, route=how)
                results = [values(H @ v) for _ in range(4)]  # plain, captured, replayed twice
                key = f"{n} batch{'es' * (n > 1)}, {mode}, {how}"
                out[key] = {"errors": [error(r, exact) for r in results], **state(H), "ran": H.route}
                print(f"  {key}: {out[key]}", flush=True)
        torch.set_float32_matmul_precision("high")
    report["route_error"] = out
