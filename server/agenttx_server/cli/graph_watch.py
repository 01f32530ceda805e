"""``agenttx graph watch``: events of runs as they happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_json_line, print_text, printable

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]


def add_to(group: typer.Typer) -> None:
    """Add the command."""
    group.command("watch")(connected(watch))


def watch(
    client: agenttx.Client,
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run; without it all runs, from now on.")
    ] = "",
    thread: Annotated[str, typer.Option("--thread", "-t", metavar="THREAD", help="On this thread.")] = "",
    graph: Annotated[str, typer.Option("--graph", "-g", metavar="NAME", help="Of this graph.")] = "",
    node: Annotated[str, typer.Option("--node", metavar="NODE", help="Of this node.")] = "",
    modes: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            "-m",
            metavar="values|updates|interrupts|custom|debug",
            help="What to see; may be repeated. Without it everything.",
        ),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only this kind, such as node.failed; may be repeated."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="NUMBER",
            help="The first event wanted: its offset in the run, or without a run its sequence.",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Also what a superstep under way does, as it does; it comes again when that ends."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Print events of runs, of one RUN past ones first, then as they happen, until it has completed.

    A run that waits or has failed is watched on: `graph resume` and `graph retry` go on with it. Ctrl-C ends it before.
    """
    from agenttx_server.cli.rendering.run_events import run_event_line

    wanted = [mode.upper() for mode in modes or ()]
    if "MESSAGES" in wanted:
        raise CommandRefused(
            "mode messages: nothing sends parts of texts; --mode custom --live tells what nodes emit",
            ExitCode.USAGE,
        )
    if not run:
        _say_what_is_missing(client, thread, graph)

    events = client.graphs.events(
        run=run,
        thread=thread,
        graph=graph,
        node=node,
        kinds=kinds or (),
        modes=wanted,
        from_offset=first if run else None,
        from_sequence=None if run else first,
        live=live,
    )
    for event in events:
        if as_json:
            print_json_line(event)
        else:
            print_text(run_event_line(event, of_one_run=bool(run)), wrap=False)


def _say_what_is_missing(client: agenttx.Client, thread: str, graph: str) -> None:
    """Say which of them isn't there: it may come, so it is no error to watch it, but it may be mistyped too."""
    from agenttx.errors import NotFound

    for kind, name, read in (("thread", thread, client.graphs.thread), ("graph", graph, client.graphs.get)):
        if name:
            try:
                read(name)
            except NotFound:
                typer.echo(f"There is no {kind} {printable(name)!r} yet; waiting for it.", err=True)
