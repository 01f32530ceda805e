"""What can be asked about runs and threads, as operations for either client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from agenttx import methods, run_conversion
from agenttx.graph_results import Send
from agenttx.message_conversion import duration, number_of
from agenttx.operation import Operation, invoke
from agenttx.reads import Page
from agenttx.run_records import (
    Checkpoint,
    CommitPolicy,
    Durability,
    GraphRun,
    GraphThread,
    RewoundThread,
    RunOutcome,
    RunStatus,
    ThreadInfo,
)
from agenttx.sendable_text import sends_text
from agenttx.transaction_cursor import new_request_id
from agenttx.v1 import graph_pb2 as pb
from agenttx.values import count, encode_json, member

__all__ = [
    "NO_VALUE",
    "RunLimits",
    "Targets",
    "cancel_run",
    "checkpoints",
    "copy_thread",
    "delete_thread",
    "drain_run",
    "fork_thread",
    "get_run",
    "get_thread",
    "graph_state",
    "prune_thread",
    "resume_run",
    "retry_run",
    "rewind_run",
    "runs",
    "start_request",
    "start_run",
    "threads",
    "update_state",
]

Targets = str | Send | Sequence[str | Send]
"""Where to go: a node's name, a `Send`, or several of them."""

_ChangeT = TypeVar("_ChangeT", pb.StartRunRequest, pb.ResumeRunRequest, pb.RetryRunRequest)


class _NoValue:
    def __repr__(self) -> str:
        return "NO_VALUE"


NO_VALUE: Any = _NoValue()
"""No answer: None is one."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of a run and how it is kept; None keeps the graph's, or what the run has.

    Attributes:
        recursion_limit: Supersteps an invocation may make, 1 to 100,000.
        max_total_steps: Supersteps the run may make in all, 1 to 1,000,000.
        max_concurrency: Tasks side by side, 1 to 1,000.
        deadline: How long the invocation may take.
        wait_timeout: How long the run may wait for an answer or a retry before all that it did is rolled back, from now
            on; 0 is for ever, which is what a run has that was given none.
        durability: When boundaries are durable: SYNC, before the next superstep starts, which is what a run has that was
            given none; ASYNC, while that runs; EXIT, when the invocation ends: only that boundary has a checkpoint.
        commit: When the run commits: COMPLETION, which is what a run has that was given none; INTERRUPT, also each time
            it begins to wait for an answer or stops at a node: what it did before is seen by others, and is not rolled
            back any more.
    """

    recursion_limit: int | None = None
    max_total_steps: int | None = None
    max_concurrency: int | None = None
    deadline: float | timedelta | None = None
    wait_timeout: float | timedelta | None = None
    durability: Durability | str | None = None
    commit: CommitPolicy | str | None = None


def start_run(
    graph: str, version: str, given: Mapping[str, Any] | None, *, wait_seconds: float, **asked: Any
) -> Operation[RunOutcome]:
    """Start a run as `start_request` says; with 0 seconds to wait don't wait for its end."""
    request = start_request(graph, version, given, **asked)
    request.wait = wait_seconds > 0
    answer = yield from invoke(methods.START_RUN, request, extra_seconds=wait_seconds)
    return run_conversion.outcome(answer.outcome)


@sends_text
def start_request(
    graph: str,
    version: str,
    given: Mapping[str, Any] | None,
    *,
    thread: str,
    checkpoint: str,
    goto: Targets,
    reset: bool,
    discard_interrupts: bool,
    queue: bool,
    metadata: Mapping[str, str],
    limits: RunLimits,
    allow_graph_change: bool,
    cancel_on_disconnect: bool = False,
) -> pb.StartRunRequest:
    """Ask for a run."""
    request = pb.StartRunRequest(
        request_id=new_request_id(),
        graph=graph,
        version=version,
        thread_id=thread,
        checkpoint_id=checkpoint,
        input_json=_channels(given),
        goto=_targets(goto),
        allow_graph_change=allow_graph_change,
        cancel_on_disconnect=cancel_on_disconnect,
    )
    if reset:
        request.input_policy = pb.INPUT_POLICY_RESET
    if discard_interrupts:
        request.pending_interrupts = pb.PENDING_INTERRUPT_POLICY_DISCARD
    if queue:
        request.on_busy = pb.BUSY_THREAD_POLICY_QUEUE
    _set_limits(request, limits)
    request.options.metadata.update(metadata)
    return request


