"""Tools that still run although their step was settled, and attempts that ended after they were given up.

What such a tool did after its step was undone is undone when it has ended. Until then its
undo is owed durably: if the server dies, whoever takes the transaction over runs it. Another server
that works on the transaction meanwhile may run it too early; then it is owed once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    TransactionId,
    TransactionRecord,
    UndoRecord,
)

__all__ = ["GivenUp", "LateTools", "Outlived"]


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An attempt that ended here after its step was settled, there or here, with its undo.

    ``is_owed`` is that the undo was owed once more for its end when the step was settled, ``outlived`` that
    its tool ended later than the attempt.
    """

    attempt: AttemptRecord
    undo: Sequence[UndoRecord]
    is_owed: bool = False
    outlived: bool = False


@dataclass(eq=False, slots=True)
class Outlived:
    """A tool that still runs, and what is to be seen to when it has ended."""

    transaction_id: TransactionId
    item: GivenUp

    @property
    def at(self) -> tuple[TransactionId, int, int, int]:
        """The attempt for which the tool runs."""
        attempt = self.item.attempt
        return self.transaction_id, attempt.step_id, attempt.sub_step, attempt.attempt

    def holds_back(self, transaction_id: TransactionId, undo: UndoRecord) -> bool:
        """Whether an owed undo has to wait for this tool."""
        return (
            self.item.is_owed
            and self.transaction_id == transaction_id
            and any(row.sequence == undo.sequence for row in self.item.undo)
        )


class LateTools:
    """Knows which owed undo has to wait for a tool; ``when_ended`` is told of transactions to look at."""

    def __init__(self, when_ended: Callable[[TransactionRecord], None]) -> None:
        self._when_ended = when_ended
        self._outlived: list[Outlived] = []
        self._given_up: dict[TransactionId, list[GivenUp]] = {}

    def await_tool(self, record: TransactionRecord, tool: asyncio.Task[object], outlived: GivenUp) -> None:
        """See to what a tool did once it has ended; undo that is owed for it is held back until then."""
        waited_for = Outlived(record.transaction_id, outlived)
        self._outlived.append(waited_for)

        def ended(task: asyncio.Task[object]) -> None:
            self._outlived.remove(waited_for)
            item = waited_for.item
            succeeded = not task.cancelled() and task.exception() is None
            state = AttemptState.COMPLETED if succeeded else AttemptState.FAILED
            known = replace(item, attempt=replace(item.attempt, state=state), outlived=True)
            self.note(record.transaction_id, [known])
            self._when_ended(record)

        tool.add_done_callback(ended)

    def is_waiting(self, transaction_id: TransactionId, undo: UndoRecord) -> bool:
        """Whether an owed undo has to wait for a tool that runs here."""
        return any(outlived.holds_back(transaction_id, undo) for outlived in self._outlived)

    def not_owed(self, transaction_id: TransactionId) -> list[Outlived]:
        """Return tools of a transaction that still run and whose undo is not owed for their end."""
        owed = {outlived.at for outlived in self._outlived if outlived.item.is_owed}
        return [
            outlived
            for outlived in self._outlived
            if outlived.transaction_id == transaction_id and outlived.item.undo and outlived.at not in owed
        ]

    def note(self, transaction_id: TransactionId, attempts: Sequence[GivenUp]) -> None:
        """Keep attempts until it is known what became of their steps, and their undo has run."""
        if attempts:
            self._given_up.setdefault(transaction_id, []).extend(attempts)

    def given_up(self, transaction_id: TransactionId) -> Sequence[GivenUp]:
        """Return the attempts of a transaction that have ended and were not seen to."""
        return tuple(self._given_up.get(transaction_id, ()))

    def forget(self, transaction_id: TransactionId, attempts: Sequence[GivenUp]) -> None:
        """Note that attempts were seen to."""
        left = [item for item in self._given_up.pop(transaction_id, ()) if item not in attempts]
        if left:
            self._given_up[transaction_id] = left
