"""ExecuteStep and ExecuteStepGroup: from the request to the settled answer.

In this order: idempotency, the order of steps, the run, then one settlement:
success, a decision with its rewind, doubt, or a cancellation. The caller holds the lock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from agenttx_server.engine import failure_text, json_values, limits, refusals
from agenttx_server.engine.approvals import withdraw
from agenttx_server.engine.attempt_history import live_attempt
from agenttx_server.engine.errors import FieldViolation, InvalidRequest, RequestIdReused, RunsElsewhere
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.group_run import GroupRun, Member, call_fingerprint
from agenttx_server.engine.group_settlement import GroupSettlement, unsettled_answer
from agenttx_server.engine.late_tools import GivenUp, LateTools
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.recorded_answers import check_same_request
from agenttx_server.engine.records import (
    AttemptKey,
    AttemptRecord,
    AttemptState,
    EffectClass,
    EventType,
    TransactionStatus,
)
from agenttx_server.engine.requests import GroupRequest, StepAnswer, StepCall, StepStatus
from agenttx_server.engine.rewinding import Rewinder, member_answer
from agenttx_server.engine.server_lease import ServerLease
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_answers import decode_answer, within_output_limit
from agenttx_server.engine.sub_step_run import SubMember, as_sub_step
from agenttx_server.engine.sub_steps import SubSteps
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import CacheEntry
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["StepExecution"]

T = TypeVar("T")


class StepExecution:
    """Executes groups of steps on loaded, locked transactions."""

    def __init__(
        self,
        services: EngineServices,
        writer: TransactionWriter,
        rewinder: Rewinder,
        settlement: GroupSettlement,
        tasks: OwnedTasks,
        lease: ServerLease,
        late: LateTools,
        sub_steps: SubSteps,
    ) -> None:
        self._sub_steps = sub_steps
        self._services = services
        self._writer = writer
        self._rewinder = rewinder
        self._settlement = settlement
        self._tasks = tasks
        self._lease = lease
        self._late = late

    async def execute(
        self, entry: CacheEntry, transaction: Transaction, request: GroupRequest
    ) -> tuple[StepAnswer, ...]:
        """Answer a group: replayed where its request_ids are known, else run and settled."""
        if entry.left_open is not None:
            revision, patience = entry.left_open
            if revision == transaction.record.revision and self._services.clock.monotonic() < patience:
                raise RunsElsewhere
            entry.left_open = None
        members = [self._member(request.step_id + index, call) for index, call in enumerate(request.calls)]
        recorded = [await self._recorded(transaction, member) for member in members]
        if all(recorded):
            return self._within_limit([answer for answer in recorded if answer is not None])
        self._check(transaction, request, members)
        for member, answer in zip(members, recorded, strict=True):
            if answer is not None:  # answered for good as part of another request
                raise RequestIdReused(member.call.request_id, "another request", member.fingerprint[:12])
        replayed = await self._open_group_attempts(transaction, request, members)
        done = {attempt.step_id for attempt in replayed}
        run = self.new_run(
            transaction, [member for member in members if member.step_id not in done], replayed
        )
        await self.carry_out(entry, run)
        try:
            return await self.guarded(run, self._settlement.settle(transaction, run))
        except RunsElsewhere:
            patience = self._services.clock.monotonic() + self._services.settings.lease_seconds
            entry.left_open = transaction.record.revision, patience
            raise

    def new_run(
        self,
        transaction: Transaction,
        members: Sequence[Member],
        replayed: Sequence[AttemptRecord],
        size: int | None = None,
    ) -> GroupRun:
        """Return a run of the transaction's next group; ``size`` where members of it are missing."""
        return GroupRun(
            self._services,
            self._writer,
            self._tasks,
            transaction,
            members,
            replayed,
            self._lease,
            size=size,
            sub_steps=self._sub_steps,
        )

    async def carry_out(self, entry: CacheEntry, run: GroupRun) -> None:
        """Bring every member of a run to its outcome."""
        entry.running = run
        try:
            await self.guarded(run, run.run())
        finally:
            entry.running = None

    async def guarded(self, run: GroupRun, work: Awaitable[T]) -> T:
        """Do work on a run; where it fails its steps are settled anew, so note what was and is done here."""
        try:
            return await work
        except Exception:
            transaction_id = run.transaction.record.transaction_id
            for member in [*run.members, *_calls_of(run)]:
                if member.call.report is not None:
                    continue  # nothing was run here: whoever reported it does so again
                if not member.tries or member.effect_class is None or not member.effect_class.acts_outside:
                    continue
                given_up = GivenUp(_record_of(run, member), tuple(member.registered))
                if member.running is not None and not member.running.done():
                    self._late.await_tool(run.transaction.record, member.running, given_up)
                else:  # perhaps another server has settled the steps meanwhile
                    self._late.note(transaction_id, [given_up])
            raise

    def _within_limit(self, answers: list[StepAnswer]) -> tuple[StepAnswer, ...]:
        return within_output_limit(answers, self._services.limits.group_output_bytes)

    # --- before the run -----------------------------------------------------------------

    def _member(self, step_id: int, call: StepCall) -> Member:
        text = call.arguments_json or "{}"
        try:
            parsed, arguments = json_values.parse_canonical(text)
        except json_values.ValueRefused as refused:
            member = Member(step_id, call, call_fingerprint(step_id, call, text), text)
            member.refused = failure_text.refused_arguments(refused, text)
            return member
        return Member(step_id, call, call_fingerprint(step_id, call, arguments), arguments, parsed)

    async def _recorded(self, transaction: Transaction, member: Member) -> StepAnswer | None:
        """Return the answer a request_id has already, None if it has none."""
        request_id = member.call.request_id
        if not request_id or request_id not in transaction.request_ids:
            return None
        found = await self._services.store.find_attempt(transaction.record.transaction_id, request_id)
        if found is None:
            raise RequestIdReused(request_id, "another kind of request", member.fingerprint[:12])
        attempt, rewound = found
        check_same_request(request_id, attempt.fingerprint, member.fingerprint)
        if attempt.response is not None:
            answer = decode_answer(attempt.response, attempt.output, attempt.edges)
            # Only what succeeded can be undone since; a failure's answer stays as it was.
            undone = rewound and answer.status is StepStatus.SUCCESS
            return replace(answer, replayed=True, rewound=answer.rewound or undone)
        pending = transaction.record.pending_rewind
        if pending is not None and AttemptKey(attempt.step_id, attempt.attempt) in pending.members:
            return replace(member_answer(attempt, self._rewinder.held_result(transaction)), replayed=True)
        in_doubt = transaction.record.status is TransactionStatus.IN_DOUBT
        if in_doubt and attempt.state is not AttemptState.EXECUTING and not rewound:
            return replace(unsettled_answer(transaction, attempt), replayed=True)
        if rewound and not transaction.record.status.is_terminal:
            refusals.check_not_passed(transaction.record, attempt)
        return None

    def _check(self, transaction: Transaction, request: GroupRequest, members: list[Member]) -> None:
        record = transaction.record
        refusals.check_not_ended(record)
        refusals.check_generation(record, request.generation)
        refusals.check_not_held(transaction)
        refusals.check_order(record, request.step_id)
        refusals.check_not_in_doubt(transaction)
        limits.check_step_number(request.step_id, len(members), self._services.limits)
        # What was begun goes to its end, and what has happened outside has to be known, or it could not be undone.
        if record.open_group is None and members[0].call.report is None:
            self._services.check_stored(record.principal)
        if len(members) == 1:
            return
        for index, member in enumerate(members):
            tool = self._services.tools_of(record.principal).describe(member.call.tool_name)
            if tool is not None and tool.effect_class is EffectClass.IRREVERSIBLE and not tool.undo_names:
                raise InvalidRequest(
                    (
                        FieldViolation(
                            f"members[{index}].tool_name",
                            f"'{tool.name}' can't be undone; send it as a step of its own",
                        ),
                    )
                )

    async def _open_group_attempts(
        self, transaction: Transaction, request: GroupRequest, members: list[Member]
    ) -> list[AttemptRecord]:
        """Return the members of a group that was cut off which have their outcome already."""
        group = transaction.record.open_group
        if group is None:
            return []
        if group != (request.step_id, len(members)):
            refusals.check_settled(transaction)
        found: list[AttemptRecord] = []
        for member in members:
            live = transaction.steps.get(member.step_id)
            if live is None:
                continue
            if live.state is AttemptState.EXECUTING:
                # What was left behind is settled by now: another server runs it.
                if live.request_id and live.request_id == member.call.request_id:
                    raise RunsElsewhere
                raise refusals.step_executing(member.step_id, live)
            attempt = await live_attempt(
                self._services.store, transaction.record.transaction_id, member.step_id, live
            )
            waited = attempt.state is AttemptState.AWAITING_APPROVAL
            if attempt.fingerprint != member.fingerprint or attempt.request_id != member.call.request_id:
                refusals.check_no_approval_pending(transaction)
                if waited and len(members) == 1:
                    await self._drop_approved(transaction, attempt)
                    return []
                raise refusals.step_executing(member.step_id, live)
            if waited:
                member.waited = attempt
            else:
                found.append(attempt)
        return found

    async def _drop_approved(self, transaction: Transaction, attempt: AttemptRecord) -> None:
        """Drop an approved step that was not begun for another request: the approval is not for that one."""
        now = self._services.clock.now()
        rows = Rows(attempts=[replace(attempt, state=AttemptState.SUPERSEDED, ended_at=now)])
        rows.event(EventType.STEP_SUPERSEDED, attempt.step_id, attempt.attempt, tool_name=attempt.tool_name)
        for approval in transaction.live_approvals(attempt.step_id):
            withdraw(transaction, approval, "another call was sent for its step", rows, now)
        transaction.supersede(attempt.step_id)
        await self._writer.write(transaction, rows, status=TransactionStatus.ACTIVE, open_group=None)


def _calls_of(run: GroupRun) -> list[SubMember]:
    """The sub-steps of a run that have no durable outcome."""
    return [
        call
        for member in run.members
        if member.journal is not None
        for call in member.journal.running_members
    ]


def _record_of(run: GroupRun, member: Member) -> AttemptRecord:
    record = run.record_of(member)
    return as_sub_step(record, member) if isinstance(member, SubMember) else record
