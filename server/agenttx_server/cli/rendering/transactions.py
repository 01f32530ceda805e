"""Transactions: as rows of a list, and one in full."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

import orjson
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agenttx.records import (
    Approval,
    ApprovalState,
    AttemptState,
    ContextEntry,
    FailedCompensation,
    KeptEffect,
    PendingUndo,
    RunningStep,
    TransactionInfo,
    TransactionStatus,
    TransactionSummary,
)
from agenttx_server.cli.output import printable
from agenttx_server.cli.rendering.approvals import approval_facts
from agenttx_server.cli.rendering.tables import cell, facts_grid, lined_table, plural, status_text
from agenttx_server.cli.rendering.times import duration, moment

__all__ = ["kept_effects", "transaction_details", "transaction_list"]

LONGEST_CONTEXT = 160
NEWEST_CONTEXT = 20
WIDTH_WITH_NOTES = 140


def transaction_list(summaries: Sequence[TransactionSummary], now: datetime, width: int) -> RenderableType:
    """Return transactions as a table, in the order given; where ``width`` is small, notes go below the ids."""
    beside = width >= WIDTH_WITH_NOTES
    notes_heading = ("NOTES",) if beside else ()
    table = lined_table("TRANSACTION", "STATUS", "AGENT", "STEPS", "OPENED", *notes_heading, right=("STEPS",))
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    table.columns[4].no_wrap = beside
    for summary in summaries:
        notes = "; ".join(_notes(summary))
        table.add_row(
            Text(summary.transaction_id) if beside else _with_notes_below(summary.transaction_id, notes),
            status_text(summary.status),
            cell(summary.agent_id),
            str(summary.steps_completed),
            moment(summary.created_at, now),
            *((cell(notes, "dim"),) if beside else ()),
        )
    return table


def _with_notes_below(transaction_id: str, notes: str) -> Text:
    lines = textwrap.wrap(printable(notes), len(transaction_id))
    return Text("\n").join([Text(transaction_id), *(Text(line, "dim") for line in lines)])


_ABORTED = (TransactionStatus.ROLLED_BACK, TransactionStatus.FAILED)


def _notes(summary: TransactionSummary) -> Iterator[str]:
    if summary.next_step_id:
        yield f"next step {summary.next_step_id}"
    # The abort that ended it began a generation, too.
    rewinds = summary.generation - (2 if summary.status in _ABORTED else 1)
    if rewinds > 0:
        yield f"rewound {_times(rewinds)}"
    if summary.recovery_problem:
        yield f"not recovered: {summary.recovery_problem}"
    if summary.rollback_incomplete:
        failed = len(summary.failed_compensations)
        yield f"rollback held by {plural(failed, 'failed undo') if failed else 'undo that its agent has to do'}"
    elif summary.failed_compensations:
        yield plural(len(summary.failed_compensations), "failed undo")
    if summary.pending_effects:
        yield f"{plural(summary.pending_effects, 'effect')} pending"
    if summary.dead_effects:
        yield f"{plural(summary.dead_effects, 'effect')} DEAD"
    if summary.abort_reason:
        yield summary.abort_reason
    yield from _labels(summary.metadata)


def transaction_details(info: TransactionInfo, now: datetime) -> RenderableType:
    """Return one transaction: its facts, then what needs attention, then what the agent is told."""
    parts: list[RenderableType] = [_heading(info), Padding(facts_grid(_facts(info, now)), (0, 0, 0, 2))]
    for title, body in _sections(info, now):
        parts += [Text(""), Text(title, style="bold"), Padding(body, (0, 0, 0, 2))]
    return Group(*parts)


def _heading(info: TransactionInfo) -> Text:
    return Text.assemble((info.transaction_id, "bold"), "  ", status_text(info.status))


def _facts(info: TransactionInfo, now: datetime) -> Iterator[tuple[str, str]]:
    yield "agent", info.agent_id
    yield "labels", ", ".join(_labels(info.metadata))
    yield "opened", moment(info.created_at, now)
    if info.ended_at is None:
        yield "changed", moment(info.updated_at, now)
    else:
        yield "ended", moment(info.ended_at, now)
    if info.deadline_at is not None and info.ended_at is None:
        yield "deadline", moment(info.deadline_at, now)
    yield "abort reason", info.abort_reason
    yield "steps", _steps(info)
    yield "rollbacks", _rollbacks(info)
    yield "effects", f"{info.pending_effects} pending" if info.pending_effects else ""
    yield "commit", f"version {info.commit_version}" if info.commit_version else ""
    yield "isolation", info.isolation
    yield "policy", _policy(info)
    yield "times", _times_allowed(info)
    yield "owned by", f"run {info.owned_by_run}" if info.owned_by_run else ""


def _steps(info: TransactionInfo) -> str:
    text = f"{info.steps_completed} in force, furthest {info.furthest_step}"
    return f"{text}, next {info.next_step_id}" if info.next_step_id else text


def _rollbacks(info: TransactionInfo) -> str:
    if info.generation <= 1:
        return "none"
    replayed = f"{plural(info.replayed_steps, 'step')} to run again"
    budget = f"{info.budget_spent} of {info.replay_budget} spent of this epoch's budget"
    resets = f"{info.global_resets} of {plural(info.policy.max_global_resets or 0, 'global reset')}"
    return f"{info.generation - 1}, with {replayed} in all; {budget}; {resets}"


def _policy(info: TransactionInfo) -> str:
    policy = info.policy
    return (
        f"local depth {policy.max_local_depth}, global resets {policy.max_global_resets}, "
        f"budget factor {policy.replay_budget_factor}, on conflict {policy.on_conflict}, "
        f"on undo failure {policy.on_undo_failure}, rejected calls {policy.rejected_calls}, "
        f"crash policy {info.crash_policy}"
    )


def _times_allowed(info: TransactionInfo) -> str:
    idle, step = info.idle_timeout_seconds, info.step_timeout_seconds
    allowed = []
    if idle is not None:
        allowed.append(f"may be idle for {duration(idle) if idle else 'ever'}")
    if step:
        allowed.append(f"a step may run for {duration(step)}")
    return "; ".join(allowed)


def _sections(info: TransactionInfo, now: datetime) -> Iterator[tuple[str, RenderableType]]:
    if info.recovery_problem:
        yield (
            "It is not recovered",
            Text(
                f"{printable(info.recovery_problem)}. It is tried again; the server's log says more.",
                "yellow",
            ),
        )
    for step in info.running_steps:
        if step.state is AttemptState.IN_DOUBT:
            how = f"agenttx steps resolve {info.transaction_id} {step.step_id} succeeded|failed|retry"
            yield (
                f"Step {_position(step.step_id, step.sub_step)} is in doubt",
                Text(f"Whether it took effect is unknown. Find out, then say so: {how}", "yellow"),
            )
    for approval in info.approvals:
        yield _waiting(approval), facts_grid(approval_facts(approval, now))
    if info.rollback_incomplete:
        yield (
            "The rollback is held",
            Text(
                "Failed undo actions hold it; rewind again once their cause is gone, or see `agenttx compensations`.",
                "yellow",
            ),
        )
    if info.continues_after_undo_failure:
        yield (
            "An undo failure was passed over",
            Text("Later steps may have run on top of what was not undone.", "yellow"),
        )
    if info.running_steps:
        yield "Unsettled steps", _running_steps(info.running_steps, now)
    if info.pending_undo:
        yield "Undo that the agent has to do, in this order", _pending_undo(info.pending_undo)
    if info.failed_compensations:
        yield "Failed undo actions", _failed_compensations(info.failed_compensations)
    if info.kept_effects:
        yield "Effects that were not undone", kept_effects(info.kept_effects)
    if info.constraints:
        yield "Constraints", _numbered(info.constraints)
    if info.context:
        left_out = info.context_truncated or len(info.context) > NEWEST_CONTEXT
        yield "Context" + (" (the newest; --json has more)" if left_out else ""), _context(info.context)


def _waiting(approval: Approval) -> str:
    step = f"Step {_position(approval.step_id, approval.sub_step)}"
    if approval.state is ApprovalState.APPROVED:
        return f"{step} is approved"
    return f"{step} waits: agenttx tx approve|reject {approval.transaction_id} {approval.approval_id}"


def _running_steps(steps: Iterable[RunningStep], now: datetime) -> Table:
    table = lined_table("STEP", "TRY", "TOOL", "STATE", "STARTED", "PROGRESS", right=("STEP", "TRY"))
    for step in steps:
        part = "" if step.progress is None else f"{step.progress:.0%}"
        table.add_row(
            _position(step.step_id, step.sub_step),
            str(step.attempt),
            cell(step.tool_name),
            status_text(step.state),
            moment(step.started_at, now),
            cell(" ".join(filter(None, (part, step.progress_message)))),
        )
    return table


def _pending_undo(pending: Iterable[PendingUndo]) -> Table:
    table = lined_table("ID", "STEP", "UNDO", "ARGUMENTS", right=("ID", "STEP"))
    for undo in pending:
        arguments = orjson.dumps(undo.arguments).decode()
        table.add_row(cell(undo.compensation_id), str(undo.step_id), cell(undo.action), cell(arguments))
    return table


def _failed_compensations(failed: Iterable[FailedCompensation]) -> Table:
    table = lined_table(
        "ID", "STEP", "TOOL", "UNDO", "TRIES", "WHAT WENT WRONG", right=("ID", "STEP", "TRIES")
    )
    for undo in failed:
        action = undo.action or "(none)"
        table.add_row(
            cell(undo.compensation_id),
            _position(undo.step_id, undo.sub_step),
            cell(undo.tool_name),
            cell(f"{action}, late effect" if undo.late_effect else action),
            str(undo.tries),
            cell(undo.hint),
        )
    return table


def kept_effects(kept: Iterable[KeptEffect]) -> Table:
    """Return the effects that a rollback left, with the reasons."""
    table = lined_table("STEP", "TOOL", "CLASS", "WHY", right=("STEP",))
    for effect in kept:
        table.add_row(
            _position(effect.step_id, effect.sub_step),
            cell(effect.tool_name),
            effect.effect_class,
            cell(effect.reason),
        )
    return table


def _context(entries: Sequence[ContextEntry]) -> Table:
    table = lined_table("STEP", "TOOL", "WHAT THE AGENT NOTED", right=("STEP",))
    for entry in entries[-NEWEST_CONTEXT:]:
        text = entry.raw_context
        shortened = text if len(text) <= LONGEST_CONTEXT else text[: LONGEST_CONTEXT - 1] + "…"
        table.add_row(str(entry.step_id), cell(entry.tool_name), cell(shortened))
    return table


def _numbered(lines: Iterable[str]) -> Table:
    return facts_grid((f"{number}.", line) for number, line in enumerate(lines, 1))


def _labels(metadata: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(metadata.items())]


def _position(step_id: int, sub_step: int) -> str:
    return f"{step_id}.{sub_step}" if sub_step else str(step_id)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
