"""Clients that others wrote, as they are."""

from __future__ import annotations

import json
import subprocess

import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import ServerException
from libretranslatepy import LibreTranslateAPI

LINE = "Eins zwei drei."


def test_libretranslatepy(served, translate):
    client = LibreTranslateAPI(served.url)
    assert client.translate(LINE, "de", "en") == translate(LINE)
    assert client.detect("Das Wetter ist heute sehr schön.")[0]["language"] == "de"
    assert {each["code"] for each in client.languages()} == {"de", "en", "fr"}
    assert LibreTranslateAPI(served.url, api_key="unused").translate(LINE, "de", "en") == translate(LINE)


def test_deep_translator(served, translate):
    client = LibreTranslator(source="de", target="en", api_key="unused", custom_url=served.url + "/")
    assert client.translate(LINE) == translate(LINE)
    assert client.translate_batch([LINE, "Vier."]) == [translate(LINE), translate("Vier.")]
    with pytest.raises(ServerException):
        LibreTranslator(source="fr", target="de", api_key="unused", custom_url=served.url + "/").translate("oui")


def curl(*arguments: str) -> dict:
    ended = subprocess.run(["curl", "-s", *arguments], capture_output=True, check=True, timeout=60)
    return json.loads(ended.stdout)


def test_curl_as_in_libretranslates_documentation(served, translate):
    fields = {"q": LINE, "source": "de", "target": "en", "format": "text", "alternatives": 3, "api_key": ""}
    as_json = ("-X", "POST", "-H", "Content-Type: application/json", "-d", json.dumps(fields))
    answer = curl(*as_json, f"{served.url}/translate")
    assert answer["translatedText"] == translate(LINE)
    assert isinstance(answer["alternatives"], list)
    form = ("-X", "POST", "-H", "accept: application/json", "-H", "Content-Type: application/x-www-form-urlencoded")
    answer = curl(*form, "-d", f"q={LINE}&source=de&target=en&api_key=xxxxxx", f"{served.url}/translate")
    assert answer == {"translatedText": translate(LINE)}
