"""What a model is for: translating, measuring, exporting and serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from capsnmt import verbs, zoo
from capsnmt.cli.options import BulkEngine, DeviceName, Engine, Folder, Folders, Models, Workers, open_binary
from capsnmt.config import LengthPenaltyType, parse_language_pair
from capsnmt.data.corpus import read_lines
from capsnmt.decoding.translation import SamplingOptions, TranslateOptions
from capsnmt.errors import CapsNMTError


def translate(
    model: Models = None,
    input_: Annotated[Path, typer.Option("--input", "-i", help="File to translate; - is standard input.")] = Path("-"),
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; - is standard output.")] = Path("-"),
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; default: the model's.")] = None,
    length_penalty: Annotated[float | None, typer.Option(min=0.0, help="Exponent alpha.")] = None,
    length_penalty_type: Annotated[
        LengthPenaltyType | None, typer.Option(help="wu: ((5+n)/6)^alpha; len: n^alpha; default: the model's.")
    ] = None,
    coverage_penalty: Annotated[float | None, typer.Option(min=0.0, help="Factor beta (gnmt).")] = None,
    max_length_ratio: Annotated[
        float | None, typer.Option(min=0.1, help="Longest output in tokens, relative to the source.")
    ] = None,
    num_best: Annotated[int, typer.Option("--n-best", min=1, help="Translations per line (needs --format).")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of searching.")] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of sampling.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample among the k likeliest; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Sample among the likeliest with this mass.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 1,
    split: Annotated[
        bool, typer.Option("--split/--no-split", help="Translate a line of several sentences one by one.")
    ] = True,
    glossary: Annotated[
        Path | None, typer.Option(help="TSV of terms and their translations; a term alone stays as it is.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Every translation starts with this text.")] = "",
    format_: Annotated[str, typer.Option("--format", help="text, json (a line each) or nbest (Moses style).")] = "text",
    batch_lines: Annotated[int, typer.Option(min=1, help="Lines translated together when they are there.")] = 64,
    engine: BulkEngine = "auto",
    workers: Workers = None,
    selection: Annotated[
        bool, typer.Option("--selection/--no-selection", help="Use the exported lexicon, where there is one.")
    ] = True,
    device: DeviceName = "auto",
) -> None:
    """Translate line by line: one line in, one line out, flushed."""
    sampling = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed) if sample else None
    options = TranslateOptions(
        num_best=num_best,
        beam=beam,
        length_penalty=length_penalty,
        length_penalty_type=length_penalty_type,
        coverage_penalty=coverage_penalty,
        max_length_ratio=max_length_ratio,
        sampling=sampling,
        split=split,
        terms={} if glossary is None else verbs.read_glossary(glossary),
    )
    with open_binary(input_, "rb") as read, open_binary(output, "wb") as write:
        verbs.translate_stream(
            model or None,
            read,
            write,
            options=options,
            prefix=prefix,
            format_=format_,
            batch_lines=batch_lines,
            engine=engine,
            selection=selection,
            device=device,
            workers=workers,
        )


def evaluate(
    source: Annotated[Path, typer.Option("--source", "-s", help="Source text of the test set.")],
    reference: Annotated[Path, typer.Option("--reference", "-r", help="Its reference translation.")],
    model: Annotated[
        list[Path] | None, typer.Argument(help="A model folder; several are an ensemble.", show_default=False)
    ] = None,
    hypotheses: Annotated[Path | None, typer.Option(help="Score this file instead of translating.")] = None,
    name: Annotated[str | None, typer.Option(help="The system's name in the report, e.g. 'Buck et al. 2014'.")] = None,
    origin: Annotated[str | None, typer.Option(help="Where --hypotheses come from: a citation, an address.")] = None,
    languages: Annotated[str | None, typer.Option(help="Such as en-de; a model folder knows its own.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; default: the model's.")] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamples for the 95 % confidence; 0 = none.")] = 1000,
    split_compounds: Annotated[
        bool, typer.Option("--split-compounds", help="Add the paper's metric with hyphens split.")
    ] = False,
    moses: Annotated[
        bool,
        typer.Option("--moses", help="Model or --hypotheses have Moses tokens: cut the source, join what is scored."),
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
    engine: Engine = "auto",
    json_: Annotated[Path | None, typer.Option("--json", help="Write the report to this file; - is stdout.")] = None,
) -> None:
    """Translate a test set and score it: BLEU, chrF, the paper's metric, and BLEU by source length."""
    report, outputs = verbs.evaluate(
        list(read_lines(source)),
        list(read_lines(reference)),
        folder=model or None,
        hypotheses=None if hypotheses is None else list(read_lines(hypotheses)),
        languages=None if languages is None else parse_language_pair(languages),
        options=TranslateOptions(beam=beam),
        num_bootstrap=bootstrap,
        split_compounds=split_compounds,
        moses=moses,
        engine=engine,
        name=name,
        origin=origin,
    )
    if save is not None:
        with open_binary(save, "wb") as file:
            file.write("".join(line + "\n" for line in outputs).encode("utf-8"))
    text = json.dumps(report.to_dict(), indent=1, ensure_ascii=False)
    if json_ is not None and str(json_) == "-":
        typer.echo(text)
        return
    if json_ is not None:
        with open_binary(json_, "wb") as file:
            file.write(text.encode("utf-8") + b"\n")
    from capsnmt.evaluation.report import print_report  # brings sacreBLEU, which translating does not need

    print_report(report, Console())


