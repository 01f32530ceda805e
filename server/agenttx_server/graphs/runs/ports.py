"""What runs need of the outer layers: durable memory of threads and runs, and registered graphs.

Rows that belong to a step or a commit are written with it (``rows`` makes them, the transaction carries them);
everything else goes through ``write``. Either is refused whole if a row that must be new is there already: an event
offset, a checkpoint number, a request; or if a thread or checkpoint that it builds on is gone. That is the guard
against two servers on one thread. What removes is guarded by the thread's record: whatever moves a thread changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from agenttx_server.engine.event_signals import EventSignals
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.ports import ExtraRows
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.runs.channel_values import Places
from agenttx_server.graphs.runs.records import (
    CachedAnswer,
    CheckpointRecord,
    CheckpointSource,
    EmbeddedCheckpoint,
    EventRecord,
    InterruptRecord,
    RequestRecord,
    RunRecord,
    RunStatus,
    StopRequest,
    TaskRecord,
    ThreadRecord,
    ValueRecord,
)

__all__ = [
    "ANY_RUN",
    "CheckpointPage",
    "EventFilter",
    "GraphCatalog",
    "NodeTiming",
    "Pruning",
    "RunChange",
    "RunFilter",
    "RunPage",
    "RunStore",
    "ThreadPage",
]


ANY_RUN: Final = ""
"""The key of those who follow the journals of all runs."""


@dataclass(frozen=True, slots=True)
class RunChange:
    """Records to write. New ones (INSERT): checkpoints, embedded, values, events, requests; the others by their keys.

    ``standing_threads``, ``standing_runs`` and ``standing_checkpoints`` (thread and number) are what the change builds on:
    it is refused where one of them is gone. ``unchanged_threads`` are to be as they are here; with a write set ``updated_at`` tells.
    """

    threads: Sequence[ThreadRecord] = ()
    runs: Sequence[RunRecord] = ()
    checkpoints: Sequence[CheckpointRecord] = ()
    values: Sequence[ValueRecord] = ()
    tasks: Sequence[TaskRecord] = ()
    interrupts: Sequence[InterruptRecord] = ()
    events: Sequence[EventRecord] = ()
    requests: Sequence[RequestRecord] = ()
    rolled_back: Sequence[CheckpointRecord] = ()
    embedded: Sequence[EmbeddedCheckpoint] = ()
    embedded_rolled_back: Sequence[EmbeddedCheckpoint] = ()
    stops: Sequence[StopRequest] = ()
    cached: Sequence[CachedAnswer] = ()
    unchanged_threads: Sequence[ThreadRecord] = ()
    standing_threads: Sequence[str] = ()
    standing_runs: Sequence[str] = ()
    standing_checkpoints: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs; empty fields restrict nothing."""

    principal: str = ""
    graph: str = ""
    thread_id: str = ""
    statuses: frozenset[RunStatus] = frozenset()
    include_children: bool = False


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events, beside where they begin; empty fields restrict nothing. ``principal`` is that of their runs."""

    principal: str = ""
    run_id: str = ""
    root_run_id: str = ""
    thread_id: str = ""
    graph: str = ""


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs, the newest first; ``next_cursor`` is "" on the last page."""

    runs: Sequence[RunRecord]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class ThreadPage:
    """Threads with their newest runs, those last used first."""

    threads: Sequence[tuple[ThreadRecord, RunRecord]]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class CheckpointPage:
    """Checkpoints, the newest first."""

    checkpoints: Sequence[CheckpointRecord]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class NodeTiming:
    """How long a node's tasks took on a thread, in microseconds."""

    node: str
    count: int
    mean_us: float
    max_us: int


@dataclass(frozen=True, slots=True)
class Pruning:
    """What pruning a thread writes and deletes.

    Attributes:
        checkpoints: kept ones that have no parent any more.
        values: deltas that become snapshots.
        checkpoints_gone: numbers.
        values_gone: channels and numbers.
        embedded_gone: of graphs inside others, namespaces and numbers.
    """

    checkpoints: tuple[CheckpointRecord, ...]
    values: tuple[ValueRecord, ...]
    checkpoints_gone: tuple[int, ...]
    values_gone: tuple[tuple[str, int], ...]
    embedded_gone: tuple[tuple[str, int], ...] = ()


class GraphCatalog(Protocol):
    """Graphs that are registered."""

    async def load(self, owner: str, name: str, version: str) -> CompiledGraph | None:
        """Return a version that an owner's tenant has, "" for the newest; None if it isn't registered."""


