"""Runs that commit each time they begin to wait (`commit: INTERRUPT`): what was done before a question is seen, and stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.graph_definitions import SUM
from tests.support.graph_runs import Call, GraphRuns, adds, embedding, inner
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import SubStepCall, ToolFailure
from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.definition import FailurePolicy, GraphPolicy, ToolBinding
from agenttx_server.graphs.runs.records import CommitPolicy, Durability, RunStatus, checkpoint_id
from agenttx_server.graphs.runs.requests import CopyRequest, ForkRequest, RunRefused, StateUpdate
from agenttx_server.graphs.runs.run_rewinder import RewindRunRequest

AT_INTERRUPTS = {"commit": CommitPolicy.INTERRUPT}
MAIL = {"stage": [["mail", {"to": "ann"}]], "put": {"kv/asked": 1}, "output": {"value": 10}}


async def asks_by_mail(call: Call) -> Any:
    """Send the mail that asks for the approval, as a call of a tool; ask; go on with the answer."""
    assert call.context is not None
    await call.context.make(SubStepCall("note", '{"put":{"kv/inside":2},"stage":[["mail",{"to":"bob"}]]}'))
    return {"value": call.interrupt("may I?")}


def approval(ask: Any = asks_by_mail, **options: Any) -> GraphRuns:
    """A seat and a mail; a question beside a node that adds 1; a note behind it."""
    mail = ToolBinding("note", MAIL)
    last = ToolBinding("note", {"put": {"kv/done": 3}, "output": {"value": 1000}})
    return GraphRuns(
        "START->mail, mail->ask, mail->side, ask->last",
        {"ask": ask, "side": adds(1)},
        channels=SUM,
        nodes={"mail": {"binding": mail}, "last": {"binding": last}},
        **options,
    )


@virtual_time
async def test_what_was_done_before_a_question_is_committed_with_the_calls_of_the_node_that_asks() -> None:
    runs = approval()
    waits = await runs.start({"value": 0}, **AT_INTERRUPTS)
    assert (waits.run.status, waits.state, list(waits.next_nodes)) == (
        RunStatus.INTERRUPTED, {"value": 11}, ["ask"],
    )  # fmt: skip
    assert [item.payload for item in waits.interrupts] == ['"may I?"']
    assert [await runs.engine.committed(key) for key in ("kv/asked", "kv/inside")] == [1, 2]
    assert [mail["to"] for mail in runs.engine.sink.payloads("mail")] == ["ann", "bob"]
    thread = await runs.store.load_thread("t")
    assert thread is not None
    assert (thread.committed_head, thread.transaction_id) == (thread.head, waits.run.transaction_id)
    stored = await runs.runs.stored_outcome(waits.run)
    assert (stored.state, list(stored.next_nodes), stored.interrupts) == (
        waits.state, ["ask"], list(waits.interrupts),
    )  # fmt: skip

    done = await runs.resume("t", 100)
    assert (done.run.status, done.state) == (RunStatus.COMPLETED, {"value": 1111})
    assert runs.calls == ["ask", "side", "ask"]
    assert runs.engine.tools.count("note") == 3, "the call before the question was answered from the journal"
    assert await runs.engine.committed("kv/done") == 3
    assert len(runs.engine.sink.payloads("mail")) == 2
    kinds = await runs.kinds(done.run.run_id)
    assert [kind for kind in kinds if kind.startswith("run.")] == [
        "run.started", "run.interrupted", "run.started", "run.completed",
    ]  # fmt: skip
    events = await runs.events(done.run.run_id)
    assert [event.offset for event in events] == list(range(len(events)))


@virtual_time
async def test_a_rollback_of_what_waits_leaves_what_was_committed_and_a_retry_asks_again() -> None:
    runs = approval()
    waits = await runs.start({"value": 0}, **AT_INTERRUPTS)
    run = await runs.runs.rewinds.roll_back(waits.run.run_id, "not today")
    assert (run.status, run.transaction_id, await runs.pending()) == (RunStatus.CANCELLED, "", [])
    assert await runs.engine.committed("kv/asked") == 1
    stored = await runs.runs.stored_outcome(run)
    assert (stored.state, list(stored.next_nodes)) == ({"value": 11}, ["ask"])
    again = await runs.retry()
    assert (again.run.status, again.state) == (RunStatus.INTERRUPTED, {"value": 11})
    done = await runs.resume("t", 100)
    assert (done.run.status, done.state) == (RunStatus.COMPLETED, {"value": 1111})
    assert runs.engine.tools.count("note") == 3
    assert len(runs.engine.sink.payloads("mail")) == 2


@virtual_time
async def test_what_comes_behind_the_commit_is_undone_and_nothing_before_it() -> None:
    async def fails(call: Call) -> Any:
        raise ToolFailure("invalid_value", "no")

    book = ToolBinding("book", {"effect": "seat", "output": {"value": 1}})
    late = ToolBinding("book", {"effect": "meal", "output": {"value": 2}})

    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("?")}

    runs = GraphRuns(
        "START->book, book->ask, ask->late, late->bad",
        {"ask": ask, "bad": fails},
        channels=SUM,
        nodes={"book": {"binding": book}, "late": {"binding": late}},
    )
    await runs.start({"value": 0}, **AT_INTERRUPTS)
    failed = await runs.resume("t", 10)
    assert (failed.run.status, runs.engine.tools.effects) == (RunStatus.FAILED, ["meal", "seat"])
    for number in (0, 1):
        with pytest.raises(RunRefused) as refused:
            await runs.runs.rewinds.rewind(RewindRunRequest("t", checkpoint_id("t", number)))
        assert refused.value.reason == "ILLEGAL_TRANSITION"
    run = await runs.runs.rewinds.roll_back(failed.run.run_id, "")
    assert (run.status, runs.engine.tools.effects) == (RunStatus.FAILED, ["seat"])
    assert (await runs.runs.stored_outcome(run)).state == {"value": 1}
    again = await runs.retry()
    assert (again.run.status, [item.payload for item in again.interrupts]) == (RunStatus.INTERRUPTED, ['"?"'])


@virtual_time
async def test_a_rewind_within_the_next_transaction_goes_to_its_own_checkpoints() -> None:
    book = ToolBinding("book", {"effect": "seat", "output": {"value": 1}})

    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("?")}

    runs = GraphRuns(
        "START->a, a->ask, ask->book, book->again",
        {"a": adds(1), "ask": ask, "again": ask},
        channels=SUM,
        nodes={"book": {"binding": book}},
    )
    await runs.start({"value": 0}, **AT_INTERRUPTS)
    second = await runs.resume("t", 10, update={"value": 100}, limits=None)
    assert (second.run.status, second.state) == (RunStatus.INTERRUPTED, {"value": 112})
    # That one committed too; the transaction that waits now has nothing to take back.
    third = await runs.update(StateUpdate(update={"value": 1000}))
    back = await runs.runs.rewinds.rewind(RewindRunRequest("t", third.checkpoint.checkpoint_id))
    assert (back.undone.steps, runs.engine.tools.effects) == (0, ["seat"])
    assert (await runs.retry()).run.status is RunStatus.INTERRUPTED, (
        "a rewind withdraws questions; it asks again"
    )
    done = await runs.resume("t", 5)
    assert (done.run.status, done.state) == (RunStatus.COMPLETED, {"value": 1117})
    assert runs.engine.tools.count("book") == 1


@virtual_time
async def test_the_controller_goes_back_to_the_commit_and_no_further() -> None:
    fails = [True, True, True]

    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("?")}

    async def bad(call: Call) -> Any:
        if fails:
            fails.pop()
            raise ToolFailure("invalid_value", "no", ("value",))
        return {"value": 1000}

    book = ToolBinding("book", {"effect": "seat", "output": {"value": 1}})
    runs = GraphRuns(
        "START->book, book->ask, ask->b, b->bad",
        {"ask": ask, "b": adds(100), "bad": bad},
        channels=SUM,
        nodes={"book": {"binding": book}, "bad": {"reads": ("value",)}},
        policy=GraphPolicy(on_failure=FailurePolicy.ROLLBACK),
    )
    await runs.start({"value": 0}, **AT_INTERRUPTS)
    outcome = await runs.resume("t", 10)
    while outcome.run.status is RunStatus.INTERRUPTED:
        outcome = await runs.resume("t", 10)
    assert (outcome.run.status, outcome.state) == (RunStatus.COMPLETED, {"value": 1111})
    assert runs.engine.tools.count("book") == 1
    assert (await runs.kinds(outcome.run.run_id)).count("rollback.decided") == 3


@virtual_time
async def test_a_conflict_shows_when_the_run_begins_to_wait() -> None:
    runs = approval()
    runs.engine.memory.refuse_commits_with("kv/asked")
    failed = await runs.start({"value": 0}, **AT_INTERRUPTS)
    assert failed.run.error is not None
    assert (failed.run.status, failed.run.error.reason) == (RunStatus.FAILED, "COMMIT_CONFLICT")
    assert (failed.run.transaction_id, runs.engine.sink.payloads("mail"), await runs.pending()) == (
        "",
        [],
        [],
    )
    runs.engine.memory.refuse_commits_with(None)
    assert (await runs.retry()).run.status is RunStatus.INTERRUPTED


@virtual_time
async def test_a_run_that_stops_at_a_node_has_committed_what_came_before() -> None:
    policy = GraphPolicy(interrupt_before=("last",), interrupt_after=("mail",))
    runs = approval(ask=adds(100), policy=policy)
    stopped = await runs.start({"value": 0}, **AT_INTERRUPTS)
    assert (stopped.run.status, stopped.run.stopped_after) == (RunStatus.INTERRUPTED, ("mail",))
    assert await runs.engine.committed("kv/asked") == 1
    stopped = await runs.retry()
    assert (stopped.run.status, stopped.run.stopped_before) == (RunStatus.INTERRUPTED, ("last",))
    assert await runs.engine.committed("kv/done") is None
    done = await runs.retry()
    assert (done.run.status, done.state) == (RunStatus.COMPLETED, {"value": 1111})
    assert await runs.engine.committed("kv/done") == 3


@virtual_time
async def test_a_question_inside_an_embedded_graph_commits_too_and_its_calls_stand() -> None:
    child = inner("child", "START->first, first->ask", {"first": adds(1), "ask": asks_by_mail}, channels=SUM)
    runs = GraphRuns(
        "START->sub, sub->b", {"b": adds(1000)}, channels=SUM, nodes={"sub": embedding("child")}, embeds=[child]
    )  # fmt: skip
    waits = await runs.start({"value": 0}, **AT_INTERRUPTS)
    assert waits.run.status is RunStatus.INTERRUPTED
    assert await runs.engine.committed("kv/inside") == 2
    done = await runs.resume("t", 100)
    assert (done.run.status, done.state) == (RunStatus.COMPLETED, {"value": 1101})
    assert (runs.calls, runs.engine.tools.count("note")) == (
        ["child.first", "child.ask", "child.ask", "b"],
        1,
    )


@virtual_time
async def test_it_needs_a_thread_and_goes_with_one_checkpoint_an_invocation() -> None:
    runs = approval()
    with pytest.raises(RunRefused) as refused:
        await runs.start({"value": 0}, thread="", **AT_INTERRUPTS)
    assert refused.value.reason == "INVALID_REQUEST"
    waits = await runs.start({"value": 0}, durability=Durability.EXIT, **AT_INTERRUPTS)
    assert (waits.state, [item.superstep for item in await runs.checkpoints()]) == ({"value": 11}, [0, 2])
    done = await runs.resume("t", 100)
    assert (done.state, [item.superstep for item in await runs.checkpoints()]) == ({"value": 1111}, [0, 2, 4])


def test_a_server_may_die_at_any_write_of_it() -> None:
    @virtual_time
    async def scenario(number: int) -> bool:
        runs = approval()
        runs.engine.memory.hold_write(number)
        work = asyncio.ensure_future(runs.start({"value": 0}, **AT_INTERRUPTS))
        await asyncio.wait({work}, timeout=1000)
        stuck = not work.done()
        await runs.crash()
        work.cancel()
        await runs.recover()
        thread = await runs.store.load_thread("t")
        if thread is None:
            await runs.start({"value": 0}, **AT_INTERRUPTS)
            thread = await runs.store.load_thread("t")
        assert thread is not None
        run = await runs.store.load_run(thread.run_id)
        assert run is not None
        assert (run.status, run.error) == (RunStatus.INTERRUPTED, None), number
        assert await runs.engine.committed("kv/inside") == 2, number
        assert await runs.engine.coordinator.is_open(TransactionId(run.transaction_id))
        done = await runs.resume("t", 100)
        assert (done.run.status, done.state) == (RunStatus.COMPLETED, {"value": 1111}), number
        mails = {mail["to"] for mail in runs.engine.sink.payloads("mail")}
        assert mails == {"ann", "bob"}
        kinds = await runs.kinds(run.run_id)
        assert (kinds.count("run.interrupted"), kinds.count("interrupt.emitted")) == (1, 1), number
        return stuck

    number = 1
    while scenario(number):
        number += 1
    assert number > 6


@virtual_time
async def test_forks_and_copies_of_a_thread_that_waits_ask_for_themselves() -> None:
    runs = approval()
    waits = await runs.start({"value": 0}, **AT_INTERRUPTS)
    await runs.runs.copies.fork(ForkRequest("t", new_thread_id="fork"))
    await runs.runs.copies.copy(CopyRequest("t", new_thread_id="copy"))
    for thread in ("fork", "copy"):
        again = await runs.retry(thread)
        assert (again.run.status, len(await runs.pending(thread))) == (RunStatus.INTERRUPTED, 1)
        assert (await runs.resume(thread, 50)).state == {"value": 1061}
    assert [item.interrupt_id for item in await runs.pending()] == [waits.interrupts[0].interrupt_id]
    assert (await runs.resume("t", 100)).state == {"value": 1111}


@pytest.mark.parametrize("first", ["ask", "wonder"])
@virtual_time
async def test_of_two_questions_the_one_answered_last_goes_on_where_it_was_with_its_calls(
    first: str,
) -> None:
    async def wonder(call: Call) -> Any:
        return {"value": call.interrupt("and I?")}

    child = inner("child", "START->c, c->wonder", {"c": adds(1), "wonder": wonder}, channels=SUM)
    runs = GraphRuns(
        "START->ask, START->sub, [ask, sub]|>b",
        {"ask": asks_by_mail, "b": adds(1000)},
        channels=SUM,
        nodes={"sub": embedding("child")},
        embeds=[child],
    )
    waits = await runs.start({"value": 0}, **AT_INTERRUPTS)
    asked = {item.node: item.interrupt_id for item in waits.interrupts}
    second = "wonder" if first == "ask" else "ask"
    await runs.resume(
        "t", **{asked[first]: 10}
    )  # the other one waits on, behind a commit in which it did nothing
    done = await runs.resume("t", **{asked[second]: 100})
    assert (done.run.status, done.state) == (RunStatus.COMPLETED, {"value": 1111})
    assert sorted(runs.calls) == ["ask", "ask", "b", "child.c", "child.wonder", "child.wonder"]
    assert runs.engine.tools.count("note") == 1, "the call before the question was answered from the journal"
