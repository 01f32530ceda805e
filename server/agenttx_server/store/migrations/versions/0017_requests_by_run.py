"""Requests of graph runs are found by their run, with which they are deleted."""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_graph_requests_run", "graph_requests", ["run_id"])


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
