"""How much stands open in a database, over all servers: what is counted for those who run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, literal_column, select

from agenttx_server.engine.records import (
    ApprovalState,
    EffectState,
    MicrosecondsUtc,
    TransactionStatus,
    UndoState,
)
from agenttx_server.store import schema

__all__ = ["Standing", "StandingCounts", "count_standing"]

transactions, effects = schema.transactions, schema.effects
undo_actions, approvals = schema.undo_actions, schema.approvals

_HOLDS = (UndoState.FAILED, UndoState.AWAITING_AGENT)


@dataclass(frozen=True, slots=True)
class Standing:
    """How many, and since when the oldest; None where there is none."""

    count: int = 0
    since: MicrosecondsUtc | None = None


@dataclass(frozen=True, slots=True)
class StandingCounts:
    """``transactions`` are the open ones by status, since their last write; ``effects`` are those READY and DEAD, since
    their commit; ``undo`` the actions by state that somebody has to see to; ``held`` the transactions whose rewind waits
    for undo that failed or that is the agent's, ``unrecovered`` those that recovery gave up on.
    """

    transactions: Mapping[TransactionStatus, Standing] = field(default_factory=dict)
    held: int = 0
    unrecovered: int = 0
    undo: Mapping[UndoState, int] = field(default_factory=dict)
    effects: Mapping[EffectState, Standing] = field(default_factory=dict)
    approvals: Standing = field(default_factory=Standing)


# Each goes by an index that holds what is open alone (schema.py): what was ended long ago costs nothing.
_TRANSACTIONS = (
    select(transactions.c.status, func.count(), func.min(transactions.c.updated_at))
    .where(literal_column("is_open = 1"))
    .group_by(transactions.c.status)
)
_OF_UNDO = undo_actions.join(transactions, undo_actions.c.transaction_number == transactions.c.number)
_UNDO = (
    select(undo_actions.c.state, func.count())
    .where(literal_column(schema.UNDO_IN_QUESTION), undo_actions.c.state != UndoState.RESOLVED)
    .group_by(undo_actions.c.state)
)
_HELD = (
    select(func.count(undo_actions.c.transaction_number.distinct()))
    .select_from(_OF_UNDO)
    .where(
        literal_column(f"undo_actions.{schema.UNDO_IN_QUESTION}"),
        undo_actions.c.state.in_(_HOLDS),
        transactions.c.status == TransactionStatus.ROLLING_BACK,
    )
)
_EFFECTS = (
    select(effects.c.state, func.count(), func.min(transactions.c.ended_at))
    .select_from(effects.join(transactions, effects.c.transaction_number == transactions.c.number))
    .where(literal_column(f"effects.{schema.EFFECTS_WAITING}"))
    .group_by(effects.c.state)
)
_APPROVALS = select(func.count(), func.min(approvals.c.requested_at)).where(
    literal_column(schema.APPROVALS_PENDING), approvals.c.state == ApprovalState.PENDING
)
_UNRECOVERED = select(func.count()).select_from(schema.recovery_problems)


def count_standing(connection: Connection) -> StandingCounts:
    """Count what stands open."""
    count, since = connection.execute(_APPROVALS).one()
    return StandingCounts(
        transactions={
            TransactionStatus(status): Standing(many, oldest)
            for status, many, oldest in connection.execute(_TRANSACTIONS)
        },
        held=connection.execute(_HELD).scalar_one(),
        unrecovered=connection.execute(_UNRECOVERED).scalar_one(),
        undo={UndoState(state): many for state, many in connection.execute(_UNDO)},
        effects={
            EffectState(state): Standing(many, oldest) for state, many, oldest in connection.execute(_EFFECTS)
        },
        approvals=Standing(count, since),
    )
