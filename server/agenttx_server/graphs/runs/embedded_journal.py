"""What is kept of a run of a graph inside another: its record, its events, and its checkpoints in its namespace.

It is written at the graph's own boundaries and pauses, apart from the transaction: the graph is never gone on with from
it, but from the journal of the step that embeds it, and so what is written only repeats that. A graph that goes through
its supersteps once more writes those alone that are not there yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import JsonValue, canonical, load
from agenttx_server.engine.ports import SubStepCall, ToolContext
from agenttx_server.graphs.boundary import Work
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import GraphDefinition
from agenttx_server.graphs.fold import State, tracked
from agenttx_server.graphs.limits import DEFAULT_RECURSION_LIMIT
from agenttx_server.graphs.runs.amended_superstep import ENDED
from agenttx_server.graphs.runs.journal import Draft, failed, report_checkpoints
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.position import kept_with
from agenttx_server.graphs.runs.records import (
    CheckpointSource,
    EmbeddedCheckpoint,
    EmbeddedRun,
    InterruptRecord,
    RunError,
    RunOptions,
    RunRecord,
    RunStatus,
    TaskRecord,
    TaskState,
)
from agenttx_server.graphs.runs.requests import Trigger
from agenttx_server.graphs.runs.sub_step_turn import SubStepMaker
from agenttx_server.graphs.runs.task_reports import folded_task, report_task, reported_task
from agenttx_server.graphs.runs.work_json import work_text
from agenttx_server.graphs.tasks import child_namespace

__all__ = ["EmbeddedJournal", "Place", "embedded_options", "find_place"]


class Place:
    """Where a run of an embedded graph is, the same whenever its step is started again: the journal has it.

    ``run_id`` names it, ``number`` is that of its first checkpoint, ``superstep`` the last number that was used
    before. ``goes_on_from`` is the checkpoint of the run before whose state it keeps; None: it begins anew.
    """

    def __init__(self, kept: Any) -> None:
        self.run_id: str = kept["run_id"]
        self.namespace: str = kept["namespace"]
        self.number: int = kept["number"]
        self.superstep: int = kept["superstep"]
        self.goes_on_from: int | None = kept["from"]


async def find_place(
    context: SubStepMaker,
    store: RunStore,
    graph: CompiledGraph,
    task: TaskRecord,
    base: str,
    state_key: str,
    kept: Mapping[str, EmbeddedRun],
) -> Place:
    """Return where the graph is that a task embeds: given once, as a sub-step, and anew if that was undone."""

    async def give(arguments: Any, context: ToolContext) -> Any:
        namespace = child_namespace(task.namespace, task.node, task.superstep, task.ordinal, state_key)
        life = 1
        while await store.load_run(_run_id(task.task_id, life)) is not None:
            life += 1
        newest = await store.list_embedded(task.thread_id, namespace, None, 1) if task.thread_id else ()
        number = newest[0].number + 1 if newest else 0
        before = kept.get(namespace) if state_key else None
        return {
            "run_id": _run_id(task.task_id, life),
            "namespace": namespace,
            "number": number,
            # Made ids have the superstep in them: in one namespace none comes again.
            "superstep": newest[0].superstep if newest and state_key else 0,
            "from": None if before is None else before.checkpoint,
        }

    call = SubStepCall(graph.name, "{}", scope=f"{base}begin/", function=give, ordinal=1)
    return Place(load(await context.make(call)))


def _run_id(task_id: str, life: int) -> str:
    return "c-" + hashlib.sha256(canonical([task_id, life]).encode()).hexdigest()[:32]


def embedded_options(definition: GraphDefinition, root: RunOptions) -> RunOptions:
    """The limits of an embedded graph: its own recursion limit, else those of the run."""
    policy = definition.policy
    return RunOptions(
        policy.recursion_limit or DEFAULT_RECURSION_LIMIT,
        root.max_total_steps,
        min(root.max_concurrency, policy.max_concurrency or root.max_concurrency),
        root.deadline_us,
        root.metadata,
    )


class EmbeddedJournal:
    """Of one way through an embedded graph. ``run`` is its record, ``number`` that of its last checkpoint."""

    def __init__(
        self,
        store: RunStore,
        graph: CompiledGraph,
        task: TaskRecord,
        place: Place,
        root: RunRecord,
        *,
        keeps: bool,
    ) -> None:
        self.run = RunRecord(
            place.run_id,
            root.thread_id,
            graph.name,
            graph.version,
            RunStatus.RUNNING,
            0,
            0,
            transaction_id=root.transaction_id,
            root_run_id=root.run_id,
            parent_run_id=task.run_id,
            namespace=place.namespace,
            superstep=place.superstep,
            invocation=1,
            options=embedded_options(graph.definition, root.options),
            principal=root.principal,
        )
        self.number = place.number
        self.kept: Mapping[str, EmbeddedRun] = {}
        self._passes: int | None = None
        self._root_invocation = root.invocation
        self._first = place.superstep
        self._from = place.goes_on_from
        self._store = store
        self._graph = graph
        self._node = task.node
        self._keeps = keeps
        self._written = 0

    @property
    def written(self) -> int:
        """How many boundaries were there when this began."""
        return self._written

    def passes(self, boundary: int) -> bool:
        """Whether the run goes on behind a boundary, from 0, though it is to stop at it: it has stopped there before."""
        return boundary < self._written or boundary == self._passes

    @property
    def embedded(self) -> EmbeddedRun:
        """The run, as the task that embeds it keeps it."""
        run = self.run
        return EmbeddedRun(
            run.run_id,
            self._node,
            run.namespace,
            run.graph,
            run.graph_version,
            self.number if self._keeps else None,
        )

    @property
    def checkpoint(self) -> int | None:
        """The number of the last checkpoint; None where none is kept."""
        return self.number if self._keeps else None

    async def begin(self, state: State, work: Work, now: int) -> None:
        """Write down that the run begins, or goes on. Raises what the store raises."""
        known = await self._store.load_run(self.run.run_id)
        if known is None:
            run = replace(self.run, created_at=now, invoked_at=now)
            draft = Draft(run, now)
            draft.add("run.started", trigger=Trigger.START.value, graph=run.graph, version=run.graph_version)
            saved = self._checkpoint(state, work, CheckpointSource.INPUT, now, (), self._from, self._first)
            await self._write(draft, run, saved)
            return
        self._written = known.total_supersteps
        self.run = known
        stopped = known.stopped_before or known.stopped_after
        if stopped and known.invocation_first < self._root_invocation:
            self._passes = known.total_supersteps
        if known.status in (RunStatus.RUNNING, RunStatus.COMPLETED):
            return
        trigger = Trigger.RESUME if known.status is RunStatus.INTERRUPTED else Trigger.RETRY
        run = replace(
            known, status=RunStatus.RUNNING, error=None, invocation=known.invocation + 1, invoked_at=now
        )
        draft = Draft(run, now)
        draft.add("run.started", trigger=trigger.value, graph=run.graph, version=run.graph_version)
        await self._write(draft, run, None)

    async def known_tasks(self, superstep: int) -> Sequence[TaskRecord]:
        """The tasks of a superstep as they were told before; empty for one that nobody paused in.

        Of one that is over that counts only where a handler may have stood in for a task.
        """
        is_over = superstep - self._first <= self._written
        if is_over and not any(node.error_handler for node in self._graph.definition.nodes):
            return ()
        if not is_over and superstep != self.run.superstep:
            return ()
        return await self._store.load_tasks(self.run.run_id, superstep)

    async def boundary(
        self,
        superstep: int,
        tasks: Sequence[TaskRecord],
        state: State,
        work: Work,
        now: int,
        *,
        ends: bool,
    ) -> None:
        """Write a boundary unless it is there; ``ends``: nothing comes behind it. Raises what the store raises."""
        self.number += 1
        self.kept = kept_with(self._graph, self.kept, tasks)
        if superstep - self._first <= self._written:
            return
        draft, run = self._begun(superstep, tasks, now)
        for task in tasks:
            report_task(draft, task)
        for taken in work.routes:
            task = next(item for item in tasks if item.task_id == taken.task_id)
            nodes: list[JsonValue] = list(dict.fromkeys(target.node for target in taken.targets))
            draft.add(
                "route.selected", task, label=taken.label or "", targets=nodes, sends=len(taken.targets)
            )
        saved = self._checkpoint(state, work, CheckpointSource.LOOP, now, tasks, self.number - 1, superstep)
        if saved is not None:
            report_checkpoints(draft, [saved])
        draft.add("superstep.completed", next=[item.node for item in work.activations])
        made = superstep - self._first
        run = replace(run, total_supersteps=made, active_nodes=(), stopped_before=(), stopped_after=())
        if ends:
            draft.add("run.completed", supersteps=made, state=tracked(self._graph, state))
            run = replace(run, status=RunStatus.COMPLETED, ended_at=now)
        # Which ones handlers stood in for is asked again.
        ended = [
            reported_task(task) if task.state is TaskState.HANDLED else folded_task(task) for task in tasks
        ]
        await self._write(draft, run, saved, ended)

    async def hand_over(self, superstep: int, tasks: Sequence[TaskRecord], now: int) -> None:
        """Write which tasks of a superstep handlers stand in for, before these run. Raises what the store raises."""
        draft, run = self._begun(superstep, tasks, now)
        await self._write(draft, run, None, tasks)

    async def stop(self, now: int, *, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> None:
        """Write that the run stops at a boundary before or after nodes, until its root is gone on with."""
        draft = Draft(self.run, now)
        draft.add("run.interrupted", interrupt_ids=[], before=list(before), after=list(after))
        run = replace(
            self.run,
            status=RunStatus.INTERRUPTED,
            stopped_before=before,
            stopped_after=after,
            invocation_first=self._root_invocation,
        )
        await self._write(draft, run, None)

    async def pause(
        self,
        superstep: int,
        tasks: Sequence[TaskRecord],
        asked: Sequence[InterruptRecord],
        status: RunStatus,
        error: RunError | None,
        now: int,
    ) -> None:
        """Write that the run stops with work left; ``tasks`` are those of a superstep that is open."""
        draft, run = self._begun(superstep, tasks, now) if tasks else (Draft(self.run, now), self.run)
        for task in tasks:
            report_task(draft, task)
        by_id = {task.task_id: task for task in tasks}
        for item in asked:
            if item.task_id in by_id:
                draft.add(
                    "interrupt.emitted",
                    by_id[item.task_id],
                    interrupt_id=item.interrupt_id,
                    payload=load(item.payload),
                    ordinal=item.ordinal,
                )
        unfinished = dict.fromkeys(task.node for task in tasks if task.state not in ENDED)
        run = replace(run, status=status, active_nodes=tuple(unfinished))
        match status:
            case RunStatus.FAILED if error is not None:
                run = failed(draft, run, error)
            case RunStatus.INTERRUPTED:
                ids: list[JsonValue] = [item.interrupt_id for item in asked]
                draft.add("run.interrupted", interrupt_ids=ids, before=[], after=[])
            case _:
                draft.add("run.drained")
        await self._write(draft, run, None, [reported_task(task) for task in tasks])

    def _begun(self, superstep: int, tasks: Sequence[TaskRecord], now: int) -> tuple[Draft, RunRecord]:
        """Events of a superstep, its beginning among them unless that is told; and the record with its number."""
        if self.run.superstep == superstep:
            return Draft(self.run, now), self.run
        run = replace(self.run, superstep=superstep)
        draft = Draft(run, now)
        draft.add("superstep.started", tasks=len(tasks))
        return draft, run

    def _checkpoint(
        self,
        state: State,
        work: Work,
        source: CheckpointSource,
        now: int,
        tasks: Sequence[TaskRecord],
        parent: int | None,
        superstep: int,
    ) -> EmbeddedCheckpoint | None:
        if not self._keeps:
            return None
        run = self.run
        return EmbeddedCheckpoint(
            run.thread_id,
            self.number,
            parent,
            source,
            superstep,
            run.run_id,
            run.graph_version,
            now,
            transaction_id=run.transaction_id,
            namespace=run.namespace,
            work=work_text(work),
            completed=tuple((task.task_id, task.node, task.ordinal) for task in tasks),
            total_supersteps=superstep - self._first,
            children=tuple(task.child for task in tasks if task.child is not None),
            kept=tuple(self.kept[name] for name in sorted(self.kept)),
            state=canonical(tracked(self._graph, state)),
        )

    async def _write(
        self,
        draft: Draft,
        run: RunRecord,
        saved: EmbeddedCheckpoint | None,
        tasks: Sequence[TaskRecord] = (),
    ) -> None:
        run = draft.counted(run)
        await self._store.write(
            RunChange(
                runs=(run,),
                embedded=() if saved is None else (saved,),
                tasks=tasks,
                events=draft.events,
                standing_threads=(run.thread_id,) if saved is not None else (),
            )
        )
        self.run = run
