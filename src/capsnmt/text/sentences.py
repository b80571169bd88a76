"""Sentence splitting, without losing a character."""

from __future__ import annotations

import itertools

import sentencex


def split_sentences(text: str, language: str) -> list[str]:
    """Sentences with the white space after them; joined they are the text again."""
    # The splitter takes U+0085 for one byte and stops on it, so it sees a plain space for every other space.
    plain = "".join(" " if character.isspace() else character for character in text)
    try:
        sentences = [str(sentence) for sentence in sentencex.segment(language, plain)]
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # a bug in its Rust code, which no Exception catches
            raise
        return [text]
    # A splitter that drops or changes something must not be the reason why a user loses it.
    if "".join(sentences) != plain:
        return [text]
    ends = list(itertools.accumulate(len(sentence) for sentence in sentences))
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
