"""LibreTranslate's wire format: fields, answers, texts of errors."""

from __future__ import annotations

import json
import socket
import time

import pytest

from capsnmt.decoding.translation import Translation
from capsnmt.server import languages
from capsnmt.server.app import _routes
from capsnmt.server.batching import Answer
from capsnmt.server.models import ModelSet, load_models
from capsnmt.server.translating import Way

LINE = "Eins zwei drei."


def error(response, status=400):
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    return response.json()["error"]


def test_a_string_gives_a_string(served, translate):
    answer = served.post("/translate", q=LINE, source="de", target="en").json()
    assert answer == {"translatedText": translate(LINE)}


def test_the_same_in_json_in_a_form_in_parts_and_in_the_query(served):
    fields = {"q": LINE, "source": "de", "target": "en"}
    answers = [
        served.client.post("/translate", json=fields),
        served.client.post("/translate", data=fields),
        served.client.post("/translate", files={name: (None, value) for name, value in fields.items()}),
        served.client.post("/translate", params=fields),
        served.client.post("/translate", params={"q": LINE}, data={"source": "de", "target": "en"}),
    ]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert len({answer.text for answer in answers}) == 1


def test_a_list_gives_a_list(served, translate):
    q = ["Eins.", "", "Zwei drei.", "  "]
    answer = served.post("/translate", q=q, source="de", target="en").json()
    assert answer == {"translatedText": [translate("Eins."), "", translate("Zwei drei."), "  "]}


def test_line_breaks_are_kept(served):
    q = "Eins.\n\n  Zwei.\r\nDrei.\n"
    text = served.post("/translate", q=q, source="de", target="en").json()["translatedText"]
    assert [part[-1:] for part in text.split("\n")] == [".", "", "\r", ".", ""]
    as_form = served.client.post("/translate", data={"q": q, "source": "de", "target": "en"}).json()["translatedText"]
    assert as_form == text.replace("\r\n", "\n").rstrip("\n")


def test_alternatives_are_other_translations(served):
    answer = served.post("/translate", q=LINE, source="de", target="en", alternatives=3).json()
    found = answer["alternatives"]
    assert 1 <= len(found) <= 3
    assert len({*found, answer["translatedText"]}) == len(found) + 1
    batch = served.post("/translate", q=[LINE, "Vier."], source="de", target="en", alternatives=2).json()
    assert [len(each) <= 2 for each in batch["alternatives"]] == [True, True]
    assert batch["translatedText"][0] == answer["translatedText"]
    as_html = served.post("/translate", q=LINE, source="de", target="en", alternatives=3, format="html").json()
    assert as_html["alternatives"] == []
    assert "alternatives" not in served.post("/translate", q=LINE, source="de", target="en", alternatives=0).json()


def test_auto_names_the_language_of_each_text(served):
    german, english = "Das Wetter ist heute wirklich sehr schön.", "The weather is really very nice today."
    answer = served.post("/translate", q=german, source="auto", target="en").json()
    assert answer["detectedLanguage"]["language"] == "de"
    assert 0 < answer["detectedLanguage"]["confidence"] <= 100
    batch = served.post("/translate", q=[german, english], source="auto", target="en").json()
    assert [each["language"] for each in batch["detectedLanguage"]] == ["de", "en"]
    assert batch["translatedText"] == [answer["translatedText"], english]  # English to English stays as it is


def test_nothing_to_translate_comes_back(served):
    for q in ("🙂🎉", "   ", "\n", "…!"):
        answer = served.post("/translate", q=q, source="auto", target="de")
        assert answer.json()["translatedText"] == q, answer.text
        assert answer.json()["detectedLanguage"] == {"confidence": 0.0, "language": "en"}


def test_english_stands_between_two_languages(served, translate):
    text = served.post("/translate", q="Zwei drei", source="de", target="fr").json()["translatedText"]
    assert text == translate("Zwei drei", "de", "fr")


def test_final_punctuation_and_capitals_are_the_sources(served):
    def end(q):
        return served.post("/translate", q=q, source="de", target="en").json()["translatedText"]

    assert end("Eins zwei drei?").endswith("?")
    assert end("Eins zwei drei!").endswith("!")
    assert end("Eins zwei drei")[-1] not in ".?!"
    assert end("EINS ZWEI DREI").isupper()


def test_codes_in_any_case(served):
    assert served.post("/translate", q=LINE, source="DE", target="En").status_code == 200


