"""Graphs at random: findings against a naive checker, reducers' algebra, export and back."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graph_definitions import PlainRun, compiled

from agenttx_server.engine.json_values import MISSING, JsonValue, canonical
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.compiler import compile_graph
from agenttx_server.graphs.definition import (
    END,
    START,
    Channel,
    ConditionalEdge,
    Edge,
    GraphDefinition,
    GraphPolicy,
    JoinPolicy,
    Node,
    NothingBinding,
    PathRouter,
    Route,
    WaitingEdge,
)
from agenttx_server.graphs.definition_json import from_json, to_json
from agenttx_server.graphs.errors import FoldError, RouteError
from agenttx_server.graphs.fold import Folded, TaskWrites, fold
from agenttx_server.graphs.mermaid import to_mermaid
from agenttx_server.graphs.reducers.arrays import identity

NAMES = ["a", "b", "c", "d", "e"]
PLACES = st.sampled_from([*NAMES, "ghost", START, END])


@st.composite
def definitions(draw: st.DrawFn) -> GraphDefinition:
    """Graphs, most of them not sound."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
    destinations = st.none() | st.lists(PLACES, max_size=3, unique=True).map(tuple)
    handlers = st.none() | st.sampled_from([*NAMES, "ghost"])
    nodes = tuple(
        Node(
            name,
            NothingBinding(),
            destinations=draw(destinations),
            error_handler=draw(handlers),
            deferred=draw(st.booleans()),
        )
        for name in names
    )
    edges = tuple(Edge(*pair) for pair in draw(st.lists(st.tuples(PLACES, PLACES), max_size=6)))
    entry = tuple(Edge(START, name) for name in draw(st.lists(st.sampled_from(names), max_size=2)))
    routes = st.lists(st.tuples(st.sampled_from(["x", "y"]), PLACES), max_size=3)
    conditional = tuple(
        ConditionalEdge(source, PathRouter("r"), tuple(Route(*row) for row in draw(routes)))
        for source in draw(st.lists(PLACES, max_size=2))
    )
    members = st.lists(PLACES, min_size=1, max_size=3)
    waiting = tuple(
        WaitingEdge(tuple(draw(members)), draw(PLACES), policy, 1 if policy is JoinPolicy.N_OF else 0)
        for policy in draw(st.lists(st.sampled_from(JoinPolicy), max_size=2))
    )
    return GraphDefinition("g", nodes, (Channel("r"),), (*entry, *edges), waiting, conditional)


def naive(graph: GraphDefinition) -> set[str]:
    """The structural findings, as simply as they can be said."""
    names = {node.name for node in graph.nodes}
    found = set()
    if len(names) < len(graph.nodes):
        found.add("DUPLICATE_NODE")
    if not [edge for edge in graph.edges if edge.source == START and edge.target != END]:
        found.add("MISSING_START")
    for edge in graph.edges:
        if (edge.source, edge.target) == (START, END):
            found.add("START_TO_END")
            continue
        if edge.source == END:
            found.add("END_AS_SOURCE")
        elif edge.source != START and edge.source not in names:
            found.add("EDGE_SOURCE_MISSING")
        if edge.target == START:
            found.add("START_AS_TARGET")
        elif edge.target != END and edge.target not in names:
            found.add("EDGE_TARGET_MISSING")
    if len(set(graph.edges)) < len(graph.edges):
        found.add("DUPLICATE_EDGE")
    for join in graph.waiting_edges:
        for member in join.members:
            if member == END:
                found.add("END_AS_SOURCE")
            elif member not in names:
                found.add("BARRIER_MEMBER_MISSING")
        if join.target in join.members:
            found.add("BARRIER_SELF")
        if join.target == START:
            found.add("START_AS_TARGET")
        elif join.target not in names:
            found.add("EDGE_TARGET_MISSING")
        if len(set(join.members)) < len(join.members):
            found.add("DUPLICATE_EDGE")
    if len({(j.target, frozenset(j.members)) for j in graph.waiting_edges}) < len(graph.waiting_edges):
        found.add("DUPLICATE_EDGE")
    for edge in graph.conditional_edges:
        if edge.source == END:
            found.add("END_AS_SOURCE")
        elif edge.source not in names:
            found.add("EDGE_SOURCE_MISSING")
        if not edge.routes:
            found.add("ROUTE_TABLE_EMPTY")
        if len({route.label for route in edge.routes}) < len(edge.routes):
            found.add("DUPLICATE_ROUTE_LABEL")
        for route in edge.routes:
            if route.target == START:
                found.add("START_AS_TARGET")
            elif route.target != END and route.target not in names:
                found.add("ROUTE_TARGET_MISSING")
    for node in graph.nodes:
        static = any(edge.source == node.name for edge in graph.edges) or any(
            node.name in join.members for join in graph.waiting_edges
        )
        tables = sum(edge.source == node.name for edge in graph.conditional_edges)
        if static + tables + (node.destinations is not None) > 1:
            found.add("MIXED_ROUTING")
        for target in node.destinations or ():
            if target == START:
                found.add("START_AS_TARGET")
            elif target != END and target not in names:
                found.add("COMMAND_DEST_MISSING")
        if node.error_handler is not None and (
            node.error_handler not in names or node.error_handler == node.name
        ):
            found.add("EDGE_TARGET_MISSING")
    if any(edge.source == START for edge in graph.edges) and names - naive_reachable(graph, names):
        found.add("UNREACHABLE_NODE")
    return found


