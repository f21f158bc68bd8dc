"""How far one Kronecker product is from a Gauss-Newton block of attention: K-FAC, Shampoo and the nearest one, exact.

A diagonal block of H_o is a sum over query tokens, H = sum_n l_n l_n^T (x) E_n (`terms`), with l = x, q, m for W_Q,
W_K, W_V. Without sampling:

    K-FAC      A (x) B, A the mean of x x^T over the tokens that the weight is applied to, and with a_nj the attention
               B_Q = sum_n E_n     B_K = sc^2 sum_nj a_nj^2 ((v_j - F_n)^T Hl_n (v_j - F_n)) q_n q_n^T
               B_V = sum_n (sum_j a_nj^2) Hl_n                                         Hl_n = d2l/dF_n2
      reduce   A from the mean token of each sequence, B_V = sum_n Hl_n, and B_K = 0: adding one vector to all keys
               changes no attention
    Shampoo    L = sum_n tr(E_n) l l^T, R = sum_n |l|^2 E_n, the partial traces of H:  c L^1/2 (x) R^1/2, since
               Shampoo divides by L^1/4 (x) R^1/4 where Newton would by H^1/2, with the best c, which its learning rate
               absorbs;  one power step: L (x) R / tr H
    nearest    the best of all A (x) B: error^2 = sum_{i>1} s_i^2 / sum_i s_i^2 of the rearranged block

Source: K-FAC [EIT23]; Shampoo [GKS18], L (x) R / tr H [MSV24]; closed forms for attention [own].
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..core.errors import InputError
from .attention import AttentionLayer
from .norms import block_norm
from .terms import Term
from .writing import block as write

#: Kronecker products a block is compared with, in the order they are told.
KINDS = ("K-FAC expand", "K-FAC reduce", "Shampoo", "Shampoo, one power step", "nearest")
#: Entries of a block up to which it is written out and compared entry by entry.
WRITTEN = 1 << 16


@torch.no_grad()
def kronecker_errors(layer: AttentionLayer) -> dict[str, dict[str, float]]:
    """|K - H_o(W, W)|_F / |H_o(W, W)|_F of every kind of Kronecker product K, for each weight of a head."""
    if not isinstance(layer, AttentionLayer):
        raise InputError(f"errors of Kronecker products are available for AttentionLayer; got {type(layer).__name__}.")
    if not layer.output.token_wise or not layer.output.convex:
        raise InputError("factors of K-FAC and Shampoo need a token-wise convex loss behind the layer.")
    if set(layer.weights) != {"W_Q", "W_K", "W_V"}:
        raise InputError("errors of Kronecker products are known for a head without biases.")
    return {name: _errors(layer, name) for name in layer.weights}


def kfac_factors(layer: AttentionLayer, name: str, sharing: str = "expand") -> tuple[Tensor, Tensor]:
    """A `(d, d)` and B `(d_out, d_out)` of K-FAC with exact scores: H_o(W, W) is near A (x) B, W stored (in, out)."""
    h, Hl = layer.head, layer.output.token_matrices()
    reduce = sharing == "reduce"
    X = h.X if name == "W_Q" else h.Z
    rows = X.mean(1) if reduce else X.flatten(0, 1)
    A = rows.T @ rows / len(rows)
    a = h.A.flatten(0, 1)
    if name == "W_Q":
        B = _term(layer, name).E.sum(0)
    elif name == "W_V":
        share = a.sum(-1).square() if reduce else a.square().sum(-1)
        B = (share[:, None, None] * Hl).sum(0)
    else:
        off = h.V[:, None] - h.F.view(*h.A.shape[:2], 1, -1)  # v_j - F_n, (b, i, j, d_V)
        off = off.flatten(0, 1)
        weight = torch.einsum("nj,njo,nop,njp->n", a.square(), off, Hl.expand(len(a), -1, -1), off)
        B = h.sc**2 * torch.einsum("n,nv,nw->vw", weight, h.q, h.q) * (not reduce)
    return A, B


def _term(layer: AttentionLayer, name: str) -> Term:
    (term,) = layer.whole_terms("outer", name, name)
    N = len(term.r)
    return Term(term.r, term.c, term.E.expand(N, -1, -1), term.rows_vector_first, term.cols_vector_first)


def _errors(layer: AttentionLayer, name: str) -> dict[str, float]:
    H = _term(layer, name)
    unit = H.E.abs().max()  # errors are relative: in units of the largest entry no square leaves floating point
    H = replace(H, E=H.E / unit)
    D = _written(H)
    size = _distance(H, D) if unit > torch.finfo(unit.dtype).tiny else 0.0
    if size == 0:
        raise InputError(f"H_o({name}, {name}) is 0 at this point; so relative errors are undefined.")
    traces = H.E.diagonal(dim1=1, dim2=2).sum(1)
    L = torch.einsum("n,np,nq->pq", traces, H.r, H.r)
    R = torch.einsum("n,nef->ef", H.r.square().sum(1), H.E)
    if not H.rows_vector_first:
        L, R = R, L
    near = {}
    for sharing in ("expand", "reduce"):
        A, B = kfac_factors(layer, name, sharing)
        near[f"K-FAC {sharing}"] = A, B / unit
    near |= {"Shampoo": _scaled(H, _root(L), _root(R)), "Shampoo, one power step": (L, R / L.trace())}
    errors = {kind: _distance(H, D, pair) / size for kind, pair in near.items()}
    return {kind: errors[kind] if kind in errors else _nearest(H) for kind in KINDS}


def _written(H: Term) -> Tensor | None:
    """A small block with the axes (in, out, in, out); None of one that is not formed."""
    sides = H.r.shape[1], H.E.shape[1]
    n, m = sides if H.rows_vector_first else sides[::-1]
    if (n * m) ** 2 > WRITTEN:
        return None
    write([H], out := H.E.new_empty(n, m, n, m))
    return out


def _distance(H: Term, D: Tensor | None, pair: tuple[Tensor, Tensor] | None = None) -> float:
    """|H - A (x) B|_F, and |H|_F without a pair. `D` is H written out."""
    if D is None:
        return block_norm([[H, *([_negative(*pair)] if pair else [])]]).value
    return float((D - torch.einsum("ik,op->iokp", *pair) if pair else D).norm())


def _scaled(H: Term, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """A and B with the factor c that brings c A (x) B nearest to H: <H, A (x) B> / |A (x) B|^2."""
    of_vector, of_matrix = (A, B) if H.rows_vector_first else (B, A)
    inner = torch.einsum("np,pq,nq,nef,ef->", H.r, of_vector, H.r, H.E, of_matrix)
    return inner / (A.square().sum() * B.square().sum()) * A, B


def _negative(A: Tensor, B: Tensor) -> Term:
    """-A (x) B as a term: the columns of a root of A are its vectors."""
    r = _root(A)
    return Term(r, r, -B[None])


def _nearest(H: Term) -> float:
    """The error of the best Kronecker product. The squares of the singular values of sum_n vec(l l^T) vec(E_n)^T are
    the eigenvalues of a product of two Gram matrices over tokens. Source: [VLP93]."""
    G_l, E = (H.r @ H.r.T).square(), H.E.flatten(1)
    root = _root(G_l)
    squares = torch.linalg.eigvalsh(root @ (E @ E.T) @ root).clamp_min(0)
    return float((squares[:-1].sum() / squares.sum()).sqrt())


def _root(M: Tensor) -> Tensor:
    s, U = torch.linalg.eigh(M)
    return (U * s.clamp_min(0).sqrt()) @ U.T
