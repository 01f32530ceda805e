"""Whatever happens to a transaction, no call runs but one that was approved as it is, and an irreversible one once."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.support.engine_harness import Engine, outcome_of
from tests.support.virtual_time import run_in_virtual_time

from agenttx_server.engine.records import ApprovalState, AttemptState, TransactionStatus

_TOOLS = ("note", "upload", "book", "pay")
_operations = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(_TOOLS), st.integers(1, 2)),
        st.tuples(st.just("run"), st.sampled_from(_TOOLS), st.integers(1, 2)),
        st.tuples(st.just("send again")),
        st.tuples(st.just("approve and send again")),
        st.tuples(st.just("approve and send again")),
        st.tuples(st.just("approve")),
        st.tuples(st.just("reject")),
        st.tuples(st.just("rewind"), st.integers(0, 2)),
        st.tuples(st.just("crash")),
        st.tuples(st.just("lose a write"), st.booleans()),
    ),
    min_size=6,
    max_size=25,
)


class _History:
    """One transaction, and what was sent to it last."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.engine.tools.ask_before(*_TOOLS)
        self.last: tuple[int, str, dict[str, Any], str] | None = None
        self.decisions = 0

    async def apply(self, operation: tuple[Any, ...]) -> None:
        engine, record = self.engine, await self.engine.record()
        match operation:
            case ("send", tool, amount):
                arguments = {"amount": amount, "effect": f"{tool}-{amount}"}
                name = f"{tool}-{amount}-{record.next_step_id}-{record.generation}"
                self.last = (record.next_step_id, tool, arguments, name)
                await outcome_of(engine.step(*self.last))
            case ("run", tool, amount):
                await self.apply(("send", tool, amount))
                await self.apply(("approve and send again",))
            case ("send again",) if self.last is not None:
                await outcome_of(engine.step(*self.last))
            case ("approve and send again",):
                await self.apply(("approve",))
                await self.apply(("send again",))
            case ("approve",) | ("reject",):
                pending = await engine.approvals(ApprovalState.PENDING)
                if pending:
                    self.decisions += 1
                    decide = engine.approve if operation[0] == "approve" else engine.reject
                    await outcome_of(decide(pending[0].sequence, request_id=f"d{self.decisions}"))
            case ("rewind", back):
                await outcome_of(engine.rewind(max(record.next_step_id - back, 1), accept_irreversible=True))
            case ("crash",):
                await engine.crash()
                await engine.coordinator.start()
            case ("lose a write", applied):
                engine.memory.fail_next_write(applied=applied)

    async def check(self) -> None:
        engine = self.engine
        approvals = await engine.approvals()
        assert [item.sequence for item in approvals] == list(range(1, len(approvals) + 1))
        live = [item for item in approvals if item.is_live]
        assert len({item.step_id for item in live}) == len(live)
        record = await engine.record()
        waiting = [a for a in await engine.live_attempts() if a.state is AttemptState.AWAITING_APPROVAL]
        if record.status is TransactionStatus.AWAITING_APPROVAL:
            assert waiting
            assert {item.step_id for item in live} >= {attempt.step_id for attempt in waiting}
        if record.status.is_terminal:
            assert not live
        for call in engine.tools.calls:
            said_yes = [
                item
                for item in approvals
                if (item.tool_name, item.step_id) == (call.tool_name, call.step_id)
                and json.loads(item.arguments) == call.arguments
                and item.decided_at is not None
                and item.state is not ApprovalState.REJECTED
            ]
            assert said_yes, f"{call} ran without approval"
        paid = [(call.step_id, call.attempt) for call in engine.tools.calls if call.tool_name == "pay"]
        used = [(item.step_id, item.used_attempt) for item in approvals if item.tool_name == "pay"]
        assert len(set(paid)) == len(paid)
        assert set(paid) <= set(used)


async def _play(operations: list[tuple[Any, ...]]) -> _History:
    history = _History()
    await history.engine.coordinator.start()
    await history.engine.begin(max_local_depth=2, max_global_resets=1)
    for operation in operations:
        await history.apply(operation)
        await history.check()
        if (await history.engine.record()).status.is_terminal:
            break
    await history.engine.assert_memory_equals_store()
    await history.engine.coordinator.stop()
    return history


@settings(max_examples=150)
@given(_operations)
def test_nothing_runs_but_what_was_approved_and_a_payment_once(operations: list[tuple[Any, ...]]) -> None:
    history = run_in_virtual_time(_play(operations))
    event(f"calls made: {min(len(history.engine.tools.calls), 3)}")
    event(f"decisions made: {min(history.decisions, 3)}")
