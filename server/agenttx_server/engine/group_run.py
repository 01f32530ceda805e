"""Runs the tools of one group of steps side by side, from parsing to each member's outcome.

A plain step is a group of one. The run holds the transaction's lock through its caller and
decides nothing: it ends when every member has an outcome (COMPLETED, FAILED or IN_DOUBT).
A member that ends while siblings still run is made durable at once; the last one is left
for the settlement's commit, so that a plain step costs a single commit.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agenttx_server.engine import failure_text, json_values, references
from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.failure_text import StepFailure
from agenttx_server.engine.limits import utf8_size
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import ArgumentsRefused, ContextClosed, OutcomeUnknown
from agenttx_server.engine.recorded_answers import fingerprint
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    Edge,
    EffectClass,
    EventType,
    HintCategory,
    MicrosecondsUtc,
    PendingRewind,
    ToolDescription,
    TransactionStatus,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.requests import StepCall
from agenttx_server.engine.rewinding import RewindResult
from agenttx_server.engine.saga import Saga
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_context import StepContext
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["CancelRequest", "GroupRun", "Member", "call_fingerprint"]

_NEVER = MicrosecondsUtc(0)
_LOGGER = logging.getLogger(__name__)
_REFERENCED_STEP = re.compile(r"\$\{steps\.([0-9]{1,9})")
_RETRIED_IN_PLACE = frozenset(
    {
        HintCategory.TIMEOUT,
        HintCategory.CONNECTION,
        HintCategory.RATE_LIMITED,
        HintCategory.HTTP_SERVER_ERROR,
        HintCategory.CONFLICT,
    }
)


@dataclass(slots=True)
class CancelRequest:
    """Why the running group has to stop, and the rewind for which it does.

    Whoever settles the group makes the rewind in the same go and leaves its result here, so
    that a stopped step and its rewind are durable together, whatever becomes of the caller.
    """

    why: str
    rewind: PendingRewind
    accept_irreversible: bool
    result: RewindResult | None = None


@dataclass(slots=True)
class Member:
    """One step of the group on its way: what is known of it so far."""

    step_id: int
    call: StepCall
    fingerprint: str
    arguments: str
    parsed: json_values.JsonValue = None
    refused: StepFailure | None = None
    attempt: int = 0
    started_at: MicrosecondsUtc = _NEVER
    resolved: json_values.JsonValue = None
    resolved_text: str | None = None
    edges: tuple[Edge, ...] = ()
    tool: ToolDescription | None = None
    idempotency_key: str = ""
    tries: int = 0
    written_ahead: bool = False
    undo_registered: bool = False
    context: StepContext | None = None
    state: AttemptState = AttemptState.EXECUTING
    output: str | None = None
    failure: StepFailure | None = None
    cancelled: bool = False
    durable: bool = False
    ended_at: MicrosecondsUtc | None = None
    running: asyncio.Task[object] | None = field(default=None, repr=False)

    @property
    def effect_class(self) -> EffectClass | None:
        """The tool's class, None where there is no such tool."""
        return self.tool.effect_class if self.tool else None


@dataclass(frozen=True, slots=True)
class _Outcome:
    state: AttemptState
    output: str | None = None
    failure: StepFailure | None = None


