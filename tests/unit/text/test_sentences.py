"""Splitting never loses a character and never stops on one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capsnmt.text.sentences import split_sentences

TRAPS = [
    "\x85",
    "\u2028",
    "\u2029",
    "\x0b",
    "\x1c",
    "\n",
    "\r",
    ". ",
    "? ",
    "! ",
    "Mr. ",
    "e.g. ",
    "…",
    '"',
    "é",
    "😀",
    "ab",
]


def test_sentences_are_split_with_the_space_after_them():
    assert split_sentences("One. Two?\u2003Three!", "en") == ["One. ", "Two?\u2003", "Three!"]


def test_a_next_line_character_is_no_obstacle():
    text = "Das ist gut. \x85 Und das? \x85Auch.\x85"
    assert "".join(split_sentences(text, "de")) == text


@given(st.lists(st.sampled_from(TRAPS) | st.text(max_size=5), max_size=30))
def test_any_text_comes_back_whole(parts):
    text = "".join(parts)
    for language in ("en", "de", "fr", "xx"):
        assert "".join(split_sentences(text, language)) == text
