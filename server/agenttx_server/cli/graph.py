"""``agenttx tx graph``: which step used what of which other one."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from agenttx_server.cli.connection import connected
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.cli.output import print_json, print_line, print_text
from agenttx_server.cli.transaction_choice import TransactionArgument, chosen

if TYPE_CHECKING:
    import agenttx

__all__ = ["add_to"]


class GraphForm(StrEnum):
    """How the graph is drawn."""

    TREE = "tree"
    MERMAID = "mermaid"
    DOT = "dot"
    JSON = "json"


def add_to(group: typer.Typer) -> None:
    """Add the command."""
    group.command("graph")(connected(graph))


def graph(
    client: agenttx.Client,
    transaction: TransactionArgument,
    cause: Annotated[
        tuple[int, str] | None,
        typer.Option(metavar="STEP KEY", help="Mark where the value of this input of this step came from."),
    ] = None,
    form: Annotated[
        GraphForm, typer.Option("--format", "-f", metavar="tree|mermaid|dot|json", help="How to draw it.")
    ] = GraphForm.TREE,
    first: Annotated[int, typer.Option("--from", min=0, metavar="STEP", help="Only from this step on.")] = 0,
    last: Annotated[int, typer.Option("--to", min=0, metavar="STEP", help="Only up to this step.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Draw the dependency graph of the steps in force: a step each, and under it what it used.

    `2.id → customer_id` under a step says that its input customer_id is the id that step 2 returned.
    """
    form = GraphForm.JSON if as_json else form
    if cause is not None and form in (GraphForm.MERMAID, GraphForm.DOT):
        raise CommandRefused(f"--cause is drawn in a tree or given as JSON, not as {form}", ExitCode.USAGE)
    transaction_id = chosen(client, transaction)
    if form in (GraphForm.MERMAID, GraphForm.DOT):
        text = client.draw_dependency_graph(transaction_id, form.upper(), first_step=first, last_step=last)
        print_line(text.rstrip("\n"))
        return
    drawn = client.dependency_graph(transaction_id, first_step=first, last_step=last)
    root = None
    if cause is not None:
        root = client.find_root_cause(transaction_id, *cause)
        if root is None and form is GraphForm.TREE:
            typer.echo(
                f"No dependency of step {cause[0]} carries {cause[1]!r}: it has no root cause.\n", err=True
            )
    if form is GraphForm.JSON:
        print_json(
            {"transaction_id": transaction_id, "nodes": drawn.nodes, "edges": drawn.edges, "root_cause": root}
        )
    elif not drawn.nodes:
        print_line("No steps in force.")
    else:
        from agenttx_server.cli.rendering.graph import graph_tree

        print_text(graph_tree(drawn, root))
