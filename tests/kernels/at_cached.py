"""A compiled program in a process of its own: prints how much of it the compiler had on disk."""

import json

import torch
from torch._dynamo.utils import counters
from torch.func import grad

from quadform.core.forward import jvp
from quadform.kernels.programs import program

x, v = torch.linspace(-1, 1, 5), torch.ones(5)
product = program(lambda x, v: jvp(grad(lambda x: x.pow(4).sum()), (x,), (v,))[1], x, v)
assert torch.allclose(product(x, v), 12 * x**2)
spread = torch.linspace(-1, 1, 9)[::2]  # the same numbers, laid out otherwise: code of its own
assert torch.allclose(product(spread, v), 12 * x**2)
found = counters["inductor"]
print(json.dumps({"hit": found["fxgraph_cache_hit"], "miss": found["fxgraph_cache_miss"]}))
