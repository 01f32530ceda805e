"""Registered graphs: one version for one content, numbered by name, found by its beginning, listed in pages."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol, cast

import pytest
from tests.support.store_databases import Opener, reopen, store_or_model  # noqa: F401
from tests.support.store_records import NOW

from agenttx_server.engine.ports import DuplicateRequestId, TransactionStore
from agenttx_server.engine.records import RecordedResponse
from agenttx_server.graphs.ports import GraphRecord, GraphStore


class Store(GraphStore, TransactionStore, Protocol):  # type: ignore[misc]
    pass


def graph(name: str = "support", version: str = "v1", **fields: Any) -> GraphRecord:
    values = {
        "description": "",
        "node_count": 1,
        "channel_count": 0,
        "registered_at": NOW,
        "definition": "{}",
    }
    return GraphRecord(name, version, **{**values, **fields})


def answer(request_id: str = "r-1") -> RecordedResponse:
    return RecordedResponse("principal:", request_id, "RegisterGraph", "f", '{"name":"support"}')


async def test_the_same_version_is_kept_once(store_or_model: TransactionStore) -> None:
    store = cast("Store", store_or_model)
    first = await store.register_graph(graph(description="as it was"))
    again = await store.register_graph(graph(description="as it was", registered_at=NOW + 5))

    assert (first.existed, again.existed) == (False, True)
    assert again.record == first.record == graph(description="as it was", sequence=1)


async def test_versions_are_numbered_by_name(store_or_model: TransactionStore) -> None:
    store = cast("Store", store_or_model)
    numbers = [
        (await store.register_graph(graph(name, version))).record.sequence
        for name, version in (("a", "v1"), ("b", "v1"), ("a", "v2"), ("a", "v1"))
    ]

    assert numbers == [1, 1, 2, 1]


async def test_the_newest_or_the_one_that_begins_so_is_found(store_or_model: TransactionStore) -> None:
    store = cast("Store", store_or_model)
    for version in ("vb1", "va2", "va1"):
        await store.register_graph(graph(version=version, definition=f'{{"v":"{version}"}}'))

    assert [found.version for found in await store.find_graph("support", "")] == ["va1"]
    assert [found.definition for found in await store.find_graph("support", "vb")] == ['{"v":"vb1"}']
    assert [found.version for found in await store.find_graph("support", "va")] == ["va1", "va2"]
    assert await store.find_graph("support", "va3") == []
    assert await store.find_graph("other", "") == []


async def test_graphs_are_listed_by_name_in_their_newest_version(store_or_model: TransactionStore) -> None:
    store = cast("Store", store_or_model)
    for name in ("b", "a", "ä", "B"):
        for version in ("v1", "v2"):
            await store.register_graph(graph(name, version, definition='{"large":1}'))

    first = await store.list_graphs("", "", 3)
    second = await store.list_graphs("", first.next_cursor, 3)

    assert [(found.name, found.version, found.definition) for found in first.graphs] == [
        ("B", "v2", ""),
        ("a", "v2", ""),
        ("b", "v2", ""),
    ]
    assert [found.name for found in second.graphs] == ["ä"]
    assert second.next_cursor == ""


async def test_versions_are_listed_newest_first(store_or_model: TransactionStore) -> None:
    store = cast("Store", store_or_model)
    for version in ("vb", "va", "vc"):
        await store.register_graph(graph(version=version))

    first = await store.list_graphs("support", "", 2)
    second = await store.list_graphs("support", first.next_cursor, 2)

    assert [found.version for found in (*first.graphs, *second.graphs)] == ["vc", "va", "vb"]
    with pytest.raises(ValueError, match="cursor"):
        await store.list_graphs("", first.next_cursor, 2)
    with pytest.raises(ValueError, match="cursor"):
        await store.list_graphs("support", "!", 2)


async def test_an_answer_is_recorded_with_its_graph(store_or_model: TransactionStore) -> None:
    store = cast("Store", store_or_model)
    await store.register_graph(graph(), answer("r-1"))
    await store.register_graph(graph(), answer("r-2"))

    recorded = [await store.find_response("principal:", name) for name in ("r-1", "r-2")]

    assert [json.loads(found.response) for found in recorded if found is not None] == [
        {"name": "support", "existed": False},
        {"name": "support", "existed": True},
    ]
    with pytest.raises(DuplicateRequestId):
        await store.register_graph(graph(version="v2"), answer("r-1"))
    assert [found.version for found in await store.find_graph("support", "")] == ["v1"]


async def test_many_at_once_are_numbered_without_a_gap(reopen: Opener) -> None:
    store = cast("Store", await reopen())
    await asyncio.gather(*(store.register_graph(graph(version=f"v{n % 5}")) for n in range(20)))

    page = await store.list_graphs("support", "", 100)

    assert [found.sequence for found in page.graphs] == [5, 4, 3, 2, 1]


async def test_graphs_outlive_the_server(reopen: Opener) -> None:
    kept = await cast("Store", await reopen()).register_graph(graph(definition='{"name":"\\u0000"}'))

    assert await cast("Store", await reopen()).find_graph("support", "") == [kept.record]
