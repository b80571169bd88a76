"""The peer knows strings: ids and their names in its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from capsnmt.text.subwords import BOS, EOS, PAD, UNK

SPECIAL_TOKENS = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}


def token_of(id_: int) -> str:
    """The name of an id."""
    return SPECIAL_TOKENS.get(id_, str(id_))


def ids_of(tokens: Sequence[str]) -> list[int]:
    """Back from names; </s> is left out, as in our own results."""
    return [_IDS[token] if token in _IDS else int(token) for token in tokens if token != SPECIAL_TOKENS[EOS]]


_IDS = {token: id_ for id_, token in SPECIAL_TOKENS.items()}
