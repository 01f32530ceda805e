"""Where a run stands between supersteps: the state, where it is kept, and the work that comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import JsonValue, load
from agenttx_server.graphs.boundary import Work, next_work
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import SubgraphBinding
from agenttx_server.graphs.errors import GraphError
from agenttx_server.graphs.fold import ChannelOrigin, Folded, State, TaskWrites, fold, folded_behind
from agenttx_server.graphs.node_results import OVERWRITE, read_result
from agenttx_server.graphs.runs.channel_values import (
    Places,
    ValuePlace,
    places_of,
    read_values,
    stored_places,
    write_values,
)
from agenttx_server.graphs.runs.finished_tasks import finished_of
from agenttx_server.graphs.runs.folding import folded_aside
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.records import (
    CheckpointRecord,
    CheckpointSource,
    EmbeddedRun,
    InterruptRecord,
    RunRecord,
    TaskRecord,
    TaskState,
    ThreadRecord,
    ValueRecord,
    checkpoint_id,
)
from agenttx_server.graphs.runs.requests import no_checkpoint
from agenttx_server.graphs.runs.task_places import in_place_of
from agenttx_server.graphs.runs.work_json import read_work, work_text
from agenttx_server.graphs.tasks import write_seed

__all__ = [
    "NextCheckpoint",
    "Position",
    "Unkept",
    "built_on",
    "caught_up",
    "checkpoint_left_out",
    "has_moved",
    "in_new_transaction",
    "kept_with",
    "load_position",
    "next_checkpoint",
    "passed",
    "pending_of",
    "provisional_state",
    "unfolded_tasks",
    "writes_of",
]


_COUNT = (TaskState.FINISHED, TaskState.FOLDED)
_OVER = frozenset({TaskState.FOLDED, TaskState.LEFT_OUT, TaskState.HANDLED})


@dataclass(frozen=True, slots=True)
class Unkept:
    """What lies between a checkpoint and a boundary that has none: the folds as one, the tasks, and the run's counts then.

    ``number`` is that of its checkpoint, if it is ever written.
    """

    folded: Folded
    completed: tuple[TaskRecord, ...]
    superstep: int
    total_supersteps: int
    visits: tuple[tuple[str, int], ...]
    number: int


@dataclass(frozen=True, slots=True)
class Position:
    """A boundary in memory. ``number`` is its checkpoint's; None where none is kept.

    ``unkept``: it has none yet, and ``number`` and ``places`` are those of the one before (docs/decisions/0030).

    ``next_step`` is the step of the transaction that comes first behind it. Origins are steps of that transaction.
    ``kept`` are the last runs of embedded graphs that keep their state, by namespace.
    """

    state: State
    work: Work
    origins: Mapping[str, ChannelOrigin] = field(default_factory=dict)
    places: Places = field(default_factory=dict)
    number: int | None = None
    next_step: int = 0
    kept: Mapping[str, EmbeddedRun] = field(default_factory=dict)
    unkept: Unkept | None = None

    @property
    def told_number(self) -> int | None:
        """The checkpoint that steps are told to be behind: the same before and after it is written."""
        return self.number if self.unkept is None else self.unkept.number


@dataclass(frozen=True, slots=True)
class NextCheckpoint:
    """What a boundary writes, and where the run stands then; ``thread`` is None where no checkpoints are kept."""

    position: Position
    thread: ThreadRecord | None = None
    checkpoints: tuple[CheckpointRecord, ...] = ()
    values: tuple[ValueRecord, ...] = ()


async def load_position(store: RunStore, graph: CompiledGraph, thread: ThreadRecord) -> Position:
    """Read where a thread stands: its head, and boundaries behind it that have no checkpoint.

    A thread without a head has the channels' defaults, and nothing to do. ``graph`` is of the thread's version.

    Raises RunRefused: CHECKPOINT_NOT_FOUND if the thread has moved on since, and that head was pruned.
    """
    if thread.head is None:
        return Position(graph.default_state(), Work())
    checkpoint = await store.load_checkpoint(thread.thread_id, thread.head)
    if checkpoint is None:
        raise no_checkpoint(thread.thread_id, checkpoint_id(thread.thread_id, thread.head))
    position = await position_at(store, checkpoint, thread.transaction_first)
    if thread.transaction_id and thread.transaction_id != checkpoint.transaction_id:
        # Committed: the run waits, or went on, in the next transaction.
        position = in_new_transaction(position)
    return await caught_up(store, graph, thread, checkpoint, position)


async def caught_up(
    store: RunStore,
    graph: CompiledGraph,
    thread: ThreadRecord,
    checkpoint: CheckpointRecord,
    position: Position,
) -> Position:
    """Go on from a thread's head over the boundaries that have no checkpoint: their tasks keep what they answered."""
    run = await store.load_run(thread.run_id) if thread.unkept else None
    if run is None:
        return position
    at = replace(run, total_supersteps=checkpoint.total_supersteps, visits=checkpoint.visits)
    for superstep in range(thread.unkept, run.superstep + 1):
        tasks = await store.load_tasks(run.run_id, superstep)
        if not any(task.state is TaskState.FOLDED for task in tasks):
            continue  # undone, or nothing of it was over yet
        if not all(task.state in _OVER for task in tasks):
            continue
        visits = dict(at.visits)
        for activation in position.work.activations:
            if graph.nodes[activation.node].max_visits:
                visits[activation.node] = visits.get(activation.node, 0) + 1
        at = replace(
            at,
            superstep=superstep,
            total_supersteps=at.total_supersteps + 1,
            visits=tuple(sorted(visits.items())),
        )
        folded = await folded_aside(graph, position.state, writes_of(tasks, run.namespace), position.origins)
        finished = finished_of(tasks, TaskState.FOLDED)
        work = next_work(graph, position.work, folded.state, finished)
        next_step = max(task.step_id for task in tasks) + 1
        position = passed(graph, thread, at, position, folded, work, tasks, next_step)
    return position


