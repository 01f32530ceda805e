"""Begins runs: of new input on a new thread, on one that is free, and in the transaction that a run has left open.

New input in an open transaction ends the superstep that was under way: what finished is folded in, what didn't is
given up. A run that starts at a checkpoint does so on a branch of its own, with a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.ports import ExtraRows, ExtraRowsRefused, IdSource
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.graphs.boundary import Work, first_work
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.errors import GraphError
from agenttx_server.graphs.fold import Folded, TaskWrites, folded_behind
from agenttx_server.graphs.limits import DEFAULT_MAX_TOTAL_STEPS, DEFAULT_RECURSION_LIMIT
from agenttx_server.graphs.runs.branching import Branch, branch_of, on_branch
from agenttx_server.graphs.runs.branching_inside import branch_inside
from agenttx_server.graphs.runs.folding import folded_aside
from agenttx_server.graphs.runs.invocation import Invocation, RunParts
from agenttx_server.graphs.runs.journal import Draft, report_checkpoints
from agenttx_server.graphs.runs.next_superstep import Begun, Stand, new_superstep, why_stop
from agenttx_server.graphs.runs.node_calls import sketched_member
from agenttx_server.graphs.runs.ports import GraphCatalog, RunChange
from agenttx_server.graphs.runs.position import (
    NextCheckpoint,
    Position,
    built_on,
    has_moved,
    in_new_transaction,
    load_position,
    next_checkpoint,
    pending_of,
    writes_of,
)
from agenttx_server.graphs.runs.records import (
    LIVE,
    CheckpointSource,
    InterruptRecord,
    InterruptState,
    RunOptions,
    RunRecord,
    RunStatus,
    TaskRecord,
    TaskState,
    ThreadRecord,
    checkpoint_number,
)
from agenttx_server.graphs.runs.requests import (
    InputPolicy,
    RunLimits,
    RunRefused,
    StartRequest,
    Trigger,
    busy,
    no_checkpoint,
    request_records,
)
from agenttx_server.graphs.runs.run_carrier import Carried, RunCarrier
from agenttx_server.graphs.runs.settled_tasks import settled_tasks
from agenttx_server.graphs.runs.step_port import StepMember
from agenttx_server.graphs.runs.superstep_run import StopSignal
from agenttx_server.graphs.runs.version_change import check_version_change
from agenttx_server.graphs.runs.work_json import targets_text
from agenttx_server.graphs.tasks import write_seed

__all__ = ["RunStarter", "changed_options"]

_DEFAULT_CONCURRENCY = 16
_SUPERSEDED = "new input came"


class RunStarter:
    """Makes runs live. Raises RunRefused and GraphError for what it refuses; nothing was changed then."""

    def __init__(
        self,
        parts: RunParts,
        catalog: GraphCatalog,
        ids: IdSource,
        server_id: Callable[[], str],
        carrier: RunCarrier,
    ) -> None:
        self._parts = parts
        self._catalog = catalog
        self._ids = ids
        self._server_id = server_id
        self._carrier = carrier

    async def start(self, request: StartRequest, graph: CompiledGraph) -> Carried:
        """Begin a run.

        Raises RunRefused: GRAPH_CHANGED, INTERRUPT_PENDING, THREAD_BUSY, THREAD_NOT_FOUND and CHECKPOINT_NOT_FOUND,
        ROLLBACK_INCOMPLETE; FoldError and RouteError for the input.
        """
        store = self._parts.store
        thread = await store.load_thread(request.thread_id) if request.thread_id else None
        if thread is None:
            if request.checkpoint_id:
                raise _no_thread(request.thread_id)
            return await self._begin(
                request, graph, None, Position(graph.default_state(), Work(), next_step=1)
            )
        run = await self._free(thread, graph, request)
        if request.checkpoint_id:
            is_replay = not request.input and not request.goto
            branch = await self._branch(request, graph, thread, is_replay=is_replay)
            await self._check_version(
                request, graph, branch.checkpoint.graph_version, branch.position, is_replay
            )
            return await self._begin(request, graph, on_branch(thread), branch.position, branch)
        if request.input_policy is InputPolicy.RESET:
            thread = await self._reset(thread, run)
            return await self._begin(
                request, graph, thread, Position(graph.default_state(), Work(), next_step=1)
            )
        stands = await self._catalog.load(request.principal, graph.name, thread.graph_version) or graph
        position = in_new_transaction(await load_position(store, stands, thread))
        await self._check_version(request, graph, thread.graph_version, position, keeps_work=False)
        if thread.transaction_id and run is not None:
            return await self._within(request, graph, run)
        return await self._begin(request, graph, thread, position)

    async def _branch(
        self, request: StartRequest, graph: CompiledGraph, thread: ThreadRecord, *, is_replay: bool
    ) -> Branch:
        """Where a run starts that starts at a checkpoint, perhaps of a graph inside a node."""
        if checkpoint_number(thread.thread_id, request.checkpoint_id) is not None:
            return await branch_of(self._parts, thread, request.checkpoint_id)
        inside = await branch_inside(self._parts, thread, request.checkpoint_id)
        if inside is None:
            raise no_checkpoint(thread.thread_id, request.checkpoint_id)
        if not is_replay or inside.checkpoint.graph_version != graph.version:
            raise RunRefused(
                "INVALID_REQUEST",
                "a run that starts inside a node takes no input and no targets, and is of the version that it was then",
                {"where": "checkpoint_id"},
            )
        return inside

    async def _check_version(
        self, request: StartRequest, graph: CompiledGraph, version: str, position: Position, keeps_work: bool
    ) -> None:
        old = await self._catalog.load(request.principal, graph.name, version)
        if old is not None:
            allowed = request.allows_graph_change
            check_version_change(old, graph, position, allowed=allowed, keeps_work=keeps_work)

    async def _free(
        self, thread: ThreadRecord, graph: CompiledGraph, request: StartRequest
    ) -> RunRecord | None:
        if thread.graph != graph.name:
            raise RunRefused(
                "GRAPH_CHANGED",
                f"the thread is of graph '{thread.graph}' and goes on with that alone; name another thread",
                {"thread_id": thread.thread_id, "graph": thread.graph},
            )
        run = await self._parts.store.load_run(thread.run_id)
        if run is not None and run.status in LIVE:
            raise busy(thread.thread_id, run.run_id)
        if request.discards_interrupts or request.checkpoint_id:
            return run
        pending = [] if run is None else await pending_of(self._parts.store, run)
        if pending:
            ids = ",".join(item.interrupt_id for item in pending)
            raise RunRefused(
                "INTERRUPT_PENDING",
                "the thread waits for answers; resume it, or discard its questions",
                {"thread_id": thread.thread_id, "interrupt_ids": ids},
            )
        return run

    async def _reset(self, thread: ThreadRecord, run: RunRecord | None) -> ThreadRecord:
        """Roll back what is open on a thread."""
        if not thread.transaction_id or run is None:
            return thread
        async with self._parts.transactions.turn(run.transaction_id, run.run_id) as turn:
            await turn.roll_back("new input resets the thread")
        store = self._parts.store
        after, left = await store.load_thread(thread.thread_id), await store.load_run(run.run_id)
        if after is None or after.run_id != run.run_id:
            # Another server began a run meanwhile, which is not to lose its thread.
            raise busy(thread.thread_id, "")
        if after.transaction_id:
            raise RunRefused(
                "ROLLBACK_INCOMPLETE",
                "an undo action failed, and holds the run",
                {"thread_id": thread.thread_id, "run_id": run.run_id},
            )
        if left is not None:
            change = _superseded(left, (), (), self._parts.clock.now())
            await store.write(replace(change, standing_threads=(thread.thread_id,)))
        return after

    # --- with a transaction of its own ------------------------------------------------------------

    async def _begin(
        self,
        request: StartRequest,
        graph: CompiledGraph,
        thread: ThreadRecord | None,
        position: Position,
        branch: Branch | None = None,
    ) -> Carried:
        store, now = self._parts.store, self._parts.clock.now()
        run = self._new_run(request, graph, thread, now)
        is_replay = branch is not None and not request.input and not request.goto
        folded = await _folded_input(graph, request, thread, position, keep_ephemeral=is_replay)
        work = position.work if is_replay else first_work(graph, request.goto)
        source = CheckpointSource.FORK if is_replay else CheckpointSource.INPUT
        if branch is not None:
            run = replace(run, copies=branch.copies, is_branch=is_replay)
        is_new = thread is None
        if request.thread_id and thread is None:
            thread = ThreadRecord(
                request.thread_id,
                graph.name,
                graph.version,
                run.run_id,
                now,
                now,
                principal=request.principal,
            )
        members = self._first_members(graph, run, thread, replace(position, work=work), branch, now)
        begun: list[tuple[RunRecord, NextCheckpoint, Begun | None]] = []
        stands = None if is_new else thread

        def rows(transaction_id: str) -> Sequence[ExtraRows]:
            owned = replace(run, transaction_id=transaction_id)
            saved = next_checkpoint(graph, thread, owned, position, folded, work, source, now)
            if saved.thread is not None and thread is not None:
                moved = replace(
                    saved.thread, transaction_id=transaction_id, transaction_first=thread.next_number
                )
                saved = replace(saved, thread=moved)
            change, counted = _start_change(request, owned, saved, now)
            first = None
            if members:
                first = new_superstep(graph, Stand(counted, saved.thread, saved.position), 1, now)
                change = first.change(change)
            begun[:] = [(counted, saved, first)]
            return store.rows(built_on(change, stands, position))

        with self._carrier.beginning(run.run_id) as carried:
            try:
                await self._parts.transactions.begin(run.run_id, request.principal, rows, members)
            except ExtraRowsRefused as refused:
                # Another server was first on the thread, or with the request.
                raise busy(request.thread_id, "") from refused
            begun_run, saved, first = begun[0]
            carried.invocation = Invocation(
                self._parts, graph, begun_run, saved.thread, saved.position, carried.stop
            )
            if first is not None:
                carried.invocation.stand_in(first)
        return carried

    def _first_members(
        self,
        graph: CompiledGraph,
        run: RunRecord,
        thread: ThreadRecord | None,
        position: Position,
        branch: Branch | None,
        now: MicrosecondsUtc,
    ) -> list[StepMember]:
        """The first superstep's tasks as steps, to begin with the transaction; none where it is seen to apart."""
        if branch is not None or position.work.is_done:
            return []
        stand = Stand(run, thread, position)
        if why_stop(graph, stand, StopSignal(), now) is not None:
            return []
        try:
            tasks = new_superstep(graph, stand, 1, now).tasks
        except GraphError:
            return []
        members = [sketched_member(graph, task) for task in tasks]
        return members if self._parts.transactions.can_open_with(run.principal, members) else []

    def _new_run(
        self, request: StartRequest, graph: CompiledGraph, thread: ThreadRecord | None, now: int
    ) -> RunRecord:
        run_id = self._ids.new_id()
        return RunRecord(
            run_id,
            request.thread_id,
            graph.name,
            graph.version,
            RunStatus.RUNNING,
            now,
            now,
            self._server_id(),
            root_run_id=run_id,
            superstep=0 if thread is None else thread.superstep,
            invocation=1,
            invoked_at=now,
            options=_options(graph, request),
            input=canonical(dict(request.input)) if request.input else "",
            goto=targets_text(request.goto),
            principal=request.principal,
        )

    # --- in the transaction that is open ----------------------------------------------------------

    async def _within(self, request: StartRequest, graph: CompiledGraph, known: RunRecord) -> Carried:
        store, now = self._parts.store, self._parts.clock.now()
        run_id = ""
        async with self._parts.transactions.turn(known.transaction_id, known.run_id) as turn:
            # Read inside the turn: nobody moves the run on meanwhile.
            thread, left = await store.load_thread(known.thread_id), await store.load_run(known.run_id)
            if thread is None or left is None or has_moved(thread, left, known):
                raise busy(known.thread_id, known.run_id)
            tasks = await settled_tasks(store, turn, left)
            stands = await self._catalog.load(request.principal, graph.name, thread.graph_version) or graph
            position = replace(await load_position(store, stands, thread), next_step=turn.steps.stop)
            finished = [task for task in tasks if task.state is TaskState.FINISHED]
            before = None
            reached = position
            if tasks:
                before = await folded_aside(graph, position.state, writes_of(finished), position.origins)
                reached = replace(position, state=before.state, origins=before.origins)
            folded = await _folded_input(graph, request, thread, reached, keep_ephemeral=False)
            if before is not None:
                folded = folded_behind(before, folded)
            work = first_work(graph, request.goto)
            run = replace(self._new_run(request, graph, thread, now), transaction_id=known.transaction_id)
            run_id = run.run_id
            saved = next_checkpoint(
                graph, thread, run, position, folded, work, CheckpointSource.INPUT, now, finished
            )
            change, counted = _start_change(request, run, saved, now)
            withdrawn = [
                replace(item, state=InterruptState.WITHDRAWN) for item in await pending_of(store, left)
            ]
            ended = _superseded(left, withdrawn, tasks, now)
            both = replace(
                change,
                runs=(*change.runs, *ended.runs),
                tasks=ended.tasks,
                interrupts=ended.interrupts,
                events=(*ended.events, *change.events),
            )
            with self._carrier.beginning(run_id) as carried:
                try:
                    await turn.hand_over(run_id, store.rows(both))
                except ExtraRowsRefused as refused:
                    raise busy(known.thread_id, known.run_id) from refused
                carried.invocation = Invocation(
                    self._parts, graph, counted, saved.thread, saved.position, carried.stop
                )
        return carried


