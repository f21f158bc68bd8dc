"""Closed forms on explicit tensors: the exact Hessian of attention and of what it is compared with."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "AttentionLayer": ".attention",
        "MultiHeadAttentionLayer": ".multihead",
        "ScoreAttentionLayer": ".scores",
        "LinearAttentionLayer": ".linear_attention",
        "MergedLayer": ".merged_qk",
        "ScoreSplit": ".score_split",
        "score_gradient": ".score_split",
        "Gauge": ".gauge",
        "balance": ".balancing",
        "bulk": ".gauge",
        "flattest": ".balancing",
        "gauges": ".gauge",
        "layer_bulk": ".gauge",
        "LinearMLP": ".mlp",
        "HiddenLayerMLP": ".mlp",
        "convolution": ".mlp",
        "linear_mlp_ranks": ".mlp",
        "DeepLinearTransformer": ".deep_linear",
        "ScalarTokenModel": ".scalar_token",
        "kronecker_errors": ".kronecker",
        "GrowthModel": ".growth",
        "Moments": ".moments",
        "attention_moments": ".moments",
        "Term": ".terms",
    },
)
