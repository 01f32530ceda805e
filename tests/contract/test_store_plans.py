"""How SQLite finds what the store asks for: never by walking a table that grows.

A query plan is read off ``EXPLAIN QUERY PLAN`` for every statement that the store runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event
from tests.support.store_records import head

from agenttx_server.engine.ports import TransactionFilter
from agenttx_server.engine.records import TransactionStatus
from agenttx_server.store import StoreSettings, history_reading, migrate, state_reading, transaction_listing
from agenttx_server.store import sqlite_statements as sql
from agenttx_server.store.cursors import encode_cursor
from agenttx_server.store.database import reader_engine
from agenttx_server.store.sqlite_connection import WriteConnection

ID = head().transaction_id
OPEN = frozenset({TransactionStatus.ACTIVE, TransactionStatus.IN_DOUBT})

READS: dict[str, tuple[Any, ...]] = {
    "find_attempt": (history_reading.find_attempt, ID, "r"),
    "find_response": (history_reading.find_response, "scope", "r"),
    "list_attempts": (history_reading.list_attempts, ID, encode_cursor("attempts", 1, 1), 10, 10, None, True),
    "list_attempts live": (history_reading.list_attempts, ID, "", 10, 10, 3, False),
    "list_events": (history_reading.list_events, ID, 1, 10),
    "load": (history_reading.load, ID),
    "load_context": (history_reading.load_context, ID, 10),
    "load_output": (history_reading.load_output, ID, 1, 1),
    "count_open of one": (transaction_listing.count_open, "alice"),
    "list open": (transaction_listing.list_transactions, TransactionFilter(statuses=OPEN), "", 10),
    "list of one": (transaction_listing.list_transactions, TransactionFilter(principal="alice"), "", 10),
    "list open of one": (
        transaction_listing.list_transactions,
        TransactionFilter(principal="alice", statuses=OPEN, metadata=(("a", "b"),)),
        encode_cursor("transactions", 1, "t"),
        10,
    ),
    "list_effects": (transaction_listing.list_effects, ID, frozenset()),
    "read_state": (state_reading.read_state, ID, "kv/a", 3),
    "scan_state": (state_reading.scan_state, ID, "kv/", 3, "", 10),
    "read_committed": (state_reading.read_committed, "kv/a"),
    "scan_committed": (state_reading.scan_committed, "kv/", "", 10, 10),
    "count_touched": (state_reading.count_touched, ID, 3),
    "commit_version": (state_reading.commit_version,),
}
STATEMENTS = {
    **{f"insert {name}": statement for name, statement in sql.INSERT_ROWS.items()},
    **{f"rewind {number}": statement for number, statement in enumerate(sql.REMOVE_REWOUND)},
    "begin": sql.GUARDED_INSERT,
    "guard": sql.GUARDED_UPDATE,
    "revisions": sql.READ_REVISIONS,
    "rewinds": sql.RECORD_REWINDS,
    "survey": sql.SURVEY_PUBLICATIONS,
    "publish": sql.PUBLISH_STATE,
    "effects": sql.PUBLISH_EFFECTS,
    "versions": sql.RECORD_COMMIT_VERSIONS,
}
VALIDATIONS = {
    "moved base": sql.FIND_MOVED_BASE,
    "changed read": sql.FIND_CHANGED_READ,
    "changed prefix": sql.FIND_CHANGED_PREFIX,
    "broken check": sql.FIND_BROKEN_CHECK,
}
GROWING = (
    "transactions",
    "transaction_metadata",
    "attempts",
    "rewinds",
    "state_writes",
    "state_reads",
    "commit_checks",
    "effects",
    "undo_actions",
    "events",
    "recorded_responses",
    "committed_state",
    *("t", "r", "w", "c", "k", "n", "o", "e", "newer"),  # their names within a statement
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "agenttx.db"
    migrate(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        # Something to load, or load stops at the head.
        columns = [row[1] for row in connection.execute("PRAGMA table_info(transactions)")]
        values = {"transaction_id": ID, "details": _details(), "status": "ACTIVE"}
        connection.execute(
            f"INSERT INTO transactions ({', '.join(columns[1:])}) VALUES ({', '.join('?' * (len(columns) - 1))})",
            [values.get(name, 1) for name in columns[1:]],
        )
    connection.close()
    return path


def _details() -> str:
    from agenttx_server.store import rows

    return str(rows.TRANSACTION.row(head(open_group=(1, 2)))[-1])


@pytest.fixture
def reader(database: Path) -> Iterator[Connection]:
    engine = reader_engine(database, StoreSettings())
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def walks(plan: list[str]) -> list[str]:
    """Steps of a plan that walk a growing table, but for what is asked for in the order of an index."""
    return [
        line
        for line in plan
        if any(line == f"SCAN {name}" or line.startswith(f"SCAN {name} ") for name in GROWING)
    ]


@pytest.mark.parametrize("name", READS)
def test_a_read_finds_its_rows_by_index(reader: Connection, name: str) -> None:
    seen: list[tuple[str, Any]] = []

    @event.listens_for(reader, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *others: Any) -> None:
        seen.append((statement, parameters))

    function, *arguments = READS[name]
    function(reader, *arguments)
    event.remove(reader, "before_cursor_execute", note)
    assert seen
    for statement, parameters in seen:
        plan = [row[3] for row in reader.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        assert walks(plan) == []
        if "is_open = 1" in statement:
            assert any("ix_transactions_open" in line for line in plan)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_write_finds_its_rows_by_index(database: Path, name: str) -> None:
    statement = STATEMENTS[name]
    with sqlite3.connect(database) as connection:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement._text(4)}", (None,) * (4 * statement.width))
        assert walks([row[3] for row in rows]) == []
    connection.close()


@pytest.mark.parametrize("name", VALIDATIONS)
def test_a_validation_finds_its_rows_by_index(database: Path, name: str) -> None:
    with sqlite3.connect(database) as connection:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {VALIDATIONS[name]}", (ID,))
        assert walks([row[3] for row in rows]) == []
    connection.close()


def test_a_commit_of_many_rows_prepares_few_statements(database: Path) -> None:
    statement = sql.INSERT_ROWS["events"]
    connection = WriteConnection(database, StoreSettings())
    connection.begin()
    for count in range(1, 70):
        assert statement.execute(connection, [f"unknown-{count}", *range(7)] * count) == 0
    connection.rollback()
    connection.close()
    assert set(statement._texts) <= {1 << power for power in range(20)}
