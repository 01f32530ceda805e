"""What a node's function is given: the state that it may read, and `ctx`.

    def agent(state, ctx):
        found = ctx.step("search.run", {"query": state["question"]})
        if not ctx.interrupt({"approve": found["title"]}):
            return Command(update={"refused": True}, goto=END)
        return {"answer": found["text"]}

A node may be started again from its first line: after a question was answered, or after its worker or its server was
lost. Its steps are then answered from the journal and its questions with the answers that came, in their order. So
whatever a node does outside belongs into steps, and what it asks and calls must follow from state, steps and answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from agenttx.values import decode_json, encode_json

if TYPE_CHECKING:
    from agenttx.tools.blocking_context import LoopBridge

__all__ = ["BlockingNodeContext", "NodeContext", "NodeInterrupted", "NodePort", "NodeState", "Told"]

MAX_STEP_SECONDS = 7 * 86_400.0
MAX_EVENT_BYTES = 64 << 10

_ABSENT: Final = object()


class NodeInterrupted(BaseException):
    """Leaves a node whose question has no answer yet. No `Exception`: what handles errors lets it pass."""


class NodeState(Mapping[str, Any]):
    """The state as a node sees it: a mapping of channels to values, a copy of its own. It notes what is read."""

    def __init__(self, channels: Mapping[str, Any]) -> None:
        self._channels = channels
        self._reads: dict[str, None] = {}

    @property
    def reads(self) -> tuple[str, ...]:
        """The channels that were looked at, in the order of their first use."""
        return tuple(self._reads)

    def __getitem__(self, channel: str) -> Any:
        self._reads.setdefault(channel)
        try:
            return self._channels[channel]
        except KeyError:
            raise KeyError(
                f"no channel {channel!r} has a value here; a node that declares `reads` sees those alone"
            ) from None

    def __contains__(self, channel: object) -> bool:
        if isinstance(channel, str):
            self._reads.setdefault(channel)
        return channel in self._channels

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def __len__(self) -> int:
        return len(self._channels)

    def __repr__(self) -> str:
        return f"NodeState({', '.join(self._channels)})"


class Told:
    """What a call of a node's function came with, beside the state."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.constraints: tuple[str, ...] = tuple(told.get("constraints", ()))
        self.remaining_steps: int = told.get("remaining_steps", 0)
        self.arg: Any = told.get("arg")
        self.has_arg = "arg" in told


