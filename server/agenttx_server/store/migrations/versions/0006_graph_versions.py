"""Registered graphs, in their versions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key_text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "graph_versions",
        sa.Column("name", key_text, nullable=False),
        sa.Column("version", key_text, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("node_count", sa.BigInteger(), nullable=False),
        sa.Column("channel_count", sa.BigInteger(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version"),
    )
    op.create_index("ux_graph_versions_sequence", "graph_versions", ["name", "sequence"], unique=True)


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
