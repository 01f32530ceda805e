"""Steps in doubt and steps that run too long, from the SDK and the command line; and a commit that goes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_calls import CommandLine
from tests.support.client_kinds import Connect, connect
from tests.support.running_server import ServerProcess, server_process
from tests.support.sample_tools import POLL_SECONDS, read_keys, read_log

import agenttx
from agenttx import (
    AttemptState,
    CommitConflict,
    InvalidArgument,
    InvalidValue,
    Isolation,
    NotFound,
    OnConflict,
    Policy,
    PreconditionFailed,
    RollbackUnanswered,
    Step,
    StepFailed,
    StepInDoubt,
    StepResolution,
    StepStatus,
    StepUnsettled,
    TransactionStatus,
    call,
)

__all__ = ["connect"]

TOOLS = "tests.support.sample_tools"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("data"), tools=TOOLS) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess, connect: Connect) -> Any:
    return connect(server.address)


@pytest.fixture
def run(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(server.address, capsys)


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def in_doubt(client: Any, log: str, tool: str = "sample.lose_outcome") -> tuple[Any, StepInDoubt]:
    """Return a transaction whose second step is in doubt, and the error that said so."""
    tx = client.transaction(agent_id="sender").begin()
    tx.step("kv.put", key=f"before/{tx.transaction_id}", value=1)
    with pytest.raises(StepInDoubt) as doubt:
        tx.step(tool, log=log, entry="letter")
    return tx, doubt.value


# --- in doubt -----------------------------------------------------------------------------------


def test_a_step_in_doubt_names_itself_and_says_what_to_do(client: Any, log: str) -> None:
    tx, doubt = in_doubt(client, log)
    assert (doubt.step_id, doubt.tool_name, doubt.reason) == (2, "sample.lose_outcome", "STEP_IN_DOUBT")
    assert doubt.outcome is not None
    assert doubt.hint == doubt.outcome.hint != ""
    assert "resolve_step(2, " in str(doubt)
    assert f"agenttx steps resolve {tx.transaction_id} 2 " in str(doubt)
    with pytest.raises(StepUnsettled, match="resolve_step"):
        tx.step("kv.get", key="x")
    with pytest.raises(StepInDoubt) as refused:
        client.resume(tx.transaction_id).commit()
    assert (refused.value.step_id, refused.value.tool_name) == (2, "sample.lose_outcome")


def test_one_that_succeeded_has_the_output_that_a_person_gives(client: Any, log: str) -> None:
    tx, doubt = in_doubt(client, log)

    result = tx.resolve_step(doubt.step_id, "SUCCEEDED", output={"message_id": 2**63})

    assert (result.next_step_id, tx.next_step_id) == (3, 3)
    assert (result.outcome.status, result.outcome.tool_name) == (StepStatus.SUCCESS, "sample.lose_outcome")
    assert result.outcome.output == {"message_id": 2**63}
    used = tx.step("kv.put", key=f"id/{tx.transaction_id}", value=result.outcome.ref("message_id"))
    assert used["value"] == 2**63
    assert tx.commit().steps_committed == 3
    assert read_log(log) == ["effect letter"]


def test_one_that_failed_is_decided_on_and_the_agent_goes_on_where_that_says(client: Any, log: str) -> None:
    tx, doubt = in_doubt(client, log)

    result = tx.resolve_step(doubt.step_id, StepResolution.FAILED, error="no such recipient")

    outcome = result.outcome
    assert (outcome.status, outcome.strategy) == (StepStatus.ROLLBACK_TRIGGERED, "LOCAL_BACKTRACK")
    assert "no such recipient" in outcome.hint
    assert (tx.next_step_id, tx.generation) == (outcome.next_step_id, outcome.generation) == (1, 2)
    assert tx.constraints == (outcome.hint,)
    tx.step("kv.put", key=f"again/{tx.transaction_id}", value=1)
    tx.commit()


def test_one_that_may_be_retried_runs_again_under_its_key(client: Any, log: str) -> None:
    tx, doubt = in_doubt(client, log)

    result = tx.resolve_step(doubt.step_id, "RETRY")

    assert result.outcome is None  # the tool lost its outcome once more
    assert read_log(log) == ["effect letter"] * 2
    assert len({*read_keys(log)}) == 1
    result = tx.resolve_step(2, "SUCCEEDED")
    assert (result.outcome.output, tx.next_step_id) == (None, 3)


def test_somebody_else_resolves_and_the_agent_that_asks_again_gets_the_answer(client: Any, log: str) -> None:
    tx, doubt = in_doubt(client, log)
    result = client.resolve_step(tx.transaction_id, doubt.step_id, "SUCCEEDED", output="sent")
    assert result.outcome == tx.settle()[0] or result.outcome.output == "sent"
    assert tx.next_step_id == 3
    with pytest.raises(PreconditionFailed) as again:
        client.resolve_step(tx.transaction_id, 2, "FAILED")
    assert again.value.reason == "STEP_NOT_IN_DOUBT"


def test_a_member_of_a_group_is_resolved_by_itself(client: Any, log: str) -> None:
    tx = client.transaction(agent_id="sender").begin()
    lost = {"log": log, "entry": "x"}
    with pytest.raises((StepInDoubt, StepFailed)) as doubt:
        tx.group(
            [
                call("sample.lose_outcome_idempotent", **lost),
                call("sample.lose_outcome_idempotent", **lost),
            ]
        )
    assert isinstance(doubt.value, StepInDoubt)
    first = tx.resolve_step(1, "SUCCEEDED", output=1)
    assert first.outcome is None  # its sibling is in doubt still
    second = tx.resolve_step(2, "SUCCEEDED", output=2)
    assert second.outcome.output == 2
    assert tx.next_step_id == 3


def test_what_makes_no_sense_is_refused_and_changes_nothing(client: Any, log: str) -> None:
    tx, _ = in_doubt(client, log)
    with pytest.raises(InvalidValue):
        tx.resolve_step(2, "PERHAPS")
    with pytest.raises(InvalidValue):
        tx.resolve_step(2, "SUCCEEDED", output=float("nan"))
    with pytest.raises(InvalidArgument):
        tx.resolve_step(2, "RETRY", output=1)
    with pytest.raises(InvalidArgument):
        tx.resolve_step(2, "SUCCEEDED", error="no")
    with pytest.raises(NotFound):
        client.resolve_step(tx.transaction_id, 9, "FAILED")
    with pytest.raises(NotFound):
        client.resolve_step("no such transaction", 1, "FAILED")
    assert client.get_transaction(tx.transaction_id).status is TransactionStatus.IN_DOUBT


# --- cancelling ---------------------------------------------------------------------------------


class Running:
    """A step that runs, and the call that waits for it on a thread of its own."""

    def __init__(self, tx: Any, work: Callable[[], Any]) -> None:
        self.answer: Any = None
        self._work = work
        self._thread = threading.Thread(target=self._call)
        self._thread.start()
        self.tx = tx

    def _call(self) -> None:
        try:
            self.answer = self._work()
        except agenttx.AgentTxError as error:
            self.answer = error

    def wait(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.answer


def slow(tx: Any, tool: str, **arguments: Any) -> Running:
    """Start a step that takes a minute; return when its effect has happened."""
    running = Running(tx, lambda: tx.try_step(tool, seconds=60, **arguments))
    while not read_log(arguments["log"]):
        threading.Event().wait(POLL_SECONDS)
    return running


def test_a_running_step_is_stopped_from_another_thread(server: ServerProcess, log: str) -> None:
    with agenttx.Client(server.address) as client:
        tx = client.transaction(agent_id="a").begin()
        running = slow(tx, "sample.book", log=log, entry="room")

        result = tx.cancel_step(reason="takes too long")

        outcome = running.wait()
        assert (result.state, outcome.status) == (AttemptState.FAILED, StepStatus.ROLLBACK_TRIGGERED)
        assert (result.next_step_id, result.generation) == (tx.next_step_id, tx.generation) == (1, 2)
        assert outcome.error_category == "cancelled"
        assert read_log(log) == ["effect room", "undo room"]
        tx.rollback()
        events = [event for event in client.watch(tx.transaction_id) if event.type == "STEP_CANCELLED"]
        assert ["takes too long" in event.payload["hint"] for event in events] == [True]


def test_one_that_can_not_be_undone_is_in_doubt_then(server: ServerProcess, log: str) -> None:
    with agenttx.Client(server.address) as client:
        tx = client.transaction(agent_id="a").begin()
        running = slow(tx, "sample.send", log=log, entry="letter")
        assert client.cancel_step(tx.transaction_id, 1).state is AttemptState.IN_DOUBT
        assert running.wait().status is StepStatus.IN_DOUBT
        tx.resolve_step(1, "SUCCEEDED")
        tx.commit()


def test_who_took_a_transaction_up_again_can_stop_its_step(server: ServerProcess, log: str) -> None:
    with agenttx.Client(server.address) as client:
        tx = client.transaction(agent_id="a").begin()
        running = slow(tx, "sample.book", log=log, entry="room")
        again = client.resume(tx.transaction_id)
        assert again.cancel_step().state is AttemptState.FAILED
        running.wait()
        again.step("kv.put", key=f"after/{tx.transaction_id}", value=1)
        again.commit()


def test_a_step_on_a_stream_is_stopped_from_within_its_block(server: ServerProcess, log: str) -> None:
    with agenttx.Client(server.address) as client:
        tx = client.transaction(agent_id="a").begin()
        with tx.stream() as stream:
            pending = stream.submit("sample.slow", seconds=60)
            while client.get_transaction(tx.transaction_id).status != "EXECUTING":
                threading.Event().wait(POLL_SECONDS)
            assert tx.cancel_step().state is AttemptState.FAILED
            with pytest.raises(agenttx.StepRolledBack):
                pending.result()
        tx.rollback()


def test_what_does_not_run_can_not_be_stopped(client: Any) -> None:
    tx = client.transaction(agent_id="a").begin()
    with pytest.raises(PreconditionFailed) as refused:
        tx.cancel_step()
    assert refused.value.reason == "STEP_NOT_EXECUTING"
    with pytest.raises(NotFound):
        client.cancel_step("no such transaction", 1)
    with pytest.raises(InvalidValue):
        client.cancel_step(tx.transaction_id, -1)
    tx.rollback()


# --- a commit that goes back --------------------------------------------------------------------


def test_a_conflict_goes_back_to_the_first_use_and_the_agent_goes_on_and_commits(client: Any) -> None:
    policy = Policy(on_conflict=OnConflict.REWIND)
    tx = client.transaction(agent_id="a", policy=policy, isolation=Isolation.SERIALIZABLE).begin()
    key = f"counter/{tx.transaction_id}"
    tx.step("kv.put", key=f"own/{tx.transaction_id}", value=1)
    tx.step("sample.inc", key=key)
    tx.step("kv.put", key=f"last/{tx.transaction_id}", value=1)
    with client.transaction(agent_id="b") as other:
        other.step("sample.inc", key=key, by=10)

    with pytest.raises(CommitConflict) as lost:
        tx.commit()

    assert (lost.value.next_step_id, lost.value.key) == (2, f"kv/{key}")
    assert (tx.ended, tx.next_step_id, tx.generation) == (False, 2, 2)
    assert key in tx.constraints[0]
    assert tx.step("sample.inc", key=key)["number"] == 11
    assert tx.commit().steps_committed == 2
    assert client.get_state(key).value == 11


def test_a_block_left_after_a_conflict_is_not_published_by_half(server: ServerProcess) -> None:
    with agenttx.Client(server.address) as client:
        key = f"half/{id(client)}"
        tx = client.transaction(agent_id="a", policy=Policy(on_conflict=OnConflict.REWIND))
        with pytest.raises(RollbackUnanswered, match=f"conflict over kv/{key}"):
            _lose_and_leave(tx, client, key)
        assert client.get_transaction(tx.transaction_id).status is TransactionStatus.ROLLED_BACK
        assert client.get_state(key).value == 2


def _lose_and_leave(tx: agenttx.Transaction, client: agenttx.Client, key: str) -> None:
    with tx:
        tx.step("kv.put", key=key, value=1)
        with client.transaction(agent_id="b") as other:
            other.step("kv.put", key=key, value=2)
        with pytest.raises(CommitConflict):
            tx.commit()


def test_a_plan_follows_a_conflict_to_where_it_goes_on(client: Any) -> None:
    keys: list[str] = []

    def disturb(state: agenttx.RunState) -> Step:
        keys.append(f"plan/{state.transaction_id}")
        return call("sample.inc", key=keys[0])

    def last(state: agenttx.RunState) -> Step:
        if state.tries == 0:
            with agenttx.Client(client.address) as rival, rival.transaction(agent_id="b") as other:
                other.step("sample.inc", key=keys[0], by=10)
        return call("kv.put", key=f"done/{state.transaction_id}", value=1)

    report = client.run([disturb, last], agent_id="a", policy=Policy(on_conflict=OnConflict.REWIND))

    assert (len(keys), report.steps_executed) == (2, 4)
    assert report.outcomes[1]["number"] == 11


# --- the command line ---------------------------------------------------------------------------


def test_the_command_line_finds_and_resolves_a_doubt(
    server: ServerProcess, run: CommandLine, log: str
) -> None:
    with agenttx.Client(server.address) as client:
        tx, _ = in_doubt(client, log)
        tx_id = tx.transaction_id
        shown = run("tx", "show", tx_id)
        assert f"agenttx steps resolve {tx_id} 2 succeeded|failed|retry" in " ".join(shown.out.split())
        listed = run("tx", "list", "--needs-attention", "--limit", "0", "--json").json["transactions"]
        assert tx_id in [each["transaction_id"] for each in listed]
        assert {each["status"] for each in listed} == {"IN_DOUBT"}

        for wrong in (
            ["perhaps"],
            ["succeeded", "--output", "{"],
            ["failed", "--output", "1"],
            ["retry", "--error", "no"],
        ):
            refused = run("steps", "resolve", tx_id, "2", *wrong)
            assert (refused.code, refused.out) == (2, ""), wrong
        assert run("steps", "resolve", "latest", "2", "failed").code == 2

        retried = run("steps", "resolve", tx_id, "2", "retry")
        assert (retried.code, retried.err) == (1, "")
        assert "IN_DOUBT" in retried.out
        done = run("steps", "resolve", tx_id, "2", "Succeeded", "--output", '{"id": 18446744073709551615}')
        assert (done.code, done.err) == (0, "")
        assert "Next step 3, generation 1." in done.out
        (outcome,) = tx.settle()
        assert outcome.output == {"id": 2**64 - 1}
        again = run("steps", "resolve", tx_id, "2", "failed", "--error", "no")
        assert (again.code, "is not in doubt" in again.err) == (1, True)
        tx.rollback(accept_irreversible=True)


def test_the_command_line_says_that_a_step_failed(server: ServerProcess, run: CommandLine, log: str) -> None:
    with agenttx.Client(server.address) as client:
        tx, _ = in_doubt(client, log)
        done = run("steps", "resolve", tx.transaction_id, "2", "failed", "--error", "it bounced", "--json")
        assert done.code == 0
        result = done.json["result"]
        assert (result["next_step_id"], result["outcome"]["status"]) == (1, "ROLLBACK_TRIGGERED")
        assert "it bounced" in result["outcome"]["hint"]
        tx.settle()
        tx.rollback()


def test_the_command_line_stops_a_step(server: ServerProcess, run: CommandLine, log: str) -> None:
    with agenttx.Client(server.address) as client:
        tx = client.transaction(agent_id="a").begin()
        running = slow(tx, "sample.send", log=log, entry="letter")
        stopped = run("steps", "cancel", tx.transaction_id, "1", "--reason", "stuck")
        assert (stopped.code, stopped.err) == (0, "")
        assert f"agenttx steps resolve {tx.transaction_id} 1 " in " ".join(stopped.out.split())
        running.wait()
        refused = run("steps", "cancel", tx.transaction_id, "1")
        assert (refused.code, "does not run" in refused.err) == (1, True)
        tx.rollback(accept_irreversible=True)


def test_held_rollbacks_need_attention_and_quiet_transactions_do_not(
    server: ServerProcess, run: CommandLine, log: str
) -> None:
    with agenttx.Client(server.address) as client:
        quiet = client.transaction(agent_id="quiet").begin()
        held = client.transaction(agent_id="held").begin()
        held.step("sample.book", log=log, entry="room")
        broken = Path(f"{log}.broken")
        broken.touch()
        assert held.rollback().rollback_incomplete
        listed = run("tx", "list", "--needs-attention", "--agent", "held")
        assert held.transaction_id in listed.out
        assert "rollback held by 1 failed undo" in listed.out
        none = run("tx", "list", "--needs-attention", "--agent", "quiet")
        assert none.out == "No open transaction waits for anybody.\n"
        broken.unlink()
        held.rollback()
        quiet.rollback()
