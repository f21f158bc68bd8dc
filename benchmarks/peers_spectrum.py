"""Top-5 eigenvalues from a fresh process, everything counted, by quadform and by other libraries.

    python benchmarks/peers_spectrum.py [--models gpt2 llama] [--by quadform curvlinops pyhessian eigenthings]
        [--tol 1e-2 1e-3] [--precision high] [--limit SECONDS] [--each SECONDS] [--done FILE] [--small]
    peers: pip install --no-deps --target .cache/lib curvlinops-for-pytorch backpack-for-pytorch einconv einops
           linear_operator PyHessian hessian-eigenthings        (and PYTHONPATH=.cache/lib)

GPT-2 124M, 8 x 1,024 tokens, and a Llama of 1.24B parameters, 2 x 1,024; random weights, float32 (`--precision`: of
torch's matrix products), the loss of the next token, the same for all. `process_s`: from the start of Python to its
end, compiling included, disk caches empty. `find_s`: without imports and building the model. Residuals
|H v - lambda v| / lambda are taken afterwards by one double backward with full float32 products; they are not in
`find_s` and are subtracted from `process_s`. Not controlled by a residual: PyHessian (change of an eigenvalue) and
hessian-eigenthings (steps; with reorthogonalization, which it leaves out above 50 steps: it then returns one eigenpair
several times). `overlap` is the largest |cosine| of two returned vectors: near 1, a pair was returned twice.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

START = time.perf_counter()

import torch  # noqa: E402  # counted
from torch import Tensor, nn  # noqa: E402

from fresh import fresh  # noqa: E402

TOP = 5
BY = ("quadform", "curvlinops", "eigenthings", "pyhessian")
#: Vectors that scipy's `eigsh` holds on the host: as it would by itself, fewer where they do not fit, at least these.
NCV, LEAST_NCV = 20, 2 * TOP + 1
#: Numbers that ARPACK can count: with a larger basis it ends the process.
ARPACK = 2**31 - 1
Found = tuple[Tensor, list[Tensor], int | None, str]


class Flat(nn.Module):
    """A language model as a map from tokens to the logits that are scored, which is what the peers want."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids).logits[:, :-1].flatten(0, 1)


def scored(out: Any, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())


def quadform(model: nn.Module, ids: Tensor, tol: float, options: argparse.Namespace) -> Found:
    import quadform as qf
    from quadform.core import progress
    from quadform.estimate import eigenpairs

    progress.quiet = True
    begun = time.perf_counter()
    risk = qf.Risk(model, scored, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, quiet=True)
    H = qf.hessian(risk, route=options.route, products=60 if options.route == "auto" else None)
    H.apply(risk.space.random(1, dtype=torch.float32, device=ids.device))
    before = time.perf_counter() - begun
    pairs = eigenpairs(H, TOP, tol=tol, max_products=options.most)
    values = torch.tensor([e.value for e in pairs.top], dtype=torch.float64)
    how = f"route {H.route}, first product {before:.1f} s"
    return values, list(risk.space.flatten(pairs.vectors).T), pairs.products, how


