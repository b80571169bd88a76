"""What happens to a line before subwords see it; SentencePiece itself is told to change nothing."""

from __future__ import annotations

import re
import unicodedata

from capsnmt.config import NormaliseConfig

_QUOTES = str.maketrans(dict.fromkeys("„“”‟«»", '"') | dict.fromkeys("‚‘’‛‹›`´ʼ", "'"))

# U+2581 counts as white space because SentencePiece writes a space as that character and decodes it as one.
_WHITE_SPACE = re.compile(r"[\s\u2581]+")

# Control characters that are not white space, soft hyphen, zero-width space, word joiner and the other invisible
# operators, BOM, marks of text direction. Not dropped: the joiners U+200C and U+200D and the variation selectors,
# because Persian spelling, Indic scripts and emoji sequences need them.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)

# Half of a UTF-16 pair, as broken JSON brings it; it cannot be written as UTF-8, so no setting may keep it.
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def normalise(text: str, config: NormaliseConfig) -> str:
    """One line of text in the form that the subwords are trained on. Applying it twice changes nothing more."""
    text = _SURROGATES.sub("", text)
    if config.spaces:
        # Before the composing, for a letter and its accent may stand on both sides of an invisible character.
        text = _INVISIBLE.sub("", text)
    if config.quotes:
        # Before the composing, for NFKC turns the free-standing acute into a space and a combining accent.
        text = text.translate(_QUOTES)
    if config.unicode != "none":
        text = unicodedata.normalize(config.unicode, text)
    if config.quotes:
        # And after it, for composing brings back some of them (U+1FFD becomes the free-standing acute).
        text = text.translate(_QUOTES)
    if config.spaces:
        return _WHITE_SPACE.sub(" ", text).strip(" ")
    return text.replace("\n", " ")  # lines in = lines out, whatever the settings
