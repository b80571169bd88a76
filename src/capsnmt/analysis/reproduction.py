"""From a suite file to its report: trains what is missing, then writes Markdown, HTML, CSV and JSON."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from capsnmt import __version__
from capsnmt.analysis.evidence import Evidence, Figure, Route, Section, Table
from capsnmt.analysis.run_results import run_results
from capsnmt.analysis.running import absent_files, check_runs, check_teachers, due_runs, run_suite
from capsnmt.analysis.runs import Run, runs_of
from capsnmt.analysis.sections import SECTIONS
from capsnmt.analysis.suite import SectionConfig, SuiteConfig, chosen_rows
from capsnmt.errors import CapsNMTError
from capsnmt.planning.figures import GB, parse_devices

_STYLE = (
    "body{font:1rem/1.6 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;"
    "color:#111;background:#fff}"
    "table{border-collapse:collapse;margin:1rem 0;font-size:.9rem}td,th{border-bottom:1px solid #ccc;padding:.3em .7em;"
    "text-align:left}img{max-width:100%}code{background:#f3f3f3;padding:0 .2em}figcaption{color:#555;font-size:.9rem}"
    "@media(prefers-color-scheme:dark){body{background:#16181c;color:#e8e8e8}code{background:#2a2d33}img{background:#fff}}"
)


def reproduce(
    suite: SuiteConfig,
    route: Route,
    *,
    data: str | None = None,
    jobs: int = 1,
    only: Collection[str] = (),
    train: bool = True,
    measure: bool | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Trains and evaluates what is missing, or of it `only` some rows, and writes the report. Returns its folder."""
    if measure is None:  # with some rows alone, others are probably trained beside: no time for benchmarks
        measure = train and not only
    only = chosen_rows(suite, only)
    runs = runs_of(suite)
    for run in runs:
        run.check()  # nothing that was made with other settings is reported
    failed = run_suite(suite, data=data, jobs=jobs, only=only, say=say) if train else []
    evidence = Evidence(suite, runs, data, route, measures=measure)
    sections = sections_of(evidence)
    folder = write_report(evidence, sections)
    faults = [f"{len(failed)} runs failed: {', '.join(failed)}; their logs are in {suite.output}"] if failed else []
    faults += [f"{section.title!r} could not be made: {section.fault}" for section in sections if section.fault]
    if faults:
        raise CapsNMTError("\n".join([*faults, f"the report of all else is {folder}"]))
    return folder


def sections_of(evidence: Evidence) -> list[Section]:
    """All that the report consists of; a section that fails says so and costs no other."""
    wanted = evidence.suite.report or [SectionConfig(kind="table", title="Results")]
    return [*(_section(each, evidence) for each in wanted), _commands(evidence)]


