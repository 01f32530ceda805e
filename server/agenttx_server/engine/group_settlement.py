"""Settles a group whose members all ended or wait: success, doubt, a wait, a decision, or a cancellation.

One commit where nothing has to be undone. The caller holds the transaction's lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from agenttx_server.engine import failure_text, rollback_controller, sub_step_tracing
from agenttx_server.engine.errors import RunsElsewhere
from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.group_run import GroupRun, Member
from agenttx_server.engine.kept_effects import also_kept, kept_by_cancelling
from agenttx_server.engine.late_tools import GivenUp, LateTools
from agenttx_server.engine.records import (
    AttemptKey,
    AttemptRecord,
    AttemptState,
    Constraint,
    Decision,
    EffectClass,
    KeptEffect,
    MicrosecondsUtc,
    PendingRewind,
    RewindPurpose,
    StateRead,
    StateWrite,
    Strategy,
    TransactionStatus,
    UndoRecord,
)
from agenttx_server.engine.requests import ApprovalView, RootCause, StepAnswer, StepStatus
from agenttx_server.engine.rewinding import Rewinder, RewindResult, member_answers
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_answers import encode_answer, within_output_limit
from agenttx_server.engine.touches import Touched, touched_by
from agenttx_server.engine.transaction import Transaction, touched_conflict
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter
from agenttx_server.engine.write_order import sub_step_of

_Outlived = tuple[asyncio.Task[object], GivenUp]

__all__ = ["GroupSettlement", "unsettled_answer"]


class GroupSettlement:
    """Settles runs of groups on loaded, locked transactions."""

    def __init__(
        self, services: EngineServices, writer: TransactionWriter, rewinder: Rewinder, late: LateTools
    ) -> None:
        self._services = services
        self._writer = writer
        self._rewinder = rewinder
        self._late = late

    async def settle(
        self, transaction: Transaction, run: GroupRun, rows: Rows | None = None
    ) -> tuple[StepAnswer, ...]:
        """Settle a run and return an answer for each step; ``rows`` are written with it."""
        outlived: list[_Outlived] = []
        try:
            answers = await self._settle(transaction, run, rows or Rows(), outlived)
        except RunsElsewhere:  # the group was left open
            self._await_tools(transaction, outlived)
            raise
        self._await_tools(transaction, outlived)
        return answers

    async def _settle(
        self, transaction: Transaction, run: GroupRun, rows: Rows, outlived: list[_Outlived]
    ) -> tuple[StepAnswer, ...]:
        verdict = _Verdict()
        if _is_judged(run):
            verdict = await self._judge_conflicts(transaction, run)
        kept = _kept_by_cancelling(run) + verdict.kept
        outlived += self._owe_late_undo(transaction, run, rows)
        for member in run.members:
            if not member.durable:
                run.add_rows(member, rows)
        if run.is_completed():
            return await self._settle_success(transaction, run, rows)
        attempts = {member.step_id: run.record_of(member) for member in run.members} | run.replayed
        ordered = [attempts[step] for step in sorted(attempts)]
        for attempt in ordered:
            transaction.finish_attempt(attempt)
        if any(attempt.state is AttemptState.IN_DOUBT for attempt in ordered):
            return await self._settle_in_doubt(transaction, run, ordered, rows)
        if run.cancel_request is not None and run.cancel_request.rewind is None:
            await self._leave_open(transaction, run, rows, verdict.kept)
            raise RunsElsewhere
        gives_way = self._gives_way(transaction, run)
        if not gives_way and any(attempt.state is AttemptState.AWAITING_APPROVAL for attempt in ordered):
            return await self._settle_waiting(transaction, run, ordered, rows)
        rows.drop_contexts()  # a rewind removes first: what is written with it would stay
        if gives_way:
            return await self._settle_cancelled(transaction, run, ordered, rows, kept)
        return await self._settle_failure(transaction, run, ordered, rows, verdict.disturbed, kept)

    def _within_limit(self, answers: list[StepAnswer]) -> tuple[StepAnswer, ...]:
        return within_output_limit(answers, self._services.limits.group_output_bytes)

    def _gives_way(self, transaction: Transaction, run: GroupRun) -> bool:
        """Whether the rewind or abort that waits for the group is made and not a decision on it."""
        request = run.cancel_request
        if request is None or request.rewind is None:
            return False
        pivot = transaction.pivot()
        # One that became a pivot while it was waited for refuses the rewind.
        return request.accept_irreversible or pivot is None or pivot.step_id < request.rewind.to_step

    async def leave_open(self, transaction: Transaction, run: GroupRun, rows: Rows) -> None:
        """Write a run's outcomes and leave its group open: who goes on with it, or takes it back, is another."""
        outlived = self._owe_late_undo(transaction, run, rows)
        await self._leave_open(transaction, run, rows)
        self._await_tools(transaction, outlived)

    async def _leave_open(
        self, transaction: Transaction, run: GroupRun, rows: Rows, kept: tuple[KeptEffect, ...] = ()
    ) -> None:
        """Leave a group open; ``kept`` stays when it is taken back, beside effects of cancelled members."""
        for member in run.members:
            attempt = run.record_of(member)
            transaction.finish_attempt(attempt)
            if not member.durable:
                rows.attempts.append(attempt)
        status = TransactionStatus.ACTIVE
        if transaction.in_doubt_steps():
            status = TransactionStatus.IN_DOUBT
        elif transaction.awaiting_steps():
            status = TransactionStatus.AWAITING_APPROVAL
        await self._writer.write(
            transaction,
            rows,
            status=status,
            open_group=(run.first, run.size),
            kept_effects=_with_kept(transaction, _kept_by_cancelling(run) + kept),
        )

    def _await_tools(self, transaction: Transaction, outlived: list[_Outlived]) -> None:
        """See to what tools do that still run, now that it is durable what is owed for it."""
        for tool, given_up in outlived:
            self._late.await_tool(transaction.record, tool, given_up)

    def _owe_late_undo(self, transaction: Transaction, run: GroupRun, rows: Rows) -> list[_Outlived]:
        """Owe the undo of tools that still run once more, for when they have ended; durable with the settlement."""
        outlived: list[_Outlived] = []
        for member in run.members:
            if member.outlived is None or member.outlived.done():
                continue
            if member.state is AttemptState.IN_DOUBT:  # taken back or not, that is not known yet
                doubtful = GivenUp(run.record_of(member), _registered_by(transaction, member))
                outlived.append((member.outlived, doubtful))
                continue
            copies = transaction.owe_once_more(_registered_by(transaction, member))
            if not copies:
                continue
            rows.undo += copies
            outlived.append((member.outlived, GivenUp(run.record_of(member), copies, is_owed=True)))
        return outlived

    async def _settle_success(
        self, transaction: Transaction, run: GroupRun, rows: Rows
    ) -> tuple[StepAnswer, ...]:
        record = transaction.record
        following = run.first + run.size
        constraints = tuple(constraint.text for constraint in record.constraints)
        done = {member.step_id: member for member in run.members} | run.replayed
        answers = self._within_limit(
            [
                StepAnswer(
                    status=StepStatus.SUCCESS,
                    next_step_id=following,
                    generation=record.generation,
                    attempt=done[step].attempt,
                    output=done[step].output,
                    constraints=constraints,
                    dependencies=done[step].edges,
                )
                for step in range(run.first, following)
            ]
        )
        for step, answer in enumerate(answers, start=run.first):
            item = done[step]
            response = encode_answer(answer)
            if isinstance(item, Member):
                attempt = run.record_of(item, response)
            else:
                attempt = replace(item, response=response)
            rows.attempts.append(attempt)
            transaction.finish_attempt(attempt)
        await self._writer.write(
            transaction,
            rows,
            status=TransactionStatus.ACTIVE,
            next_step_id=following,
            furthest_step=max(record.furthest_step, following - 1),
            open_group=None,
        )
        transaction.settle_outputs(rows.attempts)
        return answers

    async def _settle_failure(
        self,
        transaction: Transaction,
        run: GroupRun,
        ordered: list[AttemptRecord],
        rows: Rows,
        disturbed: frozenset[int],
        kept: tuple[KeptEffect, ...],
    ) -> tuple[StepAnswer, ...]:
        result = await self.decide(transaction, run, ordered, rows, disturbed, kept)
        return member_answers(ordered, result, self._services.limits.group_output_bytes)

    async def decide(
        self,
        transaction: Transaction,
        run: GroupRun,
        ordered: list[AttemptRecord],
        rows: Rows,
        disturbed: frozenset[int],
        kept: tuple[KeptEffect, ...],
        *,
        whole_groups: bool = False,
    ) -> RewindResult:
        """Decide on the lowest failed member that isn't ``disturbed``, and make the rewind that follows.

        ``whole_groups`` is that groups are gone back to whole: what counts for a step counts for the first of its group.
        """
        started_at = self._services.clock.now()
        failed = [item for item in ordered if _failed(item.state) and item.step_id not in disturbed]
        if not failed:
            states = ", ".join(f"{item.step_id} is {item.state}" for item in ordered)
            raise RuntimeError(f"a group is decided on and no member of it has failed: step {states}")
        decided = failed[0]
        roots, pivot = await self._roots(transaction, decided), transaction.pivot()
        if whole_groups:
            roots, pivot = _of_groups(transaction, roots), _group_pivot(transaction, pivot)
        decision, counters = rollback_controller.decide(
            rollback_controller.Failure(
                failed_step=decided.step_id,
                group_first=run.first,
                group_last=run.first + run.size - 1,
                keys=decided.hint.keys if decided.hint else (),
                never_called=not decided.tries,
                approval_rejected=decided.approval_rejected,
            ),
            policy=transaction.record.policy,
            counters=transaction.counters(),
            roots=roots,
            group_starts=transaction.group_starts_before(run.first),
            pivot=pivot,
        )
        pending = self._pending_rewind(transaction, decision, ordered, started_at, kept)
        rows.attempts = ordered
        spent = counters.budget_spent - transaction.record.budget_spent
        head: dict[str, Any] = {
            "constraints": self._with_constraints(transaction, failed),
            "failures": tuple(sorted(counters.failures.items())),
            "jumps": tuple(sorted(counters.jumps.items())),
            "budget_spent": counters.budget_spent,
            "global_resets": counters.global_resets,
            "furthest_step": counters.furthest_step,
            "replayed_steps": transaction.record.replayed_steps + max(spent, 0),
            "epoch": transaction.record.epoch + (1 if pending.context_reset else 0),
        }
        return await self._rewinder.begin(transaction, pending, rows, **head)

    async def _roots(self, transaction: Transaction, decided: AttemptRecord) -> Callable[[str], RootCause]:
        """Return how keys of a failure are traced: from the sub-step whose failure it was, if it was one's."""
        made: Sequence[AttemptRecord] = ()
        if decided.failed_sub_step:
            transaction_id = transaction.record.transaction_id
            made = (await self._services.store.load_journal(transaction_id, decided.step_id)).sub_steps
        failed = next((item for item in made if item.sub_step == decided.failed_sub_step), None)
        return sub_step_tracing.roots_of(transaction.graph, decided.step_id, failed, made)

    def _pending_rewind(
        self,
        transaction: Transaction,
        decision: Decision,
        ordered: list[AttemptRecord],
        started_at: MicrosecondsUtc,
        kept_of_group: tuple[KeptEffect, ...],
    ) -> PendingRewind:
        aborted = decision.strategy is Strategy.ABORT
        to_step = 1 if aborted else decision.target_step
        kept = transaction.kept_effects(to_step) + kept_of_group
        failed = next(attempt for attempt in ordered if attempt.step_id == decision.failed_step)
        keys = failed.hint.keys if failed.hint else ()
        decision = replace(decision, error_keys=keys, kept_effects=kept)
        return PendingRewind(
            purpose=RewindPurpose.DECISION,
            to_step=to_step,
            final_status=TransactionStatus.FAILED if aborted else TransactionStatus.ACTIVE,
            started_at=started_at,
            strategy=decision.strategy,
            decision=decision,
            members=tuple(AttemptKey(attempt.step_id, attempt.attempt) for attempt in ordered),
            context_reset=decision.strategy is Strategy.GLOBAL_RESET,
            kept_effects=kept,
        )

    def _with_constraints(
        self, transaction: Transaction, failed: list[AttemptRecord]
    ) -> tuple[Constraint, ...]:
        """Return the constraints in force after failures: no line twice, oldest out first."""
        lines = list(transaction.record.constraints)
        for attempt in failed:
            hint = attempt.hint
            if hint is not None and all(line.text != hint.text for line in lines):
                lines.append(Constraint(hint.text, hint.category, hint.keys))
        return tuple(lines[-self._services.limits.constraints :])

    async def _settle_in_doubt(
        self, transaction: Transaction, run: GroupRun, ordered: list[AttemptRecord], rows: Rows
    ) -> tuple[StepAnswer, ...]:
        rows.attempts = ordered
        await self._writer.write(
            transaction,
            rows,
            status=TransactionStatus.IN_DOUBT,
            open_group=(run.first, run.size),
            kept_effects=_with_kept(transaction, _kept_by_cancelling(run)),
        )
        return self._within_limit([unsettled_answer(transaction, attempt) for attempt in ordered])

    async def _settle_waiting(
        self, transaction: Transaction, run: GroupRun, ordered: list[AttemptRecord], rows: Rows
    ) -> tuple[StepAnswer, ...]:
        """Leave a group open in which a person is asked about a member; write nothing where nothing is new."""
        record = transaction.record
        known = record.status is TransactionStatus.AWAITING_APPROVAL
        if not known or rows.events or any(not member.durable for member in run.members):
            rows.attempts = ordered
            await self._writer.write(
                transaction,
                rows,
                status=TransactionStatus.AWAITING_APPROVAL,
                open_group=(run.first, run.size),
                kept_effects=_with_kept(transaction, _kept_by_cancelling(run)),
            )
        return self._within_limit([unsettled_answer(transaction, attempt) for attempt in ordered])

    async def _settle_cancelled(
        self,
        transaction: Transaction,
        run: GroupRun,
        ordered: list[AttemptRecord],
        rows: Rows,
        kept: tuple[KeptEffect, ...],
    ) -> tuple[StepAnswer, ...]:
        """Settle a group that a rewind or an abort stopped, and make that one: no decision."""
        request = run.cancel_request
        if request is None or request.rewind is None:
            raise RuntimeError("only a cancelled group is settled as one")
        to_step = min(request.rewind.to_step, run.first)
        rows.attempts = ordered
        pending = replace(
            request.rewind,
            to_step=to_step,
            members=tuple(AttemptKey(attempt.step_id, attempt.attempt) for attempt in ordered),
            kept_effects=transaction.kept_effects(to_step) + kept,
        )
        transaction.request_ids.update(key.request_id for key in pending.requests)
        request.result = await self._rewinder.begin(
            transaction, pending, rows, kept_effects=_with_kept(transaction, kept)
        )
        return member_answers(ordered, request.result, self._services.limits.group_output_bytes)

    async def _judge_conflicts(self, transaction: Transaction, run: GroupRun) -> _Verdict:
        """Fail the higher of two members that touched one key.

        Disturbed are lower members that failed by themselves on an outside thing which a higher one
        wrote: perhaps because it did so first. The decision must not depend on that, and is
        made on the higher one's conflict. For the same reason failed members, and those that
        lost, still stand with what they touched outside; with the state they have left nothing.
        """
        if run.size == 1:
            return _Verdict()
        standing: list[_Used] = []
        disturbed: set[int] = set()
        kept: list[KeptEffect] = []
        for used in await self._used(transaction, run):
            disturbed |= {
                earlier.step_id
                for earlier in standing
                if earlier.failed and used.outside.disturbs(earlier.outside)
            }
            clash = next(
                (
                    (earlier.step_id, key)
                    for earlier in standing
                    if (key := used.conflict(earlier)) is not None
                ),
                None,
            )
            if clash is None:
                standing.append(used)
                continue
            standing.append(_Used(used.step_id, (), (), used.outside))
            kept += _kept_by_losing(run, used.step_id)
            _fail(run, used.step_id, failure_text.sibling_conflict(clash[1], clash[0]))
        return _Verdict(frozenset(disturbed), tuple(kept))

    async def _used(self, transaction: Transaction, run: GroupRun) -> list[_Used]:
        """Return what the group's ended members read, wrote and touched, in step order."""
        stored_reads: Sequence[StateRead] = ()
        stored_writes: Sequence[StateWrite] = ()
        if run.replayed or any(member.step_id in transaction.sub_steps for member in run.members):
            stored_reads, stored_writes = await self._services.store.load_touched(
                transaction.record.transaction_id, run.first, run.first + run.size - 1
            )
        found = []
        for step, attempt in run.replayed.items():
            if attempt.state in _WITHOUT_END:
                continue
            read = [item for item in stored_reads if item.step_id == step]
            written = [item for item in stored_writes if item.step_id == step]
            found.append(_Used(step, read, written, touched_by(read), _failed(attempt.state)))
        for member in run.members:
            context = member.context
            if context is None or member.cancelled or member.state is AttemptState.IN_DOUBT:
                continue
            made = [read for read in stored_reads if read.step_id == member.step_id and read.sub_step]
            outside, failed = touched_by([*context.touches, *made]), _failed(member.state)
            reads: list[StateRead] = []
            writes: list[StateWrite] = []
            if not failed:
                reads = context.reads + made
                writes = context.writes + [
                    write
                    for write in stored_writes
                    if write.step_id == member.step_id and sub_step_of(write.sequence)
                ]
            found.append(_Used(member.step_id, reads, writes, outside, failed))
        return sorted(found, key=lambda used: used.step_id)


