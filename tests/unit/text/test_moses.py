"""Moses tokens and back."""

from __future__ import annotations

import pytest

from capsnmt.text.moses import detokenise, tokenise


@pytest.mark.parametrize(
    ("language", "line", "tokens"),
    [
        ("de", 'Noch nicht, z.B. "hier" (oben).', 'Noch nicht , z.B. " hier " ( oben ) .'),
        ("en", "Don't go; it's 5 o'clock & late!", "Don 't go ; it 's 5 o 'clock & late !"),
        ("fr", "Aujourd'hui, c'est l'homme qu'il aime.", "Aujourd' hui , c' est l' homme qu' il aime ."),
        ("de", "", ""),
    ],
)
def test_a_line_becomes_tokens_and_a_line_again(language, line, tokens):
    assert tokenise(line, language) == tokens
    assert detokenise(tokens, language) == line


def test_what_looks_like_an_escape_stays():
    assert detokenise("x &amp; y", "de") == "x &amp; y"