def test_aliases_of_codes(start_server, folder_for):
    served = start_server(models=[folder_for("en-pb")])
    assert served.client.get("/languages").json()[1]["code"] == "pt-BR"
    for code in ("pb", "pt-BR", "PT-br"):
        assert served.post("/translate", q="One.", source="en", target=code).status_code == 200
    served.stop()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"source": "de", "target": "en"}, "Invalid request: missing q parameter"),
        ({"q": "", "source": "de", "target": "en"}, "Invalid request: missing q parameter"),
        ({"q": [], "source": "de", "target": "en"}, "Invalid request: missing q parameter"),
        ({"q": "x", "target": "en"}, "Invalid request: missing source parameter"),
        ({"q": "x", "source": "de"}, "Invalid request: missing target parameter"),
        ({"q": "x", "source": "zz", "target": "en"}, "zz is not supported"),
        ({"q": "x", "source": "de", "target": "zz"}, "zz is not supported"),
        ({"q": "x", "source": "de", "target": "en", "format": "pdf"}, "pdf format is not supported"),
        (
            {"q": "x", "source": "de", "target": "en", "alternatives": "x"},
            "Invalid request: alternatives parameter is not a number",
        ),
        (
            {"q": "x", "source": "de", "target": "en", "alternatives": 6},
            "Invalid request: alternatives parameter must be <= 5",
        ),
        (
            {"q": "oui", "source": "fr", "target": "de"},
            "German (de) is not available as a target language from French (fr)",
        ),
        (
            {"q": "x" * 10_001, "source": "de", "target": "en"},
            "Invalid request: request (10001) exceeds text limit (10000)",
        ),
        (
            {"q": ["x"] * 101, "source": "de", "target": "en"},
            "Invalid request: request (101) exceeds text limit (100)",
        ),
    ],
)
def test_errors_have_libretranslates_texts(served, fields, text):
    assert error(served.client.post("/translate", json=fields)) == text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"q"', b"1", b"null", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_object(served, body):
    answer = served.client.post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert error(answer) == "Invalid JSON format"


@pytest.mark.parametrize(
    "fields",
    [
        {"q": 7, "source": "de", "target": "en"},
        {"q": {"a": 1}, "source": "de", "target": "en"},
        {"q": ["a", 1], "source": "de", "target": "en"},
        {"q": "a", "source": 5, "target": "en"},
        {"q": "a", "source": "de", "target": ["en"]},
        {"q": "a", "source": "de", "target": "en", "format": {}},
        {"q": "a", "source": "de", "target": "en", "alternatives": [1]},
        {"q": "a", "source": "de", "target": "en", "alternatives": 1e400},
    ],
)
def test_values_of_the_wrong_kind_are_the_clients_fault(served, fields):
    body = json.dumps(fields).encode()
    error(served.client.post("/translate", content=body, headers={"Content-Type": "application/json"}))


def test_halves_of_characters_do_no_harm(served):
    body = b'{"q": "eins \\ud800 zwei \\ud83d\\ude42", "source": "de", "target": "en"}'
    answer = served.client.post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200


def test_answers_are_utf8_and_not_escaped(served):
    answer = served.post("/translate", q="🙂 ä", source="auto", target="de")
    assert "🙂".encode() in answer.content


def test_languages(served):
    found = {each["code"]: each for each in served.client.get("/languages").json()}
    assert {code: each["targets"] for code, each in found.items()} == {
        "de": ["de", "en", "fr"],
        "en": ["de", "en", "fr"],
        "fr": ["fr"],
    }
    assert [found[code]["name"] for code in ("de", "en", "fr")] == ["German", "English", "French"]


def test_detect(served):
    answer = served.post("/detect", q="Das Wetter ist heute wirklich sehr schön.").json()
    assert answer[0]["language"] == "de"
    assert [each["confidence"] for each in answer] == sorted((each["confidence"] for each in answer), reverse=True)
    assert served.client.post("/detect", data={"q": "🙂"}).json() == [{"confidence": 0.0, "language": "en"}]
    assert error(served.client.post("/detect", data={})) == "Invalid request: missing q parameter"
    assert error(served.client.get("/detect"), 405)


def test_frontend_settings(served):
    assert served.client.get("/frontend/settings").json() == {
        "charLimit": 10_000,
        "frontendTimeout": 500,
        "apiKeys": False,
        "keyRequired": False,
        "suggestions": False,
        "filesTranslation": True,
        "supportedFilesFormat": [".txt", ".html", ".htm", ".srt"],
        "language": {"source": {"code": "auto", "name": "Auto Detect"}, "target": {"code": "en", "name": "English"}},
    }


def test_health_spec_docs_suggest(served):
    assert served.client.get("/health").json() == {"status": "ok"}
    document = served.client.get("/spec").json()
    assert document["openapi"].startswith("3.")
    assert {"/translate", "/detect", "/languages", "/v1/translate"} <= document["paths"].keys()
    assert served.client.get("/docs").status_code == 200
    assert error(served.post("/suggest", q="a", s="b", source="de", target="en"), 403)
    assert error(served.client.get("/translate"), 405)
    assert error(served.client.get("/no-such-path"), 404)


