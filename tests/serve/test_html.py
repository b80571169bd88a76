"""HTML: every tag in its place, balanced, and what was escaped stays escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsnmt.server.errors import Refused
from capsnmt.server.html import Markup, tokens

CORPUS = [
    "Eins",
    "<p>Eins zwei</p>",
    "<p>Eins <b>zwei</b> drei.</p>",
    "<p>Eins <b>zwei <i>drei</i></b>, vier.</p>",
    '<div><ul><li>Eins</li><li><a href="/x?a=1&amp;b=2" title="a > b">Zwei</a> drei</li></ul></div>',
    "<table><tr><td>Eins</td><td><em>Zwei</em></td></tr></table>",
    "<td>Ein Stück ohne Tabelle</td>",
    "<p>Eins<br>zwei<br/>drei</p><hr>",
    '<img src=x alt="Eins > zwei"> Eins <img src="y"> zwei',
    "<h1>Eins &amp; zwei</h1><p>3 &lt; 4 &gt; 2, &quot;fünf&quot; &#39;sechs&#39; &nbsp; &euro;</p>",
    "<p>&lt;script&gt;alert(1)&lt;/script&gt; eins</p>",
    "<script>if (a < b) alert('<b>eins</b>');</script><p>Eins</p><style>p > a { color: red }</style>",
    "<p>Vor <!-- ein <b>Kommentar --> nach</p>",
    "<!doctype html><html><head><title>Eins</title></head><body><p>Zwei</p></body></html>",
    '<p>Eins <code>print("eins")</code> zwei <span translate="no">drei</span> vier</p>',
    '<p class="notranslate">Eins zwei</p><p>Drei</p>',
    "<pre>Eins\n  zwei\n\ndrei</pre>",
    "<p>Eins <b></b><i></i> zwei</p>",
    "<b><i><u>Eins</u></i></b>",
    "<p>" + "".join(f"w{i} <b>x{i}</b> " for i in range(30)) + "</p>",
    "<custom-tag>Eins <x-y z='1'>zwei</x-y></custom-tag>",
    "<textarea>Eins <b>zwei</b></textarea> drei",
    "<ruby>漢<rt>kan</rt></ruby> eins",
    "<a href='javascript:alert(1)' onclick=\"alert('<x>')\">Eins</a>",
    "Eins ⦅0⦆ <b>⦅900000000⦆</b> zwei ⦅900000001⦆",
    "<p>Eins\n    zwei\n\t<b>drei</b>\n</p>\n\n<p>\n  Vier  </p>",
    "a < b und c > d & e",
    "Eins <b>zwei",
    "</b>Eins</i> zwei<",
    "Eins <b zwei",
    "<p>🙂 <b>🙂</b></p>",
    "<p>Eins <b>zwei</b> &#10629;900000000&#10630; drei</p>",
    "<p>&nbsp;Eins <b>zwei&nbsp;</b> drei\xa0</p><p>\n &#160; Vier &nbsp;</p>",
]


class Events(HTMLParser):
    """Tags, comments and what is in scripts, as Python's own parser sees them; text only where there is some."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[object] = []
        self.texts: list[str] = []
        self.inside: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        self.found.append(f"/{tag}")
        self.inside.append("")

    def handle_comment(self, data):
        self.found.append(f"comment {data}")

    def handle_data(self, data):
        if self.inside and self.inside[-1] in ("script", "style", "code"):
            self.found.append(f"kept {data}")
        else:
            self.texts.append(data)


def translated(source: str, change) -> str:
    markup = Markup(source)
    lines = [change(line) for line in markup.lines]
    return markup.finish(lines, [change(piece) for piece in markup.pieces(lines)])


@pytest.mark.parametrize("source", CORPUS)
def test_unchanged_text_gives_the_same_markup(source):
    found, expected = Events(translated(source, str)), Events(source)
    assert found.found == expected.found
    spaces = re.compile("[ \t\n\r\f]+")  # a browser shows them as one; a no-break space is none of them
    assert spaces.sub(" ", "".join(found.texts)) == spaces.sub(" ", "".join(expected.texts))


def backwards(line: str) -> str:
    """A model that moves all words, and with them the tags."""
    return " ".join(reversed(line.split(" ")))


def without_tags(line: str) -> str:
    """A model that loses tags and says something dangerous."""
    return "<script>alert(1)</script> & " + "".join(character for character in line if character.isascii())


@pytest.mark.parametrize("source", CORPUS)
@pytest.mark.parametrize("change", [backwards, without_tags, str.upper])
def test_tags_stay_whatever_a_model_does(source, change):
    result = translated(source, change)
    assert Events(result).found == Events(source).found
    if "<script" not in source:
        assert "<script" not in result


def test_text_that_was_escaped_stays_escaped():
    assert translated("<p>&lt;b&gt; &amp;amp; x</p>", str) == "<p>&lt;b&gt; &amp;amp; x</p>"


@pytest.mark.parametrize("source", CORPUS)
def test_a_real_model_keeps_the_tags(served, source):
    answer = served.post("/translate", q=source, source="de", target="en", format="html")
    assert answer.status_code == 200, answer.text
    assert Events(answer.json()["translatedText"]).found == Events(source).found


def test_a_real_model_keeps_the_tags_through_english(served):
    answer = served.post("/translate", q=CORPUS, source="de", target="fr", format="html").json()
    for source, text in zip(CORPUS, answer["translatedText"], strict=True):
        assert Events(text).found == Events(source).found


def test_what_a_sentence_is():
    assert Markup("<p>Eins <b>zwei</b> drei.</p><p>Vier</p>").lines[1] == "Vier"
    assert Markup("<b>Eins zwei</b>").lines == ["Eins zwei"]  # tags around it need no place in it
    assert Markup("<li>Eins</li><li>2</li>").lines == ["Eins", "2"]
    assert Markup("<pre>Eins\nzwei</pre>").lines == ["Eins", "zwei"]
    (line,) = Markup("Eins <b><i>zwei</i></b> drei").lines
    assert line.count("⦅") == 2  # neighbours are one


def test_elements_within_each_other_have_a_limit():
    Markup("<div>" * 256 + "x" + "</div>" * 256)
    with pytest.raises(Refused, match="256"):
        Markup("<div>" * 257)


@given(st.text(alphabet="<>/!-'\"= abp&;#1\n⦅0⦆", max_size=60))
@settings(max_examples=300, deadline=None)
def test_tokens_are_the_source_and_any_text_survives(source):
    assert "".join(token.raw for token in tokens(source)) == source
    translated(source, str)
    translated(source, backwards)


@pytest.mark.parametrize(
    "part",
    [
        "<a ",
        "<a '",
        '<a b="',
        "<!--",
        "<",
        "</",
        "&#",
        "⦅900000",
        "<b>x</b>",
        "<script>",
        '< class="',
        "&#1" + "1" * 50,
    ],
)
def test_large_and_malformed_is_no_more_work_than_large(part):
    """100,000 times over: if anything here were quadratic, the test would not end before its time limit."""
    source = (part * 100_000)[:300_000]
    try:
        assert len(translated(source, str)) >= len(source) * 0.9
    except Refused:
        assert part in ("<b>x</b>", "<script>")


def test_numbers_with_too_many_digits():
    assert translated("&#" + "9" * 5000 + "; eins", str).endswith("eins")
