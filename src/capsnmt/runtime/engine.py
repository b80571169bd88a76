"""The engine that runs exported graphs in ONNX Runtime: no torch, and behind the search it looks like any other engine.

States never leave ONNX Runtime between steps: each step's outputs are bound as the next one's inputs, and the gather of
the hypotheses that go on is part of the graph.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from capsnmt.decoding.engine import Candidates, Floats, Ints
from capsnmt.decoding.penalties import log_coverage
from capsnmt.errors import CapsNMTError
from capsnmt.machine import usable_cores
from capsnmt.runtime.lexicon import Lexicon
from capsnmt.runtime.manifest import (
    ENCODE,
    ENCODE_ROUTING,
    SELECT,
    STEP,
    STEP_ALL,
    STEP_SELECTED,
    WEIGHTS_FILE,
    Manifest,
    check_hash,
    checked_path,
    read_manifest,
    sha256_of,
    sha256_of_file,
)
from capsnmt.text.subwords import BOS, EOS, PAD

NUM_NEVER = 2  # PAD and BOS, which are never proposed


def num_threads() -> int:
    """One per core that this process may use, unless OMP_NUM_THREADS says otherwise as it does for torch."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return usable_cores()


class OnnxEngine:
    """A loaded `runtime/`. It has no state of its own, so any number of threads may use one engine."""

    _loaded: ClassVar[weakref.WeakValueDictionary[tuple[str, str, int, bool], OnnxEngine]] = (
        weakref.WeakValueDictionary()
    )
    _loading = threading.Lock()

    def __init__(
        self, folder: str | Path, manifest: Manifest, *, threads: int | None = None, selection: bool = True
    ) -> None:
        self.folder = Path(folder)
        self.manifest = manifest
        self.vocabulary_size = manifest.vocabulary.target_size
        self.threads = threads or num_threads()
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._lock = threading.Lock()
        self._lexicon = self._read_lexicon() if selection and manifest.lexicon is not None else None
        self.graph(ENCODE)  # a folder that cannot be used is an error now, not at the first sentence
        self.graph(STEP if self._lexicon is None else STEP_SELECTED)

    @classmethod
    def load(cls, folder: str | Path, *, threads: int | None = None, selection: bool = True) -> OnnxEngine:
        """The engine of a model folder; all who ask for the same one share it.

        `selection`: where the folder has a lexicon, each sentence's words are selected by it.
        """
        manifest = read_manifest(folder)
        content = sha256_of(manifest.model_dump_json().encode())
        key = str(Path(folder).resolve()), content, threads or num_threads(), selection
        with cls._loading:
            engine = cls._loaded.get(key)
            if engine is None:
                engine = cls._loaded[key] = cls(folder, manifest, threads=threads, selection=selection)
            return engine

    def graph(self, name: str) -> ort.InferenceSession:
        """A graph, loaded when it is first asked for: most callers never need all of them."""
        with self._lock:
            if name not in self._sessions:
                self._sessions[name] = self._open(name)
            return self._sessions[name]

    def _open(self, name: str) -> ort.InferenceSession:
        record = self.manifest.graphs.get(name)
        if record is None:
            raise CapsNMTError(f"{self.folder}: the exported {self.manifest.system} has no graph {name!r}")
        path = checked_path(self.folder, record)
        check_hash(path, sha256_of_file(path), record)
        if not reads_only_weights(path.read_bytes()):
            raise CapsNMTError(f"{path} reads other files than {WEIGHTS_FILE}: it is not used")
        weights = checked_path(self.folder, self.manifest.weights)
        check_hash(weights, sha256_of_file(weights), self.manifest.weights)
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        # Each graph has threads of its own. Waiting ones would spin on after its run, on the cores of the next graph:
        # on two cores a greedy translation took twice as long.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 4  # its errors reach us as exceptions
        try:
            session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has a class for each of its codes and no common one but this
            raise CapsNMTError(f"{path} cannot be loaded ({str(error).splitlines()[0]}); export it again") from None
        self._check_names(name, session)
        return session

    def _check_names(self, name: str, session: ort.InferenceSession) -> None:
        """The manifest is what callers rely on, so the graph must be as it says."""
        record = self.manifest.graphs[name]
        found = [value.name for value in (*session.get_inputs(), *session.get_outputs())]
        if found != [*record.inputs, *record.outputs]:
            raise CapsNMTError(
                f"{self.folder}: the graph {name} has {found}, its manifest says otherwise; export again"
            )

    def encode(self, sources: Sequence[Sequence[int]]) -> OnnxSession:
        """Sentences as lists of ids → a session that decodes them together."""
        names = [f"memory.{name}" for name in self.manifest.memory] + [f"state.{name}" for name in self.manifest.state]
        found = self.run(ENCODE, names, _source_batch(sources))
        selection = None if self._lexicon is None else Selection(self, [self._lexicon.select(ids) for ids in sources])
        return OnnxSession(self, dict(zip(names, found, strict=True)), len(sources), selection)

    def run(self, graph: str, outputs: list[str], feeds: dict[str, ort.OrtValue]) -> list[ort.OrtValue]:
        """Runs a graph; what goes wrong in it is a RuntimeError, as callers expect of any engine."""
        try:
            found: list[ort.OrtValue] = self.graph(graph).run_with_ort_values(outputs, feeds)
        except CapsNMTError:
            raise
        except Exception as error:  # ONNX Runtime's own classes are no RuntimeErrors
            raise RuntimeError(str(error)) from None
        return found

    def _read_lexicon(self) -> Lexicon:
        record, sizes = self.manifest.lexicon, self.manifest.vocabulary
        assert record is not None
        path = checked_path(self.folder, record)
        content = path.read_bytes()
        check_hash(path, sha256_of(content), record)
        return Lexicon.parse(content, source_size=sizes.source_size, target_size=sizes.target_size)

    def routing(self, sources: Sequence[Sequence[int]]) -> Floats:
        """Routing coefficients of all iterations, (batch, iterations, src_len, M); zero at padding."""
        if ENCODE_ROUTING not in self.manifest.graphs:
            raise CapsNMTError("this system does not route: only models with capsules have routing coefficients")
        (found,) = self.run(ENCODE_ROUTING, ["routing"], _source_batch(sources))
        coefficients: Floats = found.numpy()
        return coefficients


