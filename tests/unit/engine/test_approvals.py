"""A step that needs approval: asked, decided on, run once, never for another call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import (
    Engine,
    aggregate_of,
    call,
    outcome_of,
    same_answer,
)
from tests.support.memory_store import Gate, MemoryDatabase
from tests.support.scripted_tools import ToolRun, fail_with, hang, obey
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.errors import InvalidRequest, NotFound, PreconditionFailed
from agenttx_server.engine.ports import ArgumentsRefused, SubStepFailed, ToolFailure
from agenttx_server.engine.records import (
    ApprovalState,
    AttemptState,
    EffectClass,
    HintCategory,
    StepResolution,
    Strategy,
    ToolDescription,
    TransactionStatus,
)
from agenttx_server.engine.requests import ResolveStepRequest, StepStatus
from agenttx_server.engine.services import EngineSettings
from agenttx_server.engine.transaction import Transaction

TOOLS = ("lookup", "note", "upload", "book", "pay", "wire")
SUCCESS, WAITS, ROLLED_BACK = StepStatus.SUCCESS, StepStatus.AWAITING_APPROVAL, StepStatus.ROLLBACK_TRIGGERED


def asking(*tool_names: str, **fields: Any) -> Engine:
    """A server some tools of which always need approval."""
    engine = Engine(**fields)
    engine.tools.ask_before(*tool_names)
    return engine


class Above:
    """Asks about calls whose amount is above a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def why(self, tool_name: str, arguments: Any) -> str:
        amount = arguments.get("amount", 0) if isinstance(arguments, dict) else 0
        return f"{amount} is more than {self.limit}" if amount > self.limit else ""


async def rebuilt_equals_cached(engine: Engine) -> None:
    """I7: what a server would read is what this one has in memory."""
    entry = engine.coordinator._cache.peek(engine.transaction_id)
    stored = await engine.store.load(engine.transaction_id)
    assert entry is not None
    assert entry.transaction is not None
    assert stored is not None
    assert aggregate_of(Transaction.rebuild(stored)) == aggregate_of(entry.transaction)


# --- asked, approved, run -----------------------------------------------------------------


@pytest.mark.parametrize("tool_name", TOOLS)
@virtual_time
async def test_a_call_waits_and_runs_once_when_it_is_sent_again_after_a_yes(tool_name: str) -> None:
    engine = asking(tool_name)
    await engine.begin()
    await engine.step(1, "upload", {"output": {"id": "u-7"}}) if tool_name != "upload" else None
    step = 1 if tool_name == "upload" else 2
    arguments = {"effect": "done", "user": "${steps.1.id}" if step == 2 else "u-7", "output": {"n": 1}}

    waiting = await engine.step(step, tool_name, arguments, "r")

    assert (waiting.status, waiting.next_step_id) == (WAITS, step)
    assert waiting.approval is not None
    assert '"user":"u-7"' in waiting.approval.approval.arguments  # resolved
    assert engine.tools.count(tool_name) == 0
    assert (await engine.record()).status is TransactionStatus.AWAITING_APPROVAL
    await rebuilt_equals_cached(engine)

    again = await engine.step(step, tool_name, arguments, "r")
    assert again == waiting
    decided = await engine.approve(1, comment="fine")
    assert engine.tools.count(tool_name) == 0  # Approve runs nothing
    assert (decided.approval.state, decided.approval.decided_by, decided.approval.comment) == (
        ApprovalState.APPROVED,
        "ann",
        "fine",
    )
    await rebuilt_equals_cached(engine)

    done = await engine.step(step, tool_name, arguments, "r")
    assert (done.status, done.next_step_id, done.attempt) == (SUCCESS, step + 1, 1)
    replay = await engine.step(step, tool_name, arguments, "r")
    assert replay.replayed
    assert same_answer(done, replay)
    assert engine.tools.count(tool_name) == 1
    used = (await engine.approvals())[0]
    assert (used.state, used.used_attempt) == (ApprovalState.APPROVED, 1)
    await rebuilt_equals_cached(engine)
    await engine.commit()


