"""How many bytes each owner has stored: measured from the rows themselves, and kept as a count that servers share.

The count is one row an owner. Servers add what they wrote, every second and not with each step, and whoever measures adds the
difference between what it found and what the count was in the same snapshot: both are additions, so they may come in any order, and
what was missed or counted twice between two measurements is put right by the later one.

What is counted are the texts of an owner's rows, as they are stored. Indexes, numbers and the bookkeeping of requests are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Table,
    Text,
    case,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles

from agenttx_server.store import schema
from agenttx_server.store.administration import administered
from agenttx_server.store.graph_tables import graph_versions
from agenttx_server.store.pipeline_schema import pipeline_inputs, pipeline_runs, pipeline_versions
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.record_schema import record_commits, record_edges, record_events, records
from agenttx_server.store.run_schema import (
    graph_checkpoints,
    graph_embedded_checkpoints,
    graph_events,
    graph_interrupts,
    graph_runs,
    graph_tasks,
    graph_threads,
    graph_values,
)
from agenttx_server.store.storage_errors import DatabaseRefused

__all__ = [
    "Measured",
    "StoredTotals",
    "add_stored",
    "correct_stored",
    "measure_stored",
    "measure_usage",
    "stored_totals",
]

_counts = Table(
    "stored_bytes",
    schema.METADATA,
    Column("owner", schema.KEY_TEXT, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
)

_ROUND: Final = ""
"""The row of no owner counts the measurements: of two that overlap one is dropped."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one snapshot held: ``parts`` by owner and kind, ``counted`` as the count was, after so many ``rounds``.

    What a tenant's principals share (committed state, definitions) is under the scope of all its owners (engine.visibility).
    """

    parts: Mapping[str, Mapping[str, int]]
    counted: Mapping[str, int]
    rounds: int

    @property
    def totals(self) -> dict[str, int]:
        """Bytes by owner."""
        return {owner: sum(parts.values()) for owner, parts in self.parts.items()}


@dataclass(frozen=True, slots=True)
class StoredTotals:
    """The count as it stands, by owner, after so many ``rounds`` of measuring by any server."""

    by_owner: Mapping[str, int]
    rounds: int = 0


class _Octets(ColumnElement[int]):
    """The length of a column's text in bytes, 0 for NULL."""

    inherit_cache = True
    type = BigInteger()

    def __init__(self, column: ColumnElement[Any]) -> None:
        self.column = column


@compiles(_Octets, "sqlite")
def _octets_in_sqlite(element: _Octets, compiler: Any, **options: Any) -> str:
    # octet_length() is there from 3.43 on.
    return f"coalesce(length(CAST({compiler.process(element.column, **options)} AS BLOB)), 0)"


@compiles(_Octets, "postgresql")
def _octets_in_postgresql(element: _Octets, compiler: Any, **options: Any) -> str:
    # Of a value that is stored out of line it asks the header alone.
    return f"coalesce(octet_length({compiler.process(element.column, **options)}), 0)"


class _SpaceOf(ColumnElement[str]):
    """The scope of the tenant that a shared name is of: ``@acme/`` of ``@acme/orders``, ``@/`` of ``orders``."""

    inherit_cache = True
    type = Text()

    def __init__(self, column: ColumnElement[Any]) -> None:
        self.column = column


@compiles(_SpaceOf, "sqlite")
def _space_in_sqlite(element: _SpaceOf, compiler: Any, **options: Any) -> str:
    name = compiler.process(element.column, **options)
    return f"CASE WHEN substr({name}, 1, 1) = '@' THEN substr({name}, 1, instr({name}, '/')) ELSE '@/' END"


@compiles(_SpaceOf, "postgresql")
def _space_in_postgresql(element: _SpaceOf, compiler: Any, **options: Any) -> str:
    name = compiler.process(element.column, **options)
    return f"CASE WHEN substr({name}, 1, 1) = '@' THEN substr({name}, 1, strpos({name}, '/')) ELSE '@/' END"


def _texts(table: Table) -> list[Column[Any]]:
    return [column for column in table.columns if isinstance(column.type, Text)]


def _of(table: Table, owner: ColumnElement[Any], source: FromClause | None = None) -> Select[Any]:
    texts = [_Octets(column) for column in _texts(table)]
    size: ColumnElement[Any] = texts[0]
    for other in texts[1:]:
        size = size.op("+")(other)
    return (
        select(owner.label("owner"), func.sum(size))
        .select_from(table if source is None else source)
        .group_by(literal_column("1"))
    )