def reads_only_weights(graph: bytes) -> bool:
    """Whether a serialised graph refers to no file but `weights.bin` beside it.

    ONNX names a file as an entry with the key "location". Those bytes cannot be written in another way, so each of them
    must stand in the one form that the export writes: key and value of an entry, and the value is our file.
    """
    pieces = graph.split(b"location")
    value = bytes([0x12, len(WEIGHTS_FILE)]) + WEIGHTS_FILE.encode()
    return all(
        before.endswith(bytes([0x0A, 8])) and after.startswith(value) for before, after in itertools.pairwise(pieces)
    )


def _source_batch(sources: Sequence[Sequence[int]]) -> dict[str, ort.OrtValue]:
    lengths = np.array([len(ids) for ids in sources])
    mask = np.arange(lengths.max())[None] < lengths[:, None]  # (batch, src_len)
    src = np.full(mask.shape, PAD, dtype=np.int64)
    src[mask] = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in sources])
    return {"src": _bound(src), "mask": _bound(mask)}


def _bound(array: npt.NDArray[Any]) -> ort.OrtValue:
    """A tensor on an array's own memory, without a copy."""
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


class Selection:
    """The words of a batch of sentences: one set of rows for all, of which each sentence sees its own."""

    def __init__(self, engine: OnnxEngine, words: list[Ints]) -> None:
        self.words = np.unique(np.concatenate(words))
        names = list(engine.manifest.graphs[SELECT].outputs)
        self.rows = dict(zip(names, engine.run(SELECT, names, {"words": _bound(self.words)}), strict=True))
        allowed = [np.where(np.isin(self.words, own, assume_unique=True), 0.0, -np.inf) for own in words]
        self.allowed = np.array(allowed, dtype=np.float32)  # (sentences, words)

    def positions(self, ids: Ints, sentences: Ints) -> Ints | None:
        """Where these ids stand among the words; None if one of them is not among its sentence's own."""
        found = np.searchsorted(self.words, ids).clip(max=len(self.words) - 1)
        own = (self.words[found] == ids) & (self.allowed[sentences, found] == 0.0)
        return found if own.all() else None


