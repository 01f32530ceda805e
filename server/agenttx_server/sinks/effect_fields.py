"""An effect as its receiver sees it: the same fields in a line of the outbox file and in a webhook's body."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

from agenttx_server.engine.records import EffectRecord, MicrosecondsUtc, TransactionId

__all__ = ["effect_fields", "timestamp"]


def effect_fields(transaction_id: TransactionId, effect: EffectRecord) -> dict[str, Any]:
    """Return the fields, for orjson. The payload stands there as its own JSON, letter by letter."""
    return {
        "effect_id": effect.effect_id,
        "transaction_id": transaction_id,
        "step_id": effect.step_id,
        "channel": effect.channel,
        "idempotency_key": effect.idempotency_key,
        "payload": orjson.Fragment(effect.payload),
        "staged_at": timestamp(effect.staged_at),
        "delivery_attempt": effect.attempts,
    }


def timestamp(time: MicrosecondsUtc) -> str:
    """Return a time as RFC 3339 has it, in UTC, to the millisecond."""
    seconds, microseconds = divmod(time, 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)
    return moment.isoformat(timespec="milliseconds")
