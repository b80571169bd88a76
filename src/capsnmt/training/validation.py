"""What is measured while training: unsmoothed loss and perplexity, and BLEU by the real beam search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from capsnmt.config import RunConfig
from capsnmt.data.batches import Batch, valid_batches
from capsnmt.data.corpus import read_pairs
from capsnmt.data.store import Store
from capsnmt.decoding.translator import LineTranslator
from capsnmt.evaluation.metrics import bleu, chrf
from capsnmt.models.contract import TranslationModel
from capsnmt.runtime.torch_engine import TorchEngine
from capsnmt.text.pipeline import TextPipeline
from capsnmt.training.loss import LossSums, label_smoothed_loss


@dataclass(frozen=True)
class Validation:
    """One validation. The loss is nats per token, never smoothed."""

    loss: float
    bleu: float | None
    chrf: float | None

    def values(self) -> list[float]:
        """Three numbers, NaN for none: what ranks can exchange."""
        return [math.nan if value is None else value for value in (self.loss, self.bleu, self.chrf)]

    @classmethod
    def of(cls, values: Sequence[float]) -> Validation:
        """The inverse of `values`."""
        loss, *scores = values
        return cls(loss, *(None if math.isnan(score) else score for score in scores))

    def report(self) -> dict[str, float | None]:
        """What the journal records."""
        return {"loss": self.loss, "perplexity": self.perplexity, "bleu": self.bleu, "chrf": self.chrf}

    @property
    def perplexity(self) -> float:
        """exp(loss), infinite rather than an overflow."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def batch_loss(model: nn.Module, batch: Batch, device: torch.device, smoothing: float) -> LossSums:
    """Runs one batch through the model."""
    src, src_mask, tgt_in, tgt_out, tgt_mask = (
        torch.from_numpy(array).to(device, non_blocking=True)
        for array in (batch.source, batch.source_mask, batch.target_in, batch.target_out, batch.target_mask)
    )
    return label_smoothed_loss(model(src, src_mask, tgt_in), tgt_out, tgt_mask, smoothing)


class Validator:
    """Holds what validations share: the references are read once, as they stand in the user's file."""

    def __init__(self, config: RunConfig, store: Store, text: TextPipeline, device: torch.device) -> None:
        self._config = config
        self._store = store
        self._text = text
        self._device = device
        pairs = read_pairs(config.data.valid, config.data.root)
        chosen = [pair for _, pair in zip(range(config.training.validate_sentences), pairs, strict=False)]
        self._sources = [source for source, _ in chosen]
        self._references = [target for _, target in chosen]

    def __call__(self, model: TranslationModel) -> Validation:
        """Leaves the model in training mode."""
        model.eval()
        loss = self._loss(model)
        scores: tuple[float | None, float | None] = (None, None)
        if self._sources:
            engine = TorchEngine(model, vocabulary_size=self._text.target_size, device=self._device)
            translator = LineTranslator(
                engine=engine,
                text=self._text,
                decoding=self._config.decoding,
                language=self._config.languages.source,
            )
            outputs = [translation.text for translation in translator.translate_batch(self._sources)]
            scores = (
                bleu(outputs, self._references, num_bootstrap=0).value,
                chrf(outputs, self._references, num_bootstrap=0).value,
            )
        model.train()
        return Validation(loss, *scores)

    def _loss(self, model: TranslationModel) -> float:
        total, tokens = 0.0, 0
        with torch.inference_mode():
            for batch in valid_batches(self._store, self._config.training.batch_tokens):
                total += batch_loss(model, batch, self._device, smoothing=0.0).nll.item()
                tokens += batch.target_tokens
        return total / max(1, tokens)
