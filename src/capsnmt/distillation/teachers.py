"""Who can teach: a model folder, an ensemble of several, a CTranslate2 model, any command that maps lines to lines."""

from __future__ import annotations

import json
import logging
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import sentencepiece

from capsnmt.cluster import Job
from capsnmt.config import DecodingConfig, LanguagesConfig
from capsnmt.decoding.segment_search import max_length
from capsnmt.decoding.translation import TranslateOptions, Translation
from capsnmt.distillation import TEACHER_BEAM
from capsnmt.distillation.identity import about_models
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.manifest import sha256_of_file

_CTRANSLATE2_MODEL = "model.bin"
_SHORTEST_LIMIT = 256  # CTranslate2's own for lines of any length

_LOG = logging.getLogger(__name__)


class Candidate(NamedTuple):
    """One translation of a line."""

    text: str
    score: float | None  # the higher the better; None if the teacher does not say
    is_protected: bool = False  # the line itself: it has nothing but numbers, URLs and the like, so nobody was asked

    def record(self) -> list[Any]:
        """Of a journal; what is hardly ever so is written only where it is."""
        return list(self) if self.is_protected else list(self[:2])


class Teacher(Protocol):
    """Translates blocks of lines."""

    languages: LanguagesConfig | None  # None: it does not know them

    def translate_blocks(self, blocks: Iterable[Sequence[str]]) -> Iterator[list[list[Candidate]]]:
        """Block by block, in order: candidates of each line, best first; none for one that could not be translated."""
        ...

    def about(self) -> dict[str, Any]:
        """Who it is and how it translates: a distillation goes on with the same teacher only."""
        ...


class ModelTeacher:
    """A model folder of this project or an ensemble, through the exported runtime where there is one; or over Ray."""

    def __init__(
        self,
        folders: Sequence[str | Path],
        options: TranslateOptions,
        *,
        engine: str = "auto",
        device: str = "auto",
        workers: int | None = None,
    ) -> None:
        from capsnmt.verbs import languages_of

        self._job = Job(tuple(map(str, folders)), options, engine=engine, device=device)
        self._workers = workers
        self.languages: LanguagesConfig | None = languages_of(folders[0])

    def translate_blocks(self, blocks: Iterable[Sequence[str]]) -> Iterator[list[list[Candidate]]]:
        """Lines that are blank, or that the model failed on, have no candidate."""
        from capsnmt.verbs import translate_blocks

        for block in translate_blocks(self._job, blocks, workers=self._workers):
            yield list(map(_candidates, block))

    def about(self) -> dict[str, Any]:
        """The folders, what is in them and what they were asked."""
        return about_models(self._job)


def _candidates(found: Translation) -> list[Candidate]:
    if found.status == "empty" and found.source.strip():
        return [Candidate(found.text, None, is_protected=True)]
    return [Candidate(text, score) for text, score in found.hypotheses]


class CTranslate2Teacher:
    """A CTranslate2 model with its SentencePiece files, as OPUS-MT and Argos Translate hand them out."""

    def __init__(self, folder: str | Path, *, beam: int, num_best: int, subwords: Sequence[str] = ()) -> None:
        if find_spec("ctranslate2") is None:
            raise CapsNMTError(f"{folder} is a CTranslate2 model, which needs ctranslate2: pip install ctranslate2")
        import ctranslate2

        self.languages: LanguagesConfig | None = None
        self._folder, self._beam, self._num_best = Path(folder), beam, num_best
        self._files = _two([Path(name) for name in subwords] or _subword_files(self._folder))
        self._source, self._target = (sentencepiece.SentencePieceProcessor(model_file=str(f)) for f in self._files)
        self._translator = ctranslate2.Translator(str(folder), device="cpu")
        self._source_end = _source_end(self._folder)

    def translate_blocks(self, blocks: Iterable[Sequence[str]]) -> Iterator[list[list[Candidate]]]:
        """Blank lines are not asked; one that the model cannot take, such as a too long one, has no candidate."""
        return map(self._translate, blocks)

    def _translate(self, lines: Sequence[str]) -> list[list[Candidate]]:
        found: list[list[Candidate]] = [[] for _ in lines]
        asked: dict[int, dict[int, list[str]]] = defaultdict(dict)  # limit → number of a line → its tokens
        for number, line in enumerate(lines):
            if line.strip():
                tokens = [*self._source.encode(line, out_type=str), *self._source_end]
                asked[_output_limit(len(tokens))][number] = tokens
        for limit, batch in asked.items():
            for number, candidates in zip(batch, self._ask(list(batch.values()), limit), strict=True):
                found[number] = candidates
        return found

    def _ask(self, batch: Sequence[Sequence[str]], limit: int) -> list[list[Candidate]]:
        """Where one of a batch fails, each is asked alone."""
        try:
            results = self._translator.translate_batch(
                batch,
                beam_size=self._beam,
                num_hypotheses=self._num_best,
                return_scores=True,
                max_input_length=0,
                max_decoding_length=limit,
            )
        except RuntimeError as error:  # CTranslate2's own, such as of a line with more tokens than a model has places
            if len(batch) > 1:
                return [candidates for tokens in batch for candidates in self._ask([tokens], limit)]
            _LOG.warning("a line of %d tokens is not translated: %s", len(batch[0]), error)
            return [[]]
        return [self._read(result) for result in results]

    def _read(self, result: Any) -> list[Candidate]:
        pairs = zip(result.hypotheses, result.scores, strict=True)
        return [Candidate(self._target.decode(pieces), score) for pieces, score in pairs]

    def about(self) -> dict[str, Any]:
        """The folder, what is in it and what it was asked."""
        return {
            "ctranslate2": str(self._folder),
            "sha256": sha256_of_file(self._folder / _CTRANSLATE2_MODEL),
            "subwords": [sha256_of_file(file) for file in self._files],
            "source_end": self._source_end,
            "beam": self._beam,
            "n_best": self._num_best,
        }


