"""Which answers the callers have seen: what tells a call that is repeated from one that is meant anew.

A client that gave up waiting calls again, and so does a model that got no answer. The position is the call's
identity: same transaction, step, tool and arguments, in the generation that the caller was last told of, is
the same call and has the same request_id, also after this process was started anew. A call that failed moves
the transaction to another generation; the caller is taken to know of it once the answer was handed over.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SeenAnswers", "call_identity"]

MOST_REMEMBERED = 10_000
"""Transactions of which anything is remembered; older ones are asked for again."""


def call_identity(transaction_id: str, generation: int, step: int, tool: str, arguments: Any) -> str:
    """Return the request_id of a step's call; the same for the same call, whoever computes it."""
    text = json.dumps(
        [transaction_id, generation, step, tool, arguments], sort_keys=True, separators=(",", ":")
    )
    return "mcp-" + hashlib.sha256(text.encode()).hexdigest()[:40]


@dataclass
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class SeenAnswers:
    """What this process has told its callers."""

    def __init__(self) -> None:
        self._generations: OrderedDict[str, int] = OrderedDict()
        self._turns: dict[str, _Turn] = {}

    def generation(self, transaction_id: str) -> int | None:
        """Return the generation that was last told of a transaction; None if nothing was."""
        if transaction_id in self._generations:
            self._generations.move_to_end(transaction_id)
        return self._generations.get(transaction_id)

    def told(self, transaction_id: str, generation: int) -> None:
        """Take note that an answer of this generation was handed over."""
        self._generations[transaction_id] = max(generation, self.generation(transaction_id) or 0)
        self._generations.move_to_end(transaction_id)
        while len(self._generations) > MOST_REMEMBERED:
            self._generations.popitem(last=False)

    @asynccontextmanager
    async def turn(self, transaction_id: str) -> AsyncIterator[None]:
        """Have calls of one transaction take turns, in the order in which they came."""
        turn = self._turns.setdefault(transaction_id, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                self._turns.pop(transaction_id, None)
