"""Language codes, their names, and the detection of a text's language."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from capsnmt.errors import CapsNMTError

NAMES = {
    "ar": "Arabic", "az": "Azerbaijani", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech",
    "da": "Danish", "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish",
    "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish",
    "gl": "Galician", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian",
    "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ko": "Korean", "la": "Latin", "lt": "Lithuanian",
    "lv": "Latvian", "ms": "Malay", "nb": "Norwegian", "nl": "Dutch", "pb": "Portuguese (Brazil)", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian", "sq": "Albanian",
    "sr": "Serbian", "sv": "Swedish", "th": "Thai", "tl": "Tagalog", "tr": "Turkish", "uk": "Ukrainian",
    "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese", "zt": "Chinese (traditional)",
}  # fmt: skip

# What LibreTranslate shows → what it calls them inside; both are understood, in any case.
ALIASES = {"pt-BR": "pb", "zh-Hans": "zh", "zh-Hant": "zt"}
_INNER = {public.lower(): inner for public, inner in ALIASES.items()}
_PUBLIC = {inner: public for public, inner in ALIASES.items()}
_DETECTED = {"pb": "pt", "zt": "zh", "nb": "no"}  # our codes → the detector's labels, where they differ

_CHARACTERS_TO_JUDGE = 2000


class Detected(NamedTuple):
    """A language that a text may be in."""

    language: str
    confidence: float  # 0 to 100


NOTHING_FOUND = Detected("en", 0.0)


def inner_code(code: str) -> str:
    """A code as we compare it."""
    lowered = code.strip().lower().replace("_", "-")
    return _INNER.get(lowered, lowered)


def public_code(code: str) -> str:
    """A code as LibreTranslate's clients know it."""
    return _PUBLIC.get(code, code)


def name_of(code: str) -> str:
    """A language's English name, or its code where we know no name."""
    return NAMES.get(code, public_code(code))


def detect(text: str, codes: Iterable[str]) -> list[Detected]:
    """The languages of `codes` that a text may be in, likeliest first; nothing without a letter."""
    text = text[:_CHARACTERS_TO_JUDGE]
    if not any(map(str.isalpha, text)):
        return []
    wanted = sorted(codes)
    labels = {code: _DETECTED.get(code, re.split("-", code)[0]) for code in wanted}
    shares = dict(_identifier().rank(text))
    known = [code for code in wanted if labels[code] in shares]
    total = sum(float(shares[labels[code]]) for code in known)
    if total <= 0.0:
        return []
    # Likeliest among those that are served: another answer would be of no use to a client.
    found = [Detected(code, round(100.0 * float(shares[labels[code]]) / total, 1)) for code in known]
    return sorted((each for each in found if each.confidence > 0), key=lambda each: -each.confidence)


def load_detector() -> None:
    """Loads what `detect` needs, which takes a second: better now than in somebody's request."""
    _identifier()


@cache
def _identifier() -> Any:
    try:
        from py3langid import langid  # type: ignore[import-untyped]
    except ImportError:
        raise CapsNMTError("detecting languages needs py3langid: pip install 'capsnmt[serve]'") from None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