@virtual_time
async def test_a_wait_that_brings_nothing_new_writes_nothing() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "pay", {}, "r")
    before = engine.memory.write_count
    for _ in range(3):
        await engine.step(1, "pay", {}, "r")
    assert engine.memory.write_count == before


@virtual_time
async def test_the_intent_and_the_use_of_the_approval_are_one_write() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "pay", {"effect": "paid"}, "r")
    await engine.approve()
    written = len(engine.memory.written)
    await engine.step(1, "pay", {"effect": "paid"}, "r")
    first = engine.memory.written[written]
    assert [attempt.state for attempt in first.attempts] == [AttemptState.EXECUTING]
    assert [approval.used_attempt for approval in first.approvals] == [1]


@virtual_time
async def test_a_policy_asks_about_some_calls_of_a_tool() -> None:
    engine = Engine(approval_policy=Above(100))
    await engine.begin()
    assert (await engine.step(1, "pay", {"amount": 100}, "r1")).status is SUCCESS
    waiting = await engine.step(2, "pay", {"amount": 101}, "r2")
    assert waiting.approval is not None
    assert waiting.approval.approval.reason == "101 is more than 100"


@virtual_time
async def test_nobody_is_asked_about_arguments_that_the_tool_refuses() -> None:
    engine = asking("pay")
    engine.tools.refusing["pay"] = ArgumentsRefused("missing_argument", "amount is missing", ("amount",))
    await engine.begin()
    answer = await engine.step(1, "pay", {}, "r")
    assert (answer.status, await engine.approvals()) == (ROLLED_BACK, [])


@virtual_time
async def test_events_tell_who_was_asked_what_and_who_said_what() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "pay", {}, "r")
    await engine.approve(by="ann", comment="go")
    await engine.step(1, "pay", {}, "r")
    events = await engine.store.list_events(engine.transaction_id, 1, 100)
    told = [(event.type.value, event.payload) for event in events[1:]]
    assert [kind for kind, _ in told] == [
        "STEP_AWAITING_APPROVAL",
        "STEP_APPROVED",
        "STEP_STARTED",
        "STEP_COMPLETED",
    ]
    assert '"reason":"this tool always needs approval"' in told[0][1]
    assert '"comment":"go","decided_by":"ann"' in told[1][1]


# --- anything else asks again (C31) -------------------------------------------------------


@virtual_time
async def test_another_call_never_runs_under_an_approval() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "pay", {"amount": 100, "effect": "100"}, "r1")
    reused = await outcome_of(engine.step(1, "pay", {"amount": 900, "effect": "900"}, "r1"))
    assert isinstance(reused, InvalidRequest)
    assert reused.reason == "REQUEST_ID_REUSED"
    pending = await outcome_of(engine.step(1, "pay", {"amount": 900, "effect": "900"}, "r2"))
    assert isinstance(pending, PreconditionFailed)
    assert pending.reason == "STEP_AWAITING_APPROVAL"
    assert pending.metadata == {"step_id": "1", "approval_id": "1"}
    await engine.approve(1)

    other = await engine.step(1, "pay", {"amount": 900, "effect": "900"}, "r2")

    assert (other.status, other.attempt) == (WAITS, 2)
    assert other.approval is not None
    assert other.approval.approval.sequence == 2
    assert [item.state for item in await engine.approvals()] == [
        ApprovalState.WITHDRAWN,
        ApprovalState.PENDING,
    ]
    assert engine.tools.count("pay") == 0
    await rebuilt_equals_cached(engine)
    await engine.approve(2)
    assert (await engine.step(1, "pay", {"amount": 900, "effect": "900"}, "r2")).status is SUCCESS
    assert engine.tools.effects == ["900"]


