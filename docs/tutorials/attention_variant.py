# %% [markdown]
# # My own attention variant
#
# **What you will learn.** How to get the exact Hessian of an attention variant of your own in two independent ways, check it with
# the helpers of `qf.testing`, and use the variant inside a whole Transformer. The example scores keys by their distance
# from the query.
#
# ## 1. The scores as a function
#
# Usual attention scores are q·k/√d. Here they are -|q - k|²/√d, so that a query looks at the keys near it. A score function takes
# the parameters by name and returns one number for each query and key.

# %%
import torch
from torch import nn

import quadform as qf

X, W_Q, W_K, W_V, Y = qf.toy(tokens=6, d_model=4, seed=0)


def distance_scores(theta):
    Q, K = X[None] @ theta["W_Q"], X[None] @ theta["W_K"]
    return (
        -(Q[..., :, None, :] - K[..., None, :, :]).square().sum(-1)
        / Q.shape[-1] ** 0.5
    )


layer = qf.theory.ScoreAttentionLayer(
    distance_scores, {"W_Q": W_Q, "W_K": W_K}, X, W_V, Y
)
for (a, b), norm in layer.norms().items():
    print(f"|H({a}, {b})| = {norm.value:.3f}")

# %% [markdown]
# Everything behind the scores is a closed form: `ScoreAttentionLayer` differentiates your function alone, and adds what the
# softmax and the values do. So H = H_o + H_f and its blocks are there, as in [the tutorial on attention](attention.md).
#
# ## 2. The same as a module
#
# Now the variant as you would write it for training. quadform differentiates the whole module twice.

# %%


class DistanceAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (
            nn.Parameter(W.clone()) for W in (W_Q, W_K, W_V)
        )

    def scores(self, X):
        Q, K = X @ self.W_Q, X @ self.W_K
        return (
            -(Q[..., :, None, :] - K[..., None, :, :]).square().sum(-1)
            / Q.shape[-1] ** 0.5
        )

    def forward(self, X):
        return self.scores(X).softmax(-1) @ (X @ self.W_V)


risk = qf.Risk(DistanceAttention(), nn.MSELoss(), (X, Y))
H = qf.hessian(risk)
gap = (H.dense() - layer.matrix()).abs().max() / layer.matrix().abs().max()
print("closed form = differentiated twice:", bool(gap < 1e-12))

# %% [markdown]
# ## 3. Check it
#
# `check_operator` tests everything that an operator promises: linear, symmetric, the same result twice, blocks equal to slices of the
# matrix. It raises an error that names what is broken.

# %%
findings = qf.testing.check_operator(H)
held = sum(finding.ok for finding in findings)
print(f"{held} of {len(findings)} properties hold, among them:")
for finding in findings[3:8]:
    print(" ", finding.name)

# %% [markdown]
# ## 4. What goes wrong
#
# Fast kernels often come with a backward pass written by hand that cannot be differentiated again. torch then returns a wrong second
# derivative without a word. quadform looks for this and refuses:

# %%


class Fast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, T):
        A = T.softmax(-1)
        ctx.save_for_backward(A)
        return A

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (A,) = ctx.saved_tensors
        return A * (g - (A * g).sum(-1, keepdim=True))


class FastAttention(DistanceAttention):
    def forward(self, X):
        return Fast.apply(self.scores(X)) @ (X @ self.W_V)


try:
    qf.hessian(qf.Risk(FastAttention(), nn.MSELoss(), (X, Y))).dense()
except Exception as error:
    print(f"{type(error).__name__}: {error}")

# %% [markdown]
# Write such a backward pass with differentiable operations and leave out `once_differentiable`, or use plain torch while measuring.
#
# ## 5. Inside a Transformer
#
# `model.attend` is the attention of all layers of a `qf.Transformer`. A replacement takes queries, keys and values of shape
# (batch, heads, tokens, width) and the keywords below.

# %%


def distance_attend(q, k, v, *, causal=False, mask=None, bias=None, scale=None):
    T = -(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) * (
        scale or q.shape[-1] ** -0.5
    )
    T = T if bias is None else T + bias
    if causal and mask is None:
        mask = torch.ones(T.shape[-2:], dtype=torch.bool).tril()
    return (T if mask is None else T.masked_fill(~mask, float("-inf"))).softmax(
        -1
    ) @ v


tokens = torch.randint(16, (8, 12), generator=torch.Generator().manual_seed(0))
model = qf.Transformer(
    design="pre-ln",
    depth=2,
    d_model=16,
    heads=2,
    vocab=16,
    seed=0,
    dtype=torch.float64,
)
for name in ("dot product", "distance"):
    if name == "distance":
        model.attend = distance_attend
    found = qf.spectrum(model, [{"tokens": tokens}], top=1, bottom=0)
    loss = model.loss({"tokens": tokens}).item()
    print(f"{name:12} loss {loss:.3f}  λ_max {found.top[0].value:.2f}")

# %% [markdown]
# ## What to try next
#
# - Learned parameters of the scores, such as a temperature, are further entries of `theta`.
# - Rotary positions, ALiBi, soft caps and sinks are score functions too: see [closed forms](../theory.md).
# - [Hessian operators](../curvature.md) says what is checked before a Hessian is computed.