class OnnxSession:
    """Memory once per sentence, state once per hypothesis."""

    def __init__(
        self,
        engine: OnnxEngine,
        encoded: dict[str, ort.OrtValue],
        num_sentences: int,
        selection: Selection | None = None,
    ) -> None:
        self.num_sentences = num_sentences
        self._engine = engine
        self._selection = selection
        self._row_words: dict[str, ort.OrtValue] = {}
        self._memory = {name: value.numpy() for name, value in encoded.items() if name.startswith("memory.")}
        self._state = {name: value for name, value in encoded.items() if name.startswith("state.")}
        self._sentence_of_row = np.arange(num_sentences)
        self._row_memory: dict[str, ort.OrtValue] = {}  # of each row; gathered anew only when rows change sentences

    def step(self, tokens: Ints, origins: Ints, k: int, forced: Ints | None = None) -> Candidates:
        """Top-k continuations of each row, and the log-probs of the `forced` ids."""
        self._gather(origins)
        wanted = np.full(len(tokens), EOS, dtype=np.int64) if forced is None else forced
        size, graph, selected = self._engine.vocabulary_size, STEP, None
        if self._selection is not None:
            selected = self._selection.positions(wanted, self._sentence_of_row)
        if self._selection is not None and selected is not None:  # a forced word outside of them needs them all
            size, graph, wanted = len(self._selection.words), STEP_SELECTED, selected
        feeds = {"k": _bound(np.array([min(k + NUM_NEVER, size)])), "forced": _bound(wanted)}
        names = ["log_probs", "ids", "forced_log_probs"]
        log_probs, ids, forced_log_probs = self._run(graph, names, tokens, origins, feeds)
        if self._selection is not None and selected is not None:
            ids = self._selection.words[ids]
        log_probs, ids = without_never(log_probs, ids, min(k, size))
        return Candidates(log_probs=log_probs, ids=ids, forced=None if forced is None else forced_log_probs)

    def step_all(self, tokens: Ints, origins: Ints) -> Floats:
        """The whole distribution of each row: (rows, vocabulary) log-probs; no selection narrows it."""
        self._gather(origins)
        (log_probs,) = self._run(STEP_ALL, ["all_log_probs"], tokens, origins, {})
        return log_probs

    def coverage(self) -> Floats | None:
        """How much of its source each row has covered, in logs."""
        covered = self._state.get("state.coverage")
        return None if covered is None else log_coverage(covered.numpy())

    def _gather(self, origins: Ints) -> None:
        """What each row reads of its sentence."""
        sentences = self._sentence_of_row[origins]
        if self._row_memory and np.array_equal(sentences, self._sentence_of_row):
            return
        self._sentence_of_row = sentences
        self._row_memory = {name: _bound(array[sentences]) for name, array in self._memory.items()}
        if self._selection is not None:
            # Of one sentence alone all words are its own, and one row of zeros does for all.
            alone = self.num_sentences == 1
            allowed = self._selection.allowed if alone else self._selection.allowed[sentences]
            self._row_words = {"allowed": _bound(allowed), **self._selection.rows}

    def _run(
        self, graph: str, outputs: list[str], tokens: Ints, origins: Ints, feeds: dict[str, ort.OrtValue]
    ) -> list[npt.NDArray[Any]]:
        feeds |= {"tokens": _bound(tokens), "origins": _bound(origins)} | self._row_memory | self._state
        if graph == STEP_SELECTED:
            feeds |= self._row_words
        found = self._engine.run(graph, [*outputs, *(f"new_{name}" for name in self._state)], feeds)
        self._state = dict(zip(self._state, found[len(outputs) :], strict=True))
        return [value.numpy() for value in found[: len(outputs)]]


def without_never(log_probs: Floats, ids: Ints, k: int) -> tuple[Floats, Ints]:
    """The k best of (rows, k + NUM_NEVER) candidates without PAD and BOS, which would be last and impossible."""
    never = (ids == PAD) | (ids == BOS)
    if never.any():
        log_probs = np.where(never, -np.inf, log_probs)
        order = np.argsort(never, axis=1, kind="stable")
        log_probs, ids = np.take_along_axis(log_probs, order, axis=1), np.take_along_axis(ids, order, axis=1)
    return log_probs[:, :k], ids[:, :k]
