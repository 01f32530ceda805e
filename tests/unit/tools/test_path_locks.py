"""Locks on paths: who waits for whom, and that nobody waits for ever."""

import asyncio
import random
from contextlib import suppress

import pytest

from agenttx_server.tools.builtin.path_locks import PathLocks
from agenttx_server.tools.builtin.sandbox_path import SandboxPath


class Holder:
    """A change that holds paths until it is told to end."""

    def __init__(self, locks: PathLocks, *paths: str) -> None:
        self.holds = False
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self._hold(locks, [SandboxPath.parse(path) for path in paths]))

    async def _hold(self, locks: PathLocks, paths: list[SandboxPath]) -> None:
        async with locks.held(*paths):
            self.holds = True
            await self.end.wait()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("one", "other", "excluded"),
    [
        (["a"], ["a"], True),
        (["a"], ["a/b/c"], True),
        (["a/b/c"], ["a"], True),
        (["."], ["a"], True),
        (["a"], ["ab"], False),
        (["a/b"], ["a/c"], False),
        (["a", "b"], ["c", "b/d"], True),
        (["a", "b"], ["c", "d"], False),
    ],
)
async def test_a_path_is_held_with_all_beneath_it(one, other, excluded):
    locks = PathLocks()
    first = Holder(locks, *one)
    await settled()
    second = Holder(locks, *other)
    await settled()

    assert (first.holds, second.holds) == (True, not excluded)

    first.end.set()
    second.end.set()
    await asyncio.wait_for(asyncio.gather(first.task, second.task), 10)
    assert second.holds


async def test_paths_are_given_in_the_order_in_which_they_were_asked_for():
    locks = PathLocks()
    holders = []
    for paths in (["a"], ["a", "b"], ["b"], ["a"]):
        holders.append(Holder(locks, *paths))
        await settled()
    # The third could have b now, and so delay the second for ever with others like it.
    assert [holder.holds for holder in holders] == [True, False, False, False]

    holders[0].end.set()
    await settled()
    assert [holder.holds for holder in holders] == [True, True, False, False]
    holders[1].end.set()
    await settled()
    assert [holder.holds for holder in holders] == [True, True, True, True]
    for holder in holders:
        holder.end.set()
    await asyncio.gather(*(holder.task for holder in holders))


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_whoever_is_cancelled_holding_or_waiting_is_in_nobodys_way(cancelled):
    locks = PathLocks()
    holders = [Holder(locks, "a"), Holder(locks, "a/b", "c"), Holder(locks, "c/d")]
    await settled()
    holders[cancelled].task.cancel()
    await settled()

    assert [holder.holds for holder in holders] == (
        [True, True, False] if cancelled == 0 else [True, False, True]
    )
    for holder in holders:
        holder.end.set()
    await asyncio.gather(*(holder.task for holder in holders), return_exceptions=True)


async def test_an_error_inside_gives_the_path_back():
    locks = PathLocks()
    path = SandboxPath.parse("a")
    with suppress(ZeroDivisionError):
        async with locks.held(path):
            _ = 1 / 0
    async with asyncio.timeout(10), locks.held(path):
        pass


async def test_changes_of_crossing_paths_all_come_to_an_end_and_never_meet():
    chance = random.Random(7)
    locks = PathLocks()
    names = ["a", "b", "a/x", "b/x", "c", "a/x/y", "."]
    held: list[SandboxPath] = []

    async def change() -> None:
        paths = [SandboxPath.parse(name) for name in chance.sample(names, chance.randint(1, 3))]
        async with locks.held(*paths):
            assert not any(one.contains(two) or two.contains(one) for one in paths for two in held)
            held.extend(paths)
            try:
                for _ in range(chance.randint(0, 3)):
                    await asyncio.sleep(0)
            finally:
                for path in paths:
                    held.remove(path)

    tasks = [asyncio.create_task(change()) for _ in range(300)]
    for task in chance.sample(tasks, 40):
        asyncio.get_running_loop().call_soon(task.cancel)
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)

    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
    assert not locks._claims
