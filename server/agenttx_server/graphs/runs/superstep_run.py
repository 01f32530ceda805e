"""Runs the tasks of one superstep side by side, in a rolling window; what a task answers is durable when it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.ports import Clock, ExtraRows
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import FunctionRouter, NodeRetryPolicy
from agenttx_server.graphs.errors import InvalidNodeResult
from agenttx_server.graphs.runs.error_handlers import is_handled
from agenttx_server.graphs.runs.live_notices import TaskNotices
from agenttx_server.graphs.runs.node_cache import NodeCache
from agenttx_server.graphs.runs.node_calls import answer_of
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.records import (
    InterruptRecord,
    InterruptState,
    RunError,
    TaskRecord,
    TaskState,
)
from agenttx_server.graphs.runs.step_port import (
    FunctionReport,
    InsideWaits,
    OutcomeState,
    StepMember,
    StepOutcome,
    StepRunner,
    Unsettled,
)
from agenttx_server.graphs.tasks import interrupt_id

__all__ = ["StopSignal", "SuperstepRun", "finished_task", "in_doubt"]

_PAUSE_WHEN_UNREACHED_SECONDS = 0.5


class StopSignal:
    """What a run under way is asked for. Set once, seen at boundaries and, if it is a cancellation, by nodes.

    ``hands_over``: the server stops, and another one goes on with the run, which stays live.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.drains = False
        self.hands_over = False
        self.cancelled = asyncio.Event()
        self._told: list[Callable[[], None]] = []

    def cancel(self, reason: str) -> None:
        """Ask the run to stop, its nodes too."""
        self.reason = reason
        self.cancelled.set()
        loop = asyncio.get_running_loop()
        for call in self._told:
            loop.call_soon(call)  # what was about to begin has by then

    @contextmanager
    def telling(self, call: Callable[[], None]) -> Iterator[None]:
        """Have a function called if the run is cancelled meanwhile: a task that waits for that costs a superstep 30 µs."""
        self._told.append(call)
        try:
            yield
        finally:
            self._told.remove(call)


