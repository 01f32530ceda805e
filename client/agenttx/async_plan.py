"""The loop that runs plans with the asynchronous client; see `agenttx.plan`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from agenttx.errors import CommitConflict
from agenttx.plan import (
    Action,
    Done,
    ListedPlan,
    RunProgress,
    RunReport,
    RunState,
    StepLike,
    as_function,
    as_step,
    as_steps,
    is_waiting,
)
from agenttx.records import StepOutcome

if TYPE_CHECKING:
    from agenttx.async_transaction import AsyncTransaction

__all__ = ["AsyncPlan", "AsyncPlanItem", "run_plan_async"]

AsyncStepFunction: TypeAlias = Callable[[RunState], StepLike | Awaitable[StepLike]]
AsyncPlanItem: TypeAlias = StepLike | AsyncStepFunction | Sequence[StepLike | AsyncStepFunction]
AsyncPlan: TypeAlias = (
    Sequence[AsyncPlanItem]
    | Callable[[RunState], Action | Awaitable[Action]]
    | Generator[Action, RunState, Any]
    | AsyncGenerator[Action, RunState]
)


async def run_plan_async(
    transaction: AsyncTransaction, plan: AsyncPlan, approval_timeout: float | timedelta | None = 0
) -> RunReport:
    """Run a plan in a transaction and commit it; see `AsyncClient.run`."""
    await transaction.begin()
    progress = RunProgress(transaction.transaction_id, transaction.next_step_id)
    next_action = as_async_function(plan)
    while True:
        action = await next_action(progress.state())
        if isinstance(action, Done):
            try:
                return progress.report(await transaction.commit(), action.result)
            except CommitConflict as conflict:
                progress.take_conflict(conflict)
        else:
            steps = as_steps(action)
            outcomes: tuple[StepOutcome, ...]
            if len(steps) == 1:
                outcomes = (await transaction.run_step(steps[0]),)
            else:
                outcomes = await transaction.try_group(steps)
            if is_waiting(outcomes):
                outcomes = await transaction.wait_for_approval(approval_timeout)
            progress.take(outcomes)


def as_async_function(plan: AsyncPlan) -> Callable[[RunState], Awaitable[Action]]:
    """Return a plan as a coroutine function of the state."""
    if isinstance(plan, AsyncGenerator):
        return _AsyncDialogue(plan)
    if isinstance(plan, list | tuple):
        listed = ListedPlan(plan)

        async def from_list(state: RunState) -> Action:
            due = listed.due(state.step_id)
            return [as_step(await _called(member, state)) for member in due] or Done()

        return from_list
    # Coroutine functions come out of it as they are; their coroutines are awaited here.
    function: Callable[[RunState], Any] = as_function(plan)  # type: ignore[arg-type]

    async def from_function(state: RunState) -> Action:
        action: Action = await _awaited(function(state))
        return action

    return from_function


class _AsyncDialogue:
    """An asynchronous generator as a function: what it yields is the answer to the state it is sent."""

    def __init__(self, generator: AsyncGenerator[Action, RunState]) -> None:
        self._generator = generator
        self._started = False

    async def __call__(self, state: RunState) -> Action:
        try:
            if self._started:
                return await self._generator.asend(state)
            self._started = True
            return await anext(self._generator)
        except StopAsyncIteration:
            return Done()


async def _called(member: Any, state: RunState) -> Any:
    return await _awaited(member(state)) if callable(member) else member


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
