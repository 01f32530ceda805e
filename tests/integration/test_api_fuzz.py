"""Bad input of every kind, to every method: a clear refusal each time, and nothing lost by it.

Bounded and seeded: the same messages every run. Two in three are well-formed, with few or many
extreme values; the third is one whose bytes were damaged on the way.
"""

import random
import struct

import grpc
import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from grpc_status import rpc_status
from tests.support.calls import begin, commit, get, refusal_of, step
from tests.support.running_server import running_server

from agenttx.v1 import error_reason_pb2
from agenttx.v1 import transaction_pb2 as pb

METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["AgentTxService"].methods}
ROUNDS = 60
REASONS = {name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.keys()}  # noqa: SIM118
CLEAR = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
}
TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "é" * 200,
    "🦊\u202e\u0085",
    "x" * 5000,
    "${steps.1}",
    "${steps.99999999999999999999.a}",
    "'; DROP TABLE transactions; --",
    "../../etc/passwd",
    "%s%n{0}",
    "NaN",
    "[" * 3000,
    '{"a":' * 200,
    '{"key":"k","value":1}',
    '{"key":"k","key":"k"}',
    '{"value":1e400}',
    '{"value":"\\ud800"}',
    '{"path":"../x"}',
    "null",
    "[]",
    "\ufeff{}",
    "kv.put",
    "kv.get",
    "record.insert",
    "sample.echo",
    "ACTIVE",
    "COMMITTED",
]
# What a well-meaning caller might send, by the field's name; whole messages of these reach far into the server.
MILD = {
    "agent_id": ["a", "agent"],
    "tool_name": [
        "kv.put",
        "kv.get",
        "kv.delete",
        "record.insert",
        "sample.echo",
        "sample.fail",
        "no.such.tool",
    ],
    "arguments_json": [
        "",
        '{"key":"k","value":1}',
        '{"value":"${steps.1}"}',
        '{"value":{"a":[1,2.5,null]}}',
        '{"table":"t","values":{"id":1}}',
        '{"message":"KeyError: \'k\'"}',
        "{",
    ],
    "request_id": ["", "r1", "r2"],
    "key": ["k", "value", "a/b"],
    "prefix": ["", "k"],
    "namespace": ["", "kv", "record"],
    "statuses": ["ACTIVE", "COMMITTED"],
}
MILD_INTEGERS = {
    "step_id": [1, 2, 3],
    "to_step": [1, 2],
    "generation": [1, 2],
    "page_size": [0, 1, 10],
    "seconds": [1, 60],
    "nanos": [0],
}
# Left out of most mild messages, as they exclude another field or are refused by themselves.
RARE = {"arguments", "policy", "isolation", "crash_policy", "idle_timeout", "deadline"}
INTEGERS = [0, 1, 2, 3, 5, 100, 1000, 1001, 2**31 - 1, 2**32 - 1]
DOUBLES = [0.0, -0.0, 1.5, 2.0**53, 1e308, float("inf"), float("-inf"), float("nan")]
LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class Messages:
    """Makes messages of any type, some fields set to something extreme and others left out."""

    def __init__(self, seed, transaction_ids):
        self.random = random.Random(seed)
        self.transaction_ids = transaction_ids
        self.extremity = 0.0

    def message(self, descriptor, depth=0):
        if not depth:
            self.extremity = self.random.choice([0.0, 0.0, 0.02, 0.3, 1.0])
        made = message_factory.GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if self.random.random() < (0.4 if depth else 0.25):
                continue
            if field.name in RARE and not self._is_extreme() and self.random.random() < 0.8:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                for _ in range(self.random.randint(0, 3)):
                    self._put_in_map(getattr(made, field.name), field, depth)
            elif field.is_repeated:
                for _ in range(self.random.choice([0, 1, 1, 2, 70 if self._is_extreme() else 3])):
                    self._append(getattr(made, field.name), field, depth)
            elif field.message_type is not None:
                if depth < 6:
                    getattr(made, field.name).CopyFrom(self.message(field.message_type, depth + 1))
            else:
                setattr(made, field.name, self._scalar(field))
        return made

    def _put_in_map(self, target, field, depth):
        value = field.message_type.fields_by_name["value"]
        key = self.random.choice(TEXTS if self._is_extreme() else ["key", "value", "table"])
        if value.message_type is None:
            target[key] = self._scalar(value)
        elif depth < 6:
            target[key].CopyFrom(self.message(value.message_type, depth + 1))

    def _append(self, target, field, depth):
        if field.message_type is None:
            target.append(self._scalar(field))
        elif depth < 6:
            target.add().CopyFrom(self.message(field.message_type, depth + 1))

    def _is_extreme(self):
        return self.random.random() < self.extremity

    def _scalar(self, field):
        return self._extreme(field) if self._is_extreme() else self._mild(field)

    def _mild(self, field):
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING:
                if field.name == "transaction_id":
                    return self.random.choice(self.transaction_ids)
                return self.random.choice(MILD.get(field.name, [""]))
            case FieldDescriptor.CPPTYPE_ENUM:
                return self.random.choice([0, 1])
            case FieldDescriptor.CPPTYPE_BOOL:
                return self.random.random() < 0.5
            case FieldDescriptor.CPPTYPE_DOUBLE:
                return self.random.choice([1.0, 2.0, 2.5])
            case _:
                return self.random.choice(MILD_INTEGERS.get(field.name, [0, 1, 2]))

    def _extreme(self, field):
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self.random.choice(TEXTS)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.random.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_DOUBLE:
            return self.random.choice(DOUBLES)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self.random.choice([0, 1, 2, 3, 99, -1, 2**31 - 1])
        low, high = LIMITS[kind]
        return self.random.choice([number for number in (*INTEGERS, low, high) if low <= number <= high])

    def damaged(self, raw):
        """Return bytes with something changed, cut off, repeated or put in."""
        damaged = bytearray(raw)
        for _ in range(self.random.randint(1, 4)):
            place = self.random.randrange(len(damaged) + 1)
            match self.random.randrange(5):
                case 0 if damaged:
                    damaged[place % len(damaged)] ^= 1 << self.random.randrange(8)
                case 1:
                    del damaged[place:]
                case 2:
                    damaged[place:place] = self.random.randbytes(self.random.randint(1, 20))
                case 3:
                    damaged[place:place] = damaged[: self.random.randint(0, 50)]
                case _:
                    damaged[place:place] = struct.pack("<Q", self.random.getrandbits(64))
        return bytes(damaged)


