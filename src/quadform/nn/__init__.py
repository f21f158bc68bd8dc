"""Transformers of every block design, as values of one record: modules, initialisation, tokens, decoding."""

from quadform.core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Transformer": ".transformer",
        "Block": ".block",
        "Attention": ".attention",
        "from_torch": ".adapt",
        "Hypothesis": ".decode",
        "Search": ".decode",
        "Sampling": ".decode",
        "generate": ".decode",
        "log_probabilities": ".decode",
        "ByteTokenizer": ".tokens",
        "CharTokenizer": ".tokens",
        "PieceTokenizer": ".tokens",
    },
)
