"""JSON values through the whole server and back: identical, or refused by name, never changed in silence."""

import json

import grpc
import pytest
from tests.support.calls import begin, commit, get, refused, step
from tests.support.running_server import running_server
from tests.support.store_databases import DATABASES

from agenttx.v1 import transaction_pb2 as pb

KEPT = {
    "beyond doubles": "9007199254740993",
    "largest signed": "9223372036854775807",
    "beyond signed": "9223372036854775808",
    "smallest": "-9223372036854775808",
    "largest": "18446744073709551615",
    "minus zero": "-0.0",
    "an integer": "1",
    "a double": "1.0",
    "empty text": '""',
    "a zero character": '"a\\u0000b"',
    "beyond the basic plane": '"🦊"',
    "base64": '"AAECAwT//g=="',
    "a long number as text": '"12345678901234567890"',
    "keys alike": '{"01":2,"1":1}',
    "an empty key": '{"":1}',
    "nothing": "null",
    "deep": "[" * 90 + "]" * 90,
}
REFUSED = {
    "past the largest": str(2**70),
    "not a number": "NaN",
    "infinity": "Infinity",
    "too large a double": "1e400",
    "a lone surrogate": '"\\ud83c"',
    "a key twice": '{"a":1,"a":2}',
    "too deep": "[" * 200 + "]" * 200,
}


@pytest.fixture(params=DATABASES)
async def stub(request, tmp_path):
    with DATABASES[request.param](tmp_path) as address:
        async with running_server(tools="tests.support.sample_tools", database_url=address) as running:
            yield running.stub


def raw_step(transaction, step_id, tool_name, arguments_json):
    return pb.ExecuteStepRequest(
        transaction_id=transaction, step_id=step_id, tool_name=tool_name, arguments_json=arguments_json
    )


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
async def test_a_value_comes_back_identical_from_everywhere(stub, text):
    transaction = await begin(stub)
    put = await stub.ExecuteStep(raw_step(transaction, 1, "kv.put", f'{{"key":"v","value":{text}}}'))
    read = await stub.ExecuteStep(raw_step(transaction, 2, "kv.get", '{"key":"v"}'))
    referred = await stub.ExecuteStep(raw_step(transaction, 3, "sample.echo", '{"value":"${steps.2.value}"}'))
    history = await stub.ListSteps(pb.ListStepsRequest(transaction_id=transaction))
    await stub.Rewind(pb.RewindRequest(transaction_id=transaction, to_step=2))
    again = await stub.ExecuteStep(raw_step(transaction, 2, "kv.get", '{"key":"v"}'))
    await commit(stub, transaction)
    committed = await stub.GetState(pb.GetStateRequest(key="v"))

    assert f'"value":{text}' in put.output_json
    assert f'"value":{text}' in read.output_json
    assert referred.output_json == text
    assert history.attempts[0].arguments_json == f'{{"key":"v","value":{text}}}'
    assert again.output_json == read.output_json
    assert committed.entry.value_json == text


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
async def test_a_value_that_can_not_be_kept_is_a_failed_step_that_names_its_place(stub, text):
    transaction = await begin(stub)

    answer = await stub.ExecuteStep(raw_step(transaction, 1, "kv.put", f'{{"key":"v","value":{text}}}'))

    assert answer.status == pb.STEP_STATUS_ROLLBACK_TRIGGERED
    assert answer.clean_hint.startswith("Hint: ")
    assert "value" in answer.clean_hint
    assert answer.next_step_id == 1


async def test_a_zero_character_is_refused_in_names_and_kept_in_texts(stub):
    refusal = await refused(begin(stub, agent_id="a\0b"))
    assert set(refusal.violations) == {"agent_id"}
    transaction = await begin(stub)
    for key in ("a\0b", "\0"):
        answer = await step(stub, transaction, 1, "kv.put", {"key": key, "value": 1})
        assert answer.status == pb.STEP_STATUS_ROLLBACK_TRIGGERED
        assert "U+0000" in answer.clean_hint
        transaction = await begin(stub)

    thought = "what the agent \0 thought"
    await step(stub, transaction, 1, "sample.echo", {"value": 1}, raw_context=thought)
    read = await get(stub, transaction)
    await step(stub, transaction, 2, "sample.fail", {"message": "a zero \0 character"})
    history = await stub.ListSteps(pb.ListStepsRequest(transaction_id=transaction))

    assert [entry.raw_context for entry in read.context] == [thought]
    assert "a zero \ufffd character" in history.attempts[-1].raw_error


async def test_five_megabytes_of_text_are_refused_as_a_request(stub):
    transaction = await begin(stub)

    refusal = await refused(step(stub, transaction, 1, "kv.put", {"key": "v", "value": "x" * 5_000_000}))

    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert set(refusal.violations) == {"arguments_json"}


async def test_what_a_struct_can_not_hold_is_still_exact_as_text(stub):
    transaction = await begin(stub)
    await stub.ExecuteStep(raw_step(transaction, 1, "kv.put", f'{{"key":"v","value":{2**53 + 1}}}'))
    request = pb.ExecuteStepRequest(transaction_id=transaction, step_id=2, tool_name="kv.get")
    request.arguments["key"] = "v"

    answer = await stub.ExecuteStep(request)

    assert json.loads(answer.output_json)["value"] == 2**53 + 1
    assert answer.HasField("output")


async def test_a_struct_that_would_not_fit_is_left_out_and_the_text_is_there():
    async with running_server(tools="tests.support.sample_tools", max_message_bytes=4 << 20) as server:
        transaction = await begin(server.stub)
        ones = json.dumps([1] * 450_000, separators=(",", ":"))
        await server.stub.ExecuteStep(raw_step(transaction, 1, "sample.echo", f'{{"value":{ones}}}'))
        request = pb.ExecuteStepRequest(transaction_id=transaction, step_id=2, tool_name="sample.echo")
        request.arguments["value"] = {"ones": "${steps.1}"}
        one = await server.stub.ExecuteStep(request)
        group = pb.ExecuteStepGroupRequest(transaction_id=transaction, step_id=3)
        for _ in range(2):
            member = group.members.add(tool_name="sample.echo")
            member.arguments["value"] = {"ones": "${steps.1}"}
        both = await server.stub.ExecuteStepGroup(group)

    for answer in (one, *both.responses):
        assert answer.output_json == f'{{"ones":{ones}}}'
        assert not answer.HasField("output")
