"""Reducers: D1 … D14, their exact rules, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.graph_definitions import compiled

from agenttx_server.engine.json_values import MISSING, JsonValue, canonical
from agenttx_server.graphs.definition import Channel
from agenttx_server.graphs.errors import FoldError
from agenttx_server.graphs.fold import Folded, TaskWrites, fold, tracked
from agenttx_server.graphs.reducers import BUILTIN_REDUCERS, CustomReducer, ReducerRegistry, arrays, reducer
from agenttx_server.graphs.reducers.arrays import ARRAY_REDUCERS, identity
from agenttx_server.graphs.reducers.reduction import WriteContext


def put(channel: Channel, *updates: Any, state: Any = MISSING) -> JsonValue:
    """Fold updates, one a superstep; return what the channel holds."""
    graph = compiled("START->a", channels=(channel,))
    now: dict[str, JsonValue] = {} if state is MISSING else {channel.name: state}
    for number, update in enumerate(updates):
        now = fold(graph, now, [TaskWrites("a", ({channel.name: update},), str(number))]).state
    return now.get(channel.name)


def refused(channel: Channel, *updates: Any, state: Any = MISSING) -> FoldError:
    with pytest.raises(FoldError) as error:
        put(channel, *updates, state=state)
    return error.value


def c(reducer: str, **options: Any) -> Channel:
    return Channel("c", reducer=reducer, **options)


def test_d1_append_takes_scalars_where_told() -> None:
    assert put(c("append", scalars=True), "a", "b", ["c", "d"]) == ["a", "b", "c", "d"]


def test_d2_add_adds_numbers_and_refuses_a_mix() -> None:
    assert put(c("add"), 2, 3) == 5
    assert put(c("add"), 2, 3, 0.5) == 5.5
    assert refused(c("add"), 2, 3, 0.5, "x").reason == "TYPE_MISMATCH"


def test_add_joins_texts() -> None:
    assert put(c("add"), "abc", "|x") == "abc|x"
    assert refused(c("add"), "a", 1).reason == "TYPE_MISMATCH"


@pytest.mark.parametrize("value", [True, None, [1], {}])
def test_add_takes_numbers_and_texts_only(value: Any) -> None:
    assert refused(c("add"), value).reason == "TYPE_MISMATCH"
    assert refused(c("add"), 1, value).reason == "TYPE_MISMATCH"


def test_a_sum_that_json_cannot_keep_is_an_error() -> None:
    assert refused(c("add"), 2**64 - 1, 1).reason == "REDUCER_FAILED"
    assert refused(c("add"), 1.7e308, 1.7e308).reason == "REDUCER_FAILED"
    assert put(c("add"), 2**63, -1) == 2**63 - 1


def test_d3_a_known_message_stays_where_it_is() -> None:
    two = [{"id": "1", "text": "one"}, {"id": "2", "text": "two"}]

    assert put(c("messages"), two, {"id": "1", "text": "new"}) == [{"id": "1", "text": "new"}, two[1]]


def test_d4_a_batch_of_messages() -> None:
    start = [{"id": "a", "v": 1}, {"id": "b", "v": 1}]
    batch = [{"id": "a", "v": 2}, {"id": "c", "v": 1}, {"v": "none"}]

    held = put(c("messages"), start, batch, {"id": "c", "v": 2})

    assert isinstance(held, list)
    assert [message.get("v") for message in held if isinstance(message, dict)] == [2, 1, 2, "none"]
    made = held[3]
    assert isinstance(made, dict)
    assert str(made["id"]).startswith("m-")


def test_x44_ids_are_the_same_in_a_second_run() -> None:
    given = {"role": "user", "content": "hello"}

    first = put(c("messages"), given)

    assert first == put(c("messages"), given)
    assert isinstance(first, list)
    assert len(first) == 1


def test_ids_of_one_update_differ() -> None:
    held = put(c("messages"), [{"t": 1}, {"t": 1}], [{"t": 1}])

    assert isinstance(held, list)
    assert len({message["id"] for message in held if isinstance(message, dict)}) == 3


def test_d7_ephemeral_is_gone_after_the_next_superstep() -> None:
    graph = compiled("START->a", channels=(c("ephemeral"), Channel("other")))
    written = fold(graph, {}, [TaskWrites("a", ({"c": 1},))])

    after = fold(graph, written.state, [TaskWrites("a", ({"other": 1},))])

    assert written.state == {"c": 1}
    assert after.state == {"other": 1}
    assert [(change.channel, change.value) for change in after.changes] == [("c", MISSING), ("other", 1)]
    assert fold(graph, written.state, [], keep_ephemeral=True).state == {"c": 1}


def test_d8_untracked_is_not_kept() -> None:
    graph = compiled("START->a", channels=(c("untracked"), Channel("kept")))

    state = fold(graph, {}, [TaskWrites("a", ({"c": 1, "kept": 2},))]).state

    assert tracked(graph, state) == {"kept": 2}


def test_d9_the_first_write_is_taken_as_it_is() -> None:
    assert put(c("max"), -5) == -5
    assert put(c("min"), 5) == 5


def test_min_and_max_compare_exactly() -> None:
    assert put(c("max"), 2**53, float(2**53), 2**53 + 1) == 2**53 + 1
    assert put(c("min"), "b", "a") == "a"
    assert put(c("max"), 1, 1.0) == 1
    assert type(put(c("max"), 1, 1.0)) is int


@pytest.mark.parametrize("update", [None, "ab", 1, {"a": 1}])
def test_d11_append_takes_arrays(update: Any) -> None:
    error = refused(c("append"), [1], update)

    assert error.reason == "TYPE_MISMATCH"
    assert error.metadata["channel"] == "c"
    assert error.metadata["expected"] == "array"


def test_append_never_takes_null() -> None:
    assert refused(c("append", scalars=True), None).reason == "TYPE_MISMATCH"


def test_d12_messages_are_removed_by_id() -> None:
    two = [{"id": "1"}, {"id": "2"}, {"id": "3"}]

    assert put(c("messages"), two, {"__remove__": "2"}) == [{"id": "1"}, {"id": "3"}]


def test_d13_what_is_not_there_cannot_be_removed() -> None:
    assert refused(c("messages"), {"id": "1"}, {"__remove__": "2"}).reason == "TYPE_MISMATCH"
    assert put(c("messages", ignore_unknown_removals=True), {"id": "1"}, {"__remove__": "2"}) == [{"id": "1"}]
    assert put(c("messages"), {"id": "1"}, [{"__remove_all__": True}, {"id": "9"}]) == [{"id": "9"}]


def test_d14_removed_twice_and_added_again() -> None:
    again = [{"__remove__": "1"}, {"__remove__": "1"}, {"id": "1", "new": True}]

    assert put(c("messages"), {"id": "1"}, again) == [{"id": "1", "new": True}]


@pytest.mark.parametrize(
    "update",
    [
        "text",
        1,
        None,
        [["x"]],
        {"id": 7},
        {"__remove__": 7},
        {"__remove_all__": 1},
        {"__remove__": "a", "x": 1},
    ],
)
def test_what_is_no_message_is_refused(update: Any) -> None:
    assert refused(c("messages"), update).reason == "TYPE_MISMATCH"


def test_union_keeps_the_first_of_equal_ones() -> None:
    assert put(c("union"), [1, "1", True], [1.0, 2, True, [1.0], [1], {"a": 1, "b": 2.0}, {"b": 2, "a": 1}]) == [
        1, "1", True, 2, [1.0], {"a": 1, "b": 2.0},
    ]  # fmt: skip
    assert put(c("union"), [3, 3]) == [3]


def test_any_value_takes_the_last_of_a_superstep() -> None:
    graph = compiled("START->a, START->b", channels=(c("any_value"),))

    assert fold(graph, {}, [TaskWrites("a", ({"c": 1},)), TaskWrites("b", ({"c": 2},))]).state == {"c": 2}


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        ("integer", [1, 1.0, -(2**63)], [1.5, "1", True, None]),
        ("number", [1, 1.5], ["1", False]),
        ("string", [""], [1, None]),
        ("boolean", [True], [1, "true"]),
        ("null", [None], [0, False]),
        ("array", [[]], [{}, "x"]),
        ("object", [{}], [[], None]),
        ("any", [None, 1, [], {}], []),
    ],
)
def test_a_declared_type_is_held(type_: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert put(Channel("c", type=type_), value) == value
    for value in bad:
        assert refused(Channel("c", type=type_), value).reason == "TYPE_MISMATCH"


class TestCustom:
    @staticmethod
    def put(function: Any, *updates: Any) -> Folded:
        from tests.support.graph_definitions import definition

        from agenttx_server.graphs.compiler import compile_graph

        registry = ReducerRegistry((CustomReducer("mine", "1", function),))
        graph = compile_graph(definition("START->a", channels=(c("mine"),)), None, registry).graph
        assert graph is not None
        folded = fold(graph, {}, [])
        for update in updates:
            folded = fold(graph, folded.state, [TaskWrites("a", ({"c": update},))])
        return folded

    def test_x32_one_that_raises_leaves_the_state(self) -> None:
        def fragile(current: Any, update: Any) -> Any:
            if update == 999:
                raise ValueError("no 999")
            return current + update

        assert self.put(fragile, 1, 2).state == {"c": 3}
        with pytest.raises(FoldError, match="no 999") as error:
            self.put(fragile, 1, 999)
        assert error.value.reason == "REDUCER_FAILED"
        assert error.value.metadata == {"channel": "c", "reducer": "mine", "node": "a"}

    def test_one_that_changes_its_arguments_changes_nothing_else(self) -> None:
        seen: list[Any] = []

        def careless(current: Any, update: Any) -> Any:
            current.append(update)
            seen.append(current)
            return current

        folded = self.put(careless, [1], 2)
        seen[0].append("later")

        assert folded.state == {"c": [1, 2]}

    def test_one_that_gives_no_json_fails(self) -> None:
        with pytest.raises(FoldError, match="no JSON"):
            self.put(lambda current, update: {1, 2}, 1, 2)

    def test_it_is_made_by_a_decorator(self) -> None:
        @reducer("longest", version="3")
        def longest(current: Any, update: Any) -> Any:
            return update if len(update) > len(current) else current

        assert (longest.name, longest.version) == ("longest", "3")
        assert ReducerRegistry((longest,)).find("longest", "3") is longest

    @pytest.mark.parametrize("name", sorted(BUILTIN_REDUCERS))
    def test_names_of_built_in_ones_are_taken(self, name: str) -> None:
        with pytest.raises(ValueError, match="built in"):
            ReducerRegistry((CustomReducer(name, "1", lambda current, update: update),))


ALIKE: tuple[Any, ...] = (
    *(0, 1, -1, 2**63, 2**63 - 1, -(2**63), 2**64 - 1, 10**18),
    *(0.0, -0.0, 1.0, 1.5, 1e16, 2.0**63, -(2.0**63), 1e19, 1e-7, 5e300),
    *(True, False, None, "", "1", "true", "null", "[1]", "1.0", '"1"', "literal"),
    *([], [1], [1.0], [True], ["1"], [[1]], [1, 2], [1.5], [1e16], [10**16], ["a1.5"], ["1e5"]),
    *({}, {"a": 1}, {"a": 1.0}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": "1.0"}, {"1e5": 1.0}, {"1e5": 1}),
)


def test_elements_are_the_same_whose_canonical_text_is_once_whole_numbers_have_no_fraction() -> None:
    def text(value: Any) -> str:
        return canonical(whole(value))

    def whole(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
            return int(value)
        if isinstance(value, list):
            return [whole(item) for item in value]
        return {key: whole(item) for key, item in value.items()} if isinstance(value, dict) else value

    for one in ALIKE:
        for other in ALIKE:
            assert (identity(one) == identity(other)) == (text(one) == text(other)), (one, other)


def test_a_union_of_very_many_elements_writes_none_of_them_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **named: Any) -> bytes:
        raise AssertionError("that takes seconds, while nobody else is served")

    monkeypatch.setattr(arrays, "canonical", never)
    many = [*range(1000), *map(str, range(1000)), None, True, 0.5]
    context: Any = WriteContext()
    reduced = ARRAY_REDUCERS[1].reduce(many, [*many, "new", {"a": [1, "x"]}], context)
    assert reduced.appended == 2
