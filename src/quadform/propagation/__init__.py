"""Does the signal survive depth? Pure mathematics on kernel matrices: shaping, collapse measures, mean-field maps."""

from quadform.core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "shaping": ".shaping:",
        "collapse": ".collapse:",
        "kernels": ".kernels:",
        "predict": ".profile",
        "layer_kernels": ".profile",
        "dual": ".duals",
        "u_spa_target": ".shaping",
        "e_spa_target": ".shaping",
        "u_spa_factor": ".shaping",
        "e_spa_factor": ".shaping",
        "u_spa_schedule": ".shaping",
        "e_spa_schedule": ".shaping",
        "spa_matrix": ".shaping",
        "spa_bias": ".shaping",
        "centring": ".mixing",
        "running_mean": ".mixing",
        "mix": ".mixing",
        "activations": ".activations:",
        "design": ".designer",
        "Health": ".designer",
        "reparam": ".reparam:",
        "TokenCollapse": ".collapse",
        "AttentionCollapse": ".collapse",
        "NormRatio": ".collapse",
        "MeanKernel": ".collapse",
        "repeat_kernel": ".collapse",
    },
)
