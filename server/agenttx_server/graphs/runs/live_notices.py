"""Live notices: what the tasks of a superstep under way do, told at once to who follows on the same server.

Nothing of it is kept, and a follower that falls behind loses the oldest: the same comes again, with an offset, when the
superstep ends. What nobody follows is not made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf

from agenttx_server.engine.json_values import JsonValue, canonical, load
from agenttx_server.engine.ports import Clock
from agenttx_server.engine.visibility import sees
from agenttx_server.graphs.runs.event_choice import ENDS_INVOCATION
from agenttx_server.graphs.runs.ports import EventFilter
from agenttx_server.graphs.runs.records import EventRecord, RunRecord, TaskRecord, TaskState
from agenttx_server.graphs.runs.task_reports import updates_of

__all__ = ["NO_OFFSET", "LiveNotices", "NoticeBox", "TaskNotices"]

NO_OFFSET = -1
_MOST_NOTICES = 256
_MOST_CHARACTERS = 1 << 20


class NoticeBox:
    """Notices that wait for one follower."""

    def __init__(self, which: EventFilter) -> None:
        self._which = which
        self._notices: deque[EventRecord] = deque()
        self._characters = 0
        self._arrival: asyncio.Future[None] | None = None

    def wants(self, run: RunRecord) -> bool:
        """Whether the follower follows a run."""
        which = self._which
        return (
            (not which.principal or sees(which.principal, run.principal))
            and which.run_id in ("", run.run_id)
            and which.root_run_id in ("", run.root_run_id)
            and which.thread_id in ("", run.thread_id)
            and which.graph in ("", run.graph)
        )

    def put(self, notice: EventRecord) -> None:
        """Add a notice, in place of the oldest ones if there are too many."""
        self._notices.append(notice)
        self._characters += len(notice.payload)
        while len(self._notices) > _MOST_NOTICES or self._characters > _MOST_CHARACTERS:
            self._characters -= len(self._notices.popleft().payload)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def arrival(self) -> asyncio.Future[None]:
        """A future that is done when there is a notice."""
        self._arrival = asyncio.get_running_loop().create_future()
        if self._notices:
            self._arrival.set_result(None)
        return self._arrival

    def take(self) -> Sequence[EventRecord]:
        """Take all notices out."""
        taken = tuple(self._notices)
        self._notices.clear()
        self._characters = 0
        return taken

    def settle(self, events: Iterable[EventRecord]) -> None:
        """Drop the notices of what a page of the journal has told."""
        told: dict[str, float] = {}
        for event in events:
            if event.kind in ENDS_INVOCATION:
                told[event.run_id] = inf
            elif event.kind == "superstep.completed":
                told[event.run_id] = max(told.get(event.run_id, 0), event.superstep)
        if told and self._notices:
            left = [notice for notice in self._notices if notice.superstep > told.get(notice.run_id, 0)]
            self._notices = deque(left)
            self._characters = sum(len(notice.payload) for notice in left)


class LiveNotices:
    """The boxes of a server's followers. Of its event loop alone."""

    def __init__(self) -> None:
        self._boxes: set[NoticeBox] = set()

    def open(self, which: EventFilter) -> NoticeBox:
        """Have notices of runs put in a box, until it is closed."""
        box = NoticeBox(which)
        self._boxes.add(box)
        return box

    def close(self, box: NoticeBox) -> None:
        """Put no more into it."""
        self._boxes.discard(box)

    def boxes_of(self, run: RunRecord) -> list[NoticeBox]:
        """The boxes of those who follow a run."""
        return [box for box in self._boxes if box.wants(run)]


class TaskNotices:
    """Tells what tasks of a run do. ``run`` is the run as it is then."""

    def __init__(self, notices: LiveNotices, clock: Clock, run: Callable[[], RunRecord]) -> None:
        self._notices = notices
        self._clock = clock
        self._run = run

    def started(self, task: TaskRecord) -> None:
        """An attempt of a task begins."""
        self._tell(task, "node.started", lambda: ({"attempt": task.attempts + 1},))

    def emitted(self, task: TaskRecord, name: str, data: str) -> None:
        """A node has made an event of its own; ``data`` is JSON."""
        self._tell(task, "custom", lambda: ({"name": name, "data": load(data)},))

    def ended(self, before: TaskRecord, after: TaskRecord) -> None:
        """An attempt has ended."""
        if after.attempts == before.attempts:
            return
        attempt = after.attempts
        if len(after.retries) > len(before.retries):
            _, delay_ms, hint, category = after.retries[-1]
            told: dict[str, JsonValue] = {"delay_ms": delay_ms, "hint": hint, "category": category}
            self._tell(after, "node.retry_scheduled", lambda: ({"attempt": attempt, **told},))
        elif after.state is TaskState.FINISHED:
            duration = (after.ended_at - after.started_at) // 1000
            self._tell(after, "node.completed", lambda: ({"attempt": attempt, "duration_ms": duration},))
            self._tell(after, "state.updated", lambda: [{"update": update} for update in updates_of(after)])
        elif after.state is TaskState.FAILED and (error := after.error) is not None:
            failed: dict[str, JsonValue] = {
                "hint": error.hint,
                "category": error.category,
                "reason": error.reason,
            }
            self._tell(after, "node.failed", lambda: ({"attempt": attempt, **failed},))

    def _tell(
        self, task: TaskRecord, kind: str, payloads: Callable[[], Iterable[dict[str, JsonValue]]]
    ) -> None:
        run = self._run()
        boxes = self._notices.boxes_of(run)
        if not boxes:
            return
        for payload in payloads():
            notice = EventRecord(
                run.run_id,
                NO_OFFSET,
                kind,
                self._clock.now(),
                canonical(payload),
                run.thread_id,
                run.root_run_id,
                run.graph,
                task.namespace,
                task.superstep,
                task.node,
                task.task_id,
            )
            for box in boxes:
                box.put(notice)
