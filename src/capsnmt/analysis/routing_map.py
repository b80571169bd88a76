"""Which capsule took which word: the routing of one sentence for the terminal, as HTML, as a picture and as data."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from rich.console import Group
from rich.text import Text

from capsnmt.analysis.figures import pyplot, save
from capsnmt.errors import CapsNMTError

# Okabe and Ito's colours, told apart by colour-blind eyes too, then darker ones for more than eight capsules.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999")
PICTURES = ("png", "svg", "pdf")
_COLUMN_WIDTH = 9  # characters of a picture's column


@dataclass(frozen=True)
class RoutingMap:
    """One sentence: its subwords and the coefficients α of every iteration."""

    pieces: tuple[str, ...]  # subwords as SentencePiece writes them; ▁ begins a word
    alpha: npt.NDArray[np.float32]  # (iterations, pieces, M)

    @property
    def words(self) -> list[str]:
        """Pieces for the eye: the mark of a word's beginning as a space."""
        return [piece.replace("▁", " ") for piece in self.pieces]

    def entropy(self) -> list[float]:
        """Mean entropy of a piece's coefficients in each iteration: 1 = spread evenly, 0 = one capsule has it all."""
        M = self.alpha.shape[-1]
        if M == 1:
            return [0.0] * len(self.alpha)
        entropies = -(self.alpha * np.log(np.clip(self.alpha, 1e-30, None))).sum(axis=-1) / np.log(M)
        return [float(value) for value in entropies.mean(axis=1)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"pieces": list(self.pieces), "coefficients": self.alpha.tolist(), "entropy": self.entropy()}

    @classmethod
    def of(cls, values: dict[str, Any]) -> RoutingMap:
        """From what `to_dict` gave."""
        return cls(tuple(values["pieces"]), np.array(values["coefficients"], dtype=np.float32))


def colour_of(capsule: int) -> str:
    """A capsule's colour; beyond eight they repeat, darker."""
    round_, place = divmod(capsule, len(COLOURS))
    red, green, blue = (int(COLOURS[place][i : i + 2], 16) for i in (1, 3, 5))
    shade = 0.7**round_
    return f"#{int(red * shade):02x}{int(green * shade):02x}{int(blue * shade):02x}"


def for_terminal(routing: RoutingMap, *, colours: bool = True) -> Group:
    """A line of words for every iteration, coloured, or each with the number of its capsule; and the legend."""
    lines = []
    for t, (alpha, entropy) in enumerate(zip(routing.alpha, routing.entropy(), strict=True), start=1):
        line = Text(f"iteration {t}  entropy {entropy:.2f} ")
        for word, shares in zip(routing.words, alpha, strict=True):
            gap, body = word[: len(word) - len(word.lstrip())], word.lstrip()
            line.append(gap)
            capsule = int(shares.argmax())
            if colours:
                line.append(body, style=f"black on {_faded(capsule, float(shares.max()))}")
            else:
                line.append(f"{body or '·'}[{capsule + 1}]")
        lines.append(line)
    if not colours:
        return Group(*lines, Text("in brackets: the capsule that takes the largest share of what stands before"))
    legend = Text("capsules     ")
    for capsule in range(routing.alpha.shape[-1]):
        legend.append(f" {capsule + 1} ", style=f"black on {colour_of(capsule)}")
    return Group(*lines, legend)


def to_html(maps: Sequence[RoutingMap]) -> str:
    """One page, with nothing from outside; a word's shares show when the pointer rests on it."""
    body = []
    for routing in maps:
        body.append("<section>")
        for t, (alpha, entropy) in enumerate(zip(routing.alpha, routing.entropy(), strict=True), start=1):
            words = []
            for word, shares in zip(routing.words, alpha, strict=True):
                title = ", ".join(f"{j + 1}: {share:.0%}" for j, share in enumerate(shares))
                colour = _faded(int(shares.argmax()), float(shares.max()))
                text = html.escape(word.strip())
                gap = " " if word.startswith(" ") else ""
                words.append(f'{gap}<span style="background:{colour}" title="{title}">{text}</span>')
            body.append(f"<p><small>iteration {t}, entropy {entropy:.2f}</small><br>{''.join(words)}</p>")
        body.append("</section>")
    capsules = max((routing.alpha.shape[-1] for routing in maps), default=0)
    legend = " ".join(f'<span style="background:{colour_of(j)}">capsule {j + 1}</span>' for j in range(capsules))
    style = (
        "body{font:1.1rem/1.9 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;background:#fff;"
        "color:#111}span{border-radius:.25em;padding:.1em .2em}section{border-top:1px solid #ccc;padding:.5rem 0}"
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Routing</title>'
        f"<style>{style}</style><h1>What each capsule takes</h1><p>{legend}</p>{''.join(body)}</html>\n"
    )


def picture_kind(path: Path) -> str:
    """By the end of a file's name; standard output gets a PNG."""
    kind = path.suffix.removeprefix(".").lower()
    if str(path) != "-" and kind not in PICTURES:
        raise CapsNMTError(f"{path}: unknown kind of picture; let the name end in .{', .'.join(PICTURES)}")
    return kind or "png"


def save_picture(maps: Sequence[RoutingMap], file: str | Path | BinaryIO, kind: str = "png") -> None:
    """A PNG (or PDF, SVG): for each sentence the coefficients of every iteration, words across, capsules down."""
    from matplotlib.colors import to_rgb

    rows = [(routing, t) for routing in maps for t in range(len(routing.alpha))]
    longest = max(len(routing.pieces) for routing in maps)
    M = max(routing.alpha.shape[-1] for routing in maps)
    figure, axes = pyplot().subplots(
        len(rows), 1, figsize=(1.5 + 0.55 * longest, (0.8 + 0.2 * M) * len(rows)), squeeze=False, layout="constrained"
    )
    for axis, (routing, t) in zip(axes[:, 0], rows, strict=True):
        image = np.ones((routing.alpha.shape[-1], longest, 3))
        for capsule, place in itertools.product(range(routing.alpha.shape[-1]), range(len(routing.pieces))):
            colour = to_rgb(colour_of(capsule))
            image[capsule, place] = 1.0 - routing.alpha[t, place, capsule] * (1.0 - np.array(colour))
        axis.imshow(image, aspect="auto", interpolation="nearest")
        axis.set_xticks(range(len(routing.pieces)), [_fitted(word.strip() or "·") for word in routing.words])
        axis.set_yticks(range(routing.alpha.shape[-1]), [str(j + 1) for j in range(routing.alpha.shape[-1])])
        axis.set_title(f"iteration {t + 1}, entropy {routing.entropy()[t]:.2f}", loc="left", fontsize=9)
        axis.tick_params(labelsize=8, length=0)
        for side in axis.spines.values():
            side.set_visible(False)
    save(figure, file, kind, dpi=120)


def _fitted(word: str) -> str:
    """As much of a word as its column has room for: a URL would be written over its neighbours."""
    return word if len(word) <= _COLUMN_WIDTH else f"{word[: _COLUMN_WIDTH - 1]}…"


def _faded(capsule: int, share: float) -> str:
    """A capsule's colour, the paler the smaller its share."""
    colour = colour_of(capsule)
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{int(255 - share * (255 - channel)):02x}" for channel in channels)
