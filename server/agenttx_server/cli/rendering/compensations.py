"""Undo actions: as rows of a list, in full, and what a retry or a resolution came to."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import orjson
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from agenttx.records import Compensation, CompensationResult
from agenttx_server.cli.rendering.tables import cell, facts_grid, lined_table, lines_text, status_text
from agenttx_server.cli.rendering.times import moment

__all__ = ["compensation_details", "compensation_table", "settlement_report"]


def compensation_table(compensations: Iterable[Compensation], now: datetime) -> RenderableType:
    """Return undo actions as a table, in the order given."""
    numbers = ("ID", "STEP", "TRIES")
    table = lined_table("TRANSACTION", *numbers[:2], "UNDO", "STATE", "TRIES", "SINCE", right=numbers)
    table.columns[0].no_wrap = True
    for undo in compensations:
        table.add_row(
            cell(undo.transaction_id),
            cell(undo.compensation_id),
            _position(undo),
            Text("\n").join([cell(_action(undo)), *([cell(undo.hint, "yellow")] if undo.hint else [])]),
            status_text(undo.state),
            str(undo.tries),
            moment(undo.updated_at, now),
        )
    return table


def compensation_details(compensations: Iterable[Compensation], now: datetime) -> RenderableType:
    """Return undo actions one below the other, with everything that is known of them."""
    parts: list[RenderableType] = []
    for undo in compensations:
        heading = Text.assemble(
            (f"{undo.transaction_id}  {undo.compensation_id}", "bold"), "  ", status_text(undo.state)
        )
        facts = (
            ("undo", _action(undo)),
            ("step", f"{_position(undo)}, attempt {undo.attempt}, {undo.tool_name}"),
            ("arguments", orjson.dumps(undo.arguments).decode()),
            ("key", undo.idempotency_key),
            ("tries", str(undo.tries)),
            ("registered", moment(undo.registered_at, now)),
            ("changed", moment(undo.updated_at, now)),
            ("hint", undo.hint),
            ("error", lines_text(undo.raw_error.splitlines())),
            ("resolution", undo.resolution if undo.resolution != "UNSPECIFIED" else ""),
            ("note", undo.note),
        )
        parts += [heading, Padding(facts_grid(facts), (0, 0, 1, 2))]
    return Group(*parts)


def settlement_report(result: CompensationResult) -> RenderableType:
    """Return what a retry or a resolution came to."""
    undo = result.compensation
    parts: list[RenderableType] = [
        Text.assemble(
            f"Undo action {undo.compensation_id} ", status_text(undo.state), ": ", cell(_action(undo))
        )
    ]
    if undo.hint and undo.state == "FAILED":
        parts.append(cell(undo.hint, "yellow"))
    if result.rollback_incomplete:
        if result.pending_undo:
            following = result.pending_undo[0]
            parts.append(
                Text.assemble(
                    f"The agent has to do undo action {following.compensation_id} next: ",
                    cell(following.action),
                )
            )
        else:
            parts.append(Text("The rollback is still held by undo actions."))
    elif result.next_step_id:
        parts.append(
            Text(f"Nothing is held. Next step {result.next_step_id}, generation {result.generation}.")
        )
    else:
        parts.append(Text("Nothing is held. The transaction has ended."))
    return Group(*parts)


def _action(undo: Compensation) -> str:
    action = undo.action or f"(none) of {undo.tool_name}"
    if undo.by_agent:
        return f"{action}, by the agent"
    return f"{action}, late effect" if undo.late_effect else action


def _position(undo: Compensation) -> str:
    return f"{undo.step_id}.{undo.sub_step}" if undo.sub_step else str(undo.step_id)
