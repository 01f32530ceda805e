"""However an invocation ends: its run has a status that can be read, and a way on. Every await is made to fail once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.support.engine_harness import Engine, SequentialIds
from tests.support.graph_definitions import SUM, send
from tests.support.graph_runs import Call, GraphRuns, adds, embedding, goto, inner
from tests.support.memory_run_store import RUN_TABLES
from tests.support.run_faults import Faults
from tests.support.scripted_tools import raise_error
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.errors import NotFound, Unavailable
from agenttx_server.engine.ports import (
    ExtraRowsRefused,
    OutcomeUnknown,
    StaleRevision,
    StoreUnavailable,
    ToolFailure,
)
from agenttx_server.engine.records import ServerId, StepResolution, TransactionId
from agenttx_server.engine.requests import ResolveStepRequest
from agenttx_server.engine.server_lease import LeaseEnded
from agenttx_server.graphs.definition import (
    Channel,
    FailurePolicy,
    FunctionBinding,
    GraphPolicy,
    NodeRetryPolicy,
    ToolBinding,
)
from agenttx_server.graphs.runs.engine_transactions import EngineTransactions
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.records import CommitPolicy, Durability, RunStatus
from agenttx_server.graphs.runs.requests import ResumeRequest, RunLimits, StartRequest
from agenttx_server.graphs.runs.rolled_back import RolledBackRuns
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator

AWAITS = 60
"""At least as many as a run makes: those beyond are runs without a fault."""

PASSES: dict[str, Callable[[], Exception]] = {
    "store": lambda: StoreUnavailable("the database is away"),
    "stale": lambda: StaleRevision("another writer was first"),
    "refused": lambda: ExtraRowsRefused("it is there already"),
    "lease": lambda: Unavailable("the lease", reason="LEASE_LOST"),
}
FAULTS: dict[str, Callable[[], Exception]] = {
    "bug": lambda: RuntimeError("a bug"),
    "key": lambda: KeyError("a bug"),
    "engine": lambda: NotFound("it is gone", reason="TRANSACTION_NOT_FOUND"),
}


def trip() -> GraphRuns:
    """A booking beside a node; a question; a router that a worker answers."""

    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("how much?")}

    async def route(call: Call) -> Any:
        return "on"

    tool = ToolBinding("book", {"effect": "seat", "output": {"value": 10}})
    return GraphRuns(
        "START->a, START->book, a->ask, book->ask, ask?f:route->{on: c}",
        {"a": adds(1), "ask": ask, "c": adds(4), "route": route},
        channels=SUM,
        nodes={"book": {"binding": tool}, "a": {"retry": NodeRetryPolicy(3)}},
    )


async def _carried_to_its_end(runs: GraphRuns, faults: Faults, limits: RunLimits = RunLimits()) -> Any:  # noqa: B008
    """Start, answer, retry, as a client does that tries again whatever it is told; the server looks for lost runs."""
    recovery = asyncio.ensure_future(_recover_every_few_seconds(runs))
    try:
        return await _client(runs, faults, limits)
    finally:
        recovery.cancel()


async def _recover_every_few_seconds(runs: GraphRuns) -> None:
    while True:
        await asyncio.sleep(5)
        with suppress(Exception):
            await runs.runs.recover(runs.engine.clock.now())


async def _client(runs: GraphRuns, faults: Faults, limits: RunLimits) -> Any:
    for _ in range(12):
        thread = await runs.store.load_thread("t")
        try:
            if thread is None:
                await runs.runs.start(StartRequest("g", "", "t", {"value": 0}, (), limits, request_id="one"))
                continue
            await runs.runs.recover(runs.engine.clock.now())
            assert await runs.runs.stop(10_000.0) == 0, "it goes on for ever"
            run = await runs.store.load_run(thread.run_id)
            assert run is not None
            assert run.status not in (RunStatus.RUNNING, RunStatus.PENDING), f"stuck after {faults.fired}"
            if run.status is RunStatus.COMPLETED:
                return run
            if run.status is RunStatus.INTERRUPTED:
                await runs.runs.resume(ResumeRequest("t", 2, True))
            else:
                assert run.error is not None
                assert run.error.reason
                await runs.retry()
        except Exception as error:
            if type(error) is AssertionError:
                raise
            # What the caller is told is another matter: what matters is what becomes of the run.
    raise AssertionError(f"no way on after {faults.fired}")


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("kind", [*PASSES, *FAULTS])
def test_a_run_finds_its_way_whatever_await_fails(kind: str, behind: bool) -> None:
    _finds_its_way(kind, behind, RunLimits())


@pytest.mark.parametrize(
    "limits",
    [
        RunLimits(durability=Durability.ASYNC),
        RunLimits(durability=Durability.EXIT),
        RunLimits(commit=CommitPolicy.INTERRUPT),
    ],
    ids=["async", "exit", "commits"],
)
@pytest.mark.parametrize(("kind", "behind"), [("store", False), ("bug", True)])
def test_a_run_that_is_kept_otherwise_finds_its_way_too(kind: str, behind: bool, limits: RunLimits) -> None:
    _finds_its_way(kind, behind, limits)


def _finds_its_way(kind: str, behind: bool, limits: RunLimits) -> None:
    @virtual_time
    async def scenario(number: int) -> bool:
        runs = trip()
        faults = Faults(runs)
        faults.at(number, {**PASSES, **FAULTS}[kind], behind=behind)
        run = await _carried_to_its_end(runs, faults, limits)
        faults.over()
        outcome = await runs.runs.stored_outcome(run)
        assert outcome.state == {"value": 17}, faults.fired
        assert runs.engine.tools.effects == ["seat"], faults.fired
        events = await runs.events(run.run_id)
        assert [event.offset for event in events] == list(range(len(events)))
        kinds = [event.kind for event in events]
        assert kinds.count("run.completed") == 1
        assert kinds.count("superstep.completed") == 3
        assert [run.run_id for run in (await runs.store.list_runs_of("runs-1", 1 << 62, 100))] == []
        return bool(faults.fired)

    number = 0
    while scenario(number + 1):
        number += 1
    assert 35 < number < AWAITS


def healing() -> GraphRuns:
    """A node that chooses wrongly until it is told, beside one whose handler stands in for it; a booking; who finds out."""

    async def choose(call: Call) -> Any:
        return {"customer": "anna" if call.constraints else "nobody"}

    async def fails(call: Call) -> Any:
        raise ToolFailure("invalid_value", "never")

    async def last(call: Call) -> Any:
        if call.state["customer"] == "nobody":
            raise ToolFailure("foreign_key_violation", "customer 'nobody' is not there", ("customer",))
        return {"value": 1}

    tool = ToolBinding("book", {"effect": "seat", "output": {"value": 10}})
    return GraphRuns(
        "START->a, a->choose, a->side, choose->book, side->book, book->last",
        {"a": adds(1), "choose": choose, "side": fails, "handler": adds(100), "last": last},
        channels=(*SUM, Channel("customer")),
        policy=GraphPolicy(on_failure=FailurePolicy.ROLLBACK, allow_unreachable=True),
        nodes={
            "book": {"binding": tool},
            "side": {"error_handler": "handler"},
            "last": {"binding": FunctionBinding("last"), "reads": ("customer",)},
        },
    )


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("kind", ["store", "bug"])
def test_a_run_heals_whatever_await_fails(kind: str, behind: bool) -> None:
    @virtual_time
    async def scenario(number: int) -> bool:
        runs = healing()
        faults = Faults(runs)
        faults.at(number, {**PASSES, **FAULTS}[kind], behind=behind)
        run = await _carried_to_its_end(runs, faults)
        faults.over()
        outcome = await runs.runs.stored_outcome(run)
        assert outcome.state == {"value": 112, "customer": "anna"}, faults.fired
        assert runs.engine.tools.effects == ["seat"], faults.fired
        events = await runs.events(run.run_id)
        assert [event.offset for event in events] == list(range(len(events)))
        kinds = [event.kind for event in events]
        assert kinds.count("run.completed") == 1
        if faults.fired != "functions.call":  # which is a failing node, decided on as any
            assert kinds.count("rollback.decided") == 1, faults.fired
            # The last result of a superstep goes with its boundary, and is lost with it.
            may_be_lost = faults.fired in ("turn.run", "turn.close")
            assert runs.calls.count("a") in ((1, 2) if may_be_lost else (1,)), faults.fired
        return bool(faults.fired)

    number = 0
    while scenario(number + 1):
        number += 1
    assert 35 < number < 2 * AWAITS


@virtual_time
async def test_a_run_goes_on_by_itself_once_the_store_is_back() -> None:
    runs = trip()
    faults = Faults(runs)
    faults.at(9, PASSES["store"], behind=False, times=12)
    started = asyncio.get_running_loop().time()
    outcome = await runs.start({"value": 0})
    assert outcome.run.status is RunStatus.INTERRUPTED
    assert faults.fired
    assert runs.engine.tools.effects == ["seat"]
    # Tried again ever later, and never more than a quarter of a minute.
    waited = asyncio.get_running_loop().time() - started
    assert 60 < waited < 12 * 15


@virtual_time
async def test_a_caller_that_goes_away_while_it_starts_a_run_leaves_no_half_begun_one() -> None:
    runs = trip()
    gate = runs.engine.memory.hold_next_write()
    work = asyncio.ensure_future(runs.start({"value": 0}))
    await gate.reached()
    work.cancel()
    gate.open()
    await asyncio.wait({work})
    assert await runs.runs.stop(600.0) == 0
    run = await runs.store.load_run("run-000001")
    assert run is not None
    assert run.status is RunStatus.INTERRUPTED


@virtual_time
async def test_more_tasks_than_a_superstep_takes_fail_the_run_and_it_can_be_read() -> None:
    async def many(call: Call) -> Any:
        return goto(*(send("worker", n) for n in range(5_001)))

    runs = GraphRuns(
        "START->many, START->more, many=>[worker], more=>[worker]",
        {"many": many, "more": many, "worker": adds(1)},
        channels=SUM,
    )
    outcome = await runs.start({"value": 0})
    assert outcome.run.error is not None
    assert (outcome.run.status, outcome.run.error.reason) == (RunStatus.FAILED, "STATE_TOO_LARGE")
    assert outcome.state == {"value": 0}
    assert (await runs.retry()).run.status is RunStatus.FAILED, "and it isn't busy"


@virtual_time
async def test_a_router_that_fails_fails_the_run_and_is_asked_again() -> None:
    fails = [True]

    async def route(call: Call) -> Any:
        if fails:
            raise ToolFailure("invalid_value", "no idea\nwhere to go")
        return "on"

    runs = GraphRuns(
        "START->a, a?f:route->{on: b}", {"a": adds(1), "b": adds(2), "route": route}, channels=SUM
    )
    outcome = await runs.start({"value": 0})
    assert outcome.run.error is not None
    assert (outcome.run.error.reason, outcome.run.error.node) == ("NODE_FAILED", "a")
    assert "no idea where to go" in outcome.run.error.message
    assert outcome.state == {"value": 1}
    fails.clear()
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 3})
    assert runs.calls == ["a", "b"]


@virtual_time
async def test_a_run_whose_graph_is_gone_has_failed_and_others_are_recovered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def slow(call: Call) -> Any:
        await asyncio.sleep(20)
        return {"value": 1}

    runs = GraphRuns("START->slow", {"slow": slow}, channels=SUM)
    work = [asyncio.ensure_future(runs.start({"value": 0}, thread)) for thread in ("t", "u")]
    await asyncio.sleep(1)
    run = await runs.store.load_run("run-000001")
    assert run is not None
    await runs.crash()
    for task in work:
        task.cancel()
    graph, names = runs.graph, iter(["another", "g"])

    async def load(owner: str, name: str, version: str) -> Any:
        return None if next(names, "g") == "another" else graph

    runs.load = load  # type: ignore[method-assign]
    await runs.recover()
    ended = [await runs.store.load_run(name) for name in ("run-000001", "run-000002")]
    assert {item.status for item in ended if item} == {RunStatus.FAILED, RunStatus.COMPLETED}
    lost = next(item for item in ended if item and item.status is RunStatus.FAILED)
    assert lost.error is not None
    assert lost.error.reason == "GRAPH_NOT_FOUND"
    outcome = await runs.retry(lost.thread_id)
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 1})
    # It is refused, and no fault of the server: nobody is to look for one.
    told = [(record.levelno, record.exc_info) for record in caplog.records if "run-0" in record.getMessage()]
    assert told == [(logging.WARNING, None)]


@virtual_time
async def test_a_run_without_a_thread_that_fails_is_taken_back() -> None:
    async def fails(call: Call) -> Any:
        raise ToolFailure("invalid_value", "no")

    tool = ToolBinding("book", {"effect": "seat", "output": {}})
    runs = GraphRuns("START->book, book->b", {"b": fails}, nodes={"book": {"binding": tool}})
    outcome = await runs.start(thread="")
    assert outcome.run.error is not None
    assert (outcome.run.status, outcome.run.error.reason) == (RunStatus.FAILED, "NODE_FAILED")
    assert (outcome.run.transaction_id, outcome.run.server_id) == ("", "")
    assert runs.engine.tools.effects == []
    kinds = await runs.kinds(outcome.run.run_id)
    assert kinds.count("run.failed") == 1


@virtual_time
async def test_a_node_in_doubt_says_so_again_until_a_person_resolves_it() -> None:
    tool = ToolBinding("pay", {"output": {"value": 5}})
    runs = GraphRuns("START->pay, pay->b", {"b": adds(1)}, channels=SUM, nodes={"pay": {"binding": tool}})
    runs.engine.tools.next("pay", raise_error(OutcomeUnknown()))
    outcome = await runs.start({"value": 0})
    for _ in range(2):
        assert outcome.run.error is not None
        assert (outcome.run.status, outcome.run.error.reason) == (RunStatus.FAILED, "STEP_IN_DOUBT")
        outcome = await runs.retry()
    await runs.engine.coordinator.resolve_step(
        ResolveStepRequest(
            TransactionId(outcome.run.transaction_id), 1, StepResolution.SUCCEEDED, '{"value":7}'
        )
    )
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 8})
    assert len(runs.engine.tools.calls) == 1


@virtual_time
async def test_undo_that_holds_a_run_is_told_and_a_retry_goes_on_once_it_is_resolved() -> None:
    tool = ToolBinding("book", {"effect": "seat", "put": {"kv/k": 2}, "output": {"value": 1}})
    note = ToolBinding("note", {"put": {"kv/k": 1}, "output": {"value": 2}})
    runs = GraphRuns(
        "START->note, START->book",
        {},
        channels=SUM,
        nodes={"note": {"binding": note}, "book": {"binding": tool}},
    )
    runs.engine.tools.break_undo("seat", 100)
    outcome = await runs.start({"value": 0})
    for _ in range(2):
        assert outcome.run.error is not None
        assert (outcome.run.status, outcome.run.error.reason) == (RunStatus.FAILED, "ROLLBACK_INCOMPLETE")
        outcome = await runs.retry()
    runs.engine.tools.break_undo("seat", 0)
    await runs.engine.resolve_undo(1, transaction_id=TransactionId(outcome.run.transaction_id))
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 3})


@pytest.mark.parametrize("inside", [False, True], ids=["outermost", "inside"])
@virtual_time
async def test_a_server_whose_lease_has_ended_calls_no_function_of_a_node(
    inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may have finished the node by now, and all that comes behind it."""
    child = inner("child", "START->a", {"a": adds(1)}, channels=SUM)
    runs = (
        GraphRuns("START->sub", {}, channels=SUM, nodes={"sub": embedding("child")}, embeds=[child])
        if inside
        else GraphRuns("START->a", {"a": adds(1)}, channels=SUM)
    )
    check = runs.engine.coordinator._lease.check

    def ended(*owner: ServerId) -> None:
        raise LeaseEnded("it stood still")

    monkeypatch.setattr(runs.engine.coordinator._lease, "check", ended)
    work = asyncio.ensure_future(runs.start({"value": 0}))
    await asyncio.sleep(30)
    assert runs.calls == []
    monkeypatch.setattr(runs.engine.coordinator._lease, "check", check)
    assert (await work).state == {"value": 1}
    assert len(runs.calls) == 1


