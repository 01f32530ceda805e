"""When a run of a graph that waits is rolled back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No run of before has a time to wait: NULL is for ever.
    op.add_column("graph_runs", sa.Column("waits_until", sa.BigInteger(), nullable=True))
    is_set = sa.text("waits_until IS NOT NULL")
    op.create_index(
        "ix_graph_runs_waits",
        "graph_runs",
        ["waits_until", "run_id"],
        sqlite_where=is_set,
        postgresql_where=is_set,
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
