"""What the server tells of events of runs, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

__all__ = ["EventMode", "GraphEvent", "GraphEventKind"]


class EventMode(StrEnum):
    """What is seen of runs.

    VALUES: the whole state at each checkpoint. UPDATES: what each node wrote. INTERRUPTS: questions and their answers.
    CUSTOM: what nodes emitted. MESSAGES: texts in the making. DEBUG: everything. VALUES, UPDATES and INTERRUPTS come with run.*,
    the first two with rollback.decided, which says that what was written since was undone.
    """

    VALUES = "VALUES"
    UPDATES = "UPDATES"
    MESSAGES = "MESSAGES"
    DEBUG = "DEBUG"
    INTERRUPTS = "INTERRUPTS"
    CUSTOM = "CUSTOM"


class GraphEventKind(StrEnum):
    """What an event of a run reports: `event.kind == "node.completed"`.

    A kind that this version of the SDK doesn't know reads as `unspecified`.
    """

    UNSPECIFIED = "unspecified"
    RUN_STARTED = "run.started"
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    RUN_CANCELLED = "run.cancelled"
    RUN_INTERRUPTED = "run.interrupted"
    RUN_DRAINED = "run.drained"
    SUPERSTEP_STARTED = "superstep.started"
    SUPERSTEP_COMPLETED = "superstep.completed"
    TASK_SCHEDULED = "task.scheduled"
    NODE_STARTED = "node.started"
    NODE_COMPLETED = "node.completed"
    NODE_FAILED = "node.failed"
    NODE_RETRY_SCHEDULED = "node.retry_scheduled"
    STATE_UPDATED = "state.updated"
    ROUTE_SELECTED = "route.selected"
    CHECKPOINT_SAVED = "checkpoint.saved"
    CHECKPOINT_RESTORED = "checkpoint.restored"
    INTERRUPT_EMITTED = "interrupt.emitted"
    INTERRUPT_RESUMED = "interrupt.resumed"
    INTERRUPT_WITHDRAWN = "interrupt.withdrawn"
    SUBGRAPH_STARTED = "subgraph.started"
    SUBGRAPH_COMPLETED = "subgraph.completed"
    ROLLBACK_DECIDED = "rollback.decided"
    CUSTOM = "custom"
    MESSAGE_DELTA = "message.delta"

    @property
    def ends_invocation(self) -> bool:
        """Whether an invocation of the run has ended with it; after run.completed nothing follows."""
        return self in (
            GraphEventKind.RUN_COMPLETED,
            GraphEventKind.RUN_FAILED,
            GraphEventKind.RUN_CANCELLED,
            GraphEventKind.RUN_INTERRUPTED,
            GraphEventKind.RUN_DRAINED,
        )


@dataclass(frozen=True, slots=True)
class GraphEvent:
    """Something that happened in a run.

    Attributes:
        offset: Its number in its run, from 0 without gaps; None for a live notice, which is not kept: what it tells comes
            again, with an offset, when its superstep ends.
        sequence: Its number on the server, growing; None for a live notice.
        kind: What it reports.
        run_id: The run.
        root_run_id: The run that it is part of.
        thread_id: The thread; "" for none.
        graph: Name of the graph.
        namespace: Where the graph is embedded; "" for a root.
        superstep: The superstep; 0 where it belongs to none.
        node: The node; "" where it belongs to none.
        task_id: The task; "" where it belongs to none.
        payload: What it tells, by name: the contract's enumeration GraphEventKind says what is there.
        occurred_at: When it happened.
    """

    offset: int | None
    sequence: int | None
    kind: GraphEventKind
    run_id: str
    root_run_id: str
    thread_id: str
    graph: str
    namespace: str
    superstep: int
    node: str
    task_id: str
    payload: Mapping[str, Any]
    occurred_at: datetime | None
