"""Validation of a transaction's writes, reads and checks, and their publication.

Publications are made one after another inside the writer's database transaction, each
seeing those before it. Where that makes no difference (none conflicts, no two wrote one
key, nothing to check afterwards) all of a round are made at once. All work is set-based:
tens of thousands of keys are one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from agenttx_server.engine.ports import CommitRefused, WriteReceipt
from agenttx_server.engine.records import TransactionId
from agenttx_server.store.batch_connection import BatchConnection, BatchStatements
from agenttx_server.store.payload_queries import bound_name, opened_value
from agenttx_server.store.record_codec import parse_json
from agenttx_server.store.write_set_encoding import EncodedWriteSet

__all__ = ["Receipts", "publish_all", "publish_unless_refused"]

Receipts = Callable[[], list[WriteReceipt]]
"""Gives the receipts of publications; what they tell is waited for."""


def publish_unless_refused(connection: BatchConnection, item: EncodedWriteSet) -> Receipts:
    """Publish a transaction whose rows are applied already; if it may not be, that is SomeSetRefused at COMMIT.

    Nothing is waited for, so publication and COMMIT are one round trip.
    """
    sql = connection.statements
    row = (item.transaction_id, 0)
    # First, for it takes the lock of publications.
    version = connection.ask(sql.advance_commit_version, (1,))
    for query, _ in _validations(sql, serializable=item.serializable):
        connection.require_none(query, (item.transaction_id,))
    keys = sql.publish_state.execute(connection, row)
    connection.require_none(sql.find_broken_check, (item.transaction_id,))
    effects = sql.publish_effects.execute(connection, row)
    sql.record_commit_versions.execute(connection, row)
    return lambda: [
        WriteReceipt(commit_version=int(version()[0]), keys_published=int(keys), effects_ready=int(effects))
    ]


def publish_all(connection: BatchConnection, items: Sequence[EncodedWriteSet]) -> Receipts | CommitRefused:
    """Publish transactions whose rows are applied already; return their receipts in order.

    If one is refused the refusal is returned; the caller then rolls back all of them.
    """
    _lock(connection)
    if len(items) > 1 and not any(item.serializable for item in items):
        together = _publish_together(connection, items)
        if together is not None:
            return lambda: together
    receipts = []
    for item in items:
        outcome = _publish_one(connection, item)
        if isinstance(outcome, CommitRefused):
            return outcome
        receipts.append(outcome)
    return lambda: receipts


def _lock(connection: BatchConnection) -> None:
    if connection.statements.lock_publication:
        connection.execute(connection.statements.lock_publication)


def _publish_one(connection: BatchConnection, item: EncodedWriteSet) -> WriteReceipt | CommitRefused:
    """Validate and publish one transaction."""
    sql = connection.statements
    transaction_id = item.transaction_id
    refused = _conflict(connection, transaction_id, serializable=item.serializable)
    if refused is not None:
        return refused
    version = _advance(connection, 1)
    row = (transaction_id, 0)
    keys = sql.publish_state.execute(connection, row)
    broken = connection.first(sql.find_broken_check, (transaction_id,))
    if broken is not None:
        return CommitRefused(broken[0], parse_json(_opened_error(sql, transaction_id, broken[1])))
    effects = sql.publish_effects.execute(connection, row)
    sql.record_commit_versions.execute(connection, row)
    return WriteReceipt(commit_version=version, keys_published=int(keys), effects_ready=int(effects))


def _opened_error(sql: BatchStatements, transaction_id: TransactionId, error: str) -> str:
    if sql.payloads is None:
        return error
    return opened_value(sql.payloads, bound_name("commit_checks", "error"), [transaction_id], error)


def _publish_together(
    connection: BatchConnection, items: Sequence[EncodedWriteSet]
) -> list[WriteReceipt] | None:
    """Publish all at once, or do nothing and return None where the order could matter."""
    sql = connection.statements
    ids = [item.transaction_id for item in items]
    rows = [value for below, each in enumerate(reversed(ids)) for value in (each, below)]
    hindered, survey = sql.survey_publications.query(connection, rows)
    if hindered:
        return None
    counts: dict[TransactionId, tuple[int, int]] = {row[0]: (row[1], row[2]) for row in orjson.loads(survey)}
    first = _advance(connection, len(items)) - len(items) + 1
    if any(keys for keys, _ in counts.values()):
        sql.publish_state.execute(connection, rows)
    if any(effects for _, effects in counts.values()):
        sql.publish_effects.execute(connection, rows)
    sql.record_commit_versions.execute(connection, rows)
    return [WriteReceipt(first + index, *counts[transaction_id]) for index, transaction_id in enumerate(ids)]


def _advance(connection: BatchConnection, count: int) -> int:
    (version,) = connection.first(connection.statements.advance_commit_version, (count,))
    return int(version)


def _conflict(
    connection: BatchConnection, transaction_id: TransactionId, *, serializable: bool
) -> CommitRefused | None:
    for statement, use in _validations(connection.statements, serializable=serializable):
        found = connection.first(statement, (transaction_id,))
        if found is not None:
            (key,) = found
            return CommitRefused(key, f"{key} was changed by another commit after this transaction {use}")
    return None


def _validations(sql: BatchStatements, *, serializable: bool) -> Sequence[tuple[str, str]]:
    """Return the queries that must find nothing, each with what the transaction did to the key found."""
    moved = (sql.find_moved_base, "used it")
    if not serializable:
        return (moved,)
    return (moved, (sql.find_changed_read, "read it"), (sql.find_changed_prefix, "scanned its prefix"))
