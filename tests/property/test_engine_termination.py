"""An agent that does as it is told comes to an end, however its tools fail (I9).

Executions are bounded by (max_global_resets + 1) · (budget + N), N the furthest step and the budget
⌈c · N · ⌈log₂(N + 1)⌉⌉. The agent here drives the real coordinator, groups included, and obeys every
answer; which of its calls fail, and on which key, is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.support.engine_harness import Engine, call
from tests.support.virtual_time import run_in_virtual_time, virtual_time

from agenttx_server.engine.records import RejectedCalls, TransactionStatus
from agenttx_server.engine.requests import StepAnswer, StepCall, StepStatus
from agenttx_server.engine.rollback_controller import replay_budget


def _bound(resets: int, factor: float, furthest: int) -> int:
    return (resets + 1) * (replay_budget(Decimal(repr(factor)), furthest) + furthest)


@dataclass(frozen=True)
class Plan:
    """Group sizes in order; each step passes on values of earlier ones under their keys."""

    sizes: tuple[int, ...]
    sources: tuple[int, ...]

    @property
    def starts(self) -> list[int]:
        starts, step = [], 1
        for size in self.sizes:
            starts.append(step)
            step += size
        return starts

    @property
    def steps(self) -> int:
        return sum(self.sizes)


class Chance:
    """Draws failures: what a step fails with, None for success; the stock drawn is used over and over."""

    def __init__(self, stock: list[int]) -> None:
        self._stock = stock
        self._at = 0

    def failure(self, step: int, source: int) -> Any:
        drawn = self._stock[self._at % len(self._stock)]
        self._at += 1
        key = f"value_{source}"
        return {
            0: None,
            1: "it just fails",
            2: {"category": "missing_record", "message": "no such record", "keys": [key]},
            3: {"category": "missing_record", "message": "no such record", "keys": ["unknown", key]},
        }[drawn % 4]


async def _drive(policy: dict[str, Any], plan: Plan, stock: list[int]) -> None:
    engine = Engine()
    await engine.begin(**policy)
    chance = Chance(stock)
    executions = 0
    most = _bound(policy["max_global_resets"], policy["replay_budget_factor"], plan.steps)
    step = 1
    answers: tuple[StepAnswer, ...] = ()
    while 0 < step <= plan.steps:
        calls = _calls_from(plan, step, chance)
        executions += len(calls)
        assert executions <= most, f"{executions} executions, {most} allowed"
        answers = await engine.group(step, *calls)
        step = answers[0].next_step_id
    record = await engine.record()
    assert executions == len(await engine.attempts())
    assert executions <= _bound(
        policy["max_global_resets"], policy["replay_budget_factor"], record.furthest_step
    )
    assert record.global_resets <= policy["max_global_resets"]
    if step:
        event("the plan was carried out")
        assert record.next_step_id == plan.steps + 1
        return
    event("aborted")
    assert record.status is TransactionStatus.FAILED
    assert record.abort_reason
    assert {answer.abort_reason for answer in answers} == {record.abort_reason}
    assert engine.tools.effects == []
    assert await engine.staged() == []
    assert await engine.live_attempts() == []


def _calls_from(plan: Plan, step: int, chance: Chance) -> tuple[StepCall, ...]:
    """The group to send at a step: the plan's, or what is left of it when the rewind went inside."""
    start, size = next(
        (start, size)
        for start, size in zip(plan.starts, plan.sizes, strict=True)
        if start <= step < start + size
    )
    calls = []
    for current in range(step, start + size):
        source = plan.sources[(current - 1) % len(plan.sources)] % current
        arguments: dict[str, Any] = {
            "put": {f"kv/{current}": current},
            "effect": f"effect-{current}",
            "stage": [["mail", current]],
            "output": {f"value_{current}": f"v-{current}"},
        }
        if source:
            arguments[f"value_{source}"] = f"v-{source}"
        failure = chance.failure(current, source)
        if failure is not None:
            arguments["fail"] = failure
        calls.append(call("book", arguments))
    return tuple(calls)


_policies = st.fixed_dictionaries(
    {
        "max_local_depth": st.integers(0, 4),
        "max_global_resets": st.integers(0, 3),
        "replay_budget_factor": st.sampled_from((0.1, 0.3, 1.0, 2.0, 10.0)),
        "rejected_calls": st.sampled_from(tuple(RejectedCalls)),
    }
)
_plans = st.builds(
    Plan,
    st.lists(st.sampled_from((1, 1, 1, 2, 3)), min_size=1, max_size=6).map(tuple),
    st.lists(st.integers(0, 12), min_size=1, max_size=6).map(tuple),
)
_stocks = st.lists(st.sampled_from((0, 0, 0, 1, 2, 3)), min_size=1, max_size=12)


@settings(max_examples=120)
@given(_policies, _plans, _stocks)
def test_an_obedient_agent_comes_to_an_end(policy: dict[str, Any], plan: Plan, stock: list[int]) -> None:
    run_in_virtual_time(_drive(policy, plan, stock))


@pytest.mark.parametrize("depth", [1, 2, 3])
@virtual_time
async def test_a_tool_that_always_fails_on_a_traceable_key_ends_in_an_abort(depth: int) -> None:
    engine = Engine()
    await engine.begin(max_local_depth=depth, max_global_resets=1)
    step, executions, answer = 1, 0, None
    while step:
        failure = {"category": "missing_record", "message": "no such user", "keys": ["user_id"]}
        arguments: dict[str, Any] = {"effect": f"e{step}"}
        if step == 2:
            arguments["output"] = {"user_id": "u-1"}
        if step == 8:
            arguments |= {"user_id": "u-1", "fail": failure}
        answer = await engine.step(step, "book", arguments)
        executions += 1
        assert executions <= _bound(1, 2.0, 8)
        step = answer.next_step_id
    assert answer is not None
    assert answer.status is StepStatus.FAILED
    assert answer.abort_reason
    assert engine.tools.effects == []


@virtual_time
async def test_two_steps_that_fail_by_turns_end_in_an_abort() -> None:
    engine = Engine()
    await engine.begin(max_local_depth=16, max_global_resets=2, replay_budget_factor=1.0)
    step, executions, turn, answer = 1, 0, 0, None
    while step:
        fails = step == (6 if turn % 2 else 5)
        turn += fails
        answer = await engine.step(step, "note", {"fail": "no"} if fails else {"stage": [["mail", step]]})
        executions += 1
        assert executions <= _bound(2, 1.0, 6)
        step = answer.next_step_id
    assert answer is not None
    assert answer.status is StepStatus.FAILED
    assert await engine.staged() == []
