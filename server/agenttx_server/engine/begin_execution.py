"""BeginTransaction: a new transaction with its policy, or the one a repeated request opened."""

from __future__ import annotations

from dataclasses import replace

import orjson

from agenttx_server.engine.errors import NotSupported, RequestIdReused
from agenttx_server.engine.limits import policy_in_force
from agenttx_server.engine.ports import DuplicateRequestId
from agenttx_server.engine.recorded_answers import check_same_request, fingerprint, record_response
from agenttx_server.engine.records import (
    CrashPolicy,
    EventType,
    Isolation,
    OnConflict,
    OnUndoFailure,
    TransactionId,
    TransactionRecord,
)
from agenttx_server.engine.requests import BeginAnswer, BeginRequest
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_answers import fields_to_json
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import TransactionCache
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["BeginExecution"]

_METHOD = "BeginTransaction"


class BeginExecution:
    """Opens transactions."""

    def __init__(self, services: EngineServices, writer: TransactionWriter, cache: TransactionCache) -> None:
        self._services = services
        self._writer = writer
        self._cache = cache

    async def begin(self, request: BeginRequest) -> BeginAnswer:
        """Open a transaction; a request_id that opened one before gets the same one."""
        _refuse_unserved(request)
        transaction = Transaction(self._record(request))
        record = transaction.record
        rows = Rows()
        rows.event(EventType.TRANSACTION_BEGUN, agent_id=record.agent_id)
        scope = f"principal:{request.principal}"
        identity = _identity(request)
        if request.request_id:
            values = {"transaction_id": record.transaction_id}
            rows.responses.append(record_response(scope, request.request_id, _METHOD, identity, values))
        try:
            await self._writer.write(transaction, rows, first=True)
        except DuplicateRequestId:
            return await self._recorded(scope, request.request_id, identity)
        self._cache.add(transaction)
        return BeginAnswer(record.transaction_id, record.next_step_id, record.generation)

    def _record(self, request: BeginRequest) -> TransactionRecord:
        now = self._services.clock.now()
        return TransactionRecord(
            transaction_id=TransactionId(self._services.ids.new_id()),
            principal=request.principal,
            agent_id=request.agent_id,
            metadata=tuple(sorted(request.metadata)),
            policy=policy_in_force(request.policy, self._services.limits.default_policy),
            isolation=request.isolation or Isolation.READ_COMMITTED,
            crash_policy=request.crash_policy or CrashPolicy.RESUME,
            created_at=now,
            updated_at=now,
            idle_timeout_us=request.idle_timeout_us,
            step_timeout_us=request.step_timeout_us,
        )

    async def _recorded(self, scope: str, request_id: str, identity: str) -> BeginAnswer:
        recorded = await self._services.store.find_response(scope, request_id)
        if recorded is None or recorded.method != _METHOD:
            raise RequestIdReused(request_id, "another kind of request", identity[:12])
        check_same_request(request_id, recorded.fingerprint, identity)
        # Begin's final answer never changes, however far the transaction went since.
        return BeginAnswer(TransactionId(orjson.loads(recorded.response)["transaction_id"]), 1, 1)


def _identity(request: BeginRequest) -> str:
    # Metadata is a map on the wire: its order tells nothing.
    values = fields_to_json(replace(request, metadata=tuple(sorted(request.metadata))))
    values.pop("request_id", None)
    return fingerprint(_METHOD, orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode())


def _refuse_unserved(request: BeginRequest) -> None:
    """Refuse what would otherwise be promised and not kept."""
    asked = (
        ("isolation = SERIALIZABLE", request.isolation is Isolation.SERIALIZABLE),
        ("crash_policy = ABORT", request.crash_policy is CrashPolicy.ABORT),
        ("policy.on_conflict = REWIND", request.policy.on_conflict is OnConflict.REWIND),
        ("policy.on_undo_failure = CONTINUE", request.policy.on_undo_failure is OnUndoFailure.CONTINUE),
        ("deadline", request.deadline_us is not None),
        ("idle_timeout", bool(request.idle_timeout_us)),
    )
    for name, is_asked in asked:
        if is_asked:
            raise NotSupported(
                f"{name} is not served yet; leave it unset",
                reason="NOT_SUPPORTED_YET",
                metadata={"feature": name},
            )
