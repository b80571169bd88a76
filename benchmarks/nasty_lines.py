"""One line in, one line out: 100,000 nasty lines through the real command, and 2,000 sentences with protected spans.

    python benchmarks/nasty_lines.py MODEL [--lines 100000] [--sentences 2000] [--data ROOT] [--seed 1] [--json FILE]

The lines (`nasty_text.py`) go as bytes through `capsnmt translate --format json` in a process of its own, a tenth of
them again as plain text. Of each line is demanded: its place, its source as it was sent, no line break of any kind in
the output, no more than 3 x source + 20 subwords, none of the reserved symbols that the user did not type, and every
protected span as often as in the source. Exits with 1, and shows examples, if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nasty_text import BREAKS, GLOSSARY, HUGE, MARKER_EVERY, made_sentences, marker, nasty_lines, real_sentences
from rich.console import Console

from capsnmt import Translator
from capsnmt.decoding.line_batch import one_line
from capsnmt.text.pipeline import TextPipeline
from capsnmt.text.spans import mask

SHOWN_EXAMPLES = 5


@dataclass
class Promises:
    """What was broken, by promise: the numbers of the lines."""

    text: TextPipeline
    broken: dict[str, list[int]] = field(default_factory=dict)

    def demand(self, kept: bool, promise: str, number: int) -> None:
        if not kept:
            self.broken.setdefault(promise, []).append(number)

    def spans(self, text: str, terms: Mapping[str, str]) -> Counter[str]:
        """The protected spans of a source, as they must come out."""
        return Counter(span.target for span in mask(one_line(text), self.text.config.protect, terms).spans)

    def spans_kept(self, source: str, output: str, terms: Mapping[str, str]) -> bool:
        wanted = self.spans(source, terms)
        found = self.spans(output, {})
        for target in terms.values():
            found[target] = len(re.findall(rf"(?<!\w){re.escape(target)}(?!\w)", output))
        return all(found[span] == count for span, count in wanted.items())

    def check(self, number: int, source: str, record: Mapping[str, Any], terms: Mapping[str, str]) -> None:
        """One record of the JSON output against the line that was sent."""
        output, status = record["translation"], record["status"]
        self.demand(record["line"] == number + 1, "lines are numbered in order", number)
        self.demand(record["source"] == source, "the source is the line that was sent", number)
        self.demand(not set(output) & {"\n", *BREAKS}, "no line break of any kind in the output", number)
        room = 3 * (len(self.text.source_ids(source)) - 1) + 20
        self.demand(len(self.text.target_prefix_ids(output)) <= room, "at most 3 x source + 20 tokens", number)
        typed, written = (Counter(re.findall("⦅[0-9]{1,9}⦆", text)) for text in (source, output))
        self.demand(written <= typed, "no reserved symbol that the user did not type", number)
        self.demand(self.spans_kept(source, output, terms), "protected spans come back as often as they were", number)
        if status in ("empty", "failed") and not terms:
            self.demand(output == one_line(source), f"{status}: the line as it came", number)


def run_command(model: Path, lines: Sequence[bytes], *options: str) -> tuple[list[bytes], dict[str, int]]:
    """The output of `capsnmt translate` split at LF, and the time that it took; stops if the command fails."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
        stdin.write(b"".join(line + b"\n" for line in lines))
        stdin.seek(0)
        start_s, start_cpu_s = time.perf_counter(), _children_cpu_s()
        command = [sys.executable, "-m", "capsnmt", "translate", str(model), "--batch-lines", "512", *options]
        ended = subprocess.run(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, check=False)
        took = {"seconds": round(time.perf_counter() - start_s), "cpu_seconds": round(_children_cpu_s() - start_cpu_s)}
        if ended.returncode or ended.stderr:
            sys.exit(f"exit code {ended.returncode}\n{ended.stderr.decode()[-3000:]}")
        stdout.seek(0)
        output = stdout.read()
    if output and not output.endswith(b"\n"):
        sys.exit("the last line of the output has no end")
    return output.split(b"\n")[:-1], took


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def as_read(line: bytes) -> str:
    """What the command makes of the bytes of a line."""
    return line.removesuffix(b"\r").decode("utf-8", errors="replace")


