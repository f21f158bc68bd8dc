"""What kind of point a model stands at: stationary or not, and then minimum or saddle."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {"PointQuestion": ".question", "point": ".call"})
