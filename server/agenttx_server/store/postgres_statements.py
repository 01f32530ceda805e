"""The writer's SQL, as PostgreSQL speaks it.

Rows of a transaction begin with its id; tables keep its number. The rows lead and everything
else is found by index, in their order: the connection leaves the planner no other way.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Table

from agenttx_server.engine.ports import ExtraOperation
from agenttx_server.store import schema
from agenttx_server.store.batch_connection import BatchStatements
from agenttx_server.store.event_pages import PagedEvents
from agenttx_server.store.extra_tables import blanks
from agenttx_server.store.postgres_row_statements import (
    INTEGER,
    TEXT,
    GuardStatement,
    RowStatement,
    SingleStatement,
    UpsertStatement,
)

__all__ = ["STATEMENTS", "extra_statement"]

_EACH = "{rows} JOIN transactions t ON t.transaction_id = v.column1"


def _names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def _types(table: Table) -> list[str]:
    return [INTEGER if isinstance(column.type, BigInteger) else TEXT for column in table.columns]


def _row_types(table: Table) -> list[str]:
    """Rows begin with the transaction's id, a table with its number."""
    return [TEXT, *_types(table)[1:]]


def _insertion(table: Table, on_conflict: str) -> str:
    names = _names(table)
    values = ", ".join(f"v.column{index}" for index in range(2, len(names) + 1))
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) "  # noqa: S608 - names of our own tables
        f"SELECT t.number, {values} FROM {_EACH} {on_conflict}"
    )


def _insert(table: Table, on_conflict: str = "") -> RowStatement:
    return RowStatement(_row_types(table), _insertion(table, on_conflict))


