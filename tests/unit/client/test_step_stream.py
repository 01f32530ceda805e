# ruff: noqa: PT012 - how a block ends is what is tested here, and a block has statements
import threading

import grpc
import pytest
from tests.support.cutting_proxy import CuttingProxy
from tests.support.stub_server import Refusal, StubServer

from agenttx import (
    Client,
    DeadlineExceeded,
    InvalidValue,
    RetryPolicy,
    StepRolledBack,
    StepSkipped,
    StreamOpen,
    TransactionAborted,
    Unavailable,
)


def test_steps_go_over_one_stream_in_order(server: StubServer, client):
    with client.transaction(agent_id="a") as tx:
        tx.step("echo", n=0)
        with tx.stream() as steps:
            outcomes = [steps.step("echo", n=n) for n in range(1, 50)]
        assert [outcome["n"] for outcome in outcomes] == list(range(1, 50))
        assert tx.next_step_id == 51
        tx.step("echo", n=50)

    assert [arguments["n"] for _, _, arguments in server.runs] == list(range(51))
    assert len(server.requests("ExecuteStep")) == 2
    assert server.status == "COMMITTED"


def test_steps_sent_ahead_refer_to_one_another_before_they_have_run(server: StubServer, client):
    with client.transaction(agent_id="a") as tx:
        with tx.stream() as steps:
            first = steps.submit("echo", id=1)
            second = steps.submit("echo", owner=first.ref("id"), whole=first)
            assert (first.step_id, second.step_id) == (1, 2)
            assert second.result().output == {"owner": "${steps.1.id}", "whole": "${steps.1}"}
            assert first.result()["id"] == 1
        assert tx.next_step_id == 3


def test_many_more_steps_than_fit_at_once_can_be_sent_ahead(server: StubServer, client):
    with client.transaction(agent_id="a") as tx:
        with tx.stream() as steps:
            for n in range(500):
                steps.submit("echo", n=n)
        assert tx.next_step_id == 501
    assert len(server.runs) == 500


def test_a_failure_skips_what_was_sent_behind_it_and_the_stream_goes_on(server: StubServer, client):
    server.tools["fail"] = lambda **_: server.rolled_back(1, "Hint: x")
    with client.transaction(agent_id="a") as tx:
        with tx.stream() as steps:
            first = steps.submit("echo", n=1)
            failing = steps.submit("fail")
            behind = [steps.submit("echo", n=n) for n in (3, 4)]
            assert first.result()["n"] == 1
            with pytest.raises(StepRolledBack):
                failing.result()
            for skipped in behind:
                with pytest.raises(StepSkipped) as raised:
                    skipped.result()
                assert raised.value.failed_step_id == 2
            again = steps.step("echo", n=9)
            assert again.step_id == 1
        assert tx.next_step_id == 2
    assert [arguments.get("n") for _, _, arguments in server.runs] == [1, None, 9]
    assert server.status == "COMMITTED"


def test_what_is_submitted_after_an_unread_failure_goes_where_it_belongs(server: StubServer, client):
    server.tools["fail"] = lambda **_: server.rolled_back(1, "Hint: x")
    with client.transaction(agent_id="a") as tx, tx.stream() as steps:
        failing = steps.submit("fail")
        with pytest.raises(StepRolledBack):
            failing.result()
        submitted = [steps.submit("echo", n=n) for n in range(3)]
        assert [one.result().step_id for one in submitted] == [1, 2, 3]


def test_a_failure_nobody_asked_for_is_raised_at_the_end_of_the_block(server: StubServer, client):
    server.tools["fail"] = lambda **_: server.rolled_back(1, "Hint: x")

    with pytest.raises(StepRolledBack), client.transaction(agent_id="a") as tx, tx.stream() as steps:
        steps.submit("fail")
        steps.submit("echo")

    assert server.status == "ROLLED_BACK"


def test_an_abort_over_the_stream_ends_the_transaction(server: StubServer, client):
    server.tools["fail"] = lambda **_: server.aborted("Hint: x", "no budget")

    with pytest.raises(TransactionAborted), client.transaction(agent_id="a") as tx, tx.stream() as steps:
        behind = steps.submit("fail")
        steps.submit("echo")
        behind.result()

    assert tx.ended
    assert server.requests("RollbackTransaction") == []


