"""Suites whose runs are finished."""

from __future__ import annotations

import pytest
from small_suites import suite_of, write_records

from capsnmt.analysis.records import counts_of_sentences, read_record, write_record
from capsnmt.analysis.results import collect
from capsnmt.analysis.runs import runs_of


@pytest.fixture
def compared(tmp_path):
    """compared(rows) → runs whose translations of 40 sentences are good or, in rows that are called so, bad."""
    data = tmp_path / "data"
    data.mkdir()
    references = [f"das ist der Satz Nummer {i} von vielen guten Sätzen" for i in range(40)]
    (data / "test.en").write_text("".join("x " * (i + 1) + "\n" for i in range(40)), encoding="utf-8")
    (data / "test.de").write_text("".join(line + "\n" for line in references), encoding="utf-8")
    test = {"source": "test.en", "target": "test.de", "tsv": None}

    def make(**rows):
        suite = suite_of(tmp_path, rows=rows, set={"data.test": test, "data.root": str(data)})
        runs = runs_of(suite)
        write_records(runs, {run.name: 40.0 if run.row.startswith("bad") else 90.0 for run in runs})
        for run in runs:
            lines = references
            if run.row.startswith("bad"):
                wrong = range(0, 20, 2)
                lines = [line.replace("guten", "b") if i in wrong else line for i, line in enumerate(references)]
            run.folder.parent.mkdir(exist_ok=True)
            run.translations.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            config = run.config().data
            reference = data / config.test.target
            sentences = counts_of_sentences(data / "test.en", run.translations, reference)
            write_record(run.record, {**read_record(run.record), "sentences": sentences})
        return suite, collect(runs)

    return make
