"""How SQLite finds what the store asks for: never by walking a table that grows.

A query plan is read off ``EXPLAIN QUERY PLAN`` for every statement that the store runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.dialects.sqlite.pysqlite import dialect as sqlite_dialect
from tests.support.store_records import head

from agenttx_server.engine.ports import TransactionFilter
from agenttx_server.engine.records import EffectState, MicrosecondsUtc, TransactionStatus, UndoState
from agenttx_server.store import (
    StoreSettings,
    history_reading,
    leases,
    migrate,
    retention,
    settlement_listing,
    state_reading,
    transaction_listing,
)
from agenttx_server.store import sqlite_statements as sql
from agenttx_server.store.cursors import encode_cursor
from agenttx_server.store.database import reader_engine
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.schema import METADATA
from agenttx_server.store.sqlite_connection import WriteConnection

ID = head().transaction_id
OPEN = frozenset({TransactionStatus.ACTIVE, TransactionStatus.IN_DOUBT})

READS: dict[str, tuple[Any, ...]] = {
    "find_attempt": (history_reading.find_attempt, ID, "r"),
    "find_response": (history_reading.find_response, "scope", "r"),
    "list_attempts": (
        history_reading.list_attempts,
        ID,
        encode_cursor("attempts", 1, 0, 1),
        10,
        10,
        None,
        True,
        True,
    ),
    "list_attempts live": (history_reading.list_attempts, ID, "", 10, 10, 3, False, False),
    "list_sub_step_attempts": (history_reading.list_sub_step_attempts, ID, 1, 2),
    "load_journal": (history_reading.load_journal, ID, 1),
    "load_touched": (history_reading.load_touched, ID, 1, 3),
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
    "rows_by_step": (state_reading.rows_by_step, ID, 3),
    "commit_version": (state_reading.commit_version,),
    "load_revision": (history_reading.load_revision, ID),
    "is_alive": (leases.is_alive, "server", 1),
    "next_outbox_due": (leases.next_outbox_due,),
    "list_ended": (retention.list_ended, 10, 10),
}
# Listings over all transactions: what leads, so that a page is found without a walk over all rows.
WAITING = frozenset({EffectState.READY, EffectState.DEAD})
OWED = frozenset({UndoState.FAILED, UndoState.LATE})
EFFECTS_CURSOR = encode_cursor("effects", 1, "t", 1, "e")
UNDO_CURSOR = encode_cursor("compensations", 1, "t", -1)
LISTINGS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "owed undo": ("ix_undo_actions_in_question", ("", None, OWED, UNDO_CURSOR, 10)),
    "owed undo of one": ("ix_undo_actions_in_question", ("alice", None, OWED, UNDO_CURSOR, 10)),
    "any undo": ("ix_transactions_created", ("", None, frozenset(UndoState), UNDO_CURSOR, 10)),
    "any undo of one": ("ix_transactions_principal", ("alice", None, frozenset(UndoState), "", 10)),
    "undo of a transaction": ("ux_transactions_id", ("alice", ID, OWED, UNDO_CURSOR, 10)),
    "waiting effects": ("ix_effects_waiting", ("", None, WAITING, "", EFFECTS_CURSOR, 10, 10)),
    "waiting effects of one": ("ix_effects_waiting", ("alice", None, WAITING, "mail", "", 10, 10)),
    "any effects": ("ix_transactions_created", ("", None, frozenset(), "", EFFECTS_CURSOR, 10, 10)),
    "any effects of one": ("ix_transactions_principal", ("alice", None, frozenset(), "", "", 10, 10)),
    "effects of a transaction": ("ux_transactions_id", ("", ID, frozenset(), "", EFFECTS_CURSOR, 10, 10)),
}
# What is rarely written. An index on few rows may be walked, servers and words to them are few.
RARELY_WRITTEN = {
    f"{module.__name__.rpartition('.')[2]} {name}": query
    for module in (leases, retention)
    for name, query in vars(module).items()
    if isinstance(query, PreparedQuery)
}
OF_FEW_ROWS = ("ix_transactions_owner", "ix_transactions_outbox", "ix_transactions_ended")
STATEMENTS = {
    **{f"insert {name}": statement for name, statement in sql.INSERT_ROWS.items()},
    **{f"rewind {number}": statement for number, statement in enumerate(sql.REMOVE_REWOUND)},
    **{f"removal {number}": statement for number, statement in enumerate(sql.REMOVE_STEPS)},
    "begin": sql.GUARDED_INSERT,
    "guard": sql.GUARDED_UPDATE,
    "guard without indexes": sql.GUARDED_UPDATE.without_indexes,
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
    "sub_steps",
    "rewinds",
    "state_writes",
    "state_reads",
    "commit_checks",
    "effects",
    "undo_actions",
    "events",
    "recorded_responses",
    "committed_state",
    *("t", "r", "w", "c", "k", "n", "o", "e", "newer", "open"),  # their names within a statement
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


@pytest.mark.parametrize("name", LISTINGS)
def test_a_listing_over_all_transactions_is_led_by_what_ends_it_soonest(
    reader: Connection, name: str
) -> None:
    index, arguments = LISTINGS[name]
    listing = (
        settlement_listing.list_compensations if "undo" in name else settlement_listing.list_effects_page
    )
    seen: list[tuple[str, Any]] = []

    @event.listens_for(reader, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *others: Any) -> None:
        seen.append((statement, parameters))

    listing(reader, *arguments)
    event.remove(reader, "before_cursor_execute", note)
    ((statement, parameters),) = seen
    plan = [row[3] for row in reader.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    leading, *others = [line for line in plan if line.startswith(("SCAN", "SEARCH"))]
    assert index in leading
    assert walks(others) == []


@pytest.mark.parametrize("name", RARELY_WRITTEN)
def test_what_is_rarely_written_finds_its_rows_by_index(database: Path, name: str) -> None:
    text, names, _ = RARELY_WRITTEN[name]._compile(sqlite_dialect())
    with closing(sqlite3.connect(database)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", (1,) * len(names))]
    assert [line for line in walks(plan) if not line.endswith(OF_FEW_ROWS)] == []


class Recorded:
    """Calls of a write connection, written down."""

    def __init__(self, connection: WriteConnection) -> None:
        self.connection = connection
        self.statements: list[tuple[str, Any]] = []

    def rows(self, query: PreparedQuery, **values: Any) -> Sequence[Sequence[Any]]:
        self.statements.append(query.call(sqlite_dialect(), values))
        return self.connection.rows(query, **values)

    def change(self, query: PreparedQuery, **values: Any) -> int:
        self.statements.append(query.call(sqlite_dialect(), values))
        return self.connection.change(query, **values)


def test_a_removal_finds_its_rows_by_index(database: Path) -> None:
    connection = WriteConnection(database, StoreSettings())
    connection.begin()
    connection.execute("UPDATE transactions SET ended_at = 1, is_open = 0")
    (number,) = connection.first("SELECT max(number) FROM transactions")
    recorded = Recorded(connection)
    assert len(retention.purge(recorded, [number, number + 1], MicrosecondsUtc(2))) == 1
    connection.rollback()
    tables = {table.name for table in METADATA.sorted_tables if "transaction_number" in table.c}
    deleted = {text.split()[2] for text, _ in recorded.statements if text.startswith("DELETE")}
    assert deleted == {*tables, "transactions", "recorded_responses"}
    for text, parameters in recorded.statements:
        assert (
            walks([row[3] for row in connection._driver.execute(f"EXPLAIN QUERY PLAN {text}", parameters)])
            == []
        )
    connection.close()


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_write_finds_its_rows_by_index(database: Path, name: str, count: int) -> None:
    statement = STATEMENTS[name]
    with sqlite3.connect(database) as connection:
        rows = connection.execute(
            f"EXPLAIN QUERY PLAN {statement._text(count)}", (None,) * (count * statement.width)
        )
        assert walks([row[3] for row in rows]) == []
    connection.close()


@pytest.mark.parametrize("name", VALIDATIONS)
def test_a_validation_finds_its_rows_by_index(database: Path, name: str) -> None:
    with sqlite3.connect(database) as connection:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {VALIDATIONS[name]}", (ID,))
        assert walks([row[3] for row in rows]) == []
    connection.close()


@pytest.mark.parametrize("count", [1, 4])
def test_a_step_changes_no_index_of_heads(database: Path, count: int) -> None:
    def changes(statement: sql.RowStatement) -> int:
        with closing(sqlite3.connect(database)) as connection:
            program = connection.execute(
                f"EXPLAIN {statement._text(count)}", (None,) * (count * statement.width)
            ).fetchall()
        return sum(row[1] in ("IdxInsert", "IdxDelete") for row in program)

    assert changes(sql.GUARDED_UPDATE.without_indexes) == 0
    assert changes(sql.GUARDED_UPDATE) > 1


def test_a_commit_of_many_rows_prepares_few_statements(database: Path) -> None:
    statement = sql.INSERT_ROWS["events"]
    connection = WriteConnection(database, StoreSettings())
    connection.begin()
    for count in range(1, 70):
        assert statement.execute(connection, [f"unknown-{count}", *range(8)] * count) == 0
    connection.rollback()
    connection.close()
    assert set(statement._texts) <= {1 << power for power in range(20)}
