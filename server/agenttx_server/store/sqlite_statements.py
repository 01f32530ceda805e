"""The writer's SQL, as SQLite speaks it.

A :class:`RowStatement` takes any number of rows as one ``VALUES`` list: a table's rows of a
whole batch are one statement and one ``sqlite3_step``. The driver releases the interpreter
lock around each step, and beside a busy event loop each return may wait a switch interval;
``executemany`` steps once a row and was seen to take a hundred times as long; rows as JSON
text cost more than twice the processor time (benchmarks/store_writes.py).

Rows of a transaction begin with its id; tables keep its number. CROSS JOIN is SQLite's way to
have the left table lead: the rows lead, heads and the tables behind them are found by index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Table

from agenttx_server.engine.ports import ExtraOperation
from agenttx_server.store import schema
from agenttx_server.store.batch_connection import BatchStatements, SomeSetRefused
from agenttx_server.store.event_pages import PagedEvents
from agenttx_server.store.extra_tables import blanks

if TYPE_CHECKING:
    from agenttx_server.store.sqlite_connection import WriteConnection

__all__ = [
    "ADVANCE_COMMIT_VERSION",
    "FIND_BROKEN_CHECK",
    "FIND_CHANGED_PREFIX",
    "FIND_CHANGED_READ",
    "FIND_MOVED_BASE",
    "GUARDED_INSERT",
    "GUARDED_UPDATE",
    "INSERT_ROWS",
    "PUBLISH_EFFECTS",
    "PUBLISH_STATE",
    "READ_REVISIONS",
    "RECORD_COMMIT_VERSIONS",
    "RECORD_REWINDS",
    "REMOVE_REWOUND",
    "REMOVE_STEPS",
    "STATEMENTS",
    "SURVEY_PUBLICATIONS",
    "RowStatement",
    "extra_statement",
]

# SQLite takes 32,766 parameters a statement.
_MOST_PARAMETERS = 16_384


class RowStatement:
    """A statement over rows of a given width, written with ``{rows}`` where the list stands.

    The list is padded with rows of NULL to a power of two, so that few different statements
    are ever prepared; the statement must ignore rows whose first value is NULL. ``of_one`` is the statement over one
    row, with ``?1`` to ``?N`` for its values: a list of one is a table all the same, which costs a lone step
    a third of its statements' time (docs/decisions/0040).
    """

    def __init__(self, width: int, template: str, of_one: str | None = None) -> None:
        self.width = width
        self._template = template
        self._texts: dict[int, str] = {} if of_one is None else {1: of_one}
        self._most_rows = 1 << (_MOST_PARAMETERS // width).bit_length() - 1

    def execute(self, connection: WriteConnection, values: Sequence[Any], expected: int | None = None) -> int:
        """Run for rows given one behind the other; return the number of rows changed.

        Raises SomeSetRefused if that is not the number expected.
        """
        if len(values) == self.width:
            changed = connection.execute(self._text(1), values)
        else:
            changed = sum(connection.execute(text, parameters) for text, parameters in self._calls(values))
        if expected is not None and changed != expected:
            raise SomeSetRefused
        return changed

    def query(self, connection: WriteConnection, values: Sequence[Any]) -> Any:
        """Return the one row of a query over rows, which must fit in one statement."""
        ((text, parameters),) = self._calls(values)
        return connection.first(text, parameters)

    def _calls(self, values: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
        most_values = self._most_rows * self.width
        for start in range(0, len(values), most_values):
            part = values[start : start + most_values]
            count = len(part) // self.width
            size = 1 << (count - 1).bit_length()
            yield self._text(size), (*part, *(None,) * ((size - count) * self.width))

    def _text(self, size: int) -> str:
        text = self._texts.get(size)
        if text is None:
            row = f"({', '.join('?' * self.width)})"
            text = self._template.replace("{rows}", f"(VALUES {', '.join([row] * size)})")
            self._texts[size] = text
        return text


_EACH = "{rows} v CROSS JOIN transactions t ON t.transaction_id = v.column1"
_ONE = "transactions t WHERE t.transaction_id = v.column1"


def _of_one(text: str) -> str:
    """Return a statement with the values themselves in place of the columns of a list of rows."""
    return re.sub(r"\bv\.column(\d+)", r"?\1", text)


def _names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def _insert(table: Table, on_conflict: str = "") -> RowStatement:
    """Insert rows that begin with the transaction's id into a table that begins with its number."""
    names = _names(table)
    values = ", ".join(f"v.column{index}" for index in range(2, len(names) + 1))
    # `WHERE true` keeps SQLite from reading ON CONFLICT as a join condition.
    into = f"INSERT INTO {table.name} ({', '.join(names)}) SELECT t.number, {values}"
    return RowStatement(
        len(names),
        f"{into} FROM {_EACH} WHERE true {on_conflict}",
        _of_one(f"{into} FROM {_ONE} {on_conflict}"),
    )


