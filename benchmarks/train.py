"""Training: speed beside others at the same shape, and what is learned in a given time.

    python benchmarks/train.py [--device cpu|cuda] [--out FILE] [--folder DIR] [PART ...]

Parts on a CPU (one thread, CPU seconds, sides alternate in one run):
    gpt      our Pre-LN decoder, Hugging Face GPT-2, a plain GPT: training steps at one small shape
    pairs    our encoder-decoder, torch.nn.Transformer, JoeyNMT: target tokens a CPU second
    learn    the embedded tasks with their recipes: exact match on the test split, CPU seconds, several seeds
Parts on CUDA (bf16, compiled):
    gpt      L = 18, d = 768, T = 128, 128 sequences: ours, the two others, SAS-P with and without norms; while they
             compile, the paper's 5-digit addition
    debian   Debian descriptions en-it: train, decode the test split (greedy, beam 5), write the hypotheses to --folder

Peers that are not installed are named and left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from peers import Missing, hf_gpt2, joey_pairs, ours, plain_gpt, torch_pairs
from quadform.core.designs import CODEPARROT
from quadform.core.errors import FileError

GPT_CPU = {"depth": 4, "d_model": 128, "heads": 4, "vocab": 1000, "seq_len": 64}
GPT_CUDA = {"depth": 18, "d_model": 768, "heads": 12, "vocab": 50_000, "seq_len": 128}
BIASED = {"norm": "layer", "activation": "gelu", "biases": ("q", "k", "v", "o", "mlp"), "init": "normal"}
PLAIN = {"norm": "layer", "activation": "gelu", "init": "normal"}


def gpt_makers(size: dict) -> dict:
    """name -> maker of (module, loss): the three of one recipe, and on CUDA the designs of [HH24]."""
    made = {
        "ours pre-ln, biases": lambda: ours("pre-ln", size, **BIASED),
        "hf gpt-2": lambda: hf_gpt2(size),
        "ours pre-ln, no biases": lambda: ours("pre-ln", size, **PLAIN),
        "plain gpt": lambda: plain_gpt(size),
    }
    if size is GPT_CUDA:
        recipe = {k: v for k, v in CODEPARROT.items() if k not in size}
        for design in ("pre-ln", "sas-p", "sas-p-no-norm"):
            made[f"ours {design}, codeparrot"] = lambda design=design: ours(design, size, **recipe)
    return made


def stepper(module, loss, *, bf16: bool, compiled: bool):
    """One training step: loss, backward, clip, AdamW; nothing is read back."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    of = torch.compile(loss) if compiled else loss
    parameters = list(module.parameters())

    def step(batch):
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            value = of(batch)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value

    return step


def alternate(steps: dict, batches: list, rounds: int) -> dict[str, float]:
    """Median CPU seconds of a step of every side; the sides take turns."""
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step(batches[0])
    for i in range(rounds):
        for name, step in steps.items():
            start = time.process_time()
            step(batches[i % len(batches)])
            spent[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in spent.items()}


# ---------------------------------------------------------------------------------------------------------------- gpt
def gpt_cpu() -> dict:
    size, rows = GPT_CPU, 16
    steps, missing = {}, []
    for name, make in gpt_makers(size).items():
        try:
            steps[name] = stepper(*make(), bf16=False, compiled=False)
        except Missing as error:
            missing.append(str(error))
    g = torch.Generator().manual_seed(0)
    batches = [torch.randint(size["vocab"], (rows, size["seq_len"] + 1), generator=g) for _ in range(4)]
    took = alternate(steps, batches, 15)
    tokens = {name: rows * size["seq_len"] / t for name, t in took.items()}
    return {"shape": size | {"rows": rows}, "tokens_per_cpu_second": tokens, "missing": missing} | _against(tokens)


def _against(rate: dict[str, float]) -> dict:
    pairs = [("ours pre-ln, biases", "hf gpt-2"), ("ours pre-ln, no biases", "plain gpt")]
    return {"ratio": {f"{a} / {b}": rate[a] / rate[b] for a, b in pairs if a in rate and b in rate}}


