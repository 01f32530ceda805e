# ruff: noqa: PT012 - how a block ends is what is tested here, and a block has statements
"""A call whose reply is lost, late or refused for now: sent again, and never done twice."""

import threading

import grpc
import pytest
from tests.support.cutting_proxy import CuttingProxy
from tests.support.stub_server import Refusal, StubServer

from agenttx import (
    CommitConflict,
    ConnectionFailed,
    DeadlineExceeded,
    LimitExceeded,
    RetryPolicy,
    StepExecuting,
    StepUnsettled,
    Unavailable,
)

UNAVAILABLE = Refusal(grpc.StatusCode.UNAVAILABLE, "DATABASE_UNAVAILABLE", retry_after=0.001)


@pytest.fixture
def proxy(server: StubServer):
    with CuttingProxy(server.port) as proxy:
        yield proxy


def test_a_step_whose_reply_was_lost_five_times_ran_once(server: StubServer, proxy, connect):
    with connect(proxy.address).transaction(agent_id="a") as tx:
        proxy.cut_replies(b"request-1", times=5)

        outcome = tx.call("echo", {"v": 1}, request_id="request-1")

        assert proxy.wait_for_cuts()
        assert outcome.output == {"v": 1}
        assert outcome.replayed
        assert outcome.step_id == 1
    assert server.runs == [(1, "echo", {"v": 1})]
    sent = server.requests("ExecuteStep")
    assert len(sent) == 6
    assert len({request.SerializeToString() for request in sent}) == 1


def test_a_begin_whose_reply_was_lost_began_one_transaction(server: StubServer, proxy, connect):
    client = connect(proxy.address)
    client.connect()
    proxy.cut_replies(b"the-agent", times=2)

    tx = client.transaction(agent_id="the-agent").begin()

    assert proxy.wait_for_cuts()
    assert tx.transaction_id == "tx-1"
    assert server.transactions_begun == 1
    assert len(server.requests("BeginTransaction")) == 3


def test_a_commit_whose_reply_was_lost_is_answered_as_it_was(server: StubServer, proxy, connect):
    with connect(proxy.address).transaction(agent_id="a") as tx:
        tx.step("echo")
        proxy.cut_replies(tx.transaction_id.encode(), times=3)
        result = tx.commit()
        assert proxy.wait_for_cuts()

    assert result.steps_committed == 1
    sent = server.requests("CommitTransaction")
    assert len({request.request_id for request in sent}) == 1
    assert server.status == "COMMITTED"


def test_a_group_whose_reply_was_lost_ran_once(server: StubServer, proxy, connect):
    from agenttx import Step

    with connect(proxy.address).transaction(agent_id="a") as tx:
        proxy.cut_replies(b"member-2", times=2)
        outcomes = tx.group(
            [Step("echo", {"v": 1}, request_id="member-1"), Step("echo", {"v": 2}, request_id="member-2")]
        )
        assert proxy.wait_for_cuts()
    assert [outcome.output for outcome in outcomes] == [{"v": 1}, {"v": 2}]
    assert len(server.runs) == 2


def test_a_refusal_for_now_is_waited_out(server: StubServer, client):
    server.refusals["ExecuteStep"].extend([UNAVAILABLE, UNAVAILABLE])
    server.refusals["ExecuteStep"].append(
        Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after=0.001)
    )
    server.refusals["BeginTransaction"].append(UNAVAILABLE)
    server.refusals["CommitTransaction"].append(UNAVAILABLE)

    with client.transaction(agent_id="a") as tx:
        tx.step("echo")

    assert len(server.requests("ExecuteStep")) == 4
    assert len(server.runs) == 1
    assert server.status == "COMMITTED"


def test_a_limit_that_no_waiting_helps_is_told_at_once(server: StubServer, client):
    server.refusals["ExecuteStep"].append(Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "STEP_LIMIT"))
    tx = client.transaction(agent_id="a").begin()

    with pytest.raises(LimitExceeded):
        tx.step("echo")

    assert len(server.requests("ExecuteStep")) == 1
    tx.step("echo")  # It was refused, so nothing is owed.


def test_a_request_larger_than_a_message_may_be_is_refused_and_the_transaction_goes_on(
    server: StubServer, client
):
    with client.transaction(agent_id="a") as tx:
        with pytest.raises(LimitExceeded):
            tx.step("echo", text="x" * (8 * 1024 * 1024))
        assert tx.step("echo", text="y" * (7 * 1024 * 1024)).succeeded
    assert server.status == "COMMITTED"


