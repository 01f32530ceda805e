"""What differs between two versions, and what pending work the newer one breaks."""

from __future__ import annotations

from typing import Any

from tests.support.graph_definitions import compiled, definition

from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.definition import Channel, FunctionBinding, GraphPolicy
from agenttx_server.graphs.diff import PendingWork, breaking_nodes, broken_by, changes_between
from agenttx_server.graphs.joins import JoinRound


def described(
    old: str, new: str, old_options: dict[str, Any] | None = None, new_options: dict[str, Any] | None = None
) -> list[str]:
    changes = changes_between(definition(old, **(old_options or {})), definition(new, **(new_options or {})))
    return [
        f"{change.kind.value} {change.what}"
        + (f" ({', '.join(change.fields)})" if change.fields else "")
        + (f": {change.reason}" if change.breaking else "")
        for change in changes
    ]


def test_the_same_graph_has_no_changes() -> None:
    assert described("START->a, a->b", "b, a, a->b, START->a") == []


def test_every_part_is_compared() -> None:
    assert described("START->a, a->b, b->END", "START->a, a->c, c->END") == [
        "removed node b: the node is gone",
        "added node c",
        "removed edge a -> b",
        "added edge a -> c",
        "removed edge b -> __end__",
        "added edge c -> __end__",
    ]


def test_order_of_edges_counts() -> None:
    assert described("START->a, START->b", "START->b, START->a") == [
        "changed order of the edges of __start__ (edges)"
    ]


def test_fields_that_differ_are_named() -> None:
    assert described(
        "START->a",
        "START->a",
        {"nodes": {"a": {"max_visits": 3}}, "channels": (Channel("x"),)},
        {
            "nodes": {"a": {"binding": FunctionBinding("f")}},
            "channels": (Channel("x", reducer="add"),),
            "policy": GraphPolicy(recursion_limit=9),
        },
    ) == [
        "changed node a (binding, max_visits)",
        "changed channel x (reducer): values that threads hold were made by another reducer",
        "changed policy (recursion_limit)",
    ]


def test_joins_and_conditional_edges() -> None:
    assert described("START->a, START->b, [a, b]|>c", "START->a, START->b, [a, b]|ANY>c") == [
        "changed join a, b -> c (policy): a round of it may be under way"
    ]
    assert described("START->a, a?->{x: b}", "START->a, a?->{x: b, y: END}") == [
        "changed conditional a (routes)"
    ]


def test_nodes_that_are_gone_break_what_is_pending() -> None:
    assert breaking_nodes(definition("START->a, a->b"), definition("START->a")) == ("b",)


def reasons(old: CompiledGraph, new: CompiledGraph, **pending: Any) -> tuple[str, ...]:
    return broken_by(old, new, PendingWork(**pending))


def test_what_is_pending_decides() -> None:
    old = compiled("START->a, START->b, [a, b]|>c", channels=(Channel("x"), Channel("l")))
    new = compiled("START->a, a->c", channels=(Channel("x", type="string"),))

    assert reasons(old, new, nodes=("a",)) == ()
    assert reasons(old, new, nodes=("b", "b")) == ("node 'b' is pending and is gone",)
    assert reasons(old, new, rounds={old.joins[0].key: JoinRound(("a",))}) == (
        "join a, b -> c is under way and is gone or another",
    )
    assert reasons(old, new, rounds={old.joins[0].key: JoinRound(("a",), fired=True)}) == ()
    assert reasons(old, new, state={"x": "fits"}) == ()
    assert reasons(old, new, state={"x": 1}) == ("channel 'x' holds what is no string",)
    assert reasons(old, new, state={"l": 1}) == ("channel 'l' holds a value and is gone",)


def test_a_value_that_the_new_reducer_cannot_go_on_from() -> None:
    old, new = (
        compiled("START->a", channels=(Channel("x"),)),
        compiled("START->a", channels=(Channel("x", reducer="append"),)),
    )

    assert reasons(old, new, state={"x": []}) == ()
    assert reasons(old, new, state={"x": "text"}) == ("channel 'x' holds what reducer append would not make",)
