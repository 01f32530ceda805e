"""Answers of graphs' nodes that other runs take in place of calling them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key_text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "graph_node_cache",
        sa.Column("cache_key", key_text, nullable=False),
        sa.Column("graph", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("cache_key"),
    )
    op.create_index("ix_graph_node_cache_created", "graph_node_cache", ["created_at"])
    expires = sa.text("expires_at IS NOT NULL")
    op.create_index(
        "ix_graph_node_cache_expires",
        "graph_node_cache",
        ["expires_at"],
        sqlite_where=expires,
        postgresql_where=expires,
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