def test_an_answer_that_needs_no_body_waits_for_a_small_one(served):
    """Else the connection would be closed over what the client still sends, and it might never see the answer."""
    address = served.client.base_url
    body = b'{"q": "' + b"a" * 20_000 + b'"}'
    head = f"POST /suggest HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((address.host, address.port), timeout=20) as connection:
        for _ in range(2):  # the second on the same connection
            connection.sendall(head)
            time.sleep(0.1)
            connection.sendall(body)
            answer = b""
            while b"}" not in answer:
                received = connection.recv(4096)
                assert received, answer
                answer += received
            assert answer.startswith(b"HTTP/1.1 403")
            assert b"connection: close" not in answer.lower()


def test_a_key_that_is_not_needed_is_ignored(served):
    answer = served.post("/translate", q=LINE, source="de", target="en", api_key="anything", secret="x")
    assert answer.status_code == 200


def test_headers_for_other_origins_are_on_every_answer(served):
    for answer in (
        served.client.get("/languages"),
        served.post("/translate", q=""),
        served.client.get("/no-such-path"),
        served.client.request("OPTIONS", "/translate", headers={"Origin": "https://example.org"}),
    ):
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.headers["Access-Control-Allow-Methods"] == "GET, POST"
        assert answer.headers["Access-Control-Max-Age"] == "1728000"
        assert "Access-Control-Allow-Credentials" not in answer.headers
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.status_code == 204


def test_html_stays_escaped_and_its_tags_stay(served):
    q = "<p>Eins <b>zwei</b> &lt;script&gt;drei&lt;/script&gt;</p>"
    text = served.post("/translate", q=q, source="de", target="en", format="html").json()["translatedText"]
    assert "<script" not in text
    assert text.startswith("<p>")
    assert text.endswith("</p>")
    assert text.index("<b>") < text.index("</b>")


@pytest.mark.parametrize("path", ["/", "/docs", "/health", "/languages", "/spec", "/metrics", "/page/page.js"])
def test_head(served, path):
    answer = served.client.head(path)
    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["Content-Type"] == served.client.get(path).headers["Content-Type"]


def test_a_browser_asks_whether_its_page_is_still_the_same(served):
    for path in ("/", "/page/page.js", "/page/page.css"):
        assert served.client.get(path).headers["Cache-Control"] == "no-cache"


def test_of_equally_likely_languages_the_one_with_a_way_is_meant(in_process):
    client = in_process(pairs=["en-de"])
    answer = client.post("/translate", json={"q": "Hi", "source": "auto", "target": "de"}).json()
    assert answer["detectedLanguage"] == {"confidence": 50.0, "language": "en"}
    assert client.post("/v1/translate", json={"q": "Hi", "target": "de"}).json()["path"] == ["en", "de"]


def test_a_request_has_one_deadline_however_many_languages_it_has(in_process, monkeypatch):
    deadlines = []

    async def texts(way, texts):
        deadlines.append(way.deadline)
        return [[(Answer(Translation(text, text, None, (), "empty")), "")] for text in texts]

    monkeypatch.setattr(Way, "texts", texts)
    client = in_process(pairs=["de-en", "en-de", "en-fr"])
    q = ["Das Wetter ist heute wirklich sehr schön.", "The weather is really very nice today."]
    assert client.post("/translate", json={"q": q, "source": "auto", "target": "fr"}).status_code == 200
    assert len(deadlines) == 2
    assert len(set(deadlines)) == 1


def test_the_detector_is_loaded_with_the_models(folders):
    languages._identifier.cache_clear()
    load_models([folders["de-en"]], threads=1)
    assert languages._identifier.cache_info().currsize == 1


def test_the_spec_names_every_endpoint_and_the_languages_that_are_served(in_process):
    client = in_process(pairs=["en-de", "en-fr"])
    found = client.get("/spec").json()["paths"]
    routes = {route.path for route in _routes(client.state)}
    assert set(found) == routes - {"/", "/docs", "/spec"}
    post = found["/translate"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert schema["source"]["enum"] == ["auto", "de", "en", "fr"]
    assert schema["target"]["enum"] == ["de", "en", "fr"]
    assert {each["name"] for each in post["parameters"]} == set(schema)
    assert "text/event-stream" in found["/v1/translate"]["post"]["responses"]["200"]["content"]
    client.state.models = ModelSet(client.state.models.models[:1])  # as a reload does
    post = client.get("/spec").json()["paths"]["/v1/translate"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert schema["source"]["enum"] == ["auto", "de", "en"]
