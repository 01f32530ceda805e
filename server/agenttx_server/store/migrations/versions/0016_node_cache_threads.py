"""Answers of graphs' nodes go with the thread of the run that was given them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # What is kept can be asked for again: it is not known whose it is.
    op.drop_table("graph_node_cache")
    key_text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "graph_node_cache",
        sa.Column("cache_key", key_text, nullable=False),
        sa.Column("thread_id", key_text, nullable=False),
        sa.Column("graph", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("cache_key"),
    )
    op.create_index("ix_graph_node_cache_created", "graph_node_cache", ["created_at"])
    for name, column, condition in (
        ("ix_graph_node_cache_expires", "expires_at", "expires_at IS NOT NULL"),
        ("ix_graph_node_cache_thread", "thread_id", "thread_id <> ''"),
    ):
        where = sa.text(condition)
        op.create_index(name, "graph_node_cache", [column], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
