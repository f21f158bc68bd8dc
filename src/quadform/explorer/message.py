"""Messages of a page as they come from its socket, and what is answered where one cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..answers.texts import Texts
from ..core.errors import InputError, QuadformError


class Refused(InputError):
    """A value a page cannot use: the control it belongs to, and a sentence (`error_KEY`) with its values."""

    #: The sentences of the page by language.
    languages: ClassVar[Mapping[str, Texts]]

    def __init__(self, control: str, key: str, **values: Any) -> None:
        self.control, self.key, self.values = control, f"error_{key}", values
        super().__init__(self.said("en"))

    def said(self, lang: str) -> str:
        """What the page shows, in its language; a control named `control` in the sentence has its name there."""
        texts = self.languages[lang]
        named = {"control": texts(f"control_{self.control}")} if f"control_{self.control}" in texts.sentences else {}
        return texts(self.key, **named | self.values)


def answered(
    text: str | bytes, languages: Mapping[str, Texts], answer: Callable[[dict[str, Any], str], dict[str, Any]]
) -> dict[str, Any]:
    """`answer(body, language)` of a message, or an `error` at a control: the page stays, whatever happens."""
    seq, lang, control = None, "en", ""
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise ValueError("a message is a mapping")
        seq, lang = body.get("seq"), str(body.get("lang"))
        lang = lang if lang in languages else "en"
        return answer(body, lang)
    except Refused as error:
        control, said = error.control, error.said(lang)
    except QuadformError as error:
        said = str(error)
    except (ValueError, RecursionError):
        said = languages[lang]("error_message")
    except Exception as error:
        said = languages[lang]("error_unexpected", why=f"{type(error).__name__}: {error}"[:300])
    return {"kind": "error", "seq": seq, "control": control, "text": said}
