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

from capsnmt.analysis.evidence import Evidence, Figure, Route, Section, Table
from capsnmt.analysis.results import collect
from capsnmt.analysis.running import run_suite
from capsnmt.analysis.sections import SECTIONS
from capsnmt.analysis.suite import Run, SectionConfig, SuiteConfig, chosen_rows, runs_of
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
    say: Callable[[str], None] = print,
) -> Path:
    """Trains and evaluates what is missing, or of it `only` some rows, and writes the report. Returns its folder."""
    measures = train and not only  # with some rows alone, others are probably trained beside: no time for benchmarks
    only = chosen_rows(suite, only)
    runs = runs_of(suite)
    for run in runs:
        run.check()  # nothing that was made with other settings is trained beside, or reported
    failed = run_suite(suite, data=data, jobs=jobs, only=only, say=say) if train else []
    sections = sections_of(Evidence(suite, runs, data, route, measures=measures))
    folder = write_report(suite, runs, sections)
    faults = [f"{len(failed)} runs failed: {', '.join(failed)}; their logs are in {suite.output}"] if failed else []
    faults += [f"{section.title!r} could not be made: {section.fault}" for section in sections if section.fault]
    if faults:
        raise CapsNMTError("\n".join([*faults, f"the report of all else is {folder}"]))
    return folder


def sections_of(evidence: Evidence) -> list[Section]:
    """All that the report consists of; a section that fails says so and costs no other."""
    wanted = evidence.suite.report or [SectionConfig(kind="table", title="Results")]
    return [*(_section(each, evidence) for each in wanted), _commands(evidence)]


def write_report(suite: SuiteConfig, runs: Sequence[Run], sections: Sequence[Section]) -> Path:
    """The report of what is finished; runs that are not are named."""
    folder = suite.report_folder
    shutil.rmtree(folder / "figures", ignore_errors=True)  # of a report that had other sections
    (folder / "figures").mkdir(parents=True)
    for number, section in enumerate(sections):
        for block in section.blocks:
            if isinstance(block, Figure):
                (folder / "figures" / f"{number}-{block.name}.png").write_bytes(block.png)
    missing = [run.name for run in runs if not run.is_done]
    note = f"Not finished: {', '.join(missing)}." if missing else ""
    (folder / "report.md").write_text(_markdown(suite.title, note, sections), encoding="utf-8")
    (folder / "report.html").write_text(_html(suite.title, note, sections), encoding="utf-8")
    rows = _flat_results(runs)
    (folder / "results.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "results.csv").write_text(_csv(rows), encoding="utf-8")
    return folder


def plan_of(suite: SuiteConfig, data: str | None = None) -> list[dict[str, Any]]:
    """What `reproduce` would do: every run, its updates and tokens, and whether it is done."""
    plan = []
    for run in runs_of(suite):
        training = run.config(data).training
        steps = 0 if run.outside is not None else training.steps
        tokens = steps * training.batch_tokens * training.accumulate
        processes = run.processes if steps else 1
        told = {"run": run.name, "updates": steps, "tokens": tokens, "processes": processes, "done": run.is_done}
        plan.append(told)
    return plan


def cost_of(suite: SuiteConfig, devices: str, data: str | None = None) -> list[str]:
    """What its runs cost on such devices one after the other: hours, disk and their sums (docs/SCALING.md)."""
    from capsnmt.planning.plan import hours, plan  # brings torch

    lines, total_s, total_bytes = [], 0.0, 0.0
    teachers: set[Run] = set()
    runs = [run for run in runs_of(suite) if run.outside is None]
    plans = {run.folder: plan(run.config(data), devices) for run in runs}
    for run in runs:
        own = plans[run.folder]
        told = f"{run.name}: training {hours(own.training_s)}, {own.training_bytes / GB:.3g} GB of each device"
        told += "" if own.fits else ", MORE than it has"
        total_s += own.training_s
        total_bytes += own.model_bytes
        if run.teacher is not None and run.teacher not in teachers:
            teachers.add(run.teacher)
            taught = plans[run.teacher.folder]
            told += f"; first its teacher's translations of {taught.pairs:,} sentences: {hours(taught.distilling_s)}"
            total_s += taught.distilling_s
            total_bytes += taught.journal_bytes + own.store_bytes
        lines.append(told)
    stores = {run.config(data).data.store: plans[run.folder].store_bytes for run in runs}
    total_bytes += sum(stores.values())
    count, device = parse_devices(devices)
    if count != suite.processes and not device.is_cpu:
        lines.append(f"to use {devices}, give `reproduce` there --processes {count}: the suite has {suite.processes}")
    return [*lines, f"all of it on {devices}: {hours(total_s)}, {total_bytes / GB:,.0f} GB of disk"]


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
        commands = {run.name: run.commands(evidence.data)}
        if run.distilled is not None and run.distilled not in taught:
            taught.add(run.distilled)
            commands = {run.distilled.name: run.teaching(evidence.data), **commands}
        for name, own in commands.items():
            lines.append(f"{name}: " + ", ".join(f"`{evidence.told(command.told)}`" for command in own))
    return Section("Commands", lines)


def _flat_results(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One flat record a run, for other programs."""
    rows = []
    for row in collect(runs).values():
        for run in row.runs:
            scores = {score["name"]: score["value"] for score in run["evaluation"]["scores"]}
            counts = {
                key: run.get(key)
                for key in ("row", "seed", "steps", "parameters", "tokens_per_s", "minutes", "threads", "finished")
            }
            greedy = {
                f"{s['name']}, beam 1": s["value"] for s in run.get("greedy", ()) if s["name"] in ("BLEU", "chrF2")
            }
            routing = {key: value for key, value in (run.get("routing") or {}).items() if key not in ("kind", "step")}
            valid = {f"valid_{key}": value for key, value in run.get("valid", {}).items()}
            rows.append({**counts, **valid, **scores, **greedy, **routing})
    return rows


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    headings = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, headings, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _markdown(title: str, note: str, sections: Sequence[Section]) -> str:
    parts = [f"# {title}", note] if note else [f"# {title}"]
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


def _html(title: str, note: str, sections: Sequence[Section]) -> str:
    """One file with everything in it."""
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(note)}</p>" if note else ""]
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
