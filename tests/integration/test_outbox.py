"""The outbox of a real server: webhooks, crashes, what people do about effects."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.support.calls import begin, commit, get, refused, step
from tests.support.cli_calls import CommandLine
from tests.support.http_receiver import Answer, answer, http_receiver
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import CHANNEL_OPTIONS, running_server, server_process

from agenttx import AsyncClient
from agenttx.v1 import event_pb2, transaction_pb2_grpc
from agenttx.v1 import transaction_pb2 as pb

QUICKLY = {"effect_retry_base_seconds": 0.02, "effect_retry_max_seconds": 0.1}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def serving(receiver, **settings):
    return running_server(webhooks=[f"mail={receiver.url}"], **(QUICKLY | settings))


async def staged(stub, *payloads, channel="mail", transaction=None):
    """Begin a transaction with an effect a step; return its id."""
    transaction = transaction or await begin(stub)
    for number, payload in enumerate(payloads, start=1):
        await step(stub, transaction, number, "effect.stage", {"channel": channel, "payload": payload})
    return transaction


async def effects_of(stub, transaction="", **fields):
    request = pb.ListEffectsRequest(transaction_id=transaction, **fields)
    return list((await stub.ListEffects(request)).effects)


async def last_event(stub, transaction):
    """Follow a transaction to its end; return the last event's type."""
    stream = stub.WatchTransaction(pb.WatchTransactionRequest(transaction_id=transaction))
    last = None
    while (message := await stream.read()) is not grpc.aio.EOF:
        last = message.event
    return event_pb2.EventType.Name(last.type).removeprefix("EVENT_TYPE_")


def attempts(receiver):
    return [(request.json["payload"], request.json["delivery_attempt"]) for request in receiver.requests]


# --- deliveries -------------------------------------------------------------------------------


async def test_a_webhook_that_fails_for_a_while_gets_each_effect_in_order_under_one_key():
    async with http_receiver(answer(500), answer(503), answer(502)) as receiver, serving(receiver) as server:
        transaction = await staged(server.stub, 1, 2)
        answered = await commit(server.stub, transaction)
        assert await last_event(server.stub, transaction) == "EFFECT_DELIVERED"

        assert (answered.effects_dispatched, answered.effects_pending) == (0, 2)
        (line,) = answered.dispatch_errors
        assert "answered 500" in line
        assert attempts(receiver) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]
        keys = [request.headers["idempotency-key"] for request in receiver.requests]
        assert len(set(keys[:4])) == 1
        assert keys[4] != keys[0]
        assert (await get(server.stub, transaction)).pending_effects == 0
        first, second = await effects_of(server.stub, transaction)
        assert (first.state, first.delivery_attempts, first.last_error) == (pb.EFFECT_STATE_DELIVERED, 4, "")
        assert first.staged_at.ToMicroseconds() <= first.ready_at.ToMicroseconds()
        assert first.ready_at.ToMicroseconds() <= first.settled_at.ToMicroseconds()
        assert (second.payload_json, second.idempotency_key) == ("2", keys[4])


async def test_a_channel_without_a_webhook_goes_to_the_file():
    async with http_receiver() as receiver, serving(receiver) as server:
        transaction = await staged(server.stub, {"n": 1}, channel="sms")
        await commit(server.stub, transaction)

        (line,) = server.settings.outbox_file.read_text().splitlines()
        assert json.loads(line)["delivery_attempt"] == 1
        assert receiver.requests == []


async def test_the_webhook_of_all_others_takes_what_no_other_has():
    async with (
        http_receiver() as mail,
        http_receiver() as others,
        running_server(webhooks=[f"mail={mail.url}", f"*={others.url}"]) as server,
    ):
        await commit(server.stub, await staged(server.stub, 1))
        await commit(server.stub, await staged(server.stub, 2, channel="sms"))

        assert (attempts(mail), attempts(others)) == ([(1, 1)], [(2, 1)])
        assert not server.settings.outbox_file.exists()


