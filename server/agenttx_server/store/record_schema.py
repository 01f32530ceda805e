"""Tables of records and their ancestry. Written with write sets as extra rows: texts and integers only.

Whether records count is told by ``record_commits``, one row a transaction: a record is written once and never touched
again, whatever becomes of its transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, Column, Index, PrimaryKeyConstraint, Table, Text

from agenttx_server.store.schema import KEY_TEXT, METADATA

__all__ = ["RECORD_TABLES", "record_commits", "record_edges", "record_events", "records"]


def _key(name: str) -> Column[str]:
    return Column(name, KEY_TEXT, nullable=False)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _integer(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


# ``data`` is the full record object; the columns before it are what is searched for, and what it leaves out.
records = Table(
    "records",
    METADATA,
    _key("target_id"),
    _key("run_id"),
    _key("action"),
    _integer("sequence"),
    _key("parent_target_id"),
    _key("root_target_id"),
    _key("source_guid"),
    _key("transaction_id"),
    _integer("step_id"),
    _text("pipeline"),
    _text("relative_path"),
    _text("content_hash"),
    _text("data"),
    PrimaryKeyConstraint("target_id"),
)
Index("ix_records_action", records.c.run_id, records.c.action, records.c.sequence)
Index("ix_records_parent", records.c.parent_target_id, records.c.target_id)
Index("ix_records_root", records.c.root_target_id, records.c.target_id)
Index("ix_records_source", records.c.source_guid, records.c.target_id)
Index("ix_records_transaction", records.c.transaction_id)

record_edges = Table(
    "record_edges",
    METADATA,
    _key("child"),
    _integer("ordinal"),
    _key("parent"),
    _text("kind"),
    PrimaryKeyConstraint("child", "ordinal"),
)
Index("ix_record_edges_parent", record_edges.c.parent, record_edges.c.child)

record_events = Table(
    "record_events",
    METADATA,
    _key("input_id"),
    _key("action"),
    _integer("attempt"),
    _key("run_id"),
    _key("transaction_id"),
    _integer("step_id"),
    _text("type"),
    _text("reason"),
    _text("outputs"),
    _text("detail"),
    _integer("occurred_at"),
    _integer("is_rewound"),
    PrimaryKeyConstraint("input_id", "action", "attempt"),
)
Index("ix_record_events_transaction", record_events.c.transaction_id)

record_commits = Table(
    "record_commits",
    METADATA,
    _key("transaction_id"),
    _key("run_id"),
    _key("pipeline"),
    _integer("committed_at"),
    Column("principal", Text, nullable=False, server_default=""),
    PrimaryKeyConstraint("transaction_id"),
)
Index(
    "ix_record_commits_newest",
    record_commits.c.pipeline,
    record_commits.c.committed_at,
    record_commits.c.run_id,
)

RECORD_TABLES: Final[Sequence[Table]] = (records, record_edges, record_events, record_commits)
