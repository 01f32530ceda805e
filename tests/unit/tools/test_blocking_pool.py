"""The pool of daemon threads. Events decide the order of everything; nothing sleeps for luck."""

import asyncio
import contextvars
import queue
import subprocess
import sys
import textwrap
import threading
import types

import pytest

from agenttx.tools.blocking_pool import BlockingPool, NeverStarted, waiting_for_another_call

LONG = 30.0  # an upper bound that is only reached when a test fails


class Gate:
    """Blocking work that says when it runs and ends when told to."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.released = threading.Event()

    def __call__(self) -> str:
        self.started.set()
        assert self.released.wait(LONG)
        return "done"

    async def wait_started(self) -> None:
        await asyncio.to_thread(self.started.wait, LONG)


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_work_runs_in_a_daemon_thread_and_its_result_comes_back():
    def work() -> tuple[bool, str]:
        return threading.current_thread().daemon, threading.current_thread().name

    assert await BlockingPool(1, "test-pool").run(work) == (True, "test-pool-1")


async def test_an_error_comes_back_as_it_was_raised():
    def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        await BlockingPool(1, "test").run(work)


async def test_a_stop_iteration_does_not_end_up_as_a_hanging_call():
    def work() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError):
        await asyncio.wait_for(BlockingPool(1, "test").run(work), LONG)


async def test_the_loop_goes_on_while_all_threads_are_blocked_and_excess_calls_wait():
    pool = BlockingPool(2, "test")
    gates = [Gate() for _ in range(3)]
    calls = [asyncio.create_task(pool.run(gate)) for gate in gates]
    await gates[0].wait_started()
    await gates[1].wait_started()

    await ticks(10)
    assert pool.threads == 2
    assert not gates[2].started.is_set()

    gates[0].released.set()
    await gates[2].wait_started()
    gates[1].released.set()
    gates[2].released.set()
    assert await asyncio.gather(*calls) == ["done"] * 3
    assert pool.threads == 2


async def test_calls_are_started_in_the_order_in_which_they_came():
    pool = BlockingPool(1, "test")
    gate, order = Gate(), []
    first = asyncio.create_task(pool.run(gate))
    await gate.wait_started()
    others = [
        asyncio.create_task(pool.run(lambda number=number: order.append(number))) for number in range(5)
    ]
    await ticks(3)
    gate.released.set()
    await asyncio.gather(first, *others)

    assert order == [0, 1, 2, 3, 4]


async def test_an_idle_thread_is_used_again():
    pool = BlockingPool(8, "test")
    for _ in range(5):
        await pool.run(lambda: None)
        while pool.idle_threads == 0:  # noqa: ASYNC110 — the thread answers before it waits again
            await asyncio.sleep(0)

    assert pool.threads == 1


async def test_cancelling_a_running_call_asks_it_to_stop_and_waits_for_its_end():
    pool = BlockingPool(1, "test")
    gate, asked = Gate(), threading.Event()
    call = asyncio.create_task(pool.run(gate, asked.set))
    await gate.wait_started()

    call.cancel()
    await ticks(10)
    assert asked.is_set()
    assert not call.done(), "the thread still runs, so the call has not ended"

    call.cancel()
    await ticks(10)
    assert not call.done(), "however often it is cancelled"

    gate.released.set()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_what_a_cancelled_call_raised_is_the_cause_of_the_cancellation():
    pool = BlockingPool(1, "test")
    gate = Gate()

    def work() -> None:
        gate()
        raise OSError("the connection was cut")

    call = asyncio.create_task(pool.run(work))
    await gate.wait_started()
    call.cancel()
    await ticks(2)
    gate.released.set()

    with pytest.raises(asyncio.CancelledError) as cancelled:
        await call
    assert isinstance(cancelled.value.__cause__, OSError)


async def test_a_call_cancelled_in_the_queue_never_runs_and_says_so():
    pool = BlockingPool(1, "test")
    gate, ran = Gate(), threading.Event()
    running = asyncio.create_task(pool.run(gate))
    await gate.wait_started()
    queued = asyncio.create_task(pool.run(ran.set))
    await ticks(3)

    queued.cancel()
    with pytest.raises(NeverStarted):
        await queued

    gate.released.set()
    await running
    await pool.run(lambda: None)  # whatever was in the queue has been taken
    assert not ran.is_set()


async def test_context_variables_reach_the_thread():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("of the caller")

    assert await BlockingPool(1, "test").run(variable.get) == "of the caller"


async def test_threads_end_when_they_are_idle_and_come_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agenttx.tools.blocking_pool.IDLE_SECONDS", 0.0)
    pool = BlockingPool(1, "test")
    thread = await pool.run(threading.current_thread)
    await asyncio.to_thread(thread.join, LONG)
    assert pool.threads == 0

    assert await pool.run(lambda: "again") == "again"


async def test_a_call_that_comes_while_the_last_thread_gives_up_waiting_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
):
    gave_up, came = threading.Event(), threading.Event()

    class Queue(queue.SimpleQueue):
        def put(self, item: object, *rest: object) -> None:
            super().put(item, *rest)
            if gave_up.is_set():
                came.set()

        def get(self, *rest: object, timeout: float | None = None) -> object:
            if timeout is not None and self.empty() and not gave_up.is_set():
                gave_up.set()
                assert came.wait(LONG)
                raise queue.Empty
            return super().get(*rest, timeout=timeout)

    monkeypatch.setattr(
        "agenttx.tools.blocking_pool.queue",
        types.SimpleNamespace(SimpleQueue=Queue, Empty=queue.Empty),
    )
    pool = BlockingPool(1, "test")
    first = asyncio.create_task(pool.run(lambda: 1))
    await asyncio.to_thread(gave_up.wait, LONG)

    assert await asyncio.wait_for(pool.run(lambda: 2), LONG) == 2
    assert await first == 1


def test_a_pool_without_threads_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        BlockingPool(0, "test")


async def test_a_thread_that_waits_for_another_call_leaves_that_one_its_place():
    pool, loop = BlockingPool(1, "test"), asyncio.get_running_loop()

    def outer(depth: int) -> int:
        if not depth:
            return 0
        inner = pool.run(lambda: outer(depth - 1))
        with waiting_for_another_call():
            return 1 + asyncio.run_coroutine_threadsafe(inner, loop).result(LONG)

    calls = [pool.run(lambda: outer(2)) for _ in range(3)]
    assert await asyncio.wait_for(asyncio.gather(*calls), LONG) == [2, 2, 2]


def test_a_thread_that_is_stuck_for_ever_does_not_keep_the_process():
    script = """
        import asyncio, os, threading
        from agenttx.tools.blocking_pool import BlockingPool

        async def main():
            started = threading.Event()
            def stuck():
                started.set()
                threading.Event().wait()
            call = asyncio.ensure_future(BlockingPool(1, "test").run(stuck))
            await asyncio.get_running_loop().run_in_executor(None, started.wait)
            print("leaving", flush=True)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )

    assert ended.stdout == "leaving\n"
    assert ended.returncode == 0
