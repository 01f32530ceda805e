"""Events of graph runs that are written together are one row: room for the numbers of those in it."""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

# As many as a page has at most (event_pages.MOST_EVENTS).
_STEP = 64
_SEQUENCE = "pg_get_serial_sequence('graph_events', 'sequence')::regclass"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        # A page is numbered by its last event, so that below the first number there has to be room too.
        op.execute(f"ALTER SEQUENCE graph_events_sequence_seq INCREMENT BY {_STEP}")
        op.execute(f"SELECT setval({_SEQUENCE}, last_value, true) FROM graph_events_sequence_seq")  # noqa: S608


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
