"""Runs the tools of one group of steps side by side, from parsing to each member's outcome.

A plain step is a group of one. The run holds the transaction's lock through its caller and
decides nothing: it ends when every member has an outcome (COMPLETED, FAILED or IN_DOUBT) or waits
for approval.
A member that ends while siblings still run is made durable at once; the last one is left
for the settlement's commit, so that a plain step costs a single commit.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from agenttx_server.engine import failure_text, json_values, references, step_report
from agenttx_server.engine.approval_gate import ApprovalGate, CallRefused, GatedCall, Passage
from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.failure_text import StepFailure
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.kept_effects import also_kept, kept_by_cancelling
from agenttx_server.engine.limits import utf8_size
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import (
    AdoptedStep,
    ArgumentsRefused,
    ContextClosed,
    NotCalled,
    OutcomeUnknown,
    RunnerLost,
    StepFunction,
    StepWaits,
    SubStepCall,
    SubStepFailed,
    ToolFailure,
)
from agenttx_server.engine.recorded_answers import fingerprint
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    Edge,
    EffectClass,
    EventType,
    HintCategory,
    Isolation,
    MicrosecondsUtc,
    PendingRewind,
    ServerId,
    ToolDescription,
    TransactionStatus,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.requests import StepCall, StepReport
from agenttx_server.engine.rewinding import RewindResult
from agenttx_server.engine.server_lease import LeaseEnded, ServerLease
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_context import StepContext
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

if TYPE_CHECKING:
    from agenttx_server.engine.step_journal import StepJournal
    from agenttx_server.engine.sub_steps import SubSteps

__all__ = ["CancelRequest", "GroupRun", "Member", "Outcome", "call_fingerprint"]

_NEVER = MicrosecondsUtc(0)
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
    Where another server waits to make the rewind, ``rewind`` is None and the group is left open for it.
    """

    why: str
    rewind: PendingRewind | None
    accept_irreversible: bool
    result: RewindResult | None = None


@dataclass(slots=True)
class Member:
    """One step of the group on its way: what is known of it so far.

    ``resumed`` is a call that was recorded before and is run by recovery, or on a person's word. ``tool_was_offered`` is that
    its tool, which nobody offers here, was or is offered to another server.
    ``recorded`` is the attempt that is run once more, as the same attempt under the same key, after a
    crash or on a person's word. ``registered`` is its undo as far as it is durable, ``reported_undo`` what its report
    registers with the outcome. ``effect_possible`` is that an earlier run of the attempt may have had its effect.
    ``outlived`` is the tool's task where that still ran when the step ended.
    ``waited`` is the attempt that waited for approval when the call was sent before; it goes on as that one.
    ``passage`` is what its approval changed and is not written yet, ``approved`` that it runs under one. ``passed`` is
    the tool as it was described when the gate let the call pass.
    ``journal`` are the sub-steps that it made. ``function`` is called in place of a tool. ``was_lost`` is that whoever
    ran it was, and that it may be started again. ``waits`` is what it stopped to wait for, ``adopts`` the step
    whose calls it takes over.
    """

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
    registered: list[UndoRecord] = field(default_factory=list)
    reported_undo: list[UndoRecord] = field(default_factory=list)
    context: StepContext | None = None
    state: AttemptState = AttemptState.EXECUTING
    output: str | None = None
    failure: StepFailure | None = None
    resumed: bool = False
    tool_was_offered: bool = False
    recorded: AttemptRecord | None = None
    waited: AttemptRecord | None = None
    passage: Passage | None = None
    approved: bool = False
    passed: ToolDescription | None = None
    effect_possible: bool = False
    cancelled: bool = False
    cancel_why: str = ""
    outlived: asyncio.Task[object] | None = field(default=None, repr=False)
    durable: bool = False
    ended_at: MicrosecondsUtc | None = None
    running: asyncio.Task[object] | None = field(default=None, repr=False)
    was_lost: bool = False
    waits: StepWaits | None = None
    adopts: AdoptedStep | None = None
    sub_step: int = 0
    function: StepFunction | None = field(default=None, repr=False)
    journal: StepJournal | None = field(default=None, repr=False)

    @property
    def effect_class(self) -> EffectClass | None:
        """The tool's class, None where there is no such tool."""
        return self.tool.effect_class if self.tool else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one execution of a member's tool ended."""

    state: AttemptState
    output: str | None = None
    failure: StepFailure | None = None


