"""fs.* on a real file system: what they do, and every way in which they refuse."""

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_tool_context import FakeTransaction
from tests.support.file_trees import make_tree, snapshot

from agenttx_server.engine.ports import ArgumentsRefused, ToolFailure
from agenttx_server.engine.records import EffectClass, HintCategory
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.builtin import FsSettings
from agenttx_server.tools.builtin.fs import fs_tools

C = HintCategory
LIMIT = 1000


class Files:
    """The tools over a sandbox in a temporary directory."""

    def __init__(self, base: Path) -> None:
        self.root = base / "sandbox"
        self.outside = base / "outside"
        self.outside.mkdir()
        self.tools = ToolRegistry(fs_tools(FsSettings(self.root, base / "backups", max_file_bytes=LIMIT)))
        self.transaction = FakeTransaction()

    async def run(self, name: str, **arguments: Any) -> Any:
        return await self.tools.run(f"fs.{name}", arguments, self.transaction.context())

    async def refused(self, name: str, **arguments: Any) -> ToolFailure:
        """Run a tool that must fail without changing anything and without an undo to run."""
        before, undo = snapshot(self.root), len(self.transaction.undo)
        with pytest.raises(ToolFailure) as failed:
            await self.run(name, **arguments)
        assert snapshot(self.root) == before
        assert len(self.transaction.undo) == undo
        return failed.value


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_a_file_is_written_with_its_directories_and_read_back(files):
    text = "Grüße\r\n\x00 end"

    written = await files.run("write", path="a/b/c.txt", content=text)

    assert written == {"path": "a/b/c.txt", "bytes": 14, "created": True}
    assert await files.run("read", path="a/b/c.txt") == {"path": "a/b/c.txt", "content": text, "bytes": 14}
    assert snapshot(files.root)["a/b/c.txt"] == ("file", 0o644, text.encode())


async def test_writing_replaces_and_keeps_the_permissions(files):
    make_tree(files.root, {"a.sh": b"old"}, mode=0o750)

    assert (await files.run("write", path="a.sh", content="new"))["created"] is False

    assert snapshot(files.root) == {"a.sh": ("file", 0o750, b"new")}


async def test_permissions_may_be_given(files):
    await files.run("write", path="a", content="", mode="600")
    await files.run("write", path="b", content="", mode="0755")
    await files.run("write", path="a", content="", mode="444")

    assert {name: oct(entry[1]) for name, entry in snapshot(files.root).items()} == {
        "a": "0o444",
        "b": "0o755",
    }


@pytest.mark.parametrize("mode", ["", "7", "888", "4755", "044", "rw-", "0o644", "644\n"])
async def test_other_permissions_are_refused(files, mode):
    with pytest.raises(ArgumentsRefused, match="argument 'mode'"):
        await files.run("write", path="a", content="", mode=mode)


async def test_a_write_gives_the_file_a_new_inode_so_that_readers_see_one_content_or_the_other(files):
    make_tree(files.root, {"a": b"old"})
    with (files.root / "a").open("rb") as reader:
        await files.run("write", path="a", content="new, and longer")
        assert reader.read() == b"old"


async def test_equivalent_paths_are_one_path(files):
    await files.run("write", path="a//./b", content="x")

    assert (await files.run("read", path="./a/b"))["path"] == "a/b"


async def test_a_directory_is_listed_by_name_in_pages(files):
    make_tree(files.root, {"d/b": b"12", "d/a/x": b"", "d/c": b"", "d/.agenttx-left.tmp": b""})
    (files.root / "d/l").symlink_to("/etc")
    os.mkfifo(files.root / "d/p")

    listed = await files.run("list", path="d")

    assert listed == {
        "path": "d",
        "entries": [
            {"name": "a", "type": "directory", "bytes": 0},
            {"name": "b", "type": "file", "bytes": 2},
            {"name": "c", "type": "file", "bytes": 0},
            {"name": "l", "type": "link", "bytes": 0},
            {"name": "p", "type": "special", "bytes": 0},
        ],
        "truncated": False,
    }
    page = await files.run("list", path="d/", after="a", limit=2)
    assert ([entry["name"] for entry in page["entries"]], page["truncated"]) == (["b", "c"], True)
    assert [entry["name"] for entry in (await files.run("list"))["entries"]] == ["d"]


async def test_a_name_that_is_no_utf8_is_shown_and_breaks_nothing(files):
    os.close(os.open(os.fsencode(files.root) + b"/a\xffb", os.O_CREAT | os.O_WRONLY))

    assert [entry["name"] for entry in (await files.run("list"))["entries"]] == ["a\\xffb"]


