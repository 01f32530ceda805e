"""Small graphs in a line of text, for tests: the notation of the scenarios, as near as ASCII comes.

graph("START->a, a->b")                 direct edges
graph("a?->{x: b, y: END}")             a conditional edge; the path router reads channel ``route``
graph("a?f:g->{x: b}")                  one whose router is the worker's function ``g``
graph("a=>[b, c]")                      commands with declared destinations
graph("[p, q]|>j")                      a join; [p, q]|ANY>j, |2>j (N_OF), |SKIP>j
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agenttx_server.engine.json_values import MISSING, JsonValue
from agenttx_server.graphs.boundary import Work, first_work, next_work
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.compiler import compile_graph
from agenttx_server.graphs.definition import (
    END,
    START,
    Channel,
    ConditionalEdge,
    Edge,
    FunctionRouter,
    GraphDefinition,
    GraphPolicy,
    JoinPolicy,
    Node,
    NothingBinding,
    PathRouter,
    Route,
    WaitingEdge,
)
from agenttx_server.graphs.fold import TaskWrites, fold
from agenttx_server.graphs.node_results import Target, read_result
from agenttx_server.graphs.routing import FinishedTask
from agenttx_server.graphs.tasks import Task, order_tasks, write_seed

SUM = (Channel("value", reducer="add"),)
OW = (Channel("value"),)
APP = (Channel("log", reducer="append"),)
_NAMES = {"START": START, "END": END}


def definition(
    text: str,
    *,
    channels: Sequence[Channel] = (),
    policy: GraphPolicy | None = None,
    nodes: Mapping[str, Mapping[str, Any]] | None = None,
    name: str = "g",
) -> GraphDefinition:
    """Read a graph. ``nodes`` gives fields of nodes, and nodes that no edge names."""
    edges: list[Edge] = []
    waiting: list[WaitingEdge] = []
    conditional: list[ConditionalEdge] = []
    commands: dict[str, tuple[str, ...]] = {}
    names: dict[str, None] = {}

    def place(raw: str) -> str:
        known = _NAMES.get(raw.strip())
        if known is None:
            names.setdefault(raw.strip())
        return known or raw.strip()

    for part in filter(None, (item.strip() for item in re.split(r",(?![^\[{]*[\]}])", text))):
        if match := re.fullmatch(r"\[(.*)\]\|(\w*)>(.*)", part):
            members = tuple(place(member) for member in match[1].split(","))
            policy_word = match[2]
            count = int(policy_word) if policy_word.isdecimal() else 0
            join = {"": JoinPolicy.ALL, "ANY": JoinPolicy.ANY, "SKIP": JoinPolicy.SKIP_UNREACHABLE}
            waiting.append(
                WaitingEdge(members, place(match[3]), join.get(policy_word, JoinPolicy.N_OF), count)
            )
        elif match := re.fullmatch(r"(.*)\?(?:f:(\w+))?->\{(.*)\}", part):
            source = place(match[1])
            rows = (row.split(":") for row in match[3].split(",") if row.strip())
            routes = tuple(Route(label.strip(), place(target)) for label, target in rows)
            router = FunctionRouter(match[2]) if match[2] else PathRouter("route")
            conditional.append(ConditionalEdge(source, router, routes))
        elif match := re.fullmatch(r"(.*)=>\[(.*)\]", part):
            source = place(match[1])
            commands[source] = tuple(place(target) for target in match[2].split(",") if target.strip())
        elif match := re.fullmatch(r"(.*)->(.*)", part):
            edges.append(Edge(place(match[1]), place(match[2])))
        else:
            place(part)
    fields = {name: dict(values) for name, values in (nodes or {}).items()}
    made = [
        replace(Node(node, NothingBinding(), destinations=commands.get(node)), **fields.get(node, {}))
        for node in (*names, *(node for node in fields if node not in names))
    ]
    routed = (
        (*channels, Channel("route"))
        if conditional and not any(c.name == "route" for c in channels)
        else channels
    )
    return GraphDefinition(
        name=name,
        nodes=tuple(made),
        channels=tuple(routed),
        edges=tuple(edges),
        waiting_edges=tuple(waiting),
        conditional_edges=tuple(conditional),
        policy=policy or GraphPolicy(),
    )


def compiled(text: str, **options: Any) -> CompiledGraph:
    """Read and compile a graph that is sound."""
    compilation = compile_graph(definition(text, **options))
    assert compilation.graph is not None, compilation.findings
    return compilation.graph


def codes(text: str, **options: Any) -> list[str]:
    """The codes that the compiler finds, warnings among them."""
    return [finding.code for finding in compile_graph(definition(text, **options)).findings]


class PlainRun:
    """A graph run by hand, superstep by superstep: what a scheduler does, and nothing of its own.

    ``answers`` are functions of (state, arg) by node; a node without one answers nothing.
    """

    def __init__(
        self,
        graph: CompiledGraph,
        answers: Mapping[str, Any] | None = None,
        given: Mapping[str, JsonValue] | None = None,
        goto: Sequence[Target] = (),
    ) -> None:
        self.graph = graph
        self.answers = dict(answers or {})
        self.visited: list[str] = []
        self.superstep = 0
        writes = TaskWrites("", (dict(given or {}),), seed=write_seed("", 0, "", 0))
        self.state: dict[str, JsonValue] = fold(graph, graph.default_state(), [writes]).state
        self.states = [self.state]
        self.work: Work = first_work(graph, goto)
        self.tasks: tuple[Task, ...] = ()

    def step(self) -> None:
        self.superstep += 1
        self.tasks = order_tasks("run", "", self.superstep, self.work.activations)
        finished = []
        for task in self.tasks:
            self.visited.append(task.node)
            answer = self.answers.get(task.node)
            said = (
                answer(self.state, None if task.arg is MISSING else task.arg) if callable(answer) else answer
            )
            finished.append(FinishedTask(task, read_result(said), said))
        writes = [
            TaskWrites(
                done.task.node,
                done.result.updates,
                write_seed("", self.superstep, done.task.node, done.task.ordinal),
                origin=done.task.ordinal,
                task_id=done.task.task_id,
            )
            for done in finished
        ]
        folded = fold(self.graph, self.state, writes)
        self.work = next_work(self.graph, self.work, folded.state, finished)
        self.state = folded.state
        self.states.append(self.state)

    def finish(self, limit: int = 50) -> PlainRun:
        while not self.work.is_done and self.superstep < limit:
            self.step()
        self.work.refuse_starved()
        return self


def goto(*targets: str | dict[str, JsonValue], update: dict[str, JsonValue] | None = None) -> JsonValue:
    """A command."""
    return {"__command__": {"goto": list(targets), "update": update or {}}}


def send(node: str, arg: JsonValue) -> dict[str, JsonValue]:
    """A Send, as JSON."""
    return {"node": node, "arg": arg}