def unsettled_answer(transaction: Transaction, attempt: AttemptRecord) -> StepAnswer:
    """Return what the sender of a step is told while its group is not settled."""
    record = transaction.record
    if attempt.state is AttemptState.COMPLETED:
        status = StepStatus.SUCCESS
    elif attempt.state is AttemptState.AWAITING_APPROVAL or not transaction.in_doubt_steps():
        status = StepStatus.AWAITING_APPROVAL
    else:
        # A failed sibling too: nothing is decided on it yet, and FAILED would say that all has ended.
        status = StepStatus.IN_DOUBT
    approval = transaction.live_approval(attempt.step_id)
    return StepAnswer(
        status=status,
        next_step_id=record.next_step_id,
        generation=record.generation,
        attempt=attempt.attempt,
        output=attempt.output,
        hint=attempt.hint,
        constraints=tuple(constraint.text for constraint in record.constraints),
        dependencies=attempt.edges,
        approval=ApprovalView.of(record, approval) if approval is not None else None,
    )


# Members of whose use of keys nothing is known for good, so that the group is not judged yet.
_WITHOUT_END = frozenset({AttemptState.IN_DOUBT, AttemptState.AWAITING_APPROVAL})


@dataclass(frozen=True, slots=True)
class _Verdict:
    """On a group's conflicts: members that failed because of one, and effects of those that lost one."""

    disturbed: frozenset[int] = frozenset()
    kept: tuple[KeptEffect, ...] = ()


