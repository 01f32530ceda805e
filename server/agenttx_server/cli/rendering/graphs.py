"""Graphs, what the compiler found, and what differs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import RenderableType

from agenttx.graph_records import GraphDifference, GraphFinding, GraphVersion, RegisteredGraph
from agenttx_server.cli.rendering.tables import cell, facts_grid, lined_table
from agenttx_server.cli.rendering.times import moment

__all__ = ["broken_table", "change_table", "finding_table", "version_facts", "version_table"]

SHOWN_VERSION = 13
"""Characters of a version in lists: enough to name it by."""


def version_table(graphs: Iterable[GraphVersion]) -> RenderableType:
    """Return versions as a table."""
    table = lined_table("NAME", "VERSION", "NODES", "CHANNELS", "SINCE", right=("NODES", "CHANNELS"))
    now = datetime.now(UTC)
    for graph in graphs:
        table.add_row(
            cell(graph.name),
            graph.version[:SHOWN_VERSION],
            str(graph.nodes),
            str(graph.channels),
            moment(graph.registered_at, now),
        )
    return table


def version_facts(kept: RegisteredGraph) -> RenderableType:
    """Return all that is known of a version."""
    graph = kept.graph
    return facts_grid(
        (
            ("name", graph.name),
            ("version", graph.version),
            ("description", graph.description),
            ("nodes", str(graph.nodes)),
            ("channels", str(graph.channels)),
            ("registered", moment(graph.registered_at, datetime.now(UTC))),
        )
    )


def finding_table(findings: Iterable[GraphFinding]) -> RenderableType:
    """Return findings as a table, in the order given."""
    table = lined_table("FINDING", "WHERE", "WHAT")
    for finding in findings:
        style = "red" if finding.is_error else "yellow"
        table.add_row(cell(finding.code, style), cell(finding.where), cell(finding.message))
    return table


def broken_table(difference: GraphDifference) -> RenderableType:
    """Return the threads that could not go on as a table."""
    table = lined_table("THREAD THAT COULD NOT GO ON", "NODES THAT ARE GONE", "WHY")
    for thread in difference.broken_threads:
        table.add_row(
            cell(thread.thread_id), cell(", ".join(thread.pending_nodes)), cell(thread.reason, "red")
        )
    return table


def change_table(difference: GraphDifference) -> RenderableType:
    """Return what differs as a table."""
    table = lined_table("CHANGE", "WHAT", "FIELDS", "BREAKS PENDING WORK")
    for change in difference.changes:
        table.add_row(
            change.kind.lower(), cell(change.what), ", ".join(change.fields), cell(change.reason, "red")
        )
    return table
