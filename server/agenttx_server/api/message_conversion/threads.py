"""Requests and answers about threads and their checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.message_conversion.enumerations import to_wire
from agenttx_server.api.message_conversion.request_reader import PageRequest, RequestReader
from agenttx_server.api.message_conversion.run_answers import error_message, interrupt_messages, run_message
from agenttx_server.api.message_conversion.run_requests import LONGEST_NAME_BYTES, thread_id_of
from agenttx_server.api.message_conversion.values import timestamp_from_microseconds
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.graphs.runs.ports import ThreadPage
from agenttx_server.graphs.runs.records import (
    CheckpointSource,
    RunRecord,
    RunStatus,
    ThreadRecord,
    checkpoint_id,
)
from agenttx_server.graphs.runs.thread_reading import (
    CheckpointView,
    NoCheckpoint,
    TaskView,
    ThreadView,
    parent_id,
)

__all__ = [
    "CheckpointsAsked",
    "StateAsked",
    "ThreadsAsked",
    "checkpoint_message",
    "checkpoints_request",
    "state_request",
    "task_message",
    "thread_of",
    "thread_response",
    "threads_request",
    "threads_response",
]

PROJECTION_VERSION = 1
LONGEST_NAMESPACE_BYTES = 4096
"""Twenty-five segments with nodes of 128 bytes and their numbers fit."""


@dataclass(frozen=True, slots=True)
class StateAsked:
    """GetGraphState."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    include_pending: bool


@dataclass(frozen=True, slots=True)
class CheckpointsAsked:
    """ListCheckpoints."""

    thread_id: str
    namespace: str
    sources: frozenset[CheckpointSource]
    page: PageRequest


@dataclass(frozen=True, slots=True)
class ThreadsAsked:
    """ListThreads."""

    graph: str
    statuses: frozenset[RunStatus]
    page: PageRequest


def state_request(message: pb.GetGraphStateRequest) -> StateAsked:
    """Return what GetGraphState asks."""
    reader = RequestReader()
    thread_id = thread_id_of(message.thread_id, reader)
    reader.name("checkpoint_id", message.checkpoint_id, LONGEST_NAME_BYTES)
    reader.name("namespace", message.namespace, LONGEST_NAMESPACE_BYTES)
    reader.check()
    include = message.include_pending if message.HasField("include_pending") else True
    return StateAsked(thread_id, message.namespace, message.checkpoint_id, include)


def checkpoints_request(message: pb.ListCheckpointsRequest) -> CheckpointsAsked:
    """Return what ListCheckpoints asks."""
    reader = RequestReader()
    thread_id = thread_id_of(message.thread_id, reader)
    sources = {reader.enumeration("sources", CheckpointSource, number) for number in message.sources}
    page = reader.page(message.page_size, message.page_token)
    reader.name("namespace", message.namespace, LONGEST_NAMESPACE_BYTES)
    reader.check()
    wanted = frozenset(source for source in sources if source is not None)
    return CheckpointsAsked(thread_id, message.namespace, wanted, page)


def thread_of(message: pb.GetThreadRequest) -> str:
    """Return which thread is asked about."""
    reader = RequestReader()
    thread_id = thread_id_of(message.thread_id, reader)
    reader.check()
    return thread_id


def threads_request(message: pb.ListThreadsRequest) -> ThreadsAsked:
    """Return what ListThreads asks."""
    reader = RequestReader()
    reader.name("graph", message.graph, LONGEST_NAME_BYTES)
    statuses = {reader.enumeration("statuses", RunStatus, number) for number in message.statuses}
    page = reader.page(message.page_size, message.page_token)
    reader.check()
    return ThreadsAsked(message.graph, frozenset(status for status in statuses if status is not None), page)


