"""Moses tokens, for models on words: text is cut into them before such a model, and put together again behind it.

Without XML escapes: &apos; would be three tokens to a metric that tokenises for itself, and easy n-grams.
"""

from __future__ import annotations

import functools
from typing import Any

from capsnmt.extras import need


def tokenise(line: str, language: str) -> str:
    """The tokens of a line, with a space between each two: `Don't (yet).` becomes `Don 't ( yet ) .`."""
    tokens: str = _tokeniser(language).tokenize(line, return_str=True, escape=False)
    return tokens


def detokenise(tokens: str, language: str) -> str:
    """The line that such tokens are of, as near as spaces around punctuation can be guessed."""
    line: str = _detokeniser(language).detokenize(tokens.split(), return_str=True, unescape=False)
    return line


@functools.cache
def _tokeniser(language: str) -> Any:
    need("sacremoses", "Moses tokens")
    import sacremoses

    return sacremoses.MosesTokenizer(lang=language)


@functools.cache
def _detokeniser(language: str) -> Any:
    need("sacremoses", "Moses tokens")
    import sacremoses

    return sacremoses.MosesDetokenizer(lang=language)