def _queries() -> Iterator[tuple[str, Select[Any]]]:
    transactions = schema.transactions
    yield "transactions", _of(transactions, transactions.c.principal)
    for table in schema.METADATA.sorted_tables:
        if "transaction_number" in table.c and _texts(table):
            joined = table.join(transactions, table.c.transaction_number == transactions.c.number)
            yield "transactions", _of(table, transactions.c.principal, joined)
    yield "state", _of(schema.committed_state, _SpaceOf(schema.committed_state.c.key))
    for table in (graph_threads, graph_runs):
        yield "runs", _of(table, table.c.principal)
    for table in (graph_checkpoints, graph_embedded_checkpoints, graph_values):
        joined = table.join(graph_threads, table.c.thread_id == graph_threads.c.thread_id)
        yield "runs", _of(table, graph_threads.c.principal, joined)
    for table in (graph_tasks, graph_interrupts, graph_events):
        joined = table.join(graph_runs, table.c.run_id == graph_runs.c.run_id)
        yield "runs", _of(table, graph_runs.c.principal, joined)
    yield "pipelines", _of(pipeline_runs, pipeline_runs.c.principal)
    inputs = pipeline_inputs.join(pipeline_runs, pipeline_inputs.c.run_id == pipeline_runs.c.run_id)
    yield "pipelines", _of(pipeline_inputs, pipeline_runs.c.principal, inputs)
    # Of records that count the commit tells the owner, also when the transaction is gone.
    owner = case(
        (record_commits.c.principal != literal_column("''"), record_commits.c.principal),
        else_=func.coalesce(transactions.c.principal, literal_column("''")),
    )
    for table in (records, record_events):
        joined = table.outerjoin(
            record_commits, table.c.transaction_id == record_commits.c.transaction_id
        ).outerjoin(transactions, table.c.transaction_id == transactions.c.transaction_id)
        yield "records", _of(table, owner, joined)
    edges = (
        record_edges.join(records, record_edges.c.child == records.c.target_id)
        .outerjoin(record_commits, records.c.transaction_id == record_commits.c.transaction_id)
        .outerjoin(transactions, records.c.transaction_id == transactions.c.transaction_id)
    )
    yield "records", _of(record_edges, owner, edges)
    for table in (graph_versions, pipeline_versions):
        yield "definitions", _of(table, _SpaceOf(table.c.name))


_MEASURES: Final = tuple(_queries())
_TOTALS = PreparedQuery(select(_counts.c.owner, _counts.c.bytes))
# Written alike on both databases.
_ADD = PreparedQuery(
    text(
        "INSERT INTO stored_bytes (owner, bytes) VALUES (:p_owner, :p_bytes) "
        "ON CONFLICT (owner) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes"
    )
)
_FIRST_ROUND = PreparedQuery(
    text("INSERT INTO stored_bytes (owner, bytes) VALUES ('', 0) ON CONFLICT (owner) DO NOTHING")
)
_FORGET_NOTHING = PreparedQuery(text("DELETE FROM stored_bytes WHERE owner <> '' AND bytes = 0"))
_NEXT_ROUND = PreparedQuery(
    text("UPDATE stored_bytes SET bytes = bytes + 1 WHERE owner = '' AND bytes = :p_rounds")
)


def measure_stored(connection: Connection) -> Measured:
    """Measure all that is stored, in one snapshot: every page of rows is read."""
    standing = stored_totals(connection)
    parts: dict[str, dict[str, int]] = {}
    for part, query in _MEASURES:
        for owner, size in connection.execute(query):
            if owner and size:
                of_owner = parts.setdefault(str(owner), {})
                of_owner[part] = of_owner.get(part, 0) + int(size)
    return Measured(parts, standing.by_owner, standing.rounds)


@one_statement
def stored_totals(connection: Connection) -> StoredTotals:
    """Return the count as it stands."""
    totals = {str(owner): int(size) for owner, size in _TOTALS.run(connection)}
    rounds = totals.pop(_ROUND, 0)
    return StoredTotals(totals, rounds)


def add_stored(calls: WriteCalls, added: Mapping[str, int]) -> None:
    """Add to owners' counts; in order of owners, so that no two servers wait for one another."""
    for owner in sorted(added):
        if added[owner]:
            calls.change(_ADD, p_owner=owner, p_bytes=added[owner])


def correct_stored(calls: WriteCalls, measured: Measured) -> bool:
    """Put the count right by what was measured; False, and nothing is done, if another measurement did meanwhile."""
    calls.change(_FIRST_ROUND)
    if not calls.change(_NEXT_ROUND, p_rounds=measured.rounds):
        return False
    found = measured.totals
    owners = found.keys() | measured.counted.keys()
    add_stored(calls, {owner: found.get(owner, 0) - measured.counted.get(owner, 0) for owner in owners})
    calls.change(_FORGET_NOTHING)
    return True


def measure_usage(database_url: str) -> Measured:
    """Measure a database, whether or not it is being served; the count is left as it is. Raises DatabaseRefused."""
    engine = administered(database_url)
    try:
        with engine.connect() as connection:
            return measure_stored(connection)
    except DBAPIError as error:
        raise DatabaseRefused(
            f"what is stored can't be measured: {' '.join(str(error.orig).split())}"
        ) from error
    finally:
        engine.dispose()
