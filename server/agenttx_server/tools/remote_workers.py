"""Tools and graphs' functions that run in workers: which connections offer what, who gets which call, and what its end means.

A call goes to the connection that runs fewest, of those that offer what it needs and may take one more;
while there is none it waits, first come first served, but for what calls under way wait for: that comes first. What a worker that vanished was running ends as
unknown: the engine settles it by effect class. Nothing here knows gRPC or a database.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from agenttx_server.engine import hints, json_values
from agenttx_server.engine.errors import PreconditionFailed
from agenttx_server.engine.ports import (
    ArgumentsRefused,
    DeliveryFailed,
    NotCalled,
    OutcomeUnknown,
    ReportedFailure,
    RunnerLost,
    StoreUnavailable,
    SubStepFailed,
    ToolContext,
    ToolFailure,
    ToolProgress,
    UndoContext,
    UndoUnavailable,
)
from agenttx_server.engine.records import (
    EffectClass,
    EffectRecord,
    HintCategory,
    ToolDescription,
    TransactionId,
)
from agenttx_server.tools.interview import Interview
from agenttx_server.tools.worker_connection import (
    DELIVER,
    FUNCTION,
    TOOL,
    UNDO,
    Call,
    Lost,
    Unreached,
    Wanted,
    WorkerConnection,
)
from agenttx_server.trace_context import trace_headers
from agenttx_server.worker_messages import (
    Command,
    DeliverCall,
    Failure,
    FunctionCall,
    Offer,
    Outcome,
    Succeeded,
    ToolCall,
    UndoCall,
)

__all__ = ["RemoteWorkers", "WorkerLoad", "WorkerSettings", "error_of"]

# Of a call's time, what is left to tell the agent that no worker took it, before its deadline does.
LAST_SHARE = 0.1
LAST_SECONDS = 1.0
# Nobody waits for an idle worker, and the heartbeats of 200 of them took more than 2 % of a core.
IDLE_FACTOR = 4


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Times in seconds.

    ``silence_limit_seconds``: after which a worker that says nothing is taken to be gone; IDLE_FACTOR times that while
    it runs nothing.
    ``undo_wait_seconds``: how long an undo action waits for a worker that has it before the rewind is held.
    ``delivery_timeout_seconds``: how long a delivery may take, its wait for a worker included.
    ``max_waiting``: calls that wait for a worker at once; further ones fail.
    """

    silence_limit_seconds: float = 15.0
    undo_wait_seconds: float = 15.0
    delivery_timeout_seconds: float = 30.0
    max_waiting: int = 10_000


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """Workers' connections, calls that they run, and calls that wait for a worker."""

    connections: int
    running: int
    waiting: int


