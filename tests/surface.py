"""The public surface as the documents name it. As a script it reaches for all of it, in the interpreter it is given."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOTTED = re.compile(r"\b(?:qf|quadform)((?:\.[A-Za-z_]\w*)+)")
IMPORT = re.compile(r"^(from quadform[\w.]* import [\w, ]+|import quadform[\w.]*)", re.M)


def named_in_documents() -> list[str]:
    """Every `qf.x.y` and `quadform.x.y` of the documents, as `quadform.x.y`."""
    return sorted({f"quadform{word}" for page in PAGES for word in DOTTED.findall(page.read_text())})


def imports_of_documents() -> list[str]:
    """Every import of quadform written in a document."""
    return sorted({line for page in PAGES for line in IMPORT.findall(page.read_text())})


def reach(name: str) -> None:
    """`quadform.x.y`: `x` is an attribute of what `import quadform` gives; `y` one of `x`, or a module in it."""
    found = importlib.import_module("quadform")
    for depth, part in enumerate(name.split(".")[1:]):
        if depth and isinstance(found, ModuleType) and not hasattr(found, part):
            found = importlib.import_module(f"{found.__name__}.{part}")
        else:
            found = getattr(found, part)


def missing() -> list[str]:
    """What cannot be reached: names of documents, their import lines, names in the `__all__` of a room."""
    wrong = []
    for name in named_in_documents():
        try:
            reach(name)
        except (AttributeError, ImportError) as error:
            wrong.append(f"{name}: {error}")
    for line in imports_of_documents():
        try:
            exec(line, {})
        except ImportError as error:
            wrong.append(f"{line}: {error}")
    package = importlib.import_module("quadform")
    rooms = [
        package,
        *(
            importlib.import_module(f"quadform.{m.name}")
            for m in pkgutil.iter_modules(package.__path__)
            if m.name != "__main__"
        ),
    ]
    wrong += [f"{r.__name__}.{name}" for r in rooms for name in getattr(r, "__all__", ()) if not hasattr(r, name)]
    return wrong


if __name__ == "__main__":
    wrong = missing()
    print(sys.modules["quadform"].__file__)
    sys.exit("\n".join(wrong) or 0)
