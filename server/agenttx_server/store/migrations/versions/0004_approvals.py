"""Steps that wait for a person, and what was decided on them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("step_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.BigInteger(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number", "sequence"),
    )
    order = ["requested_at", "transaction_number", "sequence"]
    op.create_index("ix_approvals_requested", "approvals", order)
    op.create_index(
        "ix_approvals_pending",
        "approvals",
        order,
        sqlite_where=sa.text("state = 'PENDING'"),
        postgresql_where=sa.text("state = 'PENDING'"),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
