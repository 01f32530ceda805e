"""One worker's connection, as the hub sees it: what it offers, what it runs, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from agenttx_server.engine.ports import ToolContext, ToolProgress
from agenttx_server.engine.records import EffectClass
from agenttx_server.tools.interview import Interview
from agenttx_server.tools.remote_context import answer_request
from agenttx_server.worker_messages import (
    Answer,
    CancelCall,
    Closed,
    Command,
    ContextAnswer,
    ContextRequest,
    DeliverCall,
    Failure,
    FunctionCall,
    Interrupt,
    MakeStep,
    Offer,
    Outcome,
    ToolCall,
    UndoCall,
)

if TYPE_CHECKING:
    from agenttx_server.tools.remote_workers import RemoteWorkers

__all__ = ["DELIVER", "FUNCTION", "TOOL", "UNDO", "Call", "Lost", "Unreached", "Wanted", "WorkerConnection"]

TOOL, UNDO, DELIVER, FUNCTION = "tool", "undo", "channel", "function"

MAX_OPEN_REQUESTS = 1024
MAX_EVENTS = 1000
MAX_EVENT_CHARACTERS = 1 << 20

Wanted: TypeAlias = tuple[str, str]
"""What a call needs: one of TOOL, UNDO, DELIVER and FUNCTION, and a name."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker that ran the call is gone; what it did is not known."""

    why: str


@dataclass(frozen=True, slots=True)
class Unreached:
    """The time to find a worker was up; ``is_offered``: there were some, and all were busy."""

    is_offered: bool


@dataclass(eq=False, slots=True)
class Call:
    """Something that a worker is to do. ``ended`` gets its end, once.

    ``check_begin`` raises StoreUnavailable where it may not be given to a worker any more.
    """

    wanted: Wanted
    command: Callable[[int], Command]
    ended: asyncio.Future[Outcome | Lost | Unreached]
    context: ToolContext | None = None
    effect_class: EffectClass = EffectClass.READ_ONLY
    connection: WorkerConnection | None = None
    call_id: int = 0
    number: int = 0
    check_begin: Callable[[], None] = lambda: None
    progress: ToolProgress | None = None
    interview: Interview | None = None
    events: list[tuple[str, str]] = field(default_factory=list)
    on_event: Callable[[str, str], None] | None = None
    event_characters: int = 0
    requests: set[asyncio.Task[None]] = field(default_factory=set)
    open_steps: int = 0
    idle_since: float | None = None
    was_idle: bool = False
    trace: Mapping[str, str] | None = None

    @property
    def is_within(self) -> bool:
        """Whether calls under way may wait for it: a tool that another call makes, or what is undone meanwhile."""
        kind = self.wanted[0]
        return kind == UNDO or (kind == TOOL and self.context is not None and self.context.sub_step > 0)

    def note_progress(self) -> None:
        """Count the time without progress from now on."""
        self.idle_since = self.ended.get_loop().time()

    def idle_seconds(self) -> float:
        """How long it has made no progress: none while nobody runs it, or while what it asked is being answered."""
        if self.requests or self.idle_since is None:
            return 0.0
        return self.ended.get_loop().time() - self.idle_since

    def end(self, how: Outcome | Lost | Unreached) -> None:
        """Say how it ended, if nothing did before."""
        if not self.ended.done():
            self.ended.set_result(how)


