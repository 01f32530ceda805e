"""How many bytes a principal, and a tenant, may have stored (docs/decisions/0038).

What is checked is a count in memory, so a step pays a look into a dictionary. It is what all servers had counted a second ago, and
what this one wrote since. Behind it the rows are measured now and then, which puts the count right: what was purged is found gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from agenttx_server.engine.errors import LimitExceeded
from agenttx_server.engine.ports import Clock, StoreUnavailable
from agenttx_server.engine.visibility import is_everybody, tenant_of

__all__ = ["StoredCount", "StoredQuotas", "TooMuchStored"]

_LOGGER = logging.getLogger(__name__)

SHARE_SECONDS = 1.0
"""How often servers tell one another what they wrote."""
MEASURE_SECONDS = 60.0
SOON_SECONDS = 5.0
"""How soon it is measured again once somebody was refused, who may have purged something since."""
# Where there is much to measure, or very many owners to learn of, that takes at most one part in so many of a reader thread's time.
_PARTS = 20
_FREES = "deleting or pruning threads frees some, so does the purge of what ended (retention)"


class TooMuchStored(LimitExceeded):
    """The owner, or its tenant, stores as much as it may."""

    retry_after_seconds = SOON_SECONDS

    def __init__(self, whose: str, of: str, used: int, limit: int) -> None:
        super().__init__(
            f"{whose} {used} bytes stored, the limit is {limit}; {_FREES}",
            reason="QUOTA_EXCEEDED",
            metadata={"limit": str(limit), "used": str(used), "of": f"stored bytes of {of}"},
        )


class StoredTotals(Protocol):
    """What is counted, by owner, after so many measurements."""

    @property
    def by_owner(self) -> Mapping[str, int]: ...

    @property
    def rounds(self) -> int: ...


class StoredCount(Protocol):
    """Where servers share the count. Every call may raise StoreUnavailable."""

    def count_added(self, added: Callable[[str, int], None]) -> None: ...

    async def measure_stored(self) -> object: ...

    async def add_stored(self, added: Mapping[str, int]) -> None: ...

    async def stored_totals(self) -> StoredTotals: ...


class StoredQuotas:
    """Checks what owners have stored. A limit of 0 is none. ``named_tenants`` are those that have rules."""

    def __init__(
        self,
        of_principal: int,
        of_tenant: Callable[[str], int],
        store: StoredCount,
        clock: Clock,
        named_tenants: frozenset[str] = frozenset(),
    ) -> None:
        self.named_tenants = named_tenants
        self._of_principal = of_principal
        self._of_tenant = of_tenant
        self._store = store
        self._clock = clock
        self._by_owner: dict[str, int] = {}
        self._by_tenant: dict[str, int] = {}
        self._unsent: dict[str, int] = {}
        self._rounds = 0
        self._may_measure_at = 0.0
        self._measure_at = 0.0
        self._is_due = True
        self._learning_took = 0.0
        store.count_added(self._add)

    @property
    def by_tenant(self) -> Mapping[str, int]:
        """Bytes stored, by tenant."""
        return self._by_tenant

    def check(self, owner: str) -> None:
        """Raise TooMuchStored where nothing more may be begun."""
        if self._of_principal and (used := self._by_owner.get(owner, 0)) >= self._of_principal:
            self._is_due = True
            raise TooMuchStored("you have", "a principal", used, self._of_principal)
        tenant = tenant_of(owner)
        if (limit := self._of_tenant(tenant)) and (used := self._by_tenant.get(tenant, 0)) >= limit:
            self._is_due = True
            raise TooMuchStored("your tenant has", "a tenant", used, limit)

    def _add(self, owner: str, size: int) -> None:
        self._unsent[owner] = self._unsent.get(owner, 0) + size
        self._count(owner, size)

    def _count(self, owner: str, size: int) -> None:
        if not is_everybody(owner):
            self._by_owner[owner] = self._by_owner.get(owner, 0) + size
        tenant = tenant_of(owner)
        self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + size

    async def follow(self) -> None:
        """Share and measure until cancelled; while the database does not answer, the last count stands."""
        while True:
            try:
                await self.refresh()
            except StoreUnavailable as error:
                _LOGGER.warning("what is stored could not be counted: %s", error)
            except Exception:
                _LOGGER.exception("what is stored could not be counted")
            await self._clock.sleep(max(SHARE_SECONDS, self._learning_took * _PARTS))

    async def refresh(self) -> None:
        """Tell the others what was written here, measure if it is time, and learn what all have counted. Raises StoreUnavailable."""
        sent, self._unsent = self._unsent, {}
        if sent:
            try:
                await self._store.add_stored(sent)
            except StoreUnavailable:
                for owner, size in sent.items():
                    self._unsent[owner] = self._unsent.get(owner, 0) + size
                raise
        began = self._clock.monotonic()
        if began >= self._measure_at or (self._is_due and began >= self._may_measure_at):
            await self._store.measure_stored()
            self._measured(self._clock.monotonic() - began)
        await self.learn()

    async def learn(self) -> None:
        """Learn what all have counted. Raises StoreUnavailable."""
        began = self._clock.monotonic()
        totals = await self._store.stored_totals()
        self._learning_took = self._clock.monotonic() - began
        if totals.rounds > self._rounds:
            # Another server's measurement serves this one as well.
            self._rounds = totals.rounds
            self._measured(0.0)
        self._by_owner, self._by_tenant = {}, {}
        for counted in (totals.by_owner, self._unsent):
            for owner, size in counted.items():
                self._count(owner, size)

    def _measured(self, took: float) -> None:
        now = self._clock.monotonic()
        self._may_measure_at = max(self._may_measure_at, now + max(SOON_SECONDS, took * _PARTS))
        self._measure_at = max(self._measure_at, now + max(MEASURE_SECONDS, took * _PARTS))
        self._is_due = False
