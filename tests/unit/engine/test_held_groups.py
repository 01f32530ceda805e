"""Held groups: members that fail, wait and are run again as their run says, and are decided on when it says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.engine_harness import Engine, outcome_of
from tests.support.memory_store import Gate, MemoryDatabase
from tests.support.scripted_tools import ToolRun, hang, obey, raise_error
from tests.support.virtual_time import virtual_time

from agenttx_server.engine import json_values
from agenttx_server.engine.errors import CommitConflict, PreconditionFailed
from agenttx_server.engine.held_groups import Closed, Conflicted
from agenttx_server.engine.held_run import HeldEdge, HeldMember
from agenttx_server.engine.ports import (
    AdoptedStep,
    ExtraOperation,
    ExtraRows,
    OutcomeUnknown,
    StepWaits,
    StoreUnavailable,
)
from agenttx_server.engine.records import (
    AttemptState,
    PendingRewind,
    StepResolution,
    Strategy,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoResolution,
)
from agenttx_server.engine.requests import (
    BeginRequest,
    CancelStepRequest,
    ResolveCompensationRequest,
    ResolveStepRequest,
    StepStatus,
)
from agenttx_server.engine.server_lease import LeaseEnded
from agenttx_server.engine.services import EngineSettings

RUN = "run-1"
TABLES = {"marks": (0,)}


def mark(key: str, value: str = "") -> ExtraRows:
    return ExtraRows("marks", ExtraOperation.UPSERT, [(key, value)])


class Owner:
    """Marks rewinds, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def rows_when_rewound(
        self, record: TransactionRecord, pending: PendingRewind
    ) -> Sequence[ExtraRows]:
        return [mark("rewound", f"{pending.purpose} {pending.to_step} {pending.final_status}")]

    def settled(self, record: TransactionRecord) -> None:
        self.told.append(record.run_id)


