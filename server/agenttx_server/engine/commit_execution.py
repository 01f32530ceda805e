"""CommitTransaction: validate, publish and release in one commit, then deliver.

The commit is the one of the store; the answer is fixed after the dispatch wait and
recorded, so that a repeat gets the same. A conflict compensates the transaction and ends
it as FAILED; under the policy on_conflict = REWIND it goes back to the first step that used the key,
within the replay budget and not past an irreversible step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from agenttx_server.engine import hints, outbox, refusals, rollback_controller
from agenttx_server.engine.approvals import withdraw_from
from agenttx_server.engine.errors import CommitConflict
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.outbox_dispatcher import OutboxDispatcher
from agenttx_server.engine.outbox_run import DeliveryRun
from agenttx_server.engine.ports import CommitRefused, WriteReceipt
from agenttx_server.engine.recorded_answers import (
    commit_from,
    fingerprint,
    record_commit,
    record_response,
    same_request,
)
from agenttx_server.engine.records import (
    Constraint,
    EffectRecord,
    EffectState,
    EventType,
    HintCategory,
    OnConflict,
    PendingRewind,
    RecordedResponse,
    RewindPurpose,
    Strategy,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
)
from agenttx_server.engine.requests import CommitAnswer, CommitRequest
from agenttx_server.engine.rewinding import Rewinder, let_go_if_over
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter
from agenttx_server.engine.visibility import name_in_tenant

__all__ = ["CommitExecution"]

_METHOD = "CommitTransaction"
_IDENTITY = fingerprint(_METHOD)
_COUNTED_KEYS = 1000


class CommitExecution:
    """Executes commits on loaded, locked transactions."""

    def __init__(
        self,
        services: EngineServices,
        writer: TransactionWriter,
        rewinder: Rewinder,
        dispatcher: OutboxDispatcher,
    ) -> None:
        self._services = services
        self._writer = writer
        self._rewinder = rewinder
        self._dispatcher = dispatcher

    async def commit(self, transaction: Transaction, request: CommitRequest) -> CommitAnswer:
        """Commit, or answer as recorded."""
        record = transaction.record
        recorded = await self._recorded(transaction, request.request_id)
        if recorded is not None:
            return await self._answer_again(transaction, recorded)
        refusals.check_not_ended(record)
        refusals.check_not_held(transaction)
        refusals.check_not_in_doubt(transaction)
        refusals.check_settled(transaction)
        rows = Rows()
        if record.keeps_records and self._services.recorder is not None:
            rows.extra += await self._services.recorder.rows_when_committed(record)
        receipt, run = await self._publish(transaction, request.request_id, rows)
        return await self._deliver_and_answer(transaction, request.request_id, receipt, run)

    async def commit_run(self, transaction: Transaction, rows: Rows, **head: Any) -> CommitAnswer:
        """Commit a transaction for the run that owns it; ``rows`` and ``head`` are of the same SQL commit."""
        refusals.check_not_ended(transaction.record)
        refusals.check_not_held(transaction)
        refusals.check_not_in_doubt(transaction)
        receipt, run = await self._publish(transaction, "", rows, **head)
        if run is not None:
            return await self._deliver_and_answer(transaction, "", receipt, run)
        # Nobody asks for this answer again, so it needn't be kept; the row has its version from the publication.
        transaction.record = replace(transaction.record, commit_version=receipt.commit_version)
        await let_go_if_over(self._services, transaction)
        return _answer(transaction.record, receipt, ())

    async def _answer_again(self, transaction: Transaction, recorded: RecordedResponse) -> CommitAnswer:
        """Return the recorded answer; give the one that a published commit still owes."""
        conflict = orjson.loads(recorded.response).get("conflict")
        if conflict is not None:
            raise _conflict_error(conflict, is_held=transaction.record.pending_rewind is not None)
        store, transaction_id = self._services.store, transaction.record.transaction_id
        answer = await store.find_response(_answer_scope(transaction_id), recorded.request_id)
        if answer is not None:
            return commit_from(answer)
        rows, keys, _ = await store.count_touched(transaction_id, 1)
        receipt = WriteReceipt(
            commit_version=transaction.record.commit_version,
            keys_published=len(keys) if len(keys) < _COUNTED_KEYS else rows,
        )
        before = await store.list_effects(transaction_id, frozenset())
        run = await self._dispatcher.resume(transaction)
        return await self._deliver_and_answer(transaction, recorded.request_id, receipt, run, before)

    async def _deliver_and_answer(
        self,
        transaction: Transaction,
        request_id: str,
        receipt: WriteReceipt,
        run: DeliveryRun | None,
        before: Sequence[EffectRecord] = (),
    ) -> CommitAnswer:
        """Wait for the deliveries, but not for long, and fix the answer. ``before`` is how effects stood already."""
        record = transaction.record
        try:
            await let_go_if_over(self._services, transaction)
            if run is not None:
                wait = self._services.settings.dispatch_wait_seconds
                await self._dispatcher.attend(transaction, run, wait)
            effects = {effect.effect_id: effect for effect in before}
            if run is not None:
                effects |= run.effects
            answer = _answer(record, receipt, effects.values())
            if (
                run is None
                and not effects
                and not receipt.effects_ready
                and receipt.keys_published < _COUNTED_KEYS
            ):
                # Nothing of it can change any more, and what was published says it again: no second write.
                transaction.record = replace(record, commit_version=receipt.commit_version)
                return answer
            rows = Rows()
            scope = _answer_scope(record.transaction_id)
            rows.responses.append(record_commit(scope, request_id, _IDENTITY, answer))
            head: dict[str, Any] = {"commit_version": receipt.commit_version}
            if run is not None:
                await self._dispatcher.record(transaction, run, rows, **head)
            else:
                await self._writer.write(transaction, rows, **head)
        finally:
            if run is not None:
                self._dispatcher.leave(run)
        return answer

    async def _recorded(self, transaction: Transaction, request_id: str) -> RecordedResponse | None:
        ended = transaction.record.status.is_terminal
        if request_id not in transaction.request_ids and not (ended and not request_id):
            return None
        recorded = await self._services.store.find_response(transaction.record.transaction_id, request_id)
        if recorded is None and not request_id:
            return None
        return same_request(recorded, request_id, _METHOD, _IDENTITY)

    async def _publish(
        self, transaction: Transaction, request_id: str, rows: Rows | None = None, **with_it: Any
    ) -> tuple[WriteReceipt, DeliveryRun | None]:
        before, approvals_before = transaction.record, dict(transaction.approvals)
        if request_id:
            transaction.request_ids.add(request_id)
        rows = rows or Rows()
        steps = with_it.get("next_step_id", before.next_step_id) - 1
        rows.event(EventType.TRANSACTION_COMMITTED, steps_committed=steps)
        rows.responses.append(
            record_response(before.transaction_id, request_id, _METHOD, _IDENTITY, {"published": True})
        )
        withdraw_from(
            transaction, 1, "its transaction was committed without it", rows, self._services.clock.now()
        )
        head: dict[str, Any] = {
            **with_it,
            "status": TransactionStatus.COMMITTED,
            "ended_at": self._services.clock.now(),
        }
        run = await self._dispatcher.prepare(transaction, rows, head)
        try:
            receipt = await self._writer.write(transaction, rows, publish=True, **head)
        except CommitRefused as refused:
            # Nothing of the set was written.
            transaction.record, transaction.approvals = before, approvals_before
            raise await self._conflict(transaction, request_id, refused) from None
        except BaseException:
            if run is not None:  # perhaps it is published, and the effects are ours to deliver
                self._dispatcher.look_after(before.transaction_id)
            raise
        if run is not None:
            self._dispatcher.published(transaction, run)
        return receipt, run

    async def _conflict(
        self, transaction: Transaction, request_id: str, refused: CommitRefused
    ) -> CommitConflict:
        """Compensate and end a transaction whose commit was refused; return what its caller is told."""
        record = transaction.record
        rows = Rows()
        to_step, why_not = 0, ""
        if record.policy.on_conflict is OnConflict.REWIND:
            to_step, why_not = await self._conflict_target(transaction, refused.key)
        # From here on it is only told of.
        refused = CommitRefused(
            name_in_tenant(record.principal, refused.key),
            refused.description.replace(refused.key, name_in_tenant(record.principal, refused.key)),
        )
        rows.event(EventType.COMMIT_CONFLICT, key=refused.key, description=refused.description)
        told = {
            "key": refused.key,
            "description": refused.description,
            "to_step": to_step,
            "generation": record.generation + 1,
        }
        if request_id:
            values = {"conflict": told}
            rows.responses.append(
                record_response(record.transaction_id, request_id, _METHOD, _IDENTITY, values)
            )
        pending = PendingRewind(
            purpose=RewindPurpose.CONFLICT,
            to_step=to_step or 1,
            final_status=TransactionStatus.ACTIVE if to_step else TransactionStatus.FAILED,
            started_at=self._services.clock.now(),
            strategy=Strategy.DEPENDENCY_JUMP if to_step else Strategy.ABORT,
            reason=f"commit conflict: {refused.description}{why_not}",
            kept_effects=transaction.kept_effects(to_step or 1),
        )
        head: dict[str, Any] = {}
        if to_step:
            cost = record.next_step_id - to_step
            head = {
                "budget_spent": record.budget_spent + cost,
                "replayed_steps": record.replayed_steps + cost,
                "constraints": _with_constraint(record, refused, to_step, self._services.limits.constraints),
            }
        result = await self._rewinder.begin(transaction, pending, rows, **head)
        return _conflict_error(told, is_held=result.incomplete)

    async def _conflict_target(self, transaction: Transaction, key: str) -> tuple[int, str]:
        """Return the step to go back to after a conflict on a key; 0, and why, where that can't be."""
        record = transaction.record
        used = await self._services.store.first_use(record.transaction_id, key)
        if used is None or used not in transaction.steps:
            return 0, "; no step is known to have used it"
        target = transaction.steps[used].group_first
        pivot = transaction.pivot()
        if pivot is not None and pivot.step_id >= target:
            return 0, f"; step {pivot.step_id} ({pivot.tool_name}) can't be undone"
        cost = record.next_step_id - target
        budget = rollback_controller.replay_budget(
            record.policy.replay_budget_factor, max(record.furthest_step, 1)
        )
        if record.budget_spent + cost > budget:
            return 0, f"; going back {cost} steps does not fit the replay budget"
        return target, ""


