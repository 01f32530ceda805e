"""fs.*: a path that an open transaction changed is changed by no other one, whichever server runs it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_tool_context import FakeTransaction
from tests.support.file_trees import make_tree, snapshot
from tests.support.running_server import start_process

import agenttx
from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import TransactionId
from agenttx_server.file_keeping import FileKeeping
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.builtin import FileTools, FsSettings, check_marker
from agenttx_server.tools.builtin.path_claims import PathClaimed, PathClaims
from agenttx_server.tools.builtin.sandbox_path import SandboxPath

TREE: dict[str, bytes | None] = {"f": b"f", "d/f": b"in d", "d/deep/f": b"deep", "e": None, "df": b"beside d"}


class Servers:
    """Two servers over one sandbox, and a transaction of each."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.over: set[str] = set()
        self.root = base / "sandbox"
        make_tree(self.root, TREE)
        self.files = [self._start(), self._start()]
        self.transactions = [
            FakeTransaction(transaction_id=TransactionId(name)) for name in ("first", "second")
        ]

    def _start(self) -> FileTools:
        async def is_over(transaction_id: str) -> bool:
            return transaction_id in self.over

        return FileTools(FsSettings(self.root, self.base / "backups", is_over=is_over))

    def restart(self, number: int) -> None:
        self.files[number] = self._start()

    def tools(self, number: int) -> ToolRegistry:
        return ToolRegistry(self.files[number].tools())

    async def run(self, number: int, tool: str, *, server: int | None = None, **arguments: Any) -> Any:
        """Run a tool in a transaction, on its own server unless said otherwise."""
        tools = self.tools(number if server is None else server)
        return await tools.run(f"fs.{tool}", arguments, self.transactions[number].context())

    async def end(self, number: int) -> None:
        await self.files[number].transaction_ended(self.transactions[number].transaction_id)


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return Servers(tmp_path)


WRITE_F = ("write", {"path": "f", "content": "x"})
IN_THE_WAY = [
    (WRITE_F, WRITE_F),
    (WRITE_F, ("delete", {"path": "f"})),
    (WRITE_F, ("move", {"source": "f", "destination": "g"})),
    (WRITE_F, ("move", {"source": "df", "destination": "f", "overwrite": True})),
    (("delete", {"path": "f"}), WRITE_F),
    (("delete", {"path": "f"}), ("delete", {"path": "f"})),
    (("delete", {"path": "f"}), ("write", {"path": "f/x", "content": ""})),
    (("delete", {"path": "e"}), ("write", {"path": "e/x", "content": ""})),
    (("write", {"path": "d/deep/f", "content": "x"}), ("move", {"source": "d", "destination": "g"})),
    (("write", {"path": "new/a/f", "content": "x"}), ("move", {"source": "new", "destination": "g"})),
    (("delete", {"path": "d/deep/f"}), ("delete", {"path": "d/deep"})),
    (("move", {"source": "d", "destination": "g"}), ("write", {"path": "g/new", "content": ""})),
    (("move", {"source": "d", "destination": "g"}), ("write", {"path": "d/new", "content": ""})),
    (("move", {"source": "d", "destination": "g"}), ("write", {"path": "d", "content": ""})),
    (("move", {"source": "f", "destination": "g"}), ("write", {"path": "f", "content": ""})),
    (("move", {"source": "f", "destination": "g"}), ("move", {"source": "df", "destination": "f"})),
]


@pytest.mark.parametrize(("earlier", "later"), IN_THE_WAY)
async def test_a_change_in_the_way_of_an_open_transactions_change_is_refused_until_that_one_has_ended(
    servers, earlier, later
):
    await servers.run(0, earlier[0], **earlier[1])
    before = snapshot(servers.root)

    with pytest.raises(ToolFailure) as refused:
        await servers.run(1, later[0], **later[1])

    assert refused.value.category == "conflict"
    assert "was changed by transaction first" in refused.value.message
    assert refused.value.keys[0] in later[1]
    assert snapshot(servers.root) == before
    assert servers.transactions[1].undo == []
    await servers.transactions[0].rewind(servers.tools(0))
    await servers.end(0)
    assert {name: entry for name, entry in snapshot(servers.root).items() if entry[0] == "file"}.keys() == {
        name for name, content in TREE.items() if content is not None
    }
    # What it wants may not be possible over what was there before, but no claim is in the way.
    (outcome,) = await asyncio.gather(servers.run(1, later[0], **later[1]), return_exceptions=True)
    assert "has not ended" not in str(outcome)


