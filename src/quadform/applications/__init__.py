"""What people ask of the instrument: the exact Hessian of one attention layer, checks, the state of this machine."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "AttentionQuestion": ".attention.question",
        "DoctorQuestion": ".doctor.question",
        "ReportQuestion": ".study.question",
        "Vary": ".attention.question",
        "VerifyQuestion": ".verify.question",
        "attention": ".attention:",
        "attention_hessian": ".attention",
        "doctor": ".doctor:",
        "toy": ".attention",
        "vary": ".attention",
        "signal": ".signal:",
        "verify": ".verify:",
    },
)
