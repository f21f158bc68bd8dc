# %% [markdown]
# # The Hessian of my model in five minutes
#
# **What you will learn.** How to multiply with the exact Hessian of any PyTorch model, look at one block of it, and get its
# eigenvalues with error bars. You do this first for a plain network, then for a small GPT-2 of Hugging Face.
#
# The Hessian H holds all second derivatives of the loss. For n parameters it is an n x n matrix, so for most models it
# cannot be stored. quadform never forms it: `H @ v` costs about two gradients.
#
# ## 1. A model, a loss, data

# %%
import torch
from torch import nn

import quadform as qf


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.norm = nn.Linear(4, 16), nn.LayerNorm(16)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.norm(torch.tanh(self.hidden(x))))


torch.manual_seed(0)
model = Net()
x = torch.randn(64, 4)
y = x[:, :3].argmax(1)
loss = nn.CrossEntropyLoss()

# %% [markdown]
# ## 2. The Hessian as an operator
#
# A `Risk` is the mean loss on the data as a function of the named parameters. `qf.hessian` gives its Hessian.

# %%
risk = qf.Risk(model, loss, (x, y))
H = qf.hessian(risk)
v = risk.space.random(
    generator=torch.Generator().manual_seed(0)
)  # a random direction, {name: tensor}
Hv = H @ v
print("H is", " x ".join(map(str, H.shape)))
for name, t in Hv.items():
    print(name, tuple(t.shape))

# %% [markdown]
# A vector is a dict with the names and shapes of the parameters, and so is the product. This small H can also be written
# out, whole or one block at a time. We compare the product with the matrix, then split H into its
# [Gauss-Newton part H_o and its functional part H_f](../notation.md).

# %%
matrix = H.dense()
close = torch.allclose(
    matrix @ risk.space.flatten(v), risk.space.flatten(Hv), atol=1e-5
)
print("product = matrix times vector:", close)
print(
    "block of the two linear layers:",
    tuple(H.block("hidden.weight", "out.weight").dense().shape),
)
H_o, H_f = qf.gauss_newton(risk), qf.functional(risk)
print("H = H_o + H_f:", torch.allclose(H_o.dense() + H_f.dense(), matrix, atol=1e-5))

# %% [markdown]
# ## 3. Its eigenvalues, with errors
#
# `qf.spectrum` takes the model, a list of batches and the loss. It needs products only, so it works for large models too.

# %%
found = qf.spectrum(model, [(x, y)], loss, top=3)
exact = torch.linalg.eigvalsh(matrix)
print(f"largest eigenvalues: {', '.join(f'{e.value:.4f}' for e in found.top)}")
print(f"from the matrix:     {', '.join(f'{e:.4f}' for e in exact.flip(0)[:3])}")
print(f"smallest: {found.bottom[0].value:.4f}, from the matrix {exact[0]:.4f}")

# %% [markdown]
# **How to read it.** The largest eigenvalue, λ_max, says how sharply the loss bends in its sharpest direction: plain gradient
# descent overshoots at learning rates above 2/λ_max. A negative smallest eigenvalue means that the loss bends downwards in
# some direction: this model is not at a minimum. `found.verdict_lines()` says it in words:

# %%
print("\n".join(found.verdict_lines()))

# %% [markdown]
# ## 4. A GPT-2 of Hugging Face
#
# The same calls take a Hugging Face model. It computes its own loss, so no loss is given, and a batch is the dict that the
# model is called with. This one is tiny and untrained; a model from `from_pretrained` works the same way.

# %%
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=50,
    n_positions=16,
    n_embd=32,
    n_layer=2,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
)
gpt2 = GPT2LMHeadModel(config).eval()
tokens = torch.randint(50, (4, 16))
batch = {"input_ids": tokens, "labels": tokens}

found = qf.spectrum(gpt2, [batch], top=1)
print(f"{gpt2.num_parameters():,} parameters, λ_max {found.top[0].value:.2f}")
print("\n".join(found.verdict_lines()))

# %% [markdown]
# GPT-2 keeps its query, key and value matrices in one tensor, `c_attn`. quadform names the parts `W_Q`, `W_K` and `W_V`, and
# the heads by number:

# %%
block = qf.hessian(qf.Risk(gpt2, None, batch)).block(
    "*h.0.attn.W_Q", "*h.0.attn.W_V[1]"
)
print("W_Q against the values of head 1:", " x ".join(map(str, block.shape)))

# %% [markdown]
# The map shows how curved the loss is in each of these matrices alone:

# %%
found.plot("block_map")

# %% [markdown]
# **How to read it.** Each field is the typical size (root mean square) of an eigenvalue of H(W, W), an estimate. The loss is far
# more curved in the values than in the queries and keys: no single learning rate suits both. Here the weights are so small that
# attention is nearly uniform, and hardly reacts to queries and keys.
#
# ## What to try next
#
# - `qf.spectrum(model, batches, loss, density=True)` adds the density of all eigenvalues.
# - `H.solve(b)` and `H.inverse(damping=1e-3)` solve linear systems: see [estimates and linear systems](../estimate.md).
# - [Which learning rate](learning_rate.md) turns λ_max into a learning rate.
