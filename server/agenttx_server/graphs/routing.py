"""Where a finished task leads: edges, a router's answer, or its commands. On the folded state."""

from __future__ import annotations

from collections.abc import Mapping

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import MISSING, JsonValue, Missing
from agenttx_server.expressions import EvaluationFailed
from agenttx_server.graphs.channel_types import type_name
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import (
    END,
    ExpressionRouter,
    FunctionRouter,
    PathRouter,
    Routing,
    SubgraphBinding,
)
from agenttx_server.graphs.errors import InvalidNodeResult, RouteError
from agenttx_server.graphs.fold import State
from agenttx_server.graphs.node_results import NodeResult, Target, read_targets
from agenttx_server.graphs.tasks import Task
from agenttx_server.graphs.templates import at_path

__all__ = ["FinishedTask", "Routed", "check_targets", "needs_router_call", "route"]


@dataclass(frozen=True, slots=True)
class FinishedTask:
    """A task with its result.

    Attributes:
        task: the task.
        result: what its node answered, or what stands in for it.
        answer: the node's answer as it was, for router expressions.
        router_answer: what the worker's router function said; MISSING where none was asked.
        stands_in_for: the node that this task handled the error of: without a goto of the handler that node's
            routing applies; a handler's commands go where the handler declares.
    """

    task: Task
    result: NodeResult
    answer: JsonValue = None
    router_answer: JsonValue | Missing = MISSING
    stands_in_for: str = ""

    def replaces_routing(self, graph: CompiledGraph) -> bool:
        """Whether its commands take the place of its node's routing. An embedded graph's command, even one that goes
        nowhere, is one for this graph.
        """
        is_embedded = isinstance(graph.nodes[self.task.node].binding, SubgraphBinding)
        return bool(self.result.goto) or (is_embedded and self.result.is_command)

    @property
    def routed_as(self) -> str:
        """The node whose routing applies."""
        return self.stands_in_for if self.stands_in_for and not self.result.goto else self.task.node


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a task leads. ``label`` is the router's, None where none decided."""

    targets: tuple[Target, ...]
    label: str | None = None


def needs_router_call(graph: CompiledGraph, finished: FinishedTask) -> str | None:
    """The function that a worker must be asked with the folded state before this task can be routed."""
    if finished.replaces_routing(graph):
        return None
    edge = graph.conditional_of.get(finished.routed_as)
    if edge is None or not isinstance(edge.router, FunctionRouter) or finished.router_answer is not MISSING:
        return None
    return edge.router.function


def route(graph: CompiledGraph, state: State, finished: FinishedTask) -> Routed:
    """Say where a finished task leads, END included, joins aside.

    Raises:
        RouteError: MISSING_ROUTE, UNKNOWN_TARGET or UNDECLARED_COMMAND.
    """
    node = finished.routed_as
    if finished.replaces_routing(graph):
        return Routed(_commanded(graph, finished.task.node, finished.result.goto))
    if graph.routing[node] is Routing.CONDITIONAL:
        return _conditional(graph, state, node, finished)
    return Routed(tuple(Target(target) for target in graph.direct_targets.get(node, ())))


def check_targets(graph: CompiledGraph, node: str, targets: tuple[Target, ...]) -> None:
    """Refuse targets that aren't there.

    Raises:
        RouteError: UNKNOWN_TARGET.
    """
    for target in targets:
        if target.node not in graph.nodes and (target.node != END or target.is_send):
            who = f"'{node}'" if node else "the request"
            raise RouteError(
                "UNKNOWN_TARGET",
                f"{who} goes to '{target.node[:128]}', which is no node of graph '{graph.name}'",
                {"node": node, "target": target.node[:128]},
            )


def _commanded(graph: CompiledGraph, node: str, targets: tuple[Target, ...]) -> tuple[Target, ...]:
    destinations = graph.nodes[node].destinations
    check_targets(graph, node, targets)
    if isinstance(graph.nodes[node].binding, SubgraphBinding):
        return targets  # commanded from inside, where nobody knows what the node declares
    for target in targets:
        if destinations is None or (destinations and target.node not in destinations):
            why = "it is routed by edges" if destinations is None else "it declares other destinations"
            raise RouteError(
                "UNDECLARED_COMMAND",
                f"'{node}' goes to '{target.node}' by a command, but {why}",
                {"node": node, "target": target.node},
            )
    return targets


def _conditional(graph: CompiledGraph, state: State, node: str, finished: FinishedTask) -> Routed:
    router = graph.conditional_of[node].router
    match router:
        case ExpressionRouter():
            try:
                said: JsonValue = graph.expressions[node].evaluate(
                    {"state": state if isinstance(state, dict) else dict(state), "result": finished.answer}
                )
            except EvaluationFailed as error:
                raise _missing_route(node, "", f"its router has no answer: {error}") from error
        case PathRouter(path):
            found = at_path(dict(state), tuple(path.split(".")))
            if not isinstance(found, str | bool):
                what = "nothing" if found is MISSING else type_name(found)
                raise _missing_route(
                    node, "", f"its path '{path}' leads to {what}, not to a string or a bool"
                )
            said = found
        case FunctionRouter():
            if finished.router_answer is MISSING:
                raise _missing_route(node, "", "its router was not asked")
            return _answered(graph, node, finished.router_answer)
    label = _label(said)
    return Routed((_labelled(graph, node, label),), label)


def _answered(graph: CompiledGraph, node: str, answer: JsonValue) -> Routed:
    labels, targets = [], []
    for item in answer if isinstance(answer, list) else [answer]:
        if isinstance(item, str | bool):
            labels.append(_label(item))
            targets.append(_labelled(graph, node, labels[-1]))
            continue
        try:
            sends = read_targets(item)
        except InvalidNodeResult as error:
            raise _missing_route(
                node, "", f"its router answered what is no label and no Send: {error}"
            ) from None
        check_targets(graph, node, sends)
        targets += sends
    return Routed(tuple(targets), ",".join(labels))


def _labelled(graph: CompiledGraph, node: str, label: str) -> Target:
    table: Mapping[str, str] = graph.routes_of[node]
    if label not in table:
        raise _missing_route(node, label, f"its router gave '{label[:128]}', which has no route")
    return Target(table[label])


def _label(said: JsonValue) -> str:
    if isinstance(said, bool):
        return "true" if said else "false"
    return str(said)


def _missing_route(node: str, label: str, why: str) -> RouteError:
    return RouteError(
        "MISSING_ROUTE", f"'{node}' can't be routed: {why}", {"node": node, "label": label[:128]}
    )