class GroupRun:
    """One execution of a group. ``members`` are in step order."""

    def __init__(
        self,
        services: EngineServices,
        writer: TransactionWriter,
        saga: Saga,
        tasks: OwnedTasks,
        transaction: Transaction,
        members: Sequence[Member],
        replayed: Sequence[AttemptRecord],
    ) -> None:
        self.transaction = transaction
        self.members = list(members)
        self.replayed = {attempt.step_id: attempt for attempt in replayed}
        self.first = transaction.record.next_step_id
        self.size = len(members) + len(replayed)
        self.cancel_request: CancelRequest | None = None
        self._services = services
        self._writer = writer
        self._saga = saga
        self._tasks = tasks
        self._unfinished = len(members)
        self._cancel_wakes: set[Callable[..., None]] = set()

    # --- from outside -------------------------------------------------------------------

    def cancel(self, request: CancelRequest) -> None:
        """Stop the group's tools; an IRREVERSIBLE one is left to end by itself."""
        if self.cancel_request is None:
            self.cancel_request = request
            for wake in list(self._cancel_wakes):
                wake()
            for member in self.members:
                if member.tool is None or member.tool.effect_class is not EffectClass.IRREVERSIBLE:
                    running = member.running
                    if member.state is AttemptState.EXECUTING and (running is None or not running.done()):
                        member.cancelled = True
                    self._stop(member, request.why)

    @property
    def steps(self) -> tuple[int, int]:
        """The group: its first step and its size."""
        return self.first, self.size

    @property
    def executing(self) -> list[int]:
        """Steps that have no outcome yet."""
        return [member.step_id for member in self.members if member.state is AttemptState.EXECUTING]

    def is_completed(self) -> bool:
        """Whether every member has completed."""
        return all(member.state is AttemptState.COMPLETED for member in self.members) and all(
            attempt.state is AttemptState.COMPLETED for attempt in self.replayed.values()
        )

    # --- the run ------------------------------------------------------------------------

    async def run(self) -> None:
        """Bring every member to its outcome. Raises only what the store raises."""
        for member in self.members:
            await self._prepare(member)
        if len(self.members) == 1:
            await self._run_member(self.members[0])
            return
        tasks = [self._tasks.spawn(self._run_member(member)) for member in self.members]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def record_of(self, member: Member, response: str | None = None) -> AttemptRecord:
        """Return the attempt's row as it stands, with the answer recorded if it is final."""
        return AttemptRecord(
            step_id=member.step_id,
            attempt=member.attempt,
            group_first=self.first,
            group_size=self.size,
            epoch=self.transaction.record.epoch,
            generation=self.transaction.record.generation,
            request_id=member.call.request_id,
            fingerprint=member.fingerprint,
            tool_name=member.call.tool_name,
            effect_class=member.effect_class,
            state=member.state,
            arguments=member.arguments,
            started_at=member.started_at,
            idempotency_key=member.idempotency_key,
            resolved_arguments=member.resolved_text if member.resolved_text != member.arguments else None,
            output=member.output,
            raw_context=member.call.raw_context,
            hint=member.failure.hint if member.failure else None,
            raw_error=member.failure.raw_error if member.failure else "",
            tries=member.tries,
            undo_registered=member.undo_registered,
            edges=member.edges,
            response=response,
            ended_at=member.ended_at,
        )

    def add_rows(self, member: Member, rows: Rows) -> None:
        """Add what an ended member wrote, what it touched beside siblings, and its event."""
        if self.size > 1 and member.context is not None:
            rows.reads += member.context.touches
        if member.state is AttemptState.COMPLETED:
            if member.context is not None:
                rows.take_context(member.context)
            rows.event(
                EventType.STEP_COMPLETED,
                member.step_id,
                member.attempt,
                tool_name=member.call.tool_name,
                effect_class=member.effect_class,
            )
            return
        kind = EventType.STEP_FAILED
        if member.state is AttemptState.IN_DOUBT:
            kind = EventType.STEP_IN_DOUBT
        elif member.cancelled:
            kind = EventType.STEP_CANCELLED
        hint = member.failure.hint if member.failure else None
        rows.event(
            kind,
            member.step_id,
            member.attempt,
            tool_name=member.call.tool_name,
            category=hint.category if hint else "",
            hint=hint.text if hint else "",
            error_keys=hint.keys if hint else (),
        )

    # --- before the tool ----------------------------------------------------------------

    async def _prepare(self, member: Member) -> None:
        """Parse, resolve and link; everything that can fail before the tool is called."""
        transaction = self.transaction
        graph = transaction.graph
        member.started_at = self._services.clock.now()
        member.attempt = transaction.attempt_counts.get(member.step_id, 0) + 1
        if member.step_id in transaction.steps:  # an attempt that was cancelled and not rewound
            graph.discard(member.step_id)
        explicit: tuple[Edge, ...] = ()
        if member.refused is None:
            try:
                member.resolved, explicit = await self._resolve(member)
            except references.UnresolvedReference as error:
                member.refused = failure_text.unresolved(error)
                explicit = tuple(error.edges)
            except json_values.ValueRefused as refused:
                member.refused = failure_text.refused_arguments(refused, member.arguments)
        member.edges = graph.add_step(
            member.step_id, arguments=member.resolved, explicit=explicit, before_step=self.first
        )
        member.tool = self._services.tools.describe(member.call.tool_name)
        if member.tool is None and member.refused is None:
            known = [tool.name for tool in self._services.tools.describe_all()]
            member.refused = failure_text.unknown_tool(member.call.tool_name, known)
        transaction.begin_attempt(
            member.step_id,
            member.attempt,
            request_id=member.call.request_id,
            tool_name=member.call.tool_name,
            effect_class=member.effect_class,
            group=(self.first, self.size),
            started_at=member.started_at,
        )

    async def _resolve(self, member: Member) -> tuple[json_values.JsonValue, tuple[Edge, ...]]:
        if not references.contains_reference(member.arguments):
            member.resolved_text = member.arguments
            return member.parsed, ()
        outputs: dict[int, json_values.JsonValue] = {}
        for step in {int(number) for number in _REFERENCED_STEP.findall(member.arguments)}:
            live = self.transaction.steps.get(step)
            if live is None or live.state is not AttemptState.COMPLETED or step >= self.first:
                continue
            text = live.output
            if text is None:
                record = self.transaction.record
                text = await self._services.store.load_output(record.transaction_id, step, live.attempt)
            if text is not None:
                outputs[step] = json_values.load(text)
        resolution = references.resolve(
            member.parsed,
            step_id=member.step_id,
            first_invisible_step=self.first,
            output_of=lambda step: outputs.get(step, json_values.MISSING),
        )
        member.resolved_text = json_values.canonical(resolution.value)
        size = utf8_size(member.resolved_text)
        limit = self._services.limits.output_bytes
        if size > limit:
            raise json_values.ValueRefused(
                "$", f"is {size} bytes long once its references are filled in; the limit is {limit}"
            )
        return resolution.value, resolution.edges

    # --- the tool -----------------------------------------------------------------------

    async def _run_member(self, member: Member) -> None:
        if member.refused is not None:
            outcome = _Outcome(AttemptState.FAILED, failure=member.refused)
        else:
            outcome = await self._run_tool(member)
        member.state = outcome.state
        member.output = outcome.output
        member.failure = outcome.failure
        member.ended_at = self._services.clock.now()
        self._unfinished -= 1
        if self._unfinished:
            await self._make_durable(member)

    async def _make_durable(self, member: Member) -> None:
        rows = Rows(attempts=[self.record_of(member)])
        self.add_rows(member, rows)
        member.durable = True
        await self._writer.write(
            self.transaction, rows, open_group=(self.first, self.size), status=TransactionStatus.EXECUTING
        )

    async def _write_ahead(self, member: Member) -> None:
        """Make the intent durable: what is about to run, with which arguments, under which key."""
        if member.written_ahead:
            return
        member.written_ahead = True
        rows = Rows(attempts=[self.record_of(member)])
        rows.event(
            EventType.STEP_STARTED,
            member.step_id,
            member.attempt,
            tool_name=member.call.tool_name,
            effect_class=member.effect_class,
        )
        await self._writer.write(
            self.transaction, rows, open_group=(self.first, self.size), status=TransactionStatus.EXECUTING
        )

    async def _run_tool(self, member: Member) -> _Outcome:
        tool = member.tool
        if tool is None:
            raise RuntimeError("a member without a tool was refused before")
        acts_outside = tool.effect_class.acts_outside
        if acts_outside:
            member.idempotency_key = await self._idempotency_key(member, tool)
            await self._write_ahead(member)
        if self._is_cancelled():
            member.cancelled = True
            return self._cancelled(member)
        retries = max(self._services.settings.step_retries, tool.retries)
        retriable = tool.effect_class in (
            EffectClass.READ_ONLY,
            EffectClass.TRANSACTIONAL,
            EffectClass.IDEMPOTENT,
        )
        unknown_runs = 0
        number = 0
        while True:
            outcome = await self._run_once(member, tool)
            if member.cancelled or outcome.state is AttemptState.COMPLETED:
                return outcome
            if outcome.state is AttemptState.IN_DOUBT:
                unknown_runs += 1
                if tool.effect_class is not EffectClass.IDEMPOTENT:
                    return outcome
                if unknown_runs > self._services.settings.idempotent_reruns:
                    return outcome
            elif (
                not retriable
                or number >= retries
                or outcome.failure is None
                or outcome.failure.hint.category not in _RETRIED_IN_PLACE
            ):
                return outcome
            number += 1
            backoff = self._services.settings.retry_base_seconds * 2 ** min(number - 1, 6)
            await self._pause(tool, backoff * (0.5 + self._services.ids.random()))
            if self._is_cancelled():
                if outcome.state is AttemptState.IN_DOUBT:
                    member.cancelled = True
                    return self._cancelled(member)
                return outcome

    def _is_cancelled(self) -> bool:
        return self.cancel_request is not None

    async def _run_once(self, member: Member, tool: ToolDescription) -> _Outcome:
        """Call the tool once, under its deadline, and say how that ended."""
        seconds = self._timeout_seconds(member, tool)
        context = self._open_context(member, seconds)
        member.tries += 1
        loop = asyncio.get_running_loop()
        arguments, member.resolved = member.resolved, None
        if arguments is None:  # handed out before: a tool may have changed it
            arguments = json_values.load(member.resolved_text or "null")
        task = loop.create_task(self._services.tools.run(tool.name, arguments, context))
        member.running = task
        task.add_done_callback(_see)
        first_wait = min(seconds, self._services.settings.long_step_seconds)
        await self._wait(tool, task, first_wait)
        if not task.done() and not member.cancelled:
            if first_wait < seconds:
                await self._write_ahead_of_long_step(member, task)
            left = context.seconds_left
            if left > 0 and not task.done():
                await self._wait(tool, task, left)
        if not task.done():
            outcome = await self._stop_late(member, tool, task, seconds)
        else:
            context.close("the step has ended")
            outcome = self._outcome(member, tool, task)
        if context.store_failure is not None:
            # What the tool made of it is no outcome: the step is settled as after a crash.
            raise context.store_failure
        return outcome

    async def _write_ahead_of_long_step(self, member: Member, task: asyncio.Task[object]) -> None:
        try:
            await self._write_ahead(member)
        except Exception:
            self._stop(member, "the database could not serve the step")
            self._tasks.adopt(task)
            raise

    async def _wait(self, tool: ToolDescription, task: asyncio.Future[Any], seconds: float) -> None:
        """Wait for a tool, or until it is cancelled; nothing interrupts an IRREVERSIBLE one."""
        interruptible = tool.effect_class is not EffectClass.IRREVERSIBLE
        if interruptible and self._is_cancelled():
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake(*_: object) -> None:
            if not waiter.done():
                waiter.set_result(None)

        # By hand: asyncio.wait costs 2.5 times as much (4.6 µs), and this is every step's path.
        timer = loop.call_later(seconds, wake)
        task.add_done_callback(wake)
        if interruptible:
            self._cancel_wakes.add(wake)
        try:
            await waiter
        finally:
            timer.cancel()
            task.remove_done_callback(wake)
            self._cancel_wakes.discard(wake)

    async def _pause(self, tool: ToolDescription, seconds: float) -> None:
        """Wait before the next try, or until there will be none."""
        pause = asyncio.ensure_future(self._services.clock.sleep(seconds))
        await self._wait(tool, pause, seconds)
        pause.cancel()

    async def _stop_late(
        self, member: Member, tool: ToolDescription, task: asyncio.Task[object], seconds: float
    ) -> _Outcome:
        """Settle a tool that ran past its deadline or was asked to stop."""
        self._stop(member, "its deadline passed" if not member.cancelled else "it was cancelled")
        if tool.effect_class.acts_outside and tool.effect_class is not EffectClass.IRREVERSIBLE:
            await asyncio.wait((task,), timeout=self._services.settings.stop_grace_seconds)
        if not task.done():
            self._tasks.adopt(task)
            if tool.effect_class is EffectClass.COMPENSATABLE:
                self._undo_once_more(member, task)
        if member.cancelled:
            return self._cancelled(member)
        failure = failure_text.timed_out(tool.name, seconds)
        unknown = tool.effect_class in (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE)
        return _Outcome(AttemptState.IN_DOUBT if unknown else AttemptState.FAILED, failure=failure)

    def _stop(self, member: Member, why: str) -> None:
        if member.context is not None:
            member.context.close(why)
        if member.running is not None and not member.running.done():
            member.running.cancel()

    def _outcome(self, member: Member, tool: ToolDescription, task: asyncio.Task[object]) -> _Outcome:
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        unknown_class = tool.effect_class in (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE)
        if member.cancelled and error is not None:
            return self._cancelled(member)
        if error is None:
            member.cancelled = False  # it ended before it could be stopped
            return self._checked_output(member, tool, task.result())
        if isinstance(error, ArgumentsRefused):
            member.tries = 0
        if isinstance(error, OutcomeUnknown):
            failure = failure_text.outcome_unknown(tool.name, error)
            state = AttemptState.IN_DOUBT if unknown_class else AttemptState.FAILED
            return _Outcome(state, failure=failure)
        if isinstance(error, ContextClosed):
            return _Outcome(AttemptState.FAILED, failure=failure_text.cancelled(tool.name, str(error)))
        return _Outcome(AttemptState.FAILED, failure=failure_text.from_exception(error, self._services.clean))

    def _checked_output(self, member: Member, tool: ToolDescription, value: object) -> _Outcome:
        # An IRREVERSIBLE effect has happened even if its result can't be kept: not a failure.
        lost = AttemptState.IN_DOUBT if tool.effect_class is EffectClass.IRREVERSIBLE else AttemptState.FAILED
        try:
            text = json_values.canonical(value)
        except json_values.ValueRefused as refused:
            return _Outcome(lost, failure=failure_text.output_refused(tool.name, refused))
        except BaseException as error:  # a value of the tool's own class: reading it runs the tool's code
            return _Outcome(lost, failure=failure_text.from_exception(error, self._services.clean))
        limit = self._services.limits.output_bytes
        if member.call.output_limit_bytes is not None:
            limit = min(limit, member.call.output_limit_bytes)
        size = utf8_size(text)
        if size > limit:
            return _Outcome(lost, failure=failure_text.output_too_large(tool.name, size, limit))
        return _Outcome(AttemptState.COMPLETED, output=text)

    def _cancelled(self, member: Member) -> _Outcome:
        why = self.cancel_request.why if self.cancel_request else "the server is stopping"
        return _Outcome(AttemptState.FAILED, failure=failure_text.cancelled(member.call.tool_name, why))

    def _undo_once_more(self, member: Member, task: asyncio.Task[object]) -> None:
        """When a tool that outlived its cancellation ends, run its undo actions again."""

        async def undo_late() -> None:
            await asyncio.wait((task,))
            key = (member.step_id, member.attempt)
            for undo in sorted(registered, key=lambda item: -item.sequence):
                failure = await self._saga.attempt(self.transaction, undo)
                if failure is not None:
                    _LOGGER.error(
                        "undo of a late effect failed: transaction=%s step=%d attempt=%d undo=%s: %s",
                        self.transaction.record.transaction_id,
                        *key,
                        undo.undo_name,
                        failure.hint.text,
                    )

        registered = [undo for undo in self.transaction.undo.values() if undo.step_id == member.step_id]
        self._tasks.spawn(undo_late())

    # --- details ------------------------------------------------------------------------

    def _timeout_seconds(self, member: Member, tool: ToolDescription) -> float:
        for microseconds in (
            member.call.timeout_us,
            tool.timeout_us,
            self.transaction.record.step_timeout_us,
        ):
            if microseconds is not None:
                return microseconds / 1_000_000
        return self._services.settings.step_timeout_seconds

    def _open_context(self, member: Member, seconds: float) -> StepContext:
        services = self._services
        record = self.transaction.record

        async def register_undo(undo_name: str, arguments: str, key: str) -> None:
            await self._register_undo(member, undo_name, arguments, key)

        member.context = StepContext(
            transaction_id=record.transaction_id,
            agent_id=record.agent_id,
            step_id=member.step_id,
            attempt=member.attempt,
            group_first=self.first,
            idempotency_key=member.idempotency_key,
            deadline=services.clock.monotonic() + seconds,
            fence=record.generation,
            store=services.store,
            clock=services.clock,
            ids=services.ids,
            limits=services.limits,
            register_undo=register_undo,
        )
        return member.context

    async def _register_undo(self, member: Member, undo_name: str, arguments: str, key: str) -> None:
        await self._write_ahead(member)  # an undo action never stands without its attempt
        sequence = self.transaction.record.undo_sequence + 1
        undo = UndoRecord(
            sequence=sequence,
            step_id=member.step_id,
            attempt=member.attempt,
            tool_name=member.call.tool_name,
            undo_name=undo_name,
            arguments=arguments,
            idempotency_key=key,
            registered_at=self._services.clock.now(),
            state=UndoState.PENDING,
        )
        self.transaction.undo[sequence] = undo
        member.undo_registered = True
        await self._writer.write(self.transaction, Rows(undo=[undo]), undo_sequence=sequence)

    async def _idempotency_key(self, member: Member, tool: ToolDescription) -> str:
        """Return the attempt's key: the last one's where the same call is repeated and nothing was undone.

        The last one's only: under an older key a service would answer from memory, though
        what came in between is in force.
        """
        if member.attempt > 1 and tool.effect_class is not EffectClass.COMPENSATABLE:
            attempts = await attempts_of_step(
                self._services.store, self.transaction.record.transaction_id, member.step_id
            )
            last = next((earlier for earlier in reversed(attempts) if earlier.idempotency_key), None)
            if (
                last is not None
                and last.tool_name == member.call.tool_name
                and (last.resolved_arguments or last.arguments) == member.resolved_text
                and not last.undo_registered
            ):
                return last.idempotency_key
        return self._services.ids.new_id()


def _see(task: asyncio.Task[object]) -> None:
    """Mark a tool's exception as seen, also when nobody waits for it any more."""
    if not task.cancelled():
        task.exception()


def call_fingerprint(step_id: int, call: StepCall, arguments: str) -> str:
    """Return a step request's identity."""
    return fingerprint(str(step_id), call.tool_name, arguments)
