# %% [markdown]
# # A sharded model
#
# **What you will learn.** How to measure a model whose weights `fully_shard` (FSDP2) has cut over several processes, as one does when
# it does not fit one device. The example runs two processes on the CPU; on GPUs only the device changes.
#
# ## 1. The script of each process
#
# `torchrun` starts the same script several times, so we write it to a file. It cuts a small Transformer block by block, as for
# training. Each process has its own batch. The calls of quadform are those of any other model.

# %%
import subprocess
import sys
from pathlib import Path

import torch

import quadform as qf
from quadform.estimate import eigenpairs

WORKER = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import quadform as qf
from quadform.estimate import eigenpairs

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
tokens = torch.randint(16, (8, 12))
model = qf.Transformer(design="pre-ln", depth=2, d_model=16, heads=2, vocab=16)

mesh = init_device_mesh("cpu", (world,))
for block in model.layers:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)

batch = {"tokens": tokens[rank::world]}  # every process its own rows
risk = qf.Risk(model, None, [batch])
pairs = eigenpairs(qf.hessian(risk), top=2)
if rank == 0:
    held = sum(p.to_local().numel() for p in model.parameters())
    whole = sum(p.numel() for p in model.parameters())
    print(f"{world} processes; the first holds {held:,} of {whole:,} weights")
    print("largest eigenvalues:", "  ".join(f"{e.value:.4f}" for e in pairs.top))
dist.destroy_process_group()
"""

# %% [markdown]
# ## 2. Run it on two processes

# %%
script = Path("worker.py")
script.write_text(WORKER)
command = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    str(script),
]
done = subprocess.run(command, capture_output=True, text=True)
print(done.stdout if done.returncode == 0 else done.stderr)

# %% [markdown]
# Each process gathers the weights of one block while that block runs, and keeps its shard of every vector. Nothing of the model is changed:
# training with FSDP2 continues afterwards.
#
# ## 3. The same in one process
#
# The whole model on all the data gives the same numbers, to rounding:

# %%
torch.manual_seed(0)
tokens = torch.randint(16, (8, 12))
model = qf.Transformer(design="pre-ln", depth=2, d_model=16, heads=2, vocab=16)
risk = qf.Risk(model, None, [{"tokens": tokens}])
pairs = eigenpairs(qf.hessian(risk), top=2)
print("largest eigenvalues:", "  ".join(f"{e.value:.4f}" for e in pairs.top))

# %% [markdown]
# ## What to know
#
# - Every process makes the same calls in the same order, as with FSDP2 itself.
# - `qf.spectrum(model, batches, loss)` and `qf.lr(model, batches, loss, optimizer=optimizer)` take a sharded model as they stand.
# - A vector is `{name: shard}` in each process; `risk.space.inner(u, v)` adds up over all of them.
#
# ## What to try next
#
# - `torchrun --nproc-per-node 8 --no-python quadform spectrum MODEL --device cuda --fsdp` does all this from the command line.
# - [Sharded models](../distributed.md): which questions take sharded models, splitting data only, and the cost of a product.
# - [Sharded models in a trainer](../distributed-trainers.md): inside torchtitan, accelerate and Lightning.
