"""`capsnmt prepare` and `capsnmt doctor` on millions of pairs: pairs/s, resident memory, bytes on disk, first batch.

    python benchmarks/prepare.py --source FILE.en[.zst] --target FILE.de[.zst] [--pairs 5000000] [--json FILE]
    … --pairs 20000000 --kill-after 1200 --skip doctor language     # killed once with SIGKILL, and started again

The corpus is a real one, repeated until there are enough pairs. From the second round on, words are swapped, dropped
and doubled and digits change, so that pairs differ; one in 20 is repeated as it is, so that there are duplicates to
find. Then the real commands run. Memory is summed over a command and all its children, five times a second, as
/proc tells it: "resident" counts pages of mapped files too, and pages that processes share once for each of them;
"anonymous" is what the processes have allocated. On a shared machine pairs/s is a lower bound;
pairs per second of CPU time, summed over all processes, says what the work costs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml
import zstandard
from rich.console import Console
from rich.table import Table

from capsnmt.config import ParallelText
from capsnmt.data.corpus import read_pairs

SIDES = ("source", "target")
HELD_OUT = 2000  # pairs of valid, and of test; the last of the real corpus, which stay in train for a filter to find
SAMPLE_EVERY_S = 0.2
MB = 1e6
STAGE = re.compile(r"^(?P<stage>[a-z ]+): (?P<pairs>\d+) pairs in (?P<seconds>[\d.]+) s")

FILTERS = {"max_words": 250, "max_characters": 2500, "max_ratio": 4.0, "deduplicate": True, "drop_overlap": True}

# Run in a process of its own. What `capsnmt train` does before its first batch, besides building its model: it imports
# (torch too), reads the recipe, sees that the store is its own, loads subwords and store, and starts the batches.
FIRST_BATCH = """
import json, re, sys, time
start_s = time.perf_counter()
import capsnmt.training.loop
from capsnmt.config import load_recipe
from capsnmt.data.batches import BatchStream
from capsnmt.data.prepare import load_store, prepare
from capsnmt.text.pipeline import TextPipeline

def megabytes():
    status = open("/proc/self/status").read()
    found = dict(re.findall(r"^(VmRSS|RssAnon):\\s+(\\d+) kB", status, re.MULTILINE))
    resident, anonymous = (round(int(found[name]) * 1024 / 1e6) for name in ("VmRSS", "RssAnon"))
    return {"resident_mb": resident, "anonymous_mb": anonymous}

imported_s = time.perf_counter()
config = load_recipe(sys.argv[1])
folder = prepare(config, progress=False)
text = TextPipeline.load(folder, config.text)
store = load_store(folder).train
opened_s = time.perf_counter()
stream = BatchStream(store, batch_tokens=config.training.batch_tokens, seed=1, pipeline=text)
next(stream)
first_s = time.perf_counter()
at_first = megabytes()
for _ in range(1000):
    next(stream)
thousand_s = time.perf_counter()
stream.close()
times_s = {
    "import_s": imported_s - start_s,
    "open_s": opened_s - imported_s,
    "shuffle_and_first_batch_s": first_s - opened_s,
    "all_to_the_first_batch_s": first_s - start_s,
    "next_1000_batches_s": thousand_s - first_s,
}
print(json.dumps({**times_s, "at_first_batch": at_first, "after_1001_batches": megabytes()}))
"""


@dataclass
class Watched:
    """What a command wrote, how long it took and how much memory it and its children held at most."""

    output: str = ""
    errors: str = ""
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    resident_bytes: int = 0
    anonymous_bytes: int = 0
    processes: int = 0
    peak_after: str = ""  # the last line of the log when memory was at its peak
    peak_processes: list[int] = field(default_factory=list)  # resident bytes of each at that moment


def process_tree(root: int) -> list[int]:
    """The ids of a process and of all that descend from it."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it has ended meanwhile
        parents.setdefault(parent, []).append(int(stat.parent.name))
    tree, position = [root], 0
    while position < len(tree):
        tree += parents.get(tree[position], [])
        position += 1
    return tree


