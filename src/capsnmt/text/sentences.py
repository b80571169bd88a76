"""Sentence splitting, without losing a character."""

from __future__ import annotations

import sentencex


def split_sentences(text: str, language: str) -> list[str]:
    """Sentences with the white space after them; joined they are the text again."""
    sentences = [str(sentence) for sentence in sentencex.segment(language, text)]
    # A splitter that drops or changes something must not be the reason why a user loses it.
    return sentences if "".join(sentences) == text else [text]
