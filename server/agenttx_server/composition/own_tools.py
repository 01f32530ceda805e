"""What the server runs itself: tools, reducers, files, secrets, and mounted MCP servers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from agenttx_server.composition.cannot_start import CannotStart
from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.file_keeping import FileKeeping
from agenttx_server.graphs.reducers import ReducerRegistry, load_reducers
from agenttx_server.http_hosts import HostPattern, parse_networks
from agenttx_server.http_secrets import Secrets, load_secrets
from agenttx_server.settings import Settings
from agenttx_server.store import SqlTransactionStore
from agenttx_server.tool_secrets import ToolSecrets, load_tool_secrets
from agenttx_server.tools import AnyTool, ToolRegistry, load_tools
from agenttx_server.tools.builtin import builtin_tools
from agenttx_server.tools.entry_points import installed_names, load_entry_points
from agenttx_server.tools.returning_undo import ReturningUndo
from agenttx_server.tools.tool_sources import ToolSource, tools_of

if TYPE_CHECKING:
    from agenttx_server.tools.mcp_client.mounted_servers import MountedServers

__all__ = [
    "attach",
    "files_of",
    "make_directories",
    "mounted_servers",
    "reducers_of",
    "registry_of",
    "tool_secrets",
]

PRIVATE_DIRECTORY = 0o700
MCP_START_SECONDS = 10.0
"""How long a start waits for MCP servers that are slow; it goes on without them, and they come later."""


def make_directories(settings: Settings) -> None:
    """Make the directories that are not there yet. Raises CannotStart."""
    files = (settings.fs_root,) if settings.fs_tools else ()
    for directory in (settings.data_dir, *files, settings.outbox_file.parent):
        try:
            directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotStart(f"can't make the directory {directory}: {error.strerror}") from error


def files_of(settings: Settings) -> FileKeeping | None:
    """Return the fs.* tools and what they keep, None without them. Raises CannotStart."""
    if not settings.fs_tools:
        return None
    try:
        return FileKeeping(settings.fs_root, settings.fs_backup_dir)
    except ValueError as error:
        raise CannotStart(str(error)) from error


async def attach(files: FileKeeping, store: SqlTransactionStore, settings: Settings) -> None:
    """Take the directories of files for the database. Raises CannotStart."""
    try:
        await files.attach(store, adopt=settings.fs_adopt)
    except ValueError as error:
        raise CannotStart(str(error)) from error
    except StoreUnavailable as error:
        raise CannotStart(f"the database did not answer: {error}") from error


def registry_of(settings: Settings, files: FileKeeping | None) -> ToolRegistry:
    """Return the tools that this server runs itself. Raises CannotStart, and the errors of loading tools."""
    builtin = builtin_tools(files.tools if files is not None else None)
    sources = [
        ToolSource("the built-in ones", [*builtin, *_http_tools(settings)]),
        *(ToolSource(f"--tools {name!r}", load_tools(name)) for name in settings.tools),
        *load_entry_points(settings.entry_point_tools),
    ]
    if not settings.entry_point_tools and (left_out := installed_names()):
        structlog.get_logger().info("installed tools are not served", entry_points=left_out)
    try:
        return ToolRegistry(tools_of(sources), blocking_threads=settings.tool_threads)
    except ValueError as error:
        raise CannotStart(str(error)) from error


def _http_tools(settings: Settings) -> list[AnyTool]:
    if not settings.http_allow:
        return []
    # Only now: most servers need no HTTP client.
    from agenttx_server.tools.http import HttpClient, HttpLimits, HttpTools

    limits = HttpLimits(
        allowed=tuple(map(HostPattern.parse, settings.http_allow)),
        private_networks=parse_networks(settings.http_private_networks),
        timeout_seconds=settings.http_timeout_seconds,
        response_bytes=settings.http_max_response_bytes,
        redirects=settings.http_max_redirects,
        ca_file=settings.http_ca_file,
    )
    honouring_keys = tuple(map(HostPattern.parse, settings.http_idempotent_hosts))
    try:
        secrets = load_secrets(settings.http_secrets_file) if settings.http_secrets_file else Secrets()
        return HttpTools(HttpClient(limits, secrets), secrets, honouring_keys).tools()
    except ValueError as error:
        raise CannotStart(str(error)) from error


def tool_secrets(settings: Settings) -> ToolSecrets:
    """Return the secrets that tools may be given. Raises FileRefused."""
    file = settings.tool_secrets_file
    return ToolSecrets() if file is None else load_tool_secrets(file)


def reducers_of(settings: Settings) -> ReducerRegistry:
    """Return the reducers of channels, built-in and own ones. Raises CannotStart."""
    loaded = dict.fromkeys(reducer for name in settings.reducers for reducer in load_reducers(name))
    try:
        return ReducerRegistry(loaded)
    except ValueError as error:
        raise CannotStart(str(error)) from error


async def mounted_servers(
    settings: Settings, stack: AsyncExitStack, own_tools: ToolRegistry, returning_undo: ReturningUndo
) -> MountedServers | None:
    """Return the MCP servers whose tools are served, started as far as they are quick; None without any. Raises CannotStart."""
    servers = settings.mcp_servers
    if not servers:
        return None
    for server in servers:
        own = next((t.name for t in own_tools.describe_all() if t.name.startswith(f"{server.name}.")), None)
        if own is not None:
            raise CannotStart(
                f"--mcp {server.name}=…: the server has a tool {own!r} itself; name the MCP server otherwise"
            )
    # Only now: most servers mount none, and the library is an extra.
    try:
        from agenttx_server.tools.mcp_client.mounted_servers import McpRulesRefused, MountedServers
    except ImportError as error:
        raise CannotStart(
            f"--mcp needs the extra mcp: pip install 'agenttx[server,mcp]' ({error})"
        ) from error
    mounted = MountedServers(
        servers,
        undo_wait_seconds=settings.undo_timeout_seconds / 2,
        on_undo_offered=returning_undo.offered,
    )
    stack.push_async_callback(mounted.stop)
    try:
        await mounted.start(MCP_START_SECONDS)
    except McpRulesRefused as refused:
        raise CannotStart(f"the rules for MCP servers don't fit: {refused}") from refused
    return mounted
