"""Records, what became of them, and what does not hold of them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from agenttx.lineage_records import LineageBreach, Record, RecordEvent
from agenttx_server.cli.rendering.tables import cell, lined_table

__all__ = ["breach_table", "event_table", "record_table"]


def record_table(records: Iterable[Record]) -> RenderableType:
    """Return records as a table."""
    table = lined_table("RECORD", "ACTION", "PARENT", "ROOT", "STEP", "", right=("STEP",))
    for item in records:
        why = "" if item.unprocessed == "UNSPECIFIED" else item.unprocessed.lower()
        if item.blocked_by:
            why += f" by {item.blocked_by}"
        table.add_row(
            cell(item.target_id),
            cell(item.action),
            cell(item.parent_target_id or ""),
            cell(item.root_target_id),
            str(item.step_id or ""),
            cell(why),
        )
    return table


def event_table(events: Iterable[RecordEvent]) -> RenderableType:
    """Return what became of inputs as a table."""
    table = lined_table("INPUT", "ACTION", "EVENT", "WHY", "OUTPUTS", "")
    for item in events:
        why = " ".join(part for part in (item.reason, item.detail) if part)
        table.add_row(
            cell(item.input_id),
            cell(item.action),
            cell(str(item.type)),
            cell(why),
            cell(" ".join(item.outputs)),
            cell("rewound" if item.rewound else "", "dim"),
        )
    return table


def breach_table(breaches: Iterable[LineageBreach]) -> RenderableType:
    """Return what does not hold as a table."""
    table = lined_table("RECORD", "WHAT", "CODE")
    for item in breaches:
        table.add_row(cell(item.target_id), cell(item.message), cell(item.code, "dim"))
    return table