@pytest.mark.parametrize(
    "later",
    [
        ("write", {"path": "d/f", "content": "x"}),
        ("write", {"path": "d/deep/g", "content": "x"}),
        ("write", {"path": "d/deep/f2", "content": "x"}),
        ("write", {"path": "d/deep-er", "content": "x"}),
        ("delete", {"path": "df"}),
        ("move", {"source": "f", "destination": "d/g"}),
        ("read", {"path": "d/deep/f"}),
        ("list", {"path": "d/deep"}),
    ],
)
async def test_what_is_beside_a_claimed_path_and_every_read_is_free(servers, later):
    await servers.run(0, "write", path="d/deep/f", content="x")

    await servers.run(1, later[0], **later[1])


async def test_a_name_that_only_begins_alike_is_free(servers):
    await servers.run(0, "write", path="df", content="x")

    await servers.run(1, "move", source="d", destination="g")


@pytest.mark.parametrize(("mine", "theirs"), [("a/b", "a/b"), ("a", "a/b"), ("a/b/c", "a/b")])
def test_what_was_free_when_looked_at_may_be_claimed_by_now(tmp_path, mine, theirs):
    servers = [PathClaims(tmp_path), PathClaims(tmp_path)]
    wanted = [SandboxPath.parse("other"), SandboxPath.parse(mine)]
    servers[0].check("first", wanted)
    servers[1].claim("second", [SandboxPath.parse(theirs)])

    with pytest.raises(PathClaimed) as refused:
        servers[0].claim("first", wanted)

    assert refused.value.holder == "second"
    assert servers[0].holders() == ["second"]  # all or none


async def test_whose_backups_they_are_is_not_guessed(servers):
    """The directory of an id that is no plain name has another one."""
    servers.transactions[0] = FakeTransaction(transaction_id=TransactionId("an/odd id"))
    await servers.run(0, WRITE_F[0], **WRITE_F[1])

    assert servers.files[0].transactions_kept() == ["an/odd id"]


async def test_a_transaction_is_never_in_its_own_way_on_whichever_server_it_goes_on(servers):
    await servers.run(0, "write", path="d/f", content="x")
    await servers.run(0, "move", server=1, source="d", destination="g")
    await servers.run(0, "write", path="g/f", content="y")


async def test_claims_outlive_the_server_and_go_with_the_transaction(servers):
    await servers.run(0, WRITE_F[0], **WRITE_F[1])
    servers.restart(0)
    servers.restart(1)
    assert servers.files[1].transactions_kept() == ["first"]

    with pytest.raises(ToolFailure, match="transaction first"):
        await servers.run(1, WRITE_F[0], **WRITE_F[1])
    await servers.end(0)
    assert servers.files[1].transactions_kept() == []
    await servers.run(1, WRITE_F[0], **WRITE_F[1])


async def test_the_claims_of_a_transaction_that_is_over_are_in_nobodys_way(servers):
    """Its server died before it could let go of them."""
    await servers.run(0, WRITE_F[0], **WRITE_F[1])
    servers.over.add("first")

    await servers.run(1, WRITE_F[0], **WRITE_F[1])

    assert servers.files[0].transactions_kept() == ["second"]


