"""What the command line changes: rewinds and aborts, and watching them happen."""

from __future__ import annotations

import json
import signal
import threading

import pytest
from tests.support.cli_calls import CommandLine, jump_back, start
from tests.support.running_server import ServerProcess, server_process
from tests.support.sample_tools import read_log

from agenttx import Client, Transaction


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with server_process(tmp_path_factory.mktemp("data"), tools="tests.support.sample_tools") as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess):
    with Client(server.address) as client:
        yield client


@pytest.fixture
def agenttx(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(server.address, capsys)


@pytest.fixture
def booked(client: Client, tmp_path) -> Transaction:
    """An open transaction of two steps, the second of which has an undo action."""
    transaction = client.transaction(agent_id="booking").begin()
    transaction.step("kv.put", key="a", value=1)
    transaction.step("sample.book", log=str(tmp_path / "log"), entry="room")
    return transaction


def test_a_dry_run_says_what_would_be_undone_and_changes_nothing(agenttx, booked, tmp_path):
    outcome = agenttx("tx", "rewind", booked.transaction_id, "2", "--dry-run")
    assert outcome.code == 0
    assert "would undo 1 step, 1 undo action, 0 state writes and 0 staged effects" in outcome.out
    assert read_log(tmp_path / "log") == ["effect room"]
    assert agenttx("tx", "show", booked.transaction_id, "--json").json["generation"] == 1


def test_a_rewind_undoes_and_says_where_to_go_on(agenttx, booked, tmp_path):
    outcome = agenttx("tx", "rewind", booked.transaction_id, "2", "--reason", "wrong room", "--json")
    assert outcome.code == 0
    assert outcome.json["result"]["next_step_id"] == 2
    assert outcome.json["result"]["compensations_run"] == 1
    assert outcome.json["to_step"] == 2
    assert read_log(tmp_path / "log") == ["effect room", "undo room"]
    assert agenttx("tx", "show", booked.transaction_id, "--json").json["next_step_id"] == 2


def test_a_rewind_to_where_it_is_does_nothing_and_says_so(agenttx, booked):
    outcome = agenttx("tx", "rewind", booked.transaction_id, "3")
    assert (outcome.code, outcome.out) == (0, "Nothing to undo: step 3 is next already.\n")


def test_a_rewind_past_the_end_is_refused_in_one_line(agenttx, booked):
    outcome = agenttx("tx", "rewind", booked.transaction_id, "9")
    assert (outcome.code, outcome.out) == (2, "")
    assert "the range is 1 to 3" in outcome.err


def test_what_can_not_be_undone_is_passed_only_on_request(agenttx, client, tmp_path):
    transaction = client.transaction(agent_id="sender").begin()
    transaction.step("kv.put", key="a", value=1)
    transaction.step("sample.send", log=str(tmp_path / "log"), entry="letter")
    refused = agenttx("tx", "rewind", transaction.transaction_id, "1")
    assert (refused.code, refused.out) == (1, "")
    assert "--accept-irreversible" in refused.err
    passed = agenttx("tx", "rewind", transaction.transaction_id, "1", "--accept-irreversible")
    assert passed.code == 0
    assert "Effects that were not undone" in passed.out
    assert "sample.send" in passed.out


def test_an_abort_ends_it_and_a_second_one_is_refused(agenttx, booked, tmp_path):
    outcome = agenttx("tx", "abort", booked.transaction_id, "--reason", "enough")
    assert (outcome.code, outcome.out) == (0, "Rolled back: 1 undo action run. The transaction has ended.\n")
    assert read_log(tmp_path / "log") == ["effect room", "undo room"]
    shown = agenttx("tx", "show", booked.transaction_id, "--json").json
    assert (shown["status"], shown["abort_reason"]) == ("ROLLED_BACK", "enough")
    again = agenttx("tx", "abort", booked.transaction_id)
    assert again.code == 1
    assert "ROLLED_BACK" in again.err


def test_a_step_in_doubt_is_given_up_only_on_request(agenttx, client, tmp_path):
    transaction = client.transaction(agent_id="doubter").begin()
    transaction.step("sample.book", log=str(tmp_path / "log"), entry="room")
    outcome = transaction.try_step("sample.lose_outcome", log=str(tmp_path / "log"), entry="letter")
    assert outcome.status == "IN_DOUBT"
    refused = agenttx("tx", "abort", transaction.transaction_id)
    assert (refused.code, refused.out) == (1, "")
    assert "is unknown; settle it with ResolveStep" in refused.err
    assert "`agenttx steps resolve` settles it; --accept-irreversible goes on all the same" in refused.err
    given_up = agenttx("tx", "abort", transaction.transaction_id, "--accept-irreversible", "--json").json[
        "result"
    ]
    assert given_up["compensations_run"] == 1
    assert [kept["tool_name"] for kept in given_up["kept_effects"]] == ["sample.lose_outcome"]
    assert read_log(tmp_path / "log") == ["effect room", "effect letter", "undo room"]
    shown = agenttx("tx", "show", transaction.transaction_id, "--json").json
    assert (shown["status"], shown["generation"]) == ("ROLLED_BACK", 2)


def test_changes_need_the_whole_id(agenttx, booked):
    """`latest` may be another transaction by the time that the command is run."""
    for command in (("abort", "latest"), ("rewind", "latest", "1")):
        refused = agenttx("tx", *command)
        assert refused.code == 2
        assert "`agenttx tx list` shows" in refused.err
    assert agenttx("tx", "show", booked.transaction_id, "--json").json["status"] == "ACTIVE"


def test_events_are_watched_as_they_happen_until_the_end(server, client):
    transaction = jump_back(client)
    watching = start("tx", "watch", transaction.transaction_id, "--json", "--address", server.address)
    assert watching.stdout is not None
    begun = json.loads(watching.stdout.readline())
    assert (begun["sequence"], begun["type"]) == (1, "TRANSACTION_BEGUN")
    transaction.step("kv.put", key="late", value=1)
    transaction.commit()
    # Not by communicate: it passes over what was read ahead, behind the first line.
    limit = threading.Timer(30, watching.kill)
    limit.start()
    assert watching.stderr is not None
    out, err = watching.stdout.read(), watching.stderr.read()
    watching.wait()
    limit.cancel()
    types = [json.loads(line)["type"] for line in out.splitlines()]
    assert (watching.returncode, err) == (0, "")
    assert (
        types.index("STEP_FAILED") < types.index("TRANSACTION_REWOUND") < types.index("TRANSACTION_COMMITTED")
    )


def test_ctrl_c_ends_a_watch_quietly(server, client):
    transaction = client.transaction(agent_id="idle").begin()
    watching = start("tx", "watch", transaction.transaction_id, "--json", "--address", server.address)
    assert watching.stdout is not None
    assert "TRANSACTION_BEGUN" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=30)
    assert (watching.returncode, out, err) == (130, "", "")
