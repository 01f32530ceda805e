"""A server that is killed around an HTTP request with an undo: what the service keeps, once the next one is up.

The points: before the request (its undo is registered), after it (the answer is there and not recorded), after
what the undo needs of the answer is recorded, and in the middle of undoing.
"""

from __future__ import annotations

import time

import pytest
from tests.support.http_service import BookingService, booking_service
from tests.support.running_server import server_process, start_process

import agenttx
from agenttx import TransactionInfo, TransactionStatus

POINTS = {
    "registered, not sent": "write.after:undo_registration=kill@1",
    "answered, not recorded": "write.before:undo_registration=kill@2",
    "recorded": "write.after:undo_registration=kill@2",
}


def settings(service: BookingService) -> dict[str, object]:
    return {
        "http_allow": "http://127.0.0.1:*",
        "http_private_networks": "127.0.0.1/32",
        "http_idempotent_hosts": service.url if service.honours_keys else "",
        "compensation_retries": 1,
    }


def kill_in_a_booking(tmp_path, service: BookingService, point: str, undo: dict[str, object]) -> str:
    """Have a server die at a point of a booking; return the transaction."""
    failpoints = {"AGENTTX_FAILPOINTS": point}
    process = start_process(tmp_path, failpoints, **settings(service))
    try:
        address = process.wait_for_event("serving")["address"]
        with agenttx.Client(address, retry=agenttx.RetryPolicy(max_attempts=1)) as client:
            tx = client.transaction(agent_id="booker").begin()
            with pytest.raises(agenttx.AgentTxError):
                tx.step(
                    "http.request",
                    method="POST",
                    url=f"{service.url}/bookings",
                    body={"room": "1"},
                    undo=undo,
                )
            return tx.transaction_id
    finally:
        process.kill()


def settled(client: agenttx.Client, transaction_id: str) -> TransactionInfo:
    """Return the transaction once recovery is through with it: a start waits for it only so long."""
    deadline = time.monotonic() + 60
    while True:
        info = client.get_transaction(transaction_id)
        held = info.rollback_incomplete
        if info.status is TransactionStatus.ACTIVE or held:
            return info
        assert time.monotonic() < deadline, info
        time.sleep(0.05)


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS.keys())
def test_where_keys_are_honoured_one_booking_is_left_and_it_can_be_undone(tmp_path, point):
    undo = {"method": "DELETE", "url": "${response.headers.location}"}
    with booking_service(honours_keys=True) as service:
        transaction_id = kill_in_a_booking(tmp_path, service, point, undo)
        with (
            server_process(tmp_path, **settings(service)) as server,
            agenttx.Client(server.address) as client,
        ):
            # Recovery undid the booking and made it anew.
            assert settled(client, transaction_id).next_step_id == 2
            assert len(service.bookings) == 1
            client.resume(transaction_id).rollback()
        assert service.bookings == {}
        booked = [request for request in service.requests if request.method == "POST"]
        assert len({request.headers["idempotency-key"] for request in booked}) == 2


def test_what_was_recorded_of_the_answer_is_enough_where_keys_are_not_honoured(tmp_path):
    undo = {"method": "DELETE", "url": "${response.headers.location}"}
    with booking_service() as service:
        transaction_id = kill_in_a_booking(tmp_path, service, POINTS["recorded"], undo)
        assert list(service.bookings) == ["b-1"]
        with (
            server_process(tmp_path, **settings(service)) as server,
            agenttx.Client(server.address) as client,
        ):
            client.resume(transaction_id).rollback()
        assert service.bookings == {}


@pytest.mark.parametrize("point", ["registered, not sent", "answered, not recorded"])
def test_where_nobody_can_know_nothing_is_repeated_and_a_person_is_told(tmp_path, point):
    undo = {"method": "DELETE", "url": "${response.headers.location}"}
    with booking_service() as service:
        transaction_id = kill_in_a_booking(tmp_path, service, POINTS[point], undo)
        seen = len(service.requests)
        with (
            server_process(tmp_path, **settings(service)) as server,
            agenttx.Client(server.address) as client,
        ):
            assert settled(client, transaction_id).status is TransactionStatus.ROLLING_BACK
            (held,) = client.list_compensations()
            assert "not known" in str(held)
            client.resolve_compensation(
                transaction_id, held.compensation_id, "UNDONE", note="looked, cancelled by phone"
            )
        assert [request.method for request in service.requests[:seen]] == ["POST"] * seen


def test_an_undo_that_needs_no_answer_is_sent_whatever_was_recorded(tmp_path):
    undo = {"method": "POST", "url": "{base}/echo", "body": {"cancel": "${idempotency_key}"}}
    with booking_service() as service:
        undo["url"] = f"{service.url}/echo"
        kill_in_a_booking(tmp_path, service, POINTS["answered, not recorded"], undo)
        with server_process(tmp_path, **settings(service)):
            pass
        assert [request.path for request in service.requests[:3]] == ["/bookings", "/echo", "/bookings"]
