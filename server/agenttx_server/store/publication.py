"""Validation of a transaction's writes, reads and checks, and their publication.

Publications are made one after another inside the writer's database transaction, each
seeing those before it. Where that makes no difference (none conflicts, no two wrote one
key, nothing to check afterwards) all of a round are made at once. All work is set-based:
tens of thousands of keys are one statement.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from agenttx_server.engine.ports import CommitRefused, WriteReceipt
from agenttx_server.engine.records import TransactionId
from agenttx_server.store import sqlite_statements as sql
from agenttx_server.store.record_codec import parse_json
from agenttx_server.store.sqlite_connection import WriteConnection
from agenttx_server.store.write_set_encoding import EncodedWriteSet

__all__ = ["publish_all", "publish_one"]


def publish_all(
    connection: WriteConnection, items: Sequence[EncodedWriteSet]
) -> list[WriteReceipt] | CommitRefused:
    """Publish transactions whose rows are applied already; return their receipts in order.

    If one is refused the refusal is returned; the caller then rolls back all of them.
    """
    if len(items) > 1 and not any(item.serializable for item in items):
        together = _publish_together(connection, items)
        if together is not None:
            return together
    receipts = []
    for item in items:
        outcome = publish_one(connection, item)
        if isinstance(outcome, CommitRefused):
            return outcome
        receipts.append(outcome)
    return receipts


def publish_one(connection: WriteConnection, item: EncodedWriteSet) -> WriteReceipt | CommitRefused:
    """Validate and publish one transaction; after CommitRefused the caller rolls it back."""
    transaction_id = item.transaction_id
    refused = _conflict(connection, transaction_id, serializable=item.serializable)
    if refused is not None:
        return refused
    version = _advance(connection, 1)
    row = (transaction_id, version)
    keys = sql.PUBLISH_STATE.execute(connection, row)
    broken = connection.first(sql.FIND_BROKEN_CHECK, (transaction_id,))
    if broken is not None:
        return CommitRefused(broken[0], parse_json(broken[1]))
    effects = sql.PUBLISH_EFFECTS.execute(connection, row)
    sql.RECORD_COMMIT_VERSIONS.execute(connection, row)
    return WriteReceipt(commit_version=version, keys_published=keys, effects_ready=effects)


def _publish_together(
    connection: WriteConnection, items: Sequence[EncodedWriteSet]
) -> list[WriteReceipt] | None:
    """Publish all at once, or do nothing and return None where the order could matter."""
    ids = [item.transaction_id for item in items]
    hindered, survey = sql.SURVEY_PUBLICATIONS.query(connection, _versioned(ids, 0))
    if hindered:
        return None
    counts: dict[TransactionId, tuple[int, int]] = {row[0]: (row[1], row[2]) for row in orjson.loads(survey)}
    first = _advance(connection, len(items)) - len(items) + 1
    rows = _versioned(ids, first)
    if any(keys for keys, _ in counts.values()):
        sql.PUBLISH_STATE.execute(connection, rows)
    if any(effects for _, effects in counts.values()):
        sql.PUBLISH_EFFECTS.execute(connection, rows)
    sql.RECORD_COMMIT_VERSIONS.execute(connection, rows)
    return [WriteReceipt(first + index, *counts[transaction_id]) for index, transaction_id in enumerate(ids)]


def _advance(connection: WriteConnection, count: int) -> int:
    (version,) = connection.first(sql.ADVANCE_COMMIT_VERSION, (count,))
    return int(version)


def _versioned(ids: Sequence[TransactionId], first: int) -> list[str | int]:
    return [value for index, transaction_id in enumerate(ids) for value in (transaction_id, first + index)]


def _conflict(
    connection: WriteConnection, transaction_id: TransactionId, *, serializable: bool
) -> CommitRefused | None:
    validations = [(sql.FIND_MOVED_BASE, "used it")]
    if serializable:
        validations += [(sql.FIND_CHANGED_READ, "read it"), (sql.FIND_CHANGED_PREFIX, "scanned its prefix")]
    for statement, use in validations:
        found = connection.first(statement, (transaction_id,))
        if found is not None:
            (key,) = found
            return CommitRefused(key, f"{key} was changed by another commit after this transaction {use}")
    return None