class Run:
    """An engine with one run's transaction."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.engine = Engine(run_owner=self.owner, extra_tables=TABLES)

    async def begin(self, **fields: Any) -> Run:
        request = BeginRequest("agent", run_id=RUN, idle_timeout_us=0, **fields)
        answer = await self.engine.coordinator.begin_run(request, [mark("begun")])
        self.engine.transaction_id = answer.transaction_id
        return self

    def turn(self) -> Any:
        return self.engine.coordinator.held_turn(self.engine.transaction_id, RUN)

    @property
    def marks(self) -> dict[str, str]:
        rows = self.engine.memory.database.extra.get("marks", {})
        return {str(row[0]): str(row[1]) for row in rows.values()}

    async def check(self) -> None:
        await self.engine.assert_memory_equals_store()


def tool(name: str, arguments: Any = None, **fields: Any) -> HeldMember:
    return HeldMember(name, json_values.canonical(arguments or {}), **fields)


def node(name: str, function: Any, **fields: Any) -> HeldMember:
    return HeldMember(name, "{}", function=function, **fields)


async def make(context: Any, tool_name: str, arguments: Any = None) -> Any:
    return json_values.load(await context.step(tool_name, json_values.canonical(arguments or {})))


@virtual_time
async def test_a_group_is_opened_run_and_closed_and_its_steps_are_plain_steps_then() -> None:
    run = await Run().begin()
    async with run.turn() as turn:
        first = await turn.open([tool("lookup", {"output": {"id": 1}}), tool("note", {"put": {"kv/a": 1}})])
        outcomes = await asyncio.gather(turn.run(first), turn.run(first + 1))
        assert [outcome.state for outcome in outcomes] == [AttemptState.COMPLETED] * 2
        assert await turn.close([mark("closed")]) == Closed()
        assert (turn.record.next_step_id, turn.record.open_group, turn.record.held) == (3, None, None)
    await run.check()
    assert run.marks == {"begun": "", "closed": ""}
    async with run.turn() as turn:
        answer = await turn.commit([mark("committed")])
    assert answer.steps_committed == 2
    assert await run.engine.committed("kv/a") == 1
    assert run.marks["committed"] == ""


@virtual_time
async def test_a_member_waits_for_a_tool_whose_worker_has_met_another_server_only() -> None:
    run = await Run().begin()
    run.engine.tools.offer_elsewhere("note", 3.0)
    run.engine.tools.offer_elsewhere("book", 1e6)
    async with run.turn() as turn:
        members = [tool("note", {"put": {"kv/a": 1}}), tool("book", timeout_us=1_000_000), tool("no-such")]
        first = await turn.open(members)
        outcomes = await asyncio.gather(*(turn.run(first + number) for number in range(3)))
        assert [outcome.state for outcome in outcomes] == [
            AttemptState.COMPLETED,
            AttemptState.FAILED,
            AttemptState.FAILED,
        ]
        assert [outcome.hint.category for outcome in outcomes[1:]] == ["connection", "unknown_tool"]


@virtual_time
async def test_a_superstep_and_the_runs_end_may_be_one_commit() -> None:
    run = await Run().begin()
    async with run.turn() as turn:
        first = await turn.open([tool("note", {"put": {"kv/a": 1}})])
        before = len(run.engine.memory.written)
        await turn.run(first, keeps=lambda: True)
        assert len(run.engine.memory.written) == before
        closed = await turn.close([mark("completed")], commit=True)
        assert closed.answer is not None
        assert closed.answer.steps_committed == 1
    assert [item.publish for item in run.engine.memory.written[before:]][:1] == [True]
    assert await run.engine.committed("kv/a") == 1
    assert (run.marks["completed"], (await run.engine.record()).status) == ("", TransactionStatus.COMMITTED)


@virtual_time
async def test_a_failed_member_is_decided_on_by_nobody_and_run_again_as_the_same_step() -> None:
    run = await Run().begin()
    run.engine.tools.next("book", raise_error(RuntimeError("no rooms")))
    async with run.turn() as turn:
        first = await turn.open([tool("book", {"effect": "a"}), tool("lookup")])
        failed, other = await asyncio.gather(turn.run(first), turn.run(first + 1))
        assert (failed.state, other.state) == (AttemptState.FAILED, AttemptState.COMPLETED)
        assert "no rooms" in failed.hint.text
        with pytest.raises(RuntimeError, match="not finished"):
            await turn.close()
        again = await turn.run(first)
        assert (again.state, again.attempt) == (AttemptState.COMPLETED, 2)
        assert isinstance(await turn.close(), Closed)
    record = await run.engine.record()
    assert (record.failures, record.budget_spent, record.next_step_id) == ((), 0, 3)
    await run.check()


@virtual_time
async def test_a_waiting_member_is_started_again_and_its_calls_are_answered_from_the_journal() -> None:
    run = await Run().begin()
    answers: list[str] = []

    async def ask(arguments: Any, context: Any) -> Any:
        await make(context, "book", {"effect": "room"})
        if not answers:
            raise StepWaits({"question": "really?"})
        await make(context, "note", {"put": {"kv/a": answers[0]}})
        return {"answer": answers[0]}

    async with run.turn() as turn:
        first = await turn.open([node("ask", ask), tool("lookup")])
        await turn.run(first + 1)
        waiting = await turn.run(first, lambda outcome: [mark("asked", str(outcome.payload))])
        assert (waiting.state, waiting.payload) == (AttemptState.WAITING, {"question": "really?"})
    await run.check()
    assert run.marks["asked"] == "{'question': 'really?'}"
    await run.engine.crash()
    answers.append("yes")
    async with run.turn() as turn:
        assert turn.is_open
        assert turn.member(first).state is AttemptState.WAITING
        assert turn.member(first + 1).state is AttemptState.COMPLETED
        turn.give(first, node("ask", ask))
        done = await turn.run(first)
        assert (done.state, json_values.load(done.output)) == (AttemptState.COMPLETED, {"answer": "yes"})
        await turn.close()
    assert run.engine.tools.count("book") == 1
    assert await run.engine.state("kv/a") == {"kv/a": "yes"}
    await run.check()


@virtual_time
async def test_a_crash_keeps_what_has_finished_and_leaves_the_group_open() -> None:
    run = await Run().begin()
    gate = Gate()
    run.engine.tools.next("upload", hang(gate, first=obey))

    async def work(arguments: Any, context: Any) -> Any:
        await make(context, "pay", {"effect": "money"})
        await make(context, "upload", {"effect": "file"})
        return None

    async with run.turn() as turn:
        first = await turn.open([tool("book", {"effect": "room"}), node("work", work)])
        await turn.run(first)
        running = asyncio.ensure_future(turn.run(first + 1))
        await gate.reached()
        await run.engine.crash()
        with pytest.raises(asyncio.CancelledError):
            await running
    await run.engine.coordinator.start()
    record = await run.engine.record()
    assert (record.status, record.open_group, record.owner) == (TransactionStatus.ACTIVE, (1, 2), "")
    async with run.turn() as turn:
        assert turn.member(1).state is AttemptState.COMPLETED
        assert turn.member(2) is None
        turn.give(2, node("work", work))
        assert (await turn.run(2)).state is AttemptState.COMPLETED
        await turn.close()
    assert run.engine.tools.count("pay") == 1
    assert len({call.key for call in run.engine.tools.calls if call.tool_name == "upload"}) == 1
    assert run.engine.tools.effects == ["file", "money", "room"]
    await run.check()


@virtual_time
async def test_a_member_that_is_let_go_is_undone_and_the_group_can_close() -> None:
    run = await Run().begin()

    async def work(arguments: Any, context: Any) -> Any:
        await make(context, "book", {"effect": "room"})
        await make(context, "note", {"put": {"kv/a": 1}})
        raise RuntimeError("no")

    async with run.turn() as turn:
        first = await turn.open([node("work", work), tool("note", {"put": {"kv/b": 1}})])
        await asyncio.gather(turn.run(first), turn.run(first + 1))
        assert await turn.let_go(first, [mark("handled")])
        await turn.close()
    assert (run.engine.tools.effects, run.marks["handled"]) == ([], "")
    assert await run.engine.state("kv/a", "kv/b") == {"kv/a": None, "kv/b": 1}
    attempts = await run.engine.attempts()
    assert [item.state for item in attempts] == [AttemptState.FAILED, AttemptState.COMPLETED]
    await run.check()


@virtual_time
async def test_the_lowest_failed_member_is_decided_on_when_the_run_says_so() -> None:
    run = await Run().begin()
    async with run.turn() as turn:
        for output in ({"user_id": "u-7"}, {"other": 1}):
            step = await turn.open([tool("lookup", {"output": output})])
            await turn.run(step)
            await turn.close()
        failure = {"category": "foreign_key_violation", "message": "no such user", "keys": ["user_id"]}
        members = [
            tool("note", {"put": {"kv/a": 1}}),
            tool("note", {"fail": failure}, edges=(HeldEdge(1, "user_id", "user_id"),)),
        ]
        first = await turn.open(members)
        await asyncio.gather(turn.run(first), turn.run(first + 1))
        result = await turn.decide()
        assert result.pending.decision.strategy is Strategy.DEPENDENCY_JUMP
        assert (result.pending.to_step, turn.record.next_step_id, turn.is_open) == (1, 1, False)
    assert run.marks["rewound"] == "DECISION 1 ACTIVE"
    (constraint,) = (await run.engine.record()).constraints
    assert constraint.text.startswith("Hint: no such user")
    await run.check()


@virtual_time
async def test_of_members_that_conflict_the_higher_is_undone_and_runs_again_seeing_the_lower() -> None:
    run = await Run().begin()

    async def add(arguments: Any, context: Any) -> Any:
        before = json_values.load(await context.get("kv/n") or "0")
        await context.put("kv/n", json_values.canonical(before + 1))
        return before + 1

    async with run.turn() as turn:
        first = await turn.open([node("add", add), node("add", add), node("add", add)])
        await asyncio.gather(*(turn.run(step) for step in turn.steps))
        assert await turn.close() == Conflicted((2, 3))
        with pytest.raises(RuntimeError, match="after lower ones"):
            await turn.run(3)
        assert [(await turn.run(step)).output for step in (2, 3)] == ["2", "3"]
        assert await turn.close() == Closed()
    assert first == 1
    assert await run.engine.state("kv/n") == {"kv/n": 3}
    states = [(item.step_id, item.attempt, item.state) for item in await run.engine.attempts()]
    assert states == [
        (1, 1, AttemptState.COMPLETED),
        (2, 1, AttemptState.SUPERSEDED),
        (2, 2, AttemptState.COMPLETED),
        (3, 1, AttemptState.SUPERSEDED),
        (3, 2, AttemptState.COMPLETED),
    ]
    await run.check()


@virtual_time
async def test_what_a_rerun_touches_may_make_a_higher_member_lose() -> None:
    run = await Run().begin()

    async def second(arguments: Any, context: Any) -> Any:
        known = await context.get("kv/a")
        await context.put("kv/b" if known == "1" else "kv/z", "2")

    async def third(arguments: Any, context: Any) -> Any:
        return json_values.load(await context.get("kv/b") or "null")

    async with run.turn() as turn:
        await turn.open([tool("note", {"put": {"kv/a": 1}}), node("second", second), node("third", third)])
        await asyncio.gather(*(turn.run(step) for step in turn.steps))
        assert await turn.close() == Conflicted((2,))
        await turn.run(2)
        assert await turn.close() == Conflicted((3,))
        assert (await turn.run(3)).output == "2"
        assert await turn.close() == Closed()
    await run.check()


@virtual_time
async def test_a_group_closed_early_withdraws_members_whose_calls_a_later_step_adopts() -> None:
    run = await Run().begin()
    answers: list[str] = []

    async def ask(arguments: Any, context: Any) -> Any:
        await make(context, "book", {"effect": "room"})
        if not answers:
            raise StepWaits
        await make(context, "note", {"put": {"kv/a": answers[0]}})
        return answers[0]

    async with run.turn() as turn:
        first = await turn.open([node("ask", ask), tool("lookup")])
        await asyncio.gather(turn.run(first), turn.run(first + 1))
        assert await turn.close(early=True) == Closed((1,))
        answers.append("yes")
        origin = AdoptedStep(run.engine.transaction_id, 1)
        step = await turn.open([node("ask", ask, adopts=origin)])
        assert (await turn.run(step)).output == '"yes"'
        await turn.close()
    assert run.engine.tools.count("book") == 1
    await run.check()
    async with run.turn() as turn:  # what was adopted is undone with the step that made it, once
        await turn.rewind(3)
        assert run.engine.tools.effects == ["room"]
        await turn.rewind(1)
        assert run.engine.tools.effects == []


@virtual_time
async def test_calls_are_adopted_from_a_transaction_that_was_committed() -> None:
    run = await Run().begin()
    answers: list[str] = []

    async def ask(arguments: Any, context: Any) -> Any:
        await make(context, "pay", {"effect": "money"})
        if not answers:
            raise StepWaits
        await make(context, "note", {"put": {"kv/a": answers[0]}})
        return answers[0]

    async with run.turn() as turn:
        first = await turn.open([node("ask", ask)])
        await turn.run(first)
        closed = await turn.close(early=True, commit=True)
        assert closed.answer is not None
    before = run.engine.transaction_id
    answers.append("yes")
    await run.begin()
    async with run.turn() as turn:
        step = await turn.open([node("ask", ask, adopts=AdoptedStep(TransactionId(before), 1))])
        assert (await turn.run(step)).output == '"yes"'
        await turn.close()
    assert run.engine.tools.count("pay") == 1
    await run.check()
    async with run.turn() as turn:  # it is no pivot here: it was paid there
        assert (await turn.rewind(1)).status is TransactionStatus.ACTIVE


@virtual_time
async def test_from_outside_a_runs_transaction_can_be_read_and_settled_and_nothing_else() -> None:
    run = await Run().begin()
    engine = run.engine
    outside = [
        engine.step(1, "lookup"),
        engine.rewind(1),
        engine.rollback(),
        engine.commit(),
        engine.coordinator.cancel_step(CancelStepRequest(engine.transaction_id, 1)),
    ]
    for call in outside:
        refused = await outcome_of(call)
        assert isinstance(refused, PreconditionFailed)
        assert (refused.reason, refused.metadata["run_id"]) == ("OWNED_BY_RUN", RUN)
    async with run.turn() as turn:
        refused = await outcome_of(engine.commit())  # while the run has its turn, too
        assert refused.reason == "OWNED_BY_RUN"
        engine.tools.next("pay", raise_error(OutcomeUnknown("the bank did not answer")))
        step = await turn.open([tool("pay", {"effect": "money"})])
        assert (await turn.run(step)).state is AttemptState.IN_DOUBT
    assert (await engine.view()).record.status is TransactionStatus.IN_DOUBT
    await engine.coordinator.resolve_step(
        ResolveStepRequest(engine.transaction_id, 1, StepResolution.SUCCEEDED, output_json="7")
    )
    assert run.owner.told == [RUN]
    async with run.turn() as turn:
        assert turn.member(1).state is AttemptState.COMPLETED
        await turn.close()
    await run.check()


@virtual_time
async def test_a_call_in_doubt_is_settled_and_its_member_run_again_by_the_run() -> None:
    run = await Run().begin()

    async def work(arguments: Any, context: Any) -> Any:
        return await make(context, "pay", {"effect": "money"})

    run.engine.tools.next("pay", raise_error(OutcomeUnknown("the bank did not answer")))
    async with run.turn() as turn:
        step = await turn.open([node("work", work)])
        assert (await turn.run(step)).state is AttemptState.IN_DOUBT
    await run.engine.coordinator.resolve_step(
        ResolveStepRequest(
            run.engine.transaction_id, 1, StepResolution.SUCCEEDED, output_json="7", sub_step=1
        )
    )
    async with run.turn() as turn:
        assert turn.member(1) is None
        turn.give(1, node("work", work))
        assert (await turn.run(1)).output == "7"
        await turn.close()
    assert run.engine.tools.count("pay") == 1
    await run.check()


@virtual_time
async def test_a_member_in_doubt_that_may_be_repeated_is_run_again_under_its_key() -> None:
    run = await Run().begin()
    run.engine.tools.next("pay", raise_error(OutcomeUnknown("the bank did not answer")))
    async with run.turn() as turn:
        step = await turn.open([tool("pay", {"effect": "money"})])
        assert (await turn.run(step)).state is AttemptState.IN_DOUBT
    await run.engine.coordinator.resolve_step(
        ResolveStepRequest(run.engine.transaction_id, 1, StepResolution.RETRY)
    )
    async with run.turn() as turn:
        turn.give(1, tool("pay", {"effect": "money"}))
        assert (await turn.run(1)).state is AttemptState.COMPLETED
        await turn.close()
    assert len({call.key for call in run.engine.tools.calls}) == 1
    await run.check()


@virtual_time
async def test_a_commit_conflict_ends_the_run_with_its_rows() -> None:
    run = await Run().begin()
    async with run.turn() as turn:
        step = await turn.open([tool("note", {"put": {"kv/a": 1}})])
        await turn.run(step)
        await turn.close()
    mine = run.engine.transaction_id
    await run.engine.begin()
    assert (await run.engine.step(1, "note", {"put": {"kv/a": 2}})).status is StepStatus.SUCCESS
    await run.engine.commit()
    run.engine.transaction_id = mine
    with pytest.raises(CommitConflict):
        async with run.turn() as turn:
            await turn.commit([mark("completed")])
    assert "completed" not in run.marks
    assert run.marks["rewound"] == "CONFLICT 1 FAILED"


@virtual_time
async def test_a_rewind_that_a_crash_cut_off_still_writes_the_owners_rows() -> None:
    run = await Run().begin()
    gate = run.engine.tools.hold_undo("room")
    async with run.turn() as turn:
        step = await turn.open([tool("book", {"effect": "room"})])
        await turn.run(step)
        await turn.close()
        rewinding = asyncio.ensure_future(turn.rewind(1))
        await gate.reached()
        await run.engine.crash()
        rewinding.cancel()
    gate.open()
    assert "rewound" not in run.marks
    await run.engine.coordinator.start()
    assert run.marks["rewound"] == "REWIND 1 ACTIVE"
    assert run.engine.tools.effects == []


# --- several servers ------------------------------------------------------------------------------


@virtual_time
async def test_another_server_takes_an_open_group_over_when_the_first_ones_lease_ends() -> None:
    database = MemoryDatabase()
    settings = EngineSettings(lease_seconds=9.0)
    first = Engine(database=database, is_shared=True, name="a", run_owner=Owner(), settings=settings)
    second = Engine(database=database, is_shared=True, name="b", run_owner=Owner(), settings=settings)
    await first.coordinator.start()
    await second.coordinator.start()
    begun = await first.coordinator.begin_run(BeginRequest("agent", run_id=RUN, idle_timeout_us=0))
    first.transaction_id = second.transaction_id = begun.transaction_id
    gate = Gate()
    first.tools.next("upload", hang(gate, first=obey))
    async with first.coordinator.held_turn(begun.transaction_id, RUN) as turn:
        await turn.open([tool("book", {"effect": "room"}), tool("upload", {"effect": "file"})])
        await turn.run(1)
        running = asyncio.ensure_future(turn.run(2))
        await gate.reached()
        waits = asyncio.ensure_future(_states(second, begun.transaction_id))
        await asyncio.sleep(5)
        assert not waits.done()  # the first one is alive, and at work
        await first.crash()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await asyncio.wait_for(waits, 30) == [AttemptState.COMPLETED, None]
    async with second.coordinator.held_turn(begun.transaction_id, RUN) as turn:
        turn.give(2, tool("upload", {"effect": "file"}))
        assert (await turn.run(2)).state is AttemptState.COMPLETED
        assert (await turn.close()) == Closed()
    assert second.tools.calls[-1].key == first.tools.calls[-1].key
    await second.assert_memory_equals_store()
    await second.coordinator.stop()


@pytest.mark.parametrize("taken_up", ["in the turn", "before it"])
@virtual_time
async def test_a_turn_under_a_lease_that_ended_begins_nothing_though_its_server_has_the_next_one(
    taken_up: str,
) -> None:
    """Another server may have gone on with the run meanwhile, and be through with it."""
    engine = Engine(database=MemoryDatabase(), is_shared=True, run_owner=Owner())
    await engine.coordinator.start()
    begun = await engine.coordinator.begin_run(BeginRequest("agent", run_id=RUN, idle_timeout_us=0))
    called: list[str] = []

    def named(name: str) -> HeldMember:
        async def function(arguments: Any, context: Any) -> None:
            called.append(name)

        return node(name, function)

    lease = engine.coordinator._lease
    held_under = lease.id
    if taken_up == "before it":
        await _loses_lease(engine)

    async def take_turn() -> None:
        async with engine.coordinator.held_turn(begun.transaction_id, RUN, held_under) as turn:
            await turn.open([named("first"), named("second")])
            if taken_up == "in the turn":
                await turn.run(1)
                await _loses_lease(engine)
            await turn.run(2)

    with pytest.raises(LeaseEnded):
        await take_turn()
    assert called == (["first"] if taken_up == "in the turn" else [])
    async with engine.coordinator.held_turn(begun.transaction_id, RUN, lease.id) as turn:
        turn.give(2, named("second"))
        assert (await turn.run(2)).state is AttemptState.COMPLETED
    await engine.coordinator.stop()


async def _loses_lease(engine: Engine) -> None:
    lost = engine.coordinator._lease.id
    del engine.memory.database.leases[lost]
    await engine.coordinator._lease.renew()
    assert engine.coordinator.server_id != lost


async def _states(engine: Engine, transaction_id: TransactionId) -> list[AttemptState | None]:
    async with engine.coordinator.held_turn(transaction_id, RUN) as turn:
        found = [turn.member(step) for step in turn.steps]
    return [None if live is None else live.state for live in found]


@virtual_time
async def test_a_group_is_extended_behind_the_members_that_it_has() -> None:
    run = await Run().begin()
    async with run.turn() as turn:
        await turn.open([tool("note", {"put": {"kv/a": 1}})])
        await turn.run(1)
    async with run.turn() as turn:
        assert await turn.extend([tool("note", {"put": {"kv/b": 2}})], [mark("extended")]) == 2
    await run.engine.crash()
    async with run.turn() as turn:
        assert list(turn.steps) == [1, 2]
        turn.give(2, tool("note", {"put": {"kv/b": 2}}))
        await turn.run(2)
        assert await turn.close() == Closed()
        assert turn.record.next_step_id == 3
    assert await run.engine.state("kv/a", "kv/b") == {"kv/a": 1, "kv/b": 2}
    await run.check()


@pytest.mark.parametrize("leave_out", [False, True])
def test_a_result_that_is_given_up_is_undone(leave_out: bool) -> None:
    @virtual_time
    async def scenario() -> None:
        run = await Run().begin()
        async with run.turn() as turn:
            await turn.open([tool("book", {"effect": "room"}), tool("note", {"put": {"kv/b": 1}})])
            for step in (1, 2):
                await turn.run(step)
            assert await turn.give_up(1, leave_out=leave_out)
            assert run.engine.tools.effects == []
            if not leave_out:
                with pytest.raises(RuntimeError, match="not finished"):
                    await turn.close()
                await turn.run(1)
            assert await turn.close() == Closed()
        assert run.engine.tools.effects == ([] if leave_out else ["room"])
        await run.check()

    scenario()


@virtual_time
async def test_a_result_that_nothing_takes_back_is_not_given_up() -> None:
    run = await Run().begin()
    async with run.turn() as turn:
        await turn.open([tool("pay", {"effect": "money"})])
        await turn.run(1)
        with pytest.raises(PreconditionFailed) as refused:
            await turn.give_up(1, leave_out=True)
    assert refused.value.reason == "IRREVERSIBLE_STEP"


async def half_booked(run: ToolRun) -> Any:
    """Book, and fail all the same."""
    await run.register_undo("half")
    run.cause("half")
    raise RuntimeError("the line went dead")


@virtual_time
async def test_what_a_failed_attempt_did_is_undone_before_the_member_is_run_again() -> None:
    run = await Run().begin()
    run.engine.tools.next("book", half_booked, half_booked)
    async with run.turn() as turn:
        first = await turn.open([tool("book", {"effect": "whole"}), tool("lookup")])
        assert (await turn.run(first)).state is AttemptState.FAILED
        assert run.engine.tools.effects == ["half"]
        assert (await turn.run(first)).state is AttemptState.FAILED
        assert run.engine.tools.effects == ["half"]
    # Also after a crash, and once each.
    await run.engine.crash()
    async with run.turn() as turn:
        turn.give(first, tool("book", {"effect": "whole"}))
        assert (await turn.run(first)).state is AttemptState.COMPLETED
        turn.give(first + 1, tool("lookup"))
        await turn.run(first + 1)
        await turn.close()
    assert run.engine.tools.effects == ["whole"]
    assert run.engine.tools.undo_order == ["half", "half"]
    await run.check()


@virtual_time
async def test_a_failed_member_whose_undo_fails_is_not_run_again_until_that_is_settled() -> None:
    run = await Run().begin()
    tools, coordinator = run.engine.tools, run.engine.coordinator
    tools.next("book", half_booked)
    tools.break_undo("half")
    async with run.turn() as turn:
        first = await turn.open([tool("book", {"effect": "whole"})])
        await turn.run(first)
        with pytest.raises(PreconditionFailed) as refused:
            await turn.run(first)
        assert refused.value.reason == "ROLLBACK_INCOMPLETE"
        assert turn.member(first).state is AttemptState.FAILED
        with pytest.raises(PreconditionFailed):
            await turn.settle_conflicts()
        assert turn.record.pending_rewind is None
    assert tools.count("book") == 1
    await coordinator.resolve_compensation(
        ResolveCompensationRequest(run.engine.transaction_id, "1", UndoResolution.UNDONE, "by phone")
    )
    async with run.turn() as turn:
        turn.give(first, tool("book", {"effect": "whole"}))
        assert (await turn.run(first)).state is AttemptState.COMPLETED
        await turn.close()
    await run.check()


@virtual_time
async def test_a_failed_member_of_a_group_that_is_closed_early_is_undone_and_its_calls_stand() -> None:
    run = await Run().begin()
    run.engine.tools.next("book", half_booked)

    async def work(arguments: Any, context: Any) -> Any:
        await make(context, "book", {"effect": "room"})
        raise RuntimeError("no")

    async with run.turn() as turn:
        first = await turn.open([tool("book", {"effect": "whole"}), node("work", work)])
        await turn.run(first)
        await turn.run(first + 1)
        assert run.engine.tools.effects == ["half", "room"]
        # A function's calls are what its next attempt is answered from.
        await turn.run(first + 1)
        assert await turn.settle_conflicts() == ()
        assert run.engine.tools.effects == ["room"]
        assert isinstance(await turn.close(early=True), Closed)
    assert run.engine.tools.count("book") == 2


@virtual_time
async def test_what_may_be_repeated_is_not_undone_before_it_is() -> None:
    run = await Run().begin()
    run.engine.tools.next("upload", half_booked)
    async with run.turn() as turn:
        first = await turn.open([tool("upload", {"effect": "whole"})])
        await turn.run(first)
        await turn.run(first)
    assert run.engine.tools.effects == ["half", "whole"]


@virtual_time
async def test_members_that_end_while_a_write_is_under_way_are_the_next_one() -> None:
    engine = Engine(database=MemoryDatabase(), is_shared=True, run_owner=Owner())
    await engine.coordinator.start()
    answer = await engine.coordinator.begin_run(BeginRequest("agent", run_id=RUN, idle_timeout_us=0))
    async with engine.coordinator.held_turn(answer.transaction_id, RUN) as turn:
        first = await turn.open([tool("lookup", {"output": number}) for number in range(4)])
        before = len(engine.memory.written)
        gate = engine.memory.hold_next_write()
        alone = asyncio.ensure_future(turn.run(first))
        await gate.reached()
        others = [asyncio.ensure_future(turn.run(first + number)) for number in range(1, 4)]
        await asyncio.wait(others, timeout=0.01)
        assert not any(task.done() for task in (alone, *others)), "none is answered before it is durable"
        gate.open()
        outcomes = await asyncio.gather(alone, *others)
        assert [outcome.output for outcome in outcomes] == ["0", "1", "2", "3"]
        written = [[item.step_id for item in each.attempts] for each in engine.memory.written[before:]]
        assert written == [[first], [first + 1, first + 2, first + 3]]
        assert await turn.close([]) == Closed()
    await engine.coordinator.stop()


@virtual_time
async def test_the_first_turn_at_what_was_just_begun_reads_nothing_and_a_later_one_looks_at_the_revision() -> (
    None
):
    engine = Engine(database=MemoryDatabase(), is_shared=True, run_owner=Owner())
    await engine.coordinator.start()
    begun = await engine.coordinator.begin_run(BeginRequest("agent", run_id=RUN, idle_timeout_us=0))
    engine.memory.fail_reads("load_revision")
    async with engine.coordinator.held_turn(begun.transaction_id, RUN) as turn:
        await turn.open([tool("lookup")])
    with pytest.raises(StoreUnavailable):
        async with engine.coordinator.held_turn(begun.transaction_id, RUN):
            pytest.fail("another server may have moved it on")
    later = await engine.coordinator.begin_run(BeginRequest("agent", run_id="run-2", idle_timeout_us=0))
    await asyncio.sleep(2)
    with pytest.raises(StoreUnavailable):
        async with engine.coordinator.held_turn(later.transaction_id, "run-2"):
            pytest.fail("it was begun too long ago")
    engine.memory.fail_reads()
    await engine.coordinator.stop()


@virtual_time
async def test_a_result_that_was_left_to_the_groups_end_is_forgotten_where_its_turn_ends_before() -> None:
    run = await Run().begin()
    async with run.turn() as turn:
        first = await turn.open([tool("note", {"put": {"kv/a": 1}})])
        outcome = await turn.run(first, keeps=lambda: True)
        assert outcome.state is AttemptState.COMPLETED
    await run.check()
    async with run.turn() as turn:
        assert turn.member(first) is None, "it is run again"
        turn.give(first, tool("note", {"put": {"kv/a": 1}}))
        await turn.run(first)
        assert isinstance(await turn.close(), Closed)
    await run.check()
