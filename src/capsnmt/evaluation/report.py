"""Everything about one system's output on one test set, for a JSON file and for the eye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsnmt.config import LanguagesConfig
from capsnmt.evaluation.by_length import LengthRow, in_bins, longer_than
from capsnmt.evaluation.metrics import Score, bleu, chrf, paper_bleu, require_equal_counts


@dataclass(frozen=True)
class EvaluationReport:
    """Scores, scores by length and the plain counts that explain odd scores."""

    source_language: str
    target_language: str
    scores: list[Score]
    longer_than: list[LengthRow]
    in_bins: list[LengthRow]
    num_sentences: int
    num_empty_hypotheses: int  # although the source is not blank
    num_copied_sources: int  # left untranslated, word for word
    length_ratio: float | None  # words of all hypotheses / words of all references
    system: str | None = None  # what the row of a table is called
    origin: str | None = None  # where its translations come from: a citation, an address, a command

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for json.dumps."""
        return _plain(asdict(self))  # type: ignore[no-any-return]


def evaluate_outputs(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    languages: LanguagesConfig,
    num_bootstrap: int = 1000,
    split_compounds: bool = False,
) -> EvaluationReport:
    """Scores untokenised lines. `split_compounds` adds the compound-split paper BLEU beside the other two."""
    require_equal_counts({"sources": sources, "hypotheses": hypotheses, "references": references})
    scores = [
        bleu(hypotheses, references, num_bootstrap=num_bootstrap),
        chrf(hypotheses, references, num_bootstrap=num_bootstrap),
        paper_bleu(hypotheses, references, target_language=languages.target),
        # What the literature on Multi30k reports.
        paper_bleu(hypotheses, references, target_language=languages.target, lowercase=True),
    ]
    if split_compounds:
        scores.append(paper_bleu(hypotheses, references, target_language=languages.target, split_compounds=True))
    pairs = [(source.split(), hypothesis.split()) for source, hypothesis in zip(sources, hypotheses, strict=True)]
    reference_words = sum(len(reference.split()) for reference in references)
    return EvaluationReport(
        source_language=languages.source,
        target_language=languages.target,
        scores=scores,
        longer_than=longer_than(sources, hypotheses, references, num_bootstrap=num_bootstrap),
        in_bins=in_bins(sources, hypotheses, references, num_bootstrap=num_bootstrap),
        num_sentences=len(hypotheses),
        num_empty_hypotheses=sum(1 for source, hypothesis in pairs if source and not hypothesis),
        num_copied_sources=sum(1 for source, hypothesis in pairs if source and source == hypothesis),
        length_ratio=sum(len(hypothesis) for _, hypothesis in pairs) / reference_words if reference_words else None,
    )


def print_report(report: EvaluationReport, console: Console) -> None:
    """Three tables and a line of counts."""
    name = "" if report.system is None else f"{escape(report.system)}: "
    table = Table(title=f"{name}{report.source_language} → {report.target_language}, {report.num_sentences} sentences")
    for heading in ("score", "value", "95 %"):
        table.add_column(heading, no_wrap=True)
    table.add_column("signature", overflow="fold")
    for score in report.scores:
        table.add_row(score.name, f"{score.value:.2f}", _interval(score), score.signature)
    console.print(table)
    for title, rows in (("source words: more than", report.longer_than), ("source words: bins", report.in_bins)):
        console.print(_length_table(title, rows))
    ratio = "-" if report.length_ratio is None else f"{report.length_ratio:.3f}"
    console.print(
        f"length ratio {ratio}, empty hypotheses {report.num_empty_hypotheses}, "
        f"copied sources {report.num_copied_sources}"
    )
    if report.origin is not None:
        console.print(f"translations: {report.origin}", markup=False)


def _length_table(title: str, rows: Sequence[LengthRow]) -> Table:
    table = Table(title=title)
    for heading in ("words", "sentences", "BLEU", "95 %", "chrF2"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.label,
            str(row.count),
            "-" if row.bleu is None else f"{row.bleu.value:.2f}",
            "-" if row.bleu is None else _interval(row.bleu),
            "-" if row.chrf is None else f"{row.chrf.value:.2f}",
        )
    return table


def _interval(score: Score) -> str:
    return "-" if score.confidence is None else f"{score.confidence[0]:.2f}–{score.confidence[1]:.2f}"


def _plain(value: Any) -> Any:
    """Tuples become lists, so that a report read back from JSON equals the one written."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
