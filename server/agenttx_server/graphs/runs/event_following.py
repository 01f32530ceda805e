"""Following journals: every event from a position on, once and in order, first those kept, then those that come.

A follower reads from the store, in pages bounded by bytes, and holds nothing but its position: one that falls behind
costs no memory and holds up no run. Signals only say when to read again. Where servers share a database, what others
write is looked for by one :class:`JournalPoll` a server, and not by each follower.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from agenttx_server.engine.ports import Clock, StoreUnavailable
from agenttx_server.graphs.runs.live_notices import NoticeBox
from agenttx_server.graphs.runs.ports import ANY_RUN, EventFilter, RunStore
from agenttx_server.graphs.runs.records import LIVE, EventRecord, RunRecord, RunStatus
from agenttx_server.graphs.runs.requests import RunRefused

__all__ = ["LAST_POSITION", "EventFollower", "JournalPoll", "RunFollower", "SequenceFollower"]

LAST_POSITION: Final = 2**63 - 1
"""Databases count so far: beyond there is nothing, just as at the end of a journal."""

_LOGGER = logging.getLogger(__name__)
_PAGE_EVENTS = 256
_PAGE_BYTES = 256 * 1024
# Sequences that one query looks through for events that a filter takes. Many of them are nobody's (RunStore.list_events_from).
_LOOKED_THROUGH = 100_000
# A signal comes with each write; this is for what is deleted elsewhere, and for a poll that fails.
_LOOK_SECONDS = 60.0
_POLL_SECONDS = 0.5


class EventFollower(Protocol):
    """Somebody's place in a journal. ``position`` is what comes next, an offset or a sequence.

    Notices that it is given a box for are told in between: events without an offset.
    """

    position: int

    async def read(self) -> Sequence[EventRecord]:
        """Return what comes next, waiting for it; nothing where there will be no more. Raises StoreUnavailable."""


class RunFollower:
    """Follows one run by offset, until it has completed or (``until_pause``) no invocation of it is under way."""

    def __init__(
        self,
        store: RunStore,
        clock: Clock,
        run_id: str,
        from_offset: int = 0,
        notices: NoticeBox | None = None,
        *,
        until_pause: bool = False,
    ) -> None:
        self.position = min(from_offset, LAST_POSITION)
        self._store = store
        self._clock = clock
        self._run_id = run_id
        self._until_pause = until_pause
        self._notices = notices

    async def read(self) -> Sequence[EventRecord]:
        """As EventFollower says. Raises RunRefused: RUN_NOT_FOUND, POSITION_PURGED."""
        while True:
            with _signalled(self._store, self._run_id) as signal:
                if page := await self._page():
                    return page
                if self._notices is not None and (live := self._notices.take()):
                    return live
                run = await self._store.load_run(self._run_id)
                if run is None:
                    raise RunRefused(
                        "RUN_NOT_FOUND", f"there is no run '{self._run_id}'", {"run_id": self._run_id}
                    )
                if run.next_offset > self.position:
                    # Written meanwhile; else it isn't kept any more.
                    if page := await self._page():
                        return page
                    raise self._purged(run.next_offset)
                if self._is_over(run):
                    return ()
                await _wait(signal, self._clock, self._notices)

    def _is_over(self, run: RunRecord) -> bool:
        return run.status is RunStatus.COMPLETED or (self._until_pause and run.status not in LIVE)

    async def _page(self) -> Sequence[EventRecord]:
        page = await self._store.list_events(self._run_id, self.position, _PAGE_EVENTS, _PAGE_BYTES)
        if page:
            # Offsets are dense: a hole is what was purged.
            if page[0].offset > self.position:
                raise self._purged(page[0].offset)
            self.position = page[-1].offset + 1
            if self._notices is not None:
                self._notices.settle(page)
        return page

    def _purged(self, oldest: int) -> RunRefused:
        return RunRefused(
            "POSITION_PURGED",
            f"the events of run '{self._run_id}' are kept from offset {oldest} on, not from {self.position}",
            {"run_id": self._run_id, "oldest_offset": str(oldest)},
        )


class SequenceFollower:
    """Follows events of many runs in the order of commits; it never ends.

    The position moves with what was looked through, also where the filter took nothing of it.
    """

    def __init__(
        self,
        store: RunStore,
        clock: Clock,
        which: EventFilter,
        from_sequence: int,
        notices: NoticeBox | None = None,
    ) -> None:
        self.position = min(max(from_sequence, 1), LAST_POSITION)
        self._store = store
        self._clock = clock
        self._which = which
        self._notices = notices

    @classmethod
    async def from_now(
        cls, store: RunStore, clock: Clock, which: EventFilter, notices: NoticeBox | None = None
    ) -> SequenceFollower:
        """Follow from the next event on."""
        return cls(store, clock, which, await store.last_sequence() + 1, notices)

    async def read(self) -> Sequence[EventRecord]:
        """As EventFollower says."""
        while True:
            with _signalled(self._store, ANY_RUN) as signal:
                last = await self._store.last_sequence()
                if last < self.position:
                    if self._notices is not None and (live := self._notices.take()):
                        return live
                    await _wait(signal, self._clock, self._notices)
                    continue
            # What is numbered below the last is there: numbers are given in the order of commits.
            up_to = min(last, self.position - 1 + _LOOKED_THROUGH)
            page = await self._store.list_events_from(
                self._which, self.position - 1, _PAGE_EVENTS, up_to=up_to, byte_limit=_PAGE_BYTES
            )
            self.position = (page[-1].sequence if page else up_to) + 1
            if page:
                if self._notices is not None:
                    self._notices.settle(page)
                return page


class JournalPoll:
    """Looks for what other servers write to journals that are followed here, and wakes who follows them."""

    def __init__(self, store: RunStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: int | None = None

    async def follow(self) -> None:
        """Look twice a second while somebody waits, until cancelled; returns at once where no other server writes."""
        while self._store.is_shared:
            await self._clock.sleep(_POLL_SECONDS)
            try:
                await self.look()
            except StoreUnavailable as error:
                _LOGGER.warning("events of other servers could not be looked for: %s", error)

    async def look(self) -> None:
        """Wake those for whom there is something new since the last look. Raises StoreUnavailable."""
        signals = self._store.signals
        if not signals.is_waited_on:
            self._seen = None
            return
        if self._seen is None:
            # Who waits may have read before this: let everybody read again, once.
            self._seen = await self._store.last_sequence()
            signals.notify_all()
            return
        self._seen, written = await self._store.written_since(self._seen)
        for run_id in (*written, *([ANY_RUN] if written else ())):
            signals.notify(run_id)


@contextmanager
def _signalled(store: RunStore, key: str) -> Iterator[asyncio.Future[None]]:
    """Have a signal of what is written from now on: taken before reading, it misses nothing."""
    signal = store.signals.subscribe(key)
    try:
        yield signal
    finally:
        signal.cancel()


async def _wait(signal: asyncio.Future[None], clock: Clock, notices: NoticeBox | None) -> None:
    look = asyncio.ensure_future(clock.sleep(_LOOK_SECONDS))
    awaited: list[asyncio.Future[None]] = [signal, look]
    if notices is not None:
        awaited.append(notices.arrival())
    try:
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        look.cancel()