@virtual_time
async def test_arguments_that_resolve_otherwise_ask_again() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "lookup", {"output": {"amount": 100}}, "r1")
    arguments = {"amount": "${steps.1.amount}"}
    await engine.step(2, "pay", arguments, "r2")
    await engine.approve(1)
    # Within the rules no output changes without a rewind, so the row is changed by hand.
    stored = engine.memory.database.transactions[engine.transaction_id]
    stored.attempts[(1, 1)] = replace(stored.attempts[(1, 1)], output='{"amount":900}')
    engine.restart()

    again = await engine.step(2, "pay", arguments, "r2")

    assert again.status is WAITS
    assert again.approval is not None
    assert again.approval.approval.arguments == '{"amount":900}'
    assert [item.state for item in await engine.approvals()] == [
        ApprovalState.WITHDRAWN,
        ApprovalState.PENDING,
    ]
    assert engine.tools.count("pay") == 0


@virtual_time
async def test_a_call_that_failed_under_its_approval_asks_again() -> None:
    engine = asking("book")
    await engine.begin(rejected_calls=None)
    engine.tools.next("book", fail_with("no rooms"))
    await engine.step(1, "book", {}, "r")
    await engine.approve(1)
    assert (await engine.step(1, "book", {}, "r")).status is ROLLED_BACK
    again = await engine.step(1, "book", {}, "r-2")
    assert again.status is WAITS
    assert again.approval is not None
    assert again.approval.approval.sequence == 2


@pytest.mark.parametrize("by_rule", [False, True])
@virtual_time
async def test_a_call_inside_a_step_does_not_get_round_it(*, by_rule: bool) -> None:
    engine = Engine(approval_policy=Above(100)) if by_rule else asking("pay")

    async def node(run: Any) -> Any:
        return await run.context.step("pay", '{"amount":900,"effect":"paid"}')

    engine.tools.add(ToolDescription("node", "", "{}", EffectClass.TRANSACTIONAL), node)
    await engine.begin()
    answer = await engine.step(1, "node", {}, "r")
    assert answer.status is ROLLED_BACK
    assert answer.hint is not None
    assert "pay" in answer.hint.text
    assert engine.tools.count("pay") == 0


@pytest.mark.parametrize("by_rule", [False, True])
@virtual_time
async def test_a_call_inside_a_step_that_waited_for_its_tool_does_not_get_round_it(
    monkeypatch: pytest.MonkeyPatch, *, by_rule: bool
) -> None:
    engine = Engine(approval_policy=Above(100)) if by_rule else asking("pay")

    async def node(run: Any) -> Any:
        return await run.context.step("pay", '{"amount":900,"effect":"paid"}')

    engine.tools.add(ToolDescription("node", "", "{}", EffectClass.TRANSACTIONAL), node)
    await engine.begin()
    if not by_rule:
        await engine.step(1, "pay", {"amount": 1}, "r")
        await engine.approve(1)
    assert (await engine.step(1, "pay", {"amount": 1}, "r")).status is SUCCESS
    pay = engine.tools.describe("pay")
    assert pay is not None
    engine.tools.remove("pay")

    async def comes_late(name: str, wait_seconds: float) -> ToolDescription | None:
        await asyncio.sleep(2)
        engine.tools.add(pay)
        return pay

    monkeypatch.setattr(engine.tools, "find", comes_late)
    answer = await engine.step(2, "node", {}, "n")
    assert answer.status is ROLLED_BACK
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.PERMISSION_DENIED
    assert engine.tools.count("pay") == 1


@virtual_time
async def test_a_tool_that_comes_to_need_approval_between_two_tries_is_not_tried_again() -> None:
    engine = Engine(settings=EngineSettings(step_retries=2))
    await engine.begin()

    async def changes(run: ToolRun) -> Any:
        run.tools.ask_before("upload")
        raise ToolFailure(HintCategory.CONNECTION, "the line is down")

    engine.tools.next("upload", changes)
    answer = await engine.step(1, "upload", {"effect": "file"})
    assert answer.status is ROLLED_BACK
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.PERMISSION_DENIED
    assert engine.tools.count("upload") == 1
    assert (await engine.step(1, "upload", {"effect": "file"})).status is WAITS


