"""Runs a graph inside a node of another: as the function of the step that embeds it, each of its nodes a sub-step.

Started again, after an answer, a failure or a crash, it goes through its supersteps from the first one: what its nodes
gave is answered from the step's journal, so nothing is called twice, and the rules, being pure, lead where they led before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import MISSING, JsonValue, canonical, load
from agenttx_server.engine.ports import (
    AdoptedStep,
    Clock,
    ContextClosed,
    StepWaits,
    SubStepCall,
    SubStepFailed,
    ToolContext,
    ToolFailure,
)
from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.boundary import Work, first_work, next_work
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import SubgraphBinding, SubgraphMode
from agenttx_server.graphs.errors import GraphError, InvalidNodeResult, RouteError
from agenttx_server.graphs.fold import ChannelOrigin, State, TaskWrites
from agenttx_server.graphs.node_results import COMMAND, Target, Update, read_result
from agenttx_server.graphs.routing import FinishedTask, needs_router_call
from agenttx_server.graphs.runs.amended_superstep import ENDED
from agenttx_server.graphs.runs.embedded_journal import EmbeddedJournal, Place, embedded_options, find_place
from agenttx_server.graphs.runs.error_handlers import handler_of, is_handled
from agenttx_server.graphs.runs.folding import folded_aside
from agenttx_server.graphs.runs.live_notices import LiveNotices, TaskNotices
from agenttx_server.graphs.runs.node_cache import answered_by
from agenttx_server.graphs.runs.node_calls import member_of
from agenttx_server.graphs.runs.ports import RunStore
from agenttx_server.graphs.runs.position import Position, writes_of
from agenttx_server.graphs.runs.records import (
    InterruptRecord,
    InterruptState,
    RunError,
    RunRecord,
    RunStatus,
    TaskRecord,
    TaskState,
)
from agenttx_server.graphs.runs.run_errors import error_of
from agenttx_server.graphs.runs.side_by_side import CannotBeUndone, SideBySide
from agenttx_server.graphs.runs.step_port import (
    FunctionReport,
    InsideWaits,
    NodeFunctions,
    StepMember,
)
from agenttx_server.graphs.runs.sub_step_turn import SubStepMaker, SubStepTurn, task_scope
from agenttx_server.graphs.runs.superstep_run import StopSignal, SuperstepRun
from agenttx_server.graphs.runs.task_places import in_place_of
from agenttx_server.graphs.tasks import Task, order_tasks, write_seed

__all__ = ["Embedding", "Surroundings", "alone", "embedded_member"]

_WITHOUT_LIMIT_US = 366 * 24 * 3600 * 1_000_000
"""An embedded graph has its nodes' timeouts, and its own only where the embedding node has one."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all graphs inside one task of the root graph share.

    Attributes:
        root: the root's run.
        constraints: the hints that its transaction has learned.
        task: the root's task.
        interrupts: what was asked inside that task, answered or not.
        notices: tells those who follow live.
        turn_comes: counts a node's step, and returns what waits for its turn.
    """

    store: RunStore
    functions: NodeFunctions
    clock: Clock
    root: RunRecord
    stop: StopSignal
    on_waiting: Callable[[bool], None]
    constraints: tuple[str, ...]
    task: TaskRecord
    interrupts: Sequence[InterruptRecord]
    notices: LiveNotices
    turn_comes: Callable[[], Awaitable[None] | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Embedding:
    """Where a graph is embedded.

    Attributes:
        graph: what is embedded.
        binding: how.
        task: the task that embeds it.
        position: where the embedding graph stands.
        base: scope of the calls that are made there.
        keeps: whether the graphs around keep checkpoints.
        supersteps: how many the graphs around have made, for the run's limit.
        is_alone: tells whether no other task of its superstep goes on with the same state.
    """

    graph: CompiledGraph
    binding: SubgraphBinding
    task: TaskRecord
    position: Position
    keeps: bool
    base: str = ""
    supersteps: int = 0
    is_alone: Callable[[], bool] = lambda: True


def embedded_member(around: Surroundings, where: Embedding, timeout_us: int | None) -> StepMember:
    """The step, or sub-step, of a task that is another graph."""
    task = where.task
    report = FunctionReport()
    kept: dict[str, JsonValue] = {"graph": where.graph.version, "superstep": task.superstep}
    if where.position.told_number is not None:
        kept["checkpoint"] = where.position.told_number
    if task.arg is not None:
        kept["arg"] = load(task.arg)

    async def run(arguments: Any, context: ToolContext) -> Any:
        report.clear()
        assert isinstance(context, SubStepMaker)
        return await SubgraphRun(around, where, report, context).run()

    return StepMember(
        task.node,
        canonical(kept),
        function=run,
        timeout_us=timeout_us or _WITHOUT_LIMIT_US,
        adopts=None if task.adopts is None else AdoptedStep(TransactionId(task.adopts[0]), task.adopts[1]),
        report=report,
        learned=lambda: tuple(dict.fromkeys(report.edges)),
    )


def alone(graph: CompiledGraph, tasks: Sequence[TaskRecord], task: TaskRecord) -> bool:
    """Whether no other task of a superstep goes on with the state that a task's graph keeps."""
    binding = graph.nodes[task.node].binding
    if not isinstance(binding, SubgraphBinding) or not binding.state_key:
        return True
    return sum(other.node == task.node for other in tasks) == 1


