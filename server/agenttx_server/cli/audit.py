"""``agenttx audit``: verifies and exports the audit trail, on the database itself."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_json, print_line
from agenttx_server.cli.setting_flags import command_with_settings, given_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agenttx_server.audit.chain import AuditEntry

__all__ = ["add_to"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    of_database = command_with_settings("data_dir", "database_url")
    group.command("verify", cls=of_database)(verify)
    group.command("export", cls=of_database)(export)


def verify(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="An export to verify in place of the database."),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHAIN:SEQUENCE:HASH",
            help="A head printed earlier, that must still be there; may be given several times.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no entry of the trail was changed, removed, put in or moved; name the first that was.

    Prints the head of each chain. Keep it elsewhere and give it to a later check: that nothing was cut off at the end, or
    written anew from some entry on, shows against an earlier head alone.
    """
    from agenttx_server.audit.chain import ChainCheck, Head

    try:
        check = ChainCheck([Head.parse(text) for text in head or ()])
    except ValueError as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad
    with _of_file(file) if file is not None else _of_database(context) as found:
        for entry in found:
            check.take(entry)
    broken = check.end()
    heads = [str(check.heads[chain]) for chain in sorted(check.heads)]
    if as_json:
        print_json({"entries": check.entries, "heads": heads, "broken": [str(one) for one in broken]})
    else:
        for one in heads:
            print_line(f"head {one}")
        if not broken:
            print_line(f"{check.entries} entries, nothing is broken.")
    if broken:
        raise CommandRefused("; ".join(str(one) for one in broken), ExitCode.REFUSED)


def export(context: typer.Context) -> None:
    """Write the whole trail to standard output, a JSON object a line, by chain and in order."""
    with _of_database(context) as found:
        for entry in found:
            sys.stdout.write(orjson.dumps(entry.as_json()).decode() + "\n")


@contextmanager
def _of_file(path: Path) -> Iterator[Iterator[AuditEntry]]:
    from agenttx_server.audit.chain import AuditEntry

    try:
        with path.open("rb") as lines:
            yield (AuditEntry.from_json(line) for line in lines)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CommandRefused(f"{path} can't be read as an audit export: {why}", ExitCode.USAGE) from error


@contextmanager
def _of_database(context: typer.Context) -> Iterator[Iterator[AuditEntry]]:
    from agenttx_server.settings import BadSettings, load_settings

    try:
        settings = load_settings(given_settings(context))
    except BadSettings as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad
    from agenttx_server.store import DatabaseRefused, open_audit

    path = settings.database_url.partition("///")[2]
    if settings.database_url.startswith("sqlite") and not Path(path).exists():
        raise CommandRefused(
            f"there is no database {settings.database_url}; give the server's own --data-dir or --database-url",
            ExitCode.USAGE,
        )
    try:
        with open_audit(settings.database_url) as found:
            yield found
    except DatabaseRefused as refused:
        raise CommandRefused(str(refused), ExitCode.CANNOT_START) from refused
