"""Real corpora and trained models: fetched by name through the standard package tools, checksummed, cached."""

from quadform.core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CATALOGUE": ".catalogue",
        "Item": ".catalogue",
        "item": ".catalogue",
        "Fetched": ".store",
        "fetch": ".store",
        "fetched": ".store",
        "root": ".store",
        "build": ".own",
        "Unreachable": ".sources",
        "Pretrained": "..zoo",
        "load": "..zoo",
        "variants": "..zoo",
    },
)
