"""The parts of mounted MCP tools that need no server: undo templates, answers, schemas."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttx_server.engine.ports import ArgumentsRefused, ReportedFailure, ToolFailure
from agenttx_server.mcp_servers import McpServer, McpServerRules
from agenttx_server.tools.mcp_client.argument_check import refusal
from agenttx_server.tools.mcp_client.offered_tools import OfferedTool, offered
from agenttx_server.tools.mcp_client.results import output_of, raise_if_failed
from agenttx_server.tools.mcp_client.templates import TemplateFailed, filled, needs_result
from agenttx_server.tools.mcp_client.watched_transport import readable_tools

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_a_place_that_stands_alone_keeps_its_type(value):
    assert filled({"x": ["${result.a.0}"]}, {}, {"a": [value]}) == {"x": [value]}


def test_places_in_text_are_written_out():
    assert filled("${arguments.a}/${result.n}", {"a": "x"}, {"n": 7}) == "x/7"


@pytest.mark.parametrize("template", ["${result.b}", "${result.a.5}", "${arguments.a.b}"])
def test_a_place_that_leads_nowhere_is_named(template):
    with pytest.raises(TemplateFailed, match="leads to nothing"):
        filled([template], {"a": 1}, {"a": [1]})


def test_only_results_have_to_be_waited_for():
    assert needs_result({"a": ["${result.id}"]})
    assert not needs_result({"a": "${arguments.id} result"})


def text_result(*texts: str, **more: object) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text) for text in texts], **more)


@pytest.mark.parametrize(
    ("result", "output"),
    [
        (text_result('{"a": 1}'), {"a": 1}),
        (text_result("12 monkeys"), "12 monkeys"),
        (text_result('{"a": 1, "a": 2}'), '{"a": 1, "a": 2}'),
        (text_result("one", "two"), "one\ntwo"),
        (text_result(""), ""),
        (text_result("x", structured_content={"b": 2}), {"b": 2}),
    ],
)
def test_outputs(result, output):
    assert output_of(result) == output


def test_a_large_binary_is_told_by_size_and_hash():
    big = types.ImageContent(type="image", data="QUJD" * 40_000, mime_type="image/png")
    shown = output_of(types.CallToolResult(content=[big]))["content"][0]
    assert (shown["size_bytes"], shown["data"]) == (120_000, None)
    assert len(shown["sha256"]) == 64


def test_errors():
    with pytest.raises(ToolFailure) as told:
        raise_if_failed(
            text_result(
                "x",
                is_error=True,
                structured_content={"error": {"category": "timeout", "message": "late", "keys": ["k"]}},
            )
        )
    assert (told.value.category, told.value.message, told.value.keys) == ("timeout", "late", ("k",))
    with pytest.raises(ReportedFailure, match="some words"):
        raise_if_failed(text_result("some words", is_error=True, structured_content={"code": 3}))


def a_tool(schema: dict[str, Any], name: str = "t") -> OfferedTool:
    server = McpServer(name="s", command=("x",), rules=McpServerRules())
    tools, problems = offered(server, [types.Tool(name=name, input_schema=schema)], {})
    assert not problems
    return tools[f"s.{name}"]


def test_a_schema_fetches_nothing():
    tool = a_tool(
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}, "required": ["b"]}
    )
    tool.check({"a": 1, "b": "c"})
    with pytest.raises(ArgumentsRefused, match="missing b"):
        tool.check({})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "^b"}}},
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^b"}}},
        {"properties": {"a": {"$schema": "https://json-schema.org/draft/2019-09/schema", "format": "regex"}}},
        {"patternProperties": {"^a": {"type": "integer"}}},
        {"patternProperties": {"^b": {}}, "additionalProperties": False},
        {"patternProperties": {"^b": {}}, "unevaluatedProperties": False},
        {"propertyNames": {"pattern": "^b"}},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"pattern": "^b"}}},
        {"allOf": [{"anyOf": [{"properties": {"a": {"oneOf": [{"pattern": "^b"}]}}}]}]},
        {"not": {"properties": {"a": {"pattern": "^("}}}},
    ],
    ids=json.dumps,
)
def test_no_expression_of_a_strangers_is_evaluated(schema, monkeypatch):
    def evaluated(*_: object) -> None:
        raise AssertionError("a stranger's expression was evaluated")

    tool = a_tool({"type": "object"} | schema)
    for function in ("search", "match", "fullmatch", "compile"):
        monkeypatch.setattr(re, function, evaluated)
    tool.check({"a": "("})


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (
            {
                "$ref": "#/$defs/0",
                "$defs": {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(60)}
                | {"60": False},
            },
            {},
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, {}),
        ({"properties": {"a": {"items": {"enum": ["x"] * 10_000}}}}, {"a": ["x"] * 100_000}),
    ],
    ids=["doubling", "loop", "enum"],
)
def test_a_check_is_bounded(schema, arguments):
    a_tool({"type": "object"} | schema).check(arguments)


@pytest.mark.parametrize(
    ("schema", "value", "says"),
    [
        ({"type": "integer"}, "x", "a must be integer"),
        ({"type": ["integer", "null"]}, "x", "a must be integer or null"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x", "a must be integer or null"),
        ({"anyOf": [{"type": "object", "required": ["b"]}, {"type": "null"}]}, {}, "missing b in a"),
        ({"enum": ["x", "y"]}, "z", "a must be one of 'x', 'y'"),
        ({"items": {"type": "string"}}, ["x", 1], "a.1 must be string"),
        ({"minimum": 3}, 2, "a breaks the rule minimum"),
        ({"additionalProperties": False}, {"x": 1}, "a breaks the rule additionalProperties"),
        ({"$ref": "#/$defs/n"}, 1.5, "a must be integer"),
    ],
)
def test_what_is_wrong_is_named(schema, value, says):
    tool = a_tool({"type": "object", "properties": {"a": schema}, "$defs": {"n": {"type": "integer"}}})
    with pytest.raises(ArgumentsRefused, match=f"s.t refuses its arguments: {re.escape(says)}"):
        tool.check({"a": value})


TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]
PLAIN_RULES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(TYPES)
        | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
        "enum": st.lists(st.sampled_from([1, 2.0, "a", None, True]), min_size=1, max_size=3),
        "const": st.sampled_from([1, "a", None, False]),
        "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-2, 2),
        "maxLength": st.integers(0, 2),
        "minItems": st.integers(0, 2),
        "maxProperties": st.integers(0, 2),
        "pattern": st.sampled_from(["^a", "b$"]),
        "$ref": st.sampled_from(["#", "#/$defs/d"]),
    },
)
SCHEMAS = st.recursive(
    st.booleans() | PLAIN_RULES,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=1),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
        },
    ),
    max_leaves=6,
)


@given(SCHEMAS, SCHEMAS, JSON)
def test_nothing_is_refused_that_the_whole_schema_takes(schema, definition, value):
    root = {"properties": {"a": schema}, "$defs": {"d": definition}}
    try:
        takes_it = jsonschema.Draft202012Validator(root).is_valid({"a": value})
    except RecursionError:
        return
    if takes_it:
        assert refusal(root, {"a": value}) is None


def test_one_bad_tool_is_left_out_and_the_others_stay(caplog):
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"x": deep}}
    server = McpServer(name="s", command=("x",))
    listed = [
        types.Tool(name="a\nb", input_schema={"type": "object"}),
        types.Tool(name="", input_schema={"type": "object"}),
        types.Tool(name="surrogate", input_schema={"type": "object", "title": "\ud800"}),
        types.Tool(name="nan", input_schema={"type": "object", "default": float("nan")}),
        types.Tool(name="deep", input_schema=deep),
        types.Tool(name="large", input_schema={"type": "object", "title": "x" * 300_000}),
        types.Tool(name="good", input_schema={"type": "object"}),
    ]
    tools, problems = offered(server, listed, {})
    assert (list(tools), problems) == (["s.good"], [])
    assert len(caplog.records) == 6
    assert "\\n" in caplog.text


def test_what_is_no_tool_is_left_out_of_a_list_and_output_schemas_of_all():
    good = {"name": "good", "inputSchema": {"type": "object"}, "outputSchema": {"pattern": "^(a+)+$"}}
    listed = [
        good,
        {"name": "x"},
        {"name": 7, "inputSchema": {"type": "object"}},
        "text",
        {"name": "y", "inputSchema": {}},
    ]
    assert readable_tools(listed, "s") == [{"name": "good", "inputSchema": {"type": "object"}}]
