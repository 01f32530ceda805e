"""Who is refused, in time that is counted: nobody while there is little to do, enough of them under overload, nobody after it."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.modelled_server import ModelledAgent, ModelledServer
from tests.unit.api.test_interceptor_chain import FakeContext

from agenttx_server.access.identity import Identity, Role
from agenttx_server.api.interceptors import Admission, CallClass, Method, RpcCall, Shedding
from agenttx_server.api.interceptors.admission import TooManyCalls
from agenttx_server.api.interceptors.shedding import LEAST_LIMIT, Written
from agenttx_server.api.methods import describe
from agenttx_server.stay import outside, stays

TARGET = 0.02
RATE = 1900.0
SATURATING = 64


def agents_at_work(server: ModelledServer, number: int, principal: str = "ann") -> list[ModelledAgent]:
    agents = [ModelledAgent(principal) for _ in range(number)]
    for agent in agents:
        server.send(agent)
    return agents


def longest_of_a_hundred(agents: list[ModelledAgent], since: float) -> float:
    waits = sorted(wait for agent in agents for at, wait in agent.waits if at >= since)
    return waits[len(waits) * 99 // 100]


# --- little to do ---------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    alone=st.sampled_from([0.001, 0.003, 0.02, 0.06, 0.4]),
    agents=st.integers(1, 8),
    pause=st.sampled_from([0.0, 0.01, 0.2]),
    slower=st.sampled_from([1, 3, 10]),
)
def test_an_unloaded_server_refuses_nobody_whatever_a_step_takes(
    alone: float, agents: int, pause: float, slower: int
) -> None:
    server = ModelledServer(alone=alone, target=TARGET)
    for _ in range(agents):
        server.send(ModelledAgent(pause=pause))
    server.run(1)
    server._alone *= slower  # another disk, a neighbour
    server.run(2)
    assert server.done
    assert not server.told


@pytest.mark.parametrize("accepts", [3000.0, 1500.0])
def test_a_burst_is_no_overload(accepts: float) -> None:
    server = ModelledServer(target=TARGET, accepts=accepts)
    burst = [ModelledAgent(pause=float("inf")) for _ in range(200)]
    for agent in burst:
        server.send(agent)
    server.run(2)
    assert [len(agent.waits) for agent in burst] == [1] * 200
    assert not server.told


async def test_steps_whose_tools_run_are_no_load() -> None:
    now = 0.0
    shedding = Shedding(TARGET, lambda: now)
    begun = [shedding.enter("ann") for _ in range(1000)]
    for stay in begun:
        stays(stay)
        with outside():
            with outside():  # a tool that is called by a tool
                assert stay not in shedding._in_hand
            assert stay not in shedding._in_hand
        assert stay in shedding._in_hand
        stay.go_out()
    for _ in range(50):
        now += 0.1
        shedding.look(0.0)
        assert shedding.in_hand == 0
    for stay in begun:
        now += 0.0001
        stay.come_back()
        assert shedding.in_hand == 1
        stay.end()
        stay.go_out()  # a tool that outlives the call of its step
        stay.come_back()
        assert shedding.in_hand == 0
    shedding.look(0.0)
    assert shedding.stay_seconds < 0.001
    assert not shedding.limit


def test_who_waits_for_something_else_is_not_counted_for_ever() -> None:
    now = 0.0
    shedding = Shedding(TARGET, lambda: now)
    waiting = [shedding.enter("ann") for _ in range(500)]  # for the end of a step that was sent before
    for _ in range(30):
        now += 0.1
        shedding.look(0.0)
    assert shedding.in_hand == 0
    for stay in waiting:
        stay.end()
    shedding.look(0.0)
    assert shedding.stay_seconds == 0


# --- too much to do -------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [4, 10])
@pytest.mark.parametrize("accepts", [3000.0, 2200.0])
def test_under_lasting_overload_the_accepted_are_answered_in_time_and_as_many_are_done(
    times: int, accepts: float
) -> None:
    """``accepts`` little more than is done: most of the calls wait where the server doesn't see them."""
    server = ModelledServer(target=TARGET, accepts=accepts, rate=RATE)
    quiet = [ModelledAgent(pause=0.05) for _ in range(8)]
    for agent in quiet:
        server.send(agent)
    server.run(2)
    unloaded = longest_of_a_hundred(quiet, 0)
    crowd = agents_at_work(server, times * SATURATING)
    server.run(3)
    done, told = server.done, len(server.told)
    server.run(8)
    assert longest_of_a_hundred(crowd, 5) < 5 * max(unloaded, 0.006)
    assert (server.done - done) / 8 > 0.9 * RATE
    assert 0.03 < (len(server.told) - told) / (len(server.told) - told + server.done - done) < 0.3
    # Nobody is left out: each has had its turn, and nobody hundreds of times another's.
    served = sorted(len(agent.waits) for agent in crowd)
    assert served[0] >= 1
    assert served[-1] < 300 * served[0]


