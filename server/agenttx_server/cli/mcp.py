"""``agenttx mcp``: transactions for clients that speak the Model Context Protocol."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import Server, at_server
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_line

if TYPE_CHECKING:
    from agenttx_server.mcp_server.client_configuration import ServerCommand

__all__ = ["add_to"]

TOKEN_VARIABLE = "AGENTTX_MCP_TOKEN"

_HTTP_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/\s]*):)?(?P<port>[0-9]{1,5})")


def add_to(group: typer.Typer) -> None:
    """Add the commands, and what the group does without one."""
    group.callback(invoke_without_command=True)(at_server(serve))
    group.command("config")(at_server(config))


def serve(
    server: Server,
    context: typer.Context,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve streamable HTTP there instead of stdin and stdout; PORT alone is on 127.0.0.1.",
        ),
    ] = None,
) -> None:
    """Serve transactions to clients that speak the Model Context Protocol, such as Claude.

    It speaks over stdin and stdout, as clients expect of a command that they start, or over streamable HTTP. It is a
    client of the AgentTx server, which must be running. On an address that others reach, callers need the bearer
    token in AGENTTX_MCP_TOKEN.
    """
    if context.invoked_subcommand is not None:
        if http is not None:
            raise CommandRefused("--http goes behind the command", ExitCode.USAGE)
        return
    listen = _host_and_port(http) if http is not None else None
    _require_extra()

    import asyncio
    import logging

    from agenttx_server.mcp_server.transports import CannotListen, is_loopback

    token = os.environ.get(TOKEN_VARIABLE, "")
    if listen is not None and not token and not is_loopback(listen[0]):
        raise CommandRefused(
            f"others reach {listen[0]}: set {TOKEN_VARIABLE} to a token that callers must send, or serve on 127.0.0.1",
            ExitCode.USAGE,
        )
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        asyncio.run(_serve(server, listen, token))
    except CannotListen as refused:
        raise CommandRefused(str(refused), ExitCode.CANNOT_START) from refused


async def _serve(server: Server, listen: tuple[str, int] | None, token: str) -> None:
    from importlib.metadata import version

    from agenttx_server.mcp_server.server import build_server
    from agenttx_server.mcp_server.transports import serve_http, serve_stdio

    async with server.async_client() as client:
        mcp = build_server(client, version("agenttx"))
        if listen is None:
            await serve_stdio(mcp)
        else:
            await serve_http(mcp, *listen, token)


def config(
    server: Server,
    client: Annotated[
        str,
        typer.Option(
            "--client",
            "-c",
            metavar="CLIENT",
            help="claude-desktop, claude-code, cursor, vscode or generic.",
        ),
    ] = "generic",
    http: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where `agenttx mcp --http` listens, instead of a command to start."
        ),
    ] = None,
) -> None:
    """Print ready configuration for an MCP client.

    What is to be copied goes to stdout, where to put it to stderr.
    """
    from agenttx_server.mcp_server.client_configuration import ClientName, configuration

    try:
        name = ClientName(client)
    except ValueError:
        raise CommandRefused(
            f"--client {client!r} is none of {', '.join(ClientName)}", ExitCode.USAGE
        ) from None
    if http is not None and not re.fullmatch(r"https?://\S+", http):
        raise CommandRefused(f"--http {http!r} is no URL such as http://127.0.0.1:8000/mcp", ExitCode.USAGE)
    made = configuration(name, _command(server, http))
    print_line(made.text)
    typer.echo(f"{made.place}.", err=True)
    if os.environ.get("AGENTTX_TOKEN") and http is None:
        typer.echo("AGENTTX_TOKEN is not printed: add it to the client's environment yourself.", err=True)


def _command(server: Server, url: str | None) -> ServerCommand:
    from agenttx_server.mcp_server.client_configuration import ServerCommand

    return ServerCommand(_program(), ["mcp", *server.flags()], url=url or "")


def _program() -> str:
    """Return this program with its path: clients are started by the desktop, with another PATH than this shell's."""
    beside = Path(sys.executable).with_name("agenttx")
    return str(beside) if beside.exists() else shutil.which("agenttx") or "agenttx"


def _host_and_port(text: str) -> tuple[str, int]:
    match = _HTTP_ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise CommandRefused(f"--http {text!r} is no address such as 127.0.0.1:8000", ExitCode.USAGE)
    return (match["host"] or "127.0.0.1").strip("[]"), int(match["port"])


def _require_extra() -> None:
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise CommandRefused(
            "this needs the extra mcp: pip install 'agenttx[server,mcp]'", ExitCode.CANNOT_START
        )
