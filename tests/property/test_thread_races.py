"""Requests about threads at once, on two servers, in any order of what they await: a thread is whole, or gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graph_definitions import APP
from tests.support.graph_runs import GraphRuns, logs
from tests.support.virtual_time import run_in_virtual_time

from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.runs.position import position_at
from agenttx_server.graphs.runs.records import LIVE, CheckpointRecord, RunRecord, RunStatus, ThreadRecord
from agenttx_server.graphs.runs.requests import (
    CopyRequest,
    ForkRequest,
    InputPolicy,
    ResumeRequest,
    RetryRequest,
    RunRefused,
    StartRequest,
    StateUpdate,
    UpdateRequest,
)
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator
from agenttx_server.graphs.runs.run_rewinder import RewindRunRequest
from agenttx_server.store import run_rows

THREADS = ("t", "u")
REFUSALS = {
    "THREAD_BUSY",
    "THREAD_NOT_FOUND",
    "THREAD_EXISTS",
    "CHECKPOINT_NOT_FOUND",
    "NOTHING_TO_RESUME",
    "RUN_NOT_FOUND",
    "ILLEGAL_TRANSITION",
    "INTERRUPT_PENDING",
    "INTERRUPT_ALREADY_RESOLVED",
    "AMBIGUOUS_RESUME",
}


class Slowly:
    """A store whose calls take a while, as drawn: what others do comes between."""

    def __init__(self, store: Any, pauses: list[int]) -> None:
        self._store = store
        self._pauses = pauses
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def slowly(*arguments: Any, **named: Any) -> Any:
            self._calls += 1
            for _ in range(self._pauses[self._calls % len(self._pauses)]):
                await asyncio.sleep(0)
            return await found(*arguments, **named)

        return slowly


actions = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "start",
                "queue",
                "reset",
                "branch",
                "edit",
                "edit_at",
                "retry",
                "resume",
                "rewind",
                "discard",
                "fork",
                "copy",
                "prune",
                "delete",
                "cancel",
            ]
        ),
        st.sampled_from(THREADS),
        st.booleans(),
        st.integers(0, 3),
    ),
    min_size=2,
    max_size=7,
)


@settings(max_examples=40)
@given(actions, st.lists(st.sampled_from([0, 1, 4, 15, 60]), min_size=1, max_size=12))
def test_a_thread_is_whole_or_gone_whatever_is_asked_at_once(
    asked: list[tuple[str, str, bool, int]], pauses: list[int]
) -> None:
    with _no_error_logged():
        run_in_virtual_time(_scenario(asked, pauses))


@contextmanager
def _no_error_logged() -> Iterator[None]:
    """Who loses a race is refused: that is no error of the server's."""
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(f"{record.getMessage()}: {record.exc_info}")  # type: ignore[method-assign]
    logging.getLogger("agenttx_server").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("agenttx_server").removeHandler(handler)
    assert errors == []


async def _scenario(asked: list[tuple[str, str, bool, int]], pauses: list[int]) -> None:
    runs = GraphRuns("START->a, a->b", {"a": logs("a"), "b": _fails_at_times()}, channels=APP)
    whole = runs.store
    for thread in THREADS:
        await runs.start({"log": ["0"]}, thread)
    ids = {thread: [item.checkpoint_id for item in await runs.checkpoints(thread)] for thread in THREADS}
    runs.store = Slowly(whole, pauses)  # type: ignore[assignment]
    slowly = Slowly(runs.engine.coordinator, pauses).begin_run
    begin, runs.engine.coordinator.begin_run = runs.engine.coordinator.begin_run, slowly  # type: ignore[method-assign]
    servers = [runs._coordinator(), runs._coordinator()]
    calls = [
        _asked(runs, servers[other], action, thread, ids[thread][at % len(ids[thread])], number)
        for number, (action, thread, other, at) in enumerate(asked)
    ]
    async with asyncio.timeout(3600):
        outcomes = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
        for server in servers:
            assert await server.stop(3600) == 0
    for outcome in outcomes:
        if isinstance(outcome, RunRefused):
            assert outcome.reason in REFUSALS, outcome
        elif isinstance(outcome, BaseException):
            raise outcome
    runs.store = whole
    runs.engine.coordinator.begin_run = begin  # type: ignore[method-assign]
    await _check(runs)


