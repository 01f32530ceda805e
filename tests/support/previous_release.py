"""A database as the release before left it: schema version 0001, with work in progress in it.

It had no owners of transactions, delivered effects only within Commit, and kept idle timeouts among
the details.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import insert
from tests.support.store_records import NOW, attempt, effect, head, undo

from agenttx_server.engine.records import (
    AttemptState,
    EffectState,
    MicrosecondsUtc,
    TransactionRecord,
    TransactionStatus,
    UndoState,
)
from agenttx_server.store import StoreSettings, rows
from agenttx_server.store.database import writer_engine
from agenttx_server.store.record_codec import RecordCodec, canonical_json, parse_json
from agenttx_server.store.schema import counters, database_facts

__all__ = ["make_database", "revision_of"]

RECORDS: dict[str, TransactionRecord] = {
    name: head(name, status=status, idle_timeout_us=timeout, **fields)
    for name, status, timeout, fields in (
        ("idle", TransactionStatus.ACTIVE, 7_000_000, {}),
        ("executing", TransactionStatus.EXECUTING, None, {}),
        ("rolling-back", TransactionStatus.ROLLING_BACK, 0, {}),
        ("in-doubt", TransactionStatus.IN_DOUBT, None, {}),
        ("delivered", TransactionStatus.COMMITTED, None, {"ended_at": MicrosecondsUtc(NOW + 5)}),
        ("ready", TransactionStatus.COMMITTED, None, {"ended_at": MicrosecondsUtc(NOW + 6)}),
        ("aborted", TransactionStatus.ROLLED_BACK, None, {"ended_at": MicrosecondsUtc(NOW + 7)}),
    )
}


def make_database(path: Path) -> dict[str, TransactionRecord]:
    """Make the file; return its transactions, as this release reads them but for what it adds."""
    engine = writer_engine(path, StoreSettings())
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "agenttx_server.store:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(insert(database_facts).values(name="database_id", value="the-id-of-before"))
        connection.execute(insert(counters).values(name="commit_version", value=2))
    engine.dispose()
    with closing(sqlite3.connect(path)) as connection:
        for number, record in enumerate(RECORDS.values(), start=1):
            row = {"number": number, "is_open": int(not record.status.is_terminal)}
            _insert(connection, "transactions", rows.TRANSACTION, record, row)
            of_it = {"transaction_number": number, "request_key": None}
            state = AttemptState.EXECUTING if record.transaction_id == "executing" else AttemptState.COMPLETED
            _insert(connection, "attempts", rows.ATTEMPT, attempt(1, state=state), of_it)
            for effect_state in _effects_of(record):
                delivered = effect(f"e-{effect_state}", state=effect_state)
                _insert(connection, "effects", rows.EFFECT, delivered, of_it)
            if record.status is TransactionStatus.ROLLING_BACK:
                failed = undo(1, state=UndoState.FAILED, attempts=3)
                _insert(connection, "undo_actions", rows.UNDO, failed, of_it)
        connection.commit()
    return dict(RECORDS)


def revision_of(path: Path) -> str:
    """Return the schema version of a database, changing nothing."""
    with closing(sqlite3.connect(path)) as connection:
        ((revision,),) = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    return str(revision)


def _effects_of(record: TransactionRecord) -> Sequence[EffectState]:
    if record.transaction_id == "ready":
        return EffectState.DELIVERED, EffectState.READY
    if record.status is TransactionStatus.COMMITTED:
        return EffectState.DELIVERED, EffectState.DEAD
    return (EffectState.STAGED,)


def _insert(
    connection: sqlite3.Connection, table: str, codec: RecordCodec[Any], record: Any, row: dict[str, Any]
) -> None:
    """Insert a record into the columns there are; what has none by now was among the details."""
    row = {**row, **dict(zip(codec.columns, codec.row(record), strict=True))}
    known = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    defaults = {field.name: field.default for field in dataclasses.fields(record)}
    homeless = {
        name: getattr(record, name)
        for name in codec.columns
        if name not in known and getattr(record, name) != defaults[name]
    }
    row["details"] = canonical_json({**parse_json(row["details"]), **homeless})
    names = [name for name in known if name in row]
    connection.execute(
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
        [row[name] for name in names],
    )
