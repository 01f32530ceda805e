"""Folding: order, all or nothing, one writer, markers, origins, deltas."""

from __future__ import annotations

import copy

import pytest
from tests.support.graph_definitions import APP, OW, SUM, compiled

from agenttx_server.engine.json_values import MISSING
from agenttx_server.graphs.definition import Channel
from agenttx_server.graphs.errors import FoldError
from agenttx_server.graphs.fold import ChannelOrigin, TaskWrites, fold
from agenttx_server.graphs.limits import MAX_STATE_BYTES

MIXED = (Channel("hello"), Channel("value", reducer="add"), Channel("log", reducer="append"))


def test_x29_two_writers_of_an_overwrite_channel() -> None:
    graph = compiled("START->a, START->b", channels=MIXED)
    writes = [
        TaskWrites("a", ({"hello": 1, "value": 5},), task_id="t-a"),
        TaskWrites("b", ({"hello": 2},), task_id="t-b"),
    ]
    state = {"value": 1}

    with pytest.raises(FoldError) as error:
        fold(graph, state, writes)

    assert error.value.reason == "CONCURRENT_UPDATE"
    assert error.value.metadata == {"channel": "hello", "nodes": "a,b", "task_ids": "t-a,t-b"}
    assert state == {"value": 1}
    assert fold(graph, state, writes[:1]).state == {"hello": 1, "value": 6}


def test_two_sends_of_one_node_are_two_writers() -> None:
    graph = compiled("START->a", channels=OW)

    with pytest.raises(FoldError, match="written by a, a"):
        fold(graph, {}, [TaskWrites("a", ({"value": 1},)), TaskWrites("a", ({"value": 1},))])


def test_x30_one_task_may_write_twice() -> None:
    graph = compiled("START->a", channels=OW)

    assert fold(graph, {}, [TaskWrites("a", ({"value": 1}, {"value": 2}))]).state == {"value": 2}


def test_x34_a_channel_that_is_not_declared() -> None:
    with pytest.raises(FoldError) as error:
        fold(compiled("START->a", channels=OW), {}, [TaskWrites("a", ({"other": 1},))])

    assert error.value.reason == "UNKNOWN_CHANNEL"
    assert error.value.metadata == {"channel": "other", "node": "a"}


def test_a_fold_is_all_or_nothing() -> None:
    graph = compiled("START->a", channels=MIXED)
    state = {"log": ["kept"], "value": 1}
    before = copy.deepcopy(state)

    with pytest.raises(FoldError):
        fold(graph, state, [TaskWrites("a", ({"hello": 1, "log": ["new"]}, {"value": "text"}))])

    assert state == before


def test_the_order_is_that_of_tasks() -> None:
    graph = compiled("START->a, START->b", channels=APP)

    assert fold(
        graph, {}, [TaskWrites("b", ({"log": ["b"]},)), TaskWrites("a", ({"log": ["a"]},))]
    ).state == {"log": ["b", "a"]}


def test_x41_a_marker_replaces_what_is_there() -> None:
    graph = compiled("START->a", channels=APP)

    folded = fold(graph, {"log": ["START", "a"]}, [TaskWrites("b", ({"log": {"__overwrite__": ["b"]}},))])

    assert folded.state == {"log": ["b"]}


def test_x42_a_marker_replaces_what_siblings_write() -> None:
    graph = compiled("START->b, START->c", channels=APP)
    marker = TaskWrites("b", ({"log": {"__overwrite__": ["b"]}},))
    sibling = TaskWrites("c", ({"log": ["c"]},))

    assert fold(graph, {"log": ["a"]}, [marker, sibling]).state == {"log": ["b"]}
    assert fold(graph, {"log": ["a"]}, [sibling, marker]).state == {"log": ["b"]}


def test_what_the_marking_task_writes_behind_its_marker_counts() -> None:
    graph = compiled("START->b", channels=APP)
    updates = ({"log": ["lost"]}, {"log": {"__overwrite__": ["b"]}}, {"log": ["c"]})

    assert fold(graph, {"log": ["a"]}, [TaskWrites("b", updates)]).state == {"log": ["b", "c"]}


def test_two_markers_conflict() -> None:
    graph = compiled("START->b, START->c", channels=APP)
    marker = {"log": {"__overwrite__": ["x"]}}

    with pytest.raises(FoldError) as error:
        fold(graph, {}, [TaskWrites("b", (marker,)), TaskWrites("c", (marker,))])

    assert error.value.reason == "CONCURRENT_UPDATE"


def test_a_marker_is_held_to_the_channel_s_rules() -> None:
    with pytest.raises(FoldError) as error:
        fold(compiled("START->b", channels=APP), {}, [TaskWrites("b", ({"log": {"__overwrite__": "b"}},))])

    assert error.value.reason == "TYPE_MISMATCH"


