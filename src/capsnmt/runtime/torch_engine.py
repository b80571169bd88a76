"""The engine that runs a model in torch: behind the search it looks like any other engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from capsnmt.decoding.engine import Candidates
from capsnmt.decoding.penalties import log_coverage
from capsnmt.errors import CapsNMTError
from capsnmt.folder import WEIGHTS, read_folder_config
from capsnmt.models import build_model
from capsnmt.models.contract import TranslationModel
from capsnmt.models.weights import load_weights, read_weights
from capsnmt.text.subwords import BOS, PAD


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes a GPU when there is one; of the processes that torchrun started, each takes its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise CapsNMTError(f"device {name!r} is unknown; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise CapsNMTError("device cuda: torch finds no GPU here; choose cpu or auto")
    if name == "cpu" or "LOCAL_RANK" not in os.environ:
        return torch.device(name)
    rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if rank >= gpus:
        raise CapsNMTError(
            f"torchrun started more processes than the {gpus} GPUs that torch finds here; give `torchrun "
            f"--nproc-per-node {gpus}`, or `reproduce --processes {gpus}`"
        )
    return torch.device(name, rank)


class TorchEngine:
    """Encodes batches and opens decoding sessions; the model is in evaluation mode while it is used."""

    def __init__(self, model: TranslationModel, *, vocabulary_size: int, device: torch.device) -> None:
        self.model = model
        self.vocabulary_size = vocabulary_size
        self.device = device

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto") -> TorchEngine:
        """Reads the weights of a model folder."""
        config = read_folder_config(folder)
        sizes = config.vocabulary
        model = build_model(config.model, source_size=sizes.source_size, target_size=sizes.target_size)
        load_weights(model, read_weights(Path(folder) / WEIGHTS), str(folder))
        chosen = pick_device(device)
        return cls(model.to(chosen).eval(), vocabulary_size=sizes.target_size, device=chosen)

    def encode(self, sources: Sequence[Sequence[int]]) -> TorchSession:
        """Sentences as lists of ids → a session that decodes them together."""
        with torch.inference_mode():
            return TorchSession(self, self.model.encode(*self._source_batch(sources)), len(sources))

    def routing(self, sources: Sequence[Sequence[int]]) -> np.ndarray:
        """Routing coefficients of all iterations, (batch, iterations, src_len, M); zero at padding."""
        with torch.inference_mode():
            found = self.model.routing(*self._source_batch(sources))
        if found is None:
            raise CapsNMTError("this system does not route: only models with capsules have routing coefficients")
        return found.cpu().numpy()

    def _source_batch(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        length = max(len(ids) for ids in sources)
        src = torch.full((len(sources), length), PAD, dtype=torch.long)
        for row, ids in enumerate(sources):
            src[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        src = src.to(self.device)
        mask = (
            torch.arange(length, device=self.device)[None]
            < torch.tensor([len(ids) for ids in sources], device=self.device)[:, None]
        )
        return src, mask


class TorchSession:
    """Memory once per sentence, state once per hypothesis."""

    def __init__(self, engine: TorchEngine, memory: dict[str, Tensor], num_sentences: int) -> None:
        self.num_sentences = num_sentences
        self._engine = engine
        self._memory = memory
        with torch.inference_mode():
            self._state = engine.model.start(memory)
        self._sentence_of_row = np.arange(num_sentences)
        self._row_memory = memory  # the memory of each row; gathered anew only when rows change sentences

    def step(self, tokens: np.ndarray, origins: np.ndarray, k: int, forced: np.ndarray | None = None) -> Candidates:
        """Top-k continuations of each row, and the log-probs of the `forced` ids."""
        with torch.inference_mode():
            log_probs = self._log_probs(tokens, origins)
            forced_log_probs = None
            if forced is not None:
                ids = torch.as_tensor(forced, device=log_probs.device)
                forced_log_probs = log_probs.gather(1, ids[:, None])[:, 0].cpu().numpy()
            log_probs[:, [PAD, BOS]] = -torch.inf
            best, ids = log_probs.topk(min(k, log_probs.size(1)), dim=1)
        return Candidates(log_probs=best.cpu().numpy(), ids=ids.cpu().numpy(), forced=forced_log_probs)

    def step_all(self, tokens: np.ndarray, origins: np.ndarray) -> np.ndarray:
        """The whole distribution of each row: (rows, vocabulary) log-probs."""
        with torch.inference_mode():
            return self._log_probs(tokens, origins).cpu().numpy()

    def coverage(self) -> np.ndarray | None:
        """How much of its source each row has covered, in logs."""
        covered = self._state.get("coverage")
        return None if covered is None else log_coverage(covered.float().cpu().numpy())

    def _log_probs(self, tokens: np.ndarray, origins: np.ndarray) -> Tensor:
        device = self._engine.device
        sentences = self._sentence_of_row[origins]
        if self._row_memory is self._memory or not np.array_equal(sentences, self._sentence_of_row):
            index = torch.as_tensor(sentences, device=device)
            self._row_memory = {name: tensor[index] for name, tensor in self._memory.items()}
        self._sentence_of_row = sentences
        rows = torch.as_tensor(origins, device=device)
        state = {name: tensor[rows] for name, tensor in self._state.items()}
        ids = torch.as_tensor(tokens, device=device)
        logits, self._state = self._engine.model.step(ids, self._row_memory, state)
        return torch.log_softmax(logits.float(), dim=-1)
