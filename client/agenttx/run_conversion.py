"""Messages about runs and threads as records."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from agenttx.run_records import (
    Checkpoint,
    CheckpointSource,
    ChildRun,
    GraphRun,
    GraphTask,
    GraphThread,
    JoinArrivals,
    NodeTiming,
    RewoundThread,
    RunError,
    RunInterrupt,
    RunOutcome,
    RunStatus,
    ThreadInfo,
)
from agenttx.v1 import graph_pb2 as pb
from agenttx.values import decode_json

__all__ = ["checkpoint", "outcome", "rewound", "run", "thread", "thread_info"]

EnumT = TypeVar("EnumT", bound=StrEnum)


def outcome(message: pb.RunOutcome) -> RunOutcome:
    """Read how an invocation ended."""
    return RunOutcome(
        run_id=message.run_id,
        thread_id=message.thread_id,
        status=_status(message.status),
        state=decode_json(message.state_json) or {},
        visited_nodes=tuple(message.visited_nodes),
        supersteps=message.supersteps,
        interrupts=tuple(map(_interrupt, message.interrupts)),
        checkpoint_id=message.checkpoint_id,
        last_offset=message.last_offset,
        error=_error(message.error) if message.HasField("error") else None,
        next_nodes=tuple(message.next_nodes),
        transaction_id=message.transaction_id,
        graph_version=message.graph_version,
    )


def run(message: pb.GraphRun) -> GraphRun:
    """Read a run's status record."""
    return GraphRun(
        run_id=message.run_id,
        root_run_id=message.root_run_id,
        parent_run_id=message.parent_run_id,
        thread_id=message.thread_id,
        graph=message.graph,
        graph_version=message.graph_version,
        checkpoint_id=message.checkpoint_id,
        namespace=message.namespace,
        status=_status(message.status),
        superstep=message.superstep,
        total_supersteps=message.total_supersteps,
        active_nodes=tuple(message.active_nodes),
        interrupts=tuple(map(_interrupt, message.interrupts)),
        last_event=message.last_event,
        last_offset=message.last_offset,
        created_at=_time(message, "created_at"),
        updated_at=_time(message, "updated_at"),
        ended_at=_time(message, "ended_at"),
        error=_error(message.error) if message.HasField("error") else None,
        transaction_id=message.transaction_id,
        metadata=dict(message.options.metadata),
    )


def checkpoint(message: pb.Checkpoint) -> Checkpoint:
    """Read a checkpoint."""
    return Checkpoint(
        thread_id=message.thread_id,
        checkpoint_id=message.checkpoint_id,
        parent_checkpoint_id=message.parent_checkpoint_id,
        namespace=message.namespace,
        branch=message.branch,
        state=decode_json(message.state_json) or {},
        next=tuple(map(_task, message.next)),
        completed=tuple(map(_task, message.completed)),
        joins=tuple(
            JoinArrivals(join.target, tuple(join.arrived), tuple(join.missing), join.fired)
            for join in message.joins
        ),
        source=_member(CheckpointSource, pb.CheckpointSource, "CHECKPOINT_SOURCE_", message.source),
        superstep=message.superstep,
        run_id=message.run_id,
        created_at=_time(message, "created_at"),
        graph_version=message.graph_version,
        rolled_back=message.rolled_back,
        head=message.head,
        metadata=dict(message.metadata),
        children=tuple(
            ChildRun(child.run_id, child.node, child.namespace, child.checkpoint_id)
            for child in message.children
        ),
    )


def thread(message: pb.GraphThread) -> GraphThread:
    """Read a thread."""
    return GraphThread(
        message.thread_id,
        message.graph,
        message.graph_version,
        message.run_id,
        _status(message.status),
        message.checkpoint_id,
        message.superstep,
        _time(message, "created_at"),
        _time(message, "updated_at"),
    )


def thread_info(message: pb.GetThreadResponse) -> ThreadInfo:
    """Read what is known of a thread."""
    return ThreadInfo(
        thread(message.thread),
        run(message.run),
        tuple(
            NodeTiming(timing.node, timing.count, timing.mean_ms, timing.max_ms) for timing in message.timings
        ),
        message.checkpoints,
        message.branches,
        tuple(map(_task, message.pending)),
    )


def rewound(message: pb.RewindRunResponse) -> RewoundThread:
    """Read what going back undid."""
    return RewoundThread(
        message.checkpoint_id,
        message.steps_undone,
        message.compensations_run,
        message.rollback_incomplete,
        tuple(message.withdrawn_interrupt_ids),
        message.transaction_id,
    )


def _task(message: pb.GraphTask) -> GraphTask:
    return GraphTask(
        message.task_id,
        message.node,
        message.ordinal,
        decode_json(message.arg_json) if message.HasField("arg_json") else None,
        tuple(map(_interrupt, message.interrupts)),
        _error(message.error) if message.HasField("error") else None,
        message.finished,
    )


def _interrupt(message: pb.RunInterrupt) -> RunInterrupt:
    return RunInterrupt(
        message.interrupt_id,
        message.node,
        message.namespace,
        decode_json(message.payload_json),
        message.task_id,
        message.ordinal,
    )


def _error(message: pb.RunError) -> RunError:
    return RunError(
        message.reason,
        message.message,
        message.hint,
        message.node,
        message.namespace,
        message.task_id,
        message.category,
        dict(message.metadata),
        tuple(map(_error, message.others)),
    )


def _status(number: int) -> RunStatus:
    return _member(RunStatus, pb.RunStatus, "RUN_STATUS_", number)


def _member(choices: type[EnumT], wrapper: Any, prefix: str, number: int) -> EnumT:
    """A member of an enumeration; UNSPECIFIED for one that a newer server knows."""
    try:
        return choices(wrapper.Name(number).removeprefix(prefix))
    except ValueError:
        return choices("UNSPECIFIED")


def _time(message: Any, field: str) -> datetime | None:
    return getattr(message, field).ToDatetime(tzinfo=UTC) if message.HasField(field) else None
