"""Quotas of stored bytes: what is checked, shared and measured when, by a clock that stands still unless it is moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from agenttx_server.access.identity import Role
from agenttx_server.api.interceptors.call import CallClass
from agenttx_server.api.methods import METHODS
from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.store.stored_bytes import StoredTotals
from agenttx_server.stored_quotas import MEASURE_SECONDS, SOON_SECONDS, StoredQuotas, TooMuchStored


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Count:
    """What servers share. ``rows`` is what there really is, which a measurement finds."""

    clock: Clock
    rows: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    takes: float = 0.0
    is_away: bool = False
    writers: list[Callable[[str, int], None]] = field(default_factory=list)

    def count_added(self, added: Callable[[str, int], None]) -> None:
        self.writers.append(added)

    def write(self, owner: str, size: int, server: int = 0) -> None:
        self.rows[owner] = self.rows.get(owner, 0) + size
        self.writers[server](owner, size)

    async def measure_stored(self) -> object:
        self.counted, self.rounds = dict(self.rows), self.rounds + 1
        self.clock.seconds += self.takes
        return None

    async def add_stored(self, added: Mapping[str, int]) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        for owner, size in added.items():
            self.counted[owner] = self.counted.get(owner, 0) + size

    async def stored_totals(self) -> StoredTotals:
        return StoredTotals(dict(self.counted), self.rounds)


def made(servers: int = 1, of_principal: int = 100, **of_tenants: int) -> tuple[Count, list[StoredQuotas]]:
    clock = Clock()
    count = Count(clock)

    def of_tenant(tenant: str) -> int:
        return of_tenants.get(tenant, 0)

    return count, [StoredQuotas(of_principal, of_tenant, count, clock) for _ in range(servers)]  # type: ignore[arg-type]


ENDS = {
    "AcknowledgeUndo",
    "CancelPipelineRun",
    "CancelRun",
    "CancelStep",
    "CommitTransaction",
    "DeleteThread",
    "DrainRun",
    "PruneThread",
    "Rewind",
    "RewindRun",
    "RollbackTransaction",
}
"""What ends, undoes or frees something: never refused for what is stored."""
CHECKED_WITHIN = {
    "BeginTransaction",
    "RegisterGraph",
    "RegisterPipeline",
    "CopyThread",
    "ExecuteStep",
    "ExecuteStepGroup",
    "ExecuteSteps",
    "ForkThread",
    "ResumeRun",
    "RetryRun",
    "RunPipeline",
    "StartRun",
    "StreamRun",
    "UpdateState",
}
"""Where they begin something: a repeated request is answered first."""
HAS_HAPPENED = {"ReportStep"}
"""Taken in, for what is not known could not be undone."""


def test_what_an_agent_may_do_stores_more_and_is_checked_or_ends_something():
    changes = {
        method.label
        for method in METHODS.values()
        if method.roles and Role.AGENT in method.roles and method.call_class is not CallClass.READ
    }
    looks = {"SubscribeEvents", "WatchTransaction", "ExportLineage"}
    # A run of a pipeline that goes on only begins transactions: each is checked, and waits.
    assert changes - looks == ENDS | CHECKED_WITHIN | HAS_HAPPENED | {"ResumePipelineRun"}


async def test_who_has_stored_as_much_as_it_may_is_refused_and_told_what_frees_some():
    count, (quotas,) = made()
    count.write("ann", 99)
    quotas.check("ann")
    count.write("ann", 1)
    with pytest.raises(TooMuchStored, match="deleting or pruning threads") as refused:
        quotas.check("ann")
    assert refused.value.reason == "QUOTA_EXCEEDED"
    assert refused.value.metadata == {"limit": "100", "used": "100", "of": "stored bytes of a principal"}
    assert refused.value.retry_after_seconds == SOON_SECONDS
    quotas.check("bob")


async def test_a_tenants_bytes_are_those_of_its_principals_and_of_what_they_share():
    count, (quotas,) = made(of_principal=0, acme=100)
    count.rows["@acme/"] = 40  # committed state
    count.write("@acme/ann", 59)
    await quotas.refresh()
    quotas.check("@acme/bob")
    count.write("@acme/ann", 1)
    with pytest.raises(TooMuchStored, match="your tenant"):
        quotas.check("@acme/bob")
    quotas.check("ann")
    quotas.check("@acmes/ann")
    assert dict(quotas.by_tenant) == {"acme": 100}


async def test_servers_know_of_one_another_as_soon_as_they_have_told():
    count, (first, second) = made(2)
    await first.refresh()
    await second.learn()
    count.write("ann", 60, server=0)
    count.write("ann", 60, server=1)
    first.check("ann")
    second.check("ann")
    await first.refresh()
    await second.refresh()
    with pytest.raises(TooMuchStored):
        second.check("ann")
    await first.refresh()
    with pytest.raises(TooMuchStored) as refused:
        first.check("ann")
    assert refused.value.metadata["used"] == "120"
    assert count.rounds == 1  # by the first of them; it serves the other too


async def test_it_is_measured_again_soon_after_a_refusal_and_seldom_otherwise():
    count, (quotas,) = made()
    await quotas.refresh()
    count.write("ann", 100)
    await quotas.refresh()
    with pytest.raises(TooMuchStored):
        quotas.check("ann")
    count.rows["ann"] = 10  # purged
    count.clock.seconds += SOON_SECONDS - 1
    await quotas.refresh()
    with pytest.raises(TooMuchStored):
        quotas.check("ann")
    count.clock.seconds += 1
    await quotas.refresh()
    quotas.check("ann")
    rounds = count.rounds
    count.clock.seconds += MEASURE_SECONDS - 1
    await quotas.refresh()
    assert count.rounds == rounds
    count.clock.seconds += 1
    await quotas.refresh()
    assert count.rounds == rounds + 1


async def test_measuring_takes_a_small_part_of_the_time_however_long_it_takes():
    count, (quotas,) = made()
    count.takes = 30.0
    count.write("ann", 100)
    began = count.clock.seconds
    for _ in range(3_000):
        with pytest.raises(TooMuchStored):
            quotas.check("ann")
        await quotas.refresh()
        count.clock.seconds += 1
    assert count.rounds > 3
    assert count.rounds * count.takes <= (count.clock.seconds - began) / 20 + count.takes


async def test_what_could_not_be_told_is_told_later():
    count, (quotas,) = made()
    await quotas.refresh()
    count.write("ann", 60)
    count.is_away = True
    with pytest.raises(StoreUnavailable):
        await quotas.refresh()
    count.write("ann", 40)
    with pytest.raises(TooMuchStored):
        quotas.check("ann")
    count.is_away = False
    await quotas.refresh()
    assert count.counted == {"ann": 100}
