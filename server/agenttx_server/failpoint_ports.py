"""The engine's ports with failpoints around them: the store's writes, tools and undo, deliveries.

Put around the real ones by the composition root where failpoints are armed, and else not there.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

from agenttx_server.engine.ports import (
    EffectSink,
    ToolContext,
    ToolRunner,
    TransactionStore,
    UndoContext,
    WriteReceipt,
    WriteSet,
)
from agenttx_server.engine.records import AttemptState, EffectRecord, TransactionId, UndoState
from agenttx_server.engine.services import EngineServices
from agenttx_server.failpoints import hit, hit_in_loop

__all__ = ["with_failpoints", "write_kind"]


def with_failpoints(services: EngineServices) -> EngineServices:
    """Return the services with points around writes, tools, undo actions and deliveries, however these end."""
    return replace(
        services,
        # What these two don't wrap goes to what they are put around.
        store=cast("TransactionStore", _Store(services.store)),
        tools=cast("ToolRunner", _Tools(services.tools)),
        sink=_Sink(services.sink),
    )


def write_kind(write_set: WriteSet) -> str:
    """Return what a write is about (failpoints.WRITE_KINDS)."""
    record = write_set.transaction
    states = {attempt.state for attempt in write_set.attempts}
    pending = record.pending_rewind
    if not write_set.expected_revision:
        return "begin"
    if write_set.publish:
        return "publication"
    if write_set.rewind_from is not None:
        return "rewind_end"
    if write_set.undo:
        registered = all(undo.state is UndoState.PENDING for undo in write_set.undo)
        return "undo_registration" if registered else "undo_outcome"
    if pending is not None:
        return "rewind_held" if pending.held else "rewind_start"
    for state, kind in _KIND_OF_STATE.items():
        if state in states:
            return kind
    if states:
        return "step" if record.open_group is None else "member"
    if write_set.responses:
        return "answer"
    return "delivery" if write_set.effects else "other"


_KIND_OF_STATE = {
    AttemptState.EXECUTING: "intent",
    AttemptState.IN_DOUBT: "doubt",
    AttemptState.SUPERSEDED: "superseded",
}


class _Store:
    def __init__(self, store: TransactionStore) -> None:
        self._store = store

    async def write(self, write_set: WriteSet) -> WriteReceipt:
        kind = write_kind(write_set)
        await hit_in_loop(f"write.before:{kind}")
        receipt = await self._store.write(write_set)
        await hit_in_loop(f"write.after:{kind}")
        return receipt

    def submit(self, write_set: WriteSet) -> asyncio.Future[WriteReceipt]:
        return asyncio.ensure_future(self.write(write_set))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Tools:
    def __init__(self, tools: ToolRunner) -> None:
        self._tools = tools

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        tool = self._tools.describe(name)
        effect_class = tool.effect_class.lower() if tool else ""
        await hit_in_loop(f"tool.before:{effect_class}")
        try:
            return await self._tools.run(name, arguments, context)
        finally:
            await hit_in_loop(f"tool.after:{effect_class}")

    def run_prompt(self, name: str, arguments: Any, context: ToolContext) -> Any:
        tool = self._tools.describe(name)
        effect_class = tool.effect_class.lower() if tool else ""
        hit(f"tool.before:{effect_class}")
        try:
            return self._tools.run_prompt(name, arguments, context)
        finally:
            hit(f"tool.after:{effect_class}")

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        await hit_in_loop("undo.before")
        try:
            await self._tools.undo(undo_name, arguments, context)
        finally:
            await hit_in_loop("undo.after")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tools, name)


class _Sink:
    def __init__(self, sink: EffectSink) -> None:
        self._sink = sink

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        await hit_in_loop("deliver.before")
        await self._sink.deliver(transaction_id, effect)
        await hit_in_loop("deliver.after")
