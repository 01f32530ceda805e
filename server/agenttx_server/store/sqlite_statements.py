"""Everything that is SQLite's own: how a connection is set up and the SQL of the writer.

Rows reach a statement as one JSON text, ``[[…], …]``, so that a table's rows of a whole
batch are one statement and one ``sqlite3_step``. The driver releases the interpreter lock
around each step, and beside a busy event loop each return may wait a switch interval;
``executemany`` steps once a row (benchmarks/store_writes.py has the figures).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Table

from agenttx_server.store import schema

__all__ = [
    "BEGIN_WRITE",
    "BUMP_COMMIT_VERSION",
    "FIND_BROKEN_CHECK",
    "FIND_CHANGED_PREFIX",
    "FIND_CHANGED_READ",
    "FIND_MOVED_BASE",
    "GUARDED_UPDATE",
    "INSERT_ROWS",
    "PUBLISH_EFFECTS",
    "PUBLISH_STATE",
    "READ_REVISIONS",
    "RECORD_COMMIT_VERSION",
    "RECORD_REWINDS",
    "REMOVE_REWOUND",
]

BEGIN_WRITE: Final = "BEGIN IMMEDIATE"


def _json_columns(count: int) -> str:
    return ", ".join(f"value ->> {index}" for index in range(count))


def _end(alias: str) -> str:
    # '' means no end; on SQLite every BLOB is greater than every TEXT.
    return f"CASE {alias}.key_end WHEN '' THEN x'' ELSE {alias}.key_end END"


def _insert(table: Table, on_conflict: str = "") -> str:
    columns = [column.name for column in table.columns]
    # `WHERE true` keeps SQLite from reading ON CONFLICT as a join condition.
    return (
        f"INSERT INTO {table.name} ({', '.join(columns)}) "  # noqa: S608 - names of our own tables
        f"SELECT {_json_columns(len(columns))} FROM json_each(?) WHERE true {on_conflict}"
    )


def _upsert(table: Table) -> str:
    key = [column.name for column in table.primary_key]
    changed = [column.name for column in table.columns if column.name not in key]
    assignments = ", ".join(f"{name} = excluded.{name}" for name in changed)
    return _insert(table, f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {assignments}")


# The base is the version that the transaction last read (versions only grow: the greatest),
# else the committed one now. Reads of the same write set are inserted before.
_INSERT_STATE_WRITES = """
INSERT INTO state_writes (transaction_id, step_id, sequence, key, value, base_version)
SELECT w.value ->> 0, w.value ->> 1, w.value ->> 2, w.value ->> 3, w.value ->> 4,
  coalesce(
    (SELECT max(r.version) FROM state_reads r
     WHERE r.transaction_id = w.value ->> 0 AND r.key = w.value ->> 3 AND r.is_prefix = 0),
    (SELECT c.version FROM committed_state c WHERE c.key = w.value ->> 3),
    0)
FROM json_each(?) w
"""

# In the order in which they run: reads before the writes that rest on them.
INSERT_ROWS: Final[dict[str, str]] = {
    "transactions": _insert(schema.transactions, "ON CONFLICT (transaction_id) DO NOTHING"),
    "transaction_metadata": _insert(schema.transaction_metadata),
    "attempts": _upsert(schema.attempts),
    "state_reads": _insert(schema.state_reads, "ON CONFLICT DO NOTHING"),
    "state_writes": _INSERT_STATE_WRITES,
    "commit_checks": _insert(schema.commit_checks),
    "effects": _upsert(schema.effects),
    "undo_actions": _upsert(schema.undo_actions),
    "events": _insert(schema.events),
    "recorded_responses": _insert(schema.recorded_responses),
}

# Rows: the columns of `transactions`, then the revision expected. CROSS JOIN order is kept
# by SQLite: the rows lead, each finds its head by primary key.
_HEAD_COLUMNS = [column.name for column in schema.transactions.columns]
_HEAD_UPDATES = ", ".join(
    f"{name} = v.value ->> {index}"
    for index, name in enumerate(_HEAD_COLUMNS)
    if name not in ("transaction_id", "principal", "agent_id", "created_at", "commit_version")
)
GUARDED_UPDATE: Final = (
    f"UPDATE transactions SET {_HEAD_UPDATES} FROM json_each(?) v "  # noqa: S608
    f"WHERE transactions.transaction_id = v.value ->> 0 AND transactions.revision = v.value ->> {len(_HEAD_COLUMNS)}"
)

READ_REVISIONS: Final = """
SELECT json_group_array(json_array(t.transaction_id, t.revision))
FROM json_each(?) v CROSS JOIN transactions t ON t.transaction_id = v.value
"""

# Rows: transaction, expected revision, to_step, time. Runs before the head moves on, so the
# generation found is the one that ends here.
RECORD_REWINDS: Final = """
INSERT INTO rewinds (transaction_id, generation, to_step, rewound_at)
SELECT t.transaction_id, t.generation, v.value ->> 2, v.value ->> 3
FROM json_each(?) v CROSS JOIN transactions t
  ON t.transaction_id = v.value ->> 0 AND t.revision = v.value ->> 1
