"""``agenttx pipeline``: check pipelines, keep them, run them over rows, and look at their runs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import DEFAULT_LIMIT, AsJson, Limit, first_of, say_there_are_more
from agenttx_server.cli.output import print_json, print_json_line, print_line, print_text

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]

# How much of why actions failed is told while a run goes on: rows looked at, and lines of each.
_EXPLAINED_ROWS = 5
_EXPLAINED_FAILURES = 5
# Rows of a run that has ended of which it is looked up whether actions failed.
_SEARCHED_ROWS = 100
_ROWS_ARE = "rows are a JSON object a line, or one JSON array"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Source = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="The pipeline: a file of YAML or JSON, or - for standard input."),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]


class PipelineForm(StrEnum):
    """How a pipeline is written."""

    MERMAID = "mermaid"
    TREE = "tree"
    JSON = "json"


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    for command in (validate, register, run, show, runs, follow, cancel):
        group.command(command.__name__)(connected(command))
    for name, hidden in (("list", False), ("ls", True)):
        group.command(name, hidden=hidden)(connected(list_pipelines))


def validate(client: agenttx.Client, source: Source, as_json: AsJson = False) -> None:
    """Say everything that is wrong with a pipeline. Exit code 1 if it can't run."""
    from agenttx_server.cli.rendering.pipelines import violation_table

    found = client.pipelines.validate(_text(source), default_name=_stem(source))
    if as_json:
        print_json(found)
    else:
        if found.violations:
            print_text(violation_table(found.violations))
        if found.valid:
            print_line(f"{found.name} can run: {' -> '.join(found.order)}")
    if not found.valid:
        raise typer.Exit(ExitCode.REFUSED)


def register(client: agenttx.Client, source: Source, as_json: AsJson = False) -> None:
    """Keep a pipeline, to be run by its name. The same content again is the same version."""
    kept = client.pipelines.register(_text(source), default_name=_stem(source))
    if as_json:
        print_json(kept)
    else:
        print_line(f"{kept.pipeline.name} {kept.pipeline.version}{' (as before)' if kept.existed else ''}")


def run(
    client: agenttx.Client,
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE", help="The name of a registered pipeline, or a file of YAML or JSON."
        ),
    ],
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--rows",
            "-r",
            metavar="FILE",
            help="The rows: a JSON object a line, or one JSON array; - reads standard input. May be repeated: rows are "
            "then of the input files that they come from.",
        ),
    ] = None,
    version: Annotated[
        str, typer.Option("--version", metavar="VERSION", help="This version of a registered one.")
    ] = "",
    request_id: Annotated[
        str,
        typer.Option(
            "--request-id", metavar="ID", help="The same id again is the same run, which is followed."
        ),
    ] = "",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Don't wait for the end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Run a pipeline over rows, and say how it comes on. Exit code 1 if a record or a row failed.

    The run belongs to the server once all rows are there: Ctrl-C ends the waiting alone, `pipeline follow` goes on with that.
    """
    chosen: str = _text(pipeline) if Path(pipeline).is_file() else pipeline
    name = _stem(pipeline) if chosen is not pipeline else ""
    rows = _rows(files or ["-"])
    if no_wait:
        _told(
            client.pipelines.start(chosen, rows, version=version, request_id=request_id, default_name=name),
            as_json=as_json,
        )
        return
    _follow(
        client,
        client.pipelines.stream(chosen, rows, version=version, request_id=request_id, default_name=name),
        as_json,
    )


def follow(
    client: agenttx.Client,
    run_id: Run,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Go on with an interrupted run, or follow one that is under way. Exit code 1 if a record or a row failed."""
    _follow(client, client.pipelines.follow(run_id), as_json)


def show(
    client: agenttx.Client,
    what: Annotated[str, typer.Argument(metavar="NAME|RUN", help="A pipeline's name, or a run's id.")],
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="Of a pipeline; without it the newest.")
    ] = "",
    form: Annotated[
        PipelineForm, typer.Option("--as", help="How a pipeline is written.", case_sensitive=False)
    ] = PipelineForm.TREE,
    as_json: AsJson = False,
) -> None:
    """Show a run: how many rows are through, and what each action did. Or show a registered pipeline."""
    from agenttx_server.cli.rendering.pipelines import pipeline_mermaid, pipeline_tree

    if _UUID.fullmatch(what):
        found = client.pipelines.get_run(what)
        _told(found, as_json=as_json, fails=False)
        if not as_json and any(did.failed for did in found.counts):
            _explain(client, what)
        if found.status.is_final and found.status != "COMPLETED":
            raise typer.Exit(ExitCode.REFUSED)
        return
    kept = client.pipelines.get(what, version)
    if as_json or form is PipelineForm.JSON:
        print_json(kept.definition if not as_json else kept)
    elif form is PipelineForm.MERMAID:
        print_line(pipeline_mermaid(kept.definition))
    else:
        print_line(f"{kept.pipeline.name} {kept.pipeline.version}")
        print_line(pipeline_tree(kept.definition))


