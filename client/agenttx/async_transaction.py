"""A transaction of the asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from agenttx.async_connection import AsyncConnection
from agenttx.async_step_stream import AsyncStepStream
from agenttx.operation import Operation
from agenttx.records import CommitResult, RewindResult, RollbackResult, StepOutcome, TransactionInfo
from agenttx.step import Step
from agenttx.transaction_cursor import TransactionCursor, raise_unless_succeeded

__all__ = ["AsyncTransaction"]

T = TypeVar("T")


class AsyncTransaction:
    """An agent's task: steps that are undone together or published together.

    Made by `AsyncClient.transaction` and `AsyncClient.resume`; begun when its block is entered, or by its first call. Leaving
    the block normally commits; an exception rolls everything back and goes on. Three exceptions to that: nothing
    happens to a transaction that has ended already, one that waits (`StepInDoubt`,
    `StepAwaitingApproval`) stays open, and one whose last failure was caught but not followed by a step is rolled back
    (`RollbackUnanswered`) instead of being published by half.

    Tasks may share it; its calls take turns, because its steps are numbered. A call that is cancelled leaves its step
    unsettled: it goes on at the server and `settle()` asks for its outcome.

    Every call may raise `RpcError`s; see `agenttx.errors`.
    """

    def __init__(self, connection: AsyncConnection, cursor: TransactionCursor) -> None:
        self._connection = connection
        self._cursor = cursor
        self._turn = asyncio.Lock()

    @property
    def transaction_id(self) -> str:
        """Its id; empty until it has begun."""
        return self._cursor.transaction_id

    @property
    def next_step_id(self) -> int:
        """The step that is sent next; 0 until it has begun and once it has ended."""
        return 0 if self._cursor.ended else self._cursor.next_step_id

    @property
    def generation(self) -> int:
        """How often it was rewound, counted from 1; 0 until it has begun."""
        return self._cursor.generation

    @property
    def constraints(self) -> tuple[str, ...]:
        """The hints collected so far, oldest first: what the agent must keep to."""
        return self._cursor.constraints

    @property
    def last_failure(self) -> StepOutcome | None:
        """The last failed step's answer; None if none failed."""
        return self._cursor.last_failure

    @property
    def ended(self) -> bool:
        """Whether it was committed, rolled back or aborted, as far as this client knows."""
        return self._cursor.ended

    async def begin(self) -> Self:
        """Begin now, where no block is used. Returns the transaction itself."""
        await self._perform(self._cursor.open())
        return self

    async def step(
        self,
        tool: str,
        /,
        *,
        step_timeout: float | timedelta | None = None,
        raw_context: str = "",
        **arguments: Any,
    ) -> StepOutcome:
        """Run a tool as the next step.

        Args:
            tool: Name of the tool; `AsyncClient.tools` lists them.
            step_timeout: How long the tool may run, in seconds or as timedelta; None for the tool's own timeout.
            raw_context: What the agent wants remembered with this step; at most 1 MiB.
            **arguments: The tool's arguments: JSON values, references (`other.ref("id")`), outcomes of earlier
                steps. For names that clash use `call`. Strings are sent as they are, so `${steps.1.id}` in them is
                a reference; see `literal`.

        Returns:
            The outcome, which behaves like the tool's output: `user["id"]`.

        Raises:
            StepRolledBack: it failed and the transaction was rewound; go on at `next_step_id`.
            TransactionAborted: it failed and the transaction was ended.
            StepInDoubt: whether it took effect is unknown.
            StepAwaitingApproval: it waits for a person.
            InvalidValue: an argument can't be sent exactly; nothing was sent.
            StepUnsettled: the outcome of an earlier step isn't known yet; nothing was sent.

        Example:
            `user = await tx.step("record.insert", table="users", record={"id": 7, "name": "Ada"})`
        """
        return await self.call(tool, arguments, step_timeout=step_timeout, raw_context=raw_context)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        step_timeout: float | timedelta | None = None,
        raw_context: str = "",
        request_id: str | None = None,
        step_id: int | None = None,
    ) -> StepOutcome:
        """Run a tool as the next step, its arguments as a mapping: what `step` does, for any argument name.

        Args:
            tool: Name of the tool.
            arguments: Its arguments; None for none.
            step_timeout: How long the tool may run, in seconds or as timedelta.
            raw_context: What the agent wants remembered with this step.
            request_id: The call's identity, where the caller keeps its own to repeat it after a crash; else made up.
            step_id: The position it was first sent for, where it is repeated; else the one that is next. A repeated
                call is answered as it was the first time and runs nothing.
        """
        step = Step(tool, arguments or {}, raw_context, step_timeout, request_id)
        outcome = await self._perform(self._cursor.step(step, step_id=step_id))
        raise_unless_succeeded((outcome,))
        return outcome

    async def try_step(
        self,
        tool: str,
        /,
        *,
        step_timeout: float | timedelta | None = None,
        raw_context: str = "",
        **arguments: Any,
    ) -> StepOutcome:
        """Run a tool as the next step and return the outcome whatever it is: `step`, without raising for it."""
        return await self.run_step(Step(tool, arguments, raw_context, step_timeout))

    async def run_step(self, step: Step) -> StepOutcome:
        """Run a prepared step and return the outcome whatever it is."""
        return await self._perform(self._cursor.step(step))

    async def group(self, steps: Sequence[Step]) -> tuple[StepOutcome, ...]:
        """Run tools side by side, as the next steps; they see the state before the group and their own writes.

        Args:
            steps: 1 to 64 tool calls, made with `agenttx.call` or `Step`.

        Returns:
            Their outcomes, in the order given.

        Raises:
            StepRolledBack: one failed and the transaction was rewound; `outcomes` has all answers.
            TransactionAborted: one failed and the transaction was ended.
        """
        outcomes = await self.try_group(steps)
        raise_unless_succeeded(outcomes)
        return outcomes

    async def try_group(self, steps: Sequence[Step]) -> tuple[StepOutcome, ...]:
        """Run tools side by side and return the outcomes whatever they are."""
        return await self._perform(self._cursor.group(steps))

    def stream(self) -> AsyncStepStream:
        """Return a block in which many steps are sent over one stream, about twice as fast.

        Example:
            `async with tx.stream() as steps: await steps.submit("kv.put", key="a", value=1)`
        """
        return AsyncStepStream(self._connection, self._cursor, self._turn)

    async def settle(self) -> tuple[StepOutcome, ...]:
        """Ask again for the outcome of the step or group that was sent last and not answered.

        Needed after `DeadlineExceeded`, `Unavailable`, a cancellation, `StepInDoubt` and `StepAwaitingApproval`: the
        same request is sent again, which never runs a tool twice. Returns nothing where nothing is owed.
        """
        return await self._perform(self._cursor.settle())

    async def commit(self) -> CommitResult:
        """Publish the state and release the staged effects; ends the transaction.

        Raises:
            CommitConflict: another transaction committed a key that this one had used; this one was undone.
        """
        return await self._perform(self._cursor.commit())

    async def rollback(self, reason: str = "", *, accept_irreversible: bool = False) -> RollbackResult:
        """Undo everything and end the transaction.

        Args:
            reason: Why; goes into the history.
            accept_irreversible: Also while a step is in doubt; its effect may stay and is named.

        Raises:
            StepInDoubt: whether a step took effect is unknown.
        """
        return await self._perform(self._cursor.rollback(reason, accept_irreversible=accept_irreversible))

    async def rewind(
        self, to_step: int, *, reason: str = "", dry_run: bool = False, accept_irreversible: bool = False
    ) -> RewindResult:
        """Undo `to_step` and everything after it; the next step is `to_step` again.

        Args:
            to_step: From 1 to `next_step_id`.
            reason: Why; goes into the history.
            dry_run: Only say what would be undone.
            accept_irreversible: Go past steps that can't be undone; their effects stay and are named.

        Raises:
            IrreversibleStep: it would pass a step that can't be undone.
        """
        return await self._perform(
            self._cursor.rewind(
                to_step, reason=reason, dry_run=dry_run, accept_irreversible=accept_irreversible
            )
        )

    async def refresh(self) -> TransactionInfo:
        """Read the transaction and go on from where it stands, after somebody else moved it."""
        return await self._perform(self._cursor.refresh())

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._perform(self._cursor.leave_block(error))

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"next step {self.next_step_id}"
        return f"<AsyncTransaction {self.transaction_id or '(not begun)'}: {state}>"

    async def _perform(self, operation: Operation[T]) -> T:
        self._cursor.refuse_inside_stream()
        async with self._turn:
            return await self._connection.perform(operation)
