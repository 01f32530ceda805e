"""Work to come, in its one order: activations, and the tasks of a superstep that they become."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import MISSING, JsonValue, Missing, canonical
from agenttx_server.graphs.errors import RouteError
from agenttx_server.graphs.limits import MAX_TASKS

__all__ = [
    "Activation",
    "CarriedTask",
    "Task",
    "child_namespace",
    "collapse",
    "interrupt_id",
    "order_tasks",
    "task_id",
    "write_seed",
]


@dataclass(frozen=True, slots=True)
class CarriedTask:
    """A task of a superstep that was ended early: which it is, and the step that it was."""

    task_id: str
    run_id: str
    superstep: int
    step_id: int
    transaction_id: str


@dataclass(frozen=True, slots=True)
class Activation:
    """A node that is to run; with an ``arg`` by a Send, and ``carried`` as a task that it was in a superstep before.

    ``given``: of a graph inside it, what nodes and routers of its first supersteps answer without being called, as JSON
    by their scope in its journal.
    """

    node: str
    arg: JsonValue | Missing = MISSING
    carried: CarriedTask | None = None
    given: tuple[tuple[str, str], ...] = ()

    @property
    def is_send(self) -> bool:
        """Whether it is a Send."""
        return self.arg is not MISSING


@dataclass(frozen=True, slots=True)
class Task:
    """One execution of a node in a superstep. ``ordinal`` counts from 0; ``task_id`` is the same over retry and resume."""

    task_id: str
    node: str
    ordinal: int
    arg: JsonValue | Missing = MISSING


def collapse(activations: Iterable[Activation]) -> tuple[Activation, ...]:
    """Make plain activations of one node one, where the first stands. Sends stay, each for itself."""
    seen: set[str] = set()
    kept = []
    for activation in activations:
        if not activation.is_send:
            if activation.node in seen:
                continue
            seen.add(activation.node)
        kept.append(activation)
    return tuple(kept)


def order_tasks(
    run_id: str, namespace: str, superstep: int, activations: Sequence[Activation], *, first_ordinal: int = 0
) -> tuple[Task, ...]:
    """Make activations, which are in order, the tasks of a superstep.

    Args:
        run_id: the run.
        namespace: where its graph is embedded; "" for a root.
        superstep: its number, which never comes again in the thread.
        activations: collapsed already.
        first_ordinal: the first task's; more than 0 where tasks are added to a superstep under way.

    Raises:
        RouteError: STATE_TOO_LARGE for more than 10,000 tasks.
    """
    if first_ordinal + len(activations) > MAX_TASKS:
        count = first_ordinal + len(activations)
        raise RouteError(
            "STATE_TOO_LARGE",
            f"a superstep has at most {MAX_TASKS} tasks, not {count}",
            {"limit_tasks": str(MAX_TASKS), "actual_tasks": str(count)},
        )
    return tuple(
        Task(
            activation.carried.task_id
            if activation.carried
            else task_id(run_id, namespace, superstep, activation.node, ordinal),
            activation.node,
            ordinal,
            activation.arg,
        )
        for ordinal, activation in enumerate(activations, first_ordinal)
    )


def task_id(run_id: str, namespace: str, superstep: int, node: str, ordinal: int) -> str:
    """Name a task by what makes it the one it is."""
    return "t-" + _digest(run_id, namespace, superstep, node, ordinal)


def interrupt_id(thread_id: str, namespace: str, task: str, ordinal: int) -> str:
    """Name the question that a task asks as its ``ordinal``-th, from 0."""
    return "i-" + _digest(thread_id, namespace, task, ordinal)


def write_seed(namespace: str, superstep: int, node: str, ordinal: int) -> str:
    """Name what a task writes, for ids made from it: no run or thread in it, so a second run gives them again."""
    return _digest(namespace, superstep, node, ordinal)


def child_namespace(namespace: str, node: str, superstep: int, ordinal: int, state_key: str = "") -> str:
    """The namespace of a graph that is embedded at a task: ``node#superstep.ordinal``, or ``node#state_key``."""
    segment = f"{node}#{state_key}" if state_key else f"{node}#{superstep}.{ordinal}"
    return f"{namespace}/{segment}" if namespace else segment


def _digest(*parts: str | int) -> str:
    return hashlib.sha256(canonical(list(parts)).encode()).hexdigest()[:32]