@pytest.fixture(scope="module")
def seeds():
    return {name: number for number, name in enumerate(sorted(METHODS))}


@pytest.fixture
async def server():
    async with running_server(tools="tests.support.sample_tools") as running:
        yield running


def check(error, raw):
    code = error.code()
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in error.details():
        return
    status = rpc_status.from_call(error)
    assert status is not None, f"{code} {error.details()!r} has no details; sent {raw!r}"
    refusal = refusal_of(code, status.message, status.details)
    assert code in CLEAR, f"{refusal}; sent {raw!r}"
    assert refusal.domain == "agenttx"
    assert refusal.reason in REASONS
    assert refusal.message
    assert "Traceback" not in refusal.message


async def send(channel, method, raw):
    """Make one call of any shape; return when its first answer is there."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    if method.client_streaming:
        call = channel.stream_stream(path)(iter([raw]), timeout=5)
        async for _ in call:
            break
    elif method.server_streaming:
        call = channel.unary_stream(path)(raw, timeout=0.3)  # One from a sequence to come waits for it.
        await call.read()
        call.cancel()
    else:
        await channel.unary_unary(path)(raw, timeout=30)


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_whatever_is_sent_is_answered_clearly_and_loses_nothing(server, seeds, name):
    method = METHODS[name]
    bystander = await begin(server.stub)
    await step(server.stub, bystander, 1, "kv.put", {"key": "mine", "value": "kept"})
    ended = await begin(server.stub)
    await commit(server.stub, ended)
    others = [await begin(server.stub) for _ in range(4)]
    messages = Messages(seeds[name], [*others, ended, "0190a000-0000-7000-8000-000000000000"])

    for number in range(ROUNDS):
        raw = messages.message(method.input_type).SerializeToString()
        if number % 3 == 2:
            raw = messages.damaged(raw)
        try:
            await send(server.channel, method, raw)
        except grpc.aio.AioRpcError as error:
            if not (method.server_streaming and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED):
                check(error, raw)

    view = await get(server.stub, bystander)
    assert (view.status, view.next_step_id, view.generation) == ("ACTIVE", 2, 1)
    assert (await commit(server.stub, bystander)).keys_published == 1
    state = await server.stub.GetState(pb.GetStateRequest(key="mine"))
    assert state.entry.value_json == '"kept"'
