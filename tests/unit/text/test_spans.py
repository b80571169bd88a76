"""Protected spans come back as they went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsnmt.text.spans import PATTERNS, Masked, Span, mask, mask_pair, pieces_around, restore

ALL = tuple(PATTERNS)


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("I paid 1,234.50 euros at 10:30.", ["1,234.50", "10:30"]),
        ("See https://example.com/a?b=1&c=2. Then go.", ["https://example.com/a?b=1&c=2"]),
        ("(www.example.org) and http://x.y/(z)", ["www.example.org", "http://x.y/(z"]),
        ("Write to anna.b+c@mail.example.co.uk, please.", ["anna.b+c@mail.example.co.uk"]),
        ("Hello {{user name}}, {0} and {count} of ${TOTAL}!", ["{{user name}}", "{0}", "{count}", "${TOTAL}"]),
        ("%s has %d items, %(name)s %1$s %.2f", ["%s", "%d", "%(name)s", "%1$s", "%.2f"]),
        ("50% discount", ["50"]),
        ("<a.b@c.de>,d@e.fr;x@y", ["<a.b@c.de>", "d@e.fr"]),
        ('<b class="x">bold</b> &amp; &#39;', ['<b class="x">', "</b>", "&amp;", "&#39;"]),
        ("a < b and b > c", []),
        ("no spans here", []),
    ],
)
def test_what_is_found(text, spans):
    masked = mask(text, ALL)
    assert [span.source for span in masked.spans] == spans
    assert restore(masked.text, masked.spans) == (text, True)
    for span in spans:
        assert span not in masked.text


def test_only_the_asked_kinds():
    assert mask("3 at a@b.c", ("email",)).text == "3 at ⦅0⦆"
    assert mask("3 at a@b.c", ()).spans == ()


def test_terms_win_and_are_whole_words():
    terms = {"art": "Kunst", "art gallery": "Galerie", "Tom": "Tom", "7": "sieben"}
    masked = mask("Tom's party in the art gallery of art, 7 or 17.", ALL, terms)
    assert masked.text == "⦅0⦆'s party in the ⦅1⦆ of ⦅2⦆, ⦅3⦆ or ⦅4⦆."
    assert restore(masked.text, masked.spans).text == "Tom's party in the Galerie of Kunst, sieben or 17."


def test_a_symbol_in_the_users_text_is_protected_itself():
    masked = mask("what is ⦅7⦆ or ⦅0⦆?", ())
    assert masked.text == "what is ⦅0⦆ or ⦅1⦆?"
    assert restore("ist ⦅1⦆ oder ⦅0⦆?", masked.spans) == ("ist ⦅0⦆ oder ⦅7⦆?", True)


@pytest.mark.parametrize(
    ("output", "text", "intact"),
    [
        ("⦅1⦆ vor ⦅0⦆", "b vor a", True),
        ("nur ⦅0⦆", "nur a", False),
        ("⦅0⦆ ⦅1⦆ ⦅1⦆", "a b ", False),
        ("⦅0⦆ ⦅1⦆ ⦅5⦆", "a b ", False),
        ("nichts", "nichts", False),
    ],
)
def test_restoring_notices_what_is_wrong(output, text, intact):
    assert restore(output, [Span("a", "a"), Span("b", "b")]) == (text, intact)


def test_spans_that_cling_are_set_apart():
    spans = [Span("1", "1"), Span("2", "2"), Span("http://a.b", "http://a.b")]
    assert restore("⦅0⦆⦅1⦆ und⦅2⦆bald", spans).text == "12 undhttp://a.bbald"
    assert restore("⦅0⦆⦅1⦆ und⦅2⦆bald", spans, apart=True) == ("1 2 und http://a.b bald", True)
    assert restore("⦅2⦆ (⦅0⦆)\t⦅1⦆", spans, apart=True) == ("http://a.b ( 1 )\t2", True)


def test_a_line_of_many_thousand_spans():
    text = "1 " * 12_000
    masked = mask(text, ALL)
    assert len(masked.spans) == 12_000
    assert restore(masked.text, masked.spans) == (text, True)
    assert sum(isinstance(piece, Span) for piece in pieces_around(masked)) == 12_000


@pytest.mark.parametrize("part", ["a", "a.", "{{", "{", "${", "<a ", "&a", "%1", "%(", "(", "_", "a@"])
def test_a_long_line_without_a_span_is_no_burden(part):
    # With patterns that look at the rest of the line from every place these would take minutes.
    text = part * (100_000 // len(part))
    masked = mask(text, [kind for kind in ALL if kind != "number"])
    assert masked == Masked(text, ())


def test_training_pairs_share_their_symbols():
    source, target = mask_pair("At 10 Anna saw 3 of 10 dogs.", "Anna sah um 10 Uhr 3 von 10 Hunden.", ("number",), 16)
    assert source == "At ⦅0⦆ Anna saw ⦅1⦆ of ⦅2⦆ dogs."
    assert target == "Anna sah um ⦅0⦆ Uhr ⦅1⦆ von ⦅2⦆ Hunden."
    assert mask_pair("3 dogs", "drei Hunde", ("number",), 16) == ("3 dogs", "drei Hunde")
    assert mask_pair("1 2 3", "3 2 1", ("number",), 2) == ("⦅0⦆ ⦅1⦆ 3", "3 ⦅1⦆ ⦅0⦆")


def test_pieces_around():
    masked = Masked("a ⦅1⦆ b⦅0⦆", (Span("x", "X"), Span("y", "Y")))
    assert list(pieces_around(masked)) == ["a ", Span("y", "Y"), " b", Span("x", "X"), ""]


@given(st.text(alphabet="ab 1.{}<>%s⦅0⦆@/:wh\u2028é", max_size=40))
def test_masking_loses_nothing(text):
    masked = mask(text, ALL)
    assert restore(masked.text, masked.spans) == (text, True)
    joined = "".join(piece if isinstance(piece, str) else piece.source for piece in pieces_around(masked))
    assert joined == text