async def test_files_and_empty_directories_are_deleted(files):
    make_tree(files.root, {"a": b"x", "d/e": None})

    await files.run("delete", path="a")
    await files.run("delete", path="d/e/")

    assert list(snapshot(files.root)) == ["d"]


async def test_files_and_directories_are_moved(files):
    make_tree(files.root, {"a": b"1", "d/e/f": b"2", "b": b"3"})
    (files.root / "d/link").symlink_to("nowhere")

    assert await files.run("move", source="a", destination="n/m/a2") == {"path": "n/m/a2", "source": "a"}
    await files.run("move", source="d", destination="n/d2/")
    await files.run("move", source="b", destination="n/m/a2", overwrite=True)

    moved = {name: entry for name, entry in snapshot(files.root).items() if entry[0] != "directory"}
    assert moved == {
        "n/m/a2": ("file", 0o644, b"3"),
        "n/d2/e/f": ("file", 0o644, b"2"),
        "n/d2/link": ("link", 0, b"nowhere"),
    }


BAD_PATHS = [
    ("", C.FILE_NOT_FOUND, "[Errno 2] No such file or directory: ''"),
    ("/etc/passwd", C.PERMISSION_DENIED, "[Errno 13] Permission denied: '/etc/passwd'"),
    ("..", C.PERMISSION_DENIED, "[Errno 13] Permission denied: '..'"),
    ("../outside/x", C.PERMISSION_DENIED, "[Errno 13] Permission denied: '../outside/x'"),
    ("d/../f", C.PERMISSION_DENIED, "[Errno 13] Permission denied: 'd/../f'"),
    ("a\x00b", C.INVALID_VALUE, "[Errno 22] Invalid argument: 'a\\x00b'"),
    ("n" * 256, C.INVALID_VALUE, "[Errno 36] File name too long: "),
    ("é" * 128, C.INVALID_VALUE, "[Errno 36] File name too long: "),
    ("x/" * 2048 + "x", C.INVALID_VALUE, "[Errno 36] File name too long: "),
    (".agenttx-x.tmp", C.PERMISSION_DENIED, "[Errno 1] Operation not permitted: '.agenttx-x.tmp'"),
    ("f/x", C.INVALID_VALUE, "[Errno 20] Not a directory: 'f'"),
    ("to_outside/x", C.INVALID_VALUE, "[Errno 40] Too many levels of symbolic links: 'to_outside'"),
    ("to_f", C.INVALID_VALUE, "[Errno 40] Too many levels of symbolic links: 'to_f'"),
    ("dangling", C.INVALID_VALUE, "[Errno 40] Too many levels of symbolic links: 'dangling'"),
    ("pipe", C.PERMISSION_DENIED, "[Errno 1] Operation not permitted: 'pipe'"),
    ("socket", C.PERMISSION_DENIED, "[Errno 1] Operation not permitted: 'socket'"),
]


@pytest.fixture
def furnished(files: Files, monkeypatch: pytest.MonkeyPatch) -> Files:
    """A sandbox with one of everything that a path may lead to."""
    make_tree(files.root, {"f": b"text", "d/g": b"", "big": b"x" * (LIMIT + 1), "binary": b"\xff", "e": None})
    make_tree(files.outside, {"x": b"secret"})
    (files.root / "to_outside").symlink_to(files.outside)
    (files.root / "to_f").symlink_to("f")
    (files.root / "dangling").symlink_to("nowhere")
    os.mkfifo(files.root / "pipe")
    monkeypatch.chdir(files.root)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    os.link(files.root / "d/g", files.root / "d/h")
    return files


@pytest.mark.parametrize(("path", "category", "text"), BAD_PATHS)
async def test_a_bad_path_is_refused_by_every_tool_in_posix_words_under_its_argument(
    furnished, path, category, text
):
    failures = [
        (await furnished.refused("read", path=path), "path"),
        (await furnished.refused("write", path=path, content="x"), "path"),
        (await furnished.refused("delete", path=path), "path"),
        (await furnished.refused("move", source=path, destination="new"), "source"),
        (await furnished.refused("move", source="f", destination=path, overwrite=True), "destination"),
    ]
    for failure, argument in failures:
        assert str(failure).startswith(text)
        assert failure.category == category
        assert failure.keys == (argument,)
        assert "\n" not in str(failure)
    assert snapshot(furnished.outside) == {"x": ("file", 0o644, b"secret")}