@dataclass(frozen=True, slots=True)
class _Used:
    """What one member used; ``failed`` is that it did so by itself."""

    step_id: int
    reads: Sequence[StateRead]
    writes: Sequence[StateWrite]
    outside: Touched
    failed: bool = False

    def conflict(self, other: _Used) -> str | None:
        """Return a key that one of the two wrote and the other used."""
        key = touched_conflict(self.reads, self.writes, other.reads, other.writes)
        return self.outside.conflict(other.outside) if key is None else key


def _registered_by(transaction: Transaction, member: Member) -> list[UndoRecord]:
    return [
        undo
        for _, undo in sorted(transaction.undo.items())
        if (undo.step_id, undo.sub_step, undo.attempt) == (member.step_id, member.sub_step, member.attempt)
        and not undo.late
    ]


def _kept_by_cancelling(run: GroupRun) -> tuple[KeptEffect, ...]:
    return tuple(effect for member in run.members for effect in kept_by_cancelling(member))


def _kept_by_losing(run: GroupRun, step_id: int) -> tuple[KeptEffect, ...]:
    """The effect of a member that succeeded and is about to fail by a conflict, if nothing takes it back."""
    attempt = run.replayed.get(step_id)
    if attempt is None:
        attempt = run.record_of(next(member for member in run.members if member.step_id == step_id))
    if attempt.state is not AttemptState.COMPLETED or attempt.undo_registered:
        return ()
    if attempt.effect_class not in (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE):
        return ()
    reason = "completed, then lost a conflict with a sibling, and has no registered undo"
    return (KeptEffect(step_id, attempt.attempt, attempt.tool_name, attempt.effect_class, reason),)


