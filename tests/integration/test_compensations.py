"""Undo over a real server: its order, what a failure holds, what a person does about it, a crash in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.cli_calls import CommandLine
from tests.support.running_server import ServerProcess, server_process
from tests.support.sample_tools import POLL_SECONDS, read_keys, read_log

import agenttx
from agenttx import NotFound, Policy, PreconditionFailed, RollbackIncomplete
from agenttx.v1 import transaction_pb2 as pb

TOOLS = "tests.support.sample_tools"
RESET = Policy(max_local_depth=0, max_global_resets=16, replay_budget_factor=1000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("data"), tools=TOOLS) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[agenttx.Client]:
    with agenttx.Client(server.address) as client:
        yield client


@pytest.fixture
def run(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(server.address, capsys)


class Bookings:
    """A log of bookings, and a transaction that makes some."""

    def __init__(self, client: agenttx.Client, folder: Path, *entries: str, **fields: Any) -> None:
        self.log = folder / "log"
        self.client = client
        self.transaction = client.transaction(agent_id="booker", **fields).begin()
        self.transaction_id = self.transaction.transaction_id
        for entry in entries:
            self.transaction.step("sample.book", log=str(self.log), entry=entry)

    def flag(self, what: str, entry: str) -> Path:
        return self.log.with_name(f"{self.log.name}.{what}.{entry}")

    def break_undo(self, *entries: str) -> None:
        for entry in entries:
            self.flag("broken", entry).touch()

    def mend_undo(self, entry: str) -> None:
        self.flag("broken", entry).unlink()

    @property
    def undone(self) -> list[str]:
        return [line.removeprefix("undo ") for line in read_log(self.log) if line.startswith("undo ")]

    def failed(self) -> list[agenttx.Compensation]:
        return list(self.client.list_compensations(self.transaction_id))

    def events(self) -> list[str]:
        return [event.type for event in self.client.watch(self.transaction_id)]


# --- the order (case C08) -------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_a_reset_undoes_what_was_done_newest_first_once_and_of_the_failed_step_what_it_registered(
    client, tmp_path, fails_at
):
    done = ["a", "b", "c"][: fails_at - 1]
    for registers in (True, False):
        booked = Bookings(client, tmp_path, *done, policy=RESET)
        before = len(booked.undone)
        if registers:
            arguments: dict[str, Any] = {"log": str(booked.log), "entry": "d", "message": "no rooms"}
            failed = booked.transaction.try_step("sample.book", **arguments)
        else:
            failed = booked.transaction.try_step("kv.put", key=5, value=1)
        assert (failed.strategy, failed.next_step_id) == ("GLOBAL_RESET", 1)
        assert booked.undone[before:] == [*(["d"] if registers else []), *reversed(done)]


def test_steps_that_end_out_of_order_are_undone_by_the_order_of_registration(client, tmp_path):
    booked = Bookings(client, tmp_path, policy=RESET)
    log = str(booked.log)
    # The first registers first and ends last.
    booked.transaction.group(
        [
            agenttx.call("sample.book", log=log, entry="slow", seconds=0.2),
            agenttx.call("sample.book", log=log, entry="quick"),
        ]
    )
    registered = [line.removeprefix("effect ") for line in read_log(booked.log)]
    booked.transaction.try_step("no.such.tool")
    assert booked.undone == registered[::-1]


# --- a failing undo (case C09) ----------------------------------------------------------------


def test_a_rewind_that_an_undo_holds_goes_on_from_that_one_and_reports_no_success_meanwhile(client, tmp_path):
    booked = Bookings(client, tmp_path, "a", "b", "c")
    booked.break_undo("b")

    held = booked.transaction.rewind(1)

    assert (held.rollback_incomplete, held.compensations_run) == (True, 2)
    assert booked.undone == ["c", "a"]
    (error,) = held.compensation_errors
    assert "step 2" in error
    assert "Hint: ConnectionError: the booking service does not know b" in error
    with pytest.raises(RollbackIncomplete):
        booked.transaction.step("kv.put", key="x", value=1)
    with pytest.raises(RollbackIncomplete):
        booked.transaction.commit()
    info = client.get_transaction(booked.transaction_id)
    assert (info.status, info.rollback_incomplete, info.generation) == ("ROLLING_BACK", True, 1)
    assert [(failed.step_id, failed.tries) for failed in info.failed_compensations] == [(2, 3)]
    states = client.list_compensations(booked.transaction_id, states=["DONE", "FAILED"])
    assert [(undo.step_id, undo.state) for undo in states] == [(3, "DONE"), (2, "FAILED"), (1, "DONE")]
    (failed,) = booked.failed()
    assert (failed.action, failed.category, failed.late_effect) == ("sample.unbook", "connection", False)
    assert "ConnectionError" in failed.raw_error

    booked.mend_undo("b")
    done = booked.transaction.rewind(1)

    assert (done.rollback_incomplete, done.generation, done.next_step_id) == (False, 2, 1)
    assert booked.undone == ["c", "a", "b"]
    assert booked.failed() == []
    booked.transaction.step("kv.put", key="x", value=1)


# --- retry and resolve ------------------------------------------------------------------------


def test_a_retry_completes_what_it_alone_held(client, tmp_path):
    booked = Bookings(client, tmp_path, "a", "b")
    booked.break_undo("a")
    assert booked.transaction.rollback().rollback_incomplete
    (failed,) = booked.failed()

    again = client.retry_compensation(booked.transaction_id, failed.compensation_id)
    assert (again.compensation.state, again.compensation.tries, again.rollback_incomplete) == (
        "FAILED",
        6,
        True,
    )
    booked.mend_undo("a")
    done = client.retry_compensation(booked.transaction_id, failed.compensation_id)

    assert (done.compensation.state, done.rollback_incomplete, done.next_step_id) == ("DONE", False, 0)
    assert client.get_transaction(booked.transaction_id).status == "ROLLED_BACK"
    assert booked.undone == ["b", "a"]
    assert len({*read_keys(booked.log)}) == 2  # a key a booking, and its undo the same


def test_what_a_person_says_is_kept_and_named(client, tmp_path):
    booked = Bookings(client, tmp_path, "a", "b")
    booked.break_undo("a", "b")
    booked.transaction.rewind(1)
    newest, oldest = booked.failed()

    first = client.resolve_compensation(
        booked.transaction_id, newest.compensation_id, "UNDONE", note="by phone"
    )
    assert (first.compensation.state, first.compensation.resolution) == ("RESOLVED", "UNDONE")
    assert (first.compensation.note, first.rollback_incomplete) == ("by phone", True)
    last = client.resolve_compensation(booked.transaction_id, oldest.compensation_id, "KEPT")

    assert (last.rollback_incomplete, last.next_step_id, last.generation) == (False, 1, 2)
    info = client.get_transaction(booked.transaction_id)
    assert [(kept.step_id, kept.tool_name) for kept in info.kept_effects] == [(1, "sample.book")]
    assert (info.failed_compensations, booked.undone) == ((), [])
    booked.transaction.rollback()
    resolved = [event for event in client.watch(booked.transaction_id) if event.type == "UNDO_RESOLVED"]
    assert [event.payload["note"] for event in resolved] == ["by phone", ""]


def test_what_is_not_there_or_has_not_failed_is_refused_with_its_reason(client, tmp_path):
    booked = Bookings(client, tmp_path, "a", "b")
    booked.break_undo("a")
    booked.transaction.rewind(1)
    with pytest.raises(NotFound) as missing:
        client.retry_compensation(booked.transaction_id, "77")
    with pytest.raises(PreconditionFailed) as done:
        client.resolve_compensation(booked.transaction_id, "2", "KEPT")
    with pytest.raises(NotFound):
        list(client.list_compensations("no such transaction"))
    assert missing.value.reason == "COMPENSATION_NOT_FOUND"
    assert (done.value.reason, done.value.metadata["state"]) == ("COMPENSATION_NOT_FAILED", "DONE")


def test_a_rewind_is_completed_over_a_failure_where_the_transaction_wants_it_so(client, tmp_path):
    booked = Bookings(client, tmp_path, "a", "b", policy=Policy(on_undo_failure="CONTINUE"))
    booked.break_undo("b")
    result = booked.transaction.rewind(1)
    assert (result.rollback_incomplete, len(result.compensation_errors)) == (False, 1)
    booked.transaction.step("kv.put", key=f"continued/{booked.transaction_id}", value=1)
    booked.transaction.commit()
    info = client.get_transaction(booked.transaction_id)
    assert (info.status, info.continues_after_undo_failure) == ("COMMITTED", True)
    assert len(info.failed_compensations) == 1
    (summary,) = [
        summary for summary in client.list_transactions() if summary.transaction_id == booked.transaction_id
    ]
    assert (summary.continues_after_undo_failure, summary.rollback_incomplete) == (True, False)
    assert len(summary.failed_compensations) == 1
    booked.mend_undo("b")
    (failed,) = booked.failed()
    client.retry_compensation(booked.transaction_id, failed.compensation_id)
    assert booked.undone == ["a", "b"]


# --- a crash in the middle (case C06) -----------------------------------------------------------


def test_a_rewind_that_sigkill_cut_off_after_two_undo_actions_runs_the_rest_once(tmp_path):
    data_dir = tmp_path / "data"
    entries = ["s1", "s2", "s3", "s4", "s5"]
    with server_process(data_dir, tools=TOOLS) as process, agenttx.Client(process.address) as client:
        booked = Bookings(client, tmp_path, *entries)
        held = booked.flag("held", "s3")
        held.touch()
        rewinding = threading.Thread(
            target=_rewind_until_killed, args=(process.address, booked.transaction_id)
        )
        rewinding.start()
        while "held s3" not in read_log(booked.log):
            threading.Event().wait(POLL_SECONDS)
        process.kill()
        rewinding.join()
    assert booked.undone == ["s5", "s4"]
    held.unlink()
    with server_process(data_dir, tools=TOOLS) as process, agenttx.Client(process.address) as client:
        resumed = client.resume(booked.transaction_id).begin()
        resumed.step("kv.put", key="after", value=1)
        assert booked.undone == ["s5", "s4", "s3", "s2", "s1"]
        info = client.get_transaction(booked.transaction_id)
        assert (info.generation, info.next_step_id, info.failed_compensations) == (2, 2, ())


def _rewind_until_killed(address: str, transaction_id: str) -> None:
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
        _call(channel, "Rewind", pb.RewindRequest(transaction_id=transaction_id, to_step=1))


def _call(channel: grpc.Channel, name: str, request: Any) -> Any:
    method = channel.unary_unary(
        f"/agenttx.v1.AgentTxService/{name}",
        type(request).SerializeToString,
        getattr(pb, f"{name}Response").FromString,
    )
    return method(request, timeout=60)


# --- the command line -----------------------------------------------------------------------------


def test_the_command_line_lists_retries_and_resolves(client, run, tmp_path):
    booked = Bookings(client, tmp_path, "a", "b")
    booked.break_undo("a", "b")
    booked.transaction.rewind(1)

    listed = run("compensations", "list", "--transaction", booked.transaction_id)
    assert listed.code == 0
    assert "sample.unbook" in listed.out
    assert "the booking service does not know b" in " ".join(listed.out.split())
    as_json = run("compensations", "list", "-t", booked.transaction_id, "--json", "-n", "1").json
    assert [undo["compensation_id"] for undo in as_json["compensations"]] == ["2"]
    assert as_json["more"] is True
    assert "ConnectionError" in run("compensations", "list", "-t", booked.transaction_id, "--details").out

    failed = run("compensations", "retry", booked.transaction_id, "2")
    assert failed.code == 1
    assert "still held" in failed.out
    booked.mend_undo("b")
    retried = run("compensations", "retry", booked.transaction_id, "2")
    assert (retried.code, retried.err) == (0, "")
    unsaid = run("compensations", "resolve", booked.transaction_id, "1")
    assert (unsaid.code, unsaid.out) == (2, "")
    resolved = run(
        "compensations", "resolve", booked.transaction_id, "1", "--kept", "--note", "paid for", "--json"
    )
    assert resolved.json["result"]["compensation"]["note"] == "paid for"
    assert resolved.json["result"]["next_step_id"] == 1
    done = run("compensations", "list", "-t", booked.transaction_id, "--state", "resolved")
    assert "RESOLVED" in done.out
    assert run("compensations", "list", "-t", booked.transaction_id).out == "No undo action needs anybody.\n"
    again = run("compensations", "retry", booked.transaction_id, "1")
    assert again.code == 1
    assert "has not failed" in again.err
    wrong = run("compensations", "list", "--state", "nothing")
    assert wrong.code == 2


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("ListCompensations", pb.ListCompensationsRequest(states=[0])),
        ("ListCompensations", pb.ListCompensationsRequest(page_size=1001)),
        ("ListCompensations", pb.ListCompensationsRequest(page_token="x")),
        ("RetryCompensation", pb.RetryCompensationRequest(transaction_id="t")),
        ("ResolveCompensation", pb.ResolveCompensationRequest(transaction_id="t", compensation_id="1")),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(server, name, request_):
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
        _call(channel, name, request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


def test_no_undo_action_waits_for_the_agent_so_far(client):
    assert list(client.list_compensations(states=["AWAITING_AGENT"])) == []
