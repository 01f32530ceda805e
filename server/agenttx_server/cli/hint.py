"""``agenttx hint``: what an agent would be told about an error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_json, print_line

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("hint")(hint)


def hint(
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say also the category, the keys and why: which rule matched what."),
    ] = False,
    hint_rules_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of own rules, TOML or JSON, tried before the built-in ones; serve takes the same.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: text, category, key and rule (or null).")
    ] = False,
) -> None:
    """Clean an error read from stdin into the one line that an agent is given.

    Any text will do: a stack trace, an error of a database, a response body. No server is needed.

    Example: psql -c 'insert …' 2>&1 | agenttx hint
    """
    from agenttx_server.engine import hints

    try:
        explained_by = (
            hints.explain if hint_rules_file is None else hints.load_cleaner(hint_rules_file).explain
        )
    except hints.FileRefused as refused:
        raise CommandRefused(str(refused), ExitCode.USAGE) from refused
    if sys.stdin.isatty():
        typer.echo("Paste the error, then end it with Ctrl-D.", err=True)
    raw = sys.stdin.buffer.read().decode("utf-8", "replace")
    found = explained_by(raw)
    key = found.hint.keys[0] if found.hint.keys else None
    if as_json:
        print_json(
            {"text": found.hint.text, "category": found.hint.category, "key": key, "rule": found.hint.rule}
        )
        return
    print_line(found.hint.text)
    if explain:
        print_line(f"category: {found.hint.category}")
        print_line(f"keys: {', '.join(found.hint.keys) or 'none'}")
        print_line(f"why: {found.why}")