async def test_a_change_that_is_refused_before_it_is_made_claims_nothing(servers):
    for tool, arguments in (
        ("delete", {"path": "nothing"}),
        ("delete", {"path": "d"}),
        ("write", {"path": "e", "content": ""}),
        ("move", {"source": "nothing", "destination": "g"}),
    ):
        with pytest.raises(ToolFailure):
            await servers.run(0, tool, **arguments)

    await servers.run(1, "write", path="nothing", content="x")
    await servers.run(1, "move", source="d", destination="g")


async def test_of_two_servers_that_want_one_path_at_once_one_gets_it(servers):
    for number in range(20):
        path = f"race/{number}"
        outcomes = await asyncio.gather(
            servers.run(0, "write", path=path, content="0"),
            servers.run(1, "write", path=path, content="1"),
            return_exceptions=True,
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, ToolFailure)]
        assert [failure.category for failure in refused] == ["conflict"], outcomes
        (winner,) = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, dict)]
        assert (servers.root / path).read_text() == str(winner)


# --- whose directories they are -------------------------------------------------------------


def test_a_directory_is_taken_for_one_database(tmp_path):
    check_marker(tmp_path, "fs_root", "one", may_write=True)
    check_marker(tmp_path, "fs_root", "one", may_write=False)
    assert (tmp_path / ".agenttx-database").read_text() == "one\n"
    assert [path.name for path in tmp_path.iterdir()] == [".agenttx-database"]

    with pytest.raises(ValueError, match="belongs to database 'one', and this server's is 'two'") as refused:
        check_marker(tmp_path, "fs_root", "two", may_write=True)
    assert "\n" not in str(refused.value)


def test_a_directory_without_marker_is_not_taken_where_others_may_share_the_database(tmp_path):
    with pytest.raises(ValueError, match=r"fs_root .* has no marker .* fs_adopt") as refused:
        check_marker(tmp_path, "fs_root", "one", may_write=False)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_marker_that_can_not_be_read_is_told_in_one_line(tmp_path):
    (tmp_path / ".agenttx-database").mkdir()
    with pytest.raises(
        ValueError, match=r"can't use the marker .*\.agenttx-database of fs_root: Is a directory"
    ):
        check_marker(tmp_path, "fs_root", "one", may_write=True)


class SharedDatabase:
    """What attaching asks of a store."""

    is_shared = True

    async def database_id(self) -> str:
        return "one"


async def test_on_a_shared_database_the_directories_are_taken_on_a_persons_word(tmp_path):
    files = FileKeeping(tmp_path / "sandbox", tmp_path / "backups")
    store: Any = SharedDatabase()

    with pytest.raises(ValueError, match=r"fs_root .* has no marker"):
        await files.attach(store, adopt=False)
    await files.attach(store, adopt=True)
    await files.attach(store, adopt=False)

    another = FileKeeping(tmp_path / "sandbox", tmp_path / "own backups")
    with pytest.raises(ValueError, match=r"fs_backup_dir .* has no marker"):
        await another.attach(store, adopt=False)


# --- on the real server -----------------------------------------------------------------------


