"""Accuracy, time and memory of `quadform.kernels` on one GPU, beside what torch has and beside the floors.

    python benchmarks/kernels.py [PART ...] [--out FILE]      (parts: see PARTS at the end)

Every part is a process of its own: they compile side by side, wait for each other, and then measure one at a time,
behind a lock. Accuracy is against float64. The floors count the products a second-order product cannot avoid at the
matrix rate measured in the same run, and each tensor read or written once at the measured bandwidth. Times are medians
over device events.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

import torch

from kernels_accuracy import SHAPED, accuracy, accuracy_short
from kernels_attention import attention_alone, short, tiles
from kernels_common import LOCK, ceilings
from kernels_models import eigen, gradient, kept, product, product_error, stock_gradient, training
from kernels_profile import rates
from kernels_routes import checks, route, route_error

PARTS = {
    "accuracy": accuracy,
    "accuracy-shaped": lambda report: accuracy(report, SHAPED, "accuracy_shaped"),
    "accuracy-short": accuracy_short,
    "attention": lambda report: attention_alone(report, [1024, 4096, 16384, 65536]),
    "attention-short": lambda report: attention_alone(report, [1024, 4096]),
    "short": short,
    "tiles": tiles,
    "eigen": eigen,
    "product-error": product_error,
    "gradient-1k": lambda report: gradient(report, 8, 1024, "tf32"),
    "rates": rates,
    "stock-gradient-1k": lambda report: stock_gradient(report, 8, 1024, "tf32"),
    "product-1k": lambda report: product(report, 8, 1024, "tf32", replay=True),
    "product-1k-halves": lambda report: product(report, 8, 1024, "tf32", products="halves", replay=True),
    "four-1k-halves": lambda report: product(report, 8, 1024, "tf32", 4, "halves", replay=True),
    "kept-1k": lambda report: kept(report, 8, 1024, "tf32"),
    "checks": checks,
    "route-1k": lambda report: route(report, 8, 1024),
    "route-4x1k": lambda report: route(report, 8, 1024, 4),
    "route-error": route_error,
    "gradient-16k": lambda report: gradient(report, 1, 16384, "bf16"),
    "product-16k": lambda report: product(report, 1, 16384, "bf16"),
    "train-pre-ln": lambda report: training(report, "pre-ln"),
    "train-sas-p": lambda report: training(report, "sas-p"),
    "train-sas-p-no-norm": lambda report: training(report, "sas-p-no-norm"),
    "train-sas-p-torch": lambda report: training(report, "sas-p", fused=False),
    "train-sas-p-no-norm-torch": lambda report: training(report, "sas-p-no-norm", fused=False),
}


QUIET = ("accuracy", "accuracy-shaped", "accuracy-short", "eigen", "product-error")
"""Parts without a clock; nobody waits for them."""


def part(name: str, report: dict, out: str) -> None:
    """One part in this process; what goes wrong is part of the record."""
    if LOCK is not None and name in QUIET:
        open(os.path.join(os.path.dirname(LOCK), f"ready-{name}"), "w").close()
    try:
        PARTS[name](report)
    except Exception as problem:
        report.setdefault("failed", {})[name] = repr(problem)[:2000]
        print(f"  {name} FAILED", repr(problem)[:1500], flush=True)
    with open(out, "w") as file:
        json.dump(report, file)
    if LOCK is not None:
        open(os.path.join(os.path.dirname(LOCK), f"ready-{name}"), "w").close()


def ratios(report: dict) -> dict[str, dict[str, float]]:
    """Time and memory of each product over those of our lean gradient at its size, and over the stock model's.

    The lean gradient is torch's own (SDPA, logits written out) of our GPT-2, stock the compiled Hugging Face model's.
    Training steps are over Pre-LN's.
    """
    rows = {row["name"]: row for row in report.get("models", [])}
    out: dict[str, dict[str, float]] = {}
    for name, row in rows.items():
        size = next((word for word in name.split() if "x" in word and word[0].isdigit()), "")
        lean = "training pre-ln" if name.startswith("training") else "gradient"
        for kind, tail in ((lean, ""), ("stock gradient", "_over_stock")):
            base = next((r for n, r in rows.items() if n.startswith(kind) and size in n.split()), None)
            if base and base is not row:
                pair = {"time" + tail: row["ms"] / base["ms"], "memory" + tail: row["gib"] / base["gib"]}
                out.setdefault(name, {}).update(pair)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "kernels.json"))
    parser.add_argument("--patience", type=float, default=600, help="seconds the parts wait for each other to compile")
    parser.add_argument("--limit", type=float, default=1800, help="seconds after which unfinished parts are dropped")
    options = parser.parse_args()
    import triton

    torch.set_float32_matmul_precision("high")
    if LOCK is not None:
        with open(os.environ["QUADFORM_BENCHMARK_REPORT"]) as file:
            report = {"ceilings": json.load(file)["ceilings"]}
        part(options.parts[0], report, options.out)
        return
    report = {
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "ceilings": ceilings(),
    }
    print({n: round(r, 2) for n, r in report["ceilings"].items()}, "(TFLOP/s, TFLOP/s, TB/s)", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        first = os.path.join(folder, "report.json")
        with open(first, "w") as file:
            json.dump(report, file)
        env = {
            **os.environ,
            "QUADFORM_BENCHMARK_LOCK": os.path.join(folder, "lock"),
            "QUADFORM_BENCHMARK_REPORT": first,
        }
        env["QUADFORM_BENCHMARK_PARTS"] = str(len(options.parts))
        env["QUADFORM_BENCHMARK_END"] = str(time.time() + options.patience)
        outs = {name: os.path.join(folder, f"{name}.json") for name in options.parts}
        runs = {n: subprocess.Popen([sys.executable, __file__, n, "--out", o], env=env) for n, o in outs.items()}
        end = time.time() + options.limit
        for name, run in runs.items():
            try:
                run.wait(max(0.1, end - time.time()))
            except subprocess.TimeoutExpired:
                run.kill()
                report.setdefault("failed", {})[name] = "not finished in time"
            if os.path.exists(outs[name]):
                with open(outs[name]) as file:
                    for key, value in json.load(file).items():
                        if key in ("models", "routes"):
                            report.setdefault(key, []).extend(value)
                        elif key == "failed":
                            report.setdefault(key, {}).update(value)
                        else:
                            report[key] = value
    report["ratios"] = ratios(report)
    for name, value in report["ratios"].items():
        print(f"  {name}:", ", ".join(f"{what} {ratio:.3f}x" for what, ratio in value.items()))
    with open(options.out, "w") as file:
        json.dump(report, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
