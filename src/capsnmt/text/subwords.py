"""SentencePiece: training a model, and the lossless way between a normalised line and ids."""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from capsnmt.config import SubwordsConfig
from capsnmt.errors import CapsNMTError

PAD, UNK, BOS, EOS = 0, 1, 2, 3

_LOG = logging.getLogger(__name__)

_MAX_TRAINING_LINES = 2_000_000  # more changes no vocabulary noticeably, but costs memory
_MOST_MODEL_BYTES = 100_000_000  # a vocabulary of 250,000 has 5 MB
_QUIET = 2  # SentencePiece's log level: errors only
_UNKNOWN = "⁇"
_SEEDS = 2**31 - 1  # SentencePiece takes 32 bits and reads the highest value as "seed from the machine"

# SentencePiece keeps one seed per process, so setting it and sampling with it must not be interleaved.
_SAMPLING = threading.Lock()


def protected_symbol(index: int) -> str:
    """The symbol that stands for the protected span of this number; always one id."""
    return f"⦅{index}⦆"


def train_subwords(
    lines: Iterable[str], config: SubwordsConfig, path: Path, *, side: Literal["source", "target"] = "source"
) -> None:
    """Trains on normalised lines and writes the model file. Too small a corpus gets a smaller vocabulary."""
    model, wanted = io.BytesIO(), config.size_of(side)
    texts = _word_counts(lines) if config.type == "word" else iter(lines)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=texts, model_writer=model, **_training_options(config, wanted)
        )
    except RuntimeError as error:
        raise CapsNMTError(_explain(str(error), config, wanted)) from None
    size = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).get_piece_size()
    if size < wanted:
        _LOG.warning("text.subwords.vocabulary: %d, but the training text yields only %d", wanted, size)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(model.getvalue())
    temporary.replace(path)


def _word_counts(lines: Iterable[str]) -> Iterator[str]:
    """Each word with its number, as SentencePiece reads it: the most frequent words are those of the whole text."""
    counts = Counter(itertools.chain.from_iterable(map(str.split, lines)))
    return (f"{word}\t{count}" for word, count in counts.items())


def _training_options(config: SubwordsConfig, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": config.type,
        "vocab_size": vocabulary,
        "hard_vocab_limit": False,  # a small corpus gets a smaller vocabulary instead of an error
        "character_coverage": config.character_coverage,
        "byte_fallback": config.byte_fallback and config.type in ("bpe", "unigram"),
        "split_digits": config.split_digits,
        "user_defined_symbols": [protected_symbol(index) for index in range(config.protected_symbols)],
        "pad_id": PAD,
        "unk_id": UNK,
        "bos_id": BOS,
        "eos_id": EOS,
        # Whole words carry their space with them, so the word that stands for an unknown one must bring it too.
        "unk_surface": f" {_UNKNOWN}" if config.type == "word" else _UNKNOWN,
        # Normalising is ours: SentencePiece's own is not lossless.
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "input_format": "tsv" if config.type == "word" else "text",
        "input_sentence_size": 0 if config.type == "word" else _MAX_TRAINING_LINES,
        "shuffle_input_sentence": True,
        "minloglevel": _QUIET,
    }


def _explain(error: str, config: SubwordsConfig, vocabulary: int) -> str:
    """SentencePiece's own message ends in a remark; the numbers in it are what the user needs."""
    required = re.search(r"smaller than required_chars\.? *(\d+) vs (\d+)", error)
    if required:
        return (
            f"text.subwords.vocabulary: {vocabulary} is too small, because single characters, bytes and symbols "
            f"alone need {required[2]}; raise it, or lower text.subwords.character_coverage or protected_symbols"
        )
    if "empty" in error.lower():
        return "the training text for the subwords is empty: check the files of data.train"
    return f"SentencePiece could not train with text.subwords {config.model_dump()}: {error}"


def _processor(model: bytes, path: str | Path) -> Any:
    """SentencePiece over a model file that may be anything."""
    try:
        if not 0 < len(model) < _MOST_MODEL_BYTES:  # SentencePiece takes an empty file for a model that comes later
            raise RuntimeError
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        # Pieces that are no text would fail only when the first translation holds one.
        processor.id_to_piece(list(range(processor.get_piece_size())))
        processor.decode([processor.unk_id()])
    except (RuntimeError, ValueError):
        raise CapsNMTError(f"{path} is not a SentencePiece model; prepare the corpus again") from None
    special = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    if special != (PAD, UNK, BOS, EOS):
        raise CapsNMTError(
            f"{path} is not a subword model of capsnmt: its pad, unk, bos and eos are {special} "
            f"instead of {(PAD, UNK, BOS, EOS)}; prepare the corpus again"
        )
    return processor


class Subwords:
    """A trained SentencePiece model."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                model = file.read(_MOST_MODEL_BYTES)
        except OSError as error:
            raise CapsNMTError(f"cannot read the subword model {path}: {error.strerror}") from None
        self._processor = _processor(model, path)
        self.fingerprint = hashlib.sha256(model).hexdigest()[:16]

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """Ids of one normalised line, without BOS and EOS."""
        ids: list[int] = self._processor.encode(text)
        return ids

    def encode_batch(self, texts: Sequence[str], *, dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        """Ids of many lines. With `dropout` each merge is skipped with that probability (BPE-dropout).

        The same texts, dropout and seed give the same ids: a batch call of SentencePiece samples in a fresh thread,
        whose generator starts from the seed of the process; one thread, because the split over threads is not fixed.
        """
        ids: list[list[int]]
        if dropout == 0.0:
            ids = self._processor.encode(list(texts))
            return ids
        with _SAMPLING:
            sentencepiece.set_random_generator_seed(seed % _SEEDS)
            ids = self._processor.encode(list(texts), enable_sampling=True, alpha=dropout, nbest_size=-1, num_threads=1)
        return ids

    def starts_word(self, token: int) -> bool:
        """Whether a new word begins with this id."""
        piece: str = self._processor.id_to_piece(token)
        return piece.startswith("▁")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The subwords of these ids as SentencePiece writes them; ▁ begins a word."""
        return [self._processor.id_to_piece(int(token)) for token in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids, on one line. PAD, BOS and EOS are nothing; bytes may have spelt a line break."""
        text: str = self._processor.decode([int(token) for token in ids if token not in (PAD, BOS, EOS)])
        return text.replace("\n", " ")
