"""Lines that people and machines really send, and worse: what `nasty_lines.py` feeds to the translator.

Everything is made from a seed. A line is bytes without LF; what it holds otherwise is anybody's guess.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from capsnmt.data.corpus import read_lines
from capsnmt.data.demo import make_pairs

MARKER_EVERY = 1000
CORPORA = (
    "multi30k/test2016_flickr.en",
    "multi30k/valid.de",
    "tatoeba_en-de/test.en",
    "tatoeba_en-fr/test.fr",
    "europarl_en-de/test.en",
    "europarl_en-de/valid.de",
    "europarl_en-fr/test_long.en",
    "bible/test.en",
    "bible/test.fr",
)
BREAKS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # all that Python calls a line break, without LF
# Bytes with a meaning of their own: controls, CR, BOM, U+2028, U+2029, U+0085, a surrogate, overlong NUL, cut sequences
FRAGMENTS = (
    *(bytes([byte]) for byte in (*range(10), *range(11, 32), 0x7F, 0x80, 0xBF, 0xC0, 0xC3, 0xE2, 0xF0, 0xFE, 0xFF)),
    *(b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85", b"\xed\xa0\xbd", b"\xed\xb8\x80", b"\xc0\x80"),
    *(b"\xf4\x90\x80\x80", b"\xe2\x80", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80", b"\xef\xbf\xbd", b"\xe2\x96\x81"),
)

SPACES = ("", " ", "   ", "\t", "\t \t", "\u00a0", "\u2003\u2009", "\u3000", "\u200b", "\ufeff", "\u2060", "\u00ad")
EMOJI = (
    "👩‍👩‍👧", "👩‍👩‍👧 family", "❤️ I love it ❤️",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "👍🏽👍🏿", "🇩🇪🇫🇷", "\u200d\u200d\u200d",
    "a\ufe0f\ufe0f", "😀" * 300, "☺\ufe0e☺\ufe0f and so on",
)  # fmt: skip
MARKS = (
    "e\u0301\u0302\u0303\u0304", "Z\u0351\u036b\u0343a\u0300\u0301l\u0316g\u0317o\u0318", "o" + "\u0308" * 200,
    "\u0301", "q\u0308 r\u0308", "नमस्ते दुनिया", "ที่นี่", "한국어 문장입니다.", "한\u1100\u1161\u11a8",
    "日本語の文章です。これは長い。", "我有3只狗。", "ﬁne ﬂow Ⅷ ½ ²",
)  # fmt: skip
DIRECTIONS = (
    "مرحبا بالعالم", "שלום עולם", "\u202eevil\u202c text", "\u2067abc\u2069 def", "abc \u200f(def)\u200e",
    "العدد ٣٤٥ و 345", "۱۲۳۴ کتاب", "می‌خواهم", "\u061cx", "Ω≈ç√∫˜µ≤≥÷", "Ελληνικά κείμενα.", "Привет, мир!",
)  # fmt: skip
LONG = (
    "dog " * 500, "very " * 500 + "old.", "a" * 5000, "Donaudampfschifffahrtsgesellschaft" * 20, "ha" * 700,
    "x " * 300, "." * 3000, "1" * 3000, "1 " * 1500, "ABC" * 400, "The man sees the dog. " * 60, "Hi. " * 200,
    "Hi! No? " * 100, "a 1 " * 200, "a1" * 400, "{{x}} a " * 60,
)  # fmt: skip
HUGE = (  # a few only, for each costs minutes of decoding
    "a" * 100_000, "The old woman sees a small dog in the garden. " * 2174, "1 " * 50_000, "{{" * 50_000,
    "<a " * 33_000, "a@" * 50_000, "\u2028" * 100_000, "⦅0⦆" * 33_000, "(" * 100_000,
)  # fmt: skip
SIGNS = (
    "?!", "...", "…", "— * —", "-", ".", ",", "'", '"', "''", "\"\"\"", "((((((", "))))", "[]{}<>", "!!!!!!!!!!",
    "¿¡", "«»", "„“", "~~~", "***", "=====", "# # #", "|||", " ||| ", "a ||| b ||| -1.0", "\\", "\\n", "\\u2028",
    "\\x00", "%", "%%", "&", "&&", "@", "@@", "$", "€", "§ 5", "°",
)  # fmt: skip
NUMBERS = (
    "0", "1", "007", "42", "3.14159", "1,234,567.89", "1.234.567,89", "1 234 567", "10:30", "2024-02-29",
    "31/12/1999", "+49-30-1234567", "-5", "1e9", "0x1F", "50%", "1-2-3-4-5", "1.2.3.4",
    "99999999999999999999999999", "٣٤٥", "१२३", "３４", "3rd", "B2B", "1,", ",1", "1..2", "½",
)  # fmt: skip
SOUPS = (
    "{{a}} %s <b>", "{{a}}{{b}}{{c}}", "{{ user.name }} has {0} of {1}", "{{", "}}", "{{}}", "{{{{}}}}", "{", "{}",
    "{a", "${X}", "${", "%s%s%s", "%d %i %5.2f", "%(name)s", "%", "%1$s and %2$s", "<b>bold</b> <i>word</i>", "<b",
    "<b <b> b>", "</", "<br/><br/>", "&amp;&lt;&nbsp;", "&#0;", "&#x1F600;", "&bogus", "<!-- x -->",
    "<script>alert('x')</script>", "Click <a href=\"http://x.y/z?a=1&b=2\">here</a>, {{name}}!", "100%d", "5%s",
    "%s5", "<1>", "a<b>c", "{0}{1}{2}{3}{4}{5}{6}{7}{8}{9}", " ".join(f"{{x{n}}} and" for n in range(40)),
)  # fmt: skip
RESERVED = (
    "⦅0⦆", "⦅0⦆ ⦅1⦆ ⦅2⦆", "The man sees ⦅0⦆ and ⦅15⦆.", "⦅16⦆ dogs", "⦅9999⦆", "⦅10000⦆ dogs", "⦅⦆", "⦅a⦆", "⦅",
    "⦆⦅", "⦅0", "0⦆", "⦅⦅0⦆⦆", "⦅٠⦆", "⦅\u200b0⦆ x", "⦅0\u200b⦆ 7 dogs", "⦅ 0 ⦆",
    "⦅123456789012345678901234567890⦆", "<s>", "</s>", "<s> The dog. </s>", "<pad>", "<unk>", "⁇", "▁", "▁▁▁",
    "the▁dog", "<0x0A>", "<0x0A> <0x0D> <0x00>", "▁<0x0A>", "\ufffd", "a\ufffdb", "<mask>", "[CLS] x [SEP]",
    "@@ @-@", "￭", "</w>", "<2de> Hello.",
)  # fmt: skip
WEB = (
    "http://example.com/a?b=1&c=2#d", "See https://example.com/a_(b). Then www.x.org, too.", "ftp://x", "http://",
    "www.", "HTTP://UPPER.COM/PATH", "a.b@c.de", "@user #tag", "a@b", "Mail x.y+z@mail.example.co.uk or {{mail}}.",
    "file:///etc/passwd", "C:\\Users\\x\\y.txt", "/usr/bin/env python", "rm -rf /", "'; DROP TABLE x; --",
    "READ http://a.b/c NOW",
)  # fmt: skip
CODE = (
    '{"key": "value", "n": [1, 2, 3]}', "{'a': 1}", "if (x < 3 && y > 4) { return; }",
    "for i in range(10): print(i)", "<html><body><p>Text</p></body></html>", "SELECT * FROM t WHERE a = 'b'",
    "\x1b[31mred\x1b[0m", "\x00", "a\x00b", "\x07bell", "a\tb\tc", "key\tvalue", "# Title", "* item", "1. item",
    "> quote", "`code`", "```", "$x^2$", "\\begin{a}x\\end{a}",
)  # fmt: skip
CASES = (
    "THE OLD WOMAN SEES A SMALL DOG", "THE MAN BUYS 3 BOOKS AND SEES {{name}} AT http://a.example/Path", "STOP",
    "NATO", "I", "A", "a", "the dog", "The dog", "tHE dOG", "Ich bin müde", "İSTANBUL IS BIG", "STRASSE UND GRÖẞE",
    "ǅ ǈ ǋ", "ΑΣ ΚΑΙ ΟΔΟΣ", "Yes", "No.", "Dr. Smith came. He saw it! Did he?",
    "Mr. and Mrs. A. B. C. went to U.S.A. on Mon. at 5 p.m. today.", "Hello.World.Again",
)  # fmt: skip
BROKEN = tuple(f"one{mark}two" for mark in BREAKS) + tuple(f"{mark}The dog sleeps.{mark}" for mark in BREAKS)

HAND_MADE = (
    *SPACES, *EMOJI, *MARKS, *DIRECTIONS, *LONG, *SIGNS, *NUMBERS, *SOUPS, *RESERVED, *WEB, *CODE, *CASES, *BROKEN,
)  # fmt: skip


# Terms of the made sentences: some have a translation, the others are not to be translated.
GLOSSARY = {
    "Acme Corp": "Acme AG",
    "rice pudding": "Milchreis",
    "Mr. Fox": "Herr Fuchs",
    "Zorbal": "Zorbal",
    "x-ray": "x-ray",
}


def marker(number: int) -> str:
    """A line that the model need not see and that must come back as it is: it shows where we are."""
    return f"{{{{line {number}}}}} {number}"


def demo_sentences(count: int = 2000, *, seed: int = 5) -> list[str]:
    """Sentences of both languages of the demo corpus."""
    return [text for pair in make_pairs(count // 2, seed=seed) for text in pair]


def real_sentences(root: Path | None) -> list[str]:
    """Lines of the corpora that are there, else of the demo corpus."""
    files = [] if root is None else [root / name for name in CORPORA if (root / name).is_file()]
    return [line for file in files for line in islice(read_lines(file), 1000)] or demo_sentences()


def nasty_lines(count: int, *, seed: int, sentences: Sequence[str], huge: int = len(HUGE)) -> list[bytes]:
    """So many lines of every kind, mixed; every `MARKER_EVERY`th is a marker."""
    random = Random(seed)
    shares = {"hand": max(count // 10, min(len(HAND_MADE), count // 3)), "bytes": count // 4, "hypothesis": count // 4}
    lines = [text.encode() for text in random.sample(HAND_MADE, min(len(HAND_MADE), shares["hand"]))]
    lines += [_mixture(random).encode() for _ in range(shares["hand"] - len(lines))]
    lines += [_random_bytes(random) for _ in range(shares["bytes"])]
    lines += [text.encode("utf-8", "surrogatepass") for text in hypothesis_texts(shares["hypothesis"], seed)]
    lines += [_spliced(random, sentences) for _ in range(count - len(lines))]
    random.shuffle(lines)
    for number, text in enumerate(HUGE[:huge]):
        lines[(number + 1) * count // (huge + 1)] = text.encode()
    lines = [line.replace(b"\n", b"\\n") for line in lines]
    for number in range(0, count, MARKER_EVERY):
        lines[number] = marker(number).encode()
    return lines


def _mixture(random: Random) -> str:
    """Two to four of the shorter hand-made lines in one."""
    short = [text for text in HAND_MADE if len(text) < 100]
    return random.choice((" ", "", ". ", "\t")).join(random.choices(short, k=random.randint(2, 4)))


def _random_bytes(random: Random) -> bytes:
    """Bytes as they come, or fragments with a meaning between letters."""
    length = min(200, int(random.expovariate(1 / 12)))
    if random.random() < 0.5:
        return random.randbytes(length)
    letters = [bytes([byte]) for byte in b"abcdefgh IJK 0123.,"]
    return b"".join(random.choice(FRAGMENTS if random.random() < 0.3 else letters) for _ in range(length))


class _EnoughError(Exception):
    """Stops hypothesis."""


def hypothesis_texts(count: int, seed_: int) -> list[str]:
    """Texts of all planes, surrogates included, as hypothesis likes them."""
    texts: list[str] = []
    categories = ["Lu", "Ll", "Nd", "Zs", "Po", "Mn", "Cf", "Cc"]
    words = ["⦅0⦆", "the", "dog", "3", "{{a}}", "<b>", "a@b.c", ". ", "\u2028", "THE"]
    kinds = st.one_of(
        st.text(st.characters(exclude_characters="\n"), max_size=40),
        st.text(st.characters(categories=categories, exclude_characters="\n"), max_size=40),
        st.text(st.sampled_from("aB1 .?!<b>{}%s⦅0⦆@:/\u2028\r\t\x00🎉é"), max_size=60),
        st.lists(st.sampled_from(words), max_size=20).map(" ".join),
    )

    @seed(seed_)
    @settings(
        max_examples=max(100, count),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(kinds, max_size=40))
    def collect(some: list[str]) -> None:
        if len(texts) >= count:
            raise _EnoughError
        texts.extend(some)

    with contextlib.suppress(_EnoughError):
        collect()
    return list(islice(cycle(texts), count))


def _spliced(random: Random, sentences: Sequence[str]) -> bytes:
    """A real line, or two, mishandled in one of the usual ways."""
    one, other = (random.choice(sentences)[:400] for _ in range(2))
    return random.choice(WAYS)(random, one, other)


def _shuffled(random: Random, one: str, other: str) -> bytes:
    words = one.split()
    random.shuffle(words)
    return " ".join(words).encode()


def _cut_bytes(random: Random, one: str, other: str) -> bytes:
    raw = one.encode()
    start = random.randint(0, len(raw))
    return raw[start : random.randint(start, len(raw))]


def _splice_bytes(random: Random, one: str, other: str) -> bytes:
    left, right = one.encode(), other.encode()
    return left[: random.randint(0, len(left))] + right[random.randint(0, len(right)) :]


def _with_fragments(random: Random, one: str, other: str) -> bytes:
    raw = one.encode()
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(raw))
        raw = raw[:at] + random.choice(FRAGMENTS) + raw[at:]
    return raw


def _with_span(random: Random, one: str, other: str) -> bytes:
    words = one.split()
    words.insert(random.randint(0, len(words)), random.choice((*SOUPS, *NUMBERS, *WEB, *RESERVED)))
    return " ".join(words).encode()


WAYS: tuple[Callable[[Random, str, str], bytes], ...] = (
    lambda random, one, other: one.encode(),
    lambda random, one, other: one.upper().encode(),
    lambda random, one, other: one.lower().rstrip(".!?").encode(),
    lambda random, one, other: f"{one} {other}".encode(),
    lambda random, one, other: one.replace(" ", "").encode(),
    lambda random, one, other: re.sub(r"\s", random.choice(BREAKS), one, count=2).encode() + b"\r",
    lambda random, one, other: one.encode("latin-1", errors="replace"),
    lambda random, one, other: one.encode().decode("latin-1").encode(),  # read as Latin-1 and written as UTF-8
    _shuffled,
    _cut_bytes,
    _splice_bytes,
    _with_fragments,
    _with_span,
)


def made_sentences(count: int, *, seed: int) -> list[str]:
    """English sentences of the demo corpus with 1 to 4 protected spans of any kind put between their words."""
    random = Random(seed)
    frames = [english for english, _ in make_pairs(count, seed=seed)]
    return [_with_made_spans(random, frame) for frame in frames]


def _with_made_spans(random: Random, frame: str) -> str:
    """One in eight is shouted, one in eight has no final punctuation; tags may cling to a word."""
    words = (frame.upper() if random.random() < 1 / 8 else frame).split()
    if random.random() < 1 / 8:
        words[-1] = words[-1].rstrip(".?!")
    for _ in range(random.randint(1, 4)):
        kind, span = random.choice(list(made_spans(random).items()))
        at = random.randint(0, len(words) - 1)
        if kind == "tag" and random.random() < 0.5:
            words[at] = span + words[at]
        else:
            words.insert(at, span)
    return " ".join(words)


def made_spans(random: Random) -> dict[str, str]:
    """One span of every kind."""
    d, dd, ddd = (str(random.randint(2 if power == 0 else 10**power, 10 ** (power + 1) - 1)) for power in range(3))
    w, v = random.choices(("abc", "Name", "user_id", "Kappa"), k=2)
    numbers = [d, dd, ddd, f"{d},{ddd}", f"{d}.{ddd},{dd}", f"{d},{ddd},{ddd}.{dd}", f"{d}:{dd}", f"20{dd}-{dd}-{dd}"]
    numbers += [
        f"{dd}/{dd}/{ddd}",
        f"0{dd}",
        4 * ddd,
        f"{dd}-{ddd}-{ddd}",
        f"0.{ddd}",
        f"٣{random.choice('٠١٢')}",
        "१२",
    ]
    placeholders = [
        f"{{{{{w}}}}}",
        f"{{{{ {w}.{v} }}}}",
        f"{{{d}}}",
        f"{{{w}}}",
        f"${{{w}}}",
        "%s",
        f"%({w})s",
        f"%{d}$s",
    ]
    return {
        "number": random.choice(numbers),
        "url": random.choice((f"http://ex{d}.org/{w}", f"https://www.{w}.de/{v}?q={d}&l={w}", f"www.{w}.com")),
        "email": random.choice((f"{w}@{v}.com", f"{w}.{v}+{d}@mail.x{dd}.co.uk")),
        "placeholder": random.choice(placeholders),
        "tag": random.choice((f"<{w}>", f"</{w}>", "<br/>", f"<a href='{w}'>", "&amp;", f"&#{dd};")),
        "term": random.choice(tuple(GLOSSARY)),
    }
