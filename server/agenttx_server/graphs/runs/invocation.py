"""One invocation of a run: superstep after superstep, until it has completed, failed, or waits.

Everything that is answered is durable, in this order: a superstep's start (its tasks), each task's result as it comes,
the boundary (checkpoint, next work, events) in one commit with the end of the group of steps; the last boundary is
the commit of the transaction. Whoever goes on with the run, here or elsewhere, goes on from what is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import JsonValue, canonical, load
from agenttx_server.engine.ports import Clock, ToolFailure
from agenttx_server.engine.visibility import DEFAULT_TENANT, tenant_of
from agenttx_server.graphs.boundary import Work, next_work
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import FailurePolicy, SubgraphBinding
from agenttx_server.graphs.errors import GraphError, InvalidNodeResult, RouteError
from agenttx_server.graphs.fold import Folded, tracked
from agenttx_server.graphs.joins import open_rounds
from agenttx_server.graphs.routing import needs_router_call
from agenttx_server.graphs.runs.amended_superstep import ENDED, AmendmentRefused, carried_out
from agenttx_server.graphs.runs.boundary_making import (
    MadeBoundary,
    Superstep,
    completed,
    made_boundary,
    starved_error,
)
from agenttx_server.graphs.runs.error_handlers import handed_over
from agenttx_server.graphs.runs.finished_tasks import finished_of
from agenttx_server.graphs.runs.folding import folded_aside
from agenttx_server.graphs.runs.journal import Draft, failed, report_checkpoints
from agenttx_server.graphs.runs.live_notices import LiveNotices, TaskNotices
from agenttx_server.graphs.runs.next_superstep import Begun, Stand, begin_superstep, why_stop
from agenttx_server.graphs.runs.node_cache import NodeCache, answers_to_keep
from agenttx_server.graphs.runs.node_calls import member_of, sketched_member
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.position import (
    NextCheckpoint,
    Position,
    checkpoint_left_out,
    load_position,
    provisional_state,
    writes_of,
)
from agenttx_server.graphs.runs.records import (
    CachedAnswer,
    CommitPolicy,
    Durability,
    InterruptRecord,
    InterruptState,
    RunError,
    RunRecord,
    RunStatus,
    TaskRecord,
    TaskState,
    ThreadRecord,
)
from agenttx_server.graphs.runs.run_errors import error_of, passes
from agenttx_server.graphs.runs.step_port import (
    CommitConflict,
    NodeFunctions,
    RunTransactions,
    StepMember,
    StepTurn,
    Turn,
    Unsettled,
)
from agenttx_server.graphs.runs.subgraph_run import Embedding, Surroundings, alone, embedded_member
from agenttx_server.graphs.runs.superstep_run import StopSignal, SuperstepRun, finished_task, in_doubt
from agenttx_server.graphs.runs.task_reports import report_task, reported_task
from agenttx_server.graphs.runs.waiting_commit import begin_to_wait, committed, ended_early

__all__ = ["Invocation", "RunParts"]


_SETTLED_BY_OTHERS = (TaskState.PENDING, TaskState.FAILED, TaskState.CANCELLED)


@dataclass(frozen=True, slots=True)
class RunParts:
    """What invocations work with.

    ``of_tenant`` gives the functions of a tenant other than the default one, which has ``functions``. ``step_turn`` is
    that of engine.services.
    """

    store: RunStore
    transactions: RunTransactions
    functions: NodeFunctions
    clock: Clock
    notices: LiveNotices = field(default_factory=LiveNotices)
    of_tenant: Callable[[str], NodeFunctions] | None = None
    step_turn: StepTurn = lambda owner: None

    def functions_for(self, owner: str) -> NodeFunctions:
        """Return the functions that there are for an owner."""
        tenant = tenant_of(owner)
        if tenant == DEFAULT_TENANT or self.of_tenant is None:
            return self.functions
        return self.of_tenant(tenant)


class Invocation:
    """Carries a run on from where it stands. Made for one invocation; after :meth:`go` it tells how that ended."""

    def __init__(
        self,
        parts: RunParts,
        graph: CompiledGraph,
        run: RunRecord,
        thread: ThreadRecord | None,
        position: Position,
        stop: StopSignal,
    ) -> None:
        self.run = run
        self.thread = thread
        self.position = position
        self.reached: Position | None = None
        self.tasks: Sequence[TaskRecord] = ()
        self.visited: list[str] = []
        self.has_begun = False
        self._parts = parts
        self._graph = graph
        self._stop = stop
        self._interrupts: list[InterruptRecord] = []
        self._asked: list[InterruptRecord] = []
        self._said: dict[str, str] = {}
        # Of a boundary that is not durable yet: where the run stood before it, and the nodes behind it.
        self.sent_from: Position | None = None
        self._sent_nodes: list[str] = []

    async def provisional_state(self) -> dict[str, JsonValue]:
        """Return the state, with what finished since the last boundary."""
        return tracked(self._graph, await provisional_state(self._graph, self.position, self.tasks))

    @property
    def pending_interrupts(self) -> list[InterruptRecord]:
        """What the run waits for."""
        return [item for item in self._interrupts if item.state is InterruptState.PENDING]

    async def go(self, turn: Turn) -> None:
        """Run until the invocation ends. Raises what the store raises, and faults: nothing is lost then."""
        self.has_begun = True
        if self.run.copies is not None:
            await self._copy_writes(turn, *self.run.copies)
        if turn.is_open and not self.tasks:
            await self._load_superstep(turn)
            if not await self._carry_out_amendment(turn):
                return
        while await self._advance(turn):
            pass
        await self._let_go_without_thread(turn)

    def stand_in(self, begun: Begun) -> None:
        """Stand in a superstep that has begun where the run stood."""
        self._take(begun, self.position)

    async def _let_go_without_thread(self, turn: Turn) -> None:
        """Take back a run that nobody can go on with: without a thread, and not completed."""
        if self.thread is None and self.run.transaction_id and self.run.status is not RunStatus.COMPLETED:
            if turn.obstacle is None:
                await turn.roll_back("a run without a thread did not complete")
            self.run = await self._parts.store.load_run(self.run.run_id) or self.run

    async def _copy_writes(self, turn: Turn, transaction_id: str, last_step: int) -> None:
        """Begin with what the branch that this one is of had written to the store."""
        run = replace(self.run, copies=None)
        await turn.copy_writes(transaction_id, last_step, self._parts.store.rows(RunChange(runs=(run,))))
        self.run = run

    # --- between supersteps -----------------------------------------------------------------

    async def _advance(self, turn: Turn) -> bool:
        """Go one superstep further; return whether the invocation goes on."""
        if (obstacle := turn.obstacle) is not None:
            await self._pause(turn, RunStatus.FAILED, error_of(obstacle, self.run))
            return False
        if not turn.is_open:
            if self.run.stopped_after:
                await self._commit_and_wait(turn)
                return False
            if self.position.work.is_done:
                work = self.position.work
                starved = starved_error(
                    self.run, replace(work, starved=open_rounds(self._graph, work.rounds))
                )
                if starved is not None:
                    await self._pause(turn, RunStatus.FAILED, starved)
                else:
                    await self._complete(turn)
                return self.run.status is RunStatus.RUNNING
            stopped = why_stop(self._graph, self._stand, self._stop, self._parts.clock.now())
            if stopped is not None:
                self.run = stopped.run
                if stopped.status is RunStatus.INTERRUPTED and self._commits:
                    await self._commit_and_wait(turn)
                    return False
                await self._pause(turn, stopped.status, stopped.error)
                return False
            if self._hands_over:
                return False
            try:
                begun = await self._begin(self._stand, turn.steps.start)
            except GraphError as error:
                await self._pause(turn, RunStatus.FAILED, error_of(error, self.run))
                return False
            self._take(begun, self.position)
            await turn.open(self._sketched(begun), self._parts.store.rows(begun.change(RunChange())))
        return await self._superstep(turn)

    @property
    def _stand(self) -> Stand:
        return Stand(self.run, self.thread, self.position)

    # --- a superstep ------------------------------------------------------------------------

    async def _begin(self, stand: Stand, first_step: int) -> Begun:
        return await begin_superstep(
            self._parts.store, self._graph, stand, first_step, self._parts.clock.now()
        )

    def _take(self, begun: Begun, position: Position) -> None:
        """Stand in a superstep that has begun."""
        self.run, self.thread, self.position = begun.run, begun.thread, position
        self.tasks, self._interrupts = begun.tasks, list(begun.questions)

    async def _load_superstep(self, turn: Turn) -> None:
        """Take up a superstep that was begun: what finished is not run again."""
        store = self._parts.store
        tasks = await store.load_tasks(self.run.run_id, self.run.superstep)
        self.tasks = [await self._as_its_step(turn, task) for task in tasks]
        self._interrupts = list(await store.load_interrupts(self.run.run_id, self.run.superstep))
        # Of those the journal knows nothing yet: the server died before the pause.
        unreported = {task.task_id for task in tasks if task.attempts > max(task.reported, 0)}
        self._asked = [item for item in self.pending_interrupts if item.waiting_task in unreported]

    async def _carry_out_amendment(self, turn: Turn) -> bool:
        """Do to the open superstep what a request that goes on asked for; False if that can't be done."""
        try:
            self.tasks = await carried_out(
                turn, self.tasks, lambda task: self._member(turn, task), self._parts.store
            )
        except AmendmentRefused as refused:
            self.tasks = refused.tasks
            await self._pause(turn, RunStatus.FAILED, RunError(refused.reason, str(refused)))
            return False
        return True

    async def _as_its_step(self, turn: Turn, task: TaskRecord) -> TaskRecord:
        """A task as its step stands, which others may have settled meanwhile."""
        if task.state is TaskState.FINISHED and not turn.is_done(task.step_id):
            # It lost a conflict and was undone: it is run again.
            return replace(task, state=TaskState.PENDING, answer=None, error=None)
        if task.state in _SETTLED_BY_OTHERS and turn.is_done(task.step_id):
            # It was in doubt, and a person said what it gave.
            output = await turn.output(task.step_id)
            return finished_task(self._graph, replace(task, attempts=task.attempts + 1), output)
        if task.state in _SETTLED_BY_OTHERS and turn.is_in_doubt(task.step_id):
            return in_doubt(task)
        return task

    def _member(self, turn: Turn, task: TaskRecord) -> StepMember:
        run = self.run
        if isinstance(binding := self._graph.nodes[task.node].binding, SubgraphBinding):
            return embedded_member(
                Surroundings(
                    self._parts.store,
                    self._parts.functions_for(run.principal),
                    self._parts.clock,
                    run,
                    self._stop,
                    self._wait_for_workers,
                    turn.constraints,
                    task,
                    [item for item in self._interrupts if item.within == task.task_id],
                    self._parts.notices,
                    self._turn_comes,
                ),
                Embedding(
                    self._graph.subgraphs[task.node],
                    binding,
                    task,
                    self.position,
                    self.thread is not None and self._graph.definition.policy.checkpoints,
                    is_alone=lambda: alone(self._graph, self.tasks, task),
                ),
                self._graph.nodes[task.node].run_timeout_us,
            )
        return member_of(
            self._graph,
            task,
            self.position,
            turn.constraints,
            self._parts.functions_for(run.principal),
            self._answered().get(task.task_id, ()),
            run.options.recursion_limit - (run.total_supersteps - run.invocation_first),
        )

    def _sketched(self, begun: Begun) -> list[StepMember]:
        """What a superstep's tasks are as members of a group. Each is given in full when it is run."""
        return [sketched_member(self._graph, task) for task in begun.tasks]

    def _answered(self) -> dict[str, list[InterruptRecord]]:
        return _answered(self._interrupts)

    async def _superstep(self, turn: Turn) -> bool:
        waiting = self._waiting_tasks()
        todo = [
            task.ordinal
            for task in self.tasks
            if task.state not in ENDED
            and not (task.state is TaskState.INTERRUPTED and task.task_id in waiting)
            and not turn.is_in_doubt(task.step_id)
        ]
        await self._run_tasks(turn, todo)
        if self.sent_from is not None:
            await self._settle(turn)
        try:
            await self._run_handlers(turn)
        except Unsettled as error:
            await self._pause(turn, RunStatus.FAILED, error_of(error, self.run))
            return False
        while True:
            if (ended := self._unfinished()) is not None:
                if ended[0] is RunStatus.DRAINED and self._hands_over:
                    return False
                if self._rolls_back(turn):
                    return await self._go_back(turn)
                if ended[0] is RunStatus.INTERRUPTED and self._commits:
                    await self._commit_and_wait(turn)
                    return False
                await self._pause(turn, *ended)
                return False
            try:
                folded, work = await self._fold_and_route()
            except GraphError as error:
                await self._pause(turn, RunStatus.FAILED, error_of(error, self.run))
                return False
            try:
                losers = await self._boundary(turn, folded, work)
            except Unsettled as error:
                await self._pause(turn, RunStatus.FAILED, RunError(error.reason, str(error)))
                return False
            if not losers:
                return self.run.status is RunStatus.RUNNING
            # They were undone, and run again seeing what lower ones wrote.
            again = [task.ordinal for task in self.tasks if task.step_id in losers]
            self.tasks = [
                replace(task, state=TaskState.PENDING, answer=None) if task.ordinal in again else task
                for task in self.tasks
            ]
            await self._run_tasks(turn, again, in_order=True)

    async def _settle(self, turn: Turn) -> None:
        """Return once the boundary before the open superstep is durable."""
        await turn.settled()
        self.visited += self._sent_nodes
        self.sent_from, self._sent_nodes = None, []

    def _waiting_tasks(self) -> set[str]:
        """The tasks that wait for answers, and have none that they don't know."""
        answered = {item.within for item in self._interrupts if item.state is InterruptState.ANSWERED}
        return {item.waiting_task for item in self.pending_interrupts} - answered

    async def _run_handlers(self, turn: Turn) -> None:
        """Have error handlers stand in for what failed; of a run that is cancelled none does. Raises Unsettled."""
        if self._stop.cancelled.is_set():
            return
        before = len(self.tasks)
        self.tasks = await handed_over(turn, self._graph, self.run, self.tasks, self._parts.store)
        if len(self.tasks) == before:
            return
        try:
            self.tasks = await carried_out(
                turn, self.tasks, lambda task: self._member(turn, task), self._parts.store
            )
        except AmendmentRefused as refused:
            self.tasks = refused.tasks
            raise Unsettled(refused.reason, str(refused)) from refused
        await self._run_tasks(turn, [task.ordinal for task in self.tasks[before:]])

    def _rolls_back(self, turn: Turn) -> bool:
        """Whether the rollback controller decides on what failed in the superstep."""
        policy = self._graph.definition.policy
        return (
            policy.on_failure is FailurePolicy.ROLLBACK
            and self.thread is not None
            and not self._stop.cancelled.is_set()
            and any(
                task.state is TaskState.FAILED and task.error is not None and task.error.category
                for task in self.tasks
            )
            and not any(turn.is_in_doubt(task.step_id) for task in self.tasks)
        )

    async def _go_back(self, turn: Turn) -> bool:
        """Have the controller decide; return whether the invocation goes on, where it has gone back to."""
        decided = await turn.decide()
        if decided.held and (obstacle := turn.obstacle) is not None:
            await self._pause(turn, RunStatus.FAILED, error_of(obstacle, self.run))
            return False
        await self._read_again()
        return self.run.status is RunStatus.RUNNING

    async def _read_again(self) -> None:
        """Stand where the run's records say, which the transaction's own commit moved."""
        store = self._parts.store
        run = await store.load_run(self.run.run_id)
        assert run is not None
        self.run, self.tasks, self._interrupts, self._asked = run, (), [], []
        if self.thread is not None:
            self.thread = await store.load_thread(self.thread.thread_id)
            if self.thread is not None:
                self.position = await load_position(store, self._graph, self.thread)

    def _turn_comes(self) -> Awaitable[None] | None:
        return self._parts.step_turn(self.run.principal)

    async def _run_tasks(self, turn: Turn, ordinals: Sequence[int], *, in_order: bool = False) -> None:
        superstep = SuperstepRun(
            self._graph,
            self._parts.store,
            self._parts.clock,
            turn,
            self.tasks,
            self._answered(),
            self.run.options.max_concurrency,
            self._stop,
            self._wait_for_workers,
            notices=TaskNotices(self._parts.notices, self._parts.clock, lambda: self.run),
            cache=NodeCache(
                self._parts.store,
                self._parts.clock,
                self._graph,
                self.run,
                self.position.state,
                turn.constraints,
            ),
            turn_comes=self._turn_comes,
        )
        run = superstep.run_in_order if in_order else superstep.run
        try:
            await run(ordinals, lambda task: self._member(turn, task))
        finally:
            self.tasks = superstep.tasks
            self._interrupts += superstep.asked
            self._asked += superstep.asked

    @property
    def _finished_tasks(self) -> list[TaskRecord]:
        return [task for task in self.tasks if task.state is TaskState.FINISHED]

    def _wait_for_workers(self, waits: bool) -> None:
        """Show that the run waits for a worker. Whoever goes on with it after a crash waits again."""
        self.run = replace(self.run, status=RunStatus.WAITING if waits else RunStatus.RUNNING)

    def _unfinished(self) -> tuple[RunStatus, RunError | None] | None:
        """Say how the invocation ends if a task hasn't finished."""
        errors = [task.error for task in self.tasks if task.state is TaskState.FAILED and task.error]
        if errors:
            return RunStatus.FAILED, replace(errors[0], others=tuple(errors[1:]))
        if all(task.state in ENDED for task in self.tasks):
            return None
        if self._stop.cancelled.is_set():
            return RunStatus.CANCELLED, None
        if any(task.state is TaskState.PENDING for task in self.tasks) and (
            self._stop.drains or self._hands_over
        ):
            return RunStatus.DRAINED, None  # an embedded graph stopped at a boundary of its own
        return RunStatus.INTERRUPTED, None

    @property
    def _hands_over(self) -> bool:
        """Whether another server is to go on; a run without a thread can't be handed over."""
        return self._stop.hands_over and self.thread is not None

    async def _fold_and_route(self) -> tuple[Folded, Work]:
        wrong = next((task.error for task in self._finished_tasks if task.error is not None), None)
        if wrong is not None:
            raise InvalidNodeResult(wrong.message)
        folded = await folded_aside(
            self._graph,
            self.position.state,
            writes_of(self.tasks, self.run.namespace),
            self.position.origins,
        )
        finished, self._said = [], {}
        for done in finished_of(self.tasks):
            router = needs_router_call(self._graph, done)
            if router is not None:
                said = await self._ask_router(router, done.task.node, folded.state)
                self._said[done.task.task_id] = canonical(said)
                done = replace(done, router_answer=said)
            finished.append(done)
        work = next_work(self._graph, self.position.work, folded.state, finished)
        return folded, work

    async def _ask_router(self, function: str, node: str, state: Mapping[str, JsonValue]) -> JsonValue:
        """Ask a worker's router. Raises RouteError if it fails: the results are kept, and asked about again."""
        try:
            return load(
                await self._parts.functions_for(self.run.principal).call(
                    function, canonical({"state": dict(state)}), None
                )
            )
        except Exception as error:
            if passes(error):
                raise
            told = " ".join(error.message.split())[:200] if isinstance(error, ToolFailure) else ""
            why = told or f"it ended with {type(error).__name__}"
            raise RouteError(
                "NODE_FAILED", f"the router of '{node}' failed: {why}", {"node": node}
            ) from error

    # --- what ends a superstep or an invocation -----------------------------------------------

    async def _boundary(self, turn: Turn, folded: Folded, work: Work) -> Sequence[int]:
        """Write the boundary, in one commit; return the steps that must run again before it can be."""
        made = None
        if self._leaves_checkpoints_out:
            made = await self._made_boundary(turn, folded, work, keeps=False)
        if made is None or made.begun is None:
            # The superstep behind one without a checkpoint is open: nothing else says that there is one.
            made = await self._made_boundary(turn, folded, work, keeps=True)
        self.reached = made.position
        opens = () if made.begun is None else self._sketched(made.begun)
        is_sent = bool(opens) and self.run.options.durability is Durability.ASYNC and self.thread is not None
        rows = self._parts.store.rows(made.change)
        try:
            losers = await turn.close(rows, commit=made.completes, opens=opens, waits=not is_sent)
        except CommitConflict as conflict:
            await self._conflicted(turn, conflict)
            return ()
        self.reached = None
        if losers:
            return losers
        nodes = [task.node for task in self._finished_tasks]
        if is_sent:
            self.sent_from, self._sent_nodes = self.position, nodes
        else:
            self.visited += nodes
        if made.begun is not None:
            self._take(made.begun, made.position)
            return ()
        self.run, self.thread, self.position, self.tasks = made.run, made.thread, made.position, ()
        self._interrupts = []
        return ()

    @property
    def _leaves_checkpoints_out(self) -> bool:
        """Whether a boundary that another superstep follows at once has no checkpoint; rollbacks need each."""
        policy = self._graph.definition.policy
        return (
            self.run.options.durability is Durability.EXIT
            and self.thread is not None
            and policy.on_failure is not FailurePolicy.ROLLBACK
        )

    async def _made_boundary(self, turn: Turn, folded: Folded, work: Work, *, keeps: bool) -> MadeBoundary:
        """Make what a boundary writes, with the superstep that begins behind it; ``keeps``: with its checkpoint."""
        made = made_boundary(
            Superstep(self._graph, self.run, self.thread, self.position, self.tasks, self._said),
            folded,
            work,
            turn.steps.stop,
            self._parts.clock.now(),
            keeps=keeps,
            waits_live=self._commits,
        )
        if made.completes:
            return replace(made, change=replace(made.change, cached=await self._answers_to_keep(self.tasks)))
        if made.run.stopped_after:
            return made
        begun = await self._begins_at_once(Stand(made.run, made.thread, made.position), turn)
        return made if begun is None else replace(made, begun=begun, change=begun.change(made.change))

    async def _begins_at_once(self, stand: Stand, turn: Turn) -> Begun | None:
        """The superstep that may begin in the commit of the boundary before it; None: what comes next is seen to apart."""
        if stand.run.status is not RunStatus.RUNNING or stand.position.work.is_done or self._hands_over:
            return None
        if why_stop(self._graph, stand, self._stop, self._parts.clock.now()) is not None:
            return None
        try:
            begun = await self._begin(stand, turn.steps.stop)
        except GraphError:
            return None
        return begun if turn.takes(self._sketched(begun)) else None

    async def _answers_to_keep(self, tasks: Sequence[TaskRecord]) -> Sequence[CachedAnswer]:
        return await answers_to_keep(self._parts.store, self._graph, self.run, tasks, self._parts.clock.now())

    async def _complete(self, turn: Turn) -> None:
        """Commit a run that has no work left."""
        now = self._parts.clock.now()
        draft = Draft(self.run, now)
        run = completed(self._graph, draft, self.run, self.position, now)
        run = draft.counted(replace(run, stopped_after=()))
        thread = self.thread
        if thread is not None:
            thread = replace(thread, transaction_id="", committed_head=thread.head, updated_at=now)
        change = RunChange(
            threads=() if thread is None else (thread,),
            runs=(run,),
            events=draft.events,
            cached=await self._answers_to_keep(()),
        )
        try:
            await turn.commit(self._parts.store.rows(change))
        except CommitConflict as conflict:
            await self._conflicted(turn, conflict)
            return
        self.run, self.thread = run, thread

    async def _pause(self, turn: Turn, status: RunStatus, error: RunError | None) -> None:
        """End the invocation with work left; the transaction stays open."""
        now = self._parts.clock.now()
        draft = Draft(self.run, now)
        saved = self._left_out_checkpoint(turn, now)
        report_checkpoints(draft, saved.checkpoints)
        for task in self.tasks:
            report_task(draft, task)
        unfinished = [task.node for task in self.tasks if task.state not in ENDED]
        # A run without a thread is this server's until it is taken back, which comes next.
        server_id = self.run.server_id if self.thread is None else ""
        run = replace(
            self.run,
            status=status,
            server_id=server_id,
            active_nodes=tuple(dict.fromkeys(unfinished)),
            error=None,
        )
        pending = self.pending_interrupts
        for item in self._asked:
            task = next(task for task in self.tasks if task.task_id == item.waiting_task)
            draft.add(
                "interrupt.emitted",
                task,
                interrupt_id=item.interrupt_id,
                payload=load(item.payload),
                ordinal=item.ordinal,
            )
        match status:
            case RunStatus.FAILED if error is not None:
                run = failed(draft, run, error)
            case RunStatus.INTERRUPTED:
                ids: list[JsonValue] = [item.interrupt_id for item in pending]
                draft.add("run.interrupted", interrupt_ids=ids, before=list(run.stopped_before), after=[])
            case RunStatus.CANCELLED:
                draft.add("run.cancelled", reason=self._stop.reason)
            case _:
                draft.add("run.drained")
        run = replace(draft.counted(run), server_id=server_id)
        tasks = [reported_task(task) for task in self.tasks]
        # Its thread may have been deleted since its transaction was rolled back elsewhere: then nothing of it comes back.
        change = RunChange(
            threads=() if saved.thread is None else (saved.thread,),
            runs=(run,),
            checkpoints=saved.checkpoints,
            values=saved.values,
            tasks=tasks,
            events=draft.events,
            standing_runs=(run.run_id,),
        )
        await turn.write(self._parts.store.rows(change))
        self.run, self.tasks, self.thread, self.position = run, tasks, saved.thread, saved.position
        self.visited += [task.node for task in tasks if task.state is TaskState.FINISHED]

    @property
    def _commits(self) -> bool:
        """Whether the run commits as it begins to wait."""
        return self.run.options.commit is CommitPolicy.INTERRUPT and self.thread is not None

    async def _commit_and_wait(self, turn: Turn) -> None:
        """End the invocation with what was done committed: what has finished in the open superstep is folded in."""
        now, thread, tasks = self._parts.clock.now(), self.thread, list(self.tasks)
        assert thread is not None
        saved = self._left_out_checkpoint(turn, now)
        try:
            if turn.is_open:
                losers = await turn.settle_conflicts()
                tasks = [
                    replace(task, state=TaskState.PENDING, answer=None) if task.step_id in losers else task
                    for task in tasks
                ]
                saved = await ended_early(
                    self._graph,
                    self._parts.functions,
                    thread,
                    self.run,
                    self.position,
                    tasks,
                    now,
                    turn.steps.stop,
                )
            change, run = committed(self.run, tasks, self._asked, saved, now)
            rows = self._parts.store.rows(change)
            await (turn.close_early(rows, commit=True) if turn.is_open else turn.commit(rows))
        except CommitConflict as conflict:
            await self._conflicted(turn, conflict)
            return
        except Unsettled as error:
            await self._pause(turn, RunStatus.FAILED, RunError(error.reason, str(error)))
            return
        except GraphError as error:
            await self._pause(turn, RunStatus.FAILED, error_of(error, self.run))
            return
        self.visited += [task.node for task in tasks if task.state is TaskState.FINISHED]
        self.run, self.thread, self.position, self.tasks = run, change.threads[0], saved.position, ()
        self.run, self.thread = await begin_to_wait(
            self._parts.store, self._parts.transactions, run, self.thread, self._parts.clock.now()
        )

    async def _conflicted(self, turn: Turn, conflict: CommitConflict) -> None:
        """The transaction is rewound or rolled back, and the run's records with it (:mod:`.rolled_back`)."""
        if turn.obstacle is not None and turn.obstacle.reason == "ROLLBACK_INCOMPLETE":
            # Undo holds it: the records follow when that is settled.
            error = RunError("ROLLBACK_INCOMPLETE", f"{conflict}; an undo action failed")
            await self._pause(turn, RunStatus.FAILED, error)
            return
        await self._read_again()

    def _left_out_checkpoint(self, turn: Turn, now: int) -> NextCheckpoint:
        """The checkpoint of the last boundary, if it has none: the invocation ends. Not where undo is to take that back."""
        if self.position.unkept is None or self.thread is None or turn.obstacle is not None:
            return NextCheckpoint(self.position, self.thread)
        return checkpoint_left_out(self._graph, self.thread, self.run, self.position, now)


def _answered(interrupts: Sequence[InterruptRecord]) -> dict[str, list[InterruptRecord]]:
    answered: dict[str, list[InterruptRecord]] = {}
    for item in sorted(interrupts, key=lambda item: item.ordinal):
        if item.state is InterruptState.ANSWERED:
            answered.setdefault(item.task_id, []).append(item)
    return answered
