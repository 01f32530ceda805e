"""Records, their edges and events, and the views that people query by hand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

KEY_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

# One row a record; the run whose commit is the newest is the pipeline's newest run.
_ALL = """
CREATE VIEW target_data_all AS
SELECT r.action AS action_name, r.relative_path AS relative_path, {data} AS data, 1 AS record_count,
       r.pipeline AS pipeline, r.run_id AS run_id
FROM records r JOIN record_commits c ON c.transaction_id = r.transaction_id
"""
_NEWEST = """
CREATE VIEW target_data AS
SELECT a.* FROM target_data_all a
WHERE a.run_id = (
    SELECT c.run_id FROM record_commits c WHERE c.pipeline = a.pipeline
    ORDER BY c.committed_at DESC, c.run_id DESC LIMIT 1
)
"""


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, KEY_TEXT, nullable=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def _integer(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def upgrade() -> None:
    _records()
    _edges_and_events()
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    data = "('[' || r.data || ']')::jsonb" if is_postgresql else "'[' || r.data || ']'"
    op.execute(_ALL.format(data=data))
    op.execute(_NEWEST)


def _records() -> None:
    op.create_table(
        "records",
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
        sa.PrimaryKeyConstraint("target_id"),
    )
    op.create_index("ix_records_action", "records", ["run_id", "action", "sequence"])
    op.create_index("ix_records_parent", "records", ["parent_target_id", "target_id"])
    op.create_index("ix_records_root", "records", ["root_target_id", "target_id"])
    op.create_index("ix_records_source", "records", ["source_guid", "target_id"])
    op.create_index("ix_records_transaction", "records", ["transaction_id"])


def _edges_and_events() -> None:
    op.create_table(
        "record_edges",
        _key("child"),
        _integer("ordinal"),
        _key("parent"),
        _text("kind"),
        sa.PrimaryKeyConstraint("child", "ordinal"),
    )
    op.create_index("ix_record_edges_parent", "record_edges", ["parent", "child"])
    op.create_table(
        "record_events",
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
        sa.PrimaryKeyConstraint("input_id", "action", "attempt"),
    )
    op.create_index("ix_record_events_transaction", "record_events", ["transaction_id"])
    op.create_table(
        "record_commits",
        _key("transaction_id"),
        _key("run_id"),
        _key("pipeline"),
        _integer("committed_at"),
        sa.PrimaryKeyConstraint("transaction_id"),
    )
    op.create_index("ix_record_commits_newest", "record_commits", ["pipeline", "committed_at", "run_id"])


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