async def position_at(store: RunStore, checkpoint: CheckpointRecord, since: int = 0) -> Position:
    """Read a checkpoint; what was written before checkpoint ``since`` was by another transaction's steps.

    Raises RunRefused: CHECKPOINT_NOT_FOUND if it was pruned meanwhile.
    """
    places = places_of(checkpoint.values)
    records = await store.load_values(checkpoint.thread_id, places)
    try:
        state, origins = read_values(places, records, since)
    except KeyError:
        if await store.load_checkpoint(checkpoint.thread_id, checkpoint.number) is not None:
            raise
        raise no_checkpoint(checkpoint.thread_id, checkpoint.checkpoint_id) from None
    return Position(
        state,
        read_work(checkpoint.work),
        origins,
        places,
        checkpoint.number,
        checkpoint.next_step,
        {run.namespace: run for run in checkpoint.kept},
    )


def in_new_transaction(position: Position) -> Position:
    """The same boundary where a transaction begins that has no step yet."""
    return replace(position, origins={}, next_step=1)


def next_checkpoint(
    graph: CompiledGraph,
    thread: ThreadRecord | None,
    run: RunRecord,
    position: Position,
    folded: Folded,
    work: Work,
    source: CheckpointSource,
    now: int,
    completed: Sequence[TaskRecord] = (),
    next_step: int | None = None,
) -> NextCheckpoint:
    """Say what the next boundary writes; ``next_step`` None: no step came since the one before.

    What lies between the last checkpoint and ``position`` is in it too.
    """
    if position.unkept is not None:
        folded = folded_behind(position.unkept.folded, folded)
        completed = (*position.unkept.completed, *completed)
    next_step = position.next_step if next_step is None else next_step
    kept = kept_with(graph, position.kept, completed)
    after = Position(folded.state, work, folded.origins, position.places, position.number, next_step, kept)
    if thread is None:
        return NextCheckpoint(after)
    number = thread.next_number
    values, places = write_values(graph, thread.thread_id, number, folded, position.places)
    if position.number is None:
        # Defaults are in no fold: a first checkpoint writes those that the input left as they are.
        defaulted = _with_defaults(graph, thread.thread_id, number, folded, places)
        values, places = [*values, *defaulted[0]], {**places, **defaulted[1]}
    checkpoint = CheckpointRecord(
        thread.thread_id,
        number,
        position.number,
        source,
        run.superstep,
        run.run_id,
        graph.version,
        now,
        transaction_id=run.transaction_id,
        branch=thread.branch,
        values=stored_places(places),
        work=work_text(work),
        completed=tuple((task.task_id, task.node, task.ordinal) for task in completed),
        next_step=next_step,
        children=tuple(task.child for task in completed if task.child is not None),
        kept=tuple(kept[name] for name in sorted(kept)),
        total_supersteps=run.total_supersteps,
        visits=run.visits,
    )
    moved = replace(
        thread,
        graph_version=graph.version,
        run_id=run.run_id,
        head=number,
        next_number=number + 1,
        superstep=max(thread.superstep, run.superstep),
        updated_at=now,
        unkept=0,
    )
    return NextCheckpoint(replace(after, places=places, number=number), moved, (checkpoint,), tuple(values))


