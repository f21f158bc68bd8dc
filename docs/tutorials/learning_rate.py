# %% [markdown]
# # Which learning rate
#
# **What you will learn.** How to ask for the largest stable learning rate of a model in the middle of its training, and
# how to see what happens above it. Everything runs in seconds on a CPU.
#
# ## 1. A model in training
#
# A small network learns to multiply two numbers, with plain gradient descent on all its data. It is in float64, so that you get
# the same digits as this page.

# %%
import copy

import torch
from torch import nn

import quadform as qf

torch.manual_seed(0)
x = 2 * torch.rand(256, 2).double() - 1
y = x[:, :1] * x[:, 1:]
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).double()
loss = nn.MSELoss()


def train(model, optimizer, steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), 300)
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")

# %% [markdown]
# ## 2. Ask for the ceiling
#
# `qf.lr` measures λ_max, the largest eigenvalue of the Hessian at this point, without forming the matrix. Gradient descent with
# learning rate η multiplies an error along that direction by 1 - η λ_max in each step. The error shrinks as long as
# η < 2/λ_max. This number is the *ceiling*. `verify=0` leaves out the trial that `qf.lr` makes by itself: we do it by
# hand first.

# %%
found = qf.lr(model, [(x, y)], loss, optimizer="sgd", lr=0.1, verify=0)
print(f"λ_max {found.lambda_max.value:.2f}, ceiling {found.ceiling.value:.3f}")
print(found.table())
print()
print("\n".join(found.verdict_lines()))

# %% [markdown]
# **How to read it.** The table has one row for each optimizer whose rule is known. *Estimate* means that the number comes from
# an iteration whose error is known. The verdict compares your learning rate, 0.1, with the ceiling of your optimizer. It is
# yellow because nothing was tried yet.
#
# ## 3. See the overshoot
#
# Two copies of the model continue from here, one at half the ceiling, one at twice the ceiling.

# %%
shown = (0, 5, 10, 12, 13, 14, 15, 16)
print("step         " + "".join(f"{step:>9}" for step in shown))
for factor in (0.5, 2.0):
    twin = copy.deepcopy(model)
    sgd = torch.optim.SGD(twin.parameters(), lr=factor * found.ceiling.value)
    losses = train(twin, sgd, 17)
    values = "".join(f"{losses[step]:9.2g}" for step in shown)
    print(f"{factor:.1f} x ceiling{values}")

# %% [markdown]
# **How to read it.** At twice the ceiling, 1 - η λ_max is -3: the error along the sharpest direction changes its sign and grows
# three times in each step. It begins far below what the loss shows, so nothing is seen for ten steps. Then the
# loss rises, about nine times (3 squared) in each step. At half the ceiling the loss keeps falling.
#
# ## 4. Let quadform try it
#
# With `verify=20` (the default), `qf.lr` makes 20 steps on copies at 0.5, 1 and 2 times the ceiling, and compares the growth
# with the prediction. Your model is not changed.

# %%
found = qf.lr(model, [(x, y)], loss, optimizer="sgd", lr=0.1, verify=20)
print("\n".join(found.verdict_lines()))
print(f"a fifth of the ceiling: {found.suggest():.3f}")

# %% [markdown]
# ## 5. Adam
#
# The ceiling of Adam depends on its state: it is 38/λ_max(P⁻¹H) for β₁ = 0.9, where P is the diagonal matrix that Adam divides
# by. Give `qf.lr` the optimizer that you train with, and it reads P, the rate and the betas from it.

# %%
twin = copy.deepcopy(model)
adam = torch.optim.Adam(twin.parameters(), lr=1e-2)
losses = train(twin, adam, 100)
found = qf.lr(twin, [(x, y)], loss, optimizer=adam, verify=0)
print(f"loss {losses[-1]:.5f}, ceiling of Adam {found.ceiling.value:.4f}")
print("\n".join(found.verdict_lines()))

# %% [markdown]
# The ceiling is not a recommendation. It holds for this point and this data; noise between batches and later training lower it.
#
# ## What to try next
#
# - Give several batches: `found.interval` is the range of the ceilings on each of them alone.
# - `qf.Monitor` follows the ceiling inside your own training loop: see [watching a training run](../monitor.md).
# - `quadform lr RUN` on the command line judges a whole run, step by step: see [the guide to learning rates](../panel.md).