class WorkerConnection:
    """Implements :class:`agenttx_server.worker_messages.WorkerLink`.

    A worker that is not heard of for the silence limit is taken to be gone. What it says later is dropped:
    its calls are settled by then. An idle one may be silent for longer; the limit of a busy one counts from its first
    call, for until then it had no reason to say more.
    """

    def __init__(self, hub: RemoteWorkers, offer: Offer, send: Callable[[Command], None]) -> None:
        self.offer = offer
        self.is_leaving = False
        self.calls: dict[int, Call] = {}
        self.wanted: dict[Wanted, int] = _offered(offer)
        self._hub = hub
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._silent_since = self._loop.time()
        self._last_call_id = 0
        self._running: Counter[Wanted] = Counter()
        self._open_requests = 0
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._timer = self._loop.call_later(self._silence_limit, self._check_silence)

    # --- for the hub --------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether it is over."""
        return self._over.done()

    @property
    def load(self) -> int:
        """How many calls it runs."""
        return len(self.calls)

    def takes(self, wanted: Wanted, *, within: bool = False) -> bool:
        """Whether it may be given such a call now; ``within``: one that calls under way may wait for.

        Such a one takes the place of a call that waits for its own: did it wait for a place of its own, all that have
        one could wait for it. A lower limit that a tool has of its own holds for it too.
        """
        limit, most = self.wanted.get(wanted, 0), self.offer.concurrency
        if not limit or self.is_leaving:
            return False
        if self._running[wanted] >= limit and not (within and limit == most):
            return False
        at_work = len(self.calls)
        if within and at_work >= most:
            at_work = sum(not call.open_steps for call in self.calls.values())
        return at_work < most

    def give(self, call: Call) -> None:
        """Have the worker run a call."""
        if not self.calls:
            self._silent_since = self._loop.time()
            self._timer.cancel()
            self._timer = self._loop.call_later(self._hub.silence_limit_seconds, self._check_silence)
        self._last_call_id += 1
        call.connection, call.call_id = self, self._last_call_id
        self.calls[call.call_id] = call
        self._running[call.wanted] += 1
        call.note_progress()
        command = call.command(call.call_id)
        if call.trace and isinstance(command, ToolCall | FunctionCall | UndoCall | DeliverCall):
            command = replace(command, trace=call.trace)
        self._send(command)

    def cancel(self, call: Call, reason: str) -> None:
        """Ask the worker to stop a call."""
        if call.call_id in self.calls:
            self._send(CancelCall(call.call_id, reason))

    # --- what the worker says -----------------------------------------------------------

    def heard(self) -> None:
        self._silent_since = self._loop.time()

    def finished(self, call_id: int, outcome: Outcome) -> None:
        call = self.calls.pop(call_id, None)
        if call is None:
            return
        self._running[call.wanted] -= 1
        call.end(outcome)
        self._end_if_done()
        self._hub.has_room(self)

    def progressed(self, call_id: int, fraction: float, message: str) -> None:
        if call := self.calls.get(call_id):
            call.note_progress()
            part = min(fraction, 1.0) if fraction >= 0 else None  # what is no number is not known either
            call.progress = ToolProgress(part, message)

    def emitted(self, call_id: int, name: str, data: str) -> None:
        call = self.calls.get(call_id)
        if call is not None:
            call.note_progress()
        if call is None or len(call.events) >= MAX_EVENTS:
            return
        call.event_characters += len(name) + len(data)
        if call.event_characters <= MAX_EVENT_CHARACTERS:
            call.events.append((name, data))
            if call.on_event is not None:
                call.on_event(name, data)

    def asked(self, call_id: int, request_id: int, request: ContextRequest) -> None:
        call = self.calls.get(call_id)
        if call is None or call.context is None:
            self._send(ContextAnswer(request_id, Closed("the call is over")))
        elif isinstance(request, Interrupt):
            self._send(ContextAnswer(request_id, _interrupted(call, request)))
        elif call.interview is not None and call.interview.is_over:
            self._send(ContextAnswer(request_id, Closed("the node has to end: it asked")))
        elif self._open_requests >= MAX_OPEN_REQUESTS:
            refused = Failure(
                "resource_exhausted", "the worker asks too much at once. Wait for answers first"
            )
            self._send(ContextAnswer(request_id, refused))
        else:
            self._open_requests += 1
            if isinstance(request, MakeStep):
                call.open_steps += 1
            task = self._loop.create_task(self._answer(call, call.context, request_id, request))
            call.requests.add(task)
            task.add_done_callback(call.requests.discard)
            if call.open_steps:
                self._hub.has_room(self)

    def says_goodbye(self) -> None:
        self.is_leaving = True
        self._hub.changed()
        self._end_if_done()

    async def over(self) -> str:
        return await asyncio.shield(self._over)

    def close(self, why: str) -> None:
        if self._over.done():
            return
        self._over.set_result(why)
        self._timer.cancel()
        self.is_leaving = True
        self._hub.forget(self)
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.end(Lost(why or "it ended its connection"))

    # --- details ------------------------------------------------------------------------

    async def _answer(
        self, call: Call, context: ToolContext, request_id: int, request: ContextRequest
    ) -> None:
        try:
            answer = await answer_request(request, context, call.effect_class, self._hub.knows_undo)
        finally:
            self._open_requests -= 1
            if isinstance(request, MakeStep):
                call.open_steps -= 1
            call.note_progress()
        if not self._over.done():
            self._send(ContextAnswer(request_id, answer))

    def _end_if_done(self) -> None:
        if self.is_leaving and not self.calls:
            self.close("")

    @property
    def _silence_limit(self) -> float:
        return self._hub.silence_limit_seconds if self.calls else self._hub.idle_silence_limit_seconds

    def _check_silence(self) -> None:
        left = self._silent_since + self._silence_limit - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence)
        else:
            self.close(f"it was silent for {self._silence_limit:g} s")


def _interrupted(call: Call, request: Interrupt) -> Answer:
    if call.interview is None:
        return Failure("permission_denied", "only a node of a graph can ask: return, and let the agent ask")
    return call.interview.ask(request.payload)


def _offered(offer: Offer) -> dict[Wanted, int]:
    most = offer.concurrency
    wanted: dict[Wanted, int] = {}
    for tool in offer.tools:
        wanted[TOOL, tool.description.name] = min(tool.concurrency or most, most)
        for undo_name in tool.description.undo_names:
            wanted[UNDO, undo_name] = most
    for channel in offer.channels:
        wanted[DELIVER, channel] = most
    for function in offer.functions:
        wanted[FUNCTION, function] = most
    return wanted
