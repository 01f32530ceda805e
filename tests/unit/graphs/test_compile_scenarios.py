"""Scenarios about validation: V1 … V19, and every finding once."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from tests.support.graph_definitions import APP, OW, SUM, codes, compiled, definition

from agenttx_server.graphs.catalog import KnownGraphs
from agenttx_server.graphs.compiler import compile_graph
from agenttx_server.graphs.definition import (
    END,
    START,
    CachePolicy,
    Channel,
    ConditionalEdge,
    Edge,
    ExpressionRouter,
    FunctionBinding,
    FunctionRouter,
    GraphDefinition,
    GraphPolicy,
    Node,
    NodeRetryPolicy,
    NothingBinding,
    PathRouter,
    Route,
    SubgraphBinding,
    SubgraphMode,
    ToolBinding,
)
from agenttx_server.graphs.findings import Severity
from agenttx_server.graphs.reducers import CustomReducer, ReducerRegistry


def messages(text: str, **options: object) -> str:
    found = compile_graph(definition(text, **options)).findings  # type: ignore[arg-type]
    return " | ".join(f"{finding.code} {finding.where}: {finding.message}" for finding in found)


def test_v1_no_reducer_set_is_overwrite() -> None:
    graph = compiled("START->a", channels=(Channel("value"),))

    assert graph.reducers["value"].name == "overwrite"


VALIDATION = [
    ("V2", "a", {}, "MISSING_START", ""),
    ("V4", "START->a, a->b, a=>[b]", {}, "MIXED_ROUTING", "'a'"),
    ("V5", "START->a, a->b, a?->{x: b}", {}, "MIXED_ROUTING", "'a'"),
    ("V6", "START->a, a?->{x: missing}", {}, "ROUTE_TARGET_MISSING", "'missing'"),
    ("V7", "START->a, orphan", {}, "UNREACHABLE_NODE", "'orphan'"),
    ("V9 source", "START->a, END->a", {}, "END_AS_SOURCE", ""),
    ("V9 target", "START->a, a->START", {}, "START_AS_TARGET", ""),
    ("V11 reserved", "START->a", {"nodes": {"__end__": {}}}, "RESERVED_NAME", "__end__"),
    ("V11 colon", "START->x:y", {}, "INVALID_NAME", "':'"),
    ("V11 bar", "START->a", {"nodes": {"x|y": {}}}, "INVALID_NAME", "'|'"),
    ("V12 empty", "START->a", {"nodes": {"": {}}}, "INVALID_NAME", "empty"),
    ("V12 blank", "START->a", {"nodes": {"  ": {}}}, "INVALID_NAME", "blank"),
    (
        "V14",
        "START->a",
        {"policy": GraphPolicy(interrupt_before=("nope",))},
        "INTERRUPT_NODE_MISSING",
        "'nope'",
    ),
    ("V17", "START->a, a=>[nope]", {}, "COMMAND_DEST_MISSING", "'nope'"),
    (
        "V19",
        "START->a",
        {"policy": GraphPolicy(checkpoints=False, interrupt_before=("a",))},
        "INTERRUPT_WITHOUT_CHECKPOINTS",
        "",
    ),
]


@pytest.mark.parametrize(
    ("text", "options", "code", "named"), [row[1:] for row in VALIDATION], ids=[r[0] for r in VALIDATION]
)
def test_a_graph_that_is_not_sound_is_refused(
    text: str, options: dict[str, object], code: str, named: str
) -> None:
    if code == "COMMAND_DEST_MISSING" or code == "ROUTE_TARGET_MISSING":
        # The notation makes a node of every name; here one must be missing.
        whole = definition(text, **options)  # type: ignore[arg-type]
        whole = whole.with_nodes(tuple(node for node in whole.nodes if node.name not in ("missing", "nope")))
        found = compile_graph(whole)
    else:
        found = compile_graph(definition(text, **options))  # type: ignore[arg-type]

    assert found.graph is None
    assert any(
        finding.code == code and named in f"{finding.where} {finding.message}" for finding in found.errors
    )


def test_v7_an_unreachable_node_may_be_allowed() -> None:
    assert "UNREACHABLE_NODE" not in codes("START->a, orphan", policy=GraphPolicy(allow_unreachable=True))


def test_v10_two_nodes_of_one_name() -> None:
    twice = GraphDefinition(
        "g", (Node("a", NothingBinding()), Node("a", FunctionBinding("f"))), edges=(Edge(START, "a"),)
    )

    assert [finding.code for finding in compile_graph(twice).errors] == ["DUPLICATE_NODE"]


def test_v15_a_join_waits_for_a_node_that_is_missing() -> None:
    whole = definition("START->a, [a, nope]|>j")
    whole = whole.with_nodes(tuple(node for node in whole.nodes if node.name != "nope"))

    assert "BARRIER_MEMBER_MISSING" in [finding.code for finding in compile_graph(whole).errors]


def test_v16_a_compiled_graph_stays_what_it_is() -> None:
    whole = definition("START->a, a->b", channels=OW)
    graph = compile_graph(whole).graph
    assert graph is not None
    version = graph.version

    more = replace(whole, edges=(*whole.edges, Edge("b", END)))

    assert graph.version == version
    assert compile_graph(more).graph != graph
    assert compile_graph(definition("START->a, a->b", channels=OW)).graph == graph


def test_the_version_does_not_depend_on_the_order_of_nodes_and_channels() -> None:
    channels = (Channel("x"), Channel("y", reducer="add"))
    one = compiled("START->a, START->b, b->c, a->c", channels=channels)
    other = compiled("c, b, a, START->a, START->b, a->c, b->c", channels=channels[::-1])

    assert one.version == other.version
    assert compiled("START->b, START->a, b->c, a->c", channels=channels).version != one.version


def _node(**fields: object) -> dict[str, dict[str, object]]:
    return {"a": fields}


FINDINGS = [
    ("START->END, START->a", {}, "START_TO_END"),
    ("START->a, START->a", {}, "DUPLICATE_EDGE"),
    ("START->a, a->b, b->c, [a, b]|>c, [b, a]|>c", {}, "DUPLICATE_EDGE"),
    ("START->a, [a, j]|>j", {}, "BARRIER_SELF"),
    ("START->a, a->b, [a, b]|5>j", {}, "LIMIT_OUT_OF_RANGE"),
    ("START->a", {"channels": (Channel("x", reducer="nope"),)}, "REDUCER_UNKNOWN"),
    ("START->a", {"channels": (Channel("x", reducer="add", reducer_version="2"),)}, "REDUCER_UNKNOWN"),
    ("START->a", {"channels": (Channel("x", reducer="append", type="string"),)}, "REDUCER_TYPE_MISMATCH"),
    ("START->a", {"channels": (Channel("x", type="date"),)}, "REDUCER_TYPE_MISMATCH"),
    ("START->a", {"channels": (Channel("x", type="integer", default=1.5),)}, "REDUCER_TYPE_MISMATCH"),
    ("START->a", {"channels": (Channel("x", reducer="add", default=[]),)}, "REDUCER_TYPE_MISMATCH"),
    ("START->a", {"channels": (Channel("x", reducer="union", default=[1, 1]),)}, "REDUCER_TYPE_MISMATCH"),
    (
        "START->a",
        {"channels": (Channel("x", reducer="messages", default=[{"role": "u"}]),)},
        "REDUCER_TYPE_MISMATCH",
    ),
    ("START->a", {"channels": (Channel("x", scalars=True),)}, "REDUCER_TYPE_MISMATCH"),
    ("START->a", {"channels": (Channel("x"), Channel("x"))}, "CHANNEL_REDEFINED"),
    ("START->a", {"channels": (Channel("__x__"),)}, "RESERVED_NAME"),
    ("START->a", {"nodes": _node(max_visits=0)}, "LIMIT_OUT_OF_RANGE"),
    ("START->a", {"nodes": _node(run_timeout_us=0)}, "LIMIT_OUT_OF_RANGE"),
    ("START->a", {"nodes": _node(retry=NodeRetryPolicy(0))}, "LIMIT_OUT_OF_RANGE"),
    (
        "START->a",
        {"nodes": _node(retry=NodeRetryPolicy(2, backoff_factor=float("nan")))},
        "LIMIT_OUT_OF_RANGE",
    ),
    ("START->a", {"nodes": _node(cache=CachePolicy(("nope",)))}, "UNKNOWN_CHANNEL"),
    ("START->a", {"nodes": _node(writes=("nope",))}, "UNKNOWN_CHANNEL"),
    ("START->a", {"nodes": _node(error_handler="nope")}, "EDGE_TARGET_MISSING"),
    ("START->a", {"nodes": _node(binding=ToolBinding("t", {"x": "${state.nope}"}))}, "UNKNOWN_CHANNEL"),
    (
        "START->a",
        {"nodes": _node(binding=ToolBinding("t", {}, {"x": "result"})), "channels": (Channel("x"),)},
        "EXPRESSION_INVALID",
    ),
    ("START->a", {"nodes": _node(binding=FunctionBinding("no spaces"))}, "INVALID_NAME"),
    ("START->a", {"policy": GraphPolicy(recursion_limit=0)}, "LIMIT_OUT_OF_RANGE"),
    ("START->a", {"policy": GraphPolicy(max_total_steps=10**7)}, "LIMIT_OUT_OF_RANGE"),
    ("START->a", {"nodes": _node(binding=SubgraphBinding("nope"))}, "SUBGRAPH_MISSING"),
    ("START->a", {"nodes": _node(binding=SubgraphBinding("g"))}, "SUBGRAPH_CYCLE"),
    # warnings
    ("START->a", {"nodes": _node(binding=None)}, "UNBOUND"),
    ("START->a, START->b, b->END", {}, "DEAD_END"),
    ("START->a, a->b, b->a", {}, "CYCLE_WITHOUT_EXIT"),
    ("START->a, a->b, b->a", {}, "NO_PATH_TO_END"),
    ("START->a, a=>[]", {}, "UNDECLARED_GOTO"),
    ("START->a, a?->{x: b, y: c}, [b, c]|>j", {}, "JOIN_MAY_STARVE"),
    ("START->a, a->b, a->c, b->d, d->j, c->j", {}, "UNEQUAL_FAN_IN"),
]


@pytest.mark.parametrize(("text", "options", "code"), FINDINGS)
def test_every_finding_is_found(text: str, options: dict[str, object], code: str) -> None:
    assert code in codes(text, **options)


def test_an_empty_graph() -> None:
    assert [finding.code for finding in compile_graph(GraphDefinition("g", ())).errors] == ["EMPTY_GRAPH"]


def _routed(edge: ConditionalEdge) -> list[str]:
    whole = definition("START->a, b, a->b", channels=(Channel("x"),))
    whole = replace(
        whole,
        edges=(Edge(START, "a"),),
        conditional_edges=(edge,),
        policy=GraphPolicy(allow_unreachable=True),
    )
    return [finding.code for finding in compile_graph(whole).errors]


@pytest.mark.parametrize(
    ("edge", "code"),
    [
        (ConditionalEdge("a", PathRouter("x"), ()), "ROUTE_TABLE_EMPTY"),
        (ConditionalEdge("a", PathRouter("x"), (Route("l", "b"), Route("l", "b"))), "DUPLICATE_ROUTE_LABEL"),
        (ConditionalEdge("a", PathRouter("x"), (Route("l", START),)), "START_AS_TARGET"),
        (ConditionalEdge("a", ExpressionRouter("state.x >"), (Route("l", "b"),)), "EXPRESSION_INVALID"),
        (ConditionalEdge("a", ExpressionRouter("1 + 1"), (Route("l", "b"),)), "EXPRESSION_INVALID"),
        (ConditionalEdge("a", ExpressionRouter("stat.x"), (Route("l", "b"),)), "EXPRESSION_INVALID"),
        (ConditionalEdge("a", PathRouter("y.z"), (Route("l", "b"),)), "EXPRESSION_INVALID"),
        (ConditionalEdge("a", PathRouter("x..z"), (Route("l", "b"),)), "EXPRESSION_INVALID"),
        (ConditionalEdge("a", FunctionRouter("f"), (Route("A", "b"),), ("A", "R")), "ROUTE_LABEL_MISSING"),
        (ConditionalEdge("nope", PathRouter("x"), (Route("l", "b"),)), "EDGE_SOURCE_MISSING"),
        (ConditionalEdge(START, PathRouter("x"), (Route("l", "b"),)), "EDGE_SOURCE_MISSING"),
    ],
)
def test_conditional_edges(edge: ConditionalEdge, code: str) -> None:
    assert code in _routed(edge)


def test_a_function_that_answers_sends_needs_no_table() -> None:
    assert _routed(ConditionalEdge("a", FunctionRouter("f"))) == []


def test_r5_a_table_without_a_declared_label() -> None:
    router = ExpressionRouter("state.x > 0 ? 'APPROVE' : 'REJECT'")
    labels = ("APPROVE", "REJECT")

    assert _routed(ConditionalEdge("a", router, (Route("APPROVE", "b"),), labels)) == ["ROUTE_LABEL_MISSING"]
    assert _routed(ConditionalEdge("a", router, (Route("APPROVE", "b"), Route("REJECT", END)), labels)) == []


def test_all_findings_come_at_once_errors_first() -> None:
    found = compile_graph(
        definition(
            "START->a, a->b, b->a, orphan", channels=(Channel("x", reducer="nope"), Channel("y", type="date"))
        )
    ).findings

    assert [finding.severity for finding in found] == sorted(
        (finding.severity for finding in found), key=lambda severity: severity is Severity.WARNING
    )
    assert {finding.code for finding in found} >= {
        "REDUCER_UNKNOWN",
        "REDUCER_TYPE_MISMATCH",
        "UNREACHABLE_NODE",
        "CYCLE_WITHOUT_EXIT",
    }


def test_names_in_findings_stay_on_one_line() -> None:
    found = compile_graph(definition("START->a", nodes={"x\ny" * 200: {}})).findings

    assert all("\n" not in finding.where and len(finding.where) <= 300 for finding in found)


QUIET = [
    "START->a, a->b, b->END",
    "START->a, a?->{x: b, y: END}, b->a",
    "START->f, f->a, f->b, [a, b]|>j",
    "START->x, x?->{go: f, stop: END}, f->a, f->b, [a, b]|>j, j->END",
    "START->f, f=>[a, b], a->j, b->j",
    "START->r1, START->mid, mid->r2, [r1, r2]|>qa",
]


@pytest.mark.parametrize("text", QUIET)
def test_graphs_as_people_draw_them_are_found_without_fault(text: str) -> None:
    assert codes(text) == []


def test_x24_a_deferred_node_is_no_unequal_fan_in() -> None:
    text = "START->r1, START->mid, mid->r2, r1->qa, r2->qa"

    assert codes(text) == ["UNEQUAL_FAN_IN"]
    assert codes(text, nodes={"qa": {"deferred": True}}) == []


def test_x20_branches_of_unequal_length() -> None:
    assert "UNEQUAL_FAN_IN" in codes("START->start, start=>[p1, inter], inter->p2, p1->join, p2->join")


def test_parallel_writers_of_one_overwrite_channel() -> None:
    nodes = {"a": {"writes": ("v",)}, "b": {"writes": ("v",)}, "c": {"writes": ("v",)}}
    text = "START->a, START->b, a->c, b->END, c->END"

    found = messages(text, channels=(Channel("v"),), nodes=nodes)

    assert found.count("PARALLEL_WRITERS") == 1
    assert "'a' and 'b'" in found
    assert codes(text, channels=(Channel("v", reducer="append"),), nodes=nodes) == []


class TestSubgraphs:
    def compile(
        self, child: GraphDefinition, binding: SubgraphBinding, channels: tuple[Channel, ...] = SUM
    ) -> list[str]:
        inner = compile_graph(child).graph
        assert inner is not None
        whole = definition("START->a", channels=channels, nodes={"a": {"binding": binding}})
        catalog = KnownGraphs({child.name: (inner,)})
        return [finding.code for finding in compile_graph(whole, catalog).findings]

    def test_a_shared_one_works_on_our_channels(self) -> None:
        child = definition("START->c", channels=SUM, name="child")

        assert self.compile(child, SubgraphBinding("child")) == []
        assert self.compile(child, SubgraphBinding("child"), APP) == ["SUBGRAPH_STATE_INCOMPATIBLE"]
        assert self.compile(child, SubgraphBinding("child"), OW) == ["CHANNEL_REDEFINED"]
        assert self.compile(child, SubgraphBinding("child", version="v0")) == ["SUBGRAPH_MISSING"]

    def test_an_adapted_one_has_mapped_channels(self) -> None:
        child = definition("START->c", channels=(Channel("score"),), name="child")
        good = SubgraphBinding(
            "child", mode=SubgraphMode.ADAPTER, input={"score": "value"}, output={"value": "score"}
        )

        assert self.compile(child, good) == []
        for broken in (
            replace(good, input={"nope": "value"}),
            replace(good, input={"score": "nope"}),
            replace(good, output={"value": "nope"}),
            replace(good, output={"nope": "score"}),
        ):
            assert self.compile(child, broken) == ["SUBGRAPH_STATE_INCOMPATIBLE"]

    def test_its_version_is_pinned(self) -> None:
        child = compile_graph(definition("START->c", channels=SUM, name="child")).graph
        assert child is not None
        whole = definition("START->a", channels=SUM, nodes={"a": {"binding": SubgraphBinding("child")}})

        graph = compile_graph(whole, KnownGraphs({"child": (child,)})).graph

        assert graph is not None
        binding = graph.nodes["a"].binding
        assert isinstance(binding, SubgraphBinding)
        assert binding.version == child.version

    def test_a_cycle_over_others(self) -> None:
        inner = compile_graph(definition("START->c", name="inner")).graph
        assert inner is not None
        middle = definition("START->m", name="middle", nodes={"m": {"binding": SubgraphBinding("inner")}})
        catalog = KnownGraphs({"inner": (inner,)})
        between = compile_graph(middle, catalog).graph
        assert between is not None

        again = definition("START->c", name="inner", nodes={"c": {"binding": SubgraphBinding("middle")}})
        found = compile_graph(again, KnownGraphs({"middle": (between,), "inner": (inner,)}))

        assert [finding.code for finding in found.errors] == ["SUBGRAPH_CYCLE"]


def test_a_custom_reducer_is_pinned_to_its_version() -> None:
    registry = ReducerRegistry(
        (
            CustomReducer("last", "1", lambda current, update: update),
            CustomReducer("last", "2", lambda current, update: current),
        )
    )
    graph = compile_graph(
        definition("START->a", channels=(Channel("x", reducer="last"),)), None, registry
    ).graph

    assert graph is not None
    assert graph.channels["x"].reducer_version == "2"


@pytest.mark.parametrize("shape", ["chain", "fan", "dense", "conditional"])
def test_graphs_as_large_as_may_be_are_compiled(shape: str) -> None:
    # Each took minutes while what is certain to run, or ways of unequal length, were found by trying all.
    names = [f"n{number}" for number in range(900)]
    nodes = {name: {"writes": ("v",)} for name in names}
    following = ", ".join(f"{a}->{b}" for a, b in itertools.pairwise(names))
    text = {
        "chain": f"START->n0, {following}, [n1, n2]|>j",
        "fan": ", ".join(f"START->{name}" for name in names) + f", [{', '.join(names)}]|>j",
        "dense": "START->n0, "
        + ", ".join(f"{a}->n{(i * 7 + k * 13 + 1) % 900}" for i, a in enumerate(names) for k in range(8)),
        "conditional": "START->n0, "
        + ", ".join(f"{a}?->{{x: {b}, y: n0}}" for a, b in itertools.pairwise(names)),
    }[shape]

    found = compile_graph(
        definition(text, channels=(Channel("v"),), nodes=nodes, policy=GraphPolicy(allow_unreachable=True))
    )

    assert found.graph is not None
    assert sum(finding.code == "PARALLEL_WRITERS" for finding in found.findings) <= 1
