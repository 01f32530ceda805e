"""The outbox file."""

import asyncio
import errno
import json
import os
import stat

import pytest

from agenttx_server.engine.records import EffectRecord, MicrosecondsUtc, TransactionId
from agenttx_server.sinks import ChannelRouter, JsonLinesSink
from agenttx_server.sinks import json_lines as sinks


def effect(number, payload='{"n":1}', channel="mail"):
    return EffectRecord(
        effect_id=f"e{number}",
        step_id=number,
        attempt=1,
        sequence=number,
        channel=channel,
        payload=payload,
        idempotency_key=f"k{number}",
        staged_at=MicrosecondsUtc(0),
        attempts=2,
    )


@pytest.fixture
def sink(tmp_path):
    sink = JsonLinesSink(tmp_path / "outbox.jsonl")
    yield sink
    sink.close()


async def deliver(sink, *effects):
    await asyncio.gather(*(sink.deliver(TransactionId("t"), each) for each in effects))


async def test_an_effect_is_one_line_with_all_that_the_receiver_needs(sink, tmp_path):
    await deliver(sink, effect(1))

    (line,) = (tmp_path / "outbox.jsonl").read_text().splitlines()
    fields = json.loads(line)
    assert fields.pop("delivered_at").endswith("+00:00")
    assert fields == {
        "effect_id": "e1",
        "transaction_id": "t",
        "step_id": 1,
        "channel": "mail",
        "idempotency_key": "k1",
        "payload": {"n": 1},
        "staged_at": "1970-01-01T00:00:00.000+00:00",
        "delivery_attempt": 2,
    }


async def test_the_payload_stays_letter_by_letter(sink, tmp_path):
    payload = '{"big":12345678901234567890123,"zero":-0.0,"text":"é\\u0000"}'

    await deliver(sink, effect(1, payload))

    assert f'"payload":{payload},' in (tmp_path / "outbox.jsonl").read_text()


async def test_only_the_owner_may_read_the_file(sink, tmp_path):
    await deliver(sink, effect(1))

    assert stat.S_IMODE((tmp_path / "outbox.jsonl").stat().st_mode) == 0o600


async def test_effects_delivered_at_once_are_all_there_and_whole(sink, tmp_path):
    await deliver(sink, *(effect(number) for number in range(100)))

    lines = (tmp_path / "outbox.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["step_id"] for line in lines) == list(range(100))


async def test_a_line_is_on_disk_before_its_delivery_is_done(sink, tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(sinks.os, "fsync", lambda descriptor: (synced.append(descriptor), real(descriptor)))

    await deliver(sink, effect(1))

    assert len(synced) == 2  # the directory, which has a new name in it, and the file
    await deliver(sink, effect(2))
    assert len(synced) == 3


async def test_a_line_that_a_crash_cut_short_spoils_no_other(sink, tmp_path):
    (tmp_path / "outbox.jsonl").write_bytes(b'{"effect_id":"e0","chan')

    await deliver(sink, effect(1))

    first, second = (tmp_path / "outbox.jsonl").read_text().splitlines()
    assert first == '{"effect_id":"e0","chan'
    assert json.loads(second)["effect_id"] == "e1"


async def test_a_write_that_fails_is_raised_and_leaves_no_half_line(sink, tmp_path, monkeypatch):
    await deliver(sink, effect(1))
    before = (tmp_path / "outbox.jsonl").read_bytes()
    real = os.write

    def full_after_ten_bytes(descriptor, data):
        if len(data) > 10:
            return real(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(sinks.os, "write", full_after_ten_bytes)
    with pytest.raises(OSError, match="no space left"):
        await sink.deliver(TransactionId("t"), effect(2, payload='"' + "x" * 200 + '"'))
    monkeypatch.undo()

    assert (tmp_path / "outbox.jsonl").read_bytes() == before or before.endswith(b"\n")
    await deliver(sink, effect(3))
    assert [
        json.loads(line)["effect_id"] for line in (tmp_path / "outbox.jsonl").read_text().splitlines()
    ] == [
        "e1",
        "e3",
    ]


async def test_all_effects_of_a_failed_write_are_told(tmp_path):
    sink = JsonLinesSink(tmp_path / "missing" / "outbox.jsonl")

    results = await asyncio.gather(
        *(sink.deliver(TransactionId("t"), effect(number)) for number in range(5)), return_exceptions=True
    )

    assert all(isinstance(result, FileNotFoundError) for result in results)
    sink.close()


async def test_delivery_does_not_hold_the_event_loop(sink, monkeypatch):
    allowed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def waiting(path, text):
        asyncio.run_coroutine_threadsafe(allowed.wait(), loop).result()

    monkeypatch.setattr(sinks, "_append", waiting)
    delivery = asyncio.create_task(sink.deliver(TransactionId("t"), effect(1)))
    await asyncio.sleep(0)
    assert not delivery.done()
    allowed.set()
    await delivery


class Noted:
    def __init__(self):
        self.effects = []

    async def deliver(self, transaction_id, effect):
        self.effects.append((transaction_id, effect.effect_id))


async def test_each_channel_has_its_sink_and_the_rest_have_theirs():
    mail, others = Noted(), Noted()

    await deliver(
        ChannelRouter({"mail": mail}, others), effect(1), effect(2, channel="sms"), effect(3, channel="*")
    )

    assert mail.effects == [("t", "e1")]
    assert others.effects == [("t", "e2"), ("t", "e3")]


async def test_a_channel_of_workers_is_theirs_also_while_they_are_away():
    class Hosted(Noted):
        def knows_channel(self, channel):
            return channel == "mail"

    mail, others, hosted = Noted(), Noted(), Hosted()

    await deliver(ChannelRouter({"mail": mail}, others, hosted), effect(1), effect(2, channel="sms"))

    assert hosted.effects == [("t", "e1")]
    assert mail.effects == []
    assert others.effects == [("t", "e2")]
