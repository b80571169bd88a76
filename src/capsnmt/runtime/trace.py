"""From any system of the contract to ONNX graphs in fp32: what the model computes, nothing of the search yet.

torch's TorchScript exporter is used, because it keeps an LSTM one node with a free time axis; the newer one unrolls it
or freezes its length. Which axes are free is found out by running the model at two sizes.
"""

from __future__ import annotations

import io
import warnings
from typing import NamedTuple

import onnx
import torch
from torch import Tensor, nn

from capsnmt.models.contract import TranslationModel
from capsnmt.runtime.graphs import tidied, with_logits_in_place
from capsnmt.runtime.manifest import ENCODE, ENCODE_ROUTING, STEP
from capsnmt.text.subwords import BOS

OPSET = 17
FIRST_ID = 4  # after the special ids

Tensors = dict[str, Tensor]


class Sample(NamedTuple):
    """Tensors of one small batch: the encoder's inputs and outputs, and a step's."""

    source: Tensors
    memory: Tensors
    start: Tensors  # the state before the first token
    tokens: Tensor
    state: Tensors  # the state before some later token
    new_state: Tensors


class _Encode(nn.Module):
    def __init__(self, model: TranslationModel, *, routing: bool) -> None:
        super().__init__()
        self.model, self.routing = model, routing

    def forward(self, src: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        memory = self.model.encode(src, mask)
        found = (*memory.values(), *self.model.start(memory).values())
        # An output that is an input as it came would be no node of the graph.
        found = tuple(tensor.clone() for tensor in found)
        return (*found, _routing(self.model, src, mask)) if self.routing else found


def _routing(model: TranslationModel, src: Tensor, mask: Tensor) -> Tensor:
    coefficients = model.routing(src, mask)
    assert coefficients is not None
    return coefficients


class _Step(nn.Module):
    def __init__(self, model: TranslationModel, memory: list[str], state: list[str]) -> None:
        super().__init__()
        self.model, self.memory, self.state = model, memory, state

    def forward(self, tokens: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        memory = dict(zip(self.memory, tensors, strict=False))
        state = dict(zip(self.state, tensors[len(self.memory) :], strict=True))
        logits, new_state = self.model.step(tokens, memory, state)
        return (logits.float(), *(new_state[name] for name in self.state))


def trace(model: TranslationModel, *, source_size: int) -> dict[str, onnx.ModelProto]:
    """The graphs `encode`, `step` (ending in logits) and, where the model routes, `encode_routing`."""
    model = model.eval()
    with torch.no_grad():
        # No size occurs twice, so that an axis cannot be taken for another one.
        small = _sample(model, source_size, batch=2, length=5, position=1)
        large = _sample(model, source_size, batch=3, length=7, position=4)
        graphs = {
            ENCODE: _trace_encoder(model, small, large, routing=False),
            STEP: _trace_step(model, small, large),
        }
        if model.routing(large.source["src"], large.source["mask"]) is not None:
            graphs[ENCODE_ROUTING] = _trace_encoder(model, small, large, routing=True)
    return graphs


def _sample(model: TranslationModel, source_size: int, *, batch: int, length: int, position: int) -> Sample:
    generator = torch.Generator().manual_seed(length)
    src = torch.randint(min(FIRST_ID, source_size - 1), source_size, (batch, length), generator=generator)
    mask = torch.arange(length)[None] < torch.tensor([max(1, length - 2 * row) for row in range(batch)])[:, None]
    memory = model.encode(src, mask)
    start = state = model.start(memory)
    tokens = torch.full((batch,), BOS)
    for _ in range(position):
        _, state = model.step(tokens, memory, state)
    _, new_state = model.step(tokens, memory, state)
    return Sample({"src": src, "mask": mask}, memory, start, tokens, state, new_state)


def _trace_encoder(model: TranslationModel, small: Sample, large: Sample, *, routing: bool) -> onnx.ModelProto:
    outputs = [_prefixed("memory", each.memory) | _prefixed("state", each.start) for each in (small, large)]
    if routing:
        for found, each in zip(outputs, (small, large), strict=True):
            found["routing"] = _routing(model, each.source["src"], each.source["mask"])
    return _export(_Encode(model, routing=routing), (small.source, large.source), (outputs[0], outputs[1]))


def _trace_step(model: TranslationModel, small: Sample, large: Sample) -> onnx.ModelProto:
    inputs = [
        {"tokens": each.tokens, **_prefixed("memory", each.memory), **_prefixed("state", each.state)}
        for each in (small, large)
    ]
    outputs = [
        {"logits": each.tokens.new_zeros(len(each.tokens), 1), **_prefixed("new_state", each.new_state)}
        for each in (small, large)
    ]
    module = _Step(model, list(large.memory), list(large.state))
    graph = _export(module, (inputs[0], inputs[1]), (outputs[0], outputs[1]))
    return with_logits_in_place(graph, {name: tensor.numpy() for name, tensor in inputs[0].items()})


def _prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _export(module: nn.Module, inputs: tuple[Tensors, Tensors], outputs: tuple[Tensors, Tensors]) -> onnx.ModelProto:
    """Traces at the second size; an axis that differs between the two sizes is free."""
    free = {
        name: {axis: f"{name}.{axis}" if axis else "rows" for axis in range(b.dim()) if a.size(axis) != b.size(axis)}
        for small, large in (inputs, outputs)
        for (name, a), b in zip(small.items(), large.values(), strict=True)
    }
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sizes that Python sees are warned about; the tests run other sizes
        torch.onnx.export(
            module.eval(),
            tuple(inputs[1].values()),
            file,  # type: ignore[arg-type]  # torch writes to any file, its types say paths only
            input_names=list(inputs[1]),
            output_names=list(outputs[1]),
            dynamic_axes=free,
            opset_version=OPSET,
            dynamo=False,
        )
    return tidied(onnx.load_from_string(file.getvalue()))