@pytest.mark.parametrize("inside", [False, True])
@virtual_time
async def test_recovery_runs_no_call_on_that_came_to_need_approval(*, inside: bool) -> None:
    engine = Engine()

    async def node(run: ToolRun) -> Any:
        return await run.context.step("upload", '{"effect":"file"}')

    engine.tools.add(ToolDescription("node", "", "{}", EffectClass.TRANSACTIONAL, restartable=True), node)
    await engine.begin()
    gate = Gate()
    engine.tools.next("upload", hang(gate))
    running = asyncio.ensure_future(engine.step(1, "node" if inside else "upload", {"effect": "file"}, "r"))
    await gate.reached()
    await asyncio.sleep(2)
    await engine.crash()
    assert running.cancelled()
    engine.tools.ask_before("upload")
    await engine.coordinator.start()
    assert (await engine.record()).status is TransactionStatus.IN_DOUBT  # it may have had its effect
    assert engine.tools.count("upload") == 1
    await engine.coordinator.stop()


@virtual_time
async def test_the_approval_of_a_step_is_not_for_the_same_call_inside_it() -> None:
    engine = asking("upload")
    made: list[Any] = []

    async def calls_itself(run: ToolRun) -> Any:
        try:
            made.append(await run.context.step("upload", "{}"))
        except SubStepFailed as refused:
            made.append(refused.hint.category)

    engine.tools.next("upload", calls_itself)
    await engine.begin()
    await engine.step(1, "upload", {}, "r")
    await engine.approve(1)
    assert (await engine.step(1, "upload", {}, "r")).status is SUCCESS
    assert made == [HintCategory.PERMISSION_DENIED]
    assert engine.tools.count("upload") == 1


# --- decisions ----------------------------------------------------------------------------


@virtual_time
async def test_of_two_decisions_one_wins_and_the_other_is_told_who() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "pay", {}, "r")
    results = await asyncio.gather(
        outcome_of(engine.approve(1, "ann", comment="yes")), outcome_of(engine.reject(1, "bob", comment="no"))
    )
    lost = next(item for item in results if isinstance(item, PreconditionFailed))
    assert lost.reason == "APPROVAL_DECIDED"
    assert (lost.metadata["state"], lost.metadata["decided_by"], lost.metadata["comment"]) == (
        "APPROVED",
        "ann",
        "yes",
    )
    assert lost.metadata["decided_at"].startswith("2023-11-14T")


@virtual_time
async def test_two_servers_decide_at_the_same_instant_and_one_wins() -> None:
    database = MemoryDatabase()
    first = asking("pay", database=database, is_shared=True, name="a")
    second = asking("pay", database=database, is_shared=True, name="b")
    for engine in (first, second):
        await engine.coordinator.start()
    second.transaction_id = await first.begin()
    await first.step(1, "pay", {}, "r")
    await second.view()  # has it in memory
    results = await asyncio.gather(outcome_of(first.approve(1, "ann")), outcome_of(second.approve(1, "bob")))
    lost = [item for item in results if isinstance(item, PreconditionFailed)]
    won = [item for item in results if not isinstance(item, PreconditionFailed)]
    assert len(won) == len(lost) == 1
    assert lost[0].metadata["decided_by"] == won[0].approval.decided_by
    assert (await second.step(1, "pay", {}, "r")).status is SUCCESS
    assert first.tools.count("pay") + second.tools.count("pay") == 1


