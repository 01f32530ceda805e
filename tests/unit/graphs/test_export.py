"""Export: E1 … E6, goldens, JSON and back, and what is no graph."""

from __future__ import annotations

import json

import pytest
from tests.support.graph_definitions import definition

from agenttx_server.graphs.compiler import compile_graph
from agenttx_server.graphs.definition import (
    CachePolicy,
    Channel,
    ConditionalEdge,
    Edge,
    ExpressionRouter,
    FailurePolicy,
    FunctionBinding,
    FunctionRouter,
    GraphDefinition,
    GraphPolicy,
    JoinPolicy,
    Node,
    NodeRetryPolicy,
    NothingBinding,
    PathRouter,
    Route,
    SubgraphBinding,
    SubgraphMode,
    ToolBinding,
    WaitingEdge,
)
from agenttx_server.graphs.definition_json import from_json, to_json
from agenttx_server.graphs.dot import to_dot
from agenttx_server.graphs.errors import DefinitionRefused
from agenttx_server.graphs.mermaid import to_mermaid

EVEN_ODD = "START->route, route?->{even: even, odd: odd}"

EVERYTHING = GraphDefinition(
    name="support",
    description="All that a graph can say",
    nodes=(
        Node(
            "tool",
            ToolBinding("mail.send", {"to": "${state.to}", "n": [1, 2.5, None]}, {"to": "${result.to}"}),
            reads=("to",),
            writes=("to", "log"),
            retry=NodeRetryPolicy(3, 1, 1.5, 9, ("timeout",)),
            run_timeout_us=1_000_000,
            idle_timeout_us=5,
            error_handler="handler",
            cache=CachePolicy(("to",), 60),
            max_visits=4,
            deferred=True,
            label='Send "it" <now>',
        ),
        Node("handler", FunctionBinding("support/handler"), destinations=("tool", "__end__")),
        Node("anywhere", NothingBinding(), destinations=()),
        Node("child", SubgraphBinding("inner", "v1", SubgraphMode.ADAPTER, {"a": "to"}, {"to": "a"}, "key")),
        Node("shared", SubgraphBinding("inner")),
        Node("unbound"),
    ),
    channels=(
        Channel("to", "overwrite", "", "string", ""),
        Channel("log", "append", scalars=True, default=[]),
        Channel("m", "messages", type="array", ignore_unknown_removals=True),
        Channel("mine", "longest", "3", default=None),
    ),
    edges=(Edge("__start__", "tool"), Edge("__start__", "child"), Edge("shared", "__end__")),
    waiting_edges=(
        WaitingEdge(("tool", "child"), "shared", JoinPolicy.N_OF, 1),
        WaitingEdge(("tool",), "unbound", JoinPolicy.SKIP_UNREACHABLE),
    ),
    conditional_edges=(
        ConditionalEdge(
            "unbound", ExpressionRouter("state.to"), (Route("a", "tool"), Route("b", "__end__")), ("a",)
        ),
        ConditionalEdge("x", PathRouter("a.b"), (Route("", "tool"),)),
        ConditionalEdge("y", FunctionRouter("f")),
    ),
    policy=GraphPolicy(False, FailurePolicy.ROLLBACK, 5, 6, 7, True, ("tool",), ("*",)),
)


def test_e1_json() -> None:
    exported = json.loads(to_json(definition(EVEN_ODD)))

    assert [node["name"] for node in exported["nodes"]] == ["even", "odd", "route"]
    assert exported["edges"] == []
    assert exported["finish_nodes"] == ["even", "odd"]
    assert exported["entry"] == ["route"]
    assert set(exported) == {
        "name", "nodes", "edges", "conditional_edges", "waiting_edges", "entry", "finish_nodes", "channels", "policy", "findings",
    }  # fmt: skip


def test_e2_mermaid() -> None:
    assert to_mermaid(definition(EVEN_ODD)) == (
        "flowchart TD\n"
        "    START([START])\n"
        "    END([END])\n"
        '    n_even["even"]\n'
        '    n_odd["odd"]\n'
        '    n_route["route"]\n'
        "    START --> n_route\n"
        "    n_route -- even --> n_even\n"
        "    n_route -- odd --> n_odd\n"
    )


def test_every_kind_of_edge_in_mermaid() -> None:
    drawn = to_mermaid(definition("START->p, START->q, [p, q]|>j, j=>[p, END]"))

    assert drawn.splitlines()[6:] == [
        "    START --> n_p",
        "    START --> n_q",
        "    n_p -. barrier .-> n_j",
        "    n_q -. barrier .-> n_j",
        "    n_j -. goto .-> n_p",
        "    n_j -. goto .-> END",
    ]


