"""docs/operations/upgrading.md, done with a database of an older schema that has work in it: there, and back."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.cli_calls import REPOSITORY, run_to_end
from tests.support.previous_release import make_database, revision_of
from tests.support.running_server import server_process

from agenttx import Client
from agenttx_server.command_line import main
from agenttx_server.store.schema import HEAD_REVISION

PAGES = REPOSITORY / "docs" / "operations"


def test_up_with_work_in_it_and_back_to_where_it_was(tmp_path: Path) -> None:
    data, saved = tmp_path / "data", tmp_path / "before.db"
    data.mkdir()
    make_database(data / "agenttx.db")
    place = ("--data-dir", str(data))
    assert run_to_end("backup", str(saved), *place).code == 0
    told = run_to_end("doctor", *place).out
    assert "has schema version 0001" in told
    assert run_to_end("migrate", *place).out == f"The database has schema version {HEAD_REVISION}.\n"
    with server_process(data) as server, Client(server.address) as client:
        with closing(sqlite3.connect(data / "agenttx.db")) as reader:
            kept = {name for (name,) in reader.execute("SELECT transaction_id FROM transactions")}
        assert {"idle", "executing", "rolling-back", "ready"} <= kept
        with client.transaction(agent_id="after") as transaction:
            transaction.step("kv.put", key="after", value=1)
        assert run_to_end("restore", str(saved), *place).code == 78  # not under a server
    assert run_to_end("restore", str(saved), *place).code == 0
    assert revision_of(data / "agenttx.db") == "0001"
    (newer,) = data.glob("agenttx.db.before-restore-*[!mlk]")
    assert revision_of(newer) == HEAD_REVISION


def test_the_commands_of_the_pages_exist() -> None:
    called = set()
    for page in ("upgrading.md", "kubernetes.md", "systemd.md"):
        for block in re.findall(r"```sh\n(.*?)```", (PAGES / page).read_text(), re.DOTALL):
            called |= {
                tuple(words.split())
                for words in re.findall(r"(?:^|/|-- )agenttx ((?:token )?[a-z]+)(?= |$)", block, re.MULTILINE)
            }
    assert {("backup",), ("migrate",), ("doctor",), ("restore",), ("token", "create")} <= called
    for words in called:
        assert main([*words, "--help"]) == 0, words