def write_report(evidence: Evidence, sections: Sequence[Section]) -> Path:
    """The report of what is finished; runs that are not are named."""
    suite, folder = evidence.suite, evidence.suite.report_folder
    shutil.rmtree(folder / "figures", ignore_errors=True)  # of a report that had other sections
    (folder / "figures").mkdir(parents=True)
    for number, section in enumerate(sections):
        for block in section.blocks:
            if isinstance(block, Figure):
                (folder / "figures" / f"{number}-{block.name}.png").write_bytes(block.png)
    command = evidence.told(["capsnmt", "reproduce", suite.file, *(["--data", evidence.data] if evidence.data else [])])
    notes = [f"Made by `{command}`, capsnmt {__version__}."]  # no date: made again, it is the same
    missing = [run.name for run in evidence.runs if not run.is_done]
    notes += [f"Not finished: {', '.join(missing)}."] if missing else []
    (folder / "report.md").write_text(_markdown(suite.title, notes, sections), encoding="utf-8")
    (folder / "report.html").write_text(_html(suite.title, notes, sections), encoding="utf-8")
    results = run_results(evidence)
    made = {"title": suite.title, "command": command, "capsnmt": __version__, "not_finished": missing}
    data = {**made, "runs": results, "tables": _tables(sections)}
    (folder / "results.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "results.csv").write_text(_csv(results), encoding="utf-8")
    return folder


def plan_of(suite: SuiteConfig, data: str | None = None, only: Collection[str] = ()) -> list[dict[str, Any]]:
    """What `reproduce` would do, which refuses the same: every run, its updates and tokens, and whether it is done."""
    plan = []
    chosen, due = _chosen_and_due(suite, data, only)
    for run in chosen:
        training = run.config(data).training
        steps = 0 if run.outside is not None else training.steps
        tokens = steps * training.batch_tokens * training.accumulate
        processes = run.processes if steps else 1
        told = {"run": run.name, "updates": steps, "tokens": tokens, "processes": processes, "done": run not in due}
        plan.append(told)
    return plan


def absent_from(suite: SuiteConfig, data: str | None = None, only: Collection[str] = ()) -> str | None:
    """What `reproduce` would say here if files of the corpora are missing; a plan may be for another machine."""
    return absent_files(_chosen_and_due(suite, data, only)[1], data)


def _chosen_and_due(suite: SuiteConfig, data: str | None, only: Collection[str]) -> tuple[list[Run], list[Run]]:
    """The runs of some rows with the teachers that they need, and which of these are not done."""
    rows, runs = chosen_rows(suite, only), runs_of(suite)
    check_runs(runs, data)
    due = due_runs(runs, rows)
    check_teachers(due, data)
    return [run for run in runs if not rows or run.row in rows or run in due], due


def cost_of(
    suite: SuiteConfig,
    devices: str,
    data: str | None = None,
    only: Collection[str] = (),
    *,
    pairs: int | None = None,
) -> list[str]:
    """What its runs cost on such devices one after the other: hours, disk and their sums (docs/SCALING.md)."""
    from capsnmt.planning.plan import hours, plan  # brings torch

    lines, total_s, due_s, total_bytes = [], 0.0, 0.0, 0.0
    chosen, due = _chosen_and_due(suite, data, only)
    runs = [run for run in chosen if run.outside is None]
    first: dict[Path | None, Run] = {}  # student of each corpus: it pays, one that is still to do if there is any
    for run in sorted(runs, key=lambda run: run not in due):
        first.setdefault(run.distilled, run)
    plans = {run: plan(run.config(data), devices, pairs=pairs) for run in runs}
    for run in runs:
        own = plans[run]
        told = f"{run.name}: training {hours(own.training_s)}, {own.training_bytes / GB:.3g} GB of each device"
        told += "" if own.fits else ", MORE than it has"
        run_s = own.training_s
        total_bytes += own.model_bytes
        if run.teacher is not None and first[run.distilled] is run:
            taught = plan(run.teacher.config(data), devices, pairs=pairs, candidates=run.manner.best_of)
            told += f"; first its teacher's translations of {taught.pairs:,} sentences: {hours(taught.distilling_s)}"
            run_s += taught.distilling_s
            total_bytes += taught.journal_bytes + own.store_bytes
        total_s += run_s
        due_s += run_s if run in due else 0.0
        lines.append(told)
    stores = {run.config(data).data.store: plans[run].store_bytes for run in runs}
    total_bytes += sum(stores.values())
    count, device = parse_devices(devices)
    if count != suite.processes and not device.is_cpu:
        lines.append(f"to use {devices}, give `reproduce` there --processes {count}: the suite has {suite.processes}")
    lines.append(f"all of it on {devices}: {hours(total_s)}, {total_bytes / GB:,.0f} GB of disk")
    return [*lines, *([f"not done yet: {len(due)} of {len(chosen)} runs, {hours(due_s)}"] if due_s < total_s else [])]


def _section(config: SectionConfig, evidence: Evidence) -> Section:
    text = [config.text] if config.text else []
    if not evidence.rows(config):
        return Section(config.title, [*text, "None of its runs is finished."])
    try:
        return Section(config.title, [*text, *SECTIONS[config.kind](config, evidence)])
    except CapsNMTError as error:
        fault = evidence.without_folders(str(error))
        told = f"**Could not be made**: {fault}. The same `capsnmt reproduce` tries again and trains nothing twice."
        return Section(config.title, [*text, told], fault)


def _commands(evidence: Evidence) -> Section:
    """The commands behind every number."""
    lines: list[str | Table | Figure] = ["Each run is made by its commands, one after the other."]
    taught: set[Path] = set()
    for run in evidence.runs:
        if run.distilled is not None and run.distilled not in taught:
            taught.add(run.distilled)
            lines.append(_command_line(run.distilled.name, evidence.commands(run.teaching(evidence.data))))
        lines.append(_command_line(run.name, evidence.commands(run.commands(evidence.data))))
    return Section("Commands", lines)


def _command_line(name: str, commands: Sequence[str]) -> str:
    return f"{name}: " + ", ".join(f"`{command}`" for command in commands)


def _csv(runs: list[dict[str, Any]]) -> str:
    """What is one value; signatures and commands are in the JSON."""
    rows = [{key: value for key, value in run.items() if not isinstance(value, (dict, list))} for run in runs]
    text = io.StringIO()
    headings = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, headings, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _tables(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """The tables of the report, cells as they are shown: differences with interval and p among them."""
    return [
        {"title": section.title, "headings": block.headings, "rows": block.rows}
        for section in sections
        for block in section.blocks
        if isinstance(block, Table)
    ]


def _markdown(title: str, notes: Sequence[str], sections: Sequence[Section]) -> str:
    parts = [f"# {title}", *notes]
    for number, section in enumerate(sections):
        parts.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Table):
                lines = [block.headings, ["---"] * len(block.headings), *block.rows]
                parts.append("\n".join("| " + " | ".join(cells) + " |" for cells in lines))
            elif isinstance(block, Figure):
                parts.append(f"![{block.caption}](figures/{number}-{block.name}.png)")
            else:
                parts.append(block)
    return "\n\n".join(parts) + "\n"


def _html(title: str, notes: Sequence[str], sections: Sequence[Section]) -> str:
    """One file with everything in it."""
    body = [f"<h1>{html.escape(title)}</h1>", *(f"<p>{_inline(note)}</p>" for note in notes)]
    for section in sections:
        body.append(f"<h2>{html.escape(section.title)}</h2>")
        for block in section.blocks:
            if isinstance(block, Table):
                head = "".join(f"<th>{html.escape(cell)}</th>" for cell in block.headings)
                rows = "".join(
                    "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
                    for cells in block.rows
                )
                body.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
            elif isinstance(block, Figure):
                picture = base64.b64encode(block.png).decode()
                caption = html.escape(block.caption)
                body.append(
                    f'<figure><img alt="{caption}" src="data:image/png;base64,{picture}">'
                    f"<figcaption>{caption}</figcaption></figure>"
                )
            else:
                body.append(f"<p>{_inline(block)}</p>")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style>{''.join(body)}</html>\n"
    )


def _inline(text: str) -> str:
    """The two marks that our paragraphs use: **bold** and `code`."""
    pieces = html.escape(text).split("`")
    marked = "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))
    bold = marked.split("**")
    return "".join(f"<b>{piece}</b>" if number % 2 else piece for number, piece in enumerate(bold))