async def _folded_input(
    graph: CompiledGraph,
    request: StartRequest,
    thread: ThreadRecord | None,
    position: Position,
    *,
    keep_ephemeral: bool,
) -> Folded:
    superstep, number = (0, 0) if thread is None else (thread.superstep, thread.next_number)
    updates = (dict(request.input),) if request.input else ()
    # The checkpoint's number tells inputs apart between which no superstep was run.
    writes = [TaskWrites("", updates, write_seed("", superstep, "", number))]
    return await folded_aside(graph, position.state, writes, position.origins, keep_ephemeral=keep_ephemeral)


def _superseded(
    left: RunRecord, withdrawn: Sequence[InterruptRecord], tasks: Sequence[TaskRecord], now: int
) -> RunChange:
    """What becomes of the run that was left where new input went on."""
    draft = Draft(left, now)
    for item in withdrawn:
        draft.add("interrupt.withdrawn", interrupt_id=item.interrupt_id, reason=_SUPERSEDED)
    waits = left.status in (RunStatus.INTERRUPTED, RunStatus.DRAINED)
    run = replace(
        left,
        status=RunStatus.CANCELLED if waits else left.status,
        ended_at=now,
        active_nodes=(),
        stopped_before=(),
        stopped_after=(),
    )
    return RunChange(
        runs=(draft.counted(run),),
        tasks=[replace(task, state=TaskState.FOLDED, answer=None) for task in tasks],
        interrupts=withdrawn,
        events=draft.events,
    )


