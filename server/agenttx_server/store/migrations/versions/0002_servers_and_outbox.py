"""Servers and their leases, who works on a transaction, when its effects are due."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    empty = sa.text("''")
    for column in (
        sa.Column("idle_timeout_us", sa.BigInteger(), nullable=True),
        sa.Column("deadline_at", sa.BigInteger(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=False, server_default=empty),
        sa.Column("outbox_owner", sa.Text(), nullable=False, server_default=empty),
        sa.Column("outbox_due_at", sa.BigInteger(), nullable=True),
    ):
        op.add_column("transactions", column)
    op.add_column(
        "undo_actions", sa.Column("late", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    )
    _take_over_work_in_progress()
    of_one = ["transaction_number", "sequence"]
    for name, table, columns, condition in (
        ("ix_transactions_owner", "transactions", ["owner"], "owner <> ''"),
        ("ix_transactions_outbox", "transactions", ["outbox_due_at"], "outbox_due_at IS NOT NULL"),
        ("ix_transactions_ended", "transactions", ["ended_at"], "ended_at IS NOT NULL"),
        ("ix_effects_waiting", "effects", of_one, "state IN ('DEAD', 'READY')"),
        ("ix_undo_actions_in_question", "undo_actions", of_one, "state IN ('FAILED', 'LATE', 'RESOLVED')"),
    ):
        op.create_index(
            name,
            table,
            columns,
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )
    op.create_table(
        "servers",
        sa.Column("server_id", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("server_id"),
    )
    op.create_table(
        "stop_requests",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("step_id", sa.BigInteger(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number"),
    )
    op.create_table(
        "recovery_problems",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number"),
    )


def _take_over_work_in_progress() -> None:
    if op.get_bind().dialect.name == "sqlite":
        # It was among the details; no other database was served by the version before.
        op.execute(
            "UPDATE transactions SET idle_timeout_us = json_extract(details, '$.idle_timeout_us') "
            "WHERE json_extract(details, '$.idle_timeout_us') IS NOT NULL"
        )
    # The version before had no owners: whatever was under way is an orphan now, and effects
    # that were not delivered at their commit are due.
    op.execute(
        "UPDATE transactions SET owner = 'before 0002' WHERE is_open = 1 AND status IN ('EXECUTING', 'ROLLING_BACK')"
    )
    op.execute(
        "UPDATE transactions SET outbox_due_at = 0 WHERE status = 'COMMITTED' AND EXISTS ("
        "SELECT 1 FROM effects e WHERE e.transaction_number = transactions.number AND e.state = 'READY')"
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
