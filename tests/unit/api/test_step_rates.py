"""Steps a second, of a principal and of a tenant, by a clock that stands still unless it is moved."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.virtual_time import virtual_time

from agenttx_server.api.step_rates import StepRates, TooManySteps


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(rates: StepRates, owner: str, most: int = 100) -> int:
    """Return how many steps go through one by one."""
    for count in range(most):
        try:
            rates.take(owner)
        except TooManySteps:
            return count
    return most


def test_a_second_of_steps_goes_through_at_once_and_then_as_many_as_time_goes_by():
    time = Time()
    rates = StepRates(10, lambda tenant: 0, time)
    assert taken(rates, "ann") == 10
    with pytest.raises(TooManySteps) as refused:
        rates.take("ann")
    assert (refused.value.reason, refused.value.metadata["limit"]) == ("QUOTA_EXCEEDED", "10")
    assert refused.value.retry_after_seconds == pytest.approx(0.1)
    assert taken(rates, "bob") == 10  # another's are another's
    time.now += refused.value.retry_after_seconds
    assert taken(rates, "ann") == 1
    time.now += 1000.0
    assert taken(rates, "ann") == 10  # no more is saved up than a second's


def test_a_tenants_steps_are_those_of_all_its_principals():
    time = Time()
    rates = StepRates(0, {"acme": 6}.get, time)  # type: ignore[arg-type]
    assert taken(rates, "@acme/ann", 4) == 4
    assert taken(rates, "@acme/bob") == 2
    with pytest.raises(TooManySteps, match="your tenant"):
        rates.take("@acme/carl")
    assert taken(rates, "ann") == 100
    assert taken(rates, "@other/ann") == 100


def test_what_is_refused_is_not_counted():
    rates = StepRates(5, lambda tenant: 3, Time())
    assert taken(rates, "ann") == 3
    for _ in range(10):
        with pytest.raises(TooManySteps, match="your tenant"):
            rates.take("ann")
    assert rates._buckets["principal", "ann"].left == 2


def test_a_group_larger_than_a_seconds_steps_goes_through_a_full_bucket_and_is_waited_off():
    time = Time()
    rates = StepRates(10, lambda tenant: 0, time)
    rates.take("ann", 25)
    with pytest.raises(TooManySteps) as refused:
        rates.take("ann")
    assert refused.value.retry_after_seconds == pytest.approx(1.6)
    time.now += 1.6
    rates.take("ann")


@virtual_time
async def test_steps_of_runs_wait_for_their_turn_one_after_the_other():
    now = asyncio.get_running_loop().time
    rates = StepRates(10, {"acme": 4}.get, now)  # type: ignore[arg-type]
    came: list[tuple[float, int]] = []

    async def step(number: int, owner: str = "ann") -> None:
        waiting = rates.turn(owner)
        if waiting is not None:
            await waiting
        came.append((round(now(), 3), number))

    await asyncio.gather(*(step(number) for number in range(13)))
    assert came == [(0.0, number) for number in range(10)] + [(0.1, 10), (0.2, 11), (0.3, 12)]
    assert not rates._lines
    # Two principals of a tenant share what it may, and none of them is left out.
    came.clear()
    acmes = (step(number, f"@acme/{'ab'[number % 2]}") for number in range(8))
    await asyncio.gather(*acmes)
    assert [round(at - 0.3, 3) for at, _ in came] == [0.0, 0.0, 0.0, 0.0, 0.25, 0.5, 0.75, 1.0]


@virtual_time
async def test_who_waits_keeps_nobody_out_and_may_go_away():
    rates = StepRates(2, lambda tenant: 0, asyncio.get_running_loop().time)
    rates.take("ann", 2)
    waiting = [rates.turn("ann") for _ in range(3)]
    assert all(waiting)
    tasks = [asyncio.ensure_future(one) for one in waiting if one is not None]
    await asyncio.sleep(0.1)
    tasks[0].cancel()
    await asyncio.sleep(0.45)
    assert [task.done() for task in tasks] == [True, True, False]
    await asyncio.sleep(0.4)
    with pytest.raises(TooManySteps):
        rates.take("ann")
    await tasks[2]
    assert not rates._lines


def test_buckets_are_bounded():
    rates = StepRates(1, lambda tenant: 0, Time())
    for number in range(10_050):
        rates.take(f"p-{number}")
    assert len(rates._buckets) == 10_000
