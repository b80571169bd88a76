"""The training loop, one for all systems. Read `train` from top to bottom."""

from __future__ import annotations

import logging
import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from capsnmt.config import RunConfig, TrainingConfig
from capsnmt.data.batches import Batch, BatchStream, Share, corpus_repeats
from capsnmt.data.prepare import PreparedCorpus, load_store, prepare
from capsnmt.errors import CapsNMTError
from capsnmt.folder import WEIGHTS, create_folder, read_folder_config
from capsnmt.models import build_model, parse_model_config, whole_model_section
from capsnmt.models.weights import load_weights, read_weights, save_weights
from capsnmt.runtime.allocator import keep_freed_memory
from capsnmt.runtime.torch_engine import pick_device
from capsnmt.text.pipeline import TextPipeline
from capsnmt.training.average import average_weights
from capsnmt.training.card import write_card
from capsnmt.training.checkpoint import (
    Progress,
    best_weights,
    checkpoint_weights,
    checkpoints_in,
    clear_remains,
    load_checkpoint,
    newest_whole_checkpoint,
    save_best,
    save_checkpoint,
)
from capsnmt.training.diagnosis import RoutingMeter, gradient_norms
from capsnmt.training.distributed import Ranks, joined_ranks, restart_wait_s
from capsnmt.training.guard import DivergenceGuard, StopRequest, folder_lock, stop_on_signals
from capsnmt.training.journal import Journal
from capsnmt.training.precision import use_bf16
from capsnmt.training.schedule import learning_rate
from capsnmt.training.validation import Validation, Validator, batch_loss

log = logging.getLogger(__name__)


def train(config: RunConfig, *, show: bool = True) -> Path:
    """Trains the recipe, or goes on where its folder left off. Returns the model folder."""
    parse_model_config(config.model)  # a typo in the model section must not wait for the corpus
    with (
        joined_ranks(pick_device(config.training.device)) as ranks,
        folder_lock(Path(config.output), wait_s=restart_wait_s()) if ranks.is_first else nullcontext(),
        stop_on_signals() as stop,
    ):
        return _train(config, ranks, stop, show=show and ranks.is_first)


