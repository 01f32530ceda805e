"""Registered graphs: the table, and what is read and written of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    text,
)

from agenttx_server.engine.ports import DuplicateRequestId
from agenttx_server.engine.records import MicrosecondsUtc, RecordedResponse
from agenttx_server.graphs.ports import GraphPage, GraphRecord, RegisteredGraph
from agenttx_server.store import schema
from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.keys import prefix_end
from agenttx_server.store.payload_queries import Sealing
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.seen_owners import in_space_text

__all__ = ["find_graph", "graph_versions", "list_graphs", "register_graph"]

graph_versions = Table(
    "graph_versions",
    schema.METADATA,
    Column("name", schema.KEY_TEXT, nullable=False),
    Column("version", schema.KEY_TEXT, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("registered_at", BigInteger, nullable=False),
    Column("node_count", BigInteger, nullable=False),
    Column("channel_count", BigInteger, nullable=False),
    Column("description", Text, nullable=False),
    Column("definition", Text, nullable=False),
    PrimaryKeyConstraint("name", "version"),
)
Index("ux_graph_versions_sequence", graph_versions.c.name, graph_versions.c.sequence, unique=True)

_g = graph_versions.c
_SUMMARY = (_g.name, _g.version, _g.description, _g.node_count, _g.channel_count, _g.registered_at)
_WHOLE = (*_SUMMARY, _g.definition, _g.sequence)
_LISTED: tuple[ColumnElement[Any], ...] = (*_SUMMARY, literal_column("''"), _g.sequence)
_NAMED = _g.name == bindparam("name")

_THERE = PreparedQuery(select(*_WHOLE).where(_NAMED, _g.version == bindparam("version")))
_NEWEST = PreparedQuery(select(*_WHOLE).where(_NAMED).order_by(_g.sequence.desc()).limit(1))
_BEGINNING = PreparedQuery(
    select(*_WHOLE)
    .where(_NAMED, _g.version >= bindparam("version"), _g.version < bindparam("behind"))
    .order_by(_g.version)
    .limit(2)
)
# What registers a version of a name waits for others of that name: the counter below is read and written.
_LOCK_NAME = PreparedQuery(
    select(schema.counters.c.value).where(schema.counters.c.name == "commit_version").with_for_update()
)
_LAST = PreparedQuery(select(func.coalesce(func.max(_g.sequence), 0)).where(_NAMED))
_KEEP = PreparedQuery(
    insert(graph_versions).values(
        {column.name: bindparam(f"p_{column.name}") for column in graph_versions.columns}
    ),
    seals={
        f"p_{name}": Sealing(graph_versions, name, ("p_name", "p_version"))
        for name in ("description", "definition")
    },
)
_r = schema.recorded_responses.c
_ANSWERED = PreparedQuery(
    select(_r.method).where(_r.scope == bindparam("scope"), _r.request_id == bindparam("request_id"))
)
_ANSWER = PreparedQuery(
    insert(schema.recorded_responses).values(
        {column.name: bindparam(f"p_{column.name}") for column in schema.recorded_responses.columns}
    ),
    seals={
        f"p_{name}": Sealing(schema.recorded_responses, name, ("p_scope", "p_request_id"))
        for name in ("fingerprint", "response")
    },
)

_VERSIONS = (
    select(*_LISTED)
    .where(_NAMED, _g.sequence < bindparam("before"))
    .order_by(_g.sequence.desc())
    .limit(bindparam("limit"))
)
_other = graph_versions.alias("other")
_NAMES = (
    select(*_LISTED)
    .where(
        _g.name > bindparam("after"),
        text(in_space_text("graph_versions.name")),
        _g.sequence == select(func.max(_other.c.sequence)).where(_other.c.name == _g.name).scalar_subquery(),
    )
    .order_by(_g.name)
    .limit(bindparam("limit"))
)
_LIST_VERSIONS, _LIST_NAMES = PreparedQuery(_VERSIONS), PreparedQuery(_NAMES)


def register_graph(
    calls: WriteCalls, record: GraphRecord, response: RecordedResponse | None
) -> RegisteredGraph:
    """Keep a version unless it is there, and the answer with it."""
    calls.rows(_LOCK_NAME)
    if response is not None and calls.rows(_ANSWERED, scope=response.scope, request_id=response.request_id):
        raise DuplicateRequestId("an answer is recorded under this request_id")
    there = calls.rows(_THERE, name=record.name, version=record.version)
    if there:
        kept = RegisteredGraph(_record(there[0]), existed=True)
    else:
        sequence = int(calls.rows(_LAST, name=record.name)[0][0]) + 1
        calls.change(
            _KEEP,
            p_name=record.name,
            p_version=record.version,
            p_sequence=sequence,
            p_registered_at=record.registered_at,
            p_node_count=record.node_count,
            p_channel_count=record.channel_count,
            p_description=record.description,
            p_definition=record.definition,
        )
        kept = RegisteredGraph(replace(record, sequence=sequence), existed=False)
    if response is not None:
        calls.change(
            _ANSWER,
            p_scope=response.scope,
            p_request_id=response.request_id,
            p_method=response.method,
            p_fingerprint=response.fingerprint,
            p_response=orjson.dumps({**orjson.loads(response.response), "existed": kept.existed}).decode(),
        )
    return kept


@one_statement
def find_graph(connection: Connection, name: str, version: str) -> Sequence[GraphRecord]:
    """Return the versions of a graph that begin so, at most two; the newest for an empty version."""
    if not version:
        return [_record(row) for row in _NEWEST.run(connection, name=name)]
    behind = prefix_end(version)
    assert behind is not None
    return [_record(row) for row in _BEGINNING.run(connection, name=name, version=version, behind=behind)]


@one_statement
def list_graphs(connection: Connection, name: str, cursor: str, limit: int, space: str) -> GraphPage:
    """Return a page of the versions of a graph, the newest first, or of the newest of each, by name."""
    if name:
        before = decode_cursor("graph_versions", cursor, int)[0] if cursor else 2**63 - 1
        found = _LIST_VERSIONS.run(connection, name=name, before=before, limit=limit + 1).all()
    else:
        after = decode_cursor("graphs", cursor, str)[0] if cursor else ""
        found = _LIST_NAMES.run(connection, space=space, after=after, limit=limit + 1).all()
    records = [_record(row) for row in found]
    if len(records) <= limit:
        return GraphPage(records, "")
    last = records[limit - 1]
    next_cursor = (
        encode_cursor("graph_versions", last.sequence) if name else encode_cursor("graphs", last.name)
    )
    return GraphPage(records[:limit], next_cursor)


def _record(row: Sequence[object]) -> GraphRecord:
    name, version, description, nodes, channels, registered_at, definition, sequence = row
    return GraphRecord(
        str(name),
        str(version),
        str(description),
        int(str(nodes)),
        int(str(channels)),
        MicrosecondsUtc(int(str(registered_at))),
        str(definition),
        int(str(sequence)),
    )
