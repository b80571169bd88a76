"""The ONNX Runtime engine's own promises; that its numbers are torch's is tests/parity/test_onnx_parity.py."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import pytest

from capsnmt.decoding.search import beam_search
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.engine import OnnxEngine, num_threads, reads_only_weights, without_never
from capsnmt.runtime.manifest import RUNTIME, sha256_of_file
from capsnmt.text.subwords import BOS, EOS, PAD

SOURCES = [[5, 6, 7, EOS], [8, EOS], [9, 10, 11, 12, 13, 14, EOS]]


def ints(*values):
    return np.array(values, dtype=np.int64)


@pytest.fixture(params=["fp32", "int8"])
def engine(exported_once, request):
    return OnnxEngine.load(exported_once[request.param])


def test_all_callers_share_one_engine(exported_once):
    engine = OnnxEngine.load(exported_once["fp32"])
    assert OnnxEngine.load(str(exported_once["fp32"])) is engine
    assert OnnxEngine.load(exported_once["int8"]) is not engine


def test_a_new_export_is_a_new_engine(exported, edit_manifest):
    engine = OnnxEngine.load(exported)
    edit_manifest(exported, lambda values: values.update(verified={"again": 1}))
    assert OnnxEngine.load(exported) is not engine


def test_graphs_that_nobody_asks_for_are_not_loaded(exported):
    engine = OnnxEngine.load(exported)
    engine.encode(SOURCES).step(ints(BOS), ints(0), 2)
    assert set(engine._sessions) == {"encode", "step"}
    engine.routing(SOURCES)
    assert set(engine._sessions) == {"encode", "step", "encode_routing"}


def test_threads_do_not_disturb_each_other(engine):
    settings = {"beam": 3, "length_penalty": 0.8, "length_penalty_type": "wu"}
    alone = [beam_search(engine, [source], max_lengths=[9], **settings) for source in SOURCES]
    found = {}

    def work(number):
        for _ in range(5):
            found[number] = beam_search(engine, [SOURCES[number]], max_lengths=[9], **settings)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number][0][0].ids for number in range(3)] == [each[0][0].ids for each in alone]


def test_memory_is_kept_once_per_sentence_and_state_once_per_row(engine):
    session = engine.encode(SOURCES)
    session.step(ints(*[BOS] * 6), ints(0, 0, 1, 1, 2, 2), 3)
    session.step(ints(*[9] * 12), ints(*range(6), *range(6)), 3)
    assert {len(array) for array in session._memory.values()} == {3}
    assert {value.shape()[0] for value in session._state.values()} == {12}


@pytest.mark.parametrize("more", [0, 100])
def test_the_whole_vocabulary_may_be_asked_for(engine, more):
    size = engine.vocabulary_size
    found = engine.encode(SOURCES).step(ints(BOS, BOS), ints(0, 2), size + more)
    assert found.ids.shape == (2, size)
    special = np.isin(found.ids, [PAD, BOS])
    assert np.isneginf(found.log_probs[special]).all()
    assert np.isfinite(found.log_probs[~special]).all()


def test_pad_and_bos_give_way_to_the_next_best():
    log_probs = np.array([[-1.0, -2.0, -3.0, -4.0], [-1.0, -2.0, -3.0, -4.0], [-1.0, -2.0, -3.0, -4.0]])
    ids = np.array([[PAD, 5, BOS, 6], [7, 8, 9, 10], [BOS, PAD, 11, 12]])
    found_log_probs, found_ids = without_never(log_probs, ids, 2)
    assert found_ids.tolist() == [[5, 6], [7, 8], [11, 12]]
    assert found_log_probs.tolist() == [[-2.0, -4.0], [-1.0, -2.0], [-3.0, -4.0]]


@pytest.mark.parametrize("file", ["weights.bin", "step.onnx", "encode.onnx"])
def test_a_changed_file_is_refused(exported, file):
    path = exported / RUNTIME / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CapsNMTError, match="SHA-256"):
        OnnxEngine.load(exported)


@pytest.mark.parametrize("file", ["weights.bin", "step.onnx"])
def test_a_missing_file_is_named(exported, file):
    (exported / RUNTIME / file).unlink()
    with pytest.raises(CapsNMTError, match=file):
        OnnxEngine.load(exported)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "{root}/secret.bin", "secret.bin", "sub/../weights.bin", "weights.bin.old", ""]
)
def test_a_graph_that_reads_another_file_is_refused(exported, edit_manifest, tmp_path, location, monkeypatch):
    """A stranger's graph with a right hash: ONNX Runtime itself would open the file."""
    runtime = exported / RUNTIME
    for place in (exported / "secret.bin", tmp_path / "secret.bin", runtime / "secret.bin"):
        place.write_bytes((runtime / "weights.bin").read_bytes())
    monkeypatch.chdir(runtime)
    model = onnx.load(runtime / "step.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location.format(root=tmp_path)
    (runtime / "step.onnx").write_bytes(model.SerializeToString())
    found = sha256_of_file(runtime / "step.onnx")
    edit_manifest(exported, lambda values: values["graphs"]["step"].update(sha256=found))
    with pytest.raises(CapsNMTError, match="other files"):
        OnnxEngine.load(exported)


def test_no_other_spelling_of_an_entry_slips_through(exported):
    graph = (exported / RUNTIME / "step.onnx").read_bytes()
    assert graph.count(b"location") > 3
    assert reads_only_weights(graph)
    good, tag = b"\x0a\x08location\x12\x0bweights.bin", b"\x12\x0b/etc/passwd"
    for bad in (
        tag + b"\x0a\x08location",  # the value first
        b"\x0a\x08location" + tag,
        b"\x0a\x88\x00location\x12\x0bweights.bin",  # a length in two bytes
        b"\x0a\x08location\x1a\x00\x12\x0bweights.bin",
        good.replace(b"\x12\x0b", b"\x12\x0c") + b"x",
    ):
        assert not reads_only_weights(graph.replace(good, bad, 1))


def test_a_graph_that_is_none_is_refused(exported, edit_manifest):
    path = exported / RUNTIME / "step.onnx"
    path.write_bytes(b"no graph")
    edit_manifest(exported, lambda values: values["graphs"]["step"].update(sha256=sha256_of_file(path)))
    with pytest.raises(CapsNMTError, match="cannot be loaded"):
        OnnxEngine.load(exported)


def test_a_manifest_that_describes_another_graph_is_refused(exported, edit_manifest):
    edit_manifest(exported, lambda values: values["graphs"]["step"]["inputs"].pop("origins"))
    with pytest.raises(CapsNMTError, match="manifest"):
        OnnxEngine.load(exported)


def test_what_fails_inside_is_a_runtime_error(engine):
    """Which the translator answers by trying line by line."""
    with pytest.raises(RuntimeError, match="out of data bounds"):
        engine.encode([[10_000, EOS]])


def test_threads_come_from_the_environment_or_the_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert num_threads() == 3
    for nonsense in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert num_threads() >= 1
