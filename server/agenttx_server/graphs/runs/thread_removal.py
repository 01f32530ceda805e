"""What is removed of threads: old checkpoints (PruneThread), or all of one (DeleteThread).

Pruning never breaks what is kept: a value is removed where no kept checkpoint leads to it, and the deltas of an oldest
kept checkpoint become snapshots. What is removed is found out first, and removed only while the thread is still as it
was then: where a run, or another server, moves it on meanwhile it is found out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.graphs.runs.answered_requests import answered
from agenttx_server.graphs.runs.channel_values import ValuePlace, places_of, snapshot, stored_places
from agenttx_server.graphs.runs.embedded_undone import pruned_inside
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.keyed_locks import KeyedLocks
from agenttx_server.graphs.runs.ports import Pruning, RunFilter
from agenttx_server.graphs.runs.records import (
    LIVE,
    CheckpointRecord,
    RequestRecord,
    ThreadRecord,
    ValueRecord,
)
from agenttx_server.graphs.runs.requests import RunRefused, busy
from agenttx_server.graphs.runs.run_errors import busy_where_moved

__all__ = ["Pruned", "ThreadRemoval", "is_whole", "pruning"]

_PAGE = 200
_MOST_LOOKS = 20


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many checkpoints were deleted, and how many are kept."""

    deleted: int
    kept: int


class ThreadRemoval:
    """Prunes and deletes threads. Raises RunRefused; nothing was changed then."""

    def __init__(
        self,
        parts: RunParts,
        tasks: OwnedTasks,
        admission: Callable[[str], AbstractContextManager[None]],
        shelves: KeyedLocks,
    ) -> None:
        self._parts = parts
        self._tasks = tasks
        self._admission = admission
        self._shelves = shelves

    async def prune(self, thread_id: str, keep_last: int) -> Pruned:
        """Delete old checkpoints, on each branch all but the newest ``keep_last``.

        Those of an open transaction stay, and the one that a rollback would go back to. Raises RunRefused:
        THREAD_NOT_FOUND, INVALID_REQUEST; THREAD_BUSY where the thread moved on each time that it was looked at.
        """
        if keep_last < 1:
            raise RunRefused("INVALID_REQUEST", "at least one checkpoint of each branch is kept")
        async with self._shelves.hold(thread_id):
            for _ in range(_MOST_LOOKS):
                thread = await self._thread(thread_id)
                planned = await self._plan(thread, keep_last)
                if planned is not None and await self._parts.store.prune(thread, planned[0]):
                    return Pruned(len(planned[0].checkpoints_gone), planned[1])
        raise busy(thread_id, "")

    async def _plan(self, thread: ThreadRecord, keep_last: int) -> tuple[Pruning, int] | None:
        """Say what goes, and how many checkpoints stay; None if another server removes something meanwhile."""
        store, thread_id = self._parts.store, thread.thread_id
        checkpoints = await self._checkpoints(thread_id)
        spared = {thread.head, thread.committed_head}
        open_ones = {""}
        for transaction_id in {item.transaction_id for item in checkpoints if item.transaction_id}:
            if await self._parts.transactions.is_open(transaction_id):
                open_ones.add(transaction_id)
        kept = {
            item.number
            for item in checkpoints
            if item.number in spared or (item.transaction_id and item.transaction_id in open_ones)
        }
        seen: dict[str, int] = {}
        for item in sorted(checkpoints, key=lambda item: -item.number):
            seen[item.branch] = seen.get(item.branch, 0) + 1
            if seen[item.branch] <= keep_last:
                kept.add(item.number)
        values = await store.all_values(thread_id)
        if not is_whole(checkpoints, values):
            return None
        plan = pruning(checkpoints, values, kept)
        gone = [item for item in checkpoints if item.number in plan.checkpoints_gone]
        stay = [item for item in checkpoints if item.number in kept]
        inside = await pruned_inside(store, thread_id, gone, stay)
        return replace(plan, embedded_gone=inside), len(kept)

    async def deleted(self, request: RequestRecord | None) -> int | None:
        """How many checkpoints a request has deleted; None if it wasn't done. Raises RunRefused: REQUEST_ID_REUSED."""
        known = await answered(self._parts.store, request)
        return None if known is None else int(known.run_id)

    async def delete(self, thread_id: str, request: RequestRecord | None = None) -> int:
        """Delete a thread: its checkpoints, runs and journals; what is open is rolled back first.

        Returns how many checkpoints it had; the same ``request`` again gets the same. Raises RunRefused: THREAD_NOT_FOUND, THREAD_BUSY; ROLLBACK_INCOMPLETE
        where undo failed: the thread stays until that is settled.
        """
        return await self._tasks.run(self._delete(thread_id, request))

    async def _delete(self, thread_id: str, request: RequestRecord | None) -> int:
        store = self._parts.store
        async with self._shelves.hold(thread_id):
            if (known := await self.deleted(request)) is not None:
                return known
            with busy_where_moved(thread_id), self._admission(thread_id):
                for _ in range(_MOST_LOOKS):
                    thread = await self._thread(thread_id)
                    # Behind the record: what is begun later changes that.
                    if await self._roll_back_open(thread_id):
                        continue
                    count = await store.count_checkpoints(thread_id)
                    asked = None if request is None else replace(request, run_id=str(count))
                    if await store.delete_thread(thread, asked):
                        return count
        raise busy(thread_id, "")

    async def _roll_back_open(self, thread_id: str) -> bool:
        """Roll back what is open on a thread; return whether anything was. Raises RunRefused."""
        transactions = self._parts.transactions
        cursor, settled, found = "", {""}, False
        while True:
            page = await self._parts.store.list_runs(RunFilter(thread_id=thread_id), cursor, _PAGE)
            for run in page.runs:
                if run.status in LIVE:
                    raise busy(thread_id, run.run_id)
                if run.transaction_id in settled:
                    continue
                settled.add(run.transaction_id)
                if not await transactions.is_open(run.transaction_id):
                    continue
                found = True
                async with transactions.turn(run.transaction_id, run.run_id) as turn:
                    await turn.roll_back("its thread is deleted")
                if await transactions.is_open(run.transaction_id):
                    raise RunRefused(
                        "ROLLBACK_INCOMPLETE",
                        "an undo action failed: the thread stays until it is settled",
                        {"thread_id": thread_id, "run_id": run.run_id},
                    )
            cursor = page.next_cursor
            if not cursor:
                return found

    async def _thread(self, thread_id: str) -> ThreadRecord:
        thread = await self._parts.store.load_thread(thread_id)
        if thread is None:
            raise RunRefused(
                "THREAD_NOT_FOUND", f"there is no thread '{thread_id}'", {"thread_id": thread_id}
            )
        return thread

    async def _checkpoints(self, thread_id: str) -> list[CheckpointRecord]:
        found: list[CheckpointRecord] = []
        cursor = ""
        while True:
            page = await self._parts.store.list_checkpoints(thread_id, frozenset(), cursor, _PAGE)
            found += page.checkpoints
            cursor = page.next_cursor
            if not cursor:
                return found


