"""What a tool is given as ``ctx``: its call's facts, transactional state, undo and effects.

A thin layer over the engine's context: Python values instead of JSON text, namespaces
instead of raw keys, and the tool held to the effect class it declared, since that is what
recovery after a crash relies on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agenttx_server.engine.json_values import canonical, load
from agenttx_server.engine.ports import ToolContext, ToolFailure
from agenttx_server.engine.records import EffectClass, HintCategory, TransactionId
from agenttx_server.tools.definition import AnyTool, ToolDefinitionError, UndoAction

__all__ = ["DEFAULT_NAMESPACE", "MAX_KEY_BYTES", "StateStore", "ToolCallContext"]

DEFAULT_NAMESPACE = "kv"
MAX_KEY_BYTES = 512

_NAMESPACE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class StateStore:
    """State of the transaction in one namespace, as JSON values.

    Reads see this step's own writes, then earlier steps', then committed state. Writes are
    part of the step: visible to later steps once it succeeded, to others after commit, gone
    with a rewind.
    """

    __slots__ = ("_context", "_namespace", "_tool")

    def __init__(self, context: ToolContext, tool: AnyTool, namespace: str = DEFAULT_NAMESPACE) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ValueError(f"a namespace is 1 to 64 characters of A-Z a-z 0-9 _ . : -, not {namespace!r}")
        self._context = context
        self._tool = tool
        self._namespace = namespace

    def namespace(self, name: str) -> StateStore:
        """Return the store of another namespace (``[A-Za-z0-9_.:-]``, at most 64 characters)."""
        return StateStore(self._context, self._tool, name)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, ``default`` if it is absent (null is a value)."""
        text = await self._context.get(self._key(key))
        return default if text is None else load(text)

    async def put(self, key: str, value: Any) -> None:
        """Write a JSON value under a key (at most 512 bytes of UTF-8, without U+0000)."""
        self._check_writable()
        await self._context.put(self._key(key), canonical(value))

    async def delete(self, key: str) -> None:
        """Remove a key; no error if it is absent."""
        self._check_writable()
        await self._context.delete(self._key(key))

    async def scan(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, Any]]:
        """Return present keys with a prefix and their values, in key order after ``after``, at most 1000."""
        start = len(self._namespace) + 1
        raw_after = f"{self._namespace}/{after}" if after else ""
        found = await self._context.scan(f"{self._namespace}/{prefix}", raw_after, limit)
        return [(key[start:], load(text)) for key, text in found]

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

    __slots__ = ("_context", "_tool", "_undo_actions", "store")

    def __init__(self, context: ToolContext, tool: AnyTool, undo_actions: Mapping[str, UndoAction]) -> None:
        self._context = context
        self._tool = tool
        self._undo_actions = undo_actions
        self.store = StateStore(context, tool)

    @property
    def transaction_id(self) -> TransactionId:
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
        text = canonical(arguments)
        action.parameters.validate(load(text))
        await self._context.register_undo(undo_name, text)

    async def stage_effect(self, channel: str, payload: Any, idempotency_key: str | None = None) -> str:
        """Stage an effect that is delivered after commit and dropped by a rewind; return its id."""
        if self._tool.effect_class is EffectClass.READ_ONLY:
            raise ToolDefinitionError(
                f"tool '{self._tool.name}' is declared READ_ONLY and must not stage effects; declare it "
                'effects="transactional"'
            )
        return await self._context.stage_effect(channel, canonical(payload), idempotency_key or "")

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