@pytest.mark.parametrize("tool_name", ["book", "pay"])
@virtual_time
async def test_an_approved_step_that_runs_on_one_server_is_waited_for_on_the_one_that_it_was_approved_on(
    tool_name: str,
) -> None:
    database = MemoryDatabase()
    first = asking(tool_name, database=database, is_shared=True, name="a")
    second = asking(tool_name, database=database, is_shared=True, name="b")
    for engine in (first, second):
        await engine.coordinator.start()
    second.transaction_id = await first.begin()
    await first.step(1, tool_name, {"effect": "done"}, "r")
    await second.approve(1)  # and has it in memory so: approved, and not begun
    gate = Gate()
    first.tools.next(tool_name, hang(gate))
    running = asyncio.ensure_future(first.step(1, tool_name, {"effect": "done"}, "r"))
    await gate.reached()
    resent = asyncio.ensure_future(outcome_of(second.step(1, tool_name, {"effect": "done"}, "r")))
    await asyncio.sleep(1)
    assert not resent.done()
    gate.open()
    done, again = await running, await resent
    assert done.status is SUCCESS
    assert again.replayed
    assert same_answer(done, again)
    assert first.tools.count(tool_name) + second.tools.count(tool_name) == 1
    for engine in (first, second):
        await engine.coordinator.stop()


@virtual_time
async def test_a_decision_sent_twice_is_taken_once_and_answered_the_same() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "pay", {}, "r")
    decided = await engine.approve(1, request_id="d")
    await engine.step(1, "pay", {}, "r")
    assert await engine.approve(1, request_id="d") == decided  # though it was used since
    other = await outcome_of(engine.reject(1, request_id="d"))
    assert isinstance(other, InvalidRequest)
    assert other.reason == "REQUEST_ID_REUSED"
    comment = await outcome_of(engine.approve(1, request_id="d", comment="else"))
    assert isinstance(comment, InvalidRequest)
    assert comment.reason == "REQUEST_ID_REUSED"


@pytest.mark.parametrize("approval_id", ["2", "0", "01", "x", "-1", "٣", "9" * 30])
@virtual_time
async def test_an_approval_that_there_is_not_is_not_found(approval_id: str) -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "pay", {}, "r")
    refused = await outcome_of(engine.approve(approval_id))
    assert isinstance(refused, NotFound)
    assert refused.reason == "APPROVAL_NOT_FOUND"


# --- a no ---------------------------------------------------------------------------------


@virtual_time
async def test_a_no_fails_the_step_and_undoes_nothing_before_it() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "book", {"effect": "room"}, "r1")
    await engine.step(2, "pay", {"user": "u"}, "r2")

    await engine.reject(1, "bob", comment="the room is too dear")

    answer = await engine.step(2, "pay", {"user": "u"}, "r2")
    assert (answer.status, answer.rollback_to_step, answer.next_step_id) == (ROLLED_BACK, 2, 2)
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.PERMISSION_DENIED
    assert answer.hint.text == (
        "Hint: pay was not approved: the room is too dear. Ask for something else, or go on without it."
    )
    assert answer.constraints == (answer.hint.text,)
    assert engine.tools.effects == ["room"]
    assert engine.tools.count("pay") == 0
    await rebuilt_equals_cached(engine)
    assert (await engine.step(2, "note", {}, "r3")).status is SUCCESS


@virtual_time
async def test_after_max_local_depth_noes_the_transaction_starts_over_then_ends() -> None:
    engine = asking("pay")
    await engine.begin(max_local_depth=1, max_global_resets=1)
    strategies = []
    for number in range(1, 5):
        await engine.step(1, "pay", {}, f"r{number}")
        await engine.reject(number)
        strategies.append((await engine.step(1, "pay", {}, f"r{number}")).strategy)
        if strategies[-1] is Strategy.ABORT:
            break
    assert strategies == [
        Strategy.LOCAL_BACKTRACK,
        Strategy.GLOBAL_RESET,
        Strategy.LOCAL_BACKTRACK,
        Strategy.ABORT,
    ]
    assert (await engine.record()).status is TransactionStatus.FAILED


# --- what an approval dies of -------------------------------------------------------------


@pytest.mark.parametrize("approved", [False, True])
@virtual_time
async def test_a_rewind_past_its_step_withdraws_an_approval(*, approved: bool) -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "note", {}, "r1")
    await engine.step(2, "pay", {}, "r2")
    if approved:
        await engine.approve(1)
    await engine.rewind(2)
    assert (await engine.record()).status is TransactionStatus.ACTIVE
    gone = (await engine.approvals())[0]
    assert (gone.state, gone.withdrawn_reason) == (ApprovalState.WITHDRAWN, "a rewind to step 2 passed it")
    late = await outcome_of(engine.approve(1))
    assert isinstance(late, PreconditionFailed)
    assert late.metadata["state"] == "WITHDRAWN"
    again = await engine.step(2, "pay", {}, "r2")
    assert (again.status, again.attempt) == (WAITS, 2)
    assert engine.tools.count("pay") == 0
    await rebuilt_equals_cached(engine)


