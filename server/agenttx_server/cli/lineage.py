"""``agenttx lineage``: where records came from, what came of them, whether all holds, and their export."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import DEFAULT_LIMIT, AsJson, Limit, first_of, say_there_are_more
from agenttx_server.cli.output import print_json, print_line, print_text

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]


Record = Annotated[str, typer.Argument(metavar="RECORD", help="The record's target_id.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Drawn = Annotated[
    int, typer.Option("--limit", "-n", min=0, max=5000, metavar="COUNT", help="Draw at most so many.")
]
Transaction = Annotated[
    str,
    typer.Option("--tx", metavar="TRANSACTION", help="An open transaction whose records are read too."),
]


class TraceForm(StrEnum):
    """How a trace is drawn."""

    TREE = "tree"
    MERMAID = "mermaid"


class ExportForm(StrEnum):
    """How a run's lineage is written."""

    RECORDS = "records"
    PROV_JSON = "prov-json"
    OPENLINEAGE = "openlineage"


Form = Annotated[TraceForm, typer.Option("--as", help="How it is drawn.", case_sensitive=False)]


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    for command in (trace, descendants, siblings, records, events, verify, export):
        group.command(command.__name__)(connected(command))


def trace(
    client: agenttx.Client,
    record: Record,
    form: Form = TraceForm.TREE,
    limit: Drawn = 1000,
    transaction: Transaction = "",
    as_json: AsJson = False,
) -> None:
    """Draw what a record came of, through merges, groups and aggregation too."""
    _trace(client, record, "ANCESTORS", form, limit, transaction, as_json=as_json)


def descendants(
    client: agenttx.Client,
    record: Record,
    form: Form = TraceForm.TREE,
    limit: Drawn = 1000,
    transaction: Transaction = "",
    as_json: AsJson = False,
) -> None:
    """Draw what came of a record."""
    _trace(client, record, "DESCENDANTS", form, limit, transaction, as_json=as_json)


def siblings(
    client: agenttx.Client,
    record: Record,
    limit: Limit = DEFAULT_LIMIT,
    transaction: Transaction = "",
    as_json: AsJson = False,
) -> None:
    """List the records that have the parent of this one."""
    found = client.lineage.siblings(record, transaction_id=transaction, content=as_json)
    _list(found, limit, as_json=as_json)


def records(
    client: agenttx.Client,
    run: Run,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="The action; `source` for the rows.")],
    limit: Limit = DEFAULT_LIMIT,
    transaction: Transaction = "",
    as_json: AsJson = False,
) -> None:
    """List an action's records in a run."""
    found = client.lineage.records(run, action, transaction_id=transaction, content=as_json)
    _list(found, limit, as_json=as_json)


