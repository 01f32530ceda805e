"""A thread's life over each database: edits, targets, new input, branches, copies, pruning, the end."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from typing import Any

from tests.support.engine_harness import Engine
from tests.support.graph_definitions import APP
from tests.support.graph_runs import Call, GraphRuns, logs
from tests.support.run_stores import Stores, run_stores  # noqa: F401

from agenttx_server.graphs.definition import GraphPolicy, ToolBinding
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.runs.records import RunStatus
from agenttx_server.graphs.runs.requests import CopyRequest, ForkRequest, StateUpdate
from agenttx_server.graphs.runs.rolled_back import RolledBackRuns

DONE, INTERRUPTED = RunStatus.COMPLETED, RunStatus.INTERRUPTED


def _over(stores: Stores) -> GraphRuns:
    async def ask(call: Call) -> Any:
        assert call.context is not None
        await call.context.step("book", '{"effect":"room"}')
        seen = await call.context.get("kv/a")
        return {"log": [f"{seen}{call.interrupt('?')}"]}

    put = ToolBinding("note", {"put": {"kv/a": 1}, "output": {"log": ["put"]}})
    runs = GraphRuns(
        "START->put, put->ask, ask->b, side->END",
        {"ask": ask, "b": logs("b"), "side": logs("side")},
        channels=APP,
        nodes={"put": {"binding": put}},
        policy=GraphPolicy(allow_unreachable=True),
    )
    runs.store = stores.runs  # type: ignore[assignment]
    runs.engine = Engine(store=stores.transactions, run_owner=RolledBackRuns(stores.runs))
    runs.runs = runs._coordinator()
    return runs


async def test_a_thread_lives_the_same_on_every_database(run_stores: Stores) -> None:
    runs = _over(run_stores)
    # With a lease: on a database of several servers nobody else is to take over.
    await runs.engine.coordinator.start()
    try:
        await _live(runs)
    finally:
        await runs.engine.coordinator.stop()


async def _live(runs: GraphRuns) -> None:
    first = await runs.start({"log": ["in"]})
    assert (first.run.status, first.state) == (INTERRUPTED, {"log": ["in", "put"]})

    # The open superstep is ended early; its unfinished task goes on, and books once.
    edited = await runs.update(StateUpdate("side", {"log": ["edit"]}))
    assert runs.next_of(edited) == ["ask"]
    # New input in the same transaction.
    second = await runs.start({"log": ["more"]}, discard=True)
    assert second.run.transaction_id == first.run.transaction_id
    assert second.state == {"log": ["in", "put", "edit", "more", "put"]}
    # A further task of the open superstep.
    third = await runs.resume("t", "!", update={"log": ["u"]}, goto=[Target("side")])
    assert third.run.status is DONE, third.run.error
    assert third.state["log"] == ["in", "put", "edit", "more", "put", "u", "1!", "side", "b"]
    assert await runs.engine.committed("kv/a") == 1

    # A branch of what is not committed begins with what that wrote.
    await runs.start({"log": ["anew"]}, "other")
    at = next(item for item in await runs.checkpoints("other") if '"ask"' in item.work)
    branch = await runs.start(thread="other", at=at.checkpoint_id)
    assert branch.run.status is INTERRUPTED, branch.run.error
    assert (await runs.resume("other", "?")).state == {"log": ["anew", "put", "1?", "b"]}

    copied = await runs.runs.copies.copy(CopyRequest("t", "copy"))
    assert copied.checkpoints == len(await runs.checkpoints("t"))
    forked = await runs.runs.copies.fork(
        ForkRequest("t", (await runs.checkpoints("t"))[1].checkpoint_id, "fork")
    )
    states = {item.number: await runs.state_at(item) for item in await runs.checkpoints("t")}
    pruned = await runs.runs.removal.prune("t", 2)
    kept = await runs.checkpoints("t")
    assert (pruned.kept, len(kept)) == (2, 2)
    assert {item.number: await runs.state_at(item) for item in kept} == {
        item.number: states[item.number] for item in kept
    }
    assert await runs.runs.removal.delete("t") == 2
    assert await runs.store.load_thread("t") is None
    assert [await runs.state_at(item) for item in await runs.checkpoints("copy")] == list(states.values())
    assert forked.position.state == states[1]
    assert await runs.runs.removal.delete("other") > 0
