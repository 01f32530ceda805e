"""One superstep of an edit: what finished since the boundary, and updates as if nodes had answered so.

An edit ends the superstep that is open. What its unfinished tasks are goes on in the next one, as the tasks that they
are; a node in whose name an update is given counts as having finished, the one that is pending if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import MISSING, JsonValue, canonical, load
from agenttx_server.graphs.boundary import Work, first_work, next_work, with_targets
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import END, START, Routing
from agenttx_server.graphs.fold import Folded, TaskWrites, folded_behind
from agenttx_server.graphs.node_results import NodeResult
from agenttx_server.graphs.routing import FinishedTask, needs_router_call
from agenttx_server.graphs.runs.finished_tasks import finished_of
from agenttx_server.graphs.runs.folding import folded_aside
from agenttx_server.graphs.runs.position import Position, writes_of
from agenttx_server.graphs.runs.records import TaskRecord, TaskState
from agenttx_server.graphs.runs.requests import RunRefused, StateUpdate
from agenttx_server.graphs.runs.step_port import NodeFunctions
from agenttx_server.graphs.tasks import Activation, CarriedTask, Task, collapse, write_seed

__all__ = ["Edited", "carried_on", "edited"]


@dataclass(frozen=True, slots=True)
class Edited:
    """What an edit's checkpoint holds.

    Attributes:
        folded: the state.
        work: what comes next; unfinished tasks are among it.
        finished: the tasks of the open superstep that finished.
        ended: ids of tasks that never finish: an update stands for what they would have answered.
    """

    folded: Folded
    work: Work
    finished: tuple[TaskRecord, ...] = ()
    ended: tuple[str, ...] = ()


async def edited(
    graph: CompiledGraph,
    functions: NodeFunctions,
    position: Position,
    open_tasks: Sequence[TaskRecord],
    updates: Sequence[StateUpdate],
    transaction_id: str,
    superstep: int,
    number: int,
) -> Edited:
    """Fold and route an edit.

    Args:
        graph: the graph.
        functions: asks the routers that workers host.
        position: the boundary that it follows.
        open_tasks: of the superstep that it ends; empty for none.
        updates: of different nodes, or one of none.
        transaction_id: where the steps of unfinished tasks are.
        superstep: the edit's.
        number: of its checkpoint.

    Raises:
        FoldError, RouteError: nothing was changed.
        RunRefused: MISSING_ROUTE for a node that routes by commands without a goto; INVALID_REQUEST for an update
            that doesn't say clearly what it is.
    """
    _check(graph, updates)
    named = {update.task_id for update in updates if update.task_id}
    finished = [t for t in open_tasks if t.state is TaskState.FINISHED and t.task_id not in named]
    pending = [
        carried_on(task, transaction_id)
        for task in open_tasks
        if task.task_id in named
        or task.state not in (TaskState.FINISHED, TaskState.LEFT_OUT, TaskState.HANDLED)
    ]
    counted = [t for t in open_tasks if t in finished or t.state in (TaskState.LEFT_OUT, TaskState.HANDLED)]
    before = None
    if open_tasks:
        before = await folded_aside(graph, position.state, writes_of(counted), position.origins)
    in_name = [update for update in updates if update.as_node not in ("", START, END)]
    folded = await _folded_updates(graph, position, before, updates, superstep, number, bool(in_name))
    if len(updates) == 1 and updates[0].as_node == END:
        return Edited(folded, Work(), tuple(finished), _ids([*pending, *position.work.activations]))
    if len(updates) == 1 and updates[0].as_node == START:
        work = first_work(graph, updates[0].goto)
        return Edited(folded, work, tuple(finished), _ids([*pending, *position.work.activations]))
    work = position.work
    if open_tasks:
        # The nodes in whose names updates come are still to finish: joins wait for them, what is deferred too.
        marks = [Activation(update.as_node) for update in in_name]
        done = await _routable(graph, functions, finished_of(counted), folded.state)
        work = next_work(graph, work, folded.state, done, unfinished=[*pending, *marks])
        work = replace(work, activations=(*pending, *work.activations))
    if not in_name:
        goto = [target for update in updates for target in update.goto]
        return Edited(folded, with_targets(graph, work, goto), tuple(finished))
    work, ended = await _ended_in_name(graph, functions, folded, work, in_name, superstep)
    return Edited(folded, work, tuple(finished), ended)


def carried_on(task: TaskRecord, transaction_id: str) -> Activation:
    """An unfinished task as what runs in a later superstep."""
    arg = MISSING if task.arg is None else load(task.arg)
    # Its calls are at the step as which it ran last; where it was only carried along it has made none.
    ran = (transaction_id, task.step_id) if task.started_at or task.adopts is None else task.adopts
    carried = CarriedTask(task.task_id, task.run_id, task.superstep, ran[1], ran[0])
    return Activation(task.node, arg, carried)


def _check(graph: CompiledGraph, updates: Sequence[StateUpdate]) -> None:
    for update in updates:
        alone = update.as_node in ("", START, END)
        if alone and len(updates) > 1:
            raise _invalid("of several updates of a superstep each names the node that it is of")
        if not alone and update.as_node not in graph.nodes:
            raise _invalid(f"'{update.as_node[:128]}' is no node of graph '{graph.name}'")
        if update.task_id and alone:
            raise _invalid("an update that finishes a task names its node")
        if not alone and graph.routing[update.as_node] is Routing.COMMAND and not update.goto:
            raise RunRefused(
                "MISSING_ROUTE",
                f"'{update.as_node}' routes by commands: say where it goes",
                {"node": update.as_node},
            )
    names = [(update.as_node, update.task_id) for update in updates]
    if len(set(names)) < len(names):
        raise _invalid("two updates of a superstep are of the same node; name their tasks")


def _invalid(message: str) -> RunRefused:
    return RunRefused("INVALID_REQUEST", message)


async def _folded_updates(
    graph: CompiledGraph,
    position: Position,
    before: Folded | None,
    updates: Sequence[StateUpdate],
    superstep: int,
    number: int,
    is_superstep: bool,
) -> Folded:
    state, origins = (position.state, position.origins) if before is None else (before.state, before.origins)
    writes = [
        TaskWrites(
            update.as_node if update.as_node not in (START, END) else "",
            (dict(update.update),) if update.update else (),
            write_seed("", superstep, update.as_node, index)
            if is_superstep
            else write_seed("", superstep, "", number),
        )
        for index, update in enumerate(updates)
    ]
    keep = before is not None or not is_superstep
    folded = await folded_aside(graph, state, writes, origins, keep_ephemeral=keep)
    return folded if before is None else folded_behind(before, folded)


async def _ended_in_name(
    graph: CompiledGraph,
    functions: NodeFunctions,
    folded: Folded,
    work: Work,
    updates: Sequence[StateUpdate],
    superstep: int,
) -> tuple[Work, tuple[str, ...]]:
    """Take the nodes in whose names updates come as finished."""
    left, deferred = list(work.activations), list(work.deferred)
    finished: list[FinishedTask] = []
    ended: list[Activation] = []
    for index, update in enumerate(updates):
        taken = _pending_of(update, left)
        if taken is not None:
            left.remove(taken)
            ended.append(taken)
        elif (waiting := _pending_of(update, deferred)) is not None:
            deferred.remove(waiting)
        given: JsonValue = dict(update.update or {})
        arg = MISSING if taken is None else taken.arg
        task = Task(f"edit-{superstep}-{index}", update.as_node, index, arg)
        finished.append(FinishedTask(task, NodeResult(goto=update.goto, is_command=bool(update.goto)), given))
    done = await _routable(graph, functions, finished, folded.state)
    after = next_work(
        graph, replace(work, deferred=tuple(deferred)), folded.state, done, unfinished=tuple(left)
    )
    return replace(after, activations=collapse((*left, *after.activations))), _ids(ended)


def _pending_of(update: StateUpdate, pending: Sequence[Activation]) -> Activation | None:
    for item in pending:
        carried = item.carried
        if update.task_id:
            if carried is not None and carried.task_id == update.task_id:
                if item.node != update.as_node:
                    raise _invalid(f"task '{update.task_id[:128]}' is of node '{item.node}'")
                return item
        elif item.node == update.as_node:
            return item
    if update.task_id:
        raise _invalid(f"no task '{update.task_id[:128]}' is pending")
    return None


def _ids(activations: Sequence[Activation]) -> tuple[str, ...]:
    return tuple(item.carried.task_id for item in activations if item.carried is not None)


async def _routable(
    graph: CompiledGraph,
    functions: NodeFunctions,
    finished: Sequence[FinishedTask],
    state: Mapping[str, JsonValue],
) -> list[FinishedTask]:
    """Ask routers that workers host where finished tasks go."""
    asked = []
    for done in finished:
        router = needs_router_call(graph, done)
        if router is not None:
            said = await functions.call(router, canonical({"state": dict(state)}), None)
            done = replace(done, router_answer=load(said))
        asked.append(done)
    return asked
