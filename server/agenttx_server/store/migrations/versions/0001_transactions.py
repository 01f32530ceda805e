"""Transactions, their history, state, effects and events."""

from __future__ import annotations

from alembic import op

from agenttx_server.store.schema import METADATA

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    METADATA.create_all(op.get_bind())


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
