"""What is kept of threads and their runs. Times are microseconds of UTC; JSON values are canonical text.

A **thread** has checkpoints; a **run** is one start and all that goes on with it; a **checkpoint** is the state at
a boundary between supersteps with the work that comes next; a **task** is one execution of a node, and its answer
is kept from the moment it is there. Checkpoints of a thread are numbered from 0, and a number is given once: who
inserts the next one has won the thread's head.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final, TypeAlias

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import JsonValue, canonical
from agenttx_server.graphs.limits import DEFAULT_MAX_TOTAL_STEPS, DEFAULT_RECURSION_LIMIT

__all__ = [
    "LIVE",
    "LONGEST_CACHED_ANSWER",
    "MAIN_BRANCH",
    "CachedAnswer",
    "CheckpointRecord",
    "CheckpointSource",
    "CommitPolicy",
    "Durability",
    "EmbeddedCheckpoint",
    "EmbeddedRun",
    "EventRecord",
    "InterruptRecord",
    "InterruptState",
    "Pairs",
    "RequestRecord",
    "RunError",
    "RunOptions",
    "RunRecord",
    "RunStatus",
    "StopKind",
    "StopRequest",
    "StoredPlace",
    "TaskRecord",
    "TaskState",
    "ThreadRecord",
    "ValueRecord",
    "checkpoint_id",
    "checkpoint_number",
]

MAIN_BRANCH: Final = "main"

LONGEST_CACHED_ANSWER: Final = 1 << 20
"""Characters; a longer answer is not kept for other runs."""

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Names with their texts, in order of the names."""

StoredPlace: TypeAlias = tuple[str, int, int, int, int]
"""The fields of a :class:`.channel_values.ValuePlace`, as a checkpoint keeps them."""


class RunStatus(StrEnum):
    """Where a run is; as RunStatus of graph.proto."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    INTERRUPTED = "INTERRUPTED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


LIVE: Final = frozenset({RunStatus.PENDING, RunStatus.RUNNING, RunStatus.WAITING, RunStatus.DRAINING})
"""An invocation is under way: some server works on the run, or takes it over if that server is gone."""


class Durability(StrEnum):
    """When boundaries are durable (docs/decisions/0030).

    SYNC: before the next superstep starts. ASYNC: while it runs. EXIT: its checkpoint when the invocation ends.
    """

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    EXIT = "EXIT"


class CommitPolicy(StrEnum):
    """When a run's transaction commits: when it completes, or (INTERRUPT) each time it begins to wait too."""

    COMPLETION = "COMPLETION"
    INTERRUPT = "INTERRUPT"


class CheckpointSource(StrEnum):
    """How a checkpoint came to be."""

    INPUT = "INPUT"
    LOOP = "LOOP"
    UPDATE = "UPDATE"
    FORK = "FORK"


class TaskState(StrEnum):
    """How far a task is.

    FOLDED: its answer is in a checkpoint. GIVEN_UP: its answer isn't wanted; its step is undone and run again.
    LEFT_OUT: the same, but the superstep ends without it. Either is written before the step is undone.
    UNDONE: a rewind took its superstep back. HANDLED: it failed, and its error handler stands in for it.
    """

    PENDING = "PENDING"
    FINISHED = "FINISHED"
    INTERRUPTED = "INTERRUPTED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    FOLDED = "FOLDED"
    GIVEN_UP = "GIVEN_UP"
    LEFT_OUT = "LEFT_OUT"
    UNDONE = "UNDONE"
    HANDLED = "HANDLED"


class InterruptState(StrEnum):
    """Where a question is. ANSWERED: kept until its task has finished."""

    PENDING = "PENDING"
    ANSWERED = "ANSWERED"
    WITHDRAWN = "WITHDRAWN"


class StopKind(StrEnum):
    """What a run under way is asked for."""

    CANCEL = "CANCEL"
    DRAIN = "DRAIN"


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run failed; ``reason`` names an ErrorReason. ``others`` are the further errors of its superstep."""

    reason: str
    message: str
    hint: str = ""
    node: str = ""
    namespace: str = ""
    task_id: str = ""
    category: str = ""
    metadata: Pairs = ()
    others: tuple[RunError, ...] = ()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run is run. ``deadline_us`` bounds one invocation; None: no limit.

    ``wait_timeout_us``: how long it may wait for somebody to go on with it before it is rolled back; 0: for ever.
    """

    recursion_limit: int = DEFAULT_RECURSION_LIMIT
    max_total_steps: int = DEFAULT_MAX_TOTAL_STEPS
    max_concurrency: int = 16
    deadline_us: int | None = None
    metadata: Pairs = ()
    wait_timeout_us: int = 0
    durability: Durability = Durability.SYNC
    commit: CommitPolicy = CommitPolicy.COMPLETION


