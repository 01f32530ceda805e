"""What is durable before a tool runs, before it acts, and before its caller is answered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call
from tests.support.memory_store import Gate
from tests.support.scripted_tools import ToolRun, fail_with, hang, obey, raise_error
from tests.support.virtual_time import current_loop, idle, run_in_virtual_time, virtual_time

from agenttx_server.engine import attempt_history
from agenttx_server.engine.ports import ContextClosed, OutcomeUnknown, ToolFailure
from agenttx_server.engine.records import AttemptState, EventType, TransactionStatus, UndoState
from agenttx_server.engine.requests import StepStatus
from agenttx_server.engine.services import EngineSettings


async def _begun(**fields: Any) -> tuple[Engine, int]:
    engine = Engine(**fields)
    await engine.begin()
    return engine, len(engine.timeline)


# --- order --------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["lookup", "note"])
@virtual_time
async def test_a_step_without_outside_effects_costs_one_write(tool: str) -> None:
    engine, mark = await _begun()
    await engine.step(1, tool, {"get": ["kv/a"], "put": {"kv/b": 1}, "stage": [["mail", 1]]}, "r")
    assert engine.timeline[mark:] == [f"run {tool} 1.1", "write 1.1=COMPLETED! effect1=STAGED -> ACTIVE"]


@pytest.mark.parametrize("tool", ["upload", "pay"])
@virtual_time
async def test_the_intent_of_a_tool_that_acts_outside_is_durable_before_it_runs(tool: str) -> None:
    engine, mark = await _begun()
    await engine.step(1, tool, {"effect": "it"}, "r")
    assert engine.timeline[mark:] == [
        "write 1.1=EXECUTING -> EXECUTING",
        f"run {tool} 1.1",
        "effect it",
        "write 1.1=COMPLETED! -> ACTIVE",
    ]
    [intent, _] = engine.memory.written[-2:]
    assert intent.transaction.open_group == (1, 1)
    [attempt] = intent.attempts
    assert (attempt.request_id, attempt.arguments) == ("r", '{"effect":"it"}')
    assert attempt.idempotency_key == engine.tools.calls[0].key != ""


@virtual_time
async def test_each_undo_is_durable_before_its_effect() -> None:
    engine, mark = await _begun()
    await engine.step(1, "book", {"effect": ["room", "table"]})
    assert engine.timeline[mark:] == [
        "write 1.1=EXECUTING -> EXECUTING",
        "run book 1.1",
        "write undo1=PENDING -> EXECUTING",
        "effect room",
        "write undo2=PENDING -> EXECUTING",
        "effect table",
        "write 1.1=COMPLETED! -> ACTIVE",
    ]


@virtual_time
async def test_register_undo_returns_only_when_it_is_durable() -> None:
    engine, _ = await _begun()
    held = engine.memory.hold_write(engine.memory.write_count + 2)
    running = asyncio.create_task(engine.step(1, "book", {"effect": "room"}))
    await held.reached()
    await idle()
    assert engine.tools.effects == []
    held.open()
    assert (await running).status is StepStatus.SUCCESS
    assert engine.tools.effects == ["room"]


@virtual_time
async def test_an_undo_of_a_tool_that_needs_no_intent_brings_its_attempt_along() -> None:
    async def register(run: ToolRun) -> Any:
        await asyncio.gather(run.register_undo("a"), run.register_undo("b"))

    engine, mark = await _begun()
    engine.tools.next("note", register)
    await engine.step(1, "note")
    assert engine.writes_since(mark) == [
        "write 1.1=EXECUTING -> EXECUTING",
        "write undo1=PENDING -> EXECUTING",
        "write undo2=PENDING -> EXECUTING",
        "write 1.1=COMPLETED! -> ACTIVE",
    ]
    registered = [undo.arguments for write in engine.memory.written for undo in write.undo]
    await engine.rewind(1)
    undone = [f'{{"effect":"{effect}"}}' for effect in engine.tools.undo_order]
    assert undone == registered[::-1]


@virtual_time
async def test_an_undo_that_was_updated_runs_once_with_what_it_was_updated_to() -> None:
    async def book(run: ToolRun) -> Any:
        await run.register_undo("first")
        await run.register_undo("second")
        await run.context.update_undo("unbook", '{"effect":"second, and its id"}')

    engine, mark = await _begun()
    engine.tools.next("book", book)
    await engine.step(1, "book")
    assert engine.timeline[mark:] == [
        "write 1.1=EXECUTING -> EXECUTING",
        "run book 1.1",
        "write undo1=PENDING -> EXECUTING",
        "write undo2=PENDING -> EXECUTING",
        "write undo2=PENDING -> EXECUTING",
        "write 1.1=COMPLETED! -> ACTIVE",
    ]
    await engine.rewind(1)
    assert engine.tools.undo_order == ["second, and its id", "first"]


@virtual_time
async def test_update_undo_returns_only_when_it_is_durable() -> None:
    updated = asyncio.Event()

    async def book(run: ToolRun) -> Any:
        await run.register_undo("room")
        await run.context.update_undo("unbook", '{"effect":"room 12"}')
        updated.set()

    engine, _ = await _begun()
    engine.tools.next("book", book)
    held = engine.memory.hold_write(engine.memory.write_count + 3)
    running = asyncio.create_task(engine.step(1, "book"))
    await held.reached()
    await idle()
    assert not updated.is_set()
    held.open()
    assert (await running).status is StepStatus.SUCCESS
    assert updated.is_set()


@virtual_time
async def test_an_undo_that_was_not_registered_is_not_updated() -> None:
    async def book(run: ToolRun) -> Any:
        await run.context.update_undo("unbook", '{"effect":"room 12"}')

    engine, _ = await _begun()
    engine.tools.next("book", book)
    answer = await engine.step(1, "book")
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.hint is not None
    assert "which it had not registered" in answer.hint.text
    assert engine.tools.undo_order == []


@virtual_time
async def test_the_answer_is_sent_when_it_is_durable() -> None:
    engine, _ = await _begun()
    held = engine.memory.hold_next_write()
    running = asyncio.create_task(engine.step(1, "note", {"put": {"kv/a": 1}}))
    await held.reached()
    await idle()
    assert not running.done()
    held.open()
    await running
    assert (await engine.record()).next_step_id == 2


@virtual_time
async def test_a_failure_without_undo_costs_one_write_too() -> None:
    engine, mark = await _begun()
    await engine.step(1, "note", {"put": {"kv/a": 1}, "stage": [["mail", 1]], "fail": "no"})
    assert engine.timeline[mark:] == ["run note 1.1", "write 1.1=FAILED! rewind>=1 -> ACTIVE"]
    assert await engine.state("kv/a") == {"kv/a": None}
    assert await engine.staged() == []


@virtual_time
async def test_a_failure_with_undo_says_what_is_going_on_before_it_undoes() -> None:
    engine, _ = await _begun()
    await engine.step(1, "book", {"effect": "room"})
    mark = len(engine.timeline)
    await engine.step(2, "book", {"effect": "table", "fail": "no"})
    assert engine.timeline[mark:] == [
        "write 2.1=EXECUTING -> EXECUTING",
        "run book 2.1",
        "write undo2=PENDING -> EXECUTING",
        "effect table",
        "write 2.1=FAILED -> ROLLING_BACK",
        "undo table",
        "write undo2=DONE -> ROLLING_BACK",
        "undo room",
        "write undo1=DONE -> ROLLING_BACK",
        "write 2.1=FAILED! rewind>=1 -> ACTIVE",
    ]


@virtual_time
async def test_a_step_that_takes_long_says_so_and_others_see_it() -> None:
    engine, mark = await _begun()
    gate = Gate()
    engine.tools.next("note", hang(gate))
    running = asyncio.create_task(engine.step(1, "note"))
    await gate.reached()
    assert engine.writes_since(mark) == []
    current_loop().call_later(5, gate.open)
    written = engine.memory.hold_next_write()
    await written.reached()
    assert current_loop().time() == engine.settings.long_step_seconds
    written.open()
    await idle()
    assert (await engine.record()).status is TransactionStatus.EXECUTING
    await running
    assert engine.writes_since(mark) == [
        "write 1.1=EXECUTING -> EXECUTING",
        "write 1.1=COMPLETED! -> ACTIVE",
    ]
    assert (await engine.record()).status is TransactionStatus.ACTIVE


@virtual_time
async def test_events_tell_all_of_it_in_order() -> None:
    engine, _ = await _begun()
    await engine.step(1, "book", {"effect": "room"})
    await engine.step(2, "note", {"fail": "no"})
    await engine.step(1, "note")
    await engine.commit()
    assert await engine.events() == [
        EventType.TRANSACTION_BEGUN,
        EventType.STEP_STARTED,
        EventType.STEP_COMPLETED,
        EventType.STEP_FAILED,
        EventType.ROLLBACK_STARTED,
        EventType.UNDO_COMPLETED,
        EventType.TRANSACTION_REWOUND,
        EventType.STEP_COMPLETED,
        EventType.TRANSACTION_COMMITTED,
    ]


# --- keys ---------------------------------------------------------------------------------


@virtual_time
async def test_the_undo_gets_the_key_of_its_effect() -> None:
    engine, _ = await _begun()
    await engine.step(1, "book", {"effect": "room"})
    await engine.rewind(1)
    assert [undone.key for undone in engine.tools.undone] == [engine.tools.calls[0].key]
    assert engine.tools.effects == []


@virtual_time
async def test_a_booking_made_again_after_its_undo_gets_a_new_key() -> None:
    engine, _ = await _begun()
    await engine.step(1, "book", {"effect": "room"})
    await engine.rewind(1)
    await engine.step(1, "book", {"effect": "room"})
    first, second = engine.tools.calls
    assert first.key != second.key
    assert engine.tools.effects == ["room"]


@pytest.mark.parametrize("tool", ["upload", "pay"])
@virtual_time
async def test_an_equal_call_of_a_step_that_was_not_undone_keeps_its_key(tool: str) -> None:
    engine, _ = await _begun()
    await engine.step(1, "note", {"output": {"id": 1}})
    await engine.step(2, tool, {"effect": "it", "n": "${steps.1.id}"})
    await engine.rewind(2, accept_irreversible=True)
    await engine.step(2, tool, {"n": 1, "effect": "it"})
    first, second = engine.tools.calls[1:]
    assert first.key == second.key
    assert engine.tools.effects == ["it"]


@virtual_time
async def test_another_call_of_a_step_gets_another_key() -> None:
    engine, _ = await _begun()
    await engine.step(1, "upload", {"effect": "one"})
    await engine.rewind(1)
    await engine.step(1, "upload", {"effect": "two"})
    await engine.rewind(1)
    await engine.step(1, "pay", {"effect": "two"})
    assert len({each.key for each in engine.tools.calls}) == 3


@virtual_time
async def test_a_call_made_again_after_another_one_gets_a_new_key() -> None:
    # A gateway that honours keys would answer "one" from memory and leave "two" in force.
    engine, _ = await _begun()
    await engine.step(1, "upload", {"effect": "one"})
    await engine.rewind(1)
    await engine.step(1, "upload", {"effect": "two"})
    await engine.rewind(1)
    await engine.step(1, "upload", {"effect": "one"})
    assert len({each.key for each in engine.tools.calls}) == 3


@virtual_time
async def test_a_refused_call_in_between_does_not_change_the_key() -> None:
    engine, _ = await _begun()
    await engine.step(1, "upload", {"effect": "one"})
    await engine.rewind(1)
    await engine.step(1, "upload", text="{oops")
    await engine.step(1, "no-such")
    await engine.step(1, "upload", {"effect": "one"})
    assert len({each.key for each in engine.tools.calls}) == 1
    assert engine.tools.effects == ["one"]


async def _keys_of_repeats(count: int) -> set[str]:
    engine, _ = await _begun()
    for _ in range(count):
        await engine.step(1, "upload", {"effect": "other"})
        await engine.rewind(1)
    await engine.step(1, "upload", {"effect": "one"})
    await engine.rewind(1)
    await engine.step(1, "upload", {"effect": "one"})
    return {each.key for each in engine.tools.calls if each.arguments["effect"] == "one"}


def test_the_last_key_is_found_behind_many_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_history, "_PAGE_ATTEMPTS", 2)
    for count in (0, 1, 2, 3, 4):
        assert len(run_in_virtual_time(_keys_of_repeats(count))) == 1


@virtual_time
async def test_a_wire_that_was_undone_gets_a_new_key() -> None:
    engine, _ = await _begun()
    await engine.step(1, "wire", {"effect": "money"})
    await engine.rewind(1)
    await engine.step(1, "wire", {"effect": "money"})
    assert len({each.key for each in engine.tools.calls}) == 2
    assert engine.tools.effects == ["money"]


@virtual_time
async def test_two_steps_with_equal_calls_have_two_keys() -> None:
    engine, _ = await _begun()
    await engine.step(1, "upload", {"effect": "one"})
    await engine.step(2, "upload", {"effect": "one"})
    assert engine.tools.effects == ["one", "one"]


# --- in place -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (ConnectionRefusedError(111, "Connection refused"), 3),
        (ToolFailure("rate_limited", "slow down"), 3),
        (ToolFailure("http_server_error", "503"), 3),
        (ToolFailure("conflict", "busy"), 3),
        (ToolFailure("timeout", "too slow"), 3),
        (ToolFailure("invalid_value", "bad"), 1),
        (ToolFailure("http_client_error", "404"), 1),
        (RuntimeError("whatever"), 1),
    ],
)
@pytest.mark.parametrize("tool", ["lookup", "note", "upload"])
@virtual_time
async def test_transient_failures_are_tried_again_in_place(tool: str, error: Exception, tries: int) -> None:
    engine, mark = await _begun(settings=EngineSettings(step_retries=2))
    engine.tools.always(tool, raise_error(error))
    answer = await engine.step(1, tool)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert engine.tools.count() == tries
    assert len({(each.attempt, each.key) for each in engine.tools.calls}) == 1
    assert answer.decision is not None
    assert answer.decision.failure_number == 1
    assert len(engine.writes_since(mark)) == (2 if tool == "upload" else 1)


@pytest.mark.parametrize("tool", ["book", "pay", "wire"])
@virtual_time
async def test_tools_that_may_not_be_repeated_are_not_tried_again(tool: str) -> None:
    engine, _ = await _begun(settings=EngineSettings(step_retries=5))
    engine.tools.always(tool, raise_error(ConnectionRefusedError(111, "Connection refused")))
    answer = await engine.step(1, tool)
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert engine.tools.count() == 1


@virtual_time
async def test_a_retry_that_succeeds_leaves_nothing_of_the_failed_try() -> None:
    async def write_and_fail(run: ToolRun) -> Any:
        await run.context.put("kv/failed", "1")
        await run.context.stage_effect("mail", '"failed"')
        raise ConnectionResetError(104, "Connection reset by peer")

    engine, _ = await _begun(settings=EngineSettings(step_retries=1))
    engine.tools.next("note", write_and_fail)
    answer = await engine.step(1, "note", {"put": {"kv/a": 1}, "stage": [["mail", "good"]]})
    assert (answer.status, answer.attempt) == (StepStatus.SUCCESS, 1)
    assert await engine.state("kv/a", "kv/failed") == {"kv/a": 1, "kv/failed": None}
    assert await engine.staged() == [("mail", "good")]
    assert current_loop().time() > 0


@virtual_time
async def test_a_tool_may_declare_its_own_retries() -> None:
    engine, _ = await _begun()
    described = engine.tools.describe("lookup")
    assert described is not None
    engine.tools.add(replace(described, retries=4))
    engine.tools.always("lookup", raise_error(ConnectionRefusedError(111, "Connection refused")))
    await engine.step(1, "lookup")
    assert engine.tools.count() == 5


# --- what a tool may do -------------------------------------------------------------------


@virtual_time
async def test_a_step_reads_its_own_writes_then_the_transactions_then_committed_ones() -> None:
    engine, _ = await _begun()
    await engine.step(1, "note", {"put": {"kv/a": "committed", "kv/b": "committed", "kv/c": "committed"}})
    await engine.commit()
    await engine.begin()
    await engine.step(1, "note", {"put": {"kv/b": "mine"}, "delete": ["kv/c"]})

    async def write_and_read(run: ToolRun) -> Any:
        await run.context.put("kv/d", '"own"')
        await run.context.delete("kv/a")
        keys = ("kv/a", "kv/b", "kv/c", "kv/d")
        listed = await run.context.scan("kv/")
        return {"get": [await run.context.get(key) for key in keys], "scan": listed}

    engine.tools.next("note", write_and_read)
    answer = await engine.step(2, "note")
    assert (
        answer.output
        == '{"get":[null,"\\"mine\\"",null,"\\"own\\""],"scan":[["kv/b","\\"mine\\""],["kv/d","\\"own\\""]]}'
    )


@virtual_time
async def test_of_several_writes_of_a_key_in_one_step_the_last_counts() -> None:
    async def write_twice(run: ToolRun) -> Any:
        await run.context.put("kv/a", "1")
        await run.context.put("kv/a", "2")
        await run.context.put("kv/b", "1")
        await run.context.delete("kv/b")
        await run.context.delete("kv/c")
        await run.context.put("kv/c", "3")
        return await run.context.get("kv/a")

    engine, _ = await _begun()
    engine.tools.next("note", write_twice)
    assert (await engine.step(1, "note")).output == '"2"'
    assert await engine.state("kv/a", "kv/b", "kv/c") == {"kv/a": 2, "kv/b": None, "kv/c": 3}
    assert (await engine.commit()).keys_published == 3
    assert [await engine.committed(key) for key in ("kv/a", "kv/b", "kv/c")] == [2, None, 3]


@virtual_time
async def test_scans_page_over_own_writes_and_deletions() -> None:
    engine, _ = await _begun()
    await engine.step(1, "note", {"put": {f"kv/{number:02d}": number for number in range(10)}})
    pages: list[list[str]] = []

    async def scan(run: ToolRun) -> Any:
        for number in (1, 2, 3):
            await run.context.delete(f"kv/{number:02d}")
        await run.context.put("kv/045", "0")
        await run.context.put("kv/99", "0")
        after = ""
        while True:
            page = [key for key, _ in await run.context.scan("kv/", after, 3)]
            pages.append(page)
            if not page:
                return None
            after = page[-1]

    engine.tools.next("note", scan)
    await engine.step(2, "note")
    expected = ["00", "04", "045", "05", "06", "07", "08", "09", "99"]
    assert [key for page in pages for key in page] == [f"kv/{name}" for name in expected]
    assert [len(page) for page in pages] == [3, 3, 3, 0]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda context: context.put("", "1"),
        lambda context: context.put("kv/\x00", "1"),
        lambda context: context.put("kv/" + "x" * 1100, "1"),
        lambda context: context.get("\ud83c"),
        lambda context: context.stage_effect("", "1"),
        lambda context: context.stage_effect("x" * 200, "1"),
        lambda context: context.stage_effect("mail", "x" * (2 << 20)),
    ],
)
@virtual_time
async def test_misuse_of_the_context_is_a_failure_of_the_step(misuse: Any) -> None:
    async def behave(run: ToolRun) -> Any:
        await misuse(run.context)

    engine, _ = await _begun()
    engine.tools.next("note", behave)
    answer = await engine.step(1, "note")
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.hint is not None
    assert answer.hint.category in ("invalid_value", "resource_exhausted")


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), object(), {1: 2}, "\ud83c", 2**64, [{"a": {1, 2}}]]
)
@virtual_time
async def test_an_output_that_is_no_plain_json_fails_the_step(value: Any) -> None:
    async def behave(run: ToolRun) -> Any:
        return value

    engine, _ = await _begun()
    engine.tools.next("note", behave)
    answer = await engine.step(1, "note")
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert (await engine.step(1, "note")).status is StepStatus.SUCCESS


class Panic(BaseException):
    """What libraries raise that mean to get past everybody's ``except Exception``."""


