"""A process killed while it writes: every acknowledged write is there, none is there in part."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.store_processes import process, read_line

from agenttx_server.engine.records import TransactionId
from agenttx_server.store import open_store


@pytest.mark.parametrize("lines", [1, 40, 400])
async def test_acknowledged_writes_survive_a_kill_and_none_is_torn(tmp_path: Path, lines: int) -> None:
    database = tmp_path / "agenttx.db"
    acknowledged: dict[str, int] = {}
    with process("write", database, 20) as writer:
        for _ in range(lines):
            transaction, step = read_line(writer).split()
            acknowledged[transaction] = int(step)
        writer.kill()
        assert writer.stdout is not None
        for line in writer.stdout:
            if line.endswith("\n"):
                transaction, step = line.split()
                acknowledged[transaction] = int(step)

    assert acknowledged
    async with open_store(f"sqlite:///{database}") as store:
        for name, step in acknowledged.items():
            transaction_id = TransactionId(name)
            stored = await store.load(transaction_id)
            assert stored is not None
            written = stored.transaction.next_step_id - 1
            assert written >= step
            # Whole steps, every one of them, and nothing beyond the last.
            steps = list(range(1, written + 1))
            assert [attempt.step_id for attempt in stored.attempts] == steps
            assert [action.step_id for action in stored.undo] == steps
            effects = await store.list_effects(transaction_id, frozenset())
            assert [item.step_id for item in effects] == steps
            assert (await store.count_touched(transaction_id, 1))[0] == 2 * written
            assert (await store.read_state(transaction_id, "kv/last", written + 1)).value == str(written)
            events = await store.list_events(transaction_id, 1, 100_000)
            assert [event.sequence for event in events] == steps
            assert stored.transaction.revision == written + 1
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_the_next_server_goes_on_after_a_kill(tmp_path: Path) -> None:
    database = tmp_path / "agenttx.db"
    seen = set()
    for _ in range(3):
        with process("write", database, 3) as writer:
            seen.add(read_line(writer).split()[0])
            writer.kill()
    async with open_store(f"sqlite:///{database}") as store:
        for name in seen:
            assert await store.load_record(TransactionId(name)) is not None
