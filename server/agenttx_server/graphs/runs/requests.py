"""What is asked of runs and what is answered; how a request is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import JsonValue
from agenttx_server.graphs.errors import GraphError
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.runs.records import (
    CommitPolicy,
    Durability,
    InterruptRecord,
    Pairs,
    RequestRecord,
    RunRecord,
)

__all__ = [
    "Amendment",
    "CopyRequest",
    "ForkRequest",
    "InputPolicy",
    "ResumeRequest",
    "RetryRequest",
    "RunLimits",
    "RunOutcome",
    "RunRefused",
    "StartRequest",
    "StateUpdate",
    "Trigger",
    "UpdateRequest",
    "busy",
    "no_checkpoint",
    "request_key",
    "request_records",
]


class RunRefused(GraphError):
    """A request about a run that can't be done as things stand; nothing was changed."""


class Trigger(StrEnum):
    """What began an invocation."""

    START = "start"
    RESUME = "resume"
    RETRY = "retry"
    RECOVERY = "recovery"
    UPDATE = "update"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits that a request sets; None keeps the graph's, or what the run has. A ``wait_timeout_us`` of 0: for ever."""

    recursion_limit: int | None = None
    max_total_steps: int | None = None
    max_concurrency: int | None = None
    deadline_us: int | None = None
    wait_timeout_us: int | None = None
    durability: Durability | None = None
    commit: CommitPolicy | None = None


class InputPolicy(StrEnum):
    """What new input does to a thread that has a state: MERGE goes through the reducers, RESET begins anew."""

    MERGE = "MERGE"
    RESET = "RESET"


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Start a run; without a ``thread_id`` no checkpoints are kept.

    Attributes:
        checkpoint_id: where on the thread it starts, on a branch of its own; "" for the head.
        input_policy: RESET rolls an open transaction back.
        discards_interrupts: whether questions that are pending are withdrawn; else they refuse the request.
        queues: whether it waits while another run is under way on the thread; else it is refused.
        allows_graph_change: whether the thread may go on under another version than it was begun with.
    """

    graph: str
    version: str = ""
    thread_id: str = ""
    input: Mapping[str, JsonValue] | None = None
    goto: tuple[Target, ...] = ()
    limits: RunLimits = RunLimits()
    metadata: Pairs = ()
    request_id: str = ""
    fingerprint: str = ""
    principal: str = "anonymous"
    checkpoint_id: str = ""
    input_policy: InputPolicy = InputPolicy.MERGE
    discards_interrupts: bool = False
    queues: bool = False
    allows_graph_change: bool = False


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """Make a checkpoint ("" for the head) the root of a new thread, which is named if ``new_thread_id`` is ""."""

    thread_id: str
    checkpoint_id: str = ""
    new_thread_id: str = ""
    request_id: str = ""
    fingerprint: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """Copy a thread with its history."""

    thread_id: str
    new_thread_id: str = ""
    request_id: str = ""
    fingerprint: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class Amendment:
    """What is changed before a run goes on.

    Attributes:
        update: channels, through their reducers.
        goto: what runs beside what is pending.
        discard: ids of finished tasks whose results are given up.
    """

    update: Mapping[str, JsonValue] | None = None
    goto: tuple[Target, ...] = ()
    discard: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """Answer interrupts: ``values`` by id, or (``has_value``) ``value`` for the only one that is pending.

    Applied in the order update, goto, answers.
    """

    thread_id: str
    value: JsonValue = None
    has_value: bool = False
    values: Mapping[str, JsonValue] = field(default_factory=dict)
    limits: RunLimits = RunLimits()
    amendment: Amendment = Amendment()
    version: str = ""
    allows_graph_change: bool = False
    request_id: str = ""
    fingerprint: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """Go on with a run that awaits no answer."""

    thread_id: str
    limits: RunLimits = RunLimits()
    amendment: Amendment = Amendment()
    version: str = ""
    allows_graph_change: bool = False
    request_id: str = ""
    fingerprint: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """What a node is taken to have answered.

    Attributes:
        as_node: the node, which then counts as having finished; "" for nobody in particular, START for new input,
            END to give up all that is pending.
        update: channels, through their reducers.
        goto: where it goes; a node that routes by commands needs it.
        task_id: the task that it finishes, also one that has finished in the superstep that is open: its result is
            given up. Empty: the pending one of ``as_node``, or one of its own.
    """

    as_node: str = ""
    update: Mapping[str, JsonValue] | None = None
    goto: tuple[Target, ...] = ()
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """Edit the state of a thread: supersteps of updates, each of different nodes.

    ``graph`` is for a new thread; with a ``checkpoint_id`` the edit follows that one, on a branch of its own.
    """

    thread_id: str
    supersteps: tuple[tuple[StateUpdate, ...], ...]
    graph: str = ""
    version: str = ""
    checkpoint_id: str = ""
    request_id: str = ""
    fingerprint: str = ""
    principal: str = "anonymous"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How far a run is. ``state`` is with what finished since the last boundary."""

    run: RunRecord
    state: Mapping[str, JsonValue]
    visited: Sequence[str] = ()
    interrupts: Sequence[InterruptRecord] = ()
    checkpoint_id: str = ""
    next_nodes: Sequence[str] = ()


def busy(thread_id: str, run_id: str) -> RunRefused:
    """Another run is under way on a thread; ``run_id`` where it is known."""
    return RunRefused(
        "THREAD_BUSY",
        f"another run is under way on thread '{thread_id}'",
        {"thread_id": thread_id, "run_id": run_id},
    )


def no_checkpoint(thread_id: str, checkpoint: str) -> RunRefused:
    """A thread has no such checkpoint, or ("") none at all."""
    named = f"no checkpoint '{checkpoint[:128]}'" if checkpoint else "no checkpoint"
    return RunRefused(
        "CHECKPOINT_NOT_FOUND",
        f"thread '{thread_id}' has {named}",
        {"thread_id": thread_id, "checkpoint_id": checkpoint[:128]},
    )


def request_key(
    request: StartRequest | ResumeRequest | RetryRequest | UpdateRequest | ForkRequest | CopyRequest,
) -> tuple[str, str] | None:
    """What tells a request from others, and has it done once; None for one that may be done again."""
    return (request.principal, request.request_id) if request.request_id else None


def request_records(
    method: str, request: StartRequest | ResumeRequest | RetryRequest, run_id: str
) -> tuple[RequestRecord, ...]:
    """What keeps a request from being done twice; nothing for one without a request_id."""
    if not request.request_id:
        return ()
    return (RequestRecord(request.principal, request.request_id, method, request.fingerprint, run_id),)
