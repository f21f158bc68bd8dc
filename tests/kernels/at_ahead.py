"""Launches and what was compiled ahead of them, by Triton's own keys: a script, as the tests have Triton interpreted.

Nothing is compiled or run: a driver in small, of a machine that is not here, and kernels that do nothing. Prints for
each case [[whether ahead, program, key], ...] as JSON.
"""

import json
import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "0"

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction
from triton.runtime.driver import driver

from quadform.core.forward import jvp
from quadform.kernels import ahead, choice, fused, scaling
from quadform.kernels.sdpa import scaled_dot_product_attention

PROGRAMS = (
    fused._forward,
    fused._forward_tangent,
    fused._grad_rows,
    fused._grad_columns,
    scaling._tops,
    scaling._halves,
)
asked = []


class Driver:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


def compile(self, key, signature, device, constexprs, options, attrs, warmup):
    asked.append((warmup, self.__name__, str(key)))
    kernel = SimpleNamespace(run=lambda *args: None, function=None, packed_metadata=None)
    kernel.launch_metadata = lambda *args: None
    self.device_caches[device][0][key] = kernel
    return kernel


def products(q, k, v, **options):
    """Double backward, and forward over reverse, of a scalar of attention."""

    def f(q, k, v):
        return scaled_dot_product_attention(q, k, v, **options).square().sum()

    leaves = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in (q, k, v)]
    g = torch.autograd.grad(f(*leaves), leaves, create_graph=True)
    torch.autograd.grad(sum((a * b.detach()).sum() for a, b in zip(g, leaves, strict=True)), leaves)
    jvp(torch.func.grad(f, argnums=(0, 1, 2)), (q, k, v), (q, k, v))


def heads(count, dtype):
    return torch.zeros(2, 128, count, 64, dtype=dtype).transpose(1, 2)


def launched(announced=True, key_heads=4, dtype=torch.float32, **options):
    asked.clear()
    ahead._begun.clear()
    for program in PROGRAMS:
        program.device_caches.clear()
    token = choice.second_order.set(announced)
    k = heads(key_heads, dtype)
    with choice.using("triton"):
        products(heads(4, dtype), k, k.clone(), **options)
    choice.second_order.reset(token)
    return list(asked)


def broken(self, *args, **options):
    raise RuntimeError("no disk")


driver.set_active(Driver())
JITFunction._do_compile = compile
choice._obstacle = lambda *given: None
torch.set_float32_matmul_precision("high")
mask = torch.ones(2, 1, 128, 128, dtype=torch.bool)
found = {
    "causal": launched(is_causal=True),
    "masked": launched(attn_mask=mask),
    "grouped": launched(is_causal=True, key_heads=2, enable_gqa=True),
    "half": launched(is_causal=True, dtype=torch.float16),
    "biased": launched(attn_mask=mask.float()),
    "not announced": launched(announced=False, is_causal=True),
}
JITFunction.warmup = broken
found["failed"] = launched(is_causal=True)
print(json.dumps(found))
