"""``agenttx audit``: verifies and exports the audit trail on the database itself, or asks a server."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from agenttx_server.cli.connection import Server, at_server, connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import DEFAULT_LIMIT, AsJson, Limit, first_of, say_there_are_more
from agenttx_server.cli.output import print_json, print_line, print_text, printable
from agenttx_server.cli.setting_flags import command_with_settings, given_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import agenttx
    from agenttx_server.audit.chain import AuditEntry

__all__ = ["add_to"]

_UNITS = {"m": 60, "h": 3600, "d": 86_400}

Remote = Annotated[
    bool,
    typer.Option(
        "--remote",
        help="Ask the server, as an operator or auditor of a tenant, and not the database. The connection flags say which.",
    ),
]


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    of_database = command_with_settings("data_dir", "database_url")
    for name, hidden in (("list", False), ("ls", True)):
        group.command(name, hidden=hidden)(connected(list_entries))
    group.command("verify", cls=of_database)(at_server(verify))
    group.command("export", cls=of_database)(at_server(export))


def list_entries(
    client: agenttx.Client,
    actor: Annotated[str, typer.Option(metavar="NAME", help="Only what this principal did.")] = "",
    owner: Annotated[str, typer.Option(metavar="NAME", help="Only what was done to this principal's.")] = "",
    action: Annotated[
        str,
        typer.Option(metavar="ACTION", help="Only this, such as step.approve; step. for all that begin so."),
    ] = "",
    subject: Annotated[str, typer.Option(metavar="ID", help="Only what was done to this.")] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only since then: 30m, 12h, 7d ago, or a time in ISO 8601.")
    ] = "",
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List who did what to what and when, of the caller's tenant; for operators and auditors.

    Chain by chain (on SQLite there is one), the oldest first.
    """
    entries, more = first_of(
        client.audit.entries(actor=actor, owner=owner, action=action, subject=subject, since=_since(since)),
        limit,
    )
    if as_json:
        print_json({"entries": entries, "more": more})
        return
    if not entries:
        print_line("No such entries.")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("TIME", "ACTOR", "ACTION", "SUBJECT", "OWNER"):
        table.add_column(heading, no_wrap=heading in ("TIME", "ACTION"), overflow="fold")
    for entry in entries:
        at = entry.occurred_at.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
        told = (entry.actor, entry.action, entry.subject, entry.owner)
        table.add_row(at, *map(printable, told))
    print_text(table)
    if more:
        say_there_are_more(limit)


def verify(
    server: Server,
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
    remote: Remote = False,
    as_json: AsJson = False,
) -> None:
    """Check that no entry of the trail was changed, removed, put in or moved; name the first that was.

    Prints the head of each chain. Keep it elsewhere and give it to a later check: that nothing was cut off at the end, or
    written anew from some entry on, shows against an earlier head alone.
    """
    if remote:
        if file is not None:
            raise CommandRefused("give FILE or --remote, not both", ExitCode.USAGE)
        with server.client() as client:
            found = client.audit.verify(head or ())
        _tell(
            found.entries,
            found.heads,
            [f"chain {one.chain} is broken at entry {one.sequence}: {one.problem}" for one in found.broken],
            as_json,
        )
        return
    from agenttx_server.audit.chain import ChainCheck, Head

    try:
        check = ChainCheck([Head.parse(text) for text in head or ()])
    except ValueError as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad
    with _of_file(file) if file is not None else _of_database(context) as entries:
        for entry in entries:
            check.take(entry)
    broken = [str(one) for one in check.end()]
    _tell(check.entries, [str(check.heads[chain]) for chain in sorted(check.heads)], broken, as_json)


def _tell(entries: int, heads: Sequence[str], broken: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json({"entries": entries, "heads": heads, "broken": broken})
    else:
        for one in heads:
            print_line(f"head {one}")
        if not broken:
            print_line(f"{entries} entries, nothing is broken.")
    if broken:
        raise CommandRefused("; ".join(broken), ExitCode.REFUSED)


def _since(text: str) -> datetime | None:
    if not text:
        return None
    ago = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CommandRefused(
            f"--since {text!r}: give 30m, 12h, 7d or a time in ISO 8601", ExitCode.USAGE
        ) from None


def export(server: Server, context: typer.Context, remote: Remote = False) -> None:
    """Write the whole trail to standard output, a JSON object a line, by chain and in order.

    With --remote it is the caller's tenant's entries alone: others' stand between them, so the file can't be verified.
    """
    if remote:
        with server.client() as client:
            for told in client.audit.entries(page_size=1000):
                line = {
                    "chain": told.chain,
                    "sequence": told.sequence,
                    "occurred_at": round(told.occurred_at.timestamp() * 1_000_000),
                    "actor": told.actor,
                    "owner": told.owner,
                    "action": told.action,
                    "subject": told.subject,
                    "detail": told.detail,
                    "hash": told.hash,
                }
                sys.stdout.write(orjson.dumps(line).decode() + "\n")
        return
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
