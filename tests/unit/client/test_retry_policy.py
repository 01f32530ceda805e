import grpc
import pytest

from agenttx import (
    Aborted,
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    RetryPolicy,
    RpcError,
    StepExecuting,
    Unavailable,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def policy(clock: Clock, random: float = 1.0, **settings: float) -> RetryPolicy:
    return RetryPolicy(clock=clock, random=lambda: random, **settings)  # type: ignore[arg-type]


def waits(schedule, clock, error, count):
    given = []
    for _ in range(count):
        schedule.next_attempt()
        wait = schedule.wait_after(error)
        given.append(wait)
        clock.now += wait or 0
    return given


def test_waits_grow_up_to_their_limit():
    clock = Clock()
    schedule = policy(clock, initial_backoff_seconds=0.1, max_backoff_seconds=0.5).begin()

    assert waits(schedule, clock, Unavailable("x"), 5) == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


def test_jitter_draws_the_whole_range():
    clock = Clock()

    low = policy(clock, random=0.0).begin()
    half = policy(clock, random=0.5, initial_backoff_seconds=0.2).begin()

    assert waits(low, clock, Unavailable("x"), 3) == [0.0, 0.0, 0.0]
    assert waits(half, clock, Unavailable("x"), 2) == pytest.approx([0.1, 0.2])


def test_the_servers_retry_info_is_waited_out_with_jitter_on_top():
    clock = Clock()
    schedule = policy(clock, random=0.5, initial_backoff_seconds=0.2).begin()

    assert waits(schedule, clock, LimitExceeded("x", retry_after_seconds=3.0), 1) == pytest.approx([3.1])


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("x"),
        ConnectionFailed("x"),
        DeadlineExceeded("x"),
        LimitExceeded("x", retry_after_seconds=0.0),
        StepExecuting("x", retry_after_seconds=0.1),
        Aborted("x", reason="THREAD_BUSY", retry_after_seconds=0.1),
    ],
)
def test_what_may_succeed_later_is_tried_again(error):
    schedule = policy(Clock()).begin()
    schedule.next_attempt()

    assert schedule.wait_after(error) is not None


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("x"),
        NotFound("x"),
        LimitExceeded("x"),
        StepExecuting("x"),
        Aborted("x"),
        Cancelled("x"),
        InternalError("x"),
        RpcError("x", code=grpc.StatusCode.UNKNOWN),
        DeadlineExceeded("x", reason="RUN_DEADLINE"),
    ],
)
def test_what_will_not_get_better_is_final(error):
    schedule = policy(Clock()).begin()
    schedule.next_attempt()

    assert schedule.wait_after(error) is None


def test_an_attempt_never_outlasts_the_whole():
    clock = Clock()
    schedule = policy(clock, overall_timeout_seconds=50, attempt_timeout_seconds=40).begin()

    assert schedule.next_attempt() == 40
    clock.now += 40
    assert schedule.next_attempt() == pytest.approx(10)
    clock.now += 30
    assert 0 < schedule.next_attempt() <= 0.001


def test_a_deadline_is_retried_only_while_time_is_left():
    clock = Clock()
    schedule = policy(clock, overall_timeout_seconds=50, attempt_timeout_seconds=40).begin()

    schedule.next_attempt()
    clock.now += 40
    assert schedule.wait_after(DeadlineExceeded("x")) is not None
    schedule.next_attempt()
    clock.now += 10
    assert schedule.wait_after(DeadlineExceeded("x")) is None


def test_a_wait_that_would_end_after_the_deadline_is_not_waited():
    clock = Clock()
    schedule = policy(clock, overall_timeout_seconds=10).begin()
    schedule.next_attempt()

    assert schedule.wait_after(Unavailable("x", retry_after_seconds=11)) is None


def test_a_steps_own_time_comes_on_top_and_a_limit_in_place():
    clock = Clock()
    settings = policy(clock, overall_timeout_seconds=10, attempt_timeout_seconds=1000)

    assert settings.begin(extra_seconds=300).next_attempt() == pytest.approx(310)
    assert settings.begin(extra_seconds=300, limit_seconds=5).next_attempt() == pytest.approx(5)


def test_the_number_of_attempts_can_be_limited_and_is_told():
    clock = Clock()
    schedule = policy(clock, max_attempts=3).begin()
    error = Unavailable("x")

    assert [wait is None for wait in waits(schedule, clock, error, 3)] == [False, False, True]
    assert error.attempts == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"overall_timeout_seconds": 0},
        {"attempt_timeout_seconds": -1},
        {"initial_backoff_seconds": -0.1},
        {"initial_backoff_seconds": 6},
        {"multiplier": 0.5},
        {"max_attempts": 0},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=r"must|between"):
        RetryPolicy(**settings)
