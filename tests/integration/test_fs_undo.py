"""Undo of fs.*: exact, from every state that a crash can leave, and never over somebody else's work."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_tool_context import FakeTransaction
from tests.support.file_trees import make_tree, snapshot

from agenttx_server.engine.ports import ContextClosed, ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.builtin import FsSettings, file_moving, file_store
from agenttx_server.tools.builtin.fs import fs_tools

TREE = {"f": b"one", "g": b"two", "d/h": b"three", "d/i/j": b"four", "empty": None}

SCENARIOS: dict[str, dict[str, Any]] = {
    "write a new file": {"name": "write", "path": "new", "content": "x"},
    "write into new directories": {"name": "write", "path": "n/e/w", "content": "x"},
    "write over a file": {"name": "write", "path": "f", "content": "x"},
    "write other permissions": {"name": "write", "path": "f", "content": "one", "mode": "400"},
    "write the same": {"name": "write", "path": "f", "content": "one"},
    "delete a file": {"name": "delete", "path": "f"},
    "delete a directory": {"name": "delete", "path": "empty"},
    "move a file": {"name": "move", "source": "f", "destination": "d/f"},
    "move a file into new directories": {"name": "move", "source": "f", "destination": "n/e/w"},
    "move a file over another": {"name": "move", "source": "f", "destination": "g", "overwrite": True},
    "move a directory": {"name": "move", "source": "d", "destination": "n/d"},
}


def make_tools(base: Path) -> ToolRegistry:
    return ToolRegistry(fs_tools(FsSettings(base / "sandbox", base / "backups")))


def furnish(base: Path) -> Path:
    root = base / "sandbox"
    root.mkdir(parents=True)
    make_tree(root, TREE, mode=0o640)
    (root / "empty").chmod(0o711)
    return root


async def run(tools: ToolRegistry, transaction: FakeTransaction, name: str, **arguments: Any) -> Any:
    return await tools.run(f"fs.{name}", arguments, transaction.context())


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_undo_gives_back_the_exact_tree_and_may_run_again(tmp_path, scenario):
    root, tools, transaction = furnish(tmp_path), make_tools(tmp_path), FakeTransaction()
    before = snapshot(root)

    await run(tools, transaction, **scenario)
    assert (snapshot(root) != before) == (
        scenario["content"] != "one" if "content" in scenario else True
    ) or ("mode" in scenario)

    action = transaction.undo[0]
    for _ in range(3):
        await tools.undo(action.name, action.arguments, action.context)
        assert snapshot(root) == before


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_undo_is_registered_before_anything_changed_and_the_old_bytes_are_kept_by_then(
    tmp_path, scenario
):
    root, tools, transaction = furnish(tmp_path), make_tools(tmp_path), FakeTransaction()
    before = snapshot(root)
    seen: list[Any] = []
    transaction.on_register_undo = lambda: seen.append((snapshot(root), snapshot(tmp_path / "backups")))

    await run(tools, transaction, **scenario)

    ((at_registration, backups),) = seen
    assert at_registration == before
    replaced = {"write over a file": b"one", "delete a file": b"one", "move a file over another": b"two"}
    name = next(name for name, one in SCENARIOS.items() if one is scenario)
    if name in replaced:
        assert replaced[name] in [content for _, _, content in backups.values()]


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_an_undo_that_could_not_be_registered_leaves_everything_as_it_was(tmp_path, scenario):
    root, tools, transaction = furnish(tmp_path), make_tools(tmp_path), FakeTransaction()
    before = snapshot(root)

    def refuse() -> None:
        raise ContextClosed("the deadline passed")

    transaction.on_register_undo = refuse
    with pytest.raises(ContextClosed):
        await run(tools, transaction, **scenario)

    assert snapshot(root) == before


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_undo_of_an_effect_that_never_came_changes_nothing(tmp_path, scenario):
    root, tools, transaction = furnish(tmp_path), make_tools(tmp_path), FakeTransaction()
    before = snapshot(root)

    def die() -> None:
        raise Crash

    transaction.on_register_undo = die
    with pytest.raises(Crash):
        await run(tools, transaction, **scenario)
    transaction.on_register_undo = lambda: None

    await transaction.rewind(tools)
    assert snapshot(root) == before


class Crash(BaseException):
    """The process dies here: nothing catches it, and nothing is changed on disk any more."""


class Machine:
    """Counts every change to the disk, and dies at one of them and at all that follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        for name in ("rename", "unlink", "mkdir", "rmdir", "write", "fsync", "fchmod"):
            monkeypatch.setattr(os, name, self._mortal(getattr(os, name), pretend=name == "fsync"))
        original_open = os.open
        mortal_open = self._mortal(original_open)

        def opening(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            return (mortal_open if flags & os.O_CREAT else original_open)(path, flags, *rest, **named)

        monkeypatch.setattr(os, "open", opening)
        renaming = self._mortal(file_store.rename_exclusively)
        monkeypatch.setattr(file_store, "rename_exclusively", renaming)
        monkeypatch.setattr(file_moving, "rename_exclusively", renaming)

    def _mortal(self, change: Callable[..., Any], pretend: bool = False) -> Callable[..., Any]:
        def mortal(*arguments: Any, **named: Any) -> Any:
            if self.left is not None:
                if self.left == 0:
                    raise Crash
                self.left -= 1
            return None if pretend else change(*arguments, **named)

        return mortal

    def dies_after(self, changes: int) -> None:
        self.left = changes

    def is_repaired(self) -> None:
        self.left = None


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine(monkeypatch)
    yield machine
    machine.is_repaired()


async def run_until_death(
    machine: Machine, base: Path, scenario: dict[str, Any], changes: int
) -> tuple[FakeTransaction, bool]:
    """Run a tool in a process that dies after so many changes; say whether it did."""
    tools, transaction = make_tools(base), FakeTransaction()
    machine.dies_after(changes)
    try:
        await run(tools, transaction, **scenario)
    except Crash:
        return transaction, True
    finally:
        machine.is_repaired()
    return transaction, False


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_whenever_the_process_dies_the_next_one_restores_the_exact_tree(tmp_path, machine, scenario):
    for changes in range(100):
        base = tmp_path / str(changes)
        root = furnish(base)
        before = snapshot(root)

        transaction, died = await run_until_death(machine, base, scenario, changes)
        await transaction.rewind(make_tools(base))

        assert snapshot(root) == before, f"death after {changes} changes"
        if not died:
            break
    else:
        pytest.fail("the tool never ended")
    assert changes >= 2, "the tool was cut off in no place that matters"


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_whenever_the_process_dies_in_an_undo_the_next_one_finishes_it(tmp_path, machine, scenario):
    for changes in range(100):
        base = tmp_path / str(changes)
        root = furnish(base)
        before = snapshot(root)
        transaction, _ = await run_until_death(machine, base, scenario, 1000)

        machine.dies_after(changes)
        try:
            await transaction.rewind(make_tools(base))
            died = False
        except Crash:
            died = True
        machine.is_repaired()
        await transaction.rewind(make_tools(base))

        assert snapshot(root) == before, f"death after {changes} changes of the undo"
        if not died:
            break
    else:
        pytest.fail("the undo never ended")


@pytest.mark.parametrize(
    ("scenario", "interfere"),
    [
        ("write a new file", lambda root: (root / "new").write_text("theirs")),
        ("write into new directories", lambda root: (root / "n/e/w").write_text("theirs")),
        ("write over a file", lambda root: (root / "f").write_text("theirs")),
        ("write over a file", lambda root: (root / "f").unlink()),
        ("write over a file", lambda root: ((root / "f").unlink(), (root / "f").mkdir())),
        ("write over a file", lambda root: ((root / "f").unlink(), (root / "f").symlink_to("g"))),
        ("delete a file", lambda root: (root / "f").write_text("theirs")),
        ("delete a directory", lambda root: (root / "empty").write_text("theirs")),
        ("move a file", lambda root: (root / "d/f").write_text("theirs")),
        ("move a file", lambda root: (root / "f").write_text("theirs")),
        ("move a file over another", lambda root: (root / "g").write_text("theirs")),
        ("move a file over another", lambda root: (root / "g").unlink()),
        ("move a directory", lambda root: (root / "n/d/h").write_text("theirs")),
        ("move a directory", lambda root: (root / "n/d/i/new").write_text("theirs")),
        ("move a directory", lambda root: (root / "n/d/h").unlink()),
        ("move a directory", lambda root: (root / "n/d/h").chmod(0o600)),
        ("move a directory", lambda root: (root / "n/d/h").rename(root / "n/d/a")),
        ("move a directory", lambda root: (root / "d").mkdir()),
    ],
)  # fmt: skip
async def test_undo_overwrites_nothing_that_somebody_else_changed(tmp_path, scenario, interfere):
    root, tools, transaction = furnish(tmp_path), make_tools(tmp_path), FakeTransaction()
    await run(tools, transaction, **SCENARIOS[scenario])
    interfere(root)
    theirs = snapshot(root)

    for _ in range(2):
        with pytest.raises(ToolFailure) as failed:
            await transaction.rewind(tools)
        assert failed.value.category == HintCategory.CONFLICT
        assert "no longer what the step left" in str(failed.value)
        assert snapshot(root) == theirs


async def test_a_file_whose_permissions_alone_were_changed_is_restored(tmp_path):
    root, tools, transaction = furnish(tmp_path), make_tools(tmp_path), FakeTransaction()
    before = snapshot(root)
    await run(tools, transaction, "write", path="f", content="x")
    (root / "f").chmod(0o600)

    await transaction.rewind(tools)

    assert snapshot(root) == before


async def test_created_directories_stay_when_others_use_them(tmp_path):
    root, tools, transaction = furnish(tmp_path), make_tools(tmp_path), FakeTransaction()
    await run(tools, transaction, "write", path="n/e/w", content="x")
    (root / "n/theirs").write_text("y")

    await transaction.rewind(tools)

    assert set(snapshot(root)) - set(TREE) == {"d", "d/i", "n", "n/theirs"}


async def test_a_damaged_backup_is_not_restored(tmp_path):
    root, tools, transaction = furnish(tmp_path), make_tools(tmp_path), FakeTransaction()
    await run(tools, transaction, "write", path="f", content="x")
    (backup,) = [path for path in (tmp_path / "backups").glob("*/*") if path.is_file()]
    backup.write_bytes(b"something else")
    theirs = snapshot(root)

    with pytest.raises(ToolFailure, match="damaged"):
        await transaction.rewind(tools)
    assert snapshot(root) == theirs


@pytest.mark.parametrize(
    ("scenario", "interfere"),
    [
        ("write a new file", lambda root: (root / "new").write_text("theirs")),
        ("write over a file", lambda root: (root / "f").write_text("their text")),
        ("write over a file", lambda root: (root / "f").write_text("of the same size"[:3])),
        ("write over a file", lambda root: (root / "f").unlink()),
        ("delete a file", lambda root: (root / "f").write_text("their text")),
        ("delete a directory", lambda root: (root / "empty").rmdir()),
        ("move a file", lambda root: (root / "d/f").write_text("theirs")),
        ("move a file", lambda root: (root / "f").write_text("their text")),
        ("move a file over another", lambda root: (root / "g").write_text("their text")),
    ],
)  # fmt: skip
async def test_a_change_that_comes_between_look_and_effect_wins_and_survives_the_undo(
    tmp_path, scenario, interfere
):
    root, tools, transaction = furnish(tmp_path), make_tools(tmp_path), FakeTransaction()
    transaction.on_register_undo = lambda: interfere(root)

    with pytest.raises(ToolFailure) as failed:
        await run(tools, transaction, **SCENARIOS[scenario])
    theirs = snapshot(root)
    assert failed.value.category == HintCategory.CONFLICT

    transaction.on_register_undo = lambda: None
    for _ in range(2):
        action = transaction.undo[0]
        await tools.undo(action.name, action.arguments, action.context)
        assert snapshot(root) == theirs


async def test_servers_that_write_one_file_at_once_have_one_winner_and_the_losers_undo_nothing(tmp_path):
    root, tools = furnish(tmp_path), [make_tools(tmp_path) for _ in range(5)]
    before = snapshot(root)
    all_have_looked = asyncio.Barrier(5)
    transactions = [FakeTransaction(on_register_undo=all_have_looked.wait) for _ in range(5)]

    outcomes = await asyncio.gather(
        *(run(tools[i], one, "write", path="n/new", content=f"{i}") for i, one in enumerate(transactions)),
        return_exceptions=True,
    )
    winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, dict)]
    assert len(winners) == 1
    assert all(isinstance(outcome, dict | ToolFailure) for outcome in outcomes)

    for number in set(range(5)) - set(winners):
        await transactions[number].rewind(tools[number])
    assert (root / "n/new").read_text() == str(winners[0])
    await transactions[winners[0]].rewind(tools[winners[0]])
    assert snapshot(root) == before


async def test_calls_of_one_server_that_write_one_file_at_once_come_one_after_the_other(tmp_path):
    root, tools = furnish(tmp_path), make_tools(tmp_path)
    before = snapshot(root)
    transaction = FakeTransaction(on_register_undo=lambda: asyncio.sleep(0))

    await asyncio.gather(*(run(tools, transaction, "write", path="n/new", content=f"{i}") for i in range(5)))

    assert (root / "n/new").read_text() == "4"
    await transaction.rewind(tools)
    assert snapshot(root) == before