def run_nasty(promises: Promises, model: Path, lines: Sequence[bytes], beam: int) -> tuple[dict[str, Any], list[str]]:
    """The lines as JSON; a report, and the translations."""
    found, took = run_command(model, lines, "--format", "json", "--beam", str(beam))
    promises.demand(len(found) == len(lines), f"one line out for each line in ({len(lines)}, {len(found)})", 0)
    records = [json.loads(line) for line in found]
    for number, (line, record) in enumerate(zip(lines, records, strict=False)):
        promises.check(number, as_read(line), record, {})
    report = {
        "lines": len(lines),
        **took,
        "lines_with_spans": sum(bool(promises.spans(as_read(line), {})) for line in lines),
        "statuses": dict(Counter(record["status"] for record in records).most_common()),
        "notes": dict(Counter(note for record in records for note in record["notes"]).most_common()),
    }
    return report, [record["translation"] for record in records]


def run_plain(
    promises: Promises, model: Path, lines: Sequence[bytes], translations: Sequence[str], beam: int
) -> dict[str, Any]:
    """The same lines as plain text: blank lines and markers must come back literally."""
    found, took = run_command(model, lines, "--beam", str(beam))
    promises.demand(len(found) == len(lines), f"one line out for each line in ({len(lines)}, {len(found)})", 0)
    blank = 0
    for number, (line, output) in enumerate(zip(lines, found, strict=False)):
        source = as_read(line)
        if not source.strip():
            blank += 1
            promises.demand(output.decode() == one_line(source), "plain text: a blank line as it came", number)
        if number % MARKER_EVERY == 0:
            promises.demand(output.decode() == marker(number), "plain text: markers in their places", number)
        promises.demand(output.decode() == translations[number], "plain text: what JSON says", number)
    return {
        "lines": len(lines),
        **took,
        "blank": blank,
        "markers": len(range(0, len(lines), MARKER_EVERY)),
    }


def run_spans(promises: Promises, model: Path, sentences: Sequence[str], beam: int) -> dict[str, Any]:
    """Made sentences with protected spans and a glossary."""
    with tempfile.TemporaryDirectory() as folder:
        glossary = Path(folder) / "terms.tsv"
        entries = (source if source == target else f"{source}\t{target}" for source, target in GLOSSARY.items())
        glossary.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
        options = ["--format", "json", "--beam", str(beam), "--glossary", str(glossary)]
        found, took = run_command(model, [sentence.encode() for sentence in sentences], *options)
    promises.demand(len(found) == len(sentences), f"one line out for each ({len(sentences)}, {len(found)})", 0)
    records = [json.loads(line) for line in found]
    for number, (sentence, record) in enumerate(zip(sentences, records, strict=False)):
        promises.check(number, sentence, record, GLOSSARY)
    spans = [sum(promises.spans(sentence, GLOSSARY).values()) for sentence in sentences]
    around = ["spans_placed_around" in record["notes"] for record in records]
    return {
        "sentences": len(sentences),
        **took,
        "spans": sum(spans),
        "placed_by_the_model": sum(not one for one in around),
        "placed_around": sum(around),
        "placed_around_by_number_of_spans": {
            count: f"{sum(a for a, n in zip(around, spans, strict=True) if n == count)} of {spans.count(count)}"
            for count in sorted(set(spans))
        },
        "statuses": dict(Counter(record["status"] for record in records).most_common()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--huge", type=int, default=len(HUGE), help="how many of the lines with 100,000 characters")
    parser.add_argument("--data", type=Path, help="folder of the corpora; without it, the demo corpus is cut up")
    parser.add_argument("--beam", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    text = Translator(args.model).pipeline
    lines = nasty_lines(args.lines, seed=args.seed, sentences=real_sentences(args.data), huge=args.huge)
    sentences = made_sentences(args.sentences, seed=args.seed)
    nasty, spans = Promises(text), Promises(text)
    report: dict[str, Any] = {"model": str(args.model), "seed": args.seed, "beam": args.beam}
    report["nasty"], translations = run_nasty(nasty, args.model, lines, args.beam)
    tenth = len(lines) // 10
    report["plain"] = run_plain(nasty, args.model, lines[:tenth], translations[:tenth], args.beam)
    report["spans"] = run_spans(spans, args.model, sentences, args.beam)
    report["broken"] = {
        part: {promise: len(numbers) for promise, numbers in promises.broken.items()}
        for part, promises in (("nasty lines", nasty), ("made sentences", spans))
        if promises.broken
    }
    console = Console(soft_wrap=True)
    console.print_json(data=report)
    for promises, sources in ((nasty, [as_read(line) for line in lines]), (spans, sentences)):
        for promise, numbers in promises.broken.items():
            console.print(f"BROKEN {len(numbers)} x: {promise}", markup=False)
            for number in numbers[:SHOWN_EXAMPLES]:
                console.print(f"  line {number}: {sources[number][:300]!r}", markup=False)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(1 if report["broken"] else 0)


if __name__ == "__main__":
    main()
