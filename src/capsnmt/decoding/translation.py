"""What a translator is asked, what it answers, and what it needs of the text pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from capsnmt.config import LengthPenaltyType
from capsnmt.text.spans import Masked


class TextCodec(Protocol):
    """The way from strings to ids and back."""

    @property
    def num_symbols(self) -> int:
        """How many reserved symbols the model has learnt to place; 0 = none."""
        ...

    def mask(self, text: str, terms: Mapping[str, str]) -> Masked:
        """Takes protected spans out of a text."""
        ...

    def source_ids(self, text: str) -> list[int]:
        """Ids of a source text, ending in EOS."""
        ...

    def starts_word(self, source_id: int) -> bool:
        """Whether a new word begins with this id."""
        ...

    def target_text(self, ids: Sequence[int]) -> str:
        """The string of output ids, which come without BOS and EOS."""
        ...

    def target_prefix_ids(self, text: str) -> list[int]:
        """Ids that an output beginning with `text` begins with."""
        ...


@dataclass(frozen=True)
class SamplingOptions:
    """Draw the output from the model instead of searching for the best one."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    seed: int = 1


@dataclass(frozen=True)
class TranslateOptions:
    """What one request may change; None takes the model's own setting."""

    num_best: int = 1  # hypotheses per line; with sampling, the number of samples
    beam: int | None = None
    length_penalty: float | None = None
    length_penalty_type: LengthPenaltyType | None = None
    coverage_penalty: float | None = None
    max_length_ratio: float | None = None
    sampling: SamplingOptions | None = None
    split: bool = True  # a line of several sentences is translated sentence by sentence
    terms: Mapping[str, str] = field(default_factory=dict)  # glossary; a term that maps to itself stays as it is


# From harmless to bad; a line has the worst of what was noticed.
#   ok                  translated
#   empty               nothing to translate: `text` is the line as it came, but for the terms of a glossary
#   low_confidence      translated, but the model is guessing
#   invalid_characters  translated, but the line had bytes that are not UTF-8, or U+FFFD, which stands for such bytes
#   cut                 a sentence was too long for the model and was translated in pieces
#   repaired            a repetition loop or too long an output was cut, or lost spans were put in their places
#   failed              not translated: `text` is the line as it came
Status = Literal["ok", "empty", "low_confidence", "invalid_characters", "cut", "repaired", "failed"]


@dataclass(frozen=True)
class Translation:
    """One line's result."""

    source: str
    text: str  # never holds a line break
    score: float | None  # of the first hypothesis; None where the model was not asked
    hypotheses: tuple[tuple[str, float], ...]  # (text, score), best first
    status: Status
    notes: tuple[str, ...] = ()  # all that was noticed: statuses, split, loop_repaired, shortened, spans_placed_around
