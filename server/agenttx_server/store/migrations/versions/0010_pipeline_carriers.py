"""Registered pipelines; who carries a run of one, which rows have been begun, and which runs are to end early."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key_text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "pipeline_versions",
        sa.Column("name", key_text, nullable=False),
        sa.Column("version", key_text, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version"),
    )
    op.create_index("ux_pipeline_versions_sequence", "pipeline_versions", ["name", "sequence"], unique=True)
    op.create_table(
        "pipeline_carriers",
        sa.Column("run_id", key_text, nullable=False),
        sa.Column("server_id", key_text, nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_table(
        "pipeline_units",
        sa.Column("run_id", key_text, nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("transaction_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "place"),
    )
    op.create_table(
        "pipeline_stops",
        sa.Column("run_id", key_text, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
    )
    # Runs that were under way before there were carriers: nobody's, so the next start goes on with them.
    op.execute(
        "INSERT INTO pipeline_carriers (run_id, server_id) "
        "SELECT run_id, '' FROM pipeline_runs WHERE status = 'RUNNING'"
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
