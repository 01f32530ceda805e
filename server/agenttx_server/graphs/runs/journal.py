"""Events of a run in the making: offsets, dense from 0, are given as they are drafted."""

from __future__ import annotations

from collections.abc import Iterable

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import JsonValue, canonical
from agenttx_server.graphs.runs.records import (
    CheckpointRecord,
    EventRecord,
    RunError,
    RunRecord,
    RunStatus,
    TaskRecord,
)

__all__ = ["Draft", "failed", "report_checkpoints"]


class Draft:
    """Events that are to be written together, and the run's record with them counted."""

    def __init__(self, run: RunRecord, now: int) -> None:
        self._run = run
        self._now = now
        self._events: list[EventRecord] = []

    def add(self, kind: str, task: TaskRecord | None = None, /, **payload: JsonValue) -> None:
        """Draft an event; of a task it names node and task."""
        run = self._run
        self._events.append(
            EventRecord(
                run.run_id,
                run.next_offset + len(self._events),
                kind,
                self._now,
                canonical(payload),
                run.thread_id,
                run.root_run_id,
                run.graph,
                run.namespace,
                run.superstep if task is None else task.superstep,
                "" if task is None else task.node,
                "" if task is None else task.task_id,
            )
        )

    @property
    def events(self) -> tuple[EventRecord, ...]:
        """The events, in order."""
        return tuple(self._events)

    def counted(self, run: RunRecord) -> RunRecord:
        """A record of the same run with these events counted."""
        if not self._events:
            return replace(run, updated_at=self._now)
        last = self._events[-1]
        return replace(run, next_offset=last.offset + 1, last_event=last.kind, updated_at=self._now)


def report_checkpoints(draft: Draft, checkpoints: Iterable[CheckpointRecord]) -> None:
    """Draft that checkpoints are kept."""
    for checkpoint in checkpoints:
        draft.add(
            "checkpoint.saved",
            checkpoint_id=checkpoint.checkpoint_id,
            parent_checkpoint_id=checkpoint.parent_id,
            source=checkpoint.source.value.lower(),
        )


def failed(draft: Draft, run: RunRecord, error: RunError) -> RunRecord:
    """Draft that a run failed; return its record saying so."""
    draft.add("run.failed", error=_error_json(error))
    return replace(run, status=RunStatus.FAILED, error=error, server_id="")


def _error_json(error: RunError) -> JsonValue:
    return {
        "reason": error.reason,
        "message": error.message,
        "hint": error.hint,
        "node": error.node,
        "namespace": error.namespace,
        "task_id": error.task_id,
        "category": error.category,
        "metadata": dict(error.metadata),
        "others": [_error_json(other) for other in error.others],
    }
