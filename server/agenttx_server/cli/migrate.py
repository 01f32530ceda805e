"""``agenttx migrate``: the database's schema, brought to this program's version."""

from __future__ import annotations

from typing import Annotated

import typer

from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_json, print_line
from agenttx_server.cli.setting_flags import command_with_settings, given_settings

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate", cls=command_with_settings("data_dir", "database_url"))(migrate)


def migrate(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Bring the database to this release's schema, creating it if it isn't there.

    A server does so itself when it starts; this is for doing it before. It is refused (exit code
    78) while a server uses the database, and if the database was made by a newer release.
    """
    from agenttx_server.settings import BadSettings, load_settings

    try:
        settings = load_settings(given_settings(context))
    except BadSettings as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad

    from agenttx_server.store import DatabaseRefused
    from agenttx_server.store import migrate as bring_to_head

    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        revision = bring_to_head(settings.database_url, lock_wait_seconds=5.0)
    except DatabaseRefused as refused:
        raise CommandRefused(str(refused), ExitCode.CANNOT_START) from refused
    except OSError as error:
        raise CommandRefused(
            f"can't make the directory {settings.data_dir}: {error.strerror}", ExitCode.CANNOT_START
        ) from error
    if as_json:
        print_json({"schema_version": revision})
    else:
        print_line(f"The database has schema version {revision}.")