@virtual_time
async def test_an_abort_withdraws_an_approval() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "book", {"effect": "room"}, "r1")
    await engine.step(2, "pay", {}, "r2")
    await engine.rollback()
    assert [item.state for item in await engine.approvals()] == [ApprovalState.WITHDRAWN]
    assert engine.tools.effects == []
    late = await outcome_of(engine.reject(1))
    assert isinstance(late, PreconditionFailed)
    assert late.reason == "APPROVAL_DECIDED"


@virtual_time
async def test_a_commit_waits_for_the_decision() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "pay", {}, "r1")
    refused = await outcome_of(engine.commit())
    assert isinstance(refused, PreconditionFailed)
    assert refused.reason == "STEP_AWAITING_APPROVAL"
    await engine.approve(1)
    refused = await outcome_of(engine.commit())
    assert isinstance(refused, PreconditionFailed)
    assert refused.reason == "STEP_EXECUTING"


@virtual_time
async def test_a_wait_is_not_idleness_but_a_deadline_ends_it() -> None:
    engine = asking("pay")
    await engine.coordinator.start()
    waiting = await engine.begin(idle_timeout_us=60_000_000)
    await engine.step(1, "pay", {}, "r")
    approved = await engine.begin(idle_timeout_us=60_000_000)
    await engine.step(1, "pay", {}, "r")
    await engine.approve(1)
    late = await engine.begin(deadline_us=60_000_000)
    await engine.step(1, "pay", {}, "r")
    await asyncio.sleep(100)
    statuses = [(await engine.record(each)).status for each in (waiting, approved, late)]
    assert statuses == [
        TransactionStatus.AWAITING_APPROVAL,
        TransactionStatus.ROLLED_BACK,  # approved, and nobody came back
        TransactionStatus.ROLLED_BACK,
    ]
    assert (await engine.record(late)).abort_reason == "its deadline passed"
    engine.transaction_id = late
    assert [item.state for item in await engine.approvals()] == [ApprovalState.WITHDRAWN]
    await engine.coordinator.stop()


# --- groups -------------------------------------------------------------------------------


@virtual_time
async def test_a_waiting_member_keeps_the_group_open_while_siblings_finish() -> None:
    engine = asking("book")
    await engine.begin()
    calls = (call("note", {"put": {"kv/a": 1}}, "a"), call("book", {"effect": "room"}, "b"))

    answers = await engine.group(1, *calls)

    assert [answer.status for answer in answers] == [SUCCESS, WAITS]
    assert (await engine.record()).next_step_id == 1
    assert engine.tools.count("note") == 1
    await rebuilt_equals_cached(engine)
    assert [answer.status for answer in await engine.group(1, *calls)] == [SUCCESS, WAITS]
    await engine.approve(1)
    answers = await engine.group(1, *calls)
    assert [(answer.status, answer.next_step_id) for answer in answers] == [(SUCCESS, 3), (SUCCESS, 3)]
    assert (engine.tools.count("note"), engine.tools.count("book")) == (1, 1)
    assert engine.tools.effects == ["room"]
    await rebuilt_equals_cached(engine)