class RemoteWorkers:
    """The hub of all workers' connections. ``taken`` are names of tools that the server has itself."""

    def __init__(
        self,
        settings: WorkerSettings,
        taken: Collection[str] = (),
        knows_own_undo: Callable[[str], bool] = lambda name: False,
        channels: Iterable[str] = (),
        on_undo_offered: Callable[[Collection[str]], None] = lambda names: None,
        is_mounted: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._settings = settings
        self._taken = frozenset(taken)
        self._is_mounted = is_mounted
        self._knows_own_undo = knows_own_undo
        self.on_undo_offered = on_undo_offered
        self._connections: dict[WorkerConnection, None] = {}
        self._known: dict[str, ToolDescription] = {}
        self._known_undo: set[str] = set()
        self._known_functions: set[str] = set()
        self._known_channels = set(channels)
        self._waiting: dict[tuple[Wanted, bool], deque[Call]] = {}
        self._waiting_count = 0
        self._last_number = 0
        self._news = asyncio.Event()

    # --- workers ------------------------------------------------------------------------

    @property
    def silence_limit_seconds(self) -> float:
        """How long a worker that runs calls may be silent."""
        return self._settings.silence_limit_seconds

    @property
    def idle_silence_limit_seconds(self) -> float:
        """How long a worker that runs nothing may be silent."""
        return self._settings.silence_limit_seconds * IDLE_FACTOR

    @property
    def load(self) -> WorkerLoad:
        """How busy the workers are."""
        running = sum(connection.load for connection in self._connections)
        return WorkerLoad(len(self._connections), running, self._waiting_count)

    def connect(self, offer: Offer, send: Callable[[Command], None]) -> WorkerConnection:
        """Take a worker in; raise PreconditionFailed (TOOL_CONFLICT) if it offers what may not be."""
        for tool in offer.tools:
            self._check_conflict(tool.description)
        connection = WorkerConnection(self, offer, send)
        self._connections[connection] = None
        for tool in offer.tools:
            self._refuse_waiting_for_another(tool.description)
            self._known[tool.description.name] = tool.description
            self._known_undo.update(tool.description.undo_names)
        self._known_channels.update(offer.channels)
        self._known_functions.update(offer.functions)
        self.has_room(connection)
        self.changed()
        names = [name for kind, name in connection.wanted if kind == UNDO]
        if names:
            self.on_undo_offered(names)
        return connection

    def forget(self, connection: WorkerConnection) -> None:
        """Leave out a connection that is over."""
        self._connections.pop(connection, None)
        self.changed()

    def has_room(self, connection: WorkerConnection) -> None:
        """Give a connection what waits and it may take, oldest first, undo before all else."""
        if not self._waiting:
            return
        while True:
            heads = [
                (wanted[0] != UNDO, not within, calls[0].number, wanted)
                for (wanted, within), calls in self._waiting.items()
                if calls and connection.takes(wanted, within=within)
            ]
            if not heads:
                return
            _, without, _, wanted = min(heads)
            queue = wanted, not without
            call = self._waiting[queue].popleft()
            self._waiting_count -= 1
            if not self._waiting[queue]:
                del self._waiting[queue]
            _give(connection, call)

    def changed(self) -> None:
        """Wake who waits for what is offered to change."""
        self._news.set()
        self._news = asyncio.Event()

    def _refuse_waiting_for_another(self, offered: ToolDescription) -> None:
        """End calls that wait for a tool of this name and another effect class, or of less need of approval.

        They were begun as calls of that one, and nobody was asked about them.
        """
        known = self._known.get(offered.name)
        if known is None:
            return
        asks_now = offered.needs_approval and not known.needs_approval
        if asks_now or known.effect_class is not offered.effect_class:
            for within in (False, True):
                for call in self._waiting.get(((TOOL, offered.name), within), ()):
                    call.end(Unreached(is_offered=False))

    def _check_conflict(self, offered: ToolDescription) -> None:
        name = offered.name
        if name in self._taken or self._is_mounted(name):
            raise _conflict(
                name, "server", f"the server has a tool '{name}' itself; offer yours by another name"
            )
        own_undo = next((undo for undo in offered.undo_names if self._knows_own_undo(undo)), None)
        if own_undo is not None:
            raise _conflict(
                name, "server", f"the server has an undo action '{own_undo}' itself; name yours otherwise"
            )
        known = self._known.get(name)
        if known is None or not self._is_offered((TOOL, name)):
            return
        if _contract(known) != _contract(offered):
            raise _conflict(
                name,
                "worker",
                f"another worker offers '{name}' with other arguments, another effect class or another need of "
                "approval; end that one first, "
                f"or give yours a version of its own ('{name}@2')",
            )

    def _is_offered(self, wanted: Wanted) -> bool:
        return any(
            wanted in connection.wanted and not connection.is_leaving for connection in self._connections
        )

    # --- the tools that there are -------------------------------------------------------

    def describe(self, name: str) -> ToolDescription | None:
        """Return the newest description of a tool that a worker offers, or did since the server started."""
        return self._known.get(name)

    def describe_all(self) -> Sequence[ToolDescription]:
        """Return the tools that are offered now, by name."""
        offered = {
            name
            for connection in self._connections
            if not connection.is_leaving
            for kind, name in connection.wanted
            if kind == TOOL
        }
        return tuple(self._known[name] for name in sorted(offered))

    async def find(self, name: str, wait_seconds: float) -> ToolDescription | None:
        """Return a tool's description once a worker has offered it, None if none does in time."""
        try:
            async with asyncio.timeout(wait_seconds):
                while name not in self._known:
                    await self._news.wait()
        except TimeoutError:
            return None
        return self._known[name]

    def knows_undo(self, name: str) -> bool:
        """Whether anybody has an undo action of this name, or had since the server started."""
        return name in self._known_undo or self._knows_own_undo(name)

    def knows_channel(self, channel: str) -> bool:
        """Whether a channel's effects are workers' to deliver."""
        return channel in self._known_channels

    # --- calls --------------------------------------------------------------------------

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a tool in a worker; see :meth:`.ports.ToolRunner.run`."""
        tool = self._known[name]
        text = json_values.canonical(arguments)

        def command(call_id: int) -> Command:
            return ToolCall(
                call_id,
                name,
                text,
                context.transaction_id,
                context.agent_id,
                context.step_id,
                context.attempt,
                context.idempotency_key,
                context.fence,
                context.seconds_left,
                context.metadata,
            )

        call = self._new_call((TOOL, name), command)
        call.context, call.effect_class = context, tool.effect_class
        call.check_begin = context.check_begin
        left = context.seconds_left
        how = await self._perform(call, max(0.0, left - min(LAST_SECONDS, left * LAST_SHARE)))
        return _result(name, tool.effect_class, how)

    def progress(self, transaction_id: TransactionId, step_id: int, sub_step: int) -> ToolProgress | None:
        """Return what the worker that runs a step last said of how far it is; see :meth:`.ports.ToolRunner.progress`."""
        wanted = (transaction_id, step_id, sub_step)
        for connection in self._connections:
            for call in connection.calls.values():
                at = call.context
                if at is not None and (at.transaction_id, at.step_id, at.sub_step) == wanted:
                    return call.progress
        return None

    def hosts(self, function: str) -> bool:
        """Whether some worker hosts a graph's function now."""
        return self._is_offered((FUNCTION, function))

    async def until_hosted(self, function: str) -> None:
        """Wait until some worker hosts a graph's function."""
        while not self.hosts(function):
            await self._news.wait()

    async def missing_functions(self, functions: Collection[str], wait_seconds: float) -> Sequence[str]:
        """Return which of these no worker has hosted since the server started, once that had time to change."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                while not self._known_functions.issuperset(functions):
                    await self._news.wait()
        return [function for function in functions if function not in self._known_functions]

    async def call_function(
        self,
        name: str,
        told: str,
        context: ToolContext | None,
        interview: Interview,
        seconds: float,
        on_event: Callable[[str, str], None] | None = None,
        idle_seconds: float | None = None,
    ) -> tuple[Call, Outcome | Lost | Unreached]:
        """Run a graph's function in a worker; return the call and how it ended.

        ``context``: None for a router. ``on_event``: told of each event that it emits, as it comes.
        ``idle_seconds``: how long it may go without progress (what it tells, and all that it asks); None: for ever.
        """

        def command(call_id: int) -> Command:
            if context is None:
                return FunctionCall(call_id, name, told, seconds)
            return FunctionCall(
                call_id,
                name,
                told,
                context.seconds_left,
                context.transaction_id,
                context.agent_id,
                context.step_id,
                context.attempt,
                context.idempotency_key,
                context.fence,
            )

        call = self._new_call((FUNCTION, name), command)
        call.context, call.effect_class, call.interview = context, EffectClass.TRANSACTIONAL, interview
        call.on_event = on_event
        wait = max(0.0, seconds - min(LAST_SECONDS, seconds * LAST_SHARE))
        if context is not None:
            call.check_begin = context.check_begin
            with self._ending_when_idle(call, idle_seconds):
                return call, await self._perform(call, wait)
        try:
            # A router has no step whose deadline would stop it.
            async with asyncio.timeout(seconds):
                return call, await self._perform(call, wait, waits_when_cancelled=False)
        except TimeoutError:
            return call, Failure(HintCategory.TIMEOUT, f"{name} did not answer within {seconds:g} s")

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        """Run an undo action in a worker; raise UndoUnavailable if none that has it came in time."""
        text = json_values.canonical(arguments)
        call = self._new_call((UNDO, undo_name), lambda call_id: UndoCall(call_id, undo_name, text, context))
        call.check_begin = context.check_begin
        how = await self._perform(call, self._settings.undo_wait_seconds)
        match how:
            case Succeeded():
                return
            case Unreached(is_offered):
                who = "all workers that have it are busy" if is_offered else "no worker offers it now"
                raise UndoUnavailable(f"undo action '{undo_name}' waits: {who}")
            case Failure():
                raise error_of(how)
            case Lost(why):
                raise ToolFailure(
                    HintCategory.CONNECTION, f"the worker that ran undo '{undo_name}' was lost: {why}"
                )
            case _:
                raise ToolFailure(
                    HintCategory.UNKNOWN, f"undo '{undo_name}' can't tell whether it has done its work"
                )

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        """Have a worker deliver an effect; raise DeliveryFailed."""
        call = self._new_call(
            (DELIVER, effect.channel), lambda call_id: DeliverCall(call_id, transaction_id, effect)
        )
        try:
            async with asyncio.timeout(self._settings.delivery_timeout_seconds):
                how = await self._perform(
                    call, self._settings.delivery_timeout_seconds / 2, waits_when_cancelled=False
                )
        except TimeoutError:
            raise DeliveryFailed(
                f"the worker did not deliver within {self._settings.delivery_timeout_seconds:g} s"
            ) from None
        match how:
            case Succeeded():
                return
            case Failure():
                raise DeliveryFailed(
                    how.message or _last_line(how.raw_error),
                    permanent=how.permanent,
                    retry_after_seconds=how.retry_after_seconds,
                )
            case Unreached():
                raise DeliveryFailed(f"no worker that delivers channel '{effect.channel}' had room")
            case Lost(why):
                raise DeliveryFailed(f"the worker that delivered was lost: {why}")
            case _:
                raise DeliveryFailed("the worker can't tell whether it has delivered")

    @contextmanager
    def _ending_when_idle(self, call: Call, idle_seconds: float | None) -> Iterator[None]:
        """End a call as failed once it has made no progress for so long; its worker is asked to stop."""
        if idle_seconds is None:
            yield
            return
        loop = asyncio.get_running_loop()

        def look() -> None:
            left = idle_seconds - call.idle_seconds()
            if left > 0:
                timers[0] = loop.call_later(left, look)
                return
            why = f"it made no progress for {idle_seconds:g} s"
            if call.connection is not None:
                call.connection.cancel(call, why)
            call.was_idle = True
            call.end(Failure(HintCategory.TIMEOUT, why))

        timers = [loop.call_later(idle_seconds, look)]
        try:
            yield
        finally:
            timers[0].cancel()

    def _new_call(self, wanted: Wanted, command: Callable[[int], Command]) -> Call:
        self._last_number += 1
        ended: asyncio.Future[Outcome | Lost | Unreached] = asyncio.get_running_loop().create_future()
        return Call(wanted, command, ended, number=self._last_number, trace=trace_headers() or None)

    async def _perform(
        self, call: Call, wait_seconds: float, *, waits_when_cancelled: bool = True
    ) -> Outcome | Lost | Unreached:
        """Place a call and wait for its end. Cancelled, it has the worker stop, and goes on waiting for the end."""
        self._place(call)
        loop = asyncio.get_running_loop()
        timer = None
        if call.connection is None:
            timer = loop.call_later(wait_seconds, self._give_up, call)
        was_cancelled = False
        try:
            while not call.ended.done():
                try:
                    await asyncio.shield(call.ended)
                except asyncio.CancelledError:
                    if call.connection is None:
                        raise  # it was given to nobody
                    call.connection.cancel(call, "nobody waits for it any more")
                    was_cancelled = True
                    if not waits_when_cancelled:
                        raise
            how = call.ended.result()
            if was_cancelled and isinstance(how, Failure) and how.category == HintCategory.CANCELLED:
                raise asyncio.CancelledError
            return how
        finally:
            if timer is not None:
                timer.cancel()
            self._withdraw(call)

    def _place(self, call: Call) -> None:
        within = call.is_within
        able = [
            connection for connection in self._connections if connection.takes(call.wanted, within=within)
        ]
        if able:
            _give(min(able, key=lambda connection: connection.load), call)
            return
        if self._waiting_count >= self._settings.max_waiting:
            raise NotCalled(
                HintCategory.RESOURCE_EXHAUSTED,
                f"{self._waiting_count} calls wait for workers already. Try again later",
            )
        self._waiting.setdefault((call.wanted, within), deque()).append(call)
        self._waiting_count += 1

    def _give_up(self, call: Call) -> None:
        if call.connection is None:
            call.end(Unreached(self._is_offered(call.wanted)))

    def _withdraw(self, call: Call) -> None:
        queue = call.wanted, call.is_within
        calls = self._waiting.get(queue)
        if call.connection is None and calls and call in calls:
            calls.remove(call)
            self._waiting_count -= 1
            if not calls:
                del self._waiting[queue]


def _give(connection: WorkerConnection, call: Call) -> None:
    """Have a worker run a call, unless it has ended meanwhile, or may not begin: the server may have stood still."""
    if call.ended.done():
        return
    try:
        call.check_begin()
    except StoreUnavailable as refused:
        call.ended.set_exception(refused)
    else:
        connection.give(call)


def _result(name: str, effect_class: EffectClass, how: Outcome | Lost | Unreached) -> Any:
    match how:
        case Succeeded(output):
            return _output(name, effect_class, output)
        case Failure():
            raise error_of(how)
        case Unreached(is_offered=True):
            raise NotCalled(
                HintCategory.RESOURCE_EXHAUSTED,
                f"{name} never started: all workers that offer it were busy. Try again later",
            )
        case Unreached():
            raise NotCalled(
                HintCategory.CONNECTION, f"no worker offers {name} now. Start one, then run the step again"
            )
        case Lost(why):
            if effect_class.acts_outside:
                raise OutcomeUnknown(f"the worker that ran {name} was lost: {why}")
            raise RunnerLost(
                HintCategory.CONNECTION, f"the worker that ran {name} was lost: {why}. Run the step again"
            )
        case _:
            raise OutcomeUnknown(how.why)


def _output(name: str, effect_class: EffectClass, text: str) -> Any:
    try:
        return json_values.parse(text) if text else None
    except json_values.ValueRefused as refused:
        if effect_class is EffectClass.IRREVERSIBLE:  # its effect has happened
            raise OutcomeUnknown(f"{name} returned what is not plain JSON at {refused}") from None
        raise ToolFailure(
            HintCategory.INVALID_VALUE, f"{name} returned a value that is not plain JSON at {refused}"
        ) from None


def error_of(failure: Failure) -> Exception:
    """Return the error that a worker told of, as the engine knows it."""
    if failure.not_called:
        return ArgumentsRefused(failure.category or HintCategory.INVALID_VALUE, failure.message, failure.keys)
    if failure.failed_sub_step:  # the engine knows what it said; these words are for a tool that made it up
        hint = hints.from_structured(
            _category(failure.category), failure.message.removeprefix("Hint: "), failure.keys
        )
        return SubStepFailed(failure.failed_sub_step, hint)
    if failure.category:
        return ToolFailure(failure.category, failure.message, failure.keys)
    return ReportedFailure(failure.raw_error)


def _category(name: str) -> HintCategory:
    return HintCategory(name) if name in set(HintCategory) else HintCategory.UNKNOWN


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "the worker did not say why"


def _contract(tool: ToolDescription) -> tuple[object, ...]:
    """What all workers of a tool must agree on: any of them may get a call."""
    return tool.effect_class, tool.arguments_schema, tool.needs_approval


def _conflict(name: str, offered_by: str, message: str) -> PreconditionFailed:
    return PreconditionFailed(
        message, reason="TOOL_CONFLICT", metadata={"tool_name": name, "offered_by": offered_by}
    )