def _fails_at_times() -> Any:
    called = 0

    async def node(call: Any) -> Any:
        nonlocal called
        called += 1
        if called % 3 == 0:
            raise RuntimeError("now and then")
        if called % 4 == 0:
            call.interrupt("now and then")
        return {"log": ["b"]}

    return node


def _asked(
    runs: GraphRuns, server: RunCoordinator, action: str, thread: str, at: str, number: int
) -> Callable[[], Awaitable[Any]]:
    name = runs.graph.name
    given = {"log": [f"s{number}"]}
    edit = ((StateUpdate(update={"log": [f"e{number}"]}),),)
    match action:
        case "start" | "queue" | "reset":
            policy = InputPolicy.RESET if action == "reset" else InputPolicy.MERGE
            request = StartRequest(
                name,
                "",
                thread,
                given,
                input_policy=policy,
                queues=action == "queue",
                request_id=f"r{number}",
            )
            return lambda: server.start(request)
        case "branch":
            return lambda: server.start(StartRequest(name, "", thread, given, checkpoint_id=at))
        case "edit":
            return lambda: server.states.update(UpdateRequest(thread, edit))
        case "edit_at":
            return lambda: server.states.update(UpdateRequest(thread, edit, checkpoint_id=at))
        case "retry":
            return lambda: server.retry(RetryRequest(thread))
        case "resume":
            return lambda: server.resume(ResumeRequest(thread, 1, has_value=True))
        case "rewind":
            return lambda: server.rewinds.rewind(RewindRunRequest(thread, at))
        case "discard":
            request = StartRequest(name, "", thread, given, discards_interrupts=True)
            return lambda: server.start(request)
        case "fork":
            return lambda: server.copies.fork(ForkRequest(thread, at, f"f{number}"))
        case "copy":
            return lambda: server.copies.copy(CopyRequest(thread, f"c{number}"))
        case "prune":
            return lambda: server.removal.prune(thread, 1)
        case "delete":
            return lambda: server.removal.delete(thread)
        case _:
            return lambda: _cancel(runs, server, thread)


async def _cancel(runs: GraphRuns, server: RunCoordinator, thread: str) -> None:
    found = await runs.store.load_thread(thread)
    if found is not None:
        await server.cancel_and_roll_back(found.run_id, "no")


async def _check(runs: GraphRuns) -> None:
    """Each thread that is there can be read whole, and gone on with; of one that isn't nothing is left."""
    extra = runs.database.extra
    threads: dict[str, ThreadRecord] = {
        thread.thread_id: thread for thread in map(run_rows.THREAD.record, extra["graph_threads"].values())
    }
    records: list[RunRecord] = [run_rows.RUN.record(row) for row in extra["graph_runs"].values()]
    assert not [run for run in records if run.status in LIVE]
    assert {run.thread_id for run in records} == set(threads)
    checkpoints: list[CheckpointRecord] = [
        run_rows.CHECKPOINT.record(row) for row in extra["graph_checkpoints"].values()
    ]
    values = [run_rows.VALUE.record(row) for row in extra["graph_values"].values()]
    assert {item.thread_id for item in (*checkpoints, *values)} <= set(threads)
    numbers = {(item.thread_id, item.number) for item in checkpoints}
    for item in checkpoints:
        assert item.parent is None or (item.thread_id, item.parent) in numbers
        await position_at(runs.store, item)
    by_id = {run.run_id: run for run in records}
    for thread in threads.values():
        assert thread.head is None or (thread.thread_id, thread.head) in numbers
        assert thread.committed_head is None or (thread.thread_id, thread.committed_head) in numbers
        run = by_id[thread.run_id]
        if thread.transaction_id:
            assert await runs.engine.coordinator.is_open(TransactionId(thread.transaction_id))
        if run.transaction_id and run.status is not RunStatus.COMPLETED:
            assert await runs.engine.coordinator.is_open(TransactionId(run.transaction_id)), run
        await runs.start({"log": ["last"]}, thread.thread_id, discard=True)
