"""A client of the public AgentTx contract works against this server unchanged.

Its messages are built from a descriptor written down here, with the public contract's fields and
numbers only: nothing of our own protos is looked at, so a field that is renumbered fails here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.support.running_server import running_server

FIELD = descriptor_pb2.FieldDescriptorProto
TYPES = {
    "string": FIELD.TYPE_STRING,
    "uint32": FIELD.TYPE_UINT32,
    "bool": FIELD.TYPE_BOOL,
    "double": FIELD.TYPE_DOUBLE,
}
# (number, label, type, name); enums are read as numbers, which is what travels.
PUBLIC_CONTRACT = {
    "RollbackPolicy": [
        (1, "optional", "uint32", "max_local_depth"),
        (2, "optional", "uint32", "max_global_resets"),
        (3, "optional", "double", "replay_budget_factor"),
    ],
    "BeginTransactionRequest": [
        (1, "", "string", "agent_id"),
        (2, "map", "string", "metadata"),
        (3, "optional", "RollbackPolicy", "policy"),
    ],
    "BeginTransactionResponse": [(1, "", "string", "transaction_id"), (2, "", "uint32", "next_step_id")],
    "ExecuteStepRequest": [
        (1, "", "string", "transaction_id"),
        (2, "", "uint32", "step_id"),
        (3, "", "string", "tool_name"),
        (4, "", "string", "arguments_json"),
        (5, "", "string", "raw_context"),
    ],
    "ExecuteStepResponse": [
        (1, "", "uint32", "status"),
        (2, "", "string", "output_json"),
        (3, "", "string", "clean_hint"),
        (4, "", "uint32", "strategy"),
        (5, "", "uint32", "rollback_to_step"),
        (6, "", "uint32", "next_step_id"),
        (7, "repeated", "string", "constraints"),
        (8, "", "bool", "context_reset"),
        (9, "", "string", "error_category"),
        (10, "", "double", "rollback_latency_ms"),
        (11, "", "string", "abort_reason"),
        (12, "repeated", "string", "compensation_errors"),
    ],
    "CommitTransactionRequest": [(1, "", "string", "transaction_id")],
    "CommitTransactionResponse": [
        (1, "", "bool", "committed"),
        (2, "", "uint32", "steps_committed"),
        (3, "", "uint32", "effects_dispatched"),
        (4, "repeated", "string", "dispatch_errors"),
    ],
    "RollbackTransactionRequest": [
        (1, "", "string", "transaction_id"),
        (2, "optional", "uint32", "to_step"),
        (3, "", "string", "reason"),
    ],
    "RollbackTransactionResponse": [
        (1, "", "bool", "rolled_back"),
        (2, "", "uint32", "next_step_id"),
        (3, "", "uint32", "compensations_run"),
        (4, "repeated", "string", "compensation_errors"),
    ],
    "GetTransactionRequest": [(1, "", "string", "transaction_id")],
    "ContextEntry": [
        (1, "", "uint32", "step_id"),
        (2, "", "string", "tool_name"),
        (3, "", "string", "raw_context"),
    ],
    "GetTransactionResponse": [
        (1, "", "string", "transaction_id"),
        (2, "", "string", "status"),
        (3, "", "uint32", "next_step_id"),
        (4, "repeated", "string", "constraints"),
        (5, "", "uint32", "global_resets"),
        (6, "repeated", "ContextEntry", "context"),
        (7, "", "string", "agent_id"),
    ],
}
SUCCESS, ROLLBACK_TRIGGERED, FAILED = 1, 2, 3
NONE, DEPENDENCY_JUMP, ABORT = 1, 3, 6


def _field(message: descriptor_pb2.DescriptorProto, number: int, label: str, kind: str, name: str) -> None:
    field = message.field.add(name=name, number=number, label=FIELD.LABEL_OPTIONAL)
    if kind in TYPES:
        field.type = TYPES[kind]
    else:
        field.type, field.type_name = FIELD.TYPE_MESSAGE, f".agenttx.v1.{kind}"
    if label == "repeated":
        field.label = FIELD.LABEL_REPEATED
    elif label == "optional":
        message.oneof_decl.add(name=f"_{name}")
        field.proto3_optional, field.oneof_index = True, len(message.oneof_decl) - 1
    elif label == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        for at, part in ((1, "key"), (2, "value")):
            entry.field.add(name=part, number=at, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_STRING)
        field.label, field.type = FIELD.LABEL_REPEATED, FIELD.TYPE_MESSAGE
        field.type_name = f".agenttx.v1.{message.name}.{entry.name}"


def _public_messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="public_contract.proto", package="agenttx.v1", syntax="proto3"
    )
    for name, fields in PUBLIC_CONTRACT.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _field(message, *field)
    pool = descriptor_pool.DescriptorPool()  # of its own: our generated messages have the same names
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"agenttx.v1.{name}"))
        for name in PUBLIC_CONTRACT
    }


MESSAGES = _public_messages()
Call = Callable[..., Any]


@pytest.fixture
async def call() -> AsyncIterator[Call]:
    async with running_server() as server:
        yield lambda method, **fields: _call(server.channel, method, **fields)


async def _call(channel: grpc.aio.Channel, method: str, **fields: Any) -> Any:
    ask = channel.unary_unary(
        f"/agenttx.v1.AgentTxService/{method}",
        request_serializer=MESSAGES[f"{method}Request"].SerializeToString,
        response_deserializer=MESSAGES[f"{method}Response"].FromString,
    )
    return await ask(MESSAGES[f"{method}Request"](**fields))


async def test_begin_step_failure_rollback_and_commit(call: Call) -> None:
    begun = await call(
        "BeginTransaction", agent_id="agent", metadata={"team": "blue"}, policy={"max_local_depth": 3}
    )
    assert begun.next_step_id == 1
    transaction = begun.transaction_id

    async def step(step_id: int, tool_name: str, arguments: Any, raw_context: str = "") -> Any:
        return await call(
            "ExecuteStep",
            transaction_id=transaction,
            step_id=step_id,
            tool_name=tool_name,
            arguments_json=json.dumps(arguments),
            raw_context=raw_context,
        )

    chosen = await step(1, "kv.put", {"key": "chosen", "value": {"customer_id": "c-1"}}, "because")
    assert (chosen.status, chosen.strategy, chosen.next_step_id) == (SUCCESS, NONE, 2)
    assert json.loads(chosen.output_json)["value"] == {"customer_id": "c-1"}
    assert (await step(2, "effect.stage", {"channel": "mail", "payload": {"to": "ada"}})).next_step_id == 3

    order = {"id": "o-1", "customer_id": "${steps.1.value.customer_id}"}
    failed = await step(
        3, "record.insert", {"table": "orders", "record": order, "references": {"customer_id": "customers"}}
    )
    assert (failed.status, failed.strategy) == (ROLLBACK_TRIGGERED, DEPENDENCY_JUMP)
    assert (failed.rollback_to_step, failed.next_step_id, failed.context_reset) == (1, 1, False)
    assert failed.clean_hint.startswith("Hint: ")
    assert (failed.error_category, list(failed.constraints)) == (
        "foreign_key_violation",
        [failed.clean_hint],
    )
    assert failed.rollback_latency_ms > 0

    await step(1, "kv.put", {"key": "chosen", "value": "nobody"}, "then nobody")
    await step(2, "kv.put", {"key": "more", "value": 1})
    rewound = await call("RollbackTransaction", transaction_id=transaction, to_step=2, reason="not wanted")
    assert (rewound.rolled_back, rewound.next_step_id, rewound.compensations_run) == (True, 2, 0)
    await step(2, "effect.stage", {"channel": "mail", "payload": {"to": "bob"}})

    read = await call("GetTransaction", transaction_id=transaction)
    assert (read.transaction_id, read.status, read.next_step_id) == (transaction, "ACTIVE", 3)
    assert (read.agent_id, read.global_resets, list(read.constraints)) == ("agent", 0, [failed.clean_hint])
    assert [(entry.step_id, entry.tool_name, entry.raw_context) for entry in read.context] == [
        (1, "kv.put", "then nobody")
    ]

    committed = await call("CommitTransaction", transaction_id=transaction)
    assert (committed.committed, committed.steps_committed, committed.effects_dispatched) == (True, 2, 1)
    assert not committed.dispatch_errors
    again = await call("CommitTransaction", transaction_id=transaction)
    assert again == committed


async def test_an_abort_of_the_controller_and_one_that_is_asked_for(call: Call) -> None:
    policy = {"max_local_depth": 0, "max_global_resets": 0, "replay_budget_factor": 0.1}
    begun = await call("BeginTransaction", agent_id="agent", policy=policy)
    failed = await call(
        "ExecuteStep",
        transaction_id=begun.transaction_id,
        step_id=1,
        tool_name="kv.get",
        arguments_json='{"key": "nothing"}',
    )
    assert (failed.status, failed.strategy, failed.next_step_id) == (FAILED, ABORT, 0)
    assert failed.abort_reason
    assert (await call("GetTransaction", transaction_id=begun.transaction_id)).status == "FAILED"

    begun = await call("BeginTransaction", agent_id="agent")
    aborted = await call("RollbackTransaction", transaction_id=begun.transaction_id)
    assert (aborted.rolled_back, aborted.next_step_id) == (True, 0)
    assert (await call("GetTransaction", transaction_id=begun.transaction_id)).status == "ROLLED_BACK"
