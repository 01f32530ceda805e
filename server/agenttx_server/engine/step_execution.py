"""ExecuteStep and ExecuteStepGroup: from the request to the settled answer.

In this order: idempotency, the order of steps, the run, then one settlement:
success, a decision with its rewind, doubt, or a cancellation. The caller holds the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agenttx_server.engine import failure_text, json_values, limits, refusals, rollback_controller
from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.errors import FieldViolation, InvalidRequest, RequestIdReused
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.group_run import GroupRun, Member, call_fingerprint
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.recorded_answers import check_same_request
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
)
from agenttx_server.engine.requests import GroupRequest, StepAnswer, StepCall, StepStatus
from agenttx_server.engine.rewinding import Rewinder, member_answer, member_answers
from agenttx_server.engine.saga import Saga
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_answers import decode_answer, encode_answer, within_output_limit
from agenttx_server.engine.touches import Touched, touched_by
from agenttx_server.engine.transaction import Transaction, touched_conflict
from agenttx_server.engine.transaction_cache import CacheEntry
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["StepExecution"]


class StepExecution:
    """Executes groups of steps on loaded, locked transactions."""

    def __init__(
        self,
        services: EngineServices,
        writer: TransactionWriter,
        saga: Saga,
        rewinder: Rewinder,
        tasks: OwnedTasks,
    ) -> None:
        self._services = services
        self._writer = writer
        self._saga = saga
        self._rewinder = rewinder
        self._tasks = tasks

    async def execute(
        self, entry: CacheEntry, transaction: Transaction, request: GroupRequest
    ) -> tuple[StepAnswer, ...]:
        """Answer a group: replayed where its request_ids are known, else run and settled."""
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
        run = GroupRun(
            self._services,
            self._writer,
            self._saga,
            self._tasks,
            transaction,
            [member for member in members if member.step_id not in done],
            replayed,
        )
        entry.running = run
        try:
            await run.run()
        finally:
            entry.running = None
        return await self._settle(transaction, run)

    def _within_limit(self, answers: list[StepAnswer]) -> tuple[StepAnswer, ...]:
        return within_output_limit(answers, self._services.limits.group_output_bytes)

    # --- before the run -----------------------------------------------------------------

    def _member(self, step_id: int, call: StepCall) -> Member:
        text = call.arguments_json or "{}"
        try:
            parsed = json_values.parse(text)
            arguments = json_values.canonical(parsed)
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
            return replace(self._unsettled_answer(transaction, attempt), replayed=True)
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
        if len(members) == 1:
            return
        for index, member in enumerate(members):
            tool = self._services.tools.describe(member.call.tool_name)
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
        found = []
        for member in members:
            live = transaction.steps.get(member.step_id)
            if live is None:
                continue
            if live.state is AttemptState.EXECUTING:
                raise refusals.step_executing(member.step_id, live)
            attempts = await attempts_of_step(
                self._services.store, transaction.record.transaction_id, member.step_id
            )
            attempt = next(item for item in attempts if item.attempt == live.attempt)
            if attempt.fingerprint != member.fingerprint or attempt.request_id != member.call.request_id:
                raise refusals.step_executing(member.step_id, live)
            found.append(attempt)
        return found

    # --- settlement ---------------------------------------------------------------------

    async def _settle(self, transaction: Transaction, run: GroupRun) -> tuple[StepAnswer, ...]:
        disturbed = await self._judge_conflicts(transaction, run)
        rows = Rows()
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
        rows.drop_contexts()  # a rewind removes first: what is written with it would stay
        if self._gives_way(transaction, run):
            return await self._settle_cancelled(transaction, run, ordered, rows)
        return await self._settle_failure(transaction, run, ordered, rows, disturbed)

    def _gives_way(self, transaction: Transaction, run: GroupRun) -> bool:
        """Whether the rewind or abort that waits for the group is made and not a decision on it."""
        request = run.cancel_request
        if request is None:
            return False
        pivot = transaction.pivot()
        # One that became a pivot while it was waited for refuses the rewind.
        return request.accept_irreversible or pivot is None or pivot.step_id < request.rewind.to_step

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
    ) -> tuple[StepAnswer, ...]:
        started_at = self._services.clock.now()
        failed = [item for item in ordered if _failed(item.state) and item.step_id not in disturbed]
        decided = failed[0]
        decision, counters = rollback_controller.decide(
            rollback_controller.Failure(
                failed_step=decided.step_id,
                group_first=run.first,
                group_last=run.first + run.size - 1,
                keys=decided.hint.keys if decided.hint else (),
                never_called=not decided.tries,
            ),
            policy=transaction.record.policy,
            counters=transaction.counters(),
            roots=lambda key: transaction.graph.find_root_cause(decided.step_id, key),
            group_starts=transaction.group_starts_before(run.first),
            pivot=transaction.pivot(),
        )
        pending = self._pending_rewind(transaction, decision, ordered, started_at)
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
        result = await self._rewinder.begin(transaction, pending, rows, **head)
        return member_answers(ordered, result, self._services.limits.group_output_bytes)

    def _pending_rewind(
        self,
        transaction: Transaction,
        decision: Decision,
        ordered: list[AttemptRecord],
        started_at: MicrosecondsUtc,
    ) -> PendingRewind:
        aborted = decision.strategy is Strategy.ABORT
        to_step = 1 if aborted else decision.target_step
        kept = transaction.kept_effects(to_step)
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
            transaction, rows, status=TransactionStatus.IN_DOUBT, open_group=(run.first, run.size)
        )
        return self._within_limit([self._unsettled_answer(transaction, attempt) for attempt in ordered])

    def _unsettled_answer(self, transaction: Transaction, attempt: AttemptRecord) -> StepAnswer:
        record = transaction.record
        completed = attempt.state is AttemptState.COMPLETED
        return StepAnswer(
            # A failed sibling too: nothing is decided on it yet, and FAILED would say that all has ended.
            status=StepStatus.SUCCESS if completed else StepStatus.IN_DOUBT,
            next_step_id=record.next_step_id,
            generation=record.generation,
            attempt=attempt.attempt,
            output=attempt.output,
            hint=attempt.hint,
            constraints=tuple(constraint.text for constraint in record.constraints),
            dependencies=attempt.edges,
        )

    async def _settle_cancelled(
        self,
        transaction: Transaction,
        run: GroupRun,
        ordered: list[AttemptRecord],
        rows: Rows,
    ) -> tuple[StepAnswer, ...]:
        """Settle a group that a rewind or an abort stopped, and make that one: no decision."""
        request = run.cancel_request
        if request is None:
            raise RuntimeError("only a cancelled group is settled as one")
        to_step = min(request.rewind.to_step, run.first)
        kept = tuple(
            KeptEffect(
                member.step_id,
                member.attempt,
                member.call.tool_name,
                EffectClass.IDEMPOTENT,
                "was cancelled while it ran; its outcome is unknown and it has no registered undo",
            )
            for member in run.members
            if member.cancelled
            and member.tries
            and not member.undo_registered
            and member.tool is not None
            and member.tool.effect_class is EffectClass.IDEMPOTENT
        )
        rows.attempts = ordered
        pending = replace(
            request.rewind,
            to_step=to_step,
            members=tuple(AttemptKey(attempt.step_id, attempt.attempt) for attempt in ordered),
            kept_effects=transaction.kept_effects(to_step) + kept,
        )
        transaction.request_ids.update(key.request_id for key in pending.requests)
        request.result = await self._rewinder.begin(
            transaction, pending, rows, kept_effects=transaction.record.kept_effects + kept
        )
        return member_answers(ordered, request.result, self._services.limits.group_output_bytes)

    async def _judge_conflicts(self, transaction: Transaction, run: GroupRun) -> frozenset[int]:
        """Fail the higher of two members that touched one key; return the members that failed in between.

        Those are lower members that failed by themselves on an outside thing which a higher one
        wrote: perhaps because it did so first. The decision must not depend on that, and is
        made on the higher one's conflict. For the same reason failed members, and those that
        lost, still stand with what they touched outside; with the state they have left nothing.
        """
        if run.size == 1:
            return frozenset()
        standing: list[_Used] = []
        disturbed: set[int] = set()
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
            _fail(run, used.step_id, failure_text.sibling_conflict(clash[1], clash[0]))
        return frozenset(disturbed)

    async def _used(self, transaction: Transaction, run: GroupRun) -> list[_Used]:
        """Return what the group's ended members read, wrote and touched, in step order."""
        stored_reads: list[StateRead] = []
        stored_writes: list[StateWrite] = []
        if run.replayed:
            stored = await self._services.store.load(transaction.record.transaction_id)
            if stored is not None:
                stored_reads, stored_writes = list(stored.group_reads), list(stored.group_writes)
        found = []
        for step, attempt in run.replayed.items():
            if attempt.state is AttemptState.IN_DOUBT:
                continue
            reads = [read for read in stored_reads if read.step_id == step]
            writes = [write for write in stored_writes if write.step_id == step]
            found.append(_Used(step, reads, writes, touched_by(reads), _failed(attempt.state)))
        for member in run.members:
            context = member.context
            if context is None or member.cancelled or member.state is AttemptState.IN_DOUBT:
                continue
            outside, failed = touched_by(context.touches), _failed(member.state)
            reads, writes = ([], []) if failed else (context.reads, context.writes)
            found.append(_Used(member.step_id, reads, writes, outside, failed))
        return sorted(found, key=lambda used: used.step_id)


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
