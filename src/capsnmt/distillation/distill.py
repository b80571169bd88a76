"""Teacher and corpus → a new corpus. Read `distill` from top to bottom."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from capsnmt.config import LanguagesConfig
from capsnmt.data.corpus import read_lines
from capsnmt.distillation import MANIFEST, VERDICTS
from capsnmt.distillation.choosing import CHOICES, KEPT, Filters
from capsnmt.distillation.journal import JOURNALS, Shard, TranslationJournal, joined, journals_in
from capsnmt.distillation.output import (
    alone_with,
    check_nothing_is_overwritten,
    corpus_files,
    make_folder,
    write_line,
    written_whole,
)
from capsnmt.distillation.teachers import Teacher
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.manifest import sha256_of_file

Report = Callable[[int, int, float], None]  # lines done, lines in all, lines a second

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class DistillRequest:
    """What is distilled, and into what."""

    source: Path
    output: Path
    reference: Path | None = None  # what `choose: bleu` and `with_original` need
    languages: LanguagesConfig | None = None  # of a teacher that does not know its own
    shard: Shard | None = None  # translate this part only; without it the parts that are there are put together
    batch_lines: int = 256
    choose: str = "score"
    filters: Filters = field(default_factory=Filters)
    with_original: bool = False  # the original pairs follow the distilled ones

    @property
    def texts(self) -> list[Path]:
        """The files that are read."""
        return [path for path in (self.source, self.reference) if path is not None]

    @property
    def uses_reference(self) -> bool:
        """Whether the corpus depends on the reference."""
        return self.choose == "bleu" or self.with_original


def distill(teacher: Teacher, request: DistillRequest, report: Report = lambda *_: None) -> dict[str, Any] | None:
    """Translates what is missing, then writes the corpus and its manifest, which is returned; None after one shard."""
    languages = languages_of_corpus(teacher, request)
    if request.reference is None and request.uses_reference:
        raise CapsNMTError("choosing by BLEU, and adding the original pairs, need the references: give --reference")
    shards = shards_in(request.output, request.shard)
    written = [*corpus_files(request.output, languages), request.output / MANIFEST]
    check_nothing_is_overwritten(request.output, written, request.texts)
    total = count_pairs(request)
    about = {"teacher": teacher.about(), "source": {"lines": total, "sha256": sha256_of_file(request.source)}}
    make_folder(request.output)
    for shard in shards:
        translate_shard(teacher, request, shard, about, total, report)
    if request.shard is not None:
        _LOG.info("shard %s is translated; when all are, the same command without --shard joins them", request.shard)
        return None
    with alone_with(request.output / MANIFEST):
        return write_corpus(request, languages, about)


def languages_of_corpus(teacher: Teacher, request: DistillRequest) -> LanguagesConfig:
    """The teacher's own, or for one that does not know them those that are asked for."""
    asked, known = request.languages, teacher.languages
    languages = known or asked
    if languages is None:
        raise CapsNMTError("this teacher does not know its languages; give --languages, such as en-de")
    if asked not in (None, languages):
        raise CapsNMTError(
            f"--languages {asked}: the teacher translates {languages}; leave --languages out, or take another teacher"
        )
    if languages.source == languages.target:
        raise CapsNMTError(
            f"languages {languages}: both sides of the corpus would be one file, train.{languages.source}; give two "
            "languages, such as en-de"
        )
    return languages


def count_pairs(request: DistillRequest) -> int:
    """Lines of the source; its reference must have as many."""
    total = sum(1 for _ in read_lines(request.source))
    if request.reference is not None:
        references = sum(1 for _ in read_lines(request.reference))
        if references != total:
            raise CapsNMTError(
                f"{request.source} has {total} lines, {request.reference} has {references}; line n must go with line n"
            )
    if total == 0:
        raise CapsNMTError(f"{request.source} has no line; there is nothing to distil")
    return total


def shards_in(folder: Path, wanted: Shard | None = None) -> list[Shard]:
    """The one that is wanted; or all, if some processes have begun any; or one that holds everything."""
    names = [path.stem.split("-") for path in journals_in(folder)]
    counts = sorted({int(name[3]) for name in names})
    if len(counts) > 1:
        raise CapsNMTError(
            f"{folder} has parts of {' and '.join(map(str, counts))} shards; delete the translations-* of all numbers "
            "but one"
        )
    if wanted is not None and counts not in ([], [wanted.count]):
        raise CapsNMTError(
            f"--shard {wanted}: {folder} has translations in {counts[0]} shards, and those of different numbers cannot "
            f"be joined; write --shard i/{counts[0]}, or choose another --output"
        )
    count = counts[0] if counts else 1
    return [wanted] if wanted else [Shard(number, count) for number in range(1, count + 1)]


def translate_shard(
    teacher: Teacher, request: DistillRequest, shard: Shard, about: dict[str, Any], total: int, report: Report
) -> None:
    """Goes on behind the last line that the shard's journal holds."""
    journal = TranslationJournal(shard.file(request.output))
    with alone_with(journal.path):
        _translate_rest(teacher, request, shard, journal, journal.open(about), total, report)


