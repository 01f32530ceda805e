"""What is asked about threads: the state at a checkpoint, and what comes next from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import MISSING, JsonValue, canonical, load
from agenttx_server.graphs.boundary import Work
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.fold import tracked
from agenttx_server.graphs.runs.ports import CheckpointPage, GraphCatalog, NodeTiming, RunStore, ThreadPage
from agenttx_server.graphs.runs.position import (
    Position,
    caught_up,
    position_at,
    provisional_state,
    unfolded_tasks,
)
from agenttx_server.graphs.runs.records import (
    CheckpointRecord,
    CheckpointSource,
    EmbeddedCheckpoint,
    InterruptRecord,
    InterruptState,
    Pairs,
    RunError,
    RunStatus,
    TaskRecord,
    TaskState,
    ThreadRecord,
    checkpoint_id,
    checkpoint_number,
)
from agenttx_server.graphs.runs.requests import RunRefused, no_checkpoint
from agenttx_server.graphs.runs.run_reading import RunReading, RunView
from agenttx_server.graphs.runs.work_json import read_work
from agenttx_server.graphs.tasks import order_tasks

__all__ = [
    "CheckpointListing",
    "CheckpointView",
    "JoinView",
    "TaskView",
    "ThreadReading",
    "ThreadView",
    "parent_id",
]


_PAGE = 1000


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task that is to come. ``task_id`` is "" where the superstep that it belongs to has no number yet."""

    task_id: str
    node: str
    ordinal: int
    arg: str | None = None
    interrupts: Sequence[InterruptRecord] = ()
    error: RunError | None = None
    finished: bool = False


@dataclass(frozen=True, slots=True)
class JoinView:
    """How far a join is."""

    target: str
    arrived: Sequence[str]
    missing: Sequence[str]
    fired: bool


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint; ``state`` is None where it wasn't asked for."""

    record: CheckpointRecord
    state: dict[str, JsonValue] | None
    next: Sequence[TaskView]
    joins: Sequence[JoinView]
    is_head: bool
    metadata: Pairs


@dataclass(frozen=True, slots=True)
class NoCheckpoint:
    """The head of a thread that has none, all that was on it having been rolled back: the state that it began with."""

    thread: ThreadRecord
    state: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """A page of checkpoints, the newest first."""

    checkpoints: Sequence[CheckpointView]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class ThreadView:
    """A thread: its newest run, how long its nodes take, how much it keeps, what comes next."""

    record: ThreadRecord
    run: RunView
    timings: Sequence[NodeTiming]
    checkpoints: int
    branches: int
    pending: Sequence[TaskView]
    superstep: int