async def test_a_receiver_that_is_not_there_yet_gets_the_effect_once_it_is():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    async with running_server(webhooks=[f"mail=http://127.0.0.1:{port}/"], **QUICKLY) as server:
        transaction = await staged(server.stub, 1)
        answered = await commit(server.stub, transaction)
        assert "no connection" in answered.dispatch_errors[0]

        arrived = asyncio.Event()

        async def accept(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()
            arrived.set()

        async with await asyncio.start_server(accept, "127.0.0.1", port):
            assert await last_event(server.stub, transaction) == "EFFECT_DELIVERED"
        assert arrived.is_set()


async def test_one_slow_receiver_holds_up_neither_the_commit_nor_other_transactions():
    async with (
        http_receiver(Answer(never=True)) as receiver,
        serving(receiver, dispatch_wait_seconds=0.1) as server,
    ):
        slow = await staged(server.stub, 1)
        answered = await commit(server.stub, slow)
        other = await staged(server.stub, 2)
        await commit(server.stub, other)

        assert (answered.effects_dispatched, answered.effects_pending) == (0, 1)
        assert await last_event(server.stub, other) == "EFFECT_DELIVERED"
        assert (await get(server.stub, slow)).pending_effects == 1


async def test_a_timeout_is_tried_again():
    async with (
        http_receiver(Answer(never=True)) as receiver,
        serving(receiver, dispatch_wait_seconds=0, webhook_timeout_seconds=0.2) as server,
    ):
        transaction = await staged(server.stub, 1)
        await commit(server.stub, transaction)

        assert await last_event(server.stub, transaction) == "EFFECT_DELIVERED"
        assert attempts(receiver) == [(1, 1), (1, 2)]


# --- dead effects -----------------------------------------------------------------------------


async def test_a_refused_effect_is_dead_and_its_watch_ends_until_somebody_requeues_it():
    async with http_receiver(answer(422, b"no such customer")) as receiver, serving(receiver) as server:
        transaction = await staged(server.stub, 1, 2)
        answered = await commit(server.stub, transaction)
        ending = await last_event(server.stub, transaction)

        assert (answered.effects_dispatched, answered.effects_pending) == (1, 0)
        assert "no such customer" in answered.dispatch_errors[0]
        assert answered.dispatch_errors[0].endswith("Given up.")
        assert ending == "EFFECT_DELIVERED"
        (summary,) = (await server.stub.ListTransactions(pb.ListTransactionsRequest())).transactions
        assert (summary.pending_effects, summary.dead_effects) == (0, 1)
        (dead,) = await effects_of(server.stub, states=[pb.EFFECT_STATE_DEAD])
        assert dead.transaction_id == transaction
        assert "no such customer" in dead.last_error

        request = pb.RequeueEffectRequest(
            transaction_id=transaction, effect_id=dead.effect_id, request_id="again"
        )
        requeued = (await server.stub.RequeueEffect(request)).effect
        assert (requeued.state, requeued.delivery_attempts) == (pb.EFFECT_STATE_READY, 0)
        assert await last_event(server.stub, transaction) == "EFFECT_DELIVERED"
        assert attempts(receiver) == [(1, 1), (2, 1), (1, 1)]
        assert (await server.stub.RequeueEffect(request)).effect == requeued
        assert (
            await refused(
                server.stub.DiscardEffect(
                    pb.DiscardEffectRequest(transaction_id=transaction, effect_id=dead.effect_id)
                )
            )
        ).reason == "EFFECT_SETTLED"


async def test_attempts_run_out_and_the_last_event_says_so():
    async with (
        http_receiver(*[answer(500)] * 3) as receiver,
        serving(receiver, effect_max_attempts=3) as server,
    ):
        transaction = await staged(server.stub, 1)
        await commit(server.stub, transaction)

        assert await last_event(server.stub, transaction) == "EFFECT_DEAD"
        assert attempts(receiver) == [(1, 1), (1, 2), (1, 3)]


async def test_a_discarded_effect_ends_the_watch():
    async with http_receiver(answer(500, Retry_After="3600")) as receiver, serving(receiver) as server:
        transaction = await staged(server.stub, 1)
        await commit(server.stub, transaction)
        (waiting,) = await effects_of(server.stub, transaction)
        assert waiting.next_attempt_at.ToMicroseconds() - waiting.ready_at.ToMicroseconds() > 3_000_000_000

        watching = asyncio.create_task(last_event(server.stub, transaction))
        request = pb.DiscardEffectRequest(
            transaction_id=transaction, effect_id=waiting.effect_id, reason="sent by hand"
        )
        assert (await server.stub.DiscardEffect(request)).effect.state == pb.EFFECT_STATE_DISCARDED
        assert await watching == "EFFECT_DISCARDED"


async def test_effects_are_listed_page_by_page_and_refusals_say_why():
    async with running_server() as server:
        stub = server.stub
        transaction = await staged(stub, *({"text": "x" * 900_000, "n": number} for number in range(8)))
        sizes, token, found = [], "", []
        while True:
            page = await stub.ListEffects(pb.ListEffectsRequest(page_token=token))
            sizes.append(page.ByteSize())
            found += [json.loads(effect.payload_json)["n"] for effect in page.effects]
            token = page.next_page_token
            if not token:
                break

        assert found == list(range(8))
        assert len(sizes) > 1
        assert max(sizes) < 4 << 20
        assert len(await effects_of(stub, transaction, page_size=1)) == 1
        assert await effects_of(stub, channel="sms") == []
        (effect, *_) = await effects_of(stub, transaction, page_size=1)
        assert effect.state == pb.EFFECT_STATE_STAGED
        assert not effect.HasField("ready_at")
        for call, reason in (
            (stub.DiscardEffect(_discard(transaction, effect.effect_id)), "EFFECT_STAGED"),
            (stub.RequeueEffect(_requeue(transaction, effect.effect_id)), "EFFECT_NOT_DEAD"),
            (stub.RequeueEffect(_requeue(transaction, "none")), "EFFECT_NOT_FOUND"),
            (stub.DiscardEffect(_discard("none", "none")), "TRANSACTION_NOT_FOUND"),
            (stub.DiscardEffect(_discard(transaction, "")), "INVALID_REQUEST"),
            (stub.ListEffects(pb.ListEffectsRequest(states=[0])), "INVALID_REQUEST"),
            (stub.ListEffects(pb.ListEffectsRequest(states=[99])), "INVALID_REQUEST"),
            (stub.ListEffects(pb.ListEffectsRequest(page_token="made up")), "INVALID_REQUEST"),
            (stub.ListEffects(pb.ListEffectsRequest(transaction_id="none")), "TRANSACTION_NOT_FOUND"),
        ):
            assert (await refused(call)).reason == reason


def _discard(transaction, effect):
    return pb.DiscardEffectRequest(transaction_id=transaction, effect_id=effect)


def _requeue(transaction, effect):
    return pb.RequeueEffectRequest(transaction_id=transaction, effect_id=effect)


async def test_the_sdk_lists_requeues_and_discards():
    async with (
        http_receiver(answer(410), answer(410)) as receiver,
        serving(receiver) as server,
        AsyncClient(server.address) as client,
    ):
        transaction = await staged(server.stub, {"n": 1}, {"n": 2})
        await commit(server.stub, transaction)
        dead = [effect async for effect in client.list_effects(states=["DEAD"], channel="mail", page_size=1)]
        assert [effect.payload for effect in dead] == [{"n": 1}, {"n": 2}]

        requeued = await client.requeue_effect(transaction, dead[0].effect_id)
        assert (requeued.state, requeued.delivery_attempts) == ("READY", 0)
        given_up = await client.discard_effect(transaction, dead[1].effect_id, reason="no use")
        assert given_up.state == "DISCARDED"
        [event async for event in client.watch(transaction)]
        states = [effect.state async for effect in client.list_effects(transaction)]
        assert states == ["DELIVERED", "DISCARDED"]


async def test_the_command_line_lists_requeues_and_discards(capsys, tmp_path):
    async with http_receiver(*[answer(410)] * 3) as receiver:
        with server_process(tmp_path, webhooks=f"mail={receiver.url}", **QUICKLY) as process:
            async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
                await look_and_mend(
                    CommandLine(process.address, capsys), transaction_pb2_grpc.AgentTxServiceStub(channel)
                )


async def look_and_mend(command_line, stub):
    async def agenttx(*arguments):
        return await asyncio.to_thread(command_line, "effects", *arguments)

    assert (await agenttx("list")).out == "Every effect is delivered.\n"
    transaction = await staged(stub, 1, 2, 3)
    await commit(stub, transaction)

    dead = (await agenttx("list", "--json")).json["effects"]
    assert [effect["state"] for effect in dead] == ["DEAD"] * 3
    shown = (await agenttx("list", "--details", "--state", "dead", "--limit", "1")).out
    assert dead[0]["effect_id"] in shown
    assert dead[1]["effect_id"] not in shown
    discard = ("discard", transaction, dead[0]["effect_id"], "--reason", "sent by hand")
    given_up = await agenttx(*discard)
    assert (given_up.code, "DISCARDED" in given_up.out) == (0, True)
    again = await agenttx(*discard)
    assert (again.code, "it is DISCARDED" in again.err) == (1, True)
    one = (await agenttx("requeue", transaction, dead[1]["effect_id"], "--json")).json
    assert [effect["state"] for effect in one["effects"]] == ["READY"]
    rest = (await agenttx("requeue", "--all", "--channel", "mail", "--json")).json
    assert [effect["effect_id"] for effect in rest["effects"]] == [dead[2]["effect_id"]]
    assert (await agenttx("requeue", "--all")).out == "No effect is DEAD.\n"
    for wrong in (("requeue",), ("requeue", transaction, "--all"), ("list", "--state", "lost")):
        assert (await agenttx(*wrong)).code == 2
    await last_event(stub, transaction)
    every = (await agenttx("list", "--all", "--json")).json["effects"]
    assert [effect["state"] for effect in every] == ["DISCARDED", "DELIVERED", "DELIVERED"]


async def test_secrets_of_webhooks_are_in_no_log_and_no_answer(tmp_path):
    async with http_receiver(answer(500), answer(200)) as receiver:
        url = f"{receiver.url}/s3cr3t-path?token=s3cr3t-query"
        with server_process(
            tmp_path,
            webhooks=f"mail={url}",
            webhook_authorization="mail=Bearer s3cr3t-header",
            log_level="debug",
            **QUICKLY,
        ) as process:
            async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
                stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
                transaction = await staged(stub, "s3cr3t-payload")
                answered = await commit(stub, transaction)
                await last_event(stub, transaction)
            process.terminate()
            assert await asyncio.to_thread(process.wait) == 0
        assert receiver.requests[0].headers["authorization"] == "Bearer s3cr3t-header"
        assert "s3cr3t" not in "\n".join(process.log)
        assert "s3cr3t" not in str(answered)


# --- crashes ----------------------------------------------------------------------------------


async def crashed_while_delivering(data_dir: Path, receiver, *payloads):
    """Commit on a server that is killed as soon as the receiver has its first request; return the transaction."""
    with server_process(data_dir, webhooks=f"mail={receiver.url}", **QUICKLY) as process:
        async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
            stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
            transaction = await staged(stub, *payloads)
            committing = asyncio.create_task(commit(stub, transaction, request_id="c"))
            await receiver.wait_for(1)
            process.kill()
            with pytest.raises(grpc.aio.AioRpcError):
                await committing
    return transaction


async def test_effects_of_a_server_that_was_killed_go_out_after_its_start(tmp_path):
    async with http_receiver(Answer(never=True)) as receiver:
        transaction = await crashed_while_delivering(tmp_path, receiver, 1, 2)
        with server_process(tmp_path, webhooks=f"mail={receiver.url}", **QUICKLY) as process:
            await receiver.wait_for(3)
            async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
                stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
                assert await last_event(stub, transaction) == "EFFECT_DELIVERED"
                answered = await commit(stub, transaction, request_id="c")

    assert [payload for payload, _ in attempts(receiver)] == [1, 1, 2]
    assert attempts(receiver)[:2] == [(1, 1), (1, 2)]
    first, again, _ = receiver.requests
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert (answered.effects_dispatched, answered.effects_pending) == (2, 0)


async def test_a_server_that_is_told_to_stop_leaves_what_waits_to_the_next_one(tmp_path):
    async with http_receiver(answer(503, Retry_After="1")) as receiver:
        settings = {"webhooks": f"mail={receiver.url}", **QUICKLY}
        with server_process(tmp_path, **settings) as process:
            async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
                stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
                transaction = await staged(stub, 1)
                await commit(stub, transaction)
            process.terminate()
            assert await asyncio.to_thread(process.wait) == 0
        with server_process(tmp_path, **settings) as process:
            async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
                stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
                assert await last_event(stub, transaction) == "EFFECT_DELIVERED"

    assert attempts(receiver) == [(1, 1), (1, 2)]


async def test_c52_five_effects_a_crash_three_failures_and_a_rewound_one(tmp_path):
    """C52: each is delivered under a stable id, a repetition can be told, order holds, the rewound one never leaves."""
    answers = [answer(204), Answer(never=True), answer(204), *[answer(500)] * 3]
    async with http_receiver(*answers) as receiver:
        with server_process(tmp_path, webhooks=f"mail={receiver.url}", **QUICKLY) as process:
            async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
                stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
                transaction = await staged(stub, "a", "b", "c", "d", "rewound")
                await stub.Rewind(pb.RewindRequest(transaction_id=transaction, to_step=5))
                await step(stub, transaction, 5, "effect.stage", {"channel": "mail", "payload": "e"})
                committing = asyncio.create_task(commit(stub, transaction, request_id="c"))
                await receiver.wait_for(2)
                process.kill()  # "a" was delivered a moment ago, "b" is on its way
                with pytest.raises(grpc.aio.AioRpcError):
                    await committing
        before = len(receiver.requests)
        with server_process(tmp_path, webhooks=f"mail={receiver.url}", **QUICKLY) as process:
            async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
                stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
                assert await last_event(stub, transaction) == "EFFECT_DELIVERED"
                effects = await effects_of(stub, transaction)

    sent = attempts(receiver)
    assert sent[:before] == [("a", 1), ("b", 1)]
    after = [payload for payload, _ in sent[before:]]
    # "a" comes again unless its mark was written within the moment.
    assert list(dict.fromkeys(after)) in (["a", "b", "c", "d", "e"], ["b", "c", "d", "e"])
    assert after == sorted(after)
    by_payload: dict[str, list[int]] = {}
    for payload, attempt in sent:
        by_payload.setdefault(payload, []).append(attempt)
    assert "rewound" not in by_payload
    assert set(by_payload) == set("abcde")
    for numbers in by_payload.values():
        assert numbers == sorted(set(numbers))  # no two deliveries of one effect look the same
    assert by_payload["b"][:2] == [1, 2]
    keys = {(request.json["payload"], request.headers["idempotency-key"]) for request in receiver.requests}
    assert len(keys) == 5
    assert sum(len(numbers) for numbers in by_payload.values()) >= 5 + 1 + 3
    assert [effect.state for effect in effects] == [pb.EFFECT_STATE_DELIVERED] * 5
    assert [json.loads(effect.payload_json) for effect in effects] == list("abcde")


# --- several servers over one PostgreSQL ------------------------------------------------------


@pytest.fixture
def database_url() -> Iterator[str]:
    with shared_cluster().database() as address:
        yield address


async def test_a_killed_servers_effects_are_delivered_by_another_that_shares_its_database(
    tmp_path, database_url
):
    async with http_receiver(Answer(never=True)) as receiver:
        settings = {
            "webhooks": f"mail={receiver.url}",
            "database_url": database_url,
            "fs_root": tmp_path / "sandbox",
            "fs_adopt": True,
            "lease_seconds": 2,
            **QUICKLY,
        }
        with server_process(tmp_path / "one", **settings) as one:
            async with grpc.aio.insecure_channel(one.address, options=CHANNEL_OPTIONS) as channel:
                transaction = await staged(transaction_pb2_grpc.AgentTxServiceStub(channel), 1, 2)
                with server_process(tmp_path / "other", **settings) as other:
                    async with grpc.aio.insecure_channel(
                        other.address, options=CHANNEL_OPTIONS
                    ) as other_channel:
                        stub = transaction_pb2_grpc.AgentTxServiceStub(other_channel)
                        watching = asyncio.create_task(last_event(stub, transaction))
                        committing = asyncio.create_task(
                            commit(transaction_pb2_grpc.AgentTxServiceStub(channel), transaction)
                        )
                        await receiver.wait_for(1)
                        one.kill()
                        with pytest.raises(grpc.aio.AioRpcError):
                            await committing
                        assert await watching == "EFFECT_DELIVERED"

    assert [payload for payload, _ in attempts(receiver)] == [1, 1, 2]
    assert attempts(receiver)[1] == (1, 2)
