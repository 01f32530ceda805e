"""Threads, runs, checkpoints and the journal: the same on every database and in the model."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from typing import Any

import pytest
from tests.support.memory_run_store import RUN_TABLES
from tests.support.run_stores import Stores, run_stores  # noqa: F401
from tests.support.store_records import Driver

from agenttx_server.engine.ports import ExtraRowsRefused, WriteSet
from agenttx_server.engine.records import MicrosecondsUtc, ServerId
from agenttx_server.graphs.runs.channel_values import ValuePlace
from agenttx_server.graphs.runs.ports import ANY_RUN, EventFilter, RunChange, RunFilter, RunStore
from agenttx_server.graphs.runs.records import (
    CachedAnswer,
    CheckpointRecord,
    CheckpointSource,
    EmbeddedCheckpoint,
    EmbeddedRun,
    EventRecord,
    InterruptRecord,
    InterruptState,
    RequestRecord,
    RunError,
    RunOptions,
    RunRecord,
    RunStatus,
    StopKind,
    StopRequest,
    TaskRecord,
    TaskState,
    ThreadRecord,
    ValueRecord,
    checkpoint_id,
    checkpoint_number,
)


def thread(name: str = "t", **changes: Any) -> ThreadRecord:
    return replace(ThreadRecord(name, "g", "v1", f"r-{name}", 10, 20), **changes)


def run(name: str = "r", **changes: Any) -> RunRecord:
    return replace(RunRecord(name, "t", "g", "v1", RunStatus.RUNNING, 10, 20, root_run_id=name), **changes)


def checkpoint(number: int, **changes: Any) -> CheckpointRecord:
    parent = number - 1 if number else None
    made = CheckpointRecord("t", number, parent, CheckpointSource.LOOP, number, "r", "v1", 30)
    return replace(made, **changes)


def event(offset: int, run_id: str = "r", **changes: Any) -> EventRecord:
    return replace(EventRecord(run_id, offset, "node.completed", 40, thread_id="t", graph="g"), **changes)


def interrupt(name: str, **changes: Any) -> InterruptRecord:
    made = InterruptRecord(name, "r", "t", 1, f"task-{name}", "ask", 0, '{"q":1}', InterruptState.PENDING, 50)
    return replace(made, **changes)


FAILED = RunError(
    "NODE_FAILED",
    "it broke",
    hint="give a number",
    node="a",
    metadata=(("attempts", "2"),),
    others=(RunError("NODE_FAILED", "so did this", node="b"),),
)


async def test_records_come_back_as_they_were(run_stores: Stores) -> None:
    runs = run_stores.runs
    a_thread = thread(head=3, committed_head=1, next_number=4, superstep=7, transaction_id="x")
    a_run = run(
        status=RunStatus.FAILED,
        error=FAILED,
        options=RunOptions(3, 4, 5, 6, (("team", "blue"),)),
        visits=(("a", 2),),
        active_nodes=("a", "b"),
        input='{"value":1}',
        ended_at=99,
    )
    a_checkpoint = checkpoint(
        1, values=(("log", 1, 0, 10, 4),), work='{"activations":[["a"]]}', completed=(("t-1", "a", 0),)
    )
    child = EmbeddedRun("c", "a", "a#1.0", "inner", "v2", 4)
    a_checkpoint = replace(a_checkpoint, children=(child,))
    a_task = TaskRecord("r", 1, 0, "t-1", "a", "t", "", TaskState.FAILED, 5, 2, "[1]", None, FAILED, 100, 200)
    a_task = replace(a_task, child=child)
    request = RequestRecord("anonymous", "q", "StartRun", "abc", "r")
    await runs.write(
        RunChange(
            [a_thread],
            [a_run],
            [a_checkpoint],
            tasks=[a_task],
            interrupts=[interrupt("i")],
            requests=[request],
        )
    )

    assert await runs.load_thread("t") == a_thread
    assert await runs.load_run("r") == a_run
    assert await runs.load_checkpoint("t", 1) == a_checkpoint
    assert await runs.load_tasks("r", 1) == [a_task]
    assert await runs.load_interrupts("r", 1) == [interrupt("i")]
    assert await runs.find_request("anonymous", "q") == request
    assert await runs.load_thread("T") is None
    assert await runs.load_run("x") is None
    assert await runs.load_checkpoint("t", 2) is None
    assert await runs.find_request("other", "q") is None


async def test_who_numbers_a_checkpoint_second_writes_nothing(run_stores: Stores) -> None:
    runs = run_stores.runs
    await runs.write(RunChange([thread(head=0)], checkpoints=[checkpoint(0)]))
    late = RunChange([thread(head=9)], [run("late")], [checkpoint(0, run_id="late")])
    with pytest.raises(ExtraRowsRefused):
        await runs.write(late)
    found = await runs.load_thread("t")
    assert found is not None
    assert found.head == 0
    assert await runs.load_run("late") is None


async def test_an_offset_and_a_request_are_given_once(run_stores: Stores) -> None:
    runs = run_stores.runs
    request = RequestRecord("anonymous", "q", "StartRun", "abc", "r")
    await runs.write(RunChange(events=[event(0)], requests=[request]))
    for again in (RunChange(events=[event(1), event(0)]), RunChange(requests=[request])):
        with pytest.raises(ExtraRowsRefused):
            await runs.write(again)
    assert [item.offset for item in await runs.list_events("r", 0, 10)] == [0]


async def test_rows_come_with_a_write_to_the_transaction_or_not_at_all(run_stores: Stores) -> None:
    driver = await Driver(run_stores.transactions).begin()
    rows = run_stores.runs.rows(RunChange([thread()], [run()], [checkpoint(0)], events=[event(0)]))
    await driver.write({"extra": rows})
    assert await run_stores.runs.load_run("r") == run()
    assert [item.offset for item in await run_stores.runs.list_events("r", 0, 9)] == [0]

    stale = WriteSet(driver.record, 1, extra=run_stores.runs.rows(RunChange([thread(head=5)])))
    with pytest.raises(Exception, match="revision"):
        await run_stores.transactions.write(stale)
    assert await run_stores.runs.load_thread("t") == thread()


async def test_values_are_found_through_their_chain(run_stores: Stores) -> None:
    runs = run_stores.runs
    values = [
        ValueRecord("t", "log", 0, None, '["a"]', "[null,1]"),
        ValueRecord("t", "value", 0, None, "1", "[null]"),
        ValueRecord("t", "log", 1, 0, '["b"]', "[1,1]"),
        ValueRecord("t", "log", 2, 1, '["c"]', "[2,1]"),
        ValueRecord("u", "log", 2, None, '["other"]', "[2,1]"),
        ValueRecord("t", "value", 3, None, "2", "[3]"),
    ]
    await runs.write(RunChange(values=values))
    places = {"log": ValuePlace(2, 0, 5, 10), "value": ValuePlace(0, 0, 1)}
    found = await runs.load_values("t", places)
    assert {(value.channel, value.number) for value in found} == {
        ("log", 0), ("log", 1), ("log", 2), ("value", 0),
    }  # fmt: skip
    assert set(found) <= set(values)


async def test_pending_interrupts_are_those_that_await_an_answer(run_stores: Stores) -> None:
    runs = run_stores.runs
    await runs.write(RunChange(interrupts=[interrupt("b"), interrupt("a"), interrupt("c", superstep=0)]))
    await runs.write(RunChange(interrupts=[interrupt("a", state=InterruptState.ANSWERED, answer="null")]))
    assert [item.interrupt_id for item in await runs.list_interrupts("t")] == ["c", "b"]
    answered = (await runs.load_interrupts("r", 1))[0]
    assert (answered.state, answered.answer) == (InterruptState.ANSWERED, "null")
    assert await runs.list_interrupts("u") == []


async def test_checkpoints_are_listed_from_the_newest(run_stores: Stores) -> None:
    runs = run_stores.runs
    first = checkpoint(0, source=CheckpointSource.INPUT)
    await runs.write(RunChange(checkpoints=[first, *(checkpoint(number) for number in range(1, 5))]))
    page = await runs.list_checkpoints("t", frozenset(), "", 3)
    assert [item.number for item in page.checkpoints] == [4, 3, 2]
    rest = await runs.list_checkpoints("t", frozenset(), page.next_cursor, 3)
    assert ([item.number for item in rest.checkpoints], rest.next_cursor) == ([1, 0], "")
    of_input = await runs.list_checkpoints("t", frozenset({CheckpointSource.INPUT}), "", 3)
    assert of_input.checkpoints == [first]
    assert await runs.count_checkpoints("t") == 5
    with pytest.raises(ValueError, match="cursor"):
        await runs.list_checkpoints("t", frozenset(), "nonsense", 3)


async def test_what_was_rolled_back_stays_and_says_so(run_stores: Stores) -> None:
    runs = run_stores.runs
    await runs.write(RunChange(checkpoints=[checkpoint(0), checkpoint(1)]))
    undone = checkpoint(1, rolled_back=True)
    await runs.write(RunChange(rolled_back=[undone]))
    page = await runs.list_checkpoints("t", frozenset(), "", 3)
    assert page.checkpoints == [undone, checkpoint(0)]


async def test_embedded_graphs_have_checkpoints_of_their_own(run_stores: Stores) -> None:
    runs = run_stores.runs

    def embedded(namespace: str, number: int) -> EmbeddedCheckpoint:
        source = CheckpointSource.LOOP
        made = EmbeddedCheckpoint("t", number, None, source, number, "c", "v1", 30, namespace=namespace)
        return replace(made, state=f'{{"value":{number}}}', completed=(("t-1", "a", 0),))

    both = [embedded("a#1.0", number) for number in range(3)]
    await runs.write(RunChange(checkpoints=[checkpoint(0)], embedded=[*both, embedded("b#1.0", 0)]))

    assert await runs.list_embedded("t", "a#1.0", None, 10) == both[::-1]
    assert await runs.list_embedded("t", "a#1.0", 2, 1) == [both[1]]
    assert await runs.list_embedded("u", "a#1.0", None, 10) == []
    assert await runs.load_checkpoint("t", 0) == checkpoint(0)
    with pytest.raises(ExtraRowsRefused):
        await runs.write(RunChange(embedded=[both[0]]))
    undone = replace(both[1], rolled_back=True)
    await runs.write(RunChange(embedded_rolled_back=[undone]))
    assert await runs.list_embedded("t", "a#1.0", 2, 1) == [undone]


async def test_runs_and_threads_are_listed_from_the_newest_by_what_is_asked(run_stores: Stores) -> None:
    runs = run_stores.runs
    made = [
        run("r-a", thread_id="a", created_at=1, status=RunStatus.COMPLETED),
        run("r-b", thread_id="b", created_at=2, graph="h"),
        run("r-c", thread_id="c", created_at=2),
        run("r-d", thread_id="c", created_at=3, parent_run_id="r-c"),
    ]
    threads = [
        thread("a", updated_at=5), thread("b", updated_at=7, graph="h"), thread("c", updated_at=6),
    ]  # fmt: skip
    await runs.write(RunChange(threads, made))

    async def named(which: RunFilter) -> list[str]:
        return [item.run_id for item in (await runs.list_runs(which, "", 10)).runs]

    assert await named(RunFilter()) == ["r-c", "r-b", "r-a"]
    assert await named(RunFilter(include_children=True, thread_id="c")) == ["r-d", "r-c"]
    assert await named(RunFilter(graph="h")) == ["r-b"]
    assert await named(RunFilter(statuses=frozenset({RunStatus.COMPLETED}))) == ["r-a"]
    assert await named(RunFilter(principal="other")) == []
    page = await runs.list_runs(RunFilter(), "", 1)
    assert [item.run_id for item in (await runs.list_runs(RunFilter(), page.next_cursor, 1)).runs] == ["r-b"]

    everything = await runs.list_threads("", "", frozenset(), "", 2)
    assert [item[0].thread_id for item in everything.threads] == ["b", "c"]
    rest = await runs.list_threads("", "", frozenset(), everything.next_cursor, 2)
    assert [(item[0].thread_id, item[1].run_id) for item in rest.threads] == [("a", "r-a")]
    completed = await runs.list_threads("anonymous", "g", frozenset({RunStatus.COMPLETED}), "", 2)
    assert [item[0].thread_id for item in completed.threads] == ["a"]


async def test_events_are_numbered_in_the_order_of_commits(run_stores: Stores) -> None:
    runs = run_stores.runs
    assert await runs.last_sequence() == 0
    await asyncio.gather(
        *(runs.write(RunChange(events=[event(0, name), event(1, name)])) for name in ("r", "s", "u"))
    )
    found = await runs.list_events_from(EventFilter(thread_id="t"), 0, 100)
    sequences = [item.sequence for item in found]
    assert sequences == sorted(set(sequences))
    assert await runs.last_sequence() == sequences[-1]
    for name in ("r", "s", "u"):
        assert [item.offset for item in found if item.run_id == name] == [0, 1]
    behind = await runs.list_events_from(EventFilter(run_id="s"), 0, 1)
    rest = await runs.list_events_from(EventFilter(run_id="s"), behind[0].sequence, 10)
    assert [item.offset for item in (*behind, *rest)] == [0, 1]
    assert await runs.list_events_from(EventFilter(graph="x"), 0, 10) == []
    assert [item.offset for item in await runs.list_events("s", 1, 10)] == [1]


async def test_events_are_read_up_to_a_size_and_a_sequence_and_of_a_principals_runs(
    run_stores: Stores,
) -> None:
    runs = run_stores.runs
    await runs.write(RunChange(runs=[run("r", principal="ann"), run("s", principal="bob")]))
    made = [event(offset, name, payload="ä" * 400) for offset in range(4) for name in ("r", "s")]
    await runs.write(RunChange(events=made))

    assert [item.offset for item in await runs.list_events("r", 0, 10, 2000)] == [0, 1]
    assert [item.offset for item in await runs.list_events("r", 1, 2, 1 << 20)] == [1, 2]
    assert [item.offset for item in await runs.list_events("r", 3, 10, 1)] == [3], "one at least"
    numbers = [item.sequence for item in await runs.list_events_from(EventFilter(), 0, 10)]
    of_ann = await runs.list_events_from(EventFilter("ann"), 0, 10)
    assert [(item.run_id, item.offset) for item in of_ann] == [("r", offset) for offset in range(4)]
    assert await runs.list_events_from(EventFilter("eve"), 0, 10) == []
    up_to = await runs.list_events_from(EventFilter(), 0, 10, up_to=numbers[4])
    assert [item.sequence for item in up_to] == numbers[:5]
    assert len(await runs.list_events_from(EventFilter(), 0, 10, byte_limit=2000)) == 2
    assert len(await runs.list_events_from(EventFilter(), 0, 10, byte_limit=1)) == 1


async def test_events_that_are_written_together_are_read_one_by_one_from_anywhere(run_stores: Stores) -> None:
    runs = run_stores.runs
    written: list[EventRecord] = []
    # One alone; what is one row where rows are pages; more than one; larger ones; runs in between.
    for count, length, others in ((1, 2, 0), (8, 2, 0), (150, 2, 1), (3, 9000, 0), (1, 2, 2), (2, 40_000, 1)):
        offset = sum(item.run_id == "r" for item in written)
        made = [
            event(
                offset + at,
                kind=f"kind.{at % 5}",
                payload='"' + "\\u0000ä"[: at % 3] + "x" * length + '"',
                namespace="inner#1.0" if at % 7 > 4 else "",
                superstep=at // 4,
                node=f"n{at // 2}",
                occurred_at=at // 3,
            )
            for at in range(count)
        ]
        for at in range(others):
            made.insert(count // 2, event(sum(item.run_id == "s" for item in written) + at, "s"))
        made.sort(key=lambda item: (item.run_id, item.offset))
        await runs.write(RunChange(events=made))
        written += made

    found = await runs.list_events_from(EventFilter(), 0, 1000)
    assert [replace(item, sequence=0) for item in found] == written
    numbers = [item.sequence for item in found]
    assert numbers == sorted(set(numbers))
    assert await runs.last_sequence() == numbers[-1]
    of_r = [item for item in found if item.run_id == "r"]
    for start in range(0, len(of_r) + 2, 3):
        assert await runs.list_events("r", start, 7) == of_r[start : start + 7]
        assert await runs.list_events("r", start, 1000, 1) == of_r[start : start + 1]
    for start in range(0, len(found), 3):
        behind = found[start + 1 : start + 8]
        assert await runs.list_events_from(EventFilter(), numbers[start], 7) == behind
        for up_to in (start, start + 1, start + 4):
            until = numbers[min(up_to, len(found) - 1)]
            cut = await runs.list_events_from(EventFilter(), numbers[start], 99, up_to=until)
            assert cut == found[start + 1 : up_to + 1]
        assert await runs.list_events_from(EventFilter(run_id="s"), numbers[start], 9) == [
            item for item in found[start + 1 :] if item.run_id == "s"
        ]


async def test_of_two_that_write_at_one_place_of_a_journal_one_is_refused(run_stores: Stores) -> None:
    runs = run_stores.runs
    await runs.write(RunChange(events=[event(offset) for offset in range(3)]))
    for offsets in ((0,), (0, 1, 2, 3)):
        with pytest.raises(ExtraRowsRefused):
            await runs.write(RunChange(events=[event(offset) for offset in offsets]))
    assert len(await runs.list_events("r", 0, 9)) == 3


async def test_who_follows_a_journal_is_woken_by_what_is_written_to_it(run_stores: Stores) -> None:
    runs = run_stores.runs
    assert await runs.written_since(0) == (0, [])
    assert not runs.signals.is_waited_on
    of_r, of_s, of_any = (runs.signals.subscribe(key) for key in ("r", "s", ANY_RUN))
    await runs.write(RunChange(events=[event(0, "r"), event(1, "r")]))
    async with asyncio.timeout(30):
        await asyncio.gather(of_r, of_any)
    assert not of_s.done()
    driver = await Driver(run_stores.transactions, "t").begin()
    await driver.write({"extra": runs.rows(RunChange(events=[event(0, "s")]))})
    async with asyncio.timeout(30):
        await of_s
    assert not runs.signals.is_waited_on
    last, written = await runs.written_since(0)
    assert (last, sorted(written)) == (await runs.last_sequence(), ["r", "s"])
    assert await runs.written_since(last) == (last, [])
    coming = runs.signals.subscribe("r")
    writing = asyncio.ensure_future(driver.write({"extra": runs.rows(RunChange(events=[event(2, "r")]))}))
    alone = asyncio.ensure_future(runs.write(RunChange(events=[event(3, "r")])))
    await asyncio.sleep(0)
    writing.cancel()  # its caller goes away
    alone.cancel()
    async with asyncio.timeout(30):
        await coming
        while True:
            gone = runs.signals.subscribe("r")
            if len(await runs.list_events("r", 0, 9)) == 4:
                break
            await gone
    gone.cancel()
    await asyncio.sleep(0)
    assert not runs.signals.is_waited_on


async def test_words_to_a_run_stay_until_they_are_forgotten(run_stores: Stores) -> None:
    runs = run_stores.runs
    cancel, drain = StopRequest("r", StopKind.CANCEL, "enough", 2), StopRequest("r", StopKind.DRAIN, "", 2)
    for word in (replace(cancel, invocation=1), cancel, drain):
        await runs.write(RunChange(stops=[word]))
    assert await runs.list_stops(["s"]) == []
    for _ in range(2):
        assert await runs.list_stops(["s", "r"]) == [cancel, drain], "a drain takes no cancellation's place"
    # Of a word that was said anew since only the older one is forgotten.
    await runs.forget_stops([replace(cancel, invocation=1), drain])
    assert await runs.list_stops(["r"]) == [cancel]
    await runs.forget_stops([cancel])
    assert await runs.list_stops(["r"]) == []


async def test_live_runs_of_a_server_that_is_gone_are_taken_over_once(run_stores: Stores) -> None:
    runs, transactions = run_stores.runs, run_stores.transactions
    now = MicrosecondsUtc(1_000_000)
    await transactions.register_server(ServerId("alive"), 60.0, now)
    await runs.write(
        RunChange(
            runs=[
                run("r-gone", server_id="gone"),
                run("r-alive", server_id="alive"),
                run("r-ended", server_id="gone", status=RunStatus.COMPLETED),
                run("r-idle", status=RunStatus.INTERRUPTED),
            ]
        )
    )
    claimed = await runs.claim_runs("alive", now, 10)
    assert claimed == [run("r-gone", server_id="alive")]
    assert await runs.load_run("r-gone") == claimed[0]
    assert await runs.claim_runs("alive", now, 10) == []


async def test_a_server_finds_what_it_has_to_see_to(run_stores: Stores) -> None:
    runs = run_stores.runs
    ours = [
        run("r-live", server_id="here", updated_at=10),
        run("r-taken-back", server_id="here", thread_id="", status=RunStatus.FAILED, updated_at=11),
    ]
    await runs.write(
        RunChange(
            runs=[
                *ours,
                run("r-new", server_id="here", updated_at=20),
                run("r-paused", server_id="here", status=RunStatus.FAILED, updated_at=1),
                run("r-other", server_id="there", updated_at=1),
            ]
        )
    )
    assert await runs.list_runs_of("here", 20, 10) == ours
    assert await runs.list_runs_of("here", 20, 1) == ours[:1]
    claimed = await runs.claim_runs("alive", MicrosecondsUtc(1), 10)
    assert {item.run_id for item in claimed} == {"r-live", "r-taken-back", "r-new", "r-other"}


async def test_timings_are_of_tasks_that_ended(run_stores: Stores) -> None:
    runs = run_stores.runs

    def task(ordinal: int, node: str, took: int) -> TaskRecord:
        ended = 100 + took if took else 0
        return TaskRecord("r", 1, ordinal, f"t-{ordinal}", node, "t", started_at=100, ended_at=ended)

    await runs.write(RunChange(tasks=[task(0, "b", 10), task(1, "b", 20), task(2, "a", 5), task(3, "a", 0)]))
    timings = [(item.node, item.count, item.mean_us, item.max_us) for item in await runs.node_timings("t")]
    assert timings == [("a", 1, 5.0, 5), ("b", 2, 15.0, 20)]


def test_a_checkpoint_is_known_by_its_id_in_its_thread_alone() -> None:
    name = checkpoint_id("t", 12)
    assert checkpoint_number("t", name) == 12
    assert checkpoint_number("u", name) is None
    assert checkpoint_id("t", 12, "a#1.0") != name
    assert checkpoint_number("t", checkpoint_id("t", 12, "a#1.0"), "a#1.0") == 12
    assert checkpoint_number("t", name, "a#1.0") is None
    for wrong in ("", "c-12", "c-x-y", "c-13" + name[4:], "c-" + "9" * 30 + "-a", "c-٣-a"):
        assert checkpoint_number("t", wrong) is None


def test_every_kind_of_record_has_a_table() -> None:
    guards = ("standing_", "unchanged_")
    written = [field for field in fields(RunChange) if not field.name.startswith(guards)]
    assert len(written) == len(RUN_TABLES) + 2  # checkpoints are written in two ways


def test_the_stores_keep_what_the_port_says(run_stores: Stores) -> None:
    kept: RunStore = run_stores.runs
    assert kept.rows(RunChange()) == []


async def test_runs_that_waited_too_long_are_found_the_earliest_first(run_stores: Stores) -> None:
    runs = run_stores.runs

    def waits(name: str, ended: int, **changes: Any) -> RunRecord:
        fields = {"status": RunStatus.INTERRUPTED, "transaction_id": "x", **changes}
        return run(name, updated_at=ended, options=RunOptions(wait_timeout_us=100), **fields)

    overdue = [waits("r-b", 10), waits("r-a", 20, status=RunStatus.FAILED), waits("r-c", 20)]
    others = [
        waits("r-later", 21),
        waits("r-live", 10, status=RunStatus.RUNNING),
        waits("r-done", 10, status=RunStatus.COMPLETED),
        waits("r-rolled-back", 10, transaction_id=""),
        waits("r-child", 10, parent_run_id="r-b"),
        replace(waits("r-for-ever", 10), options=RunOptions()),
    ]
    await runs.write(RunChange(runs=[*others, *reversed(overdue)]))
    assert await runs.list_overdue(120, (-1, ""), 10) == overdue
    assert await runs.list_overdue(119, (-1, ""), 10) == overdue[:1]
    assert await runs.list_overdue(120, (-1, ""), 1) == overdue[:1]
    assert await runs.list_overdue(120, (120, "r-a"), 10) == overdue[2:]
    # Who goes on with one ends its wait.
    await runs.write(RunChange(runs=[replace(overdue[0], status=RunStatus.RUNNING)]))
    assert await runs.list_overdue(120, (-1, ""), 10) == overdue[1:]


async def test_answers_of_nodes_are_kept_until_they_expire_or_others_take_their_place(
    run_stores: Stores,
) -> None:
    runs = run_stores.runs

    def kept(key: str, created_at: int, expires_at: int | None = None, answer: str = "1") -> CachedAnswer:
        return CachedAnswer(key, f"t-{key}", "g", "n", answer, created_at, expires_at)

    answers = [kept("a", 1, 100), kept("b", 2), kept("c", 3), kept("d", 4, 200)]
    await runs.write(RunChange(cached=answers))
    assert [await runs.find_cached(item.cache_key, 99) for item in answers] == answers
    assert await runs.find_cached("a", 100) is None
    assert await runs.find_cached("A", 1) is None
    newer = kept("b", 5, answer='{"x":1}')
    await runs.write(RunChange(cached=[newer]))
    assert await runs.find_cached("b", 99) == newer
    assert await runs.purge_cached(99, 10, 10) == 0
    assert await runs.purge_cached(100, 2, 10) == 2  # the one that expired, and the oldest of three
    assert [await runs.find_cached(key, 0) is not None for key in "abcd"] == [False, True, False, True]
    assert await runs.purge_cached(1000, 1, 1) == 1
    assert await runs.find_cached("b", 1000) == newer


async def test_a_run_finds_the_answers_that_it_is_to_keep(run_stores: Stores) -> None:
    runs = run_stores.runs

    def task(superstep: int, **changes: Any) -> TaskRecord:
        fields = {"state": TaskState.FOLDED, "answer": "1", "cache_key": "k", **changes}
        return replace(TaskRecord("r", superstep, 0, f"t-{superstep}", "a"), **fields)

    others = [
        task(3, state=TaskState.UNDONE),
        task(4, answer=None),
        task(5, cache_key=""),
        replace(task(1), run_id="s"),
    ]
    await runs.write(RunChange(tasks=[task(2), task(1), *others]))
    assert await runs.list_cacheable("r") == [task(1), task(2)]
