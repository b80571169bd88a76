"""How well models copy numbers and names: the share of exact copies, by the length of what is to be copied.

    python benchmarks/copying.py corpus FOLDER
    python benchmarks/copying.py probe MODEL... [--domain demo|captions] [--per-length 100] [--beam 4] [--json FILE]

`corpus` writes the demo corpus with a number of 1 to 12 digits in half of its sentences and with made-up names, so that
a model can learn to copy: no name and hardly a number is met twice. `probe` puts numbers and names that it makes up
itself into sentences of the model's domain, translates them and counts: a copy is exact if all digits stand together in
the output, no digit stands beside them and no other number was written; a name, if it stands there as a whole word,
once. Names are tried twice: as they are, and as terms that are not to be translated.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from capsnmt import Translator
from capsnmt.data.demo import make_pairs
from capsnmt.data.demo_words import NAMES
from capsnmt.decoding.translation import TranslateOptions, Translation
from capsnmt.folder import load_text, read_folder_config

MAX_DIGITS = 12
MAX_NAME_SUBWORDS = 8  # of a name; longer ones are counted with these
BATCH_LINES = 64
TRAIN_SEED, PROBE_SEED = 1, 2  # of the sentences; what is put into them is never the same in both
CAPTIONS = {
    "number": (
        "A man wearing a shirt with the number {}.",
        "A runner with the number {} on a red shirt.",
        "A boy stands in front of a house with the number {}.",
        "A white car with the number {} on its side.",
    ),
    "name": (
        "A man named {} is riding a bicycle.",
        "A woman is holding a sign that says {}.",
        "A girl named {} plays in the sand.",
        "People walk past a shop called {}.",
    ),
}


class Probe(NamedTuple):
    """A sentence and what must come out of it as it went in."""

    source: str
    copied: str
    length: int  # digits of a number, subwords of a name


class Tried(NamedTuple):
    """A probe and what a model made of it."""

    length: int
    exact: bool
    around: bool  # the model had lost the symbol, and the translator translated around it


def number_of(random: Random, digits: int) -> str:
    """A number of so many digits: never 0 or 1, which would want a singular, and without a leading zero."""
    return str(random.randint(2 if digits == 1 else 10 ** (digits - 1), 10**digits - 1))


def made_up_name(random: Random) -> str:
    """Two to five syllables, pronounceable and unheard of."""
    syllables = (random.choice("bdfgklmnprstvz") + random.choice("aeiou") for _ in range(random.randint(2, 5)))
    return ("".join(syllables) + random.choice(("", "", "n", "r", "s", "l"))).capitalize()


def names_apart(random: Random, used: set[str]) -> Iterator[str]:
    """Names without an end, none of them twice."""
    while True:
        name = made_up_name(random)
        if name not in used:
            used.add(name)
            yield name


def training_names() -> set[str]:
    """Every name of the training corpus, which the probe must not use."""
    return {word for english, _ in copying_pairs() for word in re.findall(r"\b[A-Z]\w+", english)}


def copying_pairs(count: int = 21_000) -> list[tuple[str, str]]:
    """Pairs of the demo corpus, half of them with a number, with other numbers and names in them."""
    random = Random(TRAIN_SEED)
    made = make_pairs(4 * count, seed=TRAIN_SEED)
    counted = [pair for pair in made if _numbers(pair[0]) == _numbers(pair[1]) and len(_numbers(pair[0])) == 1]
    others = [pair for pair in made if not _numbers(pair[0])]
    pairs = [*counted[: count // 2], *others[: count - count // 2]]
    random.shuffle(pairs)
    names = names_apart(random, set(NAMES))
    return [_filled(pair, number_of(random, random.randint(1, MAX_DIGITS)), names) for pair in pairs]


def _filled(pair: tuple[str, str], number: str, names: Iterator[str]) -> tuple[str, str]:
    """A pair of the demo corpus with this number and new names on both sides."""
    here = {name: next(names) for name in NAMES if re.search(rf"\b{name}\b", pair[0])}
    english, german = (re.sub(r"\d+", number, text) for text in pair)
    for old, new in here.items():
        english, german = (re.sub(rf"\b{old}\b", new, text) for text in (english, german))
    return english, german


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def write_corpus(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pairs = copying_pairs()
    for name, part in {"train": pairs[:-1000], "valid": pairs[-1000:-500], "test": pairs[-500:]}.items():
        for language, side in (("en", 0), ("de", 1)):
            (folder / f"{name}.{language}").write_bytes("".join(f"{pair[side]}\n" for pair in part).encode())


def number_frames(domain: str) -> list[str]:
    """Sentences with one hole for a number."""
    if domain == "captions":
        return list(CAPTIONS["number"])
    made = [english for english, _ in make_pairs(5000, seed=PROBE_SEED) if len(_numbers(english)) == 1]
    return [re.sub(r"\d+", "{}", english) for english in made]


def name_frames(domain: str) -> list[str]:
    """Sentences with one hole for a name, and neither a number nor another name."""
    if domain == "captions":
        return list(CAPTIONS["name"])
    any_name = re.compile(rf"\b(?:{'|'.join(NAMES)})\b")
    made = [english for english, _ in make_pairs(5000, seed=PROBE_SEED) if not _numbers(english)]
    return [any_name.sub("{}", english) for english in made if len(any_name.findall(english)) == 1]


def number_probes(domain: str, per_length: int) -> list[Probe]:
    random = Random(PROBE_SEED)
    frames = number_frames(domain)
    return [
        Probe(random.choice(frames).format(number), number, digits)
        for digits in range(1, MAX_DIGITS + 1)
        for number in (number_of(random, digits) for _ in range(per_length))
    ]


def name_probes(domain: str, count: int, folder: Path) -> list[Probe]:
    """Names that no training corpus has, each with its number of subwords in the model's own vocabulary."""
    random = Random(PROBE_SEED)
    text = load_text(folder, read_folder_config(folder))
    frames = name_frames(domain)
    names = islice(names_apart(random, training_names() | set(NAMES)), count)
    return [
        Probe(random.choice(frames).format(name), name, min(MAX_NAME_SUBWORDS, len(text.source_ids(name)) - 1))
        for name in names
    ]


