"""Values of channels, kept as what changed: read back they are what was folded, and a long list costs what it holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.graph_definitions import compiled

from agenttx_server.engine.json_values import canonical
from agenttx_server.graphs.boundary import first_work
from agenttx_server.graphs.definition import Channel
from agenttx_server.graphs.fold import TaskWrites, fold, tracked
from agenttx_server.graphs.joins import JoinRound
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.runs.channel_values import (
    places_of,
    read_values,
    stored_places,
    write_values,
)
from agenttx_server.graphs.runs.work_json import read_targets_text, read_work, targets_text, work_text

GRAPH = compiled(
    "START->a",
    channels=(
        Channel("value"),
        Channel("log", reducer="append"),
        Channel("chat", reducer="messages"),
        Channel("seen", reducer="ephemeral"),
        Channel("scratch", reducer="untracked"),
    ),
)

texts = st.text("ab", max_size=3)
messages = st.fixed_dictionaries({"id": st.sampled_from("123"), "text": texts})
updates = st.fixed_dictionaries(
    {},
    optional={
        "value": st.one_of(st.integers(-5, 5), st.lists(texts, max_size=3)),
        "log": st.one_of(
            st.lists(texts, max_size=4),
            st.builds(lambda value: {"__overwrite__": value}, st.lists(texts, max_size=3)),
        ),
        "chat": st.lists(messages, max_size=3),
        "seen": st.integers(0, 3),
        "scratch": st.integers(0, 3),
    },
)


@given(st.lists(st.tuples(updates, st.booleans()), max_size=12))
def test_every_checkpoint_reads_as_it_was_folded(supersteps: list[tuple[dict[str, Any], bool]]) -> None:
    records: list[Any] = []
    at: list[tuple[Any, ...]] = [({}, {}, ())]
    for number, (update, goes_back) in enumerate(supersteps):
        # Now and then from an older one: its values must not mix with those of the branch beside it.
        state, origins, stored = at[len(at) // 2] if goes_back else at[-1]
        folded = fold(GRAPH, state, [TaskWrites("a", (update,), f"s{number}", number)], origins)
        written, places = write_values(GRAPH, "t", number, folded, places_of(stored))
        records += written
        kept = tracked(GRAPH, folded.state)
        at.append((kept, {name: folded.origins[name] for name in kept}, stored_places(places)))

    for state, origins, stored in at:
        assert read_values(places_of(stored), records) == (state, origins)


def test_c16_storage_of_a_growing_list_grows_with_what_is_appended() -> None:
    def stored_bytes(supersteps: int) -> int:
        state: Any = {}
        origins: Any = {}
        places: Any = {}
        size = 0
        for number in range(supersteps):
            writes = TaskWrites("a", ({"log": [f"entry {number:08} {'x' * 80}"]},), "", number)
            folded = fold(GRAPH, state, [writes], origins)
            records, places = write_values(GRAPH, "t", number, folded, places)
            size += sum(len(record.value) + len(record.origins) for record in records)
            state, origins = folded.state, folded.origins
        return size

    content = len(canonical([f"entry {0:08} {'x' * 80}"])) - 2
    # Deltas, and whole values that at most double what lies before each.
    assert stored_bytes(1000) < 4 * 1000 * content
    assert stored_bytes(1000) < 2.5 * stored_bytes(500)


def test_a_list_is_written_whole_again_in_time() -> None:
    state: Any = {}
    places: Any = {}
    whole = 0
    for number in range(300):
        folded = fold(GRAPH, state, [TaskWrites("a", ({"log": ["x" * 100]},))])
        records, places = write_values(GRAPH, "t", number, folded, places)
        whole += sum(record.previous is None for record in records)
        state = folded.state
    assert 2 < whole < 10


def test_work_is_read_as_it_was_written() -> None:
    work = first_work(GRAPH, (Target("a", None), Target("a", {"n": 1}), Target("a")))
    assert read_work(work_text(work)).activations == work.activations
    waiting = replace(work, deferred=work.activations[:1], rounds={'["j","a"]': JoinRound(("a",), True)})
    assert read_work(work_text(waiting)) == waiting
    assert read_work("{}") == read_work(work_text(read_work("{}")))
    targets = (Target("a"), Target("a", [1]))
    assert read_targets_text(targets_text(targets)) == targets
    assert targets_text(()) == ""
    assert read_targets_text("") == ()
