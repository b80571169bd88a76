"""What the contract tests share: a ragged batch, and what each system promises about its sizes.

The tiny configs themselves are TINY in tests/conftest.py, because other tests build the same models.
"""

from __future__ import annotations

import pytest
import torch

VOCABULARY = 40
LENGTHS = ((7, 4), (1, 6), (5, 2), (7, 1))  # (source, target) of each row

# "constant": the same for any number of tokens, source tokens of a memory and target tokens of a state; "grows": with
# every one of them. A variant may differ from its system.
MEMORY = {
    "capsnmt": "constant",
    "capsnmt-states": "grows",
    "simple": "constant",
    "pooling": "constant",
    "transformer": "grows",
    "encdec": "constant",
    "deep_encdec": "constant",
    "rnnsearch": "grows",
    "gnmt": "grows",
    "bytenet": "grows",
    "convs2s": "grows",
    "rnmt": "grows",
    "hybrid": "grows",
    "hybrid-capsules": "constant",
}
STATE = {
    "capsnmt": "constant",
    "simple": "constant",
    "pooling": "constant",
    "transformer": "grows",
    "encdec": "constant",
    "deep_encdec": "constant",
    "rnnsearch": "constant",
    "gnmt": "constant",  # in |T|; one number for each source token
    "bytenet": "constant",
    "convs2s": "constant",
    "rnmt": "constant",
    "hybrid": "constant",
}


@pytest.fixture
def promised():
    """promised("memory", variant) → what the size of its memory does."""

    def look_up(what: str, variant: tuple[str, str]) -> str:
        table, system = {"memory": MEMORY, "state": STATE}[what], variant[0]
        assert system in table, f"say in {__file__} whether the {what} of {system!r} is constant or grows"
        return table.get("-".join(variant), table[system])

    return look_up


@pytest.fixture
def batch():
    """src, src_mask, tgt_in and tgt_mask of rows with different lengths."""
    torch.manual_seed(8)
    masks = []
    for side in (0, 1):
        lengths = torch.tensor([pair[side] for pair in LENGTHS])
        masks.append(torch.arange(int(lengths.max()))[None] < lengths[:, None])
    src, tgt_in = (torch.randint(4, VOCABULARY, mask.shape).masked_fill(~mask, 0) for mask in masks)
    tgt_in[:, 0] = 2
    return src, masks[0], tgt_in, masks[1]