def test_e4_commands() -> None:
    whole = definition("START->c, c=>[a, b]")

    assert to_mermaid(whole).count("-. goto .->") == 2
    assert {node["name"]: node["routing"] for node in json.loads(to_json(whole))["nodes"]} == {
        "a": "none", "b": "none", "c": "command",
    }  # fmt: skip


def test_e5_json_and_back() -> None:
    assert from_json(to_json(EVERYTHING)) == EVERYTHING
    assert to_json(from_json(to_json(EVERYTHING))) == to_json(EVERYTHING)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "not a graph: .*line 1, column 1"),
        ("[]", "is an object"),
        ("{}", "name: is required"),
        ('{"name": "g", "nodes": [{"name": 1}]}', r"nodes\[0\].name: is a string"),
        ('{"name": "g", "nodes": [{"name": "a", "speed": 1}]}', r"nodes\[0\].speed: is no field"),
        ('{"name": "g", "nodes": {}}', "nodes: is an array"),
        ('{"name": "g", "extra": 1}', "extra: is no field"),
        ('{"name": "g", "nodes": [{"name": "a", "function": "f", "none": true}]}', "more than one"),
        ('{"name": "g", "nodes": [{"name": "a", "tool": {"name": "t", "arguments": []}}]}', "is an object"),
        (
            '{"name": "g", "waiting_edges": [{"members": [], "target": "a", "policy": "SOME"}]}',
            "is one of all",
        ),
        (
            '{"name": "g", "conditional_edges": [{"source": "a"}]}',
            "exactly one of expression, path and function",
        ),
        ('{"name": "g", "policy": {"recursion_limit": -1}}', "integer from 0"),
        ('{"name": "g", "policy": {"checkpoints": 1}}', "true or false"),
        ('{"name": "g", "name": "h"}', "twice"),
        ('{"name": "' + "x" * (1 << 20) + '"}', "longer than"),
    ],
)
def test_what_is_no_graph_is_said_with_its_place(text: str, message: str) -> None:
    with pytest.raises(DefinitionRefused, match=message):
        from_json(text)


def test_e6_names_that_are_alike_get_ids_of_their_own() -> None:
    drawn = to_mermaid(definition("START->a-b, START->a_b, START->a_b_2, START->a.b"))

    ids = [line.split("[")[0].strip() for line in drawn.splitlines() if '["' in line]
    assert len(set(ids)) == 4
    assert ids[:2] == ["n_a_b", "n_a_b_2"]


def test_labels_cannot_leave_their_place() -> None:
    hostile = 'x"] --> n_evil\n%%{init: {}}%% <script> & `y`'
    whole = GraphDefinition(
        "g",
        (Node("a", NothingBinding(), label=hostile), Node("b", SubgraphBinding("c"))),
        edges=(Edge("__start__", "a"),),
        conditional_edges=(
            ConditionalEdge("a", PathRouter("p"), (Route(hostile, "b"), Route("plain one", "b"))),
        ),
    )

    lines = to_mermaid(whole).splitlines()

    assert len(lines) == 8
    assert "n_a -- plain one --> n_b" in lines[7]
    assert '    n_b[["b"]]' in lines
    for line in (lines[3], lines[6]):
        assert line.count('"') == 2
        assert "&quot;]" in line
        assert "<script>" not in line


def test_dot() -> None:
    assert to_dot(definition("START->a, a?->{x: b}, [a, b]|>c, c=>[END]")) == (
        'digraph "g" {\n'
        '  node [shape=box, fontname="sans-serif"];\n'
        '  "__start__" [label=START, shape=oval];\n'
        '  "__end__" [label=END, shape=oval];\n'
        '  "a" [label="a"];\n'
        '  "b" [label="b"];\n'
        '  "c" [label="c"];\n'
        '  "__start__" -> "a";\n'
        '  "a" -> "b" [label="x"];\n'
        '  "a" -> "c" [label=barrier, style=dashed];\n'
        '  "b" -> "c" [label=barrier, style=dashed];\n'
        '  "c" -> "__end__" [label=goto, style=dotted];\n'
        "}\n"
    )


def test_findings_are_exported_and_not_read_back() -> None:
    whole = definition("START->a", nodes={"a": {"binding": None}})
    exported = to_json(whole, compile_graph(whole).findings)

    assert json.loads(exported)["findings"] == [
        {
            "code": "UNBOUND",
            "where": "node a",
            "message": "node 'a' has nothing to run",
            "severity": "warning",
        }
    ]
    assert from_json(exported) == whole
