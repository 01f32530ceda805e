"""Approve and Reject: what a person decides on a step that waits. The caller holds the transaction's lock.

Approve runs nothing: the request that sent the step, sent again, runs it. Reject has the step fail where it
stands. Of two decisions one is written; the other is told who made that.
"""

from __future__ import annotations

import orjson

from agenttx_server.engine import failure_text, refusals
from agenttx_server.engine.approvals import approval_id
from agenttx_server.engine.attempt_history import live_attempt
from agenttx_server.engine.errors import NotFound, RunsElsewhere
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.group_settlement import GroupSettlement
from agenttx_server.engine.recorded_answers import fingerprint, record_response, same_request
from agenttx_server.engine.records import (
    ApprovalRecord,
    ApprovalState,
    AttemptState,
    EventType,
)
from agenttx_server.engine.requests import ApprovalView, DecideApprovalRequest
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_execution import StepExecution
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["ApprovalExecution"]

_METHODS = {ApprovalState.APPROVED: "Approve", ApprovalState.REJECTED: "Reject"}


class ApprovalExecution:
    """Takes decisions on approvals of loaded, locked transactions."""

    def __init__(
        self,
        services: EngineServices,
        writer: TransactionWriter,
        steps: StepExecution,
        settlement: GroupSettlement,
    ) -> None:
        self._services = services
        self._writer = writer
        self._steps = steps
        self._settlement = settlement

    async def decide(self, transaction: Transaction, request: DecideApprovalRequest) -> ApprovalView:
        """Approve or reject, or answer as recorded. Raises RunsElsewhere while members of the group run."""
        method = _METHODS[request.decision]
        identity = fingerprint(method, request.approval_id, request.comment, request.claimed_by)
        recorded = await self._recorded(transaction, request.request_id, method, identity)
        if recorded is not None:
            return ApprovalView.of(transaction.record, recorded)
        pending = await self._pending(transaction, request.approval_id)
        if transaction.executing_steps():
            raise RunsElsewhere  # to write now would take the transaction from the server that runs them
        decided = replace(
            pending,
            state=request.decision,
            decided_at=self._services.clock.now(),
            decided_by=request.decided_by,
            comment=request.comment,
        )
        rows = Rows(approvals=[decided])
        is_yes = request.decision is ApprovalState.APPROVED
        rows.event(
            EventType.STEP_APPROVED if is_yes else EventType.STEP_REJECTED,
            decided.step_id,
            decided.attempt,
            approval_id=approval_id(decided),
            decided_by=decided.decided_by,
            comment=decided.comment,
        )
        if request.request_id:
            transaction.request_ids.add(request.request_id)
            told = {"approval_id": approval_id(decided)}
            scope = transaction.record.transaction_id
            rows.responses.append(record_response(scope, request.request_id, method, identity, told))
        transaction.note_approval(decided)
        if is_yes:
            await self._writer.write(transaction, rows)
        else:
            await self._fail(transaction, decided, rows)
        return ApprovalView.of(transaction.record, decided)

    # --- parts --------------------------------------------------------------------------

    async def _recorded(
        self, transaction: Transaction, request_id: str, method: str, identity: str
    ) -> ApprovalRecord | None:
        if not request_id or request_id not in transaction.request_ids:
            return None
        transaction_id = transaction.record.transaction_id
        recorded = await self._services.store.find_response(transaction_id, request_id)
        told = orjson.loads(same_request(recorded, request_id, method, identity).response)
        sequence = int(told["approval_id"])
        approval = await self._services.store.load_approval(transaction_id, sequence)
        if approval is None:
            raise RuntimeError(f"the decided approval {sequence} is gone")
        # As it was decided: what became of it since is no part of the answer.
        state = next(state for state, name in _METHODS.items() if name == method)
        return replace(
            approval, state=state, used_attempt=0, used_at=None, withdrawn_at=None, withdrawn_reason=""
        )

    async def _pending(self, transaction: Transaction, asked_for: str) -> ApprovalRecord:
        record = transaction.record
        sequence = (
            int(asked_for) if asked_for.isascii() and asked_for.isdigit() and len(asked_for) < 19 else 0
        )
        found = transaction.approvals.get(sequence)
        if found is None and 0 < sequence <= record.approval_sequence:
            found = await self._services.store.load_approval(record.transaction_id, sequence)
        if found is None or approval_id(found) != asked_for:
            raise NotFound(
                f"the transaction has no approval '{asked_for[:64]}'; ListApprovals names those there are",
                reason="APPROVAL_NOT_FOUND",
                metadata={"transaction_id": record.transaction_id, "approval_id": asked_for[:64]},
            )
        if found.state is not ApprovalState.PENDING:
            raise refusals.approval_decided(found)
        refusals.check_not_held(transaction)
        return found

    async def _fail(self, transaction: Transaction, rejected: ApprovalRecord, rows: Rows) -> None:
        """Have the step fail, and settle its group if that waited for nothing else."""
        first, size = transaction.record.open_group or (rejected.step_id, 1)
        attempts = {}
        for step_id in range(first, first + size):
            live = transaction.steps.get(step_id)
            if live is not None:
                attempts[step_id] = await live_attempt(
                    self._services.store, transaction.record.transaction_id, step_id, live
                )
        failure = failure_text.not_approved(rejected.tool_name, rejected.comment)
        failed = replace(
            attempts[rejected.step_id],
            state=AttemptState.FAILED,
            hint=failure.hint,
            raw_error=failure.raw_error,
            ended_at=rejected.decided_at,
            approval_rejected=True,
        )
        attempts[failed.step_id] = failed
        transaction.finish_attempt(failed)
        rows.event(
            EventType.STEP_FAILED,
            failed.step_id,
            failed.attempt,
            tool_name=failed.tool_name,
            category=failure.hint.category,
            hint=failure.hint.text,
            error_keys=failure.hint.keys,
        )
        run = self._steps.new_run(transaction, [], list(attempts.values()), size)
        if run.is_whole:
            await self._settlement.settle(transaction, run, rows)
        else:
            rows.attempts.append(failed)
            await self._settlement.leave_open(transaction, run, rows)
