"""Our own API: n-best lists, scores, statuses, the routing, and texts sentence by sentence."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

from capsnmt.server.errors import TooLate
from capsnmt.server.settings import Limits
from capsnmt.server.translating import Way

LINE = "Eins zwei drei."
TEXT = "Eins zwei. Drei vier!\n\nFünf, sechs? Sieben acht 3.5 neun."


def ask(served, **fields):
    answer = served.client.post("/v1/translate", json={"source": "de", "target": "en", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(served, **fields):
    body = {"source": "de", "target": "en", "stream": True, **fields}
    with served.client.stream("POST", "/v1/translate", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        text = "".join(response.iter_text())
    blocks = [block.split("\n") for block in text.replace("\r\n", "\n").split("\n\n") if block.strip()]
    return [(block[0].removeprefix("event: "), json.loads(block[1].removeprefix("data: "))) for block in blocks]


def test_lines_are_what_the_translator_says_of_them(served, models):
    answer = ask(served, q=["Eins zwei.\n\nDrei", "Vier."], n_best=3)
    assert answer["path"] == ["de", "en"]
    (model,) = models.path("de", "en")
    lines = [line for translation in answer["translations"] for line in translation["lines"]]
    for line in lines:
        (own,) = model.translator.translate_batch([line["source"]])
        assert (line["text"], line["status"]) == (own.text, own.status)
        assert line["score"] == (None if own.score is None else pytest.approx(own.score, abs=1e-3))
        scores = [each["score"] for each in line["hypotheses"]]
        assert scores == sorted(scores, reverse=True)
    assert [len(line["hypotheses"]) for line in lines] == [3, 0, 3, 3]
    assert [line["status"] for line in lines][1] == "empty"
    joined = "".join(line["text"] + line["end"] for line in answer["translations"][0]["lines"])
    assert joined == answer["translations"][0]["text"]
    assert answer["elapsed_ms"] > 0


def test_routing_shares_of_a_word_sum_to_one(served, models):
    (model,) = models.path("de", "en")
    (line,) = ask(served, q="Eins zwei 42 drei", routing=True)["translations"][0]["lines"]
    (sentence,) = line["routing"]
    assert sentence["words"] == ["Eins", "zwei", "42", "drei", "</s>"]
    shares = np.array(sentence["shares"])
    assert shares.shape[1:] == (5, 3)
    assert shares.shape[0] == model.engine.routing([model.text.source_ids("x")]).shape[1]
    np.testing.assert_allclose(shares.sum(axis=-1), 1.0, atol=1e-3)
    assert ask(served, q=LINE)["translations"][0]["lines"][0]["routing"] is None


def test_routing_is_what_the_engine_says(served, models):
    """Of a sentence whose words are single subwords the shares are the coefficients themselves."""
    (model,) = models.path("de", "en")
    ids = model.text.source_ids("Eins zwei")
    groups = np.cumsum([model.text.starts_word(token) or place == 0 for place, token in enumerate(ids[:-1])]) - 1
    coefficients = model.engine.routing([ids])[0]
    expected = np.stack([coefficients[:, :-1][:, groups == word].mean(axis=1) for word in range(2)], axis=1)
    (line,) = ask(served, q="Eins zwei", routing=True)["translations"][0]["lines"]
    np.testing.assert_allclose(np.array(line["routing"][0]["shares"])[:, :2], expected, atol=1e-4)


def test_streamed_sentences_are_the_whole_text(served, models):
    (model,) = models.path("de", "en")
    found = events(served, q=TEXT)
    assert [name for name, _ in found] == ["start", *["sentence"] * (len(found) - 2), "done"]
    sentences = [data for name, data in found if name == "sentence"]
    assert len(sentences) > 4
    assert "".join(each["source"] + each["end"] for each in sentences) == TEXT
    for each in sentences:
        assert each["text"] == model.translator.translate(each["source"])
    assert [each["line"] for each in sentences] == sorted(each["line"] for each in sentences)


def test_streams_go_through_english_too(served):
    whole = ask(served, q=TEXT, target="fr")
    assert whole["path"] == ["de", "en", "fr"]
    sentences = [data for name, data in events(served, q=TEXT, target="fr") if name == "sentence"]
    assert all("pivot" in each["notes"] for each in sentences if each["status"] != "empty")
    assert "".join(each["source"] + each["end"] for each in sentences) == TEXT


def test_a_full_queue_refuses_a_stream_before_it_begins(in_process):
    client = in_process(Limits(waiting_characters=3))
    answer = client.post("/v1/translate", json={"q": TEXT, "source": "de", "target": "en", "stream": True})
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert list(answer.json()) == ["error"]


def test_an_error_in_a_stream_says_when_to_come_back(in_process, monkeypatch):
    original = Way.each

    async def one_and_no_more(way, lines):
        async with contextlib.aclosing(original(way, lines)) as answers:
            yield await answers.__anext__()
        raise TooLate(7)

    monkeypatch.setattr(Way, "each", one_and_no_more)
    client = in_process()
    answer = client.post("/v1/translate", json={"q": TEXT, "source": "de", "target": "en", "stream": True})
    *before, last = answer.text.replace("\r\n", "\n").strip().split("\n\n")
    assert [block.split("\n")[0] for block in before] == ["event: start", "event: sentence"]
    name, data = last.split("\n")
    assert name == "event: error"
    fields = json.loads(data.removeprefix("data: "))
    assert (fields["status"], fields["retry_after"]) == (503, 7)
    assert fields["error"].startswith("The deadline has passed")


def test_auto(served):
    answer = ask(served, q="Das Wetter ist heute wirklich sehr schön.", source="auto")
    assert answer["detected"]["language"] == "de"
    assert ask(served, q="🙂", source="auto")["translations"][0]["text"] == "🙂"


def test_models(served):
    found = served.client.get("/v1/models").json()
    assert [(each["source"], each["target"]) for each in found] == [("de", "en"), ("en", "de"), ("en", "fr")]
    assert {"system": "capsnmt", "precision": "fp32", "beam": 4, "routing": True}.items() <= found[0].items()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"target": "en"}, "Invalid request: missing q parameter"),
        ({"q": "", "target": "en"}, "Invalid request: missing q parameter"),
        ({"q": "x"}, "Invalid request: missing target parameter"),
        ({"q": "x", "target": "en", "source": "de", "n_best": 99}, "Invalid request: n_best must be <= 6"),
        ({"q": "x", "target": "zz"}, "zz is not supported"),
        ({"q": "x", "target": "en", "n_best": "2"}, "Invalid request: n_best parameter"),
        ({"q": "x", "target": "en", "secret-word": 1}, "Invalid request: unknown parameter"),
        ({"q": ["secret-word", 1], "target": "en"}, "Invalid request: q parameter"),
    ],
)
def test_errors_name_the_parameter_and_echo_nothing(served, fields, text):
    answer = served.client.post("/v1/translate", json=fields)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(text)
    assert "secret-word" not in answer.text


def test_metrics(served):
    ask(served, q=LINE)
    text = served.client.get("/metrics").text
    assert 'capsnmt_http_request_duration_seconds_count{endpoint="/v1/translate",method="POST",status="200"}' in text
    assert "capsnmt_batch_lines_bucket" in text
    assert served.client.get("/no/such/secret-word").status_code == 404
    assert "secret-word" not in served.client.get("/metrics").text