class Served:
    """A server process that can be killed and started again over the same files."""

    def __init__(self, base: Path) -> None:
        self.data_dir = base / "data"
        self.root = self.data_dir / "sandbox"
        self.start()

    def start(self) -> None:
        self.process = start_process(self.data_dir)
        address = self.process.wait_for_event("serving")["address"]
        self.client = agenttx.Client(address)

    def kill(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()

    def claims(self) -> list[tuple[str, str]]:
        with sqlite3.connect(self.data_dir / "backups/.agenttx-claims.db") as connection:
            return connection.execute("SELECT path, transaction_id FROM claims ORDER BY path").fetchall()

    def leave_behind(self, transaction_id: str, path: str) -> None:
        """Have a claim and a backup stand as if a server had died before it cleaned up."""
        with sqlite3.connect(self.data_dir / "backups/.agenttx-claims.db") as connection:
            connection.execute("INSERT INTO claims VALUES (?, ?)", (path, transaction_id))
        make_tree(self.data_dir / "backups", {f"{transaction_id}/{'0' * 32}": b"old"})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.kill()


def test_a_claim_outlives_sigkill_and_ends_with_its_transaction(served):
    first = served.client.transaction(agent_id="first").begin()
    first.step("fs.write", path="shared/report.txt", content="first")
    served.kill()
    served.start()

    second = served.client.transaction(agent_id="second").begin()
    refused = second.try_step("fs.write", path="shared/report.txt", content="second")
    moved = second.try_step("fs.move", source="shared", destination="elsewhere")

    for outcome in (refused, moved):
        assert outcome.error_category == "conflict"
        assert f"was changed by transaction {first.transaction_id}" in outcome.hint
    assert (served.root / "shared/report.txt").read_text() == "first"
    served.client.resume(first.transaction_id).rollback()
    assert not (served.root / "shared").exists()
    second.step("fs.write", path="shared/report.txt", content="second")
    second.commit()
    assert (served.root / "shared/report.txt").read_text() == "second"
    assert served.claims() == []


def test_a_rewind_lets_no_other_transaction_in_before_the_end(served):
    first = served.client.transaction(agent_id="first").begin()
    first.step("fs.write", path="a", content="first")
    first.rewind(1)

    second = served.client.transaction(agent_id="second").begin()
    assert second.try_step("fs.write", path="a", content="second").error_category == "conflict"
    first.step("fs.write", path="a", content="again")
    first.commit()
    second.step("fs.write", path="a", content="second")


def test_what_a_server_left_behind_is_swept_at_the_start_and_what_is_open_stays(served):
    with served.client.transaction(agent_id="done") as done:
        done.step("fs.write", path="a", content="x")
    opened = served.client.transaction(agent_id="open").begin()
    opened.step("fs.write", path="b", content="x")
    opened.step("fs.write", path="b", content="y")
    served.leave_behind(done.transaction_id, "a")
    served.leave_behind("01a00000-0000-7000-8000-000000000000", "gone")  # purged since
    served.kill()
    served.start()

    assert served.claims() == [("b", opened.transaction_id)]
    kept = [path.name for path in (served.data_dir / "backups").iterdir() if path.is_dir()]
    assert kept == [opened.transaction_id]
    served.client.resume(opened.transaction_id).rollback()
    assert not (served.root / "b").exists()


def test_a_claim_that_was_left_behind_is_in_nobodys_way(served):
    with served.client.transaction(agent_id="done") as done:
        done.step("kv.put", key="a", value=1)
    served.leave_behind(done.transaction_id, "a")

    with served.client.transaction(agent_id="next") as following:
        following.step("fs.write", path="a", content="x")

    assert served.claims() == []


def test_backups_and_claims_are_kept_while_undo_of_an_ended_transaction_is_unsettled(served):
    policy = agenttx.Policy(on_undo_failure="CONTINUE")
    transaction = served.client.transaction(agent_id="a", policy=policy).begin()
    (served.root / "a").write_text("before")
    transaction.step("fs.write", path="a", content="during")
    (served.root / "a").write_text("by somebody else")
    result = transaction.rollback()
    assert (result.rollback_incomplete, len(result.compensation_errors)) == (False, 1)
    served.kill()
    served.start()
    assert served.claims() == [("a", transaction.transaction_id)]

    (served.root / "a").write_text("during")
    (failed,) = served.client.list_compensations(transaction.transaction_id)
    settled = served.client.retry_compensation(transaction.transaction_id, failed.compensation_id)

    assert settled.compensation.state == "DONE"
    assert (served.root / "a").read_text() == "before"
    assert served.claims() == []


@pytest.mark.parametrize("directory", ["fs_root", "fs_backup_dir"])
def test_a_server_does_not_start_on_another_databases_directory(served, tmp_path, directory):
    taken = served.root if directory == "fs_root" else served.data_dir / "backups"

    other = start_process(tmp_path / "other", **{directory: taken})

    assert other.wait() == 78
    (line,) = [line for line in other.log if line.startswith("agenttx: ")]
    assert f"{directory} {taken} belongs to database " in line
