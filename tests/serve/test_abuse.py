"""Hostile and unlucky clients: the server goes on serving, says what is wrong, and writes nothing down."""

from __future__ import annotations

import concurrent.futures
import random
import socket

import httpx
import hypothesis
import pytest
import schemathesis
from served import wait_for

SECRETS = ("Geheimnis", "mein-geheimer-schluessel", "geheim-parameter")
FIELDS = {"q": "Eins.", "source": "de", "target": "en"}


def is_well(served) -> None:
    answer = served.post("/translate", **FIELDS)
    assert answer.status_code == 200, answer.text


def raw(served, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=30)
    connection.sendall(data)
    return connection


def head(length: int, path: str = "/translate") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


@pytest.mark.filterwarnings("ignore")
def test_the_spec_holds_and_nothing_is_a_fault_of_the_server(served):
    schema = schemathesis.openapi.from_dict(served.client.get("/spec").json())
    schema.config.base_url = served.url
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.CHECKS.get_one("status_code_conformance"),
        schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
    ]
    tested = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        def call(case):
            case.call_and_validate(checks=checks)

        strategy = operation.as_strategy()
        run = hypothesis.given(case=strategy)(call)
        hypothesis.settings(
            max_examples=25, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )(run)()
        tested += 1
    assert tested == 11
    # It got as far as the model, not only to errors.
    text = served.client.get("/metrics").text
    for endpoint in ("/translate", "/detect", "/v1/translate"):
        assert f'_count{{endpoint="{endpoint}",method="POST",status="200"}}' in text
    is_well(served)


def test_random_bodies(served):
    generator = random.Random(5)
    kinds = [
        "application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain",
        "",
    ]
    paths = ["/translate", "/detect", "/v1/translate", "/translate_file", "/suggest", "/languages", "/metrics"]
    seeds = [b'{"q":"Eins","source":"de","target":"en"}', b"q=Eins&source=de&target=en", b"--x\r\nContent-", b""]
    for _ in range(400):
        body = bytearray(generator.choice(seeds))
        for _ in range(generator.randrange(6)):
            place = generator.randrange(len(body) + 1)
            body[place : place + generator.randrange(4)] = generator.randbytes(generator.randrange(8))
        headers = {"Content-Type": generator.choice(kinds)}
        answer = served.client.post(generator.choice(paths), content=bytes(body), headers=headers)
        assert answer.status_code < 500, (body, headers)
    is_well(served)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 200_000,
        b"GET /health HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http(served, data):
    with raw(served, data) as connection:
        try:
            answer = connection.recv(100)
        except ConnectionError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    is_well(served)


@pytest.mark.parametrize(("target", "status"), [(b"OPTIONS *", b"204"), (b"GET secretword", b"404")])
def test_targets_that_are_no_paths(served, target, status):
    with raw(served, target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 " + status)
    wait_for(lambda: f" other {status.decode()} " in served.log)
    assert "Traceback" not in served.log
    assert "secretword" not in served.log + served.client.get("/metrics").text


def test_slow_and_silent_clients_are_let_go(start_server, folders):
    served = start_server("--body-timeout", 1, models=[folders["de-en"]])
    silent = raw(served, b"")
    half = raw(served, b"POST /translate HTTP/1.1\r\nHost: local")
    slow = raw(served, head(1000) + b"{")
    kept = raw(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        answer += kept.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 200")
    kept.sendall(b"GET /health HTTP/1.1\r\nHost: local")
    assert silent.recv(10) == b""
    assert half.recv(10) == b""
    assert slow.recv(100).startswith(b"HTTP/1.1 408")
    assert kept.recv(10_000) == b""  # its second request never came
    is_well(served)
    for connection in (silent, half, slow, kept):
        connection.close()
    served.stop()


def test_a_client_that_goes_away_is_noticed(served):
    def abandoned() -> int:
        text = served.client.get("/metrics").text
        return int(float(text.split("\ncapsnmt_abandoned_total ")[1].split()[0]))

    before = abandoned()
    body = b'{"q":["' + b'","'.join([b"Eins zwei drei vier fuenf."] * 90) + b'"],"source":"de","target":"en"}'
    for path in ("/translate", "/v1/translate"):
        raw(served, head(len(body), path) + body).close()
    raw(served, head(len(body)) + body[:50]).close()  # in the middle of its body
    wait_for(lambda: abandoned() >= before + 3)
    assert "a request failed" not in served.log
    is_well(served)


def test_many_at_once_get_answers_or_are_told_to_come_back(start_server, folders):
    served = start_server("--deadline", 20, models=[folders["de-en"]])

    def one(number: int) -> tuple[int, str | None]:
        answer = httpx.post(f"{served.url}/translate", json={**FIELDS, "q": f"Eins zwei {number}."}, timeout=60)
        return answer.status_code, answer.headers.get("Retry-After")

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        found = list(pool.map(one, range(96)))
    assert {status for status, _ in found} <= {200, 429, 503}
    assert all(wait for status, wait in found if status != 200)
    assert any(status == 200 for status, _ in found)
    served.stop()


def test_logs_hold_nothing_of_users(start_server, folders):
    served = start_server(models=[folders["de-en"]])
    text, key, name = SECRETS
    client = served.client
    client.post("/translate", params={"q": text, "source": "de", "target": "en", "api_key": key})
    client.post("/translate", json={"q": f"{text} eins", "source": text, "target": "en", "api_key": key})
    client.post("/translate", json={"q": {text: 1}, name: 1, "source": "de", "target": "en"})
    client.post("/v1/translate", json={"q": [text, 1], name: text, "target": "en", "api_key": key})
    client.post("/v1/translate", json={"q": text, "source": "de", "target": "en", "routing": True, "stream": True})
    client.post("/translate", content=f'{{"q": "{text}'.encode(), headers={"Content-Type": "application/json"})
    client.post("/detect", data={"q": text})
    client.post("/translate_file", files={"file": (f"{text}.txt", text)}, data={"source": "de", "target": "en"})
    client.get(f"/{text}?{name}={key}", headers={"Authorization": f"Bearer {key}", "User-Agent": text, "Referer": text})
    client.request(text.upper(), "/")
    raw(served, f"GET /{text} HTTP/9\r\n\r\n".encode()).close()
    assert "/translate 200" in served.log
    served.stop()
    for secret in SECRETS:
        assert secret.lower() not in served.log.lower()


def test_a_crash_is_logged_without_its_words(caplog):
    from capsnmt.server.logs import log_crash

    try:
        raise ValueError(SECRETS[0])
    except ValueError as error:
        log_crash(error)
    assert "ValueError in test_a_crash" in caplog.text
    assert SECRETS[0] not in caplog.text