def test_a_stream_that_is_cut_is_mended_and_nothing_runs_twice(server: StubServer, connect):
    with CuttingProxy(server.port) as proxy, connect(proxy.address).transaction(agent_id="a") as tx:
        with tx.stream() as steps:
            for n in range(60):
                if n % 20 == 10:
                    proxy.cut_all()
                steps.submit("echo", n=n)
                if n % 7 == 0:
                    steps.step("echo", n=-n)
        runs = [arguments["n"] for _, _, arguments in server.runs]
        assert sorted(runs) == sorted([*range(60), *[-n for n in range(60) if n % 7 == 0]])
        assert [step for step, _, _ in server.runs] == list(range(1, len(runs) + 1))


def test_a_stream_that_the_server_ends_while_draining_is_opened_again(server: StubServer, client):
    server.refusals["ExecuteSteps"].append(Refusal(grpc.StatusCode.UNAVAILABLE, "DRAINING", "cut"))
    with client.transaction(agent_id="a") as tx, tx.stream() as steps:
        outcomes = [steps.submit("echo", n=n) for n in range(5)]
        assert [outcome.result()["n"] for outcome in outcomes] == list(range(5))
    assert len(server.runs) == 5


def test_a_refusal_for_now_of_one_step_holds_up_those_behind_it(server: StubServer, client):
    server.refusals["ExecuteSteps"].append(
        Refusal(grpc.StatusCode.UNAVAILABLE, "DATABASE_UNAVAILABLE", retry_after=0.001)
    )
    with client.transaction(agent_id="a") as tx, tx.stream() as steps:
        outcomes = [steps.submit("echo", n=n) for n in range(5)]
        assert [outcome.result().step_id for outcome in outcomes] == [1, 2, 3, 4, 5]
    assert [arguments["n"] for _, _, arguments in server.runs] == list(range(5))


def test_a_refused_step_raises_its_error_and_skips_the_rest(server: StubServer, client):
    server.refusals["ExecuteSteps"].append(
        Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "STEP_LIMIT", metadata={"limit": "9"})
    )
    from agenttx import LimitExceeded

    with client.transaction(agent_id="a") as tx, tx.stream() as steps:
        first, second = steps.submit("echo"), steps.submit("echo")
        with pytest.raises(LimitExceeded) as raised:
            first.result()
        assert raised.value.metadata == {"limit": "9"}
        with pytest.raises(StepSkipped):
            second.result()
        assert steps.step("echo").step_id == 1


def test_what_is_never_answered_is_owed_and_settled_in_order(server: StubServer, connect):
    gate = server.gates["slow"] = threading.Event()
    server.tools["slow"] = lambda: 1
    client = connect(server.address, retry=RetryPolicy(overall_timeout_seconds=1, attempt_timeout_seconds=1))
    tx = client.transaction(agent_id="a").begin()

    with pytest.raises(DeadlineExceeded), tx.stream() as steps:
        steps.submit("slow")
        steps.submit("echo", n=2).result()
    gate.set()
    outcomes = tx.settle()

    assert [outcome.step_id for outcome in outcomes] == [1, 2]
    assert len(server.runs) == 2
    assert tx.step("echo").step_id == 3


def test_a_connection_that_stays_lost_is_told(server: StubServer, connect):
    with CuttingProxy(server.port) as proxy:
        client = connect(proxy.address, retry=RetryPolicy(max_attempts=3, initial_backoff_seconds=0.001))
        tx = client.transaction(agent_id="a").begin()
        with tx.stream() as steps:
            steps.step("echo")
            proxy.refuse()
            with pytest.raises(Unavailable):
                steps.step("echo")


def test_an_argument_that_cannot_be_sent_disturbs_nothing(server: StubServer, client):
    with client.transaction(agent_id="a") as tx, tx.stream() as steps:
        first = steps.submit("echo", n=1)
        with pytest.raises(InvalidValue):
            steps.submit("echo", n=float("nan"))
        second = steps.submit("echo", n=2)
        assert (first.result().step_id, second.result().step_id) == (1, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda tx: tx.step("echo"),
        lambda tx: tx.commit(),
        lambda tx: tx.refresh(),
        lambda tx: tx.stream().__enter__(),
    ],
)
def test_other_calls_inside_the_block_are_refused_and_do_not_wait_for_ever(server: StubServer, call):
    with Client(server.address) as client, client.transaction(agent_id="a") as tx, tx.stream() as steps:
        steps.step("echo")
        with pytest.raises(StreamOpen):
            call(tx)
        steps.step("echo")


def test_another_threads_calls_wait_until_the_block_ends(server: StubServer, client):
    order = []
    with client.transaction(agent_id="a") as tx:
        with tx.stream() as steps:
            waiter = threading.Thread(target=lambda: order.append(tx.step("echo").step_id))
            waiter.start()
            order.append(steps.step("echo").step_id)
            order.append(steps.step("echo").step_id)
        waiter.join()
    assert order == [1, 2, 3]
