"""Which keys stored values are sealed with, and what tells that a key of the name is the same one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "encryption_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("check_value", sa.Text(), nullable=False),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id"),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