def _options(graph: CompiledGraph, request: StartRequest) -> RunOptions:
    policy = graph.definition.policy
    base = RunOptions(
        policy.recursion_limit or DEFAULT_RECURSION_LIMIT,
        policy.max_total_steps or DEFAULT_MAX_TOTAL_STEPS,
        policy.max_concurrency or _DEFAULT_CONCURRENCY,
        None,
        request.metadata,
    )
    return changed_options(base, request.limits)


def changed_options(options: RunOptions, limits: RunLimits) -> RunOptions:
    """Options with the limits that a request sets; the deadline is the request's alone."""
    return replace(
        options,
        recursion_limit=limits.recursion_limit or options.recursion_limit,
        max_total_steps=limits.max_total_steps or options.max_total_steps,
        max_concurrency=limits.max_concurrency or options.max_concurrency,
        deadline_us=limits.deadline_us,
        wait_timeout_us=options.wait_timeout_us if limits.wait_timeout_us is None else limits.wait_timeout_us,
        durability=limits.durability or options.durability,
        commit=limits.commit or options.commit,
    )


def _start_change(
    request: StartRequest, run: RunRecord, saved: NextCheckpoint, now: int
) -> tuple[RunChange, RunRecord]:
    draft = Draft(run, now)
    draft.add("run.started", trigger=Trigger.START.value, graph=run.graph, version=run.graph_version)
    report_checkpoints(draft, saved.checkpoints)
    counted = draft.counted(run)
    change = RunChange(
        threads=() if saved.thread is None else (saved.thread,),
        runs=(counted,),
        checkpoints=saved.checkpoints,
        values=saved.values,
        events=draft.events,
        requests=request_records("StartRun", request, run.run_id),
    )
    return change, counted


def _no_thread(thread_id: str) -> RunRefused:
    return RunRefused("THREAD_NOT_FOUND", f"there is no thread '{thread_id}'", {"thread_id": thread_id})
