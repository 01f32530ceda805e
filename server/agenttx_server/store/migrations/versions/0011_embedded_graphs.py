"""Checkpoints of graphs inside nodes of others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key_text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "graph_embedded_checkpoints",
        sa.Column("thread_id", key_text, nullable=False),
        sa.Column("namespace", key_text, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("thread_id", "namespace", "number"),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
