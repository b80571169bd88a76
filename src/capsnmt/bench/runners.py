"""What is timed: a system behind one small interface, without torch.

Lengths are forced alike on both sides. Our search may not propose </s> before the last position (`ForcedLength`), and
CTranslate2's least and greatest length are the same number: every translation takes that many decoding steps, with a
full beam and without early stopping.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from capsnmt.bench.peer_tokens import ids_of, token_of
from capsnmt.decoding.engine import Candidates, Engine, Floats, Ints, Session
from capsnmt.decoding.search import beam_search
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.decoding.translator import LineTranslator
from capsnmt.folder import load_text, read_folder_config
from capsnmt.runtime.engine import OnnxEngine
from capsnmt.runtime.manifest import load_runtime_text
from capsnmt.text.spans import restore
from capsnmt.text.subwords import EOS

Sentences = Sequence[Sequence[int]]


@dataclass
class Clock:
    """Seconds spent in an engine's two calls, summed up; None where they cannot be told apart."""

    encode_s: float | None = 0.0
    step_s: float | None = 0.0


class Runner(Protocol):
    """A loaded system."""

    clock: Clock

    def prepare(self, sources: Sentences) -> Any:
        """Whatever the system takes instead of ids; not timed."""
        ...

    def run(self, prepared: Any, *, target_length: int, beam: int) -> list[list[int]]:
        """Translates a batch, each sentence to so many tokens; returns ids without </s>."""
        ...


class ForcedLength:
    """An engine in which nothing ends before the search's maximum length forces it to; it also reads the clock."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.vocabulary_size = engine.vocabulary_size
        self.clock = clock
        self._engine = engine

    def encode(self, sources: Sentences) -> Session:
        """As the engine itself."""
        start_s = time.perf_counter()
        session = self._engine.encode(sources)
        self.clock.encode_s = (self.clock.encode_s or 0.0) + time.perf_counter() - start_s
        return ForcedLengthSession(session, self.clock)


class ForcedLengthSession:
    """Asks for one candidate more and drops </s>."""

    def __init__(self, session: Session, clock: Clock) -> None:
        self.num_sentences = session.num_sentences
        self._session = session
        self._clock = clock

    def step(self, tokens: Ints, origins: Ints, k: int, forced: Ints | None = None) -> Candidates:
        """The k best next tokens that are not </s>; what is forced keeps its log-probs."""
        start_s = time.perf_counter()
        found = self._session.step(tokens, origins, k + 1, forced)
        self._clock.step_s = (self._clock.step_s or 0.0) + time.perf_counter() - start_s
        log_probs, ids = found.log_probs, found.ids
        ends = ids == EOS
        if ends.any():
            order = np.argsort(ends, axis=1, kind="stable")
            log_probs = np.take_along_axis(np.where(ends, -np.inf, log_probs), order, axis=1)
            ids = np.take_along_axis(ids, order, axis=1)
        return Candidates(log_probs=log_probs[:, :k], ids=ids[:, :k], forced=found.forced)

    def step_all(self, tokens: Ints, origins: Ints) -> Floats:
        """Of no use to a beam search."""
        return self._session.step_all(tokens, origins)

    def coverage(self) -> Floats | None:
        """As the session itself."""
        return self._session.coverage()


class OurRunner:
    """Our runtime and our search."""

    def __init__(self, folder: Path, *, threads: int, selection: bool) -> None:
        self.clock = Clock()
        self.engine = ForcedLength(self._load(folder, threads, selection), self.clock)

    def _load(self, folder: Path, threads: int, selection: bool) -> OnnxEngine:
        return OnnxEngine.load(folder, threads=threads, selection=selection)

    def prepare(self, sources: Sentences) -> Sentences:
        """Ids are what the search takes."""
        return sources

    def run(self, prepared: Sentences, *, target_length: int, beam: int) -> list[list[int]]:
        """One beam search; the length penalty does not matter where all lengths are the same."""
        found = beam_search(
            self.engine,
            prepared,
            beam=beam,
            length_penalty=1.0,
            length_penalty_type="len",
            max_lengths=[target_length] * len(prepared),
        )
        return [best[0].ids for best in found]


class PeerRunner:
    """CTranslate2."""

    def __init__(self, folder: Path, *, threads: int, selection: bool) -> None:
        self.clock = Clock(None, None)
        self.selection = selection
        self.translator = load_peer(folder, threads)

    def prepare(self, sources: Sentences) -> list[list[str]]:
        """The peer takes strings."""
        return [[token_of(id_) for id_ in ids] for ids in sources]

    def run(self, prepared: list[list[str]], *, target_length: int, beam: int) -> list[list[int]]:
        """`max_input_length=0`: no source is cut."""
        found = self.translator.translate_batch(
            prepared,
            beam_size=beam,
            min_decoding_length=target_length,
            max_decoding_length=target_length,
            max_input_length=0,
            use_vmap=self.selection,
        )
        return [ids_of(result.hypotheses[0]) for result in found]


def load_peer(folder: Path, threads: int, compute_type: str = "int8") -> Any:
    """One translation at a time, on this many threads."""
    import ctranslate2

    return ctranslate2.Translator(
        str(folder), device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=threads
    )


RUNNERS: dict[str, type[OurRunner] | type[PeerRunner]] = {"ours": OurRunner, "peer": PeerRunner}


class TextRunner(Protocol):
    """A trained model, from a line of text to its translation."""

    def translate(self, line: str, beam: int) -> str:
        """All that lies between is part of the time."""
        ...


class OurText:
    """As `capsnmt translate` does it, sentence splitting and all."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        engine = OnnxEngine.load(folder, threads=threads)
        about = engine.manifest
        self._translator = LineTranslator(
            engine=engine,
            text=load_runtime_text(folder, about),
            decoding=about.decoding,
            language=about.languages.source,
        )

    def translate(self, line: str, beam: int) -> str:
        """The best translation."""
        return self._translator.translate(line, TranslateOptions(beam=beam))


class PeerText:
    """A converted model with the text pipeline of the folder that it was made from, and nothing more."""

    def __init__(self, folder: Path, converted: Path, *, threads: int) -> None:
        config = read_folder_config(folder)
        self._decoding = config.decoding
        self._text = load_text(folder, config)
        self._translator = load_peer(converted, threads)

    def translate(self, line: str, beam: int) -> str:
        """CTranslate2 has one kind of length penalty, length^alpha, and gets the model's alpha."""
        if not line.strip():
            return ""
        masked = self._text.mask(line, {})
        if len(masked.spans) > self._text.num_symbols:
            masked = type(masked)(line, ())
        ids = self._text.source_ids(masked.text)
        settings = self._decoding
        (found,) = self._translator.translate_batch(
            [[token_of(id_) for id_ in ids]],
            beam_size=beam,
            length_penalty=settings.length_penalty,
            max_decoding_length=int(settings.max_length_ratio * len(ids)) + settings.max_length_extra,
            max_input_length=0,
        )
        return restore(self._text.target_text(ids_of(found.hypotheses[0])), masked.spans).text
