"""How PostgreSQL finds what the store asks for, on a database that is empty and never analysed.

That is when it knows least, and a plan once made is kept while the tables grow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event
from sqlalchemy.dialects.postgresql.asyncpg import dialect as numbered_dialect
from tests.contract.test_store_plans import GROWING, LISTINGS, RARELY_WRITTEN, READS
from tests.support.postgres_cluster import shared_cluster

from agenttx_server.store import PostgresSettings, settlement_listing
from agenttx_server.store.postgres_address import PostgresAddress
from agenttx_server.store.postgres_statements import STATEMENTS

STATEMENTS_BY_NAME: dict[str, Any] = {
    **{f"insert {name}": statement for name, statement in STATEMENTS.insert_rows.items()},
    **{f"rewind {number}": statement for number, statement in enumerate(STATEMENTS.remove_rewound)},
    **{
        name: value
        for name in STATEMENTS.__slots__
        if isinstance(value := getattr(STATEMENTS, name), str) or hasattr(value, "text")
    },
}
WRITES: dict[str, str] = {
    name: value if isinstance(value, str) else value.text for name, value in STATEMENTS_BY_NAME.items()
}
for _name, _statement in STATEMENTS_BY_NAME.items():
    if _few := getattr(_statement, "few", ()):
        WRITES |= {f"{_name} of one": _few[0], f"{_name} of some": _few[-1]}
# Few rows each, or rows behind a condition that few meet.
SMALL = ("counters", "servers", "stop_requests", "recovery_problems")
OF_FEW_ROWS = (
    "ix_transactions_owner",
    "ix_transactions_outbox",
    "ix_transactions_open",
    "ix_transactions_ended",
    "ix_effects_waiting",
    "ix_undo_actions_in_question",
)


@pytest.fixture(scope="module")
def address() -> Iterator[PostgresAddress]:
    # Of its own: what tests before left behind was maybe analysed.
    with shared_cluster().database(migrated=False) as url:
        from agenttx_server.store import migrate

        migrate(url)
        yield PostgresAddress.parse(url, PostgresSettings())


@pytest.fixture(scope="module")
def writer(address: PostgresAddress) -> Iterator[psycopg.Connection[Any]]:
    with address.connect_writer() as connection:
        yield connection


@pytest.fixture
def reader(address: PostgresAddress) -> Iterator[Connection]:
    engine = address.reader_engine()
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def walks(plan: dict[str, Any]) -> list[str]:
    """Nodes that go through a growing table, or all of an index of it."""
    found = []
    for node in nodes(plan):
        table = node.get("Relation Name")
        by_index = "Index Cond" in node or node.get("Index Name") in OF_FEW_ROWS
        if node["Node Type"] == "Bitmap Heap Scan" or by_index or table in SMALL:
            continue
        if table in GROWING and "Scan" in node["Node Type"]:
            found.append(f"{node['Node Type']} {table} {node.get('Index Name', '')}")
    return found


def plan_of(connection: psycopg.Connection[Any], text: str) -> dict[str, Any]:
    """The plan of a statement whose parameters are not known."""
    connection.execute(f"PREPARE planned AS {text}")
    try:
        (count,) = connection.execute(
            "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'planned'"
        ).fetchone() or (0,)
        nulls = f"({', '.join(['NULL'] * count)})" if count else ""
        ((plan,),) = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE planned{nulls}").fetchall()
    finally:
        connection.execute("DEALLOCATE planned")
    return dict(plan[0]["Plan"])


@pytest.mark.parametrize("name", [name for name, text in WRITES.items() if text])
def test_a_write_finds_its_rows_by_index(writer: psycopg.Connection[Any], name: str) -> None:
    assert walks(plan_of(writer, WRITES[name])) == []


@pytest.mark.parametrize("how", ["", " of some"])
@pytest.mark.parametrize("name", ["insert attempts", "insert events", "guarded_update", "read_revisions"])
def test_the_rows_of_a_batch_lead(writer: psycopg.Connection[Any], name: str, how: str) -> None:
    """So that what they lead to is locked in their order, which is the same for all servers."""
    joins = [
        node
        for node in nodes(plan_of(writer, WRITES[name + how]))
        if "Join" in node["Node Type"] or node["Node Type"] == "Nested Loop"
    ]
    assert [join["Node Type"] for join in joins] == ["Nested Loop"]
    assert joins[0]["Plans"][0]["Node Type"] == ("Values Scan" if how else "Function Scan")


@pytest.mark.parametrize("number", range(len(STATEMENTS.remove_rewound)))
def test_a_rewind_reads_what_it_removes(writer: psycopg.Connection[Any], number: int) -> None:
    plan = plan_of(writer, WRITES[f"rewind {number}"])
    conditions = [node["Index Cond"] for node in nodes(plan) if "Index Cond" in node]
    assert any("step_id >=" in condition for condition in conditions)


@pytest.mark.parametrize("name", RARELY_WRITTEN)
def test_what_is_rarely_written_finds_its_rows_by_index(writer: psycopg.Connection[Any], name: str) -> None:
    text, _, _ = RARELY_WRITTEN[name]._compile(numbered_dialect())  # type: ignore[no-untyped-call]
    assert walks(plan_of(writer, text)) == []


def plans_of_a_read(reader: Connection, function: Any, arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
    seen: list[tuple[str, Any]] = []

    @event.listens_for(reader, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *others: Any) -> None:
        seen.append((statement, parameters))

    reader.exec_driver_sql("BEGIN")
    seen.clear()
    function(reader, *arguments)
    reader.rollback()
    event.remove(reader, "before_cursor_execute", note)
    assert seen
    assert len(seen) == 1 or not hasattr(function, "is_one_statement")
    explained = []
    reader.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
    for statement, parameters in seen:
        found = reader.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
        explained.append((json.loads(found) if isinstance(found, str) else found)[0]["Plan"])
    return explained


@pytest.mark.parametrize("name", READS)
def test_a_read_finds_its_rows_by_index(reader: Connection, name: str) -> None:
    function, *arguments = READS[name]
    for plan in plans_of_a_read(reader, function, tuple(arguments)):
        # In the order of an index and no further than a page is no walk.
        assert [walk for walk in walks(plan) if "list " not in name] == []


@pytest.mark.parametrize("name", LISTINGS)
def test_a_listing_over_all_transactions_walks_nothing_unasked(reader: Connection, name: str) -> None:
    _, arguments = LISTINGS[name]
    listing = (
        settlement_listing.list_compensations if "undo" in name else settlement_listing.list_effects_page
    )
    for plan in plans_of_a_read(reader, listing, arguments):
        assert "Seq Scan" not in {node["Node Type"] for node in nodes(plan)}
