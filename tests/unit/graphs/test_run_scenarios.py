"""Scenarios that need a run: durable supersteps, failures, interrupts, limits, the journal. On a real engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.graph_definitions import APP, OW, SUM, send
from tests.support.graph_runs import Call, GraphRuns, adds, goto, logs
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.definition import Channel, GraphPolicy, NodeRetryPolicy, ToolBinding
from agenttx_server.graphs.node_results import Target
from agenttx_server.graphs.runs.channel_values import places_of
from agenttx_server.graphs.runs.position import load_position
from agenttx_server.graphs.runs.records import CheckpointSource, RunStatus
from agenttx_server.graphs.runs.requests import RunRefused, StartRequest

DONE, FAILED, INTERRUPTED = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.INTERRUPTED
TEXT = (Channel("text", reducer="add"),)


def fails(times: int, then: Any) -> Any:
    """A node that fails some times first."""
    left = [times]

    async def flaky(call: Call) -> Any:
        if left[0]:
            left[0] -= 1
            raise ToolFailure("invalid_value", "not yet")
        return then

    return flaky


def answers(answer: Any) -> Any:
    async def answering(call: Call) -> Any:
        return answer

    return answering


def chain(**options: Any) -> GraphRuns:
    nodes = {"a": adds(1), "b": adds(1), "c": adds(1)}
    return GraphRuns("START->a, a->b, b->c", nodes, channels=SUM, **options)


def loop(**options: Any) -> GraphRuns:
    return GraphRuns("START->loop, loop->loop", {"loop": answers(None)}, **options)


# --- execution --------------------------------------------------------------------------------------


@virtual_time
async def test_x1_a_node_sees_what_the_one_before_wrote() -> None:
    async def double(call: Call) -> Any:
        return {"value": call.state["value"], "log": [f"+{call.state['value']}"]}

    runs = GraphRuns(
        "START->inc, inc->double",
        {"inc": answers({"value": 1, "log": ["+1"]}), "double": double},
        channels=(*SUM, *APP),
    )
    outcome = await runs.start({"value": 0})
    assert outcome.run.status is DONE
    assert outcome.state == {"value": 2, "log": ["+1", "+1"]}
    assert outcome.run.total_supersteps == 2
    assert list(outcome.visited) == ["inc", "double"]
    thread = await runs.store.load_thread("t")
    assert thread is not None
    assert (thread.transaction_id, thread.committed_head, thread.head) == ("", 2, 2)


@pytest.mark.parametrize("by", ["edge", "command"], ids=["x4", "x5"])
def test_a_limit_of_n_is_exactly_n_supersteps(by: str) -> None:
    @virtual_time
    async def scenario() -> None:
        runs = loop()
        if by == "command":
            runs = GraphRuns("START->loop, loop=>[loop]", {"loop": answers(goto("loop"))})
        outcome = await runs.start(recursion_limit=3)
        assert outcome.run.status is FAILED
        assert outcome.run.error is not None
        assert outcome.run.error.reason == "RECURSION_LIMIT"
        assert dict(outcome.run.error.metadata)["limit"] == "3"
        assert runs.calls == ["loop"] * 3

    scenario()


@virtual_time
async def test_x6_a_run_of_as_many_supersteps_as_the_limit_completes() -> None:
    assert (await chain().start({"value": 0}, recursion_limit=3)).run.status is DONE


@virtual_time
async def test_x7_a_limit_is_of_an_invocation() -> None:
    runs = chain()
    outcome = await runs.start({"value": 0}, recursion_limit=2)
    assert (outcome.run.status, outcome.state) == (FAILED, {"value": 2})
    assert list(outcome.next_nodes) == ["c"]
    outcome = await runs.retry(recursion_limit=1)
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 3})


@virtual_time
async def test_x9_a_limit_of_the_whole_run_holds_on_retry() -> None:
    runs = loop()
    assert (await runs.start(max_total_steps=3)).run.status is FAILED
    outcome = await runs.retry()
    assert outcome.run.error is not None
    assert outcome.run.error.reason == "RECURSION_LIMIT"
    assert runs.calls == ["loop"] * 3


@virtual_time
async def test_x10_a_node_runs_as_often_as_it_may() -> None:
    outcome = await loop(nodes={"loop": {"max_visits": 2}}).start()
    assert outcome.run.error is not None
    assert (outcome.run.error.reason, outcome.run.error.node) == ("NODE_VISIT_LIMIT", "loop")
    assert dict(outcome.run.error.metadata)["limit"] == "2"


def fan_out(cap: int | None = None, pauses: tuple[float, float, float] = (0.06, 0.04, 0.02)) -> GraphRuns:
    def slow(seconds: float, number: int) -> Any:
        async def work(call: Call) -> Any:
            await asyncio.sleep(seconds)
            return {"value": number}

        return work

    async def join(call: Call) -> Any:
        assert call.state["value"] == 7
        return None

    return GraphRuns(
        "START->super, super=>[a,b,c], a->join, b->join, c->join",
        {
            "super": answers(goto("a", "b", "c")),
            "a": slow(pauses[0], 1),
            "b": slow(pauses[1], 2),
            "c": slow(pauses[2], 4),
            "join": join,
        },
        channels=SUM,
        policy=GraphPolicy(max_concurrency=cap),
    )


@virtual_time
async def test_x11_results_fold_in_task_order_whoever_is_first() -> None:
    histories = []
    # Five repetitions, with other ones first each time.
    for pauses in (
        (0.02, 0.06, 0.1),
        (0.06, 0.04, 0.02),
        (0.04, 0.02, 0.06),
        (0.0, 0.0, 0.0),
        (0.02, 0.06, 0.1),
    ):
        runs = fan_out(pauses=pauses)
        outcome = await runs.start({"value": 0})
        assert (outcome.run.status, outcome.state, outcome.run.total_supersteps) == (DONE, {"value": 7}, 3)
        assert runs.most_in_flight == 3
        assert runs.calls.count("join") == 1
        tasks = await runs.store.load_tasks(outcome.run.run_id, 2)
        assert [(task.node, task.ordinal) for task in tasks] == [("a", 0), ("b", 1), ("c", 2)]
        events = await runs.events(outcome.run.run_id)
        assert [e.payload for e in events if e.kind == "state.updated"] == [
            '{"update":{"value":1}}', '{"update":{"value":2}}', '{"update":{"value":4}}',
        ]  # fmt: skip
        histories.append([(e.kind, e.node, e.task_id) for e in events])
    assert histories == [histories[0]] * 5


@virtual_time
async def test_x12_one_after_the_other_it_is_the_same() -> None:
    runs = fan_out(cap=1)
    assert (await runs.start({"value": 0})).state == {"value": 7}
    assert runs.most_in_flight == 1


async def _worker(call: Call) -> Any:
    await asyncio.sleep(0.01)
    return {"value": call.arg}


@virtual_time
async def test_x15_x26_sends_run_once_each_in_a_window() -> None:
    runs = GraphRuns(
        "START->dispatch, dispatch=>[worker]",
        {"dispatch": answers(goto(*(send("worker", n) for n in (10, 20, 30, 40)))), "worker": _worker},
        channels=SUM,
    )
    outcome = await runs.start({"value": 0}, max_concurrency=2)
    assert outcome.state == {"value": 100}
    assert runs.calls.count("worker") == 4
    assert runs.most_in_flight == 2


@virtual_time
async def test_x29_two_writers_of_one_channel_fail_the_run_and_everything_is_kept() -> None:
    runs = GraphRuns(
        "START->a, START->b", {"a": answers({"value": 1}), "b": answers({"value": 2})}, channels=OW
    )
    outcome = await runs.start({"value": 0})
    assert outcome.run.status is FAILED
    assert outcome.run.error is not None
    assert outcome.run.error.reason == "CONCURRENT_UPDATE"
    assert dict(outcome.run.error.metadata)["nodes"] == "a,b"
    assert outcome.state == {"value": 0}
    assert [task.answer for task in await runs.store.load_tasks(outcome.run.run_id, 1)] == [
        '{"value":1}', '{"value":2}',
    ]  # fmt: skip
    assert await runs.sources() == ["INPUT"]


@pytest.mark.parametrize(
    ("answer", "reason", "kept"),
    [({"nope": 1}, "UNKNOWN_CHANNEL", "FINISHED"), ("text", "NODE_FAILED", "FAILED")],
    ids=["x34", "x35"],
)
def test_an_answer_that_is_none_fails_the_run(answer: Any, reason: str, kept: str) -> None:
    @virtual_time
    async def scenario() -> None:
        runs = GraphRuns("START->a", {"a": answers(answer)}, channels=SUM)
        outcome = await runs.start({"value": 1})
        assert outcome.run.error is not None
        assert outcome.run.error.reason == reason
        (task,) = await runs.store.load_tasks(outcome.run.run_id, 1)
        assert task.state.value == kept

    scenario()


@virtual_time
async def test_x39_a_run_may_start_with_sends() -> None:
    async def worker(call: Call) -> Any:
        return {"log": [f"item:{call.arg}"]}

    runs = GraphRuns("START->worker", {"worker": worker}, channels=APP)
    outcome = await runs.start(goto=[Target("worker", n) for n in (1, 2, 3)])
    assert outcome.state == {"log": ["item:1", "item:2", "item:3"]}
    assert outcome.run.total_supersteps == 1


@virtual_time
async def test_a_tool_node_has_its_arguments_from_the_state_and_its_effects_in_the_transaction() -> None:
    tool = ToolBinding("note", {"put": {"kv/a": "${state.value}"}, "output": {"n": "${state.value}"}},
                       {"log": "${result}"})  # fmt: skip
    runs = GraphRuns(
        "START->one, one->put",
        {"one": adds(1)},
        channels=(*SUM, Channel("log", reducer="append", scalars=True)),
        nodes={"put": {"binding": tool}},
    )
    outcome = await runs.start({"value": 41})
    assert outcome.run.status is DONE, outcome.run.error
    assert outcome.state == {"value": 42, "log": [{"n": 42}]}
    assert await runs.engine.committed("kv/a") == 42


# --- failure, retry, limits -------------------------------------------------------------------------


def quick(attempts: int) -> dict[str, Any]:
    return {"retry": NodeRetryPolicy(attempts, initial_interval_us=1000)}


@virtual_time
async def test_f1_a_node_is_tried_as_often_as_its_policy_says() -> None:
    runs = GraphRuns(
        "START->flaky", {"flaky": fails(2, {"value": 1})}, channels=SUM, nodes={"flaky": quick(4)}
    )
    outcome = await runs.start({"value": 10})
    assert (outcome.run.status, outcome.state, len(runs.calls)) == (DONE, {"value": 11}, 3)
    retries = [e.payload for e in await runs.events(outcome.run.run_id) if e.kind == "node.retry_scheduled"]
    assert ['"attempt":1' in retries[0], '"attempt":2' in retries[1], len(retries)] == [True, True, 2]


@virtual_time
async def test_f2_a_node_whose_attempts_are_used_up_fails_the_run_and_can_be_retried() -> None:
    runs = GraphRuns(
        "START->flaky", {"flaky": fails(3, {"value": 1})}, channels=SUM, nodes={"flaky": quick(2)}
    )
    outcome = await runs.start({"value": 100})
    run = await runs.store.load_run(outcome.run.run_id)
    assert run is not None
    assert run.error is not None
    assert (run.error.reason, dict(run.error.metadata)["attempts"]) == ("NODE_FAILED", "2")
    assert "not yet" in run.error.hint
    assert (run.status, run.active_nodes, run.superstep) == (FAILED, ("flaky",), 1)
    assert await runs.sources() == ["INPUT"]
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state, len(runs.calls)) == (DONE, {"value": 101}, 4)


@pytest.mark.parametrize("order", [("ok", "flaky"), ("flaky", "ok")], ids=["f5", "f6"])
def test_what_finished_beside_a_failure_is_kept_and_not_run_again(order: tuple[str, str]) -> None:
    @virtual_time
    async def scenario() -> None:
        runs = GraphRuns(
            "START->seed, seed=>[ok,flaky]",
            {"seed": answers(goto(*order)), "ok": adds(1), "flaky": fails(1, {"value": 10})},
            channels=SUM,
        )
        outcome = await runs.start({"value": 0})
        assert (outcome.run.status, outcome.state) == (FAILED, {"value": 1})
        assert list(outcome.next_nodes) == ["flaky"]
        outcome = await runs.retry()
        assert (outcome.run.status, outcome.state) == (DONE, {"value": 11})
        assert runs.calls.count("ok") == 1

    scenario()


@virtual_time
async def test_f7_the_state_is_shown_with_what_finished_and_the_head_without() -> None:
    runs = GraphRuns(
        "START->one, START->two", {"one": adds(2), "two": fails(2, {"value": 3})}, channels=SUM,
        nodes={"two": quick(2)},
    )  # fmt: skip
    outcome = await runs.start({"value": 1})
    stored = await runs.runs.stored_outcome(outcome.run)
    assert (stored.state, list(stored.next_nodes)) == ({"value": 3}, ["two"])
    thread = await runs.store.load_thread("t")
    assert thread is not None
    head = await load_position(runs.store, runs.graph, thread)
    assert head.state == {"value": 1}
    assert [activation.node for activation in head.work.activations] == ["one", "two"]
    outcome = await runs.retry()
    assert (outcome.state, runs.calls.count("one")) == ({"value": 6}, 1)


@virtual_time
async def test_f9_an_interrupt_and_an_error_are_both_recorded() -> None:
    async def ask(call: Call) -> Any:
        return {"value": call.interrupt("?")}

    runs = GraphRuns("START->ask, START->bad", {"ask": ask, "bad": fails(1, {"value": 1})}, channels=SUM)
    outcome = await runs.start({"value": 0})
    assert outcome.run.status is FAILED
    assert [item.node for item in await runs.pending()] == ["ask"]
    outcome = await runs.retry()
    assert outcome.run.status is INTERRUPTED
    outcome = await runs.resume("t", 5)
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 6})


async def _takes_40_ms(call: Call) -> Any:
    await asyncio.sleep(0.04)
    return {"value": 1}


@virtual_time
async def test_f11_f12_a_deadline_ends_an_invocation_between_supersteps() -> None:
    runs = GraphRuns("START->a, a->b", {"a": _takes_40_ms, "b": adds(1)}, channels=SUM)
    outcome = await runs.start({"value": 0}, deadline_us=20_000)
    assert outcome.run.error is not None
    assert (outcome.run.error.reason, runs.calls) == ("RUN_DEADLINE", ["a"])
    outcome = await runs.retry()
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 2})


@virtual_time
async def test_f17_a_run_that_drains_stops_at_its_boundary_and_goes_on() -> None:
    runs = GraphRuns("START->a, a->b", {"a": _takes_40_ms, "b": adds(1)}, channels=SUM)
    under_way = asyncio.ensure_future(runs.start({"value": 0}))
    await asyncio.sleep(0.01)
    assert await runs.runs.drain("run-000001")
    outcome = await under_way
    assert (outcome.run.status, outcome.state, runs.calls) == (RunStatus.DRAINED, {"value": 1}, ["a"])
    assert (await runs.retry()).state == {"value": 2}


@virtual_time
async def test_f22_the_error_of_the_lowest_task_is_the_runs_and_all_are_listed() -> None:
    async def worker(call: Call) -> Any:
        await asyncio.sleep(0.03 if call.arg == 0 else 0)
        raise ToolFailure("invalid_value", f"no {call.arg}")

    runs = GraphRuns("START->w", {"w": worker})
    outcome = await runs.start(goto=[Target("w", n) for n in (0, 1, 2)])
    assert outcome.run.error is not None
    errors = (outcome.run.error, *outcome.run.error.others)
    assert [f"no {number}" in error.hint for number, error in enumerate(errors)] == [True] * 3


@virtual_time
async def test_f26_a_cancelled_run_keeps_what_finished() -> None:
    async def long(call: Call) -> Any:
        await asyncio.sleep(30)

    runs = GraphRuns(
        "START->little, START->parallel, little->awhile",
        {"little": adds(2), "parallel": long, "awhile": adds(9)},
        channels=SUM,
    )
    under_way = asyncio.ensure_future(runs.start({"value": 1}))
    await asyncio.sleep(0.01)
    assert await runs.runs.cancel("run-000001", "enough")
    outcome = await under_way
    assert (outcome.run.status, outcome.state) == (RunStatus.CANCELLED, {"value": 3})
    assert (list(outcome.next_nodes), runs.calls) == (["parallel"], ["little", "parallel"])
    assert (await runs.kinds(outcome.run.run_id))[-1] == "run.cancelled"


@virtual_time
async def test_r2_a_command_that_leads_nowhere_fails_the_run_before_anything_is_written() -> None:
    runs = GraphRuns(
        "START->router, router=>[]", {"router": answers(goto("missing", update={"value": 1}))}, channels=OW
    )
    outcome = await runs.start({"value": 1})
    assert outcome.run.status is FAILED
    assert outcome.run.error is not None
    assert (outcome.run.error.reason, outcome.run.error.node) == ("UNKNOWN_TARGET", "router")
    assert await runs.sources() == ["INPUT"]


@virtual_time
async def test_x44_a_node_sees_a_message_with_an_id_that_a_second_run_gives_again() -> None:
    seen: list[Any] = []

    async def look(call: Call) -> Any:
        seen.append(call.state["messages"])

    for thread in ("t", "u"):
        runs = GraphRuns("START->look", {"look": look}, channels=(Channel("messages", reducer="messages"),))
        await runs.start({"messages": {"role": "user", "content": "hello"}}, thread)
    ((first,), (second,)) = seen
    assert first == second
    assert (first["content"], first["id"] != "") == ("hello", True)


# --- interrupts -------------------------------------------------------------------------------------


async def _approve(call: Call) -> Any:
    return {"value": call.interrupt("ok?")["bump"]}


@virtual_time
async def test_i1_i2_a_run_waits_for_an_answer_and_goes_on_with_it() -> None:
    runs = GraphRuns(
        "START->approve, approve->done", {"approve": _approve, "done": answers(None)}, channels=SUM
    )
    outcome = await runs.start({"value": 10})
    assert (outcome.run.status, len(outcome.interrupts), outcome.state) == (INTERRUPTED, 1, {"value": 10})
    with pytest.raises(RunRefused) as refused:
        await runs.start({"value": 1})
    assert refused.value.reason == "INTERRUPT_PENDING"
    before = len(await runs.kinds(outcome.run.run_id))
    outcome = await runs.resume("t", {"bump": 5})
    assert (outcome.run.status, outcome.state) == (DONE, {"value": 15})
    events = (await runs.events(outcome.run.run_id))[before:]
    restored = next(e.payload for e in events if e.kind == "checkpoint.restored")
    assert not any(e.kind == "checkpoint.saved" and e.payload == restored for e in events)
    assert [e.kind for e in events][:3] == ["run.started", "checkpoint.restored", "interrupt.resumed"]


@virtual_time
async def test_i4_i5_i6_siblings_of_an_interrupt_are_kept_and_get_no_answer() -> None:
    async def b(call: Call) -> Any:
        return {"value": call.interrupt("?")}

    async def x(call: Call) -> Any:
        return {"value": 1000 if call._answers else 10}

    runs = GraphRuns(
        "START->super, super=>[a,b], a->x",
        {"super": answers(goto("a", "b")), "a": adds(1), "b": b, "x": x},
        channels=SUM,
    )
    outcome = await runs.start({"value": 0})
    assert (outcome.run.status, outcome.state, list(outcome.next_nodes)) == (INTERRUPTED, {"value": 1}, ["b"])
    outcome = await runs.resume("t", 100)
    assert (outcome.state, runs.calls.count("x"), runs.calls.count("a")) == ({"value": 111}, 1, 1)


@virtual_time
async def test_i7_sends_beside_an_interrupt_are_not_run_again() -> None:
    async def worker(call: Call) -> Any:
        return {"value": call.interrupt("?") if call.arg == 1 else call.arg}

    runs = GraphRuns("START->w", {"w": worker}, channels=SUM)
    await runs.start({"value": 0}, goto=[Target("w", n) for n in (1, 2, 3)])
    assert (await runs.resume("t", 1)).state == {"value": 6}
    assert len(runs.calls) == 4


@virtual_time
async def test_i10_several_questions_are_answered_in_order() -> None:
    async def ask(call: Call) -> Any:
        return {"text": f" {call.interrupt('first')} {call.interrupt('second')}"}

    runs = GraphRuns("START->ask", {"ask": ask}, channels=TEXT)
    await runs.start({"text": "DE"})
    outcome = await runs.resume("t", "answer 1")
    assert [(item.ordinal, item.payload) for item in outcome.interrupts] == [(1, '"second"')]
    assert outcome.state == {"text": "DE"}
    assert (await runs.resume("t", "answer 2")).state == {"text": "DE answer 1 answer 2"}


def two_questions() -> GraphRuns:
    async def ask(call: Call) -> Any:
        return {"log": [call.interrupt(call.arg)]}

    return GraphRuns("START->ask", {"ask": ask}, channels=APP)


@virtual_time
async def test_i12_i15_i16_answers_name_their_questions() -> None:
    runs = two_questions()
    first = await runs.start(goto=[Target("ask", "a"), Target("ask", "b")])
    assert first.run.status is INTERRUPTED
    one, two = [item.interrupt_id for item in await runs.pending()]
    for request, reason in (
        (runs.resume("t", 1), "AMBIGUOUS_RESUME"),
        (runs.resume("t", **{"i-none": 1}), "INTERRUPT_NOT_FOUND"),
        (runs.resume("t", **{one: 1, "i-none": 1}), "INTERRUPT_NOT_FOUND"),
        (runs.resume("t"), "NOTHING_TO_RESUME"),
        (runs.retry(), "NOTHING_TO_RESUME"),
    ):
        with pytest.raises(RunRefused) as refused:
            await request
        assert refused.value.reason == reason
    assert len(await runs.pending()) == 2
    outcome = await runs.resume("t", **{one: "x"})
    assert (outcome.run.status, len(outcome.interrupts)) == (INTERRUPTED, 1)
    with pytest.raises(RunRefused) as refused:
        await runs.resume("t", **{one: "x"})
    assert refused.value.reason == "INTERRUPT_ALREADY_RESOLVED"
    outcome = await runs.resume("t", **{two: "y"})
    assert outcome.run.status is DONE
    assert sorted(outcome.state["log"]) == ["x", "y"]  # type: ignore[arg-type]
    assert len(runs.calls) == 4


@pytest.mark.parametrize("value", [None, {}, False, ""])
def test_i17_every_value_is_an_answer(value: Any) -> None:
    @virtual_time
    async def scenario() -> None:
        async def ask(call: Call) -> Any:
            return {"value": call.interrupt("?")}

        runs = GraphRuns("START->ask", {"ask": ask}, channels=OW)
        await runs.start({"value": 1})
        assert (await runs.resume("t", value)).state == {"value": value}

    scenario()


@virtual_time
async def test_i9_i19_nothing_is_resumed_where_nothing_waits() -> None:
    runs = chain()
    for request, reason in ((runs.resume("t", 1), "THREAD_NOT_FOUND"), (runs.retry(), "THREAD_NOT_FOUND")):
        with pytest.raises(RunRefused) as refused:
            await request
        assert refused.value.reason == reason
    await runs.start({"value": 0})
    for request in (runs.resume("t", 1), runs.retry()):
        with pytest.raises(RunRefused) as refused:
            await request
        assert refused.value.reason == "NOTHING_TO_RESUME"


@virtual_time
async def test_i21_stops_after_every_node_while_work_is_left() -> None:
    nodes = {name: answers(None) for name in ("n1", "n2", "n3")}
    runs = GraphRuns("START->n1, n1->n2, n2->n3", nodes, policy=GraphPolicy(interrupt_after=("*",)))
    assert (await runs.start()).run.stopped_after == ("n1",)
    assert (await runs.retry()).run.stopped_after == ("n2",)
    assert (await runs.retry()).run.status is DONE
    named = GraphRuns("START->n1, n1->n2, n2->n3", nodes, policy=GraphPolicy(interrupt_after=("n3",)))
    assert (await named.start()).run.status is INTERRUPTED
    outcome = await named.retry()
    assert (outcome.run.status, named.calls) == (DONE, ["n1", "n2", "n3"])


@virtual_time
async def test_i22_a_stop_before_a_node_awaits_no_answer() -> None:
    nodes = {"node1": answers({"text": "|node-1"}), "node2": answers({"text": "|node-2"})}
    runs = GraphRuns(
        "START->node1, node1->node2", nodes, channels=TEXT, policy=GraphPolicy(interrupt_before=("node1",))
    )
    outcome = await runs.start({"text": "abc"})
    assert (outcome.run.status, outcome.run.stopped_before) == (INTERRUPTED, ("node1",))
    with pytest.raises(RunRefused) as refused:
        await runs.resume("t", 1)
    assert refused.value.reason == "NOTHING_TO_RESUME"
    assert (await runs.retry()).state == {"text": "abc|node-1|node-2"}


@virtual_time
async def test_v19_v20_a_graph_that_stops_needs_a_thread() -> None:
    runs = GraphRuns("START->a", {"a": logs("a")}, channels=APP, policy=GraphPolicy(interrupt_before=("a",)))
    with pytest.raises(RunRefused) as refused:
        await runs.start(thread="")
    assert refused.value.reason == "INTERRUPT_WITHOUT_CHECKPOINTS"
    assert "thread" in refused.value.message


# --- checkpoints, threads, the journal --------------------------------------------------------------


@virtual_time
async def test_c1_c4_an_input_checkpoint_and_one_a_superstep() -> None:
    runs = chain()
    await runs.start({"value": 0})
    page = await runs.store.list_checkpoints("t", frozenset(), "", 10)
    assert await runs.sources() == ["INPUT", "LOOP", "LOOP", "LOOP"]
    values = []
    for checkpoint in page.checkpoints:
        places = places_of(checkpoint.values)
        records = await runs.store.load_values("t", places)
        values.append(next(r.value for r in records if r.number == places["value"].number))
    assert values == ["3", "2", "1", "0"]
    assert [checkpoint.parent for checkpoint in page.checkpoints] == [2, 1, 0, None]
    two = await runs.store.list_checkpoints("t", frozenset({CheckpointSource.LOOP}), "", 2)
    assert [await runs.state_at(item) for item in two.checkpoints] == [{"value": 3}, {"value": 2}]
    rest = await runs.store.list_checkpoints("t", frozenset({CheckpointSource.LOOP}), two.next_cursor, 2)
    assert [await runs.state_at(item) for item in rest.checkpoints] == [{"value": 1}], "without the input"


@virtual_time
async def test_new_input_goes_through_the_reducers_and_superstep_numbers_go_on() -> None:
    runs = chain()
    await runs.start({"value": 0})
    outcome = await runs.start({"value": 10})
    assert (outcome.state, outcome.run.superstep) == ({"value": 16}, 6)
    thread = await runs.store.load_thread("t")
    assert thread is not None
    assert (thread.head, thread.next_number) == (7, 8)


@virtual_time
async def test_c34_a_second_run_on_a_thread_is_refused() -> None:
    runs = GraphRuns("START->a", {"a": _takes_40_ms}, channels=SUM)
    first = asyncio.ensure_future(runs.start({"value": 0}))
    await asyncio.sleep(0.01)
    with pytest.raises(RunRefused) as refused:
        await runs.start({"value": 0})
    assert refused.value.reason == "THREAD_BUSY"
    assert (await first).run.status is DONE


@virtual_time
async def test_a_request_sent_again_gets_the_same_run() -> None:
    runs = chain()
    request = StartRequest(runs.graph.name, "", "t", {"value": 0}, request_id="q", fingerprint="f")
    first = await runs.runs.start(request)
    again = await runs.runs.start(request)
    assert (again.run.run_id, again.state) == (first.run.run_id, first.state)
    assert len(runs.calls) == 3
    with pytest.raises(RunRefused) as refused:
        await runs.runs.start(StartRequest(runs.graph.name, request_id="q", fingerprint="other"))
    assert refused.value.reason == "REQUEST_ID_REUSED"


@virtual_time
async def test_s1_the_journal_is_dense_and_ends_with_the_state() -> None:
    runs = GraphRuns("START->a, a->b", {"a": adds(1), "b": adds(1)}, channels=SUM)
    outcome = await runs.start({"value": 0})
    events = await runs.events(outcome.run.run_id)
    assert [event.offset for event in events] == list(range(len(events)))
    superstep = ["superstep.started", "task.scheduled", "node.started", "node.completed", "state.updated",
                 "route.selected", "checkpoint.saved", "superstep.completed"]  # fmt: skip
    kinds = [event.kind for event in events]
    assert kinds == ["run.started", "checkpoint.saved", *superstep, *superstep, "run.completed"]
    assert events[-1].payload == '{"state":{"value":2},"supersteps":2}'
    assert outcome.run.next_offset == len(events)


@virtual_time
async def test_s2_a_failure_is_in_the_journal() -> None:
    runs = GraphRuns("START->a", {"a": fails(1, None)})
    outcome = await runs.start()
    kinds = await runs.kinds(outcome.run.run_id)
    assert kinds[-2:] == ["node.failed", "run.failed"]


@virtual_time
async def test_a_run_without_a_thread_keeps_no_checkpoints() -> None:
    runs = chain()
    outcome = await runs.start({"value": 0}, thread="")
    assert (outcome.run.status, outcome.state, outcome.checkpoint_id) == (DONE, {"value": 3}, "")
    assert runs.database.extra.get("graph_checkpoints", {}) == {}


@virtual_time
async def test_a_conflict_at_commit_takes_the_thread_back_to_what_was_committed() -> None:
    tool = ToolBinding("note", {"read": ["kv/a"], "put": {"kv/a": 1}, "output": {}})
    runs = GraphRuns(
        "START->put, put->slow", {"slow": _takes_40_ms}, channels=SUM, nodes={"put": {"binding": tool}}
    )
    under_way = asyncio.ensure_future(runs.start({"value": 0}))
    await asyncio.sleep(0.01)
    await runs.engine.begin()
    await runs.engine.step(1, "note", {"put": {"kv/a": 2}})
    await runs.engine.commit()
    outcome = await under_way
    assert outcome.run.status is FAILED
    assert outcome.run.error is not None
    assert outcome.run.error.reason == "COMMIT_CONFLICT"
    thread = await runs.store.load_thread("t")
    assert thread is not None
    assert (thread.head, thread.transaction_id) == (None, "")
    page = await runs.store.list_checkpoints("t", frozenset(), "", 10)
    assert [checkpoint.rolled_back for checkpoint in page.checkpoints] == [True] * len(page.checkpoints)
    assert (await runs.start({"value": 5})).state == {"value": 6}


@virtual_time
async def test_after_a_failure_no_task_is_started_and_those_left_are_pending() -> None:
    runs = GraphRuns(
        "START->bad, START->later", {"bad": fails(1, {"value": 1}), "later": adds(2)}, channels=SUM
    )
    outcome = await runs.start({"value": 0}, max_concurrency=1)
    assert (outcome.run.status, runs.calls) == (FAILED, ["bad"])
    assert list(outcome.next_nodes) == ["bad", "later"]
    assert (await runs.retry()).state == {"value": 3}


@virtual_time
async def test_a_step_depends_on_the_step_whose_write_it_reads() -> None:
    look = ToolBinding("lookup", {"output": {"value": 5}})
    use = ToolBinding("note", {"put": {"kv/x": "${state.value}"}, "output": {}})
    runs = GraphRuns(
        "START->look, look->use", {}, channels=OW, nodes={"look": {"binding": look}, "use": {"binding": use}}
    )
    outcome = await runs.start()
    assert outcome.run.status is DONE, outcome.run.error
    page = await runs.engine.store.list_attempts(TransactionId(outcome.run.transaction_id), "", 10, 1 << 20)
    edges = [edge for attempt in page.attempts for edge in attempt.edges]
    assert [(edge.from_step, edge.to_step, edge.source_key, edge.target_key) for edge in edges] == [
        (1, 2, "value", "kv/x")
    ]