def test_a_state_that_grows_too_large() -> None:
    graph = compiled("START->a", channels=OW)

    with pytest.raises(FoldError) as error:
        fold(graph, {}, [TaskWrites("a", ({"value": "x" * MAX_STATE_BYTES},))])

    assert error.value.reason == "STATE_TOO_LARGE"
    assert int(error.value.metadata["actual_bytes"]) > MAX_STATE_BYTES
    assert (
        fold(graph, {}, [TaskWrites("a", ({"value": "x" * (MAX_STATE_BYTES - 20)},))]).size <= MAX_STATE_BYTES
    )


def test_a_value_that_is_no_json_is_refused() -> None:
    with pytest.raises(FoldError) as error:
        fold(compiled("START->a", channels=OW), {}, [TaskWrites("a", ({"value": float("nan")},))])

    assert error.value.reason == "TYPE_MISMATCH"


def test_appends_are_told_as_deltas() -> None:
    graph = compiled("START->a", channels=APP)

    first = fold(graph, {}, [TaskWrites("a", ({"log": [1, 2]},))])
    more = fold(graph, first.state, [TaskWrites("a", ({"log": [3]},)), TaskWrites("b", ({"log": [4]},))])
    replaced = fold(graph, more.state, [TaskWrites("a", ({"log": {"__overwrite__": [1, 2, 3, 4, 5]}},))])

    assert [change.appended for change in first.changes] == [2]
    assert [change.appended for change in more.changes] == [2]
    assert [change.appended for change in replaced.changes] == [None]
    assert fold(graph, more.state, []).changes == ()


def test_messages_are_deltas_only_where_nothing_else_changed() -> None:
    graph = compiled("START->a", channels=(Channel("m", reducer="messages"),))
    held = {"m": [{"id": "1"}, {"id": "2"}]}

    def appended(update: object) -> int | None:
        (change,) = fold(graph, held, [TaskWrites("a", ({"m": update},))]).changes  # type: ignore[dict-item]
        return change.appended

    assert appended({"id": "3"}) == 1
    assert appended({"id": "2", "new": 1}) is None
    assert appended({"__remove__": "2"}) is None
    assert appended([{"__remove__": "2"}, {"id": "2"}]) is None


def test_origins_say_which_step_wrote_what_is_there() -> None:
    graph = compiled("START->a", channels=MIXED)
    first = fold(graph, {}, [TaskWrites("a", ({"hello": 1, "log": ["x", "y"]},), origin=1)])

    second = fold(
        graph,
        first.state,
        [TaskWrites("b", ({"log": ["z"]},), origin=2), TaskWrites("c", ({"value": 1},), origin=3)],
        first.origins,
    )

    assert second.origins == {
        "hello": ChannelOrigin(1),
        "log": ChannelOrigin(2, (1, 1, 2)),
        "value": ChannelOrigin(3),
    }


def test_origins_follow_messages_that_move() -> None:
    graph = compiled("START->a", channels=(Channel("m", reducer="messages"),))
    first = fold(graph, {}, [TaskWrites("a", ({"m": [{"id": "1"}, {"id": "2"}, {"id": "3"}]},), origin=1)])

    update = [{"__remove__": "1"}, {"id": "3", "new": True}, {"id": "4"}]
    second = fold(graph, first.state, [TaskWrites("a", ({"m": update},), origin=2)], first.origins)

    assert second.origins["m"] == ChannelOrigin(2, (1, 2, 2))


def test_origins_of_a_state_whose_writers_are_unknown() -> None:
    graph = compiled("START->a", channels=APP)

    folded = fold(graph, {"log": [1]}, [TaskWrites("a", ({"log": [2]},), origin=7)])

    assert folded.origins["log"] == ChannelOrigin(7, (None, 7))


def test_what_counted_folds_to_the_same_state() -> None:
    channels = (*MIXED, Channel("m", reducer="messages"))
    graph = compiled("START->a", channels=channels)
    state = {"log": ["s"], "value": 1}
    writes = [
        TaskWrites("a", ({"log": ["a"], "m": {"text": "hi"}}, {"value": 2}), "seed-a"),
        TaskWrites("b", ({"log": {"__overwrite__": ["b"]}, "hello": 1}, {"log": ["c"]}), "seed-b"),
    ]

    folded = fold(graph, state, writes)
    again = fold(graph, state, [TaskWrites("embedding", folded.effective, "another seed")])

    assert again.state == folded.state


def test_made_ids_do_not_depend_on_siblings() -> None:
    graph = compiled("START->a", channels=(*OW, Channel("m", reducer="messages")))
    sibling = TaskWrites("a", ({"value": 1}, {"value": 2}), "a")
    writer = TaskWrites("b", ({"m": {"text": "hi"}},), "b")

    assert fold(graph, {}, [sibling, writer]).state["m"] == fold(graph, {}, [writer]).state["m"]


def test_x1_sums_and_logs() -> None:
    graph = compiled("START->a", channels=(*SUM, *APP))
    given = fold(graph, {}, [TaskWrites("", ({"value": 0},))]).state
    inc = fold(graph, given, [TaskWrites("inc", ({"value": 1, "log": ["+1"]},))]).state
    double = fold(graph, inc, [TaskWrites("double", ({"value": 1, "log": ["+1"]},))]).state

    assert double == {"value": 2, "log": ["+1", "+1"]}
    assert MISSING not in double.values()