WHERE true ON CONFLICT DO NOTHING
"""


def _remove_rewound(table: Table, condition: str = "") -> str:
    key = [column.name for column in table.primary_key]
    columns = ", ".join(key)
    chosen = ", ".join(f"t.{name}" for name in key)
    return (
        f"DELETE FROM {table.name} WHERE ({columns}) IN ("  # noqa: S608
        f"SELECT {chosen} FROM json_each(?) v CROSS JOIN {table.name} t "
        f"ON t.transaction_id = v.value ->> 0 AND t.step_id >= v.value ->> 2 {condition})"
    )


# Rows as in RECORD_REWINDS. Failed undo actions stay: they are owed.
REMOVE_REWOUND: Final[Sequence[str]] = (
    _remove_rewound(schema.state_writes),
    _remove_rewound(schema.state_reads),
    _remove_rewound(schema.commit_checks),
    _remove_rewound(schema.effects, "AND t.state = 'STAGED'"),
    _remove_rewound(schema.undo_actions, "AND t.state <> 'FAILED'"),
)

# --- publication of one transaction; parameters are named -----------------------------------

BUMP_COMMIT_VERSION: Final = (
    "UPDATE counters SET value = value + 1 WHERE name = 'commit_version' RETURNING value"
)

FIND_MOVED_BASE: Final = """
SELECT w.key FROM state_writes w LEFT JOIN committed_state c ON c.key = w.key
WHERE w.transaction_id = :transaction_id AND w.base_version <> coalesce(c.version, 0)
ORDER BY w.key LIMIT 1
"""

FIND_CHANGED_READ: Final = """
SELECT r.key FROM state_reads r LEFT JOIN committed_state c ON c.key = r.key
WHERE r.transaction_id = :transaction_id AND r.is_prefix = 0 AND r.version <> coalesce(c.version, 0)
ORDER BY r.key LIMIT 1
"""

# A prefix that was scanned. The transaction read (or wrote) every key then present, so a
# present key that it neither read nor wrote came later. Where the row carries the commit
# version at the scan (above 0), any key changed since counts.
FIND_CHANGED_PREFIX: Final = f"""
SELECT c.key FROM state_reads r JOIN committed_state c ON c.key >= r.key AND c.key < {_end("r")}
WHERE r.transaction_id = :transaction_id AND r.is_prefix = 1 AND CASE
  WHEN r.version > 0 THEN c.version > r.version
  ELSE c.value IS NOT NULL
    AND NOT EXISTS (
      SELECT 1 FROM state_reads o
      WHERE o.transaction_id = r.transaction_id AND o.key = c.key AND o.is_prefix = 0)
    AND NOT EXISTS (
      SELECT 1 FROM state_writes w WHERE w.transaction_id = r.transaction_id AND w.key = c.key)
  END
ORDER BY c.key LIMIT 1
"""  # noqa: S608

PUBLISH_STATE: Final = """
INSERT INTO committed_state (key, value, version)
SELECT w.key, w.value, :version FROM state_writes w
WHERE w.transaction_id = :transaction_id AND NOT EXISTS (
  SELECT 1 FROM state_writes n
  WHERE n.transaction_id = w.transaction_id AND n.key = w.key
    AND (n.step_id, n.sequence) > (w.step_id, w.sequence))
ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version
"""

FIND_BROKEN_CHECK: Final = f"""
SELECT k.key, k.error FROM commit_checks k
WHERE k.transaction_id = :transaction_id AND CASE k.kind
  WHEN 'EXISTS' THEN NOT EXISTS (
    SELECT 1 FROM committed_state c WHERE c.key = k.key AND c.value IS NOT NULL)
  ELSE EXISTS (
    SELECT 1 FROM committed_state c WHERE c.key >= k.key AND c.key < {_end("k")} AND c.value IS NOT NULL)
  END
ORDER BY k.step_id, k.sequence LIMIT 1
"""  # noqa: S608

PUBLISH_EFFECTS: Final = (
    "UPDATE effects SET state = 'READY' WHERE transaction_id = :transaction_id AND state = 'STAGED'"
)

RECORD_COMMIT_VERSION: Final = (
    "UPDATE transactions SET commit_version = :version WHERE transaction_id = :transaction_id"
)
