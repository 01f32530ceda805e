"""Renaming without replacing, with the system's help and without."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agenttx_server.tools.builtin import exclusive_rename
from agenttx_server.tools.builtin.exclusive_rename import rename_exclusively


def unsupported(*_: object) -> int:
    """A file system that knows no RENAME_NOREPLACE."""
    exclusive_rename.ctypes.set_errno(errno.EINVAL)
    return -1


@pytest.fixture(params=["as it is", "no function", "not supported"])
def directory(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    replacement: dict[str, Callable[..., int] | None] = {"no function": None, "not supported": unsupported}
    if request.param in replacement:
        monkeypatch.setattr(exclusive_rename, "_renameat2", lambda: replacement[request.param])
    (tmp_path / "a").write_text("a")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_a_free_name_is_taken(directory: int, tmp_path: Path):
    rename_exclusively("a", directory, "b", directory)

    assert (os.listdir(tmp_path), (tmp_path / "b").read_text()) == (["b"], "a")


@pytest.mark.parametrize("kind", ["file", "directory", "dangling link"])
def test_a_taken_name_is_left_alone(directory: int, tmp_path: Path, kind: str):
    other = tmp_path / "b"
    if kind == "file":
        other.write_text("b")
    elif kind == "directory":
        other.mkdir()
    else:
        other.symlink_to("nowhere")

    with pytest.raises(FileExistsError):
        rename_exclusively("a", directory, "b", directory)
    assert (tmp_path / "a").read_text() == "a"


def test_a_missing_file_is_told(directory: int):
    with pytest.raises(FileNotFoundError):
        rename_exclusively("no", directory, "b", directory)


def test_this_system_has_the_function_where_it_is_linux_with_glibc():
    if not hasattr(exclusive_rename.ctypes.CDLL(None), "renameat2"):
        pytest.skip("no renameat2 in this C library")
    assert exclusive_rename._renameat2() is not None
