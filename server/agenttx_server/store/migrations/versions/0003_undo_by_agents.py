"""Undo that waits for its agent is found as fast as undo that failed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_CONDITION = "state IN ('AWAITING_AGENT', 'FAILED', 'LATE', 'RESOLVED')"


def upgrade() -> None:
    name = "ix_undo_actions_in_question"
    op.drop_index(name, "undo_actions")
    op.create_index(
        name,
        "undo_actions",
        ["transaction_number", "sequence"],
        sqlite_where=sa.text(_CONDITION),
        postgresql_where=sa.text(_CONDITION),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
