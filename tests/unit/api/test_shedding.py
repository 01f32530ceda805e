"""How much new work is refused: by how late the loop is and how much waits, evenly, and nothing that ends work."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.unit.api.test_interceptor_chain import FakeContext

from agenttx_server.access.identity import Identity, Role
from agenttx_server.api.interceptors import Admission, CallClass, Method, RpcCall, Shedding
from agenttx_server.api.interceptors.admission import TooManyCalls
from agenttx_server.api.methods import describe

TARGET = 0.05


def after(looks: int, late: float, queued: int = 0, shedding: Shedding | None = None) -> Shedding:
    shedding = shedding or Shedding(TARGET, 100)
    for _ in range(looks):
        shedding.observe(late, queued)
    return shedding


def test_a_server_in_time_refuses_nothing_and_one_late_turn_is_no_overload() -> None:
    assert after(1000, TARGET, 100).share == 0
    shedding = after(1, 3 * TARGET, shedding=after(100, 0))
    assert shedding.share == 0
    assert not any(shedding.refuses() for _ in range(100))


@pytest.mark.parametrize(("late", "queued"), [(2 * TARGET, 0), (0, 200), (2 * TARGET, 200)])
def test_either_raises_the_share_within_a_second_and_in_time_it_falls_again(late: float, queued: int) -> None:
    shedding = after(20, late, queued)
    assert shedding.share > 0.9
    assert 0 < after(400, 10 * late, 10 * queued, shedding).share < 1  # some are always let in
    assert after(20, 0, 0, shedding).share == 0  # a second later


def test_it_settles_where_the_server_is_just_in_time() -> None:
    """A server whose queue grows by what is let in beyond what it does: the share finds what keeps it there."""
    shedding, queue = Shedding(TARGET, 100), 0.0
    queues = []
    for _ in range(2000):
        queue = max(queue + 50 * (1 - shedding.share) - 20, 0)  # 50 come a look, 20 are done
        shedding.observe(0, int(queue))
        queues.append(queue)
    assert max(queues[-500:]) - min(queues[-500:]) < 5
    assert max(queues) < 400
    assert shedding.share == pytest.approx(0.6, abs=0.02)


def test_the_share_is_refused_evenly_and_told_different_times() -> None:
    shedding = Shedding(TARGET)
    shedding.share = 0.75
    refused = [shedding.refuses() for _ in range(400)]
    assert sum(refused) == 300
    assert all(sum(refused[at : at + 4]) == 3 for at in range(0, 400, 4))
    waits = [shedding.retry_after_seconds() for _ in range(100)]
    assert len(set(waits)) > 90
    assert 1.5 < min(waits) < max(waits) < 2.7
    shedding.share = 0.01
    assert shedding.retry_after_seconds() < 1


def test_a_target_of_nothing_refuses_nothing() -> None:
    shedding = after(1000, 100.0, 100_000, Shedding(0))
    assert shedding.share == 0
    assert not shedding.refuses()


async def test_lateness_is_what_the_clock_says_beyond_the_sleep() -> None:
    class LateClock:
        now = 0.0
        looks = 0

        def monotonic(self) -> float:
            return self.now

        async def sleep(self, seconds: float) -> None:
            self.now += seconds + 3 * TARGET
            self.looks += 1
            if self.looks == 30:
                raise asyncio.CancelledError

    shedding = Shedding(TARGET, 100)
    with pytest.raises(asyncio.CancelledError):
        await shedding.follow(LateClock(), lambda: 0)  # type: ignore[arg-type]
    assert shedding.share > 0.9


def call_of(method: Method) -> RpcCall:
    call = RpcCall(method, FakeContext())
    call.identity = Identity("ann", frozenset(Role))
    return call


def test_only_what_begins_work_is_refused_and_told_when_to_come_again() -> None:
    shedding = Shedding(TARGET)
    shedding.share = 0.95
    shedding._owed = 1.0
    admission = Admission(dict.fromkeys(CallClass, 1000), None, shedding)
    service = "/agenttx.v1.AgentTxService/"
    for name in ("ExecuteStep", "ExecuteStepGroup", "BeginTransaction", "ExecuteSteps"):
        with pytest.raises(TooManyCalls) as refused:
            admission.enter(call_of(describe(service + name)))
        assert refused.value.reason == "OVERLOADED"
        assert 1 < refused.value.retry_after_seconds < 4
    for name in (
        "CommitTransaction",
        "AbortTransaction",
        "RewindTransaction",
        "GetTransaction",
        "WatchTransaction",
    ):
        for _ in range(50):
            admission.enter(call_of(describe(service + name)))
    assert admission.in_flight == 250


def test_the_waits_of_those_refused_together_lie_apart() -> None:
    shedding = Shedding(TARGET)
    shedding.share = 0.95
    waits = sorted(shedding.retry_after_seconds() for _ in range(64))
    assert max(later - earlier for earlier, later in pairwise(waits)) < 0.2
