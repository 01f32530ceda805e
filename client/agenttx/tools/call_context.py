"""What a tool is given as ``ctx``: its call's facts, transactional state, undo and effects.

A thin layer over the engine's context: Python values instead of JSON text, namespaces
instead of raw keys, and the tool held to the effect class it declared, since that is what
recovery after a crash relies on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agenttx.enumerations import EffectClass
from agenttx.tools.call_port import SDK_JSON, CallPort, JsonForm
from agenttx.tools.definition import AnyTool, ToolDefinitionError, UndoAction
from agenttx.tools.errors import ToolFailure
from agenttx.tools.hint_category import HintCategory

__all__ = ["DEFAULT_NAMESPACE", "MAX_KEY_BYTES", "StateStore", "ToolCallContext"]

DEFAULT_NAMESPACE = "kv"
MAX_KEY_BYTES = 512
MAX_STEP_SECONDS = 7 * 86_400.0

_NAMESPACE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class StateStore:
    """State of the transaction in one namespace, as JSON values.

    Reads see this step's own writes, then earlier steps', then committed state. Writes are
    part of the step: visible to later steps once it succeeded, to others after commit, gone
    with a rewind.
    """

    __slots__ = ("_context", "_json", "_namespace", "_tool")

    def __init__(
        self, context: CallPort, tool: AnyTool, namespace: str = DEFAULT_NAMESPACE, json: JsonForm = SDK_JSON
    ) -> None:
        if namespace is not DEFAULT_NAMESPACE and not _NAMESPACE.fullmatch(namespace):
            raise ValueError(f"a namespace is 1 to 64 characters of A-Z a-z 0-9 _ . : -, not {namespace!r}")
        self._context = context
        self._tool = tool
        self._namespace = namespace
        self._json = json

    def namespace(self, name: str) -> StateStore:
        """Return the store of another namespace (``[A-Za-z0-9_.:-]``, at most 64 characters)."""
        return StateStore(self._context, self._tool, name, self._json)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, ``default`` if it is absent (null is a value)."""
        text = await self._context.get(self._key(key))
        return default if text is None else self._json.decode(text)

    async def put(self, key: str, value: Any) -> None:
        """Write a JSON value under a key (at most 512 bytes of UTF-8, without U+0000)."""
        self._check_writable()
        await self._context.put(self._key(key), self._json.encode(value))

    async def delete(self, key: str) -> None:
        """Remove a key; no error if it is absent."""
        self._check_writable()
        await self._context.delete(self._key(key))

    async def scan(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, Any]]:
        """Return present keys with a prefix and their values, in key order after ``after``, at most 1000."""
        start = len(self._namespace) + 1
        raw_after = f"{self._namespace}/{after}" if after else ""
        found = await self._context.scan(f"{self._namespace}/{prefix}", raw_after, limit)
        return [(key[start:], self._json.decode(text)) for key, text in found]

    async def require_exists(self, key: str, error: str) -> None:
        """Have the commit check again that a key exists; it is refused with ``error`` otherwise."""
        await self._context.require_exists(self._key(key), error)

    async def require_none(self, prefix: str, error: str) -> None:
        """Have the commit check again that no key has a prefix; it is refused with ``error`` otherwise."""
        await self._context.require_none(self._key(prefix), error)

    def _key(self, key: str) -> str:
        if not key:
            raise ToolFailure(HintCategory.INVALID_VALUE, "the key is empty. Give one", ("key",))
        if "\x00" in key:
            raise ToolFailure(
                HintCategory.INVALID_VALUE, "the key contains the character U+0000. Leave it out", ("key",)
            )
        size = len(key.encode("utf-8", "surrogatepass"))
        if size > MAX_KEY_BYTES and self._namespace == DEFAULT_NAMESPACE:
            raise ToolFailure(
                HintCategory.INVALID_VALUE,
                f"the key is {size} bytes long, the limit is {MAX_KEY_BYTES}. Use a shorter one",
                ("key",),
            )
        return f"{self._namespace}/{key}"

    def _check_writable(self) -> None:
        if self._tool.effect_class is EffectClass.READ_ONLY:
            raise ToolDefinitionError(
                f"tool '{self._tool.name}' is declared READ_ONLY and must not write state; declare it "
                'effects="transactional"'
            )