class _Stopped(Exception):
    """The graph can't go on, by no failure of a node."""

    def __init__(self, error: RunError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(slots=True)
class _Superstep:
    number: int
    turn: SubStepTurn
    tasks: list[TaskRecord]
    position: Position
    asked: list[InterruptRecord] = field(default_factory=list)
    beside: SideBySide | None = None


class SubgraphRun:
    """One way through an embedded graph. Made for each time that its step is started."""

    def __init__(
        self, around: Surroundings, where: Embedding, report: FunctionReport, context: SubStepMaker
    ) -> None:
        self._around = around
        self._where = where
        self._graph = where.graph
        self._options = embedded_options(where.graph.definition, around.root.options)
        self._report = report
        self._context = context
        self._superstep = self._first = 0
        self._visits: dict[str, int] = {}
        self._delta: list[Update] = []
        self._step: _Superstep | None = None
        self._kept: EmbeddedJournal
        coming = where.position.work.activations
        self._given = dict(coming[where.task.ordinal].given) if where.task.ordinal < len(coming) else {}

    async def run(self) -> JsonValue:
        """Run to the end; return what the embedding node answers.

        Raises ToolFailure: a node failed. StepWaits: it waits, or stopped, as the report says.
        """
        try:
            return await self._run()
        except (ToolFailure, StepWaits, ContextClosed):
            raise
        except Exception as error:
            # Not the node's failure: whoever runs the root is to see it.
            self._report.broke = error
            raise StepWaits(InsideWaits()) from error

    async def _run(self) -> JsonValue:
        where, around = self._where, self._around
        place = await find_place(
            self._context,
            around.store,
            self._graph,
            where.task,
            where.base,
            where.binding.state_key,
            where.position.kept,
        )
        keeps = where.keeps and self._graph.definition.policy.checkpoints
        self._kept = EmbeddedJournal(around.store, self._graph, where.task, place, around.root, keeps=keeps)
        self._namespace, self._run_id = place.namespace, place.run_id
        self._superstep = self._first = place.superstep
        try:
            return await self._through(place)
        except _Stopped as stopped:
            self._report.error = stopped.error
            await self._pause(RunStatus.FAILED, stopped.error)
            raise StepWaits(InsideWaits()) from stopped
        finally:
            self._report.child = self._kept.embedded

    async def _through(self, place: Place) -> JsonValue:
        """Superstep after superstep. Raises _Stopped, and what :meth:`run` says."""
        clock, kept = self._around.clock, self._kept
        before = await self._state_before(place)
        state, origins, work = await self._begin(place, before)
        await kept.begin(state, work, clock.now())
        self._report.child = kept.embedded
        while not work.is_done:
            await self._stop_before(work)
            await self._check_limits(work)
            self._superstep += 1
            step = self._step = _Superstep(
                self._superstep,
                SubStepTurn(self._context, self._where.base, self._superstep),
                await self._tasks(work),
                Position(state, work, origins, number=kept.checkpoint, kept=kept.kept),
            )
            await self._let_go(step.tasks)
            await self._carry_out(step)
            with _stopping(self):
                folded = await folded_aside(
                    self._graph, state, writes_of(step.tasks, self._namespace), origins
                )
                finished = await self._finished(step, folded.state)
                work = next_work(self._graph, work, folded.state, finished, is_root=False)
                work.refuse_starved()
            state, origins = folded.state, folded.origins
            self._delta += folded.effective
            ends = work.is_done or work.parent is not None
            await kept.boundary(step.number, step.tasks, state, work, clock.now(), ends=ends)
            self._step = None
            if ends:
                break
            await self._stop_after(step.tasks)
        return self._answer(state, work)

    async def _pause(self, status: RunStatus, error: RunError | None = None) -> None:
        step = self._step
        tasks, asked = ((), ()) if step is None else (step.tasks, step.asked)
        await self._kept.pause(self._superstep, tasks, asked, status, error, self._around.clock.now())

    async def _stop_before(self, work: Work) -> None:
        nodes = dict.fromkeys(item.node for item in work.activations)
        before = tuple(node for node in nodes if self._graph.stops_before(node))
        if before and not self._kept.passes(self._superstep - self._first):
            await self._kept.stop(self._around.clock.now(), before=before)
            raise StepWaits(InsideWaits())

    async def _stop_after(self, tasks: Sequence[TaskRecord]) -> None:
        nodes = dict.fromkeys(task.node for task in tasks if task.state is TaskState.FINISHED)
        after = tuple(node for node in nodes if self._graph.stops_after(node))
        if after and not self._kept.passes(self._superstep - self._first):
            await self._kept.stop(self._around.clock.now(), after=after)
            raise StepWaits(InsideWaits())

    # --- in and out -----------------------------------------------------------------------------

    async def _state_before(self, place: Place) -> State | None:
        """The state that the graph keeps from its run before; None where it begins anew."""
        if not self._where.is_alone():
            raise self._stopped_for(
                "CONCURRENT_UPDATE", "two of its tasks in one superstep would go on with one state"
            )
        number = place.goes_on_from
        if number is None:
            return None
        thread_id = self._around.root.thread_id
        found = await self._around.store.list_embedded(thread_id, place.namespace, number + 1, 1)
        if not found or found[0].number != number:
            raise self._stopped_for("CHECKPOINT_NOT_FOUND", "the state that it kept is not there any more")
        self._kept.kept = {run.namespace: run for run in found[0].kept}
        state: Any = load(found[0].state)
        return dict(state)

    async def _begin(
        self, place: Place, before: State | None
    ) -> tuple[State, Mapping[str, ChannelOrigin], Work]:
        """The state, where it comes from, and the work that the graph begins with."""
        graph, binding, outer = self._graph, self._where.binding, self._where.position
        task = self._where.task
        with _stopping(self):
            if binding.mode is SubgraphMode.SHARED:
                state: State = {name: outer.state[name] for name in graph.channels if name in outer.state}
                origins = {name: outer.origins[name] for name in state if name in outer.origins}
            else:
                given = {
                    name: outer.state[ours] for name, ours in binding.input.items() if ours in outer.state
                }
                seed = write_seed(self._namespace, place.superstep, "", place.number)
                begun = graph.default_state() if before is None else before
                state = (await folded_aside(graph, begun, [TaskWrites("", (given,), seed)])).state
                origins = {
                    name: outer.origins[ours]
                    for name, ours in binding.input.items()
                    if name in given and ours in outer.origins
                }
            # What a Send tells the embedding node it tells the nodes that the graph begins with.
            goto = () if task.arg is None else tuple(Target(node, load(task.arg)) for node in graph.entry)
            return state, origins, first_work(graph, goto)

    def _answer(self, state: State, work: Work) -> JsonValue:
        """What the graph gave, as the embedding node's answer: updates, then what it commands."""
        updates: list[JsonValue] = list(self._delta)
        binding = self._where.binding
        if binding.mode is SubgraphMode.ADAPTER:
            given = {ours: state[name] for ours, name in binding.output.items() if name in state}
            updates = [given] if given else []
        if work.parent is not None:
            updates += work.parent.updates
            goto: list[JsonValue] = [
                {"node": target.node} if target.arg is MISSING else {"node": target.node, "arg": target.arg}
                for target in work.parent.goto
            ]
            updates.append({COMMAND: {"goto": goto}})
        return updates

    # --- a superstep ------------------------------------------------------------------------------

    async def _tasks(self, work: Work) -> list[TaskRecord]:
        with _stopping(self):
            ordered = order_tasks(self._run_id, self._namespace, self._superstep, work.activations)
        outer = self._where.task
        pending = {item.task_id for item in self._around.interrupts if item.state is InterruptState.PENDING}
        known = {task.ordinal: task for task in await self._kept.known_tasks(self._superstep)}
        tasks = [
            TaskRecord(
                self._run_id,
                self._superstep,
                task.ordinal,
                task.task_id,
                task.node,
                outer.thread_id,
                self._namespace,
                TaskState.INTERRUPTED if task.task_id in pending else TaskState.PENDING,
                self._around.task.step_id,
                arg=None if task.arg is MISSING else canonical(task.arg),
            )
            for task in ordered
        ]
        told = [_as_told(task, known[task.ordinal]) if task.ordinal in known else task for task in tasks]
        handlers = [
            _as_told(replace(task, state=TaskState.PENDING), task) for task in known.values() if task.handles
        ]
        return told + sorted(handlers, key=lambda task: task.ordinal)

    async def _check_limits(self, work: Work) -> None:
        """Raise where no superstep begins now, though work is left."""
        around, stop = self._around, self._around.stop
        if stop.cancelled.is_set():
            raise ContextClosed(stop.reason or "the run was cancelled")
        if stop.drains or (stop.hands_over and around.root.thread_id):
            self._report.is_stopped = True
            await self._pause(RunStatus.DRAINED)
            raise StepWaits(InsideWaits())
        options = around.root.options
        limit = self._options.recursion_limit
        if self._superstep - self._first - self._kept.written >= limit:
            raise self._limit("RECURSION_LIMIT", f"work is left after {limit} supersteps", limit=str(limit))
        made = around.root.total_supersteps + self._where.supersteps + self._superstep - self._first
        if made >= options.max_total_steps:
            limit = options.max_total_steps
            raise self._limit("RECURSION_LIMIT", f"work is left after {limit} supersteps", limit=str(limit))
        deadline = options.deadline_us
        if deadline is not None and around.clock.now() >= around.root.invoked_at + deadline:
            raise self._limit("RUN_DEADLINE", "the run reached its deadline")
        for activation in work.activations:
            node = activation.node
            most = self._graph.nodes[node].max_visits or 0
            self._visits[node] = self._visits.get(node, 0) + 1
            if most and self._visits[node] > most:
                told = f"node '{node}' has run {most} times"
                raise self._limit("NODE_VISIT_LIMIT", told, node=node, limit=str(most))

    def _stopped_for(self, reason: str, message: str) -> _Stopped:
        return self._limit(reason, message, node=self._where.task.node)

    def _limit(self, reason: str, message: str, *, node: str = "", **metadata: str) -> _Stopped:
        pairs = {"run_id": self._around.root.run_id, "namespace": self._namespace, **metadata}
        if node:
            pairs["node"] = node
        return _Stopped(
            RunError(
                reason,
                f"graph '{self._graph.name}': {message}",
                node=node,
                namespace=self._namespace,
                metadata=tuple(sorted(pairs.items())),
            )
        )

    async def _carry_out(self, step: _Superstep) -> None:
        """Bring all tasks to their end, whatever they do to one another's keys. Raises where one has not finished."""
        beside = step.beside = SideBySide(self._context, self._where.base, step.number)
        await beside.begin(len(step.tasks))
        await self._run_tasks(step, [n for n in range(len(step.tasks)) if n not in beside.behind])
        await self._run_handlers(step)
        again: Sequence[int] = sorted(beside.behind)
        while True:
            for ordinal in again:
                if not self._around.stop.cancelled.is_set():
                    beside.begin_behind(ordinal)
                    await self._run_tasks(step, [ordinal])
                    await self._run_handlers(step)
            await self._check_finished(step)
            try:
                again = await beside.losers()
            except CannotBeUndone as final:
                node, lower = (step.tasks[ordinal].node for ordinal in (final.ordinal, final.lower))
                told = f"'{node}' and '{lower}' used {final.key} side by side, and what '{node}' did can't be undone"
                raise self._limit("IRREVERSIBLE_STEP", told, node=node) from final
            if not again:
                return beside.end()
            for ordinal in again:
                step.tasks[ordinal] = replace(step.tasks[ordinal], state=TaskState.PENDING, answer=None)

    async def _run_handlers(self, step: _Superstep) -> None:
        """Have error handlers stand in for what failed; of a run that is cancelled none does."""
        if self._around.stop.cancelled.is_set():
            return
        before = len(step.tasks)
        failed = [
            task
            for task in step.tasks
            if task.ordinal in step.turn.failures
            and task.state is TaskState.FAILED
            and is_handled(self._graph, task)
        ]
        if not failed:
            return
        for task in failed:
            handler = handler_of(self._graph, self._kept.run, task, len(step.tasks))
            step.tasks[task.ordinal] = replace(task, state=TaskState.HANDLED)
            step.tasks.append(replace(handler, step_id=task.step_id))
        await self._kept.hand_over(step.number, step.tasks, self._around.clock.now())
        await self._let_go([step.tasks[task.ordinal] for task in failed])
        if step.beside is not None:
            step.beside.grow(len(step.tasks))
        await self._run_tasks(step, range(before, len(step.tasks)))

    async def _let_go(self, tasks: Sequence[TaskRecord]) -> None:
        """Undo the calls of tasks that handlers stand in for: in their places in the journal there is nothing then."""
        for task in tasks:
            if task.state is TaskState.HANDLED:
                scope = task_scope(self._where.base, task.superstep, task.ordinal)
                nothing = SubStepCall(task.node, '"handled"', scope=scope, function=_nothing, ordinal=1)
                await self._context.make(nothing)

    async def _run_tasks(self, step: _Superstep, ordinals: Sequence[int]) -> None:
        """Run those tasks that don't wait for an answer; what is asked is told in the report."""
        around, kept = self._around, self._kept
        superstep = SuperstepRun(
            self._graph,
            around.store,
            around.clock,
            step.turn,
            step.tasks,
            self._answered(),
            self._options.max_concurrency,
            around.stop,
            around.on_waiting,
            lambda task: task.ordinal,
            notices=TaskNotices(around.notices, around.clock, lambda: kept.run),
            turn_comes=around.turn_comes,
        )
        todo = [
            task.ordinal
            for task in (step.tasks[ordinal] for ordinal in ordinals)
            if task.state is not TaskState.HANDLED
            and (task.state is not TaskState.INTERRUPTED or self._holds_a_graph(task))
        ]
        try:
            await superstep.run(todo, lambda task: self._answered_member(step, task))
        finally:
            step.tasks = superstep.tasks
            self._tell(step, superstep.asked)

    def _tell(self, step: _Superstep, asked: Sequence[InterruptRecord]) -> None:
        for member in step.turn.members.values():
            self._report.edges += member.edges if member.learned is None else member.learned()
        root, task = self._around.root, self._around.task
        known = {item.interrupt_id for item in self._around.interrupts}
        new = [
            replace(item, run_id=root.run_id, superstep=task.superstep, within=task.task_id)
            for item in asked
            if item.interrupt_id not in known
        ]
        step.asked += new
        self._report.asked = [*self._report.asked, *new]

    def _holds_a_graph(self, task: TaskRecord) -> bool:
        return task.node in self._graph.subgraphs

    def _member(self, step: _Superstep, task: TaskRecord) -> StepMember:
        node = self._graph.nodes[task.node]
        if isinstance(node.binding, SubgraphBinding):
            inner = Embedding(
                self._graph.subgraphs[task.node],
                node.binding,
                task,
                step.position,
                self._kept.checkpoint is not None,
                f"{task_scope(self._where.base, step.number, task.ordinal)}1/",
                self._where.supersteps + self._superstep - self._first,
                lambda: alone(self._graph, step.tasks, task),
            )
            return embedded_member(self._around, inner, node.run_timeout_us)
        return member_of(
            self._graph,
            task,
            step.position,
            self._around.constraints,
            self._around.functions,
            self._answered().get(task.task_id, ()),
            self._options.recursion_limit - (self._superstep - self._first - self._kept.written) + 1,
        )

    def _answered(self) -> dict[str, list[InterruptRecord]]:
        answered: dict[str, list[InterruptRecord]] = {}
        for item in sorted(self._around.interrupts, key=lambda item: item.ordinal):
            if item.state is InterruptState.ANSWERED:
                answered.setdefault(item.task_id, []).append(item)
        return answered

    async def _check_finished(self, step: _Superstep) -> None:
        """Raise where a task of the superstep has not finished."""
        tasks, report = step.tasks, self._report
        if all(task.state in ENDED for task in tasks):
            return
        failed = [task for task in tasks if task.state is TaskState.FAILED and task.error is not None]
        errors = [self._within(task) for task in failed]
        if errors:
            error = replace(errors[0], others=tuple(errors[1:]))
            failures = step.turn.failures
            failure = next((failures[task.ordinal] for task in failed if task.ordinal in failures), None)
            if failure is None:
                raise _Stopped(error)
            report.error = error
            await self._pause(RunStatus.FAILED, error)
            raise failure
        if self._around.stop.cancelled.is_set():
            raise ContextClosed(self._around.stop.reason or "the run was cancelled")
        report.is_stopped = any(task.state is TaskState.PENDING for task in tasks)
        await self._pause(RunStatus.DRAINED if report.is_stopped else RunStatus.INTERRUPTED)
        raise StepWaits(InsideWaits())

    def _within(self, task: TaskRecord) -> RunError:
        """A task's error as the run's: it says in which graph its node is."""
        error = task.error
        assert error is not None
        if error.namespace and error.namespace != self._namespace:
            return error
        return replace(
            error, message=f"graph '{self._graph.name}': {error.message}", namespace=self._namespace
        )

    async def _finished(self, step: _Superstep, state: State) -> list[FinishedTask]:
        finished = []
        for record, stands_in_for in in_place_of(step.tasks):
            if record.state is not TaskState.FINISHED:
                continue
            if record.error is not None:
                raise InvalidNodeResult(record.error.message)
            answer = load(record.answer or "null")
            arg = MISSING if record.arg is None else load(record.arg)
            task = Task(record.task_id, record.node, record.ordinal, arg)
            done = FinishedTask(task, read_result(answer), answer, stands_in_for=stands_in_for)
            router = needs_router_call(self._graph, done)
            if router is not None:
                done = replace(done, router_answer=await self._ask_router(router, record, state))
            finished.append(done)
        return finished

    def _answered_member(self, step: _Superstep, task: TaskRecord) -> StepMember:
        """A task's call; where the branch began behind it, one that gives the answer that it had."""
        member = self._member(step, task)
        given = self._given.get(task_scope(self._where.base, task.superstep, task.ordinal))
        return member if given is None else answered_by(member, given)

    async def _ask_router(self, function: str, task: TaskRecord, state: State) -> JsonValue:
        """Ask a worker's router, once: a graph that is started again goes the same way."""
        functions = self._around.functions

        async def ask(arguments: Any, context: ToolContext) -> Any:
            return load(await functions.call(function, canonical({"state": dict(state)}), None))

        scope = f"{self._where.base}{task.superstep}.{task.ordinal}?/"
        if scope in self._given:
            return load(self._given[scope])
        try:
            return load(
                await self._context.make(SubStepCall(function, "{}", scope=scope, function=ask, ordinal=1))
            )
        except SubStepFailed as failure:
            raise RouteError(
                "NODE_FAILED",
                f"the router of '{task.node}' failed: {failure.hint.text[:200]}",
                {"node": task.node},
            ) from failure

    def stopped_by(self, error: GraphError) -> _Stopped:
        """What an error of the graph is for its run."""
        told = error_of(error, self._around.root)
        message = f"graph '{self._graph.name}': {told.message}"
        return _Stopped(replace(told, message=message, namespace=self._namespace))


class _stopping:
    """Makes an error of the graph what stops its run."""

    def __init__(self, run: SubgraphRun) -> None:
        self._run = run

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, GraphError):
            raise self._run.stopped_by(error) from error


def _as_told(task: TaskRecord, known: TaskRecord) -> TaskRecord:
    """A task of a superstep that was paused in: what was told of it before isn't told again."""
    again = (
        1 if known.state in (TaskState.FINISHED, TaskState.FOLDED) else 0
    )  # its answer is asked for once more
    return replace(
        task,
        state=TaskState.HANDLED if known.state is TaskState.HANDLED else task.state,
        error=known.error if known.state is TaskState.HANDLED else None,
        attempts=known.attempts - again,
        reported=known.reported,
        started_at=known.started_at,
        child=known.child,
    )


async def _nothing(arguments: Any, context: ToolContext) -> Any:
    return None