def test_overload_from_the_start_on_a_slow_disk_does_not_stay_at_the_least_limit() -> None:
    """The server has never been unloaded, and has to find out that its steps take long by themselves."""
    server = ModelledServer(target=TARGET, alone=0.05, rate=RATE)
    agents_at_work(server, 256)
    server.run(20)
    done = server.done
    server.run(5)
    assert server.shedding.target_seconds == pytest.approx(0.2, rel=0.2)
    assert (server.done - done) / 5 > 0.9 * RATE


def test_after_overload_all_is_as_before_within_five_seconds() -> None:
    server = ModelledServer(target=TARGET)
    agents_at_work(server, 640)
    server.run(5)
    assert server.shedding.limit
    server.stop()
    server.run(5)
    assert (server.shedding.limit, server.shedding.share, server.shedding.in_hand) == (0, 0, 0)
    told = len(server.told)
    few = agents_at_work(server, 8)
    server.run(1)
    assert len(server.told) == told
    assert longest_of_a_hundred(few, 0) < 0.006


def test_a_caller_that_sends_little_is_let_in_beside_one_that_sends_much() -> None:
    server = ModelledServer(target=TARGET)
    crowd = agents_at_work(server, 640, "much")
    server.run(2)
    little = [ModelledAgent("little", pause=0.1) for _ in range(2)]
    for agent in little:
        server.send(agent)
    server.run(5)
    assert sum(agent.refused for agent in crowd) > 1000
    assert sum(agent.refused for agent in little) <= 5
    assert all(len(agent.waits) > 25 for agent in little)


def test_calls_that_are_never_accepted_are_not_counted_for_ever() -> None:
    server = ModelledServer(target=TARGET)
    agents_at_work(server, 640)
    server.run(2)
    server.never_accepted += 500  # their callers gave up while they waited
    server.run(1)
    server.stop()
    server.run(3)
    assert server.shedding.calls_waiting == 0
    few = agents_at_work(server, 32)
    server.run(2)
    assert sum(agent.refused for agent in few) == 0


def test_runs_that_fill_the_queue_of_commits_are_refused_and_some_are_always_let_in() -> None:
    now = 0.0
    shedding = Shedding(TARGET, lambda: now)
    let_in = []
    for look in range(100):
        now += 0.1
        let_in.append(sum(not shedding.refuses_beginning() for _ in range(20)))
        shedding.look(0.0, Written(queued=600, total=100.0 * look))
    assert let_in[:2] == [20] * 2
    late = let_in[-50:]
    assert sum(late) <= 10
    assert sum(late) >= 4  # one a second at least
    for _ in range(30):
        now += 0.1
        shedding.look(0.0)
    assert all(not shedding.refuses_beginning() for _ in range(20))


@pytest.mark.parametrize("rate", [2900.0, 300.0])
def test_while_few_enough_ask_none_is_refused_however_long_they_wait(rate: float) -> None:
    server = ModelledServer(target=TARGET, rate=rate, callers=256)
    agents_at_work(server, 256)
    server.run(10)
    assert not server.told
    crowd = agents_at_work(server, 384)
    server.run(10)
    assert server.shedding.limit
    assert sum(agent.refused for agent in crowd) > 300
    # The refused count until they have come again: fewer in hand are no fewer who ask.
    told = len(server.told)
    server.run(5)
    assert len(server.told) > told


def test_limiting_ends_when_few_enough_ask() -> None:
    server = ModelledServer(target=TARGET, rate=RATE, callers=256)
    agents_at_work(server, 640)
    server.run(10)
    assert server.shedding.limit
    server.stop()
    agents_at_work(server, 256)
    server.run(15)
    assert not server.shedding.limit
    told = len(server.told)
    server.run(5)
    assert len(server.told) == told


def test_a_target_of_nothing_refuses_nothing() -> None:
    server = ModelledServer(target=0)
    agents_at_work(server, 640)
    server.run(4)
    assert not server.told
    assert not server.shedding.limit


# --- when to come again ---------------------------------------------------------------------------


def limited(in_hand: int) -> Shedding:
    """A server that is behind with so many in hand."""
    shedding = Shedding(TARGET, lambda: 0.0)
    shedding._limit = float(LEAST_LIMIT)
    shedding._rate = RATE
    for _ in range(in_hand):
        shedding.enter("ann")
    return shedding


