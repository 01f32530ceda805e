"""The graph as text, whatever names users give to tools and fields."""

import json
import re

import pytest

from agenttx_server.engine.graph_rendering import dot, mermaid, to_json
from agenttx_server.engine.records import DependencyKind, Edge, EffectClass, PathElement
from agenttx_server.engine.requests import GraphView, RootCause, StepNode

VIEW = GraphView(
    nodes=(
        StepNode(2, 1, "create_user", EffectClass.TRANSACTIONAL),
        StepNode(5, 2, "lookup_owner", EffectClass.READ_ONLY),
        StepNode(9, 1, "insert_order", None),
    ),
    edges=(
        Edge(2, 5, "id", "user", DependencyKind.EXPLICIT),
        Edge(2, 9, "id", "id", DependencyKind.IMPLICIT),
        Edge(5, 9, "owner_id", "user_id", DependencyKind.EXPLICIT),
    ),
)
ROOT = RootCause(
    2, (PathElement(9, "user_id"), PathElement(5, "owner_id"), PathElement(5, "user"), PathElement(2, "id"))
)
HOSTILE = [
    '"]; click s1 "javascript:alert(1)',
    "<script>alert(1)</script>",
    "a\nb\r\n\0end\u2028x",
    "%%{init: {}}%%",
    "#quot;#35;",
    "\\",
    '\\"',
    "`**x**`",
    "]|()[]{}|",
    "style a fill:#fff;",
    "💥" * 200,
]


def test_mermaid_tells_explicit_from_implicit():
    assert mermaid(VIEW) == (
        "flowchart TD\n"
        '  s2["2 create_user"]\n'
        '  s5["5 lookup_owner"]\n'
        '  s9["9 insert_order"]\n'
        '  s2 -->|"id → user"| s5\n'
        '  s2 -.->|"id"| s9\n'
        '  s5 -->|"owner_id → user_id"| s9\n'
    )


def test_mermaid_colours_the_root_and_the_way_to_it():
    assert mermaid(VIEW, ROOT) == mermaid(VIEW) + (
        "  classDef way stroke:#c60,stroke-width:3px\n"
        "  class s5,s9 way\n"
        "  classDef root fill:#fdd,stroke:#c00,stroke-width:3px\n"
        "  class s2 root\n"
    )


def test_dot_tells_explicit_from_implicit_and_colours_the_root():
    text = dot(VIEW, ROOT)
    assert text.startswith("digraph dependencies {\n")
    assert '  s2 [label="2 create_user", color="#cc0000", style=filled, fillcolor="#ffdddd"];\n' in text
    assert '  s5 [label="5 lookup_owner", color="#cc6600"];\n' in text
    assert '  s2 -> s9 [label="id", style=dashed];\n' in text
    assert '  s5 -> s9 [label="owner_id → user_id"];\n}\n' in text
    assert "color" not in dot(VIEW)


def test_json_holds_everything():
    graph = json.loads(to_json(VIEW, ROOT))
    assert graph["nodes"][1] == {
        "step_id": 5,
        "attempt": 2,
        "tool_name": "lookup_owner",
        "effect_class": "READ_ONLY",
        "state": "COMPLETED",
    }
    assert graph["edges"][1] == {
        "from_step": 2,
        "to_step": 9,
        "source_key": "id",
        "target_key": "id",
        "kind": "IMPLICIT",
    }
    assert graph["root_cause"]["step_id"] == 2
    assert graph["root_cause"]["path"][-1] == {"step_id": 2, "key": "id"}
    assert "root_cause" not in json.loads(to_json(VIEW))


def test_a_root_that_was_not_found_colours_nothing():
    assert mermaid(VIEW, RootCause(None)) == mermaid(VIEW)
    assert dot(VIEW, RootCause(None)) == dot(VIEW)


def test_steps_outside_the_view_are_bare_numbers():
    view = GraphView(nodes=VIEW.nodes[1:], edges=VIEW.edges)
    assert '  s2["2"]\n' in mermaid(view)
    assert '  s2 [label="2"];\n' in dot(view)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_ends_its_label_or_its_line(name):
    view = GraphView(
        (StepNode(1, 1, name, None), StepNode(2, 1, "b", None)),
        (Edge(1, 2, name, name + "x", DependencyKind.EXPLICIT),),
    )
    node, other, edge = mermaid(view).splitlines()[1:]
    assert re.fullmatch(r'  s1\["1 (?:\w|[ ,./→-]|#\d+;)*"\]', node)
    assert other == '  s2["2 b"]'
    assert re.fullmatch(r'  s1 -->\|"(?:\w|[ ,./→-]|#\d+;)*"\| s2', edge)

    node, other, edge = dot(view).splitlines()[2:-1]
    assert re.fullmatch(r'  s1 \[label="1 (?:[^"\\]|\\["\\])*"\];', node)
    assert re.fullmatch(r'  s1 -> s2 \[label="(?:[^"\\]|\\["\\])*"\];', edge)
    assert all(character.isprintable() for character in node + edge)

    assert json.loads(to_json(view))["nodes"][0]["tool_name"] == name
