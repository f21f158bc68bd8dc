# %% [markdown]
# # What does attention's Hessian look like
#
# **What you will learn.** The Hessian of one attention head has a closed form, and its blocks between queries, keys and
# values behave very differently. You build it, look at it, and measure how each block grows with the size of the input.
#
# ## 1. One head with a closed form
#
# The head computes F = softmax(X W_Q W_Kᵀ Xᵀ / √d) X W_V and is compared with targets Y by the mean squared loss.
# `qf.toy` draws a small problem in float64. The symbols are those of [the notation page](../notation.md).

# %%

import quadform as qf

X, W_Q, W_K, W_V, Y = qf.toy(tokens=6, d_model=4, seed=0)
layer = qf.attention_hessian(X, W_Q, W_K, W_V, Y)
H = layer.matrix()
print("X", tuple(X.shape), "W_Q", tuple(W_Q.shape), "-> H", tuple(H.shape))

# %% [markdown]
# No product and no differentiation was needed: the entries are written down from a formula (Ormaniec, Dangel and Singh, *What
# Does It Mean to Be a Transformer?*, ICLR 2025). `check` compares them with automatic differentiation.

# %%
print("as automatic differentiation says:", layer.check().value < 1e-12)

# %% [markdown]
# ## 2. Two parts, six blocks
#
# H is the sum of the Gauss-Newton part H_o ("outer") and the functional part H_f. Each has a block for each pair of matrices.

# %%
outer, functional = layer.norms("outer"), layer.norms("functional")
print(f"{'block':12}{'|H_o|':>8}{'|H_f|':>8}")
for a, b in outer:
    print(f"{a} {b:8}{outer[a, b].value:8.3f}{functional[a, b].value:8.3f}")

# %% [markdown]
# **How to read it.** H_f(W_V, W_V) is exactly 0, because the output is linear in W_V. The other blocks of H_f are not small:
# an optimizer that uses H_o alone does not see them. The norms are exact.
#
# ## 3. A picture
#
# `qf.attention` measures such a head and draws it. Rows and columns are the entries of W_Q, W_K and W_V.

# %%
found = qf.attention(tokens=6, d_model=4, seed=0)
found.plot("heat_map")

# %% [markdown]
# **How to read it.** Violet entries are positive, brown ones negative; the darker, the larger. The block H(W_V, W_V) is sparse, because
# the columns of W_V do not interact. The hatched square is the block that is exactly 0.

# %%
eigenvalues = found.eigenvalues("total")
low, high = eigenvalues.min(), eigenvalues.max()
print(f"{len(eigenvalues)} eigenvalues from {low:.2f} to {high:.2f}")
print(f"{(eigenvalues < -1e-12).sum()} are negative")
print(f"H_f over H: {found.whole_norm('functional') / found.whole_norm('total'):.2f}")

# %% [markdown]
# A head is far from convex: many directions bend downwards. The last number says that Gauss-Newton misses most of H here.
#
# ## 4. How the blocks grow with the input
#
# Now the tokens are multiplied by a factor. In log-log scale each block norm is a line; its slope is the exponent.

# %%
sweep = qf.vary(layer, "scale", 0.01, 0.1)
for part in ("outer", "functional"):
    slopes = sweep.slopes(part)
    print(
        part.ljust(11),
        "  ".join(f"{a[-1]}{b[-1]} {power:.2f}" for (a, b), power in slopes.items()),
    )

# %%
found.plot("growth")

# %% [markdown]
# **How to read it.** If the input doubles, H_o(W_Q, W_Q) grows 2⁶ = 64 times and H_o(W_V, W_V) only 4 times. So the blocks of
# one layer can differ by orders of magnitude, and no single learning rate suits all. Normalisation layers fix the size of X, and Adam
# has a rate for each weight. For large inputs (yellow) attention looks at one token only, and the curvature in queries and keys dies.
#
# ## 5. Without the softmax
#
# The same head without its softmax is a cubic function of X, and all blocks of H_o grow alike:

# %%
linear = qf.attention(tokens=6, d_model=4, seed=0, attention="linear")
print(
    "outer  ",
    "  ".join(
        f"{name} {linear.slope('outer', name).value:.2f}" for name in linear.blocks
    ),
)

# %% [markdown]
# ## What to try next
#
# - `quadform explore` opens a page with sliders for scale, temperature, tokens and masks: see [the live page](../explorer.md).
# - `qf.theory.MultiHeadAttentionLayer` has the same for several heads and an output matrix: see [closed forms](../theory.md).
# - [My own attention variant](attention_variant.md) takes any score function.
