"""The one way from a string to ids and back, for training and translating alike."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from capsnmt.config import TextConfig
from capsnmt.errors import CapsNMTError
from capsnmt.text.normalise import normalise
from capsnmt.text.spans import Masked, mask
from capsnmt.text.subwords import EOS, Subwords

JOINT_FILE = "subwords.model"
SOURCE_FILE = "subwords.source.model"
TARGET_FILE = "subwords.target.model"

Side = Literal["source", "target"]


def subword_files(joint: bool) -> tuple[str, str]:
    """File names of the source's and the target's subword model; the same twice when they share one."""
    return (JOINT_FILE, JOINT_FILE) if joint else (SOURCE_FILE, TARGET_FILE)


class TextPipeline:
    """Normalising and subwords of both sides. Sequences of ids end in EOS unless the method says otherwise."""

    def __init__(self, config: TextConfig, source: Subwords, target: Subwords) -> None:
        self.config = config
        self.source = source
        self.target = target

    @classmethod
    def load(cls, folder: str | Path, config: TextConfig) -> TextPipeline:
        """Reads the subword models of a store or of a model folder."""
        source_file, target_file = (Path(folder) / name for name in subword_files(config.subwords.joint))
        for file in (source_file, target_file):
            if not os.path.isfile(file):
                raise CapsNMTError(
                    f"{file} is missing (text.subwords.joint is {str(config.subwords.joint).lower()}); "
                    "prepare the corpus first, or correct the folder"
                )
        source = Subwords(source_file)
        return cls(config, source, source if config.subwords.joint else Subwords(target_file))

    def copy_to(self, folder: str | Path) -> None:
        """Copies the subword models, so that the folder needs no store any more."""
        source_file, target_file = subword_files(self.config.subwords.joint)
        for name, subwords in {source_file: self.source, target_file: self.target}.items():
            if subwords.path.resolve() != (Path(folder) / name).resolve():
                (Path(folder) / name).unlink(missing_ok=True)  # a link of that name would be followed
                shutil.copyfile(subwords.path, Path(folder) / name)

    @property
    def source_size(self) -> int:
        """Size of the source vocabulary."""
        return len(self.source)

    @property
    def target_size(self) -> int:
        """Size of the target vocabulary."""
        return len(self.target)

    @property
    def fingerprint(self) -> str:
        """The same for two pipelines exactly when their subword models are the same."""
        if self.config.subwords.joint:
            return self.source.fingerprint
        return hashlib.sha256(f"{self.source.fingerprint} {self.target.fingerprint}".encode()).hexdigest()[:16]

    def normalise(self, text: str) -> str:
        """The text as it is stored and as the subwords see it."""
        return normalise(text, self.config.normalise)

    @property
    def num_symbols(self) -> int:
        """How many reserved symbols a model trained with this pipeline has learnt to place."""
        return self.config.subwords.protected_symbols if self.config.protect else 0

    def mask(self, text: str, terms: Mapping[str, str]) -> Masked:
        """Takes the protected spans and the user's terms out of a text, before it is normalised."""
        return mask(text, self.config.protect, terms)

    def starts_word(self, source_id: int) -> bool:
        """Whether a new word begins with this source id."""
        return self.source.starts_word(source_id)

    def source_ids(self, text: str) -> list[int]:
        """Ids of a source line."""
        return [*self.source.encode(self.normalise(text)), EOS]

    def target_ids(self, text: str) -> list[int]:
        """Ids of a target line."""
        return [*self.target_prefix_ids(text), EOS]

    def target_prefix_ids(self, text: str) -> list[int]:
        """Ids of the beginning of a translation: no EOS."""
        return self.target.encode(self.normalise(text))

    def encode_normalised(
        self, texts: Sequence[str], side: Side, *, dropout: float = 0.0, seed: int = 0
    ) -> list[list[int]]:
        """Ids of many lines that are already normalised, such as those of the store."""
        subwords = self.source if side == "source" else self.target
        return [[*ids, EOS] for ids in subwords.encode_batch(texts, dropout=dropout, seed=seed)]

    def source_text(self, ids: Sequence[int]) -> str:
        """The text of source ids, on one line."""
        return self.source.decode(ids)

    def target_text(self, ids: Sequence[int]) -> str:
        """The text of target ids, on one line."""
        return self.target.decode(ids)
