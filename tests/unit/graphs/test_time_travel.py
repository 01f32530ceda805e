"""Time travel, forks, copies, pruning and deleting: on a real engine over the store in memory."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.graph_definitions import APP, SUM
from tests.support.graph_runs import Call, GraphRuns, adds, logs
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.graphs.definition import ToolBinding
from agenttx_server.graphs.runs.records import CheckpointRecord, RunStatus, checkpoint_id
from agenttx_server.graphs.runs.requests import CopyRequest, ForkRequest, RunRefused, StateUpdate

DONE, INTERRUPTED = RunStatus.COMPLETED, RunStatus.INTERRUPTED


def a_then_b() -> GraphRuns:
    return GraphRuns("START->a, a->b", {"a": logs("a"), "b": logs("b")}, channels=APP)


async def before(runs: GraphRuns, node: str, thread: str = "t") -> CheckpointRecord:
    """The oldest checkpoint after which a node comes."""
    return next(item for item in await runs.checkpoints(thread) if f'"{node}"' in item.work)


@virtual_time
async def test_c18_a_replay_runs_what_came_next_alone() -> None:
    runs = a_then_b()
    await runs.start({"log": []})
    outcome = await runs.start(at=(await before(runs, "b")).checkpoint_id)
    assert (outcome.run.status, outcome.state) == (DONE, {"log": ["a", "b"]})
    assert (runs.calls, list(outcome.visited)) == (["a", "b", "b"], ["b"])
    assert [(item.source.value, item.branch, item.parent) for item in (await runs.checkpoints())[3:]] == [
        ("FORK", "b-3", 1),
        ("LOOP", "b-3", 3),
    ]


@virtual_time
async def test_c19_a_replay_from_the_last_checkpoint_does_nothing() -> None:
    runs = a_then_b()
    first = await runs.start({"log": []})
    outcome = await runs.start(at=first.checkpoint_id)
    assert (outcome.run.status, outcome.state, runs.calls) == (DONE, {"log": ["a", "b"]}, ["a", "b"])


@virtual_time
async def test_c20_edits_of_an_older_checkpoint_are_branches_of_their_own() -> None:
    runs = a_then_b()
    await runs.start({"log": []})
    at = (await before(runs, "b")).checkpoint_id
    for _ in range(2):
        edited = await runs.update(StateUpdate(update={"log": ["x"]}), checkpoint_id=at)
        assert runs.next_of(edited) == ["b"]
        outcome = await runs.retry()
        assert (outcome.run.status, outcome.state) == (DONE, {"log": ["a", "x", "b"]})
    branches = {item.branch for item in await runs.checkpoints()}
    assert branches == {"main", "b-3", "b-5"}


def asking() -> GraphRuns:
    async def ask(call: Call) -> Any:
        return {"log": [call.interrupt("?")]}

    return GraphRuns("START->a, a->ask, ask->b", {"a": logs("a"), "ask": ask, "b": logs("b")}, channels=APP)


@virtual_time
async def test_c21_i24_a_replay_asks_again_and_the_old_answer_stays_on_its_branch() -> None:
    runs = asking()
    await runs.start({"log": []})
    old = await runs.resume("t", "old_answer")
    outcome = await runs.start(at=(await before(runs, "ask")).checkpoint_id)
    assert (outcome.run.status, len(outcome.interrupts)) == (INTERRUPTED, 1)
    length = len(await runs.checkpoints())
    outcome = await runs.resume("t", "new_answer")
    assert (outcome.run.status, outcome.state) == (DONE, {"log": ["a", "new_answer", "b"]})
    # The fork, and two supersteps.
    assert (length, len(await runs.checkpoints())) == (5, 7)
    assert (runs.calls.count("ask"), runs.calls.count("a"), runs.calls.count("b")) == (4, 1, 2)
    old_head = next(item for item in await runs.checkpoints() if item.checkpoint_id == old.checkpoint_id)
    assert await runs.state_at(old_head) == {"log": ["a", "old_answer", "b"]}


@virtual_time
async def test_i24_a_replay_before_an_answer_fires_again_while_the_old_run_still_waits() -> None:
    runs = asking()
    first = await runs.start({"log": []})
    (asked,) = await runs.pending()
    second = await runs.start(at=(await before(runs, "ask")).checkpoint_id)
    assert second.run.status is INTERRUPTED
    assert len(second.interrupts) == 1
    assert second.interrupts[0].interrupt_id != asked.interrupt_id
    outcome = await runs.resume("t", "new")
    assert (outcome.run.status, outcome.state) == (DONE, {"log": ["a", "new", "b"]})
    left = await runs.store.load_run(first.run.run_id)
    assert left is not None
    assert (left.status, left.transaction_id) == (INTERRUPTED, first.run.transaction_id)


def writing() -> GraphRuns:
    async def ask(call: Call) -> Any:
        assert call.context is not None
        seen = [await call.context.get(f"kv/{key}") for key in ("a", "b", "gone")]
        return {"log": [str(seen), call.interrupt("?")]}

    put = ToolBinding("note", {"put": {"kv/a": 1, "kv/gone": 1}, "output": {}})
    later = ToolBinding("note", {"put": {"kv/b": 2}, "output": {}})
    return GraphRuns(
        "START->put, put->later, later->ask", {"ask": ask}, channels=APP,
        nodes={"put": {"binding": put}, "later": {"binding": later}},
    )  # fmt: skip


@virtual_time
async def test_a_branch_of_what_is_not_committed_begins_with_its_store_writes_up_to_there() -> None:
    runs = writing()
    await runs.start({"log": []})
    at_later = (await before(runs, "later")).checkpoint_id
    at_ask = (await before(runs, "ask")).checkpoint_id
    await runs.start(at=at_ask)
    outcome = await runs.resume("t", "on b")
    assert (outcome.run.status, outcome.state) == (DONE, {"log": ["['1', '2', '1']", "on b"]})
    assert (await runs.engine.committed("kv/a"), await runs.engine.committed("kv/b")) == (1, 2)
    # From a checkpoint before ``later`` its write is not copied, but made by the node again.
    await runs.start(at=at_later)
    assert runs.engine.tools.count("note") == 3
    assert (await runs.resume("t", "again")).state == {"log": ["['1', '2', '1']", "again"]}


@virtual_time
async def test_a_crash_while_a_branch_copies_loses_nothing() -> None:
    runs = writing()
    await runs.start({"log": []})
    at = (await before(runs, "ask")).checkpoint_id
    edited = await runs.update(StateUpdate(update={"log": ["edit"]}), checkpoint_id=at)
    assert edited.run.copies is not None
    await runs.crash()
    assert (await runs.retry()).run.status is INTERRUPTED
    outcome = await runs.resume("t", "x")
    assert outcome.state == {"log": ["edit", "['1', '2', '1']", "x"]}


@virtual_time
async def test_a_branch_that_is_rolled_back_leaves_the_thread_where_it_was() -> None:
    runs = asking()
    await runs.start({"log": []})
    done = await runs.resume("t", "old")
    await runs.start(at=(await before(runs, "ask")).checkpoint_id)
    outcome = await runs.start({"log": ["anew"]}, reset=True, discard=True)
    assert outcome.run.status is INTERRUPTED
    thread = await runs.store.load_thread("t")
    assert thread is not None
    assert checkpoint_id("t", thread.committed_head or 0) == done.checkpoint_id


@pytest.mark.parametrize(
    ("thread", "at", "reason"),
    [
        ("none", checkpoint_id("none", 0), "THREAD_NOT_FOUND"),
        ("t", checkpoint_id("t", 77), "CHECKPOINT_NOT_FOUND"),
        ("t", checkpoint_id("other", 1), "CHECKPOINT_NOT_FOUND"),
        ("t", "c-1-forged", "CHECKPOINT_NOT_FOUND"),
    ],
)
def test_what_isnt_there_is_no_start(thread: str, at: str, reason: str) -> None:
    @virtual_time
    async def scenario() -> None:
        runs = a_then_b()
        await runs.start({"log": []})
        for request in (
            runs.start(thread=thread, at=at),
            runs.update(StateUpdate(), thread=thread, checkpoint_id=at, graph=runs.graph.name),
        ):
            with pytest.raises(RunRefused) as refused:
                await request
            assert refused.value.reason == reason

    scenario()


@virtual_time
async def test_c11_a_fork_is_a_thread_of_its_own() -> None:
    runs = a_then_b()
    await runs.start({"log": ["in"]})
    src = await runs.checkpoints()
    forked = await runs.runs.copies.fork(ForkRequest("t", src[1].checkpoint_id, "dst"))
    assert await runs.checkpoints() == src
    (root,) = await runs.checkpoints("dst")
    assert (root.source.value, root.parent, root.forked_thread, root.forked_number) == ("FORK", None, "t", 1)
    assert await runs.state_at(root) == await runs.state_at(src[1]) == {"log": ["in", "a"]}
    assert forked.run.status is RunStatus.DRAINED
    assert (await runs.retry("dst")).state == {"log": ["in", "a", "b"]}
    with pytest.raises(RunRefused) as refused:
        await runs.runs.copies.fork(ForkRequest("t", "", "dst"))
    assert refused.value.reason == "THREAD_EXISTS"
    whole = await runs.runs.copies.fork(ForkRequest("t"))
    assert (whole.run.status, whole.thread.transaction_id) == (DONE, "")
    assert (await runs.start({"log": ["more"]}, thread=whole.thread.thread_id)).state == {
        "log": ["in", "a", "b", "more", "a", "b"]
    }


@virtual_time
async def test_a_copy_has_the_whole_history() -> None:
    runs = asking()
    await runs.start({"log": []})
    copied = await runs.runs.copies.copy(CopyRequest("t", "copy", request_id="q", fingerprint="f"))
    assert (copied.checkpoints, copied.run.status) == (2, RunStatus.DRAINED)
    assert [await runs.state_at(item) for item in await runs.checkpoints("copy")] == [
        await runs.state_at(item) for item in await runs.checkpoints("t")
    ]
    again = await runs.runs.copies.copy(CopyRequest("t", "copy", request_id="q", fingerprint="f"))
    assert (again.thread, again.checkpoints) == (copied.thread, 2)
    # Each waits for an answer of its own.
    assert (await runs.retry("copy")).run.status is INTERRUPTED
    assert (await runs.resume("copy", "c")).state == {"log": ["a", "c", "b"]}
    assert (await runs.resume("t", "t")).state == {"log": ["a", "t", "b"]}


@virtual_time
async def test_c30_what_is_pruned_is_gone_and_what_is_kept_reads_as_before() -> None:
    nodes = {"a": adds(1), "b": adds(1), "c": adds(1)}
    runs = GraphRuns("START->a, a->b, b->c", nodes, channels=SUM)
    await runs.start({"value": 0})
    second = (await runs.checkpoints())[1]
    await runs.runs.copies.fork(ForkRequest("t", second.checkpoint_id, "fork"))
    pruned = await runs.runs.removal.prune("t", 1)
    assert (pruned.deleted, pruned.kept) == (3, 1)
    (kept,) = await runs.checkpoints()
    assert (kept.parent, await runs.state_at(kept)) == (None, {"value": 3})
    (root,) = await runs.checkpoints("fork")
    assert await runs.state_at(root) == {"value": 1}
    assert (await runs.start({"value": 10})).state == {"value": 16}
    with pytest.raises(RunRefused) as refused:
        await runs.start(at=second.checkpoint_id)
    assert refused.value.reason == "CHECKPOINT_NOT_FOUND"


@virtual_time
async def test_pruning_makes_snapshots_of_deltas_and_keeps_each_branch() -> None:
    runs = GraphRuns("START->a, a->b", {"a": logs("a" * 50), "b": logs("b" * 50)}, channels=APP)
    await runs.start({"log": ["seed"]})
    for turn in range(3):
        await runs.start({"log": [str(turn)]})
    await runs.start(at=(await before(runs, "b")).checkpoint_id)
    states = {item.number: await runs.state_at(item) for item in await runs.checkpoints()}
    values = len(await runs.store.all_values("t"))
    assert (await runs.runs.removal.prune("t", 2)).kept == 4
    kept = await runs.checkpoints()
    assert {item.number: await runs.state_at(item) for item in kept} == {
        number: states[number] for number in (item.number for item in kept)
    }
    assert {item.branch for item in kept} == {"main", "b-12"}
    assert len(await runs.store.all_values("t")) < values
    # What goes on appends to a snapshot, and reads whole.
    log = (await runs.start({"log": ["last"]})).state["log"]
    assert log == [*states[kept[-1].number]["log"], "last", "a" * 50, "b" * 50]


@virtual_time
async def test_an_open_transaction_is_not_pruned() -> None:
    runs = asking()
    await runs.start({"log": []})
    await runs.resume("t", "x")
    await runs.start({"log": ["again"]})
    open_ones = [item.number for item in await runs.checkpoints()][-2:]
    await runs.runs.removal.prune("t", 1)
    numbers = [item.number for item in await runs.checkpoints()]
    thread = await runs.store.load_thread("t")
    assert thread is not None
    assert numbers == [thread.committed_head, *open_ones]
    with pytest.raises(RunRefused):
        await runs.runs.removal.prune("t", 0)


@virtual_time
async def test_c31_a_deleted_thread_is_gone_with_its_open_transactions() -> None:
    book = ToolBinding("book", {"effect": "room", "output": {}})

    async def fails(call: Call) -> Any:
        raise ToolFailure("invalid_value", "no")

    runs = GraphRuns(
        "START->book, book->bad", {"bad": fails}, channels=SUM, nodes={"book": {"binding": book}}
    )
    outcome = await runs.start({"value": 0})
    at = (await before(runs, "bad")).checkpoint_id
    await runs.start(at=at)
    await runs.start({"value": 0}, thread="other")
    assert runs.engine.tools.effects == ["room", "room"]
    assert await runs.runs.removal.delete("t") == 3
    assert runs.engine.tools.effects == ["room"]
    assert await runs.store.load_thread("t") is None
    assert (await runs.checkpoints(), await runs.events(outcome.run.run_id)) == ([], [])
    assert len(await runs.checkpoints("other")) == 2
    with pytest.raises(RunRefused) as refused:
        await runs.runs.removal.delete("t")
    assert refused.value.reason == "THREAD_NOT_FOUND"
    assert (await runs.start({"value": 4})).state == {"value": 4}


@virtual_time
async def test_c35_a_fork_leaves_the_original_branch_as_it_was() -> None:
    async def ask(call: Call) -> Any:
        return {"log": [call.interrupt("?")]}

    runs = GraphRuns(
        "START->a, a->b, b->ask, ask->c, c->d",
        {"a": logs("a"), "b": logs("b"), "ask": ask, "c": logs("c"), "d": logs("d")},
        channels=APP,
    )
    await runs.start({"log": ["in"]})
    done = await runs.resume("t", "old")
    original = await runs.checkpoints()
    assert len(original) == 6
    states = [await runs.state_at(item) for item in original]
    values, journal = await runs.store.all_values("t"), await runs.events(done.run.run_id)

    at = original[2]
    assert [await runs.state_at(at)] == [{"log": ["in", "a", "b"]}]
    runs.calls.clear()
    forked = await runs.start(at=at.checkpoint_id)
    # It begins at the node that came next there, and its question isn't answered by what was said once.
    assert (forked.run.status, runs.calls, len(forked.interrupts)) == (INTERRUPTED, ["ask"], 1)
    more = await runs.resume("t", "new")
    assert (more.run.status, more.state) == (DONE, {"log": ["in", "a", "b", "new", "c", "d"]})

    after = await runs.checkpoints()
    assert after[:6] == original
    assert [await runs.state_at(item) for item in after[:6]] == states
    assert set(values) <= set(await runs.store.all_values("t"))
    assert await runs.events(done.run.run_id) == journal
    assert {item.branch for item in after[:6]} != {item.branch for item in after[6:]}
