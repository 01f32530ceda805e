"""What is asked about events: followers of what a principal may see, and what is told of each event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from agenttx_server.engine.json_values import JsonValue, canonical, load
from agenttx_server.engine.ports import Clock
from agenttx_server.graphs.runs.event_choice import HAS_STATE, EventChoice
from agenttx_server.graphs.runs.event_following import EventFollower, RunFollower, SequenceFollower
from agenttx_server.graphs.runs.live_notices import LiveNotices, NoticeBox
from agenttx_server.graphs.runs.ports import EventFilter, RunStore
from agenttx_server.graphs.runs.position import position_at
from agenttx_server.graphs.runs.records import LIVE, EventRecord, checkpoint_number
from agenttx_server.graphs.runs.requests import RunRefused
from agenttx_server.graphs.runs.run_reading import RunReading

__all__ = ["EventReading"]


class EventReading:
    """Reads journals of a principal's runs; others' are not there."""

    def __init__(self, store: RunStore, clock: Clock, runs: RunReading, notices: LiveNotices) -> None:
        self._store = store
        self._clock = clock
        self._runs = runs
        self._notices = notices

    @asynccontextmanager
    async def of_run(
        self, principal: str, run_id: str, from_offset: int, *, live: bool = False, until_pause: bool = False
    ) -> AsyncIterator[EventFollower]:
        """Follow a run; ``until_pause`` to the end of the invocation alone. Raises RunRefused: RUN_NOT_FOUND."""
        await self._runs.record(principal, run_id)
        with self._box(EventFilter(principal, run_id), is_wanted=live) as box:
            yield RunFollower(self._store, self._clock, run_id, from_offset, box, until_pause=until_pause)

    @asynccontextmanager
    async def of_runs(
        self, principal: str, choice: EventChoice, from_sequence: int | None, *, live: bool = False
    ) -> AsyncIterator[EventFollower]:
        """Follow all runs that a choice takes, None: from now on. Raises RunRefused: THREAD_NOT_FOUND for another's."""
        await self._runs.check_not_others(principal, choice.thread_id)
        which = EventFilter(principal, "", choice.root_run_id, choice.thread_id, choice.graph)
        with self._box(which, is_wanted=live) as box:
            if from_sequence is None:
                yield await SequenceFollower.from_now(self._store, self._clock, which, box)
            else:
                yield SequenceFollower(self._store, self._clock, which, from_sequence, box)

    @contextmanager
    def _box(self, which: EventFilter, *, is_wanted: bool) -> Iterator[NoticeBox | None]:
        if not is_wanted:
            yield None
            return
        box = self._notices.open(which)
        try:
            yield box
        finally:
            self._notices.close(box)

    async def is_under_way(self, run_id: str) -> bool:
        """Whether an invocation of a run is under way by what is durable."""
        run = await self._store.load_run(run_id)
        return run is not None and run.status in LIVE

    async def payload(self, event: EventRecord, choice: EventChoice) -> str:
        """The payload of an event; where states are wanted, of a checkpoint with the state that it holds.

        A checkpoint that was pruned holds none.
        """
        if not choice.with_states or event.kind not in HAS_STATE:
            return event.payload
        payload = load(event.payload)
        assert isinstance(payload, dict)
        state = await self._state(event, str(payload["checkpoint_id"]))
        return event.payload if state is None else canonical({**payload, "state": state})

    async def _state(self, event: EventRecord, name: str) -> JsonValue:
        """The state of the checkpoint that an event names, perhaps of an embedded graph; None if it isn't kept."""
        number = checkpoint_number(event.thread_id, name, event.namespace)
        if number is None:
            return None
        if event.namespace:
            found = await self._store.list_embedded(event.thread_id, event.namespace, number + 1, 1)
            return next((load(record.state) for record in found if record.number == number), None)
        checkpoint = await self._store.load_checkpoint(event.thread_id, number)
        if checkpoint is None:
            return None
        try:
            return dict((await position_at(self._store, checkpoint)).state)
        except (RunRefused, KeyError):  # it was pruned while it was read
            return None
