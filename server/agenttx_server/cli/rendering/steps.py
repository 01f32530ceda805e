"""The history of a transaction's steps: every attempt, what failed and what was rewound."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agenttx.records import AttemptState, Dependency, DependencyKind, StepAttempt
from agenttx_server.cli.rendering.decisions import decision_lines
from agenttx_server.cli.rendering.tables import cell, facts_grid, lined_table, status_text
from agenttx_server.cli.rendering.times import clock_time, moment, took

__all__ = ["in_order_of_time", "step_details", "step_history"]

LONGEST_VALUE = 2000


def in_order_of_time(attempts: Iterable[StepAttempt]) -> list[StepAttempt]:
    """Return attempts as they began, so that a history reads like the story that it is."""
    return sorted(
        attempts,
        key=lambda each: (
            each.started_at is None,
            each.started_at.timestamp() if each.started_at else 0.0,
            each.generation,
            each.step_id,
            each.sub_step,
        ),
    )


def step_history(attempts: Sequence[StepAttempt], now: datetime) -> RenderableType:
    """Return attempts as a table, in the order given; under a failure its hint and what was decided."""
    began = Text(f"from {moment(attempts[0].started_at, now)}", style="dim")
    return Group(began, Text(""), _table(attempts))


def _table(attempts: Sequence[StepAttempt]) -> Table:
    table = lined_table(
        "STEP", "TRY", "STARTED", "TOOL", "STATE", "TOOK", "WHAT", right=("STEP", "TRY", "TOOK")
    )
    for attempt in attempts:
        table.add_row(
            _position(attempt),
            str(attempt.attempt),
            clock_time(attempt.started_at),
            cell(attempt.tool_name),
            _state(attempt),
            took(attempt.started_at, attempt.ended_at),
            _what(attempt),
            style="dim" if attempt.rewound and not attempt.hint else "",
        )
    return table


def step_details(attempts: Sequence[StepAttempt]) -> RenderableType:
    """Return attempts one below the other, with arguments, output and the error as the tool gave it."""
    parts: list[RenderableType] = []
    for attempt in attempts:
        heading = Text.assemble(
            (f"step {_position(attempt)}, try {attempt.attempt}", "bold"),
            "  ",
            cell(attempt.tool_name),
            "  ",
            _state(attempt),
        )
        parts += [heading, Padding(facts_grid(_facts(attempt)), (0, 0, 1, 2))]
    return Group(*parts)


def _state(attempt: StepAttempt) -> Text:
    state = status_text(attempt.state)
    # A failure is rewound with what it caused, which its decision says.
    if attempt.rewound and attempt.state is not AttemptState.FAILED:
        return Text.assemble((attempt.state, "dim"), (" rewound", "magenta"))
    return state


def _what(attempt: StepAttempt) -> Text:
    if not attempt.hint:
        return Text("  ").join(_dependency(dependency) for dependency in attempt.dependencies)
    hint = cell(attempt.hint, "red")
    if attempt.decision is None:
        return hint
    decided, *reasons = decision_lines(attempt.decision)
    return Text("\n").join(
        [hint, cell(f"↩ {decided}", "yellow"), *(cell(f"  {line}", "yellow") for line in reasons)]
    )


def _dependency(dependency: Dependency) -> Text:
    arrow = "→" if dependency.kind is DependencyKind.EXPLICIT else "⇢"
    return cell(f"{dependency.from_step}.{dependency.source_key} {arrow} {dependency.target_key}", "dim")


def _facts(attempt: StepAttempt) -> Iterator[tuple[str, str | Text]]:
    yield "started", f"{clock_time(attempt.started_at)}, took {took(attempt.started_at, attempt.ended_at)}"
    yield "effects", attempt.effect_class
    yield "from", Text("  ").join(_dependency(dependency) for dependency in attempt.dependencies)
    yield "arguments", attempt.arguments_json if attempt.arguments is None else _json(attempt.arguments)
    if attempt.state is AttemptState.COMPLETED:
        yield "output", _json(attempt.output)
    yield "context", attempt.raw_context
    yield "hint", cell(attempt.hint, "red")
    yield "category", attempt.category
    yield "rule", attempt.hint_rule
    yield "error", _lines(attempt.raw_error.splitlines())
    if attempt.decision is not None:
        yield "decision", _lines(decision_lines(attempt.decision), "yellow")
    yield "tries", str(attempt.tries) if attempt.tries != 1 else ""
    yield "request id", attempt.request_id
    yield "idempotency", attempt.idempotency_key


def _lines(lines: Iterable[str], style: str = "") -> Text:
    return Text("\n").join(cell(line, style) for line in lines)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return (
        text
        if len(text) <= LONGEST_VALUE
        else f"{text[:LONGEST_VALUE]}… ({len(text)} characters; --json has all)"
    )


def _position(attempt: StepAttempt) -> str:
    return f"{attempt.step_id}.{attempt.sub_step}" if attempt.sub_step else str(attempt.step_id)
