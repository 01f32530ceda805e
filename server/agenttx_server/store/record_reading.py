"""Queries over records. Each is an indexed lookup: by id, action, parent, root, content, or along edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, select, text

from agenttx_server.lineage.ports import EventPage, KeptEvent, KeptRecord, RecordPage
from agenttx_server.lineage.records import RecordEdge
from agenttx_server.store.cursors import decode_cursor, encode_cursor, listing_kind
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.record_rows import edge_of, event_of, record_of
from agenttx_server.store.record_schema import record_commits, record_edges, record_events, records
from agenttx_server.store.seen_owners import seen_text, seen_values

__all__ = [
    "ANCESTORS",
    "DESCENDANTS",
    "count_records",
    "edges_of",
    "events_of",
    "get_record",
    "list_along_edges",
    "list_by_source",
    "list_events",
    "list_records",
    "list_sharing",
    "owner_of",
    "records_of",
]

_COLUMNS: Final = ", ".join(f"r.{column.name}" for column in records.columns)
_VISIBLE: Final = (
    "(r.transaction_id = :transaction_id OR EXISTS "
    "(SELECT 1 FROM record_commits c WHERE c.transaction_id = r.transaction_id))"
)
_BY_ID: Final = f"AND r.target_id > :after AND {_VISIBLE} ORDER BY r.target_id LIMIT :limit"


def _of_records(statement: str) -> PreparedQuery:
    return PreparedQuery(text(statement), returns=tuple(records.columns))


_GET = _of_records(
    f"SELECT {_COLUMNS} FROM records r WHERE r.target_id = :target_id AND {_VISIBLE}"  # noqa: S608
)
_LIST_ALL = _of_records(
    f"SELECT {_COLUMNS} FROM records r WHERE r.run_id = :run_id "  # noqa: S608
    f"AND (r.action, r.sequence) > (:action, :after) AND {_VISIBLE} ORDER BY r.action, r.sequence LIMIT :limit"
)
_LIST = _of_records(
    f"SELECT {_COLUMNS} FROM records r WHERE r.run_id = :run_id AND r.action = :action "  # noqa: S608
    f"AND r.sequence > :after AND {_VISIBLE} ORDER BY r.sequence LIMIT :limit"
)
# Names of our own columns.
_SHARING: Final = {
    column: _of_records(
        f"SELECT {_COLUMNS} FROM records r WHERE r.{column} = :value {_BY_ID}"  # noqa: S608
    )
    for column in ("parent_target_id", "root_target_id")
}
# Committed: whose, the commit says. What is open is the run's that makes it.
_BY_SOURCE: Final = _of_records(
    f"SELECT {_COLUMNS} FROM records r WHERE r.source_guid = :value AND r.target_id > :after AND ("  # noqa: S608
    "EXISTS (SELECT 1 FROM record_commits c WHERE c.transaction_id = r.transaction_id "
    f"AND {seen_text('c.principal')}) "
    "OR r.transaction_id = :transaction_id AND EXISTS (SELECT 1 FROM pipeline_runs p WHERE p.run_id = r.run_id "
    f"AND {seen_text('p.principal')})) ORDER BY r.target_id LIMIT :limit"
)
_OWNER: Final = PreparedQuery(
    select(record_commits.c.principal).where(record_commits.c.transaction_id == bindparam("of_transaction"))
)


class _Walk:
    """What is reached along edges, by a statement for each kind of database."""

    def __init__(self, start: str, end: str) -> None:
        # UNION, not UNION ALL: a record that is reached by two ways is walked from once.
        walked = (
            f"WITH RECURSIVE walked(id) AS (SELECT {end} FROM record_edges WHERE {start} = :target_id UNION "  # noqa: S608
        )
        # The ids are a list, which SQLite goes through in their order: to have whole records sorted took longer than all else.
        self.on_sqlite = _of_records(
            f"{walked} SELECT e.{end} FROM walked w JOIN record_edges e ON e.{start} = w.id) "  # noqa: S608
            f"SELECT {_COLUMNS} FROM records r WHERE r.target_id IN (SELECT id FROM walked) {_BY_ID}"
        )
        # PostgreSQL takes a walk for a million ids and sorts all edges to be merged with them, unless each id is looked up
        # by itself: OFFSET 0 keeps it from rewriting that into a join.
        self.on_postgresql = _of_records(
            f"{walked} SELECT e.{end} FROM walked w CROSS JOIN LATERAL "  # noqa: S608
            f"(SELECT {end} FROM record_edges WHERE {start} = w.id OFFSET 0) e), "
            "page(id) AS (SELECT id FROM walked WHERE id > :after ORDER BY id) "
            f"SELECT r.* FROM page p CROSS JOIN LATERAL (SELECT {_COLUMNS} FROM records r "
            f"WHERE r.target_id = p.id AND {_VISIBLE} OFFSET 0) r ORDER BY p.id LIMIT :limit"
        )

    def for_database(self, connection: Connection) -> PreparedQuery:
        return self.on_postgresql if connection.dialect.name == "postgresql" else self.on_sqlite


DESCENDANTS, ANCESTORS = _Walk("parent", "child"), _Walk("child", "parent")
_EDGES = PreparedQuery(
    select(*record_edges.columns)
    .where(record_edges.c.child == bindparam("child"))
    .order_by(record_edges.c.ordinal)
)
_EVENTS = PreparedQuery(
    select(*record_events.columns)
    .where(record_events.c.transaction_id == bindparam("transaction_id"))
    .order_by(record_events.c.input_id, record_events.c.action, record_events.c.attempt)
)
_EVENT_COLUMNS: Final = ", ".join(column.name for column in record_events.columns)
_EVENTS_BY: Final = {
    column: PreparedQuery(
        text(
            f"SELECT {_EVENT_COLUMNS} FROM record_events WHERE {column} = :value "  # noqa: S608 - our own names
            "AND (input_id, action, attempt) > (:input, :action, :attempt) "
            "ORDER BY input_id, action, attempt LIMIT :limit"
        ),
        returns=tuple(record_events.columns),
    )
    for column in ("input_id", "transaction_id")
}
_COUNT: Final = PreparedQuery(
    text(
        "SELECT r.action, COUNT(*) FROM records r JOIN record_commits c ON c.transaction_id = r.transaction_id "
        "WHERE r.run_id = :run_id GROUP BY r.action"
    )
)
_RECORDS = PreparedQuery(
    select(*records.columns)
    .where(records.c.transaction_id == bindparam("transaction_id"))
    .order_by(records.c.sequence, records.c.target_id)
)


@one_statement
def get_record(connection: Connection, target_id: str, transaction_id: str) -> KeptRecord | None:
    """Find a record that is visible."""
    row = _GET.run(connection, target_id=target_id, transaction_id=transaction_id).first()
    return None if row is None else record_of(row)


@one_statement
def list_records(
    connection: Connection, run_id: str, action: str, cursor: str, limit: int, transaction_id: str
) -> RecordPage:
    """List an action's records in a run, or of all actions, by action."""
    kind = listing_kind("records", run_id, action, transaction_id)
    begin = (action, -1)
    if cursor:
        begin = decode_cursor(kind, cursor, str, int)
    found = (_LIST if action else _LIST_ALL).run(
        connection,
        run_id=run_id,
        action=begin[0],
        after=begin[1],
        limit=limit + 1,
        transaction_id=transaction_id,
    )
    kept = [record_of(row) for row in found.all()]
    if len(kept) <= limit:
        return RecordPage(kept, "")
    last = kept[limit - 1]
    return RecordPage(kept[:limit], encode_cursor(kind, last.record.action, last.sequence))


