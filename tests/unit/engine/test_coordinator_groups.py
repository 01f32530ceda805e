"""Groups: steps side by side, one settlement, and a result that no timing changes."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call, same_answer
from tests.support.memory_store import Gate
from tests.support.scripted_tools import Behaviour, ToolRun, fail_with, hang, obey
from tests.support.virtual_time import current_loop, idle, virtual_time

from agenttx_server.engine.errors import InvalidRequest, PreconditionFailed, RequestIdReused
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.ports import ContextClosed, ToolFailure
from agenttx_server.engine.records import HintCategory, Strategy, TransactionStatus
from agenttx_server.engine.requests import StepStatus


async def _begun(**fields: Any) -> Engine:
    engine = Engine(**fields)
    await engine.begin()
    return engine


def _after(seconds: float, then: Behaviour = obey) -> Behaviour:
    async def behave(run: ToolRun) -> Any:
        await asyncio.sleep(seconds)
        return await then(run)

    return behave


# --- success ------------------------------------------------------------------------------


@virtual_time
async def test_members_run_side_by_side_and_are_answered_in_step_order() -> None:
    engine = await _begun()
    for seconds in (0.3, 0.1, 0.2):
        engine.tools.next("note", _after(seconds))
    answers = await engine.group(1, *(call("note", {"output": {"n": number}}) for number in range(3)))
    assert current_loop().time() == pytest.approx(0.3)
    assert [answer.output for answer in answers] == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert {(answer.status, answer.next_step_id, answer.generation) for answer in answers} == {
        (StepStatus.SUCCESS, 4, 1)
    }
    record = await engine.record()
    assert (record.next_step_id, record.furthest_step, record.open_group) == (4, 3, None)
    await engine.assert_memory_equals_store()
    attempts = await engine.attempts()
    assert {(item.group_first, item.group_size) for item in attempts} == {(1, 3)}


@virtual_time
async def test_each_result_is_durable_when_it_is_there_and_the_last_with_the_settlement() -> None:
    engine = await _begun()
    mark = len(engine.timeline)
    for seconds in (0.3, 0.1, 0.2):
        engine.tools.next("note", _after(seconds))
    await engine.group(1, call("note"), call("note"), call("note"))
    assert engine.writes_since(mark) == [
        "write 2.1=COMPLETED -> EXECUTING",
        "write 3.1=COMPLETED -> EXECUTING",
        "write 1.1=COMPLETED! 2.1=COMPLETED! 3.1=COMPLETED! -> ACTIVE",
    ]


@virtual_time
async def test_members_see_the_state_before_the_group_and_their_own_writes_only() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"put": {"kv/before": 1}})
    second_read = Gate()

    async def read_late(run: ToolRun) -> Any:
        await second_read.wait()
        return [await run.context.get("kv/before"), [key for key, _ in await run.context.scan("x/")]]

    engine.tools.next("lookup", read_late)
    running = asyncio.create_task(
        engine.group(
            2, call("note", {"put": {"kv/own": 2}}), call("lookup"), call("note", {"get": ["kv/own2"]})
        )
    )
    await second_read.reached()
    await idle()
    second_read.open()
    answers = await running
    assert [answer.status for answer in answers] == [StepStatus.SUCCESS] * 3
    assert answers[1].output == '["1",[]]'


@virtual_time
async def test_a_member_does_not_see_what_a_sibling_made_durable() -> None:
    seen: list[Any] = []

    async def read_late(run: ToolRun) -> Any:
        await asyncio.sleep(0.1)
        seen.append(await run.context.get("kv/a"))
        seen.append(await run.context.scan("kv/"))

    engine = await _begun()
    engine.tools.next("lookup", read_late)
    answers = await engine.group(1, call("note", {"put": {"kv/a": 1}}), call("lookup"))
    assert seen == [None, []]
    # It has lost all the same: it read a key that a lower step wrote.
    assert answers[1].status is StepStatus.ROLLBACK_TRIGGERED


@virtual_time
async def test_references_and_links_reach_only_steps_before_the_group() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"output": {"id": "same"}})
    answers = await engine.group(
        2,
        call("note", {"output": {"id": "same"}}),
        call("note", {"user_id": "same", "explicit": "${steps.1.id}"}),
    )
    assert [edge.from_step for edge in answers[1].dependencies] == [1, 1]
    failed = await engine.group(4, call("note", {"output": {"x": 1}}), call("note", {"x": "${steps.4.x}"}))
    assert failed[1].hint is not None
    assert failed[1].hint.category is HintCategory.UNRESOLVED_REFERENCE
    assert "${steps.4.x}" in failed[1].hint.text


@virtual_time
async def test_outputs_beyond_the_limit_are_left_out_and_readable() -> None:
    engine = await _begun(limits=Limits(group_output_bytes=250))
    calls = [call("note", {"output": {"v": "é" * 40}}, f"g{number}") for number in range(4)]
    answers = await engine.group(1, *calls)
    # Each output is 88 bytes: two fit.
    assert [answer.output_omitted for answer in answers] == [False, False, True, True]
    assert [answer.output is None for answer in answers] == [False, False, True, True]
    assert all(item.output is not None for item in await engine.attempts())
    assert await engine.group(1, *calls) == tuple(replace(answer, replayed=True) for answer in answers)
    later = await engine.step(5, "note", {"output": "${steps.4.v}"})
    assert later.output == f'"{"é" * 40}"'


@virtual_time
async def test_a_failing_groups_outputs_are_left_out_too() -> None:
    engine = await _begun(limits=Limits(group_output_bytes=250))
    calls = [call("note", {"output": {"v": "é" * 40}}, f"g{number}") for number in range(4)]
    calls.append(call("note", {"fail": "no"}, "g5"))
    answers = await engine.group(1, *calls)
    assert [answer.output_omitted for answer in answers] == [False, False, True, True, False]
    again = await engine.group(1, *calls)
    assert again == tuple(replace(answer, replayed=True) for answer in answers)


@virtual_time
async def test_a_plain_step_is_never_left_out() -> None:
    engine = await _begun(limits=Limits(group_output_bytes=10))
    assert (await engine.step(1, "note", {"output": {"v": "x" * 100}})).output_omitted is False
    assert (await engine.group(2, call("note", {"output": {"v": "x" * 100}})))[0].output_omitted is False


# --- requests -----------------------------------------------------------------------------


@virtual_time
async def test_a_group_has_a_size() -> None:
    engine = await _begun(limits=Limits(group_size=3))
    for calls in ((), [call("note")] * 4):
        with pytest.raises(InvalidRequest):
            await engine.group(1, *calls)
    with pytest.raises(InvalidRequest) as refused:
        await engine.group(1, call("note", None, "same"), call("lookup", None, "same"))
    assert "request_id" in refused.value.violations[0].field
    with pytest.raises(InvalidRequest) as refused:
        await engine.group(1, call("note"), call(""))
    assert refused.value.violations[0].field == "members[1].tool_name"
    assert engine.tools.count() == 0


@virtual_time
async def test_an_irreversible_tool_is_a_group_of_its_own_unless_it_can_be_undone() -> None:
    engine = await _begun()
    with pytest.raises(InvalidRequest) as refused:
        await engine.group(1, call("note"), call("pay", {"effect": "money"}))
    assert refused.value.violations[0].field == "members[1].tool_name"
    assert engine.tools.count() == 0
    assert (await engine.group(1, call("pay", {"effect": "money"})))[0].status is StepStatus.SUCCESS
    answers = await engine.group(2, call("note"), call("wire", {"effect": "more"}))
    assert {answer.status for answer in answers} == {StepStatus.SUCCESS}


@virtual_time
async def test_a_repeated_group_is_replayed_whole() -> None:
    engine = await _begun()
    calls = (call("note", {"put": {"kv/a": 1}}, "g1"), call("book", {"effect": "room"}, "g2"))
    answers = await engine.group(1, *calls)
    await engine.step(3, "note")
    assert await engine.group(1, *calls) == tuple(replace(answer, replayed=True) for answer in answers)
    engine.restart()
    assert await engine.group(1, *calls) == tuple(replace(answer, replayed=True) for answer in answers)
    assert engine.tools.count() == 3
    with pytest.raises(RequestIdReused):
        await engine.group(1, calls[1], calls[0])


@virtual_time
async def test_an_answered_request_does_not_run_again_as_a_member_of_another_group() -> None:
    engine = await _begun()
    await engine.step(1, "book", {"effect": "room"}, "r1")
    await engine.rewind(1)
    with pytest.raises(RequestIdReused):
        await engine.group(1, call("book", {"effect": "room"}, "r1"), call("note", None, "new"))
    assert engine.tools.count() == 1
    assert engine.tools.effects == []
    answers = await engine.group(1, call("book", {"effect": "room"}, "r2"), call("note", None, "new"))
    assert {answer.status for answer in answers} == {StepStatus.SUCCESS}


@virtual_time
async def test_a_group_in_flight_is_waited_for_by_its_duplicate() -> None:
    engine = await _begun()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    calls = (call("lookup", None, "g1"), call("note", None, "g2"))
    first = asyncio.create_task(engine.group(1, *calls))
    await gate.reached()
    second = asyncio.create_task(engine.group(1, *calls))
    await idle()
    gate.open()
    answers = await first
    assert await second == tuple(replace(answer, replayed=True) for answer in answers)
    assert engine.tools.count() == 2


# --- failure ------------------------------------------------------------------------------


@virtual_time
async def test_the_lowest_failed_member_is_decided_on_and_all_are_told() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"output": {"user_id": "u-1"}})
    await engine.step(2, "book", {"effect": "two"})
    by_key = {"category": "missing_record", "message": "no such user", "keys": ["user_id"]}
    calls = (
        call("book", {"effect": "three"}, "g3"),
        call("note", {"fail": "plainly"}, "g4"),
        call("note", {"user_id": "u-1", "fail": by_key}, "g5"),
    )
    engine.tools.next("note", _after(0.2), _after(0.1))
    answers = await engine.group(3, *calls)
    # Step 5 failed first and could be traced to step 1; step 4 is the lower.
    assert [answer.status for answer in answers] == [
        StepStatus.SUCCESS,
        StepStatus.ROLLBACK_TRIGGERED,
        StepStatus.ROLLBACK_TRIGGERED,
    ]
    assert [answer.rewound for answer in answers] == [True, False, False]
    decisions = {answer.decision for answer in answers}
    [decision] = decisions
    assert decision is not None
    assert (decision.strategy, decision.failed_step, decision.target_step) == (Strategy.LOCAL_BACKTRACK, 4, 2)
    # The cost counts from the target to the group's last step.
    assert decision.cost == 4
    assert {(answer.next_step_id, answer.generation) for answer in answers} == {(2, 2)}
    record = await engine.record()
    assert record.failures == ((4, 1),)
    assert len(record.constraints) == 2
    assert record.furthest_step == 5
    assert engine.tools.undo_order == ["three", "two"]
    await engine.assert_memory_equals_store()
    again = await engine.group(3, *calls)
    assert all(same_answer(one, two) for one, two in zip(answers, again, strict=True))
    assert all(answer.replayed for answer in again)
    assert [answer.rewound for answer in again] == [True, False, False]


@virtual_time
async def test_a_group_that_aborts_answers_everybody_so() -> None:
    engine = await _begun()
    await engine.begin(max_local_depth=0, max_global_resets=0)
    answers = await engine.group(1, call("book", {"effect": "a"}), call("note", {"fail": "no"}))
    assert [answer.status for answer in answers] == [StepStatus.SUCCESS, StepStatus.FAILED]
    assert {answer.next_step_id for answer in answers} == {0}
    assert answers[0].rewound
    assert {answer.abort_reason != "" for answer in answers} == {True}
    assert engine.tools.effects == []


@virtual_time
async def test_a_group_with_a_refused_member_runs_the_others_and_then_fails() -> None:
    engine = await _begun()
    answers = await engine.group(
        1, call("note", {"put": {"kv/a": 1}}), call("no-such"), call("note", text="{oops")
    )
    assert [answer.status for answer in answers] == [
        StepStatus.SUCCESS,
        StepStatus.ROLLBACK_TRIGGERED,
        StepStatus.ROLLBACK_TRIGGERED,
    ]
    assert engine.tools.count() == 1
    assert await engine.state("kv/a") == {"kv/a": None}
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_group_whose_rewind_is_held_answers_so_and_in_the_end_as_it_was() -> None:
    engine = await _begun()
    engine.tools.break_undo("room")
    calls = (call("book", {"effect": "room"}, "g1"), call("note", {"fail": "no"}, "g2"))
    held = await engine.group(1, *calls)
    assert {answer.rollback_incomplete for answer in held} == {True}
    assert {answer.generation for answer in held} == {1}
    engine.restart()
    again = await engine.group(1, *calls)
    assert {(answer.rollback_incomplete, answer.replayed) for answer in again} == {(True, True)}
    engine.tools.break_undo("room", times=0)
    await engine.rewind(1)
    final = await engine.group(1, *calls)
    assert {(answer.rollback_incomplete, answer.generation) for answer in final} == {(False, 2)}
    assert [answer.rewound for answer in final] == [True, False]
    await engine.assert_memory_equals_store()


@virtual_time
async def test_a_settled_group_is_plain_steps_for_rewinds() -> None:
    engine = await _begun()
    await engine.group(
        1,
        call("note", {"put": {"kv/1": 1}}),
        call("book", {"effect": "two"}),
        call("note", {"put": {"kv/3": 3}}),
    )
    await engine.rewind(2)
    assert await engine.state("kv/1", "kv/3") == {"kv/1": 1, "kv/3": None}
    assert engine.tools.effects == []
    assert (await engine.step(2, "note")).next_step_id == 3
    await engine.assert_memory_equals_store()


# --- conflicts ----------------------------------------------------------------------------

TOUCHES: dict[str, dict[str, Any]] = {
    "read a": {"get": ["kv/a"]},
    "write a": {"put": {"kv/a": 1}},
    "delete a": {"delete": ["kv/a"]},
    "read and write a": {"get": ["kv/a"], "put": {"kv/a": 2}},
    "scan kv": {"scan": ["kv/"]},
    "read b": {"get": ["kv/b"]},
    "write b": {"put": {"kv/b": 1}},
    "scan other": {"scan": ["other/"]},
}
_READS_A = {"read a", "read and write a", "scan kv"}
_WRITES_A = {"write a", "delete a", "read and write a"}
_READS_B = {"read b", "scan kv"}
_WRITES_B = {"write b"}


def _clash(one: str, two: str) -> bool:
    for reads, writes in ((_READS_A, _WRITES_A), (_READS_B, _WRITES_B)):
        touched = {one, two}
        if (
            touched & writes == touched
            or (one in writes and two in reads)
            or (two in writes and one in reads)
        ):
            return True
    return False


@pytest.mark.parametrize("order", [(0.1, 0.2), (0.2, 0.1)])
@virtual_time
async def test_of_two_members_that_touch_one_key_the_higher_step_fails_whoever_was_first(
    order: tuple[float, float],
) -> None:
    for one, two in itertools.product(TOUCHES, repeat=2):
        engine = await _begun()
        await engine.step(1, "note", {"put": {"kv/a": 0}})
        engine.tools.next("note", *(_after(seconds) for seconds in order))
        answers = await engine.group(2, call("note", TOUCHES[one]), call("note", TOUCHES[two]))
        if not _clash(one, two):
            assert {answer.status for answer in answers} == {StepStatus.SUCCESS}, (one, two)
            continue
        assert [answer.status for answer in answers] == [
            StepStatus.SUCCESS,
            StepStatus.ROLLBACK_TRIGGERED,
        ], (one, two)
        hint = answers[1].hint
        assert hint is not None
        assert hint.category is HintCategory.CONFLICT
        assert "Step 2" in hint.text
        assert await engine.state("kv/a", "kv/b") == {"kv/a": None, "kv/b": None}
        await engine.assert_memory_equals_store()


@virtual_time
async def test_the_undo_of_a_member_that_lost_runs() -> None:
    engine = await _begun()
    answers = await engine.group(
        1,
        call("note", {"put": {"kv/a": 1}}),
        call("book", {"effect": "room", "put": {"kv/a": 2}}),
    )
    assert [answer.status for answer in answers] == [StepStatus.SUCCESS, StepStatus.ROLLBACK_TRIGGERED]
    assert engine.tools.effects == []
    assert answers[1].output is None


@virtual_time
async def test_a_member_that_failed_conflicts_with_nobody() -> None:
    engine = await _begun()
    answers = await engine.group(
        1,
        call("note", {"put": {"kv/a": 1}, "fail": "no"}),
        call("note", {"put": {"kv/a": 2}}),
    )
    assert [answer.status for answer in answers] == [StepStatus.ROLLBACK_TRIGGERED, StepStatus.SUCCESS]


def _touching(key: str, *, writes: bool, seconds: float = 0.0, then: Behaviour = obey) -> Behaviour:
    """Touch an outside thing, then go on after a while."""

    async def behave(run: ToolRun) -> Any:
        await run.context.touch(key, writes=writes)
        await asyncio.sleep(seconds)
        return await then(run)

    return behave


@pytest.mark.parametrize("order", [(0.1, 0.2), (0.2, 0.1)])
@pytest.mark.parametrize(
    ("one", "two", "clash"),
    [
        (("file/a", True), ("file/a", True), "a"),
        (("file/a", True), ("file/a", False), "a"),
        (("file/a", False), ("file/a", True), "a"),
        (("file/a", False), ("file/a", False), None),
        (("file/d", False), ("file/d/a", True), "d/a"),
        (("file/d/a", True), ("file/d", False), "d/a"),
        (("file/d", True), ("file/d/a", False), "d/a"),
        (("file/d", True), ("file/da", True), None),
        (("file/a", True), ("kv/a", True), None),
    ],
)
@virtual_time
async def test_of_two_members_that_touch_one_outside_thing_the_higher_step_fails_whoever_was_first(
    order: tuple[float, float], one: tuple[str, bool], two: tuple[str, bool], clash: str | None
) -> None:
    engine = await _begun()
    for (key, writes), seconds in zip((one, two), order, strict=True):
        engine.tools.next("note", _touching(key, writes=writes, seconds=seconds))
    answers = await engine.group(1, call("note"), call("note", {"put": {"kv/a": 1}}))
    await engine.assert_memory_equals_store()
    if clash is None:
        assert {answer.status for answer in answers} == {StepStatus.SUCCESS}
        return
    assert [answer.status for answer in answers] == [StepStatus.SUCCESS, StepStatus.ROLLBACK_TRIGGERED]
    hint = answers[1].hint
    assert hint is not None
    assert hint.category is HintCategory.CONFLICT
    assert f"Step 1 of the same group also used '{clash}'" in hint.text
    assert engine.memory.database.transactions[engine.transaction_id].reads == []


@virtual_time
async def test_a_thing_that_is_read_and_written_is_written_in_whatever_order() -> None:
    for first in (True, False):
        engine = await _begun()
        twice = _touching("file/a", writes=not first)
        engine.tools.next(
            "note", _touching("file/a", writes=first, then=twice), _touching("file/a", writes=False)
        )
        answers = await engine.group(1, call("note"), call("note"))
        assert answers[1].status is StepStatus.ROLLBACK_TRIGGERED


@virtual_time
async def test_members_that_lost_or_failed_still_stand_with_what_they_touched_outside() -> None:
    """They did touch it: what the others met there may be their doing."""
    engine = await _begun()

    async def touch_both(run: ToolRun) -> Any:
        await run.context.touch("file/a", writes=True)
        await run.context.touch("file/b", writes=True)

    engine.tools.next(
        "note",
        _touching("file/a", writes=True),
        touch_both,
        _touching("file/b", writes=False),
        _touching("file/c", writes=True, then=fail_with("no")),
        _touching("file/c", writes=False),
    )
    answers = await engine.group(1, *(call("note") for _ in range(5)))
    assert [answer.status for answer in answers] == [
        StepStatus.SUCCESS,
        *[StepStatus.ROLLBACK_TRIGGERED] * 4,
    ]
    categories = [answer.hint.category if answer.hint else None for answer in answers]
    assert categories[1:3] + categories[4:] == [HintCategory.CONFLICT] * 3
    assert categories[3] is not HintCategory.CONFLICT
    assert answers[0].decision is not None
    assert answers[0].decision.failed_step == 2


@virtual_time
async def test_a_lower_member_that_failed_on_what_a_higher_one_wrote_is_not_decided_on() -> None:
    outcomes = []
    for fails in (True, False):  # whether the higher one was first
        engine = await _begun()
        engine.tools.next(
            "note",
            _touching("file/a", writes=False, then=fail_with("gone") if fails else obey),
            _touching("file/a", writes=True),
        )
        answers = await engine.group(1, call("note"), call("note"))
        assert (answers[0].status is StepStatus.ROLLBACK_TRIGGERED) == fails
        outcomes.append((answers[1], (await engine.record()).constraints))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0].decision is not None
    assert outcomes[0][0].decision.failed_step == 2


@virtual_time
async def test_an_attempts_context_takes_no_touch_once_it_is_closed_nor_one_that_is_no_key() -> None:
    engine = await _begun()
    contexts: list[Any] = []

    async def behave(run: ToolRun) -> Any:
        contexts.append(run.context)
        for key in ("", "a\x00b", "x" * 2000):
            with pytest.raises(ToolFailure):
                await run.context.touch(key, writes=True)

    engine.tools.next("note", behave)
    assert (await engine.step(1, "note")).status is StepStatus.SUCCESS
    with pytest.raises(ContextClosed):
        await contexts[0].touch("file/a", writes=True)


# --- cut off ------------------------------------------------------------------------------


@virtual_time
async def test_the_same_group_after_a_crash_replays_what_ended_and_runs_the_rest() -> None:
    engine = await _begun()
    await engine.step(1, "note", {"put": {"kv/a": 0}, "output": {"id": "u"}})
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    calls = (
        call("book", {"effect": "room", "who_id": "u"}, "g2"),
        call("lookup", {"get": ["kv/a"]}, "g3"),
        call("note", {"put": {"kv/b": 4}, "stage": [["mail", 4]]}, "g4"),
    )
    running = asyncio.create_task(engine.group(2, *calls))
    await gate.reached()
    await idle()
    await engine.crash()
    assert running.cancelled()
    assert (await engine.record()).open_group == (2, 3)
    answers = await engine.group(2, *calls)
    assert {(answer.status, answer.next_step_id) for answer in answers} == {(StepStatus.SUCCESS, 5)}
    assert [engine.tools.count(step_id=step) for step in (2, 3, 4)] == [1, 2, 1]
    assert engine.tools.effects == ["room"]
    assert await engine.staged() == [("mail", 4)]
    assert [edge.from_step for edge in answers[0].dependencies] == [1]
    await engine.assert_memory_equals_store()
    assert await engine.group(2, *calls) == tuple(replace(answer, replayed=True) for answer in answers)
    graph = await engine.coordinator.graph("anonymous", engine.transaction_id)
    assert [node.step_id for node in graph.nodes] == [1, 2, 3, 4]


@virtual_time
async def test_members_that_ended_before_a_crash_take_part_in_the_judgement() -> None:
    engine = await _begun()
    gate = Gate()
    engine.tools.next("note", hang(gate))
    calls = (
        call("note", {"put": {"kv/a": 1}}, "g1"),
        call("book", {"put": {"kv/a": 2}, "effect": "room"}, "g2"),
        call("lookup", {"get": ["kv/z"]}, "g3"),
    )
    running = asyncio.create_task(engine.group(1, *calls))
    await gate.reached()
    await idle()
    await engine.crash()
    assert running.cancelled()
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [
        StepStatus.SUCCESS,
        StepStatus.ROLLBACK_TRIGGERED,
        StepStatus.SUCCESS,
    ]
    assert answers[1].hint is not None
    assert answers[1].hint.category is HintCategory.CONFLICT
    assert engine.tools.effects == []
    assert await engine.state("kv/a") == {"kv/a": None}
    await engine.assert_memory_equals_store()
    again = await engine.group(1, *calls)
    assert all(same_answer(one, two) for one, two in zip(answers, again, strict=True))


@pytest.mark.parametrize("fails", [False, True])
@virtual_time
async def test_what_members_touched_outside_before_a_crash_takes_part_in_the_judgement(fails: bool) -> None:
    engine = await _begun()
    gate = Gate()
    engine.tools.next("note", hang(gate))
    engine.tools.next("book", _touching("file/d/a", writes=True, then=fail_with("no") if fails else obey))
    engine.tools.next("lookup", _touching("file/z", writes=False))
    calls = (call("note", None, "g1"), call("book", {"effect": "room"}, "g2"), call("lookup", None, "g3"))
    running = asyncio.create_task(engine.group(1, *calls))
    await gate.reached()
    await idle()
    await engine.crash()
    assert running.cancelled()
    engine.tools.next("note", _touching("file/d", writes=False))
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [
        StepStatus.SUCCESS,
        StepStatus.ROLLBACK_TRIGGERED,
        StepStatus.SUCCESS,
    ]
    assert answers[1].hint is not None
    assert answers[1].hint.category is HintCategory.CONFLICT
    assert "'d/a'" in answers[1].hint.text
    assert engine.tools.effects == []
    await engine.assert_memory_equals_store()
    again = await engine.group(1, *calls)
    assert all(same_answer(one, two) for one, two in zip(answers, again, strict=True))


@virtual_time
async def test_a_failed_member_before_a_crash_is_decided_on_afterwards() -> None:
    engine = await _begun()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    calls = (call("note", {"fail": "no"}, "g1"), call("lookup", None, "g2"))
    running = asyncio.create_task(engine.group(1, *calls))
    await gate.reached()
    await idle()
    await engine.crash()
    assert running.cancelled()
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [StepStatus.ROLLBACK_TRIGGERED, StepStatus.SUCCESS]
    assert engine.tools.count("note") == 1
    assert (await engine.record()).failures == ((1, 1),)


@virtual_time
async def test_an_open_group_takes_no_other_request_and_is_taken_back_by_a_rewind() -> None:
    engine = await _begun()
    gate = Gate()
    engine.tools.next("lookup", hang(gate))
    calls = (call("book", {"effect": "room"}, "g1"), call("lookup", None, "g2"))
    running = asyncio.create_task(engine.group(1, *calls))
    await gate.reached()
    await idle()
    await engine.crash()
    assert running.cancelled()
    for refused in (
        engine.step(1, "note"),
        engine.group(1, call("book", {"effect": "other"}, "x1"), call("lookup", None, "g2")),
        engine.group(1, *calls, call("note")),
        engine.commit(),
    ):
        with pytest.raises((PreconditionFailed, RequestIdReused)) as error:
            await refused
        assert error.value.reason == "STEP_EXECUTING"
    assert (await engine.rewind(1)).compensations_run == 1
    assert engine.tools.effects == []
    assert (await engine.group(1, call("note", {"put": {"kv/a": 1}}), call("note")))[0].next_step_id == 3
    assert (await engine.record()).status is TransactionStatus.ACTIVE
    await engine.assert_memory_equals_store()


@virtual_time
async def test_fails_in_a_group_are_counted_for_the_step_decided_on_alone() -> None:
    engine = await _begun()
    await engine.begin(max_local_depth=1, max_global_resets=0)
    engine.tools.next("note", fail_with("one"), fail_with("two"))
    first = await engine.group(1, call("note"), call("note"))
    assert first[0].strategy is Strategy.LOCAL_BACKTRACK
    engine.tools.next("lookup", fail_with("two again"))
    second = await engine.group(1, call("note"), call("lookup"))
    assert second[1].strategy is Strategy.LOCAL_BACKTRACK
    assert second[1].decision is not None
    assert second[1].decision.failure_number == 1
    assert (await engine.record()).failures == ((1, 1), (2, 1))
