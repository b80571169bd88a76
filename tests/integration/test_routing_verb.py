"""routing through the command: colours, page, picture and numbers of a real model."""

from __future__ import annotations

import json
import re
import shutil

import pytest


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_every_form(engine, folder, run_here, tmp_path):
    model = shutil.copytree(folder, tmp_path / "model")
    if engine == "onnx":
        assert run_here("export", model, "--precision", "fp32").code == 0
    files = {kind: tmp_path / f"routing.{kind}" for kind in ("html", "png", "json")}
    options = [word for kind, file in files.items() for word in (f"--{kind}", file)]
    ended = run_here("routing", model, "eins zwei drei", "vier", *options, "--engine", engine)
    assert ended.code == 0, ended.err
    assert ended.out.decode().count("iteration") == 2 * 3
    maps = json.loads(files["json"].read_text(encoding="utf-8"))
    assert [len(found["coefficients"]) for found in maps] == [3, 3]
    for found in maps:
        for iteration in found["coefficients"]:
            assert len(iteration) == len(found["pieces"])
            assert all(sum(shares) == pytest.approx(1.0, abs=1e-4) for shares in iteration)
    assert "".join(maps[0]["pieces"]).replace("▁", " ").replace("</s>", "").strip() == "eins zwei drei"
    assert files["html"].read_text(encoding="utf-8").startswith("<!doctype html>")
    assert files["png"].read_bytes().startswith(b"\x89PNG")


def test_numbers_alone_go_into_a_pipe(folder, run_here):
    ended = run_here("routing", folder, "eins", "--json", "-")
    assert [found["pieces"][-1] for found in json.loads(ended.out)] == ["</s>"]


def test_without_a_model_it_is_the_shipped_one(run_here):
    assert (
        run_here("routing", "Good morning.", "--json", "-").out
        == run_here("routing", "en-de", "Good morning.", "--json", "-").out
    )
    assert "iteration 3" in run_here("routing", "Good morning.").out.decode()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["runs/typo", "eins"], "runs/typo is not a model folder"),
        (["xx-yy", "eins"], "xx-yy is not a model folder"),
        (["en-de"], "which sentence? capsnmt routing en-de"),
        ([""], "'' has no word to translate"),
        (["1234"], "'1234' has no word to translate"),
    ],
)
def test_what_cannot_be_routed_is_told(words, told, run_here):
    ended = run_here("routing", *words)
    assert ended.code == 1
    assert told in ended.err


def pieces_of(ended):
    assert ended.code == 0, ended.err
    return [found["pieces"] for found in json.loads(ended.out)]


def test_a_slash_makes_no_folder_of_a_sentence(run_here):
    (pieces,) = pieces_of(run_here("routing", "and/or", "--json", "-"))
    assert "/" in "".join(pieces)


def test_the_model_is_shown_what_translate_shows_it(run_here):
    """Numbers and URLs are symbols to it, and it reads sentence by sentence."""
    text = "I have 1234 cats. See http://a.org now."
    first, second = pieces_of(run_here("routing", text, "--json", "-"))
    assert "1234" in first
    assert "http://a.org" in second


@pytest.mark.parametrize(("form", "start"), [("html", b"<!doctype"), ("png", b"\x89PNG"), ("json", b"[{")])
def test_what_goes_into_a_pipe_goes_alone(form, start, run_here):
    ended = run_here("routing", "Good morning.", f"--{form}", "-")
    assert ended.out.startswith(start)
    assert b"iteration 1  entropy" not in ended.out


def test_without_colours_capsules_are_numbers(run_here):
    first = run_here("routing", "Good morning.").lines[0]
    assert re.fullmatch(r"iteration 1  entropy [0-9.]+  G.*\[\d+\]\.\[\d+\]</s>\[\d+\]", first), first


@pytest.mark.parametrize(
    ("name", "told"), [("x.foo", "unknown kind of picture"), ("none/x.png", "No such file or directory")]
)
def test_a_picture_that_cannot_be_written_is_told(name, told, run_here, tmp_path):
    ended = run_here("routing", "Good morning.", "--png", tmp_path / name)
    assert ended.code == 1
    assert told in ended.err
    assert not (tmp_path / name).exists()


def test_a_system_without_capsules_says_so(trained, tiny_config, run_here):
    ended = run_here("routing", trained("simple", tiny_config("simple")), "eins")
    assert ended.code == 1
    assert "does not route" in ended.err
