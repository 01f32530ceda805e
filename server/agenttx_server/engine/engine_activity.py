"""What a server's engine is at, as it stands at one moment."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineActivity", "LeaseStanding"]


@dataclass(frozen=True, slots=True)
class LeaseStanding:
    """``seconds_left`` None: it never ends, as the database is this server's alone. Counts are since the start:
    renewals made, those that the database did not answer, and leases that ended before they were renewed.
    """

    seconds_left: float | None
    renewed: int
    failed: int
    lost: int


@dataclass(frozen=True, slots=True)
class EngineActivity:
    """``cache_hits`` and ``cache_misses`` count, since the start, uses of transactions that were in memory, and that had
    to be read. ``tasks`` is what runs to its end whoever waits; ``deliveries`` the transactions whose effects are on
    their way.
    """

    cached_transactions: int
    cache_hits: int
    cache_misses: int
    tasks: int
    deliveries: int
    lease: LeaseStanding
