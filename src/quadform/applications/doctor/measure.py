"""Looking at this machine: packages, devices, memory, tools, known traps."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from dataclasses import asdict
from importlib import metadata

import torch

from ... import __version__
from ...core.cgroup import memory_limit
from ...core.memory import free_bytes, in_words
from ...core.question import Plan
from ...core.record import Provenance, Record
from ...core.rng import stream
from ...core.work import Work
from ..machine import DTYPES, device_of, largest_hessian
from .answer import Diagnosis, Line
from .question import DoctorQuestion

#: Packages that quadform runs on, and those that open further doors (package, what it is for, how to get it).
REQUIRED = ("torch", "numpy", "scipy", "safetensors", "tqdm")
OPTIONAL = (
    ("tyro", "the command line", "cli"),
    ("altair", "figures and reports", "report"),
    ("triton", "fused attention kernels on a GPU", "kernels"),
    ("transformers", "models in the Hugging Face format", "hf"),
    ("tokenizers", "sub-word vocabularies of real text", "text"),
    ("sacrebleu", "BLEU and chrF of translations", "text"),
    ("uvicorn", "the live page (`quadform explore`)", "page"),
    ("pytorch-optimizer", "Shampoo, SOAP and PSGD in the experiment `optimizers`", "optimizers"),
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class DoctorMeasurement:
    """Everything worth knowing about this machine."""

    def __init__(self, asked: DoctorQuestion) -> None:
        self.asked, self.device, self.dtype = asked, device_of(asked.device), DTYPES[asked.dtype]

    def plan(self) -> Plan:
        return Plan("plan: packages, devices, memory, tools and known traps of this machine")

    def measure(self, work: Work) -> Diagnosis:
        lines = [*_packages(), *_machine(), *_size(self.device, self.dtype), *_tools(), *_traps(self.asked.seed)]
        made = Provenance.collect(seed=self.asked.seed, dtype=self.dtype, device=self.device)
        inputs = {"findings": [asdict(line) for line in lines]}
        return Diagnosis(Record(kind="doctor", inputs=inputs, scalars={}, tensors={}, made=made))


def _packages() -> list[Line]:
    lines = [Line("packages", "python", platform.python_version()), Line("packages", "quadform", __version__)]
    for name in REQUIRED:
        version = _version(name)
        lines.append(
            Line("packages", name, version or "missing", bool(version), "" if version else "pip install quadform")
        )
    for name, purpose, extra in OPTIONAL:
        version = _version(name)
        advice = "" if version else f'{purpose}: pip install "quadform[{extra}]"'
        lines.append(Line("optional", name, version or "not installed", True if version else None, advice))
    return lines


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _machine() -> list[Line]:
    cpu, limit = torch.device("cpu"), memory_limit()
    allowed = "no cgroup limit" if limit is None else f"{in_words(limit.total)} by its control group"
    lines = [
        Line("machine", "processor", f"{platform.machine()}, {os.cpu_count()} cores"),
        Line("machine", "torch threads", str(torch.get_num_threads())),
        Line("machine", "free memory", in_words(free_bytes(cpu))),
        Line("machine", "memory limit", allowed),
    ]
    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        return [*lines, Line("machine", "GPU", f"none seen (torch is {build})", None, "everything runs on the CPU")]
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        free, total = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        lines.append(Line("machine", f"GPU cuda:{index}", f"{name}, {in_words(free)} of {in_words(total)} free"))
    return lines


def _size(device: torch.device, dtype: torch.dtype) -> list[Line]:
    most = largest_hessian(device, dtype)
    width = int((most / 3) ** 0.5)
    kind = str(dtype).removeprefix("torch.")
    return [
        Line(
            "size",
            f"exact Hessian, {kind}, {device}",
            f"up to {most:,} parameters",
            advice=f"one attention layer up to d_model = d_k = d_v = {width}",
        )
    ]


def _tools() -> list[Line]:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    compiler = shutil.which("g++") or shutil.which("clang++")
    return [
        Line(
            "tools",
            "Chromium",
            browser or "not found",
            bool(browser) or None,
            "" if browser else "only the browser tests need it",
        ),
        Line(
            "tools",
            "C++ compiler",
            compiler or "not found",
            bool(compiler) or None,
            "" if compiler else "torch.compile on the CPU needs one",
        ),
    ]


def _traps(seed: int) -> list[Line]:
    """Known traps of this torch build, tried here and now."""
    wrong = layernorm_trap(seed)
    found = f"torch.func.hessian is {wrong:.0%} off" if wrong > 1e-6 else "torch.func.hessian is right"
    advice = "quadform uses jvp(grad) and double backward, which are right; do not trust `torch.func.hessian` here"
    lines = [Line("traps", "LayerNorm weight", found, None if wrong > 1e-6 else True, advice if wrong > 1e-6 else "")]
    if importlib.util.find_spec("triton") is None and torch.cuda.is_available():
        lines.append(
            Line(
                "traps",
                "fused attention",
                "triton is missing",
                None,
                "attention runs in plain torch, with O(L^2) memory",
            )
        )
    return lines


def layernorm_trap(seed: int = 0) -> float:
    """How far `torch.func.hessian` is from the truth through `F.layer_norm` with a weight (relative, Frobenius).

    The truth is `jacfwd(grad)`. Upstream: pytorch/pytorch#196700.
    """
    generator = stream(seed, "doctor/layernorm")
    X = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    W = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    w = torch.randn(20, generator=generator, dtype=torch.float64)

    def f(flat: torch.Tensor) -> torch.Tensor:
        weight, V = flat[:4], flat[4:].reshape(4, 4)
        return (torch.nn.functional.layer_norm(X @ V, (4,), weight=weight) @ W).square().mean()

    truth = torch.func.jacfwd(torch.func.grad(f))(w)
    return float((torch.func.hessian(f)(w) - truth).norm() / truth.norm())
