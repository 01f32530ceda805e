"""Which requests run, which are refused, and which get the answer recorded before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.support.engine_harness import Engine, call, same_answer
from tests.support.memory_store import Gate
from tests.support.scripted_tools import ToolRun, hang
from tests.support.virtual_time import idle, virtual_time

from agenttx_server.engine.errors import (
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    RequestIdReused,
    Unavailable,
)
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.records import HintCategory, PathSource, TransactionId, TransactionStatus
from agenttx_server.engine.requests import BeginRequest, PolicyOverride, StepRequest, StepStatus

# --- order --------------------------------------------------------------------------------


@virtual_time
async def test_a_step_that_is_not_next_is_refused_naming_the_one_that_is() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note")
    for step in (1, 3, 99):
        with pytest.raises(PreconditionFailed) as refused:
            await engine.step(step, "note")
        assert refused.value.reason == "STEP_OUT_OF_ORDER"
        assert refused.value.metadata["expected_step"] == "2"
    assert engine.tools.count() == 1


@virtual_time
async def test_a_request_of_an_older_generation_never_runs() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", generation=1)
    await engine.rewind(1)
    with pytest.raises(PreconditionFailed) as refused:
        await engine.step(1, "note", generation=1)
    assert refused.value.reason == "STALE_GENERATION"
    assert refused.value.metadata["expected_step"] == "1"
    assert (await engine.step(1, "note", generation=2)).status is StepStatus.SUCCESS
    assert engine.tools.count() == 2


@virtual_time
async def test_a_stale_generation_is_told_before_the_order() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note")
    await engine.step(2, "note")
    await engine.rewind(1)
    with pytest.raises(PreconditionFailed) as refused:
        await engine.step(3, "note", generation=1)
    assert refused.value.reason == "STALE_GENERATION"


@virtual_time
async def test_an_unknown_transaction_and_somebody_elses_are_not_found_alike() -> None:
    engine = Engine()
    transaction_id = await engine.begin(principal="alice")
    for principal, known in (("bob", transaction_id), ("alice", TransactionId("no-such"))):
        with pytest.raises(NotFound) as missing:
            await engine.coordinator.execute_step(StepRequest(known, 1, call("note"), principal=principal))
        assert missing.value.reason == "TRANSACTION_NOT_FOUND"
    assert engine.tools.count() == 0
    answer = await engine.coordinator.execute_step(
        StepRequest(transaction_id, 1, call("note"), principal="alice")
    )
    assert answer.status is StepStatus.SUCCESS


@virtual_time
async def test_steps_of_one_transaction_queue_and_transactions_run_side_by_side() -> None:
    engine = Engine()
    first, second = await engine.begin(), await engine.begin()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    slow = asyncio.create_task(engine.step(1, "lookup", transaction_id=first))
    await gate.reached()
    queued = asyncio.create_task(engine.step(2, "note", transaction_id=first))
    await engine.step(1, "note", transaction_id=second)
    await idle()
    assert engine.tools.count("note") == 1
    gate.open()
    assert [answer.next_step_id for answer in await asyncio.gather(slow, queued)] == [2, 3]


@virtual_time
async def test_a_transaction_has_a_largest_step() -> None:
    engine = Engine(limits=Limits(steps_per_transaction=3))
    await engine.begin()
    for step in (1, 2):
        await engine.step(step, "note")
    with pytest.raises(LimitExceeded):
        await engine.group(3, call("note"), call("note"))
    await engine.step(3, "note")
    with pytest.raises(LimitExceeded) as refused:
        await engine.step(4, "note")
    assert refused.value.reason == "STEP_LIMIT"
    assert engine.tools.count() == 3
    assert (await engine.commit()).steps_committed == 3


@virtual_time
async def test_a_draining_server_refuses_changes_and_goes_on_reading() -> None:
    engine = Engine()
    await engine.begin()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    running = asyncio.create_task(engine.step(1, "lookup"))
    await gate.reached()
    engine.coordinator.begin_drain()
    for refused in (engine.step(2, "note"), engine.commit(), engine.rewind(1), engine.begin()):
        with pytest.raises(Unavailable) as error:
            await refused
        assert error.value.reason == "DRAINING"
    assert (await engine.view()).record.status is TransactionStatus.EXECUTING
    gate.open()
    assert (await running).status is StepStatus.SUCCESS
    assert await engine.coordinator.drain(1.0) == 0


@virtual_time
async def test_a_drain_says_how_much_was_still_running() -> None:
    engine = Engine()
    await engine.begin()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    running = asyncio.create_task(engine.step(1, "lookup"))
    await gate.reached()
    assert await engine.coordinator.drain(5.0) == 1
    gate.open()
    await running


# --- request ids --------------------------------------------------------------------------


@virtual_time
async def test_a_repeated_request_gets_its_answer_and_runs_nothing() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"output": {"id": "u-7"}})
    first = await engine.step(2, "note", {"user_id": "u-7", "output": {"a": [1, {"b": None}]}}, "r1")
    assert first.dependencies
    for _ in range(3):
        again = await engine.step(2, "note", {"user_id": "u-7", "output": {"a": [1, {"b": None}]}}, "r1")
        assert again == replace(first, replayed=True)
    assert engine.tools.count() == 2
    assert len(await engine.attempts()) == 2


@virtual_time
async def test_the_order_of_keys_and_blanks_do_not_make_another_request() -> None:
    engine = Engine()
    await engine.begin()
    first = await engine.step(1, "note", text='{"output": {"v": 1}, "b": 2}', request_id="r1")
    again = await engine.step(1, "note", text='{ "b":2,"output":{"v":1} }', request_id="r1")
    assert again == replace(first, replayed=True)


@pytest.mark.parametrize(
    ("step", "tool", "text"),
    [(1, "note", '{"v": 2}'), (1, "lookup", '{"v": 1}'), (2, "note", '{"v": 1}'), (1, "note", '{"v": 1')],
)
@virtual_time
async def test_another_request_under_a_used_id_is_refused_naming_both(
    step: int, tool: str, text: str
) -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", text='{"v": 1}', request_id="r1")
    with pytest.raises(RequestIdReused) as refused:
        await engine.step(step, tool, text=text, request_id="r1")
    recorded, received = refused.value.metadata["recorded"], refused.value.metadata["received"]
    assert recorded != received
    assert recorded in refused.value.message
    assert received in refused.value.message
    assert engine.tools.count() == 1
    await engine.step(2, "note")


@virtual_time
async def test_arguments_that_do_not_parse_are_compared_as_written() -> None:
    engine = Engine()
    await engine.begin()
    first = await engine.step(1, "note", text="{oops", request_id="r1")
    again = await engine.step(1, "note", text="{oops", request_id="r1")
    assert same_answer(first, again)
    with pytest.raises(RequestIdReused):
        await engine.step(1, "note", text="{oops ", request_id="r1")


@virtual_time
async def test_a_failed_step_is_replayed_with_its_hint_and_decision() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"output": {"customer": "c-1"}})
    arguments = {
        "customer": "c-1",
        "fail": {"category": "missing_record", "message": "no such customer", "keys": ["customer"]},
    }
    first = await engine.step(2, "note", arguments, "r2")
    assert first.status is StepStatus.ROLLBACK_TRIGGERED
    assert first.decision is not None
    again = await engine.step(2, "note", arguments, "r2")
    # `rewound` speaks of attempts that succeeded: a failed one's answer stays as it was.
    assert again == replace(first, replayed=True)
    assert again.decision is not None
    # How a path was walked plays no part in equality, and is told again all the same.
    sources = [element.source for element in first.decision.path]
    assert sources == [PathSource.ERROR_KEY, PathSource.IMPLICIT_EDGE]
    assert [element.source for element in again.decision.path] == sources
    assert engine.tools.count() == 2


@virtual_time
async def test_an_answer_outlives_rewinds_and_says_that_it_was_rewound() -> None:
    engine = Engine()
    await engine.begin()
    first = await engine.step(1, "note", {"output": {"n": 1}}, "r1")
    await engine.rewind(1)
    await engine.step(1, "note", {"output": {"n": 2}}, "r1b")
    again = await engine.step(1, "note", {"output": {"n": 1}}, "r1")
    assert again == replace(first, replayed=True, rewound=True)
    assert engine.tools.count() == 2


@virtual_time
async def test_an_answer_outlives_the_server_and_the_end_of_the_transaction() -> None:
    engine = Engine()
    await engine.begin()
    first = await engine.step(1, "note", {"put": {"kv/a": 1}}, "r1")
    engine.restart()
    assert await engine.step(1, "note", {"put": {"kv/a": 1}}, "r1") == replace(first, replayed=True)
    await engine.commit("c")
    assert await engine.step(1, "note", {"put": {"kv/a": 1}}, "r1") == replace(first, replayed=True)
    assert engine.tools.count() == 1


@virtual_time
async def test_a_duplicate_in_flight_waits_and_is_replayed() -> None:
    engine = Engine()
    await engine.begin()
    gate = Gate()
    engine.tools.next("book", hang(gate))
    sent = [asyncio.create_task(engine.step(1, "book", {"effect": "room"}, "r1")) for _ in range(5)]
    await gate.reached()
    await idle()
    assert not any(task.done() for task in sent)
    gate.open()
    answers = await asyncio.gather(*sent)
    assert answers[1:] == [replace(answers[0], replayed=True)] * 4
    assert engine.tools.count() == 1
    assert engine.tools.effects == ["room"]


@virtual_time
async def test_two_wanted_calls_with_equal_arguments_are_two() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "book", {"effect": "room"}, "r1")
    await engine.step(2, "book", {"effect": "room"}, "r2")
    await engine.step(3, "book", {"effect": "room"})
    await engine.step(4, "book", {"effect": "room"})
    assert engine.tools.effects == ["room"] * 4


@virtual_time
async def test_a_refused_request_leaves_its_id_free() -> None:
    engine = Engine()
    await engine.begin()
    with pytest.raises(PreconditionFailed):
        await engine.step(2, "note", {"v": 1}, "r1")
    await engine.step(1, "note", {"v": 1}, "r0")
    assert (await engine.step(2, "note", {"v": 1}, "r1")).replayed is False


@virtual_time
async def test_ids_of_steps_rewinds_and_commits_are_one_space() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", None, "r1")
    await engine.rewind(1, request_id="w1")
    for refused in (
        engine.rewind(1, request_id="r1"),
        engine.rollback(request_id="r1"),
        engine.commit("r1"),
        engine.step(1, "note", None, "w1"),
        engine.commit("w1"),
        engine.rollback(request_id="w1"),
        engine.rollback(1, request_id="w1"),
    ):
        with pytest.raises(RequestIdReused):
            await refused
    assert (await engine.record()).status is TransactionStatus.ACTIVE


@virtual_time
async def test_ids_belong_to_their_transaction() -> None:
    engine = Engine()
    await engine.begin()
    await engine.step(1, "note", {"v": 1}, "r1")
    await engine.begin()
    assert (await engine.step(1, "note", {"v": 2}, "r1")).replayed is False


# --- begin --------------------------------------------------------------------------------


@virtual_time
async def test_begin_with_a_repeated_id_opens_one_transaction() -> None:
    engine = Engine()
    request = BeginRequest("agent", request_id="b", metadata=(("a", "1"), ("b", "2")))
    first = await engine.coordinator.begin(request)
    engine.transaction_id = first.transaction_id
    await engine.step(1, "note")
    await engine.rewind(1)
    assert await engine.coordinator.begin(request) == first
    assert await asyncio.gather(*(engine.coordinator.begin(request) for _ in range(3))) == [first] * 3
    assert len(engine.memory.database.transactions) == 1


@virtual_time
async def test_begins_in_flight_under_one_id_open_one_transaction() -> None:
    engine = Engine()
    answers = await asyncio.gather(
        *(engine.coordinator.begin(BeginRequest("agent", request_id="b")) for _ in range(4))
    )
    assert len(set(answers)) == 1
    assert len(engine.memory.database.transactions) == 1


@virtual_time
async def test_metadata_is_a_map_and_its_order_makes_no_other_request() -> None:
    engine = Engine()
    first = await engine.coordinator.begin(
        BeginRequest("agent", request_id="b", metadata=(("a", "1"), ("b", "2")))
    )
    again = await engine.coordinator.begin(
        BeginRequest("agent", request_id="b", metadata=(("b", "2"), ("a", "1")))
    )
    assert again == first


@virtual_time
async def test_begin_with_other_contents_under_a_used_id_is_refused() -> None:
    engine = Engine()
    await engine.coordinator.begin(BeginRequest("agent", request_id="b"))
    for other in (
        BeginRequest("other", request_id="b"),
        BeginRequest("agent", request_id="b", policy=PolicyOverride(max_local_depth=3)),
        BeginRequest("agent", request_id="b", metadata=(("a", "1"),)),
    ):
        with pytest.raises(RequestIdReused):
            await engine.coordinator.begin(other)
    mine = await engine.coordinator.begin(BeginRequest("agent", request_id="b", principal="bob"))
    assert mine.transaction_id != engine.transaction_id
    assert len(engine.memory.database.transactions) == 2


@virtual_time
async def test_begin_lists_every_violation() -> None:
    engine = Engine()
    with pytest.raises(InvalidRequest) as refused:
        await engine.begin("", max_local_depth=17, replay_budget_factor=float("nan"), step_timeout_us=0)
    assert {violation.field for violation in refused.value.violations} == {
        "agent_id",
        "policy.max_local_depth",
        "policy.replay_budget_factor",
        "step_timeout",
    }
    assert engine.memory.written == []


# --- values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "9007199254740993",
        "9223372036854775808",
        "18446744073709551615",
        "-9223372036854775808",
        "-0.0",
        "1.0",
        "1",
        "1e+300",
        '""',
        '"a\\u0000b"',
        '"\\ud83d\\ude00"',
        '"12345678901234567890"',
        '{"01":2,"1":1}',
        '{"":1}',
        "[null,true,[]]",
    ],
)
@virtual_time
async def test_a_value_comes_back_as_it_was_sent(text: str) -> None:
    engine = Engine()
    await engine.begin()
    # "${…}" puts the value in again: through the output, the reference and the state.
    first = await engine.step(1, "note", text=f'{{"output":{{"v":{text}}}}}')
    second = await engine.step(
        2, "note", text='{"put":{"kv/v":"${steps.1.v}"},"output":{"v":"${steps.1.v}"}}'
    )
    assert first.output == second.output
    assert second.output is not None
    expected = text.replace("\\ud83d\\ude00", "\U0001f600")
    assert second.output == f'{{"v":{expected}}}'
    engine.restart()
    third = await engine.step(3, "lookup", {"get": ["kv/v"]})
    assert third.output == f'{{"ok":true,"read":{{"kv/v":{expected}}}}}'


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a":{"b":18446744073709551616}}', "$.a.b"),
        ('{"a":-9223372036854775809}', "$.a"),
        ('{"a":[1,NaN]}', "$.a[1]"),
        ('{"a":Infinity}', "$.a"),
        ('{"a":1e400}', "$.a"),
        ('{"a":{"k":1,"k":2}}', "$.a"),
        ('{"a":"\\ud83c"}', "$.a"),
    ],
)
@virtual_time
async def test_a_value_that_would_change_is_a_step_failure_naming_its_path(text: str, path: str) -> None:
    engine = Engine()
    await engine.begin()
    answer = await engine.step(1, "note", text=text)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.hint is not None
    assert path in answer.hint.text
    assert answer.hint.category in (HintCategory.INVALID_VALUE, HintCategory.INVALID_JSON)
    assert engine.tools.count() == 0
    [attempt] = await engine.attempts()
    assert attempt.tries == 0
    assert (await engine.step(1, "note")).status is StepStatus.SUCCESS


@virtual_time
async def test_arguments_over_the_limit_are_refused_and_nothing_runs() -> None:
    engine = Engine(limits=Limits(arguments_bytes=100))
    await engine.begin()
    with pytest.raises(InvalidRequest) as refused:
        await engine.step(1, "note", {"v": "é" * 50})
    [violation] = refused.value.violations
    assert violation.field == "arguments_json"
    assert "100" in violation.description
    await engine.step(1, "note", text='{"v":"' + "é" * 46 + '"}')
    assert engine.tools.count() == 1


@virtual_time
async def test_an_output_over_the_limit_fails_the_step_once_and_the_transaction_goes_on() -> None:
    engine = Engine(limits=Limits(output_bytes=100))
    await engine.begin()
    answer = await engine.step(1, "note", {"output": {"v": "é" * 50}})
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.RESOURCE_EXHAUSTED
    assert "100" in answer.hint.text
    assert engine.tools.count() == 1
    assert (await engine.step(1, "note", {"output": {"v": "é" * 40}})).status is StepStatus.SUCCESS
    answer = await engine.step(2, "note", {"output": {"v": "x" * 60}}, output_limit=50)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED


@pytest.mark.parametrize(("size", "fits"), [(3_900_000, True), (4_300_000, False), (20_000_000, False)])
@virtual_time
async def test_outputs_work_up_to_four_mebibytes(size: int, fits: bool) -> None:
    async def answer_at_length(run: ToolRun) -> str:
        return "x" * size

    engine = Engine()
    await engine.begin()
    engine.tools.next("lookup", answer_at_length)
    answer = await engine.step(1, "lookup")
    assert (answer.status is StepStatus.SUCCESS) == fits
    assert engine.tools.count() == 1
    if not fits:
        assert answer.hint is not None
        assert str(4 << 20) in answer.hint.text
        assert len(answer.hint.text) <= 240
    assert (await engine.step(answer.next_step_id, "note")).status is StepStatus.SUCCESS


@virtual_time
async def test_a_huge_error_becomes_a_short_line_and_stays_readable_in_the_history() -> None:
    engine = Engine()
    await engine.begin()
    trace = (
        "\n".join(f'  File "app.py", line {line}, in f' for line in range(4000)) + "\nValueError: é is odd"
    )
    answer = await engine.step(1, "note", {"fail": trace})
    assert answer.hint is not None
    assert len(answer.hint.text) <= 240
    [attempt] = await engine.attempts()
    assert 1000 < len(attempt.raw_error) <= 64 * 1024 + 1000
    assert "é is odd" in attempt.raw_error
