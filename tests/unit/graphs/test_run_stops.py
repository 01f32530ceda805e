"""CancelRun, DrainRun, RewindRun and DeleteThread: words to other servers, and the same request again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.graph_definitions import APP
from tests.support.graph_runs import Call, GraphRuns, logs
from tests.support.virtual_time import virtual_time

from agenttx_server.graphs.definition import GraphPolicy
from agenttx_server.graphs.runs.ports import RunChange
from agenttx_server.graphs.runs.records import RequestRecord, RunStatus, StopKind, StopRequest
from agenttx_server.graphs.runs.requests import RunRefused, StartRequest
from agenttx_server.graphs.runs.run_rewinder import RewindRunRequest
from agenttx_server.graphs.runs.run_stops import RunStops


class Served:
    """A run under way on one server, and the stops of that one and of another."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

        async def wait(call: Call) -> Any:
            await self.gate.wait()
            return {"log": ["a"]}

        self.runs = GraphRuns("START->a, a->b", {"a": wait, "b": logs("b")}, channels=APP)
        self.here = RunStops(self.runs.runs, self.runs.store, self.runs.engine.clock)
        self.elsewhere = RunStops(self.runs._coordinator(), self.runs.store, self.runs.engine.clock)

    async def start(self) -> str:
        request = StartRequest(self.runs.graph.name, "", "t", {"log": ["0"]})
        return (await self.runs.runs.start(request, wait=False)).run.run_id

    async def ended(self, run_id: str) -> RunStatus:
        await self.here.take((run_id,))
        return (await self.runs.runs.wait_for(run_id)).run.status

    async def words(self, run_id: str) -> list[StopKind]:
        return [word.kind for word in await self.runs.store.list_stops([run_id])]


def asked(name: str, method: str) -> RequestRecord:
    return RequestRecord("anonymous", name, method, "f", "")


@virtual_time
async def test_a_drain_takes_no_cancellation_of_another_server_back() -> None:
    served = Served()
    run_id = await served.start()
    await served.elsewhere.cancel(run_id, "enough")
    await served.elsewhere.drain(run_id, None)
    assert await served.words(run_id) == [StopKind.CANCEL, StopKind.DRAIN]
    assert await served.ended(run_id) is RunStatus.CANCELLED
    assert await served.words(run_id) == []
    # Cancelled it stays; asking again is no error.
    assert (await served.elsewhere.cancel(run_id, "again")).status is RunStatus.CANCELLED
    with pytest.raises(RunRefused) as refused:
        await served.elsewhere.drain(run_id, None)
    assert refused.value.reason == "ILLEGAL_TRANSITION"


@virtual_time
async def test_a_word_is_kept_until_it_was_acted_on_and_is_for_one_invocation() -> None:
    served = Served()
    store = served.runs.store
    run_id = await served.start()
    await store.write(RunChange(stops=[StopRequest(run_id, StopKind.CANCEL, "late", 0)]))
    await served.here.take((run_id,))
    assert await served.words(run_id) == [], "meant for an invocation that has ended"
    await store.write(RunChange(stops=[StopRequest(run_id, StopKind.CANCEL, "early", 2)]))
    await served.elsewhere.take((run_id,))
    assert await served.words(run_id) == [StopKind.CANCEL], "that server isn't at the run"
    served.gate.set()
    assert await served.ended(run_id) is RunStatus.COMPLETED
    assert await served.words(run_id) == [StopKind.CANCEL], "there has been no such invocation"


@virtual_time
async def test_the_same_request_to_stop_stops_nothing_that_was_begun_since() -> None:
    served = Served()
    run_id = await served.start()
    for stops in (served.here, served.elsewhere):
        request = asked("cancel-" + str(id(stops)), "CancelRun")
        await stops.cancel(run_id, "enough", request)
        assert await served.ended(run_id) is RunStatus.CANCELLED
        retried = asyncio.ensure_future(served.runs.retry())
        await asyncio.sleep(0.01)  # of virtual time: it is under way then
        again = await stops.cancel(run_id, "enough", request)
        assert again.status is RunStatus.RUNNING
        assert await served.words(run_id) == []
        assert not retried.done()
    drain = asked("drain", "DrainRun")
    await served.elsewhere.drain(run_id, None, drain)
    await served.here.take((run_id,))
    served.gate.set()
    assert (await retried).run.status is RunStatus.DRAINED
    assert (await served.elsewhere.drain(run_id, None, drain)).status is RunStatus.DRAINED
    with pytest.raises(RunRefused) as refused:
        await served.here.cancel(run_id, "", asked("drain", "CancelRun"))
    assert refused.value.reason == "REQUEST_ID_REUSED"


