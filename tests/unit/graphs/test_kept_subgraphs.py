"""What graphs inside others begin with: anew for each activation, or with the state that they kept. Time travel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.graph_definitions import send
from tests.support.graph_runs import Call, GraphRuns, embedding, goto, inner
from tests.support.virtual_time import virtual_time

from agenttx_server.graphs.definition import END, Channel
from agenttx_server.graphs.runs.records import RunStatus, checkpoint_id
from agenttx_server.graphs.runs.requests import InputPolicy, RunRefused, StartRequest
from agenttx_server.graphs.runs.run_reading import RunReading
from agenttx_server.graphs.runs.thread_copies import CopyRequest, ForkRequest
from agenttx_server.graphs.runs.thread_reading import ThreadReading

CHANNELS = (Channel("said"), Channel("round", reducer="add"), Channel("heard", reducer="append"))
INSIDE = (Channel("notes", reducer="append", scalars=True), Channel("seen"))


async def _note(call: Call) -> Any:
    return {"seen": len(call.state["notes"])}


def child(**functions: Any) -> Any:
    """A graph that hears a note, appends it to what it has, and tells how many it has."""
    return inner("child", "START->note", {"note": functions.get("note", _note)}, channels=INSIDE)


def binding(state_key: str = "") -> dict[str, Any]:
    keys = {"state_key": state_key} if state_key else {}
    return embedding("child", input={"notes": "said"}, output={"heard": "seen"}, **keys)


def loop(state_key: str = "") -> GraphRuns:
    """A child that is called three times."""

    async def again(call: Call) -> Any:
        number = call.state["round"]
        return goto("child" if number < 3 else END, update={"round": 1, "said": f"note {number}"})

    return GraphRuns(
        "START->speak, speak=>[child, END], child->speak",
        {"speak": again},
        channels=(
            Channel("said"),
            Channel("round", reducer="add"),
            Channel("heard", reducer="append", scalars=True),
        ),
        nodes={"child": binding(state_key)},
        embeds=[child()],
    )


GIVEN = {"said": "", "round": 0, "heard": []}


@virtual_time
async def test_g11_a_child_in_a_loop_begins_anew_each_time() -> None:
    runs = loop()
    outcome = await runs.start(GIVEN)
    assert (outcome.run.status, outcome.state["heard"]) == (RunStatus.COMPLETED, [1, 1, 1])
    names = [item.children[0].namespace for item in await runs.checkpoints() if item.children]
    assert names == ["child#2.0", "child#4.0", "child#6.0"]


@virtual_time
async def test_g11_children_by_two_sends_have_a_state_each() -> None:
    async def fan(call: Call) -> Any:
        return goto(send("child", 1), send("child", 2), update={"said": "hello"})

    async def note(call: Call) -> Any:
        return {"seen": call.arg * 10 + len(call.state["notes"])}

    runs = GraphRuns(
        "START->fan, fan=>[child]",
        {"fan": fan},
        channels=(Channel("said"), Channel("heard", reducer="append", scalars=True)),
        nodes={"child": binding()},
        embeds=[child(note=note)],
    )
    outcome = await runs.start({"said": "", "heard": []})
    assert outcome.state["heard"] == [11, 21]


@virtual_time
async def test_a_child_with_a_state_key_goes_on_from_its_state() -> None:
    runs = loop("memory")
    outcome = await runs.start(GIVEN)
    assert (outcome.run.status, outcome.state["heard"]) == (RunStatus.COMPLETED, [1, 2, 3])
    kept = await runs.store.list_embedded("t", "child#memory", None, 10)
    assert [(item.number, item.parent, item.superstep) for item in kept] == [
        (5, 4, 3), (4, 3, 2), (3, 2, 2), (2, 1, 1), (1, 0, 1), (0, None, 0),
    ]  # fmt: skip

    # New input on the thread: it is the same child.
    again = await runs.start({"round": -4})
    assert again.state["heard"] == [1, 2, 3, 4, 5, 6]
    # RESET forgets it.
    anew = await runs.start(GIVEN, reset=True)
    assert anew.state["heard"] == [1, 2, 3]


@virtual_time
async def test_time_travel_finds_the_state_that_a_child_had_there() -> None:
    runs = loop("memory")
    await runs.start(GIVEN)
    after_first = next(item for item in await runs.checkpoints() if item.children)

    branch = await runs.start(at=after_first.checkpoint_id)
    assert branch.state["heard"] == [1, 2, 3], "it did not go on from the newest state"

    forked = await runs.runs.copies.fork(ForkRequest("t", after_first.checkpoint_id, "u"))
    assert forked.thread.thread_id == "u"
    assert (await runs.retry("u")).state["heard"] == [1, 2, 3]
    assert [item.number for item in await runs.store.list_embedded("u", "child#memory", None, 10)] == [
        5,
        4,
        3,
        2,
        1,
    ]


@virtual_time
async def test_a_copied_thread_has_the_last_states_of_what_was_inside() -> None:
    runs = loop()
    await runs.start(GIVEN)
    copied = await runs.runs.copies.copy(CopyRequest("t", "u"))
    assert copied.thread.thread_id == "u"
    reading = ThreadReading(runs.store, runs, RunReading(runs.store, runs.runs))
    for item in await runs.checkpoints("u"):
        for named in item.children:
            assert named.checkpoint is not None
            at = checkpoint_id("u", named.checkpoint, named.namespace)
            view = await reading.embedded_state("anonymous", "u", named.namespace, at, include_pending=True)
            assert view.state is not None
            assert view.state["seen"] == 1


@virtual_time
@pytest.mark.parametrize("state_key", ["", "memory"])
async def test_pruning_takes_what_was_inside_but_for_a_state_that_is_kept(state_key: str) -> None:
    runs = loop(state_key)
    await runs.start(GIVEN)
    await runs.runs.removal.prune("t", 1)

    names = [f"child#{number}.0" for number in (2, 4, 6)] if not state_key else ["child#memory"]
    left = [item.number for name in names for item in await runs.store.list_embedded("t", name, None, 10)]
    assert left == ([5] if state_key else [])
    again = await runs.start({"round": -4})
    assert again.state["heard"] == ([1, 2, 3, 4, 5, 6] if state_key else [1] * 6)


@virtual_time
async def test_two_tasks_cannot_go_on_with_one_state() -> None:
    async def fan(call: Call) -> Any:
        return goto(send("child", 1), send("child", 2))

    runs = GraphRuns(
        "START->fan, fan=>[child]",
        {"fan": fan},
        channels=(Channel("said"), Channel("heard", reducer="append", scalars=True)),
        nodes={"child": binding("memory")},
        embeds=[child()],
    )
    outcome = await runs.start({"said": "", "heard": []})
    assert outcome.run.error is not None
    assert outcome.run.error.reason == "CONCURRENT_UPDATE"
    with pytest.raises(RunRefused, match="need a thread"):
        await runs.start({"said": "", "heard": []}, thread="")


@virtual_time
async def test_g12_a_stateless_child_has_its_own_messages_alone_in_each_turn() -> None:
    async def ask(call: Call) -> Any:
        return {"log": [f"{call.state['log'][-1]}, {call.interrupt('?')}"]}

    talk = inner(
        "talk", "START->ask", {"ask": ask}, channels=(Channel("log", reducer="append", scalars=True),)
    )
    runs = GraphRuns(
        "START->talk",
        {},
        channels=(Channel("said"), Channel("log", reducer="append")),
        nodes={"talk": embedding("talk", input={"log": "said"}, output={"log": "log"})},
        embeds=[talk],
    )
    for turn, answer in ((1, "one"), (2, "two")):
        assert (await runs.start({"said": f"turn {turn}"})).run.status is RunStatus.INTERRUPTED
        assert (await runs.resume("t", answer)).run.status is RunStatus.COMPLETED

    histories = [
        [item.state for item in await runs.store.list_embedded("t", f"talk#{turn}.0", None, 10)]
        for turn in (1, 2)
    ]
    assert histories == [
        ['{"log":["turn 1","turn 1, one"]}', '{"log":["turn 1"]}'],
        ['{"log":["turn 2","turn 2, two"]}', '{"log":["turn 2"]}'],
    ]


@virtual_time
async def test_messages_of_two_activations_of_one_child_have_ids_of_their_own() -> None:
    async def say(call: Call) -> Any:
        return {"talk": [{"role": "user", "content": "same"}]}

    talk = inner("talk", "START->say", {"say": say}, channels=(Channel("talk", reducer="messages"),))
    runs = GraphRuns(
        "START->talk",
        {},
        channels=(Channel("talk", reducer="messages"),),
        nodes={"talk": embedding("talk", input={}, output={"talk": "talk"}, state_key="k")},
        embeds=[talk],
    )
    await runs.start({})
    outcome = await runs.start({})
    assert len(outcome.state["talk"]) == 2


@virtual_time
async def test_a_state_that_is_kept_is_not_given_to_another_version_of_its_graph() -> None:
    runs = loop("memory")
    await runs.start(GIVEN)
    other = inner("child", "START->other", {"other": _note}, channels=INSIDE)
    newer = GraphRuns(
        "START->speak, speak=>[child, END], child->speak",
        {"speak": runs.functions["speak"]},
        channels=tuple(runs.graph.channels.values()),
        nodes={"child": binding("memory")},
        embeds=[other],
    )
    runs.older[runs.graph.version], runs.graph = runs.graph, newer.graph
    runs.functions |= newer.functions
    request = StartRequest("g", "", "t", {"round": -4}, allows_graph_change=True)
    with pytest.raises(RunRefused, match="which is another now") as refused:
        await runs.runs.start(request)
    assert refused.value.reason == "GRAPH_CHANGED"

    anew = await runs.runs.start(replace(request, input={**GIVEN}, input_policy=InputPolicy.RESET))
    assert anew.state["heard"] == [1, 2, 3]
