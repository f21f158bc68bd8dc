"""The lecture: the Transformer step by step in the browser, every number computed by quadform. `quadform teach`."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "STEPS": ".course",
        "sentence_model": ".words",
        "attention_maps": ".maps",
        "DATA": ".pupil",
        "number_config": ".pupil",
        "number_model": ".pupil",
        "source_of": ".pupil",
        "target_of": ".pupil",
        "trained_model": ".pupil",
    },
)
