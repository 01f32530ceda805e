"""``agenttx graph``: check graphs, keep them, look at them, draw them, compare versions."""

from __future__ import annotations

import importlib
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.listing import DEFAULT_LIMIT, AsJson, Limit, first_of, say_there_are_more
from agenttx_server.cli.output import print_json, print_line, print_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import agenttx

__all__ = ["add_to"]


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="The graph: a file of JSON as `graph export` writes it, - for standard input, or module:object, "
        "a GraphBuilder.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The graph's name.")]
Version = Annotated[
    str,
    typer.Argument(
        metavar="VERSION", help="The version, or its first 8 or more characters; without it the newest."
    ),
]


class Form(StrEnum):
    """How a graph is written."""

    MERMAID = "mermaid"
    DOT = "dot"
    JSON = "json"


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    for name, hidden in (("list", False), ("ls", True)):
        group.command(name, hidden=hidden)(connected(list_graphs))
    for command in (validate, register, show, export, diff):
        group.command(command.__name__)(connected(command))


def list_graphs(
    client: agenttx.Client,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="List the versions of this graph, the newest first.")
    ] = "",
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """List registered graphs by name, each in its newest version; or the versions of one."""
    found = client.graphs.list(name)
    graphs, more = first_of(found, limit)
    if as_json:
        print_json({"graphs": graphs})
    elif not graphs:
        print_line("No such graphs." if name else "No graph is registered.")
    else:
        from agenttx_server.cli.rendering.graphs import version_table

        print_text(version_table(graphs))
        if more:
            say_there_are_more(limit)


def validate(client: agenttx.Client, source: Source, as_json: AsJson = False) -> None:
    """Check a graph without keeping it: everything that is wrong with it at once."""
    found = client.graphs.validate(_graph(source))
    if as_json:
        print_json(found)
    else:
        _print_findings(found.findings)
        print_line(f"sound; version {found.version}" if found.valid else "not sound")
    if not found.valid:
        raise CommandRefused("the graph is not sound", ExitCode.REFUSED)


def register(client: agenttx.Client, source: Source, as_json: AsJson = False) -> None:
    """Keep a graph. The same content again is the same version, and nothing happens."""
    kept = client.graphs.register(_graph(source), host=False).registered
    if as_json:
        print_json(kept)
        return
    _print_findings(kept.findings)
    state = "was registered before" if kept.existed else "registered"
    print_line(f"{kept.graph.name} {kept.graph.version} {state}")


def show(client: agenttx.Client, name: Name, version: Version = "", as_json: AsJson = False) -> None:
    """Show a registered graph: its version, what it has, what the compiler warns of."""
    kept = client.graphs.get(name, version).registered
    if as_json:
        print_json(kept)
        return
    from agenttx_server.cli.rendering.graphs import version_facts

    print_text(version_facts(kept))
    _print_findings(kept.findings)


def export(
    client: agenttx.Client,
    name: Name,
    version: Version = "",
    form: Annotated[
        Form, typer.Option("--format", "-f", metavar="json|mermaid|dot", help="How to write it.")
    ] = Form.JSON,
) -> None:
    """Write a registered graph as JSON, which can be registered again, or draw it."""
    print_line(client.graphs.export(name, form.upper(), version=version).rstrip("\n"))


def diff(
    client: agenttx.Client,
    name: Name,
    from_version: Annotated[
        str, typer.Argument(metavar="FROM", help="The version to compare from; without it the one before.")
    ] = "",
    to_version: Annotated[
        str, typer.Argument(metavar="TO", help="The version to compare with; without it the newest.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Say what differs between two versions, and what pending work the second one would break."""
    difference = client.graphs.diff(name, from_version, to_version)
    if as_json:
        print_json(difference)
    elif not difference.changes:
        only = not from_version and difference.from_version == difference.to_version
        print_line("There is one version only." if only else "No differences.")
    else:
        from agenttx_server.cli.rendering.graphs import change_table

        print_text(change_table(difference))
    if not as_json and difference.broken_threads:
        from agenttx_server.cli.rendering.graphs import broken_table

        print_text(broken_table(difference))
        if difference.next_threads_token:
            print_line("There are further threads, which were not looked at.")


def _print_findings(findings: Sequence[agenttx.GraphFinding]) -> None:
    if findings:
        from agenttx_server.cli.rendering.graphs import finding_table

        print_text(finding_table(findings))


def _graph(source: str) -> agenttx.GraphBuilder | str:
    if source == "-":
        return sys.stdin.read()
    path = Path(source)
    module, _, name = source.partition(":")
    if path.exists() or not name or not all(part.isidentifier() for part in module.split(".")):
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
            raise CommandRefused(f"can't read {source!r}: {reason}", ExitCode.USAGE) from error
    return _builder(module, name)


def _builder(module: str, name: str) -> agenttx.GraphBuilder:
    import agenttx

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise CommandRefused(
            f"can't load {module}:{name}: {type(error).__name__}: {reason}", ExitCode.USAGE
        ) from error
    if not isinstance(found, agenttx.GraphBuilder):
        raise CommandRefused(f"{module}:{name} is no GraphBuilder", ExitCode.USAGE)
    return found