class CommandTeacher:
    """A shell command that reads lines and writes as many; it is started anew for every block."""

    def __init__(self, command: str) -> None:
        self.languages: LanguagesConfig | None = None
        self._command = command

    def translate_blocks(self, blocks: Iterable[Sequence[str]]) -> Iterator[list[list[Candidate]]]:
        """One candidate a line; an empty output line is none."""
        return map(self._translate, blocks)

    def _translate(self, lines: Sequence[str]) -> list[list[Candidate]]:
        text = "".join(line + "\n" for line in lines)
        ended = subprocess.run(self._command, shell=True, input=text.encode(), stdout=subprocess.PIPE, check=False)
        if ended.returncode != 0:
            raise CapsNMTError(f"the teacher's command ended with {ended.returncode}: {self._command}")
        *found, unended = ended.stdout.decode("utf-8", errors="replace").split("\n")
        found += [unended] if unended else []
        if len(found) != len(lines):
            raise CapsNMTError(
                f"the teacher's command answered {len(lines)} lines with {len(found)}; it must write one line for each "
                f"that it reads: {self._command}"
            )
        return [[Candidate(line, None)] if line.strip() else [] for line in found]

    def about(self) -> dict[str, Any]:
        """The command."""
        return {"command": self._command}


def open_teacher(
    models: Sequence[str | Path],
    command: str | None,
    options: TranslateOptions,
    *,
    subwords: Sequence[str] = (),
    engine: str = "auto",
    device: str = "auto",
    workers: int | None = None,
) -> Teacher:
    """The teacher that a user names."""
    is_ours = command is None and not (len(models) == 1 and is_ctranslate2(models[0]))
    if subwords and (is_ours or command is not None):
        raise CapsNMTError(
            f"--subwords {' '.join(subwords)}: these are the SentencePiece files of a CTranslate2 model, and this "
            "teacher is none; leave --subwords out"
        )
    if is_ours:
        return ModelTeacher(models, options, engine=engine, device=device, workers=workers)
    if (engine, device, workers) != ("auto", "auto", None):
        raise CapsNMTError(
            "--engine, --device and --workers are for model folders of this project; a command or a CTranslate2 model "
            "runs here, on the CPU: share the work by --shard i/n"
        )
    if command is not None:
        return CommandTeacher(command)
    return CTranslate2Teacher(
        models[0], beam=options.beam or TEACHER_BEAM, num_best=options.num_best, subwords=subwords
    )


def _output_limit(source_tokens: int) -> int:
    """The most tokens of a translation by CTranslate2: at least what our own search allows by default.

    In few steps, so that lines share calls, and by the line alone, so that its neighbours do not matter.
    """
    usual = DecodingConfig()
    wanted = max_length(usual, source_tokens, usual.max_length_extra)
    limit = _SHORTEST_LIMIT
    while limit < wanted:
        limit *= 2
    return limit


def is_ctranslate2(folder: str | Path) -> bool:
    """Whether a folder holds a CTranslate2 model."""
    return (Path(folder) / _CTRANSLATE2_MODEL).is_file()


def _source_end(folder: Path) -> list[str]:
    """What must follow the tokens of a sentence because CTranslate2 does not add it itself.

    Its converter of Hugging Face's models, which were trained with </s>, says nothing of it, and all others do where
    it is wanted. Models of OpenNMT-py were trained without; unlike Hugging Face's, their output begins with <s>.
    """
    if not (folder / "config.json").is_file():  # of an older converter, which wrote it into the model
        return []
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("add_source_eos") or config.get("decoder_start_token", "<s>") == "<s>":
        return []
    end = config.get("eos_token", "</s>")
    return [end] if end in _source_vocabulary(folder) else []


def _source_vocabulary(folder: Path) -> list[str]:
    for side in ("source", "shared"):
        if (path := folder / f"{side}_vocabulary.json").is_file():
            tokens: list[str] = json.loads(path.read_text(encoding="utf-8"))
            return tokens
        if (path := folder / f"{side}_vocabulary.txt").is_file():  # of an older converter
            return path.read_text(encoding="utf-8").split("\n")
    return []


def _subword_files(folder: Path) -> list[Path]:
    """source.spm and target.spm of OPUS-MT, or the one sentencepiece.model that Argos puts beside the model."""
    for place in (folder, folder.parent):
        for names in (("source.spm", "target.spm"), ("sentencepiece.model",)):
            if all((place / name).is_file() for name in names):
                return [place / name for name in names]
    raise CapsNMTError(f"{folder}: no source.spm and target.spm, no sentencepiece.model; name the files by --subwords")


def _two(files: list[Path]) -> tuple[Path, Path]:
    if len(files) not in (1, 2):
        raise CapsNMTError(f"{len(files)} SentencePiece files; give one for both languages, or source and target")
    return files[0], files[-1]
