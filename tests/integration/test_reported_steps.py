"""Steps that the agent ran itself, over a real server: both clients, the command line, grpcurl, crashes, both databases."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.test_api_grpcurl import GRPCURL
from tests.support.cli_calls import CommandLine
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import ServerProcess, server_process
from tests.support.sample_tools import read_log

import agenttx
from agenttx import Policy, PreconditionFailed, RollbackIncomplete, StepRolledBack, TransactionStatus
from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc

TOOLS = "tests.support.sample_tools"
RESET = Policy(max_local_depth=0, max_global_resets=16, replay_budget_factor=1000)
REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "reported-steps.md").read_text()


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


class Hotel:
    """An agent's own tool, with what it did in order; ``log`` is shared with the tools of the server."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.broken: set[str] = set()

    def book(self, tx: Any, name: str, **fields: Any) -> Any:
        """Book, and report it."""
        self._note(f"agent effect {name}")
        return tx.report(
            "hotel.book",
            {"name": name},
            output={"ref": name},
            effects="compensatable",
            undo=[agenttx.undo("hotel.cancel", ref=name)],
            **fields,
        )

    def cancel(self, ref: str) -> None:
        """Cancel; raises for what is broken."""
        if ref in self.broken:
            raise ConnectionError(f"the hotel does not answer about {ref}")
        self._note(f"undo {ref}")

    def _note(self, line: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{line} -\n")

    @property
    def undone(self) -> list[str]:
        """What was undone by the agent or the server, in order."""
        return [line.removeprefix("undo ") for line in read_log(self.log) if line.startswith("undo ")]


def mixed(client: agenttx.Client, hotel: Hotel, letters: str, **fields: Any) -> agenttx.Transaction:
    """A step for each letter: capitals are the agent's bookings, the others the server's."""
    tx = client.transaction(agent_id="traveller", **fields).begin()
    for letter in letters:
        if letter.isupper():
            hotel.book(tx, letter)
        else:
            tx.step("sample.book", log=str(hotel.log), entry=letter)
    return tx


def test_a_failure_is_undone_by_both_in_one_order_and_the_agent_goes_on(client, tmp_path):
    hotel = Hotel(tmp_path)
    tx = mixed(client, hotel, "aBCd", policy=RESET)

    with pytest.raises(StepRolledBack) as failed:
        tx.report(
            "sql.insert", {"ref": "${steps.2.ref}"}, error=ValueError("no such thing"), effects="read_only"
        )

    outcome = failed.value.outcome
    assert outcome.rollback_incomplete
    assert [(undo.step_id, undo.action, undo.arguments) for undo in outcome.pending_undo] == [
        (3, "hotel.cancel", {"ref": "C"}),
        (2, "hotel.cancel", {"ref": "B"}),
    ]
    assert tx.pending_undo() == outcome.pending_undo
    assert client.get_transaction(tx.transaction_id).pending_undo == outcome.pending_undo
    with pytest.raises(RollbackIncomplete, match="AcknowledgeUndo"):
        tx.step("kv.put", key="x", value=1)
    with pytest.raises(PreconditionFailed) as refused:
        tx.acknowledge_undo(outcome.pending_undo[1])
    assert refused.value.reason == "COMPENSATION_OUT_OF_ORDER"

    results = tx.perform_undo({"hotel.cancel": hotel.cancel})

    assert hotel.undone == ["d", "C", "B", "a"]
    assert [result.rollback_incomplete for result in results] == [True, False]
    assert (tx.next_step_id, tx.generation) == (1, 2)
    tx.step("kv.put", key="trip", value="short")
    tx.commit()
    attempts = [(step.step_id, step.reported) for step in client.list_steps(tx.transaction_id)]
    assert attempts == [(1, False), (1, False), (2, True), (3, True), (4, False), (5, True)]


async def test_the_asynchronous_client_does_the_same(server, tmp_path):
    hotel = Hotel(tmp_path)

    async def cancel(ref: str) -> None:
        hotel.cancel(ref)

    async with agenttx.AsyncClient(server.address) as client:
        tx = await client.transaction(agent_id="traveller", policy=RESET).begin()
        for name in "AB":
            outcome = await hotel.book(tx, name)
        assert outcome["ref"] == "B"
        failed = await tx.try_report("x", error="no", effects=agenttx.EffectClass.READ_ONLY)
        assert [undo.arguments["ref"] for undo in failed.pending_undo] == ["B", "A"]
        assert await tx.pending_undo() == failed.pending_undo
        with pytest.raises(agenttx.UndoMissing):
            await tx.perform_undo({})
        first = await tx.acknowledge_undo(failed.pending_undo[0])
        assert [undo.arguments["ref"] for undo in first.pending_undo] == ["A"]
        (last,) = await tx.perform_undo({"hotel.cancel": cancel})
        assert (last.rollback_incomplete, tx.next_step_id, tx.generation) == (False, 1, 2)
        assert await tx.perform_undo({}) == ()
        await tx.rollback()
    assert hotel.undone == ["A"]


def test_a_failing_undo_holds_the_rewind_and_is_asked_for_again(client, tmp_path):
    hotel = Hotel(tmp_path)
    tx = mixed(client, hotel, "aB")
    tx.rewind(1)
    hotel.broken.add("B")

    (result,) = tx.perform_undo({"hotel.cancel": hotel.cancel})

    assert (result.compensation.state, result.rollback_incomplete) == ("FAILED", True)
    assert "the hotel does not answer about B" in result.compensation.hint
    assert hotel.undone == ["a"]
    hotel.broken.clear()
    assert [undo.arguments for undo in tx.rewind(1).pending_undo] == [{"ref": "B"}]
    (result,) = tx.perform_undo({"hotel.cancel": hotel.cancel})
    assert (result.compensation.tries, result.rollback_incomplete, tx.next_step_id) == (2, False, 1)
    tx.rollback()


def test_a_block_that_ends_in_an_error_says_that_undo_is_left(client, tmp_path):
    hotel = Hotel(tmp_path)
    tx = client.transaction(agent_id="traveller")

    def work() -> None:
        with tx:
            hotel.book(tx, "A")
            raise KeyError("x")

    with pytest.raises(KeyError) as ended:
        work()
    assert any("pending_undo()" in note for note in ended.value.__notes__)
    assert client.get_transaction(tx.transaction_id).status is TransactionStatus.ROLLING_BACK
    tx.perform_undo({"hotel.cancel": hotel.cancel})
    assert tx.ended
    assert client.get_transaction(tx.transaction_id).status is TransactionStatus.ROLLED_BACK


def test_a_commit_conflict_asks_for_undo_and_the_cursor_knows(client, tmp_path):
    hotel = Hotel(tmp_path)
    tx = mixed(client, hotel, "A")
    key = f"conflict-{tx.transaction_id}"
    tx.step("kv.put", key=key, value=1)
    with client.transaction(agent_id="other") as other:
        other.step("kv.put", key=key, value=2)
    with pytest.raises(agenttx.CommitConflict) as conflict:
        tx.commit()
    assert conflict.value.rollback_incomplete
    assert not tx.ended
    tx.perform_undo({"hotel.cancel": hotel.cancel})
    assert tx.ended
    assert client.get_transaction(tx.transaction_id).status is TransactionStatus.FAILED


def test_the_same_report_sent_again_takes_effect_once(client, tmp_path):
    tx = client.transaction(agent_id="traveller").begin()
    hotel = Hotel(tmp_path)
    first = hotel.book(tx, "A", request_id="mine")
    again = hotel.book(tx, "A", request_id="mine", step_id=1)
    assert again.replayed
    assert again == replace(first, replayed=True)
    assert tx.next_step_id == 2
    tx.rollback()
    tx.perform_undo({"hotel.cancel": hotel.cancel})


def test_what_is_wrong_with_a_report_is_told_at_once(server):
    with grpc.insecure_channel(server.address) as channel:
        stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ReportStep(
                pb.ReportStepRequest(
                    step_id=1,
                    arguments_json="{",
                    effect_class=99,
                    undo_actions=[pb.AgentUndo(arguments_json="[")],
                )
            )
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    details = "".join(str(value) for _, value in refused.value.trailing_metadata())
    for field in (
        "outcome",
        "transaction_id",
        "effect_class",
        "tool_name",
        "arguments_json",
        "undo_actions[0].action",
        "undo_actions[0].arguments_json",
    ):
        assert field in details


def test_the_command_line_lists_and_acknowledges(client, run, tmp_path):
    hotel = Hotel(tmp_path)
    tx = mixed(client, hotel, "AB")
    tx_id = tx.transaction_id

    rewound = run("tx", "rewind", tx_id, "1")
    assert rewound.code == 1
    assert "agenttx tx acknowledge-undo" in rewound.out
    listed = run("compensations", "list", "--transaction", tx_id, "--json").json["compensations"]
    assert [(undo["state"], undo["by_agent"], undo["arguments"]) for undo in listed] == [
        ("AWAITING_AGENT", True, {"ref": "B"}),
        ("AWAITING_AGENT", True, {"ref": "A"}),
    ]
    assert "hotel.cancel, by the agent" in run("compensations", "list", "--transaction", tx_id).out
    assert "held" in run("tx", "list", "--open").out
    assert "hotel.cancel" in run("tx", "show", tx_id).out

    first = run("tx", "acknowledge-undo", tx_id, "2")
    assert (first.code, "next: hotel.cancel" in first.out) == (0, True)
    out_of_turn = run("tx", "acknowledge-undo", tx_id, "2")
    assert out_of_turn.code == 1
    failed = run("tx", "acknowledge-undo", tx_id, "1", "--error", "no answer", "--json").json["result"]
    assert (failed["compensation"]["state"], failed["rollback_incomplete"]) == ("FAILED", True)
    assert run("compensations", "resolve", tx_id, "1", "--undone").code == 0
    assert client.get_transaction(tx_id).next_step_id == 1


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    if request.param == "sqlite":
        yield {}
        return
    with shared_cluster().database() as address:
        yield {"database_url": address}


def test_a_killed_server_forgets_neither_what_was_reported_nor_what_is_to_be_undone(database, tmp_path):
    hotel = Hotel(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    with server_process(data, tools=TOOLS, **database) as process, agenttx.Client(process.address) as client:
        tx_id = mixed(client, hotel, "aBcD").transaction_id
        process.kill()

    with server_process(data, tools=TOOLS, **database) as process, agenttx.Client(process.address) as client:
        tx = client.resume(tx_id).begin()
        assert tx.next_step_id == 5
        held = tx.rewind(1)
        assert [undo.arguments["ref"] for undo in held.pending_undo] == ["D"]
        process.kill()

    with server_process(data, tools=TOOLS, **database) as process, agenttx.Client(process.address) as client:
        (listed,) = client.list_compensations(tx_id)
        assert (listed.state, listed.arguments) == ("AWAITING_AGENT", {"ref": "D"})
        hotel.cancel("D")
        result = client.acknowledge_undo(tx_id, listed.compensation_id)
        assert [undo.arguments["ref"] for undo in result.pending_undo] == ["B"]
        process.kill()

    with server_process(data, tools=TOOLS, **database) as process, agenttx.Client(process.address) as client:
        tx = client.resume(tx_id).begin()
        tx.perform_undo({"hotel.cancel": hotel.cancel})
        assert (tx.next_step_id, tx.generation) == (1, 2)
        tx.step("kv.put", key="k", value=1)
        tx.commit()
    assert hotel.undone == ["D", "c", "B", "a"]


def test_the_acknowledgement_can_go_to_another_server(tmp_path):
    hotel = Hotel(tmp_path)
    with shared_cluster().database() as address:
        one, two = tmp_path / "one", tmp_path / "two"
        one.mkdir()
        two.mkdir()
        with (
            server_process(one, tools=TOOLS, database_url=address) as first,
            server_process(two, tools=TOOLS, database_url=address) as second,
            agenttx.Client(first.address) as here,
            agenttx.Client(second.address) as there,
        ):
            tx = mixed(here, hotel, "aB")
            tx.rewind(1)
            elsewhere = there.resume(tx.transaction_id).begin()
            elsewhere.perform_undo({"hotel.cancel": hotel.cancel})
            tx.refresh()
            assert (tx.next_step_id, tx.generation, hotel.undone) == (1, 2, ["B", "a"])
            tx.step("kv.put", key="k", value=1)
            tx.commit()


# --- the page -----------------------------------------------------------------------------------


def test_the_example_program_of_the_page_books_another_city(server):
    done = subprocess.run(
        [sys.executable, REPOSITORY / "examples" / "reported_trip.py", server.address],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (printed,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert done.stdout == printed


def test_the_python_of_the_page_runs(server, tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    program = tmp_path / "page.py"
    program.write_text(code.replace("127.0.0.1:50051", server.address))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(GRPCURL is None, reason="grpcurl is not installed")
def test_the_grpcurl_session_of_the_page_works_as_printed(server):
    (session,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    calls = re.findall(r"grpcurl -plaintext -d '(.*?)' \\\n +localhost:50051 (\S+)", session, re.DOTALL)
    assert [method.rpartition("/")[2] for _, method in calls] == [
        "BeginTransaction",
        "ReportStep",
        "Rewind",
        "AcknowledgeUndo",
    ]
    transaction_id, answers = "", []
    for body, method in calls:
        body = body.replace("TRANSACTION", transaction_id)
        done = subprocess.run(
            [str(GRPCURL), "-plaintext", "-d", body, server.address, method],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
        transaction_id = transaction_id or answers[0]["transaction_id"]
    assert answers[2]["pending_undo"][0]["arguments_json"] == '{"ref":"b-17"}'
    assert answers[3]["next_step_id"] == 1