def thread_response(view: ThreadView) -> pb.GetThreadResponse:
    """Tell what is known of a thread."""
    run = view.run.run
    return pb.GetThreadResponse(
        thread=_thread_message(view.record, run, view.superstep),
        run=run_message(view.run),
        timings=[
            pb.NodeTiming(
                node=timing.node,
                count=timing.count,
                mean_ms=timing.mean_us / 1000,
                max_ms=timing.max_us / 1000,
            )
            for timing in view.timings
        ],
        checkpoints=view.checkpoints,
        branches=view.branches,
        pending=map(task_message, view.pending),
        origin=pb.ProjectionOrigin(
            run_id=run.run_id,
            checkpoint_id=view.run.checkpoint_id,
            namespace=run.namespace,
            superstep=run.superstep,
            offset=max(run.next_offset - 1, 0),
            projection_version=PROJECTION_VERSION,
        ),
    )


def threads_response(page: ThreadPage) -> pb.ListThreadsResponse:
    """Tell a page of threads."""
    return pb.ListThreadsResponse(
        threads=[_thread_message(thread, run, thread.superstep) for thread, run in page.threads],
        next_page_token=page.next_cursor,
    )


def _thread_message(thread: ThreadRecord, run: RunRecord, superstep: int) -> pb.GraphThread:
    return pb.GraphThread(
        thread_id=thread.thread_id,
        graph=thread.graph,
        graph_version=thread.graph_version,
        run_id=thread.run_id,
        status=to_wire(run.status),
        checkpoint_id="" if thread.head is None else checkpoint_id(thread.thread_id, thread.head),
        superstep=superstep,
        created_at=timestamp_from_microseconds(MicrosecondsUtc(thread.created_at)),
        updated_at=timestamp_from_microseconds(MicrosecondsUtc(thread.updated_at)),
    )


def head_message(view: CheckpointView | NoCheckpoint) -> pb.Checkpoint:
    """Tell a checkpoint, or where a thread stands that has none."""
    if isinstance(view, CheckpointView):
        return checkpoint_message(view)
    thread = view.thread
    return pb.Checkpoint(
        thread_id=thread.thread_id,
        branch=thread.branch,
        state_json=canonical(view.state),
        graph_version=thread.graph_version,
        head=True,
    )


def checkpoint_message(view: CheckpointView) -> pb.Checkpoint:
    """Tell a checkpoint."""
    record = view.record
    return pb.Checkpoint(
        thread_id=record.thread_id,
        checkpoint_id=record.checkpoint_id,
        parent_checkpoint_id=parent_id(record),
        namespace=record.namespace,
        branch=record.branch,
        state_json="" if view.state is None else canonical(view.state),
        next=map(task_message, view.next),
        completed=[
            pb.GraphTask(task_id=task_id, node=node, ordinal=ordinal, finished=True)
            for task_id, node, ordinal in record.completed
        ],
        joins=[
            pb.JoinArrivals(target=join.target, arrived=join.arrived, missing=join.missing, fired=join.fired)
            for join in view.joins
        ],
        source=to_wire(record.source),
        superstep=record.superstep,
        run_id=record.run_id,
        created_at=timestamp_from_microseconds(MicrosecondsUtc(record.created_at)),
        graph_version=record.graph_version,
        rolled_back=record.rolled_back,
        head=view.is_head,
        forked_from_thread_id=record.forked_thread,
        forked_from_checkpoint_id=""
        if record.forked_number is None
        else checkpoint_id(record.forked_thread, record.forked_number),
        metadata=dict(view.metadata),
        children=[
            pb.ChildRun(
                run_id=child.run_id,
                node=child.node,
                namespace=child.namespace,
                checkpoint_id=""
                if child.checkpoint is None
                else checkpoint_id(record.thread_id, child.checkpoint, child.namespace),
            )
            for child in record.children
        ],
    )


def task_message(task: TaskView) -> pb.GraphTask:
    """Tell a task that is to come."""
    return pb.GraphTask(
        task_id=task.task_id,
        node=task.node,
        ordinal=task.ordinal,
        arg_json=task.arg,
        interrupts=interrupt_messages(task.interrupts),
        error=None if task.error is None else error_message(task.error),
        finished=task.finished,
    )
