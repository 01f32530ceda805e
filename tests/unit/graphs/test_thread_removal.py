"""Pruning and deleting a thread beside what moves it on: on this server, and on another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.graph_definitions import APP
from tests.support.graph_runs import Call, GraphRuns, logs
from tests.support.virtual_time import virtual_time

from agenttx_server.graphs.runs.keyed_locks import KeyedLocks
from agenttx_server.graphs.runs.ports import RunFilter
from agenttx_server.graphs.runs.records import LIVE, RunStatus
from agenttx_server.graphs.runs.requests import (
    CopyRequest,
    ForkRequest,
    ResumeRequest,
    RunRefused,
    StartRequest,
    StateUpdate,
    UpdateRequest,
)


def _three() -> GraphRuns:
    return GraphRuns("START->a, a->b, b->c", {name: logs(name) for name in "abc"}, channels=APP)


def _first(of: Any, name: str, do: Callable[[], Awaitable[Any]]) -> None:
    """Have something done once before the store, or the engine, is called."""
    call, left = getattr(of, name), [do]

    async def after(*arguments: Any) -> Any:
        if left:
            await left.pop()()
        return await call(*arguments)

    setattr(of, name, after)


def _rows_of(runs: GraphRuns, thread: str) -> dict[str, int]:
    found = {
        table: sum(thread in row for row in rows.values()) for table, rows in runs.database.extra.items()
    }
    return {table: count for table, count in found.items() if count}


@virtual_time
async def test_a_thread_that_a_run_moves_on_while_it_is_pruned_keeps_its_head() -> None:
    runs = _three()
    await runs.start({"log": ["0"]})
    _first(runs.store, "all_values", lambda: runs.start({"log": ["1"]}))
    pruned = await runs.runs.removal.prune("t", 1)
    (kept,) = await runs.checkpoints()
    assert (pruned.deleted, pruned.kept, kept.number) == (7, 1, 7)
    assert await runs.state_at(kept) == {"log": [*"0abc1abc"]}
    assert (await runs.start({"log": ["2"]})).state == {"log": [*"0abc1abc2abc"]}


@virtual_time
async def test_a_thread_that_never_stands_still_is_not_pruned() -> None:
    runs = _three()
    await runs.start({"log": ["0"]})
    all_values = runs.store.all_values

    async def moving(thread_id: str) -> Any:
        await runs.start({"log": ["x"]})
        return await all_values(thread_id)

    runs.store.all_values = moving  # type: ignore[method-assign]
    with pytest.raises(RunRefused) as refused:
        await runs.runs.removal.prune("t", 1)
    assert refused.value.reason == "THREAD_BUSY"
    assert len(await runs.checkpoints()) == 4 * 21


@virtual_time
@pytest.mark.parametrize("what", ["prune", "copy"])
async def test_what_another_server_prunes_while_a_thread_is_read_is_not_missed(what: str) -> None:
    runs = _three()
    for number in range(3):
        await runs.start({"log": [str(number)]})
    other = runs._coordinator()
    _first(runs.store, "all_values", lambda: other.removal.prune("t", 2))
    if what == "prune":
        assert (await runs.runs.removal.prune("t", 1)).kept == 1
    else:
        assert (await runs.runs.copies.copy(CopyRequest("t", "copy"))).checkpoints == 2
    name = "t" if what == "prune" else "copy"
    kept = await runs.checkpoints(name)
    assert kept[0].parent is None
    assert await runs.state_at(kept[-1]) == {"log": [*"0abc1abc2abc"]}


@virtual_time
async def test_a_run_that_is_gone_on_with_leaves_what_another_server_made_of_its_thread() -> None:
    runs = _three()
    runs.functions["b"] = _fails
    assert (await runs.start({"log": ["0"]})).run.status is RunStatus.FAILED
    at = (await runs.checkpoints())[0].checkpoint_id
    other = runs._coordinator()
    edit = UpdateRequest("t", ((StateUpdate(update={"log": ["e"]}),),), checkpoint_id=at)
    _first(runs.store, "write", lambda: other.states.update(edit))
    with pytest.raises(RunRefused) as refused:
        await runs.retry()
    assert refused.value.reason == "THREAD_BUSY"
    thread = await runs.store.load_thread("t")
    assert thread is not None
    assert thread.next_number == len(await runs.checkpoints()) == 3
    assert thread.branch != "main"


@virtual_time
async def test_a_run_that_started_elsewhere_keeps_its_thread_from_being_deleted() -> None:
    gate = asyncio.Event()

    async def wait(call: Call) -> Any:
        await gate.wait()
        return {"log": ["waited"]}

    runs = GraphRuns("START->a", {"a": wait}, channels=APP)
    gate.set()
    await runs.start({"log": ["0"]})
    gate.clear()
    other = runs._coordinator()
    request = StartRequest(runs.graph.name, "", "t", {"log": ["1"]})
    _first(runs.store, "count_checkpoints", lambda: other.start(request, wait=False))
    with pytest.raises(RunRefused) as refused:
        await runs.runs.removal.delete("t")
    assert refused.value.reason == "THREAD_BUSY"
    gate.set()
    assert await other.stop(10.0) == 0
    assert (await runs.checkpoints())[-1].work == "{}"
    assert await runs.runs.removal.delete("t") == 4
    assert _rows_of(runs, "t") == {}


@virtual_time
@pytest.mark.parametrize("what", ["start", "edit", "retry", "branch", "read"])
async def test_what_goes_on_on_a_thread_that_is_deleted_meanwhile_leaves_nothing_behind(what: str) -> None:
    runs = _three()
    runs.functions["b"] = logs("b") if what != "retry" else _fails
    first = await runs.start({"log": ["0"]})
    if what == "retry":
        assert first.run.status is RunStatus.FAILED
    other = runs._coordinator()
    at = (await runs.checkpoints())[1].checkpoint_id
    of, call = {
        "start": (runs.engine.coordinator, "begin_run"),
        "branch": (runs.engine.coordinator, "begin_run"),
        "read": (runs.store, "load_values"),
    }.get(what, (runs.store, "write"))
    _first(of, call, lambda: other.removal.delete("t"))
    request = {
        "start": lambda: runs.start({"log": ["1"]}),
        "read": lambda: runs.start({"log": ["1"]}),
        "edit": lambda: runs.update(StateUpdate(update={"log": ["e"]})),
        "retry": runs.retry,
        "branch": lambda: runs.start({"log": ["1"]}, at=at),
    }[what]
    with pytest.raises(RunRefused) as refused:
        await request()
    assert refused.value.reason == ("CHECKPOINT_NOT_FOUND" if what == "read" else "THREAD_BUSY")
    assert await runs.runs.stop(600.0) == 0
    assert _rows_of(runs, "t") == {}
    assert (await runs.start({"log": ["anew"]})).state["log"][:2] == ["anew", "a"]


async def _fails(call: Call) -> Any:
    raise RuntimeError("no")


@virtual_time
async def test_a_branch_of_a_checkpoint_that_is_pruned_meanwhile_is_not_begun() -> None:
    runs = _three()
    await runs.start({"log": ["0"]})
    at = (await runs.checkpoints())[1].checkpoint_id
    other = runs._coordinator()
    _first(runs.engine.coordinator, "begin_run", lambda: other.removal.prune("t", 1))
    with pytest.raises(RunRefused) as refused:
        await runs.start({"log": ["1"]}, at=at)
    assert refused.value.reason == "THREAD_BUSY"
    (kept,) = await runs.checkpoints()
    assert await runs.state_at(kept) == {"log": [*"0abc"]}


@virtual_time
async def test_a_thread_deleted_twice_at_once_is_deleted_once() -> None:
    runs = _three()
    await runs.start({"log": ["0"]})
    for removals in (
        [runs.runs.removal, runs.runs.removal],
        [runs.runs.removal, runs._coordinator().removal],
    ):
        await runs.start({"log": ["0"]}, "u")
        outcomes = await asyncio.gather(
            *(removal.delete("u") for removal in removals), return_exceptions=True
        )
        assert 4 in outcomes
        assert [item.reason for item in outcomes if isinstance(item, RunRefused)] == ["THREAD_NOT_FOUND"]


@virtual_time
async def test_the_same_request_twice_at_once_is_done_once() -> None:
    runs = _three()
    request = StartRequest(
        runs.graph.name, "", "t", {"log": ["0"]}, request_id="s", fingerprint="f", queues=True
    )
    first, again = await asyncio.gather(runs.runs.start(request), runs.runs.start(request))
    assert first.run.run_id == again.run.run_id
    assert runs.calls == [*"abc"]

    edit = UpdateRequest("t", ((StateUpdate(update={"log": ["e"]}),),), request_id="u", fingerprint="f")
    one, two = await asyncio.gather(runs.runs.states.update(edit), runs.runs.states.update(edit))
    assert one.checkpoint == two.checkpoint
    fork = ForkRequest("t", new_thread_id="fork", request_id="k", fingerprint="f")
    copy = CopyRequest("t", new_thread_id="copy", request_id="c", fingerprint="f")
    copies = runs.runs.copies
    for made, same in (
        await asyncio.gather(copies.fork(fork), copies.fork(fork)),
        await asyncio.gather(copies.copy(copy), copies.copy(copy)),
    ):
        assert made.run.run_id == same.run.run_id
    assert len(await runs.checkpoints("t")) == 5


@virtual_time
async def test_the_same_request_sent_to_two_servers_is_done_once() -> None:
    runs = _three()
    other = runs._coordinator()
    request = StartRequest(
        runs.graph.name, "", "t", {"log": ["0"]}, request_id="s", fingerprint="f", queues=True
    )
    first, again = await asyncio.gather(runs.runs.start(request), other.start(request))
    assert first.run.run_id == again.run.run_id
    edit = UpdateRequest("t", ((StateUpdate(update={"log": ["e"]}),),), request_id="u", fingerprint="f")
    one, two = await asyncio.gather(runs.runs.states.update(edit), other.states.update(edit))
    assert one.checkpoint == two.checkpoint
    fork = ForkRequest("t", new_thread_id="fork", request_id="k", fingerprint="f")
    made, same = await asyncio.gather(runs.runs.copies.fork(fork), other.copies.fork(fork))
    assert made.run.run_id == same.run.run_id
    assert not [run for run in await _statuses(runs) if run in LIVE]


async def _statuses(runs: GraphRuns) -> list[RunStatus]:
    return [run.status for run in (await runs.store.list_runs(RunFilter(), "", 100)).runs]


async def test_a_lock_of_a_key_is_had_in_turn_and_forgotten() -> None:
    locks, order = KeyedLocks(), []

    async def hold(name: str, key: str | None) -> None:
        async with locks.hold(key):
            order.append(f"{name}+")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            order.append(f"{name}-")

    async with asyncio.timeout(5):
        await asyncio.gather(hold("a", "k"), hold("b", "k"))
        assert order == ["a+", "a-", "b+", "b-"]
        order.clear()
        await asyncio.gather(hold("a", None), hold("b", None))
        assert order == ["a+", "b+", "a-", "b-"]
    # One who goes away while waiting leaves nothing either.
    async with locks.hold("k"):
        waiting = asyncio.ensure_future(hold("c", "k"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(locks) == 0


@virtual_time
async def test_a_thread_that_is_deleted_beside_a_resume_of_another_server_stays_deleted() -> None:
    async def ask(call: Call) -> Any:
        return {"log": [call.interrupt("on?")]}

    runs = GraphRuns("START->a, a->ask", {"a": logs("a"), "ask": ask}, channels=APP)
    run_id = (await runs.start({"log": ["0"]})).run.run_id
    other, ends = runs._coordinator(), asyncio.Event()
    turn = other._parts.transactions.turn

    @asynccontextmanager
    async def late(transaction_id: str, run: str) -> AsyncIterator[Any]:
        await ends.wait()
        async with turn(transaction_id, run) as taken:
            yield taken

    other._parts.transactions.turn = late  # type: ignore[method-assign]
    rows_when_rewound, resumed = runs.engine.coordinator._services.run_owner.rows_when_rewound, []

    async def beside(*arguments: Any) -> Any:
        if not resumed:
            resumed.append(await other.resume(ResumeRequest("t", 5, has_value=True), wait=False))
        return await rows_when_rewound(*arguments)

    runs.engine.coordinator._services.run_owner.rows_when_rewound = beside  # type: ignore[method-assign]
    await runs.runs.removal.delete("t")
    assert resumed
    ends.set()
    with pytest.raises(RunRefused, match="there is no run"):
        await asyncio.wait_for(other.wait_for(run_id), 60)
    assert _rows_of(runs, "t") == {}
