"""`capsnmt plan`: hours, memory and disk of preparing, training, distilling and serving a recipe, from a few figures.

Operations are counted, not guessed: the model is built without memory (torch's meta device) and torch counts what a
short sentence takes, per source and per target token. docs/SCALING.md explains every line.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from capsnmt.config import RunConfig
from capsnmt.data.corpus import files_of, names_of, open_binary
from capsnmt.distillation import beam_for
from capsnmt.errors import CapsNMTError
from capsnmt.models import build_model
from capsnmt.models.contract import TranslationModel
from capsnmt.planning import figures
from capsnmt.planning.figures import CorpusFigures, Device
from capsnmt.training.loss import label_smoothed_loss

_COUNTED_LENGTH = 8  # of the sentence whose operations are counted; only attention's own products grow with it
_COUNTED_CHARACTERS = 140  # the same in characters, as long as WMT14's are: ByteNet pads a source to a multiple of 50
_STORE_INFO = "store.json"
_WITHOUT_RECURRENCE = {"transformer", "convs2s", "bytenet"}


@dataclass(frozen=True)
class ModelCosts:
    """What the model of a recipe takes, per token of a side."""

    parameters: int
    encoder_flops: float  # forward, per source token
    decoder_flops: float  # forward, per target token, softmax included
    saved_bytes: float  # kept for the backward pass, per token of each side
    update_bytes: float  # kept for it once an update
    logits_bytes: float  # per target token

    @property
    def training_flops(self) -> float:
        """Per token of each side: the backward pass takes two products for each of the forward pass."""
        return 3.0 * (self.encoder_flops + self.decoder_flops)


@dataclass(frozen=True)
class Plan:
    """The answers, in seconds and bytes; `lines` shows how they came about."""

    pairs: int
    prepare_cpu_s: float
    training_s: float
    training_bytes: float  # of memory, per device
    fits: bool  # whether a device has as much
    store_bytes: float
    model_bytes: float  # of the model folder
    distilling_s: float
    journal_bytes: float  # of a distillation, until its corpus is accepted
    devices_to_serve: int  # a billion characters a day
    serving_bytes: float  # of memory, per process
    runtime_bytes: float  # of disk, int8
    lines: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def plan(config: RunConfig, devices: str, *, pairs: int | None = None, candidates: int = 1) -> Plan:
    """What a recipe costs on such devices, as in `8xM40`; as a teacher it writes so many candidates for a line."""
    count, device = figures.parse_devices(devices)
    corpus = corpus_figures(config, pairs)
    costs = model_costs(config)
    lines = [
        f"{count} x {device.name}: {device.fp32_flops / 1e12:.3g} Tflop/s in fp32, {device.bf16_flops / 1e12:.3g} in "
        f"bf16 ({device.source})",
        f"corpus: {corpus.pairs:,} pairs, {corpus.source_tokens:.1f} + {corpus.target_tokens:.1f} subwords and "
        f"{corpus.text_bytes:.0f} bytes each ({corpus.source})",
        f"model: {costs.parameters:,} parameters; forward {costs.encoder_flops / 1e6:.3g} Mflop per source token, "
        f"{costs.decoder_flops / 1e6:.3g} per target token",
    ]
    prepare_cpu_s, store_bytes = _preparing(corpus, lines)
    training_s = _training_time(config, costs, corpus, count, device, lines)
    training_bytes = _training_memory(config, costs, count, device, lines)
    model_bytes = _model_folder(config, costs, lines)
    distilling_s, journal_bytes = _distilling(config, costs, corpus, count, device, candidates, lines)
    to_serve = _serving(config, costs, corpus, device, lines)
    runtime_bytes, serving_bytes = _serving_room(costs, lines)
    return Plan(
        pairs=corpus.pairs,
        prepare_cpu_s=prepare_cpu_s,
        training_s=training_s,
        training_bytes=training_bytes,
        fits=training_bytes <= device.memory_bytes,
        store_bytes=store_bytes,
        model_bytes=model_bytes,
        distilling_s=distilling_s,
        journal_bytes=journal_bytes,
        devices_to_serve=to_serve,
        serving_bytes=serving_bytes,
        runtime_bytes=runtime_bytes,
        lines=lines,
    )


def model_costs(config: RunConfig) -> ModelCosts:
    """Counts on sentences of tensors that have a shape and no content."""
    subwords = config.text.subwords
    sizes = subwords.size_of("source"), subwords.size_of("target")
    length = _COUNTED_CHARACTERS if subwords.type == "char" else _COUNTED_LENGTH
    return _model_costs(json.dumps(config.model), sizes, config.training.label_smoothing, length)


@functools.cache
def _model_costs(section: str, sizes: tuple[int, int], label_smoothing: float, length: int) -> ModelCosts:
    with torch.device("meta"):
        model = build_model(json.loads(section), source_size=sizes[0], target_size=sizes[1]).train()
        ids = torch.zeros(1, length, dtype=torch.long)
        mask = torch.ones(1, length, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter:
        model.encode(ids, mask)
    encoder_flops = counter.get_total_flops() / length
    with FlopCounterMode(display=False) as counter:
        one = _kept_for_backward(model, ids, mask, label_smoothing)
    # What a second sentence adds: some tensors are kept once an update, such as weights that are normalised in it.
    two = _kept_for_backward(model, ids.expand(2, -1), mask.expand(2, -1), label_smoothing)
    return ModelCosts(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        encoder_flops=encoder_flops,
        decoder_flops=counter.get_total_flops() / length - encoder_flops,
        saved_bytes=(two - one) / length,
        update_bytes=max(0.0, 2 * one - two),
        logits_bytes=4.0 * sizes[1],
    )


def _kept_for_backward(model: TranslationModel, ids: Tensor, mask: Tensor, label_smoothing: float) -> float:
    """Bytes that autograd keeps of the forward pass, besides the parameters."""
    saved: dict[int, int] = {}
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(ids, mask, ids)
        loss = label_smoothed_loss(logits, ids, mask, label_smoothing)  # keeps the graph, and so the storages, alive
    del loss
    return float(sum(saved.values()))


def corpus_figures(config: RunConfig, pairs: int | None) -> CorpusFigures:
    """From the store where there is one, else from the corpus's name; `pairs` takes the place of a number of pairs."""
    data = config.data
    if (Path(data.store) / _STORE_INFO).is_file():
        found = _figures_of_store(Path(data.store))
    else:
        known = data.fetch or Path(data.store).parent.name
        found = figures.CORPORA.get(known) or _figures_of_files(config) or figures.UNKNOWN_CORPUS
        if config.text.subwords.type == "char":  # about as many as bytes, and the end of the sentence
            characters = found.text_bytes / 2 + 1
            found = replace(found, source_tokens=characters, target_tokens=characters)
    if pairs is not None:
        found = replace(found, pairs=pairs, source=f"--pairs; {found.source}")
    if found.pairs == 0:
        names = ", ".join(name for text in data.train.corpora for name in names_of(text))
        raise CapsNMTError(
            f"the size of the corpus is unknown: {data.store} is not prepared, and {names} not in {data.root}; name "
            "the folder of the corpora (data.root, of a suite --data), or add --pairs N"
        )
    return found


