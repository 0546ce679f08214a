"""The command line: `delivermem run | fetch | judge | csv | status | show | figures | ranks | verify`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
Outputs = Annotated[Path | None, typer.Option(help="Folder of answers; default: data/outputs of this clone.")]


def _refuse(error: Exception, code: int = 2) -> NoReturn:
    """One sentence on stderr and an exit status: 2 for bad input, 1 for what failed while running."""
    typer.echo(f"delivermem: {error}", err=True)
    raise typer.Exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        from delivermem import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Retrieved but not delivered: measure what of a memory reaches the model."""


@app.command()
def run(
    experiment: Annotated[
        str, typer.Argument(help="decomposition, ladder, controls, adapter, errand, cost or frontier")
    ],
    benchmark: Annotated[
        str, typer.Option(help="mini-memlens …, or a fetched one: memlens-32k, dmv-5 …")
    ] = "mini-memlens",
    backbone: Annotated[
        str,
        typer.Option(
            help="A folder in data/models, a path, or owner/name@revision; default: the experiment's embedded model."
        ),
    ] = "",
    engine: Annotated[
        str, typer.Option(help="transformers, openai (a server at --url), or ray (over either).")
    ] = "transformers",
    url: Annotated[
        str, typer.Option(help="An OpenAI-compatible server, such as http://localhost:8000/v1.")
    ] = "",
    address: Annotated[
        str, typer.Option(help="A Ray cluster to join, such as auto; default: one of its own.")
    ] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Ray's actors; default: one a GPU.")] = None,
    quantization: Annotated[str, typer.Option(help="4bit, through bitsandbytes.")] = "",
    conditions: Annotated[str, typer.Option(help="Some of the conditions, by commas.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="The first N questions only.")] = None,
    k: Annotated[int | None, typer.Option(min=1, help="Records delivered per question.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts at once; of a server, in flight.")] = 16,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer in tokens; default: the benchmark's.")
    ] = None,
    outputs: Outputs = None,
    fresh: Annotated[bool, typer.Option(help="Ask again, whatever is cached.")] = False,
    dry_run: Annotated[
        bool, typer.Option(help="Say the whole plan and what is missing; load nothing.")
    ] = False,
) -> None:
    """Answer what is missing of EXPERIMENT; a second run makes no model call."""
    from delivermem import backbones, experiments, planning, runner

    names = [name.strip() for name in conditions.split(",") if name.strip()] or None
    try:
        grid = experiments.find(experiment)
        experiments.chosen(grid, names)
        named = backbone or grid.backbone
        wanted: dict[str, Any] = dict(conditions=names, limit=limit, k=k, outputs=outputs)
        longest = max_new_tokens or experiments.longest(experiment, benchmark)
        common: dict[str, Any] = dict(
            quantization=quantization or None,
            image_tokens=experiments.image_tokens(benchmark),
            max_new_tokens=longest,
        )
        if dry_run:
            server: dict[str, Any] = dict(engine="openai", url=url) if engine == "openai" or url else {}
            plan = planning.plan_text(
                experiment,
                benchmark,
                named,
                model=backbones.load(named, **server, **common),
                url=url,
                quantization=quantization,
                max_new_tokens=longest,
                fresh=fresh,
                **wanted,
            )
            _say(plan)
            return
        model = backbones.load(
            named,
            engine=engine,
            url=url or None,
            address=address or None,
            workers=workers,
            batch_size=batch_size,
            **common,
        )
        runner.run(experiment, benchmark=benchmark, backbone=model, fresh=fresh, say=_say, **wanted)
    except (ValueError, OSError) as error:
        _refuse(error)


@app.command()
def fetch(
    what: Annotated[str, typer.Argument(help="memlens, dmv, or memlens-judge")],
    length: Annotated[str, typer.Option(help="Of memlens: 32k, 64k, 128k or 256k.")] = "32k",
    source: Annotated[
        Path | None, typer.Option("--from", help="A folder that has the published files already.")
    ] = None,
) -> None:
    """Bring a published benchmark, at a pinned revision, into data/benchmarks; goes on where it was stopped."""
    from delivermem import hub

    try:
        if what == "memlens":
            hub.fetch_memlens(length, source=source, say=_say)
        elif what == "dmv":
            hub.fetch_dmv(source=source, say=_say)
        elif what == "memlens-judge":
            hub.fetch_judge(source=source, say=_say)
        else:
            raise ValueError(f"nothing is called {what!r}; fetch memlens, dmv or memlens-judge")
    except (ValueError, OSError) as error:
        _refuse(error)


@app.command()
def judge(
    benchmark: Annotated[str, typer.Argument(help="A benchmark with a judge: memlens-32k …")],
    backbone: Annotated[str, typer.Option(help="As its folder of answers is called, or the model's name.")],
    url: Annotated[str, typer.Option(help="The server of the judge, such as http://localhost:8000/v1.")] = "",
    model: Annotated[
        str, typer.Option(help="As the server calls it; default: the benchmark's own judge.")
    ] = "",
    experiment: Annotated[str, typer.Option(help="The answers of one experiment alone.")] = "",
    conditions: Annotated[str, typer.Option(help="Some of the conditions, by commas.")] = "",
    concurrency: Annotated[int, typer.Option(min=1, help="Calls in flight.")] = 8,
    closed: Annotated[bool, typer.Option(help="The released settings for a hosted, closed model.")] = False,
    local: Annotated[
        bool, typer.Option("--local-judge", help="By exact match, for smoke runs: not canonical.")
    ] = False,
    released_scoring: Annotated[
        bool, typer.Option(help="Two states, as the released code: no verdict counts as wrong.")
    ] = False,
    outputs: Outputs = None,
    fresh: Annotated[bool, typer.Option(help="Ask again, whatever is cached.")] = False,
) -> None:
    """Have answers judged by the benchmark's judge, each distinct one once; goes on where it was stopped."""
    from delivermem import memlens_judge, verdicts

    try:
        verdicts.judge_answers(
            benchmark,
            backbone,
            url=url,
            model=model or memlens_judge.MODEL,
            experiment=experiment or None,
            conditions=[name.strip() for name in conditions.split(",") if name.strip()] or None,
            outputs=outputs,
            concurrency=concurrency,
            closed=closed,
            local=local,
            released_scoring=released_scoring,
            fresh=fresh,
            say=_say,
        )
    except (ValueError, OSError) as error:
        _refuse(error)


@app.command()
def csv(
    benchmark: Annotated[str, typer.Argument(help="A benchmark of errands: dmv-5, mini-errand-10 …")],
    backbone: Annotated[str, typer.Option(help="As its folder of answers is called.")],
    outputs: Outputs = None,
    to: Annotated[
        Path | None, typer.Option(help="The folder of the files; default: results/<benchmark>/<backbone>.")
    ] = None,
) -> None:
    """Write DMV-Bench's own two tables of an errand's answers: a line a probe, and a line a system."""
    from delivermem import dmv_csv

    try:
        for path in dmv_csv.write(benchmark, backbone, outputs=outputs, to=to):
            _say(str(path))
    except (ValueError, OSError) as error:
        _refuse(error)


def _say(text: str) -> None:
    typer.echo(text)
    sys.stdout.flush()


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False,
    outputs: Outputs = None,
) -> None:
    """The answers at hand, by benchmark, backbone and condition."""
    from delivermem import runs

    try:
        rows = runs.status(outputs)
    except (ValueError, OSError) as error:
        _refuse(error)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    elif not rows:
        typer.echo("no answers yet; make them with: delivermem run decomposition")
    else:
        _table(rows)


