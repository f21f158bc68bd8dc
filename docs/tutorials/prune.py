# %% [markdown]
# # Prune and quantize with the Hessian
#
# **What you will learn.** How to take half of the weights out of a trained network, or store them with 3 bits each, and
# what that costs. The Hessian predicts the cost before you pay it, and says how the other weights can make up for the loss.
#
# ## 1. A trained network
#
# In float64, so that you get the same digits as this page.

# %%
import torch
from torch import nn

import quadform as qf

torch.manual_seed(0)
x = torch.randn(8, 64, 6).double()
y = x[..., :1] * x[..., 1:2] + x[..., 2:3]
model = nn.Sequential(
    nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1)
).double()
loss = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(300):
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()

batches = list(zip(x, y, strict=True))
count = sum(p.numel() for p in model.parameters())
print(f"loss {loss(model(x), y).item():.4f} with {count} parameters")

# %% [markdown]
# ## 2. Take half of the weights away
#
# `qf.prune` tries several methods. For each it predicts the rise of the loss from gradient and Hessian, and measures it on batches
# that the method has not seen (the last quarter). Your model is not changed.

# %%
found = qf.prune(
    model, batches, loss, sparsity=0.5, method=("magnitude", "sparsegpt", "hessian")
)
print(found.table())
print(found.said())

# %%
found.plot()

# %% [markdown]
# **How to read it.** *predicted* is the rise of the loss in the quadratic model, *measured* the rise of the loss itself, *held* the
# rise on the batches held out. `magnitude` takes the smallest weights and leaves the others. `sparsegpt` lets the other weights of
# the same matrix make up for those that go. `hessian` lets all matrices do so together: terms between layers count.
#
# ## 3. Use the result
#
# `found.weights` are the matrices of the best method. A copy of the model takes them like any state dict.

# %%
import copy

smaller = copy.deepcopy(model)
smaller.load_state_dict(found.weights, strict=False)
zeros = sum(int((w == 0).sum()) for w in found.weights.values())
count = sum(w.numel() for w in found.weights.values())
print(f"{zeros} of {count} weights are 0, loss {loss(smaller(x), y).item():.4f}")

# %% [markdown]
# ## 4. Fewer bits instead
#
# `qf.quantize` rounds the same matrices to whole numbers of 3 bits. Each 16 weights of a row share a scale and a zero point,
# which are counted in the column *bits*.

# %%
rounded = qf.quantize(model, batches, loss, bits=3, group=16)
print(rounded.table())
print(rounded.said())

# %% [markdown]
# **How to read it.** `rtn` rounds each weight to the nearest number. `gptq` lets later columns of a matrix make up for the error of
# earlier ones. `hessian` moves all matrices that are not rounded yet to where the Hessian says that the loss is least.
#
# ## What to try next
#
# - `structure="2:4"`, `"rows"` or `"heads"` takes away what hardware can use: see [the guide to compression](../compress.md).
# - `qf.quantize(..., budget=4)` gives sensitive matrices more bits than others, under one mean.
# - `quadform prune RUN --out FOLDER` writes a model that every other command opens.
