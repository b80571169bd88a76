"""Who can teach: a model folder, an ensemble of several, a CTranslate2 model, any command that maps lines to lines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import sentencepiece

from capsnmt.cluster import Job
from capsnmt.config import LanguagesConfig
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.distillation import TEACHER_BEAM
from capsnmt.distillation.identity import about_models
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.manifest import sha256_of_file

_CTRANSLATE2_MODEL = "model.bin"


class Candidate(NamedTuple):
    """One translation of a line."""

    text: str
    score: float | None  # the higher the better; None if the teacher does not say


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
        """Lines that the model failed on, or was not asked for, have no candidate."""
        from capsnmt.verbs import translate_blocks

        for block in translate_blocks(self._job, blocks, workers=self._workers):
            yield [[Candidate(text, score) for text, score in each.hypotheses] for each in block]

    def about(self) -> dict[str, Any]:
        """The folders, what is in them and what they were asked."""
        return about_models(self._job)


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
        """Empty lines are not asked."""
        return map(self._translate, blocks)

    def _translate(self, lines: Sequence[str]) -> list[list[Candidate]]:
        asked = [number for number, line in enumerate(lines) if line.strip()]
        results = self._translator.translate_batch(
            [[*self._source.encode(lines[number], out_type=str), *self._source_end] for number in asked],
            beam_size=self._beam,
            num_hypotheses=self._num_best,
            return_scores=True,
            max_input_length=0,
        )
        found: list[list[Candidate]] = [[] for _ in lines]
        for number, result in zip(asked, results, strict=True):
            pairs = zip(result.hypotheses, result.scores, strict=True)
            found[number] = [Candidate(self._target.decode(pieces), score) for pieces, score in pairs]
        return found

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
        found = ended.stdout.decode("utf-8", errors="replace").removesuffix("\n").split("\n")
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
