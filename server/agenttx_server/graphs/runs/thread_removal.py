"""What is removed of threads: old checkpoints (PruneThread), or all of one (DeleteThread).

Pruning never breaks what is kept: a value is removed where no kept checkpoint leads to it, and the deltas of an oldest
kept checkpoint become snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agenttx_server.graphs.runs.channel_values import ValuePlace, places_of, snapshot, stored_places
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.ports import Pruning, RunFilter
from agenttx_server.graphs.runs.records import LIVE, CheckpointRecord, ThreadRecord, ValueRecord
from agenttx_server.graphs.runs.requests import RunRefused, busy

__all__ = ["Pruned", "ThreadRemoval", "pruning"]

_PAGE = 200


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many checkpoints were deleted, and how many are kept."""

    deleted: int
    kept: int


class ThreadRemoval:
    """Prunes and deletes threads. Raises RunRefused; nothing was changed then."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts

    async def prune(self, thread_id: str, keep_last: int) -> Pruned:
        """Delete old checkpoints, on each branch all but the newest ``keep_last``.

        Those of an open transaction stay, and the one that a rollback would go back to. Raises RunRefused:
        THREAD_NOT_FOUND, INVALID_REQUEST.
        """
        if keep_last < 1:
            raise RunRefused("INVALID_REQUEST", "at least one checkpoint of each branch is kept")
        store = self._parts.store
        thread = await self._thread(thread_id)
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
        plan = pruning(checkpoints, await store.all_values(thread_id), kept)
        await store.prune(thread_id, plan)
        return Pruned(len(plan.checkpoints_gone), len(kept))

    async def delete(self, thread_id: str) -> int:
        """Delete a thread: its checkpoints, runs and journals; what is open is rolled back first.

        Returns how many checkpoints it had. Raises RunRefused: THREAD_NOT_FOUND, THREAD_BUSY; ROLLBACK_INCOMPLETE
        where undo failed: the thread stays until that is settled.
        """
        store = self._parts.store
        await self._thread(thread_id)
        cursor, settled = "", {""}
        while True:
            page = await store.list_runs(RunFilter(thread_id=thread_id), cursor, _PAGE)
            for run in page.runs:
                if run.status in LIVE:
                    raise busy(thread_id, run.run_id)
                if run.transaction_id in settled:
                    continue
                settled.add(run.transaction_id)
                if not await self._parts.transactions.is_open(run.transaction_id):
                    continue
                async with self._parts.transactions.turn(run.transaction_id, run.run_id) as turn:
                    await turn.roll_back("its thread is deleted")
                if await self._parts.transactions.is_open(run.transaction_id):
                    raise RunRefused(
                        "ROLLBACK_INCOMPLETE",
                        "an undo action failed: the thread stays until it is settled",
                        {"thread_id": thread_id, "run_id": run.run_id},
                    )
            cursor = page.next_cursor
            if not cursor:
                break
        count = await store.count_checkpoints(thread_id)
        await store.delete_thread(thread_id)
        return count

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