def _with_kept(transaction: Transaction, kept: tuple[KeptEffect, ...]) -> tuple[KeptEffect, ...]:
    return also_kept(transaction.record.kept_effects, kept)


def _is_judged(run: GroupRun) -> bool:
    """Whether a run is the whole of its group's end: not while a member is in doubt or waits, or another goes on with it."""
    states = [member.state for member in run.members]
    states += [attempt.state for attempt in run.replayed.values()]
    if not _WITHOUT_END.isdisjoint(states):
        return False
    return run.is_completed() or run.cancel_request is None or run.cancel_request.rewind is not None


def _failed(state: AttemptState) -> bool:
    return state is AttemptState.FAILED


def _fail(run: GroupRun, step_id: int, failure: failure_text.StepFailure) -> None:
    """Have a member fail at the settlement, whatever became of it before."""
    attempt = run.replayed.get(step_id)
    if attempt is not None:
        run.replayed[step_id] = replace(
            attempt, state=AttemptState.FAILED, output=None, hint=failure.hint, raw_error=failure.raw_error
        )
        return
    member = next(member for member in run.members if member.step_id == step_id)
    member.state = AttemptState.FAILED
    member.output = None
    member.failure = failure
    member.durable = False  # what is durable says something else


def _of_groups(transaction: Transaction, roots: Callable[[str], RootCause]) -> Callable[[str], RootCause]:
    """Trace to the first step of the group in which the root cause is."""

    def traced(key: str) -> RootCause:
        found = roots(key)
        live = None if found.step_id is None else transaction.steps.get(found.step_id)
        return found if live is None else RootCause(live.group_first, found.path)

    return traced


def _group_pivot(
    transaction: Transaction, pivot: rollback_controller.Pivot | None
) -> rollback_controller.Pivot | None:
    """Nothing goes back past the last step of a group with a step that can't be undone."""
    live = None if pivot is None else transaction.steps.get(pivot.step_id)
    if pivot is None or live is None:
        return pivot
    return replace(pivot, step_id=live.group_first + live.group_size - 1)
