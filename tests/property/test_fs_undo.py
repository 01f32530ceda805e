"""Any sequence of writes, deletions and moves, undone newest first, gives back every tree in between, to the bit."""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_tool_context import FakeTransaction
from tests.support.file_trees import Entry, snapshot

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.builtin import FsSettings
from agenttx_server.tools.builtin.fs import fs_tools

# Few names, so that calls meet one another's files, directories and leftovers.
paths = st.lists(st.sampled_from(["a", "b", "é"]), min_size=1, max_size=3).map("/".join)
contents = st.sampled_from(["", "x", "y", "Zeile\n" * 40])
modes = st.sampled_from([None, "400", "600", "644", "755"])

initial_files = st.dictionaries(
    paths, st.tuples(contents, st.sampled_from([0o400, 0o600, 0o664, 0o4755])), max_size=4
)
initial_directories = st.dictionaries(paths, st.sampled_from([0o700, 0o755, 0o1777]), max_size=3)

calls = st.one_of(
    st.builds(lambda path, content, mode: ("write", {"path": path, "content": content, "mode": mode}), paths, contents, modes),
    st.builds(lambda path: ("delete", {"path": path}), paths),
    st.builds(
        lambda source, destination, overwrite: (
            "move",
            {"source": source, "destination": destination, "overwrite": overwrite},
        ),
        paths,
        paths,
        st.booleans(),
    ),
)  # fmt: skip


def furnish(root: Path, files: dict[str, tuple[str, int]], directories: dict[str, int]) -> None:
    """Make what the description allows: a name can't be a file and a directory."""
    root.mkdir()
    for name, (content, mode) in files.items():
        try:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
            (root / name).chmod(mode)
        except OSError:
            continue
    for name, mode in directories.items():
        try:
            (root / name).mkdir(parents=True, exist_ok=True)
            (root / name).chmod(mode)
        except OSError:
            continue
    os.symlink("a", root / "link")


async def run(tools: ToolRegistry, transaction: FakeTransaction, call: tuple[str, dict[str, Any]]) -> bool:
    name, arguments = call
    try:
        await tools.run(f"fs.{name}", arguments, transaction.context())
    except ToolFailure:
        return False
    return True


@given(initial_files, initial_directories, st.lists(calls, max_size=12))
def test_undoing_newest_first_passes_through_every_tree_that_there_was(files, directories, sequence):
    async def play() -> None:
        with tempfile.TemporaryDirectory() as base:
            root = Path(base, "sandbox")
            furnish(root, files, directories)
            tools = ToolRegistry(fs_tools(FsSettings(root, Path(base, "backups"))))
            transaction = FakeTransaction()
            trees: list[tuple[int, dict[str, Entry]]] = []  # undo actions registered by then, and the tree

            for call in sequence:
                before = len(transaction.undo), snapshot(root)
                if await run(tools, transaction, call):
                    trees.append(before)
                else:  # a failed step is undone at once
                    await transaction.rewind(tools, keep=before[0])
                    assert snapshot(root) == before[1], call

            for keep, tree in reversed(trees):
                await transaction.rewind(tools, keep=keep)
                assert snapshot(root) == tree

    asyncio.run(play())
