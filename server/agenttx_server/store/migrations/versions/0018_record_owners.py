"""Commits of records say whose they are, so that lists over all runs are made by the query; the view is of pipelines alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# What plain transactions keep has no pipeline, and no newest run.
_NEWEST = """
CREATE VIEW target_data AS
SELECT a.* FROM target_data_all a
WHERE a.pipeline <> '' AND a.run_id = (
    SELECT c.run_id FROM record_commits c WHERE c.pipeline = a.pipeline
    ORDER BY c.committed_at DESC, c.run_id DESC LIMIT 1
)
"""


def upgrade() -> None:
    op.add_column("record_commits", sa.Column("principal", sa.Text(), nullable=False, server_default=""))
    op.execute(
        "UPDATE record_commits SET principal = COALESCE("
        "(SELECT p.principal FROM pipeline_runs p WHERE p.run_id = record_commits.run_id), '')"
    )
    op.execute("DROP VIEW target_data")
    op.execute(_NEWEST)


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
