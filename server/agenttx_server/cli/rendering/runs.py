"""Runs, threads and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import orjson
from rich.console import Group, RenderableType
from rich.text import Text

from agenttx.run_records import Checkpoint, GraphRun, GraphThread, RunInterrupt, RunOutcome
from agenttx_server.cli.output import printable
from agenttx_server.cli.rendering.tables import cell, facts_grid, lined_table
from agenttx_server.cli.rendering.times import moment

__all__ = ["checkpoint_table", "outcome_facts", "run_table", "state_facts", "thread_table"]


def outcome_facts(outcome: RunOutcome) -> RenderableType:
    """Return how a run ended, with its state and what it waits for."""
    facts = [
        ("run", outcome.run_id),
        ("status", str(outcome.status)),
        ("thread", outcome.thread_id),
        ("nodes", ", ".join(outcome.visited_nodes)),
        ("next", ", ".join(outcome.next_nodes)),
    ]
    if outcome.error is not None:
        facts += [("reason", outcome.error.reason), ("hint", outcome.error.hint or outcome.error.message)]
    shown: list[RenderableType] = [facts_grid(facts)]
    if outcome.interrupts:
        shown.append(_interrupt_table(outcome.interrupts))
    if outcome.state:
        shown.append(_json_text(outcome.state))
    return Group(*shown)


def state_facts(checkpoint: Checkpoint) -> RenderableType:
    """Return a checkpoint with its state and what comes next."""
    facts = (
        ("checkpoint", checkpoint.checkpoint_id),
        ("branch", checkpoint.branch),
        ("superstep", str(checkpoint.superstep)),
        ("next", ", ".join(checkpoint.next_nodes)),
        ("rolled back", "yes" if checkpoint.rolled_back else ""),
    )
    asked = [interrupt for task in checkpoint.next for interrupt in task.interrupts]
    shown: list[RenderableType] = [facts_grid(facts)]
    if asked:
        shown.append(_interrupt_table(asked))
    return Group(*shown, _json_text(checkpoint.state))


def checkpoint_table(checkpoints: Iterable[Checkpoint]) -> RenderableType:
    """Return checkpoints as a table."""
    table = lined_table("CHECKPOINT", "STEP", "SOURCE", "BRANCH", "NEXT", "SINCE", right=("STEP",))
    table.columns[0].no_wrap = True
    now = datetime.now(UTC)
    for item in checkpoints:
        table.add_row(
            cell(item.checkpoint_id),
            str(item.superstep),
            str(item.source),
            cell(item.branch),
            cell(", ".join(item.next_nodes)),
            moment(item.created_at, now),
        )
    return table


def run_table(runs: Iterable[GraphRun]) -> RenderableType:
    """Return runs as a table."""
    table = lined_table("RUN", "GRAPH", "THREAD", "STATUS", "STEPS", "ACTIVE", "SINCE", right=("STEPS",))
    table.columns[0].no_wrap = True
    now = datetime.now(UTC)
    for run in runs:
        table.add_row(
            cell(run.run_id),
            cell(run.graph),
            cell(run.thread_id),
            str(run.status),
            str(run.total_supersteps),
            cell(", ".join(run.active_nodes)),
            moment(run.created_at, now),
        )
    return table


def thread_table(threads: Iterable[GraphThread]) -> RenderableType:
    """Return threads as a table."""
    table = lined_table("THREAD", "GRAPH", "STATUS", "RUN", "USED")
    table.columns[3].no_wrap = True
    now = datetime.now(UTC)
    for thread in threads:
        table.add_row(
            cell(thread.thread_id),
            cell(thread.graph),
            str(thread.status),
            cell(thread.run_id),
            moment(thread.updated_at, now),
        )
    return table


def _interrupt_table(interrupts: Iterable[RunInterrupt]) -> RenderableType:
    table = lined_table("WAITS FOR", "NODE", "ASKED")
    table.columns[0].no_wrap = True
    for interrupt in interrupts:
        table.add_row(
            cell(interrupt.interrupt_id), cell(interrupt.node), cell(orjson.dumps(interrupt.payload).decode())
        )
    return table


def _json_text(value: object) -> RenderableType:
    lines = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode().splitlines()
    return Text("\n".join(map(printable, lines)))
