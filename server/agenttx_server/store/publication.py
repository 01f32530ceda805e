"""Validation of a transaction's writes, reads and checks, and their publication.

Publications are made one after another inside the writer's database transaction, each
seeing those before it. All work is set-based: tens of thousands of keys are one statement.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from agenttx_server.engine.ports import CommitRefused, WriteReceipt
from agenttx_server.store import sqlite_statements as sql
from agenttx_server.store.record_codec import parse_json
from agenttx_server.store.write_set_encoding import EncodedWriteSet

__all__ = ["publish"]


def publish(connection: Connection, item: EncodedWriteSet) -> WriteReceipt | CommitRefused:
    """Validate and publish what the transaction wrote; its rows are applied already.

    After CommitRefused the caller rolls back.
    """
    named: dict[str, Any] = {"transaction_id": item.transaction_id}
    refused = _conflict(connection, named, serializable=item.serializable)
    if refused is not None:
        return refused
    version = connection.exec_driver_sql(sql.BUMP_COMMIT_VERSION).scalar_one()
    named["version"] = version
    keys = connection.exec_driver_sql(sql.PUBLISH_STATE, named).rowcount
    broken = connection.exec_driver_sql(sql.FIND_BROKEN_CHECK, named).first()
    if broken is not None:
        return CommitRefused(broken[0], parse_json(broken[1]))
    effects = connection.exec_driver_sql(sql.PUBLISH_EFFECTS, named).rowcount
    connection.exec_driver_sql(sql.RECORD_COMMIT_VERSION, named)
    return WriteReceipt(commit_version=version, keys_published=keys, effects_ready=effects)


def _conflict(connection: Connection, named: dict[str, Any], *, serializable: bool) -> CommitRefused | None:
    moved = connection.exec_driver_sql(sql.FIND_MOVED_BASE, named).scalar()
    if moved is not None:
        return CommitRefused(moved, f"{moved} was changed by another commit after this transaction used it")
    if serializable:
        read = connection.exec_driver_sql(sql.FIND_CHANGED_READ, named).scalar()
        if read is not None:
            return CommitRefused(read, f"{read} was changed by another commit after this transaction read it")
        appeared = connection.exec_driver_sql(sql.FIND_CHANGED_PREFIX, named).scalar()
        if appeared is not None:
            return CommitRefused(
                appeared, f"{appeared} was changed by another commit after its prefix was scanned"
            )
    return None
