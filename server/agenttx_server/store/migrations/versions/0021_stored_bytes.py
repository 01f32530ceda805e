"""How many bytes each owner has stored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_bytes",
        sa.Column("owner", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), primary_key=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