def _table(rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    cells = [names, *[[str(row[name]) for name in names] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    for row in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command()
def show(
    question: Annotated[str, typer.Argument(help="A question's id, such as q000-3.")],
    condition: Annotated[str, typer.Option(help="A condition of any experiment, such as gold-pixels.")],
    benchmark: Annotated[str, typer.Option()] = "mini-memlens",
    backbone: Annotated[str, typer.Option(help="As its folder of answers is called.")] = "tiny-qwen3-vl",
    outputs: Outputs = None,
    to: Annotated[
        Path | None, typer.Option(help="The page's file, or its folder; default: a file here.")
    ] = None,
) -> None:
    """Write what the model saw and said for QUESTION as one page of HTML; exit 1 if the answer does not hold."""
    from delivermem import show as pages

    try:
        seen = pages.find(question, condition, benchmark=benchmark, backbone=backbone, outputs=outputs)
        path = pages.write(seen, to)
    except (ValueError, OSError) as error:
        _refuse(error)
    typer.echo(path)
    for trouble in seen.troubles:
        typer.echo(f"delivermem: {trouble}", err=True)
    if seen.troubles:
        raise typer.Exit(1)


@app.command()
def figures(
    numbers: Annotated[
        list[str] | None, typer.Argument(help="Notebook numbers; default: all below 90.")
    ] = None,
    benchmark: Annotated[str, typer.Option(help="Draw another one's answers: memlens-32k, dmv-5 …")] = "",
    backbone: Annotated[str, typer.Option(help="Draw another model's answers, named as for run.")] = "",
    engine: Annotated[str, typer.Option(help="As for run; the server's address in OPENAI_BASE_URL.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="The first N questions only.")] = None,
    regenerate: Annotated[bool, typer.Option(help="Ask for what is missing first.")] = False,
) -> None:
    """Execute the notebooks from the cached answers: figures, tables and numbers anew. With options, copies of them are
    written to figures/<benchmark>--<backbone>."""
    from delivermem import answers, notebooks, readme

    given: dict[str, Any] = dict(
        benchmark=benchmark, backbone=backbone, engine=engine, limit=limit, regenerate=regenerate
    )
    given = {name: value for name, value in given.items() if value}
    try:
        paths = notebooks.find(numbers or ())
        place = answers.Setting(**given).figures
        if given and not place:
            raise ValueError("the embedded answers are made anew by: delivermem run EXPERIMENT --fresh")
    except ValueError as error:
        _refuse(error)
    failed = []
    for path in paths:
        started = time.monotonic()
        try:
            aside = notebooks.render(path, place / path.name, **given) if place else notebooks.execute(path)
        except notebooks.NotebookError as error:
            if not place:
                _refuse(error, 1)
            failed.append(str(error))
            continue
        _say(f"{place / path.name if place else path.name}: {time.monotonic() - started:.0f} s")
        if aside:
            typer.echo(aside, err=True)
    if failed:
        _refuse(RuntimeError("\n".join(failed)), 1)
    if place:
        return
    try:
        readme.refresh()
    except (ValueError, OSError) as error:
        _refuse(error)


@app.command()
def ranks() -> None:
    """Rank the shop's frames by their cues under every way of cutting them, and keep the ranks in data/ranks."""
    from delivermem import granularity

    try:
        _say(str(granularity.write()))
    except (ValueError, OSError) as error:
        _refuse(error)


@app.command()
def verify(outputs: Outputs = None) -> None:
    """Check every cached answer against its key, its prompt and the manifest; exit 1 if anything is off."""
    from delivermem import runs
    from delivermem.verify import verify as check

    try:
        problems = check(outputs)
    except (ValueError, OSError) as error:
        _refuse(error)
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    count = sum(row["answers"] for row in runs.status(outputs))
    if not count:
        _refuse(ValueError(f"{outputs or runs.data_dir() / 'outputs'} holds no answers to verify"))
    typer.echo(f"{count} answers verified")


if __name__ == "__main__":
    app()
