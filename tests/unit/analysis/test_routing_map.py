"""The pictures of routing show what the coefficients say, and nothing that the sentence could smuggle in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from capsnmt.analysis.routing_map import (
    COLOURS,
    RoutingMap,
    colour_of,
    for_terminal,
    picture_kind,
    save_picture,
    to_html,
)
from capsnmt.errors import CapsNMTError


def made_map(pieces=("▁a", "b", "▁c"), M=4):
    uniform = np.full((len(pieces), M), 1 / M)
    sharp = np.eye(M)[np.arange(len(pieces)) % M]
    return RoutingMap(tuple(pieces), np.stack([uniform, sharp]).astype(np.float32))


def test_entropy_is_1_for_uniform_and_0_for_sharp_coefficients():
    assert made_map().entropy() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert RoutingMap(("▁a",), np.ones((2, 1, 1), dtype=np.float32)).entropy() == [0.0, 0.0]


def test_every_capsule_has_its_own_colour():
    colours = [colour_of(capsule) for capsule in range(3 * len(COLOURS))]
    assert len(set(colours)) == len(colours)
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


def test_the_terminal_shows_every_word_in_every_iteration():
    console = Console(width=100, record=True, file=None, force_terminal=True, color_system="truecolor")
    with console.capture() as captured:
        console.print(for_terminal(made_map()))
    text = captured.get()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain.count("ab c") == 2
    red, green, blue = (int(COLOURS[1][i : i + 2], 16) for i in (1, 3, 5))
    assert f"48;2;{red};{green};{blue}" in text  # "b" belongs to the second capsule alone


def test_without_colours_every_word_has_the_number_of_its_capsule():
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(for_terminal(made_map(pieces=("▁a", "b", "▁", "c")), colours=False))
    _, sharp, legend = captured.get().splitlines()
    assert sharp.strip().endswith("a[1]b[2] ·[3]c[4]")
    assert "capsule" in legend


def test_html_is_escaped_and_self_contained():
    page = to_html([made_map(pieces=("▁<script>alert(1)</script>", '"&', "▁c"))])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page
    assert page.count("<p><small>iteration") == 2
    assert "2: 100%" in page


def test_data_can_be_read_back():
    routing = made_map()
    data = json.loads(json.dumps(routing.to_dict()))
    assert data["pieces"] == list(routing.pieces)
    assert np.allclose(data["coefficients"], routing.alpha)


def test_a_picture_is_written(tmp_path):
    dollars = made_map(pieces=("▁$_$", "▁$$", "▁${a_}${b}"))
    save_picture([made_map(), made_map(pieces=("▁x",), M=10), dollars], tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_a_long_word_is_not_written_over_its_neighbours(tmp_path):
    save_picture([made_map(pieces=("▁a", "▁https://example.org/a/b/c", "▁neighbour"))], tmp_path / "map.svg", "svg")
    words = re.findall("<!-- (.*?) -->", (tmp_path / "map.svg").read_text(encoding="utf-8"))
    assert "https://…" in words
    assert {"a", "neighbour"} <= set(words), "what fits is whole"
    assert not any("example" in word for word in words)


def test_the_kind_of_a_picture_is_told_by_its_name():
    assert [picture_kind(Path(name)) for name in ("x.png", "x.SVG", "x.pdf", "-")] == ["png", "svg", "pdf", "png"]
    for name in ("x.foo", "x"):
        with pytest.raises(CapsNMTError, match=rf"{name}: unknown kind of picture; .* \.png, \.svg, \.pdf"):
            picture_kind(Path(name))
