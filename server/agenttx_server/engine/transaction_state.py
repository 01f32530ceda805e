"""The legal moves of a transaction's status, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agenttx_server.engine.records import TransactionStatus

__all__ = ["LEGAL_MOVES", "IllegalMove", "move"]

_ACTIVE: Final = TransactionStatus.ACTIVE
_EXECUTING: Final = TransactionStatus.EXECUTING
_AWAITING_APPROVAL: Final = TransactionStatus.AWAITING_APPROVAL
_IN_DOUBT: Final = TransactionStatus.IN_DOUBT
_ROLLING_BACK: Final = TransactionStatus.ROLLING_BACK
_COMMITTING: Final = TransactionStatus.COMMITTING
_COMMITTED: Final = TransactionStatus.COMMITTED
_ROLLED_BACK: Final = TransactionStatus.ROLLED_BACK
_FAILED: Final = TransactionStatus.FAILED

LEGAL_MOVES: Final[Mapping[TransactionStatus, frozenset[TransactionStatus]]] = {
    _ACTIVE: frozenset({_EXECUTING, _COMMITTING, _ROLLING_BACK}),
    # To COMMITTING: a graph run that commits as it begins to wait, its step still open.
    _EXECUTING: frozenset({_ACTIVE, _AWAITING_APPROVAL, _IN_DOUBT, _ROLLING_BACK, _COMMITTING}),
    _AWAITING_APPROVAL: frozenset({_EXECUTING, _ROLLING_BACK}),
    _IN_DOUBT: frozenset({_ACTIVE, _EXECUTING, _ROLLING_BACK}),
    # To ACTIVE: the commit could not be made. To ROLLING_BACK: it met a conflict.
    _COMMITTING: frozenset({_COMMITTED, _ACTIVE, _ROLLING_BACK}),
    _ROLLING_BACK: frozenset({_ACTIVE, _ROLLED_BACK, _FAILED}),
    _COMMITTED: frozenset(),
    _ROLLED_BACK: frozenset(),
    _FAILED: frozenset(),
}


class IllegalMove(Exception):
    """A move that the table does not hold; the transaction stays in ``current``."""

    def __init__(self, current: TransactionStatus, to: TransactionStatus) -> None:
        super().__init__(f"a transaction that is {current} can't become {to}")
        self.current = current
        self.to = to


def move(current: TransactionStatus, to: TransactionStatus) -> TransactionStatus:
    """Return ``to``.

    Raises:
        IllegalMove: when a transaction in ``current`` can't go there; staying is no move.
    """
    if to not in LEGAL_MOVES[current]:
        raise IllegalMove(current, to)
    return to
