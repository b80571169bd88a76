"""What is done to traced graphs: the search's ends are put on, names are shortened, weights go into one shared file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from capsnmt.runtime.manifest import WEIGHTS_FILE, TensorRecord

Array = npt.NDArray[Any]

_ALIGNMENT = 64  # bytes: a cache line
_SMALL = 256  # bytes below which a tensor stays in its graph
_TYPES: dict[int, Any] = {
    TensorProto.FLOAT: "float",
    TensorProto.INT8: "int8",
    TensorProto.INT64: "int64",
    TensorProto.BOOL: "bool",
}


def tidied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Mends the exporter's ways: all constants become initializers under one name each, and masks can be counted."""
    graph = model.graph
    aliases: dict[str, str] = {}
    constants = {tensor.name for tensor in graph.initializer}
    booleans = {value.name for value in graph.input if value.type.tensor_type.elem_type == TensorProto.BOOL}
    ends = {value.name for value in graph.output}
    nodes = []
    for node in graph.node:
        for reader in (node, *inner_nodes(node)):
            for position, name in enumerate(reader.input):
                reader.input[position] = aliases.get(name, name)
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            constants.add(tensor.name)
        elif node.op_type == "Identity" and node.input[0] in constants and node.output[0] not in ends:
            aliases[node.output[0]] = node.input[0]
        else:
            if node.op_type == "CumSum" and node.input[0] in booleans:  # torch counts a mask's tokens, ONNX refuses
                counted = f"{node.output[0]}_counted"
                nodes.append(helper.make_node("Cast", [node.input[0]], [counted], to=TensorProto.INT64))
                node.input[0] = counted
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs inside a node, such as what a Loop repeats; their nodes may read any name from outside."""
    return [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]


def inner_nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """All nodes inside a node, at any depth."""
    for body in bodies(node):
        for inner in body.node:
            yield inner
            yield from inner_nodes(inner)


def step_graph(core: onnx.ModelProto) -> onnx.ModelProto:
    """`step` with its ends: states are gathered by `origins` first, the k best log-probs leave instead of logits."""
    model = _with_origins(core)
    graph = model.graph
    graph.input.extend([_int64("k", [1]), _int64("forced", ["rows"])])
    minus_one = _constant(graph, "minus_one", np.array([-1], dtype=np.int64))
    graph.node.extend(
        [
            helper.make_node("LogSoftmax", ["logits"], ["all_log_probs"], axis=-1),
            helper.make_node("TopK", ["all_log_probs", "k"], ["log_probs", "ids"], axis=-1, largest=1, sorted=1),
            helper.make_node("Unsqueeze", ["forced", minus_one], ["forced_column"]),
            helper.make_node("GatherElements", ["all_log_probs", "forced_column"], ["forced_found"], axis=1),
            helper.make_node("Squeeze", ["forced_found", minus_one], ["forced_log_probs"]),
        ]
    )
    ends = [
        _float("log_probs", ["rows", "k"]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", "k"]),
        _float("forced_log_probs", ["rows"]),
    ]
    return _with_outputs(model, ends)


def selection_graphs(core: onnx.ModelProto, vocabulary_size: int) -> tuple[onnx.ModelProto, onnx.ModelProto] | None:
    """`select` (words → their part of the output layer) and `step` on it; None if the last product is not a plain one.

    The words' rows are gathered once per sentence. `allowed` is 0 at a row's own words and -inf at others: sentences
    of a batch share one set of rows, but not their words.
    """
    step = onnx.ModelProto()
    step.CopyFrom(core)
    names = _output_layer(step.graph, vocabulary_size)
    if names is None:
        return None
    select = helper.make_model(
        helper.make_graph([], "select", [_int64("words", ["words"])], []),
        opset_imports=list(core.opset_import),
        ir_version=core.ir_version,
    )
    tensors = {tensor.name: tensor for tensor in step.graph.initializer}
    for name in names:
        array, short = numpy_helper.to_array(tensors[name]), f"selected.{len(select.graph.output)}"
        table = _constant(select.graph, f"{short}_table", np.ascontiguousarray(array.T))
        perm = list(range(array.ndim))[::-1]
        select.graph.node.append(helper.make_node("Gather", [table, "words"], [f"{short}_rows"], axis=0))
        select.graph.node.append(helper.make_node("Transpose", [f"{short}_rows"], [short], perm=perm))
        value = helper.make_tensor_value_info(short, tensors[name].data_type, [*array.shape[:-1], "words"])
        select.graph.output.append(value)
        step.graph.input.append(value)
        step.graph.initializer.remove(tensors[name])
        for node in step.graph.node:
            for position, read in enumerate(node.input):
                if read == name:
                    node.input[position] = short
    for node in step.graph.node:
        for position, name in enumerate(node.output):
            if name == "logits":
                node.output[position] = "all_logits"
    step.graph.input.append(_float("allowed", ["rows_or_1", "words"]))
    step.graph.node.append(helper.make_node("Add", ["all_logits", "allowed"], ["logits"]))
    return select, step_graph(step)


def _output_layer(graph: onnx.GraphProto, vocabulary_size: int) -> list[str] | None:
    """The constants, (…, vocabulary), of the product that `logits` come from and of what follows it."""
    constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    found: list[str] = []
    name = "logits"
    while name in makers:
        node = makers[name]
        found += [read for read in node.input if constants.get(read, ())[-1:] == (vocabulary_size,)]
        if node.op_type in ("MatMul", "MatMulInteger", "MatMulIntegerToFloat"):
            return found
        is_plain = node.op_type in ("Cast", "Squeeze", "Mul", "Add") or (node.op_type == "Gather" and _axis(node) == 1)
        if not is_plain:
            return None
        following = [read for read in node.input if read in makers]
        # A scale of rows hangs beside the product; the longer way leads to it.
        name = following[0] if following else ""
    return None


def step_all_graph(core: onnx.ModelProto) -> onnx.ModelProto:
    """`step` that gives the log-probs of the whole vocabulary."""
    model = _with_origins(core)
    model.graph.node.append(helper.make_node("LogSoftmax", ["logits"], ["all_log_probs"], axis=-1))
    return _with_outputs(model, [_float("all_log_probs", ["rows", "vocabulary"])])


def _with_origins(core: onnx.ModelProto) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(core)
    graph = model.graph
    states = [value.name for value in graph.input if value.name.startswith("state.")]
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in states:
                node.input[position] = f"own_{name}"
    for number, name in enumerate(states):
        graph.node.insert(number, helper.make_node("Gather", [name, "origins"], [f"own_{name}"], axis=0))
    for value in graph.input:  # the states of the step before have rows of their own
        if value.name in states:
            value.type.tensor_type.shape.dim[0].dim_param = "previous_rows"
    graph.input.insert(1, _int64("origins", ["rows"]))
    return model


def with_logits_in_place(model: onnx.ModelProto, sample: dict[str, Array]) -> onnx.ModelProto:
    """Models take position 0 of the one position of a step: as a gather, that would copy all logits.

    Whether there is one position alone is seen on a sample of the inputs.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers["logits"]
    node = makers.get(node.input[0], node) if node.op_type == "Cast" else node
    index = next((tensor for tensor in model.graph.initializer if tensor.name == node.input[-1]), None)
    if node.op_type != "Gather" or _axis(node) != 1 or index is None or numpy_helper.to_array(index).tolist() != 0:
        return model
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.append(helper.make_empty_tensor_value_info(node.input[0]))
    session = ort.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    read = {value.name: sample[value.name] for value in session.get_inputs()}  # a step may not need all of its memory
    if session.run([node.input[0]], read)[0].shape[1] == 1:
        axes = _constant(model.graph, "logits_axes", np.array([1], dtype=np.int64))
        node.CopyFrom(helper.make_node("Squeeze", [node.input[0], axes], list(node.output)))
    return model


