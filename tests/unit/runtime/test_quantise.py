"""int8 products against float ones, and what makes them independent of company and of the CPU."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from capsnmt.runtime.graphs import shortened
from capsnmt.runtime.quantise import ROW_MAX, WEIGHT_MAX, WIDE, ZERO_POINT, quantise_columns, quantised

RANDOM = np.random.default_rng(2)


def model_of(nodes, inputs, outputs, weights):
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model, **feeds):
    return ort.InferenceSession(model.SerializeToString()).run(None, feeds)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def relative_error(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_columns_come_back_within_half_a_step(rows, columns, seed):
    weight = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * 10.0
    weight[:, 0] = 0.0
    integers, scale = quantise_columns(weight)
    assert integers.dtype == np.int8
    assert np.abs(integers.astype(int)).max() <= WEIGHT_MAX
    assert (np.abs(integers * scale - weight) <= 0.5001 * scale).all()


def test_a_sum_of_two_products_fits_into_16_bits():
    """What CPUs without VNNI add them up in; larger ones would be cut off there, and differ from CPU to CPU."""
    assert np.iinfo(np.int16).max >= 2 * (ZERO_POINT + ROW_MAX) * WEIGHT_MAX


def matmul(rank=2, columns=48):
    x = ["batch", "len", 64] if rank == 3 else ["batch", 64]
    node = helper.make_node("MatMul", ["x", "W"], ["y"])
    return model_of([node], [("x", TensorProto.FLOAT, x)], ["y"], {"W": floats(64, columns)})


@pytest.mark.parametrize("columns", [48, WIDE])
@pytest.mark.parametrize("rank", [2, 3])
def test_a_product_is_near_the_float_one(rank, columns):
    model = matmul(rank, columns)
    x = floats(5, 64) if rank == 2 else floats(5, 3, 64)
    (expected,), (found,) = run(model, x=x), run(quantised(model, is_step=False), x=x)
    assert found.shape == expected.shape
    assert 0 < relative_error(found, expected) < 0.03


def test_the_largest_products_are_exact():
    """All at the end of their ranges and of one sign: the integer sums are as large as they can be."""
    node = helper.make_node("MatMul", ["x", "W"], ["y"])
    model = model_of([node], [("x", TensorProto.FLOAT, ["r", 256])], ["y"], {"W": np.ones((256, 8), dtype=np.float32)})
    for sign in (1.0, -1.0):
        (found,) = run(quantised(model, is_step=False), x=np.full((3, 256), sign, dtype=np.float32))
        np.testing.assert_allclose(found, sign * 256.0, rtol=1e-5)


@pytest.mark.parametrize("columns", [48, WIDE])
def test_rows_do_not_see_each_other(columns):
    model = quantised(matmul(columns=columns), is_step=False)
    x = floats(4, 64) * np.array([[1e-4], [1.0], [1e4], [0.0]], dtype=np.float32)
    (together,) = run(model, x=x)
    alone = np.concatenate([run(model, x=row[None])[0] for row in x])
    assert (together == alone).all()
    assert (together[3] == 0).all()


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [True, False])
def test_gemm(transposed, bias):
    weights = {"W": floats(48, 64) if transposed else floats(64, 48)} | ({"b": floats(48)} if bias else {})
    node = helper.make_node("Gemm", ["x", *weights], ["y"], transB=transposed)
    model = model_of([node], [("x", TensorProto.FLOAT, ["r", 64])], ["y"], weights)
    x = floats(5, 64)
    (expected,), (found,) = run(model, x=x), run(quantised(model, is_step=False), x=x)
    assert relative_error(found, expected) < 0.03


def test_gemm_that_does_more_stays():
    node = helper.make_node("Gemm", ["x", "W"], ["y"], alpha=0.5)
    model = model_of([node], [("x", TensorProto.FLOAT, ["r", 64])], ["y"], {"W": floats(64, 48)})
    assert [node.op_type for node in quantised(model, is_step=False).graph.node] == ["Gemm"]


def test_an_embedding_is_looked_up_in_integers():
    node = helper.make_node("Gather", ["E", "ids"], ["y"])
    model = model_of([node], [("ids", TensorProto.INT64, ["r", "n"])], ["y"], {"E": floats(20, 16)})
    ids = np.array([[3, 19], [0, 7]])
    (expected,), (found,) = run(model, ids=ids), run(quantised(model, is_step=False), ids=ids)
    assert relative_error(found, expected) < 0.03


def lstm(length):
    weights = {"W": floats(1, 4 * 32, 24), "R": floats(1, 4 * 32, 32), "b": floats(1, 8 * 32)}
    node = helper.make_node(
        "LSTM", ["x", "W", "R", "b", "", "h0", "c0"], ["y", "h", "c"], hidden_size=32, direction="forward"
    )
    shapes = {"x": [length, "r", 24], "h0": [1, "r", 32], "c0": [1, "r", 32]}
    inputs = [(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    return model_of([node], inputs, ["y", "h", "c"], weights)


@pytest.mark.parametrize("is_step", [True, False])
def test_an_lstm_over_one_token(is_step):
    model = lstm(1)
    feeds = {"x": floats(1, 5, 24), "h0": np.tanh(floats(1, 5, 32)), "c0": floats(1, 5, 32)}
    made = quantised(model, is_step=is_step)
    assert any(node.op_type == "LSTM" for node in made.graph.node) != is_step
    for found, expected in zip(run(made, **feeds), run(model, **feeds), strict=True):
        assert found.shape == expected.shape
        assert relative_error(found, expected) < 0.05


def test_an_lstm_over_time():
    model = lstm("n")
    feeds = {"x": floats(9, 2, 24), "h0": np.zeros((1, 2, 32), "f"), "c0": np.zeros((1, 2, 32), "f")}
    for found, expected in zip(run(quantised(model, is_step=False), **feeds), run(model, **feeds), strict=True):
        assert relative_error(found, expected) < 0.1


def test_no_float_copy_of_a_weight_stays():
    for model in (matmul(), lstm(1)):
        made = quantised(model, is_step=True)
        large = [tensor for tensor in made.graph.initializer if np.prod(tensor.dims) >= 64 * 24]
        assert large
        assert {tensor.data_type for tensor in large} == {onnx.TensorProto.INT8}


def loop():
    """h = x W, then three times h = tanh(h U): what a recurrence without a node of its own is traced to."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h_in", "U"], ["product"]),
            helper.make_node("Tanh", ["product"], ["h_out"]),
            helper.make_node("Identity", ["go_on"], ["go_on_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h_in", TensorProto.FLOAT, ["r", 48]),
        ],
        [
            helper.make_tensor_value_info("go_on_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h_out", TensorProto.FLOAT, ["r", 48]),
        ],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Loop", ["turns", "yes", "h"], ["y"], body=body),
    ]
    constants = {"W": floats(64, 48), "U": floats(48, 48) / 16, "turns": np.array(3), "yes": np.array(True)}
    return model_of(nodes, [("x", TensorProto.FLOAT, ["r", 64])], ["y"], constants)


def test_what_a_loop_repeats_reads_weights_that_are_stored_in_integers():
    model, x = loop(), floats(5, 64)
    made = shortened(quantised(model, is_step=False))
    (expected,), (found,) = run(model, x=x), run(made, x=x)
    assert 0.0 < relative_error(found, expected) < 0.1
    assert all(tensor.data_type == TensorProto.INT8 for tensor in made.graph.initializer if len(tensor.dims) == 2)


def test_a_gru_over_time():
    weights = {"W": floats(1, 3 * 32, 24), "R": floats(1, 3 * 32, 32), "b": floats(1, 6 * 32)}
    node = helper.make_node("GRU", ["x", "W", "R", "b"], ["y", "h"], hidden_size=32, linear_before_reset=1)
    model = model_of([node], [("x", TensorProto.FLOAT, ["n", "r", 24])], ["y", "h"], weights)
    made, x = quantised(model, is_step=False), floats(9, 2, 24)
    for found, expected in zip(run(made, x=x), run(model, x=x), strict=True):
        assert 0.0 < relative_error(found, expected) < 0.1
    assert {tensor.data_type for tensor in made.graph.initializer if np.prod(tensor.dims) > 1000} == {TensorProto.INT8}
