"""int8 graphs from fp32 ones: weights scaled per output channel, activations per row.

A row's scale is made of that row alone, so a sentence's result does not depend on the sentences beside it, as it would
with ONNX Runtime's own dynamic quantisation, whose one scale per tensor is everybody's. Activations are unsigned with
the constant zero point 128, for which ONNX Runtime has fast kernels. Weights use 7 of their 8 bits: CPUs without VNNI
add two products in 16 bits, and 2 * 255 * 63 still fits. So the result is the same on every CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from capsnmt.runtime.graphs import inner_nodes

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

WEIGHT_MAX = 63  # 7 bits with a sign
ROW_MAX = 127.0
ZERO_POINT = 128
TINY = np.float32(1e-20)  # a row of zeros has a scale, too
WIDE = 4096  # columns from which on scaling in nodes of their own is faster than ONNX Runtime's fused product
MICROSOFT = "com.microsoft"


def quantised(model: onnx.ModelProto, *, is_step: bool) -> onnx.ModelProto:
    """A graph with int8 weights. `is_step`: every LSTM of it sees one token, so it is two products and its gates."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    rewriter = _Rewriter(made.graph, is_step=is_step)
    rewriter.run()
    if MICROSOFT not in {entry.domain for entry in made.opset_import}:
        made.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return made