def score(
    model: Folders,
    source: Annotated[Path, typer.Option("--source", "-s", help="Source text.")],
    target: Annotated[Path, typer.Option("--target", "-t", help="Its translations, to be scored.")],
    engine: Engine = "auto",
) -> None:
    """Print the log-probability of each given translation."""
    for log_prob in verbs.score(model, list(read_lines(source)), list(read_lines(target)), engine=engine):
        typer.echo(f"{log_prob:.6f}")


def export(
    model: Folder,
    precision: Annotated[Literal["int8", "fp32"], typer.Option(help="Of weights and arithmetic.")] = "int8",
    source: Annotated[Path | None, typer.Option("--source", "-s", help="Sentences to measure int8 on.")] = None,
    reference: Annotated[Path | None, typer.Option("--reference", "-r", help="Their reference translations.")] = None,
    sentences: Annotated[int, typer.Option(min=1, help="At most so many are translated.")] = 200,
    max_bleu_loss: Annotated[float, typer.Option(help="A larger loss of int8 in BLEU is refused.")] = 0.5,
    max_chrf_loss: Annotated[float, typer.Option(help="The same in chrF.")] = 0.5,
    min_speed_up: Annotated[float, typer.Option(help="int8 must be so many times as fast as fp32.")] = 1.0,
    selection: Annotated[
        bool, typer.Option("--selection", help="Learn a lexicon that selects each sentence's output words.")
    ] = False,
) -> None:
    """Write runtime/: graphs that translate without torch, verified before they are accepted."""
    from capsnmt.runtime.verify import Margins

    if (source is None) != (reference is None):
        raise CapsNMTError("give both --source and --reference, or neither to take the recipe's validation set")
    pairs = None
    if source is not None and reference is not None:
        lines = list(read_lines(source)), list(read_lines(reference))
        if len(lines[0]) != len(lines[1]):
            raise CapsNMTError(f"{source} has {len(lines[0])} lines, but {reference} has {len(lines[1])}")
        pairs = list(zip(*lines, strict=True))
    margins = Margins(bleu_loss=max_bleu_loss, chrf_loss=max_chrf_loss, speed_up=min_speed_up)
    manifest = verbs.export(
        model, precision=precision, pairs=pairs, max_sentences=sentences, margins=margins, selection=selection
    )
    typer.echo(json.dumps(manifest.verified))


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Exported model folders, or languages of models that ship.", show_default=zoo.DEFAULT),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 5000,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A name under which clients may call, besides localhost and addresses.")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="File of the hashes of API keys.")] = None,
    new_key: Annotated[str | None, typer.Option(metavar="NAME", help="Add a key to --keys, print it, exit.")] = None,
    require_key: Annotated[bool, typer.Option("--require-key", help="Nobody translates without a key.")] = False,
    key_url: Annotated[str | None, typer.Option(help="Where users get a key; shown to those without one.")] = None,
    char_limit: Annotated[int, typer.Option(min=1, help="Characters of a request.")] = 10_000,
    batch_limit: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 100,
    line_limit: Annotated[int, typer.Option(min=1, help="Lines of a request or a file.")] = 20_000,
    alternatives_limit: Annotated[int, typer.Option(min=0, help="Alternatives of a text.")] = 5,
    file_limit: Annotated[int, typer.Option(min=1, help="Bytes of a file.")] = 512 << 10,
    requests_per_minute: Annotated[int, typer.Option(min=0, help="Of a client without a key; 0: no limit.")] = 0,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds after which a request is given up.")] = 30.0,
    body_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for headers, and again for a body.")] = 20.0,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds for what is under way when told to stop.")] = 8.0,
    batch_lines: Annotated[int, typer.Option(min=1, help="Lines translated together; 1: no batching.")] = 32,
    batch_wait: Annotated[float, typer.Option(min=0.0, help="Milliseconds to wait for company.")] = 3.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the model; default: one per core.")] = None,
    metrics_token: Annotated[
        str | None, typer.Option(envvar="CAPSNMT_METRICS_TOKEN", help="Who asks for /metrics must show it.")
    ] = None,
    public_url: Annotated[str | None, typer.Option(help="What clients call this server, behind a proxy.")] = None,
    access_log: Annotated[bool, typer.Option("--access-log/--no-access-log", help="A line per request.")] = True,
) -> None:
    """Serve models over HTTP: LibreTranslate's API, our own, and a page to try them in."""
    if new_key is not None:
        typer.echo(verbs.new_key(keys, new_key))
        return
    verbs.serve(
        models,
        limits={
            "characters": char_limit,
            "items": batch_limit,
            "lines": line_limit,
            "alternatives": alternatives_limit,
            "file_bytes": file_limit,
            "body_bytes": max(1 << 20, 2 * file_limit),
            "requests_per_minute": requests_per_minute,
            "deadline_s": deadline,
            "body_s": body_timeout,
        },
        batching={"lines": batch_lines, "wait_s": batch_wait / 1000},
        host=host,
        port=port,
        allowed_hosts=tuple(allowed_host or ()),
        keys=keys,
        key_required=require_key,
        key_url=key_url,
        metrics_token=metrics_token,
        public_url=public_url,
        threads=threads,
        grace_s=grace,
        access_log=access_log,
    )
