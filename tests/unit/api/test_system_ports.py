"""The real clock and ids."""

import itertools
import threading
import time
import uuid

import pytest

from agenttx_server import system_ports
from agenttx_server.system_ports import SystemClock, SystemIds


def test_now_is_microseconds_since_1970():
    before = time.time()
    now = SystemClock().now()
    after = time.time()

    assert before - 0.001 <= now / 1_000_000 <= after + 0.001


def test_ids_are_version_7_and_carry_the_time():
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(SystemIds().new_id())
    after = time.time_ns() // 1_000_000

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= after


def test_ids_grow_in_the_order_of_their_making():
    ids = SystemIds()
    made = [ids.new_id() for _ in range(20_000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)


@pytest.fixture
def frozen_clock(monkeypatch):
    clock = {"nanoseconds": 1_700_000_000_000_000_000}
    monkeypatch.setattr(system_ports.time, "time_ns", lambda: clock["nanoseconds"])
    return clock


def test_ids_grow_while_the_clock_stands_or_goes_back(frozen_clock):
    ids = SystemIds()
    made = [ids.new_id()]
    for _ in range(1000):
        made.append(ids.new_id())
    frozen_clock["nanoseconds"] -= 3_600_000_000_000
    for _ in range(1000):
        made.append(ids.new_id())

    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_go_on_in_the_next_millisecond_when_one_is_used_up(frozen_clock):
    ids = SystemIds()
    first = ids.new_id()
    ids._number = (1 << SystemIds._RANDOM_BITS) - 1
    second = ids.new_id()

    assert second > first
    assert (uuid.UUID(second).int >> 80) == (uuid.UUID(first).int >> 80) + 1
    assert uuid.UUID(second).version == 7


def test_the_next_id_can_not_be_guessed_from_the_last(frozen_clock):
    ids = SystemIds()
    numbers = [uuid.UUID(ids.new_id()).int for _ in range(50)]
    steps = {later - earlier for earlier, later in itertools.pairwise(numbers)}

    assert len(steps) == 49


def test_ids_of_several_threads_are_all_different():
    ids = SystemIds()
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.extend([ids.new_id() for _ in range(2000)])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(made)) == 8000


def test_random_numbers_for_jitter():
    ids = SystemIds()

    assert all(0 <= ids.random() < 1 for _ in range(100))
