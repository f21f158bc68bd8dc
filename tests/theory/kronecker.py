"""Theorems 3.1 and 3.2 as the paper writes them: Kronecker, commutation and moment matrices, built outright.

The twin of the moment form in `quadform.theory`. One sequence, mean squared loss, self-attention; d, d_K, d_V are free
(the paper has d = d_V and prints neither the (K, K) nor the (V, K) block).
"""

from __future__ import annotations

import torch
from torch import Tensor

from quadform.core.matrix import commutation, khatri_rao, kron, vec
from quadform.theory import attention_moments


def kronecker_blocks(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, Y: Tensor) -> dict[tuple[str, str, str], Tensor]:
    """{("outer" | "functional", a, b): block} for (a, b) in QQ, QK, KK, VQ, VK, VV. Source: [ODS25, Thms 3.1, 3.2]."""
    (L, d), d_K, d_V = X.shape, W_Q.shape[1], W_V.shape[1]
    like = {"dtype": X.dtype}
    eye = lambda n: torch.eye(n, **like)  # noqa: E731
    sc, c = d_K**-0.5, 2 / (L * d_V)
    A = (sc * X @ W_Q @ W_K.T @ X.T).softmax(-1)
    M = attention_moments(A, X)
    R = M.M1 @ W_V - Y
    Z1 = khatri_rao(X[:, None, :], M.M2)
    Z2 = kron(eye(L), commutation(d, d, **like), eye(d)) @ khatri_rao(X[:, None, :], X[:, :, None], M.M3)
    S_V = kron(eye(d_V), commutation(d, d_V, **like)) @ kron(vec(eye(d_V))[:, None], eye(d))
    S_d = kron(eye(d), commutation(d, d, **like)) @ kron(vec(eye(d))[:, None], eye(d))
    R_ = lambda m: kron(vec(R)[None], eye(m))  # noqa: E731
    q, k = kron(eye(d), W_K), kron(W_Q, eye(d)) @ commutation(d_K, d, **like)
    Wvv = kron(eye(L), W_V @ W_V.T)
    out_Q = R_(d * d_K) @ kron(eye(L), W_V.T, eye(d), W_K.T) @ Z2
    out_K = R_(d * d_K) @ kron(eye(L), W_V.T, commutation(d_K, d, **like).T @ kron(W_Q.T, eye(d))) @ Z2
    T_functional = kron(R_(d) @ kron(eye(L), W_V.T, eye(d)) @ kron(Z1, eye(d)) @ S_d, eye(d_K))
    V_f = R_(d * d_V) @ kron(eye(L), S_V) @ Z1
    V_o = kron(M.M1.T, W_V.T) @ Z1
    QK = Z1.T @ Wvv @ Z1
    return {
        ("outer", "W_V", "W_V"): c * kron(M.M1.T @ M.M1, eye(d_V)),
        ("outer", "W_Q", "W_Q"): c * sc**2 * q.T @ QK @ q,
        ("outer", "W_Q", "W_K"): c * sc**2 * q.T @ QK @ k,
        ("outer", "W_K", "W_K"): c * sc**2 * k.T @ QK @ k,
        ("outer", "W_V", "W_Q"): c * sc * V_o @ q,
        ("outer", "W_V", "W_K"): c * sc * V_o @ k,
        ("functional", "W_V", "W_V"): torch.zeros(d * d_V, d * d_V, **like),
        ("functional", "W_Q", "W_Q"): c * sc**2 * out_Q @ q,
        ("functional", "W_Q", "W_K"): c * sc**2 * out_Q @ k + c * sc * T_functional,
        ("functional", "W_K", "W_K"): c * sc**2 * out_K @ k,
        ("functional", "W_V", "W_Q"): c * sc * V_f @ q,
        ("functional", "W_V", "W_K"): c * sc * V_f @ k,
    }