@virtual_time
async def test_a_run_whose_lease_ended_is_left_to_who_takes_it_over_also_by_a_server_that_has_another_one() -> (
    None
):
    runs = GraphRuns(
        "START->a, START->b",
        {"a": adds(1), "b": adds(2)},
        channels=SUM,
        policy=GraphPolicy(max_concurrency=1),
    )
    runs.engine = Engine(
        database=runs.database, is_shared=True, run_owner=RolledBackRuns(runs.store), extra_tables=RUN_TABLES
    )
    coordinator = runs.engine.coordinator
    await coordinator.start()
    parts = RunParts(runs.store, EngineTransactions(coordinator), runs, runs.engine.clock)
    runs.runs = RunCoordinator(parts, runs, SequentialIds("run"), lambda: coordinator.server_id)

    async def stands_still(call: Call) -> Any:
        del runs.database.leases[coordinator.server_id]
        await coordinator._lease.renew()
        return {"value": 1}

    runs.functions["a"] = stands_still
    work = asyncio.ensure_future(runs.start({"value": 0}))
    await asyncio.sleep(30)
    assert (runs.calls, work.done()) == (["a"], False)
    (run_id,) = await runs.runs.recover(runs.engine.clock.now())
    assert (await runs.runs.wait_for(run_id)).state == {"value": 3}
    assert runs.calls == ["a", "b"]
    work.cancel()
    await coordinator.stop()
