"""routing through the command: colours, page, picture and numbers of a real model."""

from __future__ import annotations

import json
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
    ("words", "told"), [(["runs/typo", "eins"], "runs/typo"), (["en-de"], "which sentence? capsnmt routing en-de")]
)
def test_a_mistyped_model_is_no_sentence(words, told, run_here):
    ended = run_here("routing", *words)
    assert ended.code == 1
    assert told in ended.err


def test_a_system_without_capsules_says_so(trained, tiny_config, run_here):
    ended = run_here("routing", trained("simple", tiny_config("simple")), "eins")
    assert ended.code == 1
    assert "does not route" in ended.err