def _upsert(table: Table) -> RowStatement:
    key = [column.name for column in table.primary_key]
    assignments = ", ".join(f"{name} = excluded.{name}" for name in _names(table) if name not in key)
    return _insert(table, f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {assignments}")


# --- heads: the columns of `transactions` behind `number`, then the revision expected --------

_HEAD = _names(schema.transactions)[1:]
_HEAD_VALUES = ", ".join(f"column{index}" for index in range(1, len(_HEAD) + 1))
# No index has one of the others, so a write that changes none of these touches no index.
_INDEXED = {column.name for index in schema.transactions.indexes for column in index.columns}


def _assigned(*, indexed: bool) -> str:
    return ", ".join(
        f"{name} = v.column{place}"
        for place, name in enumerate(_HEAD, start=1)
        if name not in schema.FIXED_AT_BEGIN and (indexed or name not in _INDEXED)
    )


_GUARD = f"transactions.transaction_id = v.column1 AND transactions.revision = v.column{len(_HEAD) + 1}"
_INDEXED_UNCHANGED = " AND ".join(
    f"transactions.{name} IS v.column{place}"
    for place, name in enumerate(_HEAD, start=1)
    if name in _INDEXED - schema.FIXED_AT_BEGIN
)


class _HeadUpdate(RowStatement):
    """Writes heads over older ones, first those of which no index is touched, then the rest.

    SQLite takes an entry out of each index of an assigned column and puts it in again, even if it is the
    same. Nearly every step leaves all of them as they are, and is written by the first statement alone.
    """

    def __init__(self) -> None:
        all_fields, most_fields = (
            f"UPDATE transactions SET {_assigned(indexed=indexed)}"  # noqa: S608
            for indexed in (True, False)
        )
        super().__init__(len(_HEAD) + 1, f"{all_fields} FROM {{rows}} v WHERE {_GUARD}")
        self.without_indexes = RowStatement(
            self.width,
            f"{most_fields} FROM {{rows}} v WHERE {_GUARD} AND {_INDEXED_UNCHANGED}",
            _of_one(f"{most_fields} WHERE {_GUARD} AND {_INDEXED_UNCHANGED}"),
        )

    def execute(self, connection: WriteConnection, values: Sequence[Any], expected: int | None = None) -> int:
        changed = self.without_indexes.execute(connection, values)
        if changed * self.width < len(values):
            # Those written already have another revision by now.
            changed += super().execute(connection, values)
        if expected is not None and changed != expected:
            raise SomeSetRefused
        return changed


GUARDED_INSERT: Final = RowStatement(
    len(_HEAD) + 1,
    f"INSERT INTO transactions ({', '.join(_HEAD)}) SELECT {_HEAD_VALUES} FROM {{rows}} "  # noqa: S608
    "WHERE column1 IS NOT NULL ON CONFLICT (transaction_id) DO NOTHING",
)
GUARDED_UPDATE: Final = _HeadUpdate()
READ_REVISIONS: Final = RowStatement(
    1,
    f"SELECT json_group_array(json_array(t.transaction_id, t.revision)) FROM {_EACH}",  # noqa: S608
)

# --- rewinds: transaction, to_step, time ------------------------------------------------------

# Runs before the head moves on, so the generation found is the one that ends here.
RECORD_REWINDS: Final = RowStatement(
    3,
    "INSERT INTO rewinds (transaction_number, generation, to_step, rewound_at) "  # noqa: S608
    f"SELECT t.number, t.generation, v.column2, v.column3 FROM {_EACH} WHERE true ON CONFLICT DO NOTHING",
)


def _remove_rewound(table: Table, condition: str = "") -> RowStatement:
    return RowStatement(
        3,
        f"DELETE FROM {table.name} WHERE rowid IN ("  # noqa: S608
        f"SELECT r.rowid FROM {_EACH} CROSS JOIN {table.name} r "
        f"ON r.transaction_number = t.number AND r.step_id >= v.column2 {condition})",
    )


# Undo actions that failed or that a person settled stay: they are told of; late ones are owed.
REMOVE_REWOUND: Final[Sequence[RowStatement]] = (
    _remove_rewound(schema.state_writes),
    _remove_rewound(schema.state_reads),
    _remove_rewound(schema.commit_checks),
    _remove_rewound(schema.effects, "AND r.state = 'STAGED'"),
    _remove_rewound(schema.undo_actions, "AND r.state IN ('DONE', 'PENDING') AND r.late = 0"),
)

# --- single steps and sub-steps: transaction, step, first and last sequence, first and last sub-step ------------


def _remove_steps(table: Table, condition: str) -> RowStatement:
    return RowStatement(
        6,
        f"DELETE FROM {table.name} WHERE rowid IN ("  # noqa: S608
        f"SELECT r.rowid FROM {_EACH} CROSS JOIN {table.name} r "
        f"ON r.transaction_number = t.number AND r.step_id = v.column2 AND {condition})",
    )


_BY_SEQUENCE = "r.sequence BETWEEN v.column3 AND v.column4"
_BY_SUB_STEP = "r.sub_step BETWEEN v.column5 AND v.column6"

REMOVE_STEPS: Final[Sequence[RowStatement]] = (
    _remove_steps(schema.state_writes, _BY_SEQUENCE),
    _remove_steps(schema.state_reads, _BY_SUB_STEP),
    _remove_steps(schema.commit_checks, _BY_SEQUENCE),
    _remove_steps(schema.effects, f"{_BY_SUB_STEP} AND r.state = 'STAGED'"),
    _remove_steps(schema.undo_actions, f"{_BY_SUB_STEP} AND r.state IN ('DONE', 'PENDING') AND r.late = 0"),
)

# --- rows -------------------------------------------------------------------------------------

# The base is the version that the transaction last read (versions only grow: the greatest),
# else the committed one now.
_STATE_WRITES = """
INSERT INTO state_writes (transaction_number, step_id, sequence, key, value, base_version)
SELECT t.number, v.column2, v.column3, v.column4, v.column5,
  coalesce(
    (SELECT max(r.version) FROM state_reads r
     WHERE r.transaction_number = t.number AND r.key = v.column4 AND r.is_prefix = 0),
    (SELECT c.version FROM committed_state c WHERE c.key = v.column4),
    0)
"""
_INSERT_STATE_WRITES = RowStatement(
    5, f"{_STATE_WRITES} FROM {_EACH}", _of_one(f"{_STATE_WRITES} FROM {_ONE}")
)

# In the order in which they run: reads before the writes that rest on them.
INSERT_ROWS: Final[dict[str, RowStatement]] = {
    "transaction_metadata": _insert(schema.transaction_metadata, "ON CONFLICT DO NOTHING"),
    "attempts": _upsert(schema.attempts),
    "sub_steps": _upsert(schema.sub_steps),
    "state_reads": _insert(schema.state_reads),
    "state_writes": _INSERT_STATE_WRITES,
    "commit_checks": _insert(schema.commit_checks),
    "effects": _upsert(schema.effects),
    "undo_actions": _upsert(schema.undo_actions),
    "approvals": _upsert(schema.approvals),
    "events": _insert(schema.events),
    "recorded_responses": RowStatement(
        5,
        "INSERT INTO recorded_responses (scope, request_id, method, fingerprint, response) "
        "SELECT column1, column2, column3, column4, column5 FROM {rows} WHERE column1 IS NOT NULL",
    ),
}

# --- publication: transaction, how far its version is below the counter's ---------------------

_VERSION = "(SELECT value FROM counters WHERE name = 'commit_version') - v.column2"

ADVANCE_COMMIT_VERSION: Final = (
    "UPDATE counters SET value = value + ? WHERE name = 'commit_version' RETURNING value"
)

# One row: whether the transactions can't simply be published together (a base has moved, there
# are checks, or two of them wrote one key), and for each [id, keys written, effects staged].
SURVEY_PUBLICATIONS: Final = RowStatement(
    2,
    f"""
WITH p AS MATERIALIZED (SELECT t.number, t.transaction_id FROM {_EACH})
SELECT
  EXISTS (SELECT 1 FROM p CROSS JOIN state_writes w ON w.transaction_number = p.number
          LEFT JOIN committed_state c ON c.key = w.key
          WHERE w.base_version <> coalesce(c.version, 0))
  OR EXISTS (SELECT 1 FROM p CROSS JOIN commit_checks k ON k.transaction_number = p.number)
  OR EXISTS (SELECT 1 FROM p CROSS JOIN state_writes w ON w.transaction_number = p.number
             GROUP BY w.key HAVING min(p.number) <> max(p.number)),
  (SELECT json_group_array(json_array(p.transaction_id,
     (SELECT count(DISTINCT w.key) FROM state_writes w WHERE w.transaction_number = p.number),
     (SELECT count(*) FROM effects e WHERE e.transaction_number = p.number AND e.state = 'STAGED')))
   FROM p)
""",  # noqa: S608
)

PUBLISH_STATE: Final = RowStatement(
    2,
    f"""
INSERT INTO committed_state (key, value, version)
SELECT w.key, w.value, {_VERSION}
FROM {_EACH} CROSS JOIN state_writes w ON w.transaction_number = t.number
WHERE NOT EXISTS (
  SELECT 1 FROM state_writes n
  WHERE n.transaction_number = w.transaction_number AND n.key = w.key
    AND (n.step_id, n.sequence) > (w.step_id, w.sequence))
ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version
""",  # noqa: S608
)

PUBLISH_EFFECTS: Final = RowStatement(
    2,
    "UPDATE effects SET state = 'READY' "  # noqa: S608
    f"WHERE state = 'STAGED' AND transaction_number IN (SELECT t.number FROM {_EACH})",
)
RECORD_COMMIT_VERSIONS: Final = RowStatement(
    2,
    f"UPDATE transactions SET commit_version = {_VERSION} FROM {{rows}} v "  # noqa: S608
    "WHERE transactions.transaction_id = v.column1",
)

# --- validation of one transaction; the parameter is its id ------------------------------------

_NUMBER = "(SELECT number FROM transactions WHERE transaction_id = ?)"

FIND_MOVED_BASE: Final = f"""
SELECT w.key FROM state_writes w LEFT JOIN committed_state c ON c.key = w.key
WHERE w.transaction_number = {_NUMBER} AND w.base_version <> coalesce(c.version, 0)
ORDER BY w.key LIMIT 1
"""  # noqa: S608

FIND_CHANGED_READ: Final = f"""
SELECT r.key FROM state_reads r LEFT JOIN committed_state c ON c.key = r.key
WHERE r.transaction_number = {_NUMBER} AND r.is_prefix = 0 AND r.version <> coalesce(c.version, 0)
ORDER BY r.key LIMIT 1
"""  # noqa: S608


def _end(alias: str) -> str:
    # '' means no end; on SQLite every BLOB is greater than every TEXT.
    return f"CASE {alias}.key_end WHEN '' THEN x'' ELSE {alias}.key_end END"


# A prefix that was scanned. The transaction read (or wrote) every key then present, so a
# present key that it neither read nor wrote came later. Where the row carries the commit
# version at the scan (above 0), any key changed since counts.
FIND_CHANGED_PREFIX: Final = f"""
SELECT c.key FROM state_reads r CROSS JOIN committed_state c ON c.key >= r.key AND c.key < {_end("r")}
WHERE r.transaction_number = {_NUMBER} AND r.is_prefix = 1 AND CASE
  WHEN r.version > 0 THEN c.version > r.version
  ELSE c.value IS NOT NULL
    AND NOT EXISTS (
      SELECT 1 FROM state_reads o
      WHERE o.transaction_number = r.transaction_number AND o.key = c.key AND o.is_prefix = 0)
    AND NOT EXISTS (
      SELECT 1 FROM state_writes w WHERE w.transaction_number = r.transaction_number AND w.key = c.key)
  END
ORDER BY c.key LIMIT 1
"""  # noqa: S608

# After publication: checks are on state as it will be.
FIND_BROKEN_CHECK: Final = f"""
SELECT k.key, k.error FROM commit_checks k
WHERE k.transaction_number = {_NUMBER} AND CASE k.kind
  WHEN 'EXISTS' THEN NOT EXISTS (
    SELECT 1 FROM committed_state c WHERE c.key = k.key AND c.value IS NOT NULL)
  ELSE EXISTS (
    SELECT 1 FROM committed_state c WHERE c.key >= k.key AND c.key < {_end("k")} AND c.value IS NOT NULL)
  END
ORDER BY k.step_id, k.sequence LIMIT 1
"""  # noqa: S608

STATEMENTS: Final = BatchStatements(
    guarded_insert=GUARDED_INSERT,
    guarded_update=GUARDED_UPDATE,
    read_revisions=READ_REVISIONS,
    record_rewinds=RECORD_REWINDS,
    remove_rewound=REMOVE_REWOUND,
    remove_steps=REMOVE_STEPS,
    insert_rows=INSERT_ROWS,
    # A write transaction excludes every other one.
    lock_publication="",
    advance_commit_version=ADVANCE_COMMIT_VERSION,
    survey_publications=SURVEY_PUBLICATIONS,
    publish_state=PUBLISH_STATE,
    publish_effects=PUBLISH_EFFECTS,
    record_commit_versions=RECORD_COMMIT_VERSIONS,
    find_moved_base=FIND_MOVED_BASE,
    find_changed_read=FIND_CHANGED_READ,
    find_changed_prefix=FIND_CHANGED_PREFIX,
    find_broken_check=FIND_BROKEN_CHECK,
    lock_audit="",
    audit_behind="",
    audit_head="SELECT chain, sequence, hash FROM audit_log WHERE chain = 0 ORDER BY sequence DESC LIMIT 1",
    extra_rows={},
)


# --- rows of outer layers: all columns of the table, or those of its key -----------------------


def extra_statement(table: Table, operation: ExtraOperation) -> RowStatement | PagedEvents:
    """Return the statement that does an operation on rows of a table that isn't the engine's."""
    names = _names(table)
    key = [column.name for column in table.primary_key]
    if operation is ExtraOperation.DELETE:
        columns = ", ".join(f"column{number}" for number in range(1, len(key) + 1))
        return RowStatement(
            len(key),
            f"DELETE FROM {table.name} WHERE ({', '.join(key)}) IN ("  # noqa: S608 - names of our own tables
            f"SELECT {columns} FROM {{rows}} WHERE column1 IS NOT NULL)",
        )
    columns = ", ".join(f"column{number}" for number in range(1, len(names) + 1))
    if operation is ExtraOperation.REQUIRE:
        # One that isn't there is inserted twice, which its key refuses.
        matches = " AND ".join(f"r.{name} = v.column{number}" for number, name in enumerate(key, start=1))
        values = [
            f"v.column{key.index(name) + 1}" if name in key else blank
            for name, blank in zip(names, blanks(table), strict=True)
        ]
        return RowStatement(
            len(key),
            f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join(values)} "  # noqa: S608
            f"FROM {{rows}} v CROSS JOIN (SELECT 1 UNION ALL SELECT 2) WHERE v.column1 IS NOT NULL "
            f"AND NOT EXISTS (SELECT 1 FROM {table.name} r WHERE {matches})",
        )
    if operation is ExtraOperation.UNCHANGED:
        # As above: one that has changed can't be inserted either.
        matches = " AND ".join(
            f"r.{name} IS v.column{number}" for number, name in enumerate(names[:-1], start=1)
        )
        given = ", ".join(f"v.column{number}" for number in range(1, len(names)))
        return RowStatement(
            len(names) - 1,
            f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {given}, {blanks(table)[-1]} "  # noqa: S608
            f"FROM {{rows}} v CROSS JOIN (SELECT 1 UNION ALL SELECT 2) WHERE v.column1 IS NOT NULL "
            f"AND NOT EXISTS (SELECT 1 FROM {table.name} r WHERE {matches})",
        )
    if table.info.get("is_paged"):
        # As many numbers as it has events: the database's own would be the next one.
        last = f"SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = '{table.name}'"  # noqa: S608
        return PagedEvents(
            RowStatement(
                len(names) + 1,
                f"INSERT INTO {table.name} ({', '.join(names)}, sequence) "  # noqa: S608
                f"SELECT {columns}, ({last}) + column{len(names) + 1} FROM {{rows}} WHERE column1 IS NOT NULL",
            ),
            is_numbered=True,
        )
    on_conflict = ""
    if operation is ExtraOperation.UPSERT:
        changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
        on_conflict = f"ON CONFLICT ({', '.join(key)}) DO " + (
            f"UPDATE SET {changed}" if changed else "NOTHING"
        )
    return RowStatement(
        len(names),
        f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {columns} FROM {{rows}} "  # noqa: S608
        f"WHERE column1 IS NOT NULL {on_conflict}",
    )
