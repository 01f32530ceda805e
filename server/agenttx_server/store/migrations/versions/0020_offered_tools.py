"""Which tools workers have offered lately, whichever server they were connected to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key_text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "offered_tools",
        sa.Column("tenant", key_text, nullable=False),
        sa.Column("tool_name", key_text, nullable=False),
        sa.Column("offered_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "tool_name"),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