def passed(
    graph: CompiledGraph,
    thread: ThreadRecord,
    run: RunRecord,
    position: Position,
    folded: Folded,
    work: Work,
    completed: Sequence[TaskRecord],
    next_step: int,
) -> Position:
    """The boundary behind a superstep, where it has no checkpoint."""
    behind = folded
    before: tuple[TaskRecord, ...] = ()
    if position.unkept is not None:
        behind, before = folded_behind(position.unkept.folded, folded), position.unkept.completed
    done = tuple(replace(task, answer=None) for task in completed if task.state in _COUNT)
    unkept = Unkept(
        replace(behind, effective=()),
        (*before, *done),
        run.superstep,
        run.total_supersteps,
        run.visits,
        thread.next_number,
    )
    return Position(
        folded.state,
        work,
        folded.origins,
        position.places,
        position.number,
        next_step,
        kept_with(graph, position.kept, done),
        unkept,
    )


def checkpoint_left_out(
    graph: CompiledGraph, thread: ThreadRecord, run: RunRecord, position: Position, now: int
) -> NextCheckpoint:
    """Say what writes the checkpoint of a boundary that has none."""
    unkept = position.unkept
    assert unkept is not None
    at = replace(
        run,
        superstep=unkept.superstep,
        total_supersteps=unkept.total_supersteps,
        visits=unkept.visits,
    )
    none = replace(unkept.folded, changes=())
    return next_checkpoint(
        graph, thread, at, position, none, position.work, CheckpointSource.LOOP, now, (), position.next_step
    )


def kept_with(
    graph: CompiledGraph, kept: Mapping[str, EmbeddedRun], completed: Sequence[TaskRecord]
) -> Mapping[str, EmbeddedRun]:
    """The last runs of embedded graphs that keep their state, with those that these tasks had."""
    found = dict(kept)
    for task in completed:
        binding = graph.nodes[task.node].binding
        if task.child is not None and isinstance(binding, SubgraphBinding) and binding.state_key:
            found[task.child.namespace] = task.child
    return found


def built_on(change: RunChange, thread: ThreadRecord | None, position: Position) -> RunChange:
    """A change that is refused where the thread that it goes on on (None: a new one) is not as it was read any more.

    Also where the boundary that it goes on from is removed.
    """
    if thread is None:
        return change
    number = position.number
    checkpoints = () if number is None else ((thread.thread_id, number),)
    return replace(
        change,
        standing_threads=(thread.thread_id,),
        standing_checkpoints=checkpoints,
        unchanged_threads=(thread,),
    )


def has_moved(thread: ThreadRecord, run: RunRecord, known: RunRecord) -> bool:
    """Whether a thread is not any more where a run had left it open: that was gone on with, or has ended."""
    return (
        run.next_offset != known.next_offset
        or thread.run_id != known.run_id
        or thread.transaction_id != known.transaction_id
    )


async def pending_of(store: RunStore, run: RunRecord) -> list[InterruptRecord]:
    """What a run waits for; on its thread other branches may have been left waiting."""
    return [item for item in await store.list_interrupts(run.thread_id) if item.run_id == run.run_id]


async def unfolded_tasks(store: RunStore, run: RunRecord) -> list[TaskRecord]:
    """The tasks of a run's open superstep; empty where it stands at a boundary."""
    tasks = await store.load_tasks(run.run_id, run.superstep)
    return [task for task in tasks if task.state not in (TaskState.FOLDED, TaskState.UNDONE)]


def writes_of(tasks: Sequence[TaskRecord], namespace: str = "") -> list[TaskWrites]:
    """What finished tasks write; those left out write nothing. Raises InvalidNodeResult."""
    return [
        TaskWrites(
            task.node,
            read_result(load(task.answer or "null")).updates,
            write_seed(namespace, task.superstep, task.node, task.ordinal),
            task.step_id or None,
            task.task_id,
        )
        for task, _ in in_place_of(tasks)
        if task.state not in (TaskState.LEFT_OUT, TaskState.HANDLED)
    ]


async def provisional_state(graph: CompiledGraph, position: Position, tasks: Sequence[TaskRecord]) -> State:
    """The state with what finished since the boundary; without it where that can't be folded."""
    finished = [task for task in tasks if task.state is TaskState.FINISHED]
    if not finished:
        return position.state
    try:
        folded = await folded_aside(
            graph, position.state, writes_of(finished), position.origins, keep_ephemeral=True
        )
    except GraphError:
        return position.state
    return folded.state


def _with_defaults(
    graph: CompiledGraph, thread_id: str, number: int, folded: Folded, places: Places
) -> tuple[list[ValueRecord], dict[str, ValuePlace]]:
    missing: dict[str, JsonValue] = {
        name: {OVERWRITE: value} for name, value in folded.state.items() if name not in places
    }
    if not missing:
        return [], {}
    return write_values(graph, thread_id, number, fold(graph, {}, [TaskWrites("", (missing,))]), {})
