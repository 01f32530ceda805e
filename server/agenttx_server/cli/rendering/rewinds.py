"""What a rewind or an abort did, or would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from agenttx.records import KeptEffect, PendingUndo, RewindPlan, RewindResult, RollbackResult
from agenttx_server.cli.rendering.tables import cell, lined_table, plural
from agenttx_server.cli.rendering.transactions import kept_effects

__all__ = ["abort_report", "rewind_plan", "rewind_report"]


def rewind_report(to_step: int, result: RewindResult) -> RenderableType:
    """Return what a rewind did."""
    done = (
        f"The rewind to step {to_step} is held by {_holding('rewind', result.pending_undo)}."
        if result.rollback_incomplete
        else f"Rewound to step {to_step}: {_undone(result.compensations_run)}. Next step {result.next_step_id}, "
        f"generation {result.generation}."
    )
    return _report(done, result.compensation_errors, result.kept_effects)


def abort_report(result: RollbackResult) -> RenderableType:
    """Return what an abort did."""
    done = (
        f"The abort is held by {_holding('abort', result.pending_undo)}."
        if result.rollback_incomplete
        else f"Rolled back: {_undone(result.compensations_run)}. The transaction has ended."
    )
    return _report(done, result.compensation_errors, result.kept_effects)


def _holding(again: str, pending: Sequence[PendingUndo]) -> str:
    """Say what holds a rewind or an abort and what to do about it."""
    if not pending:
        return f"failed undo actions; {again} again once their cause is gone, or see `agenttx compensations`"
    undo = pending[0]
    return (
        f"undo that the agent has to do: {undo.action} of step {undo.step_id} comes first, then "
        f"`agenttx tx acknowledge-undo TRANSACTION {undo.compensation_id}`"
    )


def rewind_plan(to_step: int, result: RewindResult) -> RenderableType:
    """Return what a rewind would undo."""
    plan = result.plan
    if plan is None or not plan.steps_total:
        return Text(f"Nothing to undo: step {to_step} is next already.")
    parts: list[RenderableType] = [Text(_would_undo(to_step, plan))]
    for title, body in _plan_sections(plan, result.kept_effects):
        parts += [Text(""), Text(title, style="bold"), Padding(body, (0, 0, 0, 2))]
    if plan.truncated:
        parts.append(Text("\nLong lists were cut; the totals count everything.", style="dim"))
    return Group(*parts)


def _would_undo(to_step: int, plan: RewindPlan) -> str:
    counts = (
        plural(plan.steps_total, "step"),
        plural(plan.undo_actions_total, "undo action"),
        plural(plan.state_writes_total, "state write"),
        plural(plan.staged_effects_total, "staged effect"),
    )
    return f"A rewind to step {to_step} would undo {', '.join(counts[:-1])} and {counts[-1]}. Nothing was changed."


def _plan_sections(plan: RewindPlan, kept: Sequence[KeptEffect]) -> Iterator[tuple[str, RenderableType]]:
    steps = lined_table("STEP", "TRY", "TOOL", "CLASS", right=("STEP", "TRY"))
    for step in plan.steps:
        steps.add_row(str(step.step_id), str(step.attempt), cell(step.tool_name), step.effect_class)
    yield "Steps", steps
    if plan.undo_actions:
        undo = lined_table("STEP", "TOOL", "UNDO", right=("STEP",))
        for action in plan.undo_actions:
            undo.add_row(str(action.step_id), cell(action.tool_name), cell(action.action))
        yield "Undo actions, in the order in which they would run", undo
    if plan.state_keys:
        yield "State keys", Text("\n").join(cell(f"{each.namespace}/{each.key}") for each in plan.state_keys)
    if plan.staged_effects:
        effects = lined_table("STEP", "CHANNEL", "EFFECT", right=("STEP",))
        for effect in plan.staged_effects:
            effects.add_row(str(effect.step_id), cell(effect.channel), cell(effect.effect_id))
        yield "Staged effects that would be dropped", effects
    if kept:
        yield "Effects that would stay", kept_effects(kept)


def _report(done: str, failures: Sequence[str], kept: Sequence[KeptEffect]) -> RenderableType:
    parts: list[RenderableType] = [Text(done)]
    parts += [cell(f"undo failed: {failure}", "red") for failure in failures]
    if kept:
        parts += [
            Text("\nEffects that were not undone", style="bold"),
            Padding(kept_effects(kept), (0, 0, 0, 2)),
        ]
    return Group(*parts)


def _undone(compensations: int) -> str:
    return f"{plural(compensations, 'undo action')} run"
