"""Refusals carry the reason and the metadata that error_reason.proto names for it, which the SDK reads."""

import pytest
from tests.support.calls import begin, commit, refused, step
from tests.support.running_server import running_server

from agenttx.v1 import error_reason_pb2
from agenttx.v1 import transaction_pb2 as pb


@pytest.fixture
async def stub():
    async with running_server(tools="tests.support.sample_tools") as running:
        yield running.stub


def _told(refusal):
    error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{refusal.reason}")  # it is one of the contract's
    return refusal.reason, dict(refusal.metadata)


async def test_a_step_out_of_order_names_the_expected_and_the_received_step(stub):
    transaction = await begin(stub)

    refusal = await refused(step(stub, transaction, 3, "kv.get", {"key": "a"}))

    metadata = {"expected_step": "1", "step_id": "3", "generation": "1"}
    assert _told(refusal) == ("STEP_OUT_OF_ORDER", metadata)


async def test_a_stale_generation_names_the_expected_and_the_received_one(stub):
    transaction = await begin(stub)
    await step(stub, transaction, 1, "kv.put", {"key": "a", "value": 1})
    await stub.Rewind(pb.RewindRequest(transaction_id=transaction, to_step=1))

    refusal = await refused(step(stub, transaction, 1, "kv.get", {"key": "a"}, generation=1))

    metadata = {"expected_generation": "2", "received_generation": "1", "expected_step": "1"}
    assert _told(refusal) == ("STALE_GENERATION", metadata)


async def test_a_step_in_doubt_is_named_with_its_tool(stub, tmp_path):
    transaction = await begin(stub)
    await step(stub, transaction, 1, "sample.lose_outcome", {"log": str(tmp_path / "log"), "entry": "e"})

    refusal = await refused(commit(stub, transaction))

    assert _told(refusal) == ("STEP_IN_DOUBT", {"step_id": "1", "tool_name": "sample.lose_outcome"})


async def test_an_ended_transaction_says_how_and_why_it_ended(stub):
    transaction = await begin(stub)
    await stub.RollbackTransaction(pb.RollbackTransactionRequest(transaction_id=transaction, reason="enough"))

    refusal = await refused(step(stub, transaction, 1, "kv.get", {"key": "a"}))

    metadata = {"transaction_id": transaction, "status": "ROLLED_BACK", "abort_reason": "enough"}
    assert _told(refusal) == ("TRANSACTION_ENDED", metadata)


async def test_a_commit_conflict_names_the_key_with_its_namespace(stub):
    first, second = await begin(stub), await begin(stub)
    for transaction in (first, second):
        await step(stub, transaction, 1, "kv.put", {"key": "a/b", "value": transaction})
    await commit(stub, first)

    refusal = await refused(commit(stub, second))

    assert _told(refusal) == ("COMMIT_CONFLICT", {"key": "kv/a/b", "status": "FAILED"})