def _figures_of_files(config: RunConfig) -> CorpusFigures | None:
    """Lines and bytes of the training files, if all of them are there."""
    data = config.data
    sides = [files_of(text, data.root) for text in data.train.corpora]
    if not all(file.is_file() for files in sides for file in files):
        return None
    pairs = sum(_lines_and_bytes(files[0])[0] for files in sides)
    if pairs == 0:
        return None
    text_bytes = sum(_lines_and_bytes(file)[1] for files in sides for file in files) / pairs
    tokens = text_bytes / figures.UNKNOWN_CORPUS.text_bytes * figures.UNKNOWN_CORPUS.source_tokens
    return CorpusFigures(pairs, tokens, tokens, text_bytes, "its lines; bytes of a subword assumed")


@functools.cache  # the runs of a suite share their corpus
def _lines_and_bytes(file: Path) -> tuple[int, int]:
    with open_binary(file) as stream:
        lines = size = 0
        for line in stream:
            lines, size = lines + 1, size + len(line)
    return lines, size


def _figures_of_store(folder: Path) -> CorpusFigures:
    from capsnmt.data.prepare import load_store

    corpus = load_store(folder)
    lengths = corpus.train.lengths(0)
    sample = range(0, len(lengths.source), max(1, len(lengths.source) // 2000))
    texts = [corpus.train.source_text(row) + corpus.train.target_text(row) for row in sample]
    return CorpusFigures(
        pairs=len(corpus.train),
        source_tokens=float(lengths.source.mean()),
        target_tokens=float(lengths.target.mean()),
        text_bytes=sum(len(text.encode("utf-8")) for text in texts) / len(texts),
        source=str(folder / _STORE_INFO),
    )


def _preparing(corpus: CorpusFigures, lines: list[str]) -> tuple[float, float]:
    pair_s = figures.PREPARE_PAIR_S + corpus.text_bytes * figures.PREPARE_BYTE_S
    cpu_s = corpus.pairs * pair_s
    ids = 4.0 * (corpus.source_tokens + corpus.target_tokens)
    offsets = 4.0 * 4 + 1  # of four columns, and the number of the corpus
    pair_bytes = corpus.text_bytes + ids + offsets
    store_bytes = corpus.pairs * pair_bytes
    waiting_bytes = corpus.pairs * (corpus.text_bytes + 17.0)
    lines += [
        f"preparing: {corpus.pairs:,} pairs x ({figures.PREPARE_PAIR_S * 1e6:.3g} us + {corpus.text_bytes:.0f} bytes "
        f"of text x {figures.PREPARE_BYTE_S * 1e6:.3g} us) = {hours(cpu_s)} of one core",
        f"store: {corpus.pairs:,} pairs x ({corpus.text_bytes:.0f} bytes of text + {ids:.0f} of ids + {offsets:.0f} of "
        f"offsets) = "
        f"{store_bytes / figures.GB:.3g} GB, and {waiting_bytes / figures.GB:.3g} GB more until it is ready",
    ]
    return cpu_s, store_bytes


def share_of_peak(config: RunConfig, device: Device) -> float:
    """The part of a device's peak that training reaches; on a CPU decoding too, if its batches are large."""
    if device.is_cpu:
        width = float(config.model.get("width", 512))
        return width / (width + figures.CPU_HALF_PEAK_WIDTH)
    recurrent = config.model["system"] not in _WITHOUT_RECURRENCE
    share = figures.GPU_RECURRENT_TRAINING_SHARE if recurrent else figures.GPU_TRAINING_SHARE
    return share * figures.GPU_BF16_SHARE if config.training.bf16_modules else share


def _training_time(
    config: RunConfig, costs: ModelCosts, corpus: CorpusFigures, count: int, device: Device, lines: list[str]
) -> float:
    training = config.training
    batches = max(training.accumulate, count)
    tokens = batches * training.batch_tokens * figures.PADDING_FILL
    share = share_of_peak(config, device)
    peak = device.bf16_flops if training.bf16_modules else device.fp32_flops
    rounds = math.ceil(batches / count)  # batches that the busiest device takes
    compute_s = rounds * training.batch_tokens * costs.training_flops / (peak * share)
    exchange_s = 2 * 4.0 * costs.parameters * (count - 1) / count / device.link_bytes_per_s
    total_s = training.steps * (compute_s + exchange_s)
    lines += [
        f"an update: {batches} batches of {training.batch_tokens} tokens a side, {rounds} for the busiest device: "
        f"{rounds} x {training.batch_tokens} tokens x {costs.training_flops / 1e6:.3g} Mflop / ({peak / 1e12:.3g} "
        f"Tflop/s x {share:.2f} of the peak) = {compute_s:.3g} s",
        f"exchange of gradients: 2 x 4 bytes x {_millions(costs)} x {count - 1}/{count} / "
        f"{device.link_bytes_per_s / figures.GB:.3g} GB/s of the link = {exchange_s:.2g} s an update",
        f"training: {training.steps:,} updates x {compute_s + exchange_s:.3g} s = {hours(total_s)} on {count} "
        f"{device.name} ({tokens / (compute_s + exchange_s):,.0f} target tokens/s; "
        f"{training.steps * tokens / (corpus.pairs * max(corpus.source_tokens, corpus.target_tokens)):.3g} epochs)",
    ]
    return total_s


def _training_memory(config: RunConfig, costs: ModelCosts, count: int, device: Device, lines: list[str]) -> float:
    # Weights, gradients and Adam's two moments in fp32; several ranks exchange gradients through a copy of them.
    process, state_bytes, factor = figures.GPU_PROCESS_BYTES, 16, 1.0
    if device.is_cpu:
        process, state_bytes = figures.CPU_PROCESS_BYTES, figures.CPU_STATE_BYTES
        factor = figures.CPU_ALLOCATOR_FACTOR
    state_bytes += 4 if count > 1 else 0
    activations = costs.update_bytes + config.training.batch_tokens * (costs.saved_bytes + 2 * costs.logits_bytes)
    total = process + state_bytes * costs.parameters + factor * activations
    fits = "" if total <= device.memory_bytes else f": MORE than the {device.memory_bytes / figures.GB:.3g} GB it has"
    states = "weights, gradients, two moments" + (", and what passes" if device.is_cpu else "")
    states += ", gradient buckets" if count > 1 else ""
    lines.append(
        f"memory of a device: {process / figures.GB:.2g} GB + {state_bytes} bytes x {_millions(costs)} ({states}) + "
        f"({config.training.batch_tokens} tokens x {(costs.saved_bytes + 2 * costs.logits_bytes) / 1e3:.0f} KB + "
        f"{costs.update_bytes / figures.GB:.2g} GB)"
        f"{f' x {factor} for the allocator' if factor != 1.0 else ''} = {total / figures.GB:.3g} GB{fits}"
    )
    return total


def _model_folder(config: RunConfig, costs: ModelCosts, lines: list[str]) -> float:
    kept = config.training.keep_last
    total = 4.0 * costs.parameters * (3 * kept + 2)
    lines.append(
        f"model folder: 4 bytes x {_millions(costs)} x (3 for each of {kept} checkpoints + the best + the final "
        f"weights) = {total / figures.GB:.3g} GB"
    )
    return total


def _distilling(
    config: RunConfig,
    costs: ModelCosts,
    corpus: CorpusFigures,
    count: int,
    device: Device,
    candidates: int,
    lines: list[str],
) -> tuple[float, float]:
    beam = beam_for(candidates)
    sentence_s = _sentence(config, costs, corpus, device, f"{beam} of `distill`", beam, lines)
    total_s = corpus.pairs * sentence_s / count
    record_bytes = candidates * (corpus.text_bytes / 2 + figures.JOURNAL_BYTES)
    journal_bytes = corpus.pairs * record_bytes
    lines += [
        f"distilling: {corpus.pairs:,} sentences x {sentence_s * 1e3:.3g} ms / {count} {device.name} = "
        f"{hours(total_s)}; {corpus.pairs * corpus.text_bytes / figures.GB:.3g} GB of text",
        f"its journal: {corpus.pairs:,} x {record_bytes:.0f} bytes (a translation and its score) = "
        f"{journal_bytes / figures.GB:.3g} GB more",
    ]
    return total_s, journal_bytes


def _sentence(
    config: RunConfig,
    costs: ModelCosts,
    corpus: CorpusFigures,
    device: Device,
    beam_name: str,
    beam: int,
    lines: list[str],
) -> float:
    """Seconds of a device for one sentence, in large batches."""
    flops = corpus.source_tokens * costs.encoder_flops + beam * corpus.target_tokens * costs.decoder_flops
    share = share_of_peak(config, device) if device.is_cpu else figures.GPU_DECODING_SHARE
    search_s = beam * corpus.target_tokens * figures.CPU_SEARCH_S if device.is_cpu else 0.0
    sentence_s = flops / (device.fp32_flops * share) + search_s
    lines.append(
        f"a sentence with beam {beam_name}: {corpus.source_tokens:.1f} tokens x {costs.encoder_flops / 1e6:.3g} Mflop "
        f"+ {beam} x {corpus.target_tokens:.1f} tokens x {costs.decoder_flops / 1e6:.3g} Mflop = {flops / 1e9:.3g} "
        f"Gflop, at {share:.2f} of the peak, and {search_s * 1e3:.3g} ms of search: {sentence_s * 1e3:.3g} ms of a "
        f"{device.name}"
    )
    return sentence_s


def _serving(config: RunConfig, costs: ModelCosts, corpus: CorpusFigures, device: Device, lines: list[str]) -> int:
    beam = config.decoding.beam
    sentence_s = _sentence(config, costs, corpus, device, f"{beam} of decoding.beam", beam, lines)
    sentences_per_s = 1e9 / (corpus.text_bytes / 2) / 86_400
    count = math.ceil(sentences_per_s * sentence_s / figures.SERVING_LOAD)
    lines.append(
        f"serving 1e9 characters a day: {sentences_per_s:.0f} sentences/s x {sentence_s * 1e3:.3g} ms / load "
        f"{figures.SERVING_LOAD} = {count} x {device.name}"
    )
    return count


def _serving_room(costs: ModelCosts, lines: list[str]) -> tuple[float, float]:
    runtime_bytes = figures.INT8_BYTES * costs.parameters
    memory_bytes = figures.SERVING_PROCESS_BYTES + figures.INT8_LOADED_FACTOR * runtime_bytes
    lines.append(
        f"a server: int8 runtime of {figures.INT8_BYTES} bytes x {_millions(costs)} = {runtime_bytes / figures.GB:.2g} "
        f"GB of disk; {figures.SERVING_PROCESS_BYTES / figures.GB:.2g} GB + {figures.INT8_LOADED_FACTOR:.0f} x "
        f"{runtime_bytes / figures.GB:.2g} GB = {memory_bytes / figures.GB:.2g} GB of memory a process"
    )
    return runtime_bytes, memory_bytes


def _millions(costs: ModelCosts) -> str:
    return f"{costs.parameters / 1e6:.1f} M parameters"


def hours(seconds: float) -> str:
    """Minutes, hours or days, whichever is readable."""
    if seconds < 7200:
        return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.1f} s"
    return f"{seconds / 3600:.1f} h" if seconds < 72 * 3600 else f"{seconds / 86_400:.1f} days"