def quantise_columns(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """(K, N) → 7-bit integers and the scale of each column, (N,)."""
    scale = np.maximum(np.abs(weight).max(axis=0) / WEIGHT_MAX, TINY).astype(np.float32)
    integers = np.clip(np.round(weight / scale), -WEIGHT_MAX, WEIGHT_MAX).astype(np.int8)
    return integers, scale


class _Rewriter:
    """Goes through a graph once and replaces the nodes that read a constant weight."""

    def __init__(self, graph: onnx.GraphProto, *, is_step: bool) -> None:
        self.graph = graph
        self.is_step = is_step
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.nodes: list[onnx.NodeProto] = []
        self.made: dict[str, onnx.TensorProto] = {}
        self.rows: dict[str, tuple[str, str]] = {}  # activation → its integers and scales, made once
        self.count = 0
        self._activation_scale = self._constant(np.float32(1.0 / ROW_MAX), "activation")
        self._zero_point = self._constant(np.uint8(ZERO_POINT), "zero_point")

    def run(self) -> None:
        """Rewrites the graph in place."""
        rewrite: dict[str, Callable[[onnx.NodeProto], bool]] = {
            "Gather": self._gather,
            "MatMul": self._matmul,
            "Gemm": self._gemm,
            "LSTM": self._cell if self.is_step else self._lstm,
            "GRU": self._lstm,
            "Loop": self._loop,
        }
        for node in self.graph.node:
            if node.op_type not in rewrite or not rewrite[node.op_type](node):
                self.nodes.append(node)
        read = {name for node in self.nodes for each in (node, *inner_nodes(node)) for name in each.input}
        kept = [tensor for tensor in self.graph.initializer if tensor.name in read]
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        del self.graph.initializer[:]
        self.graph.initializer.extend([*kept, *self.made.values()])

    # What is rewritten. Each returns False for a node that stays as it is.

    def _gather(self, node: onnx.NodeProto) -> bool:
        """An embedding table: rows are scaled one by one, as columns of the output layer that shares the table are."""
        table = self._weight(node.input[0])
        if table is None or any(attribute.name == "axis" and attribute.i for attribute in node.attribute):
            return False
        integers, scale = quantise_columns(table.T)
        rows = self._add("Gather", [self._constant(integers.T, "table"), node.input[1]], axis=0)
        scales = self._add("Gather", [self._constant(scale[:, None], "scale"), node.input[1]], axis=0)
        self._add("Mul", [self._add("Cast", [rows], to=onnx.TensorProto.FLOAT), scales], node.output[0])
        return True

    def _matmul(self, node: onnx.NodeProto) -> bool:
        weight = self._weight(node.input[1])
        if weight is None:
            return False
        self._product(node.input[0], weight, node.output[0])
        return True

    def _gemm(self, node: onnx.NodeProto) -> bool:
        weight = self._weight(node.input[1])
        settings = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if (
            weight is None
            or settings.get("transA", 0)
            or {settings.get(name, 1.0) for name in ("alpha", "beta")} != {1.0}
        ):
            return False
        weight = weight.T if settings.get("transB", 0) else weight
        if len(node.input) < 3:
            self._product(node.input[0], weight, node.output[0])
        else:
            self._add("Add", [self._product(node.input[0], weight), node.input[2]], node.output[0])
        return True

    def _lstm(self, node: onnx.NodeProto) -> bool:
        """Over time: int8 in the file, fp32 arithmetic on weights that are scaled back once, when they are loaded."""
        for position in (1, 2):
            weight = self._constant_value(node.input[position])
            if weight is None or weight.dtype != np.float32:
                return False
            integers, scale = quantise_columns(weight[0].T)  # (1, gates * hidden, inputs), one direction
            stored = self._constant(np.ascontiguousarray(integers.T)[None], "lstm")
            as_float = self._add("Cast", [stored], to=onnx.TensorProto.FLOAT)
            node.input[position] = self._add("Mul", [as_float, self._constant(scale[None, :, None], "scale")])
        return False

    def _loop(self, node: onnx.NodeProto) -> bool:
        """A recurrence that ONNX has no node for: what it reads over and over is stored as an LSTM's weights are."""
        for inner in inner_nodes(node):
            weight = self._weight(inner.input[1]) if inner.op_type == "MatMul" else None
            if weight is not None:
                integers, scale = quantise_columns(weight)
                as_float = self._add("Cast", [self._constant(integers, "loop")], to=onnx.TensorProto.FLOAT)
                inner.input[1] = self._add("Mul", [as_float, self._constant(scale, "scale")])
        return False

    def _cell(self, node: onnx.NodeProto) -> bool:
        """One token: gates = x W + h R + b, in ONNX's order i o f c."""
        x, h0, c0 = node.input[0], node.input[5], node.input[6]
        W, R, b = (self._constant_value(name) for name in node.input[1:4])
        if W is None or R is None or b is None or len(W) != 1:
            return False
        size = R.shape[-1]
        first = self._axes(0)
        x, h, c = (self._add("Squeeze", [name, first]) for name in (x, h0, c0))
        from_x = self._product(x, W[0].T)
        # h = o · tanh(c) lies in (-1, 1): its scale is known, and the bias can be added on the way.
        bias = self._constant((b[0, : 4 * size] + b[0, 4 * size :]).astype(np.float32), "bias")
        from_h = self._integer_product(self._integers(h), R[0].T, bias)
        gates = self._add("Add", [from_x, from_h])
        open_, new = self._split(gates, [3 * size, size])
        i, o, f = self._split(self._add("Sigmoid", [open_]), [size] * 3)
        kept = self._add("Mul", [f, c])
        c = self._add("Add", [kept, self._add("Mul", [i, self._add("Tanh", [new])])])
        h = self._add("Mul", [o, self._add("Tanh", [c])])
        for name, value, axes in zip(node.output, (h, h, c), ((0, 1), (0,), (0,)), strict=False):
            if name:
                self._add("Unsqueeze", [value, self._axes(*axes)], name)
        return True

    # What they are rewritten to.

    def _product(self, x: str, weight: Floats, output: str | None = None) -> str:
        """x (…, K) times a weight (K, N), in integers."""
        if x not in self.rows:
            largest = self._add("ReduceMax", [self._add("Abs", [x])], axes=[-1], keepdims=1)
            largest = self._add("Max", [largest, self._constant(TINY, "tiny")])  # (…, 1): the scale of each row
            self.rows[x] = self._integers(self._add("Div", [x, largest])), largest
        integers, largest = self.rows[x]
        return self._add("Mul", [self._integer_product(integers, weight), largest], output)

    def _integers(self, x: str) -> str:
        """x in [-1, 1] → unsigned integers around the zero point."""
        return self._add("QuantizeLinear", [x, self._activation_scale, self._zero_point])

    def _integer_product(self, integers: str, weight: Floats, bias: str = "") -> str:
        columns, scale = quantise_columns(weight)
        stored = self._constant(np.ascontiguousarray(columns), "weight")
        if not bias and weight.shape[1] >= WIDE:
            product = self._add("MatMulInteger", [integers, stored, self._zero_point])
            as_float = self._add("Cast", [product], to=onnx.TensorProto.FLOAT)
            return self._add("Mul", [as_float, self._constant((scale / ROW_MAX).astype(np.float32), "scale")])
        inputs = [integers, stored, self._activation_scale, self._constant(scale, "scale"), self._zero_point]
        return self._add("MatMulIntegerToFloat", [*inputs, "", bias] if bias else inputs, domain=MICROSOFT)

    def _split(self, x: str, sizes: Sequence[int]) -> list[str]:
        outputs = [self._name() for _ in sizes]
        lengths = self._constant(np.array(sizes, dtype=np.int64), "sizes")
        self.nodes.append(helper.make_node("Split", [x, lengths], outputs, axis=-1))
        return outputs

    # Small tools.

    def _constant_value(self, name: str) -> Array | None:
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def _weight(self, name: str) -> Floats | None:
        """A constant float matrix."""
        value = self._constant_value(name)
        return value.astype(np.float32) if value is not None and value.ndim == 2 and value.dtype == np.float32 else None

    def _axes(self, *axes: int) -> str:
        return self._constant(np.array(axes, dtype=np.int64), "axes")

    def _constant(self, value: Array, name: str) -> str:
        name = f"q{len(self.made)}_{name}"
        self.made[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def _name(self) -> str:
        self.count += 1
        return f"q{self.count}"

    def _add(self, kind: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        output = output or self._name()
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output