def _train(config: RunConfig, ranks: Ranks, stop: StopRequest, *, show: bool) -> Path:
    settings = config.training
    keep_freed_memory()
    with ranks.one_after_another():
        store_folder = prepare(config, progress=show)
        text = TextPipeline.load(store_folder, config.text)
        folder = create_folder(config, text, whole=whole_model_section) if ranks.is_first else Path(config.output)
    corpus = load_store(store_folder)
    checkpoints = folder / "checkpoints"

    torch.manual_seed(settings.seed)
    model = build_model(config.model, source_size=text.source_size, target_size=text.target_size)
    model = model.to(ranks.device).train()
    optimiser = build_optimiser(model, settings)
    progress = Progress()
    if settings.start_from:
        start_from_folder(model, text, Path(settings.start_from))
    torch.manual_seed(settings.seed + ranks.rank)  # ranks start from the same weights but drop out different units
    if checkpoint := newest_whole_checkpoint(checkpoints):
        progress = load_checkpoint(checkpoint, model, optimiser, rank=ranks.rank)
    if ranks.is_first:
        clear_remains(checkpoints, progress, keep_last=settings.keep_last)
    not_bf16 = use_bf16(model, settings.bf16_modules)
    compiled: nn.Module = torch.compile(model, dynamic=True) if settings.compile else model  # type: ignore[assignment]
    trained = ranks.wrap(compiled)
    validate = Validator(config, corpus.valid, text, ranks.device)
    look_at_routing = RoutingMeter(corpus.valid, batch_tokens=settings.batch_tokens, device=ranks.device)
    batches = BatchStream(
        corpus.train,
        batch_tokens=settings.batch_tokens,
        seed=settings.seed,
        pipeline=text,
        dropout=config.text.subwords.dropout,
        repeats=repeats_of(corpus, config),
        position=(progress.epoch, progress.batch),
        share=Share(ranks.rank, ranks.size, max(settings.accumulate, ranks.size)),
    )
    start_s, last_save_s = time.monotonic() - progress.elapsed_s, time.monotonic()

    with Journal(folder if ranks.is_first else None, progress.step, settings.steps, show=show) as journal:
        journal.say(describe(model, config, len(corpus.train), ranks, progress))
        if not_bf16:
            journal.say(f"warning: this processor has no bf16 LSTM, so these parts stay in fp32: {', '.join(not_bf16)}")
            journal.note("precision", progress.step, {"parts_in_fp32": len(not_bf16)})
        meter, guard = Meter(batches, progress), DivergenceGuard()
        while progress.step < settings.steps and not out_of_patience(progress, settings):
            progress.step += 1
            rate = learning_rate(progress.step, settings)
            group = [next(batches) for _ in range(len(batches.share))]
            done = update(trained, optimiser, group, rate, settings, ranks)
            progress.epoch, progress.batch = batches.position
            progress.target_tokens += done.target_tokens
            progress.elapsed_s = time.monotonic() - start_s
            if guard.saw(done.norm, progress.step):
                progress.skipped_updates += 1
                journal.say(f"step {progress.step}: gradient norm {done.norm}, update skipped")
            else:
                meter.add(done)
            journal.advance(progress.step)

            stopping = ranks.highest(stop.signal or 0) > 0
            last = progress.step == settings.steps
            if progress.step % settings.log_every == 0 or last:
                values = {"epoch": progress.epoch, "rate": rate, "norm": done.norm, **meter.flush()}
                journal.record("train", progress.step, **values)
                if ranks.is_first:
                    began_s = time.monotonic()
                    journal.note("gradients", progress.step, gradient_norms(model))
                    journal.note("routing", progress.step, look_at_routing(model))
                    meter.exclude(time.monotonic() - began_s)
            if progress.step % settings.validate_every == 0 or last:
                began_s = time.monotonic()
                outcome = Validation.of(ranks.from_first(validate(model).values() if ranks.is_first else [0.0] * 3))
                meter.exclude(time.monotonic() - began_s)
                if is_best(outcome, progress, settings) and ranks.is_first:
                    save_best(checkpoints, progress, model)
                journal.record("valid", progress.step, **outcome.report(), best=progress.best_step)
            last = last or out_of_patience(progress, settings) or stopping
            if last or checkpoint_is_due(
                progress.step, ranks.from_first([time.monotonic() - last_save_s])[0], settings
            ):
                save_checkpoint(checkpoints, progress, model, optimiser, ranks, keep_last=settings.keep_last)
                last_save_s = time.monotonic()
            if stopping:
                journal.say(f"stopped at step {progress.step}; the same command resumes")
                stop.leave()
        batches.close()
        if ranks.is_first:
            finish(folder, config, progress)
        journal.say(f"finished: {folder / WEIGHTS} (best validation at step {progress.best_step})")
    return folder


def repeats_of(corpus: PreparedCorpus, config: RunConfig) -> tuple[float, ...]:
    """How often the rows of each corpus come in an epoch; empty for a single corpus."""
    text = config.data.train
    if not text.mix:
        return ()
    return corpus_repeats(corpus.info["corpora"], [one.weight for one in text.mix], text.temperature)


class Update(NamedTuple):
    """What one update did, over all ranks."""

    nll: float  # unsmoothed, summed over tokens
    target_tokens: int
    norm: float  # of the gradient before clipping


def update(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    group: list[Batch],
    rate: float,
    settings: TrainingConfig,
    ranks: Ranks,
) -> Update:
    """One update over a group of accumulated batches; every token of the group weighs the same, on whatever rank."""
    tokens = ranks.total(sum(batch.target_tokens for batch in group))
    nll = 0.0
    optimiser.zero_grad(set_to_none=True)
    for batch in group:
        # Ranks exchange gradients once, with the last batch of the group.
        waits = isinstance(model, DistributedDataParallel) and batch is not group[-1]
        with model.no_sync() if waits else nullcontext():  # type: ignore[operator]
            sums = batch_loss(model, batch, ranks.device, settings.label_smoothing)
            # × size, because the exchange takes the mean over ranks.
            (sums.smoothed * (ranks.size / tokens)).backward()  # type: ignore[no-untyped-call]
        nll += sums.nll.item()
    norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm).item()
    if math.isfinite(norm):  # else the update is skipped on every rank: weights and moments stay as they are
        for parameters in optimiser.param_groups:
            parameters["lr"] = rate
        optimiser.step()
    return Update(ranks.total(nll), int(tokens), norm)


