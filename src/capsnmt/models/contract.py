"""What every system implements, and all that training, search and export know of it.

Shapes: batch-first, right-padded; masks are bool with True = real token. `memory` (made once per sentence) and `state`
(once per hypothesis) are dicts of batch-first tensors, so reordering a beam is one line for all systems:
`{name: tensor[rows] for name, tensor in state.items()}`.

A state may have an entry `coverage` (batch, src_len): the attention that each source position has had up to now, with 1
at padding. The search reads it for GNMT's coverage penalty, β Σ_j log(min(coverage_j, 1)).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

Memory = dict[str, Tensor]
State = dict[str, Tensor]


class TranslationModel(nn.Module, ABC):
    """A system of the paper's tables."""

    @abstractmethod
    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """Source ids (batch, src_len) and their mask → what the decoder reads."""

    @abstractmethod
    def start(self, memory: Memory) -> State:
        """The decoder's state before the first token."""

    @abstractmethod
    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Target positions (batch, tgt_len), each the word before the one asked for, from `state` on.

        Returns logits (batch, tgt_len, vocabulary) and the state after the last of them.
        """

    def step(self, ids: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """The previous token of each hypothesis (batch,) → logits (batch, vocabulary) and the new state."""
        logits, state = self.decode(ids[:, None], memory, state)
        return logits[:, 0], state

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher forcing: all target positions in one call → logits (batch, tgt_len, vocabulary)."""
        memory = self.encode(src, src_mask)
        logits, _ = self.decode(tgt_in, memory, self.start(memory))
        return logits

    def routing(self, src: Tensor, src_mask: Tensor) -> Tensor | None:
        """Which word went to which capsule in each iteration, (batch, iterations, src_len, M); None: no routing."""
        return None
