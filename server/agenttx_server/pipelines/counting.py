"""What actions did, counted from events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agenttx_server.lineage.records import EventType, Reason, RecordEvent
from agenttx_server.pipelines.records import ActionCounts, PipelineRunStatus

__all__ = ["added", "counted", "status_of_action", "status_of_run"]


def counted(order: Sequence[str], events: Iterable[RecordEvent]) -> tuple[ActionCounts, ...]:
    """Count events by action, in the order of the actions."""
    found: dict[str, dict[str, int]] = {action: {} for action in order}
    for event in events:
        if event.action in found:
            kind = _kind(event)
            found[event.action][kind] = found[event.action].get(kind, 0) + 1
    return tuple(ActionCounts(action, **kinds) for action, kinds in found.items())


def added(one: Mapping[str, ActionCounts], others: Iterable[ActionCounts]) -> dict[str, ActionCounts]:
    """Both together, by action."""
    total = dict(one)
    for other in others:
        total[other.action] = total[other.action].plus(other) if other.action in total else other
    return total


def status_of_action(counts: ActionCounts) -> str:
    """COMPLETED, COMPLETED_WITH_FAILURES, FAILED (no success, and a failure) or SKIPPED (nothing reached it)."""
    if counts.failed:
        return "COMPLETED_WITH_FAILURES" if counts.processed else "FAILED"
    return "COMPLETED" if counts.processed or counts.skipped else "SKIPPED"


def status_of_run(counts: Iterable[ActionCounts], *, committed: int, rolled_back: int) -> PipelineRunStatus:
    """FAILED where nothing was committed or an action failed for all; with failures where some records or roots did."""
    states = {status_of_action(item) for item in counts}
    if (rolled_back and not committed) or "FAILED" in states:
        return PipelineRunStatus.FAILED
    if rolled_back or "COMPLETED_WITH_FAILURES" in states:
        return PipelineRunStatus.COMPLETED_WITH_FAILURES
    return PipelineRunStatus.COMPLETED


def _kind(event: RecordEvent) -> str:
    if event.type is EventType.DROP:
        filtered = event.reason in (Reason.GUARD_FILTER, Reason.FILTERED_BRANCH)
        return "filtered" if filtered else "dropped"
    if event.type is EventType.FAIL:
        return "blocked" if event.reason is Reason.UPSTREAM_UNPROCESSED else "failed"
    return "skipped" if event.type is EventType.ROUTE else "processed"
