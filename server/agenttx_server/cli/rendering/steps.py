"""The history of a transaction's steps: every attempt, what failed and what was rewound."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agenttx.records import AttemptState, Dependency, DependencyKind, StepAttempt
from agenttx_server.cli.rendering.decisions import decision_lines
from agenttx_server.cli.rendering.tables import cell, facts_grid, lines_text, status_text
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
    """Return attempts as a table, in the order given; below a failure its hint and what was decided."""
    rows = [_row(attempt) for attempt in attempts]
    widths = [max(text.cell_len for text in column) for column in zip(HEADINGS, *rows, strict=True)]
    began = Text(f"from {moment(attempts[0].started_at, now)}\n", style="dim")
    parts: list[RenderableType] = [began, _Line(HEADINGS, widths)]
    for attempt, row in zip(attempts, rows, strict=True):
        parts.append(_Line(row, widths))
        if attempt.hint:
            parts.append(Padding(_failure(attempt), (0, 0, 0, widths[0] + widths[1] + 4)))
    return Group(*parts)


HEADINGS = tuple(Text(name, "bold") for name in ("STEP", "TRY", "STARTED", "TOOL", "STATE", "TOOK", "FROM"))
_NUMBERS = (0, 1, 5)
_BETWEEN = "  "


def _row(attempt: StepAttempt) -> tuple[Text, ...]:
    faded = "dim" if attempt.rewound else ""
    return (
        Text(_position(attempt), faded),
        Text(str(attempt.attempt), faded),
        Text(clock_time(attempt.started_at), faded),
        cell(attempt.tool_name, faded),
        _state(attempt),
        Text(took(attempt.started_at, attempt.ended_at), faded),
        _sources(attempt),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """One row, on its own: what is below it may be as wide as the terminal, and long histories stay fast."""

    row: Sequence[Text]
    widths: Sequence[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(_BETWEEN).join(self._padded())
        yield line if line.cell_len <= options.max_width else self._wrapped()

    def _padded(self) -> Iterator[Text]:
        for index, (text, width) in enumerate(zip(self.row, self.widths, strict=True)):
            missing = " " * (width - text.cell_len)
            last = index == len(self.row) - 1
            yield (
                Text.assemble(missing, text)
                if index in _NUMBERS
                else Text.assemble(text, "" if last else missing)
            )

    def _wrapped(self) -> Table:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for index, width in enumerate(self.widths):
            last = index == len(self.widths) - 1
            grid.add_column(width=None if last else width, justify="right" if index in _NUMBERS else "left")
        *before, sources = self.row
        grid.add_row(*before, Text("\n").join(sources.split(_BETWEEN)))
        return grid


def _failure(attempt: StepAttempt) -> Text:
    lines = [cell(attempt.hint, "red")]
    if attempt.decision is not None:
        decided, *reasons = decision_lines(attempt.decision)
        lines += [cell(f"↩ {decided}", "yellow"), *(cell(f"  {line}", "yellow") for line in reasons)]
    return Text("\n").join(lines)


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
    # A failure is always rewound, with what its decision says; to be told so of the others is news.
    if attempt.rewound and attempt.state is AttemptState.COMPLETED:
        return Text("REWOUND", "magenta")
    return status_text(attempt.state)


def _sources(attempt: StepAttempt) -> Text:
    return Text(_BETWEEN).join(_dependency(dependency) for dependency in attempt.dependencies)


def _dependency(dependency: Dependency) -> Text:
    arrow = "→" if dependency.kind is DependencyKind.EXPLICIT else "⇢"
    return cell(f"{dependency.from_step}.{dependency.source_key} {arrow} {dependency.target_key}", "dim")


def _facts(attempt: StepAttempt) -> Iterator[tuple[str, str | Text]]:
    yield "started", f"{clock_time(attempt.started_at)}, took {took(attempt.started_at, attempt.ended_at)}"
    yield "effects", attempt.effect_class
    yield "from", _sources(attempt)
    yield "arguments", attempt.arguments_json if attempt.arguments is None else _json(attempt.arguments)
    if attempt.state is AttemptState.COMPLETED:
        yield "output", _json(attempt.output)
    yield "context", attempt.raw_context
    yield "hint", cell(attempt.hint, "red")
    yield "category", attempt.category
    yield "rule", attempt.hint_rule
    yield "error", lines_text(attempt.raw_error.splitlines())
    if attempt.decision is not None:
        yield "decision", lines_text(decision_lines(attempt.decision), "yellow")
    yield "tries", str(attempt.tries) if attempt.tries != 1 else ""
    yield "request id", attempt.request_id
    yield "idempotency", attempt.idempotency_key


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return (
        text
        if len(text) <= LONGEST_VALUE
        else f"{text[:LONGEST_VALUE]}… ({len(text)} characters; --json has all)"
    )


def _position(attempt: StepAttempt) -> str:
    return f"{attempt.step_id}.{attempt.sub_step}" if attempt.sub_step else str(attempt.step_id)