def resume_run(
    thread: str,
    value: Any,
    values: Mapping[str, Any],
    *,
    update: Mapping[str, Any] | None,
    goto: Targets,
    limits: RunLimits,
    version: str,
    allow_graph_change: bool,
    wait_seconds: float,
) -> Operation[RunOutcome]:
    """Answer what a thread waits for."""
    request = pb.ResumeRunRequest(
        request_id=new_request_id(),
        thread_id=thread,
        values_json={name: encode_json(answer) for name, answer in values.items()},
        update_json=_channels(update),
        goto=_targets(goto),
        version=version,
        allow_graph_change=allow_graph_change,
        wait=wait_seconds > 0,
    )
    if value is not NO_VALUE:
        request.value_json = encode_json(value)
    _set_limits(request, limits)
    answer = yield from invoke(methods.RESUME_RUN, request, extra_seconds=wait_seconds)
    return run_conversion.outcome(answer.outcome)


def retry_run(
    thread: str,
    *,
    update: Mapping[str, Any] | None,
    goto: Targets,
    discard: Sequence[str],
    limits: RunLimits,
    version: str,
    allow_graph_change: bool,
    wait_seconds: float,
) -> Operation[RunOutcome]:
    """Go on with a run that awaits no answer."""
    request = pb.RetryRunRequest(
        request_id=new_request_id(),
        thread_id=thread,
        update_json=_channels(update),
        goto=_targets(goto),
        discard_task_ids=discard,
        version=version,
        allow_graph_change=allow_graph_change,
        wait=wait_seconds > 0,
    )
    _set_limits(request, limits)
    answer = yield from invoke(methods.RETRY_RUN, request, extra_seconds=wait_seconds)
    return run_conversion.outcome(answer.outcome)


def rewind_run(
    thread: str, checkpoint: str, *, dry_run: bool, accept_irreversible: bool
) -> Operation[RewoundThread]:
    """Take the open transaction of a thread back."""
    request = pb.RewindRunRequest(
        request_id=new_request_id(),
        thread_id=thread,
        checkpoint_id=checkpoint,
        dry_run=dry_run,
        accept_irreversible=accept_irreversible,
    )
    return run_conversion.rewound((yield from invoke(methods.REWIND_RUN, request)))


def cancel_run(run_id: str, reason: str, *, rollback: bool) -> Operation[GraphRun]:
    """Cancel a run."""
    request = pb.CancelRunRequest(
        request_id=new_request_id(), run_id=run_id, reason=reason, rollback=rollback
    )
    return run_conversion.run((yield from invoke(methods.CANCEL_RUN, request)).run)


def drain_run(run_id: str, grace: float | timedelta | None) -> Operation[GraphRun]:
    """Have a run stop at its next boundary."""
    request = pb.DrainRunRequest(request_id=new_request_id(), run_id=run_id, grace=duration("grace", grace))
    return run_conversion.run((yield from invoke(methods.DRAIN_RUN, request)).run)


def get_run(run_id: str) -> Operation[GraphRun]:
    """Read a run."""
    return run_conversion.run((yield from invoke(methods.GET_RUN, pb.GetRunRequest(run_id=run_id))).run)


