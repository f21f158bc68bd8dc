"""`quadform.explore()`: the page from Python, in a notebook as a frame."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ..core.errors import InputError
from .question import ExploreTask, page_of
from .serving import Make, find_place, start_thread
from .state import State


@dataclass
class Page:
    """A page that is being served: `url`, `close()`; a notebook shows it as a frame where it runs on this machine."""

    url: str
    server: Any

    def close(self) -> None:
        """Stop serving."""
        self.server.should_exit = True
        self.server.thread.join(10)

    def __repr__(self) -> str:
        return f"live page: {self.url}"

    def _repr_html_(self) -> str:
        address = html.escape(self.url)
        if not local():
            return f'<a href="{address}">{address}</a>'
        return f'<iframe src="{address}" title="quadform" width="100%" height="900" style="border:0"></iframe>'


def local() -> bool:
    """Whether the browser is probably on this machine: no ssh, no hub, no hosted notebook."""
    return not any(name in os.environ for name in ("SSH_CONNECTION", "JUPYTERHUB_USER", "COLAB_RELEASE_TAG"))


def explore(
    layer: Any = None, batches: Any = None, loss: Any = None, /, *, port: int = 0, lang: str = "en", **state: Any
) -> Page:
    """Serve the live page from here: `explore(layer)`, `explore(scale=3, design="pre-ln", depth=4)`,
    `explore("runs/x")` or `explore(model, batches, loss)`.

    Args:
        layer: An `AttentionLayer` (one sequence, mean squared loss), a model, or a MODEL as on the command line.
        batches, loss: Of a model, as for `Risk`.
        port: 0 is any free one.
        lang: `en` or `ko`.
        state: Controls of the page by name.

    Returns:
        The page: `page.url`, `page.close()`.
    """
    if isinstance(layer, str | Path) or batches is not None:
        return _model(layer, batches, loss, ExploreTask(port=port, lang=lang, **state))
    from .data import Given
    from .engine import Engine
    from .server import application

    asked, engine, start = ExploreTask(port=port, lang=lang), Engine(), State(**state)
    if layer is not None:
        given = Given(_tensors(layer))
        own = {"data": "upload", "upload": engine.uploads.add(given), "temperature": layer.temperature}
        start = State(**own | state)
    place = find_place(asked.port)
    server = start_thread(place, partial(application, engine=engine, start=start))
    return Page(place.url_in(asked.lang) + "#" + urlencode(start.changes()), server)


def _model(model: Any, batches: Any, loss: Any, asked: ExploreTask) -> Page:
    """The page of a model: a text names it, anything else comes with its batches."""
    make = page_of(str(model), asked.data, asked.seed) if isinstance(model, str | Path) else _own(model, batches, loss)
    place = find_place(asked.port)
    return Page(place.url_in(asked.lang), start_thread(place, make))


def _own(model: Any, batches: Any, loss: Any) -> Make:
    from ..applications.subject import Subject
    from .model.engine import ModelEngine
    from .model.server import application

    return partial(application, engine=ModelEngine(Subject.of(model, batches, loss)))


def _tensors(layer: Any) -> dict[str, Any]:
    """X, W_Q, W_K, W_V, Y of a layer; Y from its loss."""
    import torch

    from ..applications.attention.growth import targets_of

    Y, head = targets_of(layer, "the page shows"), layer.head
    if len(head.X) != 1 or not torch.equal(head.Z, head.X) or head.bias is not None:
        raise InputError("the page shows one sequence without mask and context. Give a layer with one sequence.")
    return {"X": head.X[0].double(), **{n: w.double() for n, w in layer.weights.items()}, "Y": Y[0].double()}
