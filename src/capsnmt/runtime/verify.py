"""What a new runtime must show before it is accepted: torch's numbers in fp32; what int8 and selection lose and win."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from capsnmt.config import FolderConfig, VocabularyRecord
from capsnmt.decoding.engine import Engine
from capsnmt.decoding.translator import LineTranslator
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.engine import OnnxEngine
from capsnmt.text.pipeline import TextPipeline
from capsnmt.text.subwords import BOS, EOS

MAX_DIFFERENCE = 1e-4  # of a log-probability, fp32 against torch
SHAPES = ((1, 1), (2, 30), (5, 3), (8, 12))  # (batch, source length): none of them is traced
STEPS = 5


@dataclass(frozen=True)
class Margins:
    """What int8, and vocabulary selection, may each cost and must bring; a worse runtime is refused."""

    bleu_loss: float = 0.5
    chrf_loss: float = 0.5
    speed_up: float = 1.0


@dataclass(frozen=True)
class Comparison:
    """Two engines on the same sentences, with the model's own search settings: before and after a short cut."""

    sentences: int
    beam: int
    threads: int
    bleu_before: float
    bleu_after: float
    chrf_before: float
    chrf_after: float
    seconds_before: float
    seconds_after: float
    same_outputs: int

    @property
    def bleu_loss(self) -> float:
        """BLEU points that the short cut costs; below 0 it gains."""
        return self.bleu_before - self.bleu_after

    @property
    def chrf_loss(self) -> float:
        """ChrF points that it costs."""
        return self.chrf_before - self.chrf_after

    @property
    def speed_up(self) -> float:
        """How many times as fast it is."""
        return self.seconds_before / self.seconds_after

    def faults(self, margins: Margins) -> list[str]:
        """Why this runtime is not acceptable; nothing if it is."""
        faults = []
        for name, loss, margin in (
            ("BLEU", self.bleu_loss, margins.bleu_loss),
            ("chrF", self.chrf_loss, margins.chrf_loss),
        ):
            if loss > margin:
                faults.append(f"it loses {loss:.2f} {name}, more than {margin:g}")
        if self.speed_up < margins.speed_up:
            faults.append(f"it is {self.speed_up:.2f} times as fast as without, not {margins.speed_up:g}")
        return faults

    def summary(self) -> str:
        """One line of figures."""
        return (
            f"BLEU {self.bleu_before:.2f} -> {self.bleu_after:.2f}, "
            f"chrF {self.chrf_before:.2f} -> {self.chrf_after:.2f}, "
            f"{self.speed_up:.2f} times the speed, {self.same_outputs} of {self.sentences} outputs the same"
        )

    def figures(self) -> dict[str, float]:
        """For the manifest."""
        return {name: round(value, 4) for name, value in asdict(self).items()} | {
            "bleu_loss": round(self.bleu_loss, 4),
            "chrf_loss": round(self.chrf_loss, 4),
            "speed_up": round(self.speed_up, 3),
        }


def check_against_torch(expected: Engine, found: Engine, vocabulary: VocabularyRecord) -> float:
    """The largest difference of a log-probability between two engines, at sizes that no graph was traced at."""
    worst = 0.0
    for batch, length in SHAPES:
        generator = np.random.default_rng(length)
        lengths = [max(1, length - 2 * row) for row in range(batch)]
        sources = [[*generator.integers(EOS, vocabulary.source_size, size - 1).tolist(), EOS] for size in lengths]
        sessions = [engine.encode(sources) for engine in (expected, found)]
        tokens, origins = np.full(batch, BOS), np.arange(batch)
        for _ in range(STEPS):
            a, b = (np.asarray(session.step_all(tokens, origins), dtype=np.float64) for session in sessions)
            worst = max(worst, float(np.abs(a - b).max()))
            rows = len(tokens) + 1  # one more each time, in another order
            origins = generator.integers(0, len(tokens), rows)
            tokens = generator.integers(EOS, vocabulary.target_size, rows)
    if not worst <= MAX_DIFFERENCE:  # NaN is refused too
        raise CapsNMTError(
            f"the exported graphs differ from torch by {worst:.2g}, more than {MAX_DIFFERENCE:g}: refused"
        )
    return worst


def compare(
    before: OnnxEngine,
    after: OnnxEngine,
    text: TextPipeline,
    config: FolderConfig,
    pairs: Sequence[tuple[str, str]],
) -> Comparison:
    """Translates the sentences with both, in turns: what disturbs the machine disturbs both."""
    from capsnmt.evaluation.metrics import bleu, chrf

    sources, references = [list(side) for side in zip(*pairs, strict=True)]
    translators = [
        LineTranslator(engine=engine, text=text, decoding=config.decoding, language=config.languages.source)
        for engine in (before, after)
    ]
    outputs: tuple[list[str], list[str]] = ([], [])
    seconds = [0.0, 0.0]
    for start in range(0, len(sources), 32):
        for which, translator in enumerate(translators):
            begun = time.perf_counter()
            done = translator.translate_batch(sources[start : start + 32])
            seconds[which] += time.perf_counter() - begun
            outputs[which].extend(each.text for each in done)
    scores = [[metric(found, references, num_bootstrap=0).value for found in outputs] for metric in (bleu, chrf)]
    return Comparison(
        sentences=len(sources),
        beam=config.decoding.beam,
        threads=before.threads,
        bleu_before=scores[0][0],
        bleu_after=scores[0][1],
        chrf_before=scores[1][0],
        chrf_after=scores[1][1],
        seconds_before=seconds[0],
        seconds_after=seconds[1],
        same_outputs=sum(a == b for a, b in zip(*outputs, strict=True)),
    )
