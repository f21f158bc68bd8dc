"""Will it run here, and how large may I go. Looks, changes nothing, needs no network."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__, {"Diagnosis": ".answer", "DoctorQuestion": ".question", "doctor": ".call"}
)
