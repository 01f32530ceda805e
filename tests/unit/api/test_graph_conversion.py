"""Graph definitions keep everything on their way over the wire."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.test_graphs import definitions
from tests.unit.graphs.test_export import EVERYTHING

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.message_conversion.graph_definitions import definition_from, definition_to
from agenttx_server.api.message_conversion.graphs import check_named, sent_definition
from agenttx_server.api.message_conversion.request_reader import RequestReader
from agenttx_server.engine.errors import InvalidRequest
from agenttx_server.graphs.definition import GraphDefinition


def over_the_wire(graph: GraphDefinition) -> GraphDefinition:
    reader = RequestReader()
    message = pb.GraphDefinition.FromString(definition_to(graph).SerializeToString())
    read = definition_from(message, reader, "definition")
    reader.check()
    return read


def test_everything_that_a_graph_can_say() -> None:
    assert over_the_wire(EVERYTHING) == EVERYTHING


@given(definitions())
@settings(max_examples=100, deadline=None)
def test_any_graph(graph: GraphDefinition) -> None:
    assert over_the_wire(graph) == graph


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.GraphDefinition(nodes=[pb.GraphNode(name="a", tool=pb.ToolBinding(arguments_json="[1]"))]), "definition.nodes[0].tool.arguments_json"),
        (pb.GraphDefinition(nodes=[pb.GraphNode(name="a", tool=pb.ToolBinding(arguments_json="{"))]), "definition.nodes[0].tool.arguments_json"),
        (pb.GraphDefinition(channels=[pb.GraphChannel(name="c", default_json='{"a":1,"a":2}')]), "definition.channels[0].default_json"),
        (pb.GraphDefinition(conditional_edges=[pb.ConditionalEdge(source="a")]), "definition.conditional_edges[0]"),
        (pb.GraphDefinition(waiting_edges=[pb.WaitingEdge(policy=99)]), "definition.waiting_edges[0].policy"),  # type: ignore[arg-type]
        (pb.GraphDefinition(policy=pb.GraphPolicy(on_failure=99)), "definition.policy.on_failure"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(message: pb.GraphDefinition, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        sent_definition(pb.ValidateGraphRequest(definition=message))

    assert [violation.field for violation in refused.value.violations][:1] == [field]


def test_a_negative_timeout_is_named() -> None:
    message = pb.GraphDefinition(nodes=[pb.GraphNode(name="a")])
    message.nodes[0].run_timeout.seconds = -1

    with pytest.raises(InvalidRequest, match=r"definition.nodes\[0\].run_timeout"):
        sent_definition(pb.ValidateGraphRequest(definition=message))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ValidateGraphRequest(), "definition"),
        (pb.ValidateGraphRequest(definition=pb.GraphDefinition(), definition_json="{}"), "definition_json"),
        (pb.RegisterGraphRequest(definition_json="{}", request_id="x" * 200), "request_id"),
    ],
)
def test_one_graph_is_sent(request_: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        sent_definition(request_)

    assert [violation.field for violation in refused.value.violations] == [field]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GetGraphRequest(), "name"),
        (pb.ExportGraphRequest(name="g", format=99), "format"),  # type: ignore[arg-type]
        (pb.ExportGraphRequest(name="g", definition=pb.GraphDefinition()), "name"),
        (pb.DiffGraphsRequest(name="g", to_version="v", definition=pb.GraphDefinition()), "to_version"),
    ],
)
def test_one_graph_is_meant(request_: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_named(request_)

    assert [violation.field for violation in refused.value.violations] == [field]


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_hostile_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        message = pb.GraphDefinition.FromString(data)
    except Exception:
        return
    reader = RequestReader()
    definition_from(message, reader, "definition")
