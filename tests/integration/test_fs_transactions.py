# ruff: noqa: PT012 - how a block ends is what is tested here, and a block has statements
"""fs.* in real transactions on the real server: rewinds take files back, commits let go of backups."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.file_trees import Entry, make_tree, snapshot
from tests.support.running_server import server_process

import agenttx
from agenttx import StepRolledBack


class Served:
    """A server process with its sandbox."""

    def __init__(self, address: str, data_dir: Path) -> None:
        self.address = address
        self.root = data_dir / "sandbox"
        self.backups = data_dir / "backups"

    @property
    def tree(self) -> dict[str, Entry]:
        return snapshot(self.root)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with server_process(tmp_path) as process:
        served = Served(process.address, tmp_path)
        make_tree(served.root, {"report.txt": b"draft", "old/a.txt": b"a"}, mode=0o640)
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[agenttx.Client]:
    with agenttx.Client(served.address) as client:
        yield client


def test_what_a_transaction_did_to_files_stays_after_its_commit_and_the_backups_go(served, client):
    with client.transaction(agent_id="writer") as tx:
        tx.step("fs.write", path="report.txt", content="final")
        tx.step("fs.move", source="old", destination="archive/old")
        tx.step("fs.delete", path="archive/old/a.txt")
        assert [entry for entry in snapshot(served.backups).values() if entry[0] == "file"]

    files = {name: content for name, (kind, _, content) in served.tree.items() if kind == "file"}
    assert files == {"report.txt": b"final"}
    assert snapshot(served.backups) == {}


def test_an_exception_in_the_agent_gives_back_the_exact_tree(served, client):
    before = served.tree

    with pytest.raises(ZeroDivisionError), client.transaction(agent_id="writer") as tx:
        tx.step("fs.write", path="new/deep/file.txt", content="x", mode="600")
        tx.step("fs.move", source="report.txt", destination="new/report.txt")
        tx.step("fs.write", path="new/report.txt", content="changed")
        tx.step("fs.delete", path="old/a.txt")
        tx.step("fs.delete", path="old")
        _ = 1 / 0

    assert served.tree == before
    assert snapshot(served.backups) == {}


def test_a_rewind_goes_back_to_the_tree_of_that_step(served, client):
    with client.transaction(agent_id="writer") as tx:
        tx.step("fs.write", path="a.txt", content="one")
        after_one = served.tree
        tx.step("fs.write", path="a.txt", content="two")
        tx.step("fs.move", source="a.txt", destination="b.txt")
        tx.rewind(2)

        assert served.tree == after_one
        tx.step("fs.write", path="c.txt", content="three")

    assert {"a.txt", "c.txt"} <= set(served.tree)


def test_a_late_failure_takes_back_the_files_since_its_cause_and_no_others(served, client):
    with client.transaction(agent_id="writer") as tx:
        tx.step("fs.write", path="kept.txt", content="x")
        wrong = tx.step("fs.write", path="wrong.txt", content="y")
        tx.step("fs.write", path="between.txt", content="z")
        tx.step("fs.delete", path="wrong.txt")
        with pytest.raises(StepRolledBack) as failed:
            tx.step("fs.read", path=wrong.ref("path"))

        assert failed.value.outcome.hint == (
            "Hint: [Errno 2] No such file or directory: 'wrong.txt'. Check the path with fs.list, or write the file first."
        )
        assert failed.value.outcome.rollback_to_step == 2
        assert {"kept.txt"} == set(served.tree) - {"report.txt", "old", "old/a.txt"}
        tx.step("fs.write", path="right.txt", content="y")


def test_a_write_that_another_one_overtook_is_held_and_overwrites_nothing(served, client):
    first = client.transaction(agent_id="first").begin()
    first.step("fs.write", path="shared.txt", content="first")
    (served.root / "shared.txt").write_text("second")  # by somebody who knows of no claims

    result = first.rollback()

    assert result.rollback_incomplete
    (hint,) = result.compensation_errors
    assert "'shared.txt' is no longer what the step left" in hint
    assert served.tree["shared.txt"][2] == b"second"


def test_a_server_without_them_takes_no_directories_and_says_that_there_is_no_such_tool(
    tmp_path: Path,
) -> None:
    with server_process(tmp_path, fs_tools=False) as process, agenttx.Client(process.address) as client:
        assert not [tool.name for tool in client.tools() if tool.name.startswith("fs.")]
        with pytest.raises(StepRolledBack, match=r"fs\.write"), client.transaction(agent_id="writer") as tx:
            tx.step("fs.write", path="report.txt", content="x")
    assert {path.name for path in tmp_path.iterdir()} & {"sandbox", "backups"} == set()