@pytest.mark.parametrize("error", [RuntimeError, Panic, asyncio.CancelledError])
@virtual_time
async def test_an_output_that_fails_while_it_is_read_fails_the_step(error: type[BaseException]) -> None:
    class Lazy(dict[str, Any]):
        def items(self) -> Any:
            raise error("the cursor is closed")

    async def behave(run: ToolRun) -> Any:
        await run.register_undo("a")
        run.cause("a")
        return Lazy(a=1)

    engine, _ = await _begun()
    engine.tools.next("book", behave)
    answer = await engine.step(1, "book")
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert engine.tools.effects == []


@virtual_time
async def test_an_output_that_cant_be_kept_leaves_an_irreversible_step_in_doubt() -> None:
    async def behave(run: ToolRun) -> Any:
        run.cause("money")
        return float("nan")

    engine, _ = await _begun()
    engine.tools.next("pay", behave)
    answer = await engine.step(1, "pay", None, "r")
    assert answer.status is StepStatus.IN_DOUBT
    assert engine.tools.count() == 1


@virtual_time
async def test_a_context_refuses_everything_once_its_step_has_ended() -> None:
    kept: list[ToolRun] = []

    async def keep(run: ToolRun) -> Any:
        kept.append(run)
        return await obey(run)

    engine, _ = await _begun()
    engine.tools.next("book", keep)
    await engine.step(1, "book", {"effect": "room"})
    context = kept[0].context
    mark = len(engine.timeline)
    for refused in (
        context.get("kv/a"),
        context.scan("kv/"),
        context.put("kv/a", "1"),
        context.delete("kv/a"),
        context.require_exists("kv/a", "gone"),
        context.require_none("kv/", "there"),
        context.register_undo("unbook", "{}"),
        context.update_undo("unbook", "{}"),
        context.stage_effect("mail", "1"),
    ):
        with pytest.raises(ContextClosed):
            await refused
    assert engine.timeline[mark:] == []