@virtual_time
async def test_a_no_to_a_member_settles_the_group_when_all_are_decided() -> None:
    engine = asking("book", "upload")
    await engine.begin()
    calls = (
        call("note", {"put": {"kv/a": 1}}, "a"),
        call("book", {"effect": "room"}, "b"),
        call("upload", {"effect": "file"}, "c"),
    )
    await engine.group(1, *calls)
    await engine.reject(1)
    assert (await engine.record()).status is TransactionStatus.AWAITING_APPROVAL
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [SUCCESS, WAITS, WAITS]
    await rebuilt_equals_cached(engine)
    await engine.reject(2)
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [SUCCESS, ROLLED_BACK, ROLLED_BACK]
    assert answers[0].rewound
    assert {answer.next_step_id for answer in answers} == {1}
    assert await engine.state("kv/a") == {"kv/a": None}
    await rebuilt_equals_cached(engine)


@virtual_time
async def test_a_sibling_that_failed_is_decided_on_after_the_approval() -> None:
    engine = asking("book")
    await engine.begin()
    calls = (call("note", {"fail": "no"}, "a"), call("book", {"effect": "room"}, "b"))
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [WAITS, WAITS]
    assert answers[0].approval is None
    assert answers[0].hint is not None
    await engine.approve(1)
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [ROLLED_BACK, SUCCESS]
    assert engine.tools.effects == []


@virtual_time
async def test_a_decision_waits_for_siblings_that_still_run() -> None:
    engine = asking("book")
    await engine.begin()
    gate = Gate()
    engine.tools.next("note", hang(gate))
    group = asyncio.ensure_future(engine.group(1, call("note", {}, "a"), call("book", {}, "b")))
    await gate.reached()
    deciding = asyncio.ensure_future(engine.approve(1))
    gate.open()
    assert [answer.status for answer in await group] == [SUCCESS, WAITS]
    assert (await deciding).approval.state is ApprovalState.APPROVED


@virtual_time
async def test_a_member_in_doubt_and_one_that_waits_are_each_dealt_with() -> None:
    engine = asking("book")
    await engine.begin()
    calls = (call("upload", {"effect": "file"}, "a", timeout=1), call("book", {"effect": "room"}, "b"))
    forever = Gate()
    engine.tools.next("upload", *[hang(forever)] * 4)
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [StepStatus.IN_DOUBT, WAITS]
    await engine.approve(1)
    await engine.coordinator.resolve_step(
        ResolveStepRequest(engine.transaction_id, 1, StepResolution.SUCCEEDED, "{}")
    )
    assert (await engine.record()).status is TransactionStatus.AWAITING_APPROVAL
    await rebuilt_equals_cached(engine)
    answers = await engine.group(1, *calls)
    assert [answer.status for answer in answers] == [SUCCESS, SUCCESS]


# --- crashes ------------------------------------------------------------------------------


@pytest.mark.parametrize("tool_name", TOOLS)
@virtual_time
async def test_waits_and_approvals_survive_crashes(tool_name: str) -> None:
    engine = asking(tool_name)
    await engine.begin()
    await engine.step(1, tool_name, {"effect": "done"}, "r")
    await engine.crash()
    await engine.coordinator.start()
    assert (await engine.step(1, tool_name, {"effect": "done"}, "r")).status is WAITS
    await engine.approve(1)
    await engine.crash()
    await engine.coordinator.start()
    assert (await engine.step(1, tool_name, {"effect": "done"}, "r")).status is SUCCESS
    assert engine.tools.count(tool_name) == 1
    assert len(await engine.approvals()) == 1


@pytest.mark.parametrize("tool_name", TOOLS)
@virtual_time
async def test_a_crash_in_an_approved_call_asks_nobody_again(tool_name: str) -> None:
    engine = asking(tool_name)
    await engine.begin()
    await engine.step(1, tool_name, {"effect": "done"}, "r")
    await engine.approve(1)
    gate = Gate()
    engine.tools.next(tool_name, hang(gate, first=obey))
    running = asyncio.ensure_future(engine.step(1, tool_name, {"effect": "done"}, "r"))
    await gate.reached()
    await asyncio.sleep(2)  # long enough for its row
    await engine.crash()
    running.cancel()
    await engine.coordinator.start()
    answer = await engine.step(1, tool_name, {"effect": "done"}, "r")
    irreversible = tool_name in ("pay", "wire")
    assert answer.status is (StepStatus.IN_DOUBT if irreversible else SUCCESS)
    assert engine.tools.count(tool_name) == (1 if irreversible else 2)
    assert len(await engine.approvals()) == 1
    if tool_name != "note":
        assert engine.tools.effects == ["done"]