def runs(
    token: str,
    *,
    graph: str,
    thread: str,
    statuses: Iterable[RunStatus | str],
    metadata: Mapping[str, str],
    page_size: int,
) -> Operation[Page[GraphRun]]:
    """Read one page of runs."""
    request = pb.ListRunsRequest(
        graph=graph,
        thread_id=thread,
        statuses=_statuses(statuses),
        metadata=metadata,
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(methods.LIST_RUNS, request)
    return Page(tuple(map(run_conversion.run, answer.runs)), answer.next_page_token)


def graph_state(
    thread: str, checkpoint: str, *, include_pending: bool, namespace: str = ""
) -> Operation[Checkpoint]:
    """Read the state of a thread."""
    request = pb.GetGraphStateRequest(
        thread_id=thread, checkpoint_id=checkpoint, include_pending=include_pending, namespace=namespace
    )
    return run_conversion.checkpoint((yield from invoke(methods.GET_GRAPH_STATE, request)).checkpoint)


def checkpoints(
    token: str, *, thread: str, all_branches: bool, include_state: bool, page_size: int, namespace: str = ""
) -> Operation[Page[Checkpoint]]:
    """Read one page of a thread's checkpoints."""
    request = pb.ListCheckpointsRequest(
        thread_id=thread,
        namespace=namespace,
        all_branches=all_branches,
        include_state=include_state,
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(methods.LIST_CHECKPOINTS, request)
    return Page(tuple(map(run_conversion.checkpoint, answer.checkpoints)), answer.next_page_token)


def update_state(
    graph: str, thread: str, update: Mapping[str, Any], *, as_node: str, goto: Targets, checkpoint: str
) -> Operation[Checkpoint]:
    """Write to a thread's state."""
    written = pb.StateUpdate(as_node=as_node, update_json=_channels(update), goto=_targets(goto))
    request = pb.UpdateStateRequest(
        request_id=new_request_id(),
        thread_id=thread,
        graph=graph,
        checkpoint_id=checkpoint,
        supersteps=[pb.SuperstepUpdate(updates=[written])],
    )
    return run_conversion.checkpoint((yield from invoke(methods.UPDATE_STATE, request)).checkpoint)


def fork_thread(thread: str, checkpoint: str, new_thread: str) -> Operation[Checkpoint]:
    """Make a checkpoint the root of a new thread."""
    request = pb.ForkThreadRequest(
        request_id=new_request_id(), thread_id=thread, checkpoint_id=checkpoint, new_thread_id=new_thread
    )
    return run_conversion.checkpoint((yield from invoke(methods.FORK_THREAD, request)).checkpoint)


def copy_thread(thread: str, new_thread: str) -> Operation[str]:
    """Copy a thread; return the new one's id."""
    request = pb.CopyThreadRequest(request_id=new_request_id(), thread_id=thread, new_thread_id=new_thread)
    return (yield from invoke(methods.COPY_THREAD, request)).thread_id


def delete_thread(thread: str) -> Operation[bool]:
    """Delete a thread; return whether it is gone."""
    request = pb.DeleteThreadRequest(request_id=new_request_id(), thread_id=thread)
    return not (yield from invoke(methods.DELETE_THREAD, request)).rollback_incomplete


def prune_thread(thread: str, keep_last: int) -> Operation[int]:
    """Delete old checkpoints; return how many."""
    request = pb.PruneThreadRequest(
        request_id=new_request_id(), thread_id=thread, keep_last=count("keep_last", keep_last)
    )
    return (yield from invoke(methods.PRUNE_THREAD, request)).deleted


def get_thread(thread: str) -> Operation[ThreadInfo]:
    """Read what is known of a thread."""
    request = pb.GetThreadRequest(thread_id=thread)
    return run_conversion.thread_info((yield from invoke(methods.GET_THREAD, request)))


def threads(
    token: str, *, graph: str, statuses: Iterable[RunStatus | str], page_size: int
) -> Operation[Page[GraphThread]]:
    """Read one page of threads."""
    request = pb.ListThreadsRequest(
        graph=graph,
        statuses=_statuses(statuses),
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(methods.LIST_THREADS, request)
    return Page(tuple(map(run_conversion.thread, answer.threads)), answer.next_page_token)


def _channels(update: Mapping[str, Any] | None) -> str:
    return "" if update is None else encode_json(update)


def _targets(goto: Targets) -> list[pb.GraphTarget]:
    found = [goto] if isinstance(goto, str | Send) else list(goto)
    return [
        pb.GraphTarget(node=target)
        if isinstance(target, str)
        else pb.GraphTarget(node=target.node, arg_json=encode_json(target.arg))
        for target in found
    ]


def _set_limits(request: _ChangeT, limits: RunLimits) -> None:
    options = request.options
    options.recursion_limit = count("recursion_limit", limits.recursion_limit or 0)
    options.max_total_steps = count("max_total_steps", limits.max_total_steps or 0)
    options.max_concurrency = count("max_concurrency", limits.max_concurrency or 0)
    if (length := duration("deadline", limits.deadline)) is not None:
        options.deadline.CopyFrom(length)
    if (length := duration("wait_timeout", limits.wait_timeout)) is not None:
        options.wait_timeout.CopyFrom(length)
    if limits.durability is not None:
        chosen = member("durability", Durability, limits.durability)
        options.durability = number_of(pb.CheckpointDurability, "CHECKPOINT_DURABILITY_", chosen)
    if limits.commit is not None:
        policy = member("commit", CommitPolicy, limits.commit)
        options.commit = number_of(pb.RunCommitPolicy, "RUN_COMMIT_POLICY_", policy)


def _statuses(statuses: Iterable[RunStatus | str]) -> list[Any]:
    return [
        number_of(pb.RunStatus, "RUN_STATUS_", member("statuses", RunStatus, status)) for status in statuses
    ]
