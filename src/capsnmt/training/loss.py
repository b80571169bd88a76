"""The training loss, summed over tokens so that batches of any size can be joined."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class LossSums(NamedTuple):
    """Sums over the real target tokens."""

    smoothed: Tensor  # what is minimised
    nll: Tensor  # −log p(y): what perplexity is made of


def label_smoothed_loss(logits: Tensor, targets: Tensor, mask: Tensor, smoothing: float) -> LossSums:
    """Cross-entropy against q(k) = (1 − ε)·[k = y] + ε/V, summed over real tokens.

    loss = Σ_tokens (1 − ε)·(−log p(y)) + ε·(1/V)·Σ_k −log p(k). The mass ε is spread over the whole vocabulary of V
    words, the right one included. logits (batch, tgt_len, V), targets and mask (batch, tgt_len).
    """
    log_probs = F.log_softmax(logits.float(), dim=-1)
    nll = F.nll_loss(log_probs.flatten(0, 1), targets.masked_fill(~mask, -100).flatten(), reduction="sum")
    if smoothing == 0.0:
        return LossSums(nll, nll)
    uniform = -(log_probs.sum(dim=-1) * mask).sum() / log_probs.size(-1)
    return LossSums((1.0 - smoothing) * nll + smoothing * uniform, nll)