@dataclass(frozen=True, slots=True)
class ThreadRecord:
    """A thread.

    Attributes:
        run_id: its newest run.
        head: number of its newest checkpoint; None before the first.
        committed_head: where the head goes if the open transaction is rolled back; None: to nothing.
        next_number: the number of the next checkpoint.
        superstep: the last number of a superstep that was used; none comes again.
        transaction_id: the open one; "" where none is.
        transaction_first: number of the first checkpoint in it.
        branch: the one that the head is on.
        unkept: the first superstep behind the head whose boundary has no checkpoint, though it is over (EXIT); 0: the
            head is the last boundary.
    """

    thread_id: str
    graph: str
    graph_version: str
    run_id: str
    created_at: int
    updated_at: int
    head: int | None = None
    committed_head: int | None = None
    next_number: int = 0
    superstep: int = 0
    transaction_id: str = ""
    transaction_first: int = 0
    branch: str = MAIN_BRANCH
    principal: str = "anonymous"
    unkept: int = 0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run.

    Attributes:
        server_id: who works on it; "" where nobody does.
        superstep: the one that is under way, or was last.
        next_offset: offset of its next event.
        invocation: how many times it was started, resumed or retried.
        invoked_at: when it was last.
        passes_stops: whether it goes on from a stop before a node, and so does not stop there again.
        invocation_first: supersteps that the run had when this invocation began.
        visits: how often each node with a limit of its own ran.
        input: the update that it was started with, as JSON; "" where there was none.
        goto: the targets that it was started with, as JSON.
        copies: transaction and step up to which its own begins with a copy of the store writes; None once it has.
        is_branch: whether it goes on from a checkpoint or an edit, and not from input.
        rewinds_to: the checkpoint that a rewind under way was asked to go to.
    """

    run_id: str
    thread_id: str
    graph: str
    graph_version: str
    status: RunStatus
    created_at: int
    updated_at: int
    server_id: str = ""
    transaction_id: str = ""
    root_run_id: str = ""
    parent_run_id: str = ""
    namespace: str = ""
    superstep: int = 0
    total_supersteps: int = 0
    invocation: int = 0
    invocation_first: int = 0
    invoked_at: int = 0
    passes_stops: bool = False
    next_offset: int = 0
    last_event: str = ""
    ended_at: int | None = None
    error: RunError | None = None
    options: RunOptions = RunOptions()
    visits: tuple[tuple[str, int], ...] = ()
    active_nodes: tuple[str, ...] = ()
    stopped_before: tuple[str, ...] = ()
    stopped_after: tuple[str, ...] = ()
    input: str = ""
    goto: str = ""
    copies: tuple[str, int] | None = None
    is_branch: bool = False
    principal: str = "anonymous"
    rewinds_to: int | None = None

    @property
    def waits_until(self) -> int | None:
        """When it is rolled back if nobody has gone on with it; None: never, or it doesn't wait.

        Whatever is written of it while it waits, as an edit or a rewind, begins the time anew.
        """
        ended = self.status in LIVE or self.status is RunStatus.COMPLETED or not self.transaction_id
        if ended or self.parent_run_id or not self.options.wait_timeout_us:
            return None
        return self.updated_at + self.options.wait_timeout_us


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """What one checkpoint wrote of one channel: the value whole, or (``previous`` set) elements appended to it.

    ``origins`` says which steps wrote it, as JSON: that of the last writer, and one for each element written here.
    """

    thread_id: str
    channel: str
    number: int
    previous: int | None
    value: str
    origins: str


@dataclass(frozen=True, slots=True)
class EmbeddedRun:
    """A run of a graph that a task embeds. ``checkpoint`` is the number of its last one; None: it keeps none."""

    run_id: str
    node: str
    namespace: str
    graph: str
    graph_version: str
    checkpoint: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A boundary.

    Attributes:
        values: where the values of its channels are, by channel.
        work: what comes next, as JSON (:mod:`.work_json`).
        completed: the tasks that made it: id, node, ordinal.
        forked_thread: for the first of a forked or copied thread: the thread that it is of; "" for others.
        forked_number: the checkpoint that it is of.
        rolled_back: whether what led to it was undone: it is history.
        next_step: the step of the transaction that came, or comes, first behind it; 0 where none has been known.
        total_supersteps: how many the run had made.
        visits: how often each node with a limit of its own had run.
        children: the runs of embedded graphs that ended in it.
        kept: of embedded graphs that keep their state, the last run of each.
    """

    thread_id: str
    number: int
    parent: int | None
    source: CheckpointSource
    superstep: int
    run_id: str
    graph_version: str
    created_at: int
    transaction_id: str = ""
    namespace: str = ""
    branch: str = MAIN_BRANCH
    rolled_back: bool = False
    values: tuple[StoredPlace, ...] = ()
    work: str = "{}"
    completed: tuple[tuple[str, str, int], ...] = ()
    next_step: int = 0
    total_supersteps: int = 0
    visits: tuple[tuple[str, int], ...] = ()
    forked_thread: str = ""
    forked_number: int | None = None
    children: tuple[EmbeddedRun, ...] = ()
    kept: tuple[EmbeddedRun, ...] = ()

    @property
    def checkpoint_id(self) -> str:
        """Its id."""
        return checkpoint_id(self.thread_id, self.number, self.namespace)

    @property
    def parent_id(self) -> str:
        """The id of its parent; "" for a root."""
        return "" if self.parent is None else checkpoint_id(self.thread_id, self.parent, self.namespace)


