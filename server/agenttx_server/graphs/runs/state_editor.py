"""Edits the state of threads through its reducers, as if nodes had answered so (UpdateState).

On a thread whose run has not completed an edit is part of that run and of its transaction. Elsewhere it is a run of
its own, which has completed where no work is left; where some is, it has a transaction and RetryRun goes on with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.ports import ExtraRows, ExtraRowsRefused, IdSource
from agenttx_server.graphs.boundary import Work
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import END, START
from agenttx_server.graphs.runs.branching import branch_of, on_branch
from agenttx_server.graphs.runs.edits import edited
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.journal import Draft, report_checkpoints
from agenttx_server.graphs.runs.keyed_locks import KeyedLocks
from agenttx_server.graphs.runs.ports import GraphCatalog, RunChange
from agenttx_server.graphs.runs.position import (
    Position,
    built_on,
    has_moved,
    in_new_transaction,
    load_position,
    next_checkpoint,
    pending_of,
)
from agenttx_server.graphs.runs.records import (
    LIVE,
    CheckpointRecord,
    CheckpointSource,
    InterruptState,
    RequestRecord,
    RunOptions,
    RunRecord,
    RunStatus,
    TaskRecord,
    TaskState,
    ThreadRecord,
    ValueRecord,
)
from agenttx_server.graphs.runs.requests import RunRefused, Trigger, UpdateRequest, busy, request_key
from agenttx_server.graphs.runs.run_errors import busy_where_moved
from agenttx_server.graphs.runs.settled_tasks import settled_tasks

__all__ = ["EditedState", "StateEditor"]

_MOST_SUPERSTEPS = 1000


@dataclass(frozen=True, slots=True)
class EditedState:
    """The head that an edit left."""

    thread: ThreadRecord
    run: RunRecord
    checkpoint: CheckpointRecord
    position: Position


class Admission(Protocol):
    """One request at a time on a thread."""

    def __call__(self, thread_id: str) -> AbstractContextManager[None]:
        """Enter. Raises RunRefused: THREAD_BUSY."""


@dataclass(slots=True)
class _Edit:
    """An edit in the making: where the thread stands, and what is written."""

    graph: CompiledGraph
    thread: ThreadRecord
    run: RunRecord
    position: Position
    tasks: Sequence[TaskRecord]
    checkpoints: list[CheckpointRecord]
    values: list[ValueRecord]
    ended: list[str]


class StateEditor:
    """Edits states. Raises RunRefused and GraphError for what it refuses; nothing was changed then."""

    def __init__(
        self,
        parts: RunParts,
        catalog: GraphCatalog,
        ids: IdSource,
        admission: Admission,
        requests: KeyedLocks,
    ) -> None:
        self._requests = requests
        self._parts = parts
        self._catalog = catalog
        self._ids = ids
        self._admission = admission

    async def update(self, request: UpdateRequest) -> EditedState:
        """Write to a thread's state: one checkpoint a superstep.

        Raises RunRefused: REQUEST_ID_REUSED, INVALID_REQUEST, THREAD_NOT_FOUND (no graph was named), GRAPH_NOT_FOUND,
        GRAPH_CHANGED (the thread is another graph's), THREAD_BUSY, MISSING_ROUTE, IRREVERSIBLE_STEP and
        ROLLBACK_INCOMPLETE (tasks that conflict can't be undone); FoldError and RouteError.
        """
        _check(request)
        async with self._requests.hold(request_key(request)):
            if await self._is_done(request):
                return await self._head(request.thread_id)
            self._parts.transactions.check_stored(request.principal)
            try:
                with busy_where_moved(request.thread_id):
                    return await self._update(request)
            except RunRefused:
                # Perhaps as another server was sent the same.
                if not await self._is_done(request):
                    raise
                return await self._head(request.thread_id)

    async def _is_done(self, request: UpdateRequest) -> bool:
        if not request.request_id:
            return False
        known = await self._parts.store.find_request(request.principal, request.request_id)
        if known is None:
            return False
        if (known.method, known.fingerprint) != ("UpdateState", request.fingerprint):
            raise RunRefused("REQUEST_ID_REUSED", "the request_id was used for another request")
        return True

    async def _update(self, request: UpdateRequest) -> EditedState:
        store = self._parts.store
        with self._admission(request.thread_id):
            thread = await store.load_thread(request.thread_id)
            run = None if thread is None else await store.load_run(thread.run_id)
            graph = await self._graph(request, thread)
            if thread is not None and run is not None:
                if run.status in LIVE:
                    raise busy(thread.thread_id, run.run_id)
                if (
                    not request.checkpoint_id
                    and thread.transaction_id
                    and thread.transaction_id == run.transaction_id
                ):
                    return await self._within(request, graph, run)
            return await self._beside(request, graph, thread)

    # --- in the transaction that is open --------------------------------------------------------

    async def _within(self, request: UpdateRequest, graph: CompiledGraph, known: RunRecord) -> EditedState:
        store = self._parts.store
        async with self._parts.transactions.turn(known.transaction_id, known.run_id) as turn:
            # Read inside the turn: nobody moves the run on meanwhile.
            thread = await store.load_thread(request.thread_id)
            run = await store.load_run(known.run_id)
            if thread is None or run is None or has_moved(thread, run, known):
                raise busy(request.thread_id, known.run_id)
            tasks = await settled_tasks(store, turn, run)
            position = replace(await load_position(store, graph, thread), next_step=turn.steps.stop)
            edit = _Edit(graph, thread, run, position, tasks, [], [], [])
            await self._apply(request, edit)
            change = await self._within_change(request, edit)
            try:
                if turn.is_open:
                    await turn.close_early(store.rows(change))
                else:
                    await turn.write(store.rows(change))
            except ExtraRowsRefused as refused:
                raise busy(request.thread_id, run.run_id) from refused
        return EditedState(edit.thread, change.runs[0], edit.checkpoints[-1], edit.position)

    async def _within_change(self, request: UpdateRequest, edit: _Edit) -> RunChange:
        now = self._parts.clock.now()
        withdrawn = [
            replace(item, state=InterruptState.WITHDRAWN)
            for item in await pending_of(self._parts.store, edit.run)
            if item.waiting_task in edit.ended
        ]
        draft = Draft(edit.run, now)
        report_checkpoints(draft, edit.checkpoints)
        for item in withdrawn:
            draft.add("interrupt.withdrawn", interrupt_id=item.interrupt_id, reason="edited")
        pending = {item.node for item in edit.position.work.activations}
        run = replace(
            edit.run,
            active_nodes=(),
            stopped_before=tuple(node for node in edit.run.stopped_before if node in pending),
            stopped_after=(),
        )
        return RunChange(
            threads=(edit.thread,),
            runs=(draft.counted(run),),
            checkpoints=edit.checkpoints,
            values=edit.values,
            # What they were is kept; those that go on do so in the next superstep.
            tasks=[replace(task, state=TaskState.FOLDED, answer=None) for task in edit.tasks],
            interrupts=withdrawn,
            events=draft.events,
            requests=_request(request, run.run_id),
        )

    # --- beside what is committed ---------------------------------------------------------------

    async def _beside(
        self, request: UpdateRequest, graph: CompiledGraph, thread: ThreadRecord | None
    ) -> EditedState:
        now = self._parts.clock.now()
        run_id = self._ids.new_id()
        run = RunRecord(
            run_id,
            request.thread_id,
            graph.name,
            graph.version,
            RunStatus.DRAINED,
            now,
            now,
            root_run_id=run_id,
            superstep=0 if thread is None else thread.superstep,
            options=RunOptions(),
            is_branch=True,
            principal=request.principal,
        )
        made, known = thread is None, thread
        if thread is None:
            thread = ThreadRecord(
                request.thread_id, graph.name, graph.version, run_id, now, now, principal=request.principal
            )
        position = Position(graph.default_state(), Work(), next_step=1)
        if request.checkpoint_id:
            if made:
                raise _not_found(request.thread_id)
            branch = await branch_of(self._parts, thread, request.checkpoint_id)
            position, run, thread = branch.position, replace(run, copies=branch.copies), on_branch(thread)
        elif not made:
            position = in_new_transaction(await load_position(self._parts.store, graph, thread))
        edit = _Edit(graph, thread, run, position, (), [], [], [])
        await self._apply(request, edit, is_new=position.number is None)
        ended: list[RunRecord] = []
        written: list[RunChange] = []

        def rows(transaction_id: str) -> Sequence[ExtraRows]:
            change = _own_change(request, edit, transaction_id, now)
            ended[:] = change.runs
            edit.thread, edit.checkpoints = change.threads[0], list(change.checkpoints)
            written[:] = [built_on(change, known, position)]
            return self._parts.store.rows(written[0])

        try:
            if edit.position.work.is_done and run.copies is None:
                rows("")
                await self._parts.store.write(written[0])
            else:
                await self._parts.transactions.begin(run_id, request.principal, rows)
        except ExtraRowsRefused as refused:
            raise busy(request.thread_id, "") from refused
        return EditedState(edit.thread, ended[0], edit.checkpoints[-1], edit.position)

    # --- parts ----------------------------------------------------------------------------------

    async def _apply(self, request: UpdateRequest, edit: _Edit, *, is_new: bool = False) -> None:
        """Apply the supersteps one after the other; the first one ends the superstep that is open."""
        now = self._parts.clock.now()
        tasks = edit.tasks
        for updates in request.supersteps:
            # Folding large states takes its time: others are served between two.
            await asyncio.sleep(0)
            if is_new and len(updates) == 1 and not updates[0].as_node:
                updates = (replace(updates[0], as_node=START),)
            is_new = False
            is_superstep = any(update.as_node not in ("", START, END) for update in updates)
            superstep = edit.thread.superstep + (1 if is_superstep and not tasks else 0)
            edit.run = replace(edit.run, superstep=superstep)
            done = await edited(
                edit.graph,
                self._parts.functions_for(edit.run.principal),
                edit.position,
                tasks,
                updates,
                edit.run.transaction_id,
                superstep,
                edit.thread.next_number,
            )
            saved = next_checkpoint(
                edit.graph,
                edit.thread,
                edit.run,
                edit.position,
                done.folded,
                done.work,
                CheckpointSource.UPDATE,
                now,
                done.finished,
            )
            assert saved.thread is not None
            edit.thread, edit.position, tasks = saved.thread, saved.position, ()
            edit.checkpoints += saved.checkpoints
            edit.values += saved.values
            edit.ended += done.ended

    async def _graph(self, request: UpdateRequest, thread: ThreadRecord | None) -> CompiledGraph:
        if thread is None and not request.graph:
            raise _not_found(request.thread_id)
        if thread is not None and request.graph not in ("", thread.graph):
            raise RunRefused(
                "GRAPH_CHANGED",
                f"the thread is of graph '{thread.graph}' and goes on with that alone; name another thread",
                {"thread_id": thread.thread_id, "graph": thread.graph},
            )
        name = request.graph if thread is None else thread.graph
        version = request.version if thread is None else thread.graph_version
        graph = await self._catalog.load(request.principal, name, version)
        if graph is None:
            raise RunRefused("GRAPH_NOT_FOUND", f"there is no graph '{name}'", {"graph": name})
        return graph

    async def _head(self, thread_id: str) -> EditedState:
        store = self._parts.store
        thread = await store.load_thread(thread_id)
        run = None if thread is None else await store.load_run(thread.run_id)
        if thread is None or run is None or thread.head is None:
            raise _not_found(thread_id)
        checkpoint = await store.load_checkpoint(thread_id, thread.head)
        graph = await self._catalog.load(thread.principal, thread.graph, thread.graph_version)
        if checkpoint is None or graph is None:
            raise _not_found(thread_id)
        return EditedState(thread, run, checkpoint, await load_position(store, graph, thread))


def _own_change(request: UpdateRequest, edit: _Edit, transaction_id: str, now: int) -> RunChange:
    """What a run of its own writes."""
    run = replace(edit.run, transaction_id=transaction_id)
    draft = Draft(run, now)
    draft.add("run.started", trigger=Trigger.UPDATE.value, graph=run.graph, version=run.graph_version)
    report_checkpoints(draft, edit.checkpoints)
    thread = replace(
        edit.thread,
        transaction_id=transaction_id,
        transaction_first=edit.checkpoints[0].number,
        run_id=run.run_id,
    )
    if edit.position.work.is_done and run.copies is None:
        draft.add("run.completed", supersteps=0, state=dict(edit.position.state))
        run = replace(run, status=RunStatus.COMPLETED, ended_at=now)
        thread = replace(thread, committed_head=thread.head)
    else:
        draft.add("run.drained")
    return RunChange(
        threads=(thread,),
        runs=(draft.counted(replace(run, invocation=1, invoked_at=now)),),
        checkpoints=[replace(item, transaction_id=transaction_id) for item in edit.checkpoints],
        values=edit.values,
        events=draft.events,
        requests=_request(request, run.run_id),
    )


def _request(request: UpdateRequest, run_id: str) -> Sequence[RequestRecord]:
    if not request.request_id:
        return ()
    return (RequestRecord(request.principal, request.request_id, "UpdateState", request.fingerprint, run_id),)


def _check(request: UpdateRequest) -> None:
    if not 1 <= len(request.supersteps) <= _MOST_SUPERSTEPS or not all(request.supersteps):
        raise RunRefused(
            "INVALID_REQUEST",
            f"an edit has 1 to {_MOST_SUPERSTEPS} supersteps, each with an update",
            {"thread_id": request.thread_id},
        )
    if not request.thread_id:
        raise RunRefused("INVALID_REQUEST", "an edit names its thread")


def _not_found(thread_id: str) -> RunRefused:
    return RunRefused("THREAD_NOT_FOUND", f"there is no thread '{thread_id}'", {"thread_id": thread_id})
