"""RNNsearch: the system that brought attention to translation.

Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate" (letters and equations as
in its appendix A). What makes it this system: one bidirectional GRU layer gives each word an annotation h_j; before
each step the decoder's *previous* state s_{i-1} chooses among them (c_i), and word, state and context meet in a maxout
layer. Decoding costs O(|S||T|), and the memory has two vectors a source word.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import AdditiveAttention, Tying, build_embeddings, reversal_index, reverse_rows


class RNNSearchConfig(StrictModel):
    """The paper's sizes by default."""

    system: Literal["rnnsearch"] = "rnnsearch"
    width: int = Field(1000, ge=1)  # n, of each direction of the encoder and of the decoder
    embedding_width: int = Field(620, ge=1)  # m
    attention_width: int = Field(1000, ge=1)  # n', hidden units of the alignment model
    maxout_width: int = Field(500, ge=1)  # l
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "none"


class RNNSearch(TranslationModel):
    """Encoder (A.2.1), decoder with alignment model (A.2.2) and maxout output."""

    def __init__(self, config: RNNSearchConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        m, n, l = config.embedding_width, config.width, config.maxout_width  # noqa: E741
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size, target_size=target_size, width=m, output_width=l, tie=config.tie_embeddings
        )
        # Deviation: torch's GRU applies the reset gate after the recurrent product, r ∘ (U h), where the paper has
        # U (r ∘ h): the encoder runs in torch's kernel and exports as one node. The decoder's is the paper's.
        self.forward_gru = nn.GRU(m, n, batch_first=True)
        self.backward_gru = nn.GRU(m, n, batch_first=True)
        self.W_s = nn.Linear(n, n)
        self.attention = AdditiveAttention(query_width=n, memory_width=2 * n, hidden_width=config.attention_width)
        # Update gate z, reset gate r and candidate side by side: W, W_z, W_r, and likewise C and U.
        self.W = nn.Linear(m, 3 * n)
        self.C = nn.Linear(2 * n, 3 * n, bias=False)
        self.U_gates = nn.Linear(n, 2 * n, bias=False)
        self.U = nn.Linear(n, n, bias=False)
        self.U_o = nn.Linear(n, 2 * l, bias=False)
        self.V_o = nn.Linear(m, 2 * l, bias=False)
        self.C_o = nn.Linear(2 * n, 2 * l, bias=False)
        # Deviation: the paper has none; 0 is the default, and small corpora need it. On words and before the softmax.
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """Annotations h_j = [→h_j, ←h_j] (batch, src_len, 2n), their part of the alignment model U_a h_j, the mask."""
        x, index = self.dropout(self.source_embedding(src)), reversal_index(src_mask)
        h_forward, _ = self.forward_gru(x)
        h_backward, _ = self.backward_gru(reverse_rows(x, index))
        h = torch.cat([h_forward, reverse_rows(h_backward, index)], dim=-1)
        return self.attention.remember(h, src_mask)

    def start(self, memory: Memory) -> State:
        """s_0 = tanh(W_s ←h_1), (batch, n): the backward state at the first word has read the whole sentence."""
        return {"hidden": self.W_s(memory["values"][:, 0, self.config.width :]).tanh()}

    def _update(self, W_y: Tensor, s: Tensor, c: Tensor) -> Tensor:
        """s_i from s_{i-1}, the context c_i and the word's part of all gates W_y (batch, 3n)."""
        n = self.config.width
        inputs = W_y + self.C(c)
        z, r = torch.sigmoid(inputs[:, : 2 * n] + self.U_gates(s)).chunk(2, dim=-1)
        candidate = torch.tanh(inputs[:, 2 * n :] + self.U(r * s))
        return (1.0 - z) * s + z * candidate

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Appendix A.1.2 and A.2.2, one position after the other: each state asks for its context."""
        y = self.dropout(self.target_embedding(tgt_in))  # the previous word: (batch, tgt_len, m)
        s, states, contexts = state["hidden"], [], []
        # c_i needs s_{i-1}, which needs c_{i-1}: the one loop over time. All that does not is done outside of it.
        for W_y in self.W(y).unbind(1):
            c, _ = self.attention(s, memory)
            states.append(s)
            contexts.append(c)
            s = self._update(W_y, s, c)
        t = self.U_o(torch.stack(states, dim=1)) + self.V_o(y) + self.C_o(torch.stack(contexts, dim=1))
        t = t.view(*t.shape[:2], -1, 2).amax(dim=-1)  # maxout over pairs: (batch, tgt_len, l)
        return self.output(self.dropout(t)), {"hidden": s}