class GroupRun:
    """One execution of a group. ``members`` are in step order."""

    def __init__(
        self,
        services: EngineServices,
        writer: TransactionWriter,
        tasks: OwnedTasks,
        transaction: Transaction,
        members: Sequence[Member],
        replayed: Sequence[AttemptRecord],
        lease: ServerLease,
        *,
        size: int | None = None,
        sub_steps: SubSteps | None = None,
        held_under: ServerId | None = None,
    ) -> None:
        self._sub_steps = sub_steps
        # Whose work it is: of a lease that ended, and was taken anew, it is that of the old one.
        self.held_under = held_under or lease.id
        self.transaction = transaction
        self._tools = services.tools_of(transaction.record.principal)
        self.members = list(members)
        self.replayed = {attempt.step_id: attempt for attempt in replayed}
        self.first = transaction.record.next_step_id
        self.size = size or len(members) + len(replayed)
        self.is_whole = self.size == len(members) + len(replayed)
        self._lease = lease
        self.cancel_request: CancelRequest | None = None
        self._services = services
        self._gate = ApprovalGate(services)
        self._writer = writer
        self._tasks = tasks
        # A member that ends while others are out, or lost, is made durable by itself.
        self._unfinished = len(members) + (0 if self.is_whole else 1)
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

    def cancel_step(self, step_id: int, why: str) -> bool:
        """Stop one member, an IRREVERSIBLE one too; return whether it had no outcome yet."""
        for member in self.members:
            if member.step_id == step_id and member.state is AttemptState.EXECUTING:
                running = member.running
                if running is None or not running.done():
                    member.cancelled = True
                    member.cancel_why = why
                self._stop(member, why)
                for wake in list(self._cancel_wakes):
                    wake()
                return True
        return False

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
            reported=member.call.report is not None,
            failed_sub_step=member.failure.sub_step if member.failure else 0,
            restartable=member.tool is not None and member.tool.restartable,
            emits_records=member.tool is not None and member.tool.emits_records,
        )

    def add_rows(self, member: Member, rows: Rows) -> None:
        """Add what an ended member wrote, what it touched beside siblings, and its event."""
        self._record_passage(member, rows)
        if member.state is AttemptState.AWAITING_APPROVAL:
            return
        if (self.size > 1 or member.sub_step) and member.context is not None:
            rows.reads += member.context.touches
        rows.undo += member.reported_undo
        reported = {"reported": True} if member.call.report is not None else {}
        if member.state is AttemptState.COMPLETED:
            if member.context is not None:
                rows.take_context(member.context)
            rows.event(
                EventType.STEP_COMPLETED,
                member.step_id,
                member.attempt,
                member.sub_step,
                tool_name=member.call.tool_name,
                effect_class=member.effect_class,
                **reported,
            )
            return
        if member.state in (AttemptState.WAITING, AttemptState.SUPERSEDED):
            return
        kind = EventType.STEP_FAILED
        if member.state is AttemptState.IN_DOUBT:
            kind = EventType.STEP_IN_DOUBT
        elif member.cancelled:
            kind = EventType.STEP_CANCELLED
        hint = member.failure.hint if member.failure else None
        cancelled = {"reason": self._why_cancelled(member)} if member.cancelled else {}
        rows.event(
            kind,
            member.step_id,
            member.attempt,
            member.sub_step,
            tool_name=member.call.tool_name,
            category=hint.category if hint else "",
            hint=hint.text if hint else "",
            error_keys=hint.keys if hint else (),
            **cancelled,
            **reported,
        )

    # --- before the tool ----------------------------------------------------------------

    async def _prepare(self, member: Member) -> None:
        """Parse, resolve and link; everything that can fail before the tool is called."""
        transaction = self.transaction
        graph = transaction.graph
        if member.recorded is not None:
            self._prepare_recorded(member, member.recorded)
            member.tool = await self._find_tool(member)
            return
        if member.waited is not None:
            member.started_at, member.attempt = member.waited.started_at, member.waited.attempt
        else:
            member.started_at = self._services.clock.now()
            member.attempt = transaction.attempt_counts.get(member.step_id, 0) + 1
        explicit: tuple[Edge, ...] = ()
        if member.refused is None:
            try:
                member.resolved, explicit = await self._resolve(member)
            except references.UnresolvedReference as error:
                _refuse_report_of_effect(member, error.message)
                member.refused = failure_text.unresolved(error)
                explicit = tuple(error.edges)
            except json_values.ValueRefused as refused:
                _refuse_report_of_effect(member, f"is refused at {refused}")
                member.refused = failure_text.refused_arguments(refused, member.arguments)
        if member.step_id in transaction.steps:  # an attempt that was cancelled and not rewound
            graph.discard(member.step_id)
        member.edges = graph.add_step(
            member.step_id, arguments=member.resolved, explicit=explicit, before_step=self.first
        )
        if member.call.report is not None:
            member.tool = step_report.tool_of(member.call, member.call.report)
        elif member.refused is None:
            member.tool = await self._find_tool(member)
            if member.tool is None:
                member.refused = self._no_tool(member)
        else:
            member.tool = self._tools.describe(member.call.tool_name)
        transaction.begin_attempt(
            member.step_id,
            member.attempt,
            request_id=member.call.request_id,
            tool_name=member.call.tool_name,
            effect_class=member.effect_class,
            group=(self.first, self.size),
            started_at=member.started_at,
            reported=member.call.report is not None,
        )
        if member.refused is None and member.tool is not None and member.call.report is None:
            self._ask_for_passage(member, member.tool)

    def _ask_for_passage(self, member: Member, tool: ToolDescription) -> None:
        """Have a member wait where a person must be asked about it first."""
        text = member.resolved_text or "null"
        call = GatedCall(member.step_id, member.attempt, tool, member.resolved, text)
        passage = self._gate.consider(self.transaction, call)
        member.passage = passage
        member.refused = passage.failure
        member.approved = passage.under is not None
        member.passed = tool
        if passage.waits_for is not None:
            member.state = AttemptState.AWAITING_APPROVAL
            member.durable = not passage.is_new and member.waited is not None
            self.transaction.finish_attempt(self.record_of(member))

    def _record_passage(self, member: Member, rows: Rows) -> None:
        """Add what a member's approval changed, once."""
        if member.passage is not None:
            self._gate.record(self.transaction, member.attempt, member.passage, rows)
            member.passage = None

    def _prepare_recorded(self, member: Member, attempt: AttemptRecord) -> None:
        """Go on with a recorded intent: what it was, it stays."""
        member.attempt = attempt.attempt
        member.started_at = attempt.started_at
        member.resolved_text = attempt.resolved_arguments or attempt.arguments
        member.edges = attempt.edges
        member.idempotency_key = attempt.idempotency_key
        member.undo_registered = attempt.undo_registered
        member.tries = attempt.tries
        member.written_ahead = True
        member.effect_possible = True

    async def _find_tool(self, member: Member) -> ToolDescription | None:
        """Return the tool; wait for its worker, up to the call's deadline, where it was there before or is elsewhere."""
        tools = self._tools
        name = member.call.tool_name
        found = tools.describe(name)
        if found is not None:
            return found
        if not self._was_there_before(member):
            member.tool_was_offered = await tools.was_offered(name)
            if not member.tool_was_offered:
                return None
        seconds = self._timeout_seconds(member, None)
        search = self._tasks.spawn(tools.find(name, seconds))
        search.add_done_callback(_see)
        await self._wait(member, EffectClass.READ_ONLY, search, seconds)
        if not search.done():
            search.cancel()
        return search.result() if search.done() and not search.cancelled() else tools.describe(name)

    def _was_there_before(self, member: Member) -> bool:
        return (
            member.resumed
            or member.tool_was_offered
            or any(
                step.tool_name == member.call.tool_name
                and step.effect_class is not None
                and not step.reported
                for step in self.transaction.steps.values()
            )
        )

    def _no_tool(self, member: Member) -> StepFailure:
        if self._was_there_before(member):
            return failure_text.tool_absent(member.call.tool_name)
        known = [tool.name for tool in self._tools.describe_all()]
        return failure_text.unknown_tool(member.call.tool_name, known)

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
        tool = None if member.call.report is not None else self._tools.describe(member.call.tool_name)
        resolution = references.resolve(
            member.parsed,
            step_id=member.step_id,
            first_invisible_step=self.first,
            output_of=lambda step: outputs.get(step, json_values.MISSING),
            reads_templates=tool is not None and tool.reads_templates,
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
        if member.state is AttemptState.AWAITING_APPROVAL:
            self._unfinished -= 1
            if self._unfinished and not member.durable:
                await self._make_durable(member)
            return
        if member.call.report is not None:
            outcome = self._take_report(member, member.call.report)
        elif member.refused is not None:
            outcome = Outcome(AttemptState.FAILED, failure=member.refused)
        else:
            outcome = await self._run_tool(member)
        member.state = outcome.state
        member.output = outcome.output
        member.failure = outcome.failure
        member.ended_at = self._services.clock.now()
        self._unfinished -= 1
        if self._unfinished:
            await self._make_durable(member)

    def _take_report(self, member: Member, report: StepReport) -> Outcome:
        """Take what the agent says for the run: it is over, so nothing can cancel it, and nothing precedes its commit."""
        member.cancelled = False
        transaction = self.transaction
        sequence = transaction.record.undo_sequence
        keys = [self._services.ids.new_id() for _ in report.undo]
        now = self._services.clock.now()
        member.reported_undo = step_report.undo_rows(self.record_of(member), report, sequence, keys, now)
        if member.reported_undo:
            transaction.undo |= {undo.sequence: undo for undo in member.reported_undo}
            transaction.record = replace(
                transaction.record, undo_sequence=sequence + len(member.reported_undo)
            )
            member.undo_registered = True
        if member.refused is not None:
            return Outcome(AttemptState.FAILED, failure=member.refused)
        member.tries = 1
        if report.output_json is None:
            failure = failure_text.reported(report.error, self._services.clean)
            return Outcome(AttemptState.FAILED, failure=failure)
        return Outcome(AttemptState.COMPLETED, output=report.output_json)

    async def _make_durable(self, member: Member) -> None:
        rows = Rows()
        self.add_rows(member, rows)
        rows.attempts.append(self.record_of(member))
        member.durable = True
        head: dict[str, Any] = {}
        # That it was cancelled is in memory only, and whoever goes on with the group after a crash has its row.
        if kept := kept_by_cancelling(member):
            head["kept_effects"] = also_kept(self.transaction.record.kept_effects, kept)
        await self._writer.write(
            self.transaction,
            rows,
            open_group=(self.first, self.size),
            status=TransactionStatus.EXECUTING,
            **head,
        )

    def add_intent(self, member: Member, rows: Rows) -> None:
        """Add what is about to run, with which arguments, under which key, if it is not written yet."""
        if member.written_ahead:
            return
        member.written_ahead = True
        rows.attempts.append(self.record_of(member))
        self._record_passage(member, rows)
        rows.event(
            EventType.STEP_STARTED,
            member.step_id,
            member.attempt,
            tool_name=member.call.tool_name,
            effect_class=member.effect_class,
        )

    async def _write_ahead(self, member: Member) -> None:
        """Make the intent durable."""
        if member.written_ahead:
            return
        rows = Rows()
        self.add_intent(member, rows)
        await self._writer.write(
            self.transaction, rows, open_group=(self.first, self.size), status=TransactionStatus.EXECUTING
        )

    async def _run_tool(self, member: Member) -> Outcome:
        tool = member.tool
        if tool is None:
            if member.recorded is None:
                raise RuntimeError("a member without a tool was refused before")
            # It was begun, and the tool that could end it is gone: a person has to say.
            return Outcome(AttemptState.IN_DOUBT, failure=self._no_tool(member))
        acts_outside = tool.effect_class.acts_outside
        if acts_outside:
            self._lease.check(self.held_under)
            if not member.written_ahead:
                member.idempotency_key = await self._idempotency_key(member, tool)
            await self._write_ahead(member)
        if self._is_cancelled(member):
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
                if member.journal is not None and member.journal.is_stuck:
                    return outcome  # it is what a sub-step did that isn't known
                member.effect_possible = True
                unknown_runs += 1
                if tool.effect_class is not EffectClass.IDEMPOTENT:
                    return outcome
                if unknown_runs > self._services.settings.idempotent_reruns:
                    return outcome
            elif member.was_lost and number < self._services.settings.idempotent_reruns:
                pass  # its calls are answered from the journal
            elif (
                not retriable
                or number >= retries
                or outcome.failure is None
                or outcome.failure.hint.category not in _RETRIED_IN_PLACE
            ):
                return outcome
            number += 1
            backoff = self._services.settings.retry_base_seconds * 2 ** min(number - 1, 6)
            await self._pause(member, tool, backoff * (0.5 + self._services.ids.random()))
            if self._is_cancelled(member):
                if outcome.state is AttemptState.IN_DOUBT:
                    member.cancelled = True
                    return self._cancelled(member)
                return outcome

    def _is_cancelled(self, member: Member) -> bool:
        return self.cancel_request is not None or bool(member.cancel_why)

    async def _run_once(self, member: Member, tool: ToolDescription) -> Outcome:
        """Call the tool once, under its deadline, and say how that ended."""
        seconds = self._timeout_seconds(member, tool)
        context = self._open_context(member, seconds)
        member.tries += 1
        loop = asyncio.get_running_loop()
        arguments, member.resolved = member.resolved, None
        if arguments is None:  # handed out before: a tool may have changed it
            arguments = json_values.load(member.resolved_text or "null")
        task = loop.create_task(self._call(member, tool, arguments, context))
        member.running = task
        task.add_done_callback(_see)
        first_wait = min(seconds, self._services.settings.long_step_seconds)
        await self._wait(member, tool.effect_class, task, first_wait)
        if not task.done() and not member.cancelled:
            if first_wait < seconds:
                await self._write_ahead_of_long_step(member, task)
            left = context.seconds_left
            if left > 0 and not task.done():
                await self._wait(member, tool.effect_class, task, left)
        if not task.done():
            outcome = await self._stop_late(member, tool, task, seconds)
        else:
            context.close("the step has ended")
            refused = None if task.cancelled() else task.exception()
            if isinstance(refused, LeaseEnded) and context.store_failure is None:
                member.tries -= 1  # it was not called
                raise refused
            outcome = self._outcome(member, tool, task)
        if member.journal is not None:
            ruled = await member.journal.settle(outcome.state)
            if ruled is not None:
                outcome = Outcome(ruled[0], failure=ruled[1])
        if context.store_failure is not None:
            # What the tool made of it is no outcome: the step is settled as after a crash.
            raise context.store_failure
        return outcome

    async def _call(
        self, member: Member, tool: ToolDescription, arguments: Any, context: StepContext
    ) -> object:
        """Call a tool if the lease lasts and the gate lets it pass, in one go: between two the process may stand still."""
        context.check_begin()
        if member.function is not None:
            return await member.function(arguments, context)
        self._check_passage(member, tool, arguments)
        return await self._tools.run(tool.name, arguments, context)

    def _check_passage(self, member: Member, tool: ToolDescription, arguments: Any) -> None:
        """Raise CallRefused unless a call may run by what is known of its tool now; no tool is run but behind this.

        The tool may have come, or become another, since the call was looked at, and an attempt that
        goes on after a crash was not looked at here at all.
        """
        now = self._tools.describe(tool.name) or tool
        if now.effect_class is not tool.effect_class:
            # What was made durable before it, and how it would be settled, was for the other one.
            raise CallRefused(failure_text.tool_replaced(tool.name))
        if now == member.passed or self._is_approved(member):
            return
        if self._gate.needs_approval(now, arguments):
            raise CallRefused(self._approval_missing(member))
        member.passed = now

    def _is_approved(self, member: Member) -> bool:
        """Whether a person approved the call, of this run or of the one that it goes on from."""
        if member.approved:
            return True
        used = self.transaction.used_approval(member.step_id, member.attempt)
        called = member.call.tool_name, member.resolved_text
        return used is not None and (used.tool_name, used.arguments) == called

    def _approval_missing(self, member: Member) -> StepFailure:
        return failure_text.needs_approval_by_now(member.call.tool_name)

    async def _write_ahead_of_long_step(self, member: Member, task: asyncio.Task[object]) -> None:
        try:
            await self._write_ahead(member)
        except Exception:
            self._stop(member, "the database could not serve the step")
            self._tasks.adopt(task)
            raise

    async def _wait(
        self, member: Member, effect_class: EffectClass, task: asyncio.Future[Any], seconds: float
    ) -> None:
        """Wait for a tool, or until it is cancelled; only CancelStep interrupts an IRREVERSIBLE one."""
        interruptible = effect_class is not EffectClass.IRREVERSIBLE

        def is_stopped() -> bool:
            return bool(member.cancel_why) or (interruptible and self.cancel_request is not None)

        if is_stopped():
            return
        await asyncio.sleep(0)
        # A tool that waits for nothing has ended by now: no timer, nobody to wake.
        if task.done() or is_stopped():
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake(*_: object) -> None:
            if not waiter.done():
                waiter.set_result(None)

        def wake_if_stopped() -> None:
            if is_stopped():
                wake()

        # By hand: asyncio.wait costs 2.5 times as much (4.6 µs), and this is every step's path.
        timer = loop.call_later(seconds, wake)
        task.add_done_callback(wake)
        self._cancel_wakes.add(wake_if_stopped)
        try:
            await waiter
        finally:
            timer.cancel()
            task.remove_done_callback(wake)
            self._cancel_wakes.discard(wake_if_stopped)

    async def _pause(self, member: Member, tool: ToolDescription, seconds: float) -> None:
        """Wait before the next try, or until there will be none."""
        pause = asyncio.ensure_future(self._services.clock.sleep(seconds))
        await self._wait(member, tool.effect_class, pause, seconds)
        pause.cancel()

    async def _stop_late(
        self, member: Member, tool: ToolDescription, task: asyncio.Task[object], seconds: float
    ) -> Outcome:
        """Settle a tool that ran past its deadline or was asked to stop."""
        self._stop(member, "its deadline passed" if not member.cancelled else "it was cancelled")
        await asyncio.sleep(0)  # one that was not called yet can say so at once, and is not in doubt
        if task.done() and not task.cancelled() and isinstance(task.exception(), NotCalled):
            return self._outcome(member, tool, task)
        if tool.effect_class.acts_outside and tool.effect_class is not EffectClass.IRREVERSIBLE:
            await asyncio.wait((task,), timeout=self._services.settings.stop_grace_seconds)
        if not task.done():
            self._tasks.adopt(task)
            if tool.effect_class in (EffectClass.COMPENSATABLE, EffectClass.IRREVERSIBLE):
                member.outlived = task
        if member.cancelled:
            return self._cancelled(member)
        failure = failure_text.timed_out(tool.name, seconds)
        unknown = tool.effect_class in (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE)
        return Outcome(AttemptState.IN_DOUBT if unknown else AttemptState.FAILED, failure=failure)

    def _stop(self, member: Member, why: str) -> None:
        if member.context is not None:
            member.context.close(why)
        if member.running is not None and not member.running.done():
            member.running.cancel()

    def _outcome(self, member: Member, tool: ToolDescription, task: asyncio.Task[object]) -> Outcome:
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        unknown_class = tool.effect_class in (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE)
        if isinstance(error, CallRefused):
            member.tries -= 1  # it was not called
            member.was_lost = False
            if not member.cancelled:
                doubtful = member.effect_possible and tool.effect_class.acts_outside
                state = AttemptState.IN_DOUBT if doubtful else AttemptState.FAILED
                return Outcome(state, failure=error.failure)
        if member.cancelled and error is not None:
            return self._cancelled(member)
        if error is None:
            member.cancelled = False  # it ended before it could be stopped
            return self._checked_output(member, tool, task.result())
        if isinstance(error, ArgumentsRefused):
            member.tries = 0
            if member.resumed or member.approved:
                return Outcome(AttemptState.FAILED, failure=failure_text.tool_changed(tool.name, error))
        if isinstance(error, NotCalled):
            member.tries -= 1
            state = AttemptState.IN_DOUBT if member.effect_possible and unknown_class else AttemptState.FAILED
            return Outcome(state, failure=failure_text.from_exception(error, self._services.clean))
        member.was_lost = tool.restartable and isinstance(error, (OutcomeUnknown, RunnerLost))
        if member.was_lost:
            return Outcome(
                AttemptState.FAILED, failure=failure_text.from_exception(error, self._services.clean)
            )
        if isinstance(error, OutcomeUnknown):
            failure = failure_text.outcome_unknown(tool.name, error)
            state = AttemptState.IN_DOUBT if unknown_class else AttemptState.FAILED
            return Outcome(state, failure=failure)
        if isinstance(error, StepWaits) and self._may_wait(member):
            member.waits = error
            return Outcome(AttemptState.WAITING)
        if isinstance(error, ContextClosed):
            return Outcome(AttemptState.FAILED, failure=failure_text.cancelled(tool.name, str(error)))
        if isinstance(error, SubStepFailed):
            known = member.journal.failure_of(error.sub_step) if member.journal is not None else None
            if known is not None:  # else somebody made it up
                return Outcome(AttemptState.FAILED, failure=known)
        return Outcome(AttemptState.FAILED, failure=failure_text.from_exception(error, self._services.clean))

    def _may_wait(self, member: Member) -> bool:
        """Whether a member may stop to wait for something outside."""
        return False

    def _sees_before(self, member: Member) -> int:
        """Return the first step whose writes a member doesn't see."""
        return self.first

    def _checked_output(self, member: Member, tool: ToolDescription, value: object) -> Outcome:
        # An IRREVERSIBLE effect has happened even if its result can't be kept: not a failure.
        lost = AttemptState.IN_DOUBT if tool.effect_class is EffectClass.IRREVERSIBLE else AttemptState.FAILED
        try:
            text = json_values.canonical(value)
        except json_values.ValueRefused as refused:
            return Outcome(lost, failure=failure_text.output_refused(tool.name, refused))
        except BaseException as error:  # a value of the tool's own class: reading it runs the tool's code
            return Outcome(lost, failure=failure_text.from_exception(error, self._services.clean))
        limit = self._services.limits.output_bytes
        if member.call.output_limit_bytes is not None:
            limit = min(limit, member.call.output_limit_bytes)
        size = utf8_size(text)
        if size > limit:
            return Outcome(lost, failure=failure_text.output_too_large(tool.name, size, limit))
        return Outcome(AttemptState.COMPLETED, output=text)

    def _why_cancelled(self, member: Member) -> str:
        asked = self.cancel_request.why if self.cancel_request else "the server is stopping"
        return member.cancel_why or asked

    def _cancelled(self, member: Member) -> Outcome:
        failure = failure_text.cancelled(member.call.tool_name, self._why_cancelled(member))
        unknown = member.tries and member.effect_class is EffectClass.IRREVERSIBLE
        return Outcome(AttemptState.IN_DOUBT if unknown else AttemptState.FAILED, failure=failure)

    # --- details ------------------------------------------------------------------------

    def _timeout_seconds(self, member: Member, tool: ToolDescription | None) -> float:
        for microseconds in (
            member.call.timeout_us,
            tool.timeout_us if tool else None,
            self.transaction.record.step_timeout_us,
        ):
            if microseconds is not None:
                return microseconds / 1_000_000
        return self._services.settings.step_timeout_seconds

    def _open_context(self, member: Member, seconds: float) -> StepContext:
        services = self._services
        record = self.transaction.record

        def check_begin() -> None:
            # Functions too: what they did for a server that stood still, another one may have finished by now.
            if member.function is not None or (
                member.tool is not None and member.tool.effect_class.acts_outside
            ):
                self._lease.check(self.held_under)

        async def register_undo(undo_name: str, arguments: str, key: str) -> None:
            await self._register_undo(member, undo_name, arguments, key)

        async def update_undo(undo_name: str, arguments: str) -> None:
            await self._update_undo(member, undo_name, arguments)

        async def make_sub_step(call: SubStepCall) -> str:
            return await self._make_sub_step(member, call)

        member.context = StepContext(
            transaction_id=record.transaction_id,
            agent_id=record.agent_id,
            step_id=member.step_id,
            attempt=member.attempt,
            group_first=self._sees_before(member),
            idempotency_key=member.idempotency_key,
            deadline=services.clock.monotonic() + seconds,
            fence=record.revision,
            metadata=member.call.metadata,
            owner=record.principal,
            store=services.store,
            clock=services.clock,
            ids=services.ids,
            limits=services.limits,
            register_undo=register_undo,
            update_undo=update_undo,
            make_sub_step=make_sub_step,
            check_begin=check_begin,
            calls=None if member.function is None else partial(self._journal_of, member),
            validates_scans=record.isolation is Isolation.SERIALIZABLE,
            **self._context_of_sub_step(member),
        )
        self._begin_calls(member)
        return member.context

    def _begin_calls(self, member: Member) -> None:
        """Count the calls that a member makes from 1 again: its code begins with its first line."""
        made_before = member.step_id in self.transaction.sub_steps or member.adopts is not None
        if member.journal is not None or made_before:
            self._journal_of(member).begin_run()

    async def _make_sub_step(self, member: Member, call: SubStepCall) -> str:
        return await self._journal_of(member).step(call)

    def _context_of_sub_step(self, member: Member) -> dict[str, Any]:
        """Return what a sub-step's context has beyond a step's."""
        return {}

    def _journal_of(self, member: Member) -> StepJournal:
        if self._sub_steps is None:
            raise RuntimeError("no sub-steps can be made here")
        if member.journal is None:
            member.journal = self._sub_steps.journal(self, member)
        return member.journal

    async def _register_undo(self, member: Member, undo_name: str, arguments: str, key: str) -> None:
        self._lease.check()
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
            sub_step=member.sub_step,
        )
        self.transaction.undo[sequence] = undo
        # At once: a sibling that registers before this is written gets the next number.
        self.transaction.record = replace(self.transaction.record, undo_sequence=sequence)
        member.undo_registered = True
        await self._writer.write(self.transaction, Rows(undo=[undo]))
        member.registered.append(undo)

    async def _update_undo(self, member: Member, undo_name: str, arguments: str) -> None:
        """Say more about an effect that has happened: what its undo needs, or that there is nothing to undo."""
        self._lease.check()
        for position in reversed(range(len(member.registered))):
            registered = member.registered[position]
            if registered.undo_name == undo_name:
                break
        else:
            raise ToolFailure(
                HintCategory.UNKNOWN,
                f"{member.call.tool_name} updated the undo action '{undo_name[:64]}', which it had not registered.",
            )
        updated = replace(registered, arguments=arguments)
        self.transaction.undo[updated.sequence] = updated
        member.registered[position] = updated
        await self._writer.write(self.transaction, Rows(undo=[updated]))

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


def _refuse_report_of_effect(member: Member, why: str) -> None:
    """Refuse a report whose references lead nowhere but whose call succeeded: as a failure it would hide an effect."""
    report = member.call.report
    if report is not None and report.output_json is not None:
        raise InvalidRequest((FieldViolation("arguments_json", why),))


def call_fingerprint(step_id: int, call: StepCall, arguments: str) -> str:
    """Return a step request's identity."""
    if call.report is not None:
        return step_report.report_fingerprint(step_id, call, call.report, arguments)
    return fingerprint(str(step_id), call.tool_name, arguments)