def build_optimiser(model: nn.Module, settings: TrainingConfig) -> torch.optim.Optimizer:
    """Adam as the paper's; decoupled weight decay when asked for."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=settings.adam_betas,
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def start_from_folder(model: nn.Module, text: TextPipeline, folder: Path) -> None:
    """Fine-tuning: the weights of another model folder that shares the vocabulary."""
    other = read_folder_config(folder)
    if other.vocabulary.fingerprint != text.fingerprint:
        raise CapsNMTError(
            f"training.start_from: {folder} has another vocabulary than {text.fingerprint}; "
            "prepare the new corpus with its subword models (data.subwords_from)"
        )
    load_weights(model, read_weights(folder / WEIGHTS), str(folder))


def is_best(outcome: Validation, progress: Progress, settings: TrainingConfig) -> bool:
    """Notes a validation in `progress`; True if it beats all before it."""
    value = outcome.loss if settings.stop_metric == "loss" or outcome.bleu is None else -outcome.bleu
    best = math.inf if progress.best_value is None else progress.best_value
    if value < best:  # never true of NaN
        progress.best_value, progress.best_step, progress.bad_validations = value, progress.step, 0
        return True
    progress.bad_validations += 1
    return False


def out_of_patience(progress: Progress, settings: TrainingConfig) -> bool:
    """Early stopping."""
    return settings.patience is not None and progress.bad_validations >= settings.patience


def checkpoint_is_due(step: int, since_last_s: float, settings: TrainingConfig) -> bool:
    """By steps, by minutes, or both."""
    by_step = settings.checkpoint_every is not None and step % settings.checkpoint_every == 0
    return by_step or (settings.checkpoint_minutes is not None and since_last_s >= 60.0 * settings.checkpoint_minutes)


def finish(folder: Path, config: RunConfig, progress: Progress) -> None:
    """Writes the final weights: the average of the last checkpoints, or the best validation's."""
    checkpoints = folder / "checkpoints"
    best = best_weights(checkpoints)
    if config.training.average_last > 1 or best is None:
        chosen = [checkpoint_weights(path) for path in checkpoints_in(checkpoints)[-config.training.average_last :]]
    else:
        chosen = [best]
    save_weights(average_weights(chosen), folder / WEIGHTS)
    write_card(folder, config, progress, [path.parent.name for path in chosen])


def describe(model: nn.Module, config: RunConfig, num_pairs: int, ranks: Ranks, progress: Progress) -> str:
    """The first line of a run, and a second one if it makes other updates than the recipe says."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    where = f"{ranks.size} x {ranks.device.type}" if ranks.size > 1 else ranks.device.type
    threads = f", {torch.get_num_threads()} threads" if ranks.device.type == "cpu" else ""
    resumed = f", resumed at step {progress.step}" if progress.step else ""
    system, pair = config.model["system"], f"{config.languages.source}-{config.languages.target}"
    line = f"{system} {pair}: {parameters:,} parameters, {num_pairs:,} pairs, {where}{threads}{resumed}"
    batches = config.training.accumulate
    if ranks.size <= batches:
        return line
    return (
        f"{line}\nwarning: an update has {ranks.size} batches, one a device, not the {batches} of training.accumulate"
    )


class Meter:
    """Sums since the last report; validation time does not count.

    The sums of the loss are part of `progress`, so a report after a resumption covers all its updates; the speed is
    only that of this process.
    """

    def __init__(self, batches: BatchStream, progress: Progress) -> None:
        self._batches = batches
        self._progress = progress
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._tokens = 0
        self._start_s, self._start_wait_s = time.monotonic(), self._batches.wait_s

    def add(self, done: Update) -> None:
        """Counts one update."""
        self._progress.unreported_nll += done.nll
        self._progress.unreported_tokens += done.target_tokens
        self._tokens += done.target_tokens

    def exclude(self, elapsed_s: float) -> None:
        """Leaves out time that was not spent on training."""
        self._start_s += elapsed_s

    def flush(self) -> dict[str, float]:
        """Loss per token, target tokens per second and the share of time spent waiting for the data loader."""
        elapsed_s = max(1e-9, time.monotonic() - self._start_s)
        report = {
            "loss": self._progress.unreported_nll / max(1, self._progress.unreported_tokens),
            "tokens_per_s": self._tokens / elapsed_s,
            "loader_wait_share": (self._batches.wait_s - self._start_wait_s) / elapsed_s,
        }
        self._progress.unreported_nll, self._progress.unreported_tokens = 0.0, 0
        self._restart_clock()
        return report