@pytest.mark.parametrize(
    ("name", "arguments", "category", "text"),
    [
        ("read", {"path": "no"}, C.FILE_NOT_FOUND, "[Errno 2] No such file or directory: 'no'"),
        ("read", {"path": "no/no"}, C.FILE_NOT_FOUND, "[Errno 2] No such file or directory: 'no/no'"),
        ("read", {"path": "d"}, C.INVALID_VALUE, "[Errno 21] Is a directory: 'd'"),
        ("read", {"path": "."}, C.INVALID_VALUE, "[Errno 21] Is a directory: '.'"),
        ("read", {"path": "f/"}, C.INVALID_VALUE, "[Errno 20] Not a directory: 'f'"),
        ("read", {"path": "big"}, C.RESOURCE_EXHAUSTED, "[Errno 27] File too large: 'big'"),
        ("read", {"path": "binary"}, C.INVALID_VALUE, "'binary' is not UTF-8 text (byte 0)"),
        ("list", {"path": "no"}, C.FILE_NOT_FOUND, "[Errno 2] No such file or directory: 'no'"),
        ("list", {"path": "f"}, C.INVALID_VALUE, "[Errno 20] Not a directory: 'f'"),
        ("list", {"path": "to_outside"}, C.INVALID_VALUE, "[Errno 40] Too many levels"),
        ("list", {"path": ".."}, C.PERMISSION_DENIED, "[Errno 13] Permission denied: '..'"),
        ("write", {"path": "d", "content": ""}, C.INVALID_VALUE, "[Errno 21] Is a directory: 'd'"),
        ("write", {"path": "new/", "content": ""}, C.INVALID_VALUE, "[Errno 21] Is a directory: 'new'"),
        ("write", {"path": ".", "content": ""}, C.INVALID_VALUE, "[Errno 21] Is a directory: '.'"),
        ("write", {"path": "n", "content": "é" * 501}, C.RESOURCE_EXHAUSTED, "[Errno 27] File too large: 'n'"),
        ("write", {"path": "big", "content": ""}, C.RESOURCE_EXHAUSTED, "[Errno 27] File too large: 'big'"),
        ("write", {"path": "d/g", "content": ""}, C.INVALID_VALUE, "[Errno 31] Too many links: 'd/g'"),
        ("delete", {"path": "no"}, C.FILE_NOT_FOUND, "[Errno 2] No such file or directory: 'no'"),
        ("delete", {"path": "d"}, C.CONFLICT, "[Errno 39] Directory not empty: 'd'"),
        ("delete", {"path": "."}, C.CONFLICT, "[Errno 16] Device or resource busy: '.'"),
        ("delete", {"path": "f/"}, C.INVALID_VALUE, "[Errno 20] Not a directory: 'f'"),
        ("delete", {"path": "d/h"}, C.INVALID_VALUE, "[Errno 31] Too many links: 'd/h'"),
        ("delete", {"path": "big"}, C.RESOURCE_EXHAUSTED, "[Errno 27] File too large: 'big'"),
        ("move", {"source": "f", "destination": "f"}, C.INVALID_VALUE, "[Errno 22] Invalid argument: 'f'"),
        ("move", {"source": "f", "destination": "./f"}, C.INVALID_VALUE, "[Errno 22] Invalid argument: 'f'"),
        ("move", {"source": "d", "destination": "d/e/i"}, C.INVALID_VALUE, "[Errno 22] Invalid argument: 'd/e/i'"),
        ("move", {"source": ".", "destination": "x"}, C.CONFLICT, "[Errno 16] Device or resource busy: '.'"),
        ("move", {"source": "f", "destination": "."}, C.CONFLICT, "[Errno 16] Device or resource busy: '.'"),
        ("move", {"source": "f", "destination": "binary"}, C.CONFLICT, "[Errno 17] File exists: 'binary'"),
        ("move", {"source": "f", "destination": "d"}, C.CONFLICT, "[Errno 17] File exists: 'd'"),
        ("move", {"source": "f", "destination": "e", "overwrite": True}, C.CONFLICT, "[Errno 17] File exists: 'e'"),
        ("move", {"source": "f", "destination": "new/"}, C.INVALID_VALUE, "[Errno 20] Not a directory: 'new'"),
        ("move", {"source": "f/", "destination": "new"}, C.INVALID_VALUE, "[Errno 20] Not a directory: 'f'"),
        ("move", {"source": "d", "destination": "f", "overwrite": True}, C.INVALID_VALUE, "[Errno 20] Not a directory"),
        ("move", {"source": "d/g", "destination": "d/h", "overwrite": True}, C.INVALID_VALUE, "[Errno 22] Invalid"),
        ("move", {"source": "f", "destination": "d/h", "overwrite": True}, C.INVALID_VALUE, "[Errno 31] Too many links"),
        ("move", {"source": "big", "destination": "new"}, C.RESOURCE_EXHAUSTED, "[Errno 27] File too large: 'big'"),
    ],
)  # fmt: skip
async def test_everything_else_that_fails_says_so_and_changes_nothing(
    furnished, name, arguments, category, text
):
    failure = await furnished.refused(name, **arguments)

    assert str(failure).startswith(text)
    assert failure.category == category