def pruning(
    checkpoints: Sequence[CheckpointRecord], values: Sequence[ValueRecord], kept: set[int]
) -> Pruning:
    """Say what it takes to keep these checkpoints of a thread alone."""
    records = {(item.channel, item.number): item for item in values}
    rewritten: dict[tuple[str, int], ValueRecord] = {}
    changed: list[CheckpointRecord] = []
    needed: set[tuple[str, int]] = set()
    for item in sorted(checkpoints, key=lambda item: item.number):
        if item.number not in kept:
            continue
        places = places_of(item.values)
        if item.parent is not None and item.parent not in kept:
            places = _whole(places, records, rewritten)
            changed.append(replace(item, parent=None, values=stored_places(places)))
        for channel, place in places.items():
            number: int | None = place.number
            while number is not None:
                needed.add((channel, number))
                number = records[channel, number].previous
    return Pruning(
        tuple(changed),
        tuple(rewritten[key] for key in sorted(rewritten)),
        tuple(sorted(item.number for item in checkpoints if item.number not in kept)),
        tuple(sorted(key for key in records if key not in needed)),
    )


def is_whole(checkpoints: Sequence[CheckpointRecord], values: Sequence[ValueRecord]) -> bool:
    """Whether all values are there that these checkpoints of a thread lead to."""
    records = {(item.channel, item.number): item for item in values}
    found: set[tuple[str, int]] = set()
    for item in checkpoints:
        for channel, place in places_of(item.values).items():
            number: int | None = place.number
            while number is not None and (channel, number) not in found:
                record = records.get((channel, number))
                if record is None:
                    return False
                found.add((channel, number))
                number = record.previous
    return True


def _whole(
    places: Mapping[str, ValuePlace],
    records: dict[tuple[str, int], ValueRecord],
    rewritten: dict[tuple[str, int], ValueRecord],
) -> dict[str, ValuePlace]:
    """Make the values of a checkpoint snapshots where they are: who else reads them finds the same."""
    after = dict(places)
    for channel, place in places.items():
        key = (channel, place.number)
        if records[key].previous is not None:
            records[key] = rewritten[key] = snapshot(records, channel, place.number)
        after[channel] = ValuePlace(place.number, place.number, len(records[key].value))
    return after
