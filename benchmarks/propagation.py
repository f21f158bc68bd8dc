"""Signal propagation: the rank-collapse table, and what measuring and predicting a profile costs.

python benchmarks/propagation.py table     the table of docs/propagation.md, drawn anew, with its claims
python benchmarks/propagation.py cost      seconds a layer, linear in depth; 72 layers, d = 768, T = 512
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch

from quadform.core.designs import design
from quadform.propagation import collapse, shaping, table
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "cost"))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--depth", type=int, default=72)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    if options.what == "table":
        return print_table(options.seeds)
    return print_cost(options.depth, options.dim, options.tokens)


if __name__ == "__main__":
    raise SystemExit(main())
