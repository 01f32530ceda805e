"""From a superstep to the next: what a scheduler asks once results are folded.

    work = first_work(graph)                                  # or first_work(graph, goto)
    tasks = order_tasks(run_id, namespace, superstep, work.activations)
    …run them, fold their writes…
    work = next_work(graph, work, state, finished)            # again, until work.is_done

A :class:`Work` is all that has to be kept between two supersteps beside the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.graphs.compiled_graph import CompiledGraph, Join
from agenttx_server.graphs.definition import END
from agenttx_server.graphs.errors import RouteError
from agenttx_server.graphs.fold import State
from agenttx_server.graphs.joins import Rounds, arrive, open_rounds, settle_rounds
from agenttx_server.graphs.node_results import Target, Update
from agenttx_server.graphs.routing import FinishedTask, check_targets, route
from agenttx_server.graphs.tasks import Activation, collapse

__all__ = ["ParentCommand", "RouteTaken", "Work", "first_work", "next_work", "with_targets"]


@dataclass(frozen=True, slots=True)
class ParentCommand:
    """Commands for the embedding graph: they take the place of the embedding node's routing."""

    updates: tuple[Update, ...]
    goto: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class RouteTaken:
    """How one task was routed, for route.selected. END is among the targets."""

    task_id: str
    node: str
    label: str | None
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """What is to come.

    Attributes:
        activations: what runs in the next superstep, in order.
        deferred: nodes that wait until nothing else is left, in order.
        rounds: joins under way.
        routes: how the tasks of the last superstep were routed, in their order.
        parent: commands for the embedding graph; the graph's run ends with them.
        starved: joins that wait while no work is left, with the members they miss.
    """

    activations: tuple[Activation, ...] = ()
    deferred: tuple[Activation, ...] = ()
    rounds: Rounds = field(default_factory=dict)
    routes: tuple[RouteTaken, ...] = ()
    parent: ParentCommand | None = None
    starved: tuple[tuple[Join, tuple[str, ...]], ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to run."""
        return not self.activations and not self.deferred

    def refuse_starved(self) -> None:
        """Raise what a starved join is for its run.

        Raises:
            RouteError: STARVED_JOIN, naming the join and the missing members.
        """
        if self.starved and self.is_done:
            join, missing = self.starved[0]
            raise RouteError(
                "STARVED_JOIN",
                f"no work is left, and '{join.edge.target}' still waits for {', '.join(missing)}",
                {"node": join.edge.target, "missing": ",".join(missing)},
            )


def first_work(graph: CompiledGraph, goto: Sequence[Target] = ()) -> Work:
    """The work that new input makes: START's edges, or the targets that it names. Rounds start anew.

    Raises:
        RouteError: UNKNOWN_TARGET.
    """
    check_targets(graph, "", tuple(goto))
    targets = tuple(goto) or tuple(Target(name) for name in graph.entry)
    return _arranged(graph, targets, (), {})


def next_work(
    graph: CompiledGraph,
    work: Work,
    state: State,
    finished: Sequence[FinishedTask],
    *,
    is_root: bool = True,
    goto: Sequence[Target] = (),
    unfinished: Sequence[Activation] = (),
) -> Work:
    """Route the finished tasks of a superstep, in their order, on the folded state.

    Args:
        graph: the graph.
        work: what led to the superstep; its activations are taken as done.
        state: folded.
        finished: in order of their ordinals; those whose routing needs a worker have been asked.
        is_root: whether no graph embeds this one.
        goto: targets that a request adds, behind everything else.
        unfinished: activations of the superstep that stay pending (UpdateState ends it early). They count as
            active for joins; their tasks are kept by the caller and are not among the answer's activations.

    Raises:
        RouteError: MISSING_ROUTE, UNKNOWN_TARGET, UNDECLARED_COMMAND, NO_PARENT_GRAPH. Nothing is changed.
    """
    rounds = work.rounds
    targets: list[Target] = []
    routes: list[RouteTaken] = []
    parents: list[ParentCommand] = []
    for done in finished:
        if done.result.parent_goto is not None:
            if is_root:
                raise RouteError(
                    "NO_PARENT_GRAPH",
                    f"'{done.task.node}' commands the embedding graph, and there is none",
                    {"node": done.task.node},
                )
            parents.append(ParentCommand(done.result.parent_updates, done.result.parent_goto))
            continue
        routed = route(graph, state, done)
        routes.append(RouteTaken(done.task.task_id, done.task.node, routed.label, routed.targets))
        targets += routed.targets
        if not done.replaces_routing(graph):
            arrivals = arrive(graph, rounds, done.routed_as)
            rounds = arrivals.rounds
            targets += (Target(join.edge.target) for join in arrivals.fired)
    check_targets(graph, "", tuple(goto))
    if parents:
        return Work(routes=tuple(routes), parent=_merged(parents))
    return _arranged(
        graph,
        (*targets, *goto),
        work.deferred,
        rounds,
        routes=tuple(routes),
        pending=tuple(activation.node for activation in unfinished),
    )


def with_targets(graph: CompiledGraph, work: Work, goto: Sequence[Target]) -> Work:
    """Work with targets beside it that a request adds, behind everything else.

    Raises:
        RouteError: UNKNOWN_TARGET.
    """
    check_targets(graph, "", tuple(goto))
    now, later = list(work.activations), list(work.deferred)
    for target in goto:
        if target.node != END:
            waits = graph.nodes[target.node].deferred and bool(now)
            (later if waits else now).append(Activation(target.node, target.arg))
    return replace(work, activations=collapse(now), deferred=collapse(later))


def _arranged(
    graph: CompiledGraph,
    targets: Sequence[Target],
    deferred: tuple[Activation, ...],
    rounds: Rounds,
    *,
    routes: tuple[RouteTaken, ...] = (),
    pending: tuple[str, ...] = (),
) -> Work:
    """Put targets in their places: now, or later because their node is deferred; and judge joins."""
    now: list[Activation] = []
    later = list(deferred)

    def place(target: Target) -> None:
        if target.node != END:
            activation = Activation(target.node, target.arg)
            (later if graph.nodes[target.node].deferred else now).append(activation)

    for target in targets:
        place(target)
    # A join that fires because of what can't be reached any more may have a deferred target.
    active = (*(activation.node for activation in (*now, *later)), *pending)
    settled = settle_rounds(graph, rounds, active)
    for join in settled.fired:
        place(Target(join.edge.target))
    if not now and not pending:
        # Nothing else is left: what waited for that runs.
        now, later = later, []
    activations, waiting = collapse(now), collapse(later)
    is_over = not activations and not waiting and not pending
    return Work(
        activations,
        waiting,
        settled.rounds,
        routes,
        starved=open_rounds(graph, settled.rounds) if is_over else (),
    )


def _merged(parents: Sequence[ParentCommand]) -> ParentCommand:
    return ParentCommand(
        tuple(update for parent in parents for update in parent.updates),
        tuple(target for parent in parents for target in parent.goto),
    )