@virtual_time
async def test_a_tool_that_raises_cancelled_error_has_failed() -> None:
    engine, _ = await _begun()
    engine.tools.next("note", raise_error(asyncio.CancelledError()))
    answer = await engine.step(1, "note")
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.hint is not None
    assert answer.hint.category == "cancelled"
    assert (await engine.step(1, "note")).status is StepStatus.SUCCESS


@virtual_time
async def test_a_failed_booking_is_undone_though_it_failed() -> None:
    engine, _ = await _begun()
    engine.tools.next("book", fail_with("no"))
    await engine.step(1, "book", {"effect": "room"})
    assert engine.tools.undone == []
    await engine.step(1, "book", {"effect": "room", "fail": "half-way"})
    assert engine.tools.undo_order == ["room"]
    assert engine.tools.effects == []


@virtual_time
async def test_unknown_outcomes_by_class() -> None:
    engine, _ = await _begun()
    for tool in ("lookup", "note", "book"):
        engine.tools.next(tool, raise_error(OutcomeUnknown("no idea")))
        answer = await engine.step(1, tool)
        assert answer.status is StepStatus.ROLLBACK_TRIGGERED
        if answer.next_step_id == 0:
            await engine.begin()
    await engine.begin()
    engine.tools.next("pay", raise_error(OutcomeUnknown("no idea")))
    assert (await engine.step(1, "pay")).status is StepStatus.IN_DOUBT
    assert engine.tools.count("pay") == 1


