"""Threads, runs, checkpoints and events of graphs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KEY_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

# A number of the lock that orders events by commit; any that nothing else uses.
_LOCK = 7_226_540_911

_IN_ORDER = f"""
CREATE FUNCTION graph_events_in_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock({_LOCK});
    RETURN NULL;
END $$
"""


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, KEY_TEXT, nullable=False)


def _text(name: str, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _integer(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def upgrade() -> None:
    _threads_and_runs()
    _checkpoints()
    _work()
    _events()
    _requests()


def _threads_and_runs() -> None:
    op.create_table(
        "graph_threads",
        _key("thread_id"),
        _text("principal"),
        _text("graph"),
        _text("run_id"),
        _integer("updated_at"),
        _text("details"),
        sa.PrimaryKeyConstraint("thread_id"),
    )
    op.create_index("ix_graph_threads_updated", "graph_threads", ["updated_at", "thread_id"])
    op.create_table(
        "graph_runs",
        _key("run_id"),
        _text("principal"),
        _key("thread_id"),
        _text("graph"),
        _text("parent_run_id"),
        _text("status"),
        _text("server_id"),
        _integer("created_at"),
        _text("details"),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index("ix_graph_runs_created", "graph_runs", ["created_at", "run_id"])
    op.create_index("ix_graph_runs_thread", "graph_runs", ["thread_id", "created_at", "run_id"])
    _partial_index("ix_graph_runs_server", "graph_runs", "server_id", "server_id <> ''")


def _checkpoints() -> None:
    op.create_table(
        "graph_checkpoints",
        _key("thread_id"),
        _integer("number"),
        _text("source"),
        _text("details"),
        sa.PrimaryKeyConstraint("thread_id", "number"),
    )
    op.create_table(
        "graph_values",
        _key("thread_id"),
        _key("channel"),
        _integer("number"),
        _integer("previous", nullable=True),
        _text("value"),
        _text("origins"),
        sa.PrimaryKeyConstraint("thread_id", "channel", "number"),
    )
    op.create_index("ix_graph_values_number", "graph_values", ["thread_id", "number"])


def _work() -> None:
    op.create_table(
        "graph_tasks",
        _key("run_id"),
        _integer("superstep"),
        _integer("ordinal"),
        _text("task_id"),
        _key("thread_id"),
        _text("node"),
        _text("state"),
        _text("arg", nullable=True),
        _text("answer", nullable=True),
        _integer("started_at"),
        _integer("ended_at"),
        _text("details"),
        sa.PrimaryKeyConstraint("run_id", "superstep", "ordinal"),
    )
    op.create_index("ix_graph_tasks_thread", "graph_tasks", ["thread_id"])
    op.create_table(
        "graph_interrupts",
        _key("interrupt_id"),
        _key("run_id"),
        _key("thread_id"),
        _integer("superstep"),
        _text("task_id"),
        _integer("ordinal"),
        _text("payload"),
        _text("state"),
        _text("answer", nullable=True),
        _text("details"),
        sa.PrimaryKeyConstraint("interrupt_id"),
    )
    op.create_index("ix_graph_interrupts_run", "graph_interrupts", ["run_id", "superstep"])
    _partial_index("ix_graph_interrupts_pending", "graph_interrupts", "thread_id", "state = 'PENDING'")


def _events() -> None:
    op.create_table(
        "graph_events",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        _key("run_id"),
        _integer("event_offset"),
        _text("kind"),
        _integer("occurred_at"),
        _key("thread_id"),
        _text("root_run_id"),
        _text("graph"),
        _text("namespace"),
        _integer("superstep"),
        _text("node"),
        _text("task_id"),
        _text("payload"),
        sqlite_autoincrement=True,
    )
    op.create_index("ux_graph_events_offset", "graph_events", ["run_id", "event_offset"], unique=True)
    op.create_index("ix_graph_events_thread", "graph_events", ["thread_id", "sequence"])
    if op.get_bind().dialect.name == "postgresql":
        # Before a number is given: who was given a lower one has committed, or is gone.
        op.execute(_IN_ORDER)
        op.execute(
            "CREATE TRIGGER graph_events_in_order BEFORE INSERT ON graph_events "
            "FOR EACH STATEMENT EXECUTE FUNCTION graph_events_in_order()"
        )


def _requests() -> None:
    op.create_table(
        "graph_requests",
        _key("principal"),
        _key("request_id"),
        _text("method"),
        _text("fingerprint"),
        _text("run_id"),
        sa.PrimaryKeyConstraint("principal", "request_id"),
    )
    op.create_table(
        "graph_stops",
        _key("run_id"),
        _text("kind"),
        _text("reason"),
        _integer("requested_at"),
        sa.PrimaryKeyConstraint("run_id"),
    )


def _partial_index(name: str, table: str, column: str, condition: str) -> None:
    op.create_index(
        name, table, [column], sqlite_where=sa.text(condition), postgresql_where=sa.text(condition)
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older version")