def test_a_step_that_outlasts_the_callers_time_goes_on_and_is_settled_later(server: StubServer, connect):
    gate = server.gates["slow"] = threading.Event()
    server.tools["slow"] = lambda **arguments: arguments
    client = connect(server.address, retry=RetryPolicy(overall_timeout_seconds=1, attempt_timeout_seconds=1))
    tx = client.transaction(agent_id="a").begin()

    with pytest.raises(DeadlineExceeded):
        tx.step("slow", v=1)
    with pytest.raises(StepUnsettled) as refused:
        tx.step("echo")
    assert (refused.value.step_id, refused.value.tool_name) == (1, "slow")
    with pytest.raises(StepUnsettled):
        tx.commit()
    gate.set()
    (outcome,) = tx.settle()

    assert outcome.output == {"v": 1}
    assert len(server.runs) == 1
    assert tx.settle() == ()
    tx.step("echo")
    tx.commit()


def test_a_single_attempts_deadline_is_not_the_end(server: StubServer, connect):
    gate = server.gates["slow"] = threading.Event()
    server.tools["slow"] = lambda: 1
    client = connect(
        server.address,
        retry=RetryPolicy(
            overall_timeout_seconds=30,
            attempt_timeout_seconds=0.1,
            initial_backoff_seconds=0.001,
            max_backoff_seconds=0.001,
        ),
    )
    tx = client.transaction(agent_id="a").begin()
    # The gate opens once the step has been sent again, so that the first attempt has certainly run out.
    echo = server.calls.append

    def count(entry):
        echo(entry)
        if len([rpc for rpc, _ in server.calls if rpc == "ExecuteStep"]) == 3:
            gate.set()

    server.calls = CallList(server.calls, count)

    outcome = tx.step("slow")

    assert outcome.output == 1
    assert len(server.runs) == 1
    assert len({request.request_id for request in server.requests("ExecuteStep")}) == 1


class CallList(list):
    def __init__(self, entries, on_append):
        super().__init__(entries)
        self._on_append = on_append

    def append(self, entry):
        super().append(entry)
        self._on_append(entry)


def test_leaving_the_block_with_an_unknown_outcome_rolls_back(server: StubServer, connect):
    gate = server.gates["slow"] = threading.Event()
    server.tools["slow"] = lambda: 1
    client = connect(server.address, retry=RetryPolicy(overall_timeout_seconds=1, attempt_timeout_seconds=1))

    with pytest.raises(StepUnsettled, match="was not committed"), client.transaction(agent_id="a") as tx:
        with pytest.raises(DeadlineExceeded):
            tx.step("slow")
        gate.set()

    assert server.status == "ROLLED_BACK"


def test_giving_up_says_how_often_it_was_tried(server: StubServer, connect):
    server.refusals["GetTransaction"].extend([UNAVAILABLE] * 3)
    client = connect(server.address, retry=RetryPolicy(max_attempts=3, initial_backoff_seconds=0))

    with pytest.raises(Unavailable) as raised:
        client.get_transaction("tx-1")

    assert raised.value.attempts == 3
    assert raised.value.reason == "DATABASE_UNAVAILABLE"


def test_waits_and_clock_can_be_given(server: StubServer, connect):
    waited = []

    async def wait_async(seconds):
        waited.append(seconds)

    client = connect(
        server.address,
        retry=RetryPolicy(
            initial_backoff_seconds=1, random=lambda: 0.5, sleep=waited.append, async_sleep=wait_async
        ),
    )
    server.refusals["GetTransaction"].append(Refusal(grpc.StatusCode.UNAVAILABLE, "DRAINING"))
    server.refusals["GetTransaction"].append(Refusal(grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_after=7))

    client.get_transaction("tx-1")

    assert waited == [0.5, 8.0]


def test_where_nothing_listens_the_error_names_the_address_soon(connect):
    client = connect("127.0.0.1:1", connect_timeout=0.2)

    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1") as raised:
        client.get_transaction("tx-1")

    assert raised.value.address == "127.0.0.1:1"
    assert isinstance(raised.value, Unavailable)


def test_where_nothing_listens_a_step_is_not_owed(connect):
    tx = connect("127.0.0.1:1", connect_timeout=0.05).transaction(agent_id="a")

    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            tx.step("echo")


