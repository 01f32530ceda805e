"""Ready configuration for MCP clients: what to put where, so that they start or find this server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ClientName", "Configuration", "ServerCommand", "configuration"]

NAME = "agenttx"


class ClientName(StrEnum):
    """Clients whose form of configuration is known; GENERIC is what most others read."""

    CLAUDE_DESKTOP = "claude-desktop"
    CLAUDE_CODE = "claude-code"
    CURSOR = "cursor"
    VSCODE = "vscode"
    GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How the server is started over stdio; or, with ``url``, where it listens already.

    ``environment`` holds no secrets: what is printed ends up in files that are shared.
    """

    command: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    url: str = ""


@dataclass(frozen=True, slots=True)
class Configuration:
    """``text`` is what to copy, ``place`` says where to."""

    text: str
    place: str


def configuration(client: ClientName, server: ServerCommand) -> Configuration:
    """Return the configuration for a client."""
    if client is ClientName.CLAUDE_CODE:
        return Configuration(_claude_code(server), "Run it in a terminal; it configures Claude Code")
    if client is ClientName.CLAUDE_DESKTOP and server.url:
        # Its file of settings starts commands only; what listens elsewhere is added in its own dialogue.
        return Configuration(
            server.url, "Add it in Claude Desktop under Settings, Connectors, as a custom connector"
        )
    entry = _entry(server, with_type=client is ClientName.VSCODE)
    key = "servers" if client is ClientName.VSCODE else "mcpServers"
    return Configuration(json.dumps({key: {NAME: entry}}, indent=2), _PLACES[client])


_PLACES = {
    ClientName.CLAUDE_DESKTOP: "Merge it into claude_desktop_config.json (Settings, Developer, Edit Config), then restart Claude Desktop",
    ClientName.CURSOR: "Merge it into .cursor/mcp.json of the project, or ~/.cursor/mcp.json",
    ClientName.VSCODE: "Merge it into .vscode/mcp.json of the workspace",
    ClientName.GENERIC: "Put it where the client keeps its MCP servers",
}


def _entry(server: ServerCommand, *, with_type: bool) -> dict[str, object]:
    if server.url:
        return {"type": "http", "url": server.url} if with_type else {"url": server.url}
    entry: dict[str, object] = {"type": "stdio"} if with_type else {}
    entry |= {"command": server.command, "args": list(server.arguments)}
    if server.environment:
        entry["env"] = dict(server.environment)
    return entry


def _claude_code(server: ServerCommand) -> str:
    if server.url:
        return shlex.join(["claude", "mcp", "add", "--transport", "http", NAME, server.url])
    variables = [
        word for name, value in (server.environment or {}).items() for word in ("--env", f"{name}={value}")
    ]
    return shlex.join(["claude", "mcp", "add", NAME, *variables, "--", server.command, *server.arguments])
