"""Runs of owners with quotas: nodes wait for their turn, and where nothing more may be stored the run fails and can be retried."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tests.support.graph_definitions import APP
from tests.support.graph_runs import GraphRuns, embedding, inner, logs
from tests.support.virtual_time import virtual_time

from agenttx_server.api.step_rates import StepRates
from agenttx_server.engine.errors import LimitExceeded
from agenttx_server.graphs.runs.records import RunStatus
from agenttx_server.graphs.runs.requests import RetryRequest, StartRequest
from agenttx_server.graphs.runs.run_stops import RunStops

WIDE = "START->a, START->b, START->c, a->d, b->d, c->d"


class Pace:
    """One step a second, each owner noted."""

    def __init__(self) -> None:
        self.owners: list[str] = []
        self._rates = StepRates(1, lambda tenant: 0, lambda: asyncio.get_running_loop().time())

    def turn(self, owner: str) -> Awaitable[None] | None:
        self.owners.append(owner)
        return self._rates.turn(owner)


@virtual_time
async def test_nodes_wait_for_their_turn_also_inside_a_graph_and_no_timeout_of_theirs_runs_meanwhile() -> (
    None
):
    pace = Pace()
    deep = inner("deep", "START->x, x->y", {"x": logs("x"), "y": logs("y")}, channels=APP)
    runs = GraphRuns(
        WIDE + ", d->e",
        {name: logs(name) for name in "abcd"},
        channels=APP,
        nodes={
            "e": embedding("deep"),
            **{name: {"run_timeout_us": 500_000, "idle_timeout_us": 500_000} for name in "abcd"},
        },
        embeds=[deep],
        step_turn=pace.turn,
    )
    began = asyncio.get_running_loop().time()
    outcome = await runs.start({"log": []}, thread="t")
    assert outcome.run.status is RunStatus.COMPLETED, outcome.run.error
    # Seven steps: those of a to e, and the two inside e. The first finds a full bucket.
    assert pace.owners == ["anonymous"] * 7
    assert 6 <= asyncio.get_running_loop().time() - began < 7


@virtual_time
async def test_a_run_that_waits_for_its_turn_is_cancelled_at_once() -> None:
    never: asyncio.Event = asyncio.Event()
    waits = asyncio.Event()

    def turn(owner: str) -> Awaitable[None]:
        waits.set()
        return never.wait()  # type: ignore[return-value]

    runs = GraphRuns("START->a", {"a": logs("a")}, channels=APP, step_turn=turn)
    stops = RunStops(runs.runs, runs.store, runs.engine.clock)
    started = await runs.runs.start(StartRequest(runs.graph.name, "", "t", {"log": []}), wait=False)
    await waits.wait()
    await stops.cancel(started.run.run_id, "enough")
    ended = await runs.runs.wait_for(started.run.run_id)
    assert ended.run.status is RunStatus.CANCELLED
    assert runs.calls == []


@virtual_time
async def test_a_run_whose_owner_may_store_no_more_fails_and_goes_on_when_there_is_room() -> None:
    full = False

    def check(owner: str) -> None:
        if full:
            raise LimitExceeded("as much as may be", reason="QUOTA_EXCEEDED", metadata={"limit": "9"})

    async def fills(call: object) -> object:
        nonlocal full
        full = True
        return {"log": ["a"]}

    runs = GraphRuns(
        "START->a, a->b, b->c",
        {"a": fills, "b": logs("b"), "c": logs("c")},
        channels=APP,
        check_stored=check,
    )
    outcome = await runs.start({"log": []}, thread="t")
    assert (outcome.run.status, outcome.run.error and outcome.run.error.reason) == (
        RunStatus.FAILED,
        "QUOTA_EXCEEDED",
    )
    assert runs.calls == ["a"]
    full = False
    again = await runs.runs.retry(RetryRequest("t"))
    assert again.run.status is RunStatus.COMPLETED, again.run.error
    assert runs.calls == ["a", "b", "c"]
