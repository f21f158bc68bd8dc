# %% [markdown]
# # Which optimizer
#
# **What you will learn.** Optimizers differ in the metric P that they divide the gradient by. You see how the Hessian looks
# in the metric of SGD, Adam, Shampoo and K-FAC, which of them gains most in one step, and whether that shows in training.
#
# ## 1. A model whose inputs have different sizes
#
# Six inputs from size 3 down to size 0.3; the label depends on the largest and the smallest. Plain gradient descent
# learns from the large input first and is slow on the small one. The model is in float64, so that you get the same digits
# as this page.

# %%
import copy

import torch
from torch import nn

import quadform as qf

torch.manual_seed(0)
x = torch.randn(4, 64, 6).double() * torch.logspace(0, -1, 6) * 10 / 3
y = (x[..., 0] + 10 * x[..., 5] > 0).long()
batches = list(zip(x, y, strict=True))
loss = nn.CrossEntropyLoss()
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def train(model, optimizer, steps):
    for step in range(steps):
        inputs, labels = batches[step % 4]
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()
    with torch.no_grad():
        return loss(model(x.flatten(0, 1)), y.flatten()).item()


final = train(model, torch.optim.SGD(model.parameters(), lr=0.1), 200)
print(f"loss after 200 steps of SGD: {final:.3f}")

# %% [markdown]
# ## 2. The Hessian in four metrics
#
# An optimizer that steps along P⁻¹g sees the Hessian P^(-1/2) H P^(-1/2). The rounder that is, the more one learning rate suits all
# directions. `qf.precond` measures it for each P. P is built from the gradients of the batches, the weights held fixed.

# %%
found = qf.precond(
    model, batches, loss, methods=("none", "adam", "shampoo", "kfac"), products=40
)
names = ("preconditioner", "directions", "ceiling", "predicted fall", "measured fall")
print("".join(f"{name:>16}" for name in names))
for row in zip(*map(found.table().column, names), strict=True):
    print("".join(f"{v:>16}" if isinstance(v, str) else f"{v:16.3g}" for v in row))

# %% [markdown]
# **How to read it.** *directions* is the number of directions that share the curvature: the larger, the rounder. *predicted
# fall* is how far the best step along P⁻¹g lowers the quadratic model of the loss, *measured fall* what that step does to the
# loss itself. Where the two agree, the quadratic model can be trusted for that step. *ceiling* is the largest stable learning rate
# of a step along P⁻¹g; it is in units of each P, so ceilings of different P cannot be compared.

# %%
print("\n".join(found.verdict_lines()))

# %%
found.plot()

# %% [markdown]
# ## 3. Does it show in training?
#
# The ranking is about one step from one point. Copies of the model continue with SGD and with Adam, each at half of its own
# largest stable rate.

# %%
for name, make in (("none", torch.optim.SGD), ("adam", torch.optim.Adam)):
    twin = copy.deepcopy(model)
    rate = found.by(name).ceiling.value / 2
    final = train(twin, make(twin.parameters(), lr=rate), 40)
    print(f"{make.__name__:5} at {rate:.3f}: loss after 40 steps {final:.3f}")

# %% [markdown]
# ## 4. Take a step by hand
#
# Every preconditioner is an operator with a closed-form inverse. A K-FAC step is one line:

# %%
from quadform import preconditioners as pre

risk = qf.Risk(model, loss, batches)
P = pre.kfac(risk, scores="exact")
step = P.inverse(damping=0.1) @ risk.gradient()
with torch.no_grad():
    for name, weight in model.named_parameters():
        weight -= step[name]
    final = loss(model(x.flatten(0, 1)), y.flatten()).item()
print(f"loss after one K-FAC step: {final:.3f}")

# %% [markdown]
# ## What to try next
#
# - `qf.precond(model, batches, loss)` compares all ten metrics; `optimizer_state=FILE` reads Adam's P from a checkpoint.
# - [The guide to preconditioners](../preconditioners.md) lists the formula of each P and what *damping* means.
# - `qf.optim` has Newton and Gauss-Newton steps that are shaped like `torch.optim`.
