"""BeginTransaction: a new transaction with its policy, or the one a repeated request opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import orjson

from agenttx_server.engine.errors import LimitExceeded, RequestIdReused, TooManyOpen
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.limits import policy_in_force
from agenttx_server.engine.ports import DuplicateRequestId, ExtraRows
from agenttx_server.engine.recorded_answers import check_same_request, fingerprint, record_response
from agenttx_server.engine.records import (
    CrashPolicy,
    EventType,
    HeldState,
    Isolation,
    MicrosecondsUtc,
    TransactionId,
    TransactionRecord,
)
from agenttx_server.engine.requests import BeginAnswer, BeginRequest
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_answers import fields_to_json
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import TransactionCache
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter
from agenttx_server.engine.visibility import everybody_of, tenant_of

__all__ = ["BeginExecution", "BeginRows"]

# A limit that nobody reaches is not counted towards: a count reads a row for each open transaction.
_UNCOUNTED = 1_000_000
_METHOD = "BeginTransaction"

BeginRows: TypeAlias = Sequence[ExtraRows] | Callable[[TransactionId], Sequence[ExtraRows]]
"""Rows of an outer layer, or a function that gives them for the id of the transaction."""


class BeginExecution:
    """Opens transactions."""

    def __init__(self, services: EngineServices, writer: TransactionWriter, cache: TransactionCache) -> None:
        self._services = services
        self._writer = writer
        self._cache = cache

    async def begin(self, request: BeginRequest, extra: BeginRows = (), held: int = 0) -> BeginAnswer:
        """Open a transaction; a request_id that opened one before gets the same one.

        ``held`` is the size of the held group that its first steps are, open from the start; 0: none.
        """
        begun = self._record(request)
        if held:
            begun = replace(begun, open_group=(1, held), held=HeldState())
        transaction = Transaction(begun)
        record = transaction.record
        rows = Rows(extra=list(extra(record.transaction_id) if callable(extra) else extra))
        rows.event(EventType.TRANSACTION_BEGUN, agent_id=record.agent_id)
        scope = f"principal:{request.principal}"
        identity = _identity(request)
        try:
            await self._check_quota(request)
        except LimitExceeded:
            recorded = request.request_id and await self._services.store.find_response(
                scope, request.request_id
            )
            if not recorded:
                raise
            return await self._recorded(scope, request.request_id, identity)
        if request.request_id:
            values = {"transaction_id": record.transaction_id}
            rows.responses.append(record_response(scope, request.request_id, _METHOD, identity, values))
        entry = self._cache.pin(record.transaction_id)
        try:
            # Before its answer a repeat may tell of the transaction: who works on it then waits for this one.
            async with entry.lock:
                await self._writer.write(transaction, rows, first=True)
                entry.transaction = transaction
                entry.begun_at = self._services.clock.monotonic()
        except DuplicateRequestId:
            return await self._recorded(scope, request.request_id, identity)
        finally:
            self._cache.unpin(entry)
        return BeginAnswer(record.transaction_id, record.next_step_id, record.generation)

    async def _check_quota(self, request: BeginRequest) -> None:
        """Refuse one more open transaction beyond the limits, which calls at one moment may pass by a few."""
        self._services.check_stored(request.principal)
        limits, of_tenant = self._services.limits, self._services.open_per_tenant
        tenants = of_tenant(tenant_of(request.principal)) if of_tenant is not None else 0
        for whose, limit, told in (
            (request.principal, limits.open_per_principal, "you have"),
            (everybody_of(request.principal), tenants or _UNCOUNTED, "your tenant has"),
            ("", limits.open_transactions, "the server has"),
        ):
            if limit >= _UNCOUNTED:
                continue
            count = await self._services.store.count_open(whose)
            if count >= limit:
                raise TooManyOpen(
                    f"{told} {count} open transactions, the limit is {limit}; end some first",
                    reason="QUOTA_EXCEEDED",
                    metadata={"limit": str(limit), "open": str(count)},
                )

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
            idle_timeout_us=(
                round(self._services.settings.idle_timeout_seconds * 1_000_000)
                if request.idle_timeout_us is None
                else request.idle_timeout_us
            ),
            deadline_at=None if request.deadline_us is None else MicrosecondsUtc(now + request.deadline_us),
            step_timeout_us=request.step_timeout_us,
            begin_request_id=request.request_id,
            run_id=request.run_id,
            keeps_records=request.keep_records,
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
    if not request.keep_records:
        values.pop("keep_records", None)  # as it was before there was the field
    return fingerprint(_METHOD, orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode())