def gpt_cuda_one(name: str, folder: Path, turn: int, sides: int, rounds: int = 5) -> None:
    """One side, in its own process: compile, wait for all, then measure when it is its turn."""
    size, rows = GPT_CUDA, 128
    told: dict = {"name": name}
    try:
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        with torch.device("cuda"):
            module, loss = gpt_makers(size)[name]()
        module = module.cuda()
        step = stepper(module, loss, bf16=True, compiled=True)
        g = torch.Generator(device="cuda").manual_seed(0)
        batch = torch.randint(size["vocab"], (rows, size["seq_len"] + 1), generator=g, device="cuda")
        start = time.monotonic()
        for attempt in range(20):  # all sides compile at once; one that finds the memory taken tries again
            try:
                for _ in range(5):
                    value = step(batch)
                break
            except torch.cuda.OutOfMemoryError:
                value = None
                module.zero_grad(set_to_none=True)
                torch.cuda.empty_cache()
                time.sleep(2 + attempt)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        told |= {"parameters": sum(p.numel() for p in module.parameters()), "compile_s": time.monotonic() - start}
        told["loss_after_5"] = float(value)
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"[:500]
    (folder / f"ready-{turn}").touch()
    wait(lambda: sum(p.name.startswith("ready-") for p in folder.iterdir()) > sides, 300)
    took = []
    for r in range(rounds):
        before = folder / (f"done-{r}-{turn - 1}" if turn else f"done-{r - 1}-{sides - 1}")
        wait(lambda before=before: (r == 0 and turn == 0) or before.exists(), 60)
        if "error" not in told:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(9)]
            step(batch)
            for mark in marks:
                mark.record()
                step(batch)
            torch.cuda.synchronize()
            took += [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
            torch.cuda.empty_cache()
        (folder / f"done-{r}-{turn}").touch()
    if took:
        told |= {"ms": statistics.median(took), "ms_all": [round(t, 3) for t in took]}
        told["peak_GiB"] = torch.cuda.max_memory_allocated() / 2**30
    (folder / f"result-{turn}.json").write_text(json.dumps(told))


def wait(until, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(0.01)


def gpt_cuda(meanwhile) -> dict:
    """All sides; `meanwhile` runs while they compile, and they wait for it before they measure."""
    names = list(gpt_makers(GPT_CUDA))
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--folder", folder, "--sides", str(len(names))]
        own = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        sides = [subprocess.Popen([*words, "--side", str(i)], env=own) for i in range(len(names))]
        try:
            meanwhile()
        finally:
            (Path(folder) / "ready-meanwhile").touch()
        for side in sides:
            side.wait()
        files = [Path(folder) / f"result-{i}.json" for i in range(len(names))]
        found = [json.loads(f.read_text()) for f in files if f.exists()]
    rate = {x["name"]: 128 * GPT_CUDA["seq_len"] / x["ms"] * 1000 for x in found if "ms" in x}
    base = "ours pre-ln, codeparrot"
    designs = {n: rate[n] / rate[base] for n in rate if n.endswith("codeparrot") and base in rate}
    print(json.dumps([{k: v for k, v in x.items() if k != "ms_all"} for x in found], indent=1), flush=True)
    return {"shape": GPT_CUDA, "sides": found, "tokens_per_second": rate, "designs": designs} | _against(rate)


# -------------------------------------------------------------------------------------------------------------- pairs
def pairs_cpu() -> dict:
    """Real sentences (Debian en-it where fetched, else number words): target tokens a CPU second, own ways of batching.

    Ours and torch's get batches of equal length (ours); JoeyNMT's gets sentences in random order, cut where rows x
    longest target reaches the same number of tokens, as its sampler does.
    """
    from quadform.corpora import dataset

    try:
        data = dataset(".cache/ddtp-it" if Path(".cache/ddtp-it").exists() else "ddtp-it")
    except FileError:
        data = dataset("numbers-de")
    size = {"depth": 2, "d_model": 128, "heads": 4, "d_ff": 512, "vocab": data.settings["vocab"]}
    mine = list(itertools.islice(data.batches("valid", 80), 16))
    budget = statistics.mean(b["target"].numel() for b in mine)
    loose = shuffled_batches(mine, budget)
    settings = {"kind": "encoder-decoder", "pad": 0, "bos": 1, "eos": 2, "positions": "sinusoidal", "seq_len": 512}
    biased = {"biases": ("q", "k", "v", "o", "mlp"), "norm": "layer", "activation": "relu"}

    def own(design):
        from quadform.nn import Transformer

        model = Transformer(design, **size, **settings, **biased)
        return model, lambda batch: model.loss(batch)

    makers = {
        "ours post-ln": (lambda: own("post-ln"), mine),
        "torch.nn.Transformer": (lambda: torch_pairs(size), mine),
        "ours pre-ln": (lambda: own("pre-ln"), mine),
        "joeynmt": (lambda: joey_pairs(size), loose),
        "ours pre-ln, joeynmt's batches": (lambda: own("pre-ln"), loose),
    }
    rate, missing, rounds = {}, [], 12
    sides = {}
    for name, (make, batches) in makers.items():
        try:
            module, loss = make()
            sides[name] = stepper(module, loss, bf16=False, compiled=False), batches
        except Missing as error:
            missing.append(str(error))
    spent = dict.fromkeys(sides, 0.0)
    useful = dict.fromkeys(sides, 0)
    for i in range(-1, rounds):
        for name, (step, batches) in sides.items():
            batch = batches[i % len(batches)]
            start = time.process_time()
            step(batch)
            if i >= 0:
                spent[name] += time.process_time() - start
                useful[name] += int((batch["target"][:, 1:] != 0).sum())
    rate = {name: useful[name] / spent[name] for name in sides}
    ratio = {
        f"{a} / {b}": rate[a] / rate[b]
        for a, b in (
            ("ours post-ln", "torch.nn.Transformer"),
            ("ours pre-ln", "joeynmt"),
            ("ours pre-ln, joeynmt's batches", "joeynmt"),
        )
        if a in rate and b in rate
    }
    return {"data": str(data), "shape": size, "target_tokens_per_cpu_second": rate, "ratio": ratio, "missing": missing}


def shuffled_batches(batches: list[dict], budget: float) -> list[dict]:
    """The sentences of some batches in random order, cut where rows x longest target would pass the budget."""
    from quadform.nn.decode import pad_rows

    rows = [
        ([t for t in s.tolist() if t], [t for t in y.tolist() if t])
        for b in batches
        for s, y in zip(b["source"], b["target"], strict=True)
    ]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    cut: list[list] = [[]]
    for i in order:
        longest = max([len(rows[i][1]), *(len(y) for _, y in cut[-1])])
        if cut[-1] and longest * (len(cut[-1]) + 1) > budget:
            cut.append([])
        cut[-1].append(rows[i])
    return [{"source": pad_rows([s for s, _ in c], 0)[0], "target": pad_rows([y for _, y in c], 0)[0]} for c in cut]


# -------------------------------------------------------------------------------------------------------------- learn
def learn_cpu(seeds: int) -> dict:
    """The tasks of the README with the recipes of `quadform train`: the test split, and CPU seconds of training."""
    from quadform.corpora import dataset
    from quadform.train import fit, score_test

    found: dict = {}
    made = {"reverse": {}, "add": {"digits": 3}, "numbers-ko": {}, "tsmsg-de": {}}
    for name, settings in made.items():
        for seed in range(seeds):
            try:
                data = dataset(name, **settings)
            except FileError as error:
                print(error)
                continue
            start = time.process_time()
            run = fit(data, seed=seed, progress=False)
            took = time.process_time() - start
            test = {k: [e.value, e.stderr] for k, e in score_test(run).items()}
            found[f"{name}, seed {seed}"] = {"cpu_s": took, "steps": run.step} | test
            print(name, seed, found[f"{name}, seed {seed}"], flush=True)
    return found


# ----------------------------------------------------------------------------------------------------------- on CUDA
def add_cuda() -> dict:
    from quadform.corpora import dataset
    from quadform.nn import Transformer
    from quadform.train import TrainConfig, exact_match, train

    data = dataset("add", digits=5)
    model = Transformer("pre-ln", depth=4, d_model=256, heads=4, device="cuda", **data.settings)
    config = TrainConfig(
        steps=8000, batch_size=512, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, questions=1000, valid_every=500,
        goal=0.998, watch_every=0, save_every=100_000, log_every=100,
    )  # fmt: skip
    start = time.monotonic()
    done = train(model, data, config, progress=False, seconds=100)
    took = time.monotonic() - start
    test = exact_match(model, data, count=10_000, split="test", batch_size=2000)
    return {
        "exact": test.value, "stderr": test.stderr, "steps": done.step, "seconds": took, "stopped": done.stopped,
        "valid": done.valid["exact"].value, "parameters": sum(p.numel() for p in model.parameters()),
    }  # fmt: skip


DEBIAN = {"depth": 6, "d_model": 512, "heads": 8, "d_ff": 1024, "dropout": 0.25, "positions": "sinusoidal"}


def debian(device: str, folder: Path, seconds: float, size: dict | None = None) -> dict:
    """Train for about `seconds` (the number of steps is set after a short probe, so that the schedule ends with them),
    decode the test split and write the hypotheses; sacrebleu scores them elsewhere (`--score`)."""
    from quadform.corpora import dataset
    from quadform.corpora.opened import encode_all
    from quadform.nn import Search, Transformer, generate
    from quadform.nn.tokens import EOS
    from quadform.train import Schedule, TrainConfig, train

    torch.set_float32_matmul_precision("high")
    begun = time.monotonic()
    data = dataset(".cache/ddtp-it" if Path(".cache/ddtp-it").exists() else "ddtp-it")
    cuda = device == "cuda"
    model = Transformer("pre-ln", device=device, **(size or DEBIAN), **data.settings)
    first = {name: t.clone() for name, t in model.state_dict().items()}
    config = TrainConfig(
        steps=120 if cuda else 4, batch_size=640 if cuda else 4, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.05,
        smoothing=0.1, schedule=Schedule(warmup=0.06), precision="bf16" if cuda else "full",
        bucket=8 if cuda else 1, valid_every=1000, valid_batches=4, log_every=20 if cuda else 1, watch_every=0,
        save_every=10**6,
    )  # fmt: skip
    for split in ("train", "valid"):
        data.tokens(split)
    prepared = time.monotonic() - begun
    out = folder / "debian"
    train(model, data, config, out=out, resume=False, progress=False)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    marks = [(line["step"], line["seconds"]) for line in lines if "lr" in line][-3:]
    rate = (marks[-1][0] - marks[0][0]) / (marks[-1][1] - marks[0][1])
    probed = time.monotonic() - begun - prepared
    steps = max(int(0.96 * rate * seconds), 4)
    print(f"prepared {prepared:.0f} s, probe {probed:.0f} s, {rate:.1f} steps/s: {steps} steps", flush=True)
    model.load_state_dict(first)
    config = dataclasses.replace(config, steps=steps, log_every=100 if cuda else 1)
    start = time.monotonic()
    done = train(model, data, config, out=out, resume=False, progress=False, seconds=1.15 * seconds)
    trained = time.monotonic() - start
    pairs = data.sentences("test", None if cuda else 4)
    inputs = [[*ids[: data.longest], EOS] for ids in encode_all(data.tokenizer, [s for s, _ in pairs])]
    model.eval()
    told: dict = {
        "prepare_s": prepared, "probe_s": probed, "train_s": trained, "steps": done.step, "stopped": done.stopped,
        "valid_loss": done.valid["loss"].value if done.valid else None,
        "parameters": sum(p.numel() for p in model.parameters()), "sentences": len(pairs),
        "config": config.to_dict(), "model": size or DEBIAN, "data": data.to_dict(), "decode": {},
    }  # fmt: skip
    print(json.dumps({k: told[k] for k in ("train_s", "steps", "valid_loss")}), flush=True)
    hypotheses = {"source": [s for s, _ in pairs], "reference": [t for _, t in pairs]}
    ways = {
        "greedy": Search(max_length=data.longest + 1),
        "beam 5": Search(beam=5, max_length=data.longest + 1, alpha=1.0),
    }
    for name, how in ways.items():
        for cache, batch in (("kv", 512), ("static", 512)) if cuda else (("kv", 64),):
            few = inputs if cache == "kv" or not cuda else inputs[:1024]
            how = dataclasses.replace(how, cache=cache)
            if cuda:
                torch.cuda.synchronize()
            start = time.monotonic()
            try:
                found = generate(model, few, how, batch_size=batch)
            except Exception as error:
                told["decode"][f"{name}, {cache}, batch {batch}"] = {"error": f"{type(error).__name__}: {error}"[:400]}
                print(name, cache, batch, "FAILED", error, flush=True)
                continue
            took = time.monotonic() - start
            told["decode"][f"{name}, {cache}, batch {batch}"] = {"sentences_per_s": len(few) / took, "seconds": took}
            print(name, cache, batch, f"{len(few) / took:.0f} sentences/s", flush=True)
            texts = [data.tokenizer.decode(best[0].tokens) for best in found]
            if name in hypotheses:
                same = sum(a == b for a, b in zip(hypotheses[name], texts, strict=False))
                told["decode"][f"{name}, {cache}, batch {batch}"]["same"] = f"{same}/{len(texts)}"
            else:
                hypotheses[name] = texts
                (folder / "debian-hypotheses.json").write_text(json.dumps(hypotheses, ensure_ascii=False))
    (folder / "debian-metrics.jsonl").write_bytes((out / "metrics.jsonl").read_bytes())
    shutil.rmtree(out)
    return told


def score(path: Path) -> dict:
    """BLEU and chrF of the hypotheses that the part debian wrote."""
    from quadform.train.bleu import score_translations

    body = json.loads(path.read_text())
    found = {}
    for name in body:
        if name not in ("source", "reference"):
            s = score_translations(body[name], body["reference"], "it")
            found[name] = {"bleu": [s.bleu.value, s.bleu.stderr], "chrf": [s.chrf.value, s.chrf.stderr]}
            found["signature"] = s.signature["bleu"]
    return found


# ------------------------------------------------------------------------------------------------------------- by name
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300.0, help="training time of the part debian")
    parser.add_argument("--score", type=Path, help="score the hypotheses in this file and leave")
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sides", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        gpt_cuda_one(list(gpt_makers(GPT_CUDA))[args.side], args.folder, args.side, args.sides)
        return
    if args.score is not None:
        print(json.dumps(score(args.score), indent=1))
        return
    told = {"device": torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or "cpu"}
    told |= {"torch": torch.__version__, "when": time.strftime("%Y-%m-%d"), "load": os.getloadavg()}

    def add_meanwhile() -> None:
        try:
            told["add"] = add_cuda()
        except Exception as error:
            told["add"] = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told["add"]), flush=True)

    if args.device == "cpu":
        torch.set_num_threads(1)
        parts = {"gpt": gpt_cpu, "pairs": pairs_cpu, "learn": lambda: learn_cpu(args.seeds)}
    else:
        parts = {
            "gpt": lambda: gpt_cuda(add_meanwhile),
            "debian": lambda: debian("cuda", args.folder, args.seconds),
        }
    if args.out and args.out.exists():  # parts measured before stay
        told = json.loads(args.out.read_text()) | told
    for name in args.parts or parts:
        start = time.monotonic()
        print(f"== {name}", flush=True)
        told[name] = parts[name]() | {"wall_s": time.monotonic() - start}
        shown = {k: v for k, v in told[name].items() if k not in ("sides", "config")}
        print(json.dumps(shown, indent=1, default=str)[:4000], flush=True)
        if args.out:
            args.out.write_text(json.dumps(told, indent=1, default=list) + "\n")


if __name__ == "__main__":
    main()
