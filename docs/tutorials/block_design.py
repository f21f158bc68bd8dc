# %% [markdown]
# # My own block design
#
# **What you will learn.** A Transformer block is a value in quadform: change its fields and you have a design of your own. You
# check it, predict whether the signal survives its depth, train it beside two known designs, and compare their largest stable
# learning rates.
#
# ## 1. A block is a value
#
# This one runs attention and MLP side by side, each with weight 1/2, and mixes every token half with itself: in the symbols of
# [the notation page](../notation.md), A becomes alpha I + beta A with alpha = beta = 1/2, both learned.

# %%
import torch

import quadform as qf
from quadform.core import BlockSpec, Gain, Mixing, design

mine = BlockSpec(
    layout="parallel",
    norm="rms",
    attn=Gain(branch=0.5),
    mlp=Gain(skip=0, branch=0.5),
    mixing=Mixing(alpha=0.5, beta=0.5, learn=("alpha", "beta")),
    activation="gelu",
)
shape = {"depth": 4, "d_model": 32, "heads": 4, "vocab": 16, "seq_len": 16}
config = design(mine, **shape)
print(config.summary)

# %% [markdown]
# ## 2. Check it
#
# `check_design` tests what every design of the project keeps: no token sees a later one, padding changes nothing, decoding with a
# cache gives the same numbers, and more. It raises an error that names what is broken.

# %%
for finding in qf.testing.check_design(config, depth=24):
    print("ok" if finding.ok else "FAILED", finding.name)

# %% [markdown]
# ## 3. Does the signal survive?
#
# Through many blocks the tokens of a sentence can all turn into the same direction (*rank collapse*); then there is nothing left to
# learn from. `predict` gives the mean cosine between tokens after each block, in the limit of large width, before a weight is drawn.

# %%
designs = {"mine": mine, "pre-ln": "pre-ln", "no-skip": "no-skip"}
for name, block in designs.items():
    cosine = qf.propagation.predict(design(block, **shape), seq_len=16).tensors[
        "cosine"
    ]
    print(name.ljust(8), "  ".join(f"{c:.2f}" for c in cosine.tolist()))

# %% [markdown]
# **How to read it.** 0 means that tokens are unrelated, 1 that all are the same. `no-skip`, a stack without skip connections, has
# collapsed after a few blocks. Our design keeps its tokens further apart than Pre-LN.
#
# ## 4. Train them
#
# The task: the next token is always 5 times the last one plus 3, modulo 16. It is easy for a model whose last block still knows which
# token it stands on.

# %%


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(16, (8,), generator=generator)]
    for _ in range(15):
        tokens.append((5 * tokens[-1] + 3) % 16)
    return {"tokens": torch.stack(tokens, 1)}


models, optimizers = {}, {}
for name, block in designs.items():
    model = models[name] = qf.Transformer(
        design=block, seed=0, dtype=torch.float64, **shape
    )
    optimizer = optimizers[name] = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(30):
        optimizer.zero_grad()
        loss = model.loss(batch(step))
        loss.backward()
        optimizer.step()
    print(f"{name:8} loss after 30 steps {loss.item():.3f}")

# %% [markdown]
# ## 5. Compare the curvature
#
# The trained models answer the same questions as any other: here the signal after the last block, and the largest stable learning rate
# of AdamW.

# %%
for name, model in models.items():
    cosine = qf.signal(model, [batch(100)]).layers("cosine")[-1].value
    optimizer = optimizers[name]
    rate = qf.lr(model, [batch(100)], optimizer=optimizer, verify=0, products=12)
    print(f"{name:8} token cosine {cosine:5.2f}  ceiling {rate.ceiling.value:.2e}")

# %% [markdown]
# **How to read it.** The first two have learned the task, and their tokens point in different directions. The tokens of `no-skip` still
# all point one way, and it has learned nothing. On this batch our design is stable up to 1.8 times the learning rate of Pre-LN.
# Read a ceiling beside the loss: `no-skip` has one as well.
#
# ## What to try next
#
# - Change one field of `mine` at a time: `norm="none"`, `activation="swiglu"`, `mixing=Mixing(alpha=1, gamma=1)`.
# - [Block designs](../designs.md) lists the 21 designs of the papers, each a value like this one.
# - `quadform compare` sets named designs side by side under a time budget.
