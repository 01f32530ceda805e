"""Runs of pipelines, and the rows that they were given."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key_text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "pipeline_runs",
        sa.Column("run_id", key_text, nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("pipeline", key_text, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index("ix_pipeline_runs_created", "pipeline_runs", ["created_at", "run_id"])
    op.create_table(
        "pipeline_inputs",
        sa.Column("run_id", key_text, nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("transaction_id", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "place"),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