def _answer(
    record: TransactionRecord, receipt: WriteReceipt, effects: Collection[EffectRecord]
) -> CommitAnswer:
    undelivered = [
        effect for effect in effects if effect.last_error and effect.state is not EffectState.DELIVERED
    ]
    return CommitAnswer(
        steps_committed=record.next_step_id - 1,
        effects_dispatched=sum(effect.state is EffectState.DELIVERED for effect in effects),
        dispatch_errors=tuple(
            outbox.error_line(effect) for effect in sorted(undelivered, key=lambda effect: effect.sequence)
        ),
        effects_pending=sum(effect.state is EffectState.READY for effect in effects),
        keys_published=receipt.keys_published,
        commit_version=receipt.commit_version,
    )


def _answer_scope(transaction_id: TransactionId) -> str:
    """Where a commit's answer is recorded: its request_id is taken, with the publication, before there is one."""
    return f"commit:{transaction_id}"


def _with_constraint(
    record: TransactionRecord, refused: CommitRefused, to_step: int, most: int
) -> tuple[Constraint, ...]:
    """Return the constraints in force after a conflict that the agent is to mend."""
    name = refused.key.partition("/")[2] or refused.key
    hint = hints.from_structured(
        HintCategory.CONFLICT,
        f"Another transaction changed '{name[:64]}'. Read it again from step {to_step} on.",
        (name[:64],),
    )
    lines = [line for line in record.constraints if line.text != hint.text]
    return (*lines, Constraint(hint.text, hint.category, hint.keys))[-most:]


def _conflict_error(told: Mapping[str, Any], *, is_held: bool) -> CommitConflict:
    """Return the error; ``is_held`` is that undo is left to do, which ListCompensations names."""
    to_step = told.get("to_step", 0)
    metadata = {"key": told["key"], "status": TransactionStatus.FAILED}
    done = "compensated"
    if to_step:
        metadata |= {
            "status": TransactionStatus.ACTIVE,
            "next_step_id": str(to_step),
            "generation": str(told["generation"]),
        }
        done = f"rewound; go on with step {to_step}"
    if is_held:
        metadata["rollback_incomplete"] = "true"
        done += ", once the undo is done that ListCompensations names"
    return CommitConflict(
        f"the commit was refused and the transaction {done}: {told['description']}",
        reason="COMMIT_CONFLICT",
        metadata=metadata,
    )