def exact_number(probe: Probe, output: str) -> bool:
    return _numbers(output) == [probe.copied]


def exact_name(probe: Probe, output: str) -> bool:
    return len(re.findall(rf"(?<!\w){re.escape(probe.copied)}(?!\w)", output)) == 1


def tried(
    translator: Translator, probes: Sequence[Probe], *, beam: int, kind: str, as_terms: bool = False
) -> list[Tried]:
    exact = exact_number if kind == "number" else exact_name
    found: list[Tried] = []
    for start in range(0, len(probes), BATCH_LINES):
        batch = probes[start : start + BATCH_LINES]
        terms = {probe.copied: probe.copied for probe in batch} if as_terms else {}
        outputs: list[Translation] = translator.translate_batch(
            [probe.source for probe in batch], TranslateOptions(beam=beam, terms=terms)
        )
        found += [
            Tried(probe.length, exact(probe, output.text), "spans_placed_around" in output.notes)
            for probe, output in zip(batch, outputs, strict=True)
        ]
    return found


def by_length(results: Sequence[Tried]) -> dict[str, dict[str, float]]:
    """Length → how many, and what share of them was exact; "all" for all of them."""
    groups = {str(length): [one for one in results if one.length == length] for length in {r.length for r in results}}
    groups = dict(sorted(groups.items(), key=lambda item: int(item[0]))) | {"all": list(results)}
    return {
        name: {
            "tried": len(group),
            "exact_percent": round(100 * sum(one.exact for one in group) / len(group), 1),
            "around_percent": round(100 * sum(one.around for one in group) / len(group), 1),
        }
        for name, group in groups.items()
    }


def probe_model(folder: Path, domain: str, per_length: int, beam: int) -> dict[str, object]:
    translator = Translator(folder)
    config = read_folder_config(folder)
    numbers = number_probes(domain, per_length)
    names = name_probes(domain, per_length * MAX_NAME_SUBWORDS, folder)
    return {
        "model": str(folder),
        "system": config.model["system"],
        "protect": list(config.text.protect),
        "numbers": by_length(tried(translator, numbers, beam=beam, kind="number")),
        "names": by_length(tried(translator, names, beam=beam, kind="name")),
        "names_as_terms": by_length(tried(translator, names, beam=beam, kind="name", as_terms=True)),
    }


def print_tables(records: Sequence[dict[str, object]]) -> None:
    titles = {
        "numbers": "numbers: % exact by number of digits",
        "names": "names: % exact by number of subwords",
        "names_as_terms": "names as terms: % exact by number of subwords",
    }
    for key, title in titles.items():
        table = Table("model", title=title)
        lengths = sorted(
            {length for record in records for length in record[key]}, key=lambda n: (n == "all", len(n), n)
        )
        for length in [*lengths, "placed around"]:
            table.add_column(length, justify="right")
        for record in records:
            shares = [record[key].get(length, {}).get("exact_percent", "") for length in lengths]
            around = record[key]["all"]["around_percent"]
            table.add_row(str(record["model"]), *map(str, shares), f"{around} %")
        Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("corpus").add_argument("folder", type=Path)
    probe = verbs.add_parser("probe")
    probe.add_argument("models", nargs="+", type=Path)
    probe.add_argument("--domain", choices=["demo", "captions"], default="demo")
    probe.add_argument("--per-length", type=int, default=100, help="numbers of each length, and 8 times as many names")
    probe.add_argument("--beam", type=int, default=4)
    probe.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.verb == "corpus":
        write_corpus(args.folder)
        return
    records = [probe_model(folder, args.domain, args.per_length, args.beam) for folder in args.models]
    print_tables(records)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
