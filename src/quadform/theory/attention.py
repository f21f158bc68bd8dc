"""The exact Hessian of one softmax attention head, every block, in moment form.

    F = A Z W_V,   A = softmax_rows(T),   T = X W_Q (Z W_K)^T / (t sqrt(d_K)) + bias,   Z = X or another sequence

Per token n, with the centred moments M1, M2 of its attention row, g = dl/dF, N = M3 contracted with W_V g, and
sc = 1/(t sqrt(d_K)):

    J_Q = x^T kron P,  P = sc W_V^T M2 W_K       J_K[o, (s, v)] = B[o, s] q_v,  B = sc W_V^T M2       J_V = m^T kron I
    H_o(a, b) = sum_n J_a^T (d2l/dF2) J_b
    H_f(Q, Q) = sc^2 sum x x^T kron W_K^T N W_K            H_f(K, K)[(s,v),(s',v')] = sc^2 sum N[s,s'] q_v q_v'
    H_f(K, Q)[(s,w),(a,v)] = sc^2 sum q_w x_a (N W_K)[s,v] + delta_vw G[a,s],   G = sc sum x u^T = dL/d(W_Q W_K^T)
    H_f(V, Q)[(a,o),(b,v)] = sc sum g_o x_b (M2 W_K)[a,v]  H_f(V, K)[(a,o),(s,v)] = sc sum g_o q_v M2[a,s]
    H_f(V, V) = 0

Source: [ODS25, Thms 3.1, 3.2] with d, d_K, d_V independent, rewritten without Kronecker or commutation matrices; masks,
cross-attention, temperature, biases and general losses are [own]. The Kronecker form is its twin in the tests.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from ..core.operator import Operator
from ..core.space import Space, Vector
from .head import Factor, Head, as_batch, score_bias
from .layer import Part
from .loss import OutputLoss, output_loss
from .moments import Moments, attention_moments
from .softmax import SoftmaxLayer, with_biases
from .terms import Term, is_identity

if TYPE_CHECKING:
    from jaxtyping import Float


class AttentionLayer(SoftmaxLayer):
    """One softmax attention head at a point, with its loss: blocks, operators, norms, products, all exact.

    The loss is a mean over all tokens (and, for MSE, outputs) of the batch.

    Args:
        X: Tokens `(tokens, d)` or `(batch, tokens, d)`.
        W_Q, W_K, W_V: Weights, used as `X @ W_Q`.
        Y: Targets of the loss.
        b_Q, b_K, b_V: Biases; those that are given are parameters after the weights.
        mask: `"causal"`, a boolean tensor (True = may be seen) or a float tensor added to the scores, of shape
            `(tokens, keys)` or `(batch, tokens, keys)`.
        temperature: Divides the scores.
        context: Where keys and values come from in cross-attention, `(..., keys, d_Z)`.
        loss: `"mse"`, `"cross-entropy"`, or `(g, Hl)`: the gradient at the output and its Hessian, one matrix per token
            or an operator over all outputs (any network behind the layer).
        token_weights: `(batch, tokens)`. A token of weight 0 may see no key (causal masks with padding on the left).
        prefix: Stands before the names of the parameters.
    """

    single = True

    def __init__(
        self,
        X: Float[Tensor, "*batch tokens d"],
        W_Q: Float[Tensor, "d d_K"],
        W_K: Float[Tensor, "d_Z d_K"],
        W_V: Float[Tensor, "d_Z d_V"],
        Y: Tensor | None = None,
        *,
        b_Q: Float[Tensor, " d_K"] | None = None,
        b_K: Float[Tensor, " d_K"] | None = None,
        b_V: Float[Tensor, " d_V"] | None = None,
        mask: Literal["causal"] | Tensor | None = None,
        temperature: float = 1.0,
        context: Float[Tensor, "*batch keys d_Z"] | None = None,
        loss: str | tuple[Tensor, Tensor | Operator] = "mse",
        token_weights: Float[Tensor, "*batch tokens"] | None = None,
        prefix: str = "",
    ) -> None:
        X, Z = as_batch("X", X), as_batch("context", X if context is None else context)
        self.temperature = float(temperature)
        weights = {"W_Q": W_Q, "W_K": W_K, "W_V": W_V}
        X, Z, self.whole, biases = with_biases(X, Z, weights, {"b_Q": b_Q, "b_K": b_K, "b_V": b_V})
        self.weights, self.groups = {**weights, **biases}, [[0]]
        W_Q, W_K, W_V = self.whole.values()
        self.head = Head(X, Z, W_Q, W_K, W_V, score_bias(mask, X, Z), temperature=self.temperature)
        self.prefix = prefix
        self.space = Space.of(self.weights).rename(prefix)
        self.output: OutputLoss = output_loss(loss, self.head.F, Y, token_weights)
        self.head.see(self.output.g, self.output.counted())

    @cached_property
    def _curvatures(self) -> dict[Part, tuple[Tensor, Tensor]]:
        return {}

    @property
    def heads(self) -> list[Head]:  # type: ignore[override]  # made when asked for
        return [self.head]

    @property
    def A(self) -> Tensor:
        """The attention matrix, `(batch, tokens, keys)`."""
        return self.head.A

    def moments(self) -> Moments:
        """M1 `(batch, tokens, d)`, M2 `(..., d, d)`, M3 `(..., d^2, d)`; for small widths: nothing else builds M3."""
        return attention_moments(self.head.A, self.head.Z[..., : self.weights["W_K"].shape[0]])

    def at(self, name: str, h: int) -> tuple[slice, slice]:
        return slice(None), slice(None)

    def factor(self, name: str, h: int = 0) -> Factor:
        return self.head.factor(name)

    # --- Theorems 3.1 and 3.2 ---------------------------------------------------------------------------------------
    def whole_terms(self, part: Part, a: str, b: str) -> list[Term]:
        h, x, q = self.head, self.head.x, self.head.q
        if a == "W_V":
            outer = [] if part == "functional" else [outer_term(h.factor(a), h.factor(b), self.output)]
            return outer if part == "outer" else outer + h.functional_terms(a, b)
        S, SK = self._score_curvature(part)
        if b == "W_K":
            return [Term(q, q, S, False, False, h.span_z, h.span_z, symmetric=True)]
        if a == "W_Q":
            return [Term(x, x, h.W_K.T @ SK, True, True, h.span_k, h.span_k, symmetric=True)]
        through_scores = Term(q, x, SK, False, True, h.span_z, h.span_k)
        return [through_scores] if part == "outer" else [through_scores, h.t_functional()]

    def _score_curvature(self, part: Part) -> tuple[Tensor, Tensor]:
        """S_n = B^T (d2l/dF2) B + sc^2 N (or one of the two), `(N, d_Z, d_Z)`, and S_n W_K. The blocks of W_Q and W_K
        need no more, since the scores see these weights through `x^T W_Q W_K^T z` alone."""
        if part not in self._curvatures:
            h = self.head
            S = h.sc**2 * h.N if part == "functional" else h.B.mT @ self.output.hessian_times(h.B)
            if part == "total":
                S.add_(h.N, alpha=h.sc**2)
            self._curvatures[part] = S, S @ h.W_K
        return self._curvatures[part]

    def whole_products(self, V: Vector, part: Part, *, bend: bool = True) -> dict[str, Tensor]:
        return self.head.products(V, part, self.output, bend=bend)

    def whole_gradients(self) -> dict[str, Tensor]:
        return self.head.gradients()

    def whole_forward(self, whole: Vector) -> Tensor:
        return self.head.forward(whole["W_Q"], whole["W_K"], whole["W_V"])


def outer_term(a: Factor, b: Factor, output: OutputLoss) -> Term:
    """`sum_n J_a^T (d2l/dF2) J_b` for a token-wise loss: vectors stay, the small matrix is `R_a^T Hl R_b`."""
    shared = output.shared_matrix()
    if shared is not None and b.R.shape[0] == 1:
        HlR = shared @ b.R
    else:
        HlR = output.hessian_times(b.R.expand(output.g.shape[0], -1, -1))
    rows = a.span
    if (
        rows is None and shared is not None and a.R.shape[0] == 1
    ):  # Hl is c I: the rows of R_b's columns keep their space
        rows = b.image
    E = HlR if is_identity(a.R) else a.R.mT @ HlR
    return Term(a.l, b.l, E, a.vector_first, b.vector_first, rows, b.span, symmetric=a is b)
