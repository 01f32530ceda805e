"""Crashes that other systems are known to have got wrong, one by one, each at the instant that matters."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.crash.fleet import Fleet, Refused, open_fleet
from tests.crash.invariants import read_outbox
from tests.crash.scratch import scratch_directory
from tests.crash.world import World

from agenttx.v1 import event_pb2
from agenttx.v1 import transaction_pb2 as pb

FIRST = random.Random(0)
SUCCESS = pb.STEP_STATUS_SUCCESS


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    with scratch_directory() as directory:
        async with open_fleet(directory, effect_retry_base_seconds=0.05) as fleet:
            yield fleet


async def start(fleet: Fleet, points: str = "") -> Any:
    life = await fleet.start(points=points)
    assert await fleet.wait_serving(life), fleet.log_text()
    return life


async def begin(fleet: Fleet) -> str:
    begun = await fleet.call("BeginTransaction", pb.BeginTransactionRequest(agent_id="case"), FIRST)
    return str(begun.transaction_id)


def step_request(transaction: str, step_id: int, tool: str, **arguments: Any) -> pb.ExecuteStepRequest:
    return pb.ExecuteStepRequest(
        transaction_id=transaction,
        step_id=step_id,
        tool_name=tool,
        arguments_json=json.dumps({"entry": f"entry-{step_id}"} | arguments),
        request_id=f"request-{step_id}",
    )


async def step(fleet: Fleet, transaction: str, step_id: int, tool: str, **arguments: Any) -> Any:
    return await fleet.call("ExecuteStep", step_request(transaction, step_id, tool, **arguments), FIRST)


async def die_during(fleet: Fleet, life: Any, method: str, request: Any) -> asyncio.Task[Any]:
    """Make a call that the server dies of; return the call, which goes on with the next server."""
    call = asyncio.create_task(fleet.call(method, request, FIRST))
    await life.ended.wait()
    return call


def happened(fleet: Fleet) -> list[tuple[str, int, int]]:
    world = World(fleet.world_log)
    world.look()
    return [(line.what, line.step, line.attempt) for line in world.lines]


def keys(fleet: Fleet) -> list[str]:
    world = World(fleet.world_log)
    world.look()
    return [line.key for line in world.lines]


# --- a tool took effect, and its server died before the step was recorded -----------------------


async def test_an_idempotent_effect_is_repeated_under_its_key_and_answered_once(fleet):
    life = await start(fleet, "tool.after:idempotent=kill@1")
    transaction = await begin(fleet)
    call = await die_during(fleet, life, "ExecuteStep", step_request(transaction, 1, "crash.set"))
    await start(fleet)

    answer = await call

    assert (answer.status, answer.attempt) == (SUCCESS, 1)
    assert happened(fleet) == [("effect", 1, 1), ("effect", 1, 1)]
    assert len(set(keys(fleet))) == 1


async def test_a_compensatable_effect_is_undone_and_then_made_anew_under_a_new_key(fleet):
    life = await start(fleet, "tool.after:compensatable=kill@1")
    transaction = await begin(fleet)
    call = await die_during(fleet, life, "ExecuteStep", step_request(transaction, 1, "crash.book"))
    await start(fleet)

    answer = await call

    assert (answer.status, answer.attempt) == (SUCCESS, 2)
    assert happened(fleet) == [("effect", 1, 1), ("undo", 1, 1), ("effect", 1, 2)]
    first, undo, second = keys(fleet)
    assert first == undo != second


@pytest.mark.parametrize("resolution", ["SUCCEEDED", "RETRY", "FAILED"])
async def test_an_irreversible_effect_is_in_doubt_and_never_repeated_without_a_word(fleet, resolution):
    life = await start(fleet, "tool.after:irreversible=kill@1")
    transaction = await begin(fleet)
    request = step_request(transaction, 1, "crash.send")
    call = await die_during(fleet, life, "ExecuteStep", request)
    await fleet.kill(await start(fleet))  # nor does another crash decide
    await start(fleet)

    assert (await call).status == pb.STEP_STATUS_IN_DOUBT
    assert happened(fleet) == [("effect", 1, 1)]
    with pytest.raises(Refused) as refused:
        await fleet.call("CommitTransaction", pb.CommitTransactionRequest(transaction_id=transaction), FIRST)
    assert refused.value.reason == "STEP_IN_DOUBT"

    await fleet.call(
        "ResolveStep",
        pb.ResolveStepRequest(
            transaction_id=transaction,
            step_id=1,
            resolution=f"STEP_RESOLUTION_{resolution}",
            output_json='{"entry":"entry-1"}' if resolution == "SUCCEEDED" else "",
            error="it was refused" if resolution == "FAILED" else "",
            request_id="word",
        ),
        FIRST,
    )
    answer = await fleet.call("ExecuteStep", request, FIRST)

    assert len(happened(fleet)) == (2 if resolution == "RETRY" else 1)
    assert len(set(keys(fleet))) == 1
    if resolution == "FAILED":
        assert answer.status == pb.STEP_STATUS_ROLLBACK_TRIGGERED
    else:
        assert (answer.status, json.loads(answer.output_json)) == (SUCCESS, {"entry": "entry-1"})


# --- a rewind of five steps, and its server died after the second undo ---------------------------


@pytest.mark.parametrize(
    ("point", "again"),
    [("write.after:undo_outcome", []), ("undo.after", [4])],
    ids=["recorded", "not-recorded"],
)
async def test_a_rewind_that_was_cut_off_runs_the_rest_newest_first(fleet, point, again):
    life = await start(fleet, f"{point}=kill@2")
    transaction = await begin(fleet)
    for number in range(1, 6):
        await step(fleet, transaction, number, "crash.book", puts={f"key-{number}": number})
    rewind = pb.RewindRequest(transaction_id=transaction, to_step=1, request_id="rewind")
    call = await die_during(fleet, life, "Rewind", rewind)
    await start(fleet)

    answer = await call

    assert (answer.next_step_id, answer.generation, answer.rollback_incomplete) == (1, 2, False)
    undone = [number for what, number, _ in happened(fleet) if what == "undo"]
    assert undone == [5, 4, *again, 3, 2, 1]
    seen = await fleet.call(
        "ExecuteStep",
        pb.ExecuteStepRequest(
            transaction_id=transaction,
            step_id=1,
            tool_name="crash.look",
            arguments_json=json.dumps({"entry": "after", "keys": ["key-1", "key-5"]}),
            request_id="after",
        ),
        FIRST,
    )
    assert json.loads(seen.output_json)["found"] == {"key-1": None, "key-5": None}


# --- effects were committed, and their server died after one had gone out --------------------------


async def test_effects_go_out_after_a_crash_in_order_under_stable_keys_and_say_that_they_come_again(fleet):
    life = await start(fleet, "deliver.after=kill@1")
    transaction = await begin(fleet)
    await step(fleet, transaction, 1, "crash.write", stage=[["mail", {"n": n}] for n in range(5)])
    await step(fleet, transaction, 2, "crash.write", stage=[["mail", {"never": True}]])
    await fleet.call("Rewind", pb.RewindRequest(transaction_id=transaction, to_step=2), FIRST)
    again = pb.ExecuteStepRequest()
    again.CopyFrom(step_request(transaction, 2, "crash.write", stage=[["mail", {"n": 5}]]))
    again.request_id = "again"
    await fleet.call("ExecuteStep", again, FIRST)
    commit = pb.CommitTransactionRequest(transaction_id=transaction, request_id="commit")
    call = await die_during(fleet, life, "CommitTransaction", commit)
    # What comes next can't be delivered either, for a while.
    aside = fleet.outbox_file.rename(fleet.outbox_file.with_suffix(".aside"))
    fleet.outbox_file.mkdir()
    life = await start(fleet)
    await _wait_for_event(life, transaction, event_pb2.EVENT_TYPE_EFFECT_FAILED, times=3)
    assert not any(effect.state == pb.EFFECT_STATE_DELIVERED for effect in await _effects(fleet, transaction))
    fleet.outbox_file.rmdir()
    aside.rename(fleet.outbox_file)
    await _wait_for_event(life, transaction, event_pb2.EVENT_TYPE_EFFECT_DELIVERED, times=6)

    assert (await call).committed
    lines = read_outbox(fleet)
    first, *rest = lines
    assert [line["payload"] for line in lines] == [{"n": 0}, *({"n": n} for n in range(6))]
    assert (rest[0]["effect_id"], rest[0]["idempotency_key"]) == (
        first["effect_id"],
        first["idempotency_key"],
    )
    assert rest[0]["delivery_attempt"] > first["delivery_attempt"] == 1
    assert {effect.state for effect in await _effects(fleet, transaction)} == {pb.EFFECT_STATE_DELIVERED}


async def _effects(fleet: Fleet, transaction: str) -> Any:
    found = await fleet.call("ListEffects", pb.ListEffectsRequest(transaction_id=transaction), FIRST)
    return found.effects


async def _wait_for_event(life: Any, transaction: str, kind: Any, times: int) -> None:
    """Return once events of a kind have come so often."""
    watched = life.stub.WatchTransaction(pb.WatchTransactionRequest(transaction_id=transaction), timeout=60)
    async for answer in watched:
        times -= answer.event.type == kind
        if not times:
            return
    raise AssertionError(f"{times} more events of type {kind} should have come")


# --- a watch, and its server died after event 17 ----------------------------------------------------


async def test_a_watch_goes_on_with_the_next_server_without_a_gap_or_a_repetition(fleet):
    life = await start(fleet)
    transaction = await begin(fleet)
    for number in range(1, 10):
        await step(fleet, transaction, number, "crash.book")
    watched = life.stub.WatchTransaction(pb.WatchTransactionRequest(transaction_id=transaction), timeout=60)
    seen = [(await watched.read()).event for _ in range(17)]
    await fleet.kill(life)

    life = await start(fleet)
    # One step fails twice meanwhile; each time it goes back, and comes again as another attempt.
    policy_target = 10
    for attempt in range(2):
        failing = step_request(transaction, policy_target, "crash.look", fail="no such user")
        failing.request_id = f"failing-{attempt}"
        answer = await fleet.call("ExecuteStep", failing, FIRST)
        for number in range(answer.next_step_id, policy_target):
            redone = step_request(transaction, number, "crash.look")
            redone.request_id = f"redone-{attempt}-{number}"
            await fleet.call("ExecuteStep", redone, FIRST)
    await step(fleet, transaction, policy_target, "crash.look")
    await fleet.call("CommitTransaction", pb.CommitTransactionRequest(transaction_id=transaction), FIRST)
    rest = life.stub.WatchTransaction(
        pb.WatchTransactionRequest(transaction_id=transaction, from_sequence=18), timeout=60
    )
    seen += [answer.event async for answer in rest]

    assert [event.sequence for event in seen] == list(range(1, len(seen) + 1))
    everything = life.stub.WatchTransaction(
        pb.WatchTransactionRequest(transaction_id=transaction), timeout=60
    )
    assert seen == [answer.event async for answer in everything]
    ended = [
        (event.attempt, event.type)
        for event in seen
        if event.step_id == policy_target
        and event.type in (event_pb2.EVENT_TYPE_STEP_FAILED, event_pb2.EVENT_TYPE_STEP_COMPLETED)
    ]
    assert ended == [
        (1, event_pb2.EVENT_TYPE_STEP_FAILED),
        (2, event_pb2.EVENT_TYPE_STEP_FAILED),
        (3, event_pb2.EVENT_TYPE_STEP_COMPLETED),
    ]
