"""Ids and times."""

from __future__ import annotations

from typing import NewType

from agenttx_server.engine.frozen import dataclass

__all__ = ["AttemptKey", "MicrosecondsUtc", "ServerId", "TransactionId"]

TransactionId = NewType("TransactionId", str)

MicrosecondsUtc = NewType("MicrosecondsUtc", int)

# One life of one server process: a process that starts again, or lost its lease, takes a new one.
ServerId = NewType("ServerId", str)


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """One execution of one step."""

    step_id: int
    attempt: int