class SuperstepRun:
    """One way through a superstep's tasks. ``tasks`` are as they stand, in order of their ordinals."""

    def __init__(
        self,
        graph: CompiledGraph,
        store: RunStore,
        clock: Clock,
        turn: StepRunner,
        tasks: Sequence[TaskRecord],
        answered: Mapping[str, Sequence[InterruptRecord]],
        max_concurrency: int,
        stop: StopSignal,
        on_waiting: Callable[[bool], None] = lambda waits: None,
        step_of: Callable[[TaskRecord], int] = lambda task: task.step_id,
        notices: TaskNotices | None = None,
        cache: NodeCache | None = None,
        turn_comes: Callable[[], Awaitable[None] | None] = lambda: None,
    ) -> None:
        self.tasks = list(tasks)
        self.asked: list[InterruptRecord] = []
        self._graph = graph
        self._store = store
        self._clock = clock
        self._turn = turn
        self._answered = answered
        self._slots = asyncio.Semaphore(max_concurrency)
        self._stop = stop
        self._failed = False
        self._on_waiting = on_waiting
        self._step_of = step_of
        self._notices = notices
        self._cache = cache
        self._turn_comes = turn_comes
        self._awaits_worker: set[int] = set()
        self._finished_before = 0

    async def run(self, ordinals: Sequence[int], member: Callable[[TaskRecord], StepMember]) -> None:
        """Run these tasks. After a failure none is started any more; those under way finish."""
        with self._stop.telling(partial(self._cancel, ordinals)):
            await self._run_all(ordinals, member)

    async def _run_all(self, ordinals: Sequence[int], member: Callable[[TaskRecord], StepMember]) -> None:
        under_way: list[asyncio.Task[None]] = []
        try:
            for ordinal in ordinals:
                await self._slots.acquire()
                if self._failed or self._stop.cancelled.is_set():
                    self._slots.release()
                    break
                step = await self._cached(ordinal, member(self.tasks[ordinal]))
                self._turn.give(self._step_of(self.tasks[ordinal]), step)
                if len(ordinals) == 1:
                    await self._run_one(ordinal, step)
                    return
                under_way.append(asyncio.ensure_future(self._run_one(ordinal, step)))
            await asyncio.gather(*under_way)
        finally:
            # One that raised ends the turn: none may go on with it after that.
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _cached(self, ordinal: int, step: StepMember) -> StepMember:
        """A task's step, answered by what is kept for it, if anything is."""
        task = self.tasks[ordinal]
        if self._cache is None:
            return step
        was_asked = bool(self._answered.get(task.task_id))
        self.tasks[ordinal], step = await self._cache.looked_up(task, step, was_asked=was_asked)
        return step

    async def run_in_order(self, ordinals: Sequence[int], member: Callable[[TaskRecord], StepMember]) -> None:
        """Run tasks one after the other: those that lost a conflict see what lower ones wrote."""
        for ordinal in ordinals:
            await self.run((ordinal,), member)

    def _cancel(self, ordinals: Sequence[int]) -> None:
        for ordinal in ordinals:
            self._turn.cancel(
                self._step_of(self.tasks[ordinal]), self._stop.reason or "the run was cancelled"
            )

    async def _run_one(self, ordinal: int, step: StepMember) -> None:
        policy = self._graph.nodes[self.tasks[ordinal].node].retry
        tried = 0
        try:
            while await self._can_run(ordinal, step) and await self._is_undone(ordinal):
                tried += 1
                started = self._clock.now()
                report = step.report or FunctionReport()
                before = self.tasks[ordinal]
                if self._notices is not None:
                    self._notices.started(before)
                    report.on_event = partial(self._notices.emitted, before)
                await self._turn.run(
                    self._step_of(before),
                    partial(self._note, ordinal, started, tried, report),
                    keeps=self._only_the_boundary_is_left,
                )
                if self._notices is not None:
                    self._notices.ended(before, self.tasks[ordinal])
                if report.broke is not None:
                    raise report.broke
                if report.is_stopped:
                    break
                if self.tasks[ordinal].state is TaskState.PENDING:
                    tried -= 1
                    await self._clock.sleep(_PAUSE_WHEN_UNREACHED_SECONDS)
                    continue
                delay = self._delay(self.tasks[ordinal], policy, tried)
                if delay is None or self._stop.cancelled.is_set():
                    break
                await self._clock.sleep(delay)
        finally:
            self._slots.release()
        task = self.tasks[ordinal]
        if task.state is TaskState.FAILED and not is_handled(self._graph, task):
            self._failed = True

    def _only_the_boundary_is_left(self) -> bool:
        """Whether a result may be left to the boundary: it comes at once, unless a worker's router is asked first."""
        # Those before were found finished, and stay so: of thousands of tasks each is looked at once.
        while self._finished_before < len(self.tasks) and self._goes_on_at_once(
            self.tasks[self._finished_before]
        ):
            self._finished_before += 1
        return self._finished_before == len(self.tasks)

    def _goes_on_at_once(self, task: TaskRecord) -> bool:
        edge = self._graph.conditional_of.get(task.node)
        asks_router = edge is not None and isinstance(edge.router, FunctionRouter)
        return task.state is TaskState.FINISHED and task.error is None and not asks_router

    async def _can_run(self, ordinal: int, step: StepMember) -> bool:
        """Wait until a step may run and somebody can run it, which takes none of its time; False if the run is cancelled before."""
        waiting = self._turn_comes()
        if waiting is not None and not await self._comes(waiting):
            return False
        waiting = step.ready()
        if waiting is None:
            return True
        self._awaits_worker.add(ordinal)
        self._on_waiting(True)
        try:
            return await self._comes(waiting)
        finally:
            self._awaits_worker.discard(ordinal)
            self._on_waiting(bool(self._awaits_worker))

    async def _comes(self, waiting: Awaitable[None]) -> bool:
        """Wait for something; False if the run is cancelled before."""
        ready = asyncio.ensure_future(waiting)
        cancelled = asyncio.ensure_future(self._stop.cancelled.wait())
        try:
            await asyncio.wait((ready, cancelled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            cancelled.cancel()
        return not self._stop.cancelled.is_set()

    async def _is_undone(self, ordinal: int) -> bool:
        """Undo the attempt before, if it failed; False if that can't be done, or the run is cancelled meanwhile."""
        task = self.tasks[ordinal]
        if not task.attempts:
            return True

        def held(by: Unsettled) -> Sequence[ExtraRows]:
            # For a person to settle, and then for RetryRun: the node's policy repeats nothing on top of it.
            known = (("node", task.node), ("step_id", str(task.step_id)))
            error = RunError(by.reason, str(by), node=task.node, task_id=task.task_id, metadata=known)
            self.tasks[ordinal] = replace(task, state=TaskState.FAILED, error=error)
            return self._store.rows(RunChange(tasks=[self.tasks[ordinal]]))

        is_undone = await self._turn.undo_failed(self._step_of(task), held)
        return is_undone and not self._stop.cancelled.is_set()

    def _delay(self, task: TaskRecord, policy: NodeRetryPolicy | None, tried: int) -> float | None:
        """Seconds before the next attempt; None where there is none."""
        if task.state is not TaskState.FAILED or policy is None or tried >= policy.max_attempts:
            return None
        category = task.error.category if task.error else ""
        if not category:
            return None  # nothing that a node did, or not known what
        if policy.categories and category not in policy.categories:
            return None
        interval = policy.initial_interval_us * policy.backoff_factor ** (tried - 1)
        return min(interval, policy.max_interval_us) / 1_000_000

    def _note(
        self, ordinal: int, started: int, tried: int, report: FunctionReport, outcome: StepOutcome
    ) -> Sequence[ExtraRows]:
        """Say what is written with an outcome."""
        if (
            report.was_unreached
            and outcome.state is OutcomeState.FAILED
            and not self._stop.cancelled.is_set()
        ):
            # Its worker was lost, and no other one came in its time: nobody failed, and it waits for one.
            self.tasks[ordinal] = replace(
                self.tasks[ordinal], state=TaskState.PENDING, error=None, started_at=started
            )
            return self._store.rows(RunChange(tasks=[self.tasks[ordinal]]))
        if report.broke is not None or report.is_stopped:
            task = self.tasks[ordinal]
            self.tasks[ordinal] = replace(
                task,
                state=TaskState.PENDING,
                error=None,
                started_at=started,
                child=report.child or task.child,
            )
            self.asked += report.asked
            return self._store.rows(RunChange(tasks=[self.tasks[ordinal]], interrupts=report.asked))
        task = replace(
            self.tasks[ordinal],
            attempts=self.tasks[ordinal].attempts + 1,
            started_at=started,
            ended_at=self._clock.now(),
            error=None,
            events=tuple(report.events),
            child=report.child or self.tasks[ordinal].child,
        )
        asked: list[InterruptRecord] = list(report.asked)
        match outcome.state:
            case OutcomeState.COMPLETED if task.is_cached:
                task = replace(task, state=TaskState.FINISHED, answer=outcome.output or "null")
            case OutcomeState.COMPLETED:
                task = finished_task(self._graph, task, outcome.output or "null")
                if task.cache_key and not outcome.only_read:
                    task = replace(task, cache_key="")
            case OutcomeState.WAITING if report.error is not None:
                task = replace(task, state=TaskState.FAILED, error=report.error)
            case OutcomeState.WAITING if isinstance(outcome.payload, InsideWaits):
                task = replace(task, state=TaskState.INTERRUPTED)
            case OutcomeState.WAITING:
                task = replace(task, state=TaskState.INTERRUPTED)
                asked.append(self._question(task, outcome.payload))
            case OutcomeState.IN_DOUBT:
                task = in_doubt(task)
            case OutcomeState.FAILED if self._stop.cancelled.is_set():
                task = replace(task, state=TaskState.CANCELLED)
            case OutcomeState.FAILED:
                error = report.error or self._error(task, outcome, report.fault)
                task = replace(task, state=TaskState.FAILED, error=error)
                task = self._with_retry(task, tried, outcome)
        self.tasks[ordinal] = task
        self.asked += asked
        return self._store.rows(RunChange(tasks=[task], interrupts=asked))

    def _with_retry(self, task: TaskRecord, tried: int, outcome: StepOutcome) -> TaskRecord:
        delay = self._delay(task, self._graph.nodes[task.node].retry, tried)
        if delay is None:
            return task
        retry = (task.attempts, int(delay * 1000), outcome.hint, outcome.category)
        return replace(task, retries=(*task.retries, retry))

    def _question(self, task: TaskRecord, payload: object) -> InterruptRecord:
        ordinal = len(self._answered.get(task.task_id, ()))
        thread = task.thread_id or task.run_id
        return InterruptRecord(
            interrupt_id(thread, task.namespace, task.task_id, ordinal),
            task.run_id,
            task.thread_id,
            task.superstep,
            task.task_id,
            task.node,
            ordinal,
            canonical(payload),
            InterruptState.PENDING,
            self._clock.now(),
            task.namespace,
        )

    def _error(self, task: TaskRecord, outcome: StepOutcome, fault: str) -> RunError:
        node = self._graph.nodes[task.node]
        timed_out = outcome.category == "timeout" and node.run_timeout_us is not None
        return RunError(
            fault or ("NODE_TIMEOUT" if timed_out else "NODE_FAILED"),
            f"node '{task.node}' failed after {task.attempts} attempt{'s' * (task.attempts > 1)}",
            outcome.hint,
            task.node,
            task.namespace,
            task.task_id,
            outcome.category,
            (("attempts", str(task.attempts)), ("category", outcome.category), ("node", task.node)),
        )


def in_doubt(task: TaskRecord) -> TaskRecord:
    """A task of which it isn't known what it did: ResolveStep says that, then RetryRun goes on."""
    error = RunError(
        "STEP_IN_DOUBT",
        f"it isn't known what '{task.node}' did",
        node=task.node,
        task_id=task.task_id,
        metadata=(("step_id", str(task.step_id)),),
    )
    return replace(task, state=TaskState.FAILED, error=error)


def finished_task(graph: CompiledGraph, task: TaskRecord, output: str) -> TaskRecord:
    """A task whose step has succeeded with this output."""
    try:
        answer = answer_of(graph.nodes[task.node], output)
    except InvalidNodeResult as error:
        # Its step is done: told at the fold, where the run fails and everything is kept.
        wrong = RunError(error.reason, error.message, node=task.node, task_id=task.task_id)
        return replace(task, state=TaskState.FINISHED, answer=output, error=wrong)
    return replace(task, state=TaskState.FINISHED, answer=answer, error=None)
