"""The writer's inbox: who is woken when, and that nothing put in is lost or waits for ever."""

from __future__ import annotations

import random
import threading
from collections import deque

from agenttx_server.store.writer_inbox import WriterInbox


class Waiter(threading.Thread):
    """Waits once and keeps what was there when it went on."""

    def __init__(self, inbox: WriterInbox[int], wanted: int, seconds: float = 60.0) -> None:
        super().__init__(daemon=True)
        self.inbox, self.wanted, self.seconds = inbox, wanted, seconds
        self.found: list[int] = []

    def run(self) -> None:
        self.inbox.wait(self.wanted, self.seconds)
        while (item := self.inbox.take()) is not None:
            self.found.append(item)

    def is_waiting(self) -> bool:
        return self.inbox._wanted == self.wanted


def started(waiter: Waiter) -> Waiter:
    waiter.start()
    while not waiter.is_waiting():
        waiter.join(0.001)
        assert waiter.is_alive()
    return waiter


def test_a_wait_ends_when_as_many_are_there_as_it_is_for_and_not_before():
    inbox: WriterInbox[int] = WriterInbox()
    waiter = started(Waiter(inbox, wanted=3))

    inbox.put(1)
    inbox.put(2)

    assert waiter.is_waiting()
    inbox.put(3)
    waiter.join(30)
    assert waiter.found == [1, 2, 3]


def test_what_is_to_be_done_at_once_ends_a_wait_for_more():
    inbox: WriterInbox[int] = WriterInbox()
    waiter = started(Waiter(inbox, wanted=50))

    inbox.put(1)
    inbox.put(2, at_once=True)

    waiter.join(30)
    assert waiter.found == [1, 2]


def test_a_wait_for_what_is_there_already_does_not_begin():
    inbox: WriterInbox[int] = WriterInbox()
    inbox.put(1)
    inbox.put(2)

    inbox.wait(2, seconds=60.0)

    assert [inbox.take(), inbox.take(), inbox.take()] == [1, 2, None]


def test_a_wait_ends_when_its_time_is_up():
    inbox: WriterInbox[int] = WriterInbox()
    waiter = Waiter(inbox, wanted=2, seconds=0.001)
    inbox.put(1)

    waiter.start()

    waiter.join(30)
    assert waiter.found == [1]


def test_waits_that_end_just_as_they_are_woken_lose_nothing():
    inbox: WriterInbox[tuple[int, int]] = WriterInbox()
    makers, each, chance = 4, 500, random.Random(7)

    def make(maker: int) -> None:
        for number in range(each):
            inbox.put((maker, number), at_once=number % 17 == 0)

    threads = [threading.Thread(target=make, args=(maker,), daemon=True) for maker in range(makers)]
    for thread in threads:
        thread.start()
    found: list[tuple[int, int]] = []
    while len(found) < makers * each:
        inbox.wait(chance.randint(1, 5), seconds=chance.choice([0.0, 0.00005, 0.0005]))
        while (item := inbox.take()) is not None:
            found.append(item)

    for maker in range(makers):
        assert [number for one, number in found if one == maker] == list(range(each))


class Item:
    """Equal to itself alone, as what the writer is given."""


def test_what_waits_is_taken_back_at_most_once_and_the_rest_keeps_its_order():
    inbox: WriterInbox[Item] = WriterInbox()
    items = [Item() for _ in range(4)]
    for item in items:
        inbox.put(item)

    assert inbox.waiting() == items
    assert inbox.withdraw(items[1])
    assert not inbox.withdraw(items[1])
    assert inbox.take() is items[0]
    assert not inbox.withdraw(items[0])
    assert inbox.waiting() == items[2:]


class _EmptiedJustNow(deque[Item]):
    """Was not empty when it was looked at."""

    def __bool__(self) -> bool:
        return True


def test_the_writer_goes_on_if_the_last_item_is_taken_back_while_it_takes_it():
    inbox: WriterInbox[Item] = WriterInbox()
    inbox._items = _EmptiedJustNow()

    assert inbox.take() is None
