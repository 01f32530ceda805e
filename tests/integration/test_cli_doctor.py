"""`agenttx doctor` beside a server that runs: what it says, its exit code, and that the advice it gives exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.support.cli_calls import run_to_end
from tests.support.running_server import server_process

from agenttx import Client
from agenttx_server.command_line import main
from agenttx_server.doctor.database import _KINDS


def test_a_server_that_runs_well_has_nothing_wrong(tmp_path: Path) -> None:
    with server_process(tmp_path) as server, Client(server.address) as client:
        client.transaction(agent_id="a", idle_timeout=60).begin().step("kv.put", key="a", value=1)
        told = run_to_end("doctor", "--data-dir", str(tmp_path))
        as_json = run_to_end("doctor", "--data-dir", str(tmp_path), "--json")
    assert (told.code, told.err) == (0, "")
    assert told.out.splitlines()[-1] == "Nothing is wrong."
    assert "1 open, 1 server running" in told.out
    assert as_json.json["healthy"] is True
    assert {finding["level"] for finding in as_json.json["findings"]} == {"OK"}


def test_what_is_wrong_is_said_with_a_remedy_and_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "agenttx.db").write_bytes(b"something else" * 1000)
    told = run_to_end("doctor", "--data-dir", str(tmp_path), "--listen", "0.0.0.0:1")
    assert told.code == 1
    assert re.findall(r"^ERROR +(\S+):", told.out, re.MULTILINE) == ["address", "database"]
    assert told.out.count("→") == 2
    assert told.out.splitlines()[-1] == "2 errors, 0 warnings."
    # It answers what it is asked about, so that scripts can tell a finding from a mistake.
    assert run_to_end("doctor", "--data-dir", str(tmp_path), "--listen", "nowhere").code == 2


def test_the_commands_that_remedies_name_exist() -> None:
    named = {
        tuple(shlex.split(found)[1:])
        for _, _, remedy in _KINDS.values()
        for found in re.findall(r"agenttx(?: [a-z-]+)+", remedy)
    }
    assert len(named) > 8
    for words in named:
        assert main([*words, "--help"]) == 0, words