class RunStore(Protocol):
    """Durable memory of threads and runs. Every call may raise StoreUnavailable.

    ``signals`` wakes those who follow a run's journal, or :data:`ANY_RUN`, when this process has written events to it.
    ``is_shared`` is that other servers may write to the same database at the same time, of which they don't tell.
    """

    @property
    def signals(self) -> EventSignals[str]: ...

    @property
    def is_shared(self) -> bool: ...

    def rows(self, change: RunChange) -> Sequence[ExtraRows]:
        """Return a change as rows that a write to a run's transaction carries."""

    async def write(self, change: RunChange) -> None:
        """Write a change by itself, atomically. Raises ExtraRowsRefused."""

    async def load_thread(self, thread_id: str) -> ThreadRecord | None: ...

    async def load_run(self, run_id: str) -> RunRecord | None: ...

    async def load_checkpoint(self, thread_id: str, number: int) -> CheckpointRecord | None: ...

    async def load_values(self, thread_id: str, places: Places) -> Sequence[ValueRecord]:
        """Return at least all records that the places lead to."""

    async def all_values(self, thread_id: str) -> Sequence[ValueRecord]:
        """Return all that checkpoints of a thread wrote."""

    async def prune(self, thread: ThreadRecord, plan: Pruning) -> bool:
        """Carry out a pruning, atomically; False, and nothing is done, if the thread isn't as it was any more."""

    async def delete_thread(self, thread: ThreadRecord, request: RequestRecord | None = None) -> bool:
        """Delete a thread with its checkpoints, runs and journals, atomically; False as :meth:`prune`, or if a run is live.

        ``request`` is kept as what asked for it. Raises ExtraRowsRefused if that was answered already.
        """

    async def load_tasks(self, run_id: str, superstep: int) -> Sequence[TaskRecord]:
        """Return the tasks of a superstep, by ordinal."""

    async def load_interrupts(self, run_id: str, superstep: int) -> Sequence[InterruptRecord]:
        """Return all questions of a superstep's tasks, by task id and ordinal."""

    async def list_interrupts(self, thread_id: str) -> Sequence[InterruptRecord]:
        """Return what a thread waits for: its PENDING interrupts."""

    async def list_checkpoints(
        self, thread_id: str, sources: frozenset[CheckpointSource], cursor: str, limit: int
    ) -> CheckpointPage:
        """Return a page of a thread's checkpoints, on all branches. Raises ValueError for an unknown cursor."""

    async def list_embedded(
        self, thread_id: str, namespace: str, before: int | None, limit: int
    ) -> Sequence[EmbeddedCheckpoint]:
        """Return checkpoints of a graph inside another, the newest first, those before a number alone."""

    async def list_runs(self, which: RunFilter, cursor: str, limit: int) -> RunPage:
        """Return a page. Raises ValueError for an unknown cursor."""

    async def list_threads(
        self, principal: str, graph: str, statuses: frozenset[RunStatus], cursor: str, limit: int
    ) -> ThreadPage:
        """Return a page. Raises ValueError for an unknown cursor."""

    async def list_events(
        self, run_id: str, from_offset: int, limit: int, byte_limit: int | None = None
    ) -> Sequence[EventRecord]:
        """Return events of one run from an offset on, in order, up to both limits; at least one if there is one."""

    async def list_events_from(
        self,
        which: EventFilter,
        after_sequence: int,
        limit: int,
        *,
        up_to: int | None = None,
        byte_limit: int | None = None,
    ) -> Sequence[EventRecord]:
        """Return events behind a sequence, in order of commits, up to all limits; at least one if there is one.

        Sequences grow in that order, but not by one: there are up to 64 times as many as events.
        """

    async def written_since(self, sequence: int) -> tuple[int, Sequence[str]]:
        """Return the sequence of the newest event, and the runs that have events behind ``sequence``."""

    async def last_sequence(self) -> int:
        """Return the sequence of the newest event; 0 where there was none."""

    async def node_timings(self, thread_id: str) -> Sequence[NodeTiming]: ...

    async def count_checkpoints(self, thread_id: str) -> int: ...

    async def find_request(self, principal: str, request_id: str) -> RequestRecord | None: ...

    async def list_stops(self, run_ids: Sequence[str]) -> Sequence[StopRequest]:
        """Return what these runs are asked for: of each a cancellation first."""

    async def forget_stops(self, words: Sequence[StopRequest]) -> None:
        """Forget words that were acted on; later ones of a run stay."""

    async def claim_runs(self, server_id: str, now: int, limit: int) -> Sequence[RunRecord]:
        """Take over runs whose server has no lease; return them as they are then."""

    async def list_runs_of(self, server_id: str, unchanged_since: int, limit: int) -> Sequence[RunRecord]:
        """Return runs that a server has to see to and that changed last before a time, the oldest first."""

    async def list_overdue(self, now: int, after: tuple[int, str], limit: int) -> Sequence[RunRecord]:
        """Return runs whose ``waits_until`` has come, the earliest first, behind one of that time and id."""

    async def find_cached(self, cache_key: str, now: int) -> CachedAnswer | None:
        """Return the answer that is kept under a key and hasn't expired."""

    async def list_cacheable(self, run_id: str) -> Sequence[TaskRecord]:
        """Return the tasks of a run that are in a checkpoint and whose answers are to be kept when it commits."""

    async def purge_cached(self, now: int, most: int, limit: int) -> int:
        """Delete answers that have expired, and of the others the oldest beyond ``most``, up to ``limit`` of each.

        Returns how many were deleted.
        """

    async def purge_runs(self, ended_before: int) -> int:
        """Delete runs without a thread that ended before a time, with their journals; return how many.

        Those whose transaction is kept stay, as do runs of threads.
        """
