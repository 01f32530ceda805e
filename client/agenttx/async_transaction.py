"""A transaction of the asynchronous client."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from agenttx.approvals import DecisionWait, approve_own, reject_own
from agenttx.async_connection import AsyncConnection
from agenttx.async_step_stream import AsyncStepStream
from agenttx.operation import Operation
from agenttx.records import (
    Approval,
    CancelStepResult,
    CommitResult,
    CompensationResult,
    EffectClass,
    PendingUndo,
    ResolveStepResult,
    RewindResult,
    RollbackResult,
    StepOutcome,
    StepResolution,
    TransactionInfo,
)
from agenttx.reported_steps import (
    UndoLike,
    acknowledge_own_undo,
    keyword_arguments,
    pending_undo,
    report_step,
    require_functions,
)
from agenttx.settlement import cancel_running_step, resolve_own_step
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

    async def report(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        output: Any = None,
        error: str | BaseException | None = None,
        effects: EffectClass | str,
        undo: Iterable[UndoLike] = (),
        raw_context: str = "",
        request_id: str | None = None,
        step_id: int | None = None,
    ) -> StepOutcome:
        """Record, as the next step, a tool call that you made yourself, with what came of it.

        From then on it is a step like any other. If it has to be undone, it is you who is asked: the outcome of what
        failed, or of the rewind, has `pending_undo`, and nothing else happens until you have acknowledged it all; see
        `perform_undo`.

        Args:
            tool: Name of what was run; need not be a tool of the server.
            arguments: What it was run with: JSON values, references, outcomes of earlier steps.
            output: What it returned; None where it returned nothing.
            error: Why it failed, as text or as the exception that it raised: it is decided on like any failure.
            effects: Its effect class: what it may have changed outside. "compensatable" needs `undo`; past an
                "irreversible" one without undo no rewind goes back by itself.
            undo: How you can undo it, in the order in which the effects happened: made with `agenttx.undo`, or pairs of
                action and arguments.
            raw_context: What the agent wants remembered with this step.
            request_id: As in `call`.
            step_id: As in `call`.

        Raises:
            StepRolledBack: it had failed, and the transaction was rewound, or is once you have undone your part.
            TransactionAborted: it had failed and the transaction was ended.
            InvalidArgument: the report is malformed, or a reference in it leads nowhere. Nothing was recorded, so
                mend it and report again.
            StaleGeneration: the transaction was rewound while the tool ran. Nothing was recorded: if the call had an
                effect, undo it now.
        """
        outcome = await self.try_report(
            tool,
            arguments,
            output=output,
            error=error,
            effects=effects,
            undo=undo,
            raw_context=raw_context,
            request_id=request_id,
            step_id=step_id,
        )
        raise_unless_succeeded((outcome,))
        return outcome

    async def try_report(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        output: Any = None,
        error: str | BaseException | None = None,
        effects: EffectClass | str,
        undo: Iterable[UndoLike] = (),
        raw_context: str = "",
        request_id: str | None = None,
        step_id: int | None = None,
    ) -> StepOutcome:
        """Record a tool call that you made yourself and return the outcome whatever it is: `report`, without raising."""
        step = Step(tool, arguments or {}, raw_context, None, request_id)
        operation = report_step(
            self._cursor,
            step,
            output=output,
            error=error,
            effects=effects,
            undo_actions=undo,
            step_id=step_id,
        )
        return await self._perform(operation)

    async def pending_undo(self) -> tuple[PendingUndo, ...]:
        """Read what you have to undo now, newest first: at most 100; more may follow when these are acknowledged."""
        return await self._perform(pending_undo(self._cursor))

    async def acknowledge_undo(
        self, undo: PendingUndo | str, *, error: str | BaseException = ""
    ) -> CompensationResult:
        """Say that you have undone something that you were asked for or, with `error`, that you could not.

        The server then runs its own undo that is older, up to what you have to do next. With the last one the rewind is
        completed.

        Args:
            undo: The first of `pending_undo`, or its compensation_id.
            error: Why it could not be done: it then holds the rewind like any failed undo.

        Raises:
            PreconditionFailed: it isn't awaited, or not the newest that is.
        """
        return await self._perform(acknowledge_own_undo(self._cursor, undo, error))

    async def perform_undo(
        self, functions: Mapping[str, Callable[..., object]]
    ) -> tuple[CompensationResult, ...]:
        """Undo all that you are asked for, newest first, and acknowledge each: done or, if its function raised, failed.

        Args:
            functions: For each undo action the function that does it, called with the action's arguments as
                keywords and awaited if it says so. It must be idempotent: after a crash it may be called again.

        Returns:
            What was acknowledged, in that order; empty where nothing was pending. The rewind is complete if the last
            one's `rollback_incomplete` is False.

        Raises:
            UndoMissing: there is no function for one of them; none of those pending together was called.
        """
        results: list[CompensationResult] = []
        pending = await self.pending_undo()
        while pending:
            require_functions(pending, functions)
            for undo in pending:
                error: str | Exception = ""
                try:
                    done = functions[undo.action](**keyword_arguments(undo))
                    if inspect.isawaitable(done):
                        await done
                except Exception as raised:
                    error = raised
                results.append(await self.acknowledge_undo(undo, error=error))
            pending = await self.pending_undo()
        return tuple(results)

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

    async def wait_for_approval(self, timeout: float | timedelta | None = None) -> tuple[StepOutcome, ...]:
        """Wait until a person has decided on the step or group that was sent last, and have it run.

        It asks again and again, as `settle` does; the wait may be given up at any time, and `settle` asks once more.

        Args:
            timeout: How long to wait for the decision, in seconds or as timedelta; None for as long as it takes.

        Returns:
            The outcomes, which are not raised whatever they are: of steps that ran, of steps that were rejected, and
            still AWAITING_APPROVAL where the time was up. Nothing where nothing is owed.
        """
        wait = DecisionWait(timeout, time.monotonic())
        while True:
            outcomes = await self.settle()
            pause = wait.pause_after(outcomes, time.monotonic())
            if pause is None:
                return outcomes
            await asyncio.sleep(pause)

    async def approve(self, approval_id: str, *, comment: str = "", decided_by: str = "") -> Approval:
        """Say yes to a step of this transaction that waits: it runs when it is sent again, by `settle` for example.

        Args:
            approval_id: The approval, as `StepAwaitingApproval` says.
            comment: What is to be remembered about it; at most 4 KiB.
            decided_by: Who decides, for the history; empty for the address that the call comes from.

        Raises:
            ApprovalDecided: somebody else was first, or it was withdrawn.
        """
        return await self._perform(approve_own(self._cursor, approval_id, comment, decided_by))

    async def reject(self, approval_id: str, *, comment: str = "", decided_by: str = "") -> Approval:
        """Say no to a step of this transaction that waits: it fails, which `settle` returns.

        Args:
            approval_id: The approval, as `StepAwaitingApproval` says.
            comment: Why; the agent is told. At most 4 KiB.
            decided_by: Who decides, for the history; empty for the address that the call comes from.

        Raises:
            ApprovalDecided: somebody else was first, or it was withdrawn.
        """
        return await self._perform(reject_own(self._cursor, approval_id, comment, decided_by))

    async def cancel_step(self, step_id: int | None = None, *, reason: str = "") -> CancelStepResult:
        """Stop the step that runs and return when it is settled; the call that waits for it gets its answer.

        For another thread or task than the one that waits; also from within the block of a stream.

        Args:
            step_id: The step; of a group any member, the others go on. None for the one that was sent and not answered.
            reason: Why; goes into the history.

        Raises:
            PreconditionFailed: the step does not run.
        """
        return await self._connection.perform(cancel_running_step(self._cursor, step_id, reason))

    async def resolve_step(
        self,
        step_id: int,
        resolution: StepResolution | str,
        *,
        output: Any = None,
        error: str = "",
        sub_step: int = 0,
    ) -> ResolveStepResult:
        """Say what became of a step in doubt, and go on from where that leaves the transaction.

        Args:
            step_id: The step in doubt, as `StepInDoubt.step_id` says.
            resolution: SUCCEEDED if it took effect, FAILED if it didn't (it is decided on like any failure), RETRY to
                run the same call again under the same key, which returns when that has run.
            output: What the step returned, as a JSON value; only with SUCCEEDED.
            error: What went wrong, as its tool would have said it: a hint is made of it; only with FAILED.
            sub_step: The sub-step in doubt, from 1; its step goes on then. 0 for the step itself.

        Returns:
            The step's answer, which is not raised whatever it is and is None where it is in doubt again; and the step
            to send next.

        Raises:
            PreconditionFailed: the step is not in doubt.
            InvalidValue: the output can't be sent exactly; nothing was sent.
        """
        return await self._perform(
            resolve_own_step(self._cursor, step_id, resolution, output, error, sub_step)
        )

    async def commit(self) -> CommitResult:
        """Publish the state and release the staged effects; ends the transaction.

        Raises:
            CommitConflict: another transaction committed a key that this one had used; this one was undone, or under
                the policy `on_conflict=REWIND` rewound: go on at `next_step_id` and commit again.
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
