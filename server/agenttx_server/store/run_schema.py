"""The tables of graph runs. Their rows come with write sets of a run's transaction, or by themselves.

They are keyed by the texts that name threads and runs: their rows are few beside those of steps. ``graph_events``
is numbered by the database as it is written, so that the order is that of commits: on SQLite there is one writer,
on PostgreSQL a trigger has whoever writes events wait for the one before to end (migration 0007).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, PrimaryKeyConstraint, Table, Text, text

from agenttx_server.store.schema import KEY_TEXT, METADATA

__all__ = [
    "EXTRA_TABLES",
    "graph_checkpoints",
    "graph_embedded_checkpoints",
    "graph_events",
    "graph_interrupts",
    "graph_node_cache",
    "graph_requests",
    "graph_runs",
    "graph_stops",
    "graph_tasks",
    "graph_threads",
    "graph_values",
]


def _key(name: str) -> Column[str]:
    return Column(name, KEY_TEXT, nullable=False)


def _text(name: str, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _integer(name: str, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


graph_threads = Table(
    "graph_threads",
    METADATA,
    _key("thread_id"),
    _text("principal"),
    _text("graph"),
    _text("run_id"),
    _integer("updated_at"),
    _text("details"),
    PrimaryKeyConstraint("thread_id"),
)
Index("ix_graph_threads_updated", graph_threads.c.updated_at, graph_threads.c.thread_id)

# ``server_id`` is whoever works on it, "" where nobody does. ``waits_until`` is when it is rolled back if it still
# waits then, NULL for never (RunRecord.waits_until).
graph_runs = Table(
    "graph_runs",
    METADATA,
    _key("run_id"),
    _text("principal"),
    _key("thread_id"),
    _text("graph"),
    _text("parent_run_id"),
    _text("status"),
    _text("server_id"),
    _integer("created_at"),
    _text("details"),
    _integer("waits_until", nullable=True),
    PrimaryKeyConstraint("run_id"),
)
Index("ix_graph_runs_created", graph_runs.c.created_at, graph_runs.c.run_id)
Index("ix_graph_runs_thread", graph_runs.c.thread_id, graph_runs.c.created_at, graph_runs.c.run_id)
Index(
    "ix_graph_runs_server",
    graph_runs.c.server_id,
    sqlite_where=text("server_id <> ''"),
    postgresql_where=text("server_id <> ''"),
)
Index(
    "ix_graph_runs_waits",
    graph_runs.c.waits_until,
    graph_runs.c.run_id,
    sqlite_where=text("waits_until IS NOT NULL"),
    postgresql_where=text("waits_until IS NOT NULL"),
)

graph_checkpoints = Table(
    "graph_checkpoints",
    METADATA,
    _key("thread_id"),
    _integer("number"),
    _text("source"),
    _text("details"),
    PrimaryKeyConstraint("thread_id", "number"),
)

# Of graphs inside nodes of others, by where they are: each with its state whole, as such a graph ends soon.
graph_embedded_checkpoints = Table(
    "graph_embedded_checkpoints",
    METADATA,
    _key("thread_id"),
    _key("namespace"),
    _integer("number"),
    _text("state"),
    _text("details"),
    PrimaryKeyConstraint("thread_id", "namespace", "number"),
)

# What one checkpoint wrote of one channel (graphs.runs.channel_values).
graph_values = Table(
    "graph_values",
    METADATA,
    _key("thread_id"),
    _key("channel"),
    _integer("number"),
    _integer("previous", nullable=True),
    _text("value"),
    _text("origins"),
    PrimaryKeyConstraint("thread_id", "channel", "number"),
)
Index("ix_graph_values_number", graph_values.c.thread_id, graph_values.c.number)

graph_tasks = Table(
    "graph_tasks",
    METADATA,
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
    PrimaryKeyConstraint("run_id", "superstep", "ordinal"),
)
Index("ix_graph_tasks_thread", graph_tasks.c.thread_id)

graph_interrupts = Table(
    "graph_interrupts",
    METADATA,
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
    PrimaryKeyConstraint("interrupt_id"),
)
Index("ix_graph_interrupts_run", graph_interrupts.c.run_id, graph_interrupts.c.superstep)
Index(
    "ix_graph_interrupts_pending",
    graph_interrupts.c.thread_id,
    sqlite_where=text("state = 'PENDING'"),
    postgresql_where=text("state = 'PENDING'"),
)

_EVENT_COLUMNS = (
    "run_id",
    "event_offset",
    "kind",
    "occurred_at",
    "thread_id",
    "root_run_id",
    "graph",
    "namespace",
    "superstep",
    "node",
    "task_id",
    "payload",
)
_EVENT_INTEGERS = ("event_offset", "occurred_at", "superstep")
_EVENT_KEYS = ("run_id", "thread_id")


def _event_columns() -> Sequence[Column[str] | Column[int]]:
    return [
        _integer(name) if name in _EVENT_INTEGERS else _key(name) if name in _EVENT_KEYS else _text(name)
        for name in _EVENT_COLUMNS
    ]


graph_events = Table(
    "graph_events",
    METADATA,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    *_event_columns(),
    # A number is not given again when the last rows are deleted.
    sqlite_autoincrement=True,
)
Index("ux_graph_events_offset", graph_events.c.run_id, graph_events.c.event_offset, unique=True)
Index("ix_graph_events_thread", graph_events.c.thread_id, graph_events.c.sequence)

graph_requests = Table(
    "graph_requests",
    METADATA,
    _key("principal"),
    _key("request_id"),
    _text("method"),
    _text("fingerprint"),
    _text("run_id"),
    PrimaryKeyConstraint("principal", "request_id"),
)
Index("ix_graph_requests_run", graph_requests.c.run_id)

graph_stops = Table(
    "graph_stops",
    METADATA,
    _key("run_id"),
    _key("kind"),
    _text("reason"),
    _integer("invocation"),
    PrimaryKeyConstraint("run_id", "kind"),
)

# Answers of nodes that other runs take in place of calling them (graphs.runs.node_cache).
graph_node_cache = Table(
    "graph_node_cache",
    METADATA,
    _key("cache_key"),
    _key("thread_id"),
    _text("graph"),
    _text("node"),
    _text("answer"),
    _integer("created_at"),
    _integer("expires_at", nullable=True),
    PrimaryKeyConstraint("cache_key"),
)
Index(
    "ix_graph_node_cache_thread",
    graph_node_cache.c.thread_id,
    sqlite_where=text("thread_id <> ''"),
    postgresql_where=text("thread_id <> ''"),
)
Index("ix_graph_node_cache_created", graph_node_cache.c.created_at)
Index(
    "ix_graph_node_cache_expires",
    graph_node_cache.c.expires_at,
    sqlite_where=text("expires_at IS NOT NULL"),
    postgresql_where=text("expires_at IS NOT NULL"),
)

# As they are written: without the number that they are given then, and in pages (event_pages.py).
_written_events = Table(
    "graph_events",
    MetaData(),
    *_event_columns(),
    PrimaryKeyConstraint("run_id", "event_offset"),
    info={"is_paged": True},
)

EXTRA_TABLES: Final[Sequence[Table]] = (
    graph_threads,
    graph_runs,
    graph_checkpoints,
    graph_embedded_checkpoints,
    graph_values,
    graph_tasks,
    graph_interrupts,
    graph_requests,
    graph_stops,
    graph_node_cache,
    # Last: who writes them makes others wait.
    _written_events,
)