@pytest.mark.parametrize("callers", [1, 600])
def test_the_refused_come_back_spread_and_later_the_more_they_are(callers: int) -> None:
    assert limited(100).retry_after_seconds("0") < 0.4
    shedding = limited(100)
    waits = sorted(shedding.retry_after_seconds(str(number % callers)) for number in range(600))
    assert 0.15 < waits[0] < 0.4
    assert 3 < waits[-1] < 6
    assert max(later - earlier for earlier, later in pairwise(waits)) < 0.5
    busiest = max(sum(start <= wait < start + 0.2 for wait in waits) for start in waits)
    assert busiest < 0.2 * RATE * 0.3  # in any fifth of a second
    waits = [shedding.retry_after_seconds(str(number % callers)) for number in range(10_000)]
    assert max(waits) <= 12.5


def test_a_caller_does_not_wait_for_all_of_anothers() -> None:
    shedding = limited(100)
    for _ in range(600):
        shedding.retry_after_seconds("much")
    assert shedding.retry_after_seconds("little") < 0.4
    shedding.monotonic = lambda: 100.0
    shedding.look(0.0)
    assert not shedding._turns  # nothing is kept of those whose turn has come


# --- what may be refused --------------------------------------------------------------------------


def call_of(method: Method) -> RpcCall:
    call = RpcCall(method, FakeContext())
    call.identity = Identity("ann", frozenset(Role))
    return call


SERVICE = "/agenttx.v1.AgentTxService/"


def test_only_what_begins_work_is_refused_and_told_when_to_come_again() -> None:
    shedding = limited(200)
    shedding._next_beginning = 1.0
    admission = Admission(dict.fromkeys(CallClass, 1000), None, shedding)
    for path in (
        SERVICE + "ExecuteStep",
        SERVICE + "ExecuteStepGroup",
        SERVICE + "BeginTransaction",
        "/agenttx.v1.GraphService/StartRun",
        "/agenttx.v1.GraphService/StreamRun",
        "/agenttx.v1.PipelineService/RunPipeline",
    ):
        with pytest.raises(TooManyCalls) as refused:
            admission.enter(call_of(describe(path)))
        assert refused.value.reason == "OVERLOADED"
        assert 0 < refused.value.retry_after_seconds < 1
    assert shedding.refused == {"step": 2, "beginning": 4}
    protected = [
        *(
            SERVICE + name
            for name in (
                "CommitTransaction",
                "RollbackTransaction",
                "Rewind",
                "CancelStep",
                "ResolveStep",
                "ReportStep",
                "Approve",
                "GetTransaction",
                "WatchTransaction",
                "ExecuteSteps",
            )
        ),
        "/agenttx.v1.GraphService/CancelRun",
        "/agenttx.v1.ToolService/Connect",
        "/grpc.health.v1.Health/Check",
    ]
    for path in protected:
        assert describe(path).label != "other", path
        for _ in range(20):
            admission.enter(call_of(describe(path)))
    assert shedding.in_hand == 200  # these are not counted


def test_nothing_is_begun_where_steps_are_still_taken() -> None:
    """So that what is under way comes to its end."""
    shedding = limited(round(LEAST_LIMIT * 0.75))
    shedding._next_beginning = 1.0
    assert not any(shedding.refuses_step("ann") for _ in range(100))
    assert sum(shedding.refuses_beginning() for _ in range(100)) >= 40


def test_a_call_is_in_hand_from_being_let_in_until_it_is_left() -> None:
    shedding = Shedding(TARGET)
    admission = Admission(dict.fromkeys(CallClass, 1), None, shedding)
    for name in ("ExecuteStep", "BeginTransaction"):
        call = call_of(describe(SERVICE + name))
        admission.enter(call)
        assert shedding.in_hand == 1
        other = call_of(describe(SERVICE + name))
        with pytest.raises(TooManyCalls):
            admission.enter(other)  # for the bound of its class
        admission.leave(other)
        admission.leave(call)
        assert shedding.in_hand == 0


# --- looking --------------------------------------------------------------------------------------


async def test_lateness_is_what_the_clock_says_beyond_the_sleep() -> None:
    class LateClock:
        now = 0.0
        looks = 0

        def monotonic(self) -> float:
            return self.now

        async def sleep(self, seconds: float) -> None:
            self.now += seconds + 10 * TARGET
            self.looks += 1
            if self.looks == 21:
                raise asyncio.CancelledError

    clock = LateClock()
    shedding = Shedding(TARGET, clock.monotonic)
    with pytest.raises(asyncio.CancelledError):
        await shedding.follow(clock)  # type: ignore[arg-type]
    assert 5 * TARGET < shedding.stay_seconds < 10 * TARGET
    assert shedding.limit == LEAST_LIMIT
