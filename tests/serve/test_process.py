"""The process: signals, kills, restarts, and a start without torch."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

import httpx
from served import set_languages, wait_for

from capsnmt.server.run import _listen

FIELDS = {"q": "Eins zwei.", "source": "de", "target": "en"}
SLOW = {**FIELDS, "q": "\n".join(["Eins zwei drei vier fünf sechs sieben acht neun."] * 150)}


def in_background(served, outcomes: list) -> threading.Thread:
    """A request that takes a while; its status, or how its connection ended."""

    def run() -> None:
        try:
            outcomes.append(httpx.post(f"{served.url}/translate", json=SLOW, timeout=60).status_code)
        except httpx.TransportError as error:
            outcomes.append(type(error).__name__)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def is_under_way(served) -> bool:
    return "capsnmt_http_requests_in_flight 2.0" in served.client.get("/metrics").text


def test_sigterm_lets_what_is_under_way_end(start_server, folders):
    served = start_server(models=[folders["de-en"]])
    outcomes: list = []
    thread = in_background(served, outcomes)
    wait_for(lambda: is_under_way(served) or outcomes)
    assert served.stop() == 0
    thread.join(60)
    assert outcomes == [200]


def test_sigterm_lets_a_stream_end(start_server, folders):
    served = start_server("--grace", 60, models=[folders["de-en"]])
    with served.client.stream("POST", "/v1/translate", json={**SLOW, "stream": True}) as response:
        text = ""
        for part in response.iter_text():
            if not text:
                served.process.send_signal(signal.SIGTERM)
            text += part
    assert text.count("event: sentence") == 150
    assert "event: done" in text
    assert served.process.wait(60) == 0


def test_what_does_not_end_after_sigterm_is_told_to_come_again(start_server, folders):
    served = start_server("--grace", 0, models=[folders["de-en"]])
    answers: list[httpx.Response] = []
    post = [f"{served.url}/translate", SLOW], [f"{served.url}/v1/translate", {**SLOW, "stream": True}]
    threads = [
        threading.Thread(target=lambda url, body: answers.append(httpx.post(url, json=body, timeout=60)), args=each)
        for each in post
    ]
    for thread in threads:
        thread.start()
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as slow:
        slow.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n")
        slow.sendall(b"Content-Type: application/json\r\n\r\n{")
        wait_for(lambda: "in_flight 4.0" in served.client.get("/metrics").text)
        assert served.stop() == 0
        last = slow.recv(10_000).lower()
    for thread in threads:
        thread.join(60)
    assert last.startswith(b"http/1.1 503")
    assert b"retry-after: 1" in last
    assert len(answers) == 2
    for answer in answers:
        if answer.headers["Content-Type"].startswith("text/event-stream"):
            assert '"status":503,"retry_after":1' in answer.text
        else:
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "Traceback" not in served.log


def test_kill_and_restart(start_server, folders):
    served = start_server(models=[folders["de-en"]])
    outcomes: list = []
    threads = [in_background(served, outcomes) for _ in range(3)]
    wait_for(lambda: "in_flight 4.0" in served.client.get("/metrics").text or outcomes)  # all three, and this one
    assert served.stop(signal.SIGKILL) == -signal.SIGKILL
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 3
    ends = (200, "RemoteProtocolError", "ReadError", "ConnectError")  # the last: who came when it was dead already
    assert all(outcome in ends for outcome in outcomes), outcomes
    again = start_server(models=[folders["de-en"]], port=served.port)
    assert again.post("/translate", **FIELDS).status_code == 200
    again.stop()


def test_sighup_loads_the_models_anew(start_server, folders, tmp_path):
    folder = shutil.copytree(folders["de-en"], tmp_path / "model")
    served = start_server(models=[folder])
    set_languages(folder, "de-fr")
    served.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "INFO capsnmt.server.state: reloaded" in served.log)
    assert [each["code"] for each in served.client.get("/languages").json()] == ["de", "fr"]
    assert served.post("/translate", **{**FIELDS, "target": "fr"}).status_code == 200

    (folder / "runtime" / "manifest.json").write_text("{")
    served.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "not reloaded" in served.log)
    assert served.post("/translate", **{**FIELDS, "target": "fr"}).status_code == 200
    served.stop()


def test_ctrl_c_is_no_error(start_server, folders):
    served = start_server(models=[folders["de-en"]])
    assert served.stop(signal.SIGINT) == 0
    assert "Traceback" not in served.log


def test_serving_needs_no_torch():
    code = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'pyarrow', 'sacrebleu'): sys.modules[name] = None\n"
        "import capsnmt.server.run\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env={**os.environ})


def test_an_answer_on_a_kept_connection_does_not_wait_for_an_acknowledgement():
    async def accepted_option():
        found = asyncio.get_running_loop().create_future()

        def accepted(_, writer):
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(accepted, sock=_listen("127.0.0.1", 0)) as server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.close()
            return await found

    assert asyncio.run(accepted_option()) == 1


def test_who_calls_when_it_says_that_it_listens_is_answered(folders):
    command = [sys.executable, "-m", "capsnmt", "serve", str(folders["de-en"]), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            urls = (re.search(r"listens on (http://\S+)", line) for line in process.stderr)
            url = next(found[1] for found in urls if found)
            assert httpx.get(f"{url}/health", timeout=30).status_code == 200
        finally:
            process.kill()
