"""Journals of a release whose every event was a row of its own: read on, and gone on with in pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, insert, text
from tests.support.postgres_cluster import shared_cluster

from agenttx_server.graphs.runs.ports import EventFilter, RunChange
from agenttx_server.graphs.runs.records import EventRecord
from agenttx_server.store import open_store
from agenttx_server.store.run_schema import graph_events


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/agenttx.db"
        return
    with shared_cluster().database(migrated=False) as made:
        yield made


def _as_before(connection: Connection) -> None:
    """Make the tables of the release before pages."""
    config = Config()
    config.set_main_option("script_location", "agenttx_server.store:migrations")
    config.attributes["connection"] = connection
    pages = next(
        script
        for script in ScriptDirectory.from_config(config).walk_revisions()
        if "event_pages" in script.path
    )
    assert isinstance(pages.down_revision, str)
    command.upgrade(config, pages.down_revision)
    connection.execute(
        text("INSERT INTO database_facts (name, value) VALUES ('database_id', 'the-id-of-before')")
    )
    connection.execute(text("INSERT INTO counters (name, value) VALUES ('commit_version', 0)"))


def event(offset: int, kind: str) -> EventRecord:
    return EventRecord("r", offset, kind, 7, '{"a":1}', "t", "r", "g", "", 1, "n", "task")


async def test_events_of_before_are_read_and_the_next_ones_come_behind_them(address: str) -> None:
    engine = create_engine(address.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        _as_before(connection)
        for offset in range(5):
            row = (
                "r", offset, "before", 7, "t", "r", "g", "", 1, "n", "task", '{"a":1}',
            )  # fmt: skip
            names = [column.name for column in graph_events.columns][1:]
            connection.execute(insert(graph_events).values(dict(zip(names, row, strict=True))))
    engine.dispose()

    async with open_store(address) as store:
        runs = store.runs
        before = await runs.list_events_from(EventFilter(), 0, 99)
        assert [item.sequence for item in before] == [1, 2, 3, 4, 5]
        await runs.write(RunChange(events=[event(offset, "after") for offset in range(5, 75)]))
        found = await runs.list_events("r", 3, 99)
        assert [item.offset for item in found] == list(range(3, 75))
        assert [item.kind for item in found] == ["before"] * 2 + ["after"] * 70
        everything = await runs.list_events_from(EventFilter(run_id="r"), 0, 99)
        assert [item.offset for item in everything] == list(range(75))
        numbers = [item.sequence for item in everything]
        assert numbers == sorted(set(numbers))
        assert await runs.list_events_from(EventFilter(), numbers[4], 99) == everything[5:]