def _axis(node: onnx.NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)


def _with_outputs(model: onnx.ModelProto, ends: Iterable[onnx.ValueInfoProto]) -> onnx.ModelProto:
    states = [value for value in model.graph.output if value.name != "logits"]
    del model.graph.output[:]
    model.graph.output.extend([*ends, *states])
    return model


def _int64(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def _float(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _constant(graph: onnx.GraphProto, name: str, value: Array) -> str:
    graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def tensor_records(values: Iterable[onnx.ValueInfoProto]) -> dict[str, TensorRecord]:
    """Names, types and shapes of a graph's inputs or outputs, for the manifest."""
    records = {}
    for value in values:
        tensor = value.type.tensor_type
        shape = tuple(size.dim_param or size.dim_value for size in tensor.shape.dim)
        records[value.name] = TensorRecord(type=_TYPES[tensor.elem_type], shape=shape)
    return records


def shortened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph without the names and remarks of the exporter, which would be a third of a small file."""
    kept = {value.name for value in (*model.graph.input, *model.graph.output)} | {""}
    _shorten(model.graph, {name: name for name in kept})
    model.graph.name = "capsnmt"
    return model


def _shorten(graph: onnx.GraphProto, new: dict[str, str]) -> None:
    for value in (*graph.input, *graph.output):
        value.name = new.setdefault(value.name, f"t{len(new)}")
    for tensor in graph.initializer:
        tensor.name = new.setdefault(tensor.name, f"w{len(new)}")
        tensor.doc_string = ""
    for node in graph.node:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = new.setdefault(name, f"t{len(new)}")
        for body in bodies(node):
            _shorten(body, new)
        node.name = node.doc_string = ""
        node.ClearField("metadata_props")
    graph.doc_string = ""
    graph.ClearField("value_info")


class SharedWeights:
    """Collects the large tensors of several graphs; equal ones are kept once, also where one is another's transpose."""

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}  # content → where it lies
        self._shapes: set[tuple[int, ...]] = set()
        self._pieces: list[bytes] = []
        self._size = 0

    def take_from(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Moves the weights of a graph into the shared file; ONNX Runtime transposes back once, when it loads."""
        graph = model.graph
        transposes = []
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.nbytes < _SMALL:
                continue
            if self._is_transpose(array):
                node = helper.make_node("Transpose", [f"{tensor.name}_transposed"], [tensor.name], perm=[1, 0])
                transposes.append(node)
                array, tensor.name = array.T, f"{tensor.name}_transposed"
            self._move(tensor, np.ascontiguousarray(array))
        for node in transposes:
            graph.node.insert(0, node)
        return model

    def write(self, runtime: Path) -> None:
        """Writes the file that all graphs refer to."""
        temporary = runtime / f".writing-{WEIGHTS_FILE}"
        with temporary.open("wb") as file:
            file.writelines(self._pieces)
        temporary.replace(runtime / WEIGHTS_FILE)

    def _key(self, array: Array) -> str:
        content = np.ascontiguousarray(array)
        digest = hashlib.sha256(f"{content.dtype} {content.shape}".encode())
        digest.update(content.data)
        return digest.hexdigest()

    def _is_transpose(self, array: Array) -> bool:
        """Of something that is there, and not there itself."""
        if array.ndim != 2 or array.shape[::-1] not in self._shapes:
            return False
        return self._key(array.T) in self._offsets and self._key(array) not in self._offsets

    def _move(self, tensor: onnx.TensorProto, array: Array) -> None:
        key = self._key(array)
        if key not in self._offsets:
            self._offsets[key] = self._size
            self._shapes.add(array.shape)
            padding = -array.nbytes % _ALIGNMENT
            self._pieces.append(array.tobytes() + b"\0" * padding)
            self._size += array.nbytes + padding
        name, kind = tensor.name, tensor.data_type
        tensor.Clear()
        tensor.name, tensor.data_type = name, kind
        tensor.dims.extend(array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": WEIGHTS_FILE, "offset": self._offsets[key], "length": array.nbytes}
        for entry_key, value in entries.items():
            entry = tensor.external_data.add()
            entry.key, entry.value = entry_key, str(value)
