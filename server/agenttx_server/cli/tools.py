"""``agenttx tools``: what steps can call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.output import print_json, print_text

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tools")(connected(tools))


def tools(
    client: agenttx.Client,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only this tool, with its arguments in full.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: the tools with their JSON Schemas.")
    ] = False,
) -> None:
    """List the tools that steps can call: what they promise about their effects, and their arguments."""
    found = list(client.tools())
    if name is not None:
        found = [tool for tool in found if tool.name == name]
        if not found:
            raise CommandRefused(f"the server has no tool {name!r}; `agenttx tools` lists those it has")
    if as_json:
        print_json({"tools": found})
        return
    from agenttx_server.cli.rendering.tools import tool_details, tool_table

    print_text(tool_table(found) if name is None else tool_details(found[0]))
