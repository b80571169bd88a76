"""The manifest: what it holds, and what a stranger's may not do."""

from __future__ import annotations

import pytest

from capsnmt.errors import CapsNMTError
from capsnmt.runtime.manifest import (
    MANIFEST,
    RUNTIME,
    RUNTIME_VERSION,
    checked_path,
    has_runtime,
    load_runtime_text,
    read_manifest,
    sha256_of_file,
)


def test_it_says_what_translating_needs(exported):
    assert has_runtime(exported)
    manifest = read_manifest(exported)
    assert (manifest.languages.source, manifest.languages.target) == ("en", "de")
    assert manifest.special_ids == {"pad": 0, "unk": 1, "bos": 2, "eos": 3}
    assert {"encode", "step", "step_all", "encode_routing"} == manifest.graphs.keys()
    assert manifest.memory == ("context",)
    assert manifest.state == ("hidden", "cell")
    assert manifest.graphs["step"].inputs["state.hidden"].shape == ("previous_rows", 2, 16)
    assert manifest.graphs["encode"].inputs["src"].type == "int64"
    assert "onnxruntime" in manifest.made_with


def test_every_file_is_named_with_its_hash(exported):
    manifest = read_manifest(exported)
    records = [*manifest.graphs.values(), manifest.weights, *manifest.subwords]
    files = {path.name for path in (exported / RUNTIME).iterdir()}
    assert files == {record.file for record in records} | {MANIFEST}
    for record in records:
        assert sha256_of_file(exported / RUNTIME / record.file) == record.sha256


def test_the_text_comes_from_the_runtime_alone(exported):
    text = load_runtime_text(exported, read_manifest(exported))
    assert text.target_text(text.target_prefix_ids("eins zwei")) == "eins zwei"


def test_a_folder_without_one(tmp_path):
    assert not has_runtime(tmp_path)
    with pytest.raises(CapsNMTError, match="capsnmt export"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../weights.bin", "/etc/passwd", "a/b", "..", ".hidden", "", "a\\b", "a\0b", "C:x"])
@pytest.mark.parametrize("place", ["weights", "graph", "subwords"])
def test_files_outside_are_refused(exported, edit_manifest, name, place):
    def change(values):
        record = {"weights": values["weights"], "graph": values["graphs"]["step"], "subwords": values["subwords"][0]}
        record[place]["file"] = name

    edit_manifest(exported, change)
    with pytest.raises(CapsNMTError, match="inside runtime"):
        read_manifest(exported)


def test_links_out_of_the_folder_are_refused(exported, tmp_path):
    weights = exported / RUNTIME / "weights.bin"
    outside = tmp_path / "elsewhere.bin"
    weights.rename(outside)
    weights.symlink_to(outside)
    with pytest.raises(CapsNMTError, match="outside"):
        checked_path(exported, read_manifest(exported).weights)


def test_other_subwords_are_refused(exported):
    with (exported / RUNTIME / "subwords.model").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(CapsNMTError, match="SHA-256"):
        load_runtime_text(exported, read_manifest(exported))


def test_another_vocabulary_is_refused(exported, edit_manifest):
    edit_manifest(exported, lambda values: values["vocabulary"].update(fingerprint="other"))
    with pytest.raises(CapsNMTError, match="fingerprint"):
        load_runtime_text(exported, read_manifest(exported))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.update(runtime_version=RUNTIME_VERSION + 1, novelty=1), "upgrade"),
        (lambda values: values.update(novelty=1), "unknown key"),
        (lambda values: values["graphs"].pop("step"), "step"),
        (lambda values: values["graphs"].pop("encode"), "encode"),
        (lambda values: values.pop("weights"), "weights"),
        (lambda values: values["special_ids"].update(eos=7), "special_ids"),
        (lambda values: values["weights"].update(sha256="short"), "sha256"),
        (lambda values: values.update(precision="fp4"), "precision"),
        (lambda values: values["weights"].update(file="other.bin"), "weights.bin"),
        (lambda values: values["graphs"]["step"].update(file="step.ort"), "onnx"),
    ],
)
def test_what_cannot_be_right_is_named(exported, edit_manifest, change, message):
    edit_manifest(exported, change)
    with pytest.raises(CapsNMTError, match=message):
        read_manifest(exported)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"3", b"[" * 100_000])
def test_no_json_no_traceback(exported, content):
    (exported / RUNTIME / MANIFEST).write_bytes(content)
    with pytest.raises(CapsNMTError):
        read_manifest(exported)