def naive_reachable(graph: GraphDefinition, names: set[str]) -> set[str]:
    """Every node that something leads to, by trying until nothing is added."""
    ways = {(edge.source, edge.target) for edge in graph.edges}
    ways |= {(member, join.target) for join in graph.waiting_edges for member in join.members}
    ways |= {(edge.source, route.target) for edge in graph.conditional_edges for route in edge.routes}
    for node in graph.nodes:
        ways |= {(node.name, target) for target in node.destinations or ()}
        ways |= {(node.name, name) for name in names if node.destinations == ()}
        ways |= {(node.name, node.error_handler)} if node.error_handler else set()
    reached = {START}
    while True:
        more = {b for a, b in ways if a in reached and a in names | {START} and b in names} - reached
        if not more:
            return reached
        reached |= more


@given(definitions())
@settings(max_examples=400, deadline=None)
def test_findings_are_those_of_a_naive_checker(graph: GraphDefinition) -> None:
    found = compile_graph(graph)

    assert {finding.code for finding in found.errors} == naive(graph)
    assert (found.graph is None) == bool(found.errors)
    assert compile_graph(graph).findings == found.findings


@given(definitions())
@settings(max_examples=200, deadline=None)
def test_every_graph_is_exported_and_read_back(graph: GraphDefinition) -> None:
    assert from_json(to_json(graph)) == graph
    drawn = to_mermaid(graph)
    assert drawn == to_mermaid(from_json(to_json(graph)))
    assert len([line for line in drawn.splitlines() if '["' in line]) == len(graph.nodes)


@given(definitions(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_the_version_knows_no_order_of_nodes(graph: GraphDefinition, random: Any) -> None:
    shuffled = list(graph.nodes)
    random.shuffle(shuffled)
    one, other = compile_graph(graph).graph, compile_graph(replace(graph, nodes=tuple(shuffled))).graph

    assert (one and one.version) == (other and other.version)


@st.composite
def sound_graphs(draw: st.DrawFn) -> GraphDefinition:
    """Sound graphs without cycles: edges lead to later names; joins, routes, deferred nodes among them."""
    edges: list[Edge] = []
    waiting: list[WaitingEdge] = []
    conditional: list[ConditionalEdge] = []
    for index, name in enumerate(NAMES):
        later = NAMES[index + 1 :]
        if not later or draw(st.integers(0, 4)) == 0:
            continue
        targets = draw(st.lists(st.sampled_from(later), min_size=1, max_size=2, unique=True))
        if draw(st.booleans()):
            edges += (Edge(name, target) for target in targets)
        else:
            conditional.append(
                ConditionalEdge(name, PathRouter("r"), (Route("x", targets[0]), Route("y", targets[-1])))
            )
    static = [name for name in NAMES[:-1] if name not in {edge.source for edge in conditional}]
    if len(static) > 1 and draw(st.booleans()):
        waiting.append(
            WaitingEdge(
                tuple(static[:2]),
                NAMES[-1],
                draw(st.sampled_from([JoinPolicy.ANY, JoinPolicy.SKIP_UNREACHABLE])),
            )
        )
    entry = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    nodes = tuple(Node(name, NothingBinding(), deferred=draw(st.booleans())) for name in NAMES)
    channels = (Channel("r"), Channel("log", reducer="append"))
    policy = GraphPolicy(allow_unreachable=True)
    return GraphDefinition(
        "g",
        nodes,
        channels,
        (*(Edge(START, name) for name in entry), *edges),
        tuple(waiting),
        tuple(conditional),
        policy,
    )


@given(sound_graphs(), st.sampled_from(["x", "y"]))
@settings(max_examples=300, deadline=None)
def test_a_sound_graph_runs_to_its_end_in_one_order(whole: GraphDefinition, label: str) -> None:
    graph = compile_graph(whole).graph
    assert graph is not None
    answers = {name: {"log": [name]} for name in NAMES}

    run = PlainRun(graph, answers, {"r": label}).finish(limit=40)

    assert run.work.is_done
    assert run.state.get("log", []) == run.visited
    assert PlainRun(graph, answers, {"r": label}).finish(limit=40).visited == run.visited
    ids = [task.task_id for task in run.tasks]
    assert len(set(ids)) == len(ids)


# --- reducers ------------------------------------------------------------------------------

SCALARS: st.SearchStrategy[JsonValue] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
)
ARRAYS = st.lists(SCALARS, max_size=4)
MESSAGES = st.lists(
    st.fixed_dictionaries({"id": st.sampled_from("abc"), "v": st.integers(0, 3)})
    | st.fixed_dictionaries({"v": st.integers(0, 3)})
    | st.sampled_from("abc").map(lambda id: {"__remove__": id})
    | st.just({"__remove_all__": True}),
    max_size=4,
)


def folded(reducer: str, *updates: Any, **options: Any) -> Any:
    graph = compiled("START->a", channels=(Channel("c", reducer=reducer, **options),))
    return fold(graph, {}, [TaskWrites("a", tuple({"c": update} for update in updates))]).state.get(
        "c", MISSING
    )


@given(ARRAYS, ARRAYS, ARRAYS)
@settings(deadline=None)
def test_append_is_concatenation(one: list[Any], two: list[Any], three: list[Any]) -> None:
    assert folded("append", one, two, three) == [*one, *two, *three]


@given(ARRAYS, ARRAYS)
@settings(deadline=None)
def test_union_is_idempotent_and_keeps_first_seen_order(one: list[Any], two: list[Any]) -> None:
    both = folded("union", one, two)

    assert folded("union", both, one, two) == both
    keys = [identity(element) for element in both]
    assert keys == list(dict.fromkeys(map(identity, [*one, *two])))
    assert folded("union", [*one, *two]) == both


@given(st.lists(st.integers(-1000, 1000) | st.floats(-1e6, 1e6), min_size=1, max_size=6))
@settings(deadline=None)
def test_min_and_max_are_those_of_all(numbers: list[Any]) -> None:
    assert folded("min", *numbers) == min(numbers)
    assert folded("max", *numbers) == max(numbers)


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=6))
@settings(deadline=None)
def test_add_is_the_sum(numbers: list[int]) -> None:
    assert folded("add", *numbers) == sum(numbers)


