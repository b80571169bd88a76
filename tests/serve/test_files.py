"""Files in, files out: what is not text in them stays as it was."""

from __future__ import annotations

import re
import threading

import pytest

from capsnmt.server import files, libretranslate, v1
from capsnmt.server.documents import decode_file, join_parts, read_parts, split_lines, wrap_evenly
from capsnmt.server.errors import Refused
from capsnmt.server.html import Markup
from capsnmt.server.settings import Limits

SUBTITLES = """1
00:00:01,000 --> 00:00:04,000
Eins <i>zwei</i>
drei vier.

2
00:00:05,000 --> 00:00:09,500 X1:40 X2:600
{\\an8}- Fünf & sechs?

3
00:00:10,000 --> 00:00:11,000
42
"""


def send(served, name, content, source="de", target="en", **fields):
    data = {"source": source, "target": target, **fields}
    return served.client.post("/translate_file", files={"file": (name, content)}, data=data)


def fetched(served, response):
    assert response.status_code == 200, response.text
    url = response.json()["translatedFileUrl"]
    assert url.startswith(served.url + "/download_file/")
    return served.client.get(url)


def test_text(served, models):
    (model,) = models.path("de", "en")
    answer = fetched(served, send(served, "a.txt", "\ufeffEins zwei.\r\n\r\n  Drei\n".encode()))
    best = [model.translator.translate(line) for line in ("Eins zwei.", "  Drei")]
    assert answer.content.decode() == f"\ufeff{best[0]}\r\n\r\n{best[1]}\n"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="translated.txt"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"


def test_html(served):
    page = "<!doctype html><title>Eins</title><p onclick='x()'>Zwei <b>drei</b></p><script>a<b</script>"
    answer = fetched(served, send(served, "a.HTML", page.encode()))
    assert re.findall("<[^>]*>", answer.text) == re.findall("<[^>]*>", page)
    assert answer.headers["Content-Disposition"].startswith("attachment")


def test_subtitles(served):
    text = fetched(served, send(served, "a.srt", SUBTITLES.encode())).text
    for line in SUBTITLES.splitlines():
        if "-->" in line:
            assert line in text
    assert text.count("\n\n") == 2
    assert text.index("<i>") < text.index("</i>")
    assert "{\\an8}" in text
    assert text.endswith("42\n")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_subtitles_come_back_byte_for_byte(end):
    source = SUBTITLES.replace("\n", end)
    parts = read_parts(".srt", source, max_depth=9)
    markups = [part.markup for part in parts if not isinstance(part, str)]
    assert len(markups) == 3
    assert join_parts(parts, [markup.finish(markup.lines, []) for markup in markups]) == source


def test_rows_of_subtitles():
    assert wrap_evenly("aa bb cc dd", 2) == ["aa bb", "cc dd"]
    assert wrap_evenly("aa bb cc dd", 1) == ["aa bb cc dd"]
    assert wrap_evenly("aa", 3) == ["aa"]
    assert wrap_evenly("", 2) == [""]
    assert " ".join(wrap_evenly("a bbb cc dddd e ffffff g", 3)) == "a bbb cc dddd e ffffff g"


@pytest.mark.timeout(90)
def test_rows_without_number_are_no_more_work_than_rows():
    """If the work grew with the square of the rows, the test would not end before its time limit."""
    rows = wrap_evenly("- " * 200_000, 200_000)
    assert len(rows) == 200_000
    text = "eins zwei " * 100_000
    assert " ".join(wrap_evenly(text, 90_000)) == text


def test_a_cue_with_nothing_to_translate_stays_as_it_is():
    source = "1\n00:00:01,000 --> 00:00:04,000\n" + "  - \n" * 3
    assert [part for part in read_parts(".srt", source, max_depth=9) if not isinstance(part, str)] == []
    assert join_parts(read_parts(".srt", source, max_depth=9), []) == source


def test_lines_of_a_text():
    for text in ("", "a", "a\n", "\n", "a\r\nb\rc\x85d\u2028e\x0bf\x0cg", "\n\n", "a\n\nb"):
        assert "".join(line + end for line, end in split_lines(text)) == text
        assert all(len(line.splitlines()) <= 1 for line, _ in split_lines(text))


def test_encodings():
    assert decode_file("é".encode()) == ("é", "utf-8")
    assert decode_file("é".encode("utf-16")) == ("é", "utf-16")
    with pytest.raises(Refused, match="UTF-8"):
        decode_file("é".encode("latin-1"))


@pytest.mark.parametrize(
    ("name", "content", "fields", "status", "text"),
    [
        ("a.docx", b"PK", {}, 400, "file format not supported"),
        ("", b"x", {}, 400, ""),
        ("a.txt", b"\xff\xfe\xff", {}, 400, "UTF-8"),
        ("a.txt", b"x" * (512 * 1024 + 1), {}, 413, "bytes"),
        ("a.txt", b"x", {"target": "zz"}, 400, "zz is not supported"),
        ("a.txt", b"x", {"source": ""}, 400, "missing source parameter"),
        ("a.html", b"<i>" * 300, {}, 400, "within each other"),
    ],
)
def test_files_that_are_refused(served, name, content, fields, status, text):
    answer = send(served, name, content, **fields)
    assert answer.status_code == status
    assert text in answer.json()["error"]


def test_no_file(served):
    answer = served.client.post("/translate_file", data={"source": "de", "target": "en"})
    assert answer.json()["error"] == "Invalid request: missing file parameter"


@pytest.mark.parametrize("name", ["x.txt", "..%2F..%2Fetc%2Fpasswd", "%00", "a" * 5000])
def test_downloads_that_are_not_there(served, name):
    answer = served.client.get(f"/download_file/{name}")
    assert answer.status_code == 404
    assert list(answer.json()) == ["error"]


def test_names_of_downloads_cannot_be_guessed(served):
    urls = [send(served, "secret-name.txt", b"Eins").json()["translatedFileUrl"] for _ in range(2)]
    assert urls[0] != urls[1]
    assert all("secret-name" not in url and len(url.rsplit("/")[-1]) > 30 for url in urls)


def test_markup_without_entities_escapes_nothing():
    markup = Markup("a & b < c <i>d</i>", entities=False)
    assert markup.finish(markup.lines, []) == "a & b < c <i>d</i>"


def test_large_files_are_read_and_joined_outside_of_the_event_loop(in_process, monkeypatch):
    threads: dict[str, set[str]] = {}

    def watched(module, name):
        original = getattr(module, name)

        def watching(*args, **kwargs):
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, watching)

    for module, name in (
        (files, "read_parts"),
        (files, "join_parts"),
        (libretranslate, "Markup"),
        (Markup, "pieces"),
        (Markup, "finish"),
        (v1, "_places"),
    ):
        watched(module, name)
    large = "<p>Eins</p>" + "<p>.</p>" * 5000
    client = in_process(Limits(characters=100_000))
    fields = {"source": "de", "target": "en"}
    answers = [
        client.post("/translate_file", files={"file": ("a.html", large.encode())}, data=fields),
        client.post("/translate", json={**fields, "q": large, "format": "html"}),
        client.post("/v1/translate", json={**fields, "q": "Eins.\n" + "." * 30_000, "stream": True}),
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len(threads) == 6
    assert all(name.startswith("asyncio_") for names in threads.values() for name in names), threads
