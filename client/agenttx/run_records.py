"""What the server tells of runs and threads of graphs, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

__all__ = [
    "Checkpoint",
    "CheckpointSource",
    "ChildRun",
    "CommitPolicy",
    "Durability",
    "GraphRun",
    "GraphTask",
    "GraphThread",
    "JoinArrivals",
    "NodeTiming",
    "RewoundThread",
    "RunError",
    "RunInterrupt",
    "RunOutcome",
    "RunStatus",
    "ThreadInfo",
]


class RunStatus(StrEnum):
    """Where a run is. RUNNING, WAITING and DRAINING are under way; a COMPLETED run is committed; with the others one goes on."""

    UNSPECIFIED = "UNSPECIFIED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    INTERRUPTED = "INTERRUPTED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class CheckpointSource(StrEnum):
    """What a checkpoint was made by."""

    UNSPECIFIED = "UNSPECIFIED"
    INPUT = "INPUT"
    LOOP = "LOOP"
    UPDATE = "UPDATE"
    FORK = "FORK"


class Durability(StrEnum):
    """When a run's boundaries are durable; what nodes answered is, in each."""

    UNSPECIFIED = "UNSPECIFIED"
    SYNC = "SYNC"
    ASYNC = "ASYNC"
    EXIT = "EXIT"


class CommitPolicy(StrEnum):
    """When a run's transaction commits."""

    UNSPECIFIED = "UNSPECIFIED"
    COMPLETION = "COMPLETION"
    INTERRUPT = "INTERRUPT"


@dataclass(frozen=True, slots=True)
class RunInterrupt:
    """A question that a run waits with.

    Attributes:
        interrupt_id: Its id: the key of its answer in `Graph.resume(values=…)`.
        node: The node that asks.
        namespace: Where its graph is embedded; "" for a root.
        payload: What it asks, any JSON value.
        task_id: The task that asks.
        ordinal: Its number among the questions of that task, from 0.
    """

    interrupt_id: str
    node: str
    namespace: str
    payload: Any
    task_id: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run failed.

    Attributes:
        reason: What kind of failure, such as NODE_FAILED or RECURSION_LIMIT.
        message: One line.
        hint: What to fix, where a tool or a node failed.
        node: The node; "" where it is none's.
        namespace: Where its graph is embedded; "" for a root.
        task_id: The task; "" where it is none's.
        category: The hint's category.
        metadata: Facts by name.
        others: Failures beside it, in the order of tasks.
    """

    reason: str
    message: str
    hint: str
    node: str
    namespace: str
    task_id: str
    category: str
    metadata: Mapping[str, str]
    others: tuple[RunError, ...]


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How an invocation of a run ended, or where it is.

    Attributes:
        run_id: The run.
        thread_id: Its thread; "" for none.
        status: Where it is.
        state: The channels, with what finished since the last boundary; empty while it is under way.
        visited_nodes: The nodes that ran in this invocation, in order.
        supersteps: How many supersteps it made.
        interrupts: What it waits for.
        checkpoint_id: The thread's head.
        last_offset: Offset of its last event.
        error: Why it failed; None if it didn't.
        next_nodes: What comes next.
        transaction_id: Its transaction; "" once that is rolled back.
        graph_version: The version that it runs.
    """

    run_id: str
    thread_id: str
    status: RunStatus
    state: Mapping[str, Any]
    visited_nodes: tuple[str, ...]
    supersteps: int
    interrupts: tuple[RunInterrupt, ...]
    checkpoint_id: str
    last_offset: int
    error: RunError | None
    next_nodes: tuple[str, ...]
    transaction_id: str
    graph_version: str