@virtual_time
async def test_the_same_request_to_roll_back_rolls_back_once() -> None:
    served = Served()
    run_id = await served.start()
    request = asked("roll back", "CancelRun")
    first = await served.here.cancel_and_roll_back(run_id, "no", request)
    assert (first.status, first.transaction_id) == (RunStatus.CANCELLED, "")
    served.gate.set()
    assert (await served.runs.retry()).run.status is RunStatus.COMPLETED
    again = await served.elsewhere.cancel_and_roll_back(run_id, "no", request)
    assert again.status is RunStatus.COMPLETED, "it says how the run stands"


@virtual_time
async def test_the_same_request_to_rewind_undoes_nothing_that_came_since() -> None:
    runs = GraphRuns(
        "START->a, a->b, b->c",
        {name: logs(name) for name in "abc"},
        channels=APP,
        policy=GraphPolicy(interrupt_before=("c",)),
    )
    await runs.start({"log": ["0"]})
    checkpoints = await runs.checkpoints()
    rewind = RewindRunRequest("t", checkpoints[1].checkpoint_id, request=asked("rewind", "RewindRun"))
    done, same = await asyncio.gather(runs.runs.rewinds.rewind(rewind), runs.runs.rewinds.rewind(rewind))
    assert (done.undone.steps, same.undone.steps) == (1, 0)
    assert (await runs.retry()).state["log"] == ["0", "a", "b"]
    again = await runs._coordinator().rewinds.rewind(rewind)
    assert (again.undone.steps, again.checkpoint_id) == (0, checkpoints[1].checkpoint_id)
    assert (await runs.retry()).state["log"] == ["0", "a", "b", "c"]
    other = RequestRecord("anonymous", "rewind", "RewindRun", "another", "")
    with pytest.raises(RunRefused) as refused:
        await runs.runs.rewinds.rewind(RewindRunRequest("t", checkpoints[0].checkpoint_id, request=other))
    assert refused.value.reason == "REQUEST_ID_REUSED"


@virtual_time
async def test_the_same_request_to_delete_is_answered_as_before_though_the_thread_is_there_again() -> None:
    runs = GraphRuns("START->a", {"a": logs("a")}, channels=APP)
    await runs.start({"log": ["0"]})
    request = asked("delete", "DeleteThread")
    removal = runs.runs.removal
    assert await asyncio.gather(removal.delete("t", request), removal.delete("t", request)) == [2, 2]
    await runs.start({"log": ["anew"]})
    assert await runs._coordinator().removal.delete("t", request) == 2
    assert len(await runs.checkpoints()) == 2


@virtual_time
async def test_a_word_to_a_run_whose_thread_is_deleted_meanwhile_is_not_left_behind() -> None:
    served = Served()
    run_id = await served.start()
    served.gate.set()
    await served.runs.runs.wait_for(run_id)
    store = served.runs.store
    load, run = store.load_run, await store.load_run(run_id)
    assert run is not None

    async def as_it_was(name: str) -> Any:
        store.load_run = load  # type: ignore[method-assign]
        await served.runs.runs.removal.delete("t")
        return replace(run, status=RunStatus.RUNNING)

    store.load_run = as_it_was  # type: ignore[method-assign]
    with pytest.raises(RunRefused) as refused:
        await served.elsewhere.cancel(run_id, "late", asked("late", "CancelRun"))
    assert refused.value.reason == "RUN_NOT_FOUND"
    assert await served.words(run_id) == []
    assert await store.find_request("anonymous", "late") is None


@pytest.mark.parametrize("asked_at", ["here", "elsewhere"])
def test_f30_a_drain_whose_grace_is_over_cancels_the_node_that_runs(asked_at: str) -> None:
    """The node sees that it is cancelled after a second, and the next one never runs; one that ends before is drained."""
    seen: list[Any] = []

    @virtual_time
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        seconds = 30.0

        async def sleeps(call: Call) -> Any:
            begun = loop.time()
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                seen.append(loop.time() - begun)
                raise
            return {"log": ["a"]}

        served = Served()
        served.runs.functions["a"] = sleeps
        run_id = await served.start()
        await (served.here if asked_at == "here" else served.elsewhere).drain(run_id, 1_000_000)
        assert await served.ended(run_id) is RunStatus.CANCELLED
        assert (seen, served.runs.calls) == ([pytest.approx(1.0)], ["a"])

        seconds = 0.5
        again = asyncio.ensure_future(served.runs.retry())
        await asyncio.sleep(0.1)
        await served.here.drain(run_id, 1_000_000)
        assert (await again).run.status is RunStatus.DRAINED
        await asyncio.sleep(2)
        assert (await served.runs.retry()).run.status is RunStatus.COMPLETED

    scenario()
