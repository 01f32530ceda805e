"""The hub of workers, with connections that are lists of what was sent: every way a call can end, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.fake_tool_context import FakeToolContext, FakeTransaction
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.errors import PreconditionFailed
from agenttx_server.engine.ports import (
    ArgumentsRefused,
    DeliveryFailed,
    NotCalled,
    OutcomeUnknown,
    ReportedFailure,
    ToolFailure,
    UndoContext,
    UndoUnavailable,
)
from agenttx_server.engine.records import (
    EffectClass,
    EffectRecord,
    HintCategory,
    MicrosecondsUtc,
    ToolDescription,
    ToolLocation,
    TransactionId,
)
from agenttx_server.engine.server_lease import LeaseEnded
from agenttx_server.tools.hosted_functions import HostedFunctions
from agenttx_server.tools.remote_workers import RemoteWorkers, WorkerSettings
from agenttx_server.tools.worker_connection import WorkerConnection
from agenttx_server.worker_messages import (
    CancelCall,
    Closed,
    Command,
    ContextAnswer,
    DeliverCall,
    Done,
    EffectId,
    Entries,
    Failure,
    Get,
    MakeStep,
    Offer,
    OfferedTool,
    Put,
    RegisterUndo,
    Scan,
    StageEffect,
    Succeeded,
    ToolCall,
    Touch,
    UndoCall,
    Unknown,
    Value,
)

TRANSACTION = TransactionId("tx-1")
UNDO_CONTEXT = UndoContext(TRANSACTION, "agent", 3, 1, "key-3")
EFFECT = EffectRecord(
    effect_id="e-1",
    step_id=1,
    attempt=1,
    sequence=1,
    channel="mail",
    payload="{}",
    idempotency_key="e-1",
    staged_at=MicrosecondsUtc(0),
)
ACTING = [EffectClass.IDEMPOTENT, EffectClass.COMPENSATABLE, EffectClass.IRREVERSIBLE]
HARMLESS = [EffectClass.READ_ONLY, EffectClass.TRANSACTIONAL]


class Worker:
    """The far end of a connection: what it was sent, and how it answers."""

    def __init__(
        self, hub: RemoteWorkers, *tools: OfferedTool, channels: Any = (), concurrency: int = 4
    ) -> None:
        self.sent: list[Command] = []
        self.link: WorkerConnection = hub.connect(
            Offer("w", "test", tools, tuple(channels), concurrency), self.sent.append
        )

    def calls(self) -> list[Any]:
        return [told for told in self.sent if isinstance(told, (ToolCall, UndoCall, DeliverCall))]

    def answers(self) -> list[Any]:
        return [told.answer for told in self.sent if isinstance(told, ContextAnswer)]

    def succeed(self, output: str = "1", index: int = -1) -> None:
        self.link.finished(self.calls()[index].call_id, Succeeded(output))


def offered(
    name: str = "t",
    effect_class: EffectClass = EffectClass.IDEMPOTENT,
    *,
    undo: tuple[str, ...] = (),
    concurrency: int = 0,
    schema: str = "{}",
) -> OfferedTool:
    return OfferedTool(
        ToolDescription(name, "", schema, effect_class, ToolLocation.WORKER, undo_names=undo), concurrency
    )


def hub(**settings: Any) -> RemoteWorkers:
    return RemoteWorkers(
        WorkerSettings(**settings), taken={"kv.put"}, knows_own_undo=lambda name: name == "fs.undo"
    )


async def settle() -> None:
    """Let everything run that can run now."""
    for _ in range(10):
        await asyncio.sleep(0)


def start(workers: RemoteWorkers, name: str = "t", arguments: Any = None) -> asyncio.Task[Any]:
    return asyncio.create_task(workers.run(name, arguments or {}, FakeTransaction().context()))


# --- offering ----------------------------------------------------------------------------


@virtual_time
async def test_tools_are_listed_as_long_as_somebody_offers_them() -> None:
    workers = hub()
    one, two = Worker(workers, offered("a"), offered("b")), Worker(workers, offered("a"))

    assert [tool.name for tool in workers.describe_all()] == ["a", "b"]
    one.link.close("gone")
    assert [tool.name for tool in workers.describe_all()] == ["a"]
    two.link.says_goodbye()
    assert workers.describe_all() == ()
    description = workers.describe("b")
    assert description is not None
    assert description.location is ToolLocation.WORKER


@virtual_time
@pytest.mark.parametrize(
    ("tool", "by"),
    [
        (offered("kv.put"), "server"),
        (offered("mine", undo=("fs.undo",)), "server"),
        (offered("t", EffectClass.IRREVERSIBLE), "worker"),
        (offered("t", schema='{"type":"object"}'), "worker"),
    ],
)
async def test_a_conflicting_offer_is_refused(tool: OfferedTool, by: str) -> None:
    workers = hub()
    Worker(workers, offered("t"))

    with pytest.raises(PreconditionFailed) as refused:
        Worker(workers, offered("fine"), tool)

    assert refused.value.reason == "TOOL_CONFLICT"
    assert refused.value.metadata["offered_by"] == by
    assert [known.name for known in workers.describe_all()] == ["t"]


@virtual_time
async def test_a_tool_may_change_once_nobody_offers_the_old_one() -> None:
    workers = hub()
    old = Worker(workers, offered("t"))
    old.link.says_goodbye()

    Worker(workers, offered("t", EffectClass.READ_ONLY))

    description = workers.describe("t")
    assert description is not None
    assert description.effect_class is EffectClass.READ_ONLY


@virtual_time
async def test_find_waits_for_a_tool_that_nobody_offered_yet() -> None:
    workers = hub()
    waiting = asyncio.create_task(workers.find("t", 5.0))
    await asyncio.sleep(4.0)
    Worker(workers, offered("t"))

    found = await waiting
    assert found is not None
    assert await workers.find("other", 5.0) is None


# --- placing calls -----------------------------------------------------------------------


@virtual_time
async def test_a_call_carries_what_the_tool_needs_and_returns_its_output() -> None:
    workers = hub()
    worker = Worker(workers, offered())
    running = start(workers, arguments={"b": 1, "a": [None]})
    await settle()

    (call,) = worker.calls()
    assert (call.tool_name, call.arguments, call.step_id, call.attempt) == ("t", '{"a":[null],"b":1}', 1, 1)
    assert call.idempotency_key == "key-1-1"
    worker.succeed('{"x":1.5}')
    assert await running == {"x": 1.5}


@virtual_time
async def test_calls_go_where_the_fewest_run() -> None:
    workers = hub()
    both = [Worker(workers, offered(), concurrency=3) for _ in range(2)]
    running = [start(workers) for _ in range(5)]
    await settle()

    assert sorted(len(worker.calls()) for worker in both) == [2, 3]
    for worker in both:
        for index in range(len(worker.calls())):
            worker.succeed(index=index)
    assert await asyncio.gather(*running) == [1] * 5


@virtual_time
async def test_credits_of_a_worker_and_of_a_tool_hold_and_the_oldest_goes_first() -> None:
    workers = hub()
    worker = Worker(workers, offered("t", concurrency=1), offered("u"), concurrency=2)
    first, second, third = start(workers, "t"), start(workers, "t"), start(workers, "u")
    await settle()
    fourth = start(workers, "u")
    await settle()
    assert [call.tool_name for call in worker.calls()] == ["t", "u"]

    worker.succeed("2", index=1)  # the first u: room for one more in all, but t has its one
    await settle()
    assert [call.tool_name for call in worker.calls()] == ["t", "u", "u"]
    worker.succeed("1", index=0)
    await settle()
    assert [call.tool_name for call in worker.calls()] == ["t", "u", "u", "t"]
    worker.succeed("3", index=2)
    worker.succeed("4", index=3)
    assert [await task for task in (first, third, fourth, second)] == [1, 2, 3, 4]


@virtual_time
async def test_what_a_call_waits_for_takes_its_place_and_nothing_else_does() -> None:
    workers = hub()
    worker = Worker(workers, offered("t"), offered("one", concurrency=1), concurrency=2)
    outer = [start(workers), start(workers), start(workers)]
    await settle()
    inside = []
    for number in (1, 2, 3):
        context = FakeTransaction().context()
        context.sub_step = number
        inside.append(asyncio.create_task(workers.run("one" if number == 3 else "t", {}, context)))
    await settle()
    assert len(worker.calls()) == 2, "both are at work"

    gate = asyncio.Event()

    async def step(*call: Any) -> str:
        await gate.wait()
        return "7"

    for call in list(worker.link.calls.values()):
        assert isinstance(call.context, FakeToolContext)
        call.context.step = step  # type: ignore[attr-defined]
        worker.link.asked(call.call_id, call.call_id, MakeStep("t", "{}", None))
        await settle()
    assert len(worker.calls()) == 4, "each of them waits for another call, and that one runs"
    worker.succeed("3", index=2)
    await settle()
    assert [call.tool_name for call in worker.calls()] == ["t"] * 4 + ["one"]
    gate.set()
    await settle()
    for index in (3, 4, 0):
        worker.succeed("4", index=index)
    await settle()
    assert len(worker.calls()) == 6, "the place that is free now is anybody's"
    for index in (1, 5):
        worker.succeed("5", index=index)
    assert await asyncio.gather(*outer, *inside) == [4, 5, 5, 3, 4, 4]


@virtual_time
async def test_undo_goes_before_all_else() -> None:
    workers = hub()
    worker = Worker(workers, offered("t", undo=("u",)), concurrency=1)
    running, waiting = start(workers), start(workers)
    undoing = asyncio.create_task(workers.undo("u", {"a": 1}, UNDO_CONTEXT))
    await settle()
    worker.succeed()
    await settle()

    told = worker.calls()[-1]
    assert isinstance(told, UndoCall)
    assert (told.undo_name, told.arguments, told.context) == ("u", '{"a":1}', UNDO_CONTEXT)
    worker.succeed("")
    await undoing
    await settle()
    worker.succeed()
    assert await asyncio.gather(running, waiting) == [1, 1]


@virtual_time
async def test_a_call_waits_for_a_worker_that_was_there_before() -> None:
    workers = hub()
    Worker(workers, offered()).link.close("gone")
    running = start(workers)
    await asyncio.sleep(20)
    worker = Worker(workers, offered())
    await settle()
    worker.succeed("7")

    assert await running == 7


@pytest.mark.parametrize("what", ["tool", "function", "undo"])
@virtual_time
async def test_what_waited_is_not_begun_once_another_server_may_have_done_it(what: str) -> None:
    """The server stood still while the call waited for a worker with room: its lease was looked at before."""
    workers = hub()
    sent: list[Command] = []
    offer = Offer("w", "test", (offered("t", undo=("u",)),), (), 1, ("f",))
    link = workers.connect(offer, sent.append)
    running = start(workers)
    await settle()
    stood_still = False

    def check_begin() -> None:
        if stood_still:
            raise LeaseEnded("it stood still")

    context = FakeTransaction().context()
    context.check_begin = check_begin  # type: ignore[method-assign]
    match what:
        case "tool":
            waiting = asyncio.ensure_future(workers.run("t", {}, context))
        case "function":
            waiting = asyncio.ensure_future(HostedFunctions(workers).call("f", "{}", context))
        case _:
            told = replace(UNDO_CONTEXT, check_begin=check_begin)
            waiting = asyncio.ensure_future(workers.undo("u", {}, told))
    await settle()
    stood_still = True
    link.finished(1, Succeeded("1"))
    with pytest.raises(LeaseEnded):
        await waiting
    assert await running == 1
    assert len(sent) == 1  # and its place is free again
    assert await asyncio.gather(start(workers), _answer(sent, link)) == [2, None]


async def _answer(sent: list[Command], link: WorkerConnection) -> None:
    await settle()
    last = sent[-1]
    assert isinstance(last, ToolCall)
    link.finished(last.call_id, Succeeded("2"))


@virtual_time
async def test_a_waiting_call_is_not_given_to_a_tool_of_another_effect_class() -> None:
    workers = hub()
    Worker(workers, offered("t", EffectClass.READ_ONLY)).link.close("gone")
    running = start(workers)
    await settle()
    worker = Worker(workers, offered("t", EffectClass.IRREVERSIBLE))
    await settle()

    with pytest.raises(NotCalled):
        await running
    assert worker.sent == []


@virtual_time
async def test_a_waiting_call_is_not_given_to_a_tool_that_has_come_to_need_approval() -> None:
    workers = hub()
    Worker(workers, offered("t")).link.close("gone")
    running = start(workers)
    await settle()
    tool = offered("t")
    asks = replace(tool, description=replace(tool.description, needs_approval=True))
    worker = Worker(workers, asks)
    await settle()

    with pytest.raises(NotCalled):
        await running
    assert worker.sent == []


@virtual_time
async def test_a_call_that_no_worker_came_for_fails_before_its_deadline_and_names_the_tool() -> None:
    workers = hub()
    Worker(workers, offered()).link.close("gone")

    with pytest.raises(NotCalled, match="no worker offers t now") as failed:
        await start(workers)

    assert failed.value.category is HintCategory.CONNECTION
    assert asyncio.get_running_loop().time() < 30


@virtual_time
async def test_a_call_that_all_workers_were_too_busy_for_says_so() -> None:
    workers = hub(silence_limit_seconds=1000)
    worker = Worker(workers, offered(), concurrency=1)
    running = start(workers)

    with pytest.raises(NotCalled, match="were busy") as failed:
        await start(workers)

    assert failed.value.category is HintCategory.RESOURCE_EXHAUSTED
    worker.succeed()
    await running


@virtual_time
async def test_only_so_many_calls_wait() -> None:
    workers = hub(max_waiting=1)
    Worker(workers, offered()).link.close("gone")
    first = start(workers)
    await settle()

    with pytest.raises(NotCalled, match="wait for workers already"):
        await start(workers)
    with pytest.raises(NotCalled):
        await first
    with pytest.raises(NotCalled, match="no worker"):  # its place is free again
        await start(workers)


# --- how a call ends ---------------------------------------------------------------------


@virtual_time
@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (Failure("conflict", "taken", ("a",)), ToolFailure),
        (Failure("missing_argument", "missing argument 'a'", ("a",), not_called=True), ArgumentsRefused),
        (Failure(raw_error="Traceback…\nValueError: x"), ReportedFailure),
    ],
)
async def test_a_failure_is_raised_as_what_it_is(failure: Failure, raised: type[Exception]) -> None:
    workers = hub()
    worker = Worker(workers, offered())
    running = start(workers)
    await settle()
    worker.link.finished(worker.calls()[0].call_id, failure)

    with pytest.raises(raised) as caught:
        await running
    assert type(caught.value) is raised


@virtual_time
async def test_an_outcome_that_the_worker_does_not_know() -> None:
    workers = hub()
    worker = Worker(workers, offered())
    running = start(workers)
    await settle()
    worker.link.finished(worker.calls()[0].call_id, Unknown("the line went dead"))

    with pytest.raises(OutcomeUnknown, match="the line went dead"):
        await running


@virtual_time
@pytest.mark.parametrize("effect_class", ACTING + HARMLESS)
async def test_output_that_is_no_json(effect_class: EffectClass) -> None:
    workers = hub()
    worker = Worker(workers, offered("t", effect_class))
    running = start(workers)
    await settle()
    worker.succeed('{"a":NaN}')

    expected = OutcomeUnknown if effect_class is EffectClass.IRREVERSIBLE else ToolFailure
    with pytest.raises(expected, match="not plain JSON"):
        await running


def _close(worker: Worker) -> None:
    worker.link.close("the connection broke")


def _say_nothing(worker: Worker) -> None:
    pass  # until the silence limit


@virtual_time
@pytest.mark.parametrize("vanish", [_close, _say_nothing])
@pytest.mark.parametrize("effect_class", ACTING)
async def test_a_worker_that_vanishes_in_mid_call_leaves_an_effect_unknown(
    effect_class: EffectClass, vanish: Any
) -> None:
    workers = hub()
    worker = Worker(workers, offered("t", effect_class))
    running = start(workers)
    await settle()
    vanish(worker)

    with pytest.raises(OutcomeUnknown, match=r"the worker that ran t was lost"):
        await running
    assert worker.link.is_closed
    assert workers.describe_all() == ()


@virtual_time
@pytest.mark.parametrize("effect_class", HARMLESS)
async def test_a_worker_that_vanishes_leaves_a_harmless_call_a_failure_that_may_be_repeated(
    effect_class: EffectClass,
) -> None:
    workers = hub()
    worker = Worker(workers, offered("t", effect_class))
    running = start(workers)
    await settle()
    _close(worker)

    with pytest.raises(ToolFailure) as failed:
        await running
    assert failed.value.category is HintCategory.CONNECTION
    assert not isinstance(failed.value, NotCalled)


@virtual_time
async def test_a_late_answer_is_dropped() -> None:
    workers = hub()
    worker = Worker(workers, offered())
    running = start(workers)
    await asyncio.sleep(20)  # beyond the silence limit
    worker.link.heard()
    worker.succeed("5")

    with pytest.raises(OutcomeUnknown, match="silent for 15 s"):
        await running
    worker.link.finished(4711, Succeeded("1"))  # one that was never made


@virtual_time
async def test_whatever_a_worker_says_keeps_it_alive() -> None:
    workers = hub()
    worker = Worker(workers, offered())
    for _ in range(10):
        await asyncio.sleep(14)
        worker.link.heard()
    assert not worker.link.is_closed
    over = asyncio.create_task(worker.link.over())
    assert "silent" in await over


@virtual_time
async def test_an_idle_worker_may_be_silent_for_longer_and_a_call_counts_from_its_beginning() -> None:
    workers = hub()
    worker = Worker(workers, offered())
    await asyncio.sleep(59)
    assert not worker.link.is_closed
    began = asyncio.get_running_loop().time()
    running = start(workers)
    with pytest.raises(OutcomeUnknown, match="silent for 15 s"):
        await running
    assert asyncio.get_running_loop().time() - began == pytest.approx(15)


@virtual_time
async def test_a_worker_that_has_answered_is_idle_again() -> None:
    workers = hub()
    worker = Worker(workers, offered())
    running = start(workers)
    await settle()
    worker.succeed("1")
    worker.link.heard()
    await running
    await asyncio.sleep(59)
    assert not worker.link.is_closed
    over = asyncio.create_task(worker.link.over())
    assert "silent for 60 s" in await over


@virtual_time
async def test_a_worker_that_says_goodbye_finishes_what_it_runs_and_gets_nothing_more() -> None:
    workers = hub()
    leaving = Worker(workers, offered(), concurrency=2)
    running = start(workers)
    await settle()
    leaving.link.says_goodbye()
    waiting = start(workers)
    await settle()
    assert len(leaving.calls()) == 1
    assert not leaving.link.is_closed
    staying = Worker(workers, offered())
    await settle()
    leaving.succeed("1")
    staying.succeed("2")

    assert await asyncio.gather(running, waiting) == [1, 2]
    assert await leaving.link.over() == ""


@virtual_time
async def test_a_worker_that_vanishes_between_two_calls_takes_none_with_it() -> None:
    workers = hub()
    gone, there = Worker(workers, offered(), concurrency=1), Worker(workers, offered(), concurrency=1)
    first = start(workers)
    await settle()
    gone.succeed() if gone.calls() else there.succeed()
    await first
    gone.link.close("gone")
    second = start(workers)
    await settle()
    there.succeed("9")

    assert await second == 9


# --- cancelling --------------------------------------------------------------------------


@virtual_time
async def test_a_cancelled_call_is_told_and_waited_for() -> None:
    workers = hub()
    worker = Worker(workers, offered())
    running = start(workers)
    await settle()
    running.cancel()
    await settle()
    assert isinstance(worker.sent[-1], CancelCall)
    assert not running.done()
    worker.link.finished(worker.calls()[0].call_id, Failure("cancelled", "the call was cancelled"))

    with pytest.raises(asyncio.CancelledError):
        await running


@virtual_time
async def test_a_cancelled_call_that_succeeds_all_the_same_has_its_result() -> None:
    workers = hub()
    worker = Worker(workers, offered())
    running = start(workers)
    await settle()
    running.cancel()
    await settle()
    worker.succeed("3")

    assert await running == 3


@virtual_time
async def test_a_call_that_is_cancelled_while_it_waits_never_reaches_a_worker() -> None:
    workers = hub()
    Worker(workers, offered()).link.close("gone")
    running = start(workers)
    await settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    worker = Worker(workers, offered())
    await settle()

    assert worker.sent == []


@virtual_time
async def test_a_cancelled_call_whose_worker_vanishes_is_over() -> None:
    workers = hub()
    worker = Worker(workers, offered())
    running = start(workers)
    await settle()
    running.cancel()
    await settle()
    worker.link.close("gone")

    with pytest.raises(OutcomeUnknown):
        await running


# --- undo and deliveries -----------------------------------------------------------------


@virtual_time
async def test_undo_without_a_worker_was_not_tried() -> None:
    workers = hub(undo_wait_seconds=5)
    with pytest.raises(UndoUnavailable, match="no worker offers it now"):
        await workers.undo("u", {}, UNDO_CONTEXT)


@virtual_time
async def test_undo_whose_worker_vanishes_was_tried() -> None:
    workers = hub()
    worker = Worker(workers, offered(undo=("u",)))
    undoing = asyncio.create_task(workers.undo("u", {}, UNDO_CONTEXT))
    await settle()
    worker.link.close("gone")

    with pytest.raises(ToolFailure) as failed:
        await undoing
    assert failed.value.category is HintCategory.CONNECTION


@virtual_time
async def test_undo_that_fails_and_undo_that_does_not_know() -> None:
    workers = hub()
    worker = Worker(workers, offered(undo=("u",)))
    for outcome, raised in ((Failure(raw_error="X: y"), ReportedFailure), (Unknown("?"), ToolFailure)):
        undoing = asyncio.create_task(workers.undo("u", {}, UNDO_CONTEXT))
        await settle()
        worker.link.finished(worker.calls()[-1].call_id, outcome)
        with pytest.raises(raised):
            await undoing


@virtual_time
async def test_undo_names_that_are_offered_are_told() -> None:
    told: list[Any] = []
    workers = RemoteWorkers(WorkerSettings(), on_undo_offered=told.append)
    Worker(workers, offered("a"))
    Worker(workers, offered("b", undo=("u", "v")))

    assert [sorted(names) for names in told] == [["u", "v"]]


@virtual_time
async def test_effects_of_a_channel_that_a_worker_offers_are_its_to_deliver() -> None:
    workers = hub()
    assert not workers.knows_channel("mail")
    worker = Worker(workers, channels=["mail"])
    assert workers.knows_channel("mail")
    delivering = asyncio.create_task(workers.deliver(TRANSACTION, EFFECT))
    await settle()
    (told,) = worker.calls()
    assert (told.transaction_id, told.effect) == (TRANSACTION, EFFECT)
    worker.succeed("")
    await delivering


@virtual_time
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (
            lambda worker, call: worker.link.finished(
                call, Failure("unknown", "no such box", permanent=True)
            ),
            "no such box",
        ),
        (
            lambda worker, call: worker.link.finished(call, Failure(raw_error="Traceback\nKeyError: 'x'")),
            "KeyError",
        ),
        (lambda worker, call: worker.link.finished(call, Unknown("?")), "can't tell"),
        (lambda worker, call: worker.link.close("gone"), "was lost: gone"),
        (lambda worker, call: None, "was lost: it was silent"),
    ],
)
async def test_a_delivery_that_fails(end: Any, message: str) -> None:
    workers = hub()
    worker = Worker(workers, channels=["mail"])
    delivering = asyncio.create_task(workers.deliver(TRANSACTION, EFFECT))
    await settle()
    end(worker, worker.calls()[0].call_id)

    with pytest.raises(DeliveryFailed, match=message) as failed:
        await delivering
    assert failed.value.permanent is (message == "no such box")


@virtual_time
async def test_a_delivery_that_takes_too_long_is_cancelled() -> None:
    workers = hub(silence_limit_seconds=1000, delivery_timeout_seconds=10)
    worker = Worker(workers, channels=["mail"])
    with pytest.raises(DeliveryFailed, match="within 10 s"):
        await workers.deliver(TRANSACTION, EFFECT)
    assert isinstance(worker.sent[-1], CancelCall)


@virtual_time
async def test_a_delivery_without_a_worker_fails_for_now() -> None:
    workers = RemoteWorkers(WorkerSettings(), channels=["mail"])
    assert workers.knows_channel("mail")
    with pytest.raises(DeliveryFailed, match="no worker"):
        await workers.deliver(TRANSACTION, EFFECT)


# --- what a tool's code asks -------------------------------------------------------------


async def ask(effect_class: EffectClass, *requests: Any) -> tuple[FakeTransaction, list[Any]]:
    """Ask one thing after another in a call; return the transaction and the answers."""
    workers = hub()
    worker = Worker(workers, offered("t", effect_class, undo=("u",) if effect_class.acts_outside else ()))
    transaction = FakeTransaction()
    running = asyncio.create_task(workers.run("t", {}, transaction.context()))
    await settle()
    call_id = worker.calls()[0].call_id
    for number, request in enumerate(requests):
        worker.link.asked(call_id, number, request)
        await settle()
    worker.succeed()
    await running
    worker.link.asked(call_id, 99, Get("kv/a"))
    await settle()
    assert worker.answers()[-1] == Closed("the call is over")
    return transaction, worker.answers()[:-1]


@virtual_time
async def test_requests_reach_the_transaction() -> None:
    transaction, answers = await ask(
        EffectClass.COMPENSATABLE,
        Get("kv/a"),
        Put("kv/a", '{"b":1, "a":2}'),
        Get("kv/a"),
        Scan("kv/", "", 0),
        RegisterUndo("u", '{"k": 1}', ""),
        StageEffect("mail", '{"to": 1}', "key"),
        Touch("file/a", writes=True),
    )

    assert answers == [
        Value(None),
        Done(),
        Value('{"a":2,"b":1}'),
        Entries([("kv/a", '{"a":2,"b":1}')], is_cut=False),
        Done(),
        EffectId("effect-1"),
        Done(),
    ]
    assert [undo.name for undo in transaction.undo] == ["u"]
    assert transaction.touches == [("file/a", True)]


@virtual_time
async def test_a_tool_is_held_to_its_effect_class_whatever_its_library_does() -> None:
    transaction, answers = await ask(
        EffectClass.READ_ONLY,
        Put("kv/a", "1"),
        StageEffect("mail", "1", ""),
        RegisterUndo("u", "{}", ""),
        Touch("file/a", writes=True),
        Touch("file/a", writes=False),
    )

    assert [type(answer) for answer in answers] == [Failure, Failure, Failure, Failure, Done]
    assert (transaction.state, transaction.effects, transaction.undo) == ({}, [], [])


@virtual_time
async def test_bad_requests_are_refused_one_by_one() -> None:
    transaction, answers = await ask(
        EffectClass.IDEMPOTENT, Put("kv/a", "{"), Put("kv/a", "NaN"), RegisterUndo("nobody", "{}", "")
    )

    assert [answer.category for answer in answers] == ["invalid_value", "invalid_value", "unknown_tool"]
    assert transaction.state == {}


@virtual_time
async def test_a_large_scan_is_cut_and_says_so() -> None:
    transaction, answers = await ask(
        EffectClass.TRANSACTIONAL,
        *(Put(f"kv/{name}", f'"{"x" * (3 << 20)}"') for name in "abc"),
        Scan("kv/", "", 10),
    )

    entries = answers[-1]
    assert [key for key, _ in entries.entries] == ["kv/a"]
    assert entries.is_cut
    assert len(transaction.state) == 3


@virtual_time
async def test_a_closed_context_answers_closed() -> None:
    workers = hub()
    worker = Worker(workers, offered())
    context = FakeTransaction().context()
    running = asyncio.create_task(workers.run("t", {}, context))
    await settle()
    context.closed = True
    worker.link.asked(worker.calls()[0].call_id, 1, Put("kv/a", "1"))
    await settle()
    worker.succeed()
    await running

    assert worker.answers() == [Closed("the deadline passed")]