@dataclass(frozen=True, slots=True)
class EmbeddedCheckpoint(CheckpointRecord):
    """A boundary of a graph inside another: numbered in its namespace. ``state`` is whole, as JSON."""

    state: str = "{}"


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One execution of a node.

    Attributes:
        step_id: its step; 0 until the superstep under way has been extended by it.
        arg: the argument of its Send, as JSON; None where it has none.
        answer: what its node answered, as JSON, until it is in a checkpoint; of a boundary without one it stays.
        error: why it failed; of a FINISHED one: why its answer is none.
        retries: attempts that failed and were repeated, not in the journal yet: number, delay in ms, hint, category.
        handles: the task whose error it handles; "" for any other.
        reported: how many attempts the journal knows of; -1: it doesn't know the task.
        adopts: transaction and step that it was in a superstep that was ended early; None otherwise.
        events: what its node told with its last attempt, name and JSON text, not in the journal yet.
        child: the run of the graph that it embeds, once that was begun.
        cache_key: under what its answer is kept for other runs once its run commits; "" where it isn't.
        is_cached: whether its answer is one that was kept: its node was not called.
        router_answer: what a worker's router said of it, as JSON, where its boundary has no checkpoint.
    """

    run_id: str
    superstep: int
    ordinal: int
    task_id: str
    node: str
    thread_id: str = ""
    namespace: str = ""
    state: TaskState = TaskState.PENDING
    step_id: int = 0
    attempts: int = 0
    arg: str | None = None
    answer: str | None = None
    error: RunError | None = None
    started_at: int = 0
    ended_at: int = 0
    retries: tuple[tuple[int, int, str, str], ...] = ()
    reported: int = -1
    handles: str = ""
    adopts: tuple[str, int] | None = None
    events: tuple[tuple[str, str], ...] = ()
    child: EmbeddedRun | None = None
    cache_key: str = ""
    is_cached: bool = False
    router_answer: str | None = None

    @property
    def is_to_be_kept(self) -> bool:
        """Whether its answer, once it has finished, is kept for other runs when its run commits."""
        fits = self.answer is not None and len(self.answer) <= LONGEST_CACHED_ANSWER
        return fits and bool(self.cache_key) and not self.is_cached and self.error is None


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A node's answer that other runs take in place of calling it; ``expires_at`` None: for ever.

    It goes with ``thread_id``, the thread of the run that was given it; "" where that had none.
    """

    cache_key: str
    thread_id: str
    graph: str
    node: str
    answer: str
    created_at: int
    expires_at: int | None


@dataclass(frozen=True, slots=True)
class InterruptRecord:
    """A question of a task: its ``ordinal``-th. ``answer`` is JSON, None while it is pending.

    One asked inside an embedded graph is of the root's run and superstep, and of the task, node and namespace that ask;
    ``within`` is the root's task inside of which that is, "" for a question of the root graph.
    """

    interrupt_id: str
    run_id: str
    thread_id: str
    superstep: int
    task_id: str
    node: str
    ordinal: int
    payload: str
    state: InterruptState
    created_at: int
    namespace: str = ""
    answer: str | None = None
    within: str = ""

    @property
    def waiting_task(self) -> str:
        """The task of the root graph that waits for it."""
        return self.within or self.task_id

    @property
    def payload_hash(self) -> str:
        """What tells whether a restarted node asks the same again."""
        return hashlib.sha256(self.payload.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event of a run. ``offset`` is dense from 0 in it; ``sequence`` is the database's, 0 before it was written.

    A live notice, which is not written, has no offset: -1.
    """

    run_id: str
    offset: int
    kind: str
    occurred_at: int
    payload: str = "{}"
    thread_id: str = ""
    root_run_id: str = ""
    graph: str = ""
    namespace: str = ""
    superstep: int = 0
    node: str = ""
    task_id: str = ""
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request that was answered: sent again it gets the same run. ``fingerprint`` tells whether it is the same.

    ``run_id`` of a DeleteThread is how many checkpoints were deleted.
    """

    principal: str
    request_id: str
    method: str
    fingerprint: str
    run_id: str


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A word to the server that works on a run, about the invocation that was under way.

    ``reason`` of a DRAIN is its grace in microseconds, "" for none.
    """

    run_id: str
    kind: StopKind
    reason: str
    invocation: int


def checkpoint_id(thread_id: str, number: int, namespace: str = "") -> str:
    """Name a checkpoint by its thread, or the embedded graph's namespace in it, and its number there."""
    where: list[JsonValue] = [thread_id, namespace, number] if namespace else [thread_id, number]
    return f"c-{number}-{hashlib.sha256(canonical(where).encode()).hexdigest()[:24]}"


def checkpoint_number(thread_id: str, name: str, namespace: str = "") -> int | None:
    """The number of the checkpoint that has this id in a thread; None for an id that none can have."""
    number = name.removeprefix("c-").partition("-")[0]
    if not number.isdecimal() or len(number) > 18 or checkpoint_id(thread_id, int(number), namespace) != name:
        return None
    return int(number)
