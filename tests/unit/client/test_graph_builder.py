"""What a builder writes down."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest

from agenttx import (
    END,
    NOTHING,
    REMOVE_ALL_MESSAGES,
    START,
    CachePolicy,
    Command,
    Function,
    GraphBuilder,
    NodeRetry,
    Overwrite,
    Path,
    RemoveMessage,
    Send,
    Subgraph,
    ToolCall,
)
from agenttx.errors import InvalidValue
from agenttx.graph_results import result_as_json
from agenttx.v1 import graph_pb2 as pb


class Verdict(StrEnum):
    APPROVE = "APPROVE"
    REJECT = "REJECT"


def agent(state: Any, ctx: Any) -> Any: ...


def judge(state: Any) -> Verdict: ...


def test_functions_are_known_by_graph_and_node():
    builder = GraphBuilder("my graph").node("agent", agent).node("later").node("other", Function("elsewhere"))

    assert builder.functions == {"my_graph/agent": agent, "my_graph/later": None, "elsewhere": None}
    builder.bind("later", agent)
    assert builder.functions["my_graph/later"] is agent
    with pytest.raises(InvalidValue, match="waits for a function"):
        builder.bind("missing", agent)


def test_two_functions_of_one_name_are_refused():
    with pytest.raises(InvalidValue, match="name of its own"):
        GraphBuilder("g").node("a b", agent).node("a_b", judge)


def test_every_binding():
    graph = (
        GraphBuilder("g")
        .node("t", ToolCall("mail.send", {"to": "${state.to}"}, {"sent": "${result.ok}"}))
        .node("s", Subgraph("inner", "v1", {"a": "b"}, {"b": "a"}, "key"))
        .node("shared", Subgraph("inner"))
        .node("n", NOTHING)
        .definition()
    )

    assert [node.WhichOneof("binding") for node in graph.nodes] == ["tool", "subgraph", "subgraph", "none"]
    assert graph.nodes[0].tool.arguments_json == '{"to":"${state.to}"}'
    assert dict(graph.nodes[0].tool.output) == {"sent": "${result.ok}"}
    assert graph.nodes[1].subgraph.mode == pb.SUBGRAPH_MODE_ADAPTER
    assert graph.nodes[2].subgraph.mode == pb.SUBGRAPH_MODE_SHARED


def test_everything_about_a_node():
    (node,) = (
        GraphBuilder("g")
        .node(
            "a",
            agent,
            reads=["x"],
            writes=["y"],
            retry=NodeRetry(3, 1, 1.5, 9, ["timeout"]),
            run_timeout=2.5,
            idle_timeout=1,
            error_handler="h",
            cache=CachePolicy(["x"], 60),
            max_visits=4,
            deferred=True,
            destinations=["b", END],
            label="An agent",
        )
        .definition()
        .nodes
    )

    assert node.retry.max_attempts == 3
    assert node.run_timeout.ToMilliseconds() == 2500
    assert node.cache.ttl.seconds == 60
    assert list(node.commands.destinations) == ["b", "__end__"]
    assert GraphBuilder("g").node("a", retry=5).definition().nodes[0].retry.max_attempts == 5


def test_destinations_may_be_declared_to_be_any():
    declared = GraphBuilder("g").node("a", destinations=[]).node("b").definition().nodes

    assert [node.HasField("commands") for node in declared] == [True, False]


def test_routers():
    edges = (
        GraphBuilder("g")
        .conditional("a", "state.n > 1", {True: "b", False: END})
        .conditional("b", Path("decision.kind"), ["c", "d"])
        .conditional("c", judge, {Verdict.APPROVE: "d", "REJECT": END})
        .conditional("d", Function("f"), labels=["x"])
        .conditional("e", lambda state: "x")
        .definition()
        .conditional_edges
    )

    assert [edge.WhichOneof("router") for edge in edges] == ["expression", "path", *["function_name"] * 3]
    assert [(route.label, route.target) for route in edges[0].routes] == [("true", "b"), ("false", "__end__")]
    assert [(route.label, route.target) for route in edges[1].routes] == [("c", "c"), ("d", "d")]
    assert [route.label for route in edges[2].routes] == ["APPROVE", "REJECT"]
    assert list(edges[2].labels) == ["APPROVE", "REJECT"]
    assert edges[2].function_name == "g/c.route"
    assert list(edges[3].labels) == ["x"]
    assert list(edges[4].labels) == []


def test_edges_joins_and_policies():
    graph = (
        GraphBuilder("g")
        .edge(START, "b", "a")
        .join(["a", "b"], "c", "n_of", count=1)
        .interrupt(before=["a"], after="*")
        .policy(checkpoints=False, on_failure="rollback", recursion_limit=7)
        .channel("x", default=None)
        .channel("y")
        .definition()
    )

    assert [edge.target for edge in graph.edges] == ["b", "a"]
    assert graph.waiting_edges[0].policy == pb.JOIN_POLICY_N_OF
    assert list(graph.policy.interrupt_before) == ["a"]
    assert list(graph.policy.interrupt_after) == ["*"]
    assert graph.policy.checkpoints == pb.CHECKPOINT_POLICY_OFF
    assert graph.policy.on_failure == pb.GRAPH_FAILURE_POLICY_ROLLBACK
    assert [channel.default_json for channel in graph.channels] == ["null", ""]


@pytest.mark.parametrize("word", ["SOME", "UNSPECIFIED", ""])
def test_a_policy_that_there_is_not(word: str):
    with pytest.raises(InvalidValue, match="is none of ALL, ANY, N_OF, SKIP_UNREACHABLE"):
        GraphBuilder("g").join(["a"], "b", word)


def test_a_definition_is_a_copy():
    builder = GraphBuilder("g").node("a")
    before = builder.definition()
    builder.node("b")

    assert len(before.nodes) == 1


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        ({"v": 1}, {"v": 1}),
        (Command({"v": Overwrite([1])}, "b"), {"__command__": {"goto": ["b"], "update": {"v": {"__overwrite__": [1]}}}}),
        (Command(goto=Send("b", {"x": 1})), {"__command__": {"goto": [{"node": "b", "arg": {"x": 1}}]}}),
        (Command(goto=["a", Send("b", None)], parent=True), {"__command__": {"goto": ["a", {"node": "b", "arg": None}], "graph": "PARENT"}}),
        ([{"v": 1}, Command()], [{"v": 1}, {"__command__": {"goto": []}}]),
        ({"m": [RemoveMessage("1"), REMOVE_ALL_MESSAGES]}, {"m": [{"__remove__": "1"}, {"__remove_all__": True}]}),
        ([Send("a", 1), "label"], [{"node": "a", "arg": 1}, "label"]),
    ],
)  # fmt: skip
def test_results_as_the_server_reads_them(result: Any, expected: Any):
    assert result_as_json(result) == expected
