"""How a good folder becomes a hostile one. A change is given the folder, or the path, and does its work there."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import yaml

RELEASED = Path(__file__).parents[2] / "released" / "format-1"
CONFIG, WEIGHTS, SUBWORDS = "config.yaml", "weights.safetensors", "subwords.model"


def write(name, content):
    def change(folder):
        (folder / name).write_bytes(content)

    return change


def set_value(dotted_key, value):
    def change(folder):
        values = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
        *sections, last = dotted_key.split(".")
        section = values
        for name in sections:
            section = section[name]
        section[last] = value
        (folder / CONFIG).write_text(yaml.safe_dump(values), encoding="utf-8")

    return change


def replaced(make):
    def change(path):
        path.unlink()
        make(path)

    return change


NO_FILES = {
    "nothing": replaced(lambda path: None),
    "a folder": replaced(lambda path: path.mkdir()),
    "a link to itself": replaced(lambda path: path.symlink_to(path)),
    "a link to nothing": replaced(lambda path: path.symlink_to(path.parent / "nothing")),
    "a device": replaced(lambda path: path.symlink_to("/dev/null")),
}


def parts_of(path):
    content = path.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:start]), content[start:]


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one_tensor(shape, data=b"", dtype="F32", offsets=None):
    return safetensors({"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets or [0, len(data)]}}, data)


def forged(edit):
    """A change of the weights file: `edit` is given header and data, and returns the new content."""

    def change(folder):
        (folder / WEIGHTS).write_bytes(edit(*parts_of(folder / WEIGHTS)))

    return change


def first_entry(header, **changes):
    name = min(set(header) - {"__metadata__"})
    return {**header, name: {**header[name], **changes}}


def same_name_twice(header, data):
    name = min(set(header) - {"__metadata__"})
    return safetensors(f"{json.dumps(header)[:-1]}, {json.dumps({name: header[name]})[1:]}".encode(), data)


def filled_with(number):
    return forged(lambda header, data: safetensors(header, np.full(len(data) // 4, number, np.float32).tobytes()))


def of_type(name, size):
    def edit(header, data):
        start, entries = 0, {}
        for key, entry in header.items():
            if key != "__metadata__":
                end = start + size * int(np.prod(entry["shape"]))
                entries[key] = {"dtype": name, "shape": entry["shape"], "data_offsets": [start, end]}
                start = end
        return safetensors(entries, bytes(start))

    return forged(edit)


NESTED = b"[" * 100_000 + b"]" * 100_000
HOSTILE_WEIGHTS = {
    "empty": (write(WEIGHTS, b""), "damaged"),
    "text": (write(WEIGHTS, b"no safetensors at all"), "damaged"),
    "cut": (lambda folder: os.truncate(folder / WEIGHTS, 2000), "damaged"),
    "cut in the header": (lambda folder: os.truncate(folder / WEIGHTS, 100), "damaged"),
    "longer": (forged(lambda header, data: safetensors(header, data + b"x")), "damaged"),
    "header beyond the file": (write(WEIGHTS, safetensors(b"{}", length=5000)), "damaged"),
    "header of 2^63 bytes": (write(WEIGHTS, safetensors(b"{}", length=2**63)), "damaged"),
    "header of 2^64 - 1 bytes": (write(WEIGHTS, safetensors(b"{}", length=2**64 - 1)), "damaged"),
    "header that is no JSON": (write(WEIGHTS, safetensors(b"{]")), "damaged"),
    "header that is no text": (write(WEIGHTS, safetensors(b"\xff\xfe")), "damaged"),
    "header that is a list": (write(WEIGHTS, safetensors([])), "damaged"),
    "header of nested lists": (
        write(WEIGHTS, safetensors(b'{"x":' + NESTED + b"}")),
        "damaged",
    ),
    "header of nested objects": (write(WEIGHTS, safetensors(b'{"x":' * 50_000 + b"1" + b"}" * 50_000)), "damaged"),
    "a name twice": (forged(same_name_twice), "twice"),
    "offsets outside": (
        forged(lambda header, data: safetensors(first_entry(header, data_offsets=[0, 10**9]), data)),
        "damaged",
    ),
    "offsets backwards": (
        forged(lambda header, data: safetensors(first_entry(header, data_offsets=[64, 0]), data)),
        "damaged",
    ),
    "offsets that overlap": (
        forged(lambda header, data: safetensors({**header, "more": header["W_c.weight"]}, data)),
        "damaged",
    ),
    "negative offsets": (
        forged(lambda header, data: safetensors(first_entry(header, data_offsets=[-64, 0]), data)),
        "damaged",
    ),
    "a shape of 2^80": (write(WEIGHTS, one_tensor([2**40, 2**40], bytes(4))), "damaged"),
    "an empty shape of 2^63": (write(WEIGHTS, one_tensor([0, 2**63])), "damaged"),
    "an empty shape that overflows": (write(WEIGHTS, one_tensor([0, *[2**31] * 5])), "damaged"),
    "100,000 dimensions": (write(WEIGHTS, one_tensor([1] * 100_000, bytes(4))), "dimensions"),
    "an unknown type": (write(WEIGHTS, one_tensor([1], bytes(4), dtype="PICKLE")), "damaged"),
    "whole numbers": (of_type("I32", 4), "torch.int32"),
    "truth values": (of_type("BOOL", 1), "torch.bool"),
    "complex numbers": (of_type("C64", 8), "torch.complex64"),
    "NaN": (filled_with(np.nan), "NaN or infinity"),
    "infinity": (filled_with(-np.inf), "NaN or infinity"),
    "no tensors": (write(WEIGHTS, safetensors({})), "W_c.weight"),
    "an unknown name": (
        forged(lambda header, data: safetensors({"\x1b[2J": header.pop("W_c.weight"), **header}, data)),
        "does not fit the model: missing ['W_c.weight'], unknown ['\\x1b[2J']",
    ),
    "another shape": (
        forged(lambda header, data: safetensors(first_entry(header, shape=[32, 16]), data)),
        "(32, 16) instead of (16, 32)",
    ),
}


def laughs(levels=12, indent=""):
    lines = [f"{indent}a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"{indent}a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def config_text(edit):
    """A change of config.yaml as text."""

    def change(folder):
        text = (folder / CONFIG).read_text(encoding="utf-8")
        edited = edit(text)
        assert edited != text
        (folder / CONFIG).write_text(edited, encoding="utf-8")

    return change


HOSTILE_CONFIGS = {
    "a bomb": (write(CONFIG, laughs().encode()), "aliases"),
    "a bomb in the model section": (
        config_text(lambda text: text.replace("model:\n", "model:\n" + laughs(indent="  "))),
        "aliases",
    ),
    "an anchor in itself": (config_text(lambda text: text.replace("model:\n", "model: &m\n  x: *m\n")), "aliases"),
    "a merge key": (config_text(lambda text: text + "x: &x {a: 1}\n<<: *x\n"), "aliases"),
    "nested lists": (write(CONFIG, b"a: " + b"[" * 50_000), "deeper than 16"),
    "nested mappings": (write(CONFIG, b"{a: " * 5_000), "deeper than 16"),
    "nested blocks": (write(CONFIG, b"- " * 50_000 + b"a"), "deeper than 16"),
    "very long": (config_text(lambda text: text + "# " + "x" * 300_000), "more than 262144 bytes"),
    "a NUL": (config_text(lambda text: text + "a: \0"), "not valid YAML"),
    "not UTF-8": (write(CONFIG, b"a: \xff"), "not valid YAML"),
    "UTF-16": (lambda folder: (folder / CONFIG).write_text("a: b", encoding="utf-16"), "not valid YAML"),
    "empty": (write(CONFIG, b""), "expected a mapping"),
    "a list": (write(CONFIG, b"- a"), "expected a mapping"),
    "a key twice": (config_text(lambda text: text + "output: other\n"), "'output' stands here for the second time"),
    "an inner key twice": (
        config_text(lambda text: text.replace("  width: 16\n", "  width: 16\n  width: 18\n")),
        "'width' stands here for the second time",
    ),
    "a key that is no name": (config_text(lambda text: text + "[a]: b\n"), "not valid YAML"),
    "a key that is a number": (config_text(lambda text: text + "7: b\n"), "7"),
    "a key for the terminal": (config_text(lambda text: text + '"\\e[2Jx": b\n'), "\\x1b[2Jx: unknown key"),
    "an impossible date": (config_text(lambda text: text + "a: 2024-99-99\n"), "not valid YAML"),
    "a number of 5,000 digits": (config_text(lambda text: text + f"a: {'9' * 5000}\n"), "5000 characters"),
    "a hexadecimal one": (config_text(lambda text: text + f"a: 0x{'f' * 5000}\n"), "5002 characters"),
    "a sexagesimal one": (config_text(lambda text: text + f"a: 1{':59' * 2000}\n"), "6001 characters"),
}


FOR_EVERY_VERB = {
    "config": (config_text(lambda text: text + "output: other\n"), "second time"),
    "weights": (filled_with(np.nan), "NaN or infinity"),
    "subwords": (write(SUBWORDS, b"\0" * 100), "SentencePiece"),
}
