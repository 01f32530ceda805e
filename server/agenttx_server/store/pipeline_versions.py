"""Registered pipelines: what is read and written of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlalchemy import Connection, text

from agenttx_server.pipelines.records import PipelineVersionPage, PipelineVersionRecord
from agenttx_server.store.cursors import decode_cursor, encode_cursor, listing_kind
from agenttx_server.store.payload_queries import Sealing
from agenttx_server.store.pipeline_schema import pipeline_versions
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.record_codec import RecordCodec
from agenttx_server.store.seen_owners import in_space_text

__all__ = ["find_version", "list_versions", "register"]

_VERSION: Final = RecordCodec(
    PipelineVersionRecord, ("name", "version", "sequence", "registered_at"), details=True
)
_COLUMNS: Final = ", ".join(column.name for column in pipeline_versions.columns)


def _query(rest: str) -> PreparedQuery:
    return PreparedQuery(
        text(f"SELECT {_COLUMNS} FROM pipeline_versions v {rest}"),  # noqa: S608 - our own names
        returns=tuple(pipeline_versions.columns),
    )


# What registers a version of a name waits for others of that name: the counter below is read and written.
_LOCK: Final = PreparedQuery(text("UPDATE counters SET value = value WHERE name = 'commit_version'"))
_THERE: Final = _query("WHERE name = :name AND version = :version")
_NEWEST: Final = _query("WHERE name = :name ORDER BY sequence DESC LIMIT 1")
_LAST: Final = PreparedQuery(
    text("SELECT COALESCE(MAX(sequence), 0) FROM pipeline_versions WHERE name = :name")
)
_VERSIONS: Final = _query("WHERE name = :name AND sequence < :before ORDER BY sequence DESC LIMIT :limit")
_NAMES: Final = _query(  # names of our own columns
    f"WHERE name > :after AND {in_space_text('name')} AND sequence = (SELECT MAX(o.sequence) FROM pipeline_versions o WHERE o.name = v.name) "  # noqa: S608 - our own names
    "ORDER BY name LIMIT :limit"
)
_KEEP: Final = PreparedQuery(
    text(
        f"INSERT INTO pipeline_versions ({_COLUMNS}) VALUES (:name, :version, :sequence, :registered_at, :details)"  # noqa: S608
    ),
    seals={"details": Sealing(pipeline_versions, "details", ("name", "version"))},
)


def register(calls: WriteCalls, record: PipelineVersionRecord) -> tuple[PipelineVersionRecord, bool]:
    """Keep a version unless it is there."""
    calls.change(_LOCK)
    there = calls.rows(_THERE, name=record.name, version=record.version)
    if there:
        return _VERSION.record(there[0]), True
    kept = replace(record, sequence=int(calls.rows(_LAST, name=record.name)[0][0]) + 1)
    calls.change(_KEEP, **dict(zip(_VERSION.columns, _VERSION.row(kept), strict=True)))
    return kept, False


@one_statement
def find_version(connection: Connection, name: str, version: str) -> PipelineVersionRecord | None:
    """Find a version, or the newest."""
    if version:
        row = _THERE.run(connection, name=name, version=version).first()
    else:
        row = _NEWEST.run(connection, name=name).first()
    return None if row is None else _VERSION.record(row)


@one_statement
def list_versions(
    connection: Connection, name: str, cursor: str, limit: int, space: str
) -> PipelineVersionPage:
    """Return a page of the versions of a pipeline, the newest first, or of the newest of each, by name."""
    kind = listing_kind("pipeline_versions", name)
    if name:
        before = decode_cursor(kind, cursor, int)[0] if cursor else 2**63 - 1
        found = _VERSIONS.run(connection, name=name, before=before, limit=limit + 1).all()
    else:
        after = decode_cursor(kind, cursor, str)[0] if cursor else ""
        found = _NAMES.run(connection, space=space, after=after, limit=limit + 1).all()
    records = [_VERSION.record(row) for row in found]
    if len(records) <= limit:
        return PipelineVersionPage(records, "")
    last = records[limit - 1]
    behind = encode_cursor(kind, last.sequence if name else last.name)
    return PipelineVersionPage(records[:limit], behind)
