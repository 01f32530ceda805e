"""Values brought under another key, from plain and back, while a server writes; stopped in between and begun again."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.test_payload_columns import KEYS, MARKER, everything, fill, kept, raw, texts
from tests.support.running_server import PYTHONPATH
from tests.support.store_databases import DATABASES
from tests.support.store_records import Driver

from agenttx_server.engine.ports import TransactionFilter
from agenttx_server.engine.records import ServerId
from agenttx_server.store import DatabaseRefused, PayloadKeys, open_store
from agenttx_server.store.payload_codec import SEALED
from agenttx_server.store.payload_columns import LOOKED_FOR
from agenttx_server.store.payload_rotation import count_by_key, rotate

BOTH = {"k1": KEYS.keys["k1"], "k2": bytes(range(2, 34))}
NEXT, NONE = PayloadKeys("k2", BOTH), PayloadKeys(None, BOTH)


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with DATABASES[request.param](tmp_path) as found:
        yield found


async def turn(address: str, keys: PayloadKeys, **options: int) -> tuple[str, ...]:
    """Rotate; return the keys that are forgotten."""
    done = await asyncio.to_thread(lambda: rotate(address, keys, **options))
    assert done.is_whole
    assert not done.damaged
    return tuple(done.forgotten)


async def counts(address: str, keys: PayloadKeys) -> dict[str | None, int]:
    return {use.key: use.values for use in await asyncio.to_thread(count_by_key, address, keys) if use.values}


async def all_that_is_read(address: str, keys: PayloadKeys | None) -> dict[str, list[str]]:
    async with open_store(address, payload_keys=keys) as store:
        found = await store._pool.read(everything)
        which = TransactionFilter(metadata=((f"n-{MARKER}", MARKER),))
        assert len((await store.list_transactions(which, "", 5)).transactions) == 1
    return {name: sorted(texts(rows)) for name, rows in found.items()}


async def test_from_plain_to_a_key_to_another_and_back(address: str, tmp_path: Path):
    async with open_store(address) as store:
        await fill(store)
    before = await all_that_is_read(address, None)
    every = (await counts(address, NONE))[None]

    assert await turn(address, KEYS, keys_a_page=2, rows_a_batch=1) == ()
    assert await counts(address, KEYS) == {"k1": every}
    assert await all_that_is_read(address, KEYS) == before
    found = await asyncio.to_thread(raw, address)
    assert not [value for rows in found.values() for value in texts(rows) if "4711" in value]
    # Not in what the file holds of before either.
    assert b"4711" not in await asyncio.to_thread(kept, tmp_path)

    # Under one key it stays as it is; the next one takes its place, and it may go.
    assert (await asyncio.to_thread(rotate, address, KEYS)).values == 0
    assert await turn(address, NEXT) == ("k1",)
    assert await counts(address, NEXT) == {"k2": every}
    assert await all_that_is_read(address, PayloadKeys("k2", {"k2": BOTH["k2"]})) == before

    assert await turn(address, NONE) == ("k2",)
    assert await counts(address, NONE) == {None: every}
    assert await all_that_is_read(address, None) == before
    found = await asyncio.to_thread(raw, address)
    assert not [value for rows in found.values() for value in texts(rows) if SEALED in value]
    assert [value for name in LOOKED_FOR for value in texts(found[name]) if MARKER in value]


# Rotates what it is told by a batch of two rows after the other, until it is killed in the middle of the fourth.
_KILLED = """
import os, signal, sys
from pathlib import Path
from agenttx_server.store import load_payload_keys
from agenttx_server.store.payload_rotation import rotate
batches = []
def stop(table, values):
    batches.append(table)
    if len(batches) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
rotate(sys.argv[1], load_payload_keys(Path(sys.argv[2])), on_batch=stop, rows_a_batch=2)
"""


def run_until_killed(address: str, folder: Path) -> None:
    file = folder / "keys.toml"
    file.touch(0o600)
    lines = [f'{name} = "{base64.b64encode(key).decode()}"' for name, key in BOTH.items()]
    file.write_text("\n".join(['active = "k2"', "[keys]", *lines]))
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, address, str(file)], env=environment, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL


async def test_it_goes_on_where_it_was_killed_while_a_server_writes(address: str, tmp_path: Path):
    async with open_store(address) as store:
        for number in range(12):
            driver = await Driver(store, f"old-{number}").begin()
            await driver.step({f"kv/{number}": f'"{number}"'}, output=f'"{number}"')
    async with open_store(address, payload_keys=NEXT) as store:
        stop = asyncio.Event()
        written = 0

        async def write() -> None:
            nonlocal written
            while not stop.is_set():
                driver = await Driver(store, f"new-{written}").begin()
                for _ in range(3):
                    await driver.step({"kv/hot": f'"{written}"'}, output=f'"{written}"')
                written += 1

        # One is gone on with: its head is written by both.
        async def go_on() -> None:
            driver = await Driver(store, "hot").begin()
            while not stop.is_set():
                await driver.step({"kv/own": '"x"'}, output='"x"')

        tasks = [asyncio.create_task(write()), asyncio.create_task(go_on())]
        try:
            async with asyncio.timeout(60):
                await asyncio.to_thread(run_until_killed, address, tmp_path)
                halfway = await counts(address, NEXT)
                assert halfway[None] > 0
                assert halfway["k2"] > 0
                assert await turn(address, NEXT, rows_a_batch=2) == ()
        finally:
            stop.set()
            await asyncio.gather(*tasks)
        assert written
        for number in range(12):
            loaded = await store.load(Driver(store, f"old-{number}").id)
            assert loaded is not None
            assert loaded.attempts[0].output == f'"{number}"'
    assert set(await counts(address, NEXT)) == {"k2"}


async def test_what_can_not_be_opened_stays_and_is_named_and_a_key_in_use_is_kept(tmp_path: Path):
    address = f"sqlite:///{tmp_path / 'agenttx.db'}"
    async with open_store(address, payload_keys=KEYS) as store:
        await store.register_server(ServerId("s-1"), 10.0**10, 1)
        for name in ("t-1", "t-2"):
            await (await Driver(store, name).begin()).step(output='"x"')
        await store._writer.run(lambda calls: calls._driver.execute("UPDATE attempts SET output = output || 'A' WHERE transaction_number = 1"))  # fmt: skip
        done = await asyncio.to_thread(rotate, address, NEXT)
        assert (len(done.damaged), done.is_whole, done.forgotten) == (1, False, ())
        assert "attempts.output of 't-1', '1', '1'" in done.damaged[0]
        await store._writer.run(lambda calls: calls._driver.execute("DELETE FROM attempts WHERE transaction_number = 1"))  # fmt: skip
        done = await asyncio.to_thread(rotate, address, NEXT)
        assert (done.is_whole, done.forgotten, done.kept_for) == (True, (), ["k1"])
        await store.retire_server(ServerId("s-1"))
        assert await turn(address, NEXT) == ("k1",)
    with pytest.raises(DatabaseRefused, match="'k2', which is not in the file"):
        await asyncio.to_thread(rotate, address, KEYS)
