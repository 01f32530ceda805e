"""fs.* as members of a group: what comes of it is judged by what they touch and not by who was first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import Engine, call, outcome_of
from tests.support.fake_tool_context import FakeTransaction
from tests.support.file_trees import make_tree, snapshot

from agenttx_server.engine.ports import ToolContext, UndoContext
from agenttx_server.engine.records import HintCategory, ToolDescription, TransactionId
from agenttx_server.engine.requests import StepAnswer, StepCall, StepStatus
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.builtin import FsSettings
from agenttx_server.tools.builtin.fs import fs_tools

TREE = {"f": b"one", "g": b"two", "d/h": b"three", "d/i/j": b"four", "empty": None}
PATIENCE_SECONDS = 30

Hook = Callable[[int], Awaitable[None]]


async def _go_on(step_id: int) -> None:
    return None


class _HookedContext:
    """A tool's context that lets a test in between the look and the effect."""

    def __init__(self, context: ToolContext, tools: HookedTools) -> None:
        self._context = context
        self._tools = tools

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def touch(self, key: str, *, writes: bool) -> None:
        await self._context.touch(key, writes=writes)
        await self._tools.touched(self._context.step_id)

    async def register_undo(self, undo_name: str, arguments: str, idempotency_key: str = "") -> None:
        await self._context.register_undo(undo_name, arguments, idempotency_key)
        await self._tools.registered(self._context.step_id)