@virtual_time
async def test_a_lost_write_leaves_approval_and_intent_both_or_neither() -> None:
    for applied in (False, True):
        engine = asking("pay")
        await engine.begin()
        await engine.step(1, "pay", {"effect": "paid"}, "r")
        await engine.approve(1)
        engine.memory.fail_next_write(applied=applied)
        await outcome_of(engine.step(1, "pay", {"effect": "paid"}, "r"))
        answer = await engine.step(1, "pay", {"effect": "paid"}, "r")
        # Durable, the intent may have been acted on as far as anybody can tell.
        assert answer.status is (StepStatus.IN_DOUBT if applied else SUCCESS)
        assert engine.tools.count("pay") == (0 if applied else 1)


# --- a tool that changed meanwhile (C51) --------------------------------------------------


@virtual_time
async def test_a_tool_that_refuses_what_was_approved_fails_the_step_by_name() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "pay", {"amount": 1}, "r")
    await engine.approve(1)

    async def refuse(run: Any) -> Any:
        raise ArgumentsRefused("missing_argument", "currency is missing", ("currency",))

    engine.restart()
    engine.tools.always("pay", refuse)
    answer = await engine.step(1, "pay", {"amount": 1}, "r")
    assert answer.status is ROLLED_BACK
    assert answer.hint is not None
    assert answer.hint.text.startswith("Hint: pay was changed since this step was recorded and refuses it")


@virtual_time
async def test_a_tool_of_another_effect_class_fails_the_step_by_name() -> None:
    engine = asking("book")
    await engine.begin()
    await engine.step(1, "book", {}, "r")
    await engine.approve(1)
    engine.restart()
    engine.tools.add(ToolDescription("book", "", "{}", EffectClass.IRREVERSIBLE, needs_approval=True))
    answer = await engine.step(1, "book", {}, "r")
    assert answer.status is ROLLED_BACK
    assert answer.hint is not None
    assert "book was replaced by another version" in answer.hint.text
    assert engine.tools.count("book") == 0
    assert [item.state for item in await engine.approvals()] == [ApprovalState.WITHDRAWN]


@virtual_time
async def test_a_tool_that_is_gone_fails_the_step_by_name() -> None:
    engine = asking("book")
    await engine.begin()
    await engine.step(1, "book", {}, "r")
    await engine.approve(1)
    engine.restart()
    engine.tools.remove("book")
    answer = await engine.step(1, "book", {}, "r")
    assert answer.status is ROLLED_BACK
    assert answer.hint is not None
    assert "book" in answer.hint.text


# --- reads --------------------------------------------------------------------------------


@virtual_time
async def test_reads_show_what_is_waited_for() -> None:
    engine = asking("pay")
    await engine.begin()
    await engine.step(1, "pay", {"amount": 1}, "r")
    view = await engine.view()
    assert view.record.status is TransactionStatus.AWAITING_APPROVAL
    assert [item.approval.sequence for item in view.approvals] == [1]
    assert [(item.step_id, item.state) for item in view.unsettled] == [(1, AttemptState.AWAITING_APPROVAL)]
    await engine.approve(1)
    assert [item.approval.state for item in (await engine.view()).approvals] == [ApprovalState.APPROVED]
    await engine.step(1, "pay", {"amount": 1}, "r")
    assert (await engine.view()).approvals == ()


@virtual_time
async def test_large_arguments_are_left_to_the_listing() -> None:
    engine = asking("book")
    await engine.begin()
    text = "x" * 600_000
    answers = await engine.group(1, call("book", {"a": text}, "a"), call("book", {"b": text}, "b"))
    shown = [answer.approval.arguments_omitted for answer in answers if answer.approval is not None]
    assert shown == [False, True]
    assert all(text in item.arguments for item in await engine.approvals())
