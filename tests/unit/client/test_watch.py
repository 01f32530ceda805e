import grpc
import pytest
from tests.support.cutting_proxy import CuttingProxy
from tests.support.stub_server import Refusal, StubServer

from agenttx import EventType, NotFound, OutOfRange, RetryPolicy, RpcError, Unavailable
from agenttx.event_cursor import EventCursor
from agenttx.v1 import event_pb2
from agenttx.v1 import transaction_pb2 as pb


@pytest.fixture
def events(server: StubServer) -> None:
    for sequence in range(1, 11):
        server.events.append(
            event_pb2.TransactionEvent(
                sequence=sequence,
                transaction_id="tx-1",
                type=event_pb2.EVENT_TYPE_STEP_COMPLETED,
                step_id=sequence,
                payload_json=f'{{"n":{sequence}}}',
            )
        )


@pytest.mark.usefixtures("events")
def test_events_come_in_order_and_end_with_the_stream(client):
    seen = list(client.watch("tx-1"))

    assert [event.sequence for event in seen] == list(range(1, 11))
    assert seen[0].type is EventType.STEP_COMPLETED
    assert seen[2].payload == {"n": 3}


@pytest.mark.usefixtures("events")
def test_a_watch_can_begin_later(client):
    assert [event.sequence for event in client.watch("tx-1", from_sequence=8)] == [8, 9, 10]


@pytest.mark.usefixtures("events")
def test_a_watch_that_is_cut_goes_on_without_a_gap_or_a_repetition(server: StubServer, client):
    server.watch_cuts.extend([3, 0, 4])

    seen = [event.sequence for event in client.watch("tx-1")]

    assert seen == list(range(1, 11))
    assert [request.from_sequence for request in server.requests("WatchTransaction")] == [1, 4, 4, 8]


@pytest.mark.usefixtures("events")
def test_a_watch_survives_a_lost_connection(server: StubServer, connect):
    with CuttingProxy(server.port) as proxy:
        seen = []
        server.watch_cuts.extend([2] * 4)
        for event in connect(proxy.address).watch("tx-1"):
            seen.append(event.sequence)
            if event.sequence in (2, 5):
                proxy.cut_all()
    assert seen == list(range(1, 11))


@pytest.mark.usefixtures("events")
def test_events_that_come_again_are_left_out(server: StubServer, client):
    server.events[3:3] = server.events[1:3]

    assert [event.sequence for event in client.watch("tx-1")] == list(range(1, 11))


@pytest.mark.usefixtures("events")
def test_a_slow_reader_that_was_cut_watches_on_at_once(server: StubServer, client):
    server.refusals["WatchTransaction"].append(
        Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER", metadata={"last_sequence": "0"})
    )
    assert len(list(client.watch("tx-1"))) == 10


@pytest.mark.parametrize(
    ("refusal", "error_class"),
    [
        (Refusal(grpc.StatusCode.NOT_FOUND, "TRANSACTION_NOT_FOUND"), NotFound),
        (Refusal(grpc.StatusCode.OUT_OF_RANGE, "POSITION_PURGED"), OutOfRange),
    ],
)
def test_what_no_retry_helps_ends_the_watch(server: StubServer, client, refusal, error_class):
    server.refusals["WatchTransaction"].append(refusal)
    with pytest.raises(error_class):
        list(client.watch("tx-1"))


@pytest.mark.usefixtures("events")
def test_leaving_the_loop_ends_the_stream(server: StubServer, connect):
    client = connect(server.address)
    for _ in range(3):
        for event in client.watch("tx-1"):
            if event.sequence == 2:
                break
    assert client.get_transaction("tx-1")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_time_without_a_connection_counts_against_a_watch():
    clock = Clock()
    cursor = EventCursor("tx", 1, RetryPolicy(clock=clock, random=lambda: 0.0, overall_timeout_seconds=100))
    cut = Unavailable("x")

    # A stream may stand idle for hours before it is cut.
    for _ in range(3):
        cursor.open()
        clock.now += 10_000
        assert cursor.wait_after(cut) is not None

    # Cut again and again without an event, it is given up.
    for _ in range(9):
        cursor.open()
        clock.now += 11
        last = cursor.wait_after(cut)
    assert last is not None
    cursor.open()
    clock.now += 11
    assert cursor.wait_after(cut) is None


def test_an_event_starts_the_count_anew():
    clock = Clock()
    cursor = EventCursor("tx", 1, RetryPolicy(clock=clock, random=lambda: 0.0, max_attempts=2))
    for sequence in range(1, 6):
        cursor.open()
        cursor.take(pb.WatchTransactionResponse(event=event_pb2.TransactionEvent(sequence=sequence)))
        assert cursor.wait_after(Unavailable("x")) is not None
    cursor.open()
    assert cursor.wait_after(RpcError("x")) is None
