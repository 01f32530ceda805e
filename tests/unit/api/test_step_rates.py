"""Steps a second, of a principal and of a tenant, by a clock that stands still unless it is moved."""

from __future__ import annotations

import pytest

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


def test_buckets_are_bounded():
    rates = StepRates(1, lambda tenant: 0, Time())
    for number in range(10_050):
        rates.take(f"p-{number}")
    assert len(rates._buckets) == 10_000
