"""quadform: the curvature of neural-network losses.

Names are imported when first used: `import quadform` loads neither torch nor the figure and web libraries.
"""

from .core.lazy import attach

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Space": ".core.space",
        "Operator": ".core.operator",
        "Dense": ".core.operator",
        "Estimate": ".core.record",
        "Record": ".core.record",
        "Provenance": ".core.record",
        "Risk": ".curvature.risk",
        "hessian": ".curvature.operators",
        "gauss_newton": ".curvature.operators",
        "functional": ".curvature.operators",
        "fisher": ".curvature.operators",
        "Transformer": ".nn.transformer",
        "ModelConfig": ".core.spec",
        "BlockSpec": ".core.spec",
        "DESIGNS": ".core.designs",
        "AttentionLayer": ".theory.attention",
        "attention": ".applications.attention",
        "attention_hessian": ".applications.attention",
        "doctor": ".applications.doctor",
        "verify": ".applications.verify",
        "compare": ".applications.compare",
        "lr": ".applications.step_size",
        "why": ".applications.why",
        "toy": ".applications.attention",
        "vary": ".applications.attention",
        "explore": ".explorer.notebook",
        "spectrum": ".applications.spectrum",
        "probe": ".integrations.hf",
        "signal": ".applications.signal",
        "data": ".corpora.fetch:",
        "datasets": ".corpora.datasets:",
        "applications": ".applications:",
        "cli": ".cli:",
        "core": ".core:",
        "corpora": ".corpora:",
        "compress": ".compress:",
        "curvature": ".curvature:",
        "distributed": ".distributed:",
        "estimate": ".estimate:",
        "experiments": ".experiments:",
        "explorer": ".explorer:",
        "integrations": ".integrations:",
        "kernels": ".kernels:",
        "nn": ".nn:",
        "preconditioners": ".preconditioners:",
        "propagation": ".propagation:",
        "report": ".report:",
        "testing": ".testing:",
        "theory": ".theory:",
        "train": ".train:",
    },
)