@one_statement
def list_sharing(
    connection: Connection, column: str, value: str, cursor: str, limit: int, transaction_id: str
) -> RecordPage:
    """List records by ``parent_target_id`` or ``root_target_id``."""
    kind = listing_kind(column, value, transaction_id)
    return _page(
        connection, _SHARING[column], kind, cursor, limit, value=value, transaction_id=transaction_id
    )


@one_statement
def list_by_source(
    connection: Connection, principal: str, value: str, cursor: str, limit: int, transaction_id: str
) -> RecordPage:
    """List what came of a content, of a principal's runs."""
    kind = listing_kind("source_guid", principal, value, transaction_id)
    return _page(
        connection,
        _BY_SOURCE,
        kind,
        cursor,
        limit,
        value=value,
        **seen_values(principal),
        transaction_id=transaction_id,
    )


@one_statement
def owner_of(connection: Connection, transaction_id: str) -> str | None:
    """Whose the records of a committed transaction are."""
    row = _OWNER.run(connection, of_transaction=transaction_id).first()
    return None if row is None else str(row[0])


@one_statement
def list_along_edges(
    connection: Connection, target_id: str, cursor: str, limit: int, transaction_id: str, *, downwards: bool
) -> RecordPage:
    """List what a record came of, or what came of it."""
    query = (DESCENDANTS if downwards else ANCESTORS).for_database(connection)
    kind = listing_kind("descendants" if downwards else "ancestors", target_id, transaction_id)
    return _page(connection, query, kind, cursor, limit, target_id=target_id, transaction_id=transaction_id)


def _page(
    connection: Connection, query: PreparedQuery, kind: str, cursor: str, limit: int, **values: str
) -> RecordPage:
    after = decode_cursor(kind, cursor, str)[0] if cursor else ""
    rows = query.run(connection, after=after, limit=limit + 1, **values)
    kept = [record_of(row) for row in rows.all()]
    behind = encode_cursor(kind, kept[limit - 1].record.target_id) if len(kept) > limit else ""
    return RecordPage(kept[:limit], behind)


def edges_of(connection: Connection, target_ids: Sequence[str]) -> Sequence[RecordEdge]:
    """The edges of these records, record by record."""
    return list(_edges(connection, target_ids))


def _edges(connection: Connection, target_ids: Sequence[str]) -> Iterator[RecordEdge]:
    for target_id in target_ids:
        yield from map(edge_of, _EDGES.run(connection, child=target_id))


@one_statement
def events_of(connection: Connection, transaction_id: str) -> Sequence[KeptEvent]:
    """All events of a transaction."""
    return [event_of(row) for row in _EVENTS.run(connection, transaction_id=transaction_id)]


@one_statement
def list_events(connection: Connection, column: str, value: str, cursor: str, limit: int) -> EventPage:
    """List events by ``input_id`` or ``transaction_id``."""
    kind = listing_kind("record_events", column, value)
    after = decode_cursor(kind, cursor, str, str, int) if cursor else ("", "", -1)
    place = dict(zip(("input", "action", "attempt"), after, strict=True))
    kept = [
        event_of(row) for row in _EVENTS_BY[column].run(connection, value=value, limit=limit + 1, **place)
    ]
    behind = ""
    if len(kept) > limit:
        last = kept[limit - 1]
        behind = encode_cursor(kind, last.event.input_id, last.event.action, last.attempt)
    return EventPage(kept[:limit], behind)


@one_statement
def count_records(connection: Connection, run_id: str) -> Mapping[str, int]:
    """How many committed records a run has, by action."""
    return {str(row[0]): int(row[1]) for row in _COUNT.run(connection, run_id=run_id)}


@one_statement
def records_of(connection: Connection, transaction_id: str) -> Sequence[KeptRecord]:
    """All records of a transaction."""
    return [record_of(row) for row in _RECORDS.run(connection, transaction_id=transaction_id)]