async def test_a_hard_linked_file_may_be_moved_for_a_move_keeps_the_link(furnished):
    await furnished.run("move", source="d/g", destination="i")

    assert (furnished.root / "i").samefile(furnished.root / "d/h")


async def test_a_directory_too_large_to_be_compared_is_not_moved(tmp_path):
    files = Files(tmp_path)
    settings = FsSettings(files.root, tmp_path / "backups", max_tree_entries=3, max_tree_bytes=100)
    files.tools = ToolRegistry(fs_tools(settings))
    make_tree(files.root, {"few/1": b"", "few/2": b"", "few/d": None})
    make_tree(files.root, {"many/1": b"", "many/2": b"", "many/d/3": b""})
    make_tree(files.root, {"large/1": b"x" * 101})

    await files.run("move", source="few", destination="moved")
    assert "too large to be moved" in str(await files.refused("move", source="many", destination="x"))
    assert "too large to be moved" in str(await files.refused("move", source="large", destination="x"))


async def test_permissions_of_the_file_system_hold(files):
    make_tree(files.root, {"read_only": b"x", "closed/f": b""}, mode=0o444)
    (files.root / "closed").chmod(0o500)
    if os.access(files.root / "read_only", os.W_OK):
        pytest.skip("this user may write everything")

    assert "[Errno 13]" in str(await files.refused("write", path="read_only", content=""))
    with pytest.raises(ToolFailure, match=r"\[Errno 13\]"):
        await files.run("write", path="closed/new", content="")
    (files.root / "closed").chmod(0o700)


@pytest.mark.parametrize("where", ["sandbox/backups", "sandbox", "."])
def test_backups_inside_the_sandbox_or_around_it_are_refused(tmp_path, where):
    with pytest.raises(ValueError, match="must not lie in one another"):
        fs_tools(FsSettings(tmp_path / "sandbox", tmp_path / where))


def test_a_directory_that_can_not_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ValueError, match=r"can't use the directory .*/file/sandbox: Not a directory"):
        fs_tools(FsSettings(tmp_path / "file/sandbox", tmp_path / "backups"))


async def test_the_root_itself_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "sandbox").symlink_to("real")
    tools = ToolRegistry(fs_tools(FsSettings(tmp_path / "sandbox", tmp_path / "backups")))

    await tools.run("fs.write", {"path": "a", "content": "x"}, FakeTransaction().context())

    assert (tmp_path / "real/a").read_text() == "x"


async def test_nobody_else_can_read_the_backups(files):
    make_tree(files.root, {"a": b"secret"})
    await files.run("write", path="a", content="new")

    backups = files.root.parent / "backups"
    found = [backups, *backups.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}
    assert len(found) > 3  # the directory, the transaction's, the backup, and the account of claims


async def test_backups_are_let_go_when_the_transaction_ended_and_no_others(files):
    make_tree(files.root, {"a": b"1", "b": b"2"})
    other = FakeTransaction(transaction_id="0190a000-0000-7000-8000-000000000002")
    await files.run("delete", path="a")
    await files.tools.run("fs.delete", {"path": "b"}, other.context())

    await files.tools.transaction_ended(files.transaction.transaction_id)
    await files.tools.transaction_ended(files.transaction.transaction_id)

    left = snapshot(files.root.parent / "backups")
    assert {entry for entry in left.values() if entry[0] == "file"} == {("file", 0o600, b"2")}
    await other.rewind(files.tools)
    assert (files.root / "b").read_bytes() == b"2"


def test_the_effect_classes_are_what_recovery_relies_on(files):
    classes = {tool.name: (tool.effect_class, tool.undo_names) for tool in files.tools.describe_all()}

    assert classes == {
        "fs.delete": (EffectClass.COMPENSATABLE, ("fs.delete.undo",)),
        "fs.list": (EffectClass.READ_ONLY, ()),
        "fs.move": (EffectClass.COMPENSATABLE, ("fs.move.undo",)),
        "fs.read": (EffectClass.READ_ONLY, ()),
        "fs.write": (EffectClass.COMPENSATABLE, ("fs.write.undo",)),
    }
