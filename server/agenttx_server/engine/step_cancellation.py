"""CancelStep: stops a running step; its call is settled as one whose outcome is unknown."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from agenttx_server.engine import refusals
from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.errors import RunsElsewhere
from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.recorded_answers import fingerprint, record_response, same_request
from agenttx_server.engine.records import AttemptRecord, AttemptState, StopKind, StopRequest
from agenttx_server.engine.requests import CancelStepAnswer, CancelStepRequest
from agenttx_server.engine.transaction import LiveStep, Transaction
from agenttx_server.engine.transaction_cache import CacheEntry
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["Cancellation", "StepCancellation"]

_METHOD = "CancelStep"


@dataclass(slots=True)
class Cancellation:
    """How far one CancelStep got: the attempt that it stopped, here or on another server; 0 for none.

    With the request_id that it has: a server that is behind counts attempts that others have made.
    """

    attempt: int = 0
    request_id: str = ""

    def note(self, live: LiveStep) -> None:
        """Note which attempt is stopped."""
        self.attempt, self.request_id = live.attempt, live.request_id


class StepCancellation:
    """Cancels steps of transactions."""

    def __init__(self, store: TransactionStore, writer: TransactionWriter) -> None:
        self._store = store
        self._writer = writer

    def stop(self, entry: CacheEntry, request: CancelStepRequest, progress: Cancellation) -> None:
        """Stop the step if it runs here. Before the lock, which the step's own call holds.

        Raises what :meth:`cancel` would; a repeated request stops nothing.
        """
        transaction, run = entry.transaction, entry.running
        if transaction is None or run is None or request.request_id in transaction.request_ids:
            return
        refusals.check_generation(transaction.record, request.generation)
        live = transaction.steps.get(request.step_id)
        if live is not None and run.cancel_step(
            request.step_id, request.reason or "CancelStep was asked for"
        ):
            progress.note(live)

    async def cancel(
        self, transaction: Transaction, request: CancelStepRequest, progress: Cancellation
    ) -> CancelStepAnswer:
        """Answer once the step is settled. Raises RunsElsewhere while another server is at it."""
        identity = fingerprint(_METHOD, str(request.step_id))
        recorded = await self._recorded(transaction, request.request_id, identity)
        if recorded is not None:
            return recorded
        record = transaction.record
        live = transaction.steps.get(request.step_id)
        if live is not None and live.state is AttemptState.EXECUTING:
            refusals.check_not_held(transaction)
            if not progress.attempt:
                refusals.check_generation(record, request.generation)
                await self._store.request_stop(
                    StopRequest(record.transaction_id, StopKind.CANCEL_STEP, request.step_id, request.reason)
                )
                progress.note(live)
            raise RunsElsewhere
        settled = await self._stopped(transaction, request.step_id, progress)
        if settled is None:
            refusals.check_not_ended(record)
            refusals.check_generation(record, request.generation)
            raise refusals.step_not_executing(request.step_id)
        if transaction.executing_steps():
            # Siblings still run, on another server: to write now would take the transaction from it.
            raise RunsElsewhere
        answer = CancelStepAnswer(settled.state, record.next_step_id, record.generation)
        if request.request_id:
            transaction.request_ids.add(request.request_id)
            told = {
                "state": answer.state,
                "next_step_id": answer.next_step_id,
                "generation": answer.generation,
            }
            row = record_response(record.transaction_id, request.request_id, _METHOD, identity, told)
            await self._writer.write(transaction, Rows(responses=[row]))
        return answer

    async def _stopped(
        self, transaction: Transaction, step_id: int, progress: Cancellation
    ) -> AttemptRecord | None:
        """Return the attempt that was stopped; None also where its settlement was lost and left nothing."""
        if not progress.attempt:
            return None
        attempts = await attempts_of_step(self._store, transaction.record.transaction_id, step_id)
        wanted = (progress.attempt, progress.request_id)
        return next((item for item in attempts if (item.attempt, item.request_id) == wanted), None)

    async def _recorded(
        self, transaction: Transaction, request_id: str, identity: str
    ) -> CancelStepAnswer | None:
        if not request_id or request_id not in transaction.request_ids:
            return None
        recorded = await self._store.find_response(transaction.record.transaction_id, request_id)
        told = orjson.loads(same_request(recorded, request_id, _METHOD, identity).response)
        return CancelStepAnswer(AttemptState(told["state"]), told["next_step_id"], told["generation"])