@dataclass(frozen=True, slots=True)
class GraphRun:
    """The status record of a run.

    Attributes:
        run_id: The run.
        root_run_id: The run that it is part of; itself for a root.
        parent_run_id: The run that embeds it; "" for a root.
        thread_id: Its thread; "" for none.
        graph: Name of the graph.
        graph_version: The version.
        checkpoint_id: Its newest checkpoint.
        namespace: Where it is embedded; "" for a root.
        status: Where it is.
        superstep: Number of the superstep that it is in.
        total_supersteps: How many it made.
        active_nodes: The nodes of that superstep that haven't finished.
        interrupts: What it waits for.
        last_event: Kind of its last event.
        last_offset: Offset of its last event.
        created_at: When it was started.
        updated_at: When it last changed.
        ended_at: When it ended; None while it may go on.
        error: Why it failed; None if it didn't.
        transaction_id: Its transaction.
        metadata: Its labels.
    """

    run_id: str
    root_run_id: str
    parent_run_id: str
    thread_id: str
    graph: str
    graph_version: str
    checkpoint_id: str
    namespace: str
    status: RunStatus
    superstep: int
    total_supersteps: int
    active_nodes: tuple[str, ...]
    interrupts: tuple[RunInterrupt, ...]
    last_event: str
    last_offset: int
    created_at: datetime | None
    updated_at: datetime | None
    ended_at: datetime | None
    error: RunError | None
    transaction_id: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GraphTask:
    """A node's execution that is to come, or that has finished in a superstep that is still open.

    Attributes:
        task_id: Its id; "" where its superstep has no number yet.
        node: The node.
        ordinal: Its place in the superstep.
        arg: The argument of the `Send` that asks for it; None for none.
        interrupts: What it waits for.
        error: Why it failed; None if it didn't.
        finished: Whether it has its result.
    """

    task_id: str
    node: str
    ordinal: int
    arg: Any
    interrupts: tuple[RunInterrupt, ...]
    error: RunError | None
    finished: bool


@dataclass(frozen=True, slots=True)
class JoinArrivals:
    """How far a join is: its target, the members that came and those that didn't, and whether it has fired."""

    target: str
    arrived: tuple[str, ...]
    missing: tuple[str, ...]
    fired: bool


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run of an embedded graph.

    Attributes:
        run_id: Its id.
        node: The node that embeds the graph.
        namespace: Where that is: what `Graph.state` and `Graph.history` take.
        checkpoint_id: Its last checkpoint; "" where it keeps none.
    """

    run_id: str
    node: str
    namespace: str
    checkpoint_id: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a thread at a boundary.

    Attributes:
        thread_id: The thread.
        checkpoint_id: Its id; "" for the head of a thread that has none, all that it had being rolled back.
        parent_checkpoint_id: The one before it; "" for a root.
        namespace: Where its graph is embedded; "" for a root.
        branch: The branch that it is on.
        state: The channels; empty where they were not asked for.
        next: What comes next.
        completed: The tasks that it was made of.
        joins: The joins under way.
        source: What it was made by.
        superstep: Number of the superstep that it ends.
        run_id: The run that made it.
        created_at: When it was made.
        graph_version: The version that it was made under.
        rolled_back: Whether what it has was undone.
        head: Whether it is the thread's head.
        metadata: Labels of its run.
        children: The runs of embedded graphs that ended in it.
    """

    thread_id: str
    checkpoint_id: str
    parent_checkpoint_id: str
    namespace: str
    branch: str
    state: Mapping[str, Any]
    next: tuple[GraphTask, ...]
    completed: tuple[GraphTask, ...]
    joins: tuple[JoinArrivals, ...]
    source: CheckpointSource
    superstep: int
    run_id: str
    created_at: datetime | None
    graph_version: str
    rolled_back: bool
    head: bool
    metadata: Mapping[str, str]
    children: tuple[ChildRun, ...] = ()

    @property
    def next_nodes(self) -> tuple[str, ...]:
        """The nodes that come next."""
        return tuple(task.node for task in self.next)


@dataclass(frozen=True, slots=True)
class GraphThread:
    """A thread: its graph, its newest run and its head."""

    thread_id: str
    graph: str
    graph_version: str
    run_id: str
    status: RunStatus
    checkpoint_id: str
    superstep: int
    created_at: datetime | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class NodeTiming:
    """How long a node takes on a thread: how many runs, their mean and the longest, in milliseconds."""

    node: str
    count: int
    mean_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """What is known of a thread.

    Attributes:
        thread: The thread.
        run: Its newest run.
        timings: How long its nodes take.
        checkpoints: How many checkpoints it has.
        branches: On how many branches they are.
        pending: What comes next.
    """

    thread: GraphThread
    run: GraphRun
    timings: tuple[NodeTiming, ...]
    checkpoints: int
    branches: int
    pending: tuple[GraphTask, ...]


@dataclass(frozen=True, slots=True)
class RewoundThread:
    """What going back undid, or would undo.

    Attributes:
        checkpoint_id: The head now, or then.
        steps_undone: How many steps.
        compensations_run: How many undo actions.
        rollback_incomplete: Whether undo that failed holds it; `client.list_compensations` names what.
        withdrawn_interrupt_ids: Questions that nobody waits for any more.
        transaction_id: The transaction.
    """

    checkpoint_id: str
    steps_undone: int
    compensations_run: int
    rollback_incomplete: bool
    withdrawn_interrupt_ids: tuple[str, ...]
    transaction_id: str