class ToolCallContext:
    """One call of one tool: ``ctx`` of an ``async def`` tool.

    After the deadline, or once the call was superseded, ``store``, ``register_undo``, ``touch`` and
    ``stage_effect`` raise ContextClosed: nothing can become part of the step any more.
    """

    __slots__ = ("_cancelled", "_context", "_json", "_on_progress", "_tool", "_undo_actions", "store")

    def __init__(
        self,
        context: CallPort,
        tool: AnyTool,
        undo_actions: Mapping[str, UndoAction],
        *,
        json: JsonForm = SDK_JSON,
        on_progress: Callable[[float, str], None] | None = None,
    ) -> None:
        self._context = context
        self._tool = tool
        self._undo_actions = undo_actions
        self._json = json
        self._on_progress = on_progress
        self._cancelled = False
        self.store = StateStore(context, tool, json=json)

    @property
    def is_cancelled(self) -> bool:
        """Whether the call was asked to stop. A coroutine is cancelled then, unless it caught that."""
        return self._cancelled

    def note_cancelled(self) -> None:
        """Remember that the call was asked to stop; for whoever runs it."""
        self._cancelled = True

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far the call got (0 to 1, negative: not known) and, in one line, what it is doing. For people."""
        if self._on_progress is not None:
            self._on_progress(fraction, message)

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
        """The key to send to services that honour one: the same over retries and crashes of this attempt."""
        return self._context.idempotency_key

    @property
    def fence(self) -> int:
        """A number that grows with each takeover, for systems that refuse older ones."""
        return self._context.fence

    @property
    def metadata(self) -> dict[str, Any]:
        """What the call says of itself beside its arguments: of a pipeline's action `kind`, `model_vendor` and the like."""
        text = self._context.metadata
        return dict(self._json.decode(text)) if text else {}

    @property
    def seconds_left(self) -> float:
        """Time until the deadline, 0 or less once it passed."""
        return self._context.seconds_left

    async def register_undo(self, undo_name: str, /, **arguments: Any) -> None:
        """Register an undo action with its arguments, durable when this returns. Call it before the effect.

        The arguments are checked against the undo function now, while nothing has happened yet.
        """
        if not self._tool.effect_class.acts_outside:
            raise ToolDefinitionError(
                f"tool '{self._tool.name}' is declared {self._tool.effect_class}: it has no outside effects and "
                'registers no undo; declare it effects="compensatable"'
            )
        action = self._undo_actions.get(undo_name)
        if action is None:
            known: Sequence[str] = sorted(self._undo_actions)
            raise ToolDefinitionError(
                f"tool '{self._tool.name}' registered the unknown undo action '{undo_name}' "
                f"(known: {', '.join(known) or 'none'})"
            )
        await self._context.register_undo(undo_name, self._undo_arguments(action, arguments))

    async def update_undo(self, undo_name: str, /, **arguments: Any) -> None:
        """Replace the arguments of the undo action of this name that this call registered last; durable when this returns.

        For what is known only once the effect has happened, such as the id that a service gave. The
        arguments that were registered must be enough for an undo too: a crash may come in between.
        """
        action = self._undo_actions.get(undo_name)
        if action is None:
            raise ToolDefinitionError(
                f"tool '{self._tool.name}' updated the unknown undo action '{undo_name}'"
            )
        await self._context.update_undo(undo_name, self._undo_arguments(action, arguments))

    def _undo_arguments(self, action: UndoAction, arguments: dict[str, Any]) -> str:
        text = self._json.encode(arguments)
        action.parameters.validate(self._json.decode(text))
        return text

    async def stage_effect(self, channel: str, payload: Any, idempotency_key: str | None = None) -> str:
        """Stage an effect that is delivered after commit and dropped by a rewind; return its id."""
        if self._tool.effect_class is EffectClass.READ_ONLY:
            raise ToolDefinitionError(
                f"tool '{self._tool.name}' is declared READ_ONLY and must not stage effects; declare it "
                'effects="transactional"'
            )
        return await self._context.stage_effect(channel, self._json.encode(payload), idempotency_key or "")

    async def step(
        self,
        tool_name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Call another tool as a sub-step of this step and return its output, as a JSON value.

        It is durable when this returns. Where this step is started again (after a crash, or retried) its calls, in
        their order, are answered from the journal as long as they are the same: the same tool with the same
        arguments. A rewind of this step undoes them, newest first. Calls may run side by side.

        Raises:
            SubStepFailed: the call failed, and what it did is undone.
            ContextClosed: this step can't go on.
        """
        if timeout_seconds is not None and not 0 < timeout_seconds <= MAX_STEP_SECONDS:
            raise ToolDefinitionError(
                f"timeout_seconds is above 0 and at most {MAX_STEP_SECONDS:g}, not {timeout_seconds!r}"
            )
        timeout_us = None if timeout_seconds is None else max(1, round(timeout_seconds * 1_000_000))
        text = self._json.encode(dict(arguments or {}))
        return self._json.decode(await self._context.step(tool_name, text, timeout_us))

    async def touch(self, key: str, *, writes: bool) -> None:
        """Say which outside thing this call is about to read (or to change); call it before it does.

        Of two members of a group that touch one key, one of them writing, the higher step
        fails with category conflict, whatever finished first. Keys are paths such as
        ``file/a/b``; touching one touches all beneath it. Nothing is locked.
        """
        if writes and not self._tool.effect_class.acts_outside:
            raise ToolDefinitionError(
                f"tool '{self._tool.name}' is declared {self._tool.effect_class} and must not change things outside; "
                'declare it effects="compensatable"'
            )
        await self._context.touch(key, writes=writes)