@virtual_time
async def test_a_rewind_marks_undo_done_and_forgets_it() -> None:
    engine, _ = await _begun()
    await engine.step(1, "book", {"effect": "room"})
    cached = engine.cached()
    assert cached is not None
    assert [undo.state for undo in cached.undo.values()] == [UndoState.PENDING]
    await engine.rewind(1)
    assert cached.undo == {}
    assert (await engine.rebuilt()).undo == {}
    attempts = await engine.attempts()
    assert [(attempt.state, attempt.undo_registered) for attempt in attempts] == [
        (AttemptState.COMPLETED, True)
    ]


@virtual_time
async def test_the_history_keeps_everything_that_was_tried() -> None:
    engine, _ = await _begun()
    await engine.step(1, "note", {"output": {"id": "u"}})
    await engine.step(2, "book", {"effect": "room", "who_id": "${steps.1.id}"}, raw_context="why")
    await engine.step(3, "note", {"fail": "no"})
    await engine.group(2, call("note"), call("lookup"))
    attempts = await engine.attempts()
    assert [(item.step_id, item.attempt, item.state) for item in attempts] == [
        (1, 1, "COMPLETED"),
        (2, 1, "COMPLETED"),
        (2, 2, "COMPLETED"),
        (3, 1, "FAILED"),
        (3, 2, "COMPLETED"),
    ]
    booked = attempts[1]
    assert booked.arguments == '{"effect":"room","who_id":"${steps.1.id}"}'
    assert booked.resolved_arguments == '{"effect":"room","who_id":"u"}'
    assert booked.raw_context == "why"
    assert [edge.from_step for edge in booked.edges] == [1]
