"""Queries over the journals of graph runs, whose rows may be pages of events (event_pages.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, text

from agenttx_server.graphs.runs.ports import EventFilter
from agenttx_server.graphs.runs.records import EventRecord
from agenttx_server.store import run_rows as rows
from agenttx_server.store.event_pages import MOST_EVENTS, events_of
from agenttx_server.store.pages import cut
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.run_schema import graph_events, graph_runs
from agenttx_server.store.seen_owners import seen_text, seen_values

__all__ = ["last_sequence", "list_events", "list_events_from", "list_events_within", "written_since"]

_PAGES = graph_events.alias("pages")
_EVENT_COLUMNS = [graph_events.c["event_offset" if name == "offset" else name] for name in rows.EVENT.columns]

# Rows may be pages (event_pages.py). The one that has an offset is the last that begins there or before.
_EVENTS = PreparedQuery(
    select(*_EVENT_COLUMNS)
    .where(
        graph_events.c.run_id == bindparam("run_id"),
        graph_events.c.event_offset
        >= select(func.coalesce(func.max(_PAGES.c.event_offset), 0))
        .where(_PAGES.c.run_id == bindparam("run_id"), _PAGES.c.event_offset <= bindparam("from_offset"))
        .scalar_subquery(),
    )
    .order_by(graph_events.c.event_offset)
    .limit(bindparam("limit"))
)
_LAST_SEQUENCE = PreparedQuery(select(func.max(graph_events.c.sequence)))
_WRITTEN_SINCE = PreparedQuery(
    select(graph_events.c.run_id, func.max(graph_events.c.sequence))
    .where(graph_events.c.sequence > bindparam("after_sequence"))
    .group_by(graph_events.c.run_id)
)
_NO_LIMIT = 2**63 - 1


@one_statement
def list_events(connection: Connection, run_id: str, from_offset: int, limit: int) -> Sequence[EventRecord]:
    """Return events of one run, in order."""
    # One row more: events are deleted by rows, so the first may have none that is wanted.
    with _EVENTS.run(connection, run_id=run_id, from_offset=from_offset, limit=limit + 1) as found:
        return _events_within((row for row in events_of(found) if row[1] >= from_offset), limit, _NO_LIMIT)


def list_events_within(
    connection: Connection, run_id: str, from_offset: int, limit: int, byte_limit: int
) -> Sequence[EventRecord]:
    """Return events of one run, in order, up to both limits."""
    with _EVENTS.stream(connection, run_id=run_id, from_offset=from_offset, limit=limit + 1) as found:
        return _events_within((row for row in events_of(found) if row[1] >= from_offset), limit, byte_limit)


def _events_within(found: Iterable[Sequence[Any]], limit: int, byte_limit: int) -> Sequence[EventRecord]:
    return [rows.EVENT.record(row) for row in cut(found, limit, byte_limit)[0]]


def list_events_from(
    connection: Connection,
    which: EventFilter,
    after_sequence: int,
    limit: int,
    up_to: int | None,
    byte_limit: int | None,
) -> Sequence[EventRecord]:
    """Return events behind a sequence, in order of commits, up to all limits."""
    names = tuple(name for name in _FILTERED if getattr(which, name))
    asked = {name: getattr(which, name) for name in names if name != "principal"}
    last = _NO_LIMIT if up_to is None else up_to
    with _events_from(names).stream(
        connection,
        **asked,
        **(seen_values(which.principal) if which.principal else {}),
        after_sequence=after_sequence,
        # A page that ends behind may begin before.
        up_to=min(last, _NO_LIMIT - MOST_EVENTS) + MOST_EVENTS - 1,
        limit=limit,
    ) as found:
        wanted = (row for row in events_of(found) if after_sequence < row[-1] <= last)
        return _events_within(wanted, limit, _NO_LIMIT if byte_limit is None else byte_limit)


_FILTERED = ("principal", "run_id", "root_run_id", "thread_id", "graph")


@cache
def _events_from(names: tuple[str, ...]) -> PreparedQuery:
    query = select(*_EVENT_COLUMNS).where(
        graph_events.c.sequence > bindparam("after_sequence"), graph_events.c.sequence <= bindparam("up_to")
    )
    for name in names:
        if name == "principal":
            own = select(graph_runs.c.run_id).where(
                graph_runs.c.run_id == graph_events.c.run_id, text(seen_text("graph_runs.principal"))
            )
            query = query.where(own.exists())
        else:
            query = query.where(graph_events.c[name] == bindparam(name))
    return PreparedQuery(query.order_by(graph_events.c.sequence).limit(bindparam("limit")))


@one_statement
def written_since(connection: Connection, sequence: int) -> tuple[int, Sequence[str]]:
    """Return the newest sequence, and the runs with events behind another one."""
    found = _WRITTEN_SINCE.run(connection, after_sequence=sequence).all()
    return max((int(last) for _, last in found), default=sequence), [run_id for run_id, _ in found]


@one_statement
def last_sequence(connection: Connection) -> int:
    """Return the sequence of the newest event."""
    return int(_LAST_SEQUENCE.run(connection).scalar() or 0)
