"""`quadform.teach()`: the lecture from Python, in a notebook as a frame."""

from __future__ import annotations

from functools import partial

from ..explorer.notebook import Page
from ..explorer.serving import find_place, start_thread
from .question import TeachTask


def teach(*, port: int = 0, seed: int = 0, lang: str = "en") -> Page:
    """Serve the lecture from here: `page = qf.teach(lang="ko")`.

    Args:
        port: 0 is any free one.
        seed: Of the model that is trained.
        lang: `en` or `ko`.

    Returns:
        The page: `page.url`, `page.close()`.
    """
    from .server import application

    asked = TeachTask(port=port, seed=seed, lang=lang)
    place = find_place(asked.port)
    server = start_thread(place, partial(application, seed=asked.seed))
    return Page(place.url_in(asked.lang), server)