class NodePort(Protocol):
    """One call's facts, and what it may ask for; values are JSON text."""

    @property
    def transaction_id(self) -> str: ...
    @property
    def step_id(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def idempotency_key(self) -> str: ...
    @property
    def seconds_left(self) -> float: ...

    async def step(self, tool_name: str, arguments: str, timeout_us: int | None = None) -> str: ...
    async def interrupt(self, payload: str) -> str | None:
        """Ask; None: there is no answer yet."""

    def emit(self, name: str, data: str) -> None: ...


class _Facts:
    """What both contexts tell of a call."""

    _port: NodePort
    _told: Told

    @property
    def constraints(self) -> tuple[str, ...]:
        """What the run has learned from failures: hints, the oldest first. Give them to your model."""
        return self._told.constraints

    @property
    def arg(self) -> Any:
        """The argument that this execution was sent with (`Send`); None where it was not sent.

        An error handler is sent what failed: `node`, `hint` and more.
        """
        return self._told.arg

    @property
    def has_arg(self) -> bool:
        """Whether this execution was sent with an argument."""
        return self._told.has_arg

    @property
    def remaining_steps(self) -> int:
        """Supersteps left in this invocation, this one not counted."""
        return self._told.remaining_steps

    @property
    def transaction_id(self) -> str:
        """The transaction of the run."""
        return self._port.transaction_id

    @property
    def step_id(self) -> int:
        """The step that this execution is."""
        return self._port.step_id

    @property
    def attempt(self) -> int:
        """Which execution of the step this is, from 1."""
        return self._port.attempt

    @property
    def idempotency_key(self) -> str:
        """A key that stays the same over crashes, for services that honour one."""
        return self._port.idempotency_key

    @property
    def seconds_left(self) -> float:
        """Time until the deadline of this attempt, 0 or less once it passed."""
        return self._port.seconds_left


class NodeContext(_Facts):
    """`ctx` of a node that is a coroutine function."""

    def __init__(self, port: NodePort, told: Told, on_progress: Callable[[float, str], None]) -> None:
        self._port = port
        self._told = told
        self._on_progress = on_progress
        self._cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Whether the node was asked to stop. A coroutine is cancelled then, unless it caught that."""
        return self._cancelled

    def note_cancelled(self) -> None:
        """Remember that the node was asked to stop; for whoever runs it."""
        self._cancelled = True

    async def step(
        self,
        tool_name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Call a tool as a sub-step of the node's step and return its output, a JSON value.

        It is durable when this returns, and made once: a node that is started again gets the same output from the
        journal, as long as its calls are the same in their order. A rewind of the node undoes them.

        Raises:
            SubStepFailed: the call failed, and what it did is undone.
            ContextClosed: the node can't go on: its deadline passed, or it was cancelled.
        """
        if timeout_seconds is not None and not 0 < timeout_seconds <= MAX_STEP_SECONDS:
            raise ValueError(
                f"timeout_seconds is above 0 and at most {MAX_STEP_SECONDS:g}, not {timeout_seconds!r}"
            )
        timeout_us = None if timeout_seconds is None else max(1, round(timeout_seconds * 1_000_000))
        text = encode_json(dict(arguments or {}))
        return decode_json(await self._port.step(tool_name, text, timeout_us))

    async def interrupt(self, payload: Any) -> Any:
        """Ask whoever resumes the run, and return the answer.

        Without an answer the node ends here, and the run is interrupted; resumed, the node is started again from its
        first line, and the same question, by its place in their order, returns the answer. Nothing that the node
        would return is written before.

        Raises:
            ToolFailure: the question differs from the one that was answered; the node fails with
                NON_DETERMINISTIC_INTERRUPT.
        """
        answer = await self._port.interrupt(encode_json(payload))
        if answer is None:
            raise NodeInterrupted("the node waits for an answer")
        return decode_json(answer)

    def emit(self, name: str, data: Any = None) -> None:
        """Tell whoever watches the run: a `custom` event with a name and a JSON value of at most 64 KiB.

        It is journalled with the outcome of the attempt. 1,000 events and 1 MiB an attempt are kept.
        """
        if not 1 <= len(name.encode()) <= 128:
            raise ValueError(f"an event's name is 1 to 128 bytes long, not {name[:140]!r}")
        text = encode_json(data)
        if len(text.encode()) > MAX_EVENT_BYTES:
            raise ValueError(f"an event's data is at most {MAX_EVENT_BYTES} bytes of JSON")
        self._port.emit(name, text)

    def heartbeat(self) -> None:
        """Say that the node is getting on, where nothing else does for long."""
        self._on_progress(-1.0, "")

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far the node got (0 to 1, negative: not known) and, in one line, what it is doing. For people."""
        self._on_progress(fraction, message)


class BlockingNodeContext(_Facts):
    """`ctx` of a node that is a plain function, which runs on a thread; see NodeContext."""

    def __init__(self, context: NodeContext, wait: LoopBridge) -> None:
        self._context = context
        self._port = context._port
        self._told = context._told
        self._wait = wait
        self._cancelled = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        """Whether the node was asked to stop; a long one should look, and raise."""
        return self._cancelled.is_set()

    def wait_cancelled(self, timeout_seconds: float) -> bool:
        """Sleep, but no longer than until the node is asked to stop; return whether it was."""
        return self._cancelled.wait(timeout_seconds)

    def cancel(self) -> None:
        """Ask the node to stop."""
        self._context.note_cancelled()
        self._cancelled.set()

    def step(
        self,
        tool_name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Call a tool as a sub-step of the node's step and return its output, a JSON value."""
        return self._wait.through(self._context.step(tool_name, arguments, timeout_seconds=timeout_seconds))

    def interrupt(self, payload: Any) -> Any:
        """Ask whoever resumes the run, and return the answer."""
        answer = self._wait(self._ask(payload))
        if answer is _ABSENT:
            # On the node's own thread: a signal that is no Exception is not to end the event loop's task.
            raise NodeInterrupted("the node waits for an answer")
        return answer

    async def _ask(self, payload: Any) -> Any:
        try:
            return await self._context.interrupt(payload)
        except NodeInterrupted:
            return _ABSENT

    def emit(self, name: str, data: Any = None) -> None:
        """Tell whoever watches the run: a `custom` event with a name and a JSON value."""
        self._wait(self._emit(name, data))

    async def _emit(self, name: str, data: Any) -> None:
        self._context.emit(name, data)

    def heartbeat(self) -> None:
        """Say that the node is getting on, where nothing else does for long."""
        self._wait.soon(self._context.heartbeat)

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far the node got (0 to 1, negative: not known) and, in one line, what it is doing. For people."""
        self._wait.soon(self._context.progress, fraction, message)
