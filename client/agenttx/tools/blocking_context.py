"""The same ``ctx`` for tools that are plain functions: every method is a blocking call.

The function runs in a thread; each method is carried out on the event loop, where the
engine lives, while the thread waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from agenttx.tools.blocking_pool import waiting_for_another_call
from agenttx.tools.call_context import StateStore, ToolCallContext

__all__ = ["BlockingStateStore", "BlockingToolCallContext", "LoopBridge"]

Result = TypeVar("Result")


class LoopBridge:
    """Carries out coroutines on the event loop for a thread that waits; calling it on the loop's own thread is refused."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()

    def __call__(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        if threading.get_ident() == self._loop_thread:
            coroutine.close()
            raise RuntimeError(
                "a blocking ctx was used on the event loop's own thread, which would wait for itself"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def through(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Wait for another call, which may need a thread of the pool that this one is of."""
        with waiting_for_another_call():
            return self(call)

    def soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have a function called on the loop, without waiting for it."""
        self._loop.call_soon_threadsafe(function, *arguments)


class BlockingStateStore:
    """State of the transaction in one namespace; see StateStore."""

    __slots__ = ("_store", "_wait")

    def __init__(self, store: StateStore, wait: LoopBridge) -> None:
        self._store = store
        self._wait = wait

    def namespace(self, name: str) -> BlockingStateStore:
        """Return the store of another namespace."""
        return BlockingStateStore(self._store.namespace(name), self._wait)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, ``default`` if it is absent."""
        return self._wait(self._store.get(key, default))

    def put(self, key: str, value: Any) -> None:
        """Write a JSON value under a key."""
        self._wait(self._store.put(key, value))

    def delete(self, key: str) -> None:
        """Remove a key; no error if it is absent."""
        self._wait(self._store.delete(key))

    def scan(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, Any]]:
        """Return present keys with a prefix and their values, in key order."""
        return self._wait(self._store.scan(prefix, after, limit))

    def require_exists(self, key: str, error: str) -> None:
        """Have the commit check again that a key exists."""
        self._wait(self._store.require_exists(key, error))

    def require_none(self, prefix: str, error: str) -> None:
        """Have the commit check again that no key has a prefix."""
        self._wait(self._store.require_none(prefix, error))


class BlockingToolCallContext:
    """One call of one tool: ``ctx`` of a plain ``def`` tool; see ToolCallContext."""

    __slots__ = ("_cancelled", "_context", "_wait", "store")

    def __init__(self, context: ToolCallContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._wait = LoopBridge(loop)
        self._cancelled = threading.Event()
        self.store = BlockingStateStore(context.store, self._wait)

    @property
    def cancelled(self) -> bool:
        """Whether the call was asked to stop; a long one should look, and raise."""
        return self._cancelled.is_set()

    def wait_cancelled(self, timeout_seconds: float) -> bool:
        """Sleep, but no longer than until the call is asked to stop; return whether it was."""
        return self._cancelled.wait(timeout_seconds)

    @property
    def is_cancelled(self) -> bool:
        """The same as ``cancelled``, named as for coroutines."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ask the call to stop."""
        self._context.note_cancelled()
        self._cancelled.set()

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far the call got (0 to 1, negative: not known) and, in one line, what it is doing. For people."""
        self._wait.soon(self._context.progress, fraction, message)

    @property
    def transaction_id(self) -> str:
        """The transaction that this step is part of."""
        return self._context.transaction_id

    @property
    def agent_id(self) -> str:
        """The agent that runs the transaction, as it named itself."""
        return self._context.agent_id

    @property
    def step_id(self) -> int:
        """The step's number, from 1."""
        return self._context.step_id

    @property
    def attempt(self) -> int:
        """Which execution of the step this is, from 1."""
        return self._context.attempt

    @property
    def idempotency_key(self) -> str:
        """The key to send to services that honour one."""
        return self._context.idempotency_key

    @property
    def fence(self) -> int:
        """A number that grows with each takeover."""
        return self._context.fence

    @property
    def metadata(self) -> dict[str, Any]:
        """What the call says of itself beside its arguments."""
        return self._context.metadata

    @property
    def seconds_left(self) -> float:
        """Time until the deadline, 0 or less once it passed."""
        return self._context.seconds_left

    def register_undo(self, undo_name: str, /, **arguments: Any) -> None:
        """Register an undo action with its arguments, durable when this returns. Call it before the effect."""
        self._wait(self._context.register_undo(undo_name, **arguments))

    def update_undo(self, undo_name: str, /, **arguments: Any) -> None:
        """Replace the arguments of the undo action of this name that this call registered last; durable when this returns."""
        self._wait(self._context.update_undo(undo_name, **arguments))

    def stage_effect(self, channel: str, payload: Any, idempotency_key: str | None = None) -> str:
        """Stage an effect that is delivered after commit and dropped by a rewind; return its id."""
        return self._wait(self._context.stage_effect(channel, payload, idempotency_key))

    def step(
        self,
        tool_name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Call another tool as a sub-step of this step and return its output; see ToolCallContext."""
        return self._wait.through(self._context.step(tool_name, arguments, timeout_seconds=timeout_seconds))

    def touch(self, key: str, *, writes: bool) -> None:
        """Say which outside thing this call is about to read (or to change); call it before it does."""
        self._wait(self._context.touch(key, writes=writes))
