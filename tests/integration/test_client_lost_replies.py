"""Replies that are lost on the way from the real server, deadlines, restarts: nothing is lost and nothing runs twice."""

import threading
import uuid
from pathlib import Path

import pytest
from tests.support.client_kinds import connect
from tests.support.cutting_proxy import CuttingProxy
from tests.support.running_server import ServerProcess, server_process

from agenttx import (
    ConnectionFailed,
    DeadlineExceeded,
    LimitExceeded,
    RetryPolicy,
    StepRolledBack,
    TransactionEnded,
    TransactionStatus,
    Unavailable,
    call,
)

__all__ = ["connect"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with server_process(tmp_path_factory.mktemp("data"), tools="tests.support.sample_tools") as process:
        yield process


@pytest.fixture
def proxy(server: ServerProcess):
    with CuttingProxy(int(server.address.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: CuttingProxy, connect):
    return connect(proxy.address)


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def test_a_step_whose_reply_is_lost_five_times_runs_once(proxy, client, name):
    with client.transaction(agent_id="a") as tx:
        proxy.cut_replies(name.encode(), times=5)
        outcome = tx.call("sample.inc", {"key": name}, request_id=name)
        assert proxy.wait_for_cuts()
        assert outcome.replayed
        assert outcome.step_id == 1
        (attempt,) = client.list_steps(tx.transaction_id)
        assert attempt.tries == 1
        assert len(client.dependency_graph(tx.transaction_id).nodes) == 1
    assert client.get_state(name).value == 1


def test_a_commit_whose_reply_is_lost_three_times_is_one_commit(proxy, client, name):
    tx = client.transaction(agent_id="a").begin()
    tx.step("kv.put", key=name, value=1)
    proxy.cut_replies(tx.transaction_id.encode(), times=3)

    result = tx.commit()

    assert proxy.wait_for_cuts()
    assert (result.steps_committed, result.keys_published) == (1, 1)
    for late in (
        lambda: tx.step("kv.put", key=name, value=2),
        lambda: tx.rewind(1),
        lambda: client.resume(tx.transaction_id).begin(),
    ):
        with pytest.raises(TransactionEnded) as raised:
            late()
        assert raised.value.status == "COMMITTED"
    assert client.get_state(name).value == 1


def test_a_begin_whose_reply_is_lost_opens_one_transaction(proxy, client, name):
    client.connect()
    proxy.cut_replies(name.encode(), times=2)

    tx = client.transaction(agent_id=name).begin()

    assert proxy.wait_for_cuts()
    assert [t.transaction_id for t in client.list_transactions(agent_id=name)] == [tx.transaction_id]
    tx.rollback()


def test_a_rewind_and_a_rollback_whose_replies_are_lost_happen_once(proxy, client, name):
    tx = client.transaction(agent_id="a").begin()
    for number in range(3):
        tx.step("kv.put", key=f"{name}/{number}", value=number)
    proxy.cut_replies(b"go back", times=2)

    result = tx.rewind(2, reason="go back")

    assert proxy.wait_for_cuts()
    assert (result.next_step_id, result.generation) == (2, 2)
    proxy.cut_replies(b"give up", times=2)
    tx.rollback("give up")
    assert proxy.wait_for_cuts()
    assert client.get_transaction(tx.transaction_id).status is TransactionStatus.ROLLED_BACK


def test_a_failed_steps_decision_is_not_made_twice_when_its_reply_is_lost(proxy, client, name):
    with client.transaction(agent_id="a") as tx:
        tx.step("kv.put", key=name, value=1)
        proxy.cut_replies(name.encode(), times=3)
        with pytest.raises(StepRolledBack) as raised:
            tx.call("sample.fail", {"message": "no"}, request_id=name)
        assert proxy.wait_for_cuts()
        assert raised.value.outcome.replayed
        assert client.get_transaction(tx.transaction_id).generation == 2
        tx.rollback()


def test_a_group_whose_reply_is_lost_runs_once(proxy, client, name):
    with client.transaction(agent_id="a") as tx:
        proxy.cut_replies(name.encode(), times=2)
        outcomes = tx.group([call("sample.inc", key=f"{name}/{n}") for n in range(3)])
        assert proxy.wait_for_cuts()
        assert [outcome.step_id for outcome in outcomes] == [1, 2, 3]
    assert [entry.value for entry in client.scan_state(name)] == [1, 1, 1]


def test_a_stream_that_is_cut_at_random_moments_runs_every_step_once(proxy, client, name):
    with client.transaction(agent_id="a") as tx, tx.stream() as steps:
        for number in range(200):
            if number % 23 == 11:
                proxy.cut_all()
            steps.submit("sample.inc", key=name, by=1)
    assert client.get_state(name).value == 200


def test_a_watch_is_gapless_over_cuts(proxy, client, name):
    with client.transaction(agent_id="a") as tx, tx.stream() as steps:
        for number in range(50):
            steps.submit("kv.put", key=name, value=number)
    seen = []
    for event in client.watch(tx.transaction_id):
        seen.append(event.sequence)
        if event.sequence % 10 == 0:
            proxy.cut_all()
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) >= 52


def test_a_step_that_outlasts_its_caller_is_recorded_and_settled(server, connect, name, tmp_path: Path):
    client = connect(server.address, retry=RetryPolicy(overall_timeout_seconds=1, attempt_timeout_seconds=1))
    gate = tmp_path / "gate"
    tx = client.transaction(agent_id="a").begin()

    with pytest.raises(DeadlineExceeded):
        tx.step("sample.wait_for_file", path=str(gate), value=name)
    gate.touch()
    patient = connect(server.address)
    (outcome,) = _settled(tx)

    assert outcome.output == name
    (attempt,) = patient.list_steps(tx.transaction_id)
    assert attempt.tries == 1
    tx.commit()


def _settled(tx):
    """Settle, as often as it takes: the caller's time is short on purpose."""
    for _ in range(100):
        try:
            return tx.settle()
        except DeadlineExceeded:
            continue
    raise AssertionError("never settled")


def test_attempts_that_run_out_find_their_step_again(server, connect, name, tmp_path: Path):
    client = connect(server.address, retry=RetryPolicy(attempt_timeout_seconds=0.2, max_backoff_seconds=0.05))
    gate = tmp_path / "gate"
    with client.transaction(agent_id="a") as tx:
        timer = threading.Timer(0.7, gate.touch)
        timer.start()
        outcome = tx.step("sample.wait_for_file", path=str(gate), value=name)
        timer.join()
        assert outcome.output == name
        (attempt,) = client.list_steps(tx.transaction_id)
        assert attempt.tries == 1


def test_outputs_up_to_the_limit_come_and_beyond_it_the_step_fails_once(client):
    with client.transaction(agent_id="a") as tx:
        assert len(tx.step("sample.large", size=3_900_000)["text"]) == 3_900_000
        for size in (4_300_000, 20_000_000):
            with pytest.raises(StepRolledBack) as raised:
                tx.step("sample.large", size=size)
            assert raised.value.category == "resource_exhausted"
        assert tx.step("sample.echo", value=1).succeeded
        pages = list(client.list_steps(tx.transaction_id))
        assert len(pages) >= 3


def test_arguments_beyond_the_limit_are_refused_and_the_transaction_goes_on(client):
    with client.transaction(agent_id="a") as tx:
        assert tx.step("sample.echo", value="x" * 1_000_000).succeeded
        for size in (1_100_000, 9_000_000):
            with pytest.raises((LimitExceeded, Exception)) as raised:
                tx.step("sample.echo", value="x" * size)
            assert raised.value.code.name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
        assert tx.step("sample.echo", value=1).step_id == 2


def test_a_server_that_is_killed_and_started_again_goes_on(tmp_path: Path, connect, name):
    data = tmp_path / "data"
    with server_process(data, tools="tests.support.sample_tools") as first:
        client = connect(first.address)
        tx = client.transaction(agent_id="a").begin()
        tx.step("kv.put", key=name, value=1)
        first.kill()
        restarted: list[object] = []

        def restart():
            context = server_process(data, tools="tests.support.sample_tools", listen=first.address)
            restarted.append((context, context.__enter__()))

        thread = threading.Thread(target=restart)
        thread.start()
        try:
            tx.step("kv.put", key=f"{name}/2", value="${steps.1.value}")
            tx.commit()
            assert client.get_state(f"{name}/2").value == 1
        finally:
            thread.join()
            for context, _ in restarted:
                context.__exit__(None, None, None)


def test_a_server_that_stays_away_is_told_with_what_is_owed(tmp_path: Path, connect, name):
    with server_process(tmp_path / "data") as gone:
        client = connect(gone.address, retry=RetryPolicy(overall_timeout_seconds=0.5), connect_timeout=0.2)
        tx = client.transaction(agent_id="a").begin()
        gone.kill()
    with pytest.raises(Unavailable):
        tx.step("kv.put", key=name, value=1)
    with pytest.raises(ConnectionFailed):
        connect(gone.address, connect_timeout=0.1).health()
