"""Words to runs: a cancellation and a drain beside one another, about the invocation that was under way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Words that nobody has taken are of servers that have stopped.
    op.drop_table("graph_stops")
    key_text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "graph_stops",
        sa.Column("run_id", key_text, nullable=False),
        sa.Column("kind", key_text, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("invocation", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "kind"),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
