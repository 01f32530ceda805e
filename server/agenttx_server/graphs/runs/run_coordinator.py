"""Starts, resumes, retries, cancels and recovers runs; one at a time on a thread.

Invocations belong to the server and not to the call that asked for them: a caller that goes away cancels nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from agenttx_server.engine.errors import Unavailable
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.ports import ExtraRowsRefused, IdSource
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.fold import tracked
from agenttx_server.graphs.runs.amended_superstep import ENDED
from agenttx_server.graphs.runs.amending import amended, refuse_results_inside
from agenttx_server.graphs.runs.beginning_again import Begun, begun_again
from agenttx_server.graphs.runs.interrupt_answers import answers_given
from agenttx_server.graphs.runs.invocation import Invocation, RunParts
from agenttx_server.graphs.runs.journal import Draft, report_checkpoints
from agenttx_server.graphs.runs.keyed_locks import KeyedLocks
from agenttx_server.graphs.runs.launch_checks import check_keeping, check_launch
from agenttx_server.graphs.runs.node_calls import functions_of
from agenttx_server.graphs.runs.ports import GraphCatalog, RunChange
from agenttx_server.graphs.runs.position import (
    Position,
    load_position,
    pending_of,
    provisional_state,
    unfolded_tasks,
)
from agenttx_server.graphs.runs.records import (
    LIVE,
    InterruptRecord,
    RunRecord,
    RunStatus,
    TaskRecord,
    ThreadRecord,
    checkpoint_id,
)
from agenttx_server.graphs.runs.requests import (
    ResumeRequest,
    RetryRequest,
    RunOutcome,
    RunRefused,
    StartRequest,
    Trigger,
    busy,
    request_key,
    request_records,
)
from agenttx_server.graphs.runs.run_carrier import Carried, RunCarrier
from agenttx_server.graphs.runs.run_errors import busy_where_moved
from agenttx_server.graphs.runs.run_rewinder import RunRewinder
from agenttx_server.graphs.runs.run_starter import RunStarter, changed_options
from agenttx_server.graphs.runs.state_editor import StateEditor
from agenttx_server.graphs.runs.thread_copies import ThreadCopies
from agenttx_server.graphs.runs.thread_removal import ThreadRemoval
from agenttx_server.graphs.runs.version_change import check_version_change
from agenttx_server.graphs.runs.visits import final_state, visited_nodes

__all__ = ["RunCoordinator"]

_RECOVERED_AT_ONCE = 100
_LOST_AFTER_US = 5_000_000
_FIRST_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 1.0


class RunCoordinator:
    """Runs of graphs on one server. Raises RunRefused and GraphError for what it refuses.

    ``states`` edits what threads hold; ``copies`` and ``removal`` make threads of others and remove them.
    ``server_id`` tells this server's id, which changes if it loses its lease.
    """

    def __init__(
        self, parts: RunParts, catalog: GraphCatalog, ids: IdSource, server_id: Callable[[], str]
    ) -> None:
        self._parts = parts
        self._catalog = catalog
        self._ids = ids
        self._server_id = server_id
        self._carrier = RunCarrier(parts, catalog, server_id)
        self._tasks = self._carrier.tasks
        self._admitted: set[str] = set()
        self._draining = False
        # The same request twice at once is done once; starts that queue go in turn; what removes of a thread, and
        # what copies of it, do so one after the other.
        self._requests, self._queues, shelves = KeyedLocks(), KeyedLocks(), KeyedLocks()
        admission = partial(_Admission, self._admitted)
        self.rewinds = RunRewinder(parts, self._tasks, admission, self._requests)
        self._starter = RunStarter(parts, catalog, ids, server_id, self._carrier)
        self.copies = ThreadCopies(parts, catalog, ids, self._requests, shelves)
        self.removal = ThreadRemoval(parts, self._tasks, admission, shelves)
        self.states = StateEditor(parts, catalog, ids, admission, self._requests)

    # --- requests ---------------------------------------------------------------------------

    async def start(self, request: StartRequest, *, wait: bool = True) -> RunOutcome:
        """Start a run; with ``wait`` return when its invocation has ended, else at once.

        Raises RunRefused: REQUEST_ID_REUSED, GRAPH_NOT_FOUND, UNBOUND, NOT_SUPPORTED_YET,
        INTERRUPT_WITHOUT_CHECKPOINTS, GRAPH_CHANGED, INTERRUPT_PENDING, THREAD_BUSY, THREAD_NOT_FOUND and
        CHECKPOINT_NOT_FOUND (it was to start at one), ROLLBACK_INCOMPLETE; FoldError and RouteError for the input.
        Unavailable (DRAINING): the same request gets the outcome later.
        """
        return await self._once("StartRun", request, partial(self._start, request), wait=wait)

    async def resume(self, request: ResumeRequest, *, wait: bool = True) -> RunOutcome:
        """Answer interrupts and go on; with ``wait`` return when the invocation has ended, else at once.

        Raises RunRefused: THREAD_NOT_FOUND, INTERRUPT_NOT_FOUND, NOTHING_TO_RESUME, AMBIGUOUS_RESUME,
        INTERRUPT_ALREADY_RESOLVED, THREAD_BUSY, GRAPH_CHANGED, REQUEST_ID_REUSED; FoldError and RouteError for the
        update and the targets. Nothing is consumed then.
        """
        return await self._once("ResumeRun", request, partial(self._resume, request), wait=wait)

    async def _resume(self, request: ResumeRequest) -> str:
        with _Admission(self._admitted, request.thread_id):
            thread, run = await self._paused(request.thread_id)
            pending = await pending_of(self._parts.store, run)
            known = await self._parts.store.load_interrupts(run.run_id, run.superstep)
            answered = answers_given(request, pending, known)
            return (await self._go_on(Trigger.RESUME, thread, run, request, answered)).run_id

    async def retry(self, request: RetryRequest, *, wait: bool = True) -> RunOutcome:
        """Go on with a run that awaits no answer; with ``wait`` return when the invocation has ended, else at once.

        Raises RunRefused: THREAD_NOT_FOUND, NOTHING_TO_RESUME, THREAD_BUSY, REQUEST_ID_REUSED, INVALID_REQUEST for a
        task without a result; FoldError and RouteError for the update and the targets.
        """
        return await self._once("RetryRun", request, partial(self._retry, request), wait=wait)

    async def _retry(self, request: RetryRequest) -> str:
        with _Admission(self._admitted, request.thread_id):
            thread, run = await self._paused(request.thread_id, may_begin_again=True)
            if not run.transaction_id:
                return (await self._begin_again(thread, run, request)).run_id
            waits = await pending_of(self._parts.store, run)
            if run.status is RunStatus.COMPLETED or (waits and run.status is not RunStatus.FAILED):
                raise RunRefused(
                    "NOTHING_TO_RESUME",
                    "the run has completed"
                    if run.status is RunStatus.COMPLETED
                    else "interrupts are pending",
                    {"thread_id": request.thread_id},
                )
            return (await self._go_on(Trigger.RETRY, thread, run, request, ())).run_id

    async def cancel_and_roll_back(self, run_id: str, reason: str) -> RunRecord:
        """Have a run stop if it is under way here, undo all that it did, and end its transaction.

        Raises what RunRewinder.roll_back does: THREAD_BUSY where another server is at it.
        """
        carried = self._carrier.get(run_id)
        if carried is not None:
            carried.stop.cancel(reason)
        ending = None if carried is None else carried.task
        return await self._tasks.run(self.rewinds.ended_and_rolled_back(ending, run_id, reason))

    async def cancel(self, run_id: str, reason: str) -> bool:
        """Ask a run of this server to stop; False if it isn't under way here."""
        carried = self._carrier.get(run_id)
        if carried is not None:
            carried.stop.cancel(reason)
        return carried is not None

    async def drain(self, run_id: str) -> bool:
        """Ask a run of this server to stop at its next boundary; False if it isn't under way here."""
        carried = self._carrier.get(run_id)
        if carried is not None:
            carried.stop.drains = True
        return carried is not None

    async def outcome(self, run_id: str) -> RunOutcome:
        """Say how far a run is. Raises RunRefused: RUN_NOT_FOUND."""
        carried = self._carrier.get(run_id)
        if carried is not None and carried.invocation is not None:
            return await self._outcome_of(carried, carried.invocation)
        run = await self._parts.store.load_run(run_id)
        if run is None:
            raise RunRefused("RUN_NOT_FOUND", f"there is no run '{run_id}'", {"run_id": run_id})
        return await self.stored_outcome(run)

    async def stored_outcome(self, run: RunRecord) -> RunOutcome:
        """Say how far a run is from what is kept."""
        head: int | None = None
        while True:
            thread = await self._parts.store.load_thread(run.thread_id) if run.thread_id else None
            try:
                return await self._stored_outcome(run, thread)
            except RunRefused as refused:
                # The head that was read may have been pruned since, as the thread had moved on.
                if refused.reason != "CHECKPOINT_NOT_FOUND" or thread is None or thread.head == head:
                    raise
                head = thread.head
                run = await self._parts.store.load_run(run.run_id) or run

    async def _stored_outcome(self, run: RunRecord, thread: ThreadRecord | None) -> RunOutcome:
        store = self._parts.store
        visited = await visited_nodes(store, run)
        if thread is None or thread.run_id != run.run_id:
            return RunOutcome(run, await final_state(store, run), visited)
        graph = await self._graph(run.principal, run.graph, run.graph_version)
        position = await load_position(store, graph, thread)
        unfolded = await unfolded_tasks(store, run)
        return RunOutcome(
            run,
            tracked(graph, await provisional_state(graph, position, unfolded)),
            visited,
            await pending_of(store, run),
            "" if thread.head is None else checkpoint_id(thread.thread_id, thread.head),
            _next_nodes(position, unfolded),
        )

    async def wait_for(self, run_id: str) -> RunOutcome:
        """Return when a run's invocation has ended, wherever it is under way.

        Raises RunRefused: RUN_NOT_FOUND. Unavailable (DRAINING): this server stops, and another one goes on.
        """
        pause = _FIRST_LOOK_SECONDS
        while True:
            carried = self._carrier.get(run_id)
            if carried is not None and carried.task is not None:
                invocation = await asyncio.shield(carried.task)
                if invocation is not None and invocation.run.status not in LIVE:
                    return await self._outcome_of(carried, invocation)
            outcome = await self.outcome(run_id)
            if outcome.run.status not in LIVE:
                return outcome
            if self._draining:
                raise _draining(f"run '{run_id}' goes on without it")
            await self._parts.clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)

    # --- this server ------------------------------------------------------------------------

    @property
    def is_draining(self) -> bool:
        """Whether this server is about to stop."""
        return self._draining

    @property
    def live_runs(self) -> Collection[str]:
        """The runs that are under way here."""
        return self._carrier.run_ids

    def run_here(self, run_id: str) -> RunRecord | None:
        """A run that is under way here as it is now; None for others."""
        carried = self._carrier.get(run_id)
        if carried is None or carried.invocation is None:
            return None
        run = carried.invocation.run
        return replace(run, status=RunStatus.DRAINING) if carried.stop.drains and run.status in LIVE else run

    def begin_drain(self) -> None:
        """Have runs let go of at their next boundary; they stay live, and another server goes on with them."""
        self._draining = True
        self._carrier.begin_drain()

    async def recover(self, now: int) -> Sequence[str]:
        """Go on with live runs that nobody is at: their server is gone, or this one has lost sight of them.

        Returns their ids; they are not waited for. To be called every few seconds. Raises StoreUnavailable.
        """
        claimed = await self._parts.store.claim_runs(self._server_id(), now, _RECOVERED_AT_ONCE)
        own = await self._parts.store.list_runs_of(
            self._server_id(), now - _LOST_AFTER_US, _RECOVERED_AT_ONCE
        )
        found = dict.fromkeys(run.run_id for run in (*claimed, *own) if run.run_id not in self._carrier)
        for run_id in found:
            self._carrier.carry(run_id)
        return list(found)

    async def stop(self, timeout_seconds: float) -> int:
        """Wait for invocations; return how many are left when time is up."""
        return await self._tasks.wait_all(timeout_seconds)

    # --- beginning --------------------------------------------------------------------------

    async def _check_hosted(self, owner: str, graph: CompiledGraph) -> None:
        """Refuse a graph with a function that nobody has hosted: nobody may ever. One whose workers are away waits."""
        users = functions_of(graph)
        for function in await self._parts.functions_for(owner).missing(sorted(users)):
            node = users[function]
            raise RunRefused(
                "UNBOUND",
                f"no worker hosts function '{function}' of node '{node}'; start one that does",
                {"node": node, "function": function},
            )

    async def _graph(self, owner: str, name: str, version: str) -> CompiledGraph:
        graph = await self._catalog.load(owner, name, version)
        if graph is None:
            raise RunRefused("GRAPH_NOT_FOUND", f"there is no graph '{name}'", {"graph": name})
        return graph

    async def _start(self, request: StartRequest) -> str:
        graph = await self._graph(request.principal, request.graph, request.version)
        check_launch(graph, request.thread_id)
        check_keeping(graph, request.thread_id, request.limits)
        await self._check_hosted(request.principal, graph)
        if not request.queues:
            with _Admission(self._admitted, request.thread_id):
                return (await self._starter.start(request, graph)).run_id
        async with self._queues.hold(request.thread_id or None):
            return await self._start_in_turn(request, graph)

    async def _start_in_turn(self, request: StartRequest, graph: CompiledGraph) -> str:
        """Start once no other run is under way on the thread, here or on another server."""
        pause = _FIRST_LOOK_SECONDS
        while True:
            try:
                with busy_where_moved(request.thread_id), _Admission(self._admitted, request.thread_id):
                    return (await self._starter.start(request, graph)).run_id
            except RunRefused as refused:
                if refused.reason != "THREAD_BUSY":
                    raise
            if self._draining:
                raise _draining("the request waits for its turn on the thread, which nobody gives it here")
            await self._parts.clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)
            # Another server may have been asked the same, and have had its turn.
            if (run_id := await self._answered("StartRun", request)) is not None:
                return run_id

    # --- going on ---------------------------------------------------------------------------

    async def _begin_again(self, thread: ThreadRecord, run: RunRecord, request: RetryRequest) -> Carried:
        graph = await self._graph(run.principal, run.graph, run.graph_version)
        run = replace(run, server_id=self._server_id(), options=changed_options(run.options, request.limits))
        now = self._parts.clock.now()
        rows = await begun_again(self._parts.store, graph, thread, run, request, now)
        begun: list[Begun] = []
        with self._carrier.beginning(run.run_id) as carried:
            try:
                await self._parts.transactions.begin(
                    run.run_id, run.principal, lambda transaction_id: rows(transaction_id, begun)
                )
            except ExtraRowsRefused as refused:
                raise busy(thread.thread_id, run.run_id) from refused
            again, saved = begun[0]
            carried.invocation = Invocation(
                self._parts, graph, again, saved.thread, saved.position, carried.stop
            )
        return carried

    async def _paused(
        self, thread_id: str, *, may_begin_again: bool = False
    ) -> tuple[ThreadRecord, RunRecord]:
        thread = await self._parts.store.load_thread(thread_id)
        run = None if thread is None else await self._parts.store.load_run(thread.run_id)
        if thread is None or run is None:
            raise RunRefused(
                "THREAD_NOT_FOUND", f"there is no thread '{thread_id}'", {"thread_id": thread_id}
            )
        if run.status in LIVE:
            raise busy(thread_id, run.run_id)
        begins_again = (
            may_begin_again and not run.is_branch and run.status in (RunStatus.FAILED, RunStatus.CANCELLED)
        )
        if not run.transaction_id and not begins_again:
            raise RunRefused(
                "NOTHING_TO_RESUME", "the run's transaction was rolled back", {"thread_id": thread_id}
            )
        return thread, run

    async def _go_on(
        self,
        trigger: Trigger,
        thread: ThreadRecord,
        run: RunRecord,
        request: ResumeRequest | RetryRequest,
        answered: Sequence[InterruptRecord],
    ) -> Carried:
        store = self._parts.store
        method = "ResumeRun" if trigger is Trigger.RESUME else "RetryRun"
        graph = await self._graph(run.principal, run.graph, request.version or run.graph_version)
        now = self._parts.clock.now()
        restored = thread.head
        known_graph = await self._graph(run.principal, run.graph, run.graph_version)
        position = await load_position(store, known_graph, thread)
        tasks = await unfolded_tasks(store, run)
        check_version_change(
            known_graph,
            graph,
            position,
            tasks,
            allowed=request.allows_graph_change,
            run_id=run.run_id,
        )
        run = replace(run, graph_version=graph.version)
        await refuse_results_inside(store, run, tasks, request.amendment.discard)
        changed = await amended(graph, thread, run, position, tasks, request.amendment, now)
        known, thread, position = thread, changed.saved.thread or thread, changed.saved.position
        # Who is about to take it back on another server is told by this that it has moved.
        thread = replace(thread, updated_at=max(now, known.updated_at + 1))
        going = replace(
            run,
            status=RunStatus.RUNNING,
            server_id=self._server_id(),
            invocation=run.invocation + 1,
            # The superstep that is completed now counts in this invocation.
            invocation_first=run.total_supersteps - (1 if run.active_nodes else 0),
            invoked_at=now,
            options=changed_options(run.options, request.limits),
            error=None,
            stopped_before=(),
            stopped_after=(),
            passes_stops=bool(run.stopped_before),
            rewinds_to=None,
        )
        draft = Draft(going, now)
        draft.add("run.started", trigger=trigger.value, graph=run.graph, version=run.graph_version)
        if restored is not None:
            draft.add("checkpoint.restored", checkpoint_id=checkpoint_id(thread.thread_id, restored))
        report_checkpoints(draft, changed.saved.checkpoints)
        for item in answered:
            draft.add("interrupt.resumed", interrupt_id=item.interrupt_id)
        going = draft.counted(going)
        change = RunChange(
            threads=(thread,),
            unchanged_threads=(known,),
            runs=(going,),
            checkpoints=changed.saved.checkpoints,
            values=changed.saved.values,
            tasks=changed.tasks,
            interrupts=answered,
            events=draft.events,
            requests=request_records(method, request, run.run_id),
        )
        with self._carrier.beginning(run.run_id) as carried:
            try:
                # The offsets are the guard: of two that go on with a run one is refused.
                await store.write(change)
            except ExtraRowsRefused as refused:
                raise busy(thread.thread_id, run.run_id) from refused
            carried.invocation = Invocation(self._parts, graph, going, thread, position, carried.stop)
        return carried

    async def _once(
        self,
        method: str,
        request: StartRequest | ResumeRequest | RetryRequest,
        go: Callable[[], Coroutine[Any, Any, str]],
        *,
        wait: bool,
    ) -> RunOutcome:
        """Do what a request asks unless it was done, and answer at once or when the invocation has ended."""
        # To its end, also if the caller goes away: it is not to be left half begun.
        run_id = await self._tasks.run(self._begun_once(method, request, go))
        return await (self.wait_for(run_id) if wait else self.outcome(run_id))

    async def _begun_once(
        self,
        method: str,
        request: StartRequest | ResumeRequest | RetryRequest,
        go: Callable[[], Coroutine[Any, Any, str]],
    ) -> str:
        async with self._requests.hold(request_key(request)):
            run_id = await self._answered(method, request)
            if run_id is not None:
                return run_id
            self._parts.transactions.check_stored(request.principal)
            try:
                with busy_where_moved(request.thread_id):
                    return await go()
            except RunRefused:
                # Perhaps as another server was sent the same.
                run_id = await self._answered(method, request)
                if run_id is None:
                    raise
                return run_id

    async def _answered(
        self, method: str, request: StartRequest | ResumeRequest | RetryRequest
    ) -> str | None:
        """The run that a request has got already."""
        if not request.request_id:
            return None
        known = await self._parts.store.find_request(request.principal, request.request_id)
        if known is None:
            return None
        if (known.method, known.fingerprint) != (method, request.fingerprint):
            raise RunRefused(
                "REQUEST_ID_REUSED",
                "the request_id was used for another request; use a new one for a new request",
                {
                    "request_id": request.request_id,
                    "recorded": known.fingerprint[:12],
                    "received": request.fingerprint[:12],
                },
            )
        return known.run_id

    async def _outcome_of(self, carried: Carried, invocation: Invocation) -> RunOutcome:
        thread = invocation.thread
        return RunOutcome(
            invocation.run,
            await invocation.provisional_state(),
            (*carried.visited, *invocation.visited),
            tuple(invocation.pending_interrupts),
            "" if thread is None or thread.head is None else checkpoint_id(thread.thread_id, thread.head),
            _next_nodes(invocation.position, invocation.tasks),
        )


class _Admission:
    """One request at a time on a thread, in this process; the store's guards tell servers apart."""

    def __init__(self, admitted: set[str], thread_id: str) -> None:
        self._admitted = admitted
        self._thread_id = thread_id

    def __enter__(self) -> None:
        if self._thread_id and self._thread_id in self._admitted:
            raise busy(self._thread_id, "")
        self._admitted.add(self._thread_id)

    def __exit__(self, *exception: object) -> None:
        self._admitted.discard(self._thread_id)


def _draining(what: str) -> Unavailable:
    return Unavailable(f"the server is shutting down; {what}", reason="DRAINING")


def _next_nodes(position: Position, tasks: Sequence[TaskRecord]) -> list[str]:
    if tasks:
        return [task.node for task in tasks if task.state not in ENDED]
    return [activation.node for activation in position.work.activations]