def curvlinops(model: nn.Module, ids: Tensor, tol: float, options: argparse.Namespace) -> Found:
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import LinearOperator, eigsh

    y, params, count = ids[:, 1:].flatten(), list(model.parameters()), [0]
    H = HessianLinearOperator(Flat(model), nn.CrossEntropyLoss(), params, [(ids, y)], check_deterministic=False)

    def matvec(u: Any) -> Any:
        count[0] += 1
        return (H @ torch.as_tensor(u, dtype=torch.float32, device=ids.device).reshape(-1)).detach().cpu().numpy()

    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ncv = min(NCV, int(0.6 * free / (4 * H.shape[0])) - TOP, ARPACK // H.shape[0])
    if ncv < LEAST_NCV:
        raise MemoryError(f"eigsh cannot hold {LEAST_NCV} vectors of {H.shape[0]} numbers")
    A = LinearOperator(H.shape, matvec=matvec, dtype="float32")
    values, vectors = eigsh(A, k=TOP, which="LA", tol=tol, ncv=ncv)
    return torch.from_numpy(values.copy()).double(), list(torch.from_numpy(vectors.T.copy())), count[0], f"ncv {ncv}"


def pyhessian(model: nn.Module, ids: Tensor, tol: float, options: argparse.Namespace) -> Found:
    from pyhessian import hessian as power_iteration

    H = power_iteration(Flat(model), nn.CrossEntropyLoss(), data=(ids, ids[:, 1:].flatten()), cuda=ids.is_cuda)
    values, vectors = H.eigenvalues(top_n=TOP, tol=tol)
    flat = [torch.cat([t.reshape(-1) for t in v]) for v in vectors]
    return torch.tensor(values, dtype=torch.float64), flat, None, "largest by size"


def eigenthings(model: nn.Module, ids: Tensor, tol: float, options: argparse.Namespace) -> Found:
    from hessian_eigenthings import HessianOperator, lanczos, supervised_loss

    steps = 80 if tol > 3e-3 else 120
    H = HessianOperator(Flat(model), [(ids, ids[:, 1:].flatten())], supervised_loss(nn.functional.cross_entropy))
    found = lanczos(H, k=TOP, which="LA", max_iter=steps, reorthogonalize=True, seed=0)
    return torch.as_tensor(found.eigenvalues).double().cpu(), list(found.eigenvectors), steps, f"{steps} steps"


def double_backward(model: nn.Module, ids: Tensor, v: Tensor) -> Tensor:
    params = list(model.parameters())
    value = scored(model(input_ids=ids), {"input_ids": ids})
    g = torch.autograd.grad(value, params, create_graph=True)
    parts = [t.view_as(p) for t, p in zip(v.split([p.numel() for p in params]), params, strict=True)]
    return torch.cat([t.reshape(-1) for t in torch.autograd.grad(g, params, parts)])


def one(options: argparse.Namespace) -> None:
    """One library on one model, in this process."""
    from units_widths import built, keep

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision(options.precision)
    model, batch, found = built(options.models[0], 0, "ones", device, options.small)
    ids, tol = batch["input_ids"], options.tol[0]
    found |= {"by": options.by[0], "tol": tol, "before_s": time.perf_counter() - START}
    begun = time.perf_counter()
    math = lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)  # noqa: E731
    if options.by[0] == "quadform":
        values, vectors, products, how = quadform(model, ids, tol, options)
    else:
        with math():  # torch's fused attention has no second derivative
            values, vectors, products, how = globals()[options.by[0]](model, ids, tol, options)
    if device == "cuda":
        torch.cuda.synchronize()
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    found |= {"find_s": time.perf_counter() - begun, "products": products, "how": how, "values": values.tolist()}
    keep(options.to, found)
    checked = time.perf_counter()
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.set_float32_matmul_precision("highest")
    residuals, units = [], [vector.to(device, torch.float32) for vector in vectors]
    units = [v / v.norm() for v in units]
    with math():
        for value, v in zip(values, units, strict=True):
            residuals.append(float((double_backward(model, ids, v) - float(value) * v).norm() / abs(float(value))))
    overlap = max(abs(float(units[i] @ units[j])) for i in range(TOP) for j in range(i))
    found |= {"residuals": residuals, "worst_residual": max(residuals), "overlap": overlap}
    found |= {"check_s": time.perf_counter() - checked}
    keep(options.to, found)


def main(options: argparse.Namespace) -> None:
    from quadform.core.record import Provenance, from_json, strict_json
    from units_widths import NAN

    out = options.out or (Path(os.environ["OUT"]) / "peers-spectrum.json" if os.environ.get("OUT") else None)
    began, small = time.monotonic(), options.small or not torch.cuda.is_available()
    made = Provenance.collect(dtype=torch.float32, device="cpu" if small else "cuda")
    record: dict[str, Any] = {"made": asdict(made), "rows": []}
    if options.done is not None and options.done.exists():
        record["rows"] = [row for row in from_json(json.loads(options.done.read_text()))["rows"] if "failed" not in row]
    done = {(row["model"], row["by"], row["tol"]) for row in record["rows"]}
    print(f"{'':7}{'':>13}{'tol':>7}{'all s':>9}{'find s':>9}{'products':>9}{'residual':>10}{'overlap':>9}{'GiB':>7}")
    for name in options.models:
        for tol in options.tol:
            for by in options.by:
                left = options.limit - (time.monotonic() - began)
                if (name, by, tol) in done:
                    continue
                if left < 20:
                    print("time is up", file=sys.stderr)
                    return
                call = ["--models", name, "--by", by, "--tol", str(tol), "--precision", options.precision]
                call += ["--route", options.route, "--most", str(options.most), *["--small"] * small]
                with tempfile.TemporaryDirectory() as folder:
                    env = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
                    row = fresh(__file__, call, min(left, options.each), env)
                row = {"model": name, "by": by, "tol": tol, "precision": options.precision, **row}
                row["process_s"] -= row.get("check_s", 0.0)
                record["rows"].append(row)
                told = f"{name:7}{by:>13}{tol:>7.0e}{row['process_s']:>9.1f}{row.get('find_s', NAN):>9.1f}"
                told += f"{row.get('products') or '-':>9}{row.get('worst_residual', NAN):>10.1e}"
                told += f"{row.get('overlap', NAN):>9.1e}{row.get('peak_gib', NAN):>7.1f}"
                print(f"{told}  {row.get('how', '')} {row.get('failed', '')}", flush=True)
                if out is not None:
                    out.write_text(strict_json(record))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("gpt2", "llama"), default=["gpt2"])
    parser.add_argument("--by", nargs="+", choices=BY, default=list(BY))
    parser.add_argument("--tol", nargs="+", type=float, default=[1e-2, 1e-3])
    parser.add_argument("--route", default="auto", help="of quadform")
    parser.add_argument("--most", type=int, default=200, help="products of quadform, at most")
    parser.add_argument("--precision", choices=("highest", "high"), default="high")
    parser.add_argument("--limit", type=float, default=560.0)
    parser.add_argument("--each", type=float, default=240.0, help="seconds for one process")
    parser.add_argument("--done", type=Path, help="a record whose rows are not measured again")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--to", type=Path, help="measure one, here, and write it into this file")
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    main(asked) if asked.to is None else one(asked)