class ThreadReading:
    """Reads threads of a principal; others' are not there."""

    def __init__(self, store: RunStore, catalog: GraphCatalog, runs: RunReading) -> None:
        self._store = store
        self._catalog = catalog
        self._runs = runs

    async def state(
        self, principal: str, thread_id: str, checkpoint: str, *, include_pending: bool
    ) -> CheckpointView | NoCheckpoint:
        """Return a checkpoint, "" for the head, with its state.

        The head is shown with what finished since, its next tasks being those that haven't, unless
        ``include_pending`` is False. Raises RunRefused: THREAD_NOT_FOUND, CHECKPOINT_NOT_FOUND.
        """
        head: int | None = None
        while True:
            thread = await self._runs.thread(principal, thread_id)
            try:
                return await self._state_now(thread, checkpoint, include_pending=include_pending)
            except RunRefused as refused:
                # The head that was read may have been pruned since, as the thread had moved on.
                moved = not checkpoint and thread.head is not None and thread.head != head
                if refused.reason != "CHECKPOINT_NOT_FOUND" or not moved:
                    raise
                head = thread.head

    async def _state_now(
        self, thread: ThreadRecord, checkpoint: str, *, include_pending: bool
    ) -> CheckpointView | NoCheckpoint:
        if thread.head is None and not checkpoint:
            graph = await self._catalog.load(thread.principal, thread.graph, thread.graph_version)
            return NoCheckpoint(thread, {} if graph is None else dict(tracked(graph, graph.default_state())))
        number = thread.head if not checkpoint else checkpoint_number(thread.thread_id, checkpoint)
        record = None if number is None else await self._store.load_checkpoint(thread.thread_id, number)
        if record is None:
            raise no_checkpoint(thread.thread_id, checkpoint)
        return await self.view(thread, record, with_state=True, include_pending=include_pending)

    async def view(
        self,
        thread: ThreadRecord,
        record: CheckpointRecord,
        *,
        with_state: bool,
        include_pending: bool = False,
    ) -> CheckpointView:
        """Return a checkpoint with what belongs to it."""
        graph = await self._graph(thread, record)
        run = await self._store.load_run(record.run_id)
        is_head = record.number == thread.head
        tasks: Sequence[TaskRecord] = ()
        if is_head:
            newest = run if record.run_id == thread.run_id else await self._store.load_run(thread.run_id)
            tasks = [] if newest is None else await unfolded_tasks(self._store, newest)
        state = None
        if with_state:
            position = await position_at(self._store, record)
            if is_head and include_pending and graph is not None:
                position = await caught_up(self._store, graph, thread, record, position)
            state = await _state(graph, position, tasks if include_pending else ())
        work = read_work(record.work)
        coming = (
            await self._tasks_begun(tasks, include_pending=include_pending)
            if tasks
            else _tasks_to_come(thread, work, is_head=is_head)
        )
        return CheckpointView(
            record,
            state,
            coming,
            () if graph is None else _joins(graph, work),
            is_head,
            () if run is None else run.options.metadata,
        )

    async def checkpoints(
        self,
        principal: str,
        thread_id: str,
        sources: frozenset[CheckpointSource],
        cursor: str,
        limit: int,
        *,
        all_branches: bool,
        with_state: bool,
    ) -> CheckpointListing:
        """List checkpoints, the newest first: those of all branches, or along the parents of the head.

        Raises RunRefused: THREAD_NOT_FOUND. InvalidRequest for another's cursor.
        """
        thread = await self._runs.thread(principal, thread_id)
        try:
            if all_branches:
                page = await self._store.list_checkpoints(thread_id, sources, cursor, limit)
            else:
                page = await self._chain(thread, sources, cursor, limit)
        except ValueError:
            raise InvalidRequest((FieldViolation("page_token", "is not of this list"),)) from None
        views = []
        for record in page.checkpoints:
            try:
                views.append(await self.view(thread, record, with_state=with_state))
            except RunRefused as refused:
                # Pruned since it was listed.
                if refused.reason != "CHECKPOINT_NOT_FOUND":
                    raise
        return CheckpointListing(views, page.next_cursor)

    async def _chain(
        self, thread: ThreadRecord, sources: frozenset[CheckpointSource], cursor: str, limit: int
    ) -> CheckpointPage:
        """Follow the parents from the head, or from a cursor: the id of the checkpoint that comes next."""
        number = checkpoint_number(thread.thread_id, cursor) if cursor else thread.head
        if cursor and number is None:
            raise ValueError(cursor)
        found: list[CheckpointRecord] = []
        while number is not None and len(found) < limit:
            record = await self._store.load_checkpoint(thread.thread_id, number)
            if record is None:
                # Pruned, with all that came before.
                return CheckpointPage(found, "")
            if not sources or record.source in sources:
                found.append(record)
            number = record.parent
        return CheckpointPage(found, "" if number is None else checkpoint_id(thread.thread_id, number))

    async def embedded_state(
        self, principal: str, thread_id: str, namespace: str, checkpoint: str, *, include_pending: bool
    ) -> CheckpointView:
        """Return a checkpoint of a graph inside another, "" for its last one, with its state.

        The last one is shown with what finished since, unless ``include_pending`` is False. Raises RunRefused:
        THREAD_NOT_FOUND, CHECKPOINT_NOT_FOUND.
        """
        await self._runs.thread(principal, thread_id)
        newest = await self._store.list_embedded(thread_id, namespace, None, 1)
        found = list(newest)
        if checkpoint and newest:
            number = checkpoint_number(thread_id, checkpoint, namespace)
            at = (
                () if number is None else await self._store.list_embedded(thread_id, namespace, number + 1, 1)
            )
            found = [record for record in at if record.number == number]
        if not found:
            raise RunRefused(
                "CHECKPOINT_NOT_FOUND",
                f"thread '{thread_id}' has no such checkpoint of an embedded graph '{namespace}'",
                {"thread_id": thread_id, "checkpoint_id": checkpoint},
            )
        is_last = found[0].number == newest[0].number
        return await self._embedded(found[0], is_last, with_state=True, include_pending=include_pending)

    async def embedded_checkpoints(
        self,
        principal: str,
        thread_id: str,
        namespace: str,
        sources: frozenset[CheckpointSource],
        cursor: str,
        limit: int,
        *,
        with_state: bool,
    ) -> CheckpointListing:
        """List checkpoints of a graph inside another, the newest first.

        Raises RunRefused: THREAD_NOT_FOUND. InvalidRequest for another's cursor.
        """
        await self._runs.thread(principal, thread_id)
        if cursor and (not cursor.isdecimal() or len(cursor) > 18):
            raise InvalidRequest((FieldViolation("page_token", "is not of this list"),))
        newest = await self._store.list_embedded(thread_id, namespace, None, 1)
        views: list[CheckpointView] = []
        before = int(cursor) if cursor else None
        while len(views) < limit:
            page = await self._store.list_embedded(thread_id, namespace, before, limit)
            for record in page:
                before = record.number
                if not sources or record.source in sources:
                    is_last = record.number == newest[0].number
                    views.append(await self._embedded(record, is_last, with_state=with_state))
                    if len(views) == limit:
                        break
            if len(page) < limit:
                break
        more = bool(before) and len(views) == limit
        return CheckpointListing(views, str(before) if more else "")

    async def _embedded(
        self, record: EmbeddedCheckpoint, is_last: bool, *, with_state: bool, include_pending: bool = False
    ) -> CheckpointView:
        run = await self._store.load_run(record.run_id)
        graph = (
            None if run is None else await self._catalog.load(run.principal, run.graph, record.graph_version)
        )
        work = read_work(record.work)
        loaded: Any = load(record.state)
        state: dict[str, JsonValue] = loaded
        tasks: Sequence[TaskRecord] = ()
        if is_last and run is not None and run.superstep > record.superstep:
            tasks = await self._store.load_tasks(run.run_id, run.superstep)
        coming: list[TaskView]
        if tasks:
            coming = await self._tasks_inside(tasks, include_pending=include_pending)
            if include_pending and graph is not None:
                state = tracked(graph, await provisional_state(graph, Position(state, work), tasks))
        else:
            ordered = order_tasks(record.run_id, record.namespace, record.superstep + 1, work.activations)
            coming = [
                TaskView(
                    task.task_id,
                    task.node,
                    task.ordinal,
                    None if task.arg is MISSING else canonical(task.arg),
                )
                for task in ordered
            ]
        return CheckpointView(
            record,
            state if with_state else None,
            coming,
            () if graph is None else _joins(graph, work),
            is_last,
            () if run is None else run.options.metadata,
        )

    async def _tasks_inside(self, tasks: Sequence[TaskRecord], *, include_pending: bool) -> list[TaskView]:
        """The tasks of an open superstep of an embedded graph; what they ask is kept as its root's."""
        asked = await self._store.list_interrupts(tasks[0].thread_id)
        return [
            TaskView(
                task.task_id,
                task.node,
                task.ordinal,
                task.arg,
                [item for item in asked if item.task_id == task.task_id],
                task.error,
                task.state is TaskState.FINISHED,
            )
            for task in tasks
            if not (include_pending and task.state is TaskState.FINISHED)
        ]

    async def thread(self, principal: str, thread_id: str) -> ThreadView:
        """Return a thread with what is known of its newest run. Raises RunRefused: THREAD_NOT_FOUND."""
        thread = await self._runs.thread(principal, thread_id)
        run = await self._runs.run(principal, thread.run_id)
        head = None if thread.head is None else await self._store.load_checkpoint(thread_id, thread.head)
        coming: Sequence[TaskView] = ()
        if head is not None:
            coming = (await self.view(thread, head, with_state=False, include_pending=True)).next
        return ThreadView(
            thread,
            run,
            await self._store.node_timings(thread_id),
            await self._store.count_checkpoints(thread_id),
            await self._branches(thread_id),
            coming,
            0 if head is None else head.superstep,
        )

    async def _branches(self, thread_id: str) -> int:
        found: set[str] = set()
        cursor = ""
        while True:
            page = await self._store.list_checkpoints(thread_id, frozenset(), cursor, _PAGE)
            found.update(record.branch for record in page.checkpoints)
            cursor = page.next_cursor
            if not cursor:
                return len(found)

    async def threads(
        self, principal: str, graph: str, statuses: frozenset[RunStatus], cursor: str, limit: int
    ) -> ThreadPage:
        """List threads with their newest runs, those last used first. Raises InvalidRequest for another's cursor."""
        try:
            return await self._store.list_threads(principal, graph, statuses, cursor, limit)
        except ValueError:
            raise InvalidRequest((FieldViolation("page_token", "is not of this list"),)) from None

    async def _graph(self, thread: ThreadRecord, record: CheckpointRecord) -> CompiledGraph | None:
        return await self._catalog.load(thread.principal, thread.graph, record.graph_version)

    async def _tasks_begun(self, tasks: Sequence[TaskRecord], *, include_pending: bool) -> list[TaskView]:
        asked = await self._store.load_interrupts(tasks[0].run_id, tasks[0].superstep)
        return [
            TaskView(
                task.task_id,
                task.node,
                task.ordinal,
                task.arg,
                [
                    item
                    for item in asked
                    if item.waiting_task == task.task_id and item.state is InterruptState.PENDING
                ],
                task.error,
                task.state is TaskState.FINISHED,
            )
            for task in tasks
            if not (include_pending and task.state is TaskState.FINISHED)
        ]


async def _state(
    graph: CompiledGraph | None, position: Position, tasks: Sequence[TaskRecord]
) -> dict[str, JsonValue]:
    if graph is None:
        return dict(position.state)
    return tracked(graph, await provisional_state(graph, position, tasks))


def _tasks_to_come(thread: ThreadRecord, work: Work, *, is_head: bool) -> list[TaskView]:
    ordered = order_tasks(thread.run_id, "", thread.superstep + 1, work.activations)
    tasks = ordered if is_head else [replace(task, task_id="") for task in ordered]
    return [
        TaskView(task.task_id, task.node, task.ordinal, None if task.arg is MISSING else canonical(task.arg))
        for task in tasks
    ]


def _joins(graph: CompiledGraph, work: Work) -> list[JoinView]:
    views = []
    for join in graph.joins:
        round_ = work.rounds.get(join.key)
        if round_ is not None:
            missing = [member for member in join.edge.members if member not in round_.arrived]
            views.append(JoinView(join.edge.target, round_.arrived, missing, round_.fired))
    return views


def parent_id(record: CheckpointRecord) -> str:
    """The id of a checkpoint's parent; "" for a root."""
    return record.parent_id
