"""What each benchmark can be asked, with the sizes of the paper's base model as defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsnmt.errors import CapsNMTError

MOST_POSITIONS = 4096  # of CTranslate2's table of positions
LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What all benchmarks share."""

    repeats: int = 9  # visits of each system, in turn
    pause_s: float = 0.3  # before each visit: the threads of the system before stop spinning
    work: Path | None = None  # where models that were built are kept; None: nowhere

    def __post_init__(self) -> None:
        require(self.repeats >= 1, f"repeats {self.repeats} must be 1 or more")
        require(self.pause_s >= 0.0, f"pause {self.pause_s} must be 0 or more seconds")

    def settings(self) -> dict[str, Any]:
        """Plain values, for the JSON; where models are kept matters to nobody else."""
        return {key: _plain(value) for key, value in asdict(self).items() if key != "work"}


@dataclass(frozen=True, kw_only=True)
class RandomModels(Request):
    """Benchmarks whose models have random weights: time does not depend on what they are."""

    width: int = 512
    vocabulary: int = 50_000
    words: int = 500  # of a sentence, about: the size of the vocabulary selection
    systems: tuple[str, ...] = ()  # none: the benchmark's own choice

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width >= 8 and self.width % 8 == 0, f"width {self.width} must be a multiple of 8")
        require(self.vocabulary >= 32, f"vocabulary {self.vocabulary} must be 32 or more")
        require(
            8 <= self.words <= self.vocabulary // 2,
            f"words {self.words} must lie between 8 and half of the vocabulary, {self.vocabulary // 2}",
        )


@dataclass(frozen=True, kw_only=True)
class LatencyRequest(RandomModels):
    """One sentence at a time: forced lengths and, with a `source`, the paper's average over a test set."""

    length: int = 27  # tokens of the source, and of the translation
    beams: tuple[int, ...] = (1, 8)
    threads: tuple[int, ...] = (1, 2)
    source: Path | None = None
    sentences: int = 100
    passes: int = 3  # over the test set

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts("length", (self.length,), most=MOST_POSITIONS)
        check_counts("beams", self.beams)
        check_counts("threads", self.threads)
        check_counts("sentences", (self.sentences,))
        check_counts("passes", (self.passes,))


@dataclass(frozen=True, kw_only=True)
class ThroughputRequest(RandomModels):
    """Many real sentences, each system with the batch size that suits it best."""

    source: Path
    sentences: int = 2000
    beams: tuple[int, ...] = (1, 8)
    threads: int = 2
    batches: tuple[int, ...] = (8, 16, 32, 64, 128)
    probe: int = 200  # sentences on which the batch size is chosen
    repeats: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts("beams", self.beams)
        check_counts("batches", self.batches)
        check_counts("sentences, probe and threads", (self.sentences, self.probe, self.threads))


@dataclass(frozen=True, kw_only=True)
class GrowthRequest(RandomModels):
    """Longer and longer sources."""

    lengths: tuple[int, ...] = LENGTHS
    steps: int = 32  # of the decoder, whatever the source's length
    max_target: int = LENGTHS[-1]  # otherwise the translation is as long as the source
    fixed_source: int | None = None  # also: translations of each length from a source of so many tokens
    source: Path | None = None  # says how many characters or words a subword is, for systems that count those
    beam: int = 1
    threads: int = 2
    repeats: int = 3  # of whole translations
    step_repeats: int = 15  # cheap, and what flatness is judged by

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts("lengths", self.lengths, most=MOST_POSITIONS)
        require(len(self.lengths) >= 3, f"lengths {list(self.lengths)}: a line needs 3 or more of them")
        require(list(self.lengths) == sorted(set(self.lengths)), f"lengths {list(self.lengths)} must ascend")
        check_counts("steps, max-target, beam and threads", (self.steps, self.max_target, self.beam, self.threads))
        check_counts("step-repeats", (self.step_repeats,))
        if self.fixed_source is not None:
            check_counts("fixed-source", (self.fixed_source,), most=MOST_POSITIONS)


@dataclass(frozen=True, kw_only=True)
class LimitRequest(RandomModels):
    """How far each stage is from what memory and arithmetic allow."""

    length: int = 27
    beams: tuple[int, ...] = (1, 8)
    threads: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts("length", (self.length,), most=MOST_POSITIONS)
        check_counts("beams", self.beams)
        check_counts("threads", (self.threads,))


@dataclass(frozen=True, kw_only=True)
class StartRequest(Request):
    """How long a new process takes to its first translation."""

    models: tuple[Path, ...]
    line: str = "hi"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.models), "start needs a model folder: --model FOLDER")


@dataclass(frozen=True, kw_only=True)
class ParetoRequest(Request):
    """Quality against latency of trained models."""

    models: tuple[Path, ...]
    source: Path
    reference: Path
    beams: tuple[int, ...] = (1, 8)
    threads: int = 2
    sentences: int | None = None  # all
    repeats: int = 3  # passes over the test set

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.models), "pareto needs model folders: --model FOLDER, as often as there are")
        check_counts("beams", self.beams)
        check_counts("threads and sentences", (self.threads, 1 if self.sentences is None else self.sentences))


def require(fulfilled: bool, demand: str) -> None:
    """An error that says what is demanded, unless it is fulfilled."""
    if not fulfilled:
        raise CapsNMTError(f"bench: {demand}")


def check_counts(name: str, values: tuple[int, ...], most: int | None = None) -> None:
    """Whole numbers of 1 or more."""
    fits = bool(values) and min(values) >= 1 and (most is None or max(values) <= most)
    limit = "1 or more" if most is None else f"between 1 and {most}"
    require(fits, f"{name} {', '.join(map(str, values)) or '(none)'} must be {limit}")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
