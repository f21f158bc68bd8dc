"""What mkdocs calls while it builds the site (mkdocs.yml, `hooks`)."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

import api
import pages


def on_config(config: Any) -> Any:
    """Tutorials and rooms have no list of their own in mkdocs.yml; a page that nobody listed is found under More."""
    more = pages.unlisted(config.nav)
    for entry in config.nav:
        if "Tutorials" in entry:
            entry["Tutorials"] = pages.tutorials()
        if "Guides" in entry and more:
            entry["Guides"].append({"More": more})
        if "API reference" in entry:
            entry["API reference"] = ["reference/index.md", *(f"reference/{room}.md" for room in api.rooms())]
    config.nav = [entry for entry in config.nav if next(iter(entry.values()))]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that have their source elsewhere."""
    made = {"decisions.md": pages.decisions(), "references.md": pages.references()}
    for path, text in (*pages.from_root(), *made.items(), *api.pages()):
        files.append(File.generated(config, path, content=text))
    return files


#: How much a hit counts in the search: what a thing is before why it became so.
_BOOST = {"reference/": 2.0, "decisions/": 0.2, "changelog": 0.2}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links from docs/ to the root folder, and the weight of the page in the search."""
    page.meta["search"] = {"boost": next((b for at, b in _BOOST.items() if page.file.src_uri.startswith(at)), 1.0)}
    if page.file.generated_by:
        return markdown
    return pages.linked(markdown, f"docs/{page.file.src_uri}".rpartition("/")[0], page.file.src_uri)


_MATHS = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
_CITED = re.compile(r"\[([A-Z][A-Za-z]*\d\d)\b")
_APART = re.compile(r"(<pre.*?</pre>|<code.*?</code>|<a .*?</a>|<[^>]+>)", re.S)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Formulas become MathML here, so that no script is needed; keys of sources lead to the bibliography."""
    content = _MATHS.sub(
        lambda m: convert(html.unescape(m.group(3)), display="block" if m.group(2) == "[" else "inline"), content
    )
    if page.file.src_uri == "references.md":
        return content
    there = "../" * page.file.src_uri.count("/") + "references.html"
    parts = _APART.split(content)
    parts[::2] = [_CITED.sub(rf'[<a href="{there}#\1">\1</a>', text) for text in parts[::2]]
    return "".join(parts)
