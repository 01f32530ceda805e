"""``agenttx token``: makes, lists and revokes bearer tokens, on the database itself."""

from __future__ import annotations

import os
import pwd
import re
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_json, print_line, print_text, printable
from agenttx_server.cli.rendering.times import moment
from agenttx_server.cli.setting_flags import command_with_settings, given_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agenttx_server.access.tokens import TokenRecord
    from agenttx_server.store import TokenTable

__all__ = ["add_to"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_SECONDS = 10 * 366 * 86_400


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    of_database = command_with_settings("data_dir", "database_url")
    group.command("create", cls=of_database)(create)
    group.command("list", cls=of_database)(list_tokens)
    group.command("revoke", cls=of_database)(revoke)


def create(
    context: typer.Context,
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="Who presents the token; what it makes is theirs.")
    ],
    role: Annotated[
        list[str],
        typer.Option(metavar="ROLE", help="agent, worker, operator or auditor; may be given several times."),
    ],
    tenant: Annotated[
        str, typer.Option(metavar="TENANT", help="Whose things the principal shares and sees; no others'.")
    ] = "default",
    tool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Of a worker: tools that it may offer, such as mail.*; may be given several times. Default: all.",
        ),
    ] = None,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="How long it is good: 12h, 30d, … or never.")
    ] = "90d",
    note: Annotated[str, typer.Option(metavar="TEXT", help="What it is for, shown in the list.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a token and print it: the only time that it is shown.

    Works on the database, whether or not a server uses it; servers know the token at once. Give it to clients as
    AGENTTX_TOKEN.
    """
    from agenttx_server.access.identity import ALL_TOOLS, roles_named
    from agenttx_server.access.tokens import make_token

    if tool and "worker" not in role:
        raise CommandRefused("--tool names what a worker may offer; give --role worker too", ExitCode.USAGE)
    now = _now()
    try:
        made = make_token(
            principal,
            roles_named(role),
            now=now,
            tenant=tenant,
            tools=tuple(tool) if tool else ALL_TOOLS,
            expires_at=_expiry(expires, now),
            note=note,
        )
    except ValueError as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad
    with _tokens(context) as tokens:
        tokens.add(made.record)
    if as_json:
        print_json({"token": made.token, **_json(made.record)})
        return
    print_line(made.token)
    typer.echo(
        f"Token {made.record.token_id} of {printable(principal)}; it is not shown again.",
        err=True,
    )


def list_tokens(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tokens of the database, revoked and expired ones too; never the tokens themselves."""
    with _tokens(context, makes=False) as tokens:
        records = tokens.all()
    if as_json:
        print_json([_json(record) for record in records])
        return
    if not records:
        print_line("No tokens.")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("ID", "PRINCIPAL", "ROLES", "TOOLS", "STATUS", "EXPIRES", "NOTE"):
        table.add_column(heading)
    now = _now()
    for record in records:
        table.add_row(
            record.token_id,
            printable(record.principal),
            ",".join(sorted(role.value for role in record.roles)),
            printable(" ".join(record.tools)),
            _status(record, now),
            "never" if record.expires_at is None else moment(_time(record.expires_at), _time(now)),
            printable(record.note),
        )
    print_text(table)


def revoke(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `token list` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a token for good. Servers refuse it within seconds, and end its open streams."""
    with _tokens(context, makes=False) as tokens:
        record = tokens.revoke(token_id, _now())
    if record is None:
        raise CommandRefused(f"there is no token {token_id!r}", ExitCode.REFUSED)
    if as_json:
        print_json(_json(record))
    else:
        print_line(f"Token {record.token_id} of {record.principal} is revoked.")


@contextmanager
def _tokens(context: typer.Context, *, makes: bool = True) -> Iterator[TokenTable]:
    """Open the tokens of the database; without ``makes`` one that is not there is refused, as it was mistyped."""
    from agenttx_server.settings import BadSettings, load_settings

    try:
        settings = load_settings(given_settings(context))
    except BadSettings as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad
    from agenttx_server.store import DatabaseRefused, open_tokens

    if not makes and _is_missing(settings.database_url):
        raise CommandRefused(
            f"there is no database {settings.database_url}; give the server's own --data-dir or --database-url",
            ExitCode.USAGE,
        )
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_tokens(settings.database_url, f"local:{_user()}") as tokens:
            yield tokens
    except DatabaseRefused as refused:
        raise CommandRefused(str(refused), ExitCode.CANNOT_START) from refused
    except OSError as error:
        raise CommandRefused(
            f"can't make the directory {settings.data_dir}: {error.strerror}", ExitCode.CANNOT_START
        ) from error


def _user() -> str:
    """Return the account that runs the command; its number where it has no name, as in containers."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _is_missing(database_url: str) -> bool:
    path = database_url.partition("///")[2]
    return database_url.startswith("sqlite") and path not in ("", ":memory:") and not Path(path).exists()


def _expiry(text: str, now: int) -> int | None:
    if text == "never":
        return None
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise ValueError(f"--expires {text!r}: give a time such as 12h or 30d, at most ten years, or never")
    return now + seconds * 1_000_000


def _status(record: TokenRecord, now: int) -> str:
    if record.revoked_at is not None:
        return "revoked"
    return "expired" if record.expires_at is not None and record.expires_at <= now else "good"


def _json(record: TokenRecord) -> dict[str, object]:
    return {
        "id": record.token_id,
        "principal": record.principal,
        "roles": sorted(role.value for role in record.roles),
        "tools": list(record.tools),
        "status": _status(record, _now()),
        "created_at": _stamp(record.created_at),
        "expires_at": _stamp(record.expires_at),
        "revoked_at": _stamp(record.revoked_at),
        "note": record.note,
    }


def _stamp(microseconds: int | None) -> str | None:
    return None if microseconds is None else _time(microseconds).isoformat()


def _time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def _now() -> int:
    return time.time_ns() // 1000