def memory(process: int) -> tuple[int, int]:
    """Resident and anonymous bytes of a process; none if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0, 0
    values = dict(re.findall(r"^(VmRSS|RssAnon):\s+(\d+) kB", status, re.MULTILINE))
    return 1024 * int(values.get("VmRSS", 0)), 1024 * int(values.get("RssAnon", 0))


def cpu_s(process: int) -> float:
    """CPU seconds of a process and of its children that have ended; none if it has ended itself."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def children_cpu_s() -> float:
    """Of the children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def watch(command: list[str], folder: Path, cores: int | None = None, kill_after_s: float | None = None) -> Watched:
    """Runs a command to its end, or kills it, and samples its memory; `cores` limits it to so many."""
    watched = Watched()
    with tempfile.TemporaryFile("w+", dir=folder) as output, (folder / "log").open("w+") as errors:
        start_s, start_cpu_s = time.perf_counter(), children_cpu_s()
        usable = sorted(os.sched_getaffinity(0))[:cores]
        limit = partial(os.sched_setaffinity, 0, usable)
        process = subprocess.Popen(command, stdout=output, stderr=errors, preexec_fn=limit)
        while process.poll() is None:
            tree = process_tree(process.pid)
            each = [memory(process) for process in tree]
            resident, anonymous = (sum(sizes) for sizes in zip(*each, strict=True))
            watched.processes = max(watched.processes, len(tree))
            watched.anonymous_bytes = max(watched.anonymous_bytes, anonymous)
            if resident > watched.resident_bytes:
                watched.resident_bytes = resident
                watched.peak_processes = [size for size, _ in each]
                watched.peak_after = ((folder / "log").read_text().splitlines() or [""])[-1]
            if kill_after_s is not None and time.perf_counter() - start_s > kill_after_s:
                watched.cpu_s = sum(map(cpu_s, tree))  # nobody will wait for its children, so the kernel forgets theirs
                process.kill()
                process.wait()
            time.sleep(SAMPLE_EVERY_S)
        watched.elapsed_s = time.perf_counter() - start_s
        watched.cpu_s = watched.cpu_s or children_cpu_s() - start_cpu_s
        for stream, name in ((output, "output"), (errors, "errors")):
            stream.seek(0)
            setattr(watched, name, stream.read())
    if process.returncode and not (kill_after_s is not None and process.returncode == -signal.SIGKILL):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{watched.errors}")
    return watched


def perturbed(words: list[str], rng: random.Random) -> str:
    """A line with a swap, a drop or a doubled word, and other digits."""
    place = rng.randrange(len(words))
    kind = rng.random()
    if kind < 0.4:
        other = rng.randrange(len(words))
        words[place], words[other] = words[other], words[place]
    elif kind < 0.7 and len(words) > 1:
        del words[place]
    else:
        words.insert(place, words[place])
    line = " ".join(words)
    return re.sub(r"\d", lambda _: str(rng.randrange(10)), line)


def repeated(text: ParallelText, pairs: int) -> Iterator[tuple[str, str]]:
    """So many pairs: the corpus as it is, then round after round perturbed."""
    rng = random.Random(1)
    written = 0
    while written < pairs:
        is_first = written == 0
        for source, target in read_pairs(text, ""):
            if not is_first and source.split() and target.split() and rng.random() < 0.95:
                source, target = perturbed(source.split(), rng), perturbed(target.split(), rng)
            yield source, target
            written += 1
            if written == pairs:
                return


def write_pairs(folder: Path, names: dict[str, str], pairs: Iterator[tuple[str, str]]) -> None:
    with ExitStack() as stack:
        files = []
        for file_name in names.values():
            raw = stack.enter_context((folder / file_name).open("wb"))
            binary = stack.enter_context(zstandard.ZstdCompressor(level=1).stream_writer(raw))
            files.append(stack.enter_context(io.TextIOWrapper(binary, encoding="utf-8", newline="\n")))
        for pair in pairs:
            for file, line in zip(files, pair, strict=True):
                file.write(line + "\n")


def write_recipe(folder: Path, name: str, texts: dict[str, dict[str, str]], args: argparse.Namespace) -> Path:
    recipe = {
        "languages": dict(zip(("source", "target"), args.languages.split("-"), strict=True)),
        "data": {
            "root": str(folder),
            **texts,
            "store": str(folder / name),
            "filters": {**FILTERS, "wrong_language": name.endswith("language")},
        },
        "text": {"subwords": {"vocabulary": args.vocabulary}},
        "model": {"system": "capsnmt"},
        "training": {"steps": 1, "learning_rate": 0.001},
        "output": str(folder / "model"),
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def rounded(watched: Watched, pairs: int) -> dict[str, object]:
    return {
        "seconds": round(watched.elapsed_s, 1),
        "pairs_per_s": round(pairs / watched.elapsed_s),
        "cpu_seconds": round(watched.cpu_s, 1),
        "pairs_per_cpu_s": round(pairs / watched.cpu_s),
        "resident_mb": round(watched.resident_bytes / MB),
        "anonymous_mb": round(watched.anonymous_bytes / MB),
        "processes": watched.processes,
        "resident_mb_of_each_at_peak": [round(size / MB) for size in watched.peak_processes],
    }


def measure_prepare(recipe: Path, pairs: int, cores: int | None, kill_after_s: float | None) -> dict[str, object]:
    folder = recipe.parent
    command = [sys.executable, "-m", "capsnmt", "prepare", str(recipe)]
    killed, first = {}, None
    if kill_after_s is not None:
        first = watch(command, folder, cores, kill_after_s)
        (left,) = folder.glob(f".{recipe.stem}.*.unfinished")  # it was killed in the middle
        ledger = json.loads((left / "unfinished.json").read_text("utf-8"))
        done = {key: sum(record["rows"] for record in ledger[key]) for key in ("texts", "shards")}
        killed = {
            "killed_after_s": kill_after_s,
            "resident_mb_before_the_kill": round(first.resident_bytes / MB),
            **done,
            "note": "seconds and rates are of both runs together, stages are of the second",
        }
    watched = watch(command, folder, cores)
    if first is not None:
        watched.elapsed_s += first.elapsed_s
        watched.cpu_s += first.cpu_s
    store = folder / recipe.stem
    size = sum(file.stat().st_size for file in store.iterdir())
    stages = [match for line in watched.errors.splitlines() if (match := STAGE.match(line))]
    return {
        "what": f"prepare, {recipe.stem}",
        **killed,
        **rounded(watched, pairs),
        "peak_after": watched.peak_after,
        "stages": {match["stage"]: round(int(match["pairs"]) / float(match["seconds"])) for match in stages},
        "stage_seconds": {match["stage"]: float(match["seconds"]) for match in stages},
        "store_mb": round(size / MB),
        "store_bytes_per_pair": round(size / pairs, 1),
        "train": json.loads((store / "store.json").read_text("utf-8"))["train"],
    }


def measure_first_batch(recipe: Path) -> dict[str, object]:
    watched = watch([sys.executable, "-c", FIRST_BATCH, str(recipe)], recipe.parent)
    found = json.loads(watched.output)
    return {
        "what": "first batch, as `capsnmt train` makes it, without its model",
        **{key: round(value, 2) if isinstance(value, float) else value for key, value in found.items()},
    }


def measure_doctor(recipe: Path, pairs: int) -> dict[str, object]:
    report = recipe.parent / "doctor.json"
    command = [sys.executable, "-m", "capsnmt", "doctor", str(recipe), "--json", str(report)]
    watched = watch(command, recipe.parent)
    kept = json.loads(report.read_text("utf-8"))["training_pairs_kept"]
    return {"what": f"doctor, {recipe.stem}", **rounded(watched, pairs), "kept": kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--source", required=True, help="a real corpus, plain, .gz or .zst")
    parser.add_argument("--target", required=True, help="its other side")
    parser.add_argument("--languages", default="en-de")
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--workers", type=int, help="as many cores as prepare may use, each with a worker")
    parser.add_argument(
        "--skip", nargs="*", default=[], choices=["prepare", "language", "doctor"], help="parts that are left out"
    )
    parser.add_argument("--kill-after", type=float, metavar="S", help="kill the first prepare, and start it again")
    parser.add_argument("--folder", type=Path, help="where the corpus is written, kept and found again")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    real = ParallelText(source=args.source, target=args.target)
    records: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        start_s = time.perf_counter()
        last = list(read_pairs(real, ""))[-2 * HELD_OUT :]
        texts = {name: {side: f"{name}.{side}.zst" for side in SIDES} for name in ("train", "valid", "test")}
        written, wanted = folder / "written.json", {"pairs": args.pairs, "of": [args.source, args.target]}
        if not written.is_file() or json.loads(written.read_text("utf-8")) != wanted:  # writing millions takes a while
            write_pairs(folder, texts["train"], repeated(real, args.pairs))
            write_pairs(folder, texts["valid"], iter(last[:HELD_OUT]))
            write_pairs(folder, texts["test"], iter(last[HELD_OUT:]))
            written.write_text(json.dumps(wanted), encoding="utf-8")
        corpus_mb = sum((folder / name).stat().st_size for name in texts["train"].values()) / MB
        print(f"{args.pairs} pairs written in {time.perf_counter() - start_s:.0f} s, {corpus_mb:.0f} MB compressed")
        filtered = write_recipe(folder, "filters", texts, args)
        with_language = write_recipe(folder, "filters-and-language", texts, args)
        measures = {
            "prepare": [
                lambda: measure_prepare(filtered, args.pairs, args.workers, args.kill_after),
                lambda: measure_first_batch(filtered),
            ],
            "doctor": [lambda: measure_doctor(filtered, args.pairs)],
            "language": [lambda: measure_prepare(with_language, args.pairs, args.workers, None)],
        }
        for part, parts in measures.items():
            for measure in parts if part not in args.skip else []:
                records.append(measure())
                show(records[-1])
                if args.json:
                    args.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


def show(record: dict[str, object]) -> None:
    table = Table(title=str(record["what"]), title_justify="left", show_header=False)
    for key, value in record.items():
        if key != "what":
            table.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
