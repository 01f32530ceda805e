"""Transactions, their history, state, effects and events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Keys compare by code point on every database.
KEY_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("step_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("request_key", sa.BigInteger(), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("resolved_arguments", sa.Text(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("response", sa.Text(), nullable=True),
        sa.Column("raw_context", sa.Text(), nullable=True),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number", "step_id", "attempt"),
    )
    op.create_index(
        "ix_attempts_request",
        "attempts",
        ["transaction_number", "request_key"],
        sqlite_where=sa.text("request_key IS NOT NULL"),
        postgresql_where=sa.text("request_key IS NOT NULL"),
    )
    op.create_table(
        "commit_checks",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("step_id", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", KEY_TEXT, nullable=False),
        sa.Column("key_end", KEY_TEXT, nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number", "step_id", "sequence"),
    )
    op.create_table(
        "committed_state",
        sa.Column("key", KEY_TEXT, nullable=False),
        sa.Column("value", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "counters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "database_facts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "effects",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("effect_id", sa.Text(), nullable=False),
        sa.Column("step_id", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number", "effect_id"),
    )
    op.create_index("ix_effects_step", "effects", ["transaction_number", "step_id", "sequence"])
    op.create_table(
        "events",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("occurred_at", sa.BigInteger(), nullable=False),
        sa.Column("step_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number", "sequence"),
    )
    op.create_table(
        "recorded_responses",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("response", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "request_id"),
    )
    op.create_table(
        "rewinds",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("to_step", sa.BigInteger(), nullable=False),
        sa.Column("rewound_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number", "generation", "to_step"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "state_reads",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("step_id", sa.BigInteger(), nullable=False),
        sa.Column("key", KEY_TEXT, nullable=False),
        sa.Column("is_prefix", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("key_end", KEY_TEXT, nullable=False),
    )
    op.create_index(
        "ix_state_reads_key", "state_reads", ["transaction_number", "key", "is_prefix", "version"]
    )
    op.create_index("ix_state_reads_step", "state_reads", ["transaction_number", "step_id"])
    op.create_table(
        "state_writes",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("step_id", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("key", KEY_TEXT, nullable=False),
        sa.Column("value", sa.Text(), nullable=True),
        sa.Column("base_version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number", "step_id", "sequence"),
    )
    op.create_index(
        "ix_state_writes_key", "state_writes", ["transaction_number", "key", "step_id", "sequence"]
    )
    op.create_table(
        "transaction_metadata",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number", "name", "value"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "transactions",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("transaction_id", KEY_TEXT, nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("is_open", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("next_step_id", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("commit_version", sa.BigInteger(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("ix_transactions_created", "transactions", ["created_at", "transaction_id"])
    op.create_index(
        "ix_transactions_open",
        "transactions",
        ["is_open", "principal", "created_at", "transaction_id"],
        sqlite_where=sa.text("is_open = 1"),
        postgresql_where=sa.text("is_open = 1"),
    )
    op.create_index(
        "ix_transactions_principal", "transactions", ["principal", "created_at", "transaction_id"]
    )
    op.create_index("ux_transactions_id", "transactions", ["transaction_id"], unique=True)
    op.create_table(
        "undo_actions",
        sa.Column("transaction_number", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("step_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_number", "sequence"),
    )
    op.create_index("ix_undo_actions_step", "undo_actions", ["transaction_number", "step_id"])


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