class HookedTools:
    """The real fs.* tools, with hooks before a call, after a touch, after a registration and after a call."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self.before: Hook = _go_on
        self.touched: Hook = _go_on
        self.registered: Hook = _go_on
        self.after: Hook = _go_on

    def in_order(self, first: int | None) -> None:
        """Have other steps begin when one has ended; None: as they come."""
        ended = asyncio.Event()

        async def before(step_id: int) -> None:
            if first is not None and step_id != first:
                await asyncio.wait_for(ended.wait(), PATIENCE_SECONDS)

        async def after(step_id: int) -> None:
            if step_id == first:
                ended.set()

        self.before, self.after = before, after
        self.touched = self.registered = _go_on

    def crossing(self, first: int) -> None:
        """Have one step look, then another one come, and only then the first one act."""
        looked, came = asyncio.Event(), asyncio.Event()

        async def before(step_id: int) -> None:
            if step_id != first:
                await asyncio.wait_for(looked.wait(), PATIENCE_SECONDS)

        async def registered(step_id: int) -> None:
            if step_id == first:
                looked.set()
                await asyncio.wait_for(came.wait(), PATIENCE_SECONDS)

        async def touched(step_id: int) -> None:
            if step_id != first:
                came.set()

        async def after(step_id: int) -> None:
            looked.set()  # one that has no undo, or failed before it

        self.before, self.touched, self.registered, self.after = before, touched, registered, after

    def describe(self, name: str) -> ToolDescription | None:
        return self._registry.describe(name)

    def describe_all(self) -> Any:
        return self._registry.describe_all()

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        await self.before(context.step_id)
        try:
            hooked: Any = _HookedContext(context, self)
            return await self._registry.run(name, arguments, hooked)
        finally:
            await self.after(context.step_id)

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        await self._registry.undo(undo_name, arguments, context)

    async def find(self, name: str, wait_seconds: float) -> Any:
        return self._registry.describe(name)

    async def was_offered(self, name: str) -> bool:
        return False

    def progress(self, transaction_id: TransactionId, step_id: int, sub_step: int) -> None:
        return None

    async def transaction_ended(self, transaction_id: TransactionId) -> None:
        await self._registry.transaction_ended(transaction_id)


class World:
    """A server without its edges over a real sandbox."""

    def __init__(self, base: Path, threads: int = 8) -> None:
        self.root = base / "sandbox"
        make_tree(self.root, TREE, mode=0o640)
        self.tools = HookedTools(
            ToolRegistry(fs_tools(FsSettings(self.root, base / "backups", threads=threads)))
        )
        self.engine = Engine()
        self.engine.tools = self.tools  # type: ignore[assignment]
        self.engine.restart()
        self.before = snapshot(self.root)

    async def group(self, *calls: StepCall) -> tuple[StepAnswer, ...]:
        """Run a group as the first steps of a transaction of its own, the one before having ended."""
        if self.engine.transaction_id:
            await outcome_of(self.engine.rollback())
        await self.engine.begin()
        return await asyncio.wait_for(self.engine.group(1, *calls), PATIENCE_SECONDS)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return World(tmp_path)


def _write(path: str, content: str) -> StepCall:
    return call("fs.write", {"path": path, "content": content})


def _read(path: str) -> StepCall:
    return call("fs.read", {"path": path})


def _list(path: str) -> StepCall:
    return call("fs.list", {"path": path})


def _delete(path: str) -> StepCall:
    return call("fs.delete", {"path": path})


def _move(source: str, destination: str, *, overwrite: bool = False) -> StepCall:
    return call("fs.move", {"source": source, "destination": destination, "overwrite": overwrite})


ORDERS: dict[str, Callable[[HookedTools], None]] = {
    "as they come": lambda tools: tools.in_order(None),
    "lower first": lambda tools: tools.in_order(1),
    "higher first": lambda tools: tools.in_order(2),
    "lower between": lambda tools: tools.crossing(2),
    "higher between": lambda tools: tools.crossing(1),
}


def _check_loser(answer: StepAnswer, path: str) -> None:
    assert answer.status is StepStatus.ROLLBACK_TRIGGERED
    assert answer.hint is not None
    assert answer.hint.category is HintCategory.CONFLICT
    assert answer.hint.text.startswith(f"Hint: Step 1 of the same group also used '{path}'.")


@pytest.mark.parametrize("path", ["f", "new", "n/e/w"])
@pytest.mark.parametrize("order", ORDERS)
async def test_of_two_writes_to_one_path_the_higher_step_loses_every_time(world, order, path):
    for _ in range(6):
        ORDERS[order](world.tools)
        lower, higher = await world.group(_write(path, "lower"), _write(path, "higher"))

        assert lower.status is StepStatus.SUCCESS
        assert lower.rewound
        _check_loser(higher, path)
        assert not higher.rollback_incomplete
        assert (higher.next_step_id, higher.compensation_errors) == (1, ())
        assert snapshot(world.root) == world.before


PAIRS: dict[str, tuple[StepCall, StepCall, str]] = {
    "write, read": (_write("f", "x"), _read("f"), "f"),
    "read, write": (_read("f"), _write("f", "x"), "f"),
    "write, list its directory": (_write("d/x", "x"), _list("d"), "d/x"),
    "list the directory, write in it": (_list("d"), _write("d/x", "x"), "d/x"),
    "write, list the sandbox": (_write("d/i/j", "x"), _list("."), "d/i/j"),
    "move, write its source": (_move("f", "m"), _write("f", "x"), "f"),
    "move, write its destination": (_move("f", "g", overwrite=True), _write("g", "x"), "g"),
    "write, move it": (_write("f", "x"), _move("f", "m"), "f"),
    "write, move over it": (_write("g", "x"), _move("f", "g", overwrite=True), "g"),
    "move a directory, write in it": (_move("empty", "m"), _write("empty/x", "x"), "empty/x"),
    "delete, write": (_delete("f"), _write("f", "x"), "f"),
    "write, delete": (_write("f", "x"), _delete("f"), "f"),
    "write, delete its directory": (_write("empty/x", "x"), _delete("empty"), "empty/x"),
}
# Pairs of which one may find nothing left to act on.
ROBBING_PAIRS: dict[str, tuple[StepCall, StepCall, str]] = {
    "delete, read": (_delete("f"), _read("f"), "f"),
    "read, delete": (_read("f"), _delete("f"), "f"),
    "delete, delete": (_delete("f"), _delete("f"), "f"),
    "delete, move": (_delete("f"), _move("f", "m"), "f"),
    "move, delete": (_move("f", "m"), _delete("f"), "f"),
    "move, move away": (_move("f", "m"), _move("f", "n"), "f"),
    "move, move on": (_move("f", "m"), _move("m", "n"), "m"),
    "move there, move back": (_move("f", "m"), _move("m", "f"), "f"),
    "write new, read": (_write("new", "x"), _read("new"), "new"),
    "read new, write": (_read("new"), _write("new", "x"), "new"),
    "move a directory, read in it": (_move("d", "m"), _read("d/h"), "d/h"),
    "list a directory, move it": (_list("d"), _move("d", "m"), "d"),
    "delete a directory, write in it": (_delete("empty"), _write("empty/x", "x"), "empty/x"),
    "move over, move over": (
        _move("f", "g", overwrite=True),
        _move("d/h", "g", overwrite=True),
        "g",
    ),
    "write in a file's place": (_write("f", "x"), _write("f/x", "x"), "f/x"),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("order", ORDERS)
async def test_of_two_members_that_touch_one_path_the_higher_step_loses(world, order, pair):
    lower_call, higher_call, path = PAIRS[pair]
    ORDERS[order](world.tools)
    lower, higher = await world.group(lower_call, higher_call)

    assert lower.status is StepStatus.SUCCESS
    _check_loser(higher, path)
    assert not higher.rollback_incomplete
    assert snapshot(world.root) == world.before


@pytest.mark.parametrize("pair", PAIRS | ROBBING_PAIRS)
async def test_the_decision_and_the_losers_answer_are_the_same_in_every_order(world, pair):
    lower_call, higher_call, path = (PAIRS | ROBBING_PAIRS)[pair]
    outcomes = []
    for order in ORDERS.values():
        order(world.tools)
        lower, higher = await world.group(lower_call, higher_call)
        _check_loser(higher, path)
        assert not higher.rollback_incomplete
        assert snapshot(world.root) == world.before
        outcomes.append(
            (higher.decision, lower.decision, higher.hint, higher.constraints, higher.next_step_id)
        )

    assert outcomes[0][0] is not None
    assert outcomes[0][0].failed_step == 2
    assert all(outcome == outcomes[0] for outcome in outcomes)


async def test_a_lower_member_that_failed_by_itself_is_the_one_decided_on(world):
    for order in ORDERS.values():
        order(world.tools)
        lower, higher = await world.group(_write("d", "a directory is there"), _read("d/h"))
        assert (lower.status, lower.decision.failed_step) == (StepStatus.ROLLBACK_TRIGGERED, 1)
        assert lower.hint.category is HintCategory.INVALID_VALUE
        _check_loser(higher, "d/h")


async def test_reads_of_one_path_don_t_conflict(world):
    answers = await world.group(_read("f"), _read("f"), _list("."), _list("d"), _read("d/h"))
    assert {answer.status for answer in answers} == {StepStatus.SUCCESS}


@pytest.mark.parametrize("paths", [("f", "g"), ("n/a", "n/b"), ("d/h", "dh"), ("empty/x", "d/x")])
async def test_different_paths_are_changed_side_by_side_and_undone_exactly(world, paths):
    both = asyncio.Barrier(2)

    async def registered(step_id: int) -> None:
        await asyncio.wait_for(both.wait(), PATIENCE_SECONDS)

    world.tools.registered = registered
    answers = await world.group(*(_write(path, f"new {path}") for path in paths))

    assert {answer.status for answer in answers} == {StepStatus.SUCCESS}
    assert [(world.root / path).read_text() for path in paths] == [f"new {path}" for path in paths]
    await world.engine.rollback()
    assert snapshot(world.root) == world.before


async def test_plain_steps_keep_no_touches(world):
    await world.engine.begin()
    await world.engine.step(1, "fs.write", {"path": "f", "content": "x"})
    await world.engine.step(2, "fs.read", {"path": "f"})
    stored = world.engine.memory.database.transactions[world.engine.transaction_id]
    assert stored.reads == []


async def test_nothing_of_a_groups_touches_is_published(world):
    await world.group(_write("f", "x"), _read("g"))
    await world.engine.commit()
    assert world.engine.memory.database.committed == {}


# --- waiting ------------------------------------------------------------------------------


async def test_calls_that_wait_for_a_path_hold_no_thread(tmp_path):
    world = World(tmp_path, threads=1)
    holding, release = asyncio.Event(), asyncio.Event()

    async def registered(step_id: int) -> None:
        if step_id == 1:
            holding.set()
            await release.wait()

    world.tools.registered = registered
    transaction = FakeTransaction()
    contexts = [transaction.context() for _ in range(21)]

    def start(index: int, path: str) -> asyncio.Task[Any]:
        arguments = {"path": path, "content": str(index)}
        return asyncio.create_task(world.tools.run("fs.write", arguments, contexts[index]))

    first = start(0, "f")
    await asyncio.wait_for(holding.wait(), PATIENCE_SECONDS)
    waiting = [start(index, "f") for index in range(1, 20)]
    await asyncio.wait_for(start(20, "g"), PATIENCE_SECONDS)  # found a thread
    assert not any(task.done() for task in (first, *waiting))
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)

    release.set()
    await asyncio.wait_for(asyncio.gather(first, *waiting[1:]), PATIENCE_SECONDS)

    assert (world.root / "f").read_text() == "19"
    await transaction.rewind(world.tools)
    assert snapshot(world.root) == world.before


async def test_moves_that_cross_don_t_wait_for_one_another_for_ever(world):
    transaction = FakeTransaction()
    for _ in range(20):
        moves = [{"source": "f", "destination": "m"}, {"source": "m", "destination": "f"}] * 4
        await asyncio.wait_for(
            asyncio.gather(
                *(world.tools.run("fs.move", arguments, transaction.context()) for arguments in moves),
                return_exceptions=True,
            ),
            PATIENCE_SECONDS,
        )
    await transaction.rewind(world.tools)
    assert snapshot(world.root) == world.before


async def test_a_member_that_stays_away_is_stopped_and_lets_the_next_one_in(world):
    async def registered(step_id: int) -> None:
        if step_id == 1:
            await asyncio.Event().wait()

    world.tools.registered = registered
    lower, higher = await world.group(
        call("fs.write", {"path": "f", "content": "x"}, timeout=0.3), _write("f", "y")
    )
    assert lower.hint.category is HintCategory.TIMEOUT
    _check_loser(higher, "f")
    assert snapshot(world.root) == world.before
