"""Bearer tokens: hashes of them, whose they are, and what they allow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key_text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "access_tokens",
        sa.Column("token_id", key_text, nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("tools", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("token_id"),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
