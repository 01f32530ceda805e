"""WatchTransaction: every event, in order, once; and an end that says where to go on."""

import asyncio

import grpc
import grpc.aio
import pytest
from tests.support.calls import begin, commit, refused, step
from tests.support.running_server import running_server

from agenttx.v1 import event_pb2
from agenttx.v1 import transaction_pb2 as pb


@pytest.fixture
async def server():
    async with running_server(tools="tests.support.sample_tools") as running:
        yield running


def watch(server, transaction, from_sequence=0):
    return server.stub.WatchTransaction(
        pb.WatchTransactionRequest(transaction_id=transaction, from_sequence=from_sequence)
    )


async def all_events(stream):
    """Read to the end, in the style that mixes with single reads."""
    events = []
    while (message := await stream.read()) is not grpc.aio.EOF:
        events.append(message.event)
    return events


async def test_an_ended_transaction_is_told_from_the_start_to_the_end(server):
    transaction = await begin(server.stub)
    await step(server.stub, transaction, 1, "sample.echo", {"value": 1})
    await commit(server.stub, transaction)

    events = await all_events(watch(server, transaction))

    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert {event.transaction_id for event in events} == {transaction}
    types = [event_pb2.EventType.Name(event.type).removeprefix("EVENT_TYPE_") for event in events]
    assert types[0] == "TRANSACTION_BEGUN"
    assert "STEP_COMPLETED" in types
    assert types[-1] == "TRANSACTION_COMMITTED"
    completed = events[types.index("STEP_COMPLETED")]
    assert (completed.step_id, completed.attempt, completed.generation) == (1, 1, 1)
    assert completed.occurred_at.ToMicroseconds() > 0
    assert completed.payload_json.startswith("{")


async def test_events_come_live(server):
    transaction = await begin(server.stub)
    stream = watch(server, transaction)
    assert (await stream.read()).event.type == event_pb2.EVENT_TYPE_TRANSACTION_BEGUN

    await step(server.stub, transaction, 1, "sample.echo", {"value": 1})
    live = (await stream.read()).event
    await commit(server.stub, transaction)
    rest = await all_events(stream)

    assert (live.sequence, live.step_id) == (2, 1)
    assert rest[-1].type == event_pb2.EVENT_TYPE_TRANSACTION_COMMITTED
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_watch_goes_on_after_the_last_one_seen(server):
    transaction = await begin(server.stub)
    for number in range(1, 4):
        await step(server.stub, transaction, number, "sample.echo", {"value": number})
    await commit(server.stub, transaction)
    everything = await all_events(watch(server, transaction))

    for start in (1, 2, len(everything), len(everything) + 1):
        assert await all_events(watch(server, transaction, start)) == everything[start - 1 :]


async def test_no_event_is_missed_or_repeated_over_many_pages_while_more_arrive(server):
    transaction = await begin(server.stub)

    async def work():
        for number in range(1, 301):
            await step(server.stub, transaction, number, "sample.echo", {"value": number})
        await commit(server.stub, transaction)

    working = asyncio.create_task(work())
    watches = await asyncio.gather(*(all_events(watch(server, transaction, start)) for start in (1, 5, 300)))
    await working

    last = watches[0][-1].sequence
    assert last >= 302
    for start, events in zip((1, 5, 300), watches, strict=True):
        assert [event.sequence for event in events] == list(range(start, last + 1))


async def test_a_watch_lasts_until_the_effects_are_delivered(server):
    transaction = await begin(server.stub)
    await step(server.stub, transaction, 1, "effect.stage", {"channel": "mail", "payload": {"n": 1}})
    events = asyncio.create_task(all_events(watch(server, transaction)))
    await commit(server.stub, transaction)

    assert (await events)[-1].type == event_pb2.EVENT_TYPE_EFFECT_DELIVERED


async def test_a_rolled_back_transaction_ends_its_watch(server):
    transaction = await begin(server.stub)
    events = asyncio.create_task(all_events(watch(server, transaction)))
    await server.stub.RollbackTransaction(pb.RollbackTransactionRequest(transaction_id=transaction))

    assert (await events)[-1].type == event_pb2.EVENT_TYPE_TRANSACTION_ROLLED_BACK


async def test_a_draining_server_says_where_to_go_on(server):
    transaction = await begin(server.stub)
    await step(server.stub, transaction, 1, "sample.echo", {"value": 1})
    stream = watch(server, transaction)
    seen = [(await stream.read()).event.sequence for _ in range(2)]

    draining = asyncio.create_task(server.server.drain())
    refusal = await refused(stream.read())
    await draining

    assert seen == [1, 2]
    assert refusal.code is grpc.StatusCode.UNAVAILABLE
    assert refusal.reason == "DRAINING"
    assert "resume from sequence 3" in refusal.message


async def test_a_watcher_that_leaves_is_forgotten(server):
    transaction = await begin(server.stub)
    stream = watch(server, transaction)
    await stream.read()
    stream.cancel()

    # The stream's call has ended once nothing is in flight, or draining would wait for it.
    assert await server.server.drain() == 0
