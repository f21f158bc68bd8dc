"""Pruning and few bits on one GPU: the time of GPT-2 124M layer by layer, and the bars on a GPT of 35M trained here.

    python benchmarks/compress.py [layerwise] [own] [fetched] [--out FILE] [--limit SECONDS] [--train SECONDS] [--small]
                                  [--layers N --width N --batch N]

`layerwise`: GPT-2 124M of Hugging Face, random weights, half of the weights of all linear maps by SparseGPT, 16 x 4 x
1,024 random tokens of calibration; correctness first (one matrix against the published algorithm in numpy), then what
the plan foretells and what was taken. `own`: a GPT of 35M parameters trained on bytes of the standard library, then the
claims of the experiment `compression` (`--layers`, ...: another size). `fetched`: those of `--models`, by the
sizes of its preset paper. Both part by part (`--parts`) as far as the time goes. The file is written after every row.
`--small` is for a trial on a CPU.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quadform as qf
from quadform.compress.layerwise import error, sparsegpt
from quadform.compress.maps import linear_maps
from quadform.core.record import Provenance, strict_json
from quadform.corpora.running import library_files
from quadform.experiments.compression import (
    BUDGET_BAR,
    PREDICTED,
    PRESETS,
    PRUNE_BAR,
    WAYS,
    Config,
    each_alone,
    mean,
    pruned,
    published,
    rounded,
)
from quadform.experiments.fetched_models import Task, rise_ratio, task


class Gpt(nn.Module):
    """GPT-2 of Hugging Face whose output is the logits, and whose loss (`after`) keeps their dtype."""

    def __init__(self, positions: int, **sizes: Any) -> None:
        import transformers

        super().__init__()
        transformers.logging.set_verbosity_error()
        config = transformers.GPT2Config(bos_token_id=0, eos_token_id=0, n_positions=positions, **sizes)
        self.net = transformers.GPT2LMHeadModel(config).eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.net(input_ids=ids, use_cache=False).logits


def after(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["ids"][:, 1:].flatten())


class Bench:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.rows, self.began = given, dict[str, Any](), time.perf_counter()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)

    @property
    def left(self) -> float:
        return self.given.limit - (time.perf_counter() - self.began)

    def keep(self, name: str, row: dict[str, Any]) -> None:
        self.rows[name] = row | {"at_s": round(time.perf_counter() - self.began, 1)}
        print(name, self.rows[name], flush=True)
        made = asdict(Provenance.collect(seed=0, device=self.device, dtype=torch.float32))
        Path(self.given.out).write_text(strict_json({"made": made, "rows": self.rows}))

    def timed(self, name: str, work: Any) -> Any:
        """Seconds and the most memory of one call; None where the time is up."""
        if self.left <= 0:
            print(f"{name}: no time left", flush=True)
            return None
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        at = time.perf_counter()
        found = work()
        if self.device == "cuda":
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.device == "cuda" else None
        self.cost = {"seconds": round(time.perf_counter() - at, 2), "peak_gib": peak}
        return found

    # --- GPT-2 124M, layer by layer -----------------------------------------------------------------------------------
    def layerwise(self) -> None:
        small = self.given.small
        sizes: dict[str, Any] = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 211} if small else {}
        model = Gpt(1024, **sizes).to(self.device)
        vocab, tokens = model.net.config.vocab_size, 64 if small else 1024
        ids = torch.randint(0, vocab, (16, 4, tokens), device=self.device)
        batches = [{"ids": row} for row in ids]
        self.keep("correct", self._against_published(model, batches[:1]))
        asked: dict[str, Any] = {"method": ("sparsegpt",), "sparsity": 0.5, "held_out": 0}
        plan = qf.prune.plan(model, batches, after, **asked)
        found = self.timed("layerwise", lambda: qf.prune(model, batches, after, progress=False, **asked))
        if found is None:
            return
        (m,) = found.methods
        told = {"sparsity": m.size, "predicted": m.predicted, "measured": m.measured, "loss": found.loss}
        count = sum(p.numel() for p in model.parameters())
        planned = {"planned_gib": plan.bytes / 2**30, "planned_s": plan.seconds, "parameters": count}
        self.keep("layerwise", self.cost | told | planned)

    def _against_published(self, model: nn.Module, batches: list[Any]) -> dict[str, Any]:
        name, m = next(iter(linear_maps(qf.Risk(model, after, batches, quiet=True)).items()))
        W = m.matrix(model.get_parameter(name).detach())
        ours = sparsegpt(W, m.S, 0.5)[0].double().cpu()
        W, S = W.double().cpu(), m.S.double().cpu()
        return {"matrix": name, "error_ratio": error(W, ours, S) / error(W, torch.tensor(published(W, S, 0.5)), S)}

    # --- a GPT of 35M, trained here -----------------------------------------------------------------------------------
    @cached_property
    def trained(self) -> tuple[Gpt, Tensor]:
        """(model, bytes held out)."""
        small = self.given.small
        width = 32 if small else self.given.width
        sizes = {"n_layer": 1 if small else self.given.layers, "n_embd": width, "n_head": max(2, width // 64)}
        model = Gpt(256, vocab_size=256, **sizes).to(self.device)
        text = "".join(text for _, text in library_files()).encode()
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.device)
        cut = int(0.95 * len(data))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        began, steps, seconds = time.perf_counter(), 0, min(self.given.train, self.left)
        while (gone := time.perf_counter() - began) < seconds:
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * min((steps + 1) / 100, 1) * max(1 - gone / seconds, 0.02)
            ids = self.drawn(data[:cut], self.given.batch)
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = after(model(ids), {"ids": ids})
            optimizer.zero_grad()
            loss.float().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
        told = {
            "steps": steps,
            "last_loss": float(loss.detach()),
            "parameters": sum(p.numel() for p in model.parameters()),
        }
        self.keep("trained", told | {"seconds": time.perf_counter() - began})
        return model, data[cut:]

    def drawn(self, data: Tensor, count: int, tokens: int = 256) -> Tensor:
        starts = torch.randint(0, len(data) - tokens, (count,), device=self.device)
        return data[starts[:, None] + torch.arange(tokens, device=self.device)].long()

    def task(self, seen: int, size: int, dtype: torch.dtype) -> Task:
        """So many batches of `size` x 256 bytes of files that were not trained on, and 64 of 32 x 256 held out."""
        model, data = self.trained
        torch.manual_seed(1)
        held = [{"ids": self.drawn(data, 4 if self.given.small else 32)} for _ in range(8 if self.given.small else 64)]
        batches = [{"ids": self.drawn(data, 4 if self.given.small else size)} for _ in range(seen)]

        def score(net: Any, held: Any) -> Tensor:
            return torch.stack([(net(**b)[:, :-1].argmax(-1) == b["ids"][:, 1:]).double().mean() for b in held]).mean()

        return Task(model.to(dtype), batches, held, after, lambda net, b: after(net(**b), b), score)

    def own(self) -> None:
        """`--parts` of what the bars are about."""
        config = Config(products=20, rounds=1)
        for part in self.given.parts.split(","):
            {"prune": self._prune, "budget": self._budget, "each": self._each}[part](config)

    def _prune(self, config: Config) -> None:
        """A product is bound by launches, so few large batches: 2 x 64 x 256 bytes."""
        t = self.task(2, 64, torch.float32)
        base = t.judged(t.model)
        self.keep("before", {"held": float(base["held"].mean()), "score": float(base["score"])})
        held: dict[str, Tensor] = {}
        for way in ("sparsegpt 0.01", "sparsegpt 0.1", "hessian"):
            self._pruned(t, base, config, way, held)
        if "hessian" in held:
            theirs = min(("sparsegpt 0.01", "sparsegpt 0.1"), key=lambda way: float(held[way].mean()))
            value, spread = rise_ratio(held["hessian"].cpu(), held[theirs].cpu(), base["held"].cpu())
            self.keep("hessian over SparseGPT", {"beside": theirs, "ratio": value, "stderr": spread, "bar": 0.8})
        for way in ("magnitude", "wanda"):
            self._pruned(t, base, config, way, held)

    def _pruned(self, t: Task, base: dict[str, Tensor], config: Config, way: str, held: dict[str, Tensor]) -> None:
        found = self.timed(way, lambda: pruned(t, config, way))
        if found is None:
            return
        held[way] = found["held"]
        rise = float((found["held"] - base["held"]).mean())
        seen = dict(zip(("predicted", "measured", "size"), found["seen"].tolist(), strict=True))
        self.keep(way, self.cost | seen | {"held": rise, "score": float(found["score"])})

    def _budget(self, config: Config) -> None:
        """Bits under the budget of 4 bits beside 4 bits for all, calibrated on 32 x 256 bytes."""
        t = self.task(1, 32, torch.float32)
        base = t.judged(t.model)["held"]
        same = self.timed("4 bits", lambda: rounded(t, config, None))
        if same is None:
            return
        self.keep("4 bits", self.cost | {"seen": float(same["seen"][1]), "held": float((same["held"] - base).mean())})
        chosen = self.timed("budget", lambda: rounded(t, config, float(same["seen"][2])))
        if chosen is not None:
            value, spread = rise_ratio(chosen["held"].cpu(), same["held"].cpu(), base.cpu())
            row = {"seen": float(chosen["seen"][1] / same["seen"][1]), "held": value, "stderr": spread, "bar": 0.7}
            rise = {"rise_seen": float(chosen["seen"][1]), "rise_held": float((chosen["held"] - base).mean())}
            self.keep("budget over 4 bits", self.cost | row | rise | {"bits": chosen["bits"].tolist()})

    def _each(self, config: Config, t: Task | None = None, name: str = "each") -> None:
        """What is predicted of each matrix beside what is measured, both on the same batches."""
        t = t or self.task(1, 8, torch.float64)
        for bits in PREDICTED:
            found = self.timed(f"{name} {bits}", lambda bits=bits: each_alone(t, config, bits))
            if found is not None:
                predicted, measured = found["each"].unbind(1)
                near = ((predicted - measured).abs() <= 0.1 * measured.abs()).double().mean()
                self.keep(f"{name} {bits}", self.cost | {"close": float(near), "matrices": len(measured), "bar": 0.9})

    # --- fetched models -----------------------------------------------------------------------------------------------
    def fetched(self) -> None:
        """What is claimed of each model, by the sizes of the preset paper; `--parts` says of what."""
        for name in self.given.models.split(","):
            for part in self.given.parts.split(","):
                getattr(self, f"_fetched_{part}")(PRESETS["paper"], name)

    def _fetched(self, config: Config, sizes: Any, name: str, dtype: torch.dtype = torch.float32) -> Task:
        of = next(s for s in sizes if s.name == name)
        return task(of.model, of.size, of.seen, of.held, dtype=dtype, seed=config.seed)

    def _fetched_each(self, config: Config, name: str) -> None:
        self._each(config, self._fetched(config, config.each, name, torch.float64), f"{name}, each")

    def _fetched_prune(self, config: Config, name: str) -> None:
        """`hessian` comes last."""
        t = self._fetched(config, config.prune, name)
        base, held = t.judged(t.model), dict[str, Tensor]()
        self.keep(f"{name}, before", {"held": float(base["held"].mean()), "score": float(base["score"])})
        for way in ("sparsegpt 0.01", "sparsegpt 0.1", "wanda", "magnitude", "hessian"):
            if (found := self.timed(way, lambda way=way: pruned(t, config, way))) is not None:
                held[way] = found["held"] - base["held"]
                self.keep(f"{name}, {way}", self._told(held[way], found))
        if len(held) == len(WAYS):
            theirs = min(("sparsegpt 0.01", "sparsegpt 0.1"), key=lambda way: float(held[way].mean()))
            lost = mean(held["hessian"] - PRUNE_BAR * held[theirs], "")
            self.keep(f"{name}, lost", {"beside": theirs, "value": lost.value, "stderr": lost.error, "bar": 0})

    def _fetched_budget(self, config: Config, name: str) -> None:
        t = self._fetched(config, config.budget, name)
        base = t.judged(t.model)
        same = self.timed("4 bits", lambda: rounded(t, config, None))
        if same is None:
            return
        self.keep(f"{name}, 4 bits", self._told(same["held"] - base["held"], same))
        chosen = self.timed("budget", lambda: rounded(t, config, float(same["seen"][2])))
        if chosen is None:
            return
        self.keep(f"{name}, budget", self._told(chosen["held"] - base["held"], chosen))
        lost = mean(chosen["held"] - base["held"] - BUDGET_BAR * (same["held"] - base["held"]), "")
        self.keep(f"{name}, budget lost", {"value": lost.value, "stderr": lost.error, "bar": 0})

    def _told(self, rise: Tensor, found: dict[str, Tensor]) -> dict[str, Any]:
        e, seen = mean(rise, ""), found["seen"].tolist()
        told = {"rise": e.value, "stderr": e.error, "score": float(found["score"]), "seen": seen[1], "size": seen[2]}
        return self.cost | told | ({"bits": found["bits"].tolist()} if "bits" in found else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["layerwise", "own"], metavar="layerwise|own|fetched")
    parser.add_argument("--models", default="anarcii,rxnfp,minilm")
    parser.add_argument("--parts", default="prune,budget,each", help="of `own` and `fetched`")
    parser.add_argument("--out", default=str(Path(os.environ.get("OUT", ".")) / "compress.json"))
    parser.add_argument("--limit", type=float, default=150.0)
    parser.add_argument("--train", type=float, default=45.0)
    parser.add_argument("--batch", type=int, default=64, help="sequences of one step of `own`")
    parser.add_argument("--layers", type=int, default=11, help="of the GPT of `own`")
    parser.add_argument("--width", type=int, default=512, help="of the GPT of `own`")
    parser.add_argument("--small", action="store_true")
    bench = Bench(parser.parse_args())
    for job in bench.given.jobs:
        getattr(bench, job)()


if __name__ == "__main__":
    main()
