"""Who may ask, for how much, how often, and under which name."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import httpx
import pytest

from capsnmt.errors import CapsNMTError
from capsnmt.server.batching import Batcher
from capsnmt.server.downloads import Downloads
from capsnmt.server.errors import Refused
from capsnmt.server.keys import Keys, hash_of, new_key
from capsnmt.server.limits import Rates
from capsnmt.server.middleware import host_allowed
from capsnmt.server.settings import Batching, Limits, ServeSettings

FIELDS = {"q": "Eins.", "source": "de", "target": "en"}


def test_keys_are_stored_as_hashes(tmp_path):
    path = tmp_path / "keys"
    key = new_key(path, "Ada")
    other = new_key(path, "Bob")
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    keys = Keys.read(path)
    assert keys.find(key).name == "Ada"
    assert keys.find(other).name == "Bob"
    assert keys.find(key[:-1]) is None
    assert keys.find("") is None
    assert keys.find("\ud800") is None


@pytest.mark.parametrize("line", ["secret", "abc\tAda", "0" * 64 + "\tAda\tmany"])
def test_a_damaged_file_of_keys_is_named(tmp_path, line):
    (tmp_path / "keys").write_text(line)
    with pytest.raises(CapsNMTError, match="line 1"):
        Keys.read(tmp_path / "keys")


def test_rates_come_back_with_time():
    rates = Rates()
    for _ in range(3):
        rates.take("a", 3, now=0.0)
    with pytest.raises(Refused) as refused:
        rates.take("a", 3, now=0.0)
    assert refused.value.status_code == 429
    assert refused.value.detail == "Slowdown: 3 per 1 minute"
    assert refused.value.headers == {"Retry-After": "20"}
    rates.take("b", 3, now=0.0)  # another client
    rates.take("a", 3, now=20.1)
    with pytest.raises(Refused):
        rates.take("a", 3, now=20.2)
    for _ in range(100):
        rates.take("a", 0, now=21.0)  # no limit


def test_downloads_expire_and_have_a_quota():
    async def work() -> None:
        downloads = Downloads(max_bytes=10, lifetime_s=0.2)
        name = downloads.put(b"12345678", ".txt", "text/plain")
        assert downloads.get(name).content == b"12345678"
        with pytest.raises(Refused) as refused:
            downloads.put(b"123", ".txt", "text/plain")
        assert refused.value.status_code == 503
        assert refused.value.headers == {"Retry-After": "1"}
        await asyncio.sleep(0.4)
        assert not downloads._files  # although nobody has asked for one since
        assert downloads.get(name) is None
        assert downloads.put(b"123", ".txt", "text/plain") != name

    asyncio.run(work())


def test_a_file_that_could_not_be_kept_is_not_translated(in_process, monkeypatch):
    monkeypatch.setattr(Batcher, "submit", lambda *_: pytest.fail("it was translated"))
    files = {"file": ("a.txt", b"Eins zwei drei.")}
    client = in_process(Limits(downloads_bytes=10))
    answer = client.post("/translate_file", files=files, data={"source": "de", "target": "en"})
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1


def keys_file(path, *, per_minute: int = 0, characters: int = 0) -> dict[str, str]:
    """A file of one key; returns the headers that show it."""
    path.write_text(f"{hash_of('abc')}\tAda\t{per_minute}\t{characters}\n")
    return {"Authorization": "Bearer abc"}


def test_a_key_without_a_rate_of_its_own_has_the_servers(in_process, tmp_path):
    headers = keys_file(tmp_path / "keys")
    client = in_process(Limits(requests_per_minute=2), keys=tmp_path / "keys")
    statuses = [client.post("/detect", json={"q": "x"}, headers=headers).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_a_keys_characters_count_in_files_too(in_process, tmp_path):
    headers = keys_file(tmp_path / "keys", characters=5)
    client = in_process(keys=tmp_path / "keys")
    for content, status in ((b"Eins.", 200), (b"Eins zwei.", 400)):
        files = {"file": ("a.txt", content)}
        answer = client.post("/translate_file", files=files, data={"source": "de", "target": "en"}, headers=headers)
        assert answer.status_code == status, answer.text


def test_lines_have_a_largest_number(in_process):
    client = in_process(Limits(lines=3))
    for lines, status in (("Eins.\n\n", 200), ("\n\nEins\n\n", 400)):
        assert client.post("/translate", json={**FIELDS, "q": lines}).status_code == status
        for name in ("a.txt", "a.srt"):
            files = {"file": (name, lines.encode())}
            answer = client.post("/translate_file", files=files, data={"source": "de", "target": "en"})
            assert answer.status_code == status


def test_a_busy_server_is_well(in_process):
    client = in_process(Limits(requests=1))
    client.app._under_way = 5
    assert client.get("/languages").status_code == 503
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:5000", True),
        ("LOCALHOST", True),
        ("127.0.0.1:5000", True),
        ("192.168.1.5:80", True),
        ("[::1]:5000", True),
        ("[::1]", True),
        ("translate.example.org", True),
        ("evil.example.org:5000", False),
        ("localhost.evil.org", False),
        ("", False),
        (None, True),
    ],
)
def test_names_that_were_not_allowed_are_refused(host, allowed):
    settings = ServeSettings(allowed_hosts=("Translate.example.org",))
    assert host_allowed(host, settings) is allowed
    assert host_allowed(host, ServeSettings(allowed_hosts=("*",)))


def test_a_foreign_host_gets_nothing(served):
    answer = served.client.get("/languages", headers={"Host": "evil.example.org"})
    assert answer.status_code == 400
    assert "--allowed-host" in answer.json()["error"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Limits(characters=0),
        lambda: Limits(deadline_s=-1.0),
        lambda: Batching(lines=0),
        lambda: ServeSettings(models=()),
        lambda: ServeSettings(key_required=True),
        lambda: ServeSettings(grace_s=-1.0),
    ],
)
def test_settings_that_cannot_be(make):
    with pytest.raises(CapsNMTError):
        make()


def test_a_server_listens_to_this_machine_alone_unless_told():
    assert ServeSettings().host == "127.0.0.1"


def test_keys_open_the_door(start_server, tmp_path):
    path = tmp_path / "keys"
    key, slow = new_key(path, "Ada"), new_key(path, "slow")
    lines = path.read_text().replace(f"{hash_of(slow)}\tslow\t0\t0", f"{hash_of(slow)}\tslow\t2\t20")
    path.write_text(lines)
    served = start_server("--keys", path, "--require-key", "--metrics-token", "abc")
    answer = served.post("/translate", **FIELDS)
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "Please contact the server operator to get an API key",
    )
    answer = served.post("/translate", **FIELDS, api_key="wrong-secret")
    assert (answer.status_code, answer.json()) == (403, {"error": "Invalid API key"})
    assert served.post("/translate", **FIELDS, api_key=key).status_code == 200
    assert served.client.post("/translate", params={**FIELDS, "api_key": key}).status_code == 200
    bearer = {"Authorization": f"Bearer {key}"}
    assert served.client.post("/translate", json=FIELDS, headers=bearer).status_code == 200
    assert served.client.get("/languages").status_code == 200
    assert served.post("/v1/translate", **FIELDS).status_code == 400
    assert served.post("/detect", q="x").status_code == 400
    settings = served.client.get("/frontend/settings").json()
    assert (settings["apiKeys"], settings["keyRequired"]) == (True, True)

    too_long = served.post("/translate", **{**FIELDS, "q": "x" * 21}, api_key=slow)
    assert too_long.json()["error"] == "Invalid request: request (21) exceeds text limit (20)"
    assert served.post("/translate", **FIELDS, api_key=slow).status_code == 200
    answer = served.post("/translate", **FIELDS, api_key=slow)
    assert (answer.status_code, answer.json()["error"]) == (429, "Slowdown: 2 per 1 minute")
    assert int(answer.headers["Retry-After"]) >= 1
    assert served.post("/translate", **FIELDS, api_key=key).status_code == 200  # another key, another count

    assert served.client.get("/metrics").status_code == 401
    assert served.client.get("/metrics", headers={"Authorization": "Bearer abc"}).status_code == 200
    served.stop()
    for secret in (key, slow, "wrong-secret", "Eins"):
        assert secret not in served.log


def test_new_key_on_the_command_line(tmp_path, capsys):
    from capsnmt.cli import main

    with pytest.raises(SystemExit) as end:
        main(["serve", "--keys", str(tmp_path / "keys"), "--new-key", "Ada"])
    assert not end.value.code
    assert Keys.read(tmp_path / "keys").find(capsys.readouterr().out.strip()).name == "Ada"


def test_bodies_have_a_largest_size(served):
    answer = served.client.post("/translate", content=b"x" * (1 << 20) + b"x")
    assert answer.status_code == 413

    def endless():
        while True:
            yield b"x" * 65536

    with contextlib.suppress(httpx.TransportError):  # it may close the connection while we still send
        as_json = {"Content-Type": "application/json"}
        assert served.client.post("/translate", content=endless(), headers=as_json).status_code == 413
    with contextlib.suppress(httpx.TransportError):  # a body that nobody asked for does not go on for ever
        assert served.client.post("/translate", content=endless()).status_code == 400
    packed = served.client.post("/translate", content=b"x", headers={"Content-Encoding": "gzip"})
    assert packed.status_code == 415
    assert served.client.get("/health").status_code == 200


def test_a_port_in_use_is_said_at_once(folders, tmp_path):
    from capsnmt import serve

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CapsNMTError, match="cannot listen"):
            serve([folders["de-en"]], port=taken.getsockname()[1])


def test_a_folder_that_was_not_exported(tmp_path):
    from capsnmt import serve

    with pytest.raises(CapsNMTError, match="capsnmt export"):
        serve([tmp_path], port=0)
