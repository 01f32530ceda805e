"""Somebody swaps directories and files for symbolic links while fs.* work: nothing leaves the sandbox."""

import asyncio
import ctypes
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_tool_context import FakeTransaction
from tests.support.file_trees import make_tree, snapshot

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.builtin import FsSettings, file_moving, file_store, sandbox
from agenttx_server.tools.builtin.fs import fs_tools

SECRET = "secret"
ROUNDS = 400
EXCHANGE = 2  # RENAME_EXCHANGE: two names swap what they name, with no moment between


def exchange(one: Path, other: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    at_cwd = -100
    if library.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@pytest.fixture(scope="module", autouse=True)
def needs_exchange(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("exchange")
    make_tree(directory, {"a": b"", "b": b""})
    try:
        exchange(directory / "a", directory / "b")
    except (OSError, AttributeError) as error:
        pytest.skip(f"no RENAME_EXCHANGE here: {error}")


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Swap two names all the time, from another thread."""
    exchange(one, other)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            with suppress(FileNotFoundError):  # a tool took one away
                exchange(one, other)

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Attacked:
    """A sandbox whose directory `d` and file `f` have links to the outside as doubles."""

    def __init__(self, base: Path) -> None:
        self.root = base / "sandbox"
        self.outside = base / "outside"
        make_tree(self.root, {"d/f": b"inside", "d/empty": None, "f": b"inside"})
        make_tree(self.outside, {"f": SECRET.encode(), "empty": None})
        (self.root / "d_link").symlink_to(self.outside)
        (self.root / "f_link").symlink_to(self.outside / "f")
        self.before = snapshot(self.outside)
        self.tools = ToolRegistry(fs_tools(FsSettings(self.root, base / "backups")))

    def repair(self) -> None:
        """Put back what a tool took away and could not undo, so that the next one has something to meet."""
        for name in ("d", "d_link"):
            with suppress(FileExistsError):
                (self.root / name).mkdir()
            directory = os.open(self.root, os.O_RDONLY)
            with suppress(OSError):  # the link, at this moment
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                with suppress(FileExistsError):
                    os.close(os.open("f", os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=inner))
                os.close(inner)
            os.close(directory)
        for name in ("f", "f_link"):
            with suppress(FileExistsError):
                os.close(os.open(self.root / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        (self.root / "g").write_text("to be moved")

    async def run(self, transaction: FakeTransaction, name: str, **arguments: Any) -> Any:
        return await self.tools.run(f"fs.{name}", arguments, transaction.context())


@pytest.fixture
def attacked(tmp_path: Path) -> Attacked:
    return Attacked(tmp_path)


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read", {"path": "{}"}),
    ("write", {"path": "{}", "content": "written"}),
    ("delete", {"path": "{}"}),
    ("move", {"source": "{}", "destination": "moved", "overwrite": True}),
    ("move", {"source": "g", "destination": "{}", "overwrite": True}),
]


@pytest.mark.parametrize(("doubled", "path"), [("d", "d/f"), ("f", "f"), ("d", "d/new/deep")])
async def test_links_that_come_and_go_lead_nobody_outside(attacked, doubled, path):
    outcomes: Counter[str] = Counter()
    with swapping(attacked.root / doubled, attacked.root / f"{doubled}_link"):
        for _ in range(ROUNDS // len(CALLS)):
            for name, arguments in CALLS:
                filled = {
                    key: value.format(path) if isinstance(value, str) else value
                    for key, value in arguments.items()
                }
                outcomes[await attempt(attacked, name, filled)] += 1
                assert snapshot(attacked.outside) == attacked.before

    assert outcomes["done"] > 0, "nothing was tried"
    assert outcomes["refused"] > 0, "the attack never hit"


async def attempt(attacked: Attacked, name: str, arguments: dict[str, Any]) -> str:
    """Run a tool and its undo, both under attack."""
    attacked.repair()
    transaction = FakeTransaction()
    told, outcome = "", "refused"
    try:
        told = str(await attacked.run(transaction, name, **arguments))
        outcome = "done"
    except ToolFailure as failure:
        told = str(failure)
    assert SECRET not in told
    with suppress(ToolFailure):  # held, for a person to look at
        await transaction.rewind(attacked.tools)
    return outcome


async def test_a_listing_under_attack_shows_the_inside_or_nothing(attacked):
    make_tree(attacked.outside, {"only_outside": b""})
    names: set[str] = set()
    with swapping(attacked.root / "d", attacked.root / "d_link"):
        for _ in range(ROUNDS):
            try:
                listed = await attacked.run(FakeTransaction(), "list", path="d")
            except ToolFailure:
                continue
            names |= {entry["name"] for entry in listed["entries"]}

    assert names == {"f", "empty"}


SWAPS: list[tuple[str, dict[str, Any], Callable[[Path], None]]] = [
    ("write", {"path": "d/new", "content": "x"}, lambda root: exchange(root / "d", root / "d_link")),
    ("write", {"path": "d/n/e/w", "content": "x"}, lambda root: exchange(root / "d", root / "d_link")),
    ("write", {"path": "d/f", "content": "x"}, lambda root: exchange(root / "d", root / "d_link")),
    ("write", {"path": "f", "content": "x"}, lambda root: exchange(root / "f", root / "f_link")),
    ("delete", {"path": "d/f"}, lambda root: exchange(root / "d", root / "d_link")),
    ("delete", {"path": "d/empty"}, lambda root: exchange(root / "d", root / "d_link")),
    ("delete", {"path": "f"}, lambda root: exchange(root / "f", root / "f_link")),
    ("move", {"source": "d/f", "destination": "m"}, lambda root: exchange(root / "d", root / "d_link")),
    ("move", {"source": "f", "destination": "d/m"}, lambda root: exchange(root / "d", root / "d_link")),
    ("move", {"source": "f", "destination": "m"}, lambda root: exchange(root / "f", root / "f_link")),
    ("move", {"source": "d", "destination": "m"}, lambda root: exchange(root / "d", root / "d_link")),
]


@pytest.mark.parametrize(("name", "arguments", "swap"), SWAPS)
async def test_a_swap_between_look_and_effect_stops_the_effect(attacked, name, arguments, swap):
    transaction = FakeTransaction(on_register_undo=lambda: swap(attacked.root))

    with pytest.raises(ToolFailure):
        await attacked.run(transaction, name, **arguments)

    assert snapshot(attacked.outside) == attacked.before


@pytest.mark.parametrize(("name", "arguments", "swap"), SWAPS)
async def test_a_swap_between_effect_and_undo_stops_the_undo(attacked, name, arguments, swap):
    transaction = FakeTransaction()
    await attacked.run(transaction, name, **arguments)
    for gone in ("d", "f"):  # what the tool took away is there again, as a double
        if not (attacked.root / gone).exists():
            make_tree(attacked.root, {gone: b"theirs"})
    swap(attacked.root)

    with pytest.raises(ToolFailure):
        await transaction.rewind(attacked.tools)

    assert snapshot(attacked.outside) == attacked.before


async def test_a_pipe_put_in_place_of_a_file_blocks_nobody(attacked):
    def swap() -> None:
        (attacked.root / "f").unlink()
        os.mkfifo(attacked.root / "f")

    transaction = FakeTransaction(on_register_undo=swap)
    with pytest.raises(ToolFailure):
        await asyncio.wait_for(attacked.run(transaction, "write", path="f", content="x"), 30)


class Interference:
    """Something that happens right after a look at a name: in the moment before what was seen is acted on."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, happen: Callable[[], object]
    ) -> None:
        self.happened = 0
        original = module.read_status

        def read_status(descriptor: int, looked_at: str) -> Any:
            status = original(descriptor, looked_at)
            if looked_at == name and not self.happened:
                self.happened += 1
                happen()
            return status

        monkeypatch.setattr(module, "read_status", read_status)


@pytest.mark.parametrize("double", ["a link", "a pipe", "a directory"])
async def test_a_file_swapped_between_look_and_open_is_not_read(attacked, monkeypatch, double):
    def swap() -> None:
        if double == "a link":
            exchange(attacked.root / "f", attacked.root / "f_link")
            return
        (attacked.root / "f").unlink()
        os.mkfifo(attacked.root / "f") if double == "a pipe" else (attacked.root / "f").mkdir()

    interference = Interference(monkeypatch, sandbox, "f", swap)
    with pytest.raises(ToolFailure) as failed:
        await asyncio.wait_for(attacked.run(FakeTransaction(), "read", path="f"), 30)

    assert interference.happened == 1
    assert str(failed.value).startswith("[Errno ")


async def test_a_file_made_in_the_last_moment_is_not_replaced_by_a_write(attacked, monkeypatch):
    interference = Interference(
        monkeypatch, file_store, "new", lambda: make_tree(attacked.root, {"new": b"theirs"})
    )

    with pytest.raises(ToolFailure, match="changed by someone else"):
        await attacked.run(FakeTransaction(), "write", path="new", content="ours")

    assert interference.happened == 1
    assert (attacked.root / "new").read_bytes() == b"theirs"


async def test_a_file_made_in_the_last_moment_is_not_replaced_by_a_move(attacked, monkeypatch):
    interference = Interference(
        monkeypatch, file_moving, "new", lambda: make_tree(attacked.root, {"new": b"theirs"})
    )

    with pytest.raises(ToolFailure, match="changed by someone else"):
        await attacked.run(FakeTransaction(), "move", source="f", destination="new")

    assert interference.happened == 1
    assert (attacked.root / "new").read_bytes() == b"theirs"


@pytest.mark.parametrize("name", ["read", "write", "delete"])
async def test_a_file_that_grows_while_it_is_read_is_refused_at_the_limit(attacked, monkeypatch, name):
    original, growth = os.read, iter(range(100))

    def growing(file: int, size: int) -> bytes:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return original(file, size)
        return b"" if next(growth, None) is None else b"x" * size

    monkeypatch.setattr(os, "read", growing)
    arguments = {"content": "x"} if name == "write" else {}
    with pytest.raises(ToolFailure, match=r"^\[Errno 27\] File too large: 'f'"):
        await attacked.run(FakeTransaction(), name, path="f", **arguments)
