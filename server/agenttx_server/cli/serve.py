"""``agenttx serve``: the server itself."""

from __future__ import annotations

import typer

from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.setting_flags import command_with_settings, given_settings

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", cls=command_with_settings())(serve)


def serve(context: typer.Context) -> None:
    """Serve transactions until SIGTERM or Ctrl-C, then let running steps end.

    A setting is taken from its flag, else from its variable, else it is the default. What isn't
    placed elsewhere (database, sandbox of the fs tools, outbox) lies in the data directory.

    Exit codes: 0 after an orderly end; 2 for a bad setting; 78 if it can't start as told (address in
    use, database refused, a directory that can't be made, a tool or a file of rules that can't be loaded).
    """
    from agenttx_server.settings import BadSettings, load_settings

    try:
        settings = load_settings(given_settings(context))
    except BadSettings as bad:
        raise CommandRefused(str(bad), ExitCode.USAGE) from bad

    from agenttx_server.main import run

    raise typer.Exit(run(settings))