def events(
    client: agenttx.Client,
    record: Annotated[str, typer.Argument(metavar="RECORD", help="The record's target_id.")] = "",
    transaction: Annotated[
        str, typer.Option("--tx", metavar="TRANSACTION", help="All inputs of this transaction instead.")
    ] = "",
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """Say what became of a record in each action, in attempts that were rewound too."""
    from agenttx_server.cli.rendering.lineage import event_table

    if bool(record) == bool(transaction):
        raise CommandRefused("give a RECORD or --tx TRANSACTION", ExitCode.USAGE)
    events_found = client.lineage.events(target_id=record, transaction_id=transaction)
    found, more = first_of(events_found, limit)
    if as_json:
        print_json({"events": found})
    elif not found:
        print_line("No action took it as an input." if record else "No events.")
    else:
        print_text(event_table(found))
        if more:
            say_there_are_more(limit)


def verify(client: agenttx.Client, run: Run, as_json: AsJson = False) -> None:
    """Check what must always hold of the records of a run. Exit code 1 if something does not."""
    from agenttx_server.cli.rendering.lineage import breach_table

    found = client.lineage.verify(run)
    if as_json:
        print_json(found)
    else:
        if found.breaches:
            print_text(breach_table(found.breaches))
        said = "all holds" if found.is_sound else f"{found.breach_count} things do not hold"
        print_line(f"{found.records} records of {found.rows} rows: {said}")
    if not found.is_sound:
        raise typer.Exit(ExitCode.REFUSED)


def export(
    client: agenttx.Client,
    run: Run,
    form: Annotated[
        ExportForm, typer.Option("--as", help="How it is written.", case_sensitive=False)
    ] = ExportForm.RECORDS,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to this file.")
    ] = None,
    database: Annotated[
        Path | None,
        typer.Option(
            "--sqlite",
            metavar="FILE",
            help="Write the records to a SQLite file instead, in a table target_data(action_name, relative_path, data, "
            "record_count), data being a JSON array of records.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a file that is there.")] = False,
) -> None:
    """Write the lineage of a run for other programs: records, PROV-JSON, OpenLineage, or a SQLite file."""
    if database is not None:
        if output is not None or form is not ExportForm.RECORDS:
            raise CommandRefused("--sqlite goes with neither --as nor --output", ExitCode.USAGE)
        _written(database, force)
        count = _to_sqlite(database, _lines(client.lineage.export(run)))
        print_line(f"{count} records in {database}")
        return
    pieces = client.lineage.export(run, form.name)
    if output is None:
        for piece in pieces:
            sys.stdout.write(piece)
        sys.stdout.flush()
        return
    _written(output, force)
    scratch = output.with_name(f".{output.name}.part")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            for piece in pieces:
                file.write(piece)
        os.replace(scratch, output)
    finally:
        scratch.unlink(missing_ok=True)
    print_line(f"written to {output}")


def _trace(
    client: agenttx.Client,
    record: str,
    direction: str,
    form: TraceForm,
    limit: int,
    transaction: str,
    *,
    as_json: bool,
) -> None:
    lineage = client.lineage
    if as_json:
        print_json(lineage.trace(record, direction, max_records=limit, transaction_id=transaction))
        return
    drawn = lineage.draw(record, form.name, direction, max_records=limit, transaction_id=transaction)
    for line in drawn.splitlines():
        print_line(line)


def _list(found: Iterable[agenttx.Record], limit: int, *, as_json: bool) -> None:
    from agenttx_server.cli.rendering.lineage import record_table

    listed, more = first_of(found, limit)
    if as_json:
        print_json({"records": listed})
    elif not listed:
        print_line("No such records.")
    else:
        print_text(record_table(listed))
        if more:
            say_there_are_more(limit)


def _written(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise CommandRefused(f"{path} is there; --force replaces it", ExitCode.USAGE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandRefused(f"{path.parent} can't be made: {error}", ExitCode.USAGE) from error


def _lines(pieces: Iterator[str]) -> Iterator[str]:
    """The lines of a text that comes in pieces."""
    left = ""
    for piece in pieces:
        *whole, left = (left + piece).split("\n")
        yield from whole
    if left:
        yield left


def _to_sqlite(path: Path, lines: Iterator[str]) -> int:
    """Write records to a file of their own, whole or not at all; return how many."""
    scratch = path.with_name(f".{path.name}.part")
    scratch.unlink(missing_ok=True)
    count = 0
    try:
        with closing(sqlite3.connect(scratch)) as connection, connection:
            connection.execute(
                "CREATE TABLE target_data (action_name TEXT NOT NULL, relative_path TEXT NOT NULL, "
                "data TEXT NOT NULL, record_count INTEGER NOT NULL)"
            )
            connection.execute("CREATE INDEX ix_target_data ON target_data (action_name, relative_path)")
            for line in lines:
                record = json.loads(line)
                action, relative_path = record.pop("action"), record.pop("relative_path")
                record.pop("content_hash")
                data = json.dumps([record], ensure_ascii=False, separators=(",", ":"))
                connection.execute(
                    "INSERT INTO target_data VALUES (?, ?, ?, 1)", (action, relative_path, data)
                )
                count += 1
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    return count
