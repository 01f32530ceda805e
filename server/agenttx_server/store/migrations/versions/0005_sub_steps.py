"""Sub-steps, and whose of them reads, effects, undo actions and events are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("state_reads", "effects", "undo_actions", "events"):
        op.add_column(
            table, sa.Column("sub_step", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        )
    op.create_table(
        "sub_steps",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("step_id", sa.BigInteger(), nullable=False),
        sa.Column("sub_step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number", "step_id", "sub_step", "attempt"),
    )