def _translate_rest(
    teacher: Teacher,
    request: DistillRequest,
    shard: Shard,
    journal: TranslationJournal,
    done: int,
    total: int,
    report: Report,
) -> None:
    lines = (line for number, line in enumerate(read_lines(request.source)) if shard.holds(number))
    wanted = len(range(shard.number - 1, total, shard.count))
    if request.shard is None and shard.count > 1 and done < wanted:
        _LOG.warning(
            "shard %s has %d of its %d lines; the others are translated here, before all shards are joined",
            *(shard, done, wanted),
        )
    start_s, first = time.monotonic(), done
    for translations in teacher.translate_blocks(_blocks(itertools.islice(lines, done, None), request.batch_lines)):
        journal.append(translations)
        done += len(translations)
        report(done, wanted, (done - first) / max(time.monotonic() - start_s, 1e-9))


def write_corpus(request: DistillRequest, languages: LanguagesConfig, about: dict[str, Any]) -> dict[str, Any]:
    """Chooses, filters and mixes; the manifest comes last, so a folder that has one is complete."""
    shards = shards_in(request.output)
    files = corpus_files(request.output, languages)
    (request.output / MANIFEST).unlink(missing_ok=True)
    with written_whole(files) as (sources, targets, verdicts):
        counts = _write_distilled(request, shards, sources, targets, verdicts)
        if counts.total() != about["source"]["lines"]:
            raise CapsNMTError(
                f"{request.output} has translations of {counts.total()} lines, but {request.source} has "
                f"{about['source']['lines']}; run the same command again once nobody else writes there"
            )
        originals = _write_originals(request, sources, targets)
    _check_some_are_kept(request, counts)
    manifest = {
        **about,
        "reference": _about_reference(request),
        "languages": languages.model_dump(),
        "choose": request.choose,
        "filters": asdict(request.filters),
        "shards": len(shards),
        "verdicts": dict(sorted(counts.items())),
        "original_pairs": originals,
        "pairs": counts[KEPT] + originals,
        "files": {file.name: sha256_of_file(file) for file in files},
    }
    with written_whole([request.output / MANIFEST]) as (file,):
        write_line(file, json.dumps(manifest, indent=1, ensure_ascii=False))
    return manifest


def _about_reference(request: DistillRequest) -> dict[str, str] | None:
    if request.reference is None or not request.uses_reference:
        return None
    return {"file": str(request.reference), "sha256": sha256_of_file(request.reference)}


def _check_some_are_kept(request: DistillRequest, counts: Counter[str]) -> None:
    """Where no line stays, something is wrong with all of them; the verdicts are there to be looked at."""
    if counts[KEPT]:
        return
    told = ", ".join(f"{verdict} {count}" for verdict, count in counts.most_common())
    raise CapsNMTError(
        f"no line of {request.source} was kept ({told}), so there is no corpus. {request.output / VERDICTS} has the "
        f"verdict of each line, {request.output / JOURNALS} what the teacher wrote: does it translate from the "
        "language of this text? --max-ratio, --min-score, --keep-repetition and --keep-copies change what is left out"
    )


def _write_distilled(
    request: DistillRequest, shards: Sequence[Shard], sources: BinaryIO, targets: BinaryIO, verdicts: BinaryIO
) -> Counter[str]:
    """Writes the pairs that stay, and of every line what became of it. Returns how often each verdict was given."""
    journals = [TranslationJournal(shard.file(request.output)) for shard in shards]
    references = itertools.repeat(None) if request.reference is None else read_lines(request.reference)
    lines = zip(read_lines(request.source), references, joined(journals), strict=False)
    counts = Counter[str]()
    write_line(verdicts, "line\tverdict\tcandidate")
    for number, (source, reference, candidates) in enumerate(lines, start=1):
        chosen = CHOICES[request.choose](candidates, reference)
        candidate = None if chosen is None else candidates[chosen]
        verdict = request.filters.verdict(source, candidate)
        counts[verdict] += 1
        write_line(verdicts, f"{number}\t{verdict}\t{'' if chosen is None else chosen + 1}")
        if verdict == KEPT and candidate is not None:
            write_line(sources, source)
            write_line(targets, _without_line_ends(candidate.text))
    return counts


def _write_originals(request: DistillRequest, sources: BinaryIO, targets: BinaryIO) -> int:
    """Returns how many pairs these are."""
    if not request.with_original or request.reference is None:
        return 0
    originals = 0
    for source, target in zip(read_lines(request.source), read_lines(request.reference), strict=True):
        write_line(sources, source)
        write_line(targets, target)
        originals += 1
    return originals


def _without_line_ends(text: str) -> str:
    """A teacher's line break would misalign all that follows. Others that Unicode knows end no line of a corpus."""
    return " ".join(text.split("\n")).replace("\r", " ")


def _blocks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    while block := list(itertools.islice(lines, size)):
        yield block
