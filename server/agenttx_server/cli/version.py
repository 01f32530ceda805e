"""``agenttx version``: which release this is."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

from agenttx_server.cli.output import print_json, print_line

__all__ = ["add_to", "print_version"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("version")(version)


def version(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say which release this is, and on which Python it runs."""
    if as_json:
        print_json({"version": _release(), "python": platform.python_version()})
    else:
        print_line(f"agenttx {_release()} (Python {platform.python_version()})")


def print_version(wanted: bool) -> None:
    """Print the release and end, if ``--version`` was given."""
    if wanted:
        print_line(f"agenttx {_release()}")
        raise typer.Exit


def _release() -> str:
    from importlib.metadata import version as version_of

    return version_of("agenttx")