@given(MESSAGES, MESSAGES)
@settings(deadline=None)
def test_messages_in_one_update_or_in_two_are_the_same(one: list[Any], two: list[Any]) -> None:
    named = [
        {**message, "id": f"n{index}"} if message.keys() == {"v"} else message
        for index, message in enumerate([*one, *two])
    ]
    split = len(one)

    together = folded("messages", named, ignore_unknown_removals=True)
    apart = folded("messages", named[:split], named[split:], ignore_unknown_removals=True)

    assert together == apart
    ids = [message["id"] for message in together]
    assert len(set(ids)) == len(ids)


def folded_or_refused(graph: CompiledGraph, state: dict[str, Any], update: Any) -> Folded | FoldError:
    try:
        return fold(graph, state, [TaskWrites("a", ({"c": update},))])
    except FoldError as error:
        return error


@given(VALUES, VALUES)
@settings(max_examples=200, deadline=None)
def test_whatever_is_written_a_fold_gives_json_or_an_error_and_changes_nothing(
    state: Any, update: Any
) -> None:
    for reducer in (
        "overwrite",
        "any_value",
        "append",
        "add",
        "min",
        "max",
        "union",
        "messages",
        "ephemeral",
        "untracked",
    ):
        graph = compiled("START->a", channels=(Channel("c", reducer=reducer),))
        before = {"c": state}
        text = canonical(before)
        after = folded_or_refused(graph, before, update)
        if not isinstance(after, FoldError):
            canonical(after.state)
            again = fold(graph, before, [TaskWrites("x", after.effective, "other")])
            assert again.state == after.state
        else:
            assert after.reason in {"TYPE_MISMATCH", "REDUCER_FAILED"}
        assert canonical(before) == text


@given(st.permutations(["a", "b", "c"]), st.lists(ARRAYS, min_size=3, max_size=3))
@settings(max_examples=50, deadline=None)
def test_the_fold_follows_the_order_of_tasks_alone(order: list[str], values: list[Any]) -> None:
    graph = compiled("START->a", channels=(Channel("c", reducer="append"),))
    writes = {name: TaskWrites(name, ({"c": value},)) for name, value in zip("abc", values, strict=True)}

    expected = [element for name in order for element in values["abc".index(name)]]
    assert fold(graph, {}, [writes[name] for name in order]).state["c"] == expected


def test_every_pair_of_policies_and_arrivals_ends() -> None:
    for policy, label in product(JoinPolicy, ("x", "y")):
        count = (
            "2"
            if policy is JoinPolicy.N_OF
            else {"any": "ANY", "skip_unreachable": "SKIP"}.get(policy.value, "")
        )
        text = f"START->p, START->q, q?->{{x: r, y: END}}, [p, r]|{count}>j"
        run = PlainRun(compiled(text), given={"route": label})
        if label == "y" and policy in (JoinPolicy.ALL, JoinPolicy.N_OF):
            with pytest.raises(RouteError, match="still waits for r"):
                run.finish()
        else:
            assert run.finish().visited.count("j") == 1
