"""Effects posted to a real HTTP server."""

import asyncio
import socket
from email.utils import formatdate

import pytest
from tests.support.http_receiver import Answer, answer, http_receiver

from agenttx_server.engine.ports import DeliveryFailed
from agenttx_server.engine.records import EffectRecord, MicrosecondsUtc, TransactionId
from agenttx_server.retry_after import retry_after_seconds
from agenttx_server.sinks.webhook import PERMANENT, WebhookClient, WebhookSink
from agenttx_server.webhook_targets import WebhookTarget

SECRET = "Bearer not-for-the-log"


def effect(payload='{"to":"ann"}', key="k-1", attempts=1):
    return EffectRecord(
        effect_id="e-1",
        step_id=3,
        attempt=2,
        sequence=1,
        channel="mail",
        payload=payload,
        idempotency_key=key,
        staged_at=MicrosecondsUtc(1_700_000_000_250_000),
        attempts=attempts,
    )


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def client():
    client = WebhookClient(timeout_seconds=5, most_connections=8)
    yield client
    await client.close()


async def post(client, receiver, given=None, authorization=""):
    sink = WebhookSink(client, WebhookTarget(receiver.url, authorization))
    await sink.deliver(TransactionId("t-1"), given or effect())


async def refusal(client, receiver, **fields):
    with pytest.raises(DeliveryFailed) as raised:
        await post(client, receiver, **fields)
    return raised.value


async def test_an_effect_is_a_post_with_all_that_the_receiver_needs(client):
    async with http_receiver(answer(200, b'{"ok":true}')) as receiver:
        await post(client, receiver, effect(attempts=2), authorization=SECRET)

    (request,) = receiver.requests
    assert (request.method, request.path) == ("POST", "/effects")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == "k-1"
    assert request.headers["authorization"] == SECRET
    assert request.json == {
        "effect_id": "e-1",
        "transaction_id": "t-1",
        "step_id": 3,
        "channel": "mail",
        "payload": {"to": "ann"},
        "idempotency_key": "k-1",
        "staged_at": "2023-11-14T22:13:20.250+00:00",
        "delivery_attempt": 2,
    }


async def test_no_authorization_is_sent_unless_it_is_set(client):
    async with http_receiver() as receiver:
        await post(client, receiver)

    assert "authorization" not in receiver.requests[0].headers


async def test_the_payload_arrives_letter_by_letter(client):
    payload = '{"big":12345678901234567890123,"zero":-0.0,"text":"é\\u0000"}'
    async with http_receiver() as receiver:
        await post(client, receiver, effect(payload))

    assert payload.encode() in receiver.requests[0].body


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ("a b", "a%20b"),
        ("é", "%C3%A9"),
        ("x\r\nEvil: 1", "x%0D%0AEvil:%201"),
        ("100%", "100%25"),
        ("a/b", "a/b"),
    ],
)
async def test_a_key_that_no_header_can_carry_is_percent_encoded(client, key, sent):
    async with http_receiver() as receiver:
        await post(client, receiver, effect(key=key))

    assert receiver.requests[0].headers["idempotency-key"] == sent
    assert receiver.requests[0].json["idempotency_key"] == key
    assert "evil" not in receiver.requests[0].headers


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_a_delivery(client, status):
    async with http_receiver(answer(status)) as receiver:
        await post(client, receiver)

    assert len(receiver.requests) == 1


@pytest.mark.parametrize("status", sorted(PERMANENT))
async def test_what_is_wrong_with_the_request_itself_is_not_tried_again(client, status):
    async with http_receiver(answer(int(status))) as receiver:
        assert (await refusal(client, receiver)).permanent


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 408, 409, 421, 425, 429, 500, 502, 503, 599])
async def test_everything_else_is_tried_again(client, status):
    async with http_receiver(answer(status)) as receiver:
        assert not (await refusal(client, receiver)).permanent


async def test_a_refusal_says_who_answered_what(client):
    async with http_receiver(answer(500, b"<b>out of\n  paper</b>" + b"x" * 100_000)) as receiver:
        failure = await refusal(client, receiver, authorization=SECRET)

    assert failure.message.startswith(f"127.0.0.1:{receiver.port} answered 500 As-Told: <b>out of paper</b>x")
    assert len(failure.message) < 700
    assert "not-for-the-log" not in failure.message
    assert "/effects" not in failure.message


async def test_a_redirect_is_not_followed(client):
    async with http_receiver() as other, http_receiver(answer(307, Location=other.url)) as receiver:
        await refusal(client, receiver, authorization=SECRET)

        assert other.requests == []


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("0", 0), ("999999999", 3600), ("soon", None), ("-5", None), ("1.5", None), ("", None)],
)
async def test_retry_after_in_seconds_is_heeded_up_to_an_hour(client, header, seconds):
    async with http_receiver(answer(503, Retry_After=header)) as receiver:
        assert (await refusal(client, receiver)).retry_after_seconds == seconds


def test_retry_after_as_a_date_is_heeded():
    now = 1_700_000_000
    assert retry_after_seconds(formatdate(now + 90, usegmt=True), now) == 90
    assert retry_after_seconds(formatdate(now - 90, usegmt=True), now) == 0
    assert retry_after_seconds(formatdate(now + 90_000, usegmt=True), now) == 3600
    assert retry_after_seconds("Sun, 99 Foo 2023 00:00:00 GMT", now) is None


async def test_no_answer_within_the_time_is_a_failure():
    client = WebhookClient(timeout_seconds=0.2, most_connections=8)
    async with http_receiver(Answer(never=True)) as receiver:
        failure = await refusal(client, receiver)
    await client.close()

    assert not failure.permanent
    assert "did not answer within 0.2 s" in failure.message or "within the time" in failure.message


async def test_the_answer_counts_and_not_its_body(client):
    async with http_receiver(
        Answer(200, body=b"{", body_hangs=True), Answer(500, body=b"half", body_hangs=True)
    ) as receiver:
        await post(client, receiver)
        failure = await refusal(client, receiver)

    assert "half" in failure.message


async def test_a_connection_that_breaks_off_is_a_failure(client):
    async with http_receiver(Answer(breaks_off=True)) as receiver:
        failure = await refusal(client, receiver)

    assert not failure.permanent
    assert "broke off" in failure.message


async def test_nobody_there_is_a_failure(client):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    sink = WebhookSink(client, WebhookTarget(f"http://127.0.0.1:{port}/effects"))

    with pytest.raises(DeliveryFailed, match="no connection") as raised:
        await sink.deliver(TransactionId("t-1"), effect())
    assert not raised.value.permanent


async def test_one_connection_is_used_again_and_again(client):
    async with http_receiver(*[answer(200, b"ok")] * 5) as receiver:
        for _ in range(5):
            await post(client, receiver)

    assert receiver.connections == 1


async def test_many_at_once_all_arrive(client):
    async with http_receiver() as receiver:
        await asyncio.gather(*(post(client, receiver) for _ in range(100)))

    assert len(receiver.requests) == 100