def test_a_server_that_starts_a_moment_later_is_waited_for(connect):
    with CuttingProxy(1) as port_holder:
        address = port_holder.address
    client = connect(address, connect_timeout=20)
    started = []

    def start():
        started.append(StubServer(address))

    # Started from within the client's own wait: once it has found nothing there.
    timer = threading.Timer(0.2, start)
    timer.start()
    client.connect()
    timer.join()
    started[0].stop()


def test_a_server_that_restarts_is_found_again(server: StubServer, proxy, connect):
    with connect(proxy.address).transaction(agent_id="a") as tx:
        tx.step("echo")
        proxy.refuse()
        timer = threading.Timer(0.2, proxy.refuse, [False])
        timer.start()
        tx.step("echo")
        timer.join()
    assert len(server.runs) == 2


def test_a_conflict_is_never_retried_by_itself(server: StubServer, client):
    server.refusals["CommitTransaction"].append(
        Refusal(grpc.StatusCode.ABORTED, "COMMIT_CONFLICT", metadata={"key": "kv/a"})
    )
    tx = client.transaction(agent_id="a").begin()
    with pytest.raises(CommitConflict):
        tx.commit()
    assert len(server.requests("CommitTransaction")) == 1


def test_a_commit_that_is_asked_for_again_is_the_same_commit(server: StubServer, connect):
    client = connect(server.address, retry=RetryPolicy(max_attempts=1))
    server.refusals["CommitTransaction"].append(UNAVAILABLE)
    tx = client.transaction(agent_id="a").begin()

    with pytest.raises(Unavailable):
        tx.commit()
    tx.commit()

    first, second = server.requests("CommitTransaction")
    assert first.request_id == second.request_id


def test_a_commit_that_took_effect_although_its_answer_was_lost_is_told(server: StubServer, proxy, connect):
    client = connect(
        proxy.address, retry=RetryPolicy(max_attempts=1, initial_backoff_seconds=0, max_backoff_seconds=0)
    )
    with pytest.raises(Unavailable) as raised, client.transaction(agent_id="a") as tx:
        tx.step("echo")
        proxy.cut_replies(tx.transaction_id.encode())
        tx.commit()

    assert server.status == "COMMITTED"
    notes = getattr(raised.value, "__notes__", [])
    assert any("committed all the same" in n or "rolling" in n for n in notes)


def test_a_block_left_because_the_server_is_gone_does_not_wait_for_it_once_more(server: StubServer, connect):
    with CuttingProxy(server.port) as proxy:
        waited: list[float] = []

        async def wait_async(seconds: float) -> None:
            clock.now += seconds
            waited.append(seconds)

        clock = Clock(waited)
        client = connect(
            proxy.address,
            retry=RetryPolicy(
                overall_timeout_seconds=100,
                clock=clock,
                random=lambda: 1.0,
                sleep=clock.sleep,
                async_sleep=wait_async,
            ),
        )
        with pytest.raises(Unavailable) as raised, client.transaction(agent_id="a") as tx:
            proxy.refuse()
            tx.step("echo")

    assert 90 < sum(waited) <= 105
    assert any("rolling" in note for note in raised.value.__notes__)


class Clock:
    def __init__(self, waited: list[float]) -> None:
        self.now = 0.0
        self._waited = waited

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._waited.append(seconds)


def test_a_step_refused_because_another_request_runs_is_not_owed(server: StubServer, client):
    server.refusals["ExecuteStep"].append(
        Refusal(
            grpc.StatusCode.FAILED_PRECONDITION, "STEP_EXECUTING", metadata={"request_id": "somebody else's"}
        )
    )
    tx = client.transaction(agent_id="a").begin()
    with pytest.raises(StepExecuting):
        tx.step("echo")
    assert tx.step("echo").succeeded


def test_a_step_refused_because_it_runs_itself_is_owed(server: StubServer, client):
    server.refusals["ExecuteStep"].append(
        Refusal(grpc.StatusCode.FAILED_PRECONDITION, "STEP_EXECUTING", metadata={"request_id": "mine"})
    )
    tx = client.transaction(agent_id="a").begin()
    with pytest.raises(StepExecuting):
        tx.call("echo", {"n": 1}, request_id="mine")
    with pytest.raises(StepUnsettled):
        tx.step("echo")
    assert tx.settle()[0]["n"] == 1