def _upsert(table: Table) -> RowStatement:
    key = [column.name for column in table.primary_key]
    assignments = ", ".join(f"{name} = excluded.{name}" for name in _names(table) if name not in key)
    return UpsertStatement(
        _row_types(table),
        _insertion(table, f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {assignments}"),
        range(len(key)),
    )


# --- heads: the columns of `transactions` behind `number`, then the revision expected --------

_HEAD = _names(schema.transactions)[1:]
_HEAD_TYPES = [*_types(schema.transactions)[1:], INTEGER]
_HEAD_VALUES = ", ".join(f"column{index}" for index in range(1, len(_HEAD) + 1))
_HEAD_UPDATES = ", ".join(
    f"{name} = v.column{index}"
    for index, name in enumerate(_HEAD, start=1)
    if name not in schema.FIXED_AT_BEGIN
)

_GUARDED_INSERT = GuardStatement(
    _HEAD_TYPES,
    f"INSERT INTO transactions ({', '.join(_HEAD)}) SELECT {_HEAD_VALUES} FROM {{rows}} "  # noqa: S608
    "ON CONFLICT (transaction_id) DO NOTHING",
)
_GUARDED_UPDATE = GuardStatement(
    _HEAD_TYPES,
    f"UPDATE transactions t SET {_HEAD_UPDATES} FROM {{rows}} "  # noqa: S608
    f"WHERE t.transaction_id = v.column1 AND t.revision = v.column{len(_HEAD) + 1}",
)
# Locks them, in order: what was read holds until the transaction's end.
_READ_REVISIONS = RowStatement(
    [TEXT],
    f"""
WITH locked AS (SELECT t.transaction_id, t.revision FROM {_EACH} FOR NO KEY UPDATE OF t)
SELECT coalesce(json_agg(json_build_array(transaction_id, revision)), '[]') FROM locked
""",  # noqa: S608
)

# --- rewinds: transaction, to_step, time ------------------------------------------------------

_REWIND_TYPES = [TEXT, INTEGER, INTEGER]

# Runs before the head moves on, so the generation found is the one that ends here.
_RECORD_REWINDS = RowStatement(
    _REWIND_TYPES,
    "INSERT INTO rewinds (transaction_number, generation, to_step, rewound_at) "  # noqa: S608
    f"SELECT t.number, t.generation, v.column2, v.column3 FROM {_EACH} ON CONFLICT DO NOTHING",
)


def _remove_rewound(table: Table, condition: str = "") -> SingleStatement:
    return SingleStatement(
        f"DELETE FROM {table.name} r "  # noqa: S608
        "WHERE r.transaction_number = (SELECT number FROM transactions WHERE transaction_id = $1::text) "
        f"AND r.step_id >= $2::bigint AND $3::bigint IS NOT NULL {condition}"
    )


# --- single steps and sub-steps: transaction, step, first and last sequence, first and last sub-step ------------


def _remove_steps(table: Table, condition: str) -> SingleStatement:
    return SingleStatement(
        f"DELETE FROM {table.name} r "  # noqa: S608
        "WHERE r.transaction_number = (SELECT number FROM transactions WHERE transaction_id = $1::text) "
        f"AND r.step_id = $2::bigint AND {condition}"
    )


_BY_SEQUENCE = (
    "r.sequence BETWEEN $3::bigint AND $4::bigint AND $5::bigint IS NOT NULL AND $6::bigint IS NOT NULL"
)
_BY_SUB_STEP = (
    "$3::bigint IS NOT NULL AND $4::bigint IS NOT NULL AND r.sub_step BETWEEN $5::bigint AND $6::bigint"
)

# --- rows -------------------------------------------------------------------------------------

# The base is the version that the transaction last read (versions only grow: the greatest),
# else the committed one now.
_INSERT_STATE_WRITES = RowStatement(
    [TEXT, INTEGER, INTEGER, TEXT, TEXT],
    f"""
INSERT INTO state_writes (transaction_number, step_id, sequence, key, value, base_version)
SELECT t.number, v.column2, v.column3, v.column4, v.column5,
  coalesce(
    (SELECT max(r.version) FROM state_reads r
     WHERE r.transaction_number = t.number AND r.key = v.column4 AND r.is_prefix = 0),
    (SELECT c.version FROM committed_state c WHERE c.key = v.column4),
    0)
FROM {_EACH}
""",  # noqa: S608
)

# --- publication: transaction, how far its version is below the counter's ---------------------

_VERSION_TYPES = [TEXT, INTEGER]
_VERSION = "(SELECT value FROM counters WHERE name = 'commit_version') - v.column2"

# One row: whether the transactions can't simply be published together (a base has moved, there
# are checks, or two of them wrote one key), and for each [id, keys written, effects staged].
_SURVEY_PUBLICATIONS = RowStatement(
    _VERSION_TYPES,
    f"""
WITH p AS MATERIALIZED (SELECT t.number, t.transaction_id FROM {_EACH})
SELECT
  EXISTS (SELECT 1 FROM p JOIN state_writes w ON w.transaction_number = p.number
          LEFT JOIN committed_state c ON c.key = w.key
          WHERE w.base_version <> coalesce(c.version, 0))
  OR EXISTS (SELECT 1 FROM p JOIN commit_checks k ON k.transaction_number = p.number)
  OR EXISTS (SELECT 1 FROM p JOIN state_writes w ON w.transaction_number = p.number
             GROUP BY w.key HAVING min(p.number) <> max(p.number)),
  (SELECT json_agg(json_build_array(p.transaction_id,
     (SELECT count(DISTINCT w.key) FROM state_writes w WHERE w.transaction_number = p.number),
     (SELECT count(*) FROM effects e WHERE e.transaction_number = p.number AND e.state = 'STAGED')))
   FROM p)
""",  # noqa: S608
)
_PUBLISH_STATE = RowStatement(
    _VERSION_TYPES,
    f"""
INSERT INTO committed_state (key, value, version)
SELECT w.key, w.value, {_VERSION}
FROM {_EACH} JOIN state_writes w ON w.transaction_number = t.number
WHERE NOT EXISTS (
  SELECT 1 FROM state_writes n
  WHERE n.transaction_number = w.transaction_number AND n.key = w.key
    AND (n.step_id, n.sequence) > (w.step_id, w.sequence))
ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version
""",  # noqa: S608
)
_PUBLISH_EFFECTS = RowStatement(
    _VERSION_TYPES,
    f"UPDATE effects e SET state = 'READY' FROM {_EACH} "  # noqa: S608
    "WHERE e.transaction_number = t.number AND e.state = 'STAGED'",
)
_RECORD_COMMIT_VERSIONS = RowStatement(
    _VERSION_TYPES,
    f"UPDATE transactions t SET commit_version = {_VERSION} FROM {{rows}} "  # noqa: S608
    "WHERE t.transaction_id = v.column1",
)

# --- validation of one transaction; the parameter is its id ------------------------------------

_NUMBER = "(SELECT number FROM transactions WHERE transaction_id = $1::text)"

# No key that an index can hold is greater.
_BEHIND_ALL_KEYS = r"repeat(U&'\+10FFFF', 700)"


def _end(alias: str) -> str:
    # '' means no end.
    return f"CASE {alias}.key_end WHEN '' THEN {_BEHIND_ALL_KEYS} ELSE {alias}.key_end END"


_FIND_MOVED_BASE = f"""
SELECT w.key FROM state_writes w LEFT JOIN committed_state c ON c.key = w.key
WHERE w.transaction_number = {_NUMBER} AND w.base_version <> coalesce(c.version, 0)
ORDER BY w.key LIMIT 1
"""  # noqa: S608

_FIND_CHANGED_READ = f"""
SELECT r.key FROM state_reads r LEFT JOIN committed_state c ON c.key = r.key
WHERE r.transaction_number = {_NUMBER} AND r.is_prefix = 0 AND r.version <> coalesce(c.version, 0)
ORDER BY r.key LIMIT 1
"""  # noqa: S608

# A prefix that was scanned: see sqlite_statements.py, where the same stands. Sorted apart, or the planner
# would walk all keys in their order to the first that fits.
_FIND_CHANGED_PREFIX = f"""
WITH changed AS MATERIALIZED (
SELECT c.key FROM state_reads r JOIN committed_state c ON c.key >= r.key AND c.key < {_end("r")}
WHERE r.transaction_number = {_NUMBER} AND r.is_prefix = 1 AND CASE
  WHEN r.version > 0 THEN c.version > r.version
  ELSE c.value IS NOT NULL
    AND NOT EXISTS (
      SELECT 1 FROM state_reads o
      WHERE o.transaction_number = r.transaction_number AND o.key = c.key AND o.is_prefix = 0)
    AND NOT EXISTS (
      SELECT 1 FROM state_writes w WHERE w.transaction_number = r.transaction_number AND w.key = c.key)
  END)
SELECT key FROM changed ORDER BY key LIMIT 1
"""  # noqa: S608

# After publication: checks are on state as it will be.
_FIND_BROKEN_CHECK = f"""
SELECT k.key, k.error FROM commit_checks k
WHERE k.transaction_number = {_NUMBER} AND CASE k.kind
  WHEN 'EXISTS' THEN NOT EXISTS (
    SELECT 1 FROM committed_state c WHERE c.key = k.key AND c.value IS NOT NULL)
  ELSE EXISTS (
    SELECT 1 FROM committed_state c WHERE c.key >= k.key AND c.key < {_end("k")} AND c.value IS NOT NULL)
  END
ORDER BY k.step_id, k.sequence LIMIT 1
"""  # noqa: S608

# A connection's chain of the audit trail. A lock's two numbers are the program's own kind and the chain.
_AUDIT_LOCK = 1_635_083_369
_AUDIT_CHAIN = "mod(pg_backend_pid(), 16)"
_AUDIT_HEAD = f"""
SELECT c.chain, coalesce(a.sequence, 0), coalesce(a.hash, '') FROM (SELECT {_AUDIT_CHAIN} AS chain) c
LEFT JOIN LATERAL (
  SELECT sequence, hash FROM audit_log WHERE chain = c.chain ORDER BY sequence DESC LIMIT 1) a ON true
"""  # noqa: S608

STATEMENTS: Final = BatchStatements(
    guarded_insert=_GUARDED_INSERT,
    guarded_update=_GUARDED_UPDATE,
    read_revisions=_READ_REVISIONS,
    record_rewinds=_RECORD_REWINDS,
    # Undo actions that failed or that a person settled stay: they are told of; late ones are owed.
    remove_rewound=(
        _remove_rewound(schema.state_writes),
        _remove_rewound(schema.state_reads),
        _remove_rewound(schema.commit_checks),
        _remove_rewound(schema.effects, "AND r.state = 'STAGED'"),
        _remove_rewound(schema.undo_actions, "AND r.state IN ('DONE', 'PENDING') AND r.late = 0"),
    ),
    remove_steps=(
        _remove_steps(schema.state_writes, _BY_SEQUENCE),
        _remove_steps(schema.state_reads, _BY_SUB_STEP),
        _remove_steps(schema.commit_checks, _BY_SEQUENCE),
        _remove_steps(schema.effects, f"{_BY_SUB_STEP} AND r.state = 'STAGED'"),
        _remove_steps(
            schema.undo_actions, f"{_BY_SUB_STEP} AND r.state IN ('DONE', 'PENDING') AND r.late = 0"
        ),
    ),
    # Reads before the writes that rest on them.
    insert_rows={
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
        # In order, or two servers that record the same answers could wait for each other.
        "recorded_responses": RowStatement(
            [TEXT] * 5,
            "INSERT INTO recorded_responses (scope, request_id, method, fingerprint, response) "
            "SELECT * FROM {rows} ORDER BY column1, column2",
        ),
    },
    lock_publication="SELECT value FROM counters WHERE name = 'commit_version' FOR NO KEY UPDATE",
    advance_commit_version=(
        "UPDATE counters SET value = value + $1::bigint WHERE name = 'commit_version' RETURNING value"
    ),
    survey_publications=_SURVEY_PUBLICATIONS,
    publish_state=_PUBLISH_STATE,
    publish_effects=_PUBLISH_EFFECTS,
    record_commit_versions=_RECORD_COMMIT_VERSIONS,
    find_moved_base=_FIND_MOVED_BASE,
    find_changed_read=_FIND_CHANGED_READ,
    find_changed_prefix=_FIND_CHANGED_PREFIX,
    find_broken_check=_FIND_BROKEN_CHECK,
    lock_audit=f"SELECT pg_advisory_xact_lock({_AUDIT_LOCK}, {_AUDIT_CHAIN})",
    audit_head=_AUDIT_HEAD,
    audit_behind="SELECT 1 FROM audit_log WHERE chain = $1::bigint AND sequence > $2::bigint",
    extra_rows={},
)


# --- rows of outer layers: all columns of the table, or those of its key -----------------------


def extra_statement(table: Table, operation: ExtraOperation) -> RowStatement | PagedEvents:
    """Return the statement that does an operation on rows of a table that isn't the engine's."""
    names = _names(table)
    key = [column.name for column in table.primary_key]
    if operation is ExtraOperation.DELETE:
        matches = " AND ".join(f"r.{name} = v.column{number}" for number, name in enumerate(key, start=1))
        types = [_types(table)[names.index(name)] for name in key]
        return RowStatement(types, f"DELETE FROM {table.name} r USING {{rows}} WHERE {matches}")  # noqa: S608
    if operation is ExtraOperation.REQUIRE:
        # One that isn't there is inserted twice, which its key refuses; one that is there is kept from being deleted.
        matches = " AND ".join(f"r.{name} = v.column{number}" for number, name in enumerate(key, start=1))
        values = [
            f"v.column{key.index(name) + 1}" if name in key else blank
            for name, blank in zip(names, blanks(table), strict=True)
        ]
        return RowStatement(
            [_types(table)[names.index(name)] for name in key],
            f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join(values)} "  # noqa: S608
            f"FROM {{rows}} CROSS JOIN generate_series(1, 2) "
            f"WHERE NOT EXISTS (SELECT 1 FROM {table.name} r WHERE {matches} FOR KEY SHARE)",
        )
    if operation is ExtraOperation.UNCHANGED:
        # As above: one that has changed can't be inserted either. Locked, so that it stays as it is.
        given = names[:-1]
        matches = " AND ".join(
            f"r.{name} IS NOT DISTINCT FROM v.column{number}" for number, name in enumerate(given, start=1)
        )
        values = [f"v.column{number}" for number in range(1, len(names))]
        return RowStatement(
            _types(table)[:-1],
            f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join(values)}, {blanks(table)[-1]} "  # noqa: S608
            f"FROM {{rows}} CROSS JOIN generate_series(1, 2) "
            f"WHERE NOT EXISTS (SELECT 1 FROM {table.name} r WHERE {matches} FOR UPDATE)",
        )
    # In order of their keys, or two servers that write the same ones could wait for each other.
    places = ", ".join(f"column{names.index(name) + 1}" for name in key)
    insertion = f"INSERT INTO {table.name} ({', '.join(names)}) SELECT * FROM {{rows}} ORDER BY {places}"  # noqa: S608
    if operation is ExtraOperation.INSERT:
        inserted = RowStatement(_types(table), insertion)
        return PagedEvents(inserted) if table.info.get("is_paged") else inserted
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    on_conflict = f"ON CONFLICT ({', '.join(key)}) DO " + (f"UPDATE SET {changed}" if changed else "NOTHING")
    return UpsertStatement(_types(table), f"{insertion} {on_conflict}", [names.index(name) for name in key])