def list_pipelines(
    client: agenttx.Client,
    name: Annotated[str, typer.Argument(metavar="NAME", help="List the versions of this one.")] = "",
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List registered pipelines in their newest versions, or the versions of one."""
    from agenttx_server.cli.rendering.pipelines import version_table

    found, more = first_of(client.pipelines.list(name), limit)
    if as_json:
        print_json({"pipelines": found})
    elif not found:
        print_line("No such pipeline." if name else "No pipeline is registered.")
    else:
        print_text(version_table(found))
        if more:
            say_there_are_more(limit)


def runs(
    client: agenttx.Client,
    pipeline: Annotated[str, typer.Option("--pipeline", metavar="NAME", help="Of this pipeline.")] = "",
    statuses: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help="With this status; may be repeated."),
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    from agenttx_server.cli.rendering.pipelines import run_table

    wanted = [status.upper() for status in statuses or ()]
    found, more = first_of(client.pipelines.runs(pipeline=pipeline, statuses=wanted), limit)
    if as_json:
        print_json({"runs": found})
    elif not found:
        print_line("No runs.")
    else:
        print_text(run_table(found))
        if more:
            say_there_are_more(limit, "newest")


def cancel(
    client: agenttx.Client,
    run_id: Run,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = "",
    as_json: AsJson = False,
) -> None:
    """Have a run begin no further row. Rows under way go on to their end, committed ones stay."""
    _told(client.pipelines.cancel(run_id, reason), as_json=as_json, fails=False)


def _follow(
    client: agenttx.Client,
    told: Iterator[agenttx.PipelineRun | agenttx.PipelineRowEnded],
    as_json: bool,
) -> None:
    from agenttx.pipeline_records import PipelineRun

    last: PipelineRun | None = None
    explained = 0
    for item in told:
        is_first = last is None
        if isinstance(item, PipelineRun):
            last = item
        if as_json:
            print_json_line(item)
        elif isinstance(item, PipelineRun):
            if is_first and not item.status.is_final:
                print_line(f"run {item.run_id}: {item.rows} rows")
        else:
            how = "committed" if item.committed else f"rolled back: {item.reason}"
            print_text(_plain(f"row {item.place} {how}"), wrap=False)
            # Of the first few only: a run may have a million rows that fail of the same.
            if item.committed and explained < _EXPLAINED_ROWS and any(did.failed for did in item.counts):
                explained += 1
                for why in _failures(client, item.transaction_id):
                    print_text(_plain(f"  {why}"), wrap=False)
    if last is None:
        raise CommandRefused("the server told of no run")
    if not as_json:
        _told(last, as_json=False)
    elif last.status != "COMPLETED":
        raise typer.Exit(ExitCode.REFUSED)


def _explain(client: agenttx.Client, run_id: str) -> None:
    """Say why actions failed, of the first rows that are kept."""
    explained = 0
    rows = client.lineage.records(run_id, "source", content=False)
    for row in islice(rows, _SEARCHED_ROWS):
        told = list(_failures(client, row.transaction_id))
        for why in told:
            print_text(_plain(f"transaction {row.transaction_id}: {why}"), wrap=False)
        explained += bool(told)
        if explained == _EXPLAINED_ROWS:
            break
    if not explained:
        print_line(
            "`agenttx lineage events --tx TRANSACTION` tells why actions failed in a row's transaction"
        )


def _failures(client: agenttx.Client, transaction_id: str) -> Iterator[str]:
    """Why actions failed in a transaction that was committed nevertheless; at most a few."""
    failed = (
        f"{event.action} failed: {event.detail}"
        for event in client.lineage.events(transaction_id=transaction_id)
        if event.type == "FAIL" and event.reason == "error" and not event.rewound
    )
    return islice(failed, _EXPLAINED_FAILURES)


def _told(run: agenttx.PipelineRun, *, as_json: bool, fails: bool = True) -> None:
    from agenttx_server.cli.rendering.pipelines import run_facts

    if as_json:
        print_json(run)
    else:
        print_text(run_facts(run))
    if fails and run.status.is_final and run.status != "COMPLETED":
        raise typer.Exit(ExitCode.REFUSED)


def _plain(text: str) -> Any:
    from agenttx_server.cli.rendering.tables import cell

    return cell(text)


def _text(source: str) -> str:
    """The text of a file, or of standard input."""
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandRefused(f"{source} can't be read: {_why_unread(error)}", ExitCode.USAGE) from error


def _why_unread(error: OSError | UnicodeDecodeError) -> str:
    return str(error) if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)


def _stem(source: str) -> str:
    """The name of a pipeline that has none: that of its file."""
    return "" if source == "-" else Path(source).stem


def _rows(files: Sequence[str]) -> Iterator[agenttx.PipelineRow]:
    """The rows of files, read as they are sent; of several, each with its file's name."""
    from agenttx.pipeline_records import PipelineRow

    for name in files:
        path = name if len(files) > 1 and name != "-" else ""
        if name == "-":
            yield from (PipelineRow(row, path) for row in _rows_of(sys.stdin, "standard input"))
            continue
        try:
            with Path(name).open(encoding="utf-8") as file:
                yield from (PipelineRow(row, path) for row in _rows_of(file, name))
        except (OSError, UnicodeDecodeError) as error:
            raise CommandRefused(f"{name} can't be read: {_why_unread(error)}", ExitCode.USAGE) from error


def _rows_of(file: TextIO, name: str) -> Iterator[Mapping[str, Any]]:
    first = True
    for number, line in enumerate(file, start=1):
        text = line.strip()
        if not text:
            continue
        if first and text.startswith("["):
            yield from _array(line + file.read(), name)
            return
        first = False
        yield _object(text, f"{name}, line {number}")


def _array(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise CommandRefused(f"{name} is no JSON: {error}; {_ROWS_ARE}", ExitCode.USAGE) from error
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise CommandRefused(f"{name}, item {place}: a row is a JSON object", ExitCode.USAGE)
        yield row


def _object(text: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise CommandRefused(f"{where} is no JSON: {error}; {_ROWS_ARE}", ExitCode.USAGE) from error
    if not isinstance(row, dict):
        raise CommandRefused(f"{where}: a row is a JSON object", ExitCode.USAGE)
    return row
