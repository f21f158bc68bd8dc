"""`quadform explore`: the live page."""

from __future__ import annotations

import os
import sys

from ...applications.configs.explore import ExploreConfig
from ...applications.configs.shared import Output
from ...core.progress import say
from ..show import print_json


def answer(config: ExploreConfig, output: Output) -> int:
    from ...explorer.serving import find_place, open_browser, serve
    from ...explorer.state import State

    place = find_place(config.port)
    url = place.url + ("" if output.lang == "en" else f"?lang={output.lang}")

    def started() -> None:
        if output.json:
            print_json({"url": url, "port": place.port})
        else:
            if place.note:
                print(place.note)
            print(f"live page: {url}")
        sys.stdout.flush()
        if not config.no_open and not open_browser(url):
            say("no browser was found here; open the address yourself")
        say("Ctrl-C closes it")

    busy = serve(place, State(seed=config.seed), seconds=config.seconds, on_start=started)
    say("closed")
    if busy:  # nobody waits for that answer; leaving in the usual way would, or tear its threads down as they work
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0
