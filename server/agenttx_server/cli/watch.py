"""``agenttx tx watch``: a transaction's events as they happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.output import print_json_line, print_text
from agenttx_server.cli.transaction_choice import TransactionArgument, chosen

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]


def add_to(group: typer.Typer) -> None:
    """Add the command."""
    group.command("watch")(connected(watch))


def watch(
    client: agenttx.Client,
    transaction: TransactionArgument,
    first: Annotated[
        int,
        typer.Option(
            "--from", min=1, metavar="SEQUENCE", help="The first event wanted; the past ones come first."
        ),
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Print a transaction's events, past ones first, then as they happen, until it has ended.

    It ends by itself once the transaction has ended and its effects are settled; Ctrl-C ends it before.
    """
    from agenttx_server.cli.rendering.events import event_line

    for event in client.watch(chosen(client, transaction), from_sequence=first):
        if as_json:
            print_json_line(event)
        else:
            print_text(event_line(event), wrap=False)
